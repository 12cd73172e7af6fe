//! Retained messages (3.3.1.3): stored, replaced, cleared, sent at a subscription.

use crate::support::{
    Broker, Connect, Packet, Setup, Value,
    client::publish_of,
    wire::{self, PUBACK, PUBREC, Publish, property},
};

/// Stored, replaced, cleared by an empty payload, which is itself delivered (D46) [MQTT-3.3.1-5], [MQTT-3.3.1-6], [MQTT-3.3.1-7]; an empty
/// payload without RETAIN clears nothing (D49) [MQTT-3.3.1-8]; RETAIN is not kept for a subscription that stood
/// [MQTT311-3.3.1-9].
#[test]
fn a_retained_message_is_the_last_one() {
    let broker = Broker::start();
    for level in 3..=5 {
        for qos in 0..3 {
            let topic = format!("state/{level}/{qos}");
            let mut live = broker.connect(&Connect::new(level, "live"));
            live.subscribe(&topic, 2);
            let mut publisher = broker.connect(&Connect::new(level, "publisher"));
            let late = |expected: Option<&str>| {
                let mut late = broker.connect(&Connect::new(level, "late"));
                late.subscribe(&topic, 2);
                if let Some(payload) = expected {
                    let message = late.message();
                    assert_eq!((&*message.payload, message.qos, message.retain), (payload.as_bytes(), qos, true));
                }
                late.nothing();
            };
            for payload in ["one", "two"] {
                publisher.publish_retained(&topic, payload, qos);
                let message = live.message();
                assert_eq!((&*message.payload, message.retain), (payload.as_bytes(), false));
                late(Some(payload));
            }
            publisher.publish(&topic, "", qos);
            assert_eq!(live.text(), "");
            late(Some("two"));
            publisher.publish_retained(&topic, "", qos);
            let message = live.message();
            assert_eq!((message.payload.len(), message.retain), (0, false));
            late(None);
        }
    }
}

/// Every SUBSCRIBE sends what is retained again, before v5 without condition (D47) [MQTT311-3.8.4-3], in v5 by Retain Handling
/// [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11], [MQTT-3.8.4-4].
#[test]
fn retain_handling_decides_what_a_subscription_gets() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    publisher.publish_retained("t", "kept", 1);
    let mut old = broker.v4("old");
    for _ in 0..2 {
        old.subscribe("t", 1);
        assert_eq!(old.text(), "kept");
    }
    for (handling, first, again) in [(0u8, true, true), (1, true, false), (2, false, false)] {
        let mut modern = broker.v5("modern");
        for expected in [first, again] {
            modern.subscribe("t", 1 | handling << 4);
            if expected {
                assert_eq!(modern.text(), "kept", "Retain Handling {handling}");
            }
            modern.nothing();
        }
        modern.unsubscribe(&["t"]);
        modern.subscribe("t", 1 | handling << 4);
        assert_eq!(
            first,
            {
                modern.ping();
                modern.try_receive(std::time::Duration::ZERO).is_ok()
            },
            "new after UNSUBSCRIBE"
        );
    }
}

/// RETAIN of a delivery: as published for Retain As Published, else only at the subscription (D48) [MQTT-3.3.1-12], [MQTT-3.3.1-13].
#[test]
fn retain_as_published_is_kept() {
    let broker = Broker::start();
    let mut publisher = broker.v5("publisher");
    for as_published in [false, true] {
        let mut subscriber = broker.v5("subscriber");
        publisher.publish_retained("t", "before", 1);
        subscriber.subscribe("t", 1 | u8::from(as_published) << 3);
        assert!(subscriber.message().retain, "at the subscription");
        publisher.publish_retained("t", "live", 1);
        assert_eq!(subscriber.message().retain, as_published);
        publisher.publish("t", "live", 1);
        assert!(!subscriber.message().retain);
    }
}

/// Two clients set and clear one topic at once: what stays is what was acknowledged last (D52).
#[test]
fn set_and_clear_do_not_race() {
    let broker = Broker::start();
    let address = broker.address();
    let clients: Vec<_> = (0..2)
        .map(|i| {
            std::thread::spawn(move || {
                let mut client = crate::support::Client::tcp(address).login(&Connect::v4(&format!("client-{i}")));
                (0..300).for_each(|n| client.publish_retained("t", if n % 2 == 0 { "set" } else { "" }, 1));
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let mut last = broker.v4("last");
    for payload in ["end", ""] {
        last.publish_retained("t", payload, 1);
        let mut late = broker.v4("late");
        late.subscribe("t", 0);
        if !payload.is_empty() {
            assert_eq!(late.text(), payload);
        }
        late.nothing();
    }
    broker.until_status("retained_messages", |count| count == 0);
}

/// Filters of one SUBSCRIBE that match the same retained message give it once for each filter (D53).
#[test]
fn each_filter_gets_what_is_retained() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    publisher.publish_retained("a", "x", 0);
    publisher.publish_retained("a/b", "y", 0);
    publisher.publish_retained("$own", "z", 0);
    // QoS 0 has no answer: what comes after it has one.
    publisher.ping();
    let mut subscriber = broker.v5("subscriber");
    assert_eq!(subscriber.subscribe_all(&[("a", 0), ("+", 0)]), [0, 0]);
    assert_eq!([subscriber.text(), subscriber.text()], ["x", "x"]);
    subscriber.subscribe("#", 0);
    let mut got = [subscriber.text(), subscriber.text()];
    got.sort();
    assert_eq!(got, ["x", "y"], "what begins with $ is not matched by # [MQTT-4.7.2-1]");
    subscriber.subscribe("$own/#", 0);
    assert_eq!(subscriber.text(), "z");
    subscriber.subscribe("$share/g/a", 0);
    subscriber.nothing();
}

/// Retained messages at QoS 1 and 2 keep to the Receive Maximum and need their whole handshake (D54).
#[test]
fn retained_messages_keep_to_the_receive_maximum() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    for n in 0..5u8 {
        publisher.publish_retained(&format!("t/{n}"), [n], 1 + n % 2);
    }
    for persistent in [false, true] {
        let connect = Connect::v5("subscriber").receive_maximum(1);
        let mut subscriber = broker.connect(&if persistent { connect.persistent() } else { connect });
        subscriber.subscribe("t/+", 2);
        let mut got = Vec::new();
        for _ in 0..5 {
            let Packet::Publish(publish) = subscriber.receive() else { panic!("a PUBLISH") };
            subscriber.nothing();
            got.push(publish.payload[0]);
            subscriber.send(&wire::ack(if publish.qos == 1 { PUBACK } else { PUBREC }, publish.id));
            if publish.qos == 2 {
                subscriber.acknowledged(wire::PUBREL, publish.id);
                subscriber.nothing();
                subscriber.send(&wire::ack(wire::PUBCOMP, publish.id));
            }
        }
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3, 4]);
        subscriber.nothing();
        subscriber.disconnect();
    }
}

/// Topics that were set and cleared leave nothing behind (D51).
#[test]
fn cleared_topics_give_their_memory_back() {
    // The caches of the durable engine would hide what is looked for.
    let broker = Setup::new().durability("memory").start();
    let mut publisher = broker.v4("publisher");
    let mut pass = |pass: u32| {
        for payload in ["some state that is kept", ""] {
            for from in (0..10_000u32).step_by(500) {
                let packets = (0..500).flat_map(|i| {
                    let topic = format!("site/{pass}/{}/device/{}", from + i, from + i);
                    wire::publish(false, &Publish { id: i as u16 + 1, retain: true, ..publish_of(&topic, payload, 1) })
                });
                publisher.send(&packets.collect::<Vec<u8>>());
                (1..=500).for_each(|id| assert_eq!(publisher.acknowledged(PUBACK, id), 0));
            }
        }
        assert_eq!(broker.status_number("retained_messages"), 0);
        broker.resident_bytes()
    };
    let first = pass(0);
    // A node that stays for each topic would be more than a megabyte in every pass.
    let last = (1..12).map(&mut pass).last().unwrap();
    assert!(last < first + (12 << 20), "{first} bytes after one pass, {last} after twelve");
}

/// A retained message ends with its Message Expiry Interval, and says what is left of it [MQTT-3.3.2-5], [MQTT-3.3.2-6].
#[test]
fn a_retained_message_expires() {
    let broker = Broker::start();
    let mut publisher = broker.v5("publisher");
    for (topic, secs) in [("short", 1), ("long", 1000)] {
        let properties = vec![(property::MESSAGE_EXPIRY, Value::Four(secs))];
        publisher.publish_as(&Publish { retain: true, properties, ..publish_of(topic, "x", 1) });
    }
    broker.until_status("retained_messages", |count| count == 1);
    let mut late = broker.v5("late");
    late.subscribe("+", 1);
    let message = late.message();
    assert_eq!(message.topic, "long");
    match message.properties.as_slice() {
        [(property::MESSAGE_EXPIRY, Value::Four(left))] => assert!((900..=1000).contains(left), "{left} s left"),
        other => panic!("{other:?}"),
    }
    late.nothing();
}

/// While one client sets a retained message again and again, another subscribes: to a session that is kept, no older state follows a newer.
#[test]
fn no_older_state_follows_a_newer_one() {
    const LAST: u32 = 2000;
    let broker = Broker::start();
    let mut publisher = broker.v5("publisher");
    let mut subscriber = broker.connect(&Connect::v5("subscriber").persistent());
    publisher.publish_retained("t", "0", 1);
    let sets = std::thread::spawn(move || {
        (1..=LAST).for_each(|n| publisher.publish_retained("t", n.to_string(), 1));
    });
    let mut newest = 0;
    while newest < LAST {
        // What came before the SUBACK is looked at too.
        subscriber.send(&wire::subscribe(true, 7, &[], &[("t", 1)]));
        for _ in 0..20 {
            let Packet::Publish(publish) = subscriber.receive() else { continue };
            subscriber.send(&wire::ack(PUBACK, publish.id));
            let state: u32 = String::from_utf8(publish.payload).unwrap().parse().unwrap();
            assert!(state >= newest, "{state} after {newest}");
            newest = state;
            if newest == LAST {
                break;
            }
        }
    }
    sets.join().unwrap();
}
