//! Who comes in: user names and passwords, and whose a session is.

use std::{
    io::Write,
    path::Path,
    process::{Output, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha512};

use crate::support::{Client, Connect, Lost, PATIENCE, Packet, Setup, broker, client::publish_of, tools, wire};

/// A line of a password file in mosquitto's oldest form, which is quick to verify.
pub fn password_line(user: &str, password: &[u8]) -> String {
    let salt = b"twelve bytes";
    let hash = Sha512::new().chain_update(password).chain_update(salt).finalize();
    format!("{user}:$6${}${}\n", BASE64_STANDARD.encode(salt), BASE64_STANDARD.encode(hash))
}

/// A broker with users, each with the password `secret of NAME`.
pub fn with_users(users: &[&str]) -> Setup {
    let lines: String = users.iter().map(|user| password_line(user, format!("secret of {user}").as_bytes())).collect();
    let setup = Setup::new();
    setup.file("passwords", lines);
    setup.config(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nallow_anonymous = false\n[auth]\npassword_file = \"passwords\"\n",
    )
}

/// A CONNECT of a user of [`with_users`].
pub fn login(connect: Connect, user: &str) -> Connect {
    connect.login(user, format!("secret of {user}"))
}

fn passwd(args: &[&str], file: &Path, user: &str, input: &[u8]) -> Output {
    let mut command = broker::pinnace();
    command.arg("passwd").args(args).arg(file).arg(user);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// Right and wrong logins; a refusal is 5 or 4 before v5, 0x86 or 0x87 in v5. A running client and its session are not disturbed by a
/// failed login with its id (D05) [MQTT-3.1.4-2], [MQTT-3.2.2-6], [MQTT-3.2.2-7]. What is sent behind a
/// refused CONNECT has no effect [MQTT-3.1.4-6].
#[test]
fn a_failed_login_disturbs_nobody() {
    let broker = with_users(&["ann", "bob"]).start();
    let mut watcher = broker.connect(&login(Connect::v5("watcher"), "ann"));
    watcher.subscribe("will", 0);
    for level in 3..=5 {
        let good =
            login(Connect::new(level, "device"), "ann").persistent().will(crate::support::Will::new("will", "x"));
        let mut device = broker.connect(&good);
        device.subscribe("t", 1);
        let refused: &[u8] = if level == 5 { &[0x86, 0x87] } else { &[4, 5] };
        let cases = [
            good.clone().login("ann", "wrong"),
            good.clone().login("ann", ""),
            good.clone().login("ann", "secret of ann "),
            good.clone().login("nobody", "secret of ann"),
            good.clone().login("bob", "secret of ann"),
            Connect { username: None, password: None, ..good.clone() },
            Connect { password: None, ..good.clone() },
        ];
        for case in cases {
            for clean in [false, true] {
                let code = broker.refused(&case.clone().clean(clean));
                assert!(refused.contains(&code), "{code:#x} at level {level}");
            }
        }
        let mut hasty = broker.tcp();
        let mut bytes = good.clone().login("ann", "wrong").encode();
        bytes.extend(wire::publish(level == 5, &publish_of("t", "without a right", 0)));
        hasty.speak_v5(level == 5);
        hasty.send(&bytes);
        assert!(matches!(hasty.receive(), Packet::ConnAck { code, .. } if code != 0));
        hasty.closed();
        device.ping();
        watcher.publish("t", "still subscribed", 1);
        assert_eq!(device.text(), "still subscribed");
        device.ping();
        device.disconnect();
        let device = broker.connect(&good);
        assert_eq!(device.session_present(), level > 3, "MQTT 3.1 has no Session Present");
        device.disconnect();
        watcher.nothing();
        broker.connect(&good.clean(true)).disconnect();
    }
}

/// Passwords are bytes, compared over their full length (D07) [MQTT-3.1.3.6].
#[test]
fn passwords_are_bytes() {
    let long = vec![0xa5; 65_535];
    let users: [(&str, &[u8]); 4] = [("nul", b"ab\0c"), ("binary", &[0, 0xff, 0]), ("long", &long), ("empty", b"")];
    let setup = Setup::new();
    setup.file("passwords", users.map(|(user, password)| password_line(user, password)).concat());
    let broker =
        setup.config("[session]\nmax_packet_size_bytes = 300000\n[auth]\npassword_file = \"passwords\"\n").start();
    for (user, password) in users {
        broker.connect(&Connect::v4(user).login(user, password)).ping();
    }
    for (user, password) in
        [("nul", &b"ab"[..]), ("binary", b""), ("binary", b"\0"), ("long", &long[1..]), ("empty", b"\0")]
    {
        assert!([4, 5].contains(&broker.refused(&Connect::v4("x").login(user, password))), "{user}");
    }
}

/// `pinnace passwd` makes, changes and removes entries (argon2id) without an echo, in a file of mode 0600, and leaves the rest alone; the
/// broker takes them up with a reload, as it does what `mosquitto_passwd` writes.
#[test]
fn passwords_are_made_and_taken_up() {
    use std::os::unix::fs::PermissionsExt;
    let broker = with_users(&["ann"]).start();
    let file = broker.dir().join("passwords");
    let before = std::fs::read_to_string(&file).unwrap();
    let output = passwd(&[], &file, "new", b"first\nnot this");
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("first"), "no echo");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with(&before) && text.contains("new:$argon2id$"), "{text}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let status =
        std::process::Command::new("mosquitto_passwd").arg("-b").arg(&file).args(["theirs", "their secret"]).output();
    assert!(status.expect("apt-get install mosquitto").status.success());
    assert!([4, 5].contains(&broker.refused(&Connect::v4("x").login("new", "first"))), "before the reload");
    broker.reload();
    for (user, password) in [("ann", "secret of ann"), ("new", "first"), ("theirs", "their secret")] {
        broker.connect(&Connect::v4(user).login(user, password)).ping();
        assert!([4, 5].contains(&broker.refused(&Connect::v4("x").login(user, format!("{password}?")))));
    }
    // A removed user gets in no more (D114).
    assert!(passwd(&["--delete"], &file, "new", b"").status.success());
    broker.reload();
    assert!([4, 5].contains(&broker.refused(&Connect::v4("x").login("new", "first"))));
    broker.connect(&login(Connect::v4("x"), "ann")).ping();
    assert!(!passwd(&["--delete"], &file, "new", b"").status.success(), "not there");
    let fresh = broker.dir().join("fresh");
    assert!(!passwd(&[], &fresh, "x", b"y").status.success(), "not made without --create");
    assert!(passwd(&["--create"], &fresh, "x", b"y").status.success());
}

/// A password file that is not right lets nobody in: it stops the start, with the place (D113), and changes nothing at a reload (D112).
#[test]
fn a_wrong_password_file_lets_nobody_in() {
    let wrong: [&[u8]; 6] = [b"ann\n", b"ann:\n", b"ann:secret\n", b"ann:$9$x$y\n", b"ann:$6$!!$x\n", b"\xff\xfe\0"];
    for bytes in wrong {
        let setup = Setup::new();
        setup.file("passwords", [password_line("bob", b"x").as_bytes(), bytes].concat());
        let output = setup.config("[auth]\npassword_file = \"passwords\"\n").refused();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("passwords:2:"), "{}: {said}", bytes.escape_ascii());
    }
    let broker = with_users(&["ann"]).start();
    for bytes in wrong {
        broker.file("passwords", bytes);
        assert!(broker.reload().contains("passwords"), "the log names the file");
        broker.connect(&login(Connect::v4("x"), "ann")).ping();
        assert!([4, 5].contains(&broker.refused(&Connect::v4("x").login("ann", "wrong"))));
    }
    std::fs::remove_file(broker.dir().join("passwords")).unwrap();
    std::fs::create_dir(broker.dir().join("passwords")).unwrap();
    broker.reload();
    broker.connect(&login(Connect::v4("x"), "ann")).ping();
    let setup = Setup::new();
    std::fs::create_dir(setup.dir().join("passwords")).unwrap();
    let output = setup.config("[auth]\npassword_file = \"passwords\"\n").refused();
    assert!(!output.status.success(), "a directory (D143)");
}

/// A session belongs to who made it: another identity with its client id is refused, and neither sees nor disturbs it (D42).
#[test]
fn a_session_belongs_to_its_identity() {
    let broker = with_users(&["ann", "bob"]).start();
    for (level, refusal) in [(4, 5), (5, 0x87)] {
        let anns = login(Connect::new(level, "device"), "ann").persistent();
        let mut ann = broker.connect(&anns);
        ann.subscribe("private", 1);
        for online in [true, false] {
            for clean in [false, true] {
                let bobs = login(Connect::new(level, "device"), "bob").persistent().clean(clean);
                assert_eq!(broker.refused(&bobs), refusal, "online: {online}, clean: {clean}");
            }
            if online {
                ann.ping();
                ann.send(&crate::support::wire::DISCONNECT);
                ann.closed();
            }
        }
        let mut publisher = broker.connect(&login(Connect::v4("publisher"), "bob"));
        publisher.publish("private", "for ann", 1);
        let mut ann = broker.connect(&anns);
        assert!(ann.session_present());
        assert_eq!(ann.text(), "for ann");
        ann.disconnect();
        broker.connect(&anns.clean(true)).disconnect();
    }
    // An anonymous client is an identity too; and a volatile session is no prey either while its client is there.
    let mut ann = broker.connect(&login(Connect::v5("volatile"), "ann"));
    assert_eq!(broker.refused(&login(Connect::v5("volatile"), "bob")), 0x87);
    ann.ping();
}

/// With real clients: the right password, the wrong one, none.
#[test]
fn mosquitto_clients_log_in() {
    let broker = with_users(&["ann"]).start();
    let mut sub = tools::MosquittoSub::subscribed(broker.port(), ["-t", "t", "-u", "ann", "-P", "secret of ann"]);
    tools::publish(broker.port(), ["-t", "t", "-m", "hello", "-q", "1", "-u", "ann", "-P", "secret of ann"]);
    assert_eq!(sub.message(), "t 0 0 hello");
    for version in ["mqttv311", "mqttv5"] {
        for wrong in [&["-u", "ann", "-P", "wrong"][..], &["-u", "ann"], &[]] {
            let args = [&["-t", "t", "-m", "x", "-V", version], wrong].concat();
            let output = tools::mosquitto_pub(broker.port(), args);
            assert!(!output.status.success(), "{wrong:?}: {output:?}");
        }
    }
}

/// Where two listeners differ, a reload does not mix them up (D142).
#[test]
fn each_listener_keeps_its_rules() {
    let setup = Setup::new();
    setup.file("passwords", password_line("ann", b"secret of ann"));
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\nallow_anonymous = true\n\
                  [[listener]]\naddress = \"127.0.0.2:0\"\nallow_anonymous = false\n[auth]\npassword_file = \"passwords\"\n";
    let broker = setup.config(config).start();
    let of = |ip: &str| *broker.addresses().iter().find(|address| address.ip().to_string() == ip).unwrap();
    for _ in 0..3 {
        Client::tcp(of("127.0.0.1")).login(&Connect::v4("x")).ping();
        match Client::tcp(of("127.0.0.2")).try_login(&Connect::v4("x")) {
            Ok(Packet::ConnAck { code, .. }) => assert!([4, 5].contains(&code)),
            other => panic!("{other:?}"),
        }
        Client::tcp(of("127.0.0.2")).login(&login(Connect::v4("anns"), "ann")).ping();
        broker.reload();
    }
}

/// A verification of a password that takes long holds up nobody who is in.
#[test]
fn verifying_holds_up_nobody() {
    let broker = with_users(&["ann"]).start();
    let file = broker.dir().join("passwords");
    assert!(passwd(&[], &file, "slow", b"argon2id").status.success());
    broker.reload();
    let mut inside = broker.connect(&login(Connect::v4("inside"), "ann"));
    let mut waiting: Vec<Client> = (0..8)
        .map(|n| {
            let mut client = broker.tcp();
            client.send(&Connect::v4(&format!("slow-{n}")).login("slow", "wrong").encode());
            client
        })
        .collect();
    let began = std::time::Instant::now();
    inside.ping();
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
    for client in &mut waiting {
        match client.try_receive(PATIENCE * 3) {
            Ok(Packet::ConnAck { code, .. }) => assert!([4, 5].contains(&code)),
            Err(Lost::Closed) => {}
            other => panic!("{other:?}"),
        }
    }
}
