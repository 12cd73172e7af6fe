//! Network Connections (4.2): packets cut anywhere, many in one segment, and the end behind them.

use std::io::Write;

use crate::support::{
    Broker, Connect, Packet,
    client::publish_of,
    wire::{self, Publish},
};

/// An ordered stream of bytes is all that is asked of the transport: CONNECT and PUBLISH, one byte in each segment (D17) [MQTT-4.2-1].
#[test]
fn packets_may_come_byte_by_byte() {
    let broker = Broker::start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("slow", 1);
    let mut client = broker.tcp();
    client.speak_v5(true);
    let mut bytes = Connect::v5("bytewise").encode();
    bytes.extend(wire::publish(true, &wire::Publish { id: 7, ..publish_of("slow", "drop by drop", 1) }));
    for byte in bytes {
        client.socket().write_all(&[byte]).unwrap();
    }
    assert!(matches!(client.receive(), Packet::ConnAck { code: 0, .. }));
    assert_eq!(client.acknowledged(wire::PUBACK, 7), 0);
    assert_eq!(subscriber.text(), "drop by drop");
}

/// Acknowledgements and PINGREQ get in though deliveries wait for a reader (no dead lock of flow control).
#[test]
fn deliveries_that_wait_do_not_stop_reading() {
    let broker = Broker::start();
    let mut both = broker.connect(&Connect::v4("both").keep_alive(5));
    both.subscribe("echo", 0);
    let payload = vec![b'x'; 64 * 1024];
    let packet = wire::publish(false, &publish_of("echo", &payload, 0));
    // Published to itself, nothing read: 32 MiB both ways are more than all buffers hold.
    for _ in 0..512 {
        both.send(&packet);
    }
    both.ping();
    let mut acknowledged = broker.v4("watcher");
    acknowledged.ping();
}

/// What a turn has taken in before it fails still has its effect, and receivers are woken: PUBLISH and garbage, PUBLISH and DISCONNECT,
/// PUBLISH and the end, all in one segment.
#[test]
fn a_turn_that_fails_still_delivers_what_came_before() {
    let broker = Broker::start();
    let mut volatile = broker.v4("volatile");
    volatile.subscribe("t", 2);
    let mut stored = broker.connect(&Connect::v5("stored").persistent());
    stored.subscribe("t", 2);
    for level in 4..=5 {
        for qos in 0..3 {
            for (name, tail) in [("garbage", &[0xff, 0xff, 0xff][..]), ("disconnect", &wire::DISCONNECT), ("end", &[])]
            {
                let client = broker.connect(&Connect::new(level, "short").expiry_if_v5(100));
                let payload = format!("{level} {qos} {name}");
                let publish = Publish { id: u16::from(qos > 0), ..publish_of("t", &payload, qos) };
                let mut bytes = wire::publish(level == 5, &publish);
                bytes.extend_from_slice(tail);
                client.socket().write_all(&bytes).unwrap();
                drop(client);
                assert_eq!([volatile.text(), stored.text()], [payload.clone(), payload]);
            }
        }
    }
}

/// What came in one segment with the DISCONNECT behind it is acknowledged all the same, once it is durable.
#[test]
fn a_disconnect_takes_no_acknowledgement_with_it() {
    let broker = Broker::start();
    let mut stored = broker.connect(&Connect::v5("stored").persistent());
    stored.subscribe("stored", 1);
    for level in 4..=5 {
        for topic in ["stored", "nobody"] {
            let mut client = broker.connect(&Connect::new(level, "short"));
            let mut bytes = wire::publish(level == 5, &Publish { id: 7, ..publish_of(topic, "x", 1) });
            bytes.extend_from_slice(&wire::DISCONNECT);
            client.socket().write_all(&bytes).unwrap();
            let code = client.acknowledged(wire::PUBACK, 7);
            assert!(code < 0x80, "{topic}: {code:#x}");
        }
    }
}

impl Connect {
    fn expiry_if_v5(self, secs: u32) -> Self {
        if self.level == 5 { self.expiry(secs) } else { self }
    }
}
