//! The Application Message: built once when a PUBLISH is accepted, then immutable and shared.
//!
//! Must not know which sessions receive it, nor how it is stored.

use super::{QoS, TopicName};

/// Milliseconds since the Unix epoch. Taken from a clock that never steps back; always passed in, never read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time `secs` seconds later, saturating.
    #[must_use]
    pub fn plus_secs(self, secs: u64) -> Self {
        Self(self.0.saturating_add(secs.saturating_mul(1000)))
    }

    /// The time `millis` milliseconds later, saturating.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Milliseconds from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub fn millis_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// An Application Message on its way through the broker (MQTT 5.0, 1.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was published; aliases are resolved.
    pub topic: TopicName,
    /// The Application Message itself.
    pub payload: Box<[u8]>,
    /// The QoS that the publisher chose. A subscription may lower it, never raise it [MQTT-3.8.4-8].
    pub qos: QoS,
    /// The RETAIN flag as published.
    pub retain: bool,
    /// The encoded properties that are forwarded unaltered and in order (payload format, content type, response topic,
    /// correlation data, user properties): [MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-18], [MQTT-3.3.2-20].
    /// Empty for a message published with MQTT 3. Without the leading Property Length.
    pub properties: Box<[u8]>,
    /// When it expires (Message Expiry Interval, counted from its receipt), if ever [MQTT-3.3.2-5].
    pub expires_at: Option<Timestamp>,
    /// The session that published it, for No Local [MQTT-3.8.3-3]; 0 where no session did.
    pub publisher: u64,
}

impl Message {
    /// Whether the Message Expiry Interval has passed [MQTT-3.3.2-5].
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The Message Expiry Interval to send at `now`, in seconds: what was received less the time waited, rounded up
    /// [MQTT-3.3.2-6].
    #[must_use]
    pub fn expiry_secs_left(&self, now: Timestamp) -> Option<u32> {
        let left = self.expires_at?.millis_since(now).div_ceil(1000);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Bytes that it holds in memory, roughly: what limits count.
    #[must_use]
    pub fn size(&self) -> usize {
        self.topic.as_str().len() + self.payload.len() + self.properties.len() + 96
    }
}
