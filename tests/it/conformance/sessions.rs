//! Session State (4.1): how long it lives, what it keeps for an absent client, and whose it is.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{
    Broker, Connect, Lost, Packet, Setup, Value,
    client::publish_of,
    eventually,
    wire::{self, PUBACK, Publish, property},
};

/// A session keeps its subscriptions and what comes for them at QoS 1 and 2, in order; what is published at QoS 0, or for a subscription
/// of QoS 0, is not queued (D41), not even by way of a shared subscription (D69) [MQTT-3.1.2-5], [MQTT-3.1.2-23], [MQTT-4.5.0-1].
#[test]
fn a_session_waits_for_its_client() {
    let broker = Broker::start();
    for level in 3..=5 {
        let connect = Connect::new(level, &format!("device-{level}")).persistent();
        let mut device = broker.connect(&connect);
        device.subscribe_all(&[("kept/#", 2), ("fleeting", 0), ("$share/g/stale", 0)]);
        device.disconnect();
        let mut publisher = broker.v4("publisher");
        for n in 0..30u8 {
            publisher.publish("kept/a", [n], n % 3);
            publisher.publish("fleeting", [n], n % 3);
            publisher.publish("stale", [n], n % 3);
        }
        let mut device = broker.connect(&connect);
        assert_eq!(device.session_present(), level > 3, "MQTT 3.1 has no Session Present");
        for n in (0..30u8).filter(|n| n % 3 > 0) {
            let message = device.message();
            let expected = ("kept/a", n, n % 3, false);
            assert_eq!((&*message.topic, message.payload[0], message.qos, message.dup), expected);
        }
        device.nothing();
        publisher.publish("fleeting", "live", 1);
        assert_eq!(device.text(), "live");
        device.disconnect();
    }
}

/// A clean start ends what was kept: no queue, no subscription (D38) [MQTT-3.1.2-4].
#[test]
fn a_clean_start_forgets() {
    let broker = Broker::start();
    for level in 4..=5 {
        let mut device = broker.connect(&Connect::new(level, "device").persistent());
        device.subscribe("t", 1);
        device.disconnect();
        let mut publisher = broker.v4("publisher");
        publisher.publish("t", "queued", 1);
        let mut device = broker.connect(&Connect::new(level, "device"));
        assert!(!device.session_present());
        publisher.publish("t", "unwanted", 1);
        device.nothing();
        device.disconnect();
        let mut device = broker.connect(&Connect::new(level, "device").persistent());
        assert!(!device.session_present(), "a clean session leaves nothing behind");
        device.nothing();
        device.disconnect_with(0, &[(property::SESSION_EXPIRY, Value::Four(0))].as_slice()[..usize::from(level == 5)]);
        broker.connect(&Connect::new(level, "device")).disconnect();
    }
}

/// The Session Expiry Interval counts from the end of the connection, and a client that is there keeps its session
/// [MQTT-4.1.0-1], [MQTT-4.1.0-2].
#[test]
fn a_session_expires_after_its_client_left() {
    let broker = Broker::start();
    let mut here = broker.connect(&Connect::v5("here").expiry(1));
    here.subscribe("t", 1);
    let mut gone = broker.connect(&Connect::v5("gone").expiry(1));
    gone.subscribe("t", 1);
    gone.cut();
    broker.until_status("sessions", |sessions| sessions == 1);
    let mut publisher = broker.v4("publisher");
    publisher.publish("t", "x", 1);
    assert_eq!(here.text(), "x");
    assert!(!broker.connect(&Connect::v5("gone").persistent()).session_present());
}

/// `max_queued_messages = 0` is no limit (D40).
#[test]
fn no_limit_of_a_queue_is_none() {
    let broker = Setup::new().config("[session]\nmax_queued_messages = 0\nmax_queued_bytes = 0\n").start();
    let mut device = broker.connect(&Connect::v4("device").persistent());
    device.subscribe("t", 1);
    device.disconnect();
    let mut publisher = broker.v4("publisher");
    for from in (0..5_000u32).step_by(500) {
        let bytes = (0..500).flat_map(|i| {
            wire::publish(false, &Publish { id: i as u16 + 1, ..publish_of("t", (from + i).to_be_bytes(), 1) })
        });
        publisher.send(&bytes.collect::<Vec<u8>>());
        (1..=500).for_each(|id| assert_eq!(publisher.acknowledged(PUBACK, id), 0));
    }
    let mut device = broker.connect(&Connect::v4("device").persistent());
    for n in 0..5_000u32 {
        assert_eq!(device.message().payload, n.to_be_bytes());
    }
    device.nothing();
}

/// A resume does not repeat retained messages (D43).
#[test]
fn a_resume_repeats_no_retained_messages() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    publisher.publish_retained("t", "kept", 1);
    let mut device = broker.connect(&Connect::v5("device").persistent());
    device.subscribe("t", 1);
    assert_eq!(device.text(), "kept");
    device.ping();
    device.cut();
    let mut device = broker.connect(&Connect::v5("device").persistent());
    assert!(device.session_present());
    device.nothing();
}

/// Subscribers that leave in the middle of a delivery disturb nobody (D44), and the counters stay right (D45, D137).
#[test]
fn leaving_subscribers_disturb_nobody() {
    let broker = Broker::start();
    let mut steady = broker.v5("steady");
    steady.subscribe("t", 1);
    let mut publisher = broker.v5("publisher");
    for round in 0..10u8 {
        let mut leaving: Vec<_> = (0..20).map(|i| broker.connect(&Connect::v4(&format!("leaving-{i}")))).collect();
        leaving.iter_mut().enumerate().for_each(|(i, client)| client.subscribe("t", (i % 3) as u8));
        let burst = (0..50u16)
            .flat_map(|i| wire::publish(true, &Publish { id: i + 1, ..publish_of("t", [round, i as u8], 1) }));
        publisher.send(&burst.collect::<Vec<u8>>());
        drop(leaving);
        for i in 0..50u8 {
            assert_eq!(steady.message().payload, [round, i]);
            assert_eq!(publisher.acknowledged(PUBACK, u16::from(i) + 1), 0);
        }
    }
    broker.until_status("clients_connected", |clients| clients == 2);
    broker.until_status("sessions", |sessions| sessions == 2);
    broker.until_status("subscriptions", |subscriptions| subscriptions == 1);
}

/// A take-over inherits the session with what is in flight, and messages that come meanwhile are neither lost nor doubled.
#[test]
fn a_take_over_inherits_the_session() {
    let broker = Broker::start();
    let connect = Connect::v5("device").persistent();
    let mut device = broker.connect(&connect);
    device.subscribe("t", 1);
    let address = broker.address();
    let publisher = std::thread::spawn(move || {
        let mut publisher = crate::support::Client::tcp(address).login(&Connect::v4("publisher"));
        (0..400u16).for_each(|n| publisher.publish("t", n.to_be_bytes(), 1));
    });
    let mut expected = 0;
    while expected < 400 {
        let next = broker.connect(&connect);
        assert!(next.session_present());
        let mut old = std::mem::replace(&mut device, next);
        assert_eq!(old.closed_eventually(), Some(0x8e));
        for _ in 0..20 {
            match device.try_receive(Duration::from_millis(500)) {
                Ok(Packet::Publish(publish)) => {
                    let n = u16::from_be_bytes(publish.payload.as_slice().try_into().unwrap());
                    // Sent but not acknowledged over the old connection: comes again, marked.
                    assert!(
                        n == expected || (n < expected && publish.dup),
                        "{n} where {expected} is next, DUP {}",
                        publish.dup
                    );
                    expected = expected.max(n + 1);
                    device.send(&wire::ack(PUBACK, publish.id));
                }
                Err(Lost::TimedOut) => break,
                other => panic!("{other:?}"),
            }
        }
    }
    publisher.join().unwrap();
    device.nothing();
}

/// A client that reads slowly gets all that was queued for it, in order, while new messages come: nothing is lost between the two.
#[test]
fn a_slow_reader_loses_nothing() {
    let broker = Broker::start();
    let mut slow = broker.connect(&Connect::v4("slow").persistent());
    slow.subscribe("t", 1);
    let mut publisher = broker.v4("publisher");
    let block = vec![b'x'; 16 * 1024];
    // More than the sockets hold: it waits in the broker.
    let count = 1_500u32;
    for from in (0..count).step_by(100) {
        let bytes = (0..100).flat_map(|i| {
            let mut payload = (from + i).to_be_bytes().to_vec();
            payload.extend_from_slice(&block);
            wire::publish(false, &Publish { id: i as u16 + 1, ..publish_of("t", payload, 1) })
        });
        publisher.send(&bytes.collect::<Vec<u8>>());
        (1..=100).for_each(|id| assert_eq!(publisher.acknowledged(PUBACK, id), 0));
    }
    for n in 0..count {
        assert_eq!(slow.message().payload[..4], n.to_be_bytes());
        if n % 10 == 0 {
            publisher.publish("t", (count + n / 10).to_be_bytes(), 1);
        }
    }
    for n in count..count + count / 10 {
        assert_eq!(slow.message().payload, n.to_be_bytes());
    }
    slow.nothing();
}

/// Fast reconnects leave the client counted once (D45).
#[test]
fn reconnects_are_counted_right() {
    let broker = Broker::start();
    for n in 0..200 {
        let client = broker.connect(&Connect::v5("device").expiry(n % 2 * 100));
        if n % 3 == 0 {
            client.disconnect();
        }
    }
    let last = broker.connect(&Connect::v5("device").persistent());
    eventually("one client in the status", || (broker.status_number("clients_connected") == 1).then_some(()));
    assert_eq!(broker.status_number("sessions"), 1);
    drop(last);
    broker.until_status("clients_connected", |clients| clients == 0);
}

/// A full queue of an absent subscriber is told: to the publisher or in the counters, and never by a silent gap (D36).
#[test]
fn a_full_queue_is_told() {
    let broker = Setup::new().config("[session]\nmax_queued_messages = 10\n").start();
    let mut absent = broker.connect(&Connect::v5("absent").persistent());
    absent.subscribe("t", 1);
    absent.disconnect();
    let mut publisher = broker.v5("publisher");
    let refused = (0..20u8).filter(|n| publisher.publish_code(&publish_of("t", [*n], 1)) >= 0x80).count();
    publisher.publish("end", "x", 1);
    let dropped = broker.status_number("queue_full");
    let mut absent = broker.connect(&Connect::v5("absent").persistent());
    assert!(absent.session_present());
    let queued = 20 - usize::try_from(dropped).unwrap().max(refused);
    assert_eq!(queued, 10, "{refused} refused, {dropped} dropped");
    let got: BTreeSet<u8> = (0..queued).map(|_| absent.message().payload[0]).collect();
    assert_eq!(got.len(), 10);
    absent.nothing();
    // The queue has room again, and after a refusal the id is free (D33).
    publisher.publish("t", "again", 1);
    publisher.publish("t", "again", 2);
    assert_eq!([absent.text(), absent.text()], ["again", "again"]);
}
