//! Sockets: accept, limits, transports, and the loop that drives one connection.
//!
//! Must not know storage or the router: it carries bytes to a session and asks the broker for the rest.

mod admission;
mod authenticate;
pub mod config;
mod connection;
mod ended;
mod handshake;
mod listener;
mod tls;
mod transport;
mod verifying;

pub use admission::Admission;
pub use config::{Config, ListenerConfig, TlsConfig};
pub use listener::{Listener, ListenerError, NewTls, Shared};
pub use tls::TlsError;
pub use verifying::Verifying;
