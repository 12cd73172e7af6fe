//! The end of a broker, in order: what is in flight is completed, nothing new begins, everybody is told where to go.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{
    Broker, Client, Connect, Lost, PATIENCE, Packet, Setup, Value, Will,
    broker::DURABILITY,
    client::publish_of,
    eventually,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, property},
};

/// A client that holds a drain up: it was sent a message and says nothing. Gives its packet id.
fn holder(broker: &Broker) -> (Client, u16) {
    let mut holder = broker.connect(&Connect::v5("holder").receive_maximum(1));
    holder.subscribe("held", 1);
    broker.v5("publisher").publish("held", "x", 1);
    let id = holder.delivery().id;
    (holder, id)
}

fn draining(broker: &Broker) {
    eventually("a broker that drains", || (broker.status()["ready"] == false).then_some(()));
}

fn reference(packet: &Packet) -> Option<&Value> {
    packet.property(property::SERVER_REFERENCE)
}

/// A stop tells clients of v5 where to go, those who are connected and those who come: 0x9C or 0x9D with the Server Reference (4.11); without
/// one 0x8B, and in CONNACK 0x88, since 0x8B is no Connect Reason Code [MQTT-3.2.2-8]. Older clients get 3, or just the end (D122).
#[test]
fn everybody_is_told_where_to_go() {
    let moved = "[server]\nserver_reference = \"other.example:1883\"\nserver_moved = true\n";
    let elsewhere = "[server]\nserver_reference = \"other.example:1883\"\n";
    for (config, disconnect, connack) in [(moved, 0x9d, 0x9d), (elsewhere, 0x9c, 0x9c), ("", 0x8b, 0x88)] {
        let mut broker = Setup::new().config(config).start();
        let expected = (!config.is_empty()).then(|| Value::Text("other.example:1883".into()));
        let (mut holder, id) = holder(&broker);
        let mut idle = broker.v5("idle");
        let mut small = broker.connect(&Connect::v5("small").property(property::MAXIMUM_PACKET_SIZE, Value::Four(24)));
        let mut old = broker.v4("old");
        broker.signal(Signal::TERM);
        let told = idle.receive();
        assert!(matches!(told, Packet::Disconnect { code, .. } if code == disconnect), "{told:?}");
        assert_eq!(reference(&told), expected.as_ref());
        assert_eq!(idle.closed(), None);
        assert_eq!(small.closed(), Some(disconnect), "without what does not fit");
        assert_eq!(old.closed(), None);

        let mut late = broker.tcp();
        let told = late.try_login(&Connect::v5("late")).expect("a CONNACK");
        assert!(matches!(told, Packet::ConnAck { code, session_present: false, .. } if code == connack), "{told:?}");
        assert_eq!(reference(&told), expected.as_ref());
        assert_eq!(late.closed(), None);
        let tiny = Connect::v5("late").property(property::MAXIMUM_PACKET_SIZE, Value::Four(10));
        assert_eq!(broker.refused(&tiny), connack);
        for level in 3..=4 {
            assert_eq!(broker.refused(&Connect::new(level, "late")), 3);
        }

        holder.send(&wire::ack(PUBACK, id));
        assert_eq!(holder.closed(), Some(disconnect));
        assert_eq!(broker.ended().code(), Some(0));
    }
}

/// What is in flight is completed, both ways, and nothing new is begun: the message behind it comes after the restart.
#[test]
fn what_is_in_flight_is_completed() {
    let mut broker = Setup::new().config("[server]\ndrain_secs = 60\n").start();
    let device = Connect::v5("device").persistent().receive_maximum(1);
    let mut receiver = broker.connect(&device);
    receiver.subscribe("t", 2);
    let mut publisher = broker.v5("publisher");
    publisher.publish("t", "first", 2);
    publisher.publish("t", "second", 2);
    publisher.send_publish(&Publish { id: 50, ..publish_of("t", "third", 2) });
    assert_eq!(publisher.acknowledged(PUBREC, 50), 0);
    let first = receiver.delivery();
    assert_eq!(first.payload, b"first");
    broker.signal(Signal::TERM);
    draining(&broker);

    receiver.send(&wire::ack(PUBREC, first.id));
    assert_eq!(receiver.acknowledged(PUBREL, first.id), 0);
    // Only the last step of its exchange lets go of each.
    receiver.ping();
    publisher.ping();
    receiver.send(&wire::ack(PUBCOMP, first.id));
    assert_eq!(receiver.closed(), Some(0x8b), "and no second message");
    publisher.send_publish(&Publish { id: 51, ..publish_of("t", "fourth", 1) });
    assert_eq!(publisher.acknowledged(PUBACK, 51), 0, "what still comes is served");
    publisher.send(&wire::ack(PUBREL, 50));
    assert_eq!(publisher.acknowledged(PUBCOMP, 50), 0);
    assert_eq!(publisher.closed(), Some(0x8b));
    assert_eq!(broker.ended().code(), Some(0));
    if DURABILITY == "memory" {
        return;
    }
    broker.restart();
    let mut receiver = broker.connect(&device);
    assert!(receiver.session_present());
    for expected in ["second", "third", "fourth"] {
        let message = receiver.message();
        assert_eq!((message.payload.as_slice(), message.dup), (expected.as_bytes(), false));
    }
    receiver.nothing();
}

/// Who publishes without a pause is stopped all the same, between two answers: what was acknowledged is kept, and nothing else is lost.
#[test]
fn a_stream_of_publishes_does_not_hold_up_a_drain() {
    let mut broker = Setup::new().config("[server]\ndrain_secs = 60\n").start();
    let device = Connect::v5("device").persistent();
    let mut receiver = broker.connect(&device);
    receiver.subscribe("t", 1);
    receiver.disconnect();
    let mut publisher = broker.v4("publisher");
    let mut acknowledged = 0u32;
    for n in 0..20_000u32 {
        let publish = Publish { id: (n % 60_000) as u16 + 1, ..publish_of("t", n.to_string(), 1) };
        if publisher.try_send(&wire::publish(false, &publish)).is_err() {
            break;
        }
        if n == 500 {
            broker.signal(Signal::TERM);
        }
        if n >= 100 {
            match publisher.try_receive(PATIENCE) {
                Ok(Packet::Ack { kind: PUBACK, .. }) => acknowledged += 1,
                Err(Lost::Closed) => break,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(broker.ended().code(), Some(0));
    while let Ok(Packet::Ack { kind: PUBACK, .. }) = publisher.try_receive(PATIENCE) {
        acknowledged += 1;
    }
    assert!((300..20_000).contains(&acknowledged), "{acknowledged} before the end");
    if DURABILITY == "memory" {
        return;
    }
    broker.restart();
    let mut receiver = broker.connect(&device);
    for n in 0..acknowledged {
        assert_eq!(receiver.text(), n.to_string());
    }
}

/// A client that never acknowledges holds the end up for `drain_secs`, not longer; a second signal makes it shorter. Wills are not published by
/// a stop: after the start they are, unless the client is back (D122).
#[test]
fn a_drain_ends_in_time() {
    for (secs, again) in [(1, false), (600, true)] {
        let mut broker = Setup::new().config(&format!("[server]\ndrain_secs = {secs}\n")).start();
        let mut watcher = broker.connect(&Connect::v5("watcher").persistent());
        watcher.subscribe("will", 1);
        let (mut holder, _) = holder(&broker);
        let mortal = Connect::v5("mortal").will(Will::new("will", "gone").qos(1));
        let mut mortal = broker.connect(&mortal);
        let began = Instant::now();
        broker.signal(Signal::TERM);
        assert_eq!(mortal.closed(), Some(0x8b));
        assert_eq!(watcher.closed(), Some(0x8b), "no will");
        if again {
            broker.signal(Signal::TERM);
        }
        assert_eq!(holder.closed(), Some(0x8b));
        assert!(again || began.elapsed() >= Duration::from_secs(secs), "after {:?}", began.elapsed());
        assert_eq!(broker.ended().code(), Some(0));
        broker.wait_log("how the drain ended", |line| line.contains("not waited for"));
        if DURABILITY == "memory" {
            continue;
        }
        broker.restart();
        let mut watcher = broker.connect(&Connect::v5("watcher").persistent());
        assert_eq!(watcher.text(), "gone");
    }
}

/// Options that say nothing useful are refused.
#[test]
fn a_redirect_needs_a_place() {
    for (config, key) in [
        ("[server]\nserver_moved = true\n", "server.server_moved"),
        ("[server]\nserver_reference = \" \"\n", "server.server_reference"),
    ] {
        let output = Setup::new().config(config).refused();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(key), "{output:?}");
    }
}
