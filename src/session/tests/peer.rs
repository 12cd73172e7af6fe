//! A session and its client, played by a script.
//!
//! Must not know the broker: its answers stand in the script.

use std::{borrow::Cow, num::NonZeroU16, sync::Arc};

use super::super::*;
use crate::mqtt::{
    Message, PacketId, QoS, ReasonCode, TopicName,
    codec::{Sender, decode},
    frame::{Cut, cut},
    packet::{Ack, Publish, SubAck},
};

/// A session with its peer. Words of a script: see [`Peer::step`].
pub(super) struct Peer {
    pub(super) session: Session,
    /// Of the last connection.
    terms: Terms,
    pub(super) outbox: Outbox,
    pub(super) now: Timestamp,
    /// Commits up to it are durable.
    done: u64,
    failed: bool,
}

impl Peer {
    pub(super) fn new(terms: Terms, logged: bool) -> Self {
        let expiry = if logged { 3600 } else { 0 };
        let mut peer = Self {
            session: Session::new(7, "c".into(), expiry),
            terms: terms.clone(),
            outbox: Outbox::new(terms.version),
            now: Timestamp(1_000_000),
            done: 0,
            failed: false,
        };
        peer.connect(Terms { session_expiry_secs: expiry, ..terms });
        peer
    }

    fn connect(&mut self, terms: Terms) -> String {
        self.outbox = Outbox::new(terms.version);
        self.outbox.set_maximum_packet_size(terms.maximum_packet_size);
        self.terms = terms.clone();
        let too_large = self.session.connected(terms, self.now, &mut self.outbox);
        if too_large.is_empty() { String::new() } else { format!("too large {}", too_large.len()) }
    }

    /// Does what `line` says; gives what came of it.
    pub(super) fn step(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0_u64);
        let id = |at: usize| PacketId::new(number(at) as u16).unwrap_or(PacketId::MIN);
        let reason = ReasonCode::from_u8(number(2) as u8).unwrap_or(ReasonCode::Success);
        let has = |word: &str| words.contains(&word);
        let mut said = match words[0] {
            "q0" | "q1" | "q2" => self.publish(&words),
            "puback" => self.receive(Packet::Ack(AckKind::PubAck, Ack { packet_id: id(1), reason })),
            "pubrec" => self.receive(Packet::Ack(AckKind::PubRec, Ack { packet_id: id(1), reason })),
            "pubrel" => self.receive(Packet::Ack(AckKind::PubRel, Ack { packet_id: id(1), reason })),
            "pubcomp" => self.receive(Packet::Ack(AckKind::PubComp, Ack { packet_id: id(1), reason })),
            "answer" => {
                let reply = match words[1] {
                    "puback" => Reply::Ack(AckKind::PubAck, id(2), ReasonCode::Success),
                    "pubrec" => Reply::Ack(AckKind::PubRec, id(2), ReasonCode::Success),
                    "pubrec-denied" => Reply::Ack(AckKind::PubRec, id(2), ReasonCode::NotAuthorized),
                    "pubrel" => Reply::Ack(AckKind::PubRel, id(2), ReasonCode::Success),
                    "pubcomp" => Reply::Ack(AckKind::PubComp, id(2), ReasonCode::Success),
                    "suback" => Reply::SubAck(SubAck { packet_id: id(2), reasons: vec![ReasonCode::GrantedQoS1] }),
                    _ => Reply::UnsubAck(SubAck { packet_id: id(2), reasons: vec![ReasonCode::Success] }),
                };
                self.session.acknowledge(reply, has("durable"));
                String::new()
            }
            "ticket" => {
                self.session.ticket(number(1));
                String::new()
            }
            "commit" => {
                self.done = number(1);
                String::new()
            }
            "fail" => {
                self.failed = true;
                String::new()
            }
            "log" | "lease" | "direct" => {
                let delivery = delivery(&words);
                format!("{:?}", self.session.deliver(&delivery, self.now, &mut self.outbox))
            }
            "settle" => format!("{}", self.session.log().settle(number(1), 0)),
            "drop" => {
                self.session.disconnected();
                String::new()
            }
            "connect" => {
                let send_maximum = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(u16::MAX);
                let maximum_packet_size = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(u32::MAX);
                self.connect(Terms { send_maximum, maximum_packet_size, ..self.terms.clone() })
            }
            "later" => {
                self.now = self.now.plus_secs(number(1));
                String::new()
            }
            word => panic!("{word}?"),
        };
        let (done, failed) = (self.done, self.failed);
        let outcome = |lsn| match lsn <= done {
            true => Commit::Done,
            false if failed => Commit::Failed,
            false => Commit::Pending,
        };
        if let Err(violation) = self.session.release(outcome, self.now, &mut self.outbox) {
            add(&mut said, &format!("violation {violation:?}"));
        }
        for packet in self.sent() {
            add(&mut said, &packet);
        }
        said
    }

    fn publish(&mut self, words: &[&str]) -> String {
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let topic = value("topic").unwrap_or("t");
        let publish = Publish {
            dup: words.contains(&"dup"),
            qos: qos(words[0]),
            retain: words.contains(&"retain"),
            topic: if topic == "-" { "" } else { topic },
            packet_id: words.get(1).and_then(|word| PacketId::new(word.parse().ok()?)),
            topic_alias: value("alias").and_then(|word| NonZeroU16::new(word.parse().ok()?)),
            expiry_secs: value("expiry").and_then(|word| word.parse().ok()),
            payload_is_utf8: false,
            properties: Cow::Borrowed(&[]),
            subscription_ids: Vec::new(),
            payload: b"x",
        };
        self.receive(Packet::Publish(publish))
    }

    fn receive(&mut self, packet: Packet<'_>) -> String {
        match self.session.receive(packet, self.now, &mut self.outbox) {
            Err(violation) => format!("violation {violation:?}"),
            Ok(Request::Nothing) => String::new(),
            Ok(Request::Publish { publish, alias }) => {
                let topic = alias.map_or_else(|| publish.topic.to_owned(), |topic| topic.as_str().to_owned());
                format!("publish {topic}")
            }
            Ok(Request::Duplicate(id)) => format!("duplicate {id}"),
            Ok(Request::Release(id)) => format!("release {id}"),
            Ok(Request::Settled(settled)) => {
                let what = if settled.complete { "settled" } else { "received" };
                let refused = if settled.refused { " refused" } else { "" };
                match settled.source {
                    Source::Direct => format!("{what} direct{refused}"),
                    Source::Log { seq, .. } => format!("{what} log {seq}{refused}"),
                    Source::Lease { group, seq, .. } => format!("{what} lease {group} {seq}{refused}"),
                }
            }
            Ok(other) => format!("{other:?}"),
        }
    }

    /// What the client was sent.
    pub(super) fn sent(&mut self) -> Vec<String> {
        let mut bytes = Vec::new();
        while !self.outbox.is_empty() {
            let part: Vec<u8> = self.outbox.slices().flatten().copied().collect();
            self.outbox.advance(part.len());
            bytes.extend(part);
        }
        let mut rest = bytes.as_slice();
        let mut packets = Vec::new();
        while let Ok(Cut::Whole(frame)) = cut(rest, u32::MAX) {
            rest = &rest[frame.len..];
            let packet = decode(frame, self.session.version(), Sender::Server).expect("what is sent can be read");
            packets.push(match packet {
                Packet::Publish(publish) => format!(
                    "PUBLISH{}{} q{} {}",
                    publish.packet_id.map_or_else(String::new, |id| format!(" {id}")),
                    if publish.dup { " dup" } else { "" },
                    publish.qos as u8,
                    String::from_utf8_lossy(&publish.payload[..publish.payload.len().min(4)])
                ),
                Packet::Ack(kind, ack) => {
                    let reason =
                        if ack.reason.is_failure() { format!(" {:#04x}", ack.reason as u8) } else { String::new() };
                    format!("{} {}{reason}", format!("{kind:?}").to_uppercase(), ack.packet_id)
                }
                Packet::SubAck(ack) => format!("SUBACK {} {:#04x}", ack.packet_id, ack.reasons[0] as u8),
                Packet::UnsubAck(ack) => format!("UNSUBACK {}", ack.packet_id),
                other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_uppercase(),
            });
        }
        packets
    }
}

fn add(said: &mut String, more: &str) {
    if !said.is_empty() {
        said.push_str("; ");
    }
    said.push_str(more);
}

fn qos(word: &str) -> QoS {
    match word {
        "q0" => QoS::AtMostOnce,
        "q1" => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

/// `direct q1`, `log 5 q2`, `lease 9 5 q2 again kept`; with `large` or `expired` where it is.
pub(super) fn delivery(words: &[&str]) -> Delivery {
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
    let (source, name) = match words[0] {
        "log" => (Source::Log { seq: number(1), body: 0, size: 0 }, number(1)),
        "lease" => (
            Source::Lease {
                group: number(1),
                seq: number(2),
                again: words.contains(&"again"),
                logged: !words.contains(&"memory"),
                kept: words.contains(&"kept"),
            },
            number(2),
        ),
        _ => (Source::Direct, 0),
    };
    let payload = if words.contains(&"large") { vec![b'x'; 1000] } else { format!("m{name}").into_bytes() };
    let qos = words.iter().find(|word| word.starts_with('q')).map_or(QoS::AtLeastOnce, |word| qos(word));
    let message = Message {
        topic: TopicName::parse("t").expect("a topic"),
        payload: payload.into(),
        qos,
        retain: false,
        properties: Box::default(),
        expires_at: words.contains(&"expired").then_some(Timestamp(1)),
        publisher: 0,
    };
    Delivery { message: Arc::new(message), qos, retain: false, subscription_ids: None, source }
}

pub(super) fn v5() -> Terms {
    Terms { version: Version::V5, receive_maximum: 3, topic_alias_maximum: 2, ..Terms::default() }
}

pub(super) fn v3() -> Terms {
    Terms { receive_maximum: 3, ..Terms::default() }
}
