//! Every Control Packet, decoded strictly and encoded, for both sides of a connection.
//!
//! The only file that names mqttbytes: its QoS, its framing check, its acknowledgements of MQTT 3.1.1. Must not know what a
//! session makes of a packet.

use bytes::BytesMut;
pub use mqttbytes::QoS;
use mqttbytes::v4;
use thiserror::Error;

use super::{
    Filter, Packet, ReasonCode, Version,
    connect::{decode_connack, decode_connect, encode_connack, encode_connect},
    frame::{self, Frame},
    packet::{
        AckKind, Auth, ConnAck, Disconnect, Publish, RetainHandling, SubAck, Subscribe, SubscriptionOptions,
        Unsubscribe,
    },
    property::{Place, Properties, Property, SubscriptionId, put_properties},
    publish::{PublishHead, decode_ack, decode_publish, encode_ack, qos},
    wire::{Reader, put_binary, put_u16, put_with_length},
};
pub use super::{connect::stated_version, malformed::Malformed};

/// Which side of a connection sent a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A client: refuse what only a server sends.
    Client,
    /// A server: refuse what only a client sends.
    Server,
}

/// A packet that MQTT cannot express: a text of more than 65,535 bytes, a body of more than 268,435,455, or AUTH before
/// MQTT 5.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a packet that MQTT cannot express")]
pub struct TooLong;

/// Decodes `frame`; `version` does not matter for CONNECT, which states its own.
///
/// # Errors
/// What is wrong with it. Each ends the connection [MQTT-4.13.1-1].
pub fn decode<'a>(frame: Frame<'a>, version: Version, from: Sender) -> Result<Packet<'a>, Malformed> {
    let kind = frame.first >> 4;
    // CONNECT states its version; those of PUBLISH are the same in all, and `cut` has seen them.
    if !matches!(kind, 1 | 3) {
        frame::check_flags(frame.first, version)?;
    }
    let sender = match kind {
        1 | 8 | 10 | 12 => Some(Sender::Client),
        2 | 9 | 11 | 13 => Some(Sender::Server),
        14 if !version.is_v5() => Some(Sender::Client),
        15 if !version.is_v5() => return Err(Malformed::PacketType),
        _ => None,
    };
    if sender.is_some_and(|sender| sender != from) {
        return Err(Malformed::Direction);
    }
    let ack = |kind| decode_ack(frame, kind, version).map(|ack| Packet::Ack(kind, ack));
    let body = frame.body;
    match kind {
        1 => {
            let connect = decode_connect(body)?;
            frame::check_flags(frame.first, connect.version)?;
            Ok(Packet::Connect(Box::new(connect)))
        }
        2 => decode_connack(body, version).map(|ack| Packet::ConnAck(Box::new(ack))),
        3 => decode_publish(frame, version, from).map(Packet::Publish),
        4 => ack(AckKind::PubAck),
        5 => ack(AckKind::PubRec),
        6 => ack(AckKind::PubRel),
        7 => ack(AckKind::PubComp),
        8 => decode_subscribe(body, version).map(Packet::Subscribe),
        9 => decode_suback(body, version).map(Packet::SubAck),
        10 => decode_unsubscribe(body, version).map(Packet::Unsubscribe),
        11 => decode_unsuback(body, version).map(Packet::UnsubAck),
        12 => Reader::new(body).finish().map(|()| Packet::PingReq),
        13 => Reader::new(body).finish().map(|()| Packet::PingResp),
        14 => decode_disconnect(body, version, from).map(Packet::Disconnect),
        15 => decode_auth(body, from).map(Packet::Auth),
        _ => Err(Malformed::PacketType),
    }
}

/// Appends `packet` to `out`. CONNECT is encoded as its own version has it. What `version` has no place for is left out.
///
/// # Errors
/// MQTT cannot express it; `out` is untouched.
pub fn encode(packet: &Packet<'_>, version: Version, out: &mut Vec<u8>) -> Result<(), TooLong> {
    let start = out.len();
    let result = encode_packet(packet, version, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn encode_packet(packet: &Packet<'_>, version: Version, out: &mut Vec<u8>) -> Result<(), TooLong> {
    match packet {
        Packet::Connect(connect) => put_packet(0x10, out, |out| encode_connect(connect, out)),
        Packet::ConnAck(ack) if version.is_v5() => put_packet(0x20, out, |out| encode_connack(ack, out)),
        Packet::ConnAck(ack) => put_v4(out, |out| v4_connack(ack, version).write(out)),
        Packet::Publish(publish) => {
            head(publish).encode(version, u32::MAX, out)?;
            out.extend_from_slice(publish.payload);
            Ok(())
        }
        Packet::Ack(kind, ack) => {
            encode_ack(*kind, ack.packet_id, ack.reason, version, out);
            Ok(())
        }
        Packet::Subscribe(subscribe) => put_packet(0x82, out, |out| put_subscribe(subscribe, version, out)),
        Packet::SubAck(ack) if version.is_v5() => put_packet(0x90, out, |out| put_suback(ack, out)),
        Packet::SubAck(ack) => put_v4(out, |out| v4_suback(ack).write(out)),
        Packet::Unsubscribe(unsubscribe) => put_packet(0xA2, out, |out| put_unsubscribe(unsubscribe, version, out)),
        Packet::UnsubAck(ack) if version.is_v5() => put_packet(0xB0, out, |out| put_suback(ack, out)),
        Packet::UnsubAck(ack) => put_v4(out, |out| v4::UnsubAck::new(ack.packet_id.get()).write(out)),
        Packet::PingReq => put_packet(0xC0, out, |_| Ok(())),
        Packet::PingResp => put_packet(0xD0, out, |_| Ok(())),
        Packet::Disconnect(disconnect) => put_packet(0xE0, out, |out| put_disconnect(disconnect, version, out)),
        Packet::Auth(_) if !version.is_v5() => Err(TooLong),
        Packet::Auth(auth) => put_packet(0xF0, out, |out| put_auth(auth, out)),
    }
}

fn put_packet(
    first: u8,
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), TooLong>,
) -> Result<(), TooLong> {
    out.push(first);
    put_with_length(out, body)
}

fn put_v4(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut BytesMut) -> Result<usize, mqttbytes::Error>,
) -> Result<(), TooLong> {
    let mut packet = BytesMut::new();
    write(&mut packet).map_err(|_| TooLong)?;
    out.extend_from_slice(&packet);
    Ok(())
}

fn v4_connack(ack: &ConnAck, version: Version) -> v4::ConnAck {
    let code = match ack.reason.connect_return_code() {
        0 => v4::ConnectReturnCode::Success,
        1 => v4::ConnectReturnCode::RefusedProtocolVersion,
        2 => v4::ConnectReturnCode::BadClientId,
        4 => v4::ConnectReturnCode::BadUserNamePassword,
        5 => v4::ConnectReturnCode::NotAuthorized,
        _ => v4::ConnectReturnCode::ServiceUnavailable,
    };
    // Session Present came with 3.1.1; in 3.1 the byte is reserved.
    v4::ConnAck::new(code, ack.session_present && version != Version::V3_1)
}

fn v4_suback(ack: &SubAck) -> v4::SubAck {
    let code = |reason: &ReasonCode| match reason {
        ReasonCode::Success => v4::SubscribeReasonCode::Success(QoS::AtMostOnce),
        ReasonCode::GrantedQoS1 => v4::SubscribeReasonCode::Success(QoS::AtLeastOnce),
        ReasonCode::GrantedQoS2 => v4::SubscribeReasonCode::Success(QoS::ExactlyOnce),
        _ => v4::SubscribeReasonCode::Failure,
    };
    v4::SubAck::new(ack.packet_id.get(), ack.reasons.iter().map(code).collect())
}

fn head<'p>(publish: &'p Publish<'_>) -> PublishHead<'p> {
    PublishHead {
        dup: publish.dup,
        qos: publish.qos,
        retain: publish.retain,
        topic: publish.topic,
        packet_id: publish.packet_id,
        topic_alias: publish.topic_alias,
        expiry_secs: publish.expiry_secs,
        subscription_ids: &publish.subscription_ids,
        properties: &publish.properties,
        payload_len: publish.payload.len(),
    }
}

fn decode_subscribe(body: &[u8], version: Version) -> Result<Subscribe, Malformed> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    let mut subscription_id = None;
    if version.is_v5() {
        for property in Properties::read(&mut reader, Place::Subscribe)? {
            if let Property::SubscriptionIdentifier(SubscriptionId(id)) = property? {
                subscription_id = Some(id);
            }
        }
    }
    let mut filters = Vec::new();
    while !reader.is_empty() {
        let filter = filter(&mut reader)?;
        let options = subscription_options(reader.u8()?, version)?;
        if options.no_local && filter.as_ref().is_ok_and(Filter::is_shared) {
            return Err(Malformed::NoLocalOnShared);
        }
        filters.push((filter, options));
    }
    if filters.is_empty() {
        return Err(Malformed::NoTopicFilter);
    }
    Ok(Subscribe { packet_id, subscription_id, filters })
}

fn filter(reader: &mut Reader<'_>) -> Result<Result<Filter, String>, Malformed> {
    let text = reader.text()?;
    Ok(Filter::parse(text).map_err(|_| text.to_owned()))
}

/// [MQTT-3.8.3-5], [MQTT311-3.8.3-4]
fn subscription_options(byte: u8, version: Version) -> Result<SubscriptionOptions, Malformed> {
    let reserved = if version.is_v5() { 0b1100_0000 } else { 0b1111_1100 };
    if byte & reserved != 0 {
        return Err(Malformed::SubscriptionOptions);
    }
    Ok(SubscriptionOptions {
        qos: qos(byte & 0b11).map_err(|_| Malformed::SubscriptionQoS)?,
        no_local: byte & 0b100 != 0,
        retain_as_published: byte & 0b1000 != 0,
        retain_handling: match byte >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::Never,
            _ => return Err(Malformed::RetainHandling),
        },
    })
}

fn put_subscribe(subscribe: &Subscribe, version: Version, out: &mut Vec<u8>) -> Result<(), TooLong> {
    put_u16(out, subscribe.packet_id.get());
    if version.is_v5() {
        put_properties(out, subscribe.subscription_id.map(|id| Property::SubscriptionIdentifier(SubscriptionId(id))))?;
    }
    for (filter, options) in &subscribe.filters {
        put_filter(filter, out)?;
        let mut byte = options.qos as u8;
        if version.is_v5() {
            byte |= u8::from(options.no_local) << 2 | u8::from(options.retain_as_published) << 3;
            byte |= (options.retain_handling as u8) << 4;
        }
        out.push(byte);
    }
    Ok(())
}

fn put_filter(filter: &Result<Filter, String>, out: &mut Vec<u8>) -> Result<(), TooLong> {
    match filter {
        Ok(filter) if filter.is_shared() => put_binary(out, filter.to_string().as_bytes()),
        Ok(filter) => put_binary(out, filter.filter.as_str().as_bytes()),
        Err(text) => put_binary(out, text.as_bytes()),
    }
}

fn decode_unsubscribe(body: &[u8], version: Version) -> Result<Unsubscribe, Malformed> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    if version.is_v5() {
        Properties::check(&mut reader, Place::Unsubscribe)?;
    }
    let mut filters = Vec::new();
    while !reader.is_empty() {
        filters.push(filter(&mut reader)?);
    }
    if filters.is_empty() {
        return Err(Malformed::NoTopicFilter);
    }
    Ok(Unsubscribe { packet_id, filters })
}

fn put_unsubscribe(unsubscribe: &Unsubscribe, version: Version, out: &mut Vec<u8>) -> Result<(), TooLong> {
    put_u16(out, unsubscribe.packet_id.get());
    if version.is_v5() {
        put_properties(out, None)?;
    }
    unsubscribe.filters.iter().try_for_each(|filter| put_filter(filter, out))
}

/// [MQTT-3.9.3-2], [MQTT311-3.9.3-2]
fn decode_suback(body: &[u8], version: Version) -> Result<SubAck, Malformed> {
    decode_reasons(body, version, |byte| match byte {
        0x00..=0x02 | 0x80 => true,
        0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2 => version.is_v5(),
        _ => false,
    })
}

/// [MQTT-3.11.3-2]
fn decode_unsuback(body: &[u8], version: Version) -> Result<SubAck, Malformed> {
    if !version.is_v5() {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        return reader.finish().map(|()| SubAck { packet_id, reasons: Vec::new() });
    }
    decode_reasons(body, version, |byte| matches!(byte, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91))
}

fn decode_reasons(body: &[u8], version: Version, listed: impl Fn(u8) -> bool) -> Result<SubAck, Malformed> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    if version.is_v5() {
        Properties::check(&mut reader, Place::SubAck)?;
    }
    if reader.is_empty() {
        return Err(Malformed::Short);
    }
    let reason = |&byte: &u8| ReasonCode::from_u8(byte).filter(|_| listed(byte)).ok_or(Malformed::ReasonCode(byte));
    let reasons = reader.rest().iter().map(reason).collect::<Result<_, _>>()?;
    Ok(SubAck { packet_id, reasons })
}

fn put_suback(ack: &SubAck, out: &mut Vec<u8>) -> Result<(), TooLong> {
    put_u16(out, ack.packet_id.get());
    put_properties(out, None)?;
    out.extend(ack.reasons.iter().map(|&reason| reason as u8));
    Ok(())
}

/// A Reason Code alone and no byte at all are whole packets too (3.14.2.1, 3.14.2.2.1).
fn decode_disconnect(body: &[u8], version: Version, from: Sender) -> Result<Disconnect, Malformed> {
    let mut reader = Reader::new(body);
    let mut disconnect = Disconnect::new(ReasonCode::Success);
    if version.is_v5() && !reader.is_empty() {
        disconnect.reason = disconnect_reason(reader.u8()?, from)?;
        if !reader.is_empty() {
            read_disconnect_properties(&mut disconnect, &mut reader, from)?;
        }
    }
    reader.finish()?;
    Ok(disconnect)
}

/// The table says who may send which (3.14.2.1) [MQTT-3.14.2-1]; 0x00 is also what no byte stands for, whoever leaves it out. 0x8C is in the
/// list of 2.4 alone, which does not say it.
fn disconnect_reason(byte: u8, from: Sender) -> Result<ReasonCode, Malformed> {
    let listed = match byte {
        0x00 | 0x80..=0x83 | 0x8C | 0x90 | 0x93..=0x99 => true,
        0x04 => from == Sender::Client,
        0x87 | 0x89 | 0x8B | 0x8D..=0x8F | 0x9A..=0xA2 => from == Sender::Server,
        _ => false,
    };
    ReasonCode::from_u8(byte).filter(|_| listed).ok_or(Malformed::ReasonCode(byte))
}

fn read_disconnect_properties(
    disconnect: &mut Disconnect,
    reader: &mut Reader<'_>,
    from: Sender,
) -> Result<(), Malformed> {
    for property in Properties::read(reader, Place::Disconnect)? {
        match (property?, from) {
            // [MQTT-3.14.2-2]
            (Property::SessionExpiryInterval(_), Sender::Server) | (Property::ServerReference(_), Sender::Client) => {
                return Err(Malformed::Direction);
            }
            (Property::SessionExpiryInterval(secs), _) => disconnect.session_expiry_secs = Some(secs),
            (Property::ServerReference(reference), _) => disconnect.server_reference = Some(reference.to_owned()),
            (Property::ReasonString(reason), _) => disconnect.reason_string = Some(reason.to_owned()),
            _ => {}
        }
    }
    Ok(())
}

fn put_disconnect(disconnect: &Disconnect, version: Version, out: &mut Vec<u8>) -> Result<(), TooLong> {
    if !version.is_v5() || *disconnect == Disconnect::new(ReasonCode::Success) {
        return Ok(());
    }
    out.push(disconnect.reason as u8);
    if *disconnect == Disconnect::new(disconnect.reason) {
        return Ok(());
    }
    let properties = [
        disconnect.session_expiry_secs.map(Property::SessionExpiryInterval),
        disconnect.reason_string.as_deref().map(Property::ReasonString),
        disconnect.server_reference.as_deref().map(Property::ServerReference),
    ];
    put_properties(out, properties.into_iter().flatten())
}

/// Only a server says Success, only a client asks to authenticate again (3.15.2.1) [MQTT-3.15.2-1]. No byte at all stands for
/// Success without properties.
fn decode_auth(body: &[u8], from: Sender) -> Result<Auth, Malformed> {
    let mut reader = Reader::new(body);
    let byte = if body.is_empty() { 0 } else { reader.u8()? };
    let reason = match (byte, from) {
        (0x00, Sender::Server) => ReasonCode::Success,
        (0x18, _) => ReasonCode::ContinueAuthentication,
        (0x19, Sender::Client) => ReasonCode::ReAuthenticate,
        _ => return Err(Malformed::ReasonCode(byte)),
    };
    let mut auth = Auth { reason, method: None, data: None };
    if body.is_empty() {
        return Ok(auth);
    }
    for property in Properties::read(&mut reader, Place::Auth)? {
        match property? {
            Property::AuthenticationMethod(method) => auth.method = Some(method.to_owned()),
            Property::AuthenticationData(data) => auth.data = Some(data.into()),
            _ => {}
        }
    }
    reader.finish()?;
    if auth.method.is_none() { Err(Malformed::NoAuthenticationMethod) } else { Ok(auth) }
}

fn put_auth(auth: &Auth, out: &mut Vec<u8>) -> Result<(), TooLong> {
    if auth.reason == ReasonCode::Success && auth.method.is_none() {
        return Ok(());
    }
    out.push(auth.reason as u8);
    let method = auth.method.as_deref().map(Property::AuthenticationMethod);
    let data = auth.data.as_deref().map(Property::AuthenticationData);
    put_properties(out, [method, data].into_iter().flatten())
}

/// What the fixed header says of a packet's length.
pub(super) enum Framing {
    /// The header is not complete.
    Unknown,
    /// Bytes of the header, and of the whole packet.
    Known { header: usize, len: usize },
}

/// Reads the Remaining Length (2.1.4) of the packet that `buf` begins with.
pub(super) fn framing(buf: &[u8]) -> Result<Framing, Malformed> {
    let encoded = buf.get(1..).unwrap_or_default();
    let Some(last) = encoded.iter().take(4).position(|byte| byte & 0x80 == 0) else {
        return if encoded.len() < 4 { Ok(Framing::Unknown) } else { Err(Malformed::VariableByteInteger) };
    };
    // mqttbytes lets a length pass that is not minimal [MQTT-1.5.5-1].
    if last > 0 && encoded.get(last) == Some(&0) {
        return Err(Malformed::VariableByteInteger);
    }
    let len = match mqttbytes::check(buf.iter(), usize::MAX) {
        Ok(header) => header.frame_length(),
        Err(mqttbytes::Error::InsufficientBytes(missing)) => buf.len() + missing,
        Err(_) => return Err(Malformed::VariableByteInteger),
    };
    Ok(Framing::Known { header: last + 2, len })
}

/// mqttbytes as an oracle of the differential tests.
#[cfg(test)]
pub(super) mod oracle {
    pub(in crate::mqtt) use mqttbytes::{v4, v5};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::frame::{Cut, cut};

    use Sender::{Client, Server};
    use Version::{V3_1, V3_1_1, V5};

    fn read(bytes: &[u8], version: Version, from: Sender) -> Result<Packet<'_>, Malformed> {
        match cut(bytes, u32::MAX)? {
            Cut::Whole(frame) => {
                assert_eq!(frame.len, bytes.len(), "the test's own Remaining Length");
                decode(frame, version, from)
            }
            Cut::Partial { .. } => panic!("the test's own Remaining Length"),
        }
    }

    #[track_caller]
    fn refused(version: Version, from: Sender, bytes: &[u8], reason: ReasonCode, why: Malformed) {
        assert_eq!(read(bytes, version, from), Err(why), "{bytes:02x?}");
        assert_eq!(why.reason(), reason);
    }

    /// Decodes, and encodes to the same bytes again.
    #[track_caller]
    fn same(version: Version, from: Sender, bytes: &[u8]) -> Packet<'_> {
        let packet = read(bytes, version, from).unwrap();
        let mut again = vec![0xAA];
        encode(&packet, version, &mut again).unwrap();
        assert_eq!(&again[1..], bytes);
        packet
    }

    #[test]
    fn connack() {
        for bytes in [&b"\x20\x02\x01\0"[..], b"\x20\x02\0\x05"] {
            same(V3_1_1, Server, bytes);
        }
        for bytes in [&b"\x20\x03\x01\0\0"[..], b"\x20\x06\0\0\x03\x21\0\x09", b"\x20\x05\0\x87\x02\x24\x01"] {
            same(V5, Server, bytes);
        }
        let ack = ConnAck { session_present: true, reason: ReasonCode::Success, properties: Default::default() };
        let mut out = Vec::new();
        encode(&Packet::ConnAck(Box::new(ack)), V3_1, &mut out).unwrap();
        assert_eq!(out, b"\x20\x02\0\0");
        refused(V5, Server, b"\x20\x03\x02\0\0", ReasonCode::MalformedPacket, Malformed::ConnAckFlags);
        refused(V5, Server, b"\x20\x03\x01\x80\0", ReasonCode::MalformedPacket, Malformed::ConnAckFlags);
        refused(V5, Server, b"\x20\x02\0\0", ReasonCode::MalformedPacket, Malformed::Short);
        refused(V5, Server, b"\x20\x03\0\x01\0", ReasonCode::ProtocolError, Malformed::ReasonCode(1));
        refused(V3_1_1, Server, b"\x20\x02\0\x06", ReasonCode::ProtocolError, Malformed::ReasonCode(6));
        refused(V3_1_1, Server, b"\x20\x03\0\0\0", ReasonCode::MalformedPacket, Malformed::TrailingBytes);
        refused(V3_1_1, Client, b"\x20\x02\0\0", ReasonCode::ProtocolError, Malformed::Direction);
    }

    #[test]
    fn subscribe() {
        for version in [V3_1, V3_1_1] {
            same(version, Client, b"\x82\x0A\0\x01\0\x01a\x00\0\x01#\x02");
            refused(
                version,
                Client,
                b"\x82\x06\0\x01\0\x01a\x04",
                ReasonCode::MalformedPacket,
                Malformed::SubscriptionOptions,
            );
            refused(
                version,
                Client,
                b"\x82\x06\0\x01\0\x01a\x03",
                ReasonCode::ProtocolError,
                Malformed::SubscriptionQoS,
            );
            refused(version, Client, b"\x82\x02\0\x01", ReasonCode::ProtocolError, Malformed::NoTopicFilter);
        }
        let Packet::Subscribe(subscribe) = same(V5, Client, b"\x82\x12\0\x01\x02\x0B\x09\0\x0A$share/g/t\x2A") else {
            panic!("no SUBSCRIBE");
        };
        assert_eq!((subscribe.packet_id.get(), subscribe.subscription_id), (1, Some(9)));
        let (filter, options) = &subscribe.filters[0];
        assert_eq!(filter.as_ref().unwrap().share.as_deref(), Some("g"));
        assert_eq!((options.qos, options.no_local, options.retain_as_published), (QoS::ExactlyOnce, false, true));
        assert_eq!(options.retain_handling, RetainHandling::Never);
        // An invalid filter is refused on its own with 0x8F; the others stand.
        let Packet::Subscribe(subscribe) = same(V5, Client, b"\x82\x10\0\x01\0\0\x03#/a\0\0\0\0\0\x01b\0") else {
            panic!("no SUBSCRIBE");
        };
        let filters: Vec<_> = subscribe.filters.iter().map(|(filter, _)| filter.as_ref().map(drop)).collect();
        assert_eq!(filters, [Err(&"#/a".to_owned()), Err(&String::new()), Ok(())]);

        refused(
            V5,
            Client,
            b"\x82\x07\0\x01\0\0\x01a\xC0",
            ReasonCode::MalformedPacket,
            Malformed::SubscriptionOptions,
        );
        refused(V5, Client, b"\x82\x07\0\x01\0\0\x01a\x03", ReasonCode::ProtocolError, Malformed::SubscriptionQoS);
        refused(V5, Client, b"\x82\x07\0\x01\0\0\x01a\x30", ReasonCode::ProtocolError, Malformed::RetainHandling);
        refused(V5, Client, b"\x82\x03\0\x01\0", ReasonCode::ProtocolError, Malformed::NoTopicFilter);
        refused(V5, Client, b"\x82\x07\0\0\0\0\x01a\0", ReasonCode::MalformedPacket, Malformed::PacketIdZero);
        refused(V5, Client, b"\x82\x06\0\x01\0\0\x01a", ReasonCode::MalformedPacket, Malformed::Short);
        refused(V5, Client, b"\x82\x04\0\x01\0\x10", ReasonCode::MalformedPacket, Malformed::Short); // case D89
        refused(V5, Client, b"\x82\x07\0\x01\0\0\x01\0\0", ReasonCode::MalformedPacket, Malformed::Nul);
        refused(V5, Client, b"\x82\x07\0\x01\0\0\x01\xFF\0", ReasonCode::MalformedPacket, Malformed::Utf8);
        let shared = b"\x82\x10\0\x01\0\0\x0A$share/g/t\x04"; // case D57
        refused(V5, Client, shared, ReasonCode::ProtocolError, Malformed::NoLocalOnShared);
        refused(V5, Server, b"\x82\x07\0\x01\0\0\x01a\0", ReasonCode::ProtocolError, Malformed::Direction);
        // What is sent again has DUP in MQTT 3.1, and RETAIN is left open; only there.
        for first in [0x8A, 0x83, 0x8B] {
            assert!(read(&[&[first][..], b"\x06\0\x01\0\x01a\0"].concat(), V3_1, Client).is_ok());
        }
        refused(V3_1, Client, b"\x80\x06\0\x01\0\x01a\0", ReasonCode::MalformedPacket, Malformed::FixedHeaderFlags);
        refused(V3_1_1, Client, b"\x8A\x06\0\x01\0\x01a\0", ReasonCode::MalformedPacket, Malformed::FixedHeaderFlags);
        refused(V5, Client, b"\x6A\x02\0\x01", ReasonCode::MalformedPacket, Malformed::FixedHeaderFlags);
    }

    #[test]
    fn unsubscribe() {
        same(V3_1_1, Client, b"\xA2\x08\0\x01\0\x01a\0\x01+");
        same(V5, Client, b"\xA2\x0D\0\x01\0\0\x01a\0\x03a#b\0\0");
        for (version, empty) in [(V3_1_1, &b"\xA2\x02\0\x01"[..]), (V5, b"\xA2\x03\0\x01\0")] {
            refused(version, Client, empty, ReasonCode::ProtocolError, Malformed::NoTopicFilter);
        }
        refused(V5, Client, b"\xA2\x07\0\x01\0\0\x03ab", ReasonCode::MalformedPacket, Malformed::Short); // case D62
        refused(V3_1_1, Client, b"\xA2\x05\0\0\0\x01a", ReasonCode::MalformedPacket, Malformed::PacketIdZero);
    }

    #[test]
    fn suback_and_unsuback() {
        same(V3_1_1, Server, b"\x90\x06\0\x01\0\x01\x02\x80");
        same(V5, Server, b"\x90\x06\0\x01\0\x01\x97\xA2");
        same(V3_1_1, Server, b"\xB0\x02\0\x01");
        same(V5, Server, b"\xB0\x05\0\x01\0\0\x11");
        refused(V3_1_1, Server, b"\x90\x03\0\x01\x87", ReasonCode::ProtocolError, Malformed::ReasonCode(0x87));
        refused(V5, Server, b"\x90\x04\0\x01\0\x04", ReasonCode::ProtocolError, Malformed::ReasonCode(4));
        refused(V5, Server, b"\x90\x03\0\x01\0", ReasonCode::MalformedPacket, Malformed::Short);
        refused(V5, Server, b"\xB0\x04\0\x01\0\x01", ReasonCode::ProtocolError, Malformed::ReasonCode(1));
        refused(V3_1_1, Server, b"\xB0\x03\0\x01\0", ReasonCode::MalformedPacket, Malformed::TrailingBytes);
        refused(V5, Client, b"\x90\x04\0\x01\0\0", ReasonCode::ProtocolError, Malformed::Direction);
        // MQTT 3 has one code for every refusal.
        let ack = SubAck { packet_id: 1.try_into().unwrap(), reasons: vec![ReasonCode::NotAuthorized] };
        let mut out = Vec::new();
        encode(&Packet::SubAck(ack), V3_1_1, &mut out).unwrap();
        assert_eq!(out, b"\x90\x03\0\x01\x80");
    }

    #[test]
    fn disconnect() {
        same(V3_1_1, Client, b"\xE0\0");
        for bytes in [&b"\xE0\0"[..], b"\xE0\x01\x04", b"\xE0\x07\0\x05\x11\0\0\0\x09"] {
            same(V5, Client, bytes);
        }
        for bytes in [&b"\xE0\x01\x8E"[..], b"\xE0\x06\x9C\x04\x1C\0\x01s"] {
            same(V5, Server, bytes);
        }
        assert_eq!(
            read(b"\xE0\x02\x04\0", V5, Client),
            Ok(Packet::Disconnect(Disconnect::new(ReasonCode::DisconnectWithWill)))
        );
        refused(V3_1_1, Client, b"\xE0\x01\0", ReasonCode::MalformedPacket, Malformed::TrailingBytes);
        refused(V3_1_1, Server, b"\xE0\0", ReasonCode::ProtocolError, Malformed::Direction);
        refused(V5, Client, b"\xE0\x01\x01", ReasonCode::ProtocolError, Malformed::ReasonCode(1));
        refused(V5, Server, b"\xE0\x01\x04", ReasonCode::ProtocolError, Malformed::ReasonCode(4));
        refused(V5, Client, b"\xE0\x01\x8E", ReasonCode::ProtocolError, Malformed::ReasonCode(0x8E));
        refused(V5, Server, b"\xE0\x07\x8E\x05\x11\0\0\0\x09", ReasonCode::ProtocolError, Malformed::Direction);
        refused(V5, Client, b"\xE0\x06\x80\x04\x1C\0\x01s", ReasonCode::ProtocolError, Malformed::Direction);
        refused(V5, Client, b"\xE0\x03\0\0\0", ReasonCode::MalformedPacket, Malformed::TrailingBytes);
        refused(V5, Client, b"\xE0\x02\0\x05", ReasonCode::MalformedPacket, Malformed::Short);
    }

    #[test]
    fn auth_and_ping() {
        same(V5, Client, b"\xF0\x06\x19\x04\x15\0\x01m");
        same(V5, Server, b"\xF0\x0A\x18\x08\x15\0\x01m\x16\0\x01\xFF");
        same(V5, Server, b"\xF0\0");
        refused(V5, Client, b"\xF0\0", ReasonCode::ProtocolError, Malformed::ReasonCode(0));
        refused(V5, Server, b"\xF0\x06\x19\x04\x15\0\x01m", ReasonCode::ProtocolError, Malformed::ReasonCode(0x19));
        refused(V5, Client, b"\xF0\x02\x18\0", ReasonCode::ProtocolError, Malformed::NoAuthenticationMethod);
        refused(V5, Client, b"\xF0\x01\x18", ReasonCode::MalformedPacket, Malformed::Short);
        refused(V3_1_1, Client, b"\xF0\x06\x19\x04\x15\0\x01m", ReasonCode::MalformedPacket, Malformed::PacketType);
        let auth = Packet::Auth(Auth { reason: ReasonCode::ContinueAuthentication, method: None, data: None });
        assert_eq!(encode(&auth, V3_1_1, &mut Vec::new()), Err(TooLong));
        for version in [V3_1_1, V5] {
            same(version, Client, b"\xC0\0");
            same(version, Server, b"\xD0\0");
            refused(version, Client, b"\xC0\x01\0", ReasonCode::MalformedPacket, Malformed::TrailingBytes);
            refused(version, Client, b"\xD0\0", ReasonCode::ProtocolError, Malformed::Direction);
            refused(version, Server, b"\xC0\0", ReasonCode::ProtocolError, Malformed::Direction);
        }
    }

    #[test]
    fn what_cannot_be_expressed_leaves_no_trace() {
        let mut out = vec![1, 2];
        let mut disconnect = Disconnect::new(ReasonCode::QuotaExceeded);
        disconnect.reason_string = Some("x".repeat(65_536));
        assert_eq!(encode(&Packet::Disconnect(disconnect), V5, &mut out), Err(TooLong));
        assert_eq!(out, [1, 2]);
    }
}
