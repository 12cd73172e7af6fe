//! SUBSCRIBE and SUBACK (3.8, 3.9): filters, options, and the codes that answer them.

use crate::support::{
    Broker, Client, Connect, Lost, PATIENCE, Packet, Setup, Value,
    client::publish_of,
    wire::{self, PUBACK, Publish, property},
};

/// Filters that are none end the connection: v5 0x8F in the SUBACK is right too (D56) [MQTT-4.7.1-1], [MQTT-4.7.3-1],
/// [MQTT-4.7.3-2], [MQTT-4.8.2-1], [MQTT-4.8.2-2].
#[test]
fn malformed_filters_are_never_granted() {
    let broker = Broker::start();
    let shared = ["$share/g", "$share//t", "$share/+/t", "$share/#/t", "$share/g/", "$share/g#/t", "$share"];
    let plain = ["", "a#", "#/a", "a+", "+a/b", "a/#/b", "a\0b"];
    for filter in shared.iter().chain(&plain) {
        for level in 4..=5 {
            // Before v5 a shared subscription is an extension, and "$share" alone is a topic like another.
            if *filter == "$share" || (level == 4 && shared.contains(filter)) {
                continue;
            }
            let mut client = broker.connect(&Connect::new(level, "x"));
            client.send(&wire::subscribe(level == 5, 1, &[], &[(filter, 0)]));
            match client.try_receive(PATIENCE) {
                Ok(Packet::SubAck { codes, .. }) => {
                    assert_eq!(codes, [if level == 5 { 0x8f } else { 0x80 }], "{filter:?}")
                }
                Ok(Packet::Disconnect { code, .. }) => {
                    assert!(matches!(code, 0x81 | 0x82 | 0x8f), "{filter:?}: {code:#x}")
                }
                Err(Lost::Closed) if level == 4 => {}
                other => panic!("{filter:?}: {other:?}"),
            }
        }
    }
}

/// Malformed SUBSCRIBE and UNSUBSCRIBE: closed, nothing of them applied, nothing left (D62, D63, D89) [MQTT-3.8.1-1], [MQTT-3.8.3-1],
/// [MQTT-3.8.3-2], [MQTT-3.8.3-5], [MQTT-3.10.1-1], [MQTT-3.10.3-1], [MQTT-3.10.3-2].
#[test]
fn half_a_subscribe_is_none() {
    let broker = Broker::start();
    let mut cut_filter = wire::subscribe(true, 1, &[], &[("valid/#", 1)]);
    cut_filter.extend_from_slice(&[0x00, 0x10, b'a']);
    cut_filter[1] += 3;
    let bad_options = wire::subscribe(true, 1, &[], &[("valid/#", 1), ("b", 0xc0)]);
    let cases: [(&str, &[u8]); 12] = [
        ("a filter that is no UTF-8", &[0x82, 0x08, 0, 1, 0, 0, 2, 0xc3, 0x28, 0]),
        ("UNSUBSCRIBE from what is no UTF-8", &[0xa2, 0x07, 0, 1, 0, 0, 2, 0xc3, 0x28]),
        ("UNSUBSCRIBE with wrong flags", &[0xa0, 0x06, 0, 1, 0, 0, 1, b'a']),
        ("no filter", &[0x82, 0x03, 0, 1, 0]),
        ("packet id 0", &[0x82, 0x07, 0, 0, 0, 0, 1, b'a', 0]),
        ("a length beyond the end", &[0x82, 0x04, 0x00, 0x01, 0x00, 0x10]),
        ("wrong flags", &[0x80, 0x07, 0, 1, 0, 0, 1, b'a', 0]),
        ("a cut second filter", &cut_filter),
        ("reserved bits in the second options", &bad_options),
        ("QoS 3", &[0x82, 0x07, 0, 1, 0, 0, 1, b'a', 3]),
        ("UNSUBSCRIBE without filter", &[0xa2, 0x03, 0, 1, 0]),
        ("UNSUBSCRIBE with a cut filter", &[0xa2, 0x07, 0, 1, 0, 0, 9, b'a', b'b']),
    ];
    for _ in 0..20 {
        for (name, bytes) in cases {
            let mut client = broker.connect(&Connect::v5("x").persistent());
            client.send(bytes);
            assert!(matches!(client.closed(), Some(0x81 | 0x82)), "{name}");
        }
    }
    broker.until_status("subscriptions", |count| count == 0);
}

/// Levels take memory: a filter with too many is refused, and nothing is retained so deep; what only passes by may be deep.
#[test]
fn the_limit_of_topic_levels_holds() {
    let broker = Broker::start();
    let mut client = broker.v5("client");
    let (allowed, deep) = (vec!["a"; 200].join("/"), vec!["a"; 201].join("/"));
    assert_eq!(client.subscribe_all(&[(&allowed, 1), (&deep, 1), ("#", 0)]), [1, 0x8f, 0]);
    client.publish_retained(&allowed, "kept", 1);
    assert_eq!(client.text(), "kept");
    client.publish(&deep, "passes", 1);
    assert_eq!(client.text(), "passes");
    client.send_publish(&Publish { id: 77, retain: true, ..publish_of(&deep, "x", 1) });
    assert_eq!(client.closed(), Some(0x90));
}

/// SUBACK and UNSUBACK answer every filter in its place (D60) [MQTT-2.2.1-6], [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5],
/// [MQTT-3.8.4-6], [MQTT-3.8.4-7], [MQTT-3.9.3-1], [MQTT-3.9.3-2], [MQTT-3.10.4-1], [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6],
/// [MQTT-3.11.3-1], [MQTT-3.11.3-2], [MQTT311-3.10.4-5].
#[test]
fn every_filter_is_answered_in_its_place() {
    let broker = Broker::start();
    let mut client = broker.v5("x");
    let asked = [
        ("a", 0),
        ("b/+", 2),
        ("c/#", 1),
        ("a", 2),
        ("$share/g/d", 1),
        ("/", 0),
        ("e", 2),
        ("f", 1),
        ("g", 0),
        ("h", 2),
    ];
    let codes: Vec<u8> = asked.iter().map(|(_, qos)| *qos).collect();
    assert_eq!(client.subscribe_all(&asked), codes);
    assert_eq!(
        client.unsubscribe(&["nothing", "a", "b/#", "$share/g/d", "$share/other/d", "h"]),
        [0x11, 0, 0x11, 0, 0x11, 0]
    );
    let mut old = broker.v4("old");
    old.subscribe("a", 1);
    assert!(old.unsubscribe(&["a", "b"]).is_empty());
    assert!(old.unsubscribe(&["nothing"]).is_empty());
}

/// The same filter again replaces the first: one copy, with the new options (D59) [MQTT-3.8.4-3]; filters that overlap give one copy at the
/// highest QoS before v5, and with the identifiers of all in v5 [MQTT-3.3.4-2], [MQTT-3.3.4-3], [MQTT-3.3.4-4], [MQTT-3.3.4-5].
#[test]
fn a_filter_counts_once() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    for level in 4..=5 {
        let mut client = broker.connect(&Connect::new(level, "subscriber"));
        assert_eq!(client.subscribe_all(&[("t", 1), ("t", 2)]), [1, 2]);
        publisher.publish("t", "x", 2);
        assert_eq!(client.message().qos, 2);
        client.subscribe("t", 0);
        publisher.publish("t", "x", 2);
        assert_eq!(client.message().qos, 0);
        client.unsubscribe(&["t"]);
        publisher.publish("t", "x", 2);
        client.nothing();
    }
    let mut client = broker.v5("subscriber");
    for (filter, qos, number) in [("a/+", 1, 7), ("a/#", 2, 9), ("a/b", 0, 0)] {
        let properties = [(property::SUBSCRIPTION_ID, Value::Variable(number))];
        assert_eq!(client.subscribe_with(&properties[..usize::from(number > 0)], &[(filter, qos)]), [qos]);
    }
    for qos in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
        let mut client = broker.v5("overlapping");
        client.subscribe_all(&[("a/+", qos[0]), ("a/#", qos[1]), ("a/b", qos[2])]);
        publisher.publish("a/b", "x", 2);
        assert_eq!(client.message().qos, 2, "the highest of {qos:?}");
        client.nothing();
        client.disconnect();
    }
    publisher.publish("a/b", "x", 2);
    let mut copies: Vec<_> = (0..5).map(|_| client.message()).collect();
    copies.drain(..4);
    client.ping();
    while let Ok(Packet::Publish(publish)) = client.try_receive(std::time::Duration::ZERO) {
        copies.push(publish);
    }
    assert_eq!(copies[0].qos.max(copies.last().unwrap().qos), 2, "the highest QoS that was granted");
    let mut numbers: Vec<_> = copies.iter().flat_map(|copy| copy.properties.clone()).collect();
    numbers.sort_by_key(|(_, value)| format!("{value:?}"));
    assert_eq!(numbers, [7, 9].map(|n| (property::SUBSCRIPTION_ID, Value::Variable(n))));
}

/// No Local keeps a client's own messages from it at any QoS, and its will; others' come (D58) [MQTT-3.8.3-3]. With a shared subscription it
/// is an error (D57) [MQTT-3.8.3-4].
#[test]
fn no_local_keeps_own_messages_away() {
    let broker = Broker::start();
    let mut client = broker.v5("x");
    client.subscribe("t", 2 | 4);
    let mut other = broker.v5("other");
    for qos in 0..3 {
        client.publish("t", "own", qos);
        other.publish("t", "theirs", qos);
        assert_eq!(client.text(), "theirs");
    }
    client.nothing();
    client.send(&wire::subscribe(true, 9, &[], &[("$share/g/t", 4)]));
    assert_eq!(client.closed(), Some(0x82));
}

/// Subscription Identifiers of every length come back exactly (D75); 0 is an error (3.8.2.1.2).
#[test]
fn subscription_identifiers_come_back() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    let numbers = [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455];
    for persistent in [false, true] {
        let connect = Connect::v5("subscriber");
        let mut client = broker.connect(&if persistent { connect.persistent() } else { connect });
        for number in numbers {
            let properties = [(property::SUBSCRIPTION_ID, Value::Variable(number))];
            assert_eq!(client.subscribe_with(&properties, &[("t", 1)]), [1]);
            publisher.publish("t", "x", 1);
            assert_eq!(client.message().properties, properties);
        }
        client.disconnect();
    }
    let mut client = broker.v5("x");
    client.send(&wire::subscribe(true, 1, &[(property::SUBSCRIPTION_ID, Value::Variable(0))], &[("t", 0)]));
    assert_eq!(client.closed(), Some(0x82));
}

/// Too many filters of one client are answered with 0x97, before v5 with 0x80 [MQTT311-3.9.3-2], one by one, and memory stays (D64).
#[test]
fn the_limit_of_subscriptions_holds() {
    let broker = Setup::new().config("[session]\nmax_subscriptions = 100\n").start();
    let names: Vec<String> = (0..110).map(|n| format!("filter/{n}/+")).collect();
    for (level, refusal) in [(4, 0x80), (5, 0x97)] {
        let mut client = broker.connect(&Connect::new(level, "x"));
        let filters: Vec<(&str, u8)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let codes = client.subscribe_all(&filters);
        assert_eq!(codes.iter().filter(|code| **code == 1).count(), 100);
        assert!(codes[100..].iter().all(|code| *code == refusal), "{codes:02x?}");
        // One that exists may be renewed, and one that is given up makes room.
        assert_eq!(client.subscribe_all(&[("filter/0/+", 2)]), [2]);
        client.unsubscribe(&["filter/0/+"]);
        assert_eq!(client.subscribe_all(&[("filter/109/+", 1)]), [1]);
        assert_eq!(broker.status_number("subscriptions"), 100);
        client.disconnect();
    }
    broker.until_status("subscriptions", |count| count == 0);
}

/// Ten thousand filters with wildcards at every level, and a match stays quick (D93).
#[test]
fn many_wildcards_match_in_bounded_time() {
    let broker = Broker::start();
    let mut client = broker.v4("wild");
    let mut random = crate::support::Random::seeded("many_wildcards_match_in_bounded_time");
    let filters: Vec<String> = (0..9_000)
        .map(|_| {
            let level = |random: &mut crate::support::Random| ["+", "a", "b"][random.below(3) as usize];
            (0..8).map(|_| level(&mut random)).collect::<Vec<_>>().join("/")
        })
        .collect();
    for chunk in filters.chunks(1_000) {
        let asked: Vec<(&str, u8)> = chunk.iter().map(|filter| (filter.as_str(), 0)).collect();
        assert!(client.subscribe_all(&asked).iter().all(|code| *code == 0));
    }
    client.subscribe("answer", 0);
    let mut publisher = broker.v5("publisher");
    let began = std::time::Instant::now();
    let rounds = 20;
    for _ in 0..rounds {
        publisher.publish_code(&publish_of("a/b/a/b/a/b/a/b", "x", 1));
    }
    let each = began.elapsed() / rounds;
    // A debug build on a busy machine; a release build is some ten times as fast.
    assert!(each.as_millis() < 500, "{each:?} for one match");
}

/// Three clients with different QoS: each gets its own, in a shared group too [MQTT-3.8.4-8], [MQTT-4.8.2-3].
#[test]
fn each_subscriber_has_its_qos() {
    let broker = Broker::start();
    let mut subscribers: Vec<Client> = (0..3)
        .map(|qos| {
            let mut client = broker.v5(&format!("qos-{qos}"));
            client.subscribe("t", qos);
            client
        })
        .collect();
    broker.v4("publisher").publish("t", "x", 2);
    for (qos, subscriber) in subscribers.iter_mut().enumerate() {
        let message = subscriber.message();
        assert_eq!((message.qos, message.id > 0), (qos as u8, qos > 0));
    }
    for qos in 0..3 {
        let mut member = broker.v5("member");
        member.subscribe("$share/g/shared", qos);
        broker.v4("publisher").publish("shared", "x", 2);
        assert_eq!(member.message().qos, qos);
        member.disconnect();
    }
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

/// A subscription that is replaced while messages come for it loses none of them, and doubles none [MQTT-3.8.4-4], [MQTT-3.8.4-3].
#[test]
fn replacing_a_subscription_loses_nothing() {
    let broker = Broker::start();
    for persistent in [false, true] {
        let connect = Connect::v5("subscriber");
        let mut subscriber = broker.connect(&if persistent { connect.persistent() } else { connect });
        subscriber.subscribe("t", 1);
        let address = broker.address();
        let publisher = std::thread::spawn(move || {
            let mut publisher = Client::tcp(address).login(&Connect::v4("publisher"));
            (0..300u16).for_each(|n| publisher.publish("t", n.to_be_bytes(), 1));
        });
        for n in 0..300u16 {
            // Every option but QoS changes: Retain As Published, Retain Handling.
            let (as_published, if_new) = ((n & 1) as u8, (n >> 1 & 1) as u8);
            let options = 1 | as_published << 3 | if_new << 4;
            subscriber.send(&wire::subscribe(true, 7, &[], &[("t", options)]));
            let message = loop {
                match subscriber.receive() {
                    Packet::Publish(publish) => break publish,
                    Packet::SubAck { codes, .. } => assert_eq!(codes, [1]),
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(message.payload, n.to_be_bytes());
            subscriber.send(&wire::ack(PUBACK, message.id));
        }
        publisher.join().unwrap();
        subscriber.disconnect();
    }
}
