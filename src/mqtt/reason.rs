//! Reason Codes of MQTT 5.0 (2.4) and the return codes of MQTT 3.1.1 that stand for them.
//!
//! Must not know when which is sent.

/// A Reason Code (MQTT 5.0, 2.4). Values of 0x80 and more say failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // each is named as in the specification's own table
pub enum ReasonCode {
    /// Also *Normal disconnection* and *Granted QoS 0*.
    Success = 0x00,
    GrantedQoS1 = 0x01,
    GrantedQoS2 = 0x02,
    DisconnectWithWill = 0x04,
    NoMatchingSubscribers = 0x10,
    NoSubscriptionExisted = 0x11,
    ContinueAuthentication = 0x18,
    ReAuthenticate = 0x19,
    UnspecifiedError = 0x80,
    MalformedPacket = 0x81,
    ProtocolError = 0x82,
    ImplementationSpecificError = 0x83,
    UnsupportedProtocolVersion = 0x84,
    ClientIdentifierNotValid = 0x85,
    BadUserNameOrPassword = 0x86,
    NotAuthorized = 0x87,
    ServerUnavailable = 0x88,
    ServerBusy = 0x89,
    Banned = 0x8A,
    ServerShuttingDown = 0x8B,
    BadAuthenticationMethod = 0x8C,
    KeepAliveTimeout = 0x8D,
    SessionTakenOver = 0x8E,
    TopicFilterInvalid = 0x8F,
    TopicNameInvalid = 0x90,
    PacketIdentifierInUse = 0x91,
    PacketIdentifierNotFound = 0x92,
    ReceiveMaximumExceeded = 0x93,
    TopicAliasInvalid = 0x94,
    PacketTooLarge = 0x95,
    MessageRateTooHigh = 0x96,
    QuotaExceeded = 0x97,
    AdministrativeAction = 0x98,
    PayloadFormatInvalid = 0x99,
    RetainNotSupported = 0x9A,
    QoSNotSupported = 0x9B,
    UseAnotherServer = 0x9C,
    ServerMoved = 0x9D,
    SharedSubscriptionsNotSupported = 0x9E,
    ConnectionRateExceeded = 0x9F,
    MaximumConnectTime = 0xA0,
    SubscriptionIdentifiersNotSupported = 0xA1,
    WildcardSubscriptionsNotSupported = 0xA2,
}

impl ReasonCode {
    /// The code of the byte `value`, if the specification names one.
    #[must_use]
    pub fn from_u8(value: u8) -> Option<Self> {
        use ReasonCode as R;
        const ALL: [ReasonCode; 43] = [
            R::Success,
            R::GrantedQoS1,
            R::GrantedQoS2,
            R::DisconnectWithWill,
            R::NoMatchingSubscribers,
            R::NoSubscriptionExisted,
            R::ContinueAuthentication,
            R::ReAuthenticate,
            R::UnspecifiedError,
            R::MalformedPacket,
            R::ProtocolError,
            R::ImplementationSpecificError,
            R::UnsupportedProtocolVersion,
            R::ClientIdentifierNotValid,
            R::BadUserNameOrPassword,
            R::NotAuthorized,
            R::ServerUnavailable,
            R::ServerBusy,
            R::Banned,
            R::ServerShuttingDown,
            R::BadAuthenticationMethod,
            R::KeepAliveTimeout,
            R::SessionTakenOver,
            R::TopicFilterInvalid,
            R::TopicNameInvalid,
            R::PacketIdentifierInUse,
            R::PacketIdentifierNotFound,
            R::ReceiveMaximumExceeded,
            R::TopicAliasInvalid,
            R::PacketTooLarge,
            R::MessageRateTooHigh,
            R::QuotaExceeded,
            R::AdministrativeAction,
            R::PayloadFormatInvalid,
            R::RetainNotSupported,
            R::QoSNotSupported,
            R::UseAnotherServer,
            R::ServerMoved,
            R::SharedSubscriptionsNotSupported,
            R::ConnectionRateExceeded,
            R::MaximumConnectTime,
            R::SubscriptionIdentifiersNotSupported,
            R::WildcardSubscriptionsNotSupported,
        ];
        ALL.into_iter().find(|code| *code as u8 == value)
    }

    /// Whether the code says failure (0x80 and more).
    #[must_use]
    pub fn is_failure(self) -> bool {
        self as u8 >= 0x80
    }

    /// The Connect Return Code of MQTT 3.1.1 (3.2.2.3) that says the same, or the nearest; 0 for success.
    #[must_use]
    pub fn connect_return_code(self) -> u8 {
        match self {
            code if !code.is_failure() => 0,
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::BadUserNameOrPassword => 4,
            // What a client had better not try again as it is.
            Self::NotAuthorized
            | Self::Banned
            | Self::BadAuthenticationMethod
            | Self::TopicNameInvalid
            | Self::PayloadFormatInvalid
            | Self::RetainNotSupported
            | Self::QoSNotSupported => 5,
            _ => 3,
        }
    }
}
