//! Malformed Packets and Protocol Errors (4.13): each ends its connection with the right reason, and hurts nobody else.

use crate::support::{Broker, Connect, Will, client::publish_of, wire};

/// Bytes that are no packet, in every version: each ends its connection, v5 with a reason (D80) [MQTT-4.13.1-1], [MQTT-2.1.3-1], [MQTT-4.7.0-1], and
/// the neighbours exchange messages meanwhile (D88).
#[test]
fn malformed_packets_hurt_nobody_else() {
    let broker = Broker::start();
    let mut subscriber = broker.v4("subscriber");
    subscriber.subscribe("t", 1);
    let mut publisher = broker.v5("publisher");
    let vectors: [&[u8]; 21] = [
        &[0xc0, 0x80, 0x00],                   // a remaining length of more bytes than needed [MQTT-1.5.5-1]
        &[0x00, 0x00],                         // reserved type
        &[0x20, 0x02, 0, 0],                   // CONNACK from a client
        &[0x90, 0x03, 0, 1, 0],                // SUBACK from a client
        &[0xb0, 0x02, 0, 1],                   // UNSUBACK from a client
        &[0xd0, 0x00],                         // PINGRESP from a client
        &[0xc1, 0x00],                         // PINGREQ with flags
        &[0xc0, 0x01, 0],                      // PINGREQ with a body
        &[0x41, 0x02, 0, 1],                   // PUBACK with flags
        &[0x60, 0x02, 0, 1],                   // PUBREL without its flags [MQTT-3.6.1-1]
        &[0x40, 0x01, 0],                      // a short PUBACK
        &[0x40, 0x02, 0, 0],                   // PUBACK of id 0
        &[0x30, 0x00],                         // an empty PUBLISH
        &[0x30, 0x02, 0, 9],                   // a topic beyond the end
        &[0x30, 0x05, 0, 3, b'a', b'/', b'+'], // a topic with a wildcard [MQTT-3.3.2-2]
        &[0x30, 0x05, 0, 3, b'a', 0, b'b'],    // a topic with NUL [MQTT-1.5.4-2]
        &[0x30, 0x04, 0, 2, 0xc3, 0x28],       // a topic that is not UTF-8 [MQTT-1.5.4-1]
        &[0x30, 0x05, 0, 3, 0xed, 0xa0, 0x80], // a surrogate
        &[0x30, 0xff, 0xff, 0xff, 0xff, 0x01], // a remaining length of five bytes
        &[0x82, 0x04, 0x00, 0x01, 0x00, 0x10], // SUBSCRIBE with a filter beyond the end (D89)
        &[0xe1, 0x00],                         // DISCONNECT with flags [MQTT-3.14.1-1]
    ];
    for flags in [1u8, 2, 8] {
        let mut client = broker.v5("broken");
        client.send(&[0xf0 | flags, 0]);
        assert_eq!(client.closed(), Some(0x81), "AUTH with flags [MQTT-3.15.1-1]");
        let mut client = broker.v5("broken");
        client.send(&[0xe0 | flags, 0]);
        assert_eq!(client.closed(), Some(0x81), "DISCONNECT with flags [MQTT-3.14.1-1]");
    }
    for (n, bytes) in vectors.into_iter().enumerate() {
        for level in 3..=5 {
            let mut client = broker.connect(&Connect::new(level, "broken"));
            client.send(bytes);
            let reason = client.closed();
            assert!(
                if level == 5 { matches!(reason, Some(0x81 | 0x82 | 0x90)) } else { reason.is_none() },
                "{bytes:02x?}: {reason:x?}"
            );
            publisher.publish("t", [n as u8], 1);
            assert_eq!(subscriber.message().payload, [n as u8]);
        }
    }
}

/// A remaining length that is smaller than its packet: the rest is not taken for packets with effect (D87).
#[test]
fn a_short_remaining_length_has_no_effect() {
    let broker = Broker::start();
    let mut watcher = broker.v4("watcher");
    watcher.subscribe("#", 0);
    let mut bytes = Connect::v4("smuggler").will(Will::new("will", "x")).encode();
    bytes[1] = 7;
    bytes.extend(wire::publish(false, &publish_of("smuggled", "x", 0)));
    let mut client = broker.tcp();
    client.send(&bytes);
    client.closed();
    watcher.nothing();
}
