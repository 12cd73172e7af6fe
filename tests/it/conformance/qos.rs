//! Quality of Service, retries, order and flow control (4.3 to 4.6, 4.9): handshakes, packet identifiers, and what a reconnecting client gets again.

use std::time::Duration;

use super::pair;
use crate::support::{
    Broker, Connect, Lost, Packet, Setup, Value,
    client::publish_of,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, property},
};

/// DUP belongs to one hop: a publisher's is not passed on (D23) [MQTT-3.3.1-3]; after its PUBACK an id is new (D24) [MQTT-4.3.2-5].
#[test]
fn dup_belongs_to_one_hop() {
    let broker = Broker::start();
    let (mut subscriber, mut publisher) = pair(&broker, "t", 2);
    for (payload, dup) in [("one", true), ("two", true), ("three", false)] {
        publisher.send_publish(&Publish { id: 5, dup, ..publish_of("t", payload, 1) });
        assert_eq!(publisher.acknowledged(PUBACK, 5), 0);
        let message = subscriber.message();
        assert_eq!((&*message.payload, message.dup), (payload.as_bytes(), false));
    }
}

/// A QoS 2 message comes once, however often its PUBLISH and PUBREL are sent [MQTT-4.3.3-8], [MQTT-4.3.3-10], [MQTT-4.3.3-11]; then its id
/// is new [MQTT-4.3.3-12].
#[test]
fn a_repeated_qos_2_publish_is_delivered_once() {
    let broker = Broker::start();
    let (mut subscriber, mut publisher) = pair(&broker, "t", 2);
    for payload in ["one", "two"] {
        let publish = Publish { id: 9, ..publish_of("t", payload, 2) };
        publisher.send_publish(&publish);
        assert_eq!(publisher.acknowledged(PUBREC, 9), 0);
        publisher.send_publish(&Publish { dup: true, ..publish });
        assert_eq!(publisher.acknowledged(PUBREC, 9), 0);
        publisher.send(&wire::ack(PUBREL, 9));
        assert_eq!(publisher.acknowledged(PUBCOMP, 9), 0);
        publisher.send(&wire::ack(PUBREL, 9));
        assert_eq!(publisher.acknowledged(PUBCOMP, 9), 0x92, "a PUBREL for an unknown id");
        assert_eq!(subscriber.text(), payload);
    }
    subscriber.nothing();
}

/// Packet identifiers wrap past one that is still in flight, and are never 0 (D28) [MQTT-2.2.1-4], [MQTT-4.3.2-1], with and without a stored session.
#[test]
fn packet_identifiers_skip_one_in_flight() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    for (connect, count) in [(Connect::v4("volatile"), 66_000), (Connect::v4("stored").persistent(), 33_500)] {
        let mut subscriber = broker.connect(&connect);
        subscriber.subscribe("t", 1);
        publisher.publish("t", "stuck", 1);
        let stuck = subscriber.delivery();
        let batch = 500;
        for from in (0..count).step_by(batch) {
            let packets = (0..batch).flat_map(|i| {
                let payload = ((from + i) as u32).to_be_bytes();
                wire::publish(false, &Publish { id: i as u16 + 1, ..publish_of("t", payload, 1) })
            });
            publisher.send(&packets.collect::<Vec<u8>>());
            let mut acks = Vec::new();
            for i in 0..batch {
                let message = subscriber.delivery();
                assert_eq!(message.payload, ((from + i) as u32).to_be_bytes(), "order");
                assert_ne!(message.id, stuck.id, "the id of a message that is still in flight");
                acks.extend(wire::ack(PUBACK, message.id));
            }
            subscriber.send(&acks);
            for i in 0..batch {
                assert_eq!(publisher.acknowledged(PUBACK, i as u16 + 1), 0);
            }
        }
        subscriber.send(&wire::ack(PUBACK, stuck.id));
        subscriber.nothing();
        subscriber.disconnect();
    }
}

/// On a living connection nothing is sent again, however long an acknowledgement takes (D30) [MQTT-4.4.0-1].
#[test]
fn nothing_is_sent_again_on_a_living_connection() {
    let broker = Broker::start();
    let (mut subscriber, mut publisher) = pair(&broker, "t", 2);
    for qos in 1..=2 {
        publisher.publish("t", [qos], qos);
        subscriber.delivery();
    }
    assert!(matches!(subscriber.try_receive(Duration::from_secs(2)), Err(Lost::TimedOut)));
}

/// Acknowledgements come in the order of their messages (D31) [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-2.2.1-5],
/// [MQTT-3.3.4-1], [MQTT-4.3.2-4], also where QoS 0, 1 and 2 are mixed and some
/// messages need the disk and some do not.
#[test]
fn acknowledgements_keep_the_order_of_their_messages() {
    let broker = Broker::start();
    let mut stored = broker.connect(&Connect::v4("stored").persistent());
    stored.subscribe("stored", 2);
    stored.disconnect();
    for level in 4..=5 {
        let mut publisher = broker.connect(&Connect::new(level, "publisher").persistent());
        let mut bytes = Vec::new();
        for id in 1..=200u16 {
            let topic = if id % 3 == 0 { "stored" } else { "nobody" };
            let publish = Publish { id, ..publish_of(topic, "x", 1 + (id % 2) as u8) };
            bytes.extend(wire::publish(level == 5, &publish));
        }
        publisher.send(&bytes);
        for id in 1..=200u16 {
            match publisher.receive() {
                Packet::Ack { kind, id: acked, code, .. } => {
                    assert_eq!((kind, acked), (PUBACK + (id % 2) as u8, id));
                    assert!(code < 0x80);
                }
                other => panic!("{other:?}"),
            }
        }
        (1..=200).filter(|id| id % 2 == 1).for_each(|id| publisher.send(&wire::ack(PUBREL, id)));
        (1..=200).filter(|id| id % 2 == 1).for_each(|id| assert_eq!(publisher.acknowledged(PUBCOMP, id), 0));
        publisher.disconnect();
    }
}

/// One publisher's messages reach a subscriber in their order over all topics (D32) [MQTT-4.6.0-5], [MQTT-4.6.0-6], and over all QoS too.
#[test]
fn the_order_of_a_publisher_holds_over_topics_and_qos() {
    let broker = Broker::start();
    for (name, persistent) in [("volatile", false), ("stored", true)] {
        for mixed in [false, true] {
            let connect = Connect::v5(name);
            let mut subscriber = broker.connect(&if persistent { connect.persistent() } else { connect });
            subscriber.subscribe("order/#", 2);
            let mut publisher = broker.connect(&Connect::v5("publisher").expiry(100));
            let mut bytes = Vec::new();
            for n in 0..300u16 {
                let qos = if mixed { (n * 7 % 3) as u8 } else { 0 };
                let publish = publish_of(&format!("order/{}", n * 13 % 50), n.to_be_bytes(), qos);
                bytes.extend(wire::publish(true, &Publish { id: if qos > 0 { n + 1 } else { 0 }, ..publish }));
                if qos == 2 {
                    bytes.extend(wire::ack(PUBREL, n + 1));
                }
            }
            publisher.send(&bytes);
            for n in 0..300u16 {
                assert_eq!(subscriber.message().payload, n.to_be_bytes(), "{name}, QoS mixed: {mixed}");
            }
            subscriber.disconnect();
            publisher.disconnect();
        }
    }
}

/// What was not acknowledged comes again after a resume, with DUP, its id and its order; what was received comes no more, only its PUBREL
/// (D35) [MQTT-3.3.1-1], [MQTT-4.3.2-3], [MQTT-4.3.3-3], [MQTT-4.3.3-4], [MQTT-4.3.3-5], [MQTT-4.3.3-6], [MQTT-4.4.0-1].
#[test]
fn what_was_in_flight_comes_again_after_a_resume() {
    let broker = Broker::start();
    for level in 4..=5 {
        let connect = Connect::new(level, &format!("subscriber-{level}")).persistent();
        let mut subscriber = broker.connect(&connect);
        subscriber.subscribe("t", 2);
        let mut publisher = broker.v4("publisher");
        for (payload, qos) in [("one", 1), ("two", 2), ("received", 2), ("done", 1)] {
            publisher.publish("t", payload, qos);
        }
        let sent: Vec<Publish> = (0..4).map(|_| subscriber.delivery()).collect();
        assert!(sent.iter().all(|publish| !publish.dup));
        subscriber.send(&wire::ack(PUBREC, sent[2].id));
        assert_eq!(subscriber.acknowledged(PUBREL, sent[2].id), 0);
        subscriber.send(&wire::ack(PUBACK, sent[3].id));
        subscriber.ping();
        subscriber.cut();
        publisher.publish("t", "new", 1);
        let mut subscriber = broker.connect(&connect);
        assert!(subscriber.session_present());
        let (mut again, mut released) = (Vec::new(), Vec::new());
        while again.len() < 3 || released.is_empty() {
            match subscriber.receive() {
                Packet::Publish(publish) => again.push(publish),
                Packet::Ack { kind: PUBREL, id, .. } => released.push(id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(again[0], Publish { dup: true, ..sent[0].clone() });
        assert_eq!(again[1], Publish { dup: true, ..sent[1].clone() });
        assert_eq!((&*again[2].payload, again[2].dup), (&b"new"[..], false));
        assert_eq!(released, [sent[2].id]);
        subscriber.send(&wire::ack(PUBCOMP, sent[2].id));
        subscriber.nothing();
        subscriber.disconnect();
    }
}

/// More QoS 1 and 2 messages under way than the broker's Receive Maximum are an error in v5, and bounded before (D26) [MQTT-3.3.4-7].
#[test]
fn the_receive_maximum_of_the_broker_holds() {
    let broker = Setup::new().config("[session]\nreceive_maximum = 10\n").start();
    let mut modern = broker.v5("modern");
    for id in 1..=11 {
        modern.send_publish(&Publish { id, ..publish_of("t", "x", 2) });
    }
    assert_eq!(modern.closed_eventually(), Some(0x93));
    let mut old = broker.v4("old");
    let before = broker.resident_bytes();
    let many = (1..=u16::MAX).flat_map(|id| wire::publish(false, &Publish { id, ..publish_of("t", "x", 2) }));
    let bytes: Vec<u8> = many.collect();
    for chunk in bytes.chunks(10_000) {
        if old.try_send(chunk).is_err() {
            break;
        }
        while old.try_receive(Duration::from_millis(1)).is_ok() {}
    }
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for the unreleased ids of one client");
}

/// The subscriber's Receive Maximum bounds what is in flight to it [MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-2]; QoS 0 and PINGREQ pass
/// [MQTT-3.3.4-10], [MQTT-4.9.0-3].
#[test]
fn the_receive_maximum_of_a_client_holds() {
    let broker = Broker::start();
    for persistent in [false, true] {
        let connect = Connect::v5("subscriber").receive_maximum(2);
        let mut subscriber = broker.connect(&if persistent { connect.persistent() } else { connect });
        subscriber.subscribe("t", 2);
        let mut publisher = broker.v5("publisher");
        for n in 0..6u8 {
            publisher.publish("t", [n], 1 + n % 2);
        }
        publisher.publish("t", "free", 0);
        let mut in_flight: Vec<Publish> = Vec::new();
        let mut seen = Vec::new();
        while seen.len() < 7 {
            match subscriber.try_receive(Duration::from_millis(300)) {
                Ok(Packet::Publish(publish)) if publish.qos == 0 => seen.push(publish.payload),
                Ok(Packet::Publish(publish)) => {
                    seen.push(publish.payload.clone());
                    in_flight.push(publish);
                    assert!(in_flight.len() <= 2, "more in flight than the client takes");
                }
                Err(Lost::TimedOut) => {
                    let publish = in_flight.remove(0);
                    subscriber.ping();
                    if publish.qos == 1 {
                        subscriber.send(&wire::ack(PUBACK, publish.id));
                    } else {
                        subscriber.send(&wire::ack(PUBREC, publish.id));
                        subscriber.acknowledged(PUBREL, publish.id);
                        subscriber.send(&wire::ack(PUBCOMP, publish.id));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        let acknowledged: Vec<_> = seen.into_iter().filter(|payload| payload != b"free").collect();
        assert_eq!(acknowledged, (0..6u8).map(|n| vec![n]).collect::<Vec<_>>());
        subscriber.disconnect();
    }
}

/// A QoS 2 exchange is completed though its message expired meanwhile: by the broker as receiver [MQTT-4.3.3-13], and as sender once the PUBLISH
/// has left [MQTT-4.3.3-7].
#[test]
fn an_expired_message_completes_its_exchange() {
    let broker = Broker::start();
    let connect = Connect::v5("subscriber").persistent();
    let mut subscriber = broker.connect(&connect);
    subscriber.subscribe("sent", 2);
    let mut publisher = broker.v5("publisher");
    let expiring = |id: u16, topic: &str| Publish {
        id,
        properties: vec![(property::MESSAGE_EXPIRY, Value::Four(1))],
        ..publish_of(topic, "x", 2)
    };
    publisher.publish_as(&expiring(0, "sent"));
    let sent = subscriber.delivery();
    publisher.send_publish(&expiring(900, "received"));
    assert!(publisher.acknowledged(PUBREC, 900) < 0x80);
    subscriber.cut();
    assert!(matches!(publisher.try_receive(Duration::from_millis(1_500)), Err(Lost::TimedOut)));

    publisher.send_publish(&Publish { dup: true, ..expiring(900, "received") });
    assert!(publisher.acknowledged(PUBREC, 900) < 0x80, "the PUBLISH again");
    publisher.send(&wire::ack(PUBREL, 900));
    assert_eq!(publisher.acknowledged(PUBCOMP, 900), 0);

    let mut subscriber = broker.connect(&connect);
    let again = subscriber.delivery();
    assert_eq!((again.id, again.dup, again.qos), (sent.id, true, 2));
    subscriber.send(&wire::ack(PUBREC, sent.id));
    assert_eq!(subscriber.acknowledged(PUBREL, sent.id), 0);
    subscriber.send(&wire::ack(PUBCOMP, sent.id));
    subscriber.nothing();
}

/// At the broker's Receive Maximum everything but another PUBLISH of QoS 1 or 2 is taken and answered [MQTT-3.3.4-8], [MQTT-4.9.0-3].
#[test]
fn the_receive_maximum_holds_up_nothing_else() {
    let broker = Setup::new().config("[session]\nreceive_maximum = 3\n").start();
    let mut client = broker.v5("client");
    client.subscribe("t", 0);
    for id in 1..=3 {
        client.send_publish(&Publish { id, ..publish_of("t", [id as u8], 2) });
        assert_eq!(client.acknowledged(PUBREC, id), 0);
        assert_eq!(client.delivery().payload, [id as u8]);
    }
    client.publish("t", "free", 0);
    assert_eq!(client.text(), "free");
    client.subscribe("other", 1);
    client.unsubscribe(&["other"]);
    client.ping();
    // One that is here already does not count again.
    client.send_publish(&Publish { id: 2, dup: true, ..publish_of("t", [2], 2) });
    assert_eq!(client.acknowledged(PUBREC, 2), 0);
    for id in 1..=3 {
        client.send(&wire::ack(PUBREL, id));
        assert_eq!(client.acknowledged(PUBCOMP, id), 0);
    }
    client.publish("t", "again", 2);
    assert_eq!(client.text(), "again");
}

/// A resume sends again in the order of the first time [MQTT-4.6.0-1], and PUBRELs in the order of the PUBRECs [MQTT-4.6.0-4]; each has its id and
/// its content [MQTT-2.2.1-5].
#[test]
fn a_resume_keeps_the_order() {
    let broker = Broker::start();
    for level in 4..=5 {
        let connect = Connect::new(level, &format!("subscriber-{level}")).persistent();
        let mut subscriber = broker.connect(&connect);
        subscriber.subscribe("t", 2);
        let mut publisher = broker.v4("publisher");
        (0..40u8).for_each(|n| publisher.publish("t", [n], 1 + n % 2));
        let sent: Vec<Publish> = (0..40).map(|_| subscriber.delivery()).collect();
        // PUBREC out of order: the PUBRELs follow the PUBRECs.
        for n in [39, 1, 21] {
            subscriber.send(&wire::ack(PUBREC, sent[n].id));
        }
        for n in [39, 1, 21] {
            match subscriber.receive() {
                Packet::Ack { kind: PUBREL, id, .. } => assert_eq!(id, sent[n].id),
                other => panic!("{other:?}"),
            }
        }
        subscriber.cut();
        let mut subscriber = broker.connect(&connect);
        let mut again = Vec::new();
        let mut released = 0;
        while again.len() < 37 || released < 3 {
            match subscriber.receive() {
                Packet::Publish(publish) => again.push(publish),
                Packet::Ack { kind: PUBREL, id, .. } => {
                    assert!([39, 1, 21].iter().any(|n| sent[*n].id == id));
                    released += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        let expected = sent.iter().enumerate().filter(|(n, _)| ![39, 1, 21].contains(n));
        let expected: Vec<Publish> = expected.map(|(_, publish)| Publish { dup: true, ..publish.clone() }).collect();
        assert_eq!(again, expected);
        subscriber.nothing();
        subscriber.disconnect();
    }
}
