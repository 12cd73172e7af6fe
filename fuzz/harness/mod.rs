//! What must hold for every input: the bodies of the fuzz targets, which `cargo test` runs too (tests/fuzz.rs).
//!
//! Each takes any bytes and panics where a promise is broken. Must not know who chose the bytes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a broken promise is found by a panic"
)]

pub mod codec;
pub mod session;
pub mod topics;

/// A target: its name and what is run on each input.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[("codec", codec::run), ("session", session::run), ("topics", topics::run)];
