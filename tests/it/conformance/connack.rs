//! CONNACK (3.2): what the server says of the session and of its limits, and that it keeps to both.

use std::time::{Duration, Instant};

use crate::support::{
    Broker, Connect, Lost, PATIENCE, Packet, Setup, Value,
    client::publish_of,
    wire::{self, PUBACK, Publish, property},
};

/// Without a client id the broker assigns one (v5: and says it) [MQTT-3.1.3-6], [MQTT-3.1.3-7], [MQTT-3.2.2-16]; before v5 only for a clean session
/// [MQTT311-3.1.3-8], [MQTT311-3.1.3-9].
#[test]
fn an_empty_client_id_is_replaced() {
    let broker = Broker::start();
    broker.v4("").ping();
    assert_eq!(broker.refused(&Connect::v4("").clean(false)), 2);
    let client = broker.connect(&Connect::v5("").expiry(60));
    let Some(Value::Text(assigned)) = client.connack_property(property::ASSIGNED_CLIENT_ID).cloned() else {
        panic!("no Assigned Client Identifier: {:?}", client.connack)
    };
    let other = broker.connect(&Connect::v5(""));
    assert_ne!(other.connack_property(property::ASSIGNED_CLIENT_ID), Some(&Value::Text(assigned.clone())));
    client.disconnect();
    let again = broker.connect(&Connect::v5(&assigned).clean(false));
    assert!(again.session_present(), "the assigned id is an id like any other");
    assert_eq!(again.connack_property(property::ASSIGNED_CLIENT_ID), None);
}

/// Session Present: new, kept, discarded, and not left behind by a clean session (D12) [MQTT-3.1.2-4],
/// [MQTT-3.1.2-6], [MQTT-3.2.2-1], [MQTT-3.2.2-2], [MQTT-3.2.2-3],
/// [MQTT311-3.2.2-1], [MQTT311-3.2.2-2], [MQTT311-3.2.2-3].
#[test]
fn session_present_tells_the_truth() {
    let broker = Broker::start();
    for (clean, present) in [(false, false), (false, true), (true, false), (false, false)] {
        let client = broker.connect(&Connect::v4("device").clean(clean));
        assert_eq!(client.session_present(), present);
        client.disconnect();
    }
    // A v5 session without Session Expiry Interval ends with its connection (D81).
    for _ in 0..2 {
        let client = broker.connect(&Connect::v5("modern").clean(false));
        assert!(!client.session_present());
        client.cut();
        broker.until_status("sessions", |sessions| sessions == 1);
    }
}

/// The broker's longest keep alive binds every version, and keep alive 0 too (D08) [MQTT-3.1.2-21].
#[test]
fn the_maximum_keep_alive_binds_every_version() {
    let broker = Setup::new().config("[session]\nmax_keep_alive_secs = 2\n").start();
    for asked in [0, 120] {
        let mut modern = broker.connect(&Connect::v5("modern").keep_alive(asked));
        assert_eq!(modern.connack_property(property::SERVER_KEEP_ALIVE), Some(&Value::Two(2)));
        let mut old = broker.tcp();
        if let Ok(Packet::ConnAck { code: 0, .. }) = old.try_login(&Connect::v4("old").keep_alive(asked)) {
            old.closed();
        }
        assert_eq!(modern.closed(), Some(0x8d));
    }
    let mut equal = broker.connect(&Connect::v5("equal").keep_alive(2));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert!(matches!(equal.try_receive(Duration::from_secs(1)), Err(Lost::TimedOut)));
        equal.ping();
    }
}

/// What the CONNACK advertises is what is served (D21); what was not asked for is not told [MQTT-3.1.2-28], [MQTT-4.12.0-6].
#[test]
fn the_connack_promises_what_is_kept() {
    let broker = Broker::start();
    let mut client = broker.v5("x");
    for id in [
        property::RETAIN_AVAILABLE,
        property::WILDCARD_AVAILABLE,
        property::SUBSCRIPTION_ID_AVAILABLE,
        property::SHARED_AVAILABLE,
    ] {
        assert!(matches!(client.connack_property(id), None | Some(Value::Byte(1))), "{:?}", client.connack);
    }
    assert_eq!(client.connack_property(property::MAXIMUM_QOS), None, "QoS 2 is served");
    // Not asked for, not told.
    assert_eq!(client.connack_property(property::RESPONSE_INFORMATION), None);
    assert_eq!(client.connack_property(property::AUTHENTICATION_METHOD), None);
    assert_eq!(client.connack_property(property::RECEIVE_MAXIMUM), Some(&Value::Two(1024)));
    assert_eq!(client.connack_property(property::TOPIC_ALIAS_MAXIMUM), Some(&Value::Two(64)));
    assert_eq!(client.connack_property(property::MAXIMUM_PACKET_SIZE), Some(&Value::Four(2_097_152)));
    let number = [(property::SUBSCRIPTION_ID, Value::Variable(1))];
    assert_eq!(client.subscribe_with(&number, &[("a/#", 2), ("$share/g/b/+", 2)]), [2, 2]);
    client.publish_retained("a/b", "x", 2);
    assert_eq!(client.text(), "x");
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

/// The Maximum Packet Size of the broker counts the whole packet (D76, 3.2.2.3.6).
#[test]
fn the_maximum_packet_size_counts_the_whole_packet() {
    let broker = Setup::new().config("[session]\nmax_packet_size_bytes = 1000\n").start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("t", 1);
    let of_size = |size: usize, level: u8| {
        let empty = wire::publish(level == 5, &Publish { id: 1, ..publish_of("t", vec![0; 200], 1) }).len();
        wire::publish(level == 5, &Publish { id: 1, ..publish_of("t", vec![b'x'; size - empty + 200], 1) })
    };
    for (level, reason) in [(4, None), (5, Some(0x95))] {
        let mut client = broker.connect(&Connect::new(level, "x"));
        let fits = of_size(1_000, level);
        assert_eq!(fits.len(), 1_000);
        client.send(&fits);
        assert_eq!(client.acknowledged(PUBACK, 1), 0);
        subscriber.message();
        client.send(&of_size(1_001, level));
        assert_eq!(client.closed(), reason);
    }
    subscriber.nothing();
}

/// Nothing that a client gets exceeds its Maximum Packet Size: acknowledgements go without explanation (D77) [MQTT-3.2.2-19], [MQTT-3.2.2-20],
/// [MQTT-3.4.2-2], [MQTT-3.4.2-3],
/// [MQTT-3.5.2-2], [MQTT-3.5.2-3], [MQTT-3.6.2-2], [MQTT-3.6.2-3], [MQTT-3.7.2-2], [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2], [MQTT-3.11.2-1], [MQTT-3.11.2-2]; a message that does not fit is left out, and the next comes [MQTT-3.1.2-24], [MQTT-3.1.2-25].
#[test]
fn a_clients_maximum_packet_size_is_kept() {
    let broker = Setup::new().config("[session]\nmax_subscriptions = 2\n").start();
    for persistent in [false, true] {
        let connect = Connect::v5("x").property(property::MAXIMUM_PACKET_SIZE, Value::Four(30));
        let mut client = broker.connect(&if persistent { connect.persistent() } else { connect });
        client.subscribe("t", 1);
        client.send(&wire::subscribe(true, 7, &[], &[("a", 0), ("b", 0)]));
        client.send(&wire::unsubscribe(true, 8, &["c", "a"]));
        client.send(&wire::ack(wire::PUBREL, 9));
        client.send_publish(&Publish { id: 10, ..publish_of("nobody", "x", 1) });
        client.send_publish(&Publish { id: 11, ..publish_of("nobody", "x", 2) });
        client.send(&wire::ack(wire::PUBREC, 12));
        for _ in 0..6 {
            let bytes = client.receive_bytes();
            assert!(bytes.len() <= 30, "{} bytes: {bytes:02x?}", bytes.len());
        }
        let mut publisher = broker.v5("publisher");
        for payload in ["one", "much too long for a packet of thirty bytes", "two"] {
            publisher.publish("t", payload, 1);
        }
        assert_eq!([client.text(), client.text()], ["one", "two"]);
        client.nothing();
        client.disconnect();
    }
    let mut tiny = broker.tcp();
    tiny.speak_v5(true);
    tiny.send(
        &Connect::v5("tiny")
            .property(property::MAXIMUM_PACKET_SIZE, Value::Four(20))
            .property(property::AUTHENTICATION_METHOD, Value::Text("X".into()))
            .encode(),
    );
    assert!(tiny.receive_bytes().len() <= 20, "a refusing CONNACK");
    // One that takes no CONNACK at all gets no session either [MQTT-3.2.0-1].
    let mut tiny = broker.tcp();
    tiny.speak_v5(true);
    tiny.send(&Connect::v5("tiny").property(property::MAXIMUM_PACKET_SIZE, Value::Four(5)).encode());
    assert_eq!(tiny.closed(), None);
}

/// Without problem information nothing but CONNACK, DISCONNECT and PUBLISH carries a Reason String or User Properties (D71) [MQTT-3.1.2-29].
#[test]
fn problem_information_is_sent_on_request_only() {
    let broker = Setup::new().config("[session]\nmax_subscriptions = 1\n").start();
    let mut client = broker.connect(&Connect::v5("x").property(property::REQUEST_PROBLEM_INFORMATION, Value::Byte(0)));
    client.send(&wire::subscribe(true, 1, &[], &[("a", 0), ("b", 0), ("$share/g/", 0)]));
    client.send(&wire::unsubscribe(true, 2, &["c"]));
    client.send_publish(&Publish { id: 3, ..publish_of("nobody", "x", 1) });
    client.send(&wire::ack(wire::PUBREL, 4));
    client.send(&wire::ack(wire::PUBREC, 5));
    client.send(&wire::PINGREQ);
    while let Ok(packet) = client.try_receive(PATIENCE) {
        if matches!(packet, Packet::PingResp | Packet::Disconnect { .. }) {
            break;
        }
        assert!(packet.properties().is_empty(), "{packet:?}");
    }
}
