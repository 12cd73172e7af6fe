//! Why a connection ended: logged once, counted once. Must not know how.

use std::io;

use thiserror::Error;

use crate::{
    auth::scram::Refused,
    broker,
    metrics::Limit,
    mqtt::{ReasonCode, codec::Malformed},
    session::Violation,
};

/// Why a connection ended.
#[derive(Debug, Error)]
pub enum Ended {
    /// DISCONNECT.
    #[error("the client disconnected with reason {:#04x}", *.0 as u8)]
    Disconnected(ReasonCode),
    /// The client closed the stream.
    #[error("the client closed the connection without DISCONNECT")]
    Closed,
    /// The stream broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// Bytes that are no packet.
    #[error("malformed packet: {0}")]
    Malformed(#[from] Malformed),
    /// A packet that must not come now.
    #[error("protocol violation: {0}")]
    Violated(#[from] Violation),
    /// The client did not prove again who it is [MQTT-4.12.1-2].
    #[error("the client did not authenticate again: {0}")]
    NotAuthenticated(Refused),
    /// Another connection took the session over.
    #[error("another connection with this client id took the session over")]
    TakenOver,
    /// The broker stops.
    #[error("the broker is shutting down")]
    ShuttingDown,
    /// The client takes its messages too slowly.
    #[error("the client's queue is full (session.queue_full = \"disconnect\")")]
    QueueFull,
    /// The store failed.
    #[error("the store failed")]
    StoreFailed,
    /// The session's log cannot be read.
    #[error("the client's log cannot be read: {0}")]
    LogUnreadable(String),
}

impl Ended {
    /// The Reason Code of the DISCONNECT that a v5 client is sent (4.13); none where it ended the connection itself.
    pub(super) fn reason(&self) -> Option<ReasonCode> {
        match self {
            Self::Disconnected(_) | Self::Closed | Self::Broken(_) => None,
            Self::Malformed(malformed) => Some(malformed.reason()),
            Self::Violated(violation) => Some(violation.reason()),
            Self::NotAuthenticated(_) => Some(ReasonCode::NotAuthorized),
            Self::TakenOver => Some(ReasonCode::SessionTakenOver),
            Self::QueueFull => Some(ReasonCode::QuotaExceeded),
            Self::ShuttingDown => Some(ReasonCode::ServerShuttingDown),
            Self::StoreFailed | Self::LogUnreadable(_) => Some(ReasonCode::ImplementationSpecificError),
        }
    }

    /// The limit that the client reached, where it did.
    pub(super) fn limit(&self) -> Option<Limit> {
        match self {
            Self::Malformed(Malformed::PacketTooLarge) => Some(Limit::PacketSize),
            Self::Violated(violation) => limit_of(violation),
            _ => None,
        }
    }

    /// What it means for the session.
    pub(super) fn for_session(&self) -> broker::Ended {
        match self {
            Self::Disconnected(ReasonCode::Success) => broker::Ended::Normally,
            Self::ShuttingDown => broker::Ended::Stopping,
            Self::StoreFailed => broker::Ended::StoreFailed,
            _ => broker::Ended::Abnormally,
        }
    }
}

/// The limit that a client exceeded by `violation`, where there is one.
pub(super) fn limit_of(violation: &Violation) -> Option<Limit> {
    match violation {
        Violation::ReceiveMaximumExceeded(_) => Some(Limit::InFlight),
        Violation::TooManyLevels(_) | Violation::TopicTooLong(_) => Some(Limit::Topics),
        Violation::TooManyFilters(_) => Some(Limit::FiltersPerPacket),
        Violation::TooManyUserProperties(_) | Violation::UserPropertiesTooLarge(_) => Some(Limit::UserProperties),
        Violation::WillTooLarge(_) => Some(Limit::WillSize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::{
        Packet, Version,
        codec::{self, Sender},
        frame::{self, Cut},
        packet::Disconnect,
    };

    /// [MQTT-3.14.2-1]: each DISCONNECT has a Reason Code that the specification lists for a server.
    #[test]
    fn each_reason_is_one_of_disconnect() {
        use Violation as V;
        let violations = [
            V::SecondConnect,
            V::ServerPacket,
            V::AuthWithoutMethod,
            V::ExpiryRaisedFromZero,
            V::ReceiveMaximumExceeded(1),
            V::TopicAliasInvalid(1),
            V::TopicAliasUnknown(1),
            V::AnswerTooLarge,
            V::QoSNotSupported(1),
            V::RetainNotSupported,
            V::PayloadFormatInvalid,
            V::TooManyLevels(1),
            V::TopicTooLong(1),
            V::TooManyFilters(1),
            V::TooManyUserProperties(1),
            V::UserPropertiesTooLarge(1),
            V::KeepAliveTimeout,
            V::NotDurable,
        ];
        let malformed = [Malformed::Short, Malformed::PacketTooLarge, Malformed::NoTopic, Malformed::TopicAliasZero];
        let ended = violations.into_iter().map(Ended::Violated).chain(malformed.into_iter().map(Ended::Malformed));
        let ended = ended.chain([
            Ended::TakenOver,
            Ended::ShuttingDown,
            Ended::StoreFailed,
            Ended::LogUnreadable(String::new()),
        ]);
        let farewells = [(None, false), (Some("a".to_owned()), false), (Some("a".to_owned()), true)];
        let farewells = farewells.map(|(reference, moved)| broker::Farewell::new(reference, moved).disconnect());
        let disconnects = ended.filter_map(|ended| ended.reason()).map(Disconnect::new).chain(farewells);
        for disconnect in disconnects {
            let mut bytes = Vec::new();
            codec::encode(&Packet::Disconnect(disconnect.clone()), Version::V5, &mut bytes).unwrap();
            let Ok(Cut::Whole(frame)) = frame::cut(&bytes, u32::MAX) else { panic!("{bytes:02x?}") };
            assert_eq!(codec::decode(frame, Version::V5, Sender::Server), Ok(Packet::Disconnect(disconnect)));
        }
    }
}
