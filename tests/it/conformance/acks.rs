//! PUBACK, PUBREC, PUBREL and PUBCOMP (3.4 to 3.7): their codes and what they may carry.

use crate::support::{
    Broker, Connect,
    client::publish_of,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL},
};

/// The reason "no matching subscribers" is told only where there is none: an offline or a shared subscriber is one (D27).
#[test]
fn no_matching_subscribers_means_none() {
    let broker = Broker::start();
    let mut publisher = broker.v5("publisher");
    for qos in 1..=2 {
        assert!(matches!(publisher.publish_code(&publish_of("nobody", "x", qos)), 0 | 0x10));
    }
    let mut offline = broker.connect(&Connect::v5("offline").persistent());
    offline.subscribe("offline", 1);
    offline.disconnect();
    let mut shared = broker.v5("shared");
    shared.subscribe("$share/g/shared", 1);
    for topic in ["offline", "shared"] {
        for qos in 1..=2 {
            assert_eq!(publisher.publish_code(&publish_of(topic, "x", qos)), 0, "{topic} at QoS {qos}");
        }
    }
}

/// A PUBREC for an id that nobody knows is answered with 0x92 (D34).
#[test]
fn an_unknown_pubrec_is_answered() {
    let broker = Broker::start();
    let mut client = broker.v5("x");
    client.send(&wire::ack(PUBREC, 77));
    assert_eq!(client.acknowledged(PUBREL, 77), 0x92);
    // An acknowledgement that nobody waits for does no harm, also before v5, where there is no code for it.
    client.send(&wire::ack(PUBACK, 78));
    client.ping();
    let mut old = broker.v4("old");
    old.send(&wire::ack(PUBACK, 78));
    old.send(&wire::ack(PUBCOMP, 79));
    old.ping();
}
