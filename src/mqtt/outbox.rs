//! [`Outbox`]: what waits to be sent to one peer, encoded into one buffer; large payloads stay where they are and are shared.
//!
//! Must not know the socket, nor which session the packets come from.

use std::{collections::VecDeque, iter, num::NonZeroU16, sync::Arc};

use thiserror::Error;

use super::{
    Message, Packet, PacketId, QoS, ReasonCode, Timestamp, Version, codec,
    packet::AckKind,
    publish::{PublishHead, encode_ack},
};

/// The bytes that wait to be sent to one peer.
#[derive(Debug)]
pub struct Outbox {
    version: Version,
    maximum_packet_size: u32,
    problem_information: bool,
    /// Encoded packets without the payloads in `large`; sent up to `sent`.
    buffer: Vec<u8>,
    sent: usize,
    large: VecDeque<Large>,
    /// Bytes of the payloads in `large` that wait.
    large_len: usize,
    tally: Tally,
}

/// What was queued in an outbox since that was last asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets of every type.
    pub packets: u64,
    /// PUBLISH packets among them.
    pub publishes: u64,
    /// Bytes of the payloads of these.
    pub payload_bytes: u64,
}

/// A payload that is not copied.
#[derive(Debug)]
struct Large {
    /// Where in `buffer` it belongs.
    at: usize,
    message: Arc<Message>,
    sent: usize,
}

/// One PUBLISH to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// What was published.
    pub message: &'a Arc<Message>,
    /// QoS of this delivery: the lower of the message's and the subscription's [MQTT-3.8.4-8].
    pub qos: QoS,
    /// RETAIN of this delivery [MQTT-3.3.1-12], [MQTT-3.3.1-13].
    pub retain: bool,
    /// DUP [MQTT-3.3.1-1]; not sent with QoS 0 [MQTT-3.3.1-2].
    pub dup: bool,
    /// Needed above QoS 0; without it the PUBLISH goes out with QoS 0.
    pub packet_id: Option<PacketId>,
    /// Of the matching subscriptions [MQTT-3.3.4-3] to [MQTT-3.3.4-5]; left out in MQTT 3.
    pub subscription_ids: &'a [u32],
    /// A Topic Alias, and whether to send the name too (which sets the alias); left out in MQTT 3.
    pub topic_alias: Option<(NonZeroU16, bool)>,
    /// For the rest of the Message Expiry Interval [MQTT-3.3.2-6].
    pub now: Timestamp,
}

/// A packet that the peer does not take [MQTT-3.1.2-24], or that MQTT cannot express. Nothing of it was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("packet larger than the peer accepts")]
pub struct TooLarge;

impl Outbox {
    /// An empty one for a peer of `version`, which takes packets of any size; holds no memory.
    #[must_use]
    pub fn new(version: Version) -> Self {
        Self {
            version,
            maximum_packet_size: u32::MAX,
            problem_information: true,
            buffer: Vec::new(),
            sent: 0,
            large: VecDeque::new(),
            large_len: 0,
            tally: Tally::default(),
        }
    }

    /// What was queued since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Sets the peer's Maximum Packet Size, in bytes of the whole packet [MQTT-3.1.2-24].
    pub fn set_maximum_packet_size(&mut self, bytes: u32) {
        self.maximum_packet_size = bytes;
    }

    /// The peer's Request Problem Information: without it Reason Strings and User Properties are left out [MQTT-3.1.2-29].
    pub fn request_problem_information(&mut self, wanted: bool) {
        self.problem_information = wanted;
    }

    /// Queues a PUBLISH.
    ///
    /// # Errors
    /// It is over the peer's maximum: drop it as if it were sent [MQTT-3.1.2-25].
    pub fn publish(&mut self, delivery: &Outgoing<'_>) -> Result<(), TooLarge> {
        let message = delivery.message;
        let head = self.head(delivery);
        head.encode(self.version, self.maximum_packet_size, &mut self.buffer).map_err(|_| TooLarge)?;
        if message.payload.len() < LARGE {
            self.buffer.extend_from_slice(&message.payload);
        } else {
            self.large_len += message.payload.len();
            self.large.push_back(Large { at: self.buffer.len(), message: Arc::clone(message), sent: 0 });
        }
        self.tally.packets += 1;
        self.tally.publishes += 1;
        self.tally.payload_bytes += message.payload.len() as u64;
        Ok(())
    }

    /// Whether [`Outbox::publish`] would queue it.
    #[must_use]
    pub fn takes(&self, delivery: &Outgoing<'_>) -> bool {
        self.head(delivery).encode(self.version, self.maximum_packet_size, &mut Vec::new()).is_ok()
    }

    /// Queues a PUBACK, PUBREC, PUBREL or PUBCOMP; MQTT 3 has no room for `reason`.
    pub fn ack(&mut self, kind: AckKind, packet_id: PacketId, reason: ReasonCode) {
        encode_ack(kind, packet_id, reason, self.version, &mut self.buffer);
        self.tally.packets += 1;
    }

    /// Queues any packet; leaves out User Properties and Reason String where they would exceed the peer's maximum
    /// [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.14.2-3].
    ///
    /// # Errors
    /// It is over the peer's maximum all the same.
    pub fn packet(&mut self, packet: &Packet<'_>) -> Result<(), TooLarge> {
        if self.problem_information && self.encode(packet).is_ok() {
            return Ok(());
        }
        let mut shorter = match packet {
            Packet::ConnAck(_) | Packet::Disconnect(_) => packet.clone(),
            _ => return self.encode(packet),
        };
        if let Packet::ConnAck(ack) = &mut shorter {
            ack.properties.user_properties.clear();
        }
        if self.problem_information && self.encode(&shorter).is_ok() {
            return Ok(());
        }
        match &mut shorter {
            Packet::ConnAck(ack) => ack.properties.reason_string = None,
            Packet::Disconnect(disconnect) => disconnect.reason_string = None,
            _ => {}
        }
        self.encode(&shorter)
    }

    /// Queues a PINGRESP.
    pub fn pingresp(&mut self) {
        self.buffer.extend_from_slice(&[0xD0, 0]);
        self.tally.packets += 1;
    }

    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len() - self.sent + self.large_len
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that wait, in order, as at most [`MAX_SLICES`] slices: perhaps not all of them.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let starts = iter::once(self.sent).chain(self.large.iter().map(|large| large.at));
        let payloads = self.large.iter().map(|large| large.message.payload.get(large.sent..)).chain(iter::once(None));
        let ends = self.large.iter().map(|large| large.at).chain(iter::once(self.buffer.len()));
        starts
            .zip(ends)
            .zip(payloads)
            .flat_map(|((start, end), payload)| [self.buffer.get(start..end), payload])
            .flatten()
            .filter(|slice| !slice.is_empty())
            .take(MAX_SLICES)
    }

    /// Takes `n` bytes off the front: they were sent.
    pub fn advance(&mut self, mut n: usize) {
        loop {
            let end = self.large.front().map_or(self.buffer.len(), |large| large.at);
            let step = n.min(end - self.sent);
            self.sent += step;
            n -= step;
            let Some(large) = self.large.front_mut().filter(|_| n > 0) else { break };
            let step = n.min(large.message.payload.len() - large.sent);
            large.sent += step;
            self.large_len -= step;
            n -= step;
            if large.sent == large.message.payload.len() {
                self.large.pop_front();
            }
        }
        if self.is_empty() {
            self.buffer.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT && self.sent >= self.buffer.len() / 2 {
            self.buffer.drain(..self.sent);
            self.large.iter_mut().for_each(|large| large.at -= self.sent);
            self.sent = 0;
        }
    }

    /// Gives the memory back where nothing waits.
    pub fn release(&mut self) {
        if self.is_empty() {
            self.buffer = Vec::new();
            self.large = VecDeque::new();
        }
    }

    fn head<'a>(&self, delivery: &Outgoing<'a>) -> PublishHead<'a> {
        let message = delivery.message;
        let alias = delivery.topic_alias.filter(|_| self.version.is_v5());
        PublishHead {
            dup: delivery.dup,
            qos: delivery.qos,
            retain: delivery.retain,
            topic: if matches!(alias, Some((_, false))) { "" } else { message.topic.as_str() },
            packet_id: delivery.packet_id,
            topic_alias: alias.map(|(alias, _)| alias),
            expiry_secs: message.expiry_secs_left(delivery.now),
            subscription_ids: delivery.subscription_ids,
            properties: &message.properties,
            payload_len: message.payload.len(),
        }
    }

    fn encode(&mut self, packet: &Packet<'_>) -> Result<(), TooLarge> {
        let start = self.buffer.len();
        codec::encode(packet, self.version, &mut self.buffer).map_err(|_| TooLarge)?;
        if self.buffer.len() - start > self.maximum_packet_size as usize {
            self.buffer.truncate(start);
            return Err(TooLarge);
        }
        self.tally.packets += 1;
        Ok(())
    }
}

/// How many slices [`Outbox::slices`] gives at most.
pub const MAX_SLICES: usize = 64;

/// From how many bytes on a payload is sent from where it is.
const LARGE: usize = 8 * 1024;

/// From how many sent bytes on the rest of the buffer is moved to its front, at the latest when they are half of it.
const COMPACT: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mqtt::{
        TopicName,
        codec::{Sender, decode},
        frame::{Cut, cut},
        packet::{Ack, ConnAck, ConnAckProperties, Disconnect, SubAck},
    };

    fn message(payload: usize) -> Arc<Message> {
        Arc::new(Message {
            topic: TopicName::parse("a/b").unwrap(),
            payload: (0..payload).map(|n| n as u8).collect(),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: Box::default(),
            expires_at: None,
            publisher: 0,
        })
    }

    fn outgoing(message: &Arc<Message>) -> Outgoing<'_> {
        Outgoing {
            message,
            qos: QoS::AtMostOnce,
            retain: false,
            dup: false,
            packet_id: None,
            subscription_ids: &[],
            topic_alias: None,
            now: Timestamp(0),
        }
    }

    fn waiting(outbox: &Outbox) -> Vec<u8> {
        outbox.slices().flatten().copied().collect()
    }

    /// [MQTT-2.2.1-2], [MQTT-2.2.2-1], [MQTT-3.3.2-1]: the name first, no Packet Identifier with QoS 0, and a Property Length of 0 where there
    /// are no properties.
    #[test]
    fn publishes() {
        #[track_caller]
        fn check(version: Version, delivery: &Outgoing<'_>, expected: &[u8]) {
            let mut outbox = Outbox::new(version);
            outbox.publish(delivery).unwrap();
            assert_eq!((waiting(&outbox).as_slice(), outbox.len()), (expected, expected.len()));
        }
        let plain = message(2);
        let id = NonZeroU16::new(0x0102);
        check(Version::V3_1_1, &outgoing(&plain), b"\x30\x07\0\x03a/b\0\x01");
        check(Version::V5, &outgoing(&plain), b"\x30\x08\0\x03a/b\0\0\x01");
        let again = Outgoing { qos: QoS::ExactlyOnce, dup: true, retain: true, packet_id: id, ..outgoing(&plain) };
        check(Version::V3_1, &again, b"\x3D\x09\0\x03a/b\x01\x02\0\x01");
        // Never DUP or a Packet Identifier with QoS 0, whatever is asked for.
        check(Version::V3_1_1, &Outgoing { dup: true, packet_id: id, ..outgoing(&plain) }, b"\x30\x07\0\x03a/b\0\x01");
        check(Version::V3_1_1, &Outgoing { qos: QoS::AtLeastOnce, ..outgoing(&plain) }, b"\x30\x07\0\x03a/b\0\x01");

        let mut rich = Message::clone(&plain);
        rich.properties = Box::from(*b"\x03\0\x01t");
        rich.expires_at = Some(Timestamp(5_500));
        let rich = Arc::new(rich);
        let mut delivery = outgoing(&rich);
        delivery.subscription_ids = &[5, 128];
        delivery.topic_alias = NonZeroU16::new(3).map(|alias| (alias, true));
        delivery.now = Timestamp(1_000);
        check(Version::V3_1_1, &delivery, b"\x30\x07\0\x03a/b\0\x01");
        let properties = b"\x02\0\0\0\x05\x23\0\x03\x0B\x05\x0B\x80\x01\x03\0\x01t";
        check(Version::V5, &delivery, &[&b"\x30\x19\0\x03a/b\x11"[..], properties, b"\0\x01"].concat());
        delivery.topic_alias = NonZeroU16::new(3).map(|alias| (alias, false));
        check(Version::V5, &delivery, &[&b"\x30\x16\0\0\x11"[..], properties, b"\0\x01"].concat());
    }

    #[test]
    fn other_packets() {
        #[track_caller]
        fn check(version: Version, fill: impl FnOnce(&mut Outbox), expected: &[u8]) {
            let mut outbox = Outbox::new(version);
            fill(&mut outbox);
            assert_eq!(waiting(&outbox), expected);
        }
        let id = NonZeroU16::new(7).unwrap();
        check(Version::V5, |outbox| outbox.ack(AckKind::PubAck, id, ReasonCode::Success), &[0x40, 2, 0, 7]);
        check(Version::V5, |outbox| outbox.ack(AckKind::PubRec, id, ReasonCode::QuotaExceeded), &[0x50, 3, 0, 7, 0x97]);
        check(Version::V3_1_1, |outbox| outbox.ack(AckKind::PubRel, id, ReasonCode::QuotaExceeded), &[0x62, 2, 0, 7]);
        check(Version::V3_1_1, |outbox| outbox.ack(AckKind::PubComp, id, ReasonCode::Success), &[0x70, 2, 0, 7]);
        check(Version::V5, Outbox::pingresp, &[0xD0, 0]);
        let ack = Packet::Ack(AckKind::PubAck, Ack { packet_id: id, reason: ReasonCode::Success });
        check(Version::V5, |outbox| outbox.packet(&ack).unwrap(), &[0x40, 2, 0, 7]);
    }

    /// [MQTT-3.1.2-24], [MQTT-3.1.2-25]
    #[test]
    fn packets_over_the_maximum_leave_no_trace() {
        for (version, payload, len) in [(Version::V3_1_1, 100, 107), (Version::V5, 20_000, 20_010)] {
            let message = message(payload);
            let mut outbox = Outbox::new(version);
            outbox.pingresp();
            outbox.set_maximum_packet_size(len - 1);
            assert!(!outbox.takes(&outgoing(&message)));
            assert_eq!(outbox.publish(&outgoing(&message)), Err(TooLarge));
            assert_eq!(waiting(&outbox), [0xD0, 0]);
            outbox.set_maximum_packet_size(len);
            assert!(outbox.takes(&outgoing(&message)));
            assert_eq!(outbox.publish(&outgoing(&message)), Ok(()));
            assert_eq!((outbox.len(), waiting(&outbox).len()), (2 + len as usize, 2 + len as usize));
        }
        let mut outbox = Outbox::new(Version::V5);
        outbox.set_maximum_packet_size(5);
        let packet = SubAck { packet_id: NonZeroU16::MIN, reasons: vec![ReasonCode::Success] };
        assert_eq!(outbox.packet(&Packet::SubAck(packet)), Err(TooLarge));
        assert!(outbox.is_empty());
    }

    /// Case D77 [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.14.2-3], [MQTT-3.1.2-29].
    #[test]
    fn what_a_small_packet_leaves_out() {
        let properties = ConnAckProperties {
            reason_string: Some("because".into()),
            user_properties: vec![("name".into(), "value".into())],
            receive_maximum: Some(9),
            ..ConnAckProperties::default()
        };
        let connack = Packet::ConnAck(Box::new(ConnAck {
            session_present: false,
            reason: ReasonCode::NotAuthorized,
            properties,
        }));
        let mut disconnect = Disconnect::new(ReasonCode::QuotaExceeded);
        disconnect.reason_string = Some("because".into());
        let disconnect = Packet::Disconnect(disconnect);
        let (full, no_user, bare) = (32, 18, 8);
        for (packet, maximum, information, expected) in [
            (&connack, full, true, Ok(full)),
            (&connack, full - 1, true, Ok(no_user)),
            (&connack, no_user - 1, true, Ok(bare)),
            (&connack, bare - 1, true, Err(TooLarge)),
            (&connack, full, false, Ok(bare)),
            (&disconnect, 14, true, Ok(14)),
            (&disconnect, 13, true, Ok(3)),
            (&disconnect, 14, false, Ok(3)),
            (&disconnect, 2, true, Err(TooLarge)),
        ] {
            let mut outbox = Outbox::new(Version::V5);
            outbox.set_maximum_packet_size(maximum);
            outbox.request_problem_information(information);
            assert_eq!(outbox.packet(packet).map(|()| outbox.len() as u32), expected, "{packet:?} {maximum}");
        }
    }

    #[test]
    fn memory_is_given_back() {
        let mut outbox = Outbox::new(Version::V5);
        outbox.publish(&outgoing(&message(10_000))).unwrap();
        outbox.release();
        assert_eq!(outbox.len(), 10_009);
        outbox.advance(10_008);
        outbox.release();
        assert_eq!(waiting(&outbox).len(), 1);
        outbox.advance(1);
        outbox.release();
        assert_eq!((outbox.buffer.capacity(), outbox.large.capacity(), outbox.len()), (0, 0, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        /// However the peer takes the bytes, it gets what was queued, in order.
        #[test]
        fn any_sends(
            steps in prop::collection::vec((prop::sample::select(vec![0_usize, 1, 3_000, 8_191, 8_192, 70_000]), 0_usize..90_000), 1..40),
        ) {
            let mut outbox = Outbox::new(Version::V3_1_1);
            let (mut received, mut expected) = (Vec::new(), Vec::new());
            for (payload, sent) in steps {
                let message = message(payload);
                outbox.publish(&outgoing(&message)).unwrap();
                expected.push(message);
                outbox.pingresp();
                let sent = sent.min(outbox.slices().map(<[u8]>::len).sum());
                received.extend(waiting(&outbox).into_iter().take(sent));
                let len = outbox.len();
                outbox.advance(sent);
                prop_assert_eq!(outbox.len(), len - sent);
            }
            while !outbox.is_empty() {
                prop_assert!(outbox.slices().count() <= MAX_SLICES);
                let part = waiting(&outbox);
                outbox.advance(part.len());
                received.extend(part);
            }
            let mut rest = &received[..];
            for message in expected {
                let Ok(Cut::Whole(frame)) = cut(rest, u32::MAX) else { panic!("a packet was cut off") };
                let Ok(Packet::Publish(publish)) = decode(frame, Version::V3_1_1, Sender::Server) else { panic!("no PUBLISH") };
                prop_assert_eq!(publish.payload, &*message.payload);
                prop_assert_eq!(rest.get(frame.len..frame.len + 2), Some(&[0xD0, 0][..]));
                rest = &rest[frame.len + 2..];
            }
            prop_assert!(rest.is_empty());
        }
    }
}
