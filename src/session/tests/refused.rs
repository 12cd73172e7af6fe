//! What a client is told of a PUBLISH that was not taken, and what it is charged for one that was.
//!
//! Must not know the broker: its answers stand in the script.

use super::super::*;
use super::peer::{Peer, v3, v5};

/// [MQTT-4.3.3-9], case D33: a PUBLISH that was not taken is answered by 0x97, and its packet id is free; MQTT 3 cannot be told.
#[test]
fn a_publish_that_is_refused_at_a_full_queue() {
    for (line, kind) in [("q1 5", "puback"), ("q2 5", "pubrec")] {
        let mut peer = Peer::new(v5(), true);
        assert!(!peer.session.refuse(0) && !peer.session.refuse(1), "nothing is to be answered");
        assert_eq!(peer.step(line), "publish t");
        assert_eq!(peer.step(&format!("answer {kind} 5 durable")), "");
        assert!(!peer.session.refuse(0) && !peer.session.refuse(2) && peer.session.refuse(1));
        assert_eq!(peer.step("ticket 1"), "");
        assert_eq!(peer.step("commit 1"), format!("{} 5 0x97", kind.to_uppercase()));
        assert!(!peer.session.refuse(1), "it has left");
        assert_eq!(peer.step(line), "publish t", "a new exchange");
        let mut peer = Peer::new(v3(), true);
        peer.step(line);
        peer.step(&format!("answer {kind} 5 durable"));
        assert!(!peer.session.refuse(1));
    }
}

/// [MQTT-4.3.3-9]: a QoS 2 PUBLISH that was not taken, and whose client was not told so before its connection broke, is no duplicate as it
/// comes again. One that was taken is, and so is one of MQTT 3, which cannot be told.
#[test]
fn a_refusal_that_never_left_does_not_take_the_packet_id() {
    for (terms, answer, refuses, again) in [
        (v5(), "answer pubrec-denied 5 durable", false, "publish t"),
        (v5(), "answer pubrec 5 durable", true, "publish t"),
        (v5(), "answer pubrec 5 durable", false, "duplicate 5"),
        (v3(), "answer pubrec-denied 5 durable", false, "duplicate 5"),
    ] {
        let mut peer = Peer::new(terms, true);
        assert_eq!(peer.step("q2 5"), "publish t");
        assert_eq!(peer.step(answer), "");
        assert!(!refuses || peer.session.refuse(1));
        peer.step("drop");
        peer.step("connect");
        assert_eq!(peer.step("q2 5 dup"), again, "{answer} {refuses}");
    }
}

/// Of two answers with one packet id, the one to the PUBLISH that was not taken says so, and no other.
#[test]
fn the_answer_that_is_meant_is_refused() {
    let mut peer = Peer::new(v5(), true);
    assert_eq!(peer.step("answer puback 9"), "PUBACK 9", "one has left");
    peer.step("answer suback 1 durable");
    peer.step("answer puback 5 durable");
    peer.step("answer puback 5 durable");
    assert!(!peer.session.refuse(2), "a SUBACK");
    assert!(peer.session.refuse(3));
    peer.step("ticket 1");
    assert_eq!(peer.step("commit 1"), "SUBACK 1 0x01; PUBACK 5 0x97; PUBACK 5");
}

/// A Topic Alias saves bytes on the way, not those that everybody else gets: it is charged for by its name.
#[test]
fn bytes_are_charged_alias_or_not() {
    let mut peer = Peer::new(Terms { publish_rate: (0, 1000), topic_alias_maximum: 1, ..v5() }, false);
    let topic = "t".repeat(999);
    for (line, owed_millis) in [(format!("q0 0 topic={topic} alias=1"), 900), ("q0 0 topic=- alias=1".to_owned(), 1900)]
    {
        assert_eq!(peer.step(&line), format!("publish {topic}"));
        assert_eq!(peer.session.publish_resumes_at(peer.now), Some(peer.now.plus_millis(owed_millis)));
    }
}
