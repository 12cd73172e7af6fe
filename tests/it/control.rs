//! What an operator does: the control socket, status, reload, drain, signals, a second instance.

use std::{os::unix::fs::PermissionsExt, process::Output};

use rustix::process::Signal;

use crate::support::{
    Broker, Connect, PATIENCE, Packet, Setup, Will, broker, client::publish_of, eventually, wire::Publish,
};

fn ask(broker: &Broker, verb: &str) -> Output {
    broker::run([verb.as_ref(), "--data-dir".as_ref(), broker.data_dir().as_os_str()])
}

/// The socket is the owner's alone, and says by HTTP and JSON what `pinnace status` prints; unknown paths are 404.
#[test]
fn the_status_is_told() {
    let broker = Broker::start();
    let socket = broker.data_dir().join("control.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut client = broker.v5("client");
    client.subscribe("t", 1);
    client.publish_retained("t", "x", 1);
    client.message();
    client.ping();
    for (key, expected) in [("clients_connected", 1), ("sessions", 1), ("subscriptions", 1), ("retained_messages", 1)] {
        broker.until_status(key, |found| found == expected);
    }
    broker.until_status("messages_received", |count| count == 1);
    broker.until_status("messages_delivered", |count| count == 1);
    let status = broker.status();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["ready"], true);
    assert_eq!(status["storage"]["durability"], broker::DURABILITY);
    assert!(status["uptime_secs"].is_u64());
    assert_eq!(broker.control("GET", "/v1/nothing").0, 404);
    assert_eq!(broker.control("GET", "/v1/drain").0, 405, "GET changes nothing");
    let output = ask(&broker, "status");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains(env!("CARGO_PKG_VERSION")) && said.contains("retained"),
        "{output:?}"
    );
    let json = broker::run(["status".as_ref(), "--json".as_ref(), "--socket".as_ref(), socket.as_os_str()]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["version"], status["version"]);
    drop(client);
    broker.until_status("clients_connected", |clients| clients == 0);
}

/// `pinnace reload` says what is wrong, and exits with 1; so does every command to a broker that is not there.
#[test]
fn a_reload_tells_its_outcome() {
    let setup = Setup::new();
    setup.file("acl", "topic #\n");
    let mut broker = setup.config("[auth]\nacl_file = \"acl\"\n").start();
    assert!(ask(&broker, "reload").status.success());
    broker.file("acl", "nonsense\n");
    let output = ask(&broker, "reload");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("acl:1:"), "{output:?}");
    broker.v4("still").ping();
    broker.kill9();
    for verb in ["status", "reload", "drain"] {
        let output = ask(&broker, verb);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("no broker runs"), "{output:?}");
    }
    // What a killed broker leaves behind does not hinder the next one.
    broker.file("acl", "topic #\n");
    broker.restart();
    assert!(ask(&broker, "reload").status.success());
}

/// A reload is one step: a wrong file among right ones leaves all as it was.
#[test]
fn a_reload_is_whole_or_nothing() {
    let setup = Setup::new();
    let certs = setup.dir().join("certs");
    assert!(broker::run(["certs", "demo", certs.to_str().unwrap()]).status.success());
    setup.file("acl", "topic #\n");
    let tls =
        "address = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = \"certs/server.pem\"\nkey = \"certs/server.key\"\n";
    let plain = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let config = format!("{plain}[[listener]]\nallow_anonymous = true\n{tls}[auth]\nacl_file = \"acl\"\n");
    let broker = setup.config(&config).start();
    broker.file("acl", "topic deny #\n");
    broker.file("certs/server.key", "no key\n");
    let output = ask(&broker, "reload");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("server.key"), "{output:?}");
    let mut client = broker.v4("client");
    client.subscribe("t", 0);
    client.publish("t", "as before", 0);
    assert_eq!(client.text(), "as before");
}

/// SIGTERM, SIGINT and `pinnace drain` end the broker in order: v5 clients hear 0x8B, sessions are parked, exit code 0 (D122).
#[test]
fn an_orderly_end_tells_everybody() {
    for how in ["SIGTERM", "SIGINT", "drain"] {
        let mut broker = Broker::start();
        let mut modern = broker.connect(&Connect::v5("modern").persistent().will(Will::new("will", "x")));
        let mut old = broker.connect(&Connect::v4("old").persistent());
        let mut stuck = broker.v4("stuck");
        stuck.subscribe("t", 0);
        modern.subscribe("t", 1);
        match how {
            "SIGTERM" => broker.signal(Signal::TERM),
            "SIGINT" => broker.signal(Signal::INT),
            _ => assert!(ask(&broker, "drain").status.success()),
        }
        assert_eq!(modern.closed(), Some(0x8b), "{how}");
        assert_eq!(old.closed(), None);
        assert_eq!(broker.ended().code(), Some(0), "{how}");
        assert!(!broker.data_dir().join("control.sock").exists(), "the socket is gone");
        broker.restart();
        let present = broker.connect(&Connect::v4("old").persistent()).session_present();
        assert_eq!(present, broker::DURABILITY != "memory", "sessions are kept by a durable broker");
    }
}

/// A client that reads nothing does not hold up the end for longer than the grace.
#[test]
fn a_stuck_client_does_not_hold_up_the_end() {
    let mut broker = Setup::new().config("[server]\nshutdown_grace_secs = 1\n").start();
    let mut stuck = broker.v4("stuck");
    stuck.subscribe("t", 0);
    let mut publisher = broker.v4("publisher");
    let block = vec![0; 1 << 20];
    (0..40).for_each(|_| publisher.publish("t", &block, 0));
    publisher.publish("other", "x", 1);
    assert_eq!(broker.terminate().code(), Some(0));
    drop(stuck);
}

/// A second instance on the same port or the same data is refused with a clear message and an exit code that is not 0 (D144), and does not
/// disturb the first.
#[test]
fn a_second_instance_is_refused() {
    let broker = Broker::start();
    let output = Setup::new().config(&format!("[[listener]]\naddress = \"{}\"\n", broker.address())).refused();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(&broker.address().to_string()), "{said}");
    for durability in ["memory", broker::DURABILITY] {
        let mut command = broker::pinnace();
        command.args(["serve", "--listen", "127.0.0.1:0", "--durability", durability, "--data-dir"]);
        command.arg(broker.data_dir());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("in use"), "{said}");
    }
    broker.v4("undisturbed").ping();
    broker.status();
}

/// A broker that was stopped for a while goes on with the clients that pinged in time (D140).
#[test]
fn a_pause_of_the_process_disconnects_nobody() {
    let broker = Broker::start();
    let mut client = broker.connect(&Connect::v5("client").keep_alive(2));
    client.ping();
    broker.signal(Signal::STOP);
    let state = format!("/proc/{}/stat", broker.pid().as_raw_nonzero());
    eventually("a process that stands still", || {
        std::fs::read_to_string(&state).unwrap().contains(") T ").then_some(())
    });
    client.send(&crate::support::wire::PINGREQ);
    assert!(client.try_receive(std::time::Duration::from_secs(4)).is_err(), "the process stands still");
    broker.signal(Signal::CONT);
    assert_eq!(client.try_receive(PATIENCE).unwrap(), Packet::PingResp, "what came in time is served first");
    client.ping();
}

/// A message that no durable target needs never touches the disk; one that does is written (5 of the main job).
#[test]
fn what_nobody_keeps_is_not_written() {
    let broker = Broker::start();
    let mut subscriber = broker.v5("volatile");
    subscriber.subscribe("t", 2);
    let mut publisher = broker.v4("publisher");
    publisher.publish("t", "x", 1);
    subscriber.message();
    let operations = broker.status_number("operations");
    for qos in 0..3 {
        for _ in 0..50 {
            publisher.publish("t", "x", qos);
            subscriber.message();
        }
    }
    assert_eq!(broker.status_number("operations"), operations, "nothing to keep");
    publisher.publish_as(&Publish { retain: true, ..publish_of("t", "x", 0) });
    publisher.ping();
    broker.until_status("operations", |now| now > operations);
}
