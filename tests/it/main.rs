//! The integration tests: a broker in a process of its own, driven over its edges alone (command line, sockets, files, signals).
//!
//! One binary with a module per theme. Must not know the broker's inside: what is tested here is what others see.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking; the exemption of the lints does not reach their support"
)]

mod acl;
mod aliases;
mod auth;
#[cfg(feature = "rocksdb")]
mod backups;
mod clients;
mod clock;
mod config_errors;
mod config_files;
mod conformance;
mod control;
#[cfg(feature = "rocksdb")]
mod damage;
#[cfg(feature = "rocksdb")]
mod disk_faults;
mod drain;
#[cfg(feature = "rocksdb")]
mod durability;
mod first_light;
#[cfg(feature = "rocksdb")]
mod formats;
mod groups;
mod hostile;
#[cfg(feature = "rocksdb")]
mod kill;
mod last_words;
mod limits;
#[cfg(feature = "rocksdb")]
mod lowered_limits;
mod mosquitto_oracle;
mod neighbours;
mod publish_rate;
mod queues;
#[cfg(feature = "rocksdb")]
mod recovering;
mod replay;
mod resuming;
mod retain_source;
mod scram;
mod support;
mod sys;
mod tls;
#[cfg(feature = "rocksdb")]
mod tools;
mod wrong_acknowledgements;
