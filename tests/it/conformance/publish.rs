//! PUBLISH (3.3): its flags and properties, passed on, kept to, refused.

use super::pair;
use crate::support::{
    Broker, Connect, Value, Will,
    client::publish_of,
    wire::{self, Properties, Publish, property},
};

fn text(id: u8, text: &str) -> (u8, Value) {
    (id, Value::Text(text.into()))
}

fn user(name: &str, value: &str) -> (u8, Value) {
    (property::USER_PROPERTY, Value::Pair(name.into(), value.into()))
}

/// All that a message carries.
fn rich() -> Properties {
    vec![
        (property::PAYLOAD_FORMAT, Value::Byte(1)),
        text(property::CONTENT_TYPE, "text/plain"),
        text(property::RESPONSE_TOPIC, "answer/here"),
        (property::CORRELATION_DATA, Value::Binary(vec![0, 0xff, 0])),
        user("b", "2"),
        user("a", "1"),
        user("b", "3"),
        user("", ""),
    ]
}

fn sorted(mut properties: Properties) -> Properties {
    properties.sort_by_key(|(id, _)| *id);
    properties
}

/// What a message carries reaches every subscriber unchanged, User Properties in order, live, queued, retained and as a will
/// [MQTT-3.1.3-10], [MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-17], [MQTT-3.3.2-18], [MQTT-3.3.2-20]; older clients get the message without.
#[test]
fn the_properties_of_a_message_are_passed_on() {
    let broker = Broker::start();
    let mut live = broker.v5("live");
    live.subscribe("t", 2);
    let mut old = broker.v4("old");
    old.subscribe("t", 2);
    let mut queued = broker.connect(&Connect::v5("queued").persistent());
    queued.subscribe("t", 2);
    queued.disconnect();
    let mut publisher = broker.v5("publisher");
    for qos in 1..3 {
        publisher.publish_as(&Publish { properties: rich(), retain: true, ..publish_of("t", "x", qos) });
        let message = live.message();
        // The sort keeps the order of what is equal: that of the User Properties.
        assert_eq!(sorted(message.properties), sorted(rich()));
        assert_eq!(old.message().properties, []);
    }
    let mut queued = broker.connect(&Connect::v5("queued").persistent());
    for _ in 1..3 {
        assert_eq!(sorted(queued.message().properties), sorted(rich()));
    }
    let mut late = broker.v5("late");
    late.subscribe("t", 2);
    assert_eq!(sorted(late.message().properties), sorted(rich()));
    let mut will = Will::new("t", "gone").qos(1).delay(0);
    will.properties.extend(rich());
    broker.connect(&Connect::v5("mortal").will(will)).cut();
    assert_eq!(sorted(live.message().properties), sorted(rich()));
}

/// Topic aliases: set, used, set anew; not beyond the maximum, not 0, not unknown, not of an earlier connection
/// [MQTT-3.3.2-7], [MQTT-3.3.2-8], [MQTT-3.3.2-12].
#[test]
fn a_topic_alias_stands_for_its_topic() {
    let broker = Broker::start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("#", 1);
    let alias = |topic: &str, alias: u16, qos: u8| Publish {
        properties: vec![(property::TOPIC_ALIAS, Value::Two(alias))],
        ..publish_of(topic, topic, qos)
    };
    let mut publisher = broker.connect(&Connect::v5("publisher").persistent());
    for (topic, number, expected) in
        [("a", 1, "a"), ("", 1, "a"), ("b", 64, "b"), ("", 64, "b"), ("c", 1, "c"), ("", 1, "c"), ("", 64, "b")]
    {
        for qos in 0..2 {
            publisher.publish_as(&alias(topic, number, qos));
            let message = subscriber.message();
            assert_eq!((&*message.topic, message.properties.len()), (expected, 0));
        }
    }
    publisher.disconnect();
    for (topic, number, reason) in [("", 1, 0x82), ("x", 0, 0x94), ("x", 65, 0x94), ("", 2, 0x82), ("x", 65_535, 0x94)]
    {
        let mut publisher = broker.connect(&Connect::v5("publisher").persistent());
        publisher.send_publish(&alias(topic, number, 0));
        assert_eq!(publisher.closed(), Some(reason), "{topic:?} by {number}");
    }
    let mut publisher = broker.connect(&Connect::v5("publisher").persistent());
    publisher.send_publish(&publish_of("", "x", 0));
    assert_eq!(publisher.closed(), Some(0x82), "neither topic nor alias");
    subscriber.nothing();
}

/// Aliases towards a client keep to what it allows (D78) [MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-11].
#[test]
fn aliases_to_a_client_keep_to_its_maximum() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    for maximum in [0u16, 5] {
        let mut client = broker.connect(&Connect::v5("x").property(property::TOPIC_ALIAS_MAXIMUM, Value::Two(maximum)));
        client.subscribe("t/#", 0);
        let mut names = std::collections::BTreeMap::new();
        for n in 0..200 {
            let topic = format!("t/{}", n % 100);
            publisher.publish(&topic, &topic, 0);
            let message = client.message();
            let used = message.properties.iter().find(|(id, _)| *id == property::TOPIC_ALIAS);
            if let Some((_, Value::Two(alias))) = used {
                assert!((1..=maximum).contains(alias), "alias {alias} of {maximum}");
                if !message.topic.is_empty() {
                    names.insert(*alias, message.topic.clone());
                }
                assert_eq!(names.get(alias), Some(&topic));
            } else {
                assert_eq!(message.topic, topic);
            }
        }
    }
}

/// A message is not delivered beyond its expiry, and says what is left (D79) [MQTT-3.3.2-5], [MQTT-3.3.2-6].
#[test]
fn a_message_expires_in_the_queue() {
    let broker = Broker::start();
    let mut device = broker.connect(&Connect::v5("device").persistent());
    device.subscribe("t", 1);
    device.disconnect();
    let mut publisher = broker.v5("publisher");
    for (payload, secs) in [("none", 0), ("short", 1), ("long", 1_000)] {
        let properties = vec![(property::MESSAGE_EXPIRY, Value::Four(secs))];
        publisher.publish_as(&Publish { properties, ..publish_of("t", payload, 1) });
    }
    publisher.publish("t", "for ever", 1);
    let began = std::time::Instant::now();
    let mut other = broker.v5("other");
    while began.elapsed() < std::time::Duration::from_millis(1_600) {
        assert!(other.try_receive(std::time::Duration::from_millis(100)).is_err());
    }
    let mut device = broker.connect(&Connect::v5("device").persistent());
    let message = device.message();
    assert_eq!(message.payload, b"long");
    let [(property::MESSAGE_EXPIRY, Value::Four(left))] = message.properties.as_slice() else {
        panic!("{:?}", message.properties)
    };
    assert!((900..1_000).contains(left), "{left} s left");
    assert_eq!(device.message(), Publish { id: message.id + 1, ..publish_of("t", "for ever", 1) });
    device.nothing();
}

/// A payload that claims to be UTF-8 and is not is delivered, or refused with 0x99 (D72).
#[test]
fn a_wrong_payload_format_is_no_catastrophe() {
    let broker = Broker::start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("t", 1);
    let mut publisher = broker.v5("publisher");
    let properties = vec![(property::PAYLOAD_FORMAT, Value::Byte(1))];
    if publisher.publish_code(&Publish { properties, ..publish_of("t", [0xff], 1) }) == 0 {
        assert_eq!(subscriber.message().payload, [0xff]);
    }
    publisher.ping();
}

/// DUP with QoS 0 and QoS 3 are malformed (D25) [MQTT-3.3.1-2], [MQTT-3.3.1-4]; so is packet identifier 0 [MQTT-2.2.1-3].
#[test]
fn impossible_publishes_end_the_connection() {
    let broker = Broker::start();
    for bytes in [&[0x38, 0x04, 0, 1, b't', b'x'][..], &[0x36, 0x05, 0, 1, b't', 0, 1], &[0x32, 0x05, 0, 1, b't', 0, 0]]
    {
        let mut old = broker.v4("old");
        old.send(bytes);
        assert_eq!(old.closed(), None, "{bytes:02x?}");
        let mut modern = broker.v5("modern");
        let mut with_properties = bytes.to_vec();
        with_properties[1] += 1;
        with_properties.insert(if bytes[0] == 0x38 { 5 } else { 7 }, 0);
        modern.send(&with_properties);
        assert_eq!(modern.closed(), Some(0x81), "{with_properties:02x?}");
    }
}

/// An empty payload is a message like another (D29).
#[test]
fn empty_payloads_are_delivered() {
    let broker = Broker::start();
    let (mut subscriber, mut publisher) = pair(&broker, "t", 2);
    for qos in 0..3 {
        publisher.publish("t", "", qos);
        let message = subscriber.message();
        assert_eq!((message.payload.len(), message.qos), (0, qos));
    }
}

/// A delivery at QoS 0 has no Packet Identifier, nor DUP, byte for byte [MQTT-2.2.1-2], [MQTT-3.3.1-2]; one without properties has a Property Length
/// of 0 in v5 [MQTT-2.2.2-1] and none before.
#[test]
fn a_publish_has_the_bytes_of_its_version() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    for level in 3..=5u8 {
        let mut subscriber = broker.connect(&Connect::new(level, "subscriber"));
        subscriber.subscribe("a/b", 1);
        let none: &[u8] = if level == 5 { &[0] } else { &[] };
        publisher.publish("a/b", "xy", 0);
        assert_eq!(subscriber.receive_bytes(), wire::packet(0x30, &[b"\0\x03a/b", none, b"xy"].concat()), "QoS 0");
        publisher.publish("a/b", "xy", 1);
        let bytes = subscriber.receive_bytes();
        let id = &bytes[7..9];
        assert_ne!(id, [0, 0]);
        assert_eq!(bytes, wire::packet(0x32, &[b"\0\x03a/b", id, none, b"xy"].concat()), "QoS 1");
        subscriber.disconnect();
    }
}

/// Topic Names and Filters may have 65,535 bytes, and come out whole [MQTT-4.7.3-3].
#[test]
fn a_topic_may_be_as_long_as_its_length_can_say() {
    let broker = Broker::start();
    for level in 3..=5u8 {
        let longest = "\u{e4}".repeat(32_767) + "x";
        assert_eq!(longest.len(), 65_535);
        let mut client = broker.connect(&Connect::new(level, "long"));
        client.subscribe(&longest, 1);
        client.publish(&longest, "x", 1);
        assert!(client.message().topic == longest, "level {level}");
        client.unsubscribe(&[&longest]);
        client.disconnect();
    }
}
