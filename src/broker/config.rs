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
}

impl Default for Config {
    fn default() -> Self {
        Self { sys_interval_secs: 10 }
    }
}
