//! Payload Format Indicator (3.3.2.3.2, 3.1.3.2.3): checked where the configuration says so (D72).

use crate::support::{
    Broker, Connect, Setup, Value, Will,
    client::publish_of,
    wire::{PUBCOMP, PUBREC, PUBREL, Publish, ack, property},
};

fn claiming(claim: u8, payload: &[u8], qos: u8) -> Publish {
    Publish { properties: vec![(property::PAYLOAD_FORMAT, Value::Byte(claim))], ..publish_of("t", payload, qos) }
}

const NO_UTF8: &[&[u8]] = &[b"\xff", b"ok \xc3", b"\xed\xa0\x80"];

/// By default the payload is the clients' affair: it is delivered as it is [MQTT-3.3.2-4].
#[test]
fn payloads_are_not_looked_at_by_default() {
    let broker = Broker::start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("t", 2);
    let mut publisher = broker.v5("publisher");
    for qos in 0..=2 {
        for payload in NO_UTF8 {
            publisher.publish_as(&claiming(1, payload, qos));
            let message = subscriber.message();
            assert_eq!((message.payload.as_slice(), message.properties.len()), (*payload, 1));
        }
    }
}

/// Where it is checked, PUBACK and PUBREC say 0x99, and the exchange is over; QoS 0 has no answer, so that DISCONNECT says it (3.3.2.3.2). Each
/// is counted.
#[test]
fn a_payload_that_is_not_what_it_says_is_refused() {
    let broker = Setup::new().config("[session]\ncheck_payload_format = true\n").start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("t", 2);
    let mut publisher = broker.v5("publisher");
    for (count, payload) in (0..).zip(NO_UTF8) {
        for qos in 1..=2 {
            assert_eq!(publisher.publish_code(&claiming(1, payload, qos)), 0x99);
        }
        publisher.publish_as(&claiming(0, payload, 1));
        assert_eq!(subscriber.message().payload, *payload, "bytes that claim nothing");
        let mut unanswered = broker.v5("unanswered");
        unanswered.send_publish(&claiming(1, payload, 0));
        assert_eq!(unanswered.closed(), Some(0x99));
        broker.until_status("payload_format", |dropped| dropped == 3 * (count + 1));
    }
    // A QoS 2 id that was refused is free again.
    publisher.send_publish(&Publish { id: 900, ..claiming(1, b"\xff", 2) });
    assert_eq!(publisher.acknowledged(PUBREC, 900), 0x99);
    publisher.send_publish(&Publish { id: 900, ..claiming(1, "na\u{ef}ve".as_bytes(), 2) });
    assert_eq!(publisher.acknowledged(PUBREC, 900), 0);
    publisher.send(&ack(PUBREL, 900));
    assert_eq!(publisher.acknowledged(PUBCOMP, 900), 0);
    assert_eq!(subscriber.text(), "na\u{ef}ve");
    for level in 3..=4 {
        let mut old = broker.connect(&Connect::new(level, "old"));
        old.publish("t", b"\xff", 1);
        assert_eq!(subscriber.message().payload, b"\xff", "MQTT 3 claims nothing");
    }
    subscriber.nothing();
}

/// A will that is not what it says is refused with its CONNECT: 0x99.
#[test]
fn a_will_that_is_not_what_it_says_is_refused() {
    let broker = Setup::new().config("[session]\ncheck_payload_format = true\n").start();
    let with = |claim: u8, payload: &[u8]| {
        let mut will = Will { topic: "t".into(), payload: payload.to_vec(), ..Will::default() };
        will.properties.push((property::CONTENT_TYPE, Value::Text("text/plain".into())));
        will.properties.push((property::PAYLOAD_FORMAT, Value::Byte(claim)));
        Connect::v5("mortal").will(will)
    };
    assert_eq!(broker.refused(&with(1, b"\xff")), 0x99);
    broker.connect(&with(1, b"fine")).ping();
    broker.connect(&with(0, b"\xff")).ping();
}
