//! What the client does: what it should, what it may, and what it must not.
//!
//! Must not know what the session makes of it.

use std::{borrow::Cow, num::NonZeroU16};

use arbitrary::{Result, Unstructured};
use pinnace::mqtt::{
    Filter, Packet, QoS, ReasonCode,
    codec::{Sender, decode},
    frame::{Cut, cut},
    packet::{Ack, AckKind, Disconnect, Publish, RetainHandling, Subscribe, SubscriptionOptions, Unsubscribe},
};

use super::{
    super::{super::codec::packet, client::Flight},
    World, id_of,
};

impl World {
    pub(super) fn client_publishes(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let qos = *input.choose(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::ExactlyOnce])?;
        let alias = if link.version().is_v5() && input.ratio(1, 4)? {
            NonZeroU16::new(input.int_in_range(0..=3)?)
        } else {
            None
        };
        let topic = if alias.is_some() && input.arbitrary()? { "" } else { *input.choose(&["a", "b", "a/b/c"])? };
        let id = NonZeroU16::new(input.int_in_range(1..=6)?);
        self.receive(
            Packet::Publish(Publish {
                dup: qos != QoS::AtMostOnce && input.arbitrary()?,
                qos,
                retain: input.ratio(1, 4)?,
                topic,
                packet_id: id.filter(|_| qos != QoS::AtMostOnce),
                topic_alias: alias,
                expiry_secs: None,
                payload_is_utf8: false,
                properties: Cow::Borrowed(&[]),
                subscription_ids: Vec::new(),
                payload: b"x",
            }),
            input,
        )
    }

    /// What is due, of what is in flight or to be released.
    pub(super) fn client_acknowledges(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let mut due: Vec<(AckKind, u16)> = self.received.keys().map(|id| (AckKind::PubRel, *id)).collect();
        due.extend(link.in_flight.iter().filter_map(|(id, flight)| match flight {
            Flight { qos: QoS::AtLeastOnce, .. } => Some((AckKind::PubAck, *id)),
            Flight { released: false, .. } => Some((AckKind::PubRec, *id)),
            _ => (!link.is_releasing(*id)).then_some((AckKind::PubComp, *id)),
        }));
        due.extend(link.released.keys().map(|id| (AckKind::PubComp, *id)));
        // What it knows from an earlier connection may still wait to be sent again.
        due.extend(self.exchanges.values().filter(|one| one.sent && !one.taken && !one.done).filter_map(|one| {
            let kind = if one.delivery.qos == QoS::AtLeastOnce { AckKind::PubAck } else { AckKind::PubRec };
            one.id.filter(|id| !link.in_flight.contains_key(id)).map(|id| (kind, id))
        }));
        due.sort_unstable_by_key(|(kind, id)| (*kind as u8, *id));
        if due.is_empty() {
            return Ok(());
        }
        let (kind, id) = *input.choose(&due)?;
        let refuses = link.version().is_v5() && input.ratio(1, 8)?;
        let reason = match kind {
            AckKind::PubAck | AckKind::PubRec if refuses => ReasonCode::NotAuthorized,
            AckKind::PubRel | AckKind::PubComp if refuses => ReasonCode::PacketIdentifierNotFound,
            _ => ReasonCode::Success,
        };
        self.receive(Packet::Ack(kind, Ack { packet_id: id_of(id), reason }), input)
    }

    /// Any acknowledgement of any id.
    pub(super) fn client_lies(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let kind = *input.choose(&[AckKind::PubAck, AckKind::PubRec, AckKind::PubRel, AckKind::PubComp])?;
        let id = if input.arbitrary()? { input.int_in_range(1..=8)? } else { 32_768 + input.int_in_range(0..=8)? };
        self.receive(Packet::Ack(kind, Ack { packet_id: id_of(id), reason: ReasonCode::Success }), input)
    }

    pub(super) fn client_asks(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let packet_id = id_of(input.int_in_range(1..=6)?);
        let filters =
            (0..input.int_in_range(1..=40)?).map(|n| Filter::parse(["a", "a/b/c"][n % 2]).map_err(|_| String::new()));
        let options = SubscriptionOptions {
            qos: QoS::ExactlyOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        let packet = match input.int_in_range(0..=5)? {
            0..=1 => Packet::Subscribe(Subscribe {
                packet_id,
                subscription_id: None,
                filters: filters.map(|filter| (filter, options)).collect(),
            }),
            2..=3 => Packet::Unsubscribe(Unsubscribe { packet_id, filters: filters.collect() }),
            4 => Packet::PingReq,
            _ => Packet::Disconnect(Disconnect::new(ReasonCode::Success)),
        };
        self.receive(packet, input)
    }

    /// Bytes as they come.
    pub(super) fn client_babbles(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let version = link.version();
        let (first, len) = (input.arbitrary()?, input.int_in_range(0..=40)?);
        let bytes = packet(first, input.bytes(len.min(input.len()))?);
        let decoded = match cut(&bytes, u32::MAX) {
            Ok(Cut::Whole(frame)) => decode(frame, version, Sender::Client).ok(),
            _ => None,
        };
        match decoded {
            Some(packet) => self.receive(packet, input),
            None => {
                self.lose_connection();
                Ok(())
            }
        }
    }
}
