//! The Control Packets of MQTT 3.1, 3.1.1 and 5.0 as one set of values. The version is data, never a second set of types.
//!
//! Knows nothing of how a packet is encoded (`codec`, `publish`) or what a session makes of it.

use std::{borrow::Cow, num::NonZeroU16};

use super::{Filter, QoS, ReasonCode, TopicName};

/// A Packet Identifier; zero is never one [MQTT-2.2.1-3].
pub type PacketId = NonZeroU16;

/// The protocol level of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// MQTT 3.1 (`MQIsdp`, level 3).
    V3_1,
    /// MQTT 3.1.1 (level 4).
    V3_1_1,
    /// MQTT 5.0 (level 5).
    V5,
}

impl Version {
    /// Whether packets carry properties and acknowledgements carry Reason Codes.
    #[must_use]
    pub fn is_v5(self) -> bool {
        self == Self::V5
    }
}

/// Any Control Packet, borrowed from the read buffer where that saves a copy on the message path.
#[derive(Debug, Clone, PartialEq)]
pub enum Packet<'a> {
    /// 3.1
    Connect(Box<Connect>),
    /// 3.2
    ConnAck(Box<ConnAck>),
    /// 3.3
    Publish(Publish<'a>),
    /// 3.4 to 3.7
    Ack(AckKind, Ack),
    /// 3.8
    Subscribe(Subscribe),
    /// 3.9
    SubAck(SubAck),
    /// 3.10
    Unsubscribe(Unsubscribe),
    /// 3.11
    UnsubAck(SubAck),
    /// 3.12
    PingReq,
    /// 3.13
    PingResp,
    /// 3.14
    Disconnect(Disconnect),
    /// 3.15
    Auth(Auth),
}

/// Which of the four acknowledgements of a PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AckKind {
    PubAck,
    PubRec,
    PubRel,
    PubComp,
}

/// A PUBACK, PUBREC, PUBREL or PUBCOMP. A Reason String and User Properties are checked on receipt and not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The id of the PUBLISH that it acknowledges.
    pub packet_id: PacketId,
    /// Success in MQTT 3.
    pub reason: ReasonCode,
}

/// A PUBLISH as received: slices of the read buffer, already checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Publish<'a> {
    /// DUP [MQTT-3.3.1-1].
    pub dup: bool,
    /// QoS level.
    pub qos: QoS,
    /// RETAIN.
    pub retain: bool,
    /// Well-formed, without wildcards and NUL; empty where only a Topic Alias names the topic.
    pub topic: &'a str,
    /// Present exactly when `qos` is above 0 [MQTT-2.2.1-2].
    pub packet_id: Option<PacketId>,
    /// Topic Alias, never 0 [MQTT-3.3.2-8].
    pub topic_alias: Option<NonZeroU16>,
    /// Message Expiry Interval, in seconds.
    pub expiry_secs: Option<u32>,
    /// Payload Format Indicator 1: the payload claims to be UTF-8.
    pub payload_is_utf8: bool,
    /// See [`super::Message::properties`]; borrowed unless an alias or expiry stood among them.
    pub properties: Cow<'a, [u8]>,
    /// Only in what a server sends, in order; a client that sends one is refused by the codec [MQTT-3.3.4-6].
    pub subscription_ids: Vec<u32>,
    /// The Application Message.
    pub payload: &'a [u8],
}

/// A CONNECT (3.1).
#[derive(Debug, Clone, PartialEq)]
pub struct Connect {
    /// Protocol Name and Level.
    pub version: Version,
    /// Clean Start; Clean Session in MQTT 3.
    pub clean_start: bool,
    /// Keep Alive, in seconds; 0 turns it off.
    pub keep_alive_secs: u16,
    /// May be empty: the server then assigns one.
    pub client_id: String,
    /// The Will, if any.
    pub will: Option<Will>,
    /// User Name.
    pub username: Option<String>,
    /// Password: bytes, not text.
    pub password: Option<Box<[u8]>>,
    /// Session Expiry Interval, in seconds; 0xFFFF_FFFF never expires. For MQTT 3 the codec gives 0 with Clean Session 1
    /// and 0xFFFF_FFFF with Clean Session 0, which is what that bit meant.
    pub session_expiry_secs: u32,
    /// How many QoS 1 and 2 PUBLISHes may be unacknowledged towards the client; 65,535 when absent.
    pub receive_maximum: NonZeroU16,
    /// Largest packet the client takes, in bytes; `u32::MAX` when absent.
    pub maximum_packet_size: u32,
    /// How many topic aliases the client takes; 0 when absent.
    pub topic_alias_maximum: u16,
    /// The client asks for Response Information in CONNACK.
    pub request_response_information: bool,
    /// The client accepts Reason Strings and User Properties on any packet.
    pub request_problem_information: bool,
    /// Authentication Method.
    pub authentication_method: Option<String>,
    /// Authentication Data.
    pub authentication_data: Option<Box<[u8]>>,
}

/// The Will of a CONNECT (3.1.2.5, 3.1.3.2).
#[derive(Debug, Clone, PartialEq)]
pub struct Will {
    /// Will Topic.
    pub topic: TopicName,
    /// Will Payload.
    pub payload: Box<[u8]>,
    /// Will QoS.
    pub qos: QoS,
    /// Will Retain.
    pub retain: bool,
    /// Will Delay Interval, in seconds; 0 when absent.
    pub delay_secs: u32,
    /// Message Expiry Interval, in seconds, counted from the publication.
    pub expiry_secs: Option<u32>,
    /// As in [`super::Message::properties`].
    pub properties: Box<[u8]>,
}

/// A CONNACK (3.2). In MQTT 3 only `session_present` and `reason` are sent.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnAck {
    /// Session Present [MQTT-3.2.2-2].
    pub session_present: bool,
    /// Connect Reason Code; its shadow is the return code of MQTT 3.
    pub reason: ReasonCode,
    /// The rest; every `None` is left out.
    pub properties: ConnAckProperties,
}

/// Properties of a CONNACK (3.2.2.3).
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs)] // each is named as in 3.2.2.3
pub struct ConnAckProperties {
    pub session_expiry_secs: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub maximum_qos: Option<u8>,
    pub retain_available: Option<bool>,
    pub maximum_packet_size: Option<u32>,
    pub assigned_client_id: Option<String>,
    pub topic_alias_maximum: Option<u16>,
    pub reason_string: Option<String>,
    pub user_properties: Vec<(String, String)>,
    pub wildcard_available: Option<bool>,
    pub subscription_ids_available: Option<bool>,
    pub shared_available: Option<bool>,
    pub server_keep_alive: Option<u16>,
    pub response_information: Option<String>,
    pub server_reference: Option<String>,
    pub authentication_method: Option<String>,
    pub authentication_data: Option<Box<[u8]>>,
}

/// A SUBSCRIBE (3.8).
#[derive(Debug, Clone, PartialEq)]
pub struct Subscribe {
    /// Its Packet Identifier.
    pub packet_id: PacketId,
    /// Subscription Identifier, 1 to 268,435,455.
    pub subscription_id: Option<u32>,
    /// Never empty. A filter that is well-formed UTF-8 but no valid Topic Filter is `Err` with the text, and is refused on its own
    /// with 0x8F; the others stand.
    pub filters: Vec<(Result<Filter, String>, SubscriptionOptions)>,
}

/// Subscription Options (3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// Maximum QoS of what is sent.
    pub qos: QoS,
    /// No Local [MQTT-3.8.3-3].
    pub no_local: bool,
    /// Retain As Published [MQTT-3.3.1-12].
    pub retain_as_published: bool,
    /// Retain Handling [MQTT-3.3.1-9] to [MQTT-3.3.1-11].
    pub retain_handling: RetainHandling,
}

/// When a SUBSCRIBE is answered with retained messages (3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainHandling {
    /// 0: at each subscribe.
    Send = 0,
    /// 1: only where the subscription is new.
    SendIfNew = 1,
    /// 2: never.
    Never = 2,
}

/// A SUBACK or UNSUBACK (3.9, 3.11); the codes stand in the order of the filters [MQTT-3.9.3-1].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubAck {
    /// The id of what it answers.
    pub packet_id: PacketId,
    /// One per filter. UNSUBACK of MQTT 3 sends none.
    pub reasons: Vec<ReasonCode>,
}

/// An UNSUBSCRIBE (3.10).
#[derive(Debug, Clone, PartialEq)]
pub struct Unsubscribe {
    /// Its Packet Identifier.
    pub packet_id: PacketId,
    /// Never empty; `Err` as in [`Subscribe::filters`].
    pub filters: Vec<Result<Filter, String>>,
}

/// A DISCONNECT (3.14).
#[derive(Debug, Clone, PartialEq)]
pub struct Disconnect {
    /// Success in MQTT 3.
    pub reason: ReasonCode,
    /// Session Expiry Interval, in seconds; only a client sends it.
    pub session_expiry_secs: Option<u32>,
    /// Reason String.
    pub reason_string: Option<String>,
    /// Server Reference; only a server sends it.
    pub server_reference: Option<String>,
}

impl Disconnect {
    /// One that carries nothing but its reason.
    #[must_use]
    pub fn new(reason: ReasonCode) -> Self {
        Self { reason, session_expiry_secs: None, reason_string: None, server_reference: None }
    }
}

/// An AUTH (3.15).
#[derive(Debug, Clone, PartialEq)]
pub struct Auth {
    /// Success, Continue authentication, or Re-authenticate.
    pub reason: ReasonCode,
    /// Authentication Method.
    pub method: Option<String>,
    /// Authentication Data.
    pub data: Option<Box<[u8]>>,
}
