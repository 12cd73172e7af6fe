//! What a client may do: the ACL file in mosquitto's syntax, on publish, will, subscription and delivery.

use crate::{
    auth::{login, password_line},
    support::{
        Broker, Client, Connect, Setup, Value, Will,
        client::publish_of,
        wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, property},
    },
};

const USERS: [&str; 5] = ["ann", "bob", "dev/a", "a+b", "all"];

/// A broker with these rules; `all` may do everything, as may who has no name where the rules say so.
fn with_rules(rules: &str) -> Broker {
    let setup = Setup::new();
    setup.file("acl", format!("{rules}\nuser all\ntopic #\ntopic $own/#\n"));
    setup.file("passwords", USERS.map(|user| password_line(user, format!("secret of {user}").as_bytes())).concat());
    setup
        .config(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nallow_anonymous = true\n\
             [auth]\nacl_file = \"acl\"\npassword_file = \"passwords\"\n",
        )
        .start()
}

fn user(broker: &Broker, name: &str) -> Client {
    broker.connect(&login(Connect::v5(&format!("{name}-client")), name))
}

/// Which of these topics `name` may publish to, by what `all` receives.
fn publishable<'a>(broker: &Broker, name: &str, topics: &[&'a str]) -> Vec<&'a str> {
    let mut all = user(broker, "all");
    all.subscribe("#", 0);
    let mut client = user(broker, name);
    let allowed: Vec<&str> =
        topics.iter().copied().filter(|topic| client.publish_code(&publish_of(topic, "x", 1)) != 0x87).collect();
    all.publish("end", "end", 0);
    let mut received = Vec::new();
    loop {
        let message = all.message();
        if message.topic == "end" {
            break;
        }
        received.push(message.topic);
    }
    assert_eq!(received, allowed, "what was acknowledged is what was delivered");
    allowed
}

/// Which of these topics `name` receives by these filters.
fn receivable<'a>(broker: &Broker, name: &str, filter: &str, topics: &[&'a str]) -> Vec<&'a str> {
    let mut client = user(broker, name);
    if client.subscribe_all(&[(filter, 1)]) == [0x87] {
        return vec!["refused"];
    }
    let mut all = user(broker, "all");
    topics.iter().for_each(|topic| all.publish(topic, "x", 1));
    client.ping();
    let mut got = Vec::new();
    while let Ok(wire::Packet::Publish(publish)) = client.try_receive(std::time::Duration::ZERO) {
        got.push(*topics.iter().find(|topic| **topic == publish.topic).unwrap());
        client.send(&wire::ack(wire::PUBACK, publish.id));
    }
    got
}

/// Read, write, both and deny, for one user, for the nameless, and by pattern; what no rule allows is denied.
#[test]
fn rules_are_enforced_on_publish_and_delivery() {
    let broker = with_rules(
        "topic read public/#\n\
         user ann\ntopic write out/ann\ntopic read in/ann/#\ntopic both/#\ntopic deny both/not\n\
         user bob\ntopic readwrite both/+\n\
         pattern write own/%u/#\npattern read from/%c\n",
    );
    let topics = ["out/ann", "in/ann/x", "both/x", "both/not", "public/x", "own/ann/x", "own/bob/x", "from/ann-client"];
    assert_eq!(publishable(&broker, "ann", &topics), ["out/ann", "both/x", "own/ann/x"]);
    assert_eq!(receivable(&broker, "ann", "#", &topics), ["in/ann/x", "both/x", "from/ann-client"]);
    assert_eq!(publishable(&broker, "bob", &topics), ["both/x", "both/not", "own/bob/x"]);
    assert_eq!(receivable(&broker, "bob", "#", &topics), ["both/x", "both/not"]);
    assert_eq!(receivable(&broker, "ann", "out/ann", &topics), ["refused"]);
    let mut nameless = broker.v5("nameless");
    assert_eq!(
        nameless.subscribe_all(&[("public/#", 0), ("in/#", 0), ("from/nameless", 0), ("#", 0)]),
        [0, 0x87, 0, 0]
    );
    let mut old = broker.connect(&login(Connect::v4("old"), "ann"));
    assert_eq!(old.subscribe_all(&[("in/bob", 1), ("in/ann/a", 1)]), [0x80, 1]);
}

/// A denied publish: 0x87 in the acknowledgement in v5, acknowledged and dropped before; counted, and logged with client, identity, topic and
/// line; the queue of others is untouched, the id free again (D109) [MQTT-4.3.3-9], [MQTT311-3.3.5-2].
#[test]
fn a_denied_publish_is_told_and_logged() {
    let broker = with_rules("user ann\ntopic deny secret/plan\ntopic write open/#\n");
    let mut all = user(&broker, "all");
    all.subscribe("#", 2);
    let mut ann = user(&broker, "ann");
    let mut old = broker.connect(&login(Connect::v4("old"), "ann"));
    for qos in 0..3 {
        let denied = publish_of("secret/plan", "x", qos);
        assert_eq!(ann.publish_code(&denied), if qos > 0 { 0x87 } else { 0 });
        assert_eq!(old.publish_code(&denied), 0);
        let retained = Publish { retain: true, ..publish_of("no/rule", "x", qos) };
        assert_eq!(ann.publish_code(&retained), if qos > 0 { 0x87 } else { 0 });
        ann.publish("open/x", "x", qos);
        assert_eq!(all.message().topic, "open/x");
    }
    ann.send_publish(&Publish { id: 500, ..publish_of("secret/plan", "x", 2) });
    assert_eq!(ann.acknowledged(PUBREC, 500), 0x87);
    ann.send_publish(&Publish { id: 500, ..publish_of("open/x", "new", 2) });
    assert_eq!(ann.acknowledged(PUBREC, 500), 0);
    ann.send(&wire::ack(PUBREL, 500));
    assert_eq!(ann.acknowledged(PUBCOMP, 500), 0);
    assert_eq!(all.text(), "new");
    all.nothing();
    assert_eq!(broker.status_number("publishes_denied"), 10);
    assert_eq!(broker.status_number("retained_messages"), 0);
    let line = broker.wait_log("the denial", |line| line.contains("secret/plan") && line.contains("ann-client"));
    assert!(line.contains("\"ann\"") && line.contains("acl:2"), "identity and place of the rule: {line}");
    broker.wait_log("the denial without a rule", |line| line.contains("no/rule"));
}

/// The right is asked again at each delivery and for a will when it is published, by the rules then in force; a bad file changes nothing
/// (D112). A QoS 2 message that was accepted before is not delivered after the right is gone (D108).
#[test]
fn a_reload_changes_rights_at_once() {
    let rules = "user ann\ntopic t/#\ntopic will\nuser all\ntopic #\n";
    let broker = with_rules(rules);
    let mut ann = user(&broker, "ann");
    ann.subscribe("t/a", 1);
    let mut all = user(&broker, "all");
    all.subscribe("will", 0);
    all.subscribe("t/qos2", 2);
    all.publish("t/a", "before", 1);
    assert_eq!(ann.text(), "before");
    let mortal = |id: &str| broker.connect(&login(Connect::v5(id), "ann").will(Will::new("will", id)));
    mortal("allowed").cut();
    assert_eq!(all.text(), "allowed");
    let denied = mortal("denied");
    ann.send_publish(&Publish { id: 77, ..publish_of("t/qos2", "half", 2) });
    assert_eq!(ann.acknowledged(PUBREC, 77), 0);
    all.ping();
    let delivered_before = matches!(all.try_receive(std::time::Duration::ZERO), Ok(wire::Packet::Publish(_)));
    broker.file("acl", "user all\ntopic #\nuser ann\ntopic read other\n");
    broker.reload();
    denied.cut();
    all.publish("t/a", "after", 1);
    ann.nothing();
    ann.send(&wire::ack(PUBREL, 77));
    assert_eq!(ann.acknowledged(PUBCOMP, 77), 0);
    all.publish("will", "end", 0);
    assert_eq!(all.wait_for_text(), "end");
    all.nothing();
    assert!(delivered_before, "Pinnace delivers a QoS 2 message when it accepts it");
    for bad in ["user all\ntopic #\nnonsense here\n", "topic read a/#/b\n", "\u{0}", "user\n"] {
        broker.file("acl", bad);
        let line = broker.reload();
        assert!(line.contains("acl:"), "the place of the fault: {line}");
        all.publish("t/a", "x", 1);
        ann.nothing();
    }
    std::fs::remove_file(broker.dir().join("acl")).unwrap();
    broker.reload();
    ann.nothing();
    broker.file("acl", rules);
    broker.reload();
    all.publish("t/a", "again", 1);
    assert_eq!(ann.text(), "again");
}

/// What no member of a shared group may receive is counted and blocks nothing behind it, with a log and without [MQTT-4.8.2-3].
#[test]
fn what_no_member_may_receive_does_not_block_its_group() {
    let broker = with_rules("user ann\ntopic read open/#\n");
    let mut all = user(&broker, "all");
    for (round, expiry) in [(1, 0), (2, 60)] {
        let mut ann = broker.connect(&login(Connect::v5("ann-client").expiry(expiry), "ann"));
        ann.subscribe("$share/g/#", 2);
        for qos in 0..3 {
            all.publish("shut/x", "never", qos);
            all.publish("open/x", format!("qos {qos}"), qos);
            assert_eq!(ann.text(), format!("qos {qos}"));
        }
        broker.until_status("acl_denied", |count| count == 3 * round);
        ann.disconnect();
    }
}

/// `$share` circumvents nothing (D106): the inner filter is what counts, and what may not be received goes to members that may.
#[test]
fn a_shared_subscription_needs_the_right_to_its_filter() {
    let broker = with_rules("user ann\ntopic read t/a\nuser bob\ntopic read t/#\n");
    let mut ann = user(&broker, "ann");
    assert_eq!(
        ann.subscribe_all(&[("$share/g/t/b", 1), ("$share/g/other/#", 1), ("$share/g/t/a", 1), ("$share/h/#", 1)]),
        [0x87, 0x87, 1, 1]
    );
    let mut bob = user(&broker, "bob");
    bob.subscribe("$share/h/#", 1);
    let mut all = user(&broker, "all");
    for _ in 0..10 {
        all.publish("t/b", "for bob", 1);
    }
    for _ in 0..10 {
        assert_eq!(bob.text(), "for bob");
    }
    ann.nothing();
}

/// Names in patterns: a slash in a user name stands literally (D107); with a wildcard a name fills no pattern; a slash in a client id fills
/// none either (D111); the nameless have a client id too (D115).
#[test]
fn names_fill_patterns_with_care() {
    let broker = with_rules("pattern write u/%u/x\npattern write c/%c/#\n");
    assert_eq!(publishable(&broker, "dev/a", &["u/dev/a/x", "u/dev/x", "u/other/x"]), ["u/dev/a/x"]);
    let mut wild = user(&broker, "a+b");
    assert_eq!(wild.publish_code(&publish_of("u/acb/x", "x", 1)), 0x87);
    assert_eq!(wild.publish_code(&publish_of("c/other/x", "x", 1)), 0x87);
    for (id, topic, allowed) in [
        ("plain", "c/plain/x", true),
        ("plain", "c/other/x", false),
        ("victim/x", "c/victim/x", false),
        ("victim/x", "c/victim/x/y", false),
        ("a#", "c/a#", false),
    ] {
        if topic.contains('#') {
            continue;
        }
        let mut client = broker.v5(id);
        let code = client.publish_code(&publish_of(topic, "x", 1));
        assert_eq!(code != 0x87, allowed, "{id:?} to {topic}");
    }
    let mut hash = broker.v5("#");
    assert_eq!(hash.publish_code(&publish_of("c/other/x", "x", 1)), 0x87);
}

/// An alias that is set anew is judged by its new topic (D110).
#[test]
fn an_alias_is_judged_by_its_topic() {
    let broker = with_rules("user ann\ntopic write allowed/#\n");
    let mut ann = user(&broker, "ann");
    let alias =
        |topic: &str| Publish { properties: vec![(property::TOPIC_ALIAS, Value::Two(1))], ..publish_of(topic, "x", 1) };
    for (topic, expected) in
        [("allowed/x", true), ("", true), ("denied/x", false), ("", false), ("allowed/y", true), ("", true)]
    {
        assert_eq!(ann.publish_code(&alias(topic)) != 0x87, expected, "{topic:?}");
    }
}

/// A refused subscription gets no retained messages (D55), and a granted one only those that may be received.
#[test]
fn retained_messages_are_judged_too() {
    let broker = with_rules("user ann\ntopic read open/#\n");
    let mut all = user(&broker, "all");
    for topic in ["open/a", "closed/a"] {
        all.publish_retained(topic, topic, 1);
    }
    let mut ann = user(&broker, "ann");
    assert_eq!(ann.subscribe_all(&[("closed/#", 1)]), [0x87]);
    ann.nothing();
    ann.subscribe("#", 1);
    assert_eq!(ann.text(), "open/a");
    ann.nothing();
}

/// What only an absent member of a group may have waits for it, and blocks nobody else's.
#[test]
fn a_members_rights_do_not_block_the_group() {
    let broker = with_rules("user ann\ntopic read t/a\nuser bob\ntopic read t/b\n");
    let away = login(Connect::v5("ann"), "ann").persistent();
    let mut ann = broker.connect(&away);
    ann.subscribe("$share/g/t/+", 1);
    ann.disconnect();
    let mut bob = user(&broker, "bob");
    bob.subscribe("$share/g/t/+", 1);
    let mut all = user(&broker, "all");
    for topic in ["t/a", "t/b", "t/a", "t/b"] {
        all.publish(topic, topic, 1);
    }
    assert_eq!([bob.text(), bob.text()], ["t/b", "t/b"]);
    bob.nothing();
    let mut ann = broker.connect(&away);
    assert_eq!([ann.text(), ann.text()], ["t/a", "t/a"]);
    ann.nothing();
}

/// Queued messages are judged when they are delivered: a right that was lost meanwhile is lost.
#[test]
fn a_queue_does_not_outlive_a_right() {
    let broker = with_rules("user ann\ntopic read t/#\n");
    let connect = login(Connect::v5("device"), "ann").persistent();
    let mut ann = broker.connect(&connect);
    ann.subscribe("t/#", 1);
    ann.disconnect();
    let mut all = user(&broker, "all");
    for topic in ["t/a", "t/b", "t/a"] {
        all.publish(topic, topic, 1);
    }
    broker.file("acl", "user all\ntopic #\nuser ann\ntopic read t/b\n");
    broker.reload();
    let mut ann = broker.connect(&connect);
    assert_eq!(ann.text(), "t/b");
    ann.nothing();
    drop(ann);
    let mut ann = broker.connect(&connect);
    ann.nothing();
}

/// A right that is lost takes what already waits for the client's window, with or without a log; what is in flight is completed.
#[test]
fn what_waits_for_the_window_does_not_outlive_a_right() {
    for persistent in [false, true] {
        let broker = with_rules("user ann\ntopic read t/#\n");
        let mut connect = login(Connect::v5("device"), "ann").receive_maximum(1);
        if persistent {
            connect = connect.persistent();
        }
        let mut ann = broker.connect(&connect);
        ann.subscribe("t/#", 1);
        let mut all = user(&broker, "all");
        for topic in ["t/a", "t/a", "t/b", "t/a"] {
            all.publish(topic, topic, 1);
        }
        let first = ann.delivery();
        assert_eq!(first.topic, "t/a");
        ann.ping();
        broker.file("acl", "user all\ntopic #\nuser ann\ntopic read t/b\n");
        broker.reload();
        ann.send(&wire::ack(PUBACK, first.id));
        assert_eq!(ann.text(), "t/b");
        ann.nothing();
    }
}

/// Carriage returns, tabs, blanks at the end and a byte order mark change nothing (D105, D143).
#[test]
fn white_space_is_forgiven() {
    let broker = with_rules("\u{feff}# a comment\r\n\r\nuser ann\t \r\ntopic\twrite  a/b \r\ntopic read c d/e\r\n");
    assert_eq!(publishable(&broker, "ann", &["a/b", "c d/e", "x"]), ["a/b"]);
    assert_eq!(receivable(&broker, "ann", "#", &["a/b", "c d/e"]), ["c d/e"]);
}

/// An ACL file that cannot be read or understood stops the start with file, line and column.
#[test]
fn a_wrong_acl_file_stops_the_start() {
    for (bytes, place) in [
        (&b"user ann\ntopic readwrite\n"[..], "acl:2:"),
        (b"user ann\n\nrule a\n", "acl:3:"),
        (b"topic read a/#/b\n", "acl:1:"),
        (b"user ann\ntopic read a\xff\n", "acl:2:"),
        (b"user\n", "acl:1:"),
    ] {
        let setup = Setup::new();
        setup.file("acl", bytes);
        let output = setup.config("[auth]\nacl_file = \"acl\"\n").refused();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(place), "{}: {said}", bytes.escape_ascii());
    }
    let output = Setup::new().config("[auth]\nacl_file = \"missing\"\n").refused();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("missing"));
}

impl Client {
    fn wait_for_text(&mut self) -> String {
        loop {
            let text = self.text();
            if text != "half" {
                return text;
            }
        }
    }
}
