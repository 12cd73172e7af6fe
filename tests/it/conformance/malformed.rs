//! Malformed Packets and Protocol Errors (4.13): each ends its connection with the right reason, publishes the Will of whoever sent it, and
//! hurts nobody else.

use super::ground::{BAD_TEXTS, Ground};
use crate::support::{
    Broker, Connect, Lost, PATIENCE, Packet, Value, Will,
    client::publish_of,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, property},
};

/// A body with text of any bytes in it.
fn with_text(before: &[u8], text: &[u8], after: &[u8]) -> Vec<u8> {
    let mut body = before.to_vec();
    wire::binary(&mut body, text);
    body.extend_from_slice(after);
    body
}

/// The sixteen flags of each packet type: what is not as listed is malformed [MQTT-2.1.3-1], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1],
/// [MQTT-3.14.1-1], [MQTT-3.15.1-1], [MQTT-3.3.1-2], [MQTT-3.3.1-4]; what only a server sends, a second CONNECT [MQTT-3.1.0-2], and AUTH without a
/// method [MQTT-4.12.0-7] are protocol errors [MQTT-4.13.1-1]. MQTT 3.1 leaves open what stands in the flags that a packet does not use.
#[test]
fn every_flag_of_every_fixed_header_is_checked() {
    for level in 3..=5u8 {
        let mut ground = Ground::new(level);
        let v5 = level == 5;
        let body = |kind: u8, qos: u8| -> Vec<u8> {
            let properties: &[u8] = if v5 { &[0] } else { &[] };
            match kind {
                1 => Connect::new(level, "second").encode()[2..].to_vec(),
                3 if qos == 0 => with_text(&[], b"elsewhere", properties),
                3 => with_text(&[], b"elsewhere", &[&[0, 9], properties].concat()),
                4..=7 | 11 => vec![0, 9],
                8 => with_text(&[&[0, 9], properties].concat(), b"elsewhere", &[0]),
                10 => with_text(&[&[0, 9], properties].concat(), b"elsewhere", &[]),
                _ => Vec::new(),
            }
        };
        for first in 0..=255u8 {
            let (kind, flags) = (first >> 4, first & 15);
            let as_listed = match kind {
                0 => false,
                3 => flags & 6 != 6 && (flags & 8 == 0 || flags & 6 != 0),
                // MQTT 3.1 has DUP on these when they are sent again.
                6 | 8 | 10 => flags == 2 || (level == 3 && flags & 6 == 2),
                _ => flags == 0 || level == 3,
            };
            let reason = match kind {
                15 if !v5 => Some(0x81),
                _ if !as_listed => Some(0x81),
                1 | 2 | 9 | 11 | 13 | 15 => Some(0x82),
                _ => None,
            };
            let bytes = wire::packet(first, &body(kind, flags >> 1 & 3));
            let name = format!("first byte {first:#04x} at level {level}");
            match reason {
                Some(reason) => ground.ends(&name, &bytes, reason),
                None if kind == 14 => ground.leaves(&name, &bytes),
                None => ground.stands(&name, &bytes),
            }
        }
        ground.nobody_else_noticed();
    }
}

/// What is wrong in any version: lengths, Packet Identifiers, Topic Names and Filters (D25, D62, D80, D88, D89) [MQTT-1.5.5-1], [MQTT-3.3.2-2],
/// [MQTT-3.8.3-2], [MQTT-3.10.3-2], [MQTT-4.7.0-1], [MQTT-4.7.3-1], [MQTT-4.13.1-1], [MQTT-4.13.2-1].
#[test]
fn malformed_packets_hurt_nobody_else() {
    for level in 3..=5u8 {
        let mut ground = Ground::new(level);
        let v5 = level == 5;
        let none: &[u8] = if v5 { &[0] } else { &[] };
        let id = |id: u8| [&[0, id], none].concat();
        let topic = |topic: &[u8]| with_text(&[], topic, none);
        let cases: Vec<(&str, Vec<u8>, u8)> = vec![
            ("PINGREQ of three bytes, 0 in two", vec![0xc0, 0x80, 0x00], 0x81),
            ("PINGREQ, 0 in four bytes", vec![0xc0, 0x80, 0x80, 0x80, 0x00], 0x81),
            ("PUBLISH, its length in one byte too many", vec![0x30, 0x84, 0x00, 0, 1, b'a', 0], 0x81),
            ("a remaining length of five bytes", vec![0x30, 0xff, 0xff, 0xff, 0xff, 0x01], 0x81),
            ("a remaining length without end", vec![0x30, 0x80, 0x80, 0x80, 0x80], 0x81),
            ("a packet above the maximum, announced only", vec![0x30, 0xff, 0xff, 0xff, 0x7f], 0x95),
            ("PINGREQ with a body", vec![0xc0, 0x01, 0], 0x81),
            ("an empty PUBLISH", vec![0x30, 0x00], 0x81),
            ("PUBLISH with half a length", vec![0x30, 0x01, 0], 0x81),
            ("PUBLISH with a topic beyond the end", vec![0x30, 0x02, 0, 9], 0x81),
            ("PUBLISH of QoS 1 without id", wire::packet(0x32, &with_text(&[], b"a", &[])), 0x81),
            ("PUBLISH of QoS 1 with half an id", wire::packet(0x32, &with_text(&[], b"a", &[0])), 0x81),
            ("PUBLISH of QoS 1 with id 0", wire::packet(0x32, &with_text(&[], b"a", &id(0))), 0x81),
            ("PUBLISH of QoS 2 with id 0", wire::packet(0x34, &with_text(&[], b"a", &id(0))), 0x81),
            ("PUBLISH to a/+", wire::packet(0x30, &topic(b"a/+")), 0x81),
            ("PUBLISH to #", wire::packet(0x30, &topic(b"#")), 0x81),
            ("PUBLISH to a+b", wire::packet(0x30, &topic(b"a+b")), 0x81),
            ("PUBLISH without topic", wire::packet(0x30, &topic(b"")), 0x82),
            ("SUBSCRIBE without filter", wire::packet(0x82, &id(9)), 0x82),
            ("SUBSCRIBE without a body", vec![0x82, 0x00], 0x81),
            ("SUBSCRIBE with half an id", vec![0x82, 0x01, 0], 0x81),
            ("SUBSCRIBE with id 0", wire::packet(0x82, &with_text(&id(0), b"a", &[0])), 0x81),
            ("SUBSCRIBE without options", wire::packet(0x82, &with_text(&id(9), b"a", &[])), 0x81),
            ("SUBSCRIBE with a filter beyond the end", vec![0x82, 0x04, 0x00, 0x01, 0x00, 0x10], 0x81),
            (
                "SUBSCRIBE with a cut second filter",
                wire::packet(0x82, &with_text(&id(9), b"a", &[0, 0, 9, b'b'])),
                0x81,
            ),
            ("SUBSCRIBE with QoS 3", wire::packet(0x82, &with_text(&id(9), b"a", &[3])), 0x82),
            ("SUBSCRIBE with the uppermost reserved bit", wire::packet(0x82, &with_text(&id(9), b"a", &[0x80])), 0x81),
            ("SUBSCRIBE with the other reserved bit", wire::packet(0x82, &with_text(&id(9), b"a", &[0x40])), 0x81),
            ("SUBSCRIBE with Retain Handling 3", wire::packet(0x82, &with_text(&id(9), b"a", &[0x30])), 0x82),
            ("UNSUBSCRIBE without filter", wire::packet(0xa2, &id(9)), 0x82),
            ("UNSUBSCRIBE with id 0", wire::packet(0xa2, &with_text(&id(0), b"a", &[])), 0x81),
            (
                "UNSUBSCRIBE with a filter beyond the end",
                wire::packet(0xa2, &[&id(9)[..], &[0, 9, b'a']].concat()),
                0x81,
            ),
        ];
        for (name, bytes, reason) in cases {
            ground.ends(name, &bytes, reason);
        }
        for kind in [PUBACK, PUBREC, PUBREL, PUBCOMP] {
            let first = wire::ack(kind, 1)[0];
            ground.ends("an acknowledgement without id", &[first, 0], 0x81);
            ground.ends("an acknowledgement with half an id", &[first, 1, 0], 0x81);
            ground.ends("an acknowledgement of id 0", &[first, 2, 0, 0], 0x81);
        }
        ground.nobody_else_noticed();
    }
}

/// What is wrong before v5 alone: bytes where nothing may follow, and bits of options that came later ([MQTT311-3.8.3-4]).
#[test]
fn older_versions_take_no_bytes_of_newer_ones() {
    for level in 3..=4 {
        let mut ground = Ground::new(level);
        for kind in [PUBACK, PUBREC, PUBREL, PUBCOMP] {
            ground.ends("an acknowledgement with a Reason Code", &wire::ack_with(kind, 9, 0), 0x81);
        }
        ground.ends("DISCONNECT with a Reason Code", &[0xe0, 1, 0], 0x81);
        for bit in 2..8 {
            let subscribe = wire::subscribe(false, 9, &[], &[("elsewhere", 1 << bit)]);
            ground.ends(&format!("SUBSCRIBE with bit {bit} of the options"), &subscribe, 0x81);
        }
        ground.nobody_else_noticed();
    }
}

/// What is wrong in v5 alone: Topic Aliases (0x94), Receive Maximum (0x93), Reason Codes and options [MQTT-3.3.2-8], [MQTT-3.3.4-7],
/// [MQTT-3.8.3-4].
#[test]
fn each_protocol_error_of_v5_has_its_reason() {
    let mut ground = Ground::new(5);
    let alias = |topic: &str, alias: u16| {
        let properties = vec![(property::TOPIC_ALIAS, Value::Two(alias))];
        wire::publish(true, &Publish { properties, ..publish_of(topic, "x", 0) })
    };
    ground.ends("Topic Alias 0", &alias("elsewhere", 0), 0x94);
    ground.ends("Topic Alias above the maximum", &alias("elsewhere", 65), 0x94);
    ground.ends("Topic Alias 65,535", &alias("elsewhere", 65_535), 0x94);
    ground.ends("a Topic Alias that was not set", &alias("", 3), 0x82);
    let many = |qos: u8| -> Vec<u8> {
        let publish = |id| wire::publish(true, &Publish { id, ..publish_of("elsewhere", "x", qos) });
        (1..=1025).flat_map(publish).collect()
    };
    ground.ends_eventually("more QoS 2 than Receive Maximum", &many(2), 0x93);
    ground.ends("No Local on a Shared Subscription", &wire::subscribe(true, 9, &[], &[("$share/g/t", 4)]), 0x82);
    for (kind, codes) in [
        (PUBACK, &[0x01u8, 0x11, 0x92][..]),
        (PUBREC, &[0x02, 0x92]),
        (PUBREL, &[0x10, 0x80]),
        (PUBCOMP, &[0x80, 0x91]),
    ] {
        for code in codes {
            ground.ends("an acknowledgement with a Reason Code of others", &wire::ack_with(kind, 9, *code), 0x82);
        }
    }
    for code in [0x01, 0x02, 0x10, 0x11, 0x18, 0x19, 0x84, 0x85, 0x86, 0x88, 0x8a, 0x91, 0x92, 0xa3, 0xff] {
        ground.ends(&format!("DISCONNECT with {code:#x}"), &[0xe0, 1, code], 0x82);
    }
    ground.nobody_else_noticed();
}

/// Text that is no UTF-8, has a surrogate, an overlong form or U+0000, in every field that holds text: malformed [MQTT-1.5.4-1], [MQTT-1.5.4-2],
/// [MQTT-3.3.2-1], [MQTT-3.8.3-1], [MQTT-3.10.3-1].
#[test]
fn text_is_utf8_everywhere() {
    for level in 3..=5u8 {
        let mut ground = Ground::new(level);
        let none: &[u8] = if level == 5 { &[0] } else { &[] };
        let id = [&[0, 9], none].concat();
        for (what, text) in BAD_TEXTS {
            ground.ends(&format!("PUBLISH, {what}"), &wire::packet(0x30, &with_text(&[], text, none)), 0x81);
            ground.ends(&format!("SUBSCRIBE, {what}"), &wire::packet(0x82, &with_text(&id, text, &[0])), 0x81);
            ground.ends(&format!("UNSUBSCRIBE, {what}"), &wire::packet(0xa2, &with_text(&id, text, &[])), 0x81);
        }
        // What merely looks odd is text: a mark of byte order, a character that is none, one of four bytes.
        for text in ["\u{feff}", "\u{ffff}", "\u{10ffff}", "\u{d7ff}\u{e000}", "\u{7f}"] {
            ground.stands(text, &wire::packet(0x30, &with_text(&[], text.as_bytes(), none)));
        }
        ground.nobody_else_noticed();
    }
}

/// A packet that ends anywhere within its fields is malformed, not waited for: every cut of every kind of packet.
#[test]
fn no_field_runs_over_the_end() {
    for level in 4..=5u8 {
        let v5 = level == 5;
        let mut ground = Ground::new(level);
        let properties = vec![(property::USER_PROPERTY, Value::Pair("a".into(), "b".into()))];
        let properties = if v5 { properties } else { Vec::new() };
        let publish = Publish { id: 9, properties: properties.clone(), ..publish_of("abc", "", 1) };
        let disconnect = if v5 { wire::disconnect(4, &properties) } else { vec![0xe0, 0] };
        let mut auth = vec![0x18];
        wire::properties(&mut auth, &[(property::AUTHENTICATION_METHOD, Value::Text("m".into()))]);
        let packets = [
            wire::publish(v5, &publish),
            wire::subscribe(v5, 9, &properties, &[("abc", 1)]),
            wire::unsubscribe(v5, 9, &["abc"]),
            disconnect,
            wire::packet(0xf0, &auth),
        ];
        for whole in packets.iter().filter(|whole| whole[0] != 0xf0 || v5) {
            for cut in 0..whole.len() - 2 {
                let bytes = wire::packet(whole[0], &whole[2..2 + cut]);
                match (whole[0], cut) {
                    // Both may end early: the rest has defaults.
                    (0xe0, 0) => ground.leaves("DISCONNECT", &bytes),
                    (0xe0, 1) => ground.leaves_with_will("DISCONNECT of a Reason Code", &bytes),
                    (0xf0, 0) => ground.ends("AUTH of success from a client", &bytes, 0x82),
                    // A filter list that is empty.
                    (0x82 | 0xa2, at) if at == 2 + usize::from(v5) * (1 + usize::from(whole[0] == 0x82) * 7) => {
                        ground.ends("no filter", &bytes, 0x82);
                    }
                    _ => ground.ends(&format!("{:#x} cut at {cut}", whole[0]), &bytes, 0x81),
                }
            }
        }
        ground.nobody_else_noticed();
    }
}

/// The Connect Flags, all 256 with the payload that they announce: accepted where they may be, else refused, in v5 by a CONNACK with 0x81
/// [MQTT-3.1.2-3], [MQTT-3.1.2-11], [MQTT-3.1.2-12], [MQTT-3.1.2-13], [MQTT-3.1.2-17], [MQTT-3.1.2-19], [MQTT-3.1.4-1]. A password without user name
/// is for v5 alone [MQTT311-3.1.2-22]; MQTT 3.1 disregards the reserved flag, and flags of a will that is none.
#[test]
fn every_combination_of_connect_flags_is_judged() {
    let broker = Broker::start();
    for level in 3..=5u8 {
        for flags in 0..=255u8 {
            let bit = |n: u8| flags >> n & 1 == 1;
            let mut body = Connect::new(level, "").encode()[2..if level == 3 { 10 } else { 8 }].to_vec();
            body.extend_from_slice(&[level, flags, 0, 0]);
            body.extend_from_slice(if level == 5 { &[0] } else { &[] });
            wire::binary(&mut body, b"flags");
            if bit(2) {
                body.extend_from_slice(if level == 5 { &[0] } else { &[] });
                wire::binary(&mut body, b"will");
                wire::binary(&mut body, b"gone");
            }
            for _ in 0..u8::from(bit(7)) + u8::from(bit(6)) {
                wire::binary(&mut body, b"text");
            }
            let will_is_right = if bit(2) { flags >> 3 & 3 < 3 } else { level == 3 || flags & 0x38 == 0 };
            let accepted = (!bit(0) || level == 3) && will_is_right && (level == 5 || !bit(6) || bit(7));
            let mut client = broker.tcp();
            client.speak_v5(level == 5);
            client.send(&wire::packet(0x10, &body));
            let name = format!("flags {flags:#04x} at level {level}");
            match client.try_receive(PATIENCE) {
                Ok(Packet::ConnAck { code: 0, .. }) if accepted => client.send(&wire::DISCONNECT),
                Ok(Packet::ConnAck { code: 0x81, .. }) if !accepted && level == 5 => assert_eq!(client.closed(), None),
                Err(Lost::Closed) if !accepted && level < 5 => {}
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

/// The sixteen flags of the fixed header of CONNECT: MQTT 3.1 does not use them, the later versions have them 0 [MQTT-2.1.3-1].
#[test]
fn flags_of_the_fixed_header_of_connect() {
    let broker = Broker::start();
    for level in 3..=5u8 {
        for first in 0x10..=0x1fu8 {
            let mut bytes = Connect::new(level, "flags").encode();
            bytes[0] = first;
            let mut client = broker.tcp();
            client.speak_v5(level == 5);
            client.send(&bytes);
            match client.try_receive(PATIENCE) {
                Ok(Packet::ConnAck { code: 0, .. }) if first == 0x10 || level == 3 => client.ping(),
                Ok(Packet::ConnAck { code: 0x81, .. }) if first != 0x10 && level == 5 => {
                    assert_eq!(client.closed(), None)
                }
                Err(Lost::Closed) if first != 0x10 && level == 4 => {}
                other => panic!("first byte {first:#04x} at level {level}: {other:?}"),
            }
        }
    }
}

/// A CONNECT of v5 that is wrong gets a CONNACK with the reason, of older versions just the end [MQTT-3.1.4-1], [MQTT-3.1.2-9], [MQTT-3.1.3-3],
/// [MQTT-3.1.3-4], [MQTT-3.1.3-11], [MQTT-3.1.3-12], [MQTT-3.2.2-7]: text, fields that end too early or too late, and the will's topic.
#[test]
fn a_malformed_connect_is_told_why() {
    let broker = Broker::start();
    let refused = |name: &str, level: u8, bytes: &[u8], reason: u8| {
        let mut client = broker.tcp();
        client.speak_v5(level == 5);
        client.send(bytes);
        match client.try_receive(PATIENCE) {
            Ok(Packet::ConnAck { code, session_present: false, .. }) if level == 5 => {
                assert_eq!((code, client.closed()), (reason, None), "{name}");
            }
            Err(Lost::Closed) if level < 5 => {}
            other => panic!("{name} at level {level}: {other:?}"),
        }
    };
    for level in 3..=5u8 {
        let mut full = Connect::new(level, "full").login("user", "pass").will(Will::new("will", "gone"));
        full.keep_alive = 0x1234;
        if level == 5 {
            full.properties.push((property::RECEIVE_MAXIMUM, Value::Two(7)));
        }
        let whole = full.encode();
        let name = if level == 3 { 8 } else { 6 };
        for cut in name + 1..whole.len() - 2 {
            // MQTT 3.1 lets the length overrule the flags of user name and password.
            let at_end_of_field = whole[2..2 + cut].ends_with(b"gone") || whole[2..2 + cut].ends_with(b"user");
            if level == 3 && at_end_of_field {
                continue;
            }
            refused(&format!("cut at {cut}"), level, &wire::packet(0x10, &whole[2..2 + cut]), 0x81);
        }
        refused("a byte too many", level, &wire::packet(0x10, &[&whole[2..], &[0]].concat()), 0x81);
        for (what, text) in BAD_TEXTS {
            for field in ["full", "will", "user"] {
                let at = whole.windows(4).position(|window| window == field.as_bytes()).unwrap();
                let body = with_text(&whole[2..at - 2], text, &whole[at + 4..]);
                refused(&format!("{field}: {what}"), level, &wire::packet(0x10, &body), 0x81);
            }
        }
        for topic in ["", "#", "a/+"] {
            let connect = Connect::new(level, "x").will(Will::new(topic, "gone"));
            refused(&format!("a will to {topic:?}"), level, &connect.encode(), 0x81);
        }
        let mut long = vec![0x10, 0xff, 0xff, 0x7f];
        long.extend_from_slice(&whole[2..]);
        refused("a CONNECT of two megabytes, announced", level, &long, 0x95);
        let minimal = u8::try_from(whole.len() - 2).unwrap();
        for padding in [&[0x00][..], &[0x80, 0x80, 0x00]] {
            let padded = [&[0x10, minimal | 0x80], padding, &whole[2..]].concat();
            refused("a length of more bytes than it needs", level, &padded, 0x81);
        }
        let mut client = broker.tcp();
        client.send(&[&[0x10, minimal | 0x80, 0x80, 0x80, 0x80, 0x00], &whole[2..]].concat());
        assert!(
            matches!(client.try_receive(PATIENCE), Err(Lost::Closed)),
            "a length of five bytes: where the version stands is not known"
        );
    }
}

/// A remaining length that is smaller than its packet: the rest is not taken for packets with effect (D87).
#[test]
fn a_short_remaining_length_has_no_effect() {
    let broker = Broker::start();
    let mut watcher = broker.v4("watcher");
    watcher.subscribe("#", 0);
    for level in 3..=5 {
        let mut bytes = Connect::new(level, "smuggler").will(Will::new("will", "x")).encode();
        bytes[1] = 7;
        bytes.extend(wire::publish(level == 5, &publish_of("smuggled", "x", 0)));
        let mut client = broker.tcp();
        client.speak_v5(level == 5);
        client.send(&bytes);
        client.closed_eventually();
    }
    watcher.nothing();
}
