//! The wire of MQTT 3.1, 3.1.1 and 5.0 as a client needs it: an encoder and a decoder of the tests' own.
//!
//! Shares nothing with the broker's codec, so that a fault there shows here. Accepts anything when it encodes; is strict when it decodes.

/// A property's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One byte.
    Byte(u8),
    /// Two bytes.
    Two(u16),
    /// Four bytes.
    Four(u32),
    /// A variable byte integer.
    Variable(u32),
    /// A UTF-8 string.
    Text(String),
    /// Binary data.
    Binary(Vec<u8>),
    /// A pair of strings.
    Pair(String, String),
}

/// Identifiers and values, in the order on the wire.
pub type Properties = Vec<(u8, Value)>;

/// The identifiers of the properties (2.2.2.2).
pub mod property {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const MESSAGE_EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_ID: u8 = 0x0b;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTHENTICATION_METHOD: u8 = 0x15;
    pub const AUTHENTICATION_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub const WILL_DELAY: u8 = 0x18;
    pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub const RESPONSE_INFORMATION: u8 = 0x1a;
    pub const SERVER_REFERENCE: u8 = 0x1c;
    pub const REASON_STRING: u8 = 0x1f;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const MAXIMUM_QOS: u8 = 0x24;
    pub const RETAIN_AVAILABLE: u8 = 0x25;
    pub const USER_PROPERTY: u8 = 0x26;
    pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub const WILDCARD_AVAILABLE: u8 = 0x28;
    pub const SUBSCRIPTION_ID_AVAILABLE: u8 = 0x29;
    pub const SHARED_AVAILABLE: u8 = 0x2a;
}

/// The four acknowledgements, by the high bits of their first byte.
pub const PUBACK: u8 = 4;
/// See [`PUBACK`].
pub const PUBREC: u8 = 5;
/// See [`PUBACK`].
pub const PUBREL: u8 = 6;
/// See [`PUBACK`].
pub const PUBCOMP: u8 = 7;

/// A packet as a server sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    ConnAck { session_present: bool, code: u8, properties: Properties },
    Publish(Publish),
    Ack { kind: u8, id: u16, code: u8, properties: Properties },
    SubAck { id: u16, codes: Vec<u8>, properties: Properties },
    UnsubAck { id: u16, codes: Vec<u8>, properties: Properties },
    PingResp,
    Disconnect { code: u8, properties: Properties },
    Auth { code: u8, properties: Properties },
}

/// A PUBLISH.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Publish {
    pub dup: bool,
    pub qos: u8,
    pub retain: bool,
    pub topic: String,
    pub id: u16,
    pub properties: Properties,
    pub payload: Vec<u8>,
}

impl Packet {
    /// The properties of any packet that has some.
    pub fn properties(&self) -> &[(u8, Value)] {
        match self {
            Self::ConnAck { properties, .. }
            | Self::Ack { properties, .. }
            | Self::SubAck { properties, .. }
            | Self::UnsubAck { properties, .. }
            | Self::Disconnect { properties, .. }
            | Self::Auth { properties, .. } => properties,
            Self::Publish(publish) => &publish.properties,
            Self::PingResp => &[],
        }
    }

    /// The first property with this identifier.
    pub fn property(&self, id: u8) -> Option<&Value> {
        self.properties().iter().find(|(found, _)| *found == id).map(|(_, value)| value)
    }
}

/// Appends a variable byte integer, minimal.
pub fn variable(out: &mut Vec<u8>, mut value: u32) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        out.push(if value == 0 { byte } else { byte | 0x80 });
        if value == 0 {
            return;
        }
    }
}

/// Appends binary data (or a string) with its length.
pub fn binary(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u16::try_from(bytes.len()).expect("a length of two bytes").to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a property section with its length.
pub fn properties(out: &mut Vec<u8>, list: &[(u8, Value)]) {
    let mut section = Vec::new();
    for (id, value) in list {
        section.push(*id);
        match value {
            Value::Byte(byte) => section.push(*byte),
            Value::Two(two) => section.extend_from_slice(&two.to_be_bytes()),
            Value::Four(four) => section.extend_from_slice(&four.to_be_bytes()),
            Value::Variable(number) => variable(&mut section, *number),
            Value::Text(text) => binary(&mut section, text.as_bytes()),
            Value::Binary(bytes) => binary(&mut section, bytes),
            Value::Pair(name, text) => {
                binary(&mut section, name.as_bytes());
                binary(&mut section, text.as_bytes());
            }
        }
    }
    variable(out, section.len() as u32);
    out.extend_from_slice(&section);
}

/// A whole packet of its first byte and its body.
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    variable(&mut out, body.len() as u32);
    out.extend_from_slice(body);
    out
}

/// A PUBLISH.
pub fn publish(v5: bool, publish: &Publish) -> Vec<u8> {
    let mut body = Vec::new();
    binary(&mut body, publish.topic.as_bytes());
    if publish.qos > 0 {
        body.extend_from_slice(&publish.id.to_be_bytes());
    }
    if v5 {
        properties(&mut body, &publish.properties);
    }
    body.extend_from_slice(&publish.payload);
    packet(0x30 | u8::from(publish.dup) << 3 | publish.qos << 1 | u8::from(publish.retain), &body)
}

/// A PUBACK, PUBREC, PUBREL or PUBCOMP without reason, which means success.
pub fn ack(kind: u8, id: u16) -> Vec<u8> {
    packet(kind << 4 | if kind == PUBREL { 2 } else { 0 }, &id.to_be_bytes())
}

/// One with a Reason Code (v5).
pub fn ack_with(kind: u8, id: u16, code: u8) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    packet(kind << 4 | if kind == PUBREL { 2 } else { 0 }, &[high, low, code])
}

/// A SUBSCRIBE of filters with their options.
pub fn subscribe(v5: bool, id: u16, list: &[(u8, Value)], filters: &[(&str, u8)]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if v5 {
        properties(&mut body, list);
    }
    for (filter, options) in filters {
        binary(&mut body, filter.as_bytes());
        body.push(*options);
    }
    packet(0x82, &body)
}

/// An UNSUBSCRIBE.
pub fn unsubscribe(v5: bool, id: u16, filters: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if v5 {
        properties(&mut body, &[]);
    }
    for filter in filters {
        binary(&mut body, filter.as_bytes());
    }
    packet(0xa2, &body)
}

/// A PINGREQ.
pub const PINGREQ: [u8; 2] = [0xc0, 0];
/// A DISCONNECT without reason.
pub const DISCONNECT: [u8; 2] = [0xe0, 0];

/// A DISCONNECT with a Reason Code and properties (v5).
pub fn disconnect(code: u8, list: &[(u8, Value)]) -> Vec<u8> {
    let mut body = vec![code];
    properties(&mut body, list);
    packet(0xe0, &body)
}

/// The length of the first packet in `buf` and of its fixed header, when both are there.
pub fn cut(buf: &[u8]) -> Option<(usize, usize)> {
    let mut len = 0usize;
    for (i, byte) in buf.get(1..)?.iter().take(4).enumerate() {
        len |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let header = i + 2;
            assert!(i == 0 || *byte != 0, "a length that is not minimal [MQTT-1.5.5-1]: {buf:02x?}");
            return (buf.len() >= header + len).then_some((header + len, header));
        }
        assert!(i < 3, "a remaining length of more than four bytes: {buf:02x?}");
    }
    None
}

/// Decodes one whole packet from a server; panics with the bytes where they are not what a server may send.
pub fn decode(v5: bool, bytes: &[u8]) -> Packet {
    let (len, header) = cut(bytes).expect("a whole packet");
    assert_eq!(len, bytes.len());
    let mut body = Cursor { bytes: &bytes[header..len], whole: bytes };
    let first = bytes[0];
    let flags = first & 0x0f;
    let packet = match first >> 4 {
        2 => {
            let acknowledge = body.byte();
            assert!(acknowledge <= 1, "CONNACK flags: {bytes:02x?}");
            let code = body.byte();
            assert!(acknowledge == 0 || code == 0, "a session present, but refused [MQTT-3.2.2-6]: {bytes:02x?}");
            let properties = if v5 { body.properties() } else { Vec::new() };
            Packet::ConnAck { session_present: acknowledge == 1, code, properties }
        }
        3 => Packet::Publish(publish_of(v5, flags, &mut body)),
        kind @ 4..=7 => {
            assert_eq!(flags, if kind == PUBREL { 2 } else { 0 }, "flags of an acknowledgement: {bytes:02x?}");
            let id = body.two();
            let (code, properties) = body.reason(v5);
            Packet::Ack { kind, id, code, properties }
        }
        9 => {
            let id = body.two();
            let properties = if v5 { body.properties() } else { Vec::new() };
            Packet::SubAck { id, codes: body.rest(), properties }
        }
        11 => {
            let id = body.two();
            let properties = if v5 { body.properties() } else { Vec::new() };
            Packet::UnsubAck { id, codes: body.rest(), properties }
        }
        13 => Packet::PingResp,
        14 if v5 => {
            let (code, properties) = body.reason(true);
            Packet::Disconnect { code, properties }
        }
        15 if v5 => {
            let (code, properties) = body.reason(true);
            Packet::Auth { code, properties }
        }
        _ => panic!("a packet that no server sends: {bytes:02x?}"),
    };
    assert!(body.bytes.is_empty(), "bytes behind the packet's end: {bytes:02x?}");
    assert!(
        matches!(packet, Packet::Publish(_)) || first & 15 == if first >> 4 == PUBREL { 2 } else { 0 },
        "flags: {bytes:02x?}"
    );
    check_lists(v5, first >> 4, &packet, bytes);
    packet
}

/// The Reason Codes and properties that a server may send, from the table of each packet's section.
fn check_lists(v5: bool, kind: u8, packet: &Packet, bytes: &[u8]) {
    let (codes, listed, properties): (&[u8], &[u8], &[u8]) = match packet {
        Packet::ConnAck { code, .. } if !v5 => (&[*code], &[0, 1, 2, 3, 4, 5], &[]),
        Packet::ConnAck { code, .. } => (
            &[*code],
            b"\x00\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8c\x90\x95\x97\x99\x9a\x9b\x9c\x9d\x9f",
            b"\x11\x12\x13\x15\x16\x1a\x1c\x1f\x21\x22\x24\x25\x26\x27\x28\x29\x2a",
        ),
        Packet::Publish(_) => (&[], &[], b"\x01\x02\x03\x08\x09\x0b\x23\x26"),
        Packet::Ack { code, .. } if matches!(kind, PUBREL | PUBCOMP) => (&[*code], b"\x00\x92", b"\x1f\x26"),
        Packet::Ack { code, .. } => (&[*code], b"\x00\x10\x80\x83\x87\x90\x91\x97\x99", b"\x1f\x26"),
        Packet::SubAck { codes, .. } if !v5 => (codes, b"\x00\x01\x02\x80", &[]),
        Packet::SubAck { codes, .. } => {
            (codes, b"\x00\x01\x02\x80\x83\x87\x8f\x91\x97\x9e\xa1\xa2", b"\x1f\x26")
        }
        Packet::UnsubAck { codes, .. } => (codes, b"\x00\x11\x80\x83\x87\x8f\x91", b"\x1f\x26"),
        Packet::PingResp => (&[], &[], &[]),
        Packet::Disconnect { code, .. } => (
            &[*code],
            b"\x00\x80\x81\x82\x83\x87\x89\x8b\x8d\x8e\x8f\x90\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\xa1\xa2",
            b"\x1c\x1f\x26",
        ),
        Packet::Auth { code, .. } => (&[*code], b"\x00\x18", b"\x15\x16\x1f\x26"),
    };
    assert!(codes.iter().all(|code| listed.contains(code)), "a Reason Code that is not listed: {bytes:02x?}");
    let strange = packet.properties().iter().find(|(id, _)| !properties.contains(id));
    assert_eq!(strange, None, "a property that no server sends there: {bytes:02x?}");
}

fn publish_of(v5: bool, flags: u8, body: &mut Cursor<'_>) -> Publish {
    let qos = flags >> 1 & 3;
    assert!(qos < 3, "QoS 3: {:02x?}", body.whole);
    let topic = body.text();
    assert!(!topic.contains(['+', '#', '\0']), "a Topic Name with wildcards or NUL: {topic:?}");
    let id = if qos > 0 { body.two() } else { 0 };
    assert!((qos > 0) == (id > 0), "a packet identifier of 0: {:02x?}", body.whole);
    assert!(qos > 0 || flags & 8 == 0, "DUP with QoS 0: {:02x?}", body.whole);
    let properties = if v5 { body.properties() } else { Vec::new() };
    assert!(
        !topic.is_empty() || properties.iter().any(|(id, _)| *id == property::TOPIC_ALIAS),
        "a PUBLISH without topic"
    );
    assert!(!properties.contains(&(property::TOPIC_ALIAS, Value::Two(0))), "Topic Alias 0: {:02x?}", body.whole);
    Publish { dup: flags & 8 != 0, qos, retain: flags & 1 != 0, topic, id, properties, payload: body.rest() }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    whole: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        assert!(self.bytes.len() >= count, "a packet shorter than its fields: {:02x?}", self.whole);
        let (taken, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn two(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn binary(&mut self) -> Vec<u8> {
        let len = self.two();
        self.take(usize::from(len)).to_vec()
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.binary()).expect("UTF-8")
    }

    fn rest(&mut self) -> Vec<u8> {
        self.take(self.bytes.len()).to_vec()
    }

    fn variable(&mut self) -> u32 {
        let mut value = 0;
        for i in 0..4 {
            let byte = self.byte();
            value |= u32::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                assert!(i == 0 || byte != 0, "an integer that is not minimal: {:02x?}", self.whole);
                return value;
            }
        }
        panic!("a variable byte integer of more than four bytes: {:02x?}", self.whole);
    }

    fn reason(&mut self, v5: bool) -> (u8, Properties) {
        if !v5 || self.bytes.is_empty() {
            return (0, Vec::new());
        }
        let code = self.byte();
        (code, if self.bytes.is_empty() { Vec::new() } else { self.properties() })
    }

    fn properties(&mut self) -> Properties {
        let len = self.variable() as usize;
        let mut section = Cursor { bytes: self.take(len), whole: self.whole };
        let mut list = Vec::new();
        while !section.bytes.is_empty() {
            let id = section.byte();
            let value = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => Value::Byte(section.byte()),
                0x13 | 0x21 | 0x22 | 0x23 => Value::Two(section.two()),
                0x02 | 0x11 | 0x18 | 0x27 => Value::Four(u32::from_be_bytes(section.take(4).try_into().unwrap())),
                0x0b => Value::Variable(section.variable()),
                0x03 | 0x08 | 0x12 | 0x15 | 0x1a | 0x1c | 0x1f => Value::Text(section.text()),
                0x09 | 0x16 => Value::Binary(section.binary()),
                0x26 => Value::Pair(section.text(), section.text()),
                _ => panic!("an unknown property {id:#x}: {:02x?}", self.whole),
            };
            let repeats = matches!(id, property::USER_PROPERTY | property::SUBSCRIPTION_ID);
            assert!(repeats || list.iter().all(|(seen, _)| *seen != id), "a property twice: {:02x?}", self.whole);
            list.push((id, value));
        }
        list
    }
}

/// The decoder is checked against bytes written by hand.
#[test]
fn the_tests_own_decoder_reads_what_the_specification_shows() {
    assert_eq!(
        decode(true, &[0x20, 0x06, 0x01, 0x00, 0x03, 0x21, 0x00, 0x0a]),
        Packet::ConnAck {
            session_present: true,
            code: 0,
            properties: vec![(property::RECEIVE_MAXIMUM, Value::Two(10))]
        }
    );
    assert_eq!(
        decode(false, &[0x40, 0x02, 0x12, 0x34]),
        Packet::Ack { kind: PUBACK, id: 0x1234, code: 0, properties: Vec::new() }
    );
    let sent = Publish { qos: 1, topic: "a/b".into(), id: 10, payload: b"x".to_vec(), ..Publish::default() };
    let bytes = publish(true, &sent);
    assert_eq!(bytes, [0x32, 0x09, 0x00, 0x03, b'a', b'/', b'b', 0x00, 0x0a, 0x00, b'x']);
    assert_eq!(decode(true, &bytes), Packet::Publish(sent));
    assert_eq!(cut(&bytes[..5]), None);
    let mut long = Vec::new();
    variable(&mut long, 321);
    assert_eq!(long, [0xc1, 0x02]);
}

/// What a server must not send fails whichever test it is sent to: lengths and integers that are not minimal [MQTT-1.5.5-1], reserved flags
/// [MQTT-2.1.3-1], [MQTT-3.2.2-1], no Property Length [MQTT-2.2.2-1], DUP with QoS 0 [MQTT-3.3.1-2], QoS 3 [MQTT-3.3.1-4], id 0 [MQTT-2.2.1-4],
/// wildcards or nothing in a Topic Name [MQTT-3.3.2-2], [MQTT-4.7.0-1], [MQTT-4.7.3-1], text that is none [MQTT-1.5.4-1], [MQTT-1.5.4-2],
/// [MQTT-3.3.2-1], Topic Alias 0 [MQTT-3.3.2-8], and Reason Codes and properties that are not listed for the packet [MQTT-3.2.2-6],
/// [MQTT311-3.2.2-4], [MQTT311-3.9.3-2], [MQTT-3.2.2-8], [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1], [MQTT-3.9.3-2], [MQTT-3.11.3-2], [MQTT-3.14.2-1], [MQTT-3.14.2-2],
/// [MQTT-3.15.1-1], [MQTT-3.15.2-1].
#[test]
fn the_tests_own_decoder_refuses_what_no_server_may_send() {
    let cases: [&[u8]; 28] = [
        b"\xd0\x80\x00",                         // a length of two bytes
        b"\x30\x85\x00\x00\x01a\x00x",           // the same
        b"\x30\x05\x00\x01a\x80\x00",            // a Property Length of two bytes
        b"\xd1\x00",                             // flags of PINGRESP
        b"\x41\x02\x00\x01",                     // of PUBACK
        b"\x60\x02\x00\x01",                     // of PUBREL
        b"\xe1\x00",                             // of DISCONNECT
        b"\xf1\x00",                             // of AUTH
        b"\x20\x03\x02\x00\x00",                 // of CONNACK
        b"\x20\x02\x00\x00",                     // CONNACK without Property Length
        b"\x20\x03\x01\x87\x00",                 // a session present, but refused
        b"\x20\x03\x00\x8e\x00",                 // Reason Codes: CONNACK
        b"\x40\x03\x00\x01\x92",                 // PUBACK
        b"\x50\x03\x00\x01\x92",                 // PUBREC
        b"\x62\x03\x00\x01\x10",                 // PUBREL
        b"\x70\x03\x00\x01\x80",                 // PUBCOMP
        b"\x90\x04\x00\x01\x00\x03",             // SUBACK
        b"\xb0\x04\x00\x01\x00\x01",             // UNSUBACK
        b"\xe0\x01\x04",                         // DISCONNECT
        b"\xe0\x07\x00\x05\x11\x00\x00\x00\x09", // DISCONNECT with Session Expiry Interval
        b"\xf0\x01\x19",                         // AUTH
        b"\x38\x04\x00\x01a\x00",                // DUP with QoS 0
        b"\x36\x06\x00\x01a\x00\x01\x00",        // QoS 3
        b"\x32\x06\x00\x01a\x00\x00\x00",        // Packet Identifier 0
        b"\x30\x05\x00\x02a+\x00",               // a wildcard
        b"\x30\x03\x00\x00\x00",                 // no topic
        b"\x30\x05\x00\x02\xc3\x28\x00",         // no UTF-8
        b"\x30\x07\x00\x01a\x03\x23\x00\x00",    // Topic Alias 0
    ];
    for bytes in cases {
        assert!(std::panic::catch_unwind(|| decode(true, bytes)).is_err(), "{bytes:02x?} was taken");
    }
    for bytes in [b"\x20\x02\x01\x05".as_slice(), b"\x20\x02\x00\x87", b"\x90\x03\x00\x01\x87", b"\xe0\x00"] {
        assert!(std::panic::catch_unwind(|| decode(false, bytes)).is_err(), "{bytes:02x?} was taken before v5");
    }
}
