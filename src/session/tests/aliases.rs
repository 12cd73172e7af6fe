//! Topic aliases towards the client: a model of it resolves what it is sent, over reconnects, re-sends and packets that are too large.
//!
//! Must not know how aliases are chosen.

use std::{collections::HashMap, num::NonZeroU16, sync::Arc};

use proptest::prelude::*;

use super::super::*;
use super::peer::v5;
use crate::mqtt::{
    Message, PacketId, QoS, TopicName,
    codec::{Sender, decode},
    frame::{Cut, cut},
    packet::Ack,
};

/// A session, and what its client knows of aliases.
struct Model {
    session: Session,
    outbox: Outbox,
    maximum: u16,
    packet_size: u32,
    resolved: HashMap<u16, String>,
    /// In flight to the client: what it was sent, by packet id.
    unacknowledged: Vec<(PacketId, QoS)>,
    seq: u64,
    /// What was offered: topic by payload.
    topics: HashMap<Vec<u8>, String>,
    /// PUBLISHes that came, and those of them without a name.
    sent: usize,
    by_alias: usize,
    commit: u64,
}

impl Model {
    fn new(maximum: u16) -> Self {
        let mut model = Self {
            session: Session::new(7, "c".into(), 3600),
            outbox: Outbox::new(Version::V5),
            maximum,
            packet_size: u32::MAX,
            resolved: HashMap::new(),
            unacknowledged: Vec::new(),
            seq: 0,
            topics: HashMap::new(),
            sent: 0,
            by_alias: 0,
            commit: 0,
        };
        model.connect(maximum, u32::MAX);
        model
    }

    fn connect(&mut self, maximum: u16, packet_size: u32) {
        self.session.disconnected();
        self.outbox = Outbox::new(Version::V5);
        self.outbox.set_maximum_packet_size(packet_size);
        (self.maximum, self.packet_size) = (maximum, packet_size);
        self.resolved.clear();
        self.unacknowledged.clear();
        let terms =
            Terms { client_topic_alias_maximum: maximum, maximum_packet_size: packet_size, send_maximum: 9, ..v5() };
        let _ = self.session.connected(terms, Timestamp(1), &mut self.outbox);
        self.read();
    }

    fn offer(&mut self, topic: &str, kind: u8, qos: QoS, payload: usize) {
        self.seq += 1;
        let mut bytes = self.seq.to_be_bytes().to_vec();
        bytes.resize(8 + payload, b'x');
        self.topics.insert(bytes.clone(), topic.to_owned());
        let source = match kind {
            0 => Source::Direct,
            1 => Source::Log { seq: self.seq, body: 0, size: 0 },
            _ => Source::Lease { group: 1, seq: self.seq, again: false, logged: true, kept: false },
        };
        let message = Message {
            topic: TopicName::parse(topic).expect("a topic"),
            payload: bytes.into(),
            qos,
            retain: false,
            properties: Box::default(),
            expires_at: None,
            publisher: 0,
        };
        let delivery = Delivery { message: Arc::new(message), qos, retain: false, subscription_ids: None, source };
        self.session.deliver(&delivery, Timestamp(1), &mut self.outbox);
        self.read();
    }

    /// What waits for its commit is sent: perhaps long after its size was looked at.
    fn commit(&mut self) {
        self.commit += 1;
        self.session.ticket(self.commit);
        self.session.release(|_| Commit::Done, Timestamp(1), &mut self.outbox).expect("all commits succeed");
        self.read();
    }

    fn acknowledge(&mut self) {
        let Some((packet_id, qos)) = self.unacknowledged.pop() else { return };
        let kind = if qos == QoS::AtLeastOnce { AckKind::PubAck } else { AckKind::PubRec };
        let ack = Packet::Ack(kind, Ack { packet_id, reason: crate::mqtt::ReasonCode::Success });
        self.session.receive(ack, Timestamp(1), &mut self.outbox).expect("no violation");
        self.read();
    }

    /// Reads as the client does: every topic must be right, and every alias within its maximum.
    fn read(&mut self) {
        let mut bytes: Vec<u8> = Vec::new();
        while !self.outbox.is_empty() {
            let part: Vec<u8> = self.outbox.slices().flatten().copied().collect();
            self.outbox.advance(part.len());
            bytes.extend(part);
        }
        let mut rest = bytes.as_slice();
        while let Ok(Cut::Whole(frame)) = cut(rest, self.packet_size) {
            rest = &rest[frame.len..];
            let Packet::Publish(publish) =
                decode(frame, Version::V5, Sender::Server).expect("what is sent can be read")
            else {
                continue;
            };
            let topic = match publish.topic_alias.map(NonZeroU16::get) {
                None => publish.topic.to_owned(),
                Some(alias) => {
                    assert!(alias <= self.maximum, "alias {alias} of {}", self.maximum);
                    if publish.topic.is_empty() {
                        self.by_alias += 1;
                    } else {
                        self.resolved.insert(alias, publish.topic.to_owned());
                    }
                    self.resolved.get(&alias).expect("an alias that was set").clone()
                }
            };
            self.sent += 1;
            assert_eq!(Some(&topic), self.topics.get(publish.payload), "the topic of {:?}", publish.payload);
            self.unacknowledged.extend(publish.packet_id.map(|id| (id, publish.qos)));
        }
        assert!(rest.is_empty(), "a packet larger than the client takes");
    }
}

const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

proptest! {
    /// [MQTT-3.1.2-24], [MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-7], [MQTT-3.3.2-8], [MQTT-3.3.2-11], case D78: whatever happens, each
    /// alias stands for the topic that the client was told on this connection, and no packet is larger than it takes.
    #[test]
    fn every_alias_is_resolved(
        maximum in 0_u16..6,
        steps in prop::collection::vec((0_u8..24, 0_usize..9, 0_u8..3, 0_usize..3, 0_usize..40, 0_u16..6), 0..400),
    ) {
        let mut model = Model::new(maximum);
        for (step, topic, kind, qos, payload, maximum) in steps {
            match step {
                0 => model.connect(maximum, 40 + payload as u32),
                1 | 2 => model.commit(),
                3..9 => model.acknowledge(),
                _ => model.offer(&"fleet/device/9"[..6 + topic], kind, QOS[qos], payload),
            }
        }
    }
}

/// An alias that would be set by a packet that is too large, and is sent without one or not at all, is not used.
#[test]
fn an_alias_in_a_packet_that_is_too_large_is_not_set() {
    let mut model = Model::new(3);
    // Fixed header 2, topic 2 + 6, Property Length 1, payload 8: 19 by name, 22 with an alias, 16 by alias alone.
    for (packet_size, sent, by_alias) in [(18, 0, 0), (19, 4, 0), (21, 4, 0), (22, 4, 3)] {
        (model.sent, model.by_alias) = (0, 0);
        model.connect(3, packet_size);
        for _ in 0..4 {
            model.offer("fleet/", 0, QoS::AtMostOnce, 0);
        }
        assert_eq!((model.sent, model.by_alias), (sent, by_alias), "in packets of {packet_size} bytes");
    }
    model.by_alias = 0;
    // One that is set makes a packet fit that would not with its name.
    model.connect(3, 22);
    model.offer("fleet/", 0, QoS::AtMostOnce, 0);
    model.offer("fleet/", 0, QoS::AtMostOnce, 5);
    assert_eq!(model.by_alias, 1, "21 bytes by alias, 24 by name");
}

/// What is sent again after a reconnect is sent by the new connection's aliases, with DUP.
#[test]
fn aliases_end_with_the_connection() {
    let mut model = Model::new(3);
    for _ in 0..6 {
        model.offer("fleet/device", 0, QoS::AtLeastOnce, 0);
    }
    assert_eq!((model.by_alias, model.unacknowledged.len()), (5, 6));
    for maximum in [0, 1] {
        model.by_alias = 0;
        model.connect(maximum, u32::MAX);
        assert_eq!(model.unacknowledged.len(), 6, "all come again");
        assert_eq!(model.by_alias, if maximum == 0 { 0 } else { 5 });
    }
}
