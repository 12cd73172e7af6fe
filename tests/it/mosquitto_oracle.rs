//! Mosquitto 2.0 itself as the oracle for the files that Pinnace reads in its formats.
//!
//! Generated ACL files are given to a real `mosquitto`, which is asked by raw MQTT 3.1.1 what each client may publish and
//! receive; `mosquitto_passwd` makes entries of password files. Where Pinnace is stricter on purpose (`auth/acl.rs` lists
//! it) nothing is generated: no empty user name, no name that begins with `$`, no publish to `$SYS`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pinnace::auth::{Access, Acl, Passwords, Who, acl::Options};
use pinnace::mqtt::TopicName;

#[test]
fn acl_files_mean_what_they_mean_to_mosquitto() {
    let seed = std::env::var("PINNACE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_130);
    println!("PINNACE_SEED={seed}");
    let mut random = Random(seed);
    for _ in 0..40 {
        let file = acl_file(&mut random);
        compare(&file);
    }
}

#[test]
fn mosquitto_passwds_entries_are_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("users");
    fs::write(&path, "").unwrap();
    let users =
        [("six", "sha512", "secret"), ("seven", "sha512-pbkdf2", "pässwörd: $7$"), ("sp ace", "sha512-pbkdf2", "x")];
    for (name, kind, password) in users {
        let status =
            Command::new("mosquitto_passwd").args(["-H", kind, "-b"]).arg(&path).args([name, password]).status();
        assert!(status.expect(INSTALL).success());
    }
    let passwords = Passwords::load(&path).unwrap();
    for (name, _, password) in users {
        assert!(passwords.verify(name, password.as_bytes()), "{name}");
        assert!(!passwords.verify(name, b"other") && !passwords.verify(name, b""), "{name}");
    }
}

/// Asks both what each client may do with each topic.
fn compare(file: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("acl");
    // The oracle, with rules of its own, sees everything and may publish everything.
    fs::write(&path, format!("{file}\nuser oracle\ntopic #\ntopic $x/#\n")).unwrap();
    let options = Options { client_id_with_slash_fills_pattern: true };
    let acl = Acl::load(&path, options).unwrap_or_else(|fault| panic!("{fault}\n{file}"));
    let mosquitto = Mosquitto::start(&path);

    let mut oracle = mosquitto.connect("oracle", Some("oracle"));
    oracle.subscribe();
    for (client_id, username) in CLIENTS {
        let mut client = mosquitto.connect(client_id, username);
        client.subscribe();
        client.publish_all("from client");
        client.received(); // all is processed
        let published = oracle.received();
        oracle.publish_all("from oracle");
        oracle.received();
        // What the client published itself came back to it too, and is told apart by its payload.
        let received = client.received();

        let who = Who { username, client_id };
        for topic in TOPICS {
            let name = TopicName::parse(topic).unwrap();
            let told =
                |topics: &BTreeSet<(String, String)>, from: &str| topics.contains(&(topic.to_owned(), from.to_owned()));
            for (access, theirs) in
                [(Access::Publish, told(&published, "from client")), (Access::Receive, told(&received, "from oracle"))]
            {
                let ours = acl.verdict(who, access, &name);
                assert_eq!(ours.allowed, theirs, "{who:?} {access:?} {topic}, line {:?} of\n{file}", ours.line);
            }
        }
    }
}

fn acl_file(random: &mut Random) -> String {
    let mut file = String::new();
    for _ in 0..random.below(24) {
        let indent = random.pick(&["", "", "", " "]);
        let blank = random.pick(&[" ", " ", "  "]);
        let access = random.pick(&["", "read ", "write ", "readwrite ", "deny ", "deny  "]);
        let end = random.pick(&["\n", "\n", "\r\n", " \t\n", "\n\n", "\n# user alice\n"]);
        let line = match random.below(8) {
            0 | 1 => format!("user{blank}{}", random.pick(&["alice", "dev/a", "sp ace", "b+c"])),
            2..=4 => format!("topic{blank}{access}{}", random.filter(&["t", "u", "alice", "%c", "$x"])),
            _ => format!("pattern{blank}{access}{}", random.filter(&["t", "%u", "%c", "%c%u", "x%cx", "alice"])),
        };
        file.push_str(&format!("{indent}{line}{end}"));
    }
    file
}

struct Random(u64);

impl Random {
    /// A number below `bound` (xorshift64*).
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(bits).unwrap() % bound
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn filter(&mut self, levels: &[&str]) -> String {
        let depth = 1 + self.below(3);
        let mut filter: Vec<&str> = (0..depth)
            .map(|_| match self.below(4) {
                0 => "+",
                _ => self.pick(levels),
            })
            .collect();
        if self.below(3) == 0 {
            filter.push("#");
        }
        filter.join("/")
    }
}

/// A running mosquitto that lets everyone in.
struct Mosquitto {
    process: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Mosquitto {
    fn start(acl: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mosquitto.conf");
        // Mosquitto cannot choose a free port itself; another process may take this one first, so try again.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let acl = acl.display();
            let config = format!(
                "listener {port} 127.0.0.1\nallow_anonymous true\nacl_file {acl}\nuser root\nset_tcp_nodelay true\n"
            );
            fs::write(&path, config).unwrap();
            let mut command = Command::new(if Path::new(DEBIAN).exists() { DEBIAN } else { "mosquitto" });
            command.arg("-c").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut process = command.spawn().expect(INSTALL);
            if is_serving(&mut process, port) {
                return Self { process, port, _directory: directory };
            }
        }
        panic!("mosquitto does not start");
    }

    fn connect(&self, client_id: &str, username: Option<&str>) -> Client {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut client = Client(socket);
        let mut body = b"\0\x04MQTT\x04".to_vec();
        body.extend_from_slice(&[0x02 | if username.is_some() { 0x80 } else { 0 }, 0, 0]);
        body.extend(string(client_id));
        body.extend(username.map(string).unwrap_or_default());
        client.send(0x10, &body);
        assert_eq!(client.packet(), (0x20, vec![0, 0]), "CONNACK for {client_id} {username:?}");
        client
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether `process` comes to listen on `port`, rather than end.
fn is_serving(process: &mut Child, port: u16) -> bool {
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline && process.try_wait().unwrap().is_none() {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// An MQTT 3.1.1 client that knows enough to ask.
struct Client(TcpStream);

impl Client {
    fn subscribe(&mut self) {
        self.send(0x82, &[&[0, 1][..], &string("#"), &[0], &string("$x/#"), &[0]].concat());
        assert_eq!(self.packet(), (0x90, vec![0, 1, 0, 0]), "mosquitto grants each subscription");
    }

    fn publish_all(&mut self, payload: &str) {
        for topic in TOPICS {
            self.send(0x30, &[string(topic), payload.as_bytes().to_vec()].concat());
        }
    }

    /// All messages that the broker has had for this client up to now, as topic and payload.
    fn received(&mut self) -> BTreeSet<(String, String)> {
        self.send(0xc0, &[]);
        let mut messages = BTreeSet::new();
        loop {
            let (kind, body) = self.packet();
            if kind == 0xd0 {
                return messages;
            }
            assert_eq!(kind, 0x30, "only PUBLISH with QoS 0 can come here");
            let end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            messages.insert((text(&body[2..end]), text(&body[end..])));
        }
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        let length = u8::try_from(body.len()).unwrap();
        assert!(length < 128);
        self.0.write_all(&[&[kind, length], body].concat()).unwrap();
    }

    fn packet(&mut self) -> (u8, Vec<u8>) {
        self.read_packet().expect("mosquitto answers in time")
    }

    fn read_packet(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut header = [0; 2];
        self.0.read_exact(&mut header)?;
        let mut body = vec![0; usize::from(header[1])];
        self.0.read_exact(&mut body)?;
        Ok((header[0], body))
    }
}

fn string(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap();
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

const CLIENTS: [(&str, Option<&str>); 10] = [
    ("c", Some("alice")),
    ("alice", Some("alice")),
    ("t", Some("dev/a")),
    ("c/d", Some("sp ace")),
    ("c", Some("nobody")),
    ("t", None),
    ("alice", None),
    ("c+", Some("alice")),
    ("c", Some("b+c")),
    ("#", None),
];

const TOPICS: [&str; 26] = [
    "t", "u", "alice", "c", "t/t", "t/u", "t/alice", "alice/c", "c/alice", "dev/a", "t/dev/a", "dev/a/t", "c/d",
    "t/c/d", "c/d/t", "sp ace", "calice", "xcx", "xcx/t", "%c", "%u/t", "/t", "t/", "$x/t", "$x", "t/u/t/u",
];

const DEBIAN: &str = "/usr/sbin/mosquitto";
const DEADLINE: Duration = Duration::from_secs(30);
const INSTALL: &str =
    "the packages mosquitto and mosquitto-clients are needed: apt-get install mosquitto mosquitto-clients";
