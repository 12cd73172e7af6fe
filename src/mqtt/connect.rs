//! CONNECT (3.1) and CONNACK (3.2).
//!
//! Must not know who may connect, nor what a session is.

use std::num::{NonZeroU16, NonZeroU32};

use super::{
    QoS, ReasonCode, TopicName, Version,
    codec::TooLong,
    malformed::Malformed,
    packet::{ConnAck, ConnAckProperties, Connect, Will},
    property::{Place, Properties, Property, put_properties},
    publish::{Kept, qos},
    wire::{Reader, put_binary, put_u16, put_with_length},
};

/// Decodes the body of a CONNECT of any version.
pub(super) fn decode_connect(body: &[u8]) -> Result<Connect, Malformed> {
    let mut reader = Reader::new(body);
    let name = reader.binary()?;
    let level = reader.u8()?;
    let Some(version) = version(name, level) else {
        // The uppermost bit is a private extension of bridges: it says nothing of the version.
        return Err(Malformed::UnsupportedVersion { level_suggests_v5: level & 0x7F >= 5 });
    };
    let flags = Flags::read(reader.u8()?, version)?;
    let mut connect = Connect {
        version,
        clean_start: flags.clean_start,
        keep_alive_secs: reader.u16()?,
        client_id: String::new(),
        will: None,
        username: None,
        password: None,
        session_expiry_secs: if version.is_v5() || flags.clean_start { 0 } else { NEVER },
        receive_maximum: NonZeroU16::MAX,
        maximum_packet_size: u32::MAX,
        topic_alias_maximum: 0,
        request_response_information: false,
        request_problem_information: true,
        authentication_method: None,
        authentication_data: None,
    };
    if version.is_v5() {
        read_connect_properties(&mut connect, &mut reader)?;
    }
    connect.client_id = reader.text()?.to_owned();
    if let Some((qos, retain)) = flags.will {
        connect.will = Some(read_will(&mut reader, version, qos, retain)?);
    }
    // MQTT 3.1 lets the Remaining Length overrule these two flags.
    let present = |reader: &Reader<'_>| version != Version::V3_1 || !reader.is_empty();
    if flags.username && present(&reader) {
        connect.username = Some(reader.text()?.to_owned());
    }
    if flags.password && present(&reader) {
        connect.password = Some(reader.binary()?.into());
    }
    reader.finish()?;
    Ok(connect)
}

/// The version that `bytes` state, which begin with a CONNECT that may be malformed, its Remaining Length included, or not be whole.
pub fn stated_version(bytes: &[u8]) -> Option<Version> {
    let length = bytes.iter().skip(1).take(4).position(|byte| byte & 0x80 == 0)?;
    let mut reader = Reader::new(bytes.get(length + 2..)?);
    version(reader.binary().ok()?, reader.u8().ok()?)
}

fn version(name: &[u8], level: u8) -> Option<Version> {
    match (name, level) {
        (b"MQIsdp", 3) => Some(Version::V3_1),
        (b"MQTT", 4) => Some(Version::V3_1_1),
        (b"MQTT", 5) => Some(Version::V5),
        _ => None,
    }
}

/// Connect Flags (3.1.2.3).
struct Flags {
    clean_start: bool,
    will: Option<(QoS, bool)>,
    username: bool,
    password: bool,
}

impl Flags {
    fn read(byte: u8, version: Version) -> Result<Self, Malformed> {
        let bit = |n: u8| byte >> n & 1 == 1;
        // MQTT 3.1 does not look at it.
        if bit(0) && version != Version::V3_1 {
            return Err(Malformed::ConnectReservedFlag);
        }
        let flags = Self {
            clean_start: bit(1),
            will: if bit(2) { Some((qos(byte >> 3 & 0b11)?, bit(5))) } else { None },
            username: bit(7),
            password: bit(6),
        };
        // MQTT 3.1 disregards them instead.
        if flags.will.is_none() && byte & 0b0011_1000 != 0 && version != Version::V3_1 {
            return Err(Malformed::WillFlags);
        }
        if flags.password && !flags.username && !version.is_v5() {
            return Err(Malformed::PasswordWithoutUserName);
        }
        Ok(flags)
    }

    fn of(connect: &Connect) -> u8 {
        let mut byte = u8::from(connect.clean_start) << 1;
        if let Some(will) = &connect.will {
            byte |= 1 << 2 | (will.qos as u8) << 3 | u8::from(will.retain) << 5;
        }
        byte | u8::from(connect.password.is_some()) << 6 | u8::from(connect.username.is_some()) << 7
    }
}

fn read_connect_properties(connect: &mut Connect, reader: &mut Reader<'_>) -> Result<(), Malformed> {
    for property in Properties::read(reader, Place::Connect)? {
        match property? {
            Property::SessionExpiryInterval(secs) => connect.session_expiry_secs = secs,
            Property::ReceiveMaximum(maximum) => connect.receive_maximum = maximum,
            Property::MaximumPacketSize(bytes) => connect.maximum_packet_size = bytes.get(),
            Property::TopicAliasMaximum(maximum) => connect.topic_alias_maximum = maximum,
            Property::RequestResponseInformation(wanted) => connect.request_response_information = wanted,
            Property::RequestProblemInformation(wanted) => connect.request_problem_information = wanted,
            Property::AuthenticationMethod(method) => connect.authentication_method = Some(method.to_owned()),
            Property::AuthenticationData(data) => connect.authentication_data = Some(data.into()),
            _ => {}
        }
    }
    if connect.authentication_data.is_some() && connect.authentication_method.is_none() {
        return Err(Malformed::NoAuthenticationMethod);
    }
    Ok(())
}

fn read_will(reader: &mut Reader<'_>, version: Version, qos: QoS, retain: bool) -> Result<Will, Malformed> {
    let (mut delay_secs, mut expiry_secs, mut encoded) = (0, None, Box::default());
    if version.is_v5() {
        let mut properties = Properties::read(reader, Place::Will)?;
        let mut kept = Kept::new(&properties);
        while let Some(property) = properties.next() {
            match property? {
                Property::WillDelayInterval(secs) => delay_secs = secs,
                Property::MessageExpiryInterval(secs) => expiry_secs = Some(secs),
                _ => {
                    kept.keep(&properties);
                    continue;
                }
            }
            kept.skip(&properties);
        }
        encoded = kept.into_encoded().into();
    }
    let topic = TopicName::parse(reader.text_with_nul()?).map_err(Malformed::TopicName)?;
    let payload = reader.binary()?.into();
    Ok(Will { topic, payload, qos, retain, delay_secs, expiry_secs, properties: encoded })
}

impl Will {
    /// Payload Format Indicator 1: the payload claims to be UTF-8 (3.1.3.2.3).
    #[must_use]
    pub fn payload_is_utf8(&self) -> bool {
        Properties::kept(&self.properties).any(|property| property == Ok(Property::PayloadFormatIndicator(true)))
    }
}

/// Appends a CONNECT of its own version, without the fixed header.
pub(super) fn encode_connect(connect: &Connect, out: &mut Vec<u8>) -> Result<(), TooLong> {
    let (name, level): (&[u8], _) = match connect.version {
        Version::V3_1 => (b"MQIsdp", 3),
        Version::V3_1_1 => (b"MQTT", 4),
        Version::V5 => (b"MQTT", 5),
    };
    put_binary(out, name)?;
    out.extend_from_slice(&[level, Flags::of(connect)]);
    put_u16(out, connect.keep_alive_secs);
    if connect.version.is_v5() {
        put_properties(out, connect_properties(connect))?;
    }
    put_binary(out, connect.client_id.as_bytes())?;
    if let Some(will) = &connect.will {
        if connect.version.is_v5() {
            put_with_length(out, |out| put_will_properties(will, out))?;
        }
        put_binary(out, will.topic.as_str().as_bytes())?;
        put_binary(out, &will.payload)?;
    }
    if let Some(username) = &connect.username {
        put_binary(out, username.as_bytes())?;
    }
    if let Some(password) = &connect.password {
        put_binary(out, password)?;
    }
    Ok(())
}

fn connect_properties(connect: &Connect) -> impl Iterator<Item = Property<'_>> {
    let packet_size = NonZeroU32::new(connect.maximum_packet_size).filter(|&size| size != NonZeroU32::MAX);
    let receive_maximum = Some(connect.receive_maximum).filter(|&maximum| maximum != NonZeroU16::MAX);
    [
        Some(connect.session_expiry_secs).filter(|&secs| secs != 0).map(Property::SessionExpiryInterval),
        receive_maximum.map(Property::ReceiveMaximum),
        packet_size.map(Property::MaximumPacketSize),
        Some(connect.topic_alias_maximum).filter(|&maximum| maximum != 0).map(Property::TopicAliasMaximum),
        connect.request_response_information.then_some(Property::RequestResponseInformation(true)),
        (!connect.request_problem_information).then_some(Property::RequestProblemInformation(false)),
        connect.authentication_method.as_deref().map(Property::AuthenticationMethod),
        connect.authentication_data.as_deref().map(Property::AuthenticationData),
    ]
    .into_iter()
    .flatten()
}

fn put_will_properties(will: &Will, out: &mut Vec<u8>) -> Result<(), TooLong> {
    if will.delay_secs != 0 {
        Property::WillDelayInterval(will.delay_secs).write(out)?;
    }
    if let Some(secs) = will.expiry_secs {
        Property::MessageExpiryInterval(secs).write(out)?;
    }
    out.extend_from_slice(&will.properties);
    Ok(())
}

/// Decodes the body of a CONNACK.
pub(super) fn decode_connack(body: &[u8], version: Version) -> Result<ConnAck, Malformed> {
    let mut reader = Reader::new(body);
    let flags = reader.u8()?;
    let code = reader.u8()?;
    let reason = if version.is_v5() { v5_connect_reason(code) } else { v3_connect_reason(code) };
    let reason = reason.ok_or(Malformed::ReasonCode(code))?;
    // [MQTT-3.2.2-1], [MQTT-3.2.2-6]
    if flags > 1 || flags == 1 && reason != ReasonCode::Success {
        return Err(Malformed::ConnAckFlags);
    }
    let properties = if version.is_v5() { read_connack_properties(&mut reader)? } else { ConnAckProperties::default() };
    reader.finish()?;
    // MQTT 3.1 has a reserved byte there.
    Ok(ConnAck { session_present: flags == 1 && version != Version::V3_1, reason, properties })
}

/// [MQTT-3.2.2-8]
fn v5_connect_reason(code: u8) -> Option<ReasonCode> {
    let listed = matches!(code, 0x00 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99..=0x9D | 0x9F);
    ReasonCode::from_u8(code).filter(|_| listed)
}

fn v3_connect_reason(code: u8) -> Option<ReasonCode> {
    Some(match code {
        0 => ReasonCode::Success,
        1 => ReasonCode::UnsupportedProtocolVersion,
        2 => ReasonCode::ClientIdentifierNotValid,
        3 => ReasonCode::ServerUnavailable,
        4 => ReasonCode::BadUserNameOrPassword,
        5 => ReasonCode::NotAuthorized,
        _ => return None,
    })
}

fn read_connack_properties(reader: &mut Reader<'_>) -> Result<ConnAckProperties, Malformed> {
    let mut read = ConnAckProperties::default();
    for property in Properties::read(reader, Place::ConnAck)? {
        match property? {
            Property::SessionExpiryInterval(secs) => read.session_expiry_secs = Some(secs),
            Property::ReceiveMaximum(maximum) => read.receive_maximum = Some(maximum.get()),
            Property::MaximumQoS(qos) => read.maximum_qos = Some(u8::from(qos)),
            Property::RetainAvailable(available) => read.retain_available = Some(available),
            Property::MaximumPacketSize(bytes) => read.maximum_packet_size = Some(bytes.get()),
            Property::AssignedClientIdentifier(id) => read.assigned_client_id = Some(id.to_owned()),
            Property::TopicAliasMaximum(maximum) => read.topic_alias_maximum = Some(maximum),
            Property::ReasonString(reason) => read.reason_string = Some(reason.to_owned()),
            Property::UserProperty((name, value)) => read.user_properties.push((name.to_owned(), value.to_owned())),
            Property::WildcardSubscriptionAvailable(available) => read.wildcard_available = Some(available),
            Property::SubscriptionIdentifierAvailable(available) => read.subscription_ids_available = Some(available),
            Property::SharedSubscriptionAvailable(available) => read.shared_available = Some(available),
            Property::ServerKeepAlive(secs) => read.server_keep_alive = Some(secs),
            Property::ResponseInformation(information) => read.response_information = Some(information.to_owned()),
            Property::ServerReference(reference) => read.server_reference = Some(reference.to_owned()),
            Property::AuthenticationMethod(method) => read.authentication_method = Some(method.to_owned()),
            Property::AuthenticationData(data) => read.authentication_data = Some(data.into()),
            _ => {}
        }
    }
    if read.authentication_data.is_some() && read.authentication_method.is_none() {
        return Err(Malformed::NoAuthenticationMethod);
    }
    Ok(read)
}

/// Appends a CONNACK of MQTT 5.0, without the fixed header.
pub(super) fn encode_connack(ack: &ConnAck, out: &mut Vec<u8>) -> Result<(), TooLong> {
    out.extend_from_slice(&[u8::from(ack.session_present), ack.reason as u8]);
    put_properties(out, connack_properties(&ack.properties))
}

fn connack_properties(properties: &ConnAckProperties) -> impl Iterator<Item = Property<'_>> {
    let p = properties;
    [
        p.session_expiry_secs.map(Property::SessionExpiryInterval),
        p.receive_maximum.and_then(NonZeroU16::new).map(Property::ReceiveMaximum),
        p.maximum_qos.filter(|&qos| qos < 2).map(|qos| Property::MaximumQoS(qos == 1)), // 2 is said by its absence
        p.retain_available.map(Property::RetainAvailable),
        p.maximum_packet_size.and_then(NonZeroU32::new).map(Property::MaximumPacketSize),
        p.assigned_client_id.as_deref().map(Property::AssignedClientIdentifier),
        p.topic_alias_maximum.map(Property::TopicAliasMaximum),
        p.wildcard_available.map(Property::WildcardSubscriptionAvailable),
        p.subscription_ids_available.map(Property::SubscriptionIdentifierAvailable),
        p.shared_available.map(Property::SharedSubscriptionAvailable),
        p.server_keep_alive.map(Property::ServerKeepAlive),
        p.response_information.as_deref().map(Property::ResponseInformation),
        p.server_reference.as_deref().map(Property::ServerReference),
        p.authentication_method.as_deref().map(Property::AuthenticationMethod),
        p.authentication_data.as_deref().map(Property::AuthenticationData),
        p.reason_string.as_deref().map(Property::ReasonString),
    ]
    .into_iter()
    .flatten()
    .chain(p.user_properties.iter().map(|(name, value)| Property::UserProperty((name, value))))
}

/// Session Expiry Interval of a session that never expires (3.1.2.11.2).
const NEVER: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use Version::{V3_1, V3_1_1, V5};

    fn body(name: &[u8], level: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
        [&[0, name.len() as u8][..], name, &[level, flags, 0, 60], rest].concat()
    }

    /// A CONNECT with `rest` after the Keep Alive.
    fn read(version: Version, flags: u8, rest: &[u8]) -> Result<Connect, Malformed> {
        match version {
            V3_1 => decode_connect(&body(b"MQIsdp", 3, flags, rest)),
            V3_1_1 => decode_connect(&body(b"MQTT", 4, flags, rest)),
            V5 => decode_connect(&body(b"MQTT", 5, flags, rest)),
        }
    }

    #[test]
    fn what_version_3_says() {
        for version in [V3_1, V3_1_1] {
            let connect = read(version, 0b1110_1110, b"\0\x02id\0\x01t\0\x02\0\xFF\0\0\0\x02\xFF\xFE").unwrap();
            let will = connect.will.unwrap();
            assert_eq!((connect.version, connect.clean_start, connect.keep_alive_secs), (version, true, 60));
            assert_eq!((will.topic.as_str(), &*will.payload), ("t", &[0, 0xFF][..]));
            assert_eq!((will.qos, will.retain), (QoS::AtLeastOnce, true));
            // A user name that is empty is one; a password is bytes.
            assert_eq!((connect.username.as_deref(), connect.password.as_deref()), (Some(""), Some(&[0xFF, 0xFE][..])));
            assert_eq!(connect.session_expiry_secs, 0);
            assert_eq!(read(version, 0, b"\0\x02id").unwrap().session_expiry_secs, u32::MAX);
            assert_eq!(read(version, 0x40, b"\0\0\0\0"), Err(Malformed::PasswordWithoutUserName));
        }
        // MQTT 3.1 disregards the reserved flag and Will QoS without Will Flag, and takes an absent password for none.
        assert_eq!(read(V3_1, 0b0000_1001, b"\0\x02id").unwrap().will, None);
        assert_eq!(read(V3_1, 0b1100_0000, b"\0\x02id\0\x01u").unwrap().password, None);
    }

    #[test]
    fn what_version_5_says() {
        let properties = b"\x1C\x11\0\0\0\x09\x21\0\x05\x27\0\0\x01\0\x22\0\x07\x19\x01\x17\0\x15\0\x01m\x16\0\x01\xFF";
        let rest = [&properties[..], b"\0\0\x05\x18\0\0\0\x03\0\x01t\0\0\0\x01p"].concat();
        let connect = read(V5, 0x44, &rest).unwrap();
        assert_eq!((connect.session_expiry_secs, connect.receive_maximum.get()), (9, 5));
        assert_eq!((connect.maximum_packet_size, connect.topic_alias_maximum), (256, 7));
        assert_eq!((connect.request_response_information, connect.request_problem_information), (true, false));
        assert_eq!(connect.authentication_method.as_deref(), Some("m"));
        assert_eq!(connect.authentication_data.as_deref(), Some(&[0xFF][..]));
        assert_eq!((connect.will.unwrap().delay_secs, connect.password.as_deref()), (3, Some(&b"p"[..])));
        assert_eq!(read(V5, 0, b"\x04\x16\0\x01x\0\0"), Err(Malformed::NoAuthenticationMethod));
    }

    #[test]
    fn refusals() {
        for version in [V3_1_1, V5] {
            let none: &[u8] = if version.is_v5() { b"\0" } else { b"" };
            let of = |flags, rest: &[u8]| read(version, flags, &[none, rest].concat()).map(drop);
            assert_eq!(of(0, b"\0\x02id"), Ok(()));
            assert_eq!(of(1, b"\0\x02id"), Err(Malformed::ConnectReservedFlag));
            assert_eq!(of(0b0000_1000, b"\0\x02id"), Err(Malformed::WillFlags));
            assert_eq!(of(0b0010_0000, b"\0\x02id"), Err(Malformed::WillFlags));
            assert_eq!(of(0b0001_1100, b"\0\x02id"), Err(Malformed::QoS));
            assert_eq!(of(0, b"\0\x02id\0"), Err(Malformed::TrailingBytes));
            assert_eq!(of(0, b"\0\x03id"), Err(Malformed::Short));
            assert_eq!(of(0, b""), Err(Malformed::Short));
            assert_eq!(of(0xC0, b"\0\x02id\0\x01u"), Err(Malformed::Short));
            assert_eq!(of(0, b"\0\x02i\0"), Err(Malformed::Nul));
            assert_eq!(of(0x80, b"\0\0\0\x01\xFF"), Err(Malformed::Utf8));
            for topic in [&b"\0\x01#"[..], b"\0\0", b"\0\x01\0"] {
                let will = [b"\0\0", none, topic, b"\0\0"].concat();
                assert!(matches!(of(4, &will), Err(Malformed::TopicName(_))));
            }
        }
        assert_eq!(decode_connect(b"\0\x04MQ"), Err(Malformed::Short));
    }

    #[test]
    fn the_version_of_what_is_malformed() {
        let whole = [&[0x10, 0x0B][..], &body(b"MQTT", 5, 1, b"")].concat();
        assert_eq!(stated_version(&whole), Some(V5));
        assert_eq!(stated_version(&whole[..9]), Some(V5), "what it promises has not come");
        assert_eq!(stated_version(&[&[0x10, 0xFF, 0xFF, 0x7F][..], &body(b"MQTT", 4, 1, b"")].concat()), Some(V3_1_1));
        assert_eq!(stated_version(&whole[..8]), None);
        assert_eq!(stated_version(&[]), None);
        assert_eq!(stated_version(&[&[0x10, 0x8B, 0][..], &whole[2..]].concat()), Some(V5), "not minimal");
        assert_eq!(stated_version(&[&[0x10, 0x8B, 0x80, 0x80, 0][..], &whole[2..]].concat()), Some(V5));
        assert_eq!(stated_version(&[&[0x10, 0x8B, 0x80, 0x80, 0x80, 0][..], &whole[2..]].concat()), None, "no length");
        assert_eq!(stated_version(&[&[0x10, 0x0B][..], &body(b"MQTT", 6, 1, b"")].concat()), None);
    }

    /// [MQTT-3.1.2-1], [MQTT-3.1.2-2]
    #[test]
    fn unsupported_versions() {
        #[track_caller]
        fn check(name: &[u8], level: u8, level_suggests_v5: bool) {
            let why = Malformed::UnsupportedVersion { level_suggests_v5 };
            assert_eq!(decode_connect(&body(name, level, 0, b"\0\0")), Err(why));
            assert_eq!(why.reason(), ReasonCode::UnsupportedProtocolVersion);
        }
        check(b"MQTT", 3, false);
        check(b"MQTT", 6, true);
        check(b"MQTT", 0x84, false);
        check(b"MQIsdp", 0x83, false);
        check(b"MQTT", 0x85, true);
        check(b"MQIsdp", 4, false);
        check(b"HTTP", 5, true);
        check(b"mqtt", 4, false);
    }
}
