//! Who published a retained message decides, too, whether it is sent: `auth.check_retain_source` (D50).

use crate::{
    auth::{login, password_line},
    support::{Broker, Connect, Setup, Will},
};

const ALL: &str = "user all\ntopic #\n";
const BEFORE: &str = "user ann\ntopic write left/#\nuser bob\ntopic write left/#\npattern write dev/%c\n";
const AFTER: &str = "user ann\ntopic write other\nuser bob\ntopic write left/#\npattern write dev/%c/below\n";

/// A broker with the users `ann`, `bob` and `all`, anonymous clients, and more lines in `[auth]`.
fn with_rules(rules: &str, more: &str) -> Broker {
    let setup = Setup::new();
    setup.file("acl", format!("{ALL}{rules}"));
    let users = ["ann", "bob", "all"];
    setup.file("passwords", users.map(|user| password_line(user, format!("secret of {user}").as_bytes())).concat());
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nallow_anonymous = true\n\
         [auth]\nacl_file = \"acl\"\npassword_file = \"passwords\"\n{more}"
    );
    setup.config(&config).start()
}

fn set_rules(broker: &Broker, rules: &str) {
    broker.file("acl", format!("{ALL}{rules}"));
    let line = broker.reload();
    assert!(!line.contains("acl:"), "{line}");
}

/// The topics of what a new subscription of that level to `#` is sent, in order; at QoS 0 without a log, at QoS 2 by a log.
fn retained(broker: &Broker, level: u8, qos: u8) -> Vec<String> {
    let connect = login(Connect::new(level, "all-client"), "all");
    let kept = connect.clone().persistent();
    let mut marker = broker.connect(&login(Connect::new(level, "marker"), "all"));
    // Behind all others.
    marker.publish_retained("~end", "x", 1);
    let mut all = broker.connect(if qos > 0 { &kept } else { &connect });
    all.subscribe("#", qos);
    let mut topics = Vec::new();
    loop {
        let message = all.message();
        assert!(message.retain);
        if message.topic == "~end" {
            break;
        }
        topics.push(message.topic);
    }
    all.disconnect();
    marker.publish_retained("~end", "", 1);
    // The session ends, too.
    broker.connect(&connect).disconnect();
    topics.sort();
    topics
}

fn leave_messages(broker: &Broker) {
    for (level, name) in [(4, "ann"), (5, "bob")] {
        let connect = login(Connect::new(level, name), name);
        let mut publisher = broker.connect(&connect);
        for qos in 0..3 {
            publisher.publish_retained(&format!("left/{name}/{qos}"), "x", qos);
        }
        publisher.ping();
        let will = Will::new(&format!("left/{name}/will"), "x").qos(1).retained();
        broker.connect(&connect.will(will)).cut();
    }
    broker.v5("one").publish_retained("dev/one", "x", 1);
    broker.until_status("retained_messages", |count| count == 9);
}

/// What is retained is sent as long as its publisher may publish it (user, anonymous client id, Will); when the right is gone it is withheld
/// and counted, but stays, over a restart too, and is sent again when the right is back (D50).
#[test]
fn what_is_retained_is_withheld_while_its_publisher_may_not_publish_it() {
    let mut broker = with_rules(BEFORE, "");
    leave_messages(&broker);
    let all: Vec<String> = ["dev/one"].map(String::from).into_iter().chain(of(&["ann", "bob"])).collect();
    let expect = |broker: &Broker, expected: &[String]| {
        for level in [4, 5] {
            for qos in [0, 2] {
                let before = broker.status_number("acl_denied");
                assert_eq!(retained(broker, level, qos), expected, "level {level}, QoS {qos}");
                let withheld = all.len() - expected.len();
                assert_eq!(broker.status_number("acl_denied") - before, withheld as u64);
            }
        }
    };
    expect(&broker, &all);
    set_rules(&broker, AFTER);
    expect(&broker, &of(&["bob"]));
    broker.wait_log("why", |line| line.contains("check_retain_source") && line.contains("dev/one"));
    if cfg!(feature = "rocksdb") {
        broker.kill9();
        broker.restart();
        expect(&broker, &of(&["bob"]));
    }
    assert_eq!(broker.status_number("retained_messages"), 9);
    // Who publishes last is the one that is judged.
    let mut bob = broker.connect(&login(Connect::v5("bob"), "bob"));
    bob.publish_retained("left/ann/0", "of bob", 1);
    let mut mixed = of(&["bob"]);
    mixed.insert(0, "left/ann/0".into());
    expect(&broker, &mixed);
    set_rules(&broker, BEFORE);
    expect(&broker, &all);
}

/// Switched off, what was retained stays valid whatever becomes of its publisher.
#[test]
fn without_the_check_a_publishers_rights_do_not_matter() {
    let broker = with_rules(BEFORE, "check_retain_source = false\n");
    leave_messages(&broker);
    set_rules(&broker, AFTER);
    assert_eq!(retained(&broker, 5, 0).len(), 9);
    assert_eq!(broker.status_number("acl_denied"), 0);
}

fn of(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|name| ["0", "1", "2", "will"].map(|last| format!("left/{name}/{last}"))).collect()
}
