//! Stores of earlier releases: a directory that one of them left behind, killed with everything under way, is taken over with all that
//! is in it. `tests/data` has one for each format; `PINNACE_TEST_KEEP_STORE=FILE` writes the one of this release.

use std::{path::Path, process::Command};

use crate::support::{
    Broker, Connect, Packet, Setup, Value, WallClock, Will,
    client::{Client, publish_of},
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, property},
};

/// A message whose body is stored once for all who wait for it.
const LARGE: usize = 2_000;

/// Puts one of everything into the store, and leaves it under way.
pub fn fill(broker: &mut Broker) {
    let mut reader = broker.connect(&reader());
    let number = (property::SUBSCRIPTION_ID, Value::Variable(77));
    reader.subscribe_with(&[number], &[("queue/+", 2 | 8)]);
    reader.subscribe_all(&[("large", 1), ("will/#", 1)]);
    reader.disconnect();
    let mut other = broker.connect(&Connect::v4("other").persistent());
    other.subscribe_all(&[("large", 1), ("gone", 1)]);
    other.unsubscribe(&["gone"]);
    other.disconnect();
    let mut publisher = broker.v5("publisher");
    let properties = vec![(property::CONTENT_TYPE, Value::Text("text/plain".into()))];
    publisher.publish_as(&Publish { retain: true, properties, ..publish_of("kept/one", "1", 1) });
    publisher.publish_retained("kept/two", "2", 2);
    publisher.publish_retained("kept/gone", "x", 1);
    publisher.publish_retained("kept/gone", "", 1);
    let user = vec![(property::USER_PROPERTY, Value::Pair("k".into(), "v".into()))];
    publisher.publish_as(&Publish { properties: user, ..publish_of("queue/a", "first", 2) });
    // What follows stands in files of its own.
    assert_eq!(broker.terminate().code(), Some(0));
    broker.restart();
    let mut publisher = broker.v5("publisher");
    publisher.publish("queue/b", "second", 1);
    publisher.publish("large", [b'L'; LARGE], 1);
    under_way(broker, &mut publisher);
    let _mortal = broker.connect(&Connect::v4("mortal").will(Will::new("will/mortal", "died").qos(1)));
    broker.connect(&Connect::v4("later").persistent()).disconnect();
    broker.kill9();
}

/// Handshakes in each step, in both directions, and the leases of a shared group.
fn under_way(broker: &Broker, publisher: &mut Client) {
    let mut device = broker.connect(&kept("device"));
    for (id, payload) in [(5, "received"), (6, "completed")] {
        device.send_publish(&Publish { id, ..publish_of("queue/c", payload, 2) });
        assert_eq!(device.acknowledged(PUBREC, id), 0);
    }
    device.send(&wire::ack(PUBREL, 6));
    assert_eq!(device.acknowledged(PUBCOMP, 6), 0);
    let mut taker = broker.connect(&kept("taker"));
    taker.subscribe("steps", 2);
    for (payload, qos) in [("one", 1), ("two", 2), ("received", 2), ("done", 1)] {
        publisher.publish("steps", payload, qos);
    }
    let sent: Vec<Publish> = (0..4).map(|_| taker.delivery()).collect();
    taker.send(&wire::ack(PUBREC, sent[2].id));
    taker.acknowledged(PUBREL, sent[2].id);
    taker.send(&wire::ack(PUBACK, sent[3].id));
    taker.ping();
    let mut holder = broker.connect(&kept("holder"));
    holder.subscribe("$share/group/work", 2);
    publisher.publish("work", "held", 2);
    publisher.publish("work", "half", 2);
    assert_eq!(holder.delivery().payload, b"held");
    let half = holder.delivery();
    holder.send(&wire::ack(PUBREC, half.id));
    holder.acknowledged(PUBREL, half.id);
    let mut member = broker.connect(&kept("member"));
    member.subscribe("$share/group/work", 1);
    member.disconnect();
    // Somebody waits for what was acknowledged.
    publisher.publish("queue/b", "third", 1);
}

pub fn reader() -> Connect {
    kept("reader")
}

/// A session that is there however old the store is.
pub fn kept(client_id: &str) -> Connect {
    Connect::v5(client_id).clean(false).expiry(u32::MAX)
}

/// All that [`fill`] left is there, and goes on where it stood.
fn find_all(broker: &Broker) {
    let mut reader = broker.connect(&reader());
    assert!(reader.session_present());
    let messages: Vec<Publish> = (0..7).map(|_| reader.message()).collect();
    let of = |topic: &str| -> Vec<String> {
        let of_topic = messages.iter().filter(|message| message.topic.starts_with(topic));
        of_topic.map(|message| String::from_utf8(message.payload.clone()).unwrap()).collect()
    };
    assert_eq!(of("queue/a"), ["first"]);
    assert_eq!(of("queue/b"), ["second", "third"]);
    assert_eq!(of("queue/c"), ["received", "completed"]);
    assert_eq!(of("large"), ["L".repeat(LARGE)]);
    assert_eq!(of("will/"), ["died"]);
    reader.nothing();
    let first = messages.iter().find(|message| message.topic == "queue/a").unwrap();
    assert_eq!(first.qos, 2);
    assert!(first.properties.contains(&(property::SUBSCRIPTION_ID, Value::Variable(77))));
    assert!(first.properties.contains(&(property::USER_PROPERTY, Value::Pair("k".into(), "v".into()))));
    let mut other = broker.connect(&Connect::v4("other").persistent());
    assert_eq!(other.message().payload, [b'L'; LARGE]);
    broker.v4("again").publish("gone", "x", 1);
    other.nothing();
    let mut late = broker.v5("late");
    late.subscribe("kept/#", 2);
    let (one, two) = (late.message(), late.message());
    assert_eq!((&*one.topic, &*one.payload, one.qos), ("kept/one", &b"1"[..], 1));
    assert_eq!(one.properties, [(property::CONTENT_TYPE, Value::Text("text/plain".into()))]);
    assert_eq!((&*two.topic, &*two.payload, two.qos), ("kept/two", &b"2"[..], 2));
    late.nothing();
    steps_go_on(broker);
}

fn steps_go_on(broker: &Broker) {
    let mut device = broker.connect(&kept("device"));
    assert!(device.session_present());
    device.send_publish(&Publish { id: 5, dup: true, ..publish_of("steps", "a second time", 2) });
    assert_eq!(device.acknowledged(PUBREC, 5), 0);
    device.send_publish(&Publish { id: 6, ..publish_of("steps", "new under an old id", 2) });
    assert_eq!(device.acknowledged(PUBREC, 6), 0);
    device.send(&wire::ack(PUBREL, 6));
    let mut taker = broker.connect(&kept("taker"));
    assert!(taker.session_present());
    assert_eq!(publishes(&mut taker, 3, 1), ["one", "two", "new under an old id"]);
    let mut holder = broker.connect(&kept("holder"));
    assert!(holder.session_present());
    assert_eq!(publishes(&mut holder, 1, 1), ["held"]);
}

/// So many messages, and PUBRELs for what PUBREC was sent for; the messages, sorted. Nothing else comes.
fn publishes(client: &mut Client, messages: usize, released: usize) -> Vec<String> {
    let (mut got, mut ids) = (Vec::new(), Vec::new());
    while got.len() < messages || ids.len() < released {
        match client.receive() {
            Packet::Publish(publish) => got.push(String::from_utf8(publish.payload).unwrap()),
            Packet::Ack { kind: PUBREL, id, .. } => ids.push(id),
            other => panic!("{other:?}"),
        }
    }
    client.nothing();
    got
}

#[test]
fn a_store_of_this_release_is_taken_over() {
    let mut broker = Broker::start();
    fill(&mut broker);
    if let Some(file) = std::env::var_os("PINNACE_TEST_KEEP_STORE") {
        let data_dir = broker.data_dir();
        tar(&["--exclude=LOG*".as_ref(), "-C".as_ref(), data_dir.as_ref(), "-czf".as_ref(), &file, "store".as_ref()]);
    }
    broker.restart();
    find_all(&broker);
}

#[test]
fn stores_of_earlier_releases_are_taken_over() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found = 0;
    for entry in std::fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_string_lossy().ends_with(".tar.gz") {
            continue;
        }
        println!("{}", path.display());
        found += 1;
        let (clock, setup) = WallClock::of(Setup::new());
        let data_dir = setup.dir().join("data");
        std::fs::create_dir(&data_dir).unwrap();
        tar(&["xzf".as_ref(), path.as_ref(), "-C".as_ref(), data_dir.as_ref(), "--no-same-owner".as_ref()]);
        // It was left just now: nothing has expired meanwhile.
        let left = std::fs::metadata(data_dir.join("store/CURRENT")).unwrap().modified().unwrap();
        clock.ahead(-i64::try_from(left.elapsed().unwrap().as_secs()).unwrap());
        let mut broker = setup.start();
        find_all(&broker);
        // Marked anew, it is read once more.
        assert_eq!(broker.terminate().code(), Some(0));
        broker.restart();
        assert!(broker.connect(&reader()).session_present());
    }
    assert!(found > 0, "stores of earlier releases");
}

pub fn tar(args: &[&std::ffi::OsStr]) {
    assert!(Command::new("tar").args(args).status().unwrap().success());
}
