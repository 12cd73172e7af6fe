//! What the tests stand on: a broker in its own process, a raw client, real clients and certificates.
//!
//! Knows the command line and the wire, nothing of the broker's inside.

#![allow(dead_code, reason = "each theme uses its part of the support")]

pub mod broker;
pub mod certs;
pub mod client;
pub mod clock;
pub mod disk;
pub mod scram;
pub mod tools;
pub mod wire;

use std::time::{Duration, Instant};

pub use broker::{Broker, Setup};
pub use client::{Client, Connect, Lost, Will};
pub use clock::WallClock;
pub use disk::Disk;
pub use wire::{Packet, Value};

/// How long a test waits for what must come: long, since many brokers run at once in a debug build.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `ready` gives something, looking every few milliseconds; fails with `what` at the deadline.
pub fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A small reproducible generator of numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The seed in `PINNACE_SEED`, else one of the clock; printed, so that a failure can be repeated.
    pub fn seeded(test: &str) -> Self {
        let seed = std::env::var("PINNACE_SEED").ok().map_or_else(
            || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64,
            |text| text.parse().expect("PINNACE_SEED is a number"),
        );
        println!("{test}: PINNACE_SEED={seed}");
        Self::new(seed)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    /// Another generator, which goes on by itself.
    pub fn fork(&mut self) -> Self {
        Self::new(self.below(u64::MAX))
    }

    /// Bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}
