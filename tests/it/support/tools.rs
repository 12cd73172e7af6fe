//! Clients that others wrote: those of mosquitto, Paho for Python and mqtt.js, each as a process.

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

const INSTALL_MQTTJS: &str = "this test drives mqtt.js with Node.js 18 or later: npm ci in a copy of tests/clients, then set \
    PINNACE_TEST_NODE_MODULES to its node_modules; tests/run.sh does both";

/// A running program of mosquitto's.
pub struct Tool(Child);

impl Tool {
    /// Starts it against a port.
    pub fn start<S: AsRef<OsStr>>(program: &str, port: u16, args: impl IntoIterator<Item = S>) -> Self {
        let child = Command::new(program)
            .args(["-h", "127.0.0.1", "-p", &port.to_string()])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.expect(INSTALL_MOSQUITTO))
    }

    /// Waits for its end.
    pub fn end(self) -> Output {
        finish(self.0)
    }
}

/// Runs `mosquitto_pub` to its end.
pub fn mosquitto_pub<S: AsRef<OsStr>>(port: u16, args: impl IntoIterator<Item = S>) -> Output {
    Tool::start("mosquitto_pub", port, args).end()
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

/// Runs the scenario of `tests/clients/paho_client.py` against a port; it must succeed.
pub fn paho<S: AsRef<OsStr>>(port: u16, args: impl IntoIterator<Item = S>) {
    let python = std::env::var_os("PINNACE_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    command.arg(root().join("tests/clients/paho_client.py")).args(["--port", &port.to_string()]).args(args);
    scenario(command, "No module named 'paho'", INSTALL_PAHO);
}

/// Runs the scenario of `tests/clients/mqttjs_client.cjs` against a port; it must succeed.
pub fn mqttjs(port: u16, version: &str) {
    let modules = std::env::var_os("PINNACE_TEST_NODE_MODULES").map(PathBuf::from);
    let modules = modules.unwrap_or_else(|| root().join("target/test-node/node_modules"));
    let mut command = Command::new("node");
    command.arg(root().join("tests/clients/mqttjs_client.cjs")).args([&port.to_string(), version]);
    command.env("PINNACE_TEST_NODE_MODULES", modules);
    scenario(command, "Cannot find module", INSTALL_MQTTJS);
}

/// Runs `command`, which must succeed; where it cannot run, or says `missing`, something is to be installed.
fn scenario(mut command: Command, missing: &str, install: &str) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command.spawn().unwrap_or_else(|error| panic!("{error}: {install}")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(missing), "{install}");
    assert!(output.status.success(), "{command:?}: {}\n{said}", String::from_utf8_lossy(&output.stdout));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
