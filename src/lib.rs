//! Pinnace, an MQTT broker for fleets of IoT devices.
//!
//! The rooms below stand in the order of their dependencies; `ARCHITECTURE.md` is the plan, `tests/tidy.rs` keeps it.

pub mod metrics;
pub mod mqtt;

pub mod auth;
pub mod router;
pub mod session;
pub mod storage;

pub mod broker;
pub mod clock;

pub mod control;
pub mod net;

pub mod config;
pub mod server;

pub mod cli;
