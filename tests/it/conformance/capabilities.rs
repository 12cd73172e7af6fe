//! What CONNACK offers (3.2.2.3), switched by the configuration: what is said is what is kept to.

use crate::support::{
    Broker, Connect, Setup, Value, Will,
    broker::DURABILITY,
    client::publish_of,
    wire::{PUBREC, Publish, property},
};

/// What a client of each protocol level is told by a failed filter.
fn refused(level: u8, code: u8) -> u8 {
    if level == 5 { code } else { 0x80 }
}

fn offering(options: &str) -> Broker {
    Setup::new().config(&format!("[session]\n{options}\n")).start()
}

/// [MQTT-3.2.2-9]: a Maximum QoS below 2 is said; a PUBLISH above it ends the connection with 0x9B (before v5 without a word), and one at it is
/// served (D21).
#[test]
fn the_maximum_qos_is_said_and_kept() {
    for maximum in 0..2u8 {
        let broker = offering(&format!("maximum_qos = {maximum}"));
        let mut watcher = broker.v5("watcher");
        assert_eq!(watcher.connack_property(property::MAXIMUM_QOS), Some(&Value::Byte(maximum)));
        assert_eq!(watcher.subscribe_all(&[("t", 2)]), [maximum]);
        for level in 3..=5 {
            for qos in 0..=2u8 {
                let mut client = broker.connect(&Connect::new(level, "client"));
                if qos <= maximum {
                    client.publish("t", "x", qos);
                    assert_eq!(watcher.message().qos, qos);
                    continue;
                }
                client.send_publish(&Publish { id: 1, ..publish_of("t", "x", qos) });
                assert_eq!(client.closed(), (level == 5).then_some(0x9b), "level {level}, QoS {qos}");
            }
        }
        watcher.nothing();
    }
}

/// [MQTT-3.2.2-10]: a SUBSCRIBE may ask for any QoS, and is granted the highest that there is.
#[test]
fn a_subscription_above_the_maximum_qos_is_granted_the_maximum() {
    for maximum in 0..2u8 {
        let broker = offering(&format!("maximum_qos = {maximum}"));
        for level in 3..=5 {
            let mut client = broker.connect(&Connect::new(level, "client"));
            let granted = client.subscribe_all(&[("a", 0), ("b", 1), ("c", 2), ("$share/g/d", 2)]);
            assert_eq!(granted, [0, 1.min(maximum), maximum, maximum], "level {level}");
        }
    }
}

/// [MQTT-3.2.2-12], [MQTT-3.2.2-13]: a will that asks for more than there is is refused with 0x9B or 0x9A, before v5 with 5; nothing of the
/// CONNECT has an effect (D22).
#[test]
fn a_will_beyond_what_is_offered_is_refused() {
    let broker = offering("maximum_qos = 1\nretain_available = false");
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("will", 1);
    for level in 3..=5 {
        let with = |will: Will| Connect::new(level, "mortal").persistent().will(will);
        let code = |v5: u8| if level == 5 { v5 } else { 5 };
        assert_eq!(broker.refused(&with(Will::new("will", "x").qos(2))), code(0x9b), "level {level}");
        assert_eq!(broker.refused(&with(Will::new("will", "x").retained())), code(0x9a), "level {level}");
        let client = broker.connect(&with(Will::new("will", "x").qos(1)));
        assert!(!client.session_present(), "a CONNECT that is refused makes no session");
        client.cut();
        assert_eq!(watcher.message().qos, 1);
        broker.connect(&Connect::new(level, "mortal")).disconnect();
    }
    watcher.nothing();
}

/// Retain Available 0 is said (3.2.2.3.5); a PUBLISH with RETAIN ends the connection with 0x9A, an empty one too (D22) [MQTT-3.2.2-14].
#[test]
fn without_retained_messages_none_is_taken() {
    let broker = offering("retain_available = false");
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("t", 1);
    assert_eq!(watcher.connack_property(property::RETAIN_AVAILABLE), Some(&Value::Byte(0)));
    for level in 3..=5 {
        for (qos, payload) in [(0, "x"), (1, "x"), (2, ""), (0, "")] {
            let mut client = broker.connect(&Connect::new(level, "client"));
            client.send_publish(&Publish { id: 1, retain: true, ..publish_of("t", payload, qos) });
            assert_eq!(client.closed(), (level == 5).then_some(0x9a), "level {level}");
        }
    }
    watcher.nothing();
    assert_eq!(broker.status_number("retained_messages"), 0);
}

/// Wildcards, shared subscriptions and subscription identifiers: their absence is said (3.2.2.3.11 to 3.2.2.3.13), and each filter that needs
/// them is refused on its own, 0xA2, 0x9E and 0xA1, while the others stand (D21) [MQTT-3.9.3-1]; before v5 with 0x80.
#[test]
fn subscriptions_that_are_not_offered_are_refused_one_by_one() {
    let filters = [("plain", 1), ("a/+", 0), ("$share/g/plain", 0), ("b/#", 2)];
    let cases = [
        ("wildcard_subscriptions_available", property::WILDCARD_AVAILABLE, [1, 0xa2, 0, 0xa2]),
        ("shared_subscriptions_available", property::SHARED_AVAILABLE, [1, 0, 0x9e, 2]),
        ("subscription_identifiers_available", property::SUBSCRIPTION_ID_AVAILABLE, [1, 0, 0, 2]),
    ];
    for (option, told, expected) in cases {
        let broker = offering(&format!("{option} = false"));
        for level in 3..=5 {
            let mut client = broker.connect(&Connect::new(level, "client"));
            assert_eq!(client.connack_property(told), (level == 5).then_some(&Value::Byte(0)), "{option}");
            let expected = expected.map(|code| if code < 0x80 { code } else { refused(level, code) });
            assert_eq!(client.subscribe_all(&filters), expected, "{option} at level {level}");
            let mut publisher = broker.v5("publisher");
            for (topic, code) in [("a/x", expected[1]), ("b/x", expected[3])] {
                publisher.publish(topic, "x", 1);
                if code < 0x80 {
                    client.message();
                }
                client.nothing();
            }
        }
        let mut client = broker.v5("client");
        let codes = client.subscribe_with(&[(property::SUBSCRIPTION_ID, Value::Variable(7))], &filters);
        let without_ids = told == property::SUBSCRIPTION_ID_AVAILABLE;
        assert_eq!(codes, if without_ids { [0xa1; 4] } else { expected }, "{option}");
        client.ping();
    }
}

/// An option that is lowered while messages wait: what was queued comes as it was queued, what is new keeps to the option.
#[test]
fn lowering_the_maximum_qos_loses_nothing() {
    if DURABILITY == "memory" {
        return;
    }
    let mut broker = offering("maximum_qos = 2");
    let device = Connect::v5("device").persistent();
    let mut client = broker.connect(&device);
    client.subscribe("t", 2);
    client.disconnect();
    let mut publisher = broker.v5("publisher");
    publisher.publish("t", "queued", 2);
    publisher.publish_retained("kept", "retained", 2);
    broker.terminate();
    broker.file("pinnace.toml", "[session]\nmaximum_qos = 1\n");
    broker.restart();
    let mut client = broker.connect(&device);
    assert!(client.session_present());
    let queued = client.message();
    assert_eq!((queued.payload.as_slice(), queued.qos), (&b"queued"[..], 2));
    assert_eq!(client.subscribe_all(&[("kept", 2)]), [1]);
    assert_eq!(client.message().qos, 1);
    let mut publisher = broker.v5("publisher");
    publisher.publish("t", "new", 1);
    assert_eq!(client.message().qos, 1);
    publisher.send_publish(&Publish { id: 9, ..publish_of("t", "x", 2) });
    assert_eq!(publisher.closed(), Some(0x9b));
}

/// By default everything is there, and nothing of it is said: absence means so.
#[test]
fn what_is_offered_by_default_is_not_said() {
    let broker = Broker::start();
    let mut client = broker.v5("client");
    for id in [
        property::MAXIMUM_QOS,
        property::RETAIN_AVAILABLE,
        property::WILDCARD_AVAILABLE,
        property::SUBSCRIPTION_ID_AVAILABLE,
        property::SHARED_AVAILABLE,
    ] {
        assert_eq!(client.connack_property(id), None, "{id:#x}");
    }
    client.send_publish(&Publish { id: 3, retain: true, ..publish_of("t", "x", 2) });
    assert!(client.acknowledged(PUBREC, 3) < 0x80);
}
