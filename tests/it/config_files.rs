//! Faults that only the use of a value shows, the files that options name, and what one of them may be emptied to.

use crate::{
    auth::{login, password_line},
    support::{Broker, Connect, Setup, broker},
};

/// A file that is missing or wrong, and an address that cannot be had, are told with the option that names them and its place, at the start, by
/// `config check` and at a reload.
#[test]
fn what_an_option_names_is_told_with_its_place() {
    let cases: [(&str, &str, &[&str]); 6] = [
        ("[auth]\nacl_file = \"gone\"\n", "", &["/gone:1:1: ", "named by auth.acl_file (", "pinnace.toml:2:12)"]),
        (
            "[log]\n[auth]\npassword_file = \"gone\"\n",
            "",
            &["/gone:1:1: ", "auth.password_file (", "pinnace.toml:3:17)"],
        ),
        ("[auth]\nacl_file = \"bad\"\n", "nonsense\n", &["/bad:1:1: ", "auth.acl_file (", "pinnace.toml:2:12)"]),
        (
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:1\"\n\
             [listener.tls]\ncertificate = \"gone\"\nkey = \"bad\"\n",
            "",
            &["/gone: ", "listener[1].tls.certificate (", "pinnace.toml:6:15)"],
        ),
        (
            "[[listener]]\naddress = \"192.0.2.1:1\"\nallow_anonymous = true\n",
            "",
            &["192.0.2.1:1", "listener[0].address (", "pinnace.toml:2:11)"],
        ),
        ("[auth]\nacl_file = \"acl\"\n", "", &["/from/a/variable:1:1: ", "auth.acl_file (PINNACE__AUTH__ACL_FILE)"]),
    ];
    for (toml, bad, expected) in cases {
        let setup = Setup::new().config(toml);
        setup.file("bad", bad);
        let path = setup.dir().join("pinnace.toml");
        let mut outputs = Vec::new();
        if toml.contains("= \"acl\"") {
            outputs.push(setup.env("PINNACE__AUTH__ACL_FILE", "/from/a/variable").refused());
        } else {
            if toml.contains("[auth]") {
                outputs.push(broker::run(["config".as_ref(), "check".as_ref(), path.as_os_str()]));
            }
            outputs.push(setup.refused());
        }
        for output in outputs {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success());
            expected.iter().for_each(|part| assert!(said.contains(part), "{part:?} for {toml:?} in: {said}"));
        }
    }
    let setup = Setup::new();
    setup.file("acl", "topic #\n");
    let broker = setup.config("[auth]\nacl_file = \"acl\"\n").start();
    broker.file("acl", "topic #\nnonsense\n");
    let line = broker.reload();
    assert!(
        line.contains("acl:2:1: ") && line.contains("auth.acl_file (") && line.contains("pinnace.toml:2:12)"),
        "{line}"
    );
}

/// A file that has become empty is taken, since it may be meant, and warned of once by its name.
#[test]
fn an_emptied_file_is_taken_and_warned_of() {
    let setup = Setup::new();
    setup.file("acl", "user ann\ntopic #\n");
    setup.file("passwords", password_line("ann", b"secret of ann"));
    let mut broker = setup.config("[auth]\nacl_file = \"acl\"\npassword_file = \"passwords\"\n").start();
    let warned = |broker: &Broker, from: usize, file: &str| {
        let is_warning = |line: &&String| line.contains("WARN") && line.contains(&format!("/{file}\""));
        broker.log_lines()[from..].iter().filter(is_warning).count()
    };
    let connect = login(Connect::v5("ann"), "ann");
    let mut ann = broker.connect(&connect);
    assert_eq!(ann.subscribe_all(&[("t", 0)]), [0]);
    let from = broker.log_len();
    broker.file("acl", "# nothing\n");
    assert!(broker.reload().contains("reloaded"));
    assert_eq!((warned(&broker, from, "acl"), warned(&broker, from, "passwords")), (1, 0));
    assert_eq!(ann.subscribe_all(&[("t", 0)]), [0x87]);
    broker.file("passwords", "");
    assert!(broker.reload().contains("reloaded"));
    assert_eq!(
        (warned(&broker, from, "acl"), warned(&broker, from, "passwords")),
        (1, 1),
        "only what has become empty"
    );
    assert_eq!(broker.refused(&connect), 0x86);
    broker.terminate();
    let from = broker.log_len();
    broker.restart();
    assert_eq!((warned(&broker, from, "acl"), warned(&broker, from, "passwords")), (1, 1), "at a start, too");
}

/// A Server Reference is what 4.11 says it is, and threads are as many as a machine may have use for.
#[test]
fn server_options_are_checked() {
    let refused = |line: &str, key: &str| {
        let output = Setup::new().config(&format!("[server]\n{line}\n")).refused();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(said.contains("pinnace.toml:2:") && said.contains(key), "{line}: {said}");
    };
    for reference in [
        "",
        "  ",
        "a ",
        " a",
        "a  b",
        "a\\u0000",
        "a\\tb",
        "a\\u0085",
        "a\\nb",
        "a:",
        ":1883",
        "a:mqtt",
        "a:65536",
        "a:+1",
        "good:1 bad:x",
        "[::1",
        "[::1]1883",
        "[]:1883",
        "[::1]:",
        "2001:db8::1:x",
    ] {
        refused(&format!("server_reference = \"{reference}\""), "server.server_reference");
    }
    refused("worker_threads = 1025", "server.worker_threads");
    refused("worker_threads = 18446744073709551615", "server.worker_threads");
    for reference in
        ["host", "host:1883", "a:1 b c:65535", "[2001:db8::1]:1883", "[2001:db8::1]", "2001:db8::1", "bücher.example:1"]
    {
        let setup = Setup::new();
        let path =
            setup.file("p.toml", format!("[server]\nserver_reference = \"{reference}\"\nworker_threads = 1024\n"));
        let output = broker::run(["config".as_ref(), "check".as_ref(), path.as_os_str()]);
        // Without the durable engine the default durability is another fault.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("server."), "{reference}: {said}");
    }
}

/// What has no end is no configuration, and a start says so.
#[test]
fn a_configuration_without_end_is_refused() {
    let output = broker::run(["config", "check", "/dev/zero"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/dev/zero") && said.contains("is longer than 1048576 bytes"), "{said}");
}
