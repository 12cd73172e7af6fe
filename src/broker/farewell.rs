//! What clients are told while the broker stops. Must not know how long that takes, nor how a client is told.

use crate::mqtt::{ReasonCode, packet::Disconnect};

use super::Broker;

/// The last word to those who are connected, and the first to those who come: where else to go, if anywhere (4.11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Farewell {
    /// Of the CONNACK that refuses a CONNECT.
    pub connack: ReasonCode,
    /// Of the DISCONNECT that ends a connection.
    pub disconnect: ReasonCode,
    /// Server Reference.
    pub server_reference: Option<String>,
}

impl Farewell {
    /// Clients are to use `server_reference`, for good where the server has `moved`. Without one they are only told that the broker stops:
    /// CONNACK has no code that says more than that it is not available.
    #[must_use]
    pub fn new(server_reference: Option<String>, moved: bool) -> Self {
        let (connack, disconnect) = match (&server_reference, moved) {
            (None, _) => (ReasonCode::ServerUnavailable, ReasonCode::ServerShuttingDown),
            (Some(_), false) => (ReasonCode::UseAnotherServer, ReasonCode::UseAnotherServer),
            (Some(_), true) => (ReasonCode::ServerMoved, ReasonCode::ServerMoved),
        };
        Self { connack, disconnect, server_reference }
    }

    /// The DISCONNECT that says it.
    #[must_use]
    pub fn disconnect(&self) -> Disconnect {
        let server_reference = self.server_reference.clone();
        Disconnect { server_reference, ..Disconnect::new(self.disconnect) }
    }
}

impl Broker {
    /// No further client is let in; `farewell` is what all are told. The first one stands.
    pub fn stop(&self, farewell: Farewell) {
        let _ = self.farewell.set(farewell);
    }

    /// What clients are told, once the broker stops.
    #[must_use]
    pub fn farewell(&self) -> Option<&Farewell> {
        self.farewell.get()
    }

    /// Whether the broker is stopping.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.farewell.get().is_some()
    }
}
