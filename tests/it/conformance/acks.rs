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

/// A PUBACK or PUBREC of 0x80 or more ends the exchange: no PUBREL, and the message does not come again [MQTT-4.4.0-2], [MQTT-4.3.3-4], with and
/// without a stored session.
#[test]
fn a_refused_delivery_is_done() {
    let broker = Broker::start();
    for persistent in [false, true] {
        let connect = Connect::v5("subscriber").clean(false).receive_maximum(1);
        let connect = if persistent { connect.expiry(100) } else { connect };
        let mut subscriber = broker.connect(&connect);
        subscriber.subscribe("t", 2);
        let mut publisher = broker.v4("publisher");
        for (qos, kind) in [(1, wire::PUBACK), (2, PUBREC)] {
            for code in [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99] {
                publisher.publish("t", "refused", qos);
                let refused = subscriber.delivery();
                subscriber.send(&wire::ack_with(kind, refused.id, code));
                subscriber.nothing();
            }
        }
        // The next connection gets none of them, and the window is free.
        let mut next = broker.connect(&connect);
        assert_eq!(next.session_present(), persistent, "a session without expiry ends with its connection");
        next.nothing();
        next.subscribe("t", 2);
        publisher.publish("t", "taken", 2);
        assert_eq!(next.text(), "taken");
        next.disconnect_with(0, &[(0x11, crate::support::Value::Four(0))][..usize::from(persistent)]);
    }
}
