//! PUBLISH (3.3) and its four acknowledgements (3.4 to 3.7): decoded and encoded without allocation.
//!
//! Must not know who publishes or who receives.

use std::{borrow::Cow, num::NonZeroU16};

use super::{
    PacketId, QoS, ReasonCode, Version,
    codec::{Sender, TooLong},
    frame::Frame,
    malformed::Malformed,
    packet::{Ack, AckKind, Publish},
    property::{Place, Properties, Property, SubscriptionId, TopicAlias},
    topic::{InvalidTopic, TopicName},
    wire::{Reader, VARINT_MAX, put_u16, put_varint, varint_len},
};

/// Decodes a PUBLISH; the result borrows from `frame`.
///
/// # Errors
/// What is wrong with it.
pub fn decode_publish<'a>(frame: Frame<'a>, version: Version, from: Sender) -> Result<Publish<'a>, Malformed> {
    let mut reader = Reader::new(frame.body);
    let qos = qos(frame.first >> 1 & 0b11)?;
    let dup = frame.first & 0b1000 != 0;
    if dup && qos == QoS::AtMostOnce {
        return Err(Malformed::DupWithQoS0);
    }
    let topic = reader.text_with_nul()?;
    if !topic.is_empty() {
        TopicName::check(topic).map_err(Malformed::TopicName)?;
    } else if !version.is_v5() {
        return Err(Malformed::TopicName(InvalidTopic::Empty));
    }
    let packet_id = if qos == QoS::AtMostOnce { None } else { Some(reader.packet_id()?) };
    let mut publish = Publish {
        dup,
        qos,
        retain: frame.first & 1 != 0,
        topic,
        packet_id,
        topic_alias: None,
        expiry_secs: None,
        payload_is_utf8: false,
        properties: Cow::Borrowed(&[]),
        subscription_ids: Vec::new(),
        payload: &[],
    };
    if version.is_v5() {
        read_properties(&mut publish, Properties::read(&mut reader, Place::Publish)?, from)?;
        if topic.is_empty() && publish.topic_alias.is_none() {
            return Err(Malformed::NoTopic);
        }
    }
    publish.payload = reader.rest();
    Ok(publish)
}

fn read_properties<'a>(
    publish: &mut Publish<'a>,
    mut properties: Properties<'a>,
    from: Sender,
) -> Result<(), Malformed> {
    let mut kept = Kept::new(&properties);
    while let Some(property) = properties.next() {
        match property? {
            Property::TopicAlias(TopicAlias(alias)) => publish.topic_alias = Some(alias),
            Property::MessageExpiryInterval(secs) => publish.expiry_secs = Some(secs),
            Property::SubscriptionIdentifier(_) if from == Sender::Client => {
                return Err(Malformed::SubscriptionIdFromClient);
            }
            Property::SubscriptionIdentifier(SubscriptionId(id)) => publish.subscription_ids.push(id),
            property => {
                if let Property::PayloadFormatIndicator(is_utf8) = property {
                    publish.payload_is_utf8 = is_utf8;
                }
                kept.keep(&properties);
                continue;
            }
        }
        kept.skip(&properties);
    }
    publish.properties = kept.into_encoded();
    Ok(())
}

/// Collects the encoded form of some properties of a list, in order: borrowed as long as they stand side by side.
pub(super) struct Kept<'a> {
    all: &'a [u8],
    read: usize,
    /// Where in `all` the kept ones begin that are not in `apart`.
    start: usize,
    end: usize,
    apart: Vec<u8>,
}

impl<'a> Kept<'a> {
    pub(super) fn new(properties: &Properties<'a>) -> Self {
        Self { all: properties.rest(), read: 0, start: 0, end: 0, apart: Vec::new() }
    }

    /// Keeps the property that was read since the last call.
    pub(super) fn keep(&mut self, properties: &Properties<'a>) {
        let from = self.read;
        self.skip(properties);
        if from != self.end {
            self.set_apart();
            self.start = from;
        }
        self.end = self.read;
    }

    /// Leaves out the property that was read since the last call.
    pub(super) fn skip(&mut self, properties: &Properties<'a>) {
        self.read = self.all.len() - properties.rest().len();
    }

    pub(super) fn into_encoded(mut self) -> Cow<'a, [u8]> {
        if self.apart.is_empty() {
            return Cow::Borrowed(self.run());
        }
        self.set_apart();
        Cow::Owned(self.apart)
    }

    fn set_apart(&mut self) {
        let run = self.run();
        self.apart.extend_from_slice(run);
    }

    fn run(&self) -> &'a [u8] {
        self.all.get(self.start..self.end).unwrap_or_default()
    }
}

/// All of a PUBLISH but its payload.
#[derive(Debug, Clone, Copy)]
pub struct PublishHead<'a> {
    /// DUP; not sent with QoS 0 [MQTT-3.3.1-2].
    pub dup: bool,
    /// QoS; 0 is sent where there is no Packet Identifier.
    pub qos: QoS,
    /// RETAIN.
    pub retain: bool,
    /// A Topic Name, or empty beside an alias.
    pub topic: &'a str,
    /// Not sent with QoS 0 [MQTT-2.2.1-2].
    pub packet_id: Option<PacketId>,
    /// Topic Alias.
    pub topic_alias: Option<NonZeroU16>,
    /// Message Expiry Interval, in seconds.
    pub expiry_secs: Option<u32>,
    /// Subscription Identifiers.
    pub subscription_ids: &'a [u32],
    /// More properties, encoded.
    pub properties: &'a [u8],
    /// Bytes of the payload that follows.
    pub payload_len: usize,
}

impl PublishHead<'_> {
    /// Appends the head. Properties are left out before MQTT 5.0. `maximum_packet_size` counts the whole packet, payload included.
    ///
    /// # Errors
    /// The packet would be longer than that, or than MQTT can express; `out` is untouched.
    pub fn encode(&self, version: Version, maximum_packet_size: u32, out: &mut Vec<u8>) -> Result<(), TooLong> {
        let topic_len = u16::try_from(self.topic.len()).map_err(|_| TooLong)?;
        let packet_id = self.packet_id.filter(|_| self.qos != QoS::AtMostOnce);
        let properties_len = if version.is_v5() { self.properties_len()? } else { 0 };
        let mut head = 2 + self.topic.len() + if packet_id.is_some() { 2 } else { 0 };
        if version.is_v5() {
            head += varint_len(properties_len) + properties_len as usize;
        }
        let remaining = bounded(head + self.payload_len)?;
        let fixed_header = 1 + varint_len(remaining);
        if fixed_header + remaining as usize > maximum_packet_size as usize {
            return Err(TooLong);
        }

        out.reserve(fixed_header + head);
        let (dup, qos) = if packet_id.is_some() { (self.dup, self.qos) } else { (false, QoS::AtMostOnce) };
        out.push(0x30 | u8::from(dup) << 3 | (qos as u8) << 1 | u8::from(self.retain));
        put_varint(out, remaining);
        put_u16(out, topic_len);
        out.extend_from_slice(self.topic.as_bytes());
        if let Some(id) = packet_id {
            put_u16(out, id.get());
        }
        if version.is_v5() {
            put_varint(out, properties_len);
            self.put_properties(out);
        }
        Ok(())
    }

    fn properties_len(&self) -> Result<u32, TooLong> {
        let mut len = self.properties.len();
        len += if self.expiry_secs.is_some() { 5 } else { 0 };
        len += if self.topic_alias.is_some() { 3 } else { 0 };
        for &id in self.subscription_ids {
            len += 1 + varint_len(bounded(id as usize)?);
        }
        bounded(len)
    }

    fn put_properties(&self, out: &mut Vec<u8>) {
        if let Some(secs) = self.expiry_secs {
            out.push(0x02);
            out.extend_from_slice(&secs.to_be_bytes());
        }
        if let Some(alias) = self.topic_alias {
            out.push(0x23);
            put_u16(out, alias.get());
        }
        for &id in self.subscription_ids {
            out.push(0x0B);
            put_varint(out, id);
        }
        out.extend_from_slice(self.properties);
    }
}

/// Decodes a PUBACK, PUBREC, PUBREL or PUBCOMP.
///
/// # Errors
/// What is wrong with it.
pub fn decode_ack(frame: Frame<'_>, kind: AckKind, version: Version) -> Result<Ack, Malformed> {
    let mut reader = Reader::new(frame.body);
    let packet_id = reader.packet_id()?;
    let mut reason = ReasonCode::Success;
    if version.is_v5() && !reader.is_empty() {
        reason = ack_reason(kind, reader.u8()?)?;
        if !reader.is_empty() {
            Properties::check(&mut reader, Place::Ack)?;
        }
    }
    reader.finish()?;
    Ok(Ack { packet_id, reason })
}

/// [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1]
fn ack_reason(kind: AckKind, byte: u8) -> Result<ReasonCode, Malformed> {
    let listed = match kind {
        AckKind::PubAck | AckKind::PubRec => {
            matches!(byte, 0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99)
        }
        AckKind::PubRel | AckKind::PubComp => matches!(byte, 0x00 | 0x92),
    };
    ReasonCode::from_u8(byte).filter(|_| listed).ok_or(Malformed::ReasonCode(byte))
}

/// Appends a PUBACK, PUBREC, PUBREL or PUBCOMP; before MQTT 5.0 there is no place for `reason`.
pub fn encode_ack(kind: AckKind, packet_id: PacketId, reason: ReasonCode, version: Version, out: &mut Vec<u8>) {
    let first = match kind {
        AckKind::PubAck => 0x40,
        AckKind::PubRec => 0x50,
        AckKind::PubRel => 0x62,
        AckKind::PubComp => 0x70,
    };
    let [high, low] = packet_id.get().to_be_bytes();
    if version.is_v5() && reason != ReasonCode::Success {
        out.extend_from_slice(&[first, 3, high, low, reason as u8]);
    } else {
        out.extend_from_slice(&[first, 2, high, low]);
    }
}

/// The QoS of two bits.
pub(super) fn qos(bits: u8) -> Result<QoS, Malformed> {
    match bits {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        _ => Err(Malformed::QoS),
    }
}

fn bounded(len: usize) -> Result<u32, TooLong> {
    u32::try_from(len).ok().filter(|&len| len <= VARINT_MAX).ok_or(TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, body: &[u8]) -> Frame<'_> {
        Frame { first, body, len: 0 }
    }

    #[test]
    fn what_a_publish_says() {
        let decoded = decode_publish(
            frame(0x3D, b"\0\x03a/b\0\x07\x0C\x23\0\x09\x02\0\0\x01\0\x03\0\x01t\x01pay"),
            Version::V5,
            Sender::Client,
        );
        // What looks like one more property lies behind the Property Length: it is payload.
        let publish = decoded.unwrap();
        assert_eq!((publish.dup, publish.qos, publish.retain), (true, QoS::ExactlyOnce, true));
        assert_eq!((publish.topic, publish.packet_id), ("a/b", NonZeroU16::new(7)));
        assert_eq!((publish.topic_alias, publish.expiry_secs), (NonZeroU16::new(9), Some(256)));
        assert_eq!(publish.properties, Cow::<[u8]>::Borrowed(b"\x03\0\x01t"));
        assert_eq!((publish.payload_is_utf8, publish.payload), (false, &b"\x01pay"[..]));
    }

    #[test]
    fn refusals() {
        #[track_caller]
        fn check(version: Version, first: u8, body: &[u8], expected: Result<(), Malformed>) {
            assert_eq!(decode_publish(frame(first, body), version, Sender::Client).map(drop), expected);
        }
        use Version::{V3_1_1, V5};
        check(V3_1_1, 0x30, b"\0\x01a", Ok(()));
        check(V3_1_1, 0x36, b"\0\x01a\0\x01", Err(Malformed::QoS));
        check(V3_1_1, 0x38, b"\0\x01a", Err(Malformed::DupWithQoS0));
        check(V3_1_1, 0x30, b"\0\x02a", Err(Malformed::Short));
        check(V3_1_1, 0x30, b"", Err(Malformed::Short));
        check(V3_1_1, 0x32, b"\0\x01a\0", Err(Malformed::Short));
        check(V3_1_1, 0x32, b"\0\x01a\0\0", Err(Malformed::PacketIdZero));
        check(V3_1_1, 0x30, b"\0\0x", Err(Malformed::TopicName(InvalidTopic::Empty)));
        for version in [V3_1_1, V5] {
            check(version, 0x30, b"\0\x01+\0", Err(Malformed::TopicName(InvalidTopic::WildcardInName)));
            check(version, 0x30, b"\0\x03a/#\0", Err(Malformed::TopicName(InvalidTopic::WildcardInName)));
            check(version, 0x30, b"\0\x01\0\0", Err(Malformed::TopicName(InvalidTopic::Nul)));
            check(version, 0x30, b"\0\x01\xFF\0", Err(Malformed::Utf8));
        }
        check(V5, 0x30, b"\0\x01a\0", Ok(()));
        check(V5, 0x30, b"\0\x01a", Err(Malformed::Short));
        check(V5, 0x30, b"\0\0\0x", Err(Malformed::NoTopic));
        check(V5, 0x30, b"\0\0\x03\x23\0\x01", Ok(()));
        check(V5, 0x30, b"\0\x01a\x03\x23\0\0", Err(Malformed::TopicAliasZero));
        check(V5, 0x30, b"\0\x01a\x02\x0B\x01", Err(Malformed::SubscriptionIdFromClient));
        check(V5, 0x30, b"\0\x01a\x06\x08\0\x03a/#", Err(Malformed::ResponseTopic(InvalidTopic::WildcardInName)));
        check(V5, 0x30, b"\0\x01a\x80\0", Err(Malformed::VariableByteInteger));
        check(V5, 0x30, b"\0\x01a\x05\x23\0\x01", Err(Malformed::Short));
    }

    #[test]
    fn properties_that_are_carried_on() {
        #[track_caller]
        fn check(properties: &[u8], expected: &[u8], borrowed: bool) {
            let body = [b"\0\x01a", &[properties.len() as u8][..], properties].concat();
            let publish = decode_publish(frame(0x30, &body), Version::V5, Sender::Server).unwrap();
            assert_eq!((&*publish.properties, matches!(publish.properties, Cow::Borrowed(_))), (expected, borrowed));
        }
        let (alias, expiry, id) = (&b"\x23\0\x01"[..], &b"\x02\0\0\0\x01"[..], &b"\x0B\x05"[..]);
        let (utf8, one, two) = (&b"\x01\x01"[..], &b"\x26\0\x01k\0\x01v"[..], &b"\x26\0\x01k\0\x01w"[..]);
        check(b"", b"", true);
        check(alias, b"", true);
        check(&[one, two].concat(), &[one, two].concat(), true);
        check(&[alias, expiry, one, utf8].concat(), &[one, utf8].concat(), true);
        check(&[one, two, alias].concat(), &[one, two].concat(), true);
        check(&[one, alias, two].concat(), &[one, two].concat(), false);
        check(&[id, one, alias, id, two, utf8, expiry].concat(), &[one, two, utf8].concat(), false);
    }

    #[test]
    fn acknowledgements() {
        #[track_caller]
        fn check(version: Version, kind: AckKind, body: &[u8], expected: Result<ReasonCode, Malformed>) {
            assert_eq!(decode_ack(frame(0, body), kind, version).map(|ack| ack.reason), expected);
        }
        use AckKind::{PubAck, PubComp, PubRec, PubRel};
        use Version::{V3_1_1, V5};
        for kind in [PubAck, PubRec, PubRel, PubComp] {
            for version in [V3_1_1, V5] {
                check(version, kind, &[0, 1], Ok(ReasonCode::Success));
                check(version, kind, &[0, 0], Err(Malformed::PacketIdZero));
                check(version, kind, &[0], Err(Malformed::Short));
            }
            check(V3_1_1, kind, &[0, 1, 0], Err(Malformed::TrailingBytes));
            check(V5, kind, &[0, 1, 0], Ok(ReasonCode::Success));
            check(V5, kind, &[0, 1, 0, 0], Ok(ReasonCode::Success));
            check(V5, kind, &[0, 1, 0, 0, 0], Err(Malformed::TrailingBytes));
            check(V5, kind, b"\0\x01\0\x04\x1F\0\x01x", Ok(ReasonCode::Success));
            check(V5, kind, b"\0\x01\0\x05\x1F\0\x01x", Err(Malformed::Short));
            check(V5, kind, &[0, 1, 0x01], Err(Malformed::ReasonCode(0x01)));
        }
        check(V5, PubAck, &[0, 1, 0x10], Ok(ReasonCode::NoMatchingSubscribers));
        check(V5, PubRel, &[0, 1, 0x92], Ok(ReasonCode::PacketIdentifierNotFound));
        check(V5, PubRec, &[0, 1, 0x92], Err(Malformed::ReasonCode(0x92)));
        check(V5, PubComp, &[0, 1, 0x87], Err(Malformed::ReasonCode(0x87)));
    }
}
