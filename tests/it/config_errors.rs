//! Options: files, variables, flags, and what is wrong with them.

use std::process::Output;

use crate::support::{Connect, Setup, Value, broker, wire::property};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every fault is told with file, line, column, key and the nearest valid key; exit code 2, by `serve` and by `config check` alike.
#[test]
fn faults_of_a_file_are_told_with_their_place() {
    let cases: [(&str, &[&str]); 15] = [
        ("[session]\nreceive_maximun = 5\n", &["pinnace.toml:2:", "receive_maximun", "receive_maximum"]),
        ("[sesion]\nreceive_maximum = 5\n", &["pinnace.toml:1:", "sesion", "session"]),
        ("[session]\nreceive_maximum = \"5\"\n", &["pinnace.toml:2:", "session.receive_maximum"]),
        ("[session]\nreceive_maximum = 0\n", &["pinnace.toml:2:", "session.receive_maximum"]),
        ("[session]\nreceive_maximum = 70000\n", &["pinnace.toml:2:", "session.receive_maximum"]),
        ("[session]\nmax_queued_bytes = -1\n", &["pinnace.toml:2:", "session.max_queued_bytes"]),
        ("[[listener]]\naddress = \"localhost\"\n", &["pinnace.toml:2:", "address"]),
        ("[[listener]]\naddress = \"127.0.0.1:0\"\nallow_anonymus = true\n", &["pinnace.toml:3:", "allow_anonymous"]),
        ("[storage]\ndurability = \"disk\"\n", &["pinnace.toml:2:", "durability", "fsync"]),
        ("[log]\nlevel = 5\n", &["pinnace.toml:2:", "log.level"]),
        ("[log]\nlevel = \"warning\"\n", &["pinnace.toml:2:", "log.level", "\"warn\""]),
        ("[storage]\ncommit_max_bytes = 0\n", &["pinnace.toml:2:", "storage.commit_max_bytes"]),
        ("[session]\nmax_packet_size_bytes = 1\n", &["pinnace.toml:2:", "session.max_packet_size_bytes"]),
        ("[session\n", &["pinnace.toml:1:"]),
        (
            "[session]\nreceive_maximun = 5\n[log]\nformat = \"xml\"\n",
            &["pinnace.toml:2:", "pinnace.toml:4:", "log.format"],
        ),
    ];
    for (toml, expected) in cases {
        // The durability is in the command line, except where it is what the file has wrong.
        let setup = Setup::new().config(toml);
        let path = setup.dir().join("pinnace.toml");
        let check = broker::run(["config".as_ref(), "check".as_ref(), path.as_os_str()]);
        for output in [check, setup.refused()] {
            assert_eq!(output.status.code(), Some(2), "{toml}: {output:?}");
            for part in expected {
                assert!(said(&output).contains(part), "{part:?} for {toml:?} in: {}", said(&output));
            }
        }
    }
    let missing = broker::run(["config", "check", "/nowhere/pinnace.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(said(&missing).contains("/nowhere/pinnace.toml"));
}

/// Faults of variables are told by their names.
#[test]
fn faults_of_variables_are_told_with_their_names() {
    for (name, value, expected) in [
        ("PINNACE__SESSION__RECEIVE_MAXIMUN", "5", "PINNACE__SESSION__RECEIVE_MAXIMUM"),
        ("PINNACE__SESSION__RECEIVE_MAXIMUM", "many", "session.receive_maximum"),
        ("PINNACE__SESION__RECEIVE_MAXIMUM", "5", "PINNACE__SESSION"),
        ("PINNACE__LISTENER", "127.0.0.1:1", "list"),
    ] {
        let output = Setup::new().env(name, value).refused();
        assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
        assert!(said(&output).contains(name) && said(&output).contains(expected), "{name}: {}", said(&output));
    }
}

/// A file is overridden by variables, those by flags; what is in force is shown with where it came from.
#[test]
fn the_layers_override_one_another() {
    let setup = Setup::new();
    let path = setup.file(
        "p.toml",
        "[session]\nreceive_maximum = 11\ntopic_alias_maximum = 12\n[storage]\ndurability = \"memory\"\n",
    );
    let mut show = broker::pinnace();
    show.args(["config", "show", "--config"]).arg(&path).args([
        "--listen",
        "127.0.0.1:4",
        "--durability",
        broker::DURABILITY,
    ]);
    show.env("PINNACE__SESSION__RECEIVE_MAXIMUM", "13").env("PINNACE__AUTH__PASSWORD_FILE", "/dev/null");
    let output = show.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for expected in [
        "receive_maximum = 13 # PINNACE__SESSION__RECEIVE_MAXIMUM",
        "topic_alias_maximum = 12 # ",
        "p.toml:3:",
        "\"127.0.0.1:4\" # --listen",
        &format!("durability = \"{}\" # --durability", broker::DURABILITY),
        "# default",
    ] {
        assert!(shown.contains(expected), "{expected:?} in {shown}");
    }
    let broker = setup
        .config("[session]\nreceive_maximum = 11\ntopic_alias_maximum = 12\n")
        .env("PINNACE__SESSION__RECEIVE_MAXIMUM", "13")
        .start();
    let client = broker.connect(&Connect::v5("x"));
    assert_eq!(client.connack_property(property::RECEIVE_MAXIMUM), Some(&Value::Two(13)));
    assert_eq!(client.connack_property(property::TOPIC_ALIAS_MAXIMUM), Some(&Value::Two(12)));
}

/// A listener that others can reach asks for authentication, or says that it does not (2 of the main job); TLS options without a listener
/// open nothing (D141).
#[test]
fn an_open_door_must_be_meant() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let listener = format!("[[listener]]\naddress = \"{address}\"\n");
        let output = Setup::new().config(&listener).refused();
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains("allow_anonymous"), "what to do: {}", said(&output));
        let by_flag = Setup::new().arg("--listen").arg(address).refused();
        assert_eq!(by_flag.status.code(), Some(2), "{by_flag:?}");
    }
    // Only IPv4: a machine need not have the other.
    let meant = Setup::new().config("[[listener]]\naddress = \"0.0.0.0:0\"\nallow_anonymous = true\n").start();
    assert!(meant.log_lines().iter().any(|line| line.contains("anonymous clients are allowed")));
    for toml in [
        "[listener.tls]\ncertificate = \"a\"\nkey = \"b\"\n",
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = \"a\"\n",
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = \"a\"\nkey = \"b\"\nrequire_client_certificate = true\n",
    ] {
        let output = Setup::new().config(toml).refused();
        assert_eq!(output.status.code(), Some(2), "{toml}: {output:?}");
        assert!(said(&output).contains("tls") || said(&output).contains("listener"), "{}", said(&output));
    }
}

/// Files that a listener names must be there and right.
#[test]
fn missing_certificates_stop_the_start() {
    let setup = Setup::new();
    setup.file("bad.pem", "not a certificate");
    for (certificate, key) in [("missing.pem", "missing.key"), ("bad.pem", "bad.pem")] {
        let toml = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"
        );
        let setup = Setup::new();
        setup.file("bad.pem", "not a certificate");
        let output = setup.config(&toml).refused();
        assert!(!output.status.success() && said(&output).contains(certificate), "{}", said(&output));
    }
}

/// A file with carriage returns or a byte order mark is the same file (D143); a directory is none.
#[test]
fn a_file_from_another_system_is_read() {
    let broker = Setup::new().config("\u{feff}[session]\r\nreceive_maximum = 7\r\n").start();
    let client = broker.connect(&Connect::v5("x"));
    assert_eq!(client.connack_property(property::RECEIVE_MAXIMUM), Some(&Value::Two(7)));
    let dir = tempfile::tempdir().unwrap();
    let output = broker::run(["config".as_ref(), "check".as_ref(), dir.path().as_os_str()]);
    assert_eq!(output.status.code(), Some(2));
}
