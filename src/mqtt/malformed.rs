//! [`Malformed`]: what is wrong with bytes that a peer sent.
//!
//! Must not know what the connection does about it: only the Reason Code that fits.

use thiserror::Error;

use super::{ReasonCode, topic::InvalidTopic};

/// Why bytes are no packet of MQTT, or one that the specification forbids (4.13). The connection ends with any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Type 0, or type 15 before MQTT 5.0 (2.1.2).
    #[error("reserved packet type")]
    PacketType,
    /// [MQTT-2.1.3-1], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1]
    #[error("reserved flags in the fixed header")]
    FixedHeaderFlags,
    /// [MQTT-3.3.1-4], [MQTT-3.1.2-12]
    #[error("QoS 3")]
    QoS,
    /// [MQTT-3.3.1-2]
    #[error("DUP with QoS 0")]
    DupWithQoS0,
    /// [MQTT-1.5.5-1]; also one of more than four bytes.
    #[error("a Variable Byte Integer that is too long or not minimal")]
    VariableByteInteger,
    /// 3.1.2.11.4, 3.2.2.3.6
    #[error("a packet of more than the maximum packet size")]
    PacketTooLarge,
    /// A field, or the packet itself, ends too early.
    #[error("a packet that ends within a field")]
    Short,
    /// Bytes after the last field.
    #[error("bytes after the last field")]
    TrailingBytes,
    /// [MQTT-1.5.4-1]
    #[error("text that is not UTF-8")]
    Utf8,
    /// [MQTT-1.5.4-2]
    #[error("text with NUL")]
    Nul,
    /// [MQTT-2.2.1-3]
    #[error("packet identifier 0")]
    PacketIdZero,
    /// A Topic Name that is none [MQTT-3.3.2-2], [MQTT-4.7.3-1].
    #[error("invalid Topic Name: {0}")]
    TopicName(#[source] InvalidTopic),
    /// [MQTT-3.1.2-1], [MQTT-3.1.2-2]
    #[error("unsupported protocol name or level")]
    UnsupportedVersion {
        /// Answer in the form of MQTT 5.0, not in that of 3.1.1.
        level_suggests_v5: bool,
    },
    /// [MQTT-3.1.2-3]
    #[error("reserved flag in CONNECT")]
    ConnectReservedFlag,
    /// [MQTT-3.1.2-11], [MQTT-3.1.2-13]
    #[error("Will QoS or Will Retain without Will Flag")]
    WillFlags,
    /// [MQTT311-3.1.2-22]
    #[error("password without user name")]
    PasswordWithoutUserName,
    /// [MQTT-3.2.2-1]
    #[error("reserved flags in CONNACK")]
    ConnAckFlags,
    /// [MQTT-3.8.3-5], [MQTT311-3.8.3-4]
    #[error("reserved bits in the subscription options")]
    SubscriptionOptions,
    /// 3.8.3.1
    #[error("QoS 3 in the subscription options")]
    SubscriptionQoS,
    /// 3.8.3.1
    #[error("Retain Handling 3")]
    RetainHandling,
    /// [MQTT-3.8.3-4]
    #[error("No Local on a Shared Subscription")]
    NoLocalOnShared,
    /// [MQTT-3.8.3-2], [MQTT-3.10.3-2]
    #[error("no Topic Filter")]
    NoTopicFilter,
    /// 2.2.2.2: an Identifier that the specification does not name.
    #[error("unknown property {0:#04x}")]
    UnknownProperty(u8),
    /// 2.2.2.2: an Identifier that is not valid for this packet.
    #[error("property {0:#04x} does not belong to this packet")]
    ForeignProperty(u8),
    /// A property that stands twice and must not (3.1.2.11 and its like).
    #[error("property {0:#04x} stands twice")]
    DuplicateProperty(u8),
    /// A value that the property's own section forbids (3.1.2.11 and its like).
    #[error("property {0:#04x} has a forbidden value")]
    PropertyValue(u8),
    /// [MQTT-3.3.2-14]
    #[error("invalid Response Topic: {0}")]
    ResponseTopic(#[source] InvalidTopic),
    /// [MQTT-3.3.4-6]
    #[error("a client's PUBLISH with a Subscription Identifier")]
    SubscriptionIdFromClient,
    /// 3.3.2.1: neither Topic Name nor Topic Alias.
    #[error("neither Topic Name nor Topic Alias")]
    NoTopic,
    /// [MQTT-3.3.2-8]
    #[error("Topic Alias 0")]
    TopicAliasZero,
    /// 3.1.2.11.10, 3.15.2.2.2
    #[error("no Authentication Method")]
    NoAuthenticationMethod,
    /// A Reason Code that the specification does not list for this packet ([MQTT-3.4.2-1] and its like).
    #[error("reason code {0:#04x} does not belong to this packet")]
    ReasonCode(u8),
    /// A packet (2.1.2), reason or property that only the other side sends.
    #[error("a packet, reason or property that only the other side sends")]
    Direction,
}

impl Malformed {
    /// The Reason Code to close with (4.13).
    #[must_use]
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::PacketTooLarge => ReasonCode::PacketTooLarge,
            Self::UnsupportedVersion { .. } => ReasonCode::UnsupportedProtocolVersion,
            Self::TopicAliasZero => ReasonCode::TopicAliasInvalid,
            Self::SubscriptionQoS
            | Self::RetainHandling
            | Self::NoLocalOnShared
            | Self::NoTopicFilter
            | Self::DuplicateProperty(_)
            | Self::PropertyValue(_)
            | Self::ResponseTopic(_)
            | Self::SubscriptionIdFromClient
            | Self::NoTopic
            | Self::NoAuthenticationMethod
            | Self::ReasonCode(_)
            | Self::Direction => ReasonCode::ProtocolError,
            _ => ReasonCode::MalformedPacket,
        }
    }
}
