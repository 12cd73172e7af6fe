//! CONNECT and its answer, by the bytes: levels, flags, client ids of any length, what a malformed CONNECT is told, and when nothing follows.

use crate::support::{
    Broker, Client, Connect, Lost, PATIENCE, Packet, Setup, Value, Will,
    broker::DURABILITY,
    client::publish_of,
    wire::{self, Publish, property},
};

/// A CONNECT with `rest` after the Keep Alive.
fn connect(name: &str, level: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    wire::binary(&mut body, name.as_bytes());
    body.extend_from_slice(&[level, flags, 0, 60]);
    body.extend_from_slice(rest);
    wire::packet(0x10, &body)
}

/// What the broker says before it closes, as bytes.
fn answer(broker: &Broker, bytes: &[u8]) -> Vec<u8> {
    let mut client = broker.tcp();
    client.send(bytes);
    match client.try_receive_raw() {
        Ok(answer) => {
            assert_eq!(client.closed(), None, "nothing after a CONNACK that refuses");
            answer
        }
        Err(Lost::Closed) => Vec::new(),
        Err(other) => panic!("{other:?} after {bytes:02x?}"),
    }
}

const CLIENT_ID: &[u8] = b"\0\x01a";

/// [MQTT-3.1.2-1], [MQTT-3.1.2-2]: what protocol name and level are answered: what is not served in the form that the level suggests, 0x84 or
/// 1 (D04). Bridges set the highest bit of a level to say that they are one; they come again without it.
#[test]
fn every_protocol_level_has_its_answer() {
    let broker = Broker::start();
    const OLD: &[u8] = &[0x20, 2, 0, 1];
    const NEW: &[u8] = &[0x20, 3, 0, 0x84, 0];
    for (name, level, expected) in [
        ("MQTT", 0, OLD),
        ("MQTT", 3, OLD),
        ("MQIsdp", 4, OLD),
        ("MQIsdp", 2, OLD),
        ("MQIsdp", 0x83, OLD),
        ("MQTT", 0x84, OLD),
        ("MQTT", 0x85, NEW),
        ("MQTT", 6, NEW),
        ("MQIsdp", 5, NEW),
        ("MQTT", 255, NEW),
        ("mqtt", 4, OLD),
        ("", 4, OLD),
    ] {
        let rest = if level == 5 { [&[0], CLIENT_ID].concat() } else { CLIENT_ID.to_vec() };
        assert_eq!(answer(&broker, &connect(name, level, 2, &rest)), expected, "{name} {level:#x}");
    }
}

/// A malformed CONNECT of v5 is told what is wrong where the level could be read: 0x81, 0x82, 0x95 (4.13) [MQTT-3.1.4-1], [MQTT-3.2.2-8],
/// [MQTT-4.13.2-1]; one of 3.1.1 is closed [MQTT311-3.1.4-1].
#[test]
fn a_malformed_connect_of_v5_is_told_why() {
    let broker = Setup::new().config("[session]\nmax_packet_size_bytes = 1000\n").start();
    let v5 = |flags: u8, properties: &[u8], rest: &[u8]| {
        connect("MQTT", 5, flags, &[&[properties.len() as u8], properties, rest].concat())
    };
    let long = [&[0x03, 0xe8][..], &[b'x'; 1000]].concat();
    let cases: [(&str, u8, Vec<u8>); 14] = [
        ("the reserved flag [MQTT-3.1.2-3]", 0x81, v5(3, &[], CLIENT_ID)),
        ("Will QoS without a will [MQTT-3.1.2-11]", 0x81, v5(0x0a, &[], CLIENT_ID)),
        ("Will QoS 3 [MQTT-3.1.2-12]", 0x81, v5(0x1e, &[], b"\0\x01a\0\0\x01w\0\0")),
        ("Will Retain without a will [MQTT-3.1.2-13]", 0x81, v5(0x22, &[], CLIENT_ID)),
        ("a client id that is no UTF-8 [MQTT-3.1.3-4]", 0x81, v5(2, &[], b"\0\x02\xc3\x28")),
        ("a will topic with a wildcard", 0x81, v5(6, &[], b"\0\x01a\0\0\x01#\0\0")),
        ("bytes behind the end", 0x81, v5(2, &[], b"\0\x01a\0")),
        ("an end within a field", 0x81, v5(0x82, &[], b"\0\x01a\0\x05u")),
        ("a property of another packet", 0x81, v5(2, &[0x23, 0, 1], CLIENT_ID)),
        ("properties beyond the end", 0x81, connect("MQTT", 5, 2, &[9, 0x21, 0, 1])),
        ("a property twice", 0x82, v5(2, &[0x21, 0, 1, 0x21, 0, 1], CLIENT_ID)),
        ("Receive Maximum 0", 0x82, v5(2, &[0x21, 0, 0], CLIENT_ID)),
        ("authentication data without a method", 0x82, v5(2, &[0x16, 0, 1, 7], CLIENT_ID)),
        ("more than the maximum packet size", 0x95, v5(2, &[], &long)),
    ];
    for (name, code, bytes) in &cases {
        assert_eq!(answer(&broker, bytes), [0x20, 3, 0, *code, 0], "{name}");
    }
    let v4 = |flags: u8, rest: &[u8]| connect("MQTT", 4, flags, rest);
    for bytes in [v4(3, CLIENT_ID), v4(0x0a, CLIENT_ID), v4(2, b"\0\x02\xc3\x28"), v4(2, b"\0\x01a\0"), v4(2, &long)] {
        assert!(answer(&broker, &bytes).is_empty(), "{bytes:02x?}");
    }
    broker.v5("other").ping();
}

/// What MQTT 3.1 does not look at: the reserved flag, QoS and RETAIN of no will, credentials that are announced and missing.
#[test]
fn mqtt_3_1_is_taken_as_it_is() {
    let broker = Broker::start();
    for flags in [0x02, 0x03, 0x0a, 0x22, 0x82, 0xc2] {
        assert_eq!(first(&broker, &connect("MQIsdp", 3, flags, CLIENT_ID)), [0x20, 2, 0, 0], "{flags:#x}");
    }
}

fn first(broker: &Broker, bytes: &[u8]) -> Vec<u8> {
    let mut client = broker.tcp();
    client.send(bytes);
    client.receive_bytes()
}

/// A password without a user name: v5 allows it, older versions do not [MQTT311-3.1.2-22].
#[test]
fn a_password_may_stand_alone_in_v5() {
    let broker = Broker::start();
    let alone = |level| Connect { password: Some(b"secret".to_vec()), ..Connect::new(level, "client") };
    broker.connect(&alone(5)).ping();
    for level in 3..=4 {
        assert!(answer(&broker, &alone(level).encode()).is_empty(), "level {level}");
    }
}

/// [MQTT-3.1.4-5]: each CONNECT that is right is answered by a CONNACK of 0x00, once, before all else [MQTT-3.2.0-1], [MQTT-3.2.0-2]; with user
/// properties too.
#[test]
fn a_connect_that_is_right_is_answered_first_and_once() {
    let broker = Broker::start();
    let pair = |n: u8| Value::Pair(format!("name-{}", n % 3), "x".repeat(usize::from(n)));
    for level in 3..=5 {
        let mut asked = Connect::new(level, "client").persistent();
        if level == 5 {
            asked.properties.extend((0..30).map(|n| (property::USER_PROPERTY, pair(n))));
        }
        let mut client = broker.connect(&asked);
        client.subscribe("t", 1);
        client.cut();
        broker.v5("publisher").publish("t", "waits", 1);
        let mut client = broker.tcp();
        client.speak_v5(level == 5);
        // Packets that follow at once are answered after the CONNACK.
        client.send(&[&asked.encode()[..], &wire::PINGREQ].concat());
        let packet = client.receive();
        assert!(
            matches!(packet, Packet::ConnAck { session_present, code: 0, .. } if session_present == (level > 3)),
            "{packet:?}"
        );
        assert_eq!(client.wait_for("PINGRESP", |packet| *packet == Packet::PingResp), Packet::PingResp);
        assert_eq!(client.text(), "waits");
        client.nothing();
        client.disconnect();
        broker.connect(&Connect::new(level, "client")).disconnect();
    }
}

/// [MQTT-3.1.3-2]: the client id names the session, all of it, of up to 65,535 bytes: two that differ in their last byte are two sessions. It
/// outlives the broker (D11).
#[test]
fn a_client_id_of_any_length_names_its_session() {
    let mut broker = Broker::start();
    let id = |last: char| format!("{}{last}", "\u{e4}/".repeat(21_844) + "xy");
    assert_eq!(id('1').len(), 65_535);
    for level in 3..=5 {
        let mine = Connect::new(level, &id('1')).persistent();
        let mut client = broker.connect(&mine);
        assert!(!client.session_present(), "level {level}");
        client.subscribe(&format!("t/{level}"), 1);
        client.disconnect();
        let other = broker.connect(&Connect::new(level, &id('2')).persistent());
        assert!(!other.session_present(), "level {level}: another id, another session");
        other.disconnect();
        broker.v5("publisher").publish(&format!("t/{level}"), "kept", 1);
        if DURABILITY != "memory" {
            broker.kill9();
            broker.restart();
        }
        let mut client = broker.connect(&mine);
        assert_eq!(client.session_present(), level > 3, "level {level}");
        assert_eq!(client.text(), "kept");
        client.disconnect();
        for last in ['1', '2'] {
            broker.connect(&Connect::new(level, &id(last))).disconnect();
        }
    }
    assert!(broker.log_lines().iter().all(|line| line.len() < 2_000), "a long client id is cut short in the log");
}

/// An empty client id: 3.1 has none, 3.1.1 takes one for a clean session and else says 2 [MQTT311-3.1.3-8], v5 assigns one [MQTT-3.1.3-6]. Who is
/// refused is closed [MQTT-3.1.3-8].
#[test]
fn an_empty_client_id_in_every_version() {
    let broker = Broker::start();
    for (level, clean, refused) in
        [(3, true, true), (3, false, true), (4, true, false), (4, false, true), (5, true, false), (5, false, false)]
    {
        let connect = Connect::new(level, "").clean(clean);
        if refused {
            assert_eq!(broker.refused(&connect), 2, "level {level}, clean {clean}");
            continue;
        }
        let mut client = broker.connect(&connect);
        assert!(!client.session_present());
        let assigned = client.connack_property(property::ASSIGNED_CLIENT_ID);
        assert_eq!(assigned.is_some(), level == 5, "{:?}", client.connack);
        client.ping();
    }
}

/// [MQTT-3.1.4-4]: Clean Start, in every version: 1 ends the session that is there, with its subscriptions and what waits; 0 goes on with it.
/// Session Present says which [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.1.2-6], [MQTT-3.2.2-2], [MQTT-3.2.2-3]; a version may be taken up by another one.
#[test]
fn clean_start_is_processed() {
    let mut broker = Broker::start();
    for (level, next) in [(3, 3), (4, 4), (5, 5), (3, 5), (5, 4)] {
        let mut client = broker.connect(&Connect::new(level, "device").persistent());
        assert!(!client.session_present(), "level {level}");
        client.subscribe("t", 1);
        client.disconnect();
        broker.v5("publisher").publish("t", "first", 1);
        if DURABILITY != "memory" {
            broker.terminate();
            broker.restart();
        }
        let mut client = broker.connect(&Connect::new(next, "device").persistent());
        assert_eq!(client.session_present(), next > 3, "level {level}, then {next}");
        assert_eq!(client.text(), "first");
        client.cut();
        broker.v5("publisher").publish("t", "second", 1);
        let kept = Connect { clean: true, ..Connect::new(next, "device").persistent() };
        let mut client = broker.connect(&kept);
        assert!(!client.session_present(), "Clean Start 1");
        broker.v5("publisher").publish("t", "third", 1);
        client.nothing();
        client.disconnect();
        broker.connect(&Connect::new(next, "device")).disconnect();
    }
}

/// The broker's DISCONNECT is the last that it sends, and the connection is closed [MQTT-3.14.4-1], [MQTT-3.14.4-2], though deliveries wait.
#[test]
fn nothing_follows_a_disconnect() {
    let broker = Broker::start();
    let mut client = broker.connect(&Connect::v5("client").receive_maximum(5));
    client.subscribe("t", 1);
    client.subscribe("u", 0);
    let mut publisher = broker.v5("publisher");
    for _ in 0..50 {
        publisher.publish("t", vec![b'x'; 10_000], 1);
        publisher.publish("u", "x", 0);
    }
    // An acknowledgement, which lets the next message go, then what ends the connection, then more.
    let first = client.wait_for("a delivery", |packet| matches!(packet, Packet::Publish(publish) if publish.qos == 1));
    let Packet::Publish(Publish { id, .. }) = first else { unreachable!() };
    let late = wire::publish(true, &publish_of("late", "x", 0));
    client.send(&[&wire::ack(wire::PUBACK, id)[..], &Connect::v5("client").encode(), &wire::PINGREQ, &late].concat());
    let mut last = None;
    loop {
        match client.try_receive(PATIENCE) {
            Ok(packet) => {
                assert!(!matches!(last, Some(Packet::Disconnect { .. })), "{packet:?} after DISCONNECT");
                last = Some(packet);
            }
            Err(Lost::Closed) => break,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(matches!(last, Some(Packet::Disconnect { code: 0x82, .. })), "{last:?}");
}

/// The broker's DISCONNECT keeps to the client's Maximum Packet Size: it goes without its explanation, and never has user properties
/// [MQTT-3.14.2-3], [MQTT-3.14.2-4].
#[test]
fn a_disconnect_keeps_to_the_maximum_packet_size() {
    let broker = Broker::start();
    let ended = |connect: Connect| {
        let mut client: Client = broker.connect(&connect);
        client.send(&connect.encode());
        client.receive_bytes()
    };
    let small = ended(Connect::v5("client").property(property::MAXIMUM_PACKET_SIZE, Value::Four(40)));
    assert_eq!(small, [0xe0, 1, 0x82]);
    let large = ended(Connect::v5("client").will(Will::new("w", "x")));
    let Packet::Disconnect { code: 0x82, properties } = wire::decode(true, &large) else { panic!("{large:02x?}") };
    assert!(properties.iter().all(|(id, _)| *id == property::REASON_STRING), "{properties:?}");
}
