//! Clients that others wrote: `mosquitto_pub`, `mosquitto_sub` and Paho for Python, each as a process.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Instant,
};

use super::{PATIENCE, broker::wait};

const INSTALL_MOSQUITTO: &str = "this test drives real clients: apt-get install mosquitto-clients";
const INSTALL_PAHO: &str = "this test drives Paho: python3 -m venv DIR && DIR/bin/pip install paho-mqtt, then set PINNACE_TEST_PYTHON=DIR/bin/python";

/// Runs `mosquitto_pub` to its end.
pub fn mosquitto_pub<S: AsRef<OsStr>>(port: u16, args: impl IntoIterator<Item = S>) -> Output {
    let child = Command::new("mosquitto_pub")
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    finish(child.expect(INSTALL_MOSQUITTO))
}

/// Runs it; it must succeed.
pub fn publish<S: AsRef<OsStr>>(port: u16, args: impl IntoIterator<Item = S>) {
    let output = mosquitto_pub(port, args);
    assert!(output.status.success() && output.stderr.is_empty(), "mosquitto_pub: {output:?}");
}

fn finish(mut child: Child) -> Output {
    if wait(&mut child, PATIENCE).is_none() {
        let _ = child.kill();
        panic!("a client does not end: {:?}", child.wait_with_output());
    }
    child.wait_with_output().unwrap()
}

/// A running `mosquitto_sub`.
pub struct MosquittoSub {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

/// How a message is printed: `message TOPIC QOS RETAIN PAYLOAD`.
const FORMAT: &str = "message %t %q %r %p";

impl MosquittoSub {
    /// Starts it; does not wait.
    pub fn start<S: AsRef<OsStr>>(port: u16, args: impl IntoIterator<Item = S>) -> Self {
        // Its standard output is a pipe here, which it would fill before it writes.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "mosquitto_sub", "-d", "-F", FORMAT, "-h", "127.0.0.1", "-p", &port.to_string()])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect(INSTALL_MOSQUITTO);
        let (sender, lines) = channel();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let errors = sender.clone();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        std::thread::spawn(move || {
            BufReader::new(err).lines().map_while(Result::ok).try_for_each(|line| errors.send(line))
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// Starts it and waits until its subscription is granted.
    pub fn subscribed<S: AsRef<OsStr>>(port: u16, args: impl IntoIterator<Item = S>) -> Self {
        let mut sub = Self::start(port, args);
        sub.line("SUBACK", |line| line.contains("received SUBACK"));
        sub
    }

    /// The next line that `wanted` takes.
    pub fn line(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if wanted(&line) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("mosquitto_sub does not say {what}; it said {:?}", self.seen),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("mosquitto_sub ended before {what}; it said {:?}", self.seen)
                }
            }
        }
    }

    /// The next message: `TOPIC QOS RETAIN PAYLOAD`.
    pub fn message(&mut self) -> String {
        self.line("a message", |line| line.starts_with("message "))["message ".len()..].into()
    }

    /// Waits for its end; everything it said.
    pub fn end(mut self) -> (Option<i32>, Vec<String>) {
        let status = wait(&mut self.child, PATIENCE);
        let mut seen = std::mem::take(&mut self.seen);
        seen.extend(self.lines.iter());
        (status.unwrap_or_else(|| panic!("mosquitto_sub does not end: {seen:?}")).code(), seen)
    }

    /// Kills it, as a power cut would.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for MosquittoSub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a scenario of `tests/it/paho_client.py` against a port; it must succeed.
pub fn paho<S: AsRef<OsStr>>(port: u16, args: impl IntoIterator<Item = S>) {
    let python = std::env::var_os("PINNACE_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/paho_client.py");
    let child = Command::new(&python)
        .arg(script)
        .args(["--port", &port.to_string()])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let output = finish(child.expect(INSTALL_PAHO));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("No module named 'paho'"), "{INSTALL_PAHO}");
    assert!(output.status.success(), "Paho: {}\n{said}", String::from_utf8_lossy(&output.stdout));
}
