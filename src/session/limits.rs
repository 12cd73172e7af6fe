//! The limits of one session: on what a client may send, hold open and make grow (`[session]`).
//!
//! Plain values. Must not know how they are read, nor who enforces them.

use std::num::{NonZeroU16, NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::mqtt::QoS;

/// What the broker grants each client. What CONNACK can say of it, CONNACK says (MQTT 5.0, 3.2.2.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The highest QoS that a client may publish with, and that a subscription is granted [MQTT-3.2.2-9].
    #[serde(with = "maximum_qos")]
    pub maximum_qos: QoS,
    /// Whether a client may publish, and is sent, retained messages (3.2.2.3.5).
    pub retain_available: bool,
    /// Whether a Topic Filter may hold wildcards (3.2.2.3.11).
    pub wildcard_subscriptions_available: bool,
    /// Whether SUBSCRIBE may name a Subscription Identifier (3.2.2.3.12).
    pub subscription_identifiers_available: bool,
    /// Whether a client may join a Shared Subscription (3.2.2.3.13).
    pub shared_subscriptions_available: bool,
    /// Whether a payload that claims to be UTF-8 (Payload Format Indicator 1) is looked at, and refused where it is not (3.3.2.3.2).
    pub check_payload_format: bool,
    /// The topic under which a client that asks for Response Information may be answered (3.1.2.11.6), with `%c` for its Client
    /// Identifier and `%u` for its user name; empty: none is told.
    pub response_topic_prefix: String,
    /// The largest packet accepted from a client, its fixed header included, in bytes (Maximum Packet Size [MQTT-3.2.2-15]).
    pub max_packet_size_bytes: NonZeroU32,
    /// The most QoS 1 and QoS 2 publications of one client that the broker processes at once (Receive Maximum).
    pub receive_maximum: NonZeroU16,
    /// The most QoS 1 and QoS 2 messages in flight to one client; the client's own Receive Maximum may be lower.
    pub max_inflight_messages: NonZeroU16,
    /// The most messages that wait for one session; 0: no limit.
    pub max_queued_messages: u64,
    /// The most bytes that wait for one session, stored or not; 0: no limit.
    pub max_queued_bytes: u64,
    /// What happens to what comes for a session whose queue is full.
    pub queue_full: QueueFull,
    /// Whether QoS 0 messages are queued, too, for a session that is kept while its client is away.
    pub queue_qos0: bool,
    /// The highest topic alias that a client may use towards the broker (Topic Alias Maximum); 0: none.
    pub topic_alias_maximum: u16,
    /// The most topic aliases that a client is sent; its own Topic Alias Maximum may be lower; 0: none.
    pub client_topic_alias_maximum: u16,
    /// The longest Keep Alive in seconds; a longer one, or none, is replaced by it (Server Keep Alive [MQTT-3.2.2-21]).
    /// 0: no limit.
    pub max_keep_alive_secs: u16,
    /// The longest Session Expiry Interval in seconds; 4294967295: a session may be kept for ever.
    pub max_session_expiry_secs: u32,
    /// The most subscriptions of one session.
    pub max_subscriptions: NonZeroU32,
    /// The most levels of a Topic Filter, and of a Topic Name that is retained: each level takes memory.
    pub max_topic_levels: NonZeroU16,
    /// The longest Topic Name and Topic Filter, in bytes.
    pub max_topic_bytes: NonZeroU16,
    /// The most filters of one SUBSCRIBE or UNSUBSCRIBE.
    pub max_filters_per_packet: NonZeroU32,
    /// The most User Properties of one PUBLISH or Will; 0: no limit. Those of other packets are not kept.
    pub max_user_properties: u32,
    /// The most bytes that the properties of one PUBLISH or Will may take where User Properties are among them; 0: no limit.
    pub max_user_property_bytes: u32,
    /// The largest Will, in bytes: its topic, payload and properties.
    pub max_will_bytes: NonZeroU32,
    /// The most messages that a client may publish in a second, on average; 0: no limit. Reading pauses where it is exceeded.
    pub max_publish_messages_per_sec: u32,
    /// The most bytes that a client may publish in a second, on average: topics, payloads and properties; 0: no limit.
    pub max_publish_bytes_per_sec: u32,
    /// How long a new connection may take until its CONNECT (and TLS handshake) is complete, in seconds.
    pub connect_timeout_secs: NonZeroU16,
}

/// What happens to a message for a session whose queue is full. What is in flight is never dropped for another message, and no control
/// packet ever is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueFull {
    /// It is not taken. Its publisher is told by 0x97 where this session is its only receiver; else it is dropped.
    #[default]
    Refuse,
    /// It is dropped.
    DropNewest,
    /// The oldest message that waits is dropped for it.
    DropOldest,
    /// It is dropped, and the client, if it is connected, is disconnected.
    Disconnect,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            maximum_qos: QoS::ExactlyOnce,
            retain_available: true,
            wildcard_subscriptions_available: true,
            subscription_identifiers_available: true,
            shared_subscriptions_available: true,
            check_payload_format: false,
            response_topic_prefix: "response/%c".into(),
            max_packet_size_bytes: nonzero_u32(2 * 1024 * 1024),
            receive_maximum: nonzero_u16(1024),
            max_inflight_messages: nonzero_u16(1024),
            max_queued_messages: 100_000,
            max_queued_bytes: 256 * 1024 * 1024,
            queue_full: QueueFull::Refuse,
            queue_qos0: false,
            topic_alias_maximum: 64,
            client_topic_alias_maximum: 64,
            max_keep_alive_secs: 0,
            max_session_expiry_secs: u32::MAX,
            max_subscriptions: nonzero_u32(10_000),
            max_topic_levels: nonzero_u16(200),
            max_topic_bytes: NonZeroU16::MAX,
            max_filters_per_packet: nonzero_u32(1000),
            max_user_properties: 128,
            max_user_property_bytes: 64 * 1024,
            max_will_bytes: nonzero_u32(128 * 1024),
            max_publish_messages_per_sec: 0,
            max_publish_bytes_per_sec: 0,
            connect_timeout_secs: nonzero_u16(10),
        }
    }
}

/// A QoS as a number.
mod maximum_qos {
    use serde::{Deserializer, Serializer, de};

    use crate::mqtt::QoS;

    pub(super) fn serialize<S: Serializer>(qos: &QoS, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*qos as u8)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<QoS, D::Error> {
        deserializer.deserialize_u8(Level)
    }

    struct Level;

    impl de::Visitor<'_> for Level {
        type Value = QoS;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a QoS: 0, 1 or 2")
        }

        fn visit_u64<E: de::Error>(self, level: u64) -> Result<QoS, E> {
            match level {
                0 => Ok(QoS::AtMostOnce),
                1 => Ok(QoS::AtLeastOnce),
                2 => Ok(QoS::ExactlyOnce),
                other => Err(E::invalid_value(de::Unexpected::Unsigned(other), &self)),
            }
        }
    }
}

fn nonzero_u16(value: u16) -> NonZeroU16 {
    NonZeroU16::new(value).unwrap_or(NonZeroU16::MIN)
}

fn nonzero_u32(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_manual() {
        let limits = Limits::default();
        assert_eq!(limits.max_packet_size_bytes.get(), 2_097_152);
        assert_eq!(limits.receive_maximum.get(), 1024);
        assert_eq!(limits.max_inflight_messages.get(), 1024);
        assert_eq!(limits.max_queued_bytes, 268_435_456);
        assert_eq!(limits.max_subscriptions.get(), 10_000);
        assert_eq!(limits.connect_timeout_secs.get(), 10);
    }
}
