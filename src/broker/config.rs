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
    /// The most retained messages; 0: no limit.
    pub max_retained_messages: u64,
    /// The most bytes that retained messages take in memory; 0: no limit.
    pub max_retained_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sys_interval_secs: 10,
            max_sessions: 1_000_000,
            max_retained_messages: 1_000_000,
            max_retained_bytes: 1 << 30,
        }
    }
}
