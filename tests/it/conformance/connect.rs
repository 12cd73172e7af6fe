//! CONNECT (3.1): versions, client ids, take-over, keep alive, and what is answered to a wrong beginning.

use std::time::{Duration, Instant};

use crate::support::{Broker, Connect, Lost, PATIENCE, Packet, Setup, Will, client::publish_of, wire};

/// Protocol levels: 3.1, 3.1.1 and 5 are served; others get "unacceptable" in the form they suggest, and the end (D04) [MQTT-3.1.2-1],
/// [MQTT-3.1.2-2], [MQTT-4.13.2-1], [MQTT311-3.1.2-2].
#[test]
fn an_unknown_protocol_level_is_answered_and_closed() {
    let broker = Broker::start();
    for level in 3..=5 {
        broker.connect(&Connect::new(level, "served")).ping();
    }
    let check = |level: u8, expected: &[u8]| {
        let mut client = broker.tcp();
        let mut bytes = Connect::v4("x").encode();
        bytes[8] = level;
        client.send(&bytes);
        assert_eq!(client.receive_bytes(), expected, "level {level}");
        assert_eq!(client.closed(), None);
    };
    check(2, &[0x20, 0x02, 0x00, 0x01]);
    check(6, &[0x20, 0x03, 0x00, 0x84, 0x00]);
    let mut client = broker.tcp();
    client.send(&wire::packet(0x10, b"\x00\x04MQTX\x04\x02\x00\x00\x00\x01a"));
    match client.try_receive(PATIENCE) {
        Err(Lost::Closed) => {}
        Ok(Packet::ConnAck { code, .. }) if code != 0 => assert_eq!(client.closed(), None),
        other => panic!("a wrong protocol name [MQTT-3.1.2-1]: {other:?}"),
    }
}

/// The first packet must be CONNECT, and there is only one [MQTT-3.1.0-1], [MQTT-3.1.0-2]; before the CONNACK nothing but CONNACK (D80)
/// [MQTT-3.2.0-1], [MQTT-3.2.0-2], [MQTT-3.14.0-1].
#[test]
fn connect_comes_first_and_once() {
    let broker = Broker::start();
    let early =
        [wire::PINGREQ.to_vec(), wire::publish(false, &publish_of("a", "x", 0)), vec![0xf0, 0], vec![0x10, 0x01, 0x00]];
    for first in early {
        let mut client = broker.tcp();
        client.send(&first);
        match client.try_receive(PATIENCE) {
            Err(Lost::Closed) => {}
            Ok(Packet::ConnAck { code, .. }) if code != 0 => assert_eq!(client.closed(), None),
            other => panic!("{first:02x?} first: {other:?}"),
        }
    }
    let mut twice = broker.v5("twice");
    twice.send(&Connect::v5("twice").encode());
    assert_eq!(twice.closed(), Some(0x82));
    let mut twice = broker.v4("twice");
    twice.send(&Connect::v4("twice").encode());
    assert_eq!(twice.closed(), None);
}

/// A CONNECT that does not match its format is closed, with at most a CONNACK of an error [MQTT-3.1.4-1]: the reserved flag [MQTT-3.1.2-3],
/// flags of a will without one [MQTT-3.1.2-11], [MQTT-3.1.2-13], fields that are announced and missing [MQTT-3.1.2-9], [MQTT-3.1.2-17],
/// [MQTT-3.1.2-19], [MQTT-3.1.3-3], or there and not announced [MQTT-3.1.2-16], [MQTT-3.1.2-18], strings that are no UTF-8 [MQTT-3.1.3-4],
/// [MQTT-3.1.3-11], [MQTT-3.1.3-12].
#[test]
fn malformed_connects_are_closed() {
    let broker = Broker::start();
    let cases: [(&str, u8, &[u8]); 16] = [
        ("the reserved flag", 0x03, b"\0\x01a"),
        ("Will QoS without a will", 0x0a, b"\0\x01a"),
        ("Will Retain without a will", 0x22, b"\0\x01a"),
        ("Will QoS 3", 0x1e, b"\0\x01a\0\x01w\0\x01x"),
        ("no will topic", 0x06, b"\0\x01a"),
        ("no will payload", 0x06, b"\0\x01a\0\x01w"),
        ("no user name", 0x82, b"\0\x01a"),
        ("no password", 0xc2, b"\0\x01a\0\x01u"),
        ("a user name too many", 0x02, b"\0\x01a\0\x01u"),
        ("a password too many", 0x82, b"\0\x01a\0\x01u\0\x01p"),
        ("no client id", 0x02, b""),
        ("a cut client id", 0x02, b"\0\x05a"),
        ("a client id that is no UTF-8", 0x02, b"\0\x02\xc3\x28"),
        ("a client id with NUL", 0x02, b"\0\x02a\0"),
        ("a will topic that is no UTF-8", 0x06, b"\0\x01a\0\x02\xc3\x28\0\x01x"),
        ("a user name that is no UTF-8", 0x82, b"\0\x01a\0\x02\xc3\x28"),
    ];
    for (name, flags, payload) in cases {
        // MQTT 3.1 forgives flags that it has no use for, and missing credentials.
        for level in 4..=5u8 {
            let mut body = b"\0\x04MQTT".to_vec();
            body.extend_from_slice(&[level, flags, 0, 0]);
            body.extend_from_slice(if level == 5 { &[0] } else { &[] });
            // The will of v5 has properties: none.
            let mut payload = payload.to_vec();
            if level == 5 && flags & 4 != 0 && payload.len() > 3 {
                payload.insert(3, 0);
            }
            body.extend_from_slice(&payload);
            let mut client = broker.tcp();
            client.speak_v5(level == 5);
            client.send(&wire::packet(0x10, &body));
            match client.try_receive(PATIENCE) {
                Err(Lost::Closed) => {}
                Ok(Packet::ConnAck { code, .. }) if code != 0 => assert_eq!(client.closed(), None),
                other => panic!("{name} at level {level}: {other:?}"),
            }
        }
    }
}

/// A second CONNECT with a client id ends the first connection: DISCONNECT 0x8E in v5, just the end before (D01) [MQTT-3.1.4-3],
/// [MQTT311-3.1.4-2].
#[test]
fn a_client_id_is_taken_over() {
    let broker = Broker::start();
    for (level, reason) in [(3, None), (4, None), (5, Some(0x8e))] {
        let mut first = broker.connect(&Connect::new(level, "same"));
        let mut second = broker.connect(&Connect::v5("same"));
        assert_eq!(first.closed(), reason, "level {level}");
        second.ping();
        second.disconnect();
    }
}

/// A client that reads nothing does not delay the one that takes its id over (D02): CONNACK within a second, and the stuck one is cut.
#[test]
fn a_stuck_socket_does_not_delay_a_take_over() {
    let broker = Broker::start();
    let mut stuck = broker.connect(&Connect::v4("stuck").persistent());
    stuck.subscribe("flood", 0);
    let mut publisher = broker.v4("publisher");
    let block = vec![b'x'; 256 * 1024];
    for _ in 0..100 {
        publisher.publish("flood", &block, 0);
    }
    publisher.publish("elsewhere", "x", 1);
    let began = Instant::now();
    let mut next = broker.connect(&Connect::v4("stuck").persistent());
    assert!(began.elapsed() < Duration::from_secs(1), "CONNACK after {:?}", began.elapsed());
    assert!(next.session_present());
    next.ping();
    stuck.closed_eventually();
}

/// Two devices with one id that reconnect at once on every close neither hold up others nor flood the log (D03).
#[test]
fn a_fight_for_a_client_id_leaves_others_served() {
    let mut broker = Broker::start();
    let mut other = broker.v4("other");
    let from = broker.log_len();
    let mut holder = broker.v4("contested");
    for _ in 0..300 {
        let next = broker.v4("contested");
        holder.closed();
        holder = next;
        let began = Instant::now();
        other.ping();
        assert!(began.elapsed() < Duration::from_secs(2), "another client waits");
    }
    let lines = &broker.log_lines()[from..];
    assert!(lines.len() <= 3 * 301, "{} lines for 301 connections", lines.len());
    assert!(lines.iter().all(|line| line.len() < 1_000), "short lines");
    assert!(broker.is_running());
}

/// Client ids that embedded systems use: longer than 23 bytes, with slash, space or beyond ASCII (D11) [MQTT-3.1.3-5].
#[test]
fn client_ids_may_be_long_and_odd() {
    let broker = Broker::start();
    for id in ["x".repeat(24), "y".repeat(1000), "a/b c".into(), "\u{1f980}\u{e4}".into()] {
        for level in 4..=5 {
            broker.connect(&Connect::new(level, &id)).ping();
        }
    }
}

/// An empty user name with an empty password is a user name like another: answered, and no harm done (D06).
#[test]
fn an_empty_user_name_is_no_accident() {
    let mut broker = Broker::start();
    for level in 3..=5 {
        let answer = broker.tcp().try_login(&Connect::new(level, "x").login("", ""));
        assert!(matches!(answer, Ok(Packet::ConnAck { .. })), "{answer:?}");
    }
    assert!(broker.is_running());
}

/// Keep alive: one and a half times the interval without a packet ends the connection (v5: 0x8D) [MQTT-3.1.2-22], [MQTT-3.2.2-22]; packets in time keep it
/// [MQTT-3.12.4-1];
/// 0 turns it off (D10); 65,535 does not overflow (D09).
#[test]
fn silence_beyond_the_keep_alive_ends_a_connection() {
    let broker = Broker::start();
    let mut forever = broker.connect(&Connect::v4("forever").keep_alive(0));
    let mut longest = broker.connect(&Connect::v4("longest").keep_alive(65_535));
    let mut diligent = broker.connect(&Connect::v4("diligent").keep_alive(1));
    let mut watcher = broker.v4("watcher");
    watcher.subscribe("will", 0);
    for (level, reason) in [(4, None), (5, Some(0x8d))] {
        let began = Instant::now();
        let mut silent = broker.connect(&Connect::new(level, "silent").keep_alive(1).will(Will::new("will", "gone")));
        let packet = loop {
            diligent.ping();
            match silent.try_receive(Duration::from_millis(300)) {
                Err(Lost::TimedOut) => assert!(began.elapsed() < PATIENCE, "the connection stays"),
                other => break other,
            }
        };
        assert!(began.elapsed() >= Duration::from_millis(1_400), "cut after {:?}", began.elapsed());
        match packet {
            Ok(Packet::Disconnect { code, .. }) => assert_eq!(Some(code), reason),
            Err(Lost::Closed) => assert_eq!(reason, None),
            other => panic!("{other:?}"),
        }
        assert_eq!(watcher.text(), "gone", "the will of a silent client [MQTT-3.1.2-8]");
    }
    forever.ping();
    longest.ping();
    diligent.ping();
}

/// A connection that never finishes its CONNECT is closed in time (D16).
#[test]
fn a_connect_that_never_ends_is_closed() {
    let broker = Setup::new().config("[session]\nconnect_timeout_secs = 1\n").start();
    let connect = Connect::v4("x").encode();
    let mut halves: Vec<_> = [0, 1, 5, connect.len() - 1]
        .map(|count| {
            let mut client = broker.tcp();
            client.send(&connect[..count]);
            client
        })
        .into();
    for half in &mut halves {
        half.closed();
    }
    broker.v4("other").ping();
}

/// The broker's own topics and the will: a will that cannot be published to `$SYS` or `$CONTROL` does not reach anybody (D85).
#[test]
fn a_will_does_not_speak_for_the_broker() {
    let broker = Broker::start();
    let mut watcher = broker.v4("watcher");
    watcher.subscribe_all(&[("$SYS/x", 0), ("$CONTROL/#", 0), ("will", 0)]);
    for topic in ["$SYS/x", "$CONTROL/x", "will"] {
        let mut client = broker.tcp();
        if let Ok(Packet::ConnAck { code: 0, .. }) = client.try_login(&Connect::v4("x").will(Will::new(topic, topic))) {
            client.cut();
        }
    }
    assert_eq!(watcher.text(), "will");
    watcher.nothing();
}

/// At its limit of connections a listener refuses more, and serves again when some have gone; a reload in between changes nothing (D19).
#[test]
fn a_full_listener_recovers() {
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\nmax_connections = 5\n";
    let broker = Setup::new().config(config).start();
    for round in 0..3 {
        let mut clients: Vec<_> = (0..5).map(|i| broker.v5(&format!("client-{i}"))).collect();
        let mut sixth = broker.tcp();
        match sixth.try_login(&Connect::v5("sixth")) {
            Ok(Packet::ConnAck { code, .. }) => assert_eq!(code, 0x97, "round {round}"),
            Err(Lost::Closed) => {}
            other => panic!("{other:?}"),
        }
        broker.reload();
        clients.iter_mut().for_each(|client| client.ping());
        clients.into_iter().for_each(|client| client.disconnect());
        broker.until_status("clients_connected", |clients| clients == 0);
    }
}
