//! Properties (2.2.2): which may stand where, how often, with which values; all of them in all packets.

use super::ground::{BAD_TEXTS, Ground};
use crate::support::{
    Broker, Connect, Lost, PATIENCE, Packet, Will,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, property},
};

/// How a property is encoded (2.2.2.2).
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Byte,
    Two,
    Four,
    Variable,
    Text,
    Binary,
    Pair,
}

/// A packet of a client that has properties.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    Connect,
    Will,
    Publish,
    PubAck,
    PubRec,
    PubRel,
    PubComp,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Auth,
}

use Kind::*;
use Place::*;

const ACKS: [Place; 4] = [PubAck, PubRec, PubRel, PubComp];
const PLACES: [Place; 11] =
    [Place::Connect, Place::Will, Publish, PubAck, PubRec, PubRel, PubComp, Subscribe, Unsubscribe, Disconnect, Auth];

/// Table 2-4, as far as a client sends it; what stands in no such packet is a server's.
fn table() -> Vec<(u8, Kind, Vec<Place>)> {
    let message = vec![Publish, Place::Will];
    let with_acks = |others: &[Place]| [&ACKS[..], others].concat();
    vec![
        (property::PAYLOAD_FORMAT, Byte, message.clone()),
        (property::MESSAGE_EXPIRY, Four, message.clone()),
        (property::CONTENT_TYPE, Text, message.clone()),
        (property::RESPONSE_TOPIC, Text, message.clone()),
        (property::CORRELATION_DATA, Binary, message),
        (property::SUBSCRIPTION_ID, Variable, vec![Subscribe]),
        (property::SESSION_EXPIRY, Four, vec![Place::Connect, Disconnect]),
        (property::ASSIGNED_CLIENT_ID, Text, vec![]),
        (property::SERVER_KEEP_ALIVE, Two, vec![]),
        (property::AUTHENTICATION_METHOD, Text, vec![Place::Connect, Auth]),
        (property::AUTHENTICATION_DATA, Binary, vec![Place::Connect, Auth]),
        (property::REQUEST_PROBLEM_INFORMATION, Byte, vec![Place::Connect]),
        (property::WILL_DELAY, Four, vec![Place::Will]),
        (property::REQUEST_RESPONSE_INFORMATION, Byte, vec![Place::Connect]),
        (property::RESPONSE_INFORMATION, Text, vec![]),
        (0x1c, Text, vec![]), // Server Reference
        (property::REASON_STRING, Text, with_acks(&[Disconnect, Auth])),
        (property::RECEIVE_MAXIMUM, Two, vec![Place::Connect]),
        (property::TOPIC_ALIAS_MAXIMUM, Two, vec![Place::Connect]),
        (property::TOPIC_ALIAS, Two, vec![Publish]),
        (property::MAXIMUM_QOS, Byte, vec![]),
        (property::RETAIN_AVAILABLE, Byte, vec![]),
        (property::USER_PROPERTY, Pair, PLACES.to_vec()),
        (property::MAXIMUM_PACKET_SIZE, Four, vec![Place::Connect]),
        (property::WILDCARD_AVAILABLE, Byte, vec![]),
        (property::SUBSCRIPTION_ID_AVAILABLE, Byte, vec![]),
        (property::SHARED_AVAILABLE, Byte, vec![]),
    ]
}

fn encoded(id: u8, kind: Kind) -> Vec<u8> {
    let value: &[u8] = match kind {
        Byte => &[1],
        Two => &[0, 40],
        Four => &[0, 0, 0, 100],
        Variable => &[9],
        Text => b"\0\x04text",
        Binary => b"\0\x04\0\xff\xff\0",
        Pair => b"\0\x01n\0\x01v",
    };
    [&[id], value].concat()
}

/// `section` with its length, as a packet at `place` has it.
fn packet(place: Place, section: &[u8]) -> Vec<u8> {
    let mut with_length = Vec::new();
    wire::variable(&mut with_length, section.len() as u32);
    with_length.extend_from_slice(section);
    packet_of(place, &with_length)
}

/// The same, with a Property Length of any make.
fn packet_of(place: Place, section: &[u8]) -> Vec<u8> {
    let ack = |kind: u8| wire::packet(wire::ack(kind, 1)[0], &[&[0, 9, 0], section].concat());
    match place {
        Place::Connect | Place::Will => {
            let (own, will) = if place == Place::Connect { (section, &[0][..]) } else { (&[0][..], section) };
            let head: &[u8] = b"\0\x04MQTT\x05\x06\0\0";
            wire::packet(0x10, &[head, own, b"\0\x01c", will, b"\0\x04will\0\x01x"].concat())
        }
        Publish => wire::packet(0x30, &[b"\0\x09elsewhere", section, b"x"].concat()),
        PubAck => ack(PUBACK),
        PubRec => ack(PUBREC),
        PubRel => ack(PUBREL),
        PubComp => ack(PUBCOMP),
        Subscribe => wire::packet(0x82, &[&[0, 9], section, b"\0\x09elsewhere\0"].concat()),
        Unsubscribe => wire::packet(0xa2, &[&[0, 9], section, b"\0\x09elsewhere"].concat()),
        Disconnect => wire::packet(0xe0, &[&[0], section].concat()),
        Auth => wire::packet(0xf0, &[&[0x18], section].concat()),
    }
}

/// Tries packets with properties: those of CONNECT on connections of their own, the others on that of a client with a Will.
struct Bench {
    ground: Ground,
    broker: Broker,
}

impl Bench {
    fn new() -> Self {
        Self { ground: Ground::new(5), broker: Broker::start() }
    }

    /// `bytes` end the connection with this reason: of a CONNACK before one, else of a DISCONNECT.
    fn refuses(&mut self, place: Place, name: &str, bytes: &[u8], reason: u8) {
        if !matches!(place, Place::Connect | Place::Will) {
            return self.ground.ends(&format!("{place:?}: {name}"), bytes, reason);
        }
        let mut client = self.broker.tcp();
        client.speak_v5(true);
        client.send(bytes);
        match client.try_receive(PATIENCE) {
            Ok(Packet::ConnAck { code, .. }) => assert_eq!(code, reason, "{place:?}: {name}"),
            other => panic!("{place:?}: {name}: {other:?}"),
        }
        assert_eq!(client.closed(), None);
    }

    fn takes(&mut self, place: Place, name: &str, bytes: &[u8]) {
        match place {
            Place::Connect | Place::Will => {
                let mut client = self.broker.tcp();
                client.speak_v5(true);
                client.send(bytes);
                assert!(matches!(client.receive(), Packet::ConnAck { code: 0, .. }), "{place:?}: {name}");
                client.disconnect();
            }
            Disconnect => self.ground.leaves(name, bytes),
            _ => self.ground.stands(name, bytes),
        }
    }
}

/// Every property in every packet: taken where table 2-4 has it, elsewhere malformed, as is an Identifier that nobody knows, or that is not
/// encoded in the fewest bytes (2.2.2.2) [MQTT-1.5.5-1]; a Subscription Identifier from a client is a protocol error (D74)
/// [MQTT-3.3.4-6].
#[test]
fn a_property_stands_where_it_may() {
    let mut bench = Bench::new();
    for place in PLACES {
        for (id, kind, places) in table() {
            let name = format!("property {id:#04x}");
            let bytes = packet(place, &encoded(id, kind));
            match (places.contains(&place), place, id) {
                // No method was agreed on, or none that is known.
                (true, Auth, _) => bench.refuses(place, &name, &bytes, 0x82),
                (true, Place::Connect, property::AUTHENTICATION_METHOD) => bench.refuses(place, &name, &bytes, 0x8c),
                (true, Place::Connect, property::AUTHENTICATION_DATA) => bench.refuses(place, &name, &bytes, 0x82),
                (true, ..) => bench.takes(place, &name, &bytes),
                (false, Publish, property::SUBSCRIPTION_ID) | (false, Disconnect, 0x1c) => {
                    bench.refuses(place, &name, &bytes, 0x82);
                }
                (false, ..) => bench.refuses(place, &name, &bytes, 0x81),
            }
        }
        for unknown in
            [&[0x00u8, 0][..], &[0x04, 0], &[0x2b, 0], &[0x7f, 0], &[0x81, 0x00, 1], &[0xff, 0xff, 0xff, 0x7f]]
        {
            bench.refuses(place, &format!("an unknown property {unknown:02x?}"), &packet(place, unknown), 0x81);
        }
    }
    bench.ground.nobody_else_noticed();
}

/// Every property twice: a protocol error, but for User Property (2.2.2.2 and each property's own section).
#[test]
fn a_property_stands_once() {
    let mut bench = Bench::new();
    for (id, kind, places) in table() {
        for place in places {
            let name = format!("property {id:#04x} twice");
            let bytes = packet(place, &[encoded(id, kind), encoded(id, kind)].concat());
            match (id, place) {
                (property::USER_PROPERTY, Auth) => bench.refuses(place, &name, &bytes, 0x82),
                (property::USER_PROPERTY, _) => bench.takes(place, &name, &bytes),
                _ => bench.refuses(place, &name, &bytes, 0x82),
            }
        }
    }
    bench.ground.nobody_else_noticed();
}

/// Values that a property's section forbids are protocol errors; a Response Topic with wildcards too (D73) [MQTT-3.3.2-14].
#[test]
fn a_property_has_a_value_of_its_range() {
    let mut bench = Bench::new();
    let forbidden: [(u8, &[u8], Place); 13] = [
        (property::PAYLOAD_FORMAT, &[2], Publish),
        (property::PAYLOAD_FORMAT, &[0xff], Place::Will),
        (property::REQUEST_PROBLEM_INFORMATION, &[2], Place::Connect),
        (property::REQUEST_RESPONSE_INFORMATION, &[2], Place::Connect),
        (property::RECEIVE_MAXIMUM, &[0, 0], Place::Connect),
        (property::MAXIMUM_PACKET_SIZE, &[0, 0, 0, 0], Place::Connect),
        (property::SUBSCRIPTION_ID, &[0], Subscribe),
        (property::RESPONSE_TOPIC, b"\0\x03a/#", Publish),
        (property::RESPONSE_TOPIC, b"\0\x01+", Publish),
        (property::RESPONSE_TOPIC, b"\0\0", Publish),
        (property::RESPONSE_TOPIC, b"\0\x03a/#", Place::Will),
        (property::RESPONSE_TOPIC, b"\0\x01+", Place::Will),
        (property::AUTHENTICATION_DATA, &[0, 1, 7], Place::Connect),
    ];
    for (id, value, place) in forbidden {
        bench.refuses(
            place,
            &format!("property {id:#04x} of {value:02x?}"),
            &packet(place, &[&[id], value].concat()),
            0x82,
        );
    }
    // Of 3.14.2.2.2: a Session Expiry Interval of 0 cannot be raised.
    let broker = Broker::start();
    let mut client = broker.v5("without expiry");
    client.send(&packet(Disconnect, &encoded(property::SESSION_EXPIRY, Four)));
    assert_eq!(client.closed(), Some(0x82));
    bench.ground.nobody_else_noticed();
}

/// A Property Length, or a value, that runs over its end, or is not in its fewest bytes, is malformed [MQTT-1.5.5-1], [MQTT-2.2.2-1].
#[test]
fn no_property_runs_over_its_end() {
    let mut bench = Bench::new();
    for place in PLACES {
        let user = encoded(property::USER_PROPERTY, Pair);
        let length = user.len() as u8;
        let long = packet_of(place, &[&[100], &user[..]].concat());
        bench.refuses(place, "a length beyond the packet", &long, 0x81);
        bench.refuses(place, "a length of five bytes", &packet_of(place, &[0x80, 0x80, 0x80, 0x80, 0x01]), 0x81);
        let padded = packet_of(place, &[&[length | 0x80, 0x00], &user[..]].concat());
        bench.refuses(place, "a length in one byte too many", &padded, 0x81);
        bench.refuses(place, "no length in its fewest bytes", &packet_of(place, &[0x80, 0x00]), 0x81);
        for cut in 1..user.len() {
            bench.refuses(place, "a cut property", &packet(place, &user[..cut]), 0x81);
        }
        if ACKS.contains(&place) || place == Disconnect {
            bench.refuses(place, "bytes behind the properties", &packet_of(place, &[0, 0]), 0x81);
        }
    }
    for (id, kind, places) in table() {
        let whole = encoded(id, kind);
        let cut = &whole[..whole.len() - 1];
        places.iter().for_each(|place| bench.refuses(*place, &format!("a cut {id:#04x}"), &packet(*place, cut), 0x81));
    }
    bench.ground.nobody_else_noticed();
}

/// Text in properties is UTF-8 without U+0000, both of a pair [MQTT-1.5.4-1], [MQTT-1.5.4-2], [MQTT-1.5.7-1], [MQTT-3.3.2-13], [MQTT-3.3.2-19].
#[test]
fn text_in_properties_is_utf8() {
    let mut bench = Bench::new();
    for (what, text) in BAD_TEXTS {
        let mut bad = Vec::new();
        wire::binary(&mut bad, text);
        for (id, kind, places) in table() {
            let values = match kind {
                Text => vec![bad.clone()],
                Pair => vec![[&bad[..], b"\0\x01v"].concat(), [b"\0\x01n", &bad[..]].concat()],
                _ => Vec::new(),
            };
            for (value, place) in values.iter().flat_map(|value| places.iter().map(move |place| (value, *place))) {
                let bytes = packet(place, &[&[id], &value[..]].concat());
                bench.refuses(place, &format!("{what} in {id:#04x}"), &bytes, 0x81);
            }
        }
    }
    bench.ground.nobody_else_noticed();
}

/// Before v5 there are no properties: what looks like them in a CONNECT or PUBLISH is payload, or malformed.
#[test]
fn older_versions_have_no_properties() {
    let broker = Broker::start();
    let mut subscriber = broker.v4("subscriber");
    subscriber.subscribe("t", 0);
    for level in 3..=4 {
        let mut client = broker.connect(&Connect::new(level, "old"));
        client.send(&wire::packet(0x30, b"\0\x01t\x00x"));
        assert_eq!(subscriber.message().payload, b"\0x");
        client.send(&wire::packet(0x82, b"\0\x09\x00\0\x01t\0"));
        assert_eq!(client.closed(), None, "a Property Length in SUBSCRIBE");
        let mut bytes = Connect::new(level, "old").will(Will::new("will", "x")).encode();
        bytes.insert(if level == 3 { 14 } else { 12 }, 0);
        bytes[1] += 1;
        let mut client = broker.tcp();
        client.send(&bytes);
        assert!(matches!(client.try_receive(PATIENCE), Err(Lost::Closed)), "a Property Length in CONNECT");
    }
}
