//! The examples of the README, as they stand there.

use std::{
    fs,
    process::{Command, Stdio},
};

use crate::support::{Broker, PATIENCE, broker::wait};

#[test]
fn request_and_reply() {
    let said = run("Request and reply", &[("subscriptions", 1)]);
    assert_eq!(said, ["230 lm"]);
}

#[test]
fn fan_out() {
    let mut said = run("Fan-out", &[("subscriptions", 2), ("shared_subscriptions", 2)]);
    said.sort();
    let (packed, copies): (Vec<String>, Vec<String>) = said.into_iter().partition(|line| line.starts_with("packer"));
    let each = |name: &str| (1..=4).map(|n| format!("{name}: order {n}")).collect::<Vec<_>>();
    assert_eq!(copies, [each("billing"), each("stock")].concat());
    let mut orders: Vec<&str> = packed.iter().map(|line| &line["packer n: ".len()..]).collect();
    orders.sort_unstable();
    assert_eq!(orders, ["order 1", "order 2", "order 3", "order 4"], "{packed:?}");
    assert_eq!(packed.iter().filter(|line| line.starts_with("packer 1")).count(), 2, "{packed:?}");
}

/// Runs the shell commands below a heading of the README against a broker; the lines that they print. Where they sleep until subscribers
/// are there, that is waited for instead: `ready` says how many there are then.
fn run(heading: &str, ready: &[(&str, u64)]) -> Vec<String> {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (_, section) = readme.split_once(&format!("# {heading}\n")).expect("the heading");
    let (_, block) = section.split_once("```sh\n").expect("its commands");
    let (block, _) = block.split_once("```").expect("their end");
    assert!(block.contains("sleep 1\n"), "{block}");

    let broker = Broker::start();
    // The port that all of mosquitto's clients use where none is named.
    for program in ["mosquitto_pub", "mosquitto_sub", "mosquitto_rr"] {
        broker.file(program, format!("-p {}\n", broker.port()));
    }
    let go = broker.dir().join("go");
    let script = format!(
        "set -e\nsleep() {{ while [ ! -e '{}' ]; do command sleep 0.02; done; }}\n{block}\nwait\n",
        go.display()
    );
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .env("XDG_CONFIG_HOME", broker.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for (name, count) in ready {
        broker.until_status(name, |now| now == *count);
    }
    fs::write(go, "").unwrap();
    let status = wait(&mut shell, PATIENCE);
    if status.is_none() {
        let _ = shell.kill();
    }
    let output = shell.wait_with_output().unwrap();
    assert!(status.is_some_and(|status| status.success()), "{heading}: {status:?}, {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
