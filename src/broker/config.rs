//! The options of the broker as a whole (`[broker]`).
//!
//! Plain values. Must not know how they are read, nor act on them.

use serde::{Deserialize, Serialize};

/// What all clients share (`[broker]`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How often what the broker tells of itself under `$SYS` is published, in seconds; 0: never.
    pub sys_interval_secs: u16,
    /// The most sessions, connected or kept; 0: no limit.
    pub max_sessions: u64,
    /// The most bytes that wait in all queues together, stored or not; 0: no limit.
    pub max_total_queued_bytes: u64,
    /// The most bytes of what waits on the disk that are in memory, on their way to clients; beyond it each gets a message at a time.
    pub max_resuming_bytes: u64,
    /// The most retained messages; 0: no limit.
    pub max_retained_messages: u64,
    /// The most bytes of retained messages; 0: no limit.
    pub max_retained_bytes: u64,
    /// How many bytes of the last retained messages stay in memory; the others are read from the store when they are sent.
    pub retained_cache_bytes: u64,
    /// How shared subscriptions deal out their messages.
    pub shared_subscriptions: SharedSubscriptions,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sys_interval_secs: 10,
            max_sessions: 1_000_000,
            max_total_queued_bytes: 8 << 30,
            max_resuming_bytes: 16 << 20,
            max_retained_messages: 1_000_000,
            max_retained_bytes: 1 << 30,
            retained_cache_bytes: 16 << 20,
            shared_subscriptions: SharedSubscriptions::default(),
        }
    }
}

/// How shared subscriptions deal out their messages (`[broker.shared_subscriptions]`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedSubscriptions {
    /// Who of a group gets a message.
    pub strategy: Strategy,
    /// When QoS 1 in flight goes to another member.
    pub redeliver: Redeliver,
}

/// Who of a shared group gets a message: always one that is connected and has the right to its topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The one with the fewest QoS 1 and 2 messages in flight from the group.
    LeastInFlight,
    /// The same one as before while it is connected: what comes waits for it.
    Sticky,
    /// One for each publisher, by its client id: what comes waits for it, so that each publisher's order is kept.
    HashPublisher,
}

/// When QoS 1 in flight to a member of a shared group goes to another one [MQTT-4.8.2-5].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redeliver {
    /// When its connection ends.
    #[default]
    OnDisconnect,
    /// When its session ends: until then it waits for its client.
    OnSessionEnd,
}
