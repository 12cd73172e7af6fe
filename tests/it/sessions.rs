//! Sessions: how long they live, what they keep for an absent client, and whose they are.

use std::time::{Duration, Instant};

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
        assert!(device.session_present());
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

/// A Session Expiry Interval in DISCONNECT counts (D37); one that was 0 cannot be raised (3.14.2.2.2).
#[test]
fn a_disconnect_may_change_the_session_expiry() {
    let broker = Broker::start();
    let expiry = |secs| [(property::SESSION_EXPIRY, Value::Four(secs))];
    let present = |id: &str| {
        let client = broker.connect(&Connect::v5(id).clean(false).expiry(100));
        let present = client.session_present();
        client.disconnect();
        present
    };
    broker.connect(&Connect::v5("at-once").expiry(100)).disconnect_with(0, &expiry(0));
    assert!(!present("at-once"));
    let left = Instant::now();
    broker.connect(&Connect::v5("soon").expiry(100)).disconnect_with(0, &expiry(1));
    let sessions = broker.status_number("sessions");
    broker.until_status("sessions", |now| now < sessions);
    assert!(left.elapsed() >= Duration::from_secs(1), "gone after {:?}", left.elapsed());
    assert!(!present("soon"));
    broker.connect(&Connect::v5("longer").expiry(1)).disconnect_with(0, &expiry(100));
    let mut raised = broker.v5("raised");
    raised.send(&wire::disconnect(0, &expiry(100)));
    assert_eq!(raised.closed(), Some(0x82));
    assert!(!present("raised"));
    assert!(present("longer"));
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

/// A limit on the Session Expiry Interval is told (D39, 3.2.2.3.2).
#[test]
fn a_shortened_session_expiry_is_told() {
    let broker = Setup::new().config("[session]\nmax_session_expiry_secs = 60\n").start();
    for (asked, told) in [(u32::MAX, Some(Value::Four(60))), (61, Some(Value::Four(60))), (60, None), (5, None)] {
        let client = broker.connect(&Connect::v5("x").expiry(asked));
        let said = client.connack_property(property::SESSION_EXPIRY).cloned();
        assert!(said == told || (told.is_none() && said == Some(Value::Four(asked))), "{asked}: {said:?}");
    }
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

/// Acknowledgements and PINGREQ get in though deliveries wait for a reader (no dead lock of flow control).
#[test]
fn deliveries_that_wait_do_not_stop_reading() {
    let broker = Broker::start();
    let mut both = broker.connect(&Connect::v4("both").keep_alive(5));
    both.subscribe("echo", 0);
    let payload = vec![b'x'; 64 * 1024];
    let packet = wire::publish(false, &publish_of("echo", &payload, 0));
    // Published to itself, nothing read: 32 MiB both ways are more than all buffers hold.
    for _ in 0..512 {
        both.send(&packet);
    }
    both.ping();
    let mut acknowledged = broker.v4("watcher");
    acknowledged.ping();
}

/// What is published right after a SUBACK is delivered, also from another connection (D70).
#[test]
fn a_subscription_holds_from_its_suback_on() {
    let broker = Broker::start();
    let mut subscriber = broker.v4("subscriber");
    let mut publisher = broker.v4("publisher");
    for n in 0..500 {
        let topic = format!("fresh/{n}");
        subscriber.subscribe(&topic, 0);
        publisher.publish(&topic, "x", 0);
        assert_eq!(subscriber.message().topic, topic);
    }
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
