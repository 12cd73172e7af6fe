//! The state machine of a session as scripts: each line is what happens, beside what the client is sent and the broker asked for.
//!
//! Must not know the broker: its answers stand in the script.

mod aliases;
mod peer;
mod refused;

use super::*;
use crate::mqtt::{
    PacketId, ReasonCode,
    packet::{Disconnect, SubAck},
};
use peer::{Peer, delivery, v3, v5};

#[track_caller]
fn check(terms: Terms, logged: bool, script: &[(&str, &str)]) {
    let mut peer = Peer::new(terms, logged);
    for (number, (line, expected)) in script.iter().enumerate() {
        assert_eq!(peer.step(line), *expected, "line {number}: {line}");
    }
}

/// [MQTT-4.3.2-4], [MQTT-4.3.2-5], [MQTT-4.3.3-8] to [MQTT-4.3.3-12], cases D24, D33, D34.
#[test]
fn publishes_of_the_client() {
    for terms in [v3(), v5()] {
        // QoS 1: a packet id means nothing once its PUBACK is under way, DUP or not.
        check(
            terms.clone(),
            true,
            &[
                ("q1 5", "publish t"),
                ("answer puback 5", "PUBACK 5"),
                ("q1 5 dup", "publish t"),
                ("answer puback 5", "PUBACK 5"),
            ],
        );
        // QoS 2: known until PUBREL, over a reconnect too.
        check(
            terms,
            true,
            &[
                ("q2 5", "publish t"),
                ("answer pubrec 5", "PUBREC 5"),
                ("q2 5 dup", "duplicate 5"),
                ("drop", ""),
                ("connect", ""),
                ("q2 5 dup", "duplicate 5"),
                ("q2 6", "publish t"),
                ("pubrel 5", "release 5"),
                ("answer pubcomp 5", "PUBCOMP 5"),
                ("q2 5", "publish t"),
                ("q2 6", "duplicate 6"),
            ],
        );
    }
    check(v3(), true, &[("pubrel 9", "PUBCOMP 9")]);
    check(v5(), true, &[("pubrel 9", "PUBCOMP 9 0x92")]);
    // A PUBREC that refuses ends the exchange: the id is new again [MQTT-4.3.3-9].
    check(v5(), true, &[("q2 5", "publish t"), ("answer pubrec-denied 5", "PUBREC 5 0x87"), ("q2 5", "publish t")]);
    check(v3(), true, &[("q2 5", "publish t"), ("answer pubrec-denied 5", "PUBREC 5"), ("q2 5", "duplicate 5")]);
}

/// [MQTT-4.3.3-13]: a message that expires between its PUBLISH and its PUBREL is acknowledged to the end.
#[test]
fn a_qos_2_publish_that_expires_meanwhile() {
    check(
        v5(),
        true,
        &[
            ("q2 5 expiry=1", "publish t"),
            ("answer pubrec 5", "PUBREC 5"),
            ("later 100", ""),
            ("q2 5 dup expiry=1", "duplicate 5"),
            ("answer pubrec 5", "PUBREC 5"),
            ("pubrel 5", "release 5"),
            ("answer pubcomp 5", "PUBCOMP 5"),
        ],
    );
}

/// [MQTT-3.3.4-7], [MQTT-3.3.4-8], case D26.
#[test]
fn receive_maximum_of_the_broker() {
    let over = "violation ReceiveMaximumExceeded(3)";
    let fill = [("q1 1", "publish t"), ("q2 2", "publish t"), ("q2 3", "publish t"), ("q0", "publish t")];
    let then = |last: &[(&'static str, &'static str)]| [&fill[..], last].concat();
    check(v5(), true, &then(&[("q1 4", over)]));
    check(v5(), true, &then(&[("q2 4", over)]));
    check(v5(), true, &then(&[("q2 3 dup", "duplicate 3"), ("q0", "publish t")]));
    check(v5(), true, &then(&[("answer puback 1", "PUBACK 1"), ("q1 4", "publish t"), ("q1 5", over)]));
    check(v5(), true, &then(&[("answer puback 1 durable", ""), ("q1 4", over)]));
    check(
        v5(),
        true,
        &then(&[
            ("answer puback 1", "PUBACK 1"),
            ("answer pubrec 2", "PUBREC 2"),
            ("pubrel 2", "release 2"),
            ("q2 4", "publish t"),
            ("q2 5", "publish t"),
            ("q2 6", over),
        ]),
    );
    check(v3(), true, &then(&[("q1 4", "publish t"), ("q2 5", "publish t")]));
    // The count is one of the connection [MQTT-4.9.0-1]: what an earlier one left open does not belong to it, until it is sent again.
    let again = [("drop", ""), ("connect", ""), ("q1 4", "publish t"), ("q2 2 dup", "duplicate 2")];
    check(v5(), true, &then(&[&again[..], &[("q1 5", "publish t"), ("q1 6", over)]].concat()));
    check(
        v5(),
        true,
        &then(&[&again[..], &[("pubrel 3", "release 3"), ("q1 5", "publish t"), ("q1 6", over)]].concat()),
    );
}

/// [MQTT-3.3.2-7], [MQTT-3.3.2-9], [MQTT-3.3.2-10].
#[test]
fn topic_aliases() {
    let script = [
        ("q0 0 alias=1 topic=a", "publish a"),
        ("q0 0 alias=1 topic=-", "publish a"),
        ("q0 0 alias=2 topic=b", "publish b"),
        ("q0 0 alias=1 topic=c", "publish c"),
        ("q0 0 alias=1 topic=-", "publish c"),
        ("q0 0 alias=2 topic=-", "publish b"),
    ];
    check(v5(), false, &script);
    let then = |line, expected| [&script[..], &[(line, expected)]].concat();
    check(v5(), false, &then("q0 0 alias=3 topic=a", "violation TopicAliasInvalid(3)"));
    check(v5(), false, &[("q0 0 alias=2 topic=-", "violation TopicAliasUnknown(2)")]);
    check(
        v5(),
        true,
        &[&script[..], &[("drop", ""), ("connect", ""), ("q0 0 alias=1 topic=-", "violation TopicAliasUnknown(1)")]]
            .concat(),
    );
    check(
        Terms { topic_alias_maximum: 0, ..v5() },
        false,
        &[("q0 0 alias=1 topic=a", "violation TopicAliasInvalid(1)")],
    );
    // An alias hides no topic from the limit on what is retained, and what is refused takes no packet id.
    let limits = Limits { max_topic_levels: std::num::NonZeroU16::new(2).expect("not zero"), ..Limits::default() };
    let shallow = Terms { packet: (&limits).into(), ..v5() };
    check(
        shallow,
        true,
        &[
            ("q0 0 alias=1 topic=a/b/c", "publish a/b/c"),
            ("q2 5 retain alias=1 topic=-", "violation TooManyLevels(2)"),
            ("drop", ""),
            ("connect", ""),
            ("q2 5 dup", "publish t"),
        ],
    );
}

/// [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4], case D31: replies leave in their order, the durable ones with their commit.
#[test]
fn replies_wait_their_turn() {
    check(
        v5(),
        true,
        &[
            ("answer puback 1 durable", ""),
            ("answer puback 2", ""),
            ("answer pubrec 3 durable", ""),
            ("ticket 4", ""),
            ("answer suback 9 durable", ""),
            ("answer pubcomp 5", ""),
            ("ticket 6", ""),
            ("answer unsuback 7", ""),
            ("commit 3", ""),
            ("commit 4", "PUBACK 1; PUBACK 2; PUBREC 3"),
            ("commit 6", "SUBACK 9 0x01; PUBCOMP 5; UNSUBACK 7"),
            ("answer puback 8", "PUBACK 8"),
        ],
    );
    // Durable before earlier: the commits come in order, the replies too.
    check(
        v5(),
        true,
        &[
            ("answer puback 1 durable", ""),
            ("ticket 2", ""),
            ("answer puback 2 durable", ""),
            ("ticket 3", ""),
            ("commit 3", "PUBACK 1; PUBACK 2"),
        ],
    );
    // Without a ticket a durable reply never leaves; a reconnect forgets it, as the client asks again.
    check(
        v5(),
        true,
        &[
            ("answer puback 1 durable", ""),
            ("commit 9", ""),
            ("drop", ""),
            ("connect", ""),
            ("ticket 10", ""),
            ("commit 10", ""),
            ("answer puback 2", "PUBACK 2"),
        ],
    );
}

/// What a failed commit says (0x97 where a code exists, else the connection ends).
#[test]
fn replies_whose_commit_failed() {
    let ends = "violation NotDurable";
    for (terms, answer, expected) in [
        (v5(), "answer puback 5 durable", "PUBACK 5 0x97"),
        (v5(), "answer pubrec 5 durable", ends),
        (v5(), "answer pubrel 5 durable", ends),
        (v5(), "answer pubcomp 5 durable", ends),
        (v5(), "answer suback 5 durable", "SUBACK 5 0x83"),
        (v5(), "answer unsuback 5 durable", "UNSUBACK 5"),
        (v3(), "answer puback 5 durable", ends),
        (v3(), "answer pubrec 5 durable", ends),
        (v3(), "answer pubcomp 5 durable", ends),
        (v3(), "answer suback 5 durable", "SUBACK 5 0x80"),
        (v3(), "answer unsuback 5 durable", ends),
    ] {
        check(terms, true, &[(answer, ""), ("ticket 3", ""), ("fail", expected)]);
    }
    // What was committed before stands. Of a session that is not kept nothing is recorded: after a refused PUBREC the id is new.
    check(
        v5(),
        false,
        &[
            ("q2 5", "publish t"),
            ("answer puback 1 durable", ""),
            ("ticket 2", ""),
            ("answer pubrec 5 durable", ""),
            ("ticket 3", ""),
            ("commit 2", "PUBACK 1"),
            ("fail", "PUBREC 5 0x97"),
            ("q2 5", "publish t"),
        ],
    );
    // A delivery whose id could not be recorded must not leave.
    check(v5(), true, &[("lease 9 1 q2", "Record { packet_id: 32768 }"), ("ticket 2", ""), ("fail", ends)]);
}

/// [MQTT-4.3.2-1] to [MQTT-4.3.2-3], [MQTT-4.3.3-1] to [MQTT-4.3.3-7], [MQTT-4.4.0-2], case D34.
#[test]
fn acknowledgements_of_the_client() {
    for terms in [v3(), v5()] {
        check(
            terms,
            true,
            &[
                ("log 1 q1", "Sent; PUBLISH 1 q1 m1"),
                ("log 2 q2", "Sent; PUBLISH 2 q2 m2"),
                ("log 3 q0", "Sent; PUBLISH q0 m3"),
                ("direct q1", "Sent; PUBLISH 32768 q1 m0"),
                ("direct q2", "Sent; PUBLISH 32769 q2 m0"),
                ("puback 7", ""),
                ("pubcomp 7", ""),
                ("puback 1", "settled log 1"),
                ("puback 1", ""),
                ("pubrec 2", "received log 2"),
                ("answer pubrel 2", "PUBREL 2"),
                ("pubrec 2", "PUBREL 2"),
                ("pubcomp 2", "settled log 2"),
                ("pubcomp 2", ""),
                ("puback 32768", "settled direct"),
                ("pubrec 32769", "received direct"),
                ("pubcomp 32769", "settled direct"),
            ],
        );
    }
    check(v5(), true, &[("pubrec 9", "PUBREL 9 0x92")]);
    check(v3(), true, &[("pubrec 9", "PUBREL 9")]);
    check(v5(), true, &[("pubrec 9 135", "")]);
    // [MQTT-4.3.2-4], [MQTT-4.3.3-8], [MQTT-4.3.3-11]: no other one will do.
    for (qos, taken, wrong) in [
        ("q1", "", "pubrec"),
        ("q1", "", "pubcomp"),
        ("q2", "", "puback"),
        ("q2", "", "pubcomp"),
        ("q2", "pubrec", "puback"),
    ] {
        let sent = [(format!("log 1 {qos}"), format!("Sent; PUBLISH 1 {qos} m1"))];
        let taken = (!taken.is_empty()).then(|| (format!("{taken} 1"), "received log 1".to_owned()));
        let wrong = (format!("{wrong} 1"), "violation WrongAcknowledgement(1)".to_owned());
        let script: Vec<_> = sent.into_iter().chain(taken).chain([wrong]).collect();
        let script: Vec<_> = script.iter().map(|(line, expected)| (line.as_str(), expected.as_str())).collect();
        check(v5(), true, &script);
        check(v3(), true, &script);
    }
    // A refused QoS 2 is complete.
    check(
        v5(),
        true,
        &[
            ("log 1 q2", "Sent; PUBLISH 1 q2 m1"),
            ("pubrec 1 135", "settled log 1 refused"),
            ("pubcomp 1", ""),
            ("log 32768 q1", "Sent; PUBLISH 1 q1 m327"),
            ("puback 1 151", "settled log 32768 refused"),
        ],
    );
}

/// [MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-2], [MQTT-4.9.0-3].
#[test]
fn the_window_of_the_client() {
    let narrow = Terms { send_maximum: 2, ..v5() };
    check(
        narrow.clone(),
        true,
        &[
            ("log 1 q2", "Sent; PUBLISH 1 q2 m1"),
            ("log 2 q1", "Sent; PUBLISH 2 q1 m2"),
            ("log 3 q1", "Full"),
            ("direct q0", "Sent; PUBLISH q0 m0"),
            ("direct q1", "Full"),
            ("lease 9 1 q1", "Full"),
            ("log 1 q2", "Known"),
            ("pubrec 1", "received log 1"),
            ("answer pubrel 1", "PUBREL 1"),
            ("log 3 q1", "Full"),
            ("pubcomp 1", "settled log 1"),
            ("log 3 q1", "Sent; PUBLISH 3 q1 m3"),
            ("log 4 q1", "Full"),
        ],
    );
    // A delivery that waits for its record holds its place.
    check(
        narrow,
        true,
        &[
            ("lease 9 1 q2", "Record { packet_id: 32768 }"),
            ("log 1 q1", "Sent; PUBLISH 1 q1 m1"),
            ("log 2 q1", "Full"),
            ("ticket 1", ""),
            ("commit 1", "PUBLISH 32768 q2 m1"),
        ],
    );
}

/// [MQTT-2.2.1-3], [MQTT-2.2.1-4], case D28: one stays unacknowledged while 70,000 more are settled.
#[test]
fn packet_ids_skip_what_is_in_flight() {
    let mut peer = Peer::new(v5(), true);
    assert_eq!(peer.step("log 1 q1"), "Sent; PUBLISH 1 q1 m1");
    for seq in 2..=70_000_u64 {
        let derived = (seq - 1) % 32_767 + 1;
        if derived != 1 {
            assert_eq!(peer.step(&format!("log {seq} q1")), format!("Sent; PUBLISH {derived} q1 {}", first(seq)));
            peer.step(&format!("puback {derived}"));
        } else {
            // The stuck one's id: the next free one is recorded before the PUBLISH leaves.
            assert_eq!(peer.step(&format!("log {seq} q1")), "Record { packet_id: 2 }");
            assert_eq!(peer.step(&format!("ticket {seq}")), "");
            assert_eq!(peer.step(&format!("log {seq} q1")), "Known");
            assert_eq!(peer.step(&format!("commit {seq}")), format!("PUBLISH 2 q1 {}", first(seq)));
            assert_eq!(peer.step("puback 2"), format!("settled log {seq}"));
        }
        peer.session.log().settle(seq, 0);
    }
    assert_eq!((peer.session.log().head(), peer.session.in_flight()), (0, 1));
    assert_eq!(peer.step("puback 1"), "settled log 1");
    peer.session.log().settle(1, 0);
    assert_eq!(peer.session.log().head(), 70_000);
}

fn first(seq: u64) -> String {
    format!("m{seq}").chars().take(4).collect()
}

/// What no log holds counts from 32768 on, round, and never meets an id in flight.
#[test]
fn packet_ids_of_what_no_log_holds() {
    let mut peer = Peer::new(v3(), false);
    assert_eq!(peer.step("direct q1"), "Sent; PUBLISH 32768 q1 m0");
    for round in 0..70_000_u32 {
        let id = 32_769 + round % 32_767;
        assert_eq!(peer.step("direct q1"), format!("Sent; PUBLISH {id} q1 m0"));
        assert_eq!(peer.step(&format!("puback {id}")), "settled direct");
    }
    for _ in 0..32_767 {
        peer.step("direct q1");
    }
    assert_eq!(peer.step("direct q1"), "Full");
    assert_eq!(peer.step("puback 40000"), "settled direct");
    assert_eq!(peer.step("direct q1"), "Sent; PUBLISH 40000 q1 m0");
}

/// [MQTT-4.4.0-1], [MQTT-3.3.1-1], [MQTT-4.3.2-2], [MQTT-4.3.3-2], cases D30, D35.
#[test]
fn a_reconnect_sends_again() {
    for terms in [v3(), v5()] {
        check(
            terms,
            true,
            &[
                ("log 1 q1", "Sent; PUBLISH 1 q1 m1"),
                ("log 2 q2", "Sent; PUBLISH 2 q2 m2"),
                ("log 3 q2", "Sent; PUBLISH 3 q2 m3"),
                ("direct q1", "Sent; PUBLISH 32768 q1 m0"),
                ("direct q2", "Sent; PUBLISH 32769 q2 m0"),
                ("lease 9 5 q1", "Sent; PUBLISH 32770 q1 m5"),
                ("pubrec 3", "received log 3"),
                ("later 3600", ""),
                ("drop", ""),
                // What no log holds, at once and in order; a QoS 1 lease went to another member.
                ("connect", "PUBLISH 32768 dup q1 m0; PUBLISH 32769 dup q2 m0"),
                ("log 1 q1", "Sent; PUBLISH 1 dup q1 m1"),
                ("log 2 q2", "Sent; PUBLISH 2 dup q2 m2"),
                ("log 3 q2", "Sent; PUBREL 3"),
                ("log 4 q1", "Sent; PUBLISH 4 q1 m4"),
                ("log 1 q1", "Known"),
                ("pubcomp 3", "settled log 3"),
                ("pubrec 32769", "received direct"),
                ("drop", ""),
                ("connect", "PUBREL 32769; PUBLISH 32768 dup q1 m0"),
                ("log 4 q1", "Sent; PUBLISH 4 dup q1 m4"),
            ],
        );
    }
    // What was sent is completed though it expired since; what was not, is not.
    check(
        v5(),
        true,
        &[
            ("log 1 q1", "Sent; PUBLISH 1 q1 m1"),
            ("drop", ""),
            ("connect", ""),
            ("log 1 q1 expired", "Sent; PUBLISH 1 dup q1 m1"),
            ("log 2 q1 expired", "Expired"),
            ("lease 9 1 q1 expired", "Expired"),
            ("lease 9 2 q1 expired again", "Sent; PUBLISH 32768 dup q1 m2"),
        ],
    );
}

/// [MQTT-3.3.4-9]: what is sent again keeps within the window that the new connection has.
#[test]
fn what_is_sent_again_keeps_within_the_window() {
    check(
        v5(),
        true,
        &[
            ("direct q1", "Sent; PUBLISH 32768 q1 m0"),
            ("direct q2", "Sent; PUBLISH 32769 q2 m0"),
            ("direct q2", "Sent; PUBLISH 32770 q2 m0"),
            ("direct q1", "Sent; PUBLISH 32771 q1 m0"),
            ("pubrec 32769", "received direct"),
            ("drop", ""),
            ("connect 2", "PUBREL 32769; PUBLISH 32768 dup q1 m0"),
            ("log 1 q1", "Full"),
            ("puback 32768", "settled direct; PUBLISH 32770 dup q2 m0"),
            ("pubrec 32770", "received direct"),
            ("log 1 q1", "Full"),
            ("pubcomp 32769", "settled direct; PUBLISH 32771 dup q1 m0"),
            ("log 1 q1", "Full"),
            ("puback 32771", "settled direct"),
            ("log 1 q1", "Sent; PUBLISH 1 q1 m1"),
        ],
    );
}

/// [MQTT-3.3.4-9]: the client acknowledges what it knows from its last connection before it is sent again: it makes room for one, once.
#[test]
fn what_waits_to_be_sent_again_may_be_acknowledged() {
    let three = [
        ("direct q1", "Sent; PUBLISH 32768 q1 m0"),
        ("direct q1", "Sent; PUBLISH 32769 q1 m0"),
        ("direct q2", "Sent; PUBLISH 32770 q2 m0"),
        ("drop", ""),
        ("connect 1", "PUBLISH 32768 dup q1 m0"),
    ];
    let then = |last: &[(&'static str, &'static str)]| check(v5(), true, &[&three[..], last].concat());
    then(&[
        ("pubrec 32770", "received direct"),
        ("puback 32769", "settled direct"),
        ("pubcomp 32770", "settled direct"),
        ("puback 32768", "settled direct"),
        ("direct q1", "Sent; PUBLISH 32771 q1 m0"),
    ]);
    then(&[
        ("puback 32769", "settled direct"),
        ("direct q1", "Full"),
        ("puback 32768", "settled direct; PUBLISH 32770 dup q2 m0"),
        ("direct q1", "Full"),
    ]);
    then(&[
        ("pubrec 32770", "received direct"),
        ("pubcomp 32770", "settled direct"),
        ("puback 32768", "settled direct; PUBLISH 32769 dup q1 m0"),
        ("drop", ""),
        ("connect 1", "PUBLISH 32769 dup q1 m0"),
    ]);
}

/// [MQTT-3.1.2-24], [MQTT-3.1.2-25]: what the client does not take must not hold a place in its window.
#[test]
fn what_is_larger_than_the_client_takes() {
    let small = Terms { maximum_packet_size: 100, send_maximum: 1, ..v5() };
    for line in ["log 1 q1 large", "log 1 q2 large", "direct q0 large", "direct q1 large", "lease 9 1 q2 large"] {
        check(small.clone(), true, &[(line, "TooLarge"), ("direct q1", "Sent; PUBLISH 32769 q1 m0")][..1]);
        let mut peer = Peer::new(small.clone(), true);
        assert_eq!(peer.step(line), "TooLarge");
        assert_eq!((peer.session.in_flight(), peer.session.room(), peer.session.waiting()), (0, 1, 0), "{line}");
    }
    // Sent before, to a client that then took more.
    check(
        v5(),
        true,
        &[
            ("direct q1 large", "Sent; PUBLISH 32768 q1 xxxx"),
            ("lease 9 1 q2 large", "Record { packet_id: 32769 }"),
            ("direct q2", "Sent; PUBLISH 32770 q2 m0"),
            ("drop", ""),
            ("connect 1 100", "too large 2; PUBLISH 32770 dup q2 m0"),
            ("pubrec 32770", "received direct"),
            ("pubcomp 32770", "settled direct"),
            ("direct q1", "Sent; PUBLISH 32771 q1 m0"),
        ],
    );
}

/// [MQTT-4.8.2-4], [MQTT-4.8.2-5]: QoS 2 of a group stays with its client, under its id, over reconnects.
#[test]
fn leases() {
    check(
        v5(),
        true,
        &[
            ("lease 9 1 q1", "Sent; PUBLISH 32768 q1 m1"),
            ("lease 9 2 q2", "Record { packet_id: 32769 }"),
            ("lease 9 2 q2", "Known"),
            ("ticket 1", ""),
            ("commit 1", "PUBLISH 32769 q2 m2"),
            ("lease 8 2 q2", "Record { packet_id: 32770 }"),
            ("ticket 2", ""),
            ("commit 2", "PUBLISH 32770 q2 m2"),
            ("pubrec 32769", "received lease 9 2"),
            ("drop", ""),
            ("connect", "PUBREL 32769; PUBLISH 32770 dup q2 m2"),
            ("lease 9 1 q1", "Sent; PUBLISH 32771 q1 m1"),
            ("lease 9 2 q2", "Known"),
            ("pubcomp 32769", "settled lease 9 2"),
            ("pubrec 32770", "received lease 8 2"),
            ("pubcomp 32770", "settled lease 8 2"),
            ("puback 32771", "settled lease 9 1"),
        ],
    );
    // A group without a log has nothing to record.
    let known = ("lease 9 1 q2 memory", "Known");
    check(v5(), true, &[("lease 9 1 q2 memory", "Sent; PUBLISH 32768 q2 m1"), known]);
    check(v5(), false, &[("lease 9 1 q2", "Record { packet_id: 32768 }")]);
    let mut peer = Peer::new(v5(), true);
    peer.step("lease 9 1 q1");
    peer.step("lease 9 2 q2");
    peer.step("direct q2");
    let mut leases: Vec<_> = peer.session.leases().collect();
    leases.sort_unstable();
    assert_eq!(leases, [(9, 1, Hold::Connection), (9, 2, Hold::Client)]);
}

/// A lease of QoS 1 that is kept waits for its client with what is QoS 2 [MQTT-4.4.0-1], [MQTT-4.8.2-5].
#[test]
fn a_kept_lease() {
    check(
        v5(),
        true,
        &[
            ("lease 9 1 q1 kept", "Sent; PUBLISH 32768 q1 m1"),
            ("lease 9 2 q1", "Sent; PUBLISH 32769 q1 m2"),
            ("drop", ""),
            ("connect 5", "PUBLISH 32768 dup q1 m1"),
            ("lease 9 1 q1 kept", "Known"),
            ("lease 9 2 q1", "Sent; PUBLISH 32770 q1 m2"),
            ("puback 32768", "settled lease 9 1"),
            ("lease 9 3 q1 large kept", "Sent; PUBLISH 32771 q1 xxxx"),
            ("drop", ""),
            // A client that takes less now is not sent it [MQTT-3.1.2-25].
            ("connect 5 100", "too large 1"),
        ],
    );
    let mut peer = Peer::new(v5(), true);
    for line in ["lease 9 1 q1 kept", "lease 9 2 q2 kept"] {
        peer.step(line);
    }
    let mut leases: Vec<_> = peer.session.leases().collect();
    leases.sort_unstable();
    assert_eq!(leases, [(9, 1, Hold::Session), (9, 2, Hold::Client)]);
}

/// A QoS 2 exchange that began in a group goes on from the session's own log, under its packet id, which nothing else is given.
#[test]
fn an_adopted_lease() {
    for (before, released) in [("lease 9 4 q2", false), ("pubrec 32768", true)] {
        let mut peer = Peer::new(v5(), true);
        for line in ["lease 9 4 q2", "ticket 1", "commit 1", before] {
            peer.step(line);
        }
        let source = Source::Log { seq: 7, body: 0, size: 0 };
        assert_eq!(peer.session.adopt(9, 4, source), PacketId::new(32_768).map(|id| (id, released)));
        assert_eq!(peer.session.adopt(9, 4, source), None);
        assert_eq!(peer.step("log 7 q2"), "Known");
        peer.step("drop");
        assert_eq!(peer.step("connect"), "");
        // It is still to be read from the log.
        for round in 0..32_767_u32 {
            let id = 32_769 + round % 32_767;
            assert_eq!(peer.step("lease 9 5 q1"), format!("Sent; PUBLISH {id} q1 m5"));
            assert_eq!(peer.step(&format!("puback {id}")), "settled lease 9 5");
        }
        assert_eq!(peer.step("direct q1"), "Sent; PUBLISH 32769 q1 m0");
        let again = if released { "Sent; PUBREL 32768" } else { "Sent; PUBLISH 32768 dup q2 m7" };
        assert_eq!(peer.step("log 7 q2"), again);
        if !released {
            assert_eq!(peer.step("pubrec 32768"), "received log 7");
        }
        assert_eq!(peer.step("pubcomp 32768"), "settled log 7");
    }
}

/// After a restart the store's view says what is settled, open and perhaps sent.
#[test]
fn a_restart_resumes() {
    let open = [(4, Open { packet_id: 0, released: true }), (6, Open { packet_id: 900, released: false })];
    let open = open.into_iter().chain([(7, Open { packet_id: 901, released: true })]);
    let view = LogView::restore(2, [(5, 5)], 2, open, 6);
    let received = [PacketId::MIN];
    let mut peer = Peer::new(v5(), true);
    peer.session = Session::recovered(7, "c".into(), 3600, received, view);
    assert!(peer.session.logged);
    let id = |number: u16| PacketId::new(number).unwrap_or(PacketId::MIN);
    let held = Source::Lease { group: 9, seq: 1, again: true, logged: true, kept: false };
    let released = Source::Lease { group: 9, seq: 2, again: true, logged: true, kept: false };
    peer.session.restore_lease(released, id(40_000), None);
    peer.session.restore_lease(held, id(40_001), Some(delivery(&["lease", "9", "1", "q2", "again"])));
    for (line, expected) in [
        ("connect", "PUBREL 40000; PUBLISH 40001 dup q2 m1"),
        ("q2 1", "duplicate 1"),
        ("q2 2", "publish t"),
        ("log 1 q1", "Known"),
        ("log 2 q1", "Known"),
        ("log 3 q1", "Sent; PUBLISH 3 dup q1 m3"),
        ("log 4 q2", "Sent; PUBREL 4"),
        ("log 5 q1", "Known"),
        ("log 6 q2", "Sent; PUBLISH 900 dup q2 m6"),
        ("log 7 q2", "Sent; PUBREL 901"),
        ("log 8 q2", "Sent; PUBLISH 8 q2 m8"),
        // The derived id of this one is in use by entry 6.
        ("log 900 q1", "Record { packet_id: 902 }"),
        ("lease 9 1 q2 again", "Known"),
        ("lease 9 2 q2 again", "Known"),
        ("pubcomp 901", "settled log 7"),
        ("pubrec 900", "received log 6"),
        ("pubcomp 4", "settled log 4"),
        ("pubcomp 40000", "settled lease 9 2"),
    ] {
        assert_eq!(peer.step(line), expected, "{line}");
    }
    assert!(peer.session.log().settle(7, 0), "a recorded id is to be deleted");
    assert!(!peer.session.log().settle(3, 0));
}

/// [MQTT-4.6.0-5]: PUBRELs keep the order of their PUBRECs.
#[test]
fn releases_are_sent_again_in_their_order() {
    check(
        v5(),
        true,
        &[
            ("direct q2", "Sent; PUBLISH 32768 q2 m0"),
            ("direct q2", "Sent; PUBLISH 32769 q2 m0"),
            ("pubrec 32769", "received direct"),
            ("pubrec 32768", "received direct"),
            ("drop", ""),
            ("connect", "PUBREL 32769; PUBREL 32768"),
        ],
    );
}

/// A moved id survives the connection, so that the client sees the same one again.
#[test]
fn a_moved_id_is_kept() {
    check(
        v5(),
        true,
        &[
            ("log 1 q2", "Sent; PUBLISH 1 q2 m1"),
            ("log 32768 q2", "Record { packet_id: 2 }"),
            ("ticket 1", ""),
            ("commit 1", "PUBLISH 2 q2 m327"),
            ("log 2 q1", "Record { packet_id: 3 }"),
            ("ticket 2", ""),
            ("commit 2", "PUBLISH 3 q1 m2"),
            ("drop", ""),
            ("connect", ""),
            ("log 1 q2", "Sent; PUBLISH 1 dup q2 m1"),
            ("log 32768 q2", "Sent; PUBLISH 2 dup q2 m327"),
            ("log 2 q1", "Sent; PUBLISH 3 dup q1 m2"),
            ("puback 3", "settled log 2"),
        ],
    );
}

/// [MQTT-3.1.0-2], [MQTT-3.14.2-2], [MQTT-4.12.0-6], [MQTT-4.13.1-1].
#[test]
fn packets_that_must_not_come() {
    let disconnect =
        |secs| Packet::Disconnect(Disconnect { session_expiry_secs: secs, ..Disconnect::new(ReasonCode::Success) });
    let auth = Packet::Auth(crate::mqtt::packet::Auth { reason: ReasonCode::ReAuthenticate, method: None, data: None });
    let suback = SubAck { packet_id: PacketId::MIN, reasons: vec![ReasonCode::Success] };
    for (logged, packet, expected) in [
        (true, auth, Some(Violation::AuthWithoutMethod)),
        (true, Packet::PingResp, Some(Violation::ServerPacket)),
        (true, Packet::SubAck(suback.clone()), Some(Violation::ServerPacket)),
        (true, Packet::UnsubAck(suback), Some(Violation::ServerPacket)),
        (false, disconnect(Some(1)), Some(Violation::ExpiryRaisedFromZero)),
        (false, disconnect(Some(0)), None),
        (false, disconnect(None), None),
        (true, disconnect(Some(1)), None),
    ] {
        let mut peer = Peer::new(v5(), logged);
        let (now, said) = (peer.now, format!("{packet:?}"));
        let result = peer.session.receive(packet, now, &mut peer.outbox);
        assert_eq!(result.err(), expected, "{said}");
    }
    for violation in [Violation::SecondConnect, Violation::ServerPacket, Violation::AuthWithoutMethod] {
        assert_eq!(violation.reason(), ReasonCode::ProtocolError);
    }
    assert_eq!(Violation::ReceiveMaximumExceeded(1).reason(), ReasonCode::ReceiveMaximumExceeded);
    assert_eq!(Violation::TopicAliasInvalid(1).reason(), ReasonCode::TopicAliasInvalid);
    assert_eq!(Violation::KeepAliveTimeout.reason(), ReasonCode::KeepAliveTimeout);
}

/// [MQTT-3.1.2-22], [MQTT-3.12.4-1], cases D09, D10.
#[test]
fn keep_alive() {
    for (secs, expected_millis) in [(0, None), (1, Some(1500)), (60, Some(90_000)), (u16::MAX, Some(98_302_500))] {
        let mut peer = Peer::new(Terms { keep_alive_secs: secs, ..v5() }, false);
        let begun = peer.now;
        assert_eq!(peer.session.keep_alive_deadline(), expected_millis.map(|millis| begun.plus_millis(millis)));
        peer.now = begun.plus_secs(30);
        let now = peer.now;
        assert!(matches!(peer.session.receive(Packet::PingReq, now, &mut peer.outbox), Ok(Request::Nothing)));
        assert_eq!(peer.sent(), ["PINGRESP"]);
        assert_eq!(peer.session.keep_alive_deadline(), expected_millis.map(|millis| now.plus_millis(millis)));
        // What we send does not count.
        peer.now = now.plus_secs(5);
        peer.step("direct q0");
        assert_eq!(peer.session.keep_alive_deadline(), expected_millis.map(|millis| now.plus_millis(millis)));
        peer.session.read_resumed(peer.now);
        assert_eq!(peer.session.keep_alive_deadline(), expected_millis.map(|millis| now.plus_millis(5000 + millis)));
    }
}

/// A reply has left once all before it have: what must follow a SUBACK waits for that.
#[test]
fn what_follows_a_reply_waits_for_it() {
    let mut peer = Peer::new(v5(), true);
    peer.step("answer suback 1 durable");
    let gate = peer.session.queued();
    assert!(!peer.session.has_left(gate));
    peer.step("ticket 1");
    peer.step("answer puback 2");
    assert!(!peer.session.has_left(gate));
    assert_eq!(peer.session.awaited(), Some(1));
    peer.step("commit 1");
    assert!(peer.session.has_left(gate));
    assert_eq!((peer.session.awaited(), peer.session.waiting()), (None, 0));
}

/// [MQTT-4.3.1-1]: what a log holds at QoS 0, and may have been sent before a crash, is not sent again.
#[test]
fn a_log_sends_at_most_once_what_has_qos_0() {
    let mut peer = Peer::new(v5(), true);
    peer.session.log().sent_until = 2;
    assert_eq!(peer.step("log 2 q0"), "Lost");
    assert_eq!(peer.step("log 3 q0"), "Sent; PUBLISH q0 m3");
}
