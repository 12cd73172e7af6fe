//! Enhanced authentication (4.12) by SCRAM-SHA-256: at CONNECT, again in a running session, and what an operator does for it.

use std::{
    io::Write,
    process::{Output, Stdio},
};

use crate::{
    auth::password_line,
    support::{
        Broker, Client, Connect, Lost, PATIENCE, Packet, Setup, Value, Will, broker,
        certs::{Authority, tls_client},
        client::publish_of,
        scram::{METHOD, Scram, again, auth, by, challenge, challenged, go_on, try_login, verifier},
        wire::{self, property},
    },
};

/// Each user has the password `secret of NAME`: `ann` and `bob` by a verifier alone, `both` by a hash too, `hash` by a hash alone.
fn setup(more: &str) -> Setup {
    let setup = Setup::new();
    setup.file("passwords", users());
    setup.config(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nallow_anonymous = false\n[auth]\npassword_file = \"passwords\"\n{more}"
    ))
}

fn users() -> String {
    let line = |user: &str| password_line(user, format!("secret of {user}").as_bytes());
    format!(
        "ann:{}\nbob:{}\n{}:{}\n{}",
        verifier("secret of ann"),
        verifier("secret of bob"),
        line("both").trim_end(),
        verifier("secret of both"),
        line("hash")
    )
}

fn of(user: &str) -> Scram {
    Scram::new(user, &format!("secret of {user}"))
}

/// A client that was let in by SCRAM.
fn connected(broker: &Broker, connect: &Connect, user: &str) -> Client {
    let mut client = broker.tcp();
    match try_login(&mut client, connect, &mut of(user)) {
        Packet::ConnAck { code: 0, .. } => client,
        other => panic!("{user}: {other:?}"),
    }
}

fn code_of(connack: &Packet) -> u8 {
    let Packet::ConnAck { code, session_present: false, .. } = connack else { panic!("{connack:?}") };
    *code
}

/// Client and server prove to each other that they know the password; the server asks for more by AUTH 0x18 [MQTT-4.12.0-2], is answered by
/// AUTH 0x18 [MQTT-4.12.0-3], and names the method in each AUTH and in the CONNACK [MQTT-4.12.0-5], which says 0x00 [MQTT-3.1.4-5] and is the
/// first packet but AUTH [MQTT-3.2.0-1]. The client's first message may come with CONNECT or later.
#[test]
fn client_and_server_prove_who_they_are() {
    let broker = setup("").start();
    for user in ["ann", "both"] {
        for with_connect in [true, false] {
            for named in [true, false] {
                let (mut client, mut scram) = (broker.tcp(), of(user));
                let connect = if named { Connect::v5("x").username(user) } else { Connect::v5("x") };
                let challenged = if with_connect {
                    challenged(&mut client, &connect, &scram)
                } else {
                    client.speak_v5(true);
                    client.send(&by(connect, METHOD, None).encode());
                    assert_eq!(challenge(&mut client), b"", "asked for the first message");
                    client.send(&go_on(&scram.first()));
                    challenge(&mut client)
                };
                client.send(&go_on(&scram.last(&challenged)));
                let connack = client.receive();
                assert_eq!(code_of(&connack), 0);
                scram.check(&connack);
                client.subscribe("t", 1);
                client.publish("t", "in", 1);
                assert_eq!(client.text(), "in");
                client.disconnect();
            }
        }
        // A plain password opens the same entry.
        broker.connect(&Connect::v4("plain").login(user, format!("secret of {user}"))).disconnect();
        assert_eq!(broker.refused(&Connect::v4("plain").login(user, "secret")), 4);
    }
    assert_eq!(broker.status_number("logins_failed"), 2);
}

/// The user that is proven is the identity: its session is its own (D42), and survives like any other; Clean Start is processed
/// [MQTT-3.1.4-4].
#[test]
fn the_user_is_the_identity() {
    let setup = setup("acl_file = \"acl\"\n");
    setup.file("acl", "pattern readwrite of/%u/#\n");
    let broker = setup.start();
    let kept = Connect::v5("device").persistent();
    let mut client = connected(&broker, &kept, "ann");
    client.subscribe("of/ann/#", 1);
    assert_eq!(client.subscribe_all(&[("of/bob/#", 1)]), [0x87]);
    client.disconnect();
    for clean in [false, true] {
        assert_eq!(code_of(&try_login(&mut broker.tcp(), &kept.clone().clean(clean), &mut of("bob"))), 0x87);
    }
    let mut client = connected(&broker, &kept, "ann");
    assert!(client.session_present());
    client.publish("of/ann/x", "mine", 1);
    assert_eq!(client.text(), "mine");
    client.disconnect();
    // The same user by a plain password.
    let mut client = broker.connect(&kept.clone().login("ann", "secret of ann"));
    assert!(client.session_present());
    // This connection has no method: it cannot authenticate again [MQTT-4.12.0-7].
    client.send(&again(&of("ann").first()));
    assert_eq!(client.closed(), Some(0x82));
    assert!(!connected(&broker, &kept.clean(true), "ann").session_present());
}

/// A wrong password, an unknown user, one without a verifier, another user than CONNECT names: one answer, whose every byte but salt and
/// nonce is the same, and the close of the connection [MQTT-4.12.0-4].
#[test]
fn refusals_tell_nothing() {
    let broker = setup("").start();
    let attempt = |user: &str, password: &str, connect: &Connect| {
        let (mut client, mut scram) = (broker.tcp(), Scram::new(user, password));
        let challenged = challenged(&mut client, connect, &scram);
        client.send(&go_on(&scram.last(&challenged)));
        let refusal = client.receive_bytes();
        assert_eq!(client.closed(), None);
        let challenged = String::from_utf8(challenged).unwrap();
        let (_, salt_and_cost) = challenged.split_once(",s=").unwrap();
        let (salt, cost) = salt_and_cost.split_once(",i=").unwrap();
        (salt.to_owned(), cost.to_owned(), refusal)
    };
    let connect = Connect::v5("x");
    let (_, cost, refusal) = attempt("ann", "wrong", &connect);
    assert_eq!((cost.as_str(), code_of(&wire::decode(true, &refusal))), ("3", 0x86));
    for (user, password) in [("nobody", "secret of ann"), ("hash", "secret of hash"), ("n,=\u{e4}", ""), ("both", "")] {
        let first = attempt(user, password, &connect);
        assert_eq!((first.0.len(), &first.1, &first.2), (24, &cost, &refusal), "{user}");
        broker.reload();
        assert_eq!(attempt(user, password, &connect), first, "the same salt each time, for {user}");
    }
    let foreign = connect.clone().username("bob");
    assert_eq!(attempt("ann", "secret of ann", &foreign).2, refusal);
    assert_eq!(broker.status_number("logins_failed"), 10);
    // What comes behind a CONNECT that is refused has no effect [MQTT-3.1.4-6].
    let mut watcher = connected(&broker, &Connect::v5("watcher"), "bob");
    watcher.subscribe("#", 0);
    let (mut client, mut scram) = (broker.tcp(), Scram::new("ann", "wrong"));
    let challenged = challenged(&mut client, &connect.will(Will::new("will", "x")), &scram);
    client.send(&[go_on(&scram.last(&challenged)), wire::publish(true, &publish_of("t", "x", 0))].concat());
    assert_eq!(code_of(&client.receive()), 0x86);
    assert_eq!(client.closed(), None);
    watcher.nothing();
}

/// What is no SCRAM message, asks for channel binding or a mandatory extension, or wants to be somebody else.
#[test]
fn malformed_messages_are_refused() {
    let broker = setup("").start();
    let refused = |client: &mut Client| {
        assert_eq!(code_of(&client.receive()), 0x87);
        assert_eq!(client.closed(), None);
    };
    let firsts: [&[u8]; 9] = [
        b"",
        b"\xff",
        b"n,,r=x,n=ann",
        b"n,,n=a=nn,r=x",
        b"p=tls-exporter,,n=ann,r=x",
        b"n,,m=y,n=ann,r=x",
        b"n,a=bob,n=ann,r=x",
        b"n,,n=ann,r=\x7f",
        b"c=biws,r=x,p=AAAA",
    ];
    for first in firsts {
        let mut client = broker.tcp();
        client.speak_v5(true);
        client.send(&by(Connect::v5("x"), METHOD, Some(first)).encode());
        refused(&mut client);
    }
    type Change = fn(String) -> String;
    let lasts: [Change; 6] = [
        |_| String::new(),
        |last| last.replace("c=biws", "c=eSws"),
        |last| last.replace(",p=", "x,p="),
        |last| last.replace(",p=", ",m=x,p="),
        |last| last.split_once(",p=").unwrap().0.to_owned(),
        |last| last + "=",
    ];
    for change in lasts {
        let (mut client, mut scram) = (broker.tcp(), of("ann"));
        let challenged = challenged(&mut client, &Connect::v5("x"), &scram);
        client.send(&go_on(change(String::from_utf8(scram.last(&challenged)).unwrap()).as_bytes()));
        refused(&mut client);
    }
    let mut client = broker.tcp();
    challenged(&mut client, &Connect::v5("x"), &of("ann"));
    client.send(&auth(0x18, Some(METHOD), None));
    refused(&mut client);
    broker.tcp().login(&Connect::v5("x").login("ann", "secret of ann")).ping();
}

/// Between CONNECT and CONNACK only AUTH and DISCONNECT may come [MQTT-3.1.2-30], AUTH with 0x18 [MQTT-4.12.0-3] and the method of CONNECT
/// [MQTT-4.12.0-5]; the CONNACK tells what was wrong.
#[test]
fn before_connack_only_auth_may_come() {
    let broker = setup("").start();
    let cases = [
        ("PINGREQ", wire::PINGREQ.to_vec(), 0x82),
        ("PUBLISH", wire::publish(true, &publish_of("t", "x", 0)), 0x82),
        ("SUBSCRIBE", wire::subscribe(true, 1, &[], &[("t", 0)]), 0x82),
        ("CONNECT", Connect::v5("x").encode(), 0x82),
        ("re-authentication", again(&of("ann").first()), 0x82),
        ("another method", auth(0x18, Some("SCRAM-SHA-1"), Some(b"x")), 0x82),
        ("no method", auth(0x18, None, Some(b"x")), 0x82),
        ("success", auth(0, Some(METHOD), None), 0x82),
        ("the flags of AUTH", wire::packet(0xf1, &[0x18, 0]), 0x81),
        ("a property of another packet", wire::packet(0xf0, &[0x18, 5, 0x11, 0, 0, 0, 0]), 0x81),
        ("an AUTH that ends early", wire::packet(0xf0, &[0x18, 9, 0x15]), 0x81),
    ];
    for (what, packet, code) in cases {
        let mut client = broker.tcp();
        challenged(&mut client, &Connect::v5("x"), &of("ann"));
        client.send(&packet);
        assert_eq!(code_of(&client.receive()), code, "{what}");
        assert_eq!(client.closed(), None, "{what}");
    }
    // In one segment with what would have let it in.
    let (mut client, mut scram) = (broker.tcp(), of("ann"));
    let challenge = challenged(&mut client, &Connect::v5("x"), &scram);
    client.send(&[go_on(&scram.last(&challenge)), wire::PINGREQ.to_vec()].concat());
    assert_eq!(code_of(&client.receive()), 0x82);
    // Who leaves gets no answer.
    let mut client = broker.tcp();
    challenged(&mut client, &Connect::v5("x"), &of("ann"));
    client.send(&wire::DISCONNECT);
    assert_eq!(client.closed(), None);
    // One byte at a time is an AUTH too.
    let (mut client, mut scram) = (broker.tcp(), of("ann"));
    let challenge = challenged(&mut client, &Connect::v5("x"), &scram);
    go_on(&scram.last(&challenge)).iter().for_each(|byte| client.send(&[*byte]));
    assert_eq!(code_of(&client.receive()), 0);
}

/// A method that nobody knows, or that no password file stands behind: 0x8C (D18) [MQTT-4.12.0-1]. SCRAM needs no more than a file.
#[test]
fn unknown_methods_are_refused() {
    let with_file = setup("").start();
    let without = Broker::start();
    for (broker, method) in [
        (&with_file, "SCRAM-SHA-1"),
        (&with_file, "scram-sha-256"),
        (&with_file, "SCRAM-SHA-256-PLUS"),
        (&with_file, ""),
        (&without, METHOD),
    ] {
        assert_eq!(broker.refused(&by(Connect::v5("x"), method, Some(&of("ann").first()))), 0x8c, "{method}");
    }
    // A wrong proof is no anonymous client.
    let setup = Setup::new();
    setup.file("passwords", users());
    let open = setup
        .config(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nallow_anonymous = true\n[auth]\npassword_file = \"passwords\"\n",
        )
        .start();
    open.v5("anonymous").ping();
    assert_eq!(code_of(&try_login(&mut open.tcp(), &Connect::v5("x"), &mut Scram::new("ann", "wrong"))), 0x86);
}

/// AUTH is of MQTT 5.0 alone, and of a CONNECT with a method: in a session without one the server sends none, and takes none
/// [MQTT-4.12.0-6], [MQTT-4.12.0-7].
#[test]
fn auth_without_a_method() {
    let broker = setup("").start();
    for level in 3..=5 {
        let connect = Connect::new(level, "x").login("ann", "secret of ann");
        for packet in [again(&of("ann").first()), go_on(b"x")] {
            let mut client = broker.connect(&connect);
            assert_eq!(client.connack_property(property::AUTHENTICATION_METHOD), None);
            client.ping();
            client.send(&packet);
            assert_eq!(client.closed(), (level == 5).then_some(0x82), "level {level}");
        }
    }
}

/// A client proves again who it is, as often as it likes [MQTT-4.12.1-1]; its other packets flow meanwhile, and the end is AUTH 0x00 with the
/// method [MQTT-4.12.0-5], never a CONNACK (D18).
#[test]
fn a_running_session_authenticates_again() {
    let broker = setup("").start();
    let mut client = connected(&broker, &Connect::v5("x"), "ann");
    client.subscribe("t", 1);
    for with_first in [true, false, true] {
        let mut scram = of("ann");
        if with_first {
            client.send(&again(&scram.first()));
        } else {
            client.send(&auth(0x19, Some(METHOD), None));
            assert_eq!(challenge(&mut client), b"");
            client.send(&go_on(&scram.first()));
        }
        let challenged = challenge(&mut client);
        client.publish("t", "in the middle", 1);
        assert_eq!(client.text(), "in the middle");
        client.ping();
        client.send(&[wire::PINGREQ.to_vec(), go_on(&scram.last(&challenged)), wire::PINGREQ.to_vec()].concat());
        assert_eq!(client.receive(), Packet::PingResp);
        let done = client.receive();
        assert!(matches!(done, Packet::Auth { code: 0, .. }), "{done:?}");
        scram.check(&done);
        assert_eq!(client.receive(), Packet::PingResp);
        client.publish("t", "afterwards", 2);
        assert_eq!(client.text(), "afterwards");
    }
    client.nothing();
    assert_eq!(broker.status_number("logins_failed"), 0);
    client.disconnect();
}

/// Who does not prove it again is told 0x87 and cut off [MQTT-4.12.1-2]; its Will is published [MQTT-3.1.2-8]. So is who comes with another
/// user's password, though it is right, and who has the one of before a reload.
#[test]
fn a_failed_re_authentication_ends_the_connection() {
    let broker = setup("").start();
    let mut watcher = connected(&broker, &Connect::v5("watcher"), "bob");
    watcher.subscribe("will", 0);
    let doomed = || connected(&broker, &Connect::v5("x").will(Will::new("will", "it failed")), "ann");
    let mut failed = |mut client: Client| {
        assert_eq!(client.closed(), Some(0x87));
        assert_eq!(watcher.text(), "it failed");
    };
    for (user, password) in
        [("ann", "wrong"), ("nobody", "secret of ann"), ("bob", "secret of bob"), ("hash", "secret of hash")]
    {
        let (mut client, mut scram) = (doomed(), Scram::new(user, password));
        client.send(&again(&scram.first()));
        let challenged = challenge(&mut client);
        client.send(&go_on(&scram.last(&challenged)));
        failed(client);
    }
    let mut client = doomed();
    client.send(&again(b"not SCRAM"));
    failed(client);
    // What came before it is answered.
    let mut client = doomed();
    client.send(&[wire::subscribe(true, 9, &[], &[("a", 1)]), again(b"not SCRAM")].concat());
    assert!(matches!(client.receive(), Packet::SubAck { id: 9, .. }));
    failed(client);
    assert_eq!(broker.status_number("logins_failed"), 6);
    let (mut client, mut scram) = (doomed(), of("ann"));
    client.send(&again(&scram.first()));
    let challenged = challenge(&mut client);
    broker.file("passwords", format!("ann:{}\nbob:{}\n", verifier("changed"), verifier("secret of bob")));
    broker.reload();
    client.ping();
    client.send(&go_on(&scram.last(&challenged)));
    failed(client);
    broker.wait_log("why it ended", |line| line.contains("did not authenticate again"));
}

/// Another method [MQTT-4.12.1-1], AUTH 0x18 that nothing asked for [MQTT-4.12.0-3], and a second 0x19 while an exchange is under way are
/// Protocol Errors.
#[test]
fn re_authentication_out_of_turn() {
    let broker = setup("").start();
    let first = of("ann").first();
    let cases = [
        vec![auth(0x19, Some("SCRAM-SHA-1"), Some(&first))],
        vec![auth(0x19, None, Some(&first))],
        vec![go_on(&first)],
        vec![auth(0, Some(METHOD), None)],
        vec![again(&first), again(&first)],
        vec![again(&first), auth(0x18, Some("X"), Some(b"x"))],
        vec![Connect::v5("x").encode()],
    ];
    for packets in cases {
        let mut client = connected(&broker, &Connect::v5("x"), "ann");
        client.send(&packets.concat());
        assert_eq!(client.closed_eventually(), Some(0x82), "{packets:02x?}");
    }
}

/// The exchange is part of the time that a CONNECT may take; who stops in the middle is cut off, and leaves nothing behind.
#[test]
fn an_exchange_has_its_time() {
    let broker = setup("[session]\nconnect_timeout_secs = 1\n").start();
    let (mut early, mut late) = (broker.tcp(), broker.tcp());
    early.speak_v5(true);
    early.send(&by(Connect::v5("early"), METHOD, None).encode());
    assert_eq!(challenge(&mut early), b"");
    let mut scram = of("ann");
    let challenged = challenged(&mut late, &Connect::v5("late"), &scram);
    let began = std::time::Instant::now();
    for client in [&mut early, &mut late] {
        assert_eq!(client.closed(), None);
    }
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    let answer = late.try_send(&go_on(&scram.last(&challenged))).and_then(|()| late.try_receive(PATIENCE));
    assert!(matches!(answer, Err(Lost::Closed)), "{answer:?}");
    broker.until_status("connections_open", |open| open == 0);
    assert_eq!(broker.status_number("sessions"), 0);
    // Once connected, an exchange may take its time: the session goes on.
    let mut client = connected(&broker, &Connect::v5("x"), "ann");
    let mut scram = of("ann");
    client.send(&again(&scram.first()));
    let challenge = challenge(&mut client);
    let mut other = broker.tcp();
    other.speak_v5(true);
    assert_eq!(other.closed(), None, "a second has passed");
    client.send(&go_on(&scram.last(&challenge)));
    scram.check(&client.receive());
}

/// An AUTH carries neither a Reason String nor User Properties that could make it too large [MQTT-3.15.2-2], [MQTT-3.15.2-3]; a client that
/// takes no challenge at all is left.
#[test]
fn auth_is_not_larger_than_the_client_takes() {
    let broker = setup("").start();
    let scram = of("ann");
    let mut client = broker.tcp();
    client.speak_v5(true);
    client.send(&by(Connect::v5("x"), METHOD, Some(&scram.first())).encode());
    let size = client.receive_bytes().len() as u32;
    for (most, fits) in [(size, true), (size - 1, false)] {
        let mut client = broker.tcp();
        client.speak_v5(true);
        let connect = Connect::v5("x").property(property::MAXIMUM_PACKET_SIZE, Value::Four(most));
        client.send(&by(connect, METHOD, Some(&scram.first())).encode());
        if fits {
            challenge(&mut client);
        } else {
            assert_eq!(client.closed(), None);
        }
    }
}

/// A client certificate's name stands above the user that SCRAM proves; the proof must be right all the same.
#[test]
fn a_certificate_stands_above_the_user() {
    let setup = Setup::new();
    let ca = Authority::new(setup.dir(), "ca");
    let (server, device) = (ca.server(), ca.client("device-1"));
    setup.file("passwords", users());
    setup.file("acl", "pattern readwrite devices/%u/#\n");
    let broker = setup
        .config(&format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n\
             require_client_certificate = true\n[auth]\nacl_file = \"acl\"\npassword_file = \"passwords\"\n",
            server.certificate, server.key, ca.certificate
        ))
        .start();
    let tls = || Client::tls(broker.address(), tls_client(&ca.certificate, Some(&device)));
    let mut client = tls();
    assert_eq!(code_of(&try_login(&mut client, &Connect::v5("x"), &mut of("ann"))), 0);
    assert_eq!(client.subscribe_all(&[("devices/device-1/#", 0), ("devices/ann/#", 0)]), [0, 0x87]);
    let mut scram = of("ann");
    client.send(&again(&scram.first()));
    let challenged = challenge(&mut client);
    client.send(&go_on(&scram.last(&challenged)));
    scram.check(&client.receive());
    assert_eq!(code_of(&try_login(&mut tls(), &Connect::v5("x"), &mut Scram::new("ann", "wrong"))), 0x86);
}

fn passwd(args: &[&str], broker: &Broker, user: &str, password: &str) -> Output {
    let mut command = broker::pinnace();
    command.arg("passwd").args(args).arg(broker.dir().join("passwords")).arg(user);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// `pinnace passwd --scram` writes a verifier beside the hash, a reload takes it up, and it goes with the password or the user.
#[test]
fn an_operator_makes_verifiers() {
    let broker = setup("").start();
    let scram_code = |user: &str, password: &str| {
        code_of(&try_login(&mut broker.tcp(), &Connect::v5("x"), &mut Scram::new(user, password)))
    };
    let plain_code = |user: &str, password: &str| match broker.tcp().try_login(&Connect::v5("x").login(user, password))
    {
        Ok(Packet::ConnAck { code, .. }) => code,
        other => panic!("{other:?}"),
    };
    let set = |args: &[&str], user: &str, password: &str| {
        let output = passwd(args, &broker, user, password);
        assert!(output.status.success(), "{output:?}");
        broker.reload();
        String::from_utf8(output.stderr).unwrap()
    };
    // Typed in one form of Unicode, sent in another; a name with what SCRAM must encode.
    let (user, password) = ("new, one = 1", "p\u{e4}sswort \u{2168}");
    assert_eq!(scram_code(user, password), 0x86);
    assert_eq!(set(&["--scram"], user, password), "");
    assert_eq!((scram_code(user, "p\u{e4}sswort IX"), plain_code(user, password)), (0, 0));
    assert_eq!((scram_code(user, "wrong"), plain_code(user, "wrong")), (0x86, 0x86));
    let text = std::fs::read_to_string(broker.dir().join("passwords")).unwrap();
    assert!(text.starts_with(&users()) && text.contains("\nnew, one = 1:$argon2id$"), "{text}");
    assert!(text.contains(":SCRAM-SHA-256$15000:"), "{text}");
    // A user that had a hash alone.
    set(&["--scram"], "hash", "secret of hash");
    assert_eq!((scram_code("hash", "secret of hash"), plain_code("hash", "secret of hash")), (0, 0));
    // Without --scram the verifier goes, so that the old password opens nothing.
    assert!(set(&[], "hash", "changed").contains("--scram writes a new one"));
    assert_eq!((scram_code("hash", "secret of hash"), scram_code("hash", "changed")), (0x86, 0x86));
    assert_eq!((plain_code("hash", "secret of hash"), plain_code("hash", "changed")), (0x86, 0));
    // So it does where mosquitto's tool sets the password.
    set(&["--scram"], "hash", "changed");
    assert_eq!(scram_code("hash", "changed"), 0);
    let file = broker.dir().join("passwords");
    let status = std::process::Command::new("mosquitto_passwd").arg("-b").arg(&file).args(["hash", "theirs"]).status();
    assert!(status.expect("apt-get install mosquitto").success());
    broker.reload();
    assert_eq!((scram_code("hash", "changed"), plain_code("hash", "theirs")), (0x86, 0));
    set(&["--delete"], user, "");
    assert_eq!(scram_code(user, password), 0x86);
    assert_eq!(scram_code("ann", "secret of ann"), 0, "the others stand");
    // What SCRAM cannot take is refused, and changes nothing.
    for (user, password) in [("ann", "a\0b"), ("ann", "\u{ad}"), ("I\u{ad}X", "secret")] {
        let output = passwd(&["--scram"], &broker, user, password);
        assert!(!output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("secret"), "{output:?}");
    }
    assert_eq!(scram_code("ann", "secret of ann"), 0);
    // A file that is not right changes nothing (D112), and the place is told (D113).
    broker.file("passwords", format!("ann:{}\nbob:SCRAM-SHA-256$1:AAAA$AAAA:AAAA\n", verifier("other")));
    let said = broker.reload();
    assert!(said.contains("passwords:2:5: ") && said.contains("SCRAM"), "{said}");
    assert_eq!(scram_code("ann", "secret of ann"), 0);
}
