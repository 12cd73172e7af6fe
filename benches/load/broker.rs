//! The brokers as processes: start on a free port with data in a new directory, CPU time and memory out of `/proc`, end.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Pinnace,
    Mosquitto,
    /// A relay without logic, which shows what the sockets alone cost.
    Wirelimit,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pinnace => "pinnace",
            Self::Mosquitto => "mosquitto",
            Self::Wirelimit => "wirelimit",
        }
    }

    pub fn parse(name: &str) -> Result<Self, String> {
        [Self::Pinnace, Self::Mosquitto, Self::Wirelimit]
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("no broker {name:?}"))
    }

    /// The relay forwards QoS 1 as QoS 0, which is no comparison.
    pub fn speaks(self, qos: u8) -> bool {
        qos == 0 || self != Self::Wirelimit
    }

    /// What the program says of its version.
    pub fn version(self) -> String {
        let (program, argument) = match self {
            Self::Pinnace => (pinnace(), "--version"),
            Self::Mosquitto => ("mosquitto".into(), "-h"),
            Self::Wirelimit => return String::new(),
        };
        let output = Command::new(program).arg(argument).output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).lines().next().unwrap_or("?").to_owned()
    }

    fn command(self, durability: &str, port: u16, dir: &TempDir) -> io::Result<Command> {
        let port = port.to_string();
        let mut command = match self {
            Self::Pinnace => {
                let mut command = Command::new(pinnace());
                command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--durability", durability]);
                command.arg("--data-dir").arg(dir.path().join("data"));
                command
            }
            Self::Mosquitto => {
                let config = dir.path().join("mosquitto.conf");
                std::fs::write(&config, format!("listener {port} 127.0.0.1\n{MOSQUITTO}"))?;
                let mut command = Command::new("mosquitto");
                command.arg("-c").arg(config);
                command
            }
            Self::Wirelimit => {
                let mut command = Command::new(wirelimit().unwrap_or_else(|| "wirelimit".into()));
                command.args(["--port", &port]);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(dir.path().join("log"))?);
        Ok(command)
    }
}

/// Its default, where the durable engine was built.
pub const DURABILITY: &str = if cfg!(feature = "rocksdb") { "fsync" } else { "memory" };

/// Its defaults but for the bounds at which it would drop QoS 1 messages of this load.
pub const MOSQUITTO: &str = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 1000\nuser root\n";

/// The build under test.
fn pinnace() -> PathBuf {
    std::env::var_os("PINNACE_BIN").map_or_else(|| env!("CARGO_BIN_EXE_pinnace").into(), PathBuf::from)
}

/// The relay's program.
pub fn wirelimit() -> Option<PathBuf> {
    std::env::var_os("PINNACE_WIRELIMIT").map(PathBuf::from)
}

/// A running broker, ended when dropped.
pub struct Process {
    kind: Kind,
    durability: String,
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    dir: TempDir,
}

impl Process {
    /// Starts it and waits until it takes connections. `durability` is pinnace's.
    pub fn start(kind: Kind, durability: &str) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let child = spawn(kind, durability, address, &dir)?;
        let mut process = Self { kind, durability: durability.to_owned(), child, address, dir };
        process.wait_until_it_listens()?;
        Ok(process)
    }

    /// Kills it and starts it again with the same data; how long that took.
    pub fn restart(&mut self) -> io::Result<Duration> {
        self.stop_for(Duration::ZERO)
    }

    /// As [`Self::restart`], with a pause between.
    pub fn stop_for(&mut self, pause: Duration) -> io::Result<Duration> {
        self.child.kill()?;
        self.child.wait()?;
        std::thread::sleep(pause);
        let begun = Instant::now();
        self.child = spawn(self.kind, &self.durability, self.address, &self.dir)?;
        self.wait_until_it_listens()?;
        Ok(begun.elapsed())
    }

    fn wait_until_it_listens(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(self.address).is_err() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(io::Error::other(format!("{} does not listen: {}", self.kind.name(), self.log())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What pinnace says of itself.
    pub fn status(&self) -> io::Result<serde_json::Value> {
        let socket = self.dir.path().join("data/control.sock");
        let output = Command::new(pinnace()).args(["status", "--json", "--socket"]).arg(socket).output()?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| io::Error::other(format!("{error}: {}", String::from_utf8_lossy(&output.stderr))))
    }

    /// The last lines of its log.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// User and system time of all its threads so far.
    pub fn cpu(&self) -> io::Result<Duration> {
        cpu_of(&self.child.id().to_string())
    }

    /// Resident memory.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most of it since the start.
    pub fn peak_bytes(&self) -> io::Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other(format!("no {field}")))
    }

    /// What its store takes on the disk.
    pub fn stored_bytes(&self) -> io::Result<u64> {
        let files = std::fs::read_dir(self.dir.path().join("data/store"))?;
        // One that is deleted meanwhile is none.
        Ok(files.filter_map(|file| file.ok()?.metadata().ok()).map(|file| file.len()).sum())
    }
}

fn spawn(kind: Kind, durability: &str, address: SocketAddr, dir: &TempDir) -> io::Result<Child> {
    kind.command(durability, address.port(), dir)?.spawn().map_err(|error| {
        io::Error::new(error.kind(), format!("{} cannot be started: {error} (apt-get install mosquitto?)", kind.name()))
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time of a process; `self` for this one. The kernel counts in ticks of 10 ms.
pub fn cpu_of(pid: &str) -> io::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// Raises the soft limit of open files to the hard one, which the brokers inherit; gives it.
pub fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    limit.maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}
