//! A broker in a process of its own, as an operator runs it: started by the command line, ended by signals, watched by its log.

use std::{
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tempfile::TempDir;

use super::{
    PATIENCE,
    client::{Client, Connect},
    eventually,
};

/// What the tests run with where they say nothing else: the default, if the durable engine was built.
pub const DURABILITY: &str = if cfg!(feature = "rocksdb") { "fsync" } else { "memory" };

/// How a broker is to be started.
pub struct Setup {
    dir: TempDir,
    args: Vec<OsString>,
    environment: Vec<(String, String)>,
    durability: &'static str,
    log_format: &'static str,
    /// Those of its configuration file.
    listeners: usize,
    /// The data directory is a file system of its own, of so many MiB.
    disk_mib: Option<u32>,
    /// The data directory is mounted read-only.
    read_only: bool,
    /// The data directory, where it is another one's.
    elsewhere: Option<PathBuf>,
}

impl Setup {
    /// One plain listener on a free port of 127.0.0.1, data in a new directory.
    pub fn new() -> Self {
        Self {
            dir: tempfile::Builder::new().prefix("pinnace-test-").tempdir().unwrap(),
            args: Vec::new(),
            environment: Vec::new(),
            durability: DURABILITY,
            log_format: "json",
            listeners: 0,
            disk_mib: None,
            read_only: false,
            elsewhere: None,
        }
    }

    /// The directory that holds `data/` and whatever the test puts beside it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file into the directory; gives its path.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// With `fsync`, `os` or `memory`.
    pub fn durability(self, durability: &'static str) -> Self {
        Self { durability, ..self }
    }

    /// With `json` or `human`.
    pub fn log_format(self, log_format: &'static str) -> Self {
        Self { log_format, ..self }
    }

    /// With a configuration file. Without listeners of its own it listens on a free port by flag.
    pub fn config(mut self, toml: &str) -> Self {
        let path = self.file("pinnace.toml", toml);
        self.args.extend(["--config".into(), path.into()]);
        self.listeners = toml.matches("[[listener]]").count();
        self
    }

    /// With its data on a file system of `mib` MiB, in a mount namespace of the broker's own.
    pub fn small_disk(mut self, mib: u32) -> Self {
        std::fs::create_dir(self.data_dir()).unwrap();
        self.disk_mib = Some(mib);
        self
    }

    /// With its data directory mounted read-only.
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// On this data directory.
    pub fn on(self, data_dir: &Path) -> Self {
        Self { elsewhere: Some(data_dir.to_owned()), ..self }
    }

    /// With one more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().into());
        self
    }

    /// With an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts it and waits until it listens.
    pub fn start(self) -> Broker {
        let mut broker = Broker { running: None, addresses: Vec::new(), log: Arc::default(), setup: self };
        broker.spawn();
        broker
    }

    /// Starts it and waits until it listens, or ends by itself: what it printed then, and its exit code.
    pub fn try_start(self) -> Result<Broker, Output> {
        let mut broker = Broker { running: None, addresses: Vec::new(), log: Arc::default(), setup: self };
        match broker.try_spawn() {
            Ok(()) => Ok(broker),
            Err(status) => {
                broker.reap();
                let stderr = broker.log_lines().join("\n").into_bytes();
                Err(Output { status, stdout: Vec::new(), stderr })
            }
        }
    }

    /// Runs it, expecting that it ends by itself: what it printed and its exit code.
    pub fn refused(self) -> Output {
        self.run_in_vain()
    }

    /// As [`Setup::refused`], of one that is kept.
    pub fn run_in_vain(&self) -> Output {
        let mut child = self.command().spawn().expect("the broker's program");
        let pid = Pid::from_child(&child);
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let out = std::thread::spawn(move || read_all(&mut out));
        let err = std::thread::spawn(move || read_all(&mut err));
        let Some(status) = wait(&mut child, PATIENCE) else {
            let _ = kill_process(pid, Signal::KILL);
            let _ = child.wait();
            panic!("the broker was to refuse the start, but runs: {}", String::from_utf8_lossy(&err.join().unwrap()));
        };
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }

    fn command(&self) -> Command {
        let mut command = match self.disk_mib {
            None if self.read_only => read_only(&self.data_dir()),
            None => pinnace(),
            Some(mib) => on_a_disk_of(mib, &self.data_dir()),
        };
        command.arg("serve").arg("--data-dir").arg(self.data_dir());
        command.args(["--durability", self.durability, "--log-format", self.log_format]);
        if self.listeners == 0 {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(&self.args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The data directory, before anything is mounted there.
    pub fn data_dir(&self) -> PathBuf {
        self.elsewhere.clone().unwrap_or_else(|| self.dir.path().join("data"))
    }
}

/// The program, without the surroundings of the one who runs the tests.
pub fn pinnace() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinnace"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PINNACE__") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
    command
}

/// The program behind a file system of its own.
fn on_a_disk_of(mib: u32, dir: &Path) -> Command {
    behind(&format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\""), dir)
}

/// The program, which cannot write there.
fn read_only(dir: &Path) -> Command {
    behind("mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\"", dir)
}

/// The program behind a mount of its own; its process is the one that is started.
fn behind(mount: &str, dir: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &format!("{mount} && exec \"$@\"")]);
    command.arg(dir).arg(env!("CARGO_BIN_EXE_pinnace"));
    command
}

/// Runs the program with these arguments to its end.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    pinnace().args(args).stdin(Stdio::null()).output().expect("the broker's program")
}

struct Running {
    child: Child,
    readers: Vec<JoinHandle<()>>,
}

/// A running broker; ended when it is dropped.
pub struct Broker {
    running: Option<Running>,
    addresses: Vec<SocketAddr>,
    log: Arc<Log>,
    setup: Setup,
}

impl Broker {
    /// One plain listener, no file.
    pub fn start() -> Self {
        Setup::new().start()
    }

    fn spawn(&mut self) {
        if let Err(status) = self.try_spawn() {
            panic!("the broker does not listen ({status}); its log:\n{}", self.log_lines().join("\n"));
        }
    }

    fn try_spawn(&mut self) -> Result<(), ExitStatus> {
        let mut child = self.setup.command().spawn().expect("the broker's program");
        let from = self.log.lines.lock().unwrap().len();
        let readers = [self.log.follow(child.stderr.take().unwrap()), self.log.follow(child.stdout.take().unwrap())];
        self.running = Some(Running { child, readers: readers.into() });
        let deadline = Instant::now() + PATIENCE;
        loop {
            let lines = self.log.since(from);
            self.addresses = lines.iter().filter_map(|line| listening(line)).collect();
            if self.addresses.len() >= self.setup.listeners.max(1) {
                return Ok(());
            }
            if let Some(status) = self.running.as_mut().and_then(|running| running.child.try_wait().unwrap()) {
                return Err(status);
            }
            assert!(Instant::now() < deadline, "the broker does not listen; its log:\n{}", lines.join("\n"));
            self.log.wait(from + lines.len(), Duration::from_millis(100));
        }
    }

    /// The first listener.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// All listeners, in the order in which they were announced.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The port of the first listener.
    pub fn port(&self) -> u16 {
        self.address().port()
    }

    /// The directory of [`Setup::dir`].
    pub fn dir(&self) -> &Path {
        self.setup.dir()
    }

    /// The data directory, as this process sees it.
    pub fn data_dir(&self) -> PathBuf {
        let dir = self.setup.data_dir();
        match (self.setup.disk_mib, dir.strip_prefix("/")) {
            (Some(_), Ok(inside)) => {
                Path::new("/proc").join(self.pid().as_raw_nonzero().to_string()).join("root").join(inside)
            }
            _ => dir,
        }
    }

    /// Writes a file beside the data directory.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        self.setup.file(name, text)
    }

    /// A TCP connection on which nothing is said yet.
    pub fn tcp(&self) -> Client {
        Client::tcp(self.address())
    }

    /// Connects; the CONNECT must be accepted.
    pub fn connect(&self, connect: &Connect) -> Client {
        self.tcp().login(connect)
    }

    /// A v3.1.1 client with a clean session.
    pub fn v4(&self, client_id: &str) -> Client {
        self.connect(&Connect::v4(client_id))
    }

    /// A v5 client with a clean start.
    pub fn v5(&self, client_id: &str) -> Client {
        self.connect(&Connect::v5(client_id))
    }

    /// Connects, expecting a refusal: the CONNACK's code; the connection must end.
    pub fn refused(&self, connect: &Connect) -> u8 {
        let mut client = self.tcp();
        match client.try_login(connect) {
            Ok(super::Packet::ConnAck { code, session_present, .. }) => {
                assert_ne!(code, 0, "CONNECT of {:?} was to be refused", connect.client_id);
                assert!(!session_present, "a refusal has Session Present 0 [MQTT-3.2.2-6]");
                assert_eq!(client.closed(), None, "no DISCONNECT after a refusing CONNACK");
                code
            }
            other => panic!("CONNECT of {:?} was to be refused with a CONNACK, but {other:?}", connect.client_id),
        }
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.running.as_ref().expect("a running broker").child)
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(|running| running.child.try_wait().unwrap().is_none())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a running broker");
    }

    /// SIGKILL, and waits for the end.
    pub fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.reap();
    }

    /// SIGTERM, and waits for the end, which must come by itself.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits for the process to end.
    pub fn ended(&mut self) -> ExitStatus {
        let running = self.running.as_mut().expect("a running broker");
        let status = wait(&mut running.child, PATIENCE).unwrap_or_else(|| panic!("the broker does not end"));
        self.reap();
        status
    }

    fn reap(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.wait();
            for reader in running.readers {
                let _ = reader.join();
            }
        }
    }

    /// Starts it again on the same data, after it was ended. The port changes.
    pub fn restart(&mut self) {
        assert!(self.running.is_none(), "end it first");
        self.spawn();
    }

    /// SIGHUP, and waits until the log says what came of it; gives that line.
    pub fn reload(&self) -> String {
        let from = self.log_len();
        self.signal(Signal::HUP);
        self.wait_log_from(from, "the outcome of the reload", |line| line.to_lowercase().contains("reload"))
    }

    /// Starts it again on the same data, after it was ended, where it is to refuse: its exit code and what it said.
    pub fn start_in_vain(&self) -> (Option<i32>, String) {
        assert!(self.running.is_none(), "end it first");
        let output = self.setup.run_in_vain();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// How many lines the log has.
    pub fn log_len(&self) -> usize {
        self.log.lines.lock().unwrap().len()
    }

    /// The log so far, over all starts.
    pub fn log_lines(&self) -> Vec<String> {
        self.log.since(0)
    }

    /// Waits for a line of the log that `wanted` takes.
    pub fn wait_log(&self, what: &str, wanted: impl FnMut(&str) -> bool) -> String {
        self.wait_log_from(0, what, wanted)
    }

    /// As [`Broker::wait_log`], from this line on.
    pub fn wait_log_from(&self, from: usize, what: &str, mut wanted: impl FnMut(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = from;
        loop {
            for line in self.log.since(seen) {
                seen += 1;
                if wanted(&line) {
                    return line;
                }
            }
            assert!(Instant::now() < deadline, "the log does not say it: {what}");
            self.log.wait(seen, Duration::from_millis(100));
        }
    }

    /// One request over the control socket: the status code and the JSON.
    pub fn control(&self, method: &str, path: &str) -> (u16, Json) {
        control(&self.data_dir().join("control.sock"), method, path).expect("a control socket")
    }

    /// What `pinnace status` is fed with.
    pub fn status(&self) -> Json {
        let (code, json) = self.control("GET", "/v1/status");
        assert_eq!(code, 200, "{json}");
        json
    }

    /// A number of the status, found by its key: a metric of that name, else one anywhere.
    pub fn status_number(&self, key: &str) -> u64 {
        let status = self.status();
        status["metrics"]
            .get(key)
            .or_else(|| find(&status, key))
            .and_then(Json::as_u64)
            .unwrap_or_else(|| panic!("no number {key:?} in {status}"))
    }

    /// Waits until a number of the status is as wanted.
    pub fn until_status(&self, key: &str, mut wanted: impl FnMut(u64) -> bool) {
        eventually(&format!("{key} in the status"), || wanted(self.status_number(key)).then_some(()));
    }

    /// Resident memory of the process, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid().as_raw_nonzero())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// CPU time of the process so far.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid().as_raw_nonzero())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.running.is_some() {
            let _ = kill_process(self.pid(), Signal::KILL);
            self.reap();
        }
        let lines = self.log_lines();
        if std::thread::panicking() {
            let last = lines.len().saturating_sub(60);
            println!("the broker's log, last lines:\n{}", lines[last..].join("\n"));
        } else if let Some(line) = lines.iter().find(|line| line.contains("panicked at")) {
            panic!("the broker panicked: {line}");
        }
    }
}

/// What a broker says of itself that may not be there yet.
pub fn try_status(socket: &Path) -> Option<Json> {
    control(socket, "GET", "/v1/status").ok().map(|(_, status)| status)
}

fn control(socket: &Path, method: &str, path: &str) -> std::io::Result<(u16, Json)> {
    let mut socket = UnixStream::connect(socket)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
    let answer = String::from_utf8(read_all(&mut socket)).unwrap();
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    // A chunked body carries its lengths; the JSON is what stands between the outermost braces.
    let json = body.find('{').zip(body.rfind('}')).map_or("null", |(from, to)| &body[from..=to]);
    Ok((code, serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {answer}"))))
}

/// The first value with this key, at any depth.
pub fn find<'a>(json: &'a Json, key: &str) -> Option<&'a Json> {
    match json {
        Json::Object(map) => map.get(key).or_else(|| map.values().find_map(|value| find(value, key))),
        Json::Array(list) => list.iter().find_map(|value| find(value, key)),
        _ => None,
    }
}

/// The address in a log line that says where the broker listens, in either format.
fn listening(line: &str) -> Option<SocketAddr> {
    let Ok(json) = serde_json::from_str::<Json>(line) else {
        return line.contains("listening").then(|| line.split_once("address=")?.1.split(' ').next()?.parse().ok())?;
    };
    (find(&json, "message")?.as_str()? == "listening").then(|| find(&json, "address")?.as_str()?.parse().ok())?
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Condvar,
}

impl Log {
    fn follow(self: &Arc<Self>, from: impl Read + Send + 'static) -> JoinHandle<()> {
        let log = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
                log.lines.lock().unwrap().push(String::from_utf8_lossy(&line).into_owned());
                log.grown.notify_all();
            }
        })
    }

    fn since(&self, from: usize) -> Vec<String> {
        self.lines.lock().unwrap().get(from..).unwrap_or_default().to_vec()
    }

    /// Until it has more than `seen` lines, for a while at most.
    fn wait(&self, seen: usize, patience: Duration) {
        let lines = self.lines.lock().unwrap();
        drop(self.grown.wait_timeout_while(lines, patience, |lines| lines.len() <= seen).unwrap());
    }
}

fn read_all(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    bytes
}

/// Waits for a process to end, up to `patience`.
pub fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
