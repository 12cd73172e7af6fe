//! What an acknowledgement promises: `kill -9` at any moment, and what was acknowledged is there.

use crate::support::{
    Broker, Connect, Disk, Packet, Random, Setup, Value, Will,
    broker::find,
    client::{Client, publish_of},
    eventually,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, property},
};

fn crash(broker: &mut Broker) {
    broker.kill9();
    broker.restart();
}

fn sorted(mut properties: wire::Properties) -> wire::Properties {
    properties.sort_by_key(|(id, _)| *id);
    properties
}

/// Sessions, subscriptions with their options, queues in order: all of it survives, once and again, in each durable mode.
#[test]
fn sessions_and_queues_survive() {
    for durability in ["fsync", "os"] {
        let mut broker = Setup::new().durability(durability).start();
        let sleeper = Connect::v5("sleeper").persistent();
        let mut client = broker.connect(&sleeper);
        let number = (property::SUBSCRIPTION_ID, Value::Variable(77));
        client.subscribe_with(std::slice::from_ref(&number), &[("a/+", 2 | 4 | 8)]);
        client.subscribe_all(&[("b", 1), ("gone", 1), ("$share/g/c", 1)]);
        client.unsubscribe(&["gone"]);
        client.disconnect();
        let mut publisher = broker.v5("publisher");
        let mut properties = vec![(property::USER_PROPERTY, Value::Pair("k".into(), "v".into()))];
        for n in 0..20u8 {
            let first = Publish { properties: properties.clone(), ..publish_of("a/x", [n], 1 + n % 2) };
            publisher.publish_as(&Publish { retain: true, ..first });
            ["b", "c", "gone"].iter().for_each(|topic| publisher.publish(topic, [n], 1));
        }
        crash(&mut broker);
        crash(&mut broker);
        properties.push(number);
        let mut client = broker.connect(&sleeper);
        assert!(client.session_present());
        let mut next = std::collections::BTreeMap::from([("a/x", 0u8), ("b", 0), ("c", 0)]);
        for _ in 0..60 {
            let message = client.message();
            let expected = next.get_mut(message.topic.as_str()).expect("a topic that is subscribed to");
            assert_eq!(message.payload, [*expected], "the order of {}", message.topic);
            if message.topic == "a/x" {
                assert_eq!((message.retain, message.qos), (true, 1 + *expected % 2));
                assert_eq!(sorted(message.properties), sorted(properties.clone()));
            }
            *expected += 1;
        }
        client.nothing();
        client.publish("a/x", "own: No Local", 1);
        client.nothing();
        // What a client acknowledges is stored with the next batch that somebody waits for.
        broker.connect(&Connect::v5("later").persistent()).disconnect();
        crash(&mut broker);
        let mut client = broker.connect(&sleeper);
        assert!(client.session_present());
        client.nothing();
    }
}

/// A rule decides by topic what an acknowledgement waits for: with `os` it costs no sync, and survives a kill all the same; the first rule
/// that matches holds. A QoS 2 message for a kept session, retained messages and wills likewise.
#[test]
fn a_topic_may_be_kept_less_well_or_better_than_the_store() {
    // A subscription that is still being sent what is retained at the end of the broker would get that beside what is queued.
    const NOT_RETAINED: u8 = 0x20;
    const RULES: &str = "[[durability.rule]]\nfilter = \"t/alarm\"\nlevel = \"fsync\"\n\
                         [[durability.rule]]\nfilter = \"t/#\"\nlevel = \"os\"\n";
    for (durability, rules, synced) in
        [("fsync", RULES, [0, 3, 3]), ("os", RULES, [0, 3, 0]), ("fsync", "", [3, 3, 3]), ("os", "", [0, 0, 0])]
    {
        let mut broker = Setup::new().durability(durability).config(rules).start();
        let sleeper = Connect::v5("sleeper").persistent();
        let mut client = broker.connect(&sleeper);
        client.subscribe_all(&[("t/#", 1 | NOT_RETAINED), ("other", 1 | NOT_RETAINED)]);
        client.disconnect();
        let mut publisher = broker.v5("publisher");
        let syncs = |broker: &Broker| find(&broker.status(), "syncs").and_then(serde_json::Value::as_u64).unwrap();
        for (topic, expected) in ["t/x", "t/alarm", "other"].into_iter().zip(synced) {
            // What nobody waits for is on its way: of what follows each message is a commit of its own.
            publisher.publish(topic, "first", 1);
            let before = syncs(&broker);
            publisher.publish_retained(topic, "second", 1);
            publisher.publish(topic, "third", 2);
            publisher.publish(topic, "fourth", 1);
            assert_eq!(syncs(&broker) - before, expected, "{topic} with {durability} and {rules:?}");
        }
        broker.kill9();
        broker.restart();
        let mut client = broker.connect(&sleeper);
        for _ in 0..3 {
            assert_eq!([(); 4].map(|()| client.text()), ["first", "second", "third", "fourth"]);
        }
        client.nothing();
        let mut late = broker.v5("late");
        late.subscribe("#", 1);
        assert_eq!([(); 3].map(|()| late.text()), ["second"; 3]);
    }
}

/// A power cut takes of what was acknowledged only what a rule keeps by the operating system, and of that only what came after the last message
/// that is kept better.
#[test]
fn a_power_cut_takes_what_a_rule_allows_it_to_take() {
    let mut random = Random::seeded("a_power_cut_takes_what_a_rule_allows_it_to_take");
    let rules = "[[durability.rule]]\nfilter = \"os/#\"\nlevel = \"os\"\n";
    let (mut disk, setup) = Disk::below(Setup::new().durability("fsync").config(rules));
    let mut broker = setup.start();
    let sleeper = Connect::v5("sleeper").persistent();
    broker.connect(&sleeper).subscribe("#", 1);
    let mut lost = 0;
    for _ in 0..5 {
        let mut publisher = broker.v5("publisher");
        (0..20u8).for_each(|n| publisher.publish("os/a", [n; 500], 1));
        publisher.publish("b", "kept", 1);
        (20..40u8).for_each(|n| publisher.publish("os/a", [n; 500], 1));
        broker.kill9();
        assert!(disk.cut(&mut random).unsynced > 10_000);
        broker.restart();
        let mut client = broker.connect(&sleeper);
        assert!(client.session_present());
        (0..20).for_each(|n| assert_eq!(client.message().payload, [n; 500]));
        assert_eq!(client.text(), "kept");
        broker.v5("publisher").publish("b", "last", 1);
        let left = std::iter::from_fn(|| Some(client.message().payload).filter(|payload| payload != b"last")).count();
        lost += 20 - left;
        client.ping();
        client.disconnect();
    }
    assert!(lost > 0, "nothing is lost after five power cuts");
}

/// The packet id of a QoS 2 message to a kept session comes from its log: were the entry lost in a power cut, a durable message would get that id
/// and be taken for a duplicate. So it is kept as well as the session.
#[test]
fn a_qos_2_message_for_a_kept_session_is_kept_as_well_as_the_session() {
    let rules = "[[durability.rule]]\nfilter = \"t\"\nlevel = \"os\"\n";
    let broker = Setup::new().durability("fsync").config(rules).start();
    let mut publisher = broker.v5("publisher");
    let syncs = || find(&broker.status(), "syncs").and_then(serde_json::Value::as_u64).unwrap();
    for (granted, expected) in [(1, [0, 0]), (2, [0, 1])] {
        let mut client = broker.connect(&Connect::v5("sleeper").persistent());
        client.subscribe("t", granted);
        client.disconnect();
        for (qos, expected) in [1, 2].into_iter().zip(expected) {
            let before = syncs();
            publisher.publish("t", "x", qos);
            assert_eq!(syncs() - before, expected, "QoS {qos} to a subscription of QoS {granted}");
        }
    }
}

/// A rule for `fsync` has session state synced: a packet id that came back in a power cut after its PUBCOMP would have the next message to that topic
/// taken for a duplicate, and CONNACK accepts a Will to it.
#[test]
fn session_state_is_kept_as_well_as_the_best_kept_topic() {
    for (level, synced) in [("fsync", 1), ("os", 0)] {
        let rules = format!("[[durability.rule]]\nfilter = \"alarm\"\nlevel = \"{level}\"\n");
        let broker = Setup::new().durability("os").config(&rules).start();
        let syncs = || find(&broker.status(), "syncs").and_then(serde_json::Value::as_u64).unwrap();
        let mut before = syncs();
        let mut expect = |what: &str| {
            assert_eq!(syncs() - before, synced, "{what} with {level}");
            before = syncs();
        };
        let volatile = broker.connect(&Connect::v5("volatile").will(Will::new("alarm", "gone").qos(1)));
        expect("CONNACK with a Will");
        let mut client = broker.connect(&Connect::v5("device").persistent());
        expect("CONNACK");
        client.subscribe("t", 2);
        expect("SUBACK");
        client.send_publish(&Publish { id: 1, ..publish_of("alarm", "x", 2) });
        client.acknowledged(PUBREC, 1);
        expect("PUBREC");
        client.send(&wire::ack(PUBREL, 1));
        assert_eq!(client.acknowledged(PUBCOMP, 1), 0);
        expect("PUBCOMP");
        drop(volatile);
    }
}

/// Retained messages survive as they are, and cleared ones stay cleared.
#[test]
fn retained_messages_survive() {
    let mut broker = Broker::start();
    let mut publisher = broker.v5("publisher");
    let properties = vec![(property::CONTENT_TYPE, Value::Text("text/plain".into()))];
    publisher.publish_as(&Publish { retain: true, properties: properties.clone(), ..publish_of("a", "old", 1) });
    publisher.publish_as(&Publish { retain: true, properties: properties.clone(), ..publish_of("a", "new", 2) });
    publisher.publish_retained("cleared", "x", 1);
    publisher.publish_retained("cleared", "", 1);
    publisher.publish_as(&Publish {
        retain: true,
        properties: vec![(property::MESSAGE_EXPIRY, Value::Four(1))],
        ..publish_of("short", "x", 1)
    });
    crash(&mut broker);
    broker.until_status("retained_messages", |count| count == 1);
    let mut late = broker.v5("late");
    late.subscribe("#", 2);
    let message = late.message();
    assert_eq!((&*message.topic, &*message.payload, message.qos), ("a", &b"new"[..], 2));
    assert_eq!(message.properties, properties);
    late.nothing();
}

/// What was in flight to a client comes again after a crash, with DUP and its id [MQTT-4.4.0-1]; a recorded PUBREC is answered by its PUBREL, not by the
/// message; what was acknowledged comes no more.
#[test]
fn what_was_in_flight_survives() {
    let mut broker = Broker::start();
    let sleeper = Connect::v5("sleeper").persistent();
    let mut client = broker.connect(&sleeper);
    client.subscribe("t", 2);
    let mut publisher = broker.v4("publisher");
    for (payload, qos) in [("one", 1), ("two", 2), ("received", 2), ("done", 1), ("complete", 2)] {
        publisher.publish("t", payload, qos);
    }
    let sent: Vec<Publish> = (0..5).map(|_| client.delivery()).collect();
    client.send(&wire::ack(PUBREC, sent[2].id));
    client.acknowledged(PUBREL, sent[2].id);
    client.send(&wire::ack(PUBREC, sent[4].id));
    client.acknowledged(PUBREL, sent[4].id);
    client.send(&wire::ack(PUBACK, sent[3].id));
    client.send(&wire::ack(PUBCOMP, sent[4].id));
    client.ping();
    // What a client acknowledges need not be on the disk before the next write; one that waits for its acknowledgement makes it so.
    publisher.publish("t", "three", 1);
    crash(&mut broker);
    let mut client = broker.connect(&sleeper);
    let (mut again, mut released) = (Vec::new(), Vec::new());
    while again.len() < 3 || released.is_empty() {
        match client.receive() {
            Packet::Publish(publish) => again.push(publish),
            Packet::Ack { kind: PUBREL, id, .. } => released.push(id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        again[..2],
        sent[..2].iter().map(|publish| Publish { dup: true, ..publish.clone() }).collect::<Vec<_>>()
    );
    assert_eq!((&*again[2].payload, &released[..]), (&b"three"[..], &[sent[2].id][..]));
    client.nothing();
}

/// A PUBREC given before a crash holds after it: the same id again is the same message, not a second one; after its PUBCOMP it is a new one.
#[test]
fn received_packet_ids_survive() {
    let mut broker = Broker::start();
    let mut sink = broker.connect(&Connect::v5("sink").persistent());
    sink.subscribe("t", 2);
    sink.disconnect();
    let device = Connect::v5("device").persistent();
    let mut client = broker.connect(&device);
    let publish = |id, payload: &str, dup| Publish { id, dup, ..publish_of("t", payload, 2) };
    client.send_publish(&publish(5, "once", false));
    assert_eq!(client.acknowledged(PUBREC, 5), 0);
    client.send_publish(&publish(6, "complete", false));
    assert_eq!(client.acknowledged(PUBREC, 6), 0);
    client.send(&wire::ack(PUBREL, 6));
    assert_eq!(client.acknowledged(PUBCOMP, 6), 0);
    crash(&mut broker);
    let mut client = broker.connect(&device);
    assert!(client.session_present());
    client.send_publish(&publish(5, "once", true));
    assert_eq!(client.acknowledged(PUBREC, 5), 0);
    client.send_publish(&publish(6, "new under an old id", false));
    for id in [5, 6] {
        client.send(&wire::ack(PUBREL, id));
    }
    assert_eq!(client.acknowledged(PUBCOMP, 5), 0);
    assert_eq!(client.acknowledged(PUBREC, 6), 0);
    assert_eq!(client.acknowledged(PUBCOMP, 6), 0);
    let mut sink = broker.connect(&Connect::v5("sink").persistent());
    assert_eq!([sink.text(), sink.text(), sink.text()], ["once", "complete", "new under an old id"]);
    sink.nothing();
}

/// SUBACK, UNSUBACK and CONNACK leave when what they stand for is stored: a kill right behind them takes nothing back.
#[test]
fn acknowledged_changes_of_a_session_survive() {
    let mut broker = Broker::start();
    let device = Connect::v4("device").persistent();
    for round in 0..5 {
        let mut client = broker.connect(&device);
        assert_eq!(client.session_present(), round > 0, "CONNACK of a new session");
        client.subscribe(&format!("t/{round}"), 1);
        crash(&mut broker);
        broker.v4("publisher").publish(&format!("t/{round}"), "subscribed", 1);
        let mut client = broker.connect(&device);
        assert_eq!(client.text(), "subscribed");
        client.unsubscribe(&[&format!("t/{round}")]);
        crash(&mut broker);
        broker.v4("publisher").publish(&format!("t/{round}"), "unsubscribed", 1);
        broker.connect(&device).nothing();
    }
    drop(broker.connect(&Connect::v4("device")));
    crash(&mut broker);
    assert!(!broker.connect(&device).session_present(), "CONNACK of a clean start");
    drop(broker.connect(&Connect::v5("short").expiry(1)));
    crash(&mut broker);
    broker.until_status("sessions", |sessions| sessions == 1);
}

/// The will of a client that was connected at the crash is published after it, unless the client is back within the delay.
#[test]
fn wills_survive() {
    let mut broker = Broker::start();
    let watcher = Connect::v5("watcher").persistent();
    let mut client = broker.connect(&watcher);
    client.subscribe("will/#", 1);
    client.disconnect();
    let will = |name: &str, secs| Will::new(&format!("will/{name}"), name).qos(1).delay(secs);
    let _volatile = broker.connect(&Connect::v5("volatile").will(will("volatile", 0)));
    let _stored = broker.connect(&Connect::v5("stored").persistent().will(will("stored", 0)));
    let _late = broker.connect(&Connect::v5("late").persistent().will(will("late", 1)));
    let back = Connect::v5("back").persistent();
    let _back = broker.connect(&back.clone().will(will("back", 3)));
    broker.connect(&Connect::v5("polite").will(will("polite", 0))).disconnect();
    // A DISCONNECT has no acknowledgement; one that comes later stands for all before it.
    broker.connect(&Connect::v5("later").persistent()).disconnect();
    crash(&mut broker);
    let _back = broker.connect(&back);
    let mut client = broker.connect(&watcher);
    let mut names: Vec<String> = (0..3).map(|_| client.text()).collect();
    names.sort();
    assert_eq!(names, ["late", "stored", "volatile"]);
    assert!(
        client.try_receive(std::time::Duration::from_secs(4)).is_err(),
        "neither the polite one nor the one that came back"
    );
}

/// A full disk refuses what it cannot keep, and nothing else; with space comes everything back, without a restart (D117).
#[test]
fn a_full_disk_is_told_and_forgotten() {
    let broker = Setup::new().small_disk(96).start();
    let sleeper = Connect::v5("sleeper").persistent();
    let mut client = broker.connect(&sleeper);
    client.subscribe("kept/#", 1);
    client.disconnect();
    let ballast = broker.data_dir().join("ballast");
    let mut listener = broker.v4("listener");
    listener.subscribe("passing", 0);
    let mut publisher = broker.v5("publisher");
    let mut acknowledged = Vec::new();
    let mut publish = |publisher: &mut Client, number: u32| {
        let mut payload = vec![0x5a; 60_000];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        let code = publisher.publish_code(&publish_of("kept/a", payload, 1));
        if code < 0x80 {
            acknowledged.push(number);
        }
        code
    };
    assert!(publish(&mut publisher, 0) < 0x80);
    fill(&ballast);
    // What is compacted meanwhile may give some space back.
    let refused = (1..200).find(|number| {
        fill(&ballast);
        publish(&mut publisher, *number) >= 0x80
    });
    let refused = refused.expect("a full disk");
    publisher.publish("passing", "all the same", 0);
    assert_eq!(listener.text(), "all the same");
    assert_eq!(broker.refused(&sleeper), 0x88, "nobody is let in to what cannot be kept");
    assert_eq!(find(&broker.status(), "healthy"), Some(&serde_json::Value::Bool(false)));
    std::fs::remove_file(&ballast).unwrap();
    eventually("a store that works again", || {
        (find(&broker.status(), "healthy") == Some(&serde_json::Value::Bool(true))).then_some(())
    });
    assert!(publish(&mut publisher, refused + 1) < 0x80);
    let mut client = broker.connect(&sleeper);
    assert!(client.session_present());
    for number in acknowledged {
        let got = client.message().payload;
        let got = u32::from_be_bytes(got[..4].try_into().unwrap());
        assert_eq!(got, number, "acknowledged, in order");
    }
    client.nothing();
}

/// Takes all the space that is left.
fn fill(path: &std::path::Path) {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let block = vec![0x55; 64 * 1024];
    while file.write_all(&block).is_ok() {}
}

/// The log of a shared group survives with what its members hold: QoS 1 goes to whoever is there.
#[test]
fn shared_groups_survive() {
    let mut broker = Broker::start();
    let member = |broker: &Broker, id: &str| broker.connect(&Connect::v5(id).persistent());
    let mut a = member(&broker, "a");
    a.subscribe("$share/g/t", 1);
    let mut b = member(&broker, "b");
    b.subscribe("$share/g/t", 1);
    b.disconnect();
    let mut publisher = broker.v4("publisher");
    (0..10u8).for_each(|n| publisher.publish("t", [n], 1));
    let held = a.delivery();
    a.delivery();
    a.send(&wire::ack(PUBACK, held.id));
    a.ping();
    publisher.publish("t", [10], 1);
    crash(&mut broker);
    let mut b = member(&broker, "b");
    let mut got: Vec<u8> = (0..10).map(|_| b.message().payload[0]).collect();
    got.sort_unstable();
    assert_eq!(got, (1..=10).collect::<Vec<u8>>(), "all but the acknowledged one");
    b.nothing();
    member(&broker, "a").nothing();
}

/// A clean end and a start lose nothing either; after two of them a QoS 2 subscription still gets what is new (D120).
#[test]
fn an_orderly_restart_loses_nothing() {
    let mut broker = Broker::start();
    let sleeper = Connect::v4("sleeper").persistent();
    let mut client = broker.connect(&sleeper);
    client.subscribe("t", 2);
    for n in 0..3u8 {
        broker.v4("publisher").publish("t", [n], 2);
        assert_eq!(broker.terminate().code(), Some(0));
        broker.restart();
    }
    let mut client = broker.connect(&sleeper);
    for n in 0..3u8 {
        assert_eq!(client.message().payload, [n]);
    }
    broker.v4("publisher").publish("t", "new", 2);
    assert_eq!(client.text(), "new");
    client.nothing();
}

/// A damaged store is said, and does not start as an empty one (D116); what a killed write left behind is no damage (D121).
#[test]
fn a_damaged_store_is_said() {
    let mut broker = Broker::start();
    let mut client = broker.connect(&Connect::v4("sleeper").persistent());
    client.subscribe("t", 1);
    drop(client);
    broker.kill9();
    let store = broker.data_dir().join("store");
    std::fs::write(store.join("000999.dbtmp"), "half").unwrap();
    broker.restart();
    assert!(broker.connect(&Connect::v4("sleeper").persistent()).session_present());
    broker.kill9();
    let mut damaged = 0;
    for entry in std::fs::read_dir(&store).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("MANIFEST") {
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, bytes.iter().map(|byte| !byte).collect::<Vec<u8>>()).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "a store that can be damaged");
    let (code, said) = broker.start_in_vain();
    assert!(code != Some(0) && said.contains("store"), "{said}");
}

/// What was delivered leaves the disk again (D118).
#[test]
fn delivered_messages_leave_the_disk() {
    let broker = Broker::start();
    let mut device = broker.connect(&Connect::v4("device").persistent());
    device.subscribe("t", 1);
    let mut publisher = broker.v4("publisher");
    let payload: Vec<u8> = crate::support::Random::new(7).bytes(64 * 1024);
    for from in (0..4_000u16).step_by(50) {
        let burst = (from..from + 50)
            .flat_map(|n| wire::publish(false, &Publish { id: n + 1, ..publish_of("t", &payload, 1) }));
        publisher.send(&burst.collect::<Vec<u8>>());
        for n in from..from + 50 {
            assert_eq!(device.message().payload.len(), payload.len());
            assert_eq!(publisher.acknowledged(PUBACK, n + 1), 0);
        }
    }
    let size = || -> u64 {
        let entries = std::fs::read_dir(broker.data_dir().join("store")).unwrap();
        entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
    };
    crate::support::eventually("a small store", || (size() < 150 << 20).then_some(()));
}

/// Nothing of `memory` outlives the process, and nothing of it is on the disk.
#[test]
fn memory_keeps_nothing() {
    let mut broker = Setup::new().durability("memory").start();
    let mut client = broker.connect(&Connect::v4("sleeper").persistent());
    client.subscribe("t", 1);
    client.publish_retained("t", "x", 1);
    client.message();
    crash(&mut broker);
    assert!(!broker.connect(&Connect::v4("sleeper").persistent()).session_present());
    broker.v4("late").subscribe("t", 1);
    assert_eq!(broker.status_number("retained_messages"), 0);
    assert!(!broker.data_dir().join("store").exists());
}
