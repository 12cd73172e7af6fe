//! The pure rooms of the broker and what is checked of them.
//!
//! Compiled from their sources: they know neither TLS nor storage nor tokio, and so a build for the fuzzer takes seconds. Must not know any
//! other room.

extern crate self as pinnace;

#[path = "../harness/mod.rs"]
pub mod harness;
#[path = "../../src/mqtt/mod.rs"]
pub mod mqtt;
#[path = "../../src/router/mod.rs"]
pub mod router;
#[path = "../../src/session/mod.rs"]
pub mod session;
