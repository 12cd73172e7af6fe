//! Tests of the broker without sockets.

mod failures;
mod races;
