//! What a client sent before it came back on another connection counts, though the new one has taken its session over meanwhile.

use crate::support::{
    Broker, Connect, Packet, Will,
    client::publish_of,
    wire::{self, Value, property},
};

/// How often each race is run: the broker sees both connections at the same time.
const ROUNDS: usize = 20;

/// A QoS 0 PUBLISH that had come before the take-over is not lost with the old connection [MQTT-3.1.4-3].
#[test]
fn a_publish_before_the_take_over_is_taken() {
    let broker = Broker::start();
    for round in 0..ROUNDS {
        for level in 3..=5 {
            let connect = Connect::new(level, "again");
            let mut first = broker.connect(&connect);
            let mut publish = publish_of(&format!("last/{level}/{round}"), "word", 0);
            publish.retain = true;
            first.send(&wire::publish(level == 5, &publish));
            let mut second = broker.connect(&connect);
            second.subscribe(&publish.topic, 0);
            assert_eq!(second.text(), "word", "round {round}, level {level}");
        }
    }
}

/// [MQTT-3.1.2-10], [MQTT-3.14.4-3]: a DISCONNECT that had come before the take-over discards the Will.
#[test]
fn a_disconnect_before_the_take_over_discards_the_will() {
    let broker = Broker::start();
    let mut watcher = broker.v4("watcher");
    watcher.subscribe("will", 0);
    for _ in 0..ROUNDS {
        for level in 3..=5 {
            let connect = Connect::new(level, "again").will(Will::new("will", "died"));
            let mut first = broker.connect(&connect);
            first.send(&[0xe0, 0]);
            broker.connect(&connect).disconnect();
            watcher.nothing();
        }
    }
}

/// 3.14.2.2.2: a DISCONNECT that had come before the take-over changes the Session Expiry Interval.
#[test]
fn a_disconnect_before_the_take_over_ends_the_session() {
    let broker = Broker::start();
    for round in 0..ROUNDS {
        let connect = Connect::v5("again").persistent();
        let ends = wire::disconnect(0, &[(property::SESSION_EXPIRY, Value::Four(0))]);
        let mut first = broker.connect(&connect);
        first.send(&ends);
        let mut second = broker.connect(&connect);
        assert!(!second.session_present(), "round {round}");
        second.send(&ends);
        second.closed();
    }
}

/// [MQTT-3.1.4-3]: one that stops sending without closing is still told why its connection ends.
#[test]
fn a_half_closed_connection_is_told_of_the_take_over() {
    let broker = Broker::start();
    let mut first = broker.v5("again");
    first.send(&[0xc0, 0]);
    assert!(matches!(first.receive(), Packet::PingResp));
    let _second = broker.v5("again");
    assert_eq!(first.closed(), Some(0x8e));
}

/// MQTT 3.1 has no Session Present: the byte is reserved in its CONNACK. 3.1.1 and later have it [MQTT311-3.2.2-2].
#[test]
fn session_present_began_with_3_1_1() {
    let broker = Broker::start();
    for level in 3..=5 {
        let connect = Connect::new(level, "kept").persistent();
        broker.connect(&connect.clone()).disconnect();
        assert_eq!(broker.connect(&connect).session_present(), level > 3, "level {level}");
        broker.connect(&Connect::new(level, "kept")).disconnect();
    }
}
