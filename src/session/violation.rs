//! What a client did against the specification or its own terms: one variant per broken clause.
//!
//! Must not know how the client is told.

use thiserror::Error;

use crate::mqtt::{PacketId, ReasonCode};

/// Why a connection must end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// A second CONNECT.
    #[error("[MQTT-3.1.0-2] a second CONNECT")]
    SecondConnect,
    /// A packet that only a server sends.
    #[error("[MQTT-4.13.1-1] a packet that only a server sends")]
    ServerPacket,
    /// AUTH, though CONNECT named no method.
    #[error("[MQTT-4.12.0-6] AUTH in a session that has no Authentication Method")]
    AuthWithoutMethod,
    /// AUTH names another method than CONNECT did.
    #[error("[MQTT-4.12.0-5] AUTH with another Authentication Method than CONNECT")]
    AuthMethodChanged,
    /// AUTH that nothing asked for, or that begins an exchange while one is under way.
    #[error("[MQTT-4.12.0-3] AUTH with reason {:#04x} out of turn", *.0 as u8)]
    AuthOutOfTurn(ReasonCode),
    /// Before CONNACK came what is neither AUTH nor DISCONNECT, though CONNECT named a method.
    #[error("[MQTT-3.1.2-30] a packet other than AUTH and DISCONNECT before CONNACK")]
    BeforeConnAck,
    /// DISCONNECT raises the Session Expiry Interval from 0.
    #[error("[MQTT-3.14.2-2] DISCONNECT sets a Session Expiry Interval though CONNECT had 0")]
    ExpiryRaisedFromZero,
    /// More QoS 1 and 2 PUBLISHes in flight than the Receive Maximum.
    #[error("[MQTT-3.3.4-7] more QoS 1 and 2 PUBLISHes unacknowledged than Receive Maximum {0}")]
    ReceiveMaximumExceeded(u16),
    /// A Topic Alias above the maximum.
    #[error("[MQTT-3.3.2-9] topic alias {0} is above the maximum")]
    TopicAliasInvalid(u16),
    /// A Topic Alias that stands for no topic yet (3.3.2.3.4).
    #[error("topic alias {0} was never set")]
    TopicAliasUnknown(u16),
    /// PUBACK, PUBREC or PUBCOMP for a message that waits for another of them.
    #[error("[MQTT-4.3.2-4], [MQTT-4.3.3-8] an acknowledgement of the wrong kind for packet id {0}")]
    WrongAcknowledgement(PacketId),
    /// A SUBACK or UNSUBACK would be larger than the client takes.
    #[error("[MQTT-3.1.2-25] the answer is larger than the client's Maximum Packet Size")]
    AnswerTooLarge,
    /// A PUBLISH above the Maximum QoS.
    #[error("[MQTT-3.2.2-11] a PUBLISH above Maximum QoS {0} (session.maximum_qos)")]
    QoSNotSupported(u8),
    /// A PUBLISH with RETAIN, though retained messages are not available.
    #[error("[MQTT-3.2.2-14] a PUBLISH with RETAIN, which is not available (session.retain_available)")]
    RetainNotSupported,
    /// A Topic Name that is too long.
    #[error("a topic of more than {0} bytes (session.max_topic_bytes)")]
    TopicTooLong(u16),
    /// Too many filters in one SUBSCRIBE or UNSUBSCRIBE.
    #[error("more than {0} filters in one packet (session.max_filters_per_packet)")]
    TooManyFilters(u32),
    /// Too many User Properties.
    #[error("more than {0} User Properties in one packet (session.max_user_properties)")]
    TooManyUserProperties(u32),
    /// User Properties that take too much.
    #[error("properties of more than {0} bytes (session.max_user_property_bytes)")]
    UserPropertiesTooLarge(u32),
    /// A Will that is too large.
    #[error("a will of more than {0} bytes (session.max_will_bytes)")]
    WillTooLarge(u32),
    /// A PUBLISH of QoS 0 whose payload is not what its Payload Format Indicator says (3.3.2.3.2).
    #[error("a PUBLISH whose payload is not the UTF-8 that it claims to be (session.check_payload_format)")]
    PayloadFormatInvalid,
    /// A retained message whose Topic Name has too many levels.
    #[error("a retained message whose topic has more than {0} levels (session.max_topic_levels)")]
    TooManyLevels(u16),
    /// Nothing was received for one and a half times the Keep Alive.
    #[error("[MQTT-3.1.2-22] nothing received for one and a half times the Keep Alive")]
    KeepAliveTimeout,
    /// A commit failed, and the packet that would say so has no Reason Code for it.
    #[error("the store could not make durable what an acknowledgement stands for")]
    NotDurable,
}

impl Violation {
    /// The Reason Code of the DISCONNECT that tells the client.
    #[must_use]
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::SecondConnect
            | Self::ServerPacket
            | Self::AuthWithoutMethod
            | Self::AuthMethodChanged
            | Self::AuthOutOfTurn(_)
            | Self::BeforeConnAck
            | Self::ExpiryRaisedFromZero
            | Self::WrongAcknowledgement(_)
            | Self::TopicAliasUnknown(_) => ReasonCode::ProtocolError,
            Self::ReceiveMaximumExceeded(_) => ReasonCode::ReceiveMaximumExceeded,
            Self::TopicAliasInvalid(_) => ReasonCode::TopicAliasInvalid,
            Self::AnswerTooLarge => ReasonCode::PacketTooLarge,
            Self::QoSNotSupported(_) => ReasonCode::QoSNotSupported,
            Self::RetainNotSupported => ReasonCode::RetainNotSupported,
            Self::TooManyLevels(_) | Self::TopicTooLong(_) => ReasonCode::TopicNameInvalid,
            Self::TooManyFilters(_)
            | Self::TooManyUserProperties(_)
            | Self::UserPropertiesTooLarge(_)
            | Self::WillTooLarge(_) => ReasonCode::QuotaExceeded,
            Self::PayloadFormatInvalid => ReasonCode::PayloadFormatInvalid,
            Self::KeepAliveTimeout => ReasonCode::KeepAliveTimeout,
            Self::NotDurable => ReasonCode::ImplementationSpecificError,
        }
    }
}
