//! Enhanced authentication (4.12): whose turn it is, and which AUTH may come now.
//!
//! Must not know how a method proves anything, nor who does: data in, data out.

use crate::mqtt::{
    Packet, ReasonCode,
    packet::{Auth, Connect},
};

use super::{Request, Violation};

/// The authentication of a connection whose CONNECT named a method. The same states serve the exchange before CONNACK and each later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authentication {
    /// Named by CONNECT, and the same in every AUTH [MQTT-4.12.0-5], [MQTT-4.12.1-1].
    method: Box<str>,
    turn: Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// No exchange is under way: the client may begin one.
    Nobody,
    /// The client was challenged.
    Client,
    /// The client's data waits for an answer.
    Server,
}

impl Authentication {
    /// That of `connect`, where it names a method: its data waits for an answer.
    #[must_use]
    pub fn begun(connect: &Connect) -> Option<Self> {
        let method = connect.authentication_method.as_deref()?;
        Some(Self { method: method.into(), turn: Turn::Server })
    }

    /// The Authentication Method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Takes a packet that came before CONNACK: only AUTH and DISCONNECT may [MQTT-3.1.2-30].
    ///
    /// # Errors
    /// The clause that it broke.
    pub fn receive_early(&mut self, packet: Packet<'_>) -> Result<Request<'static>, Violation> {
        match packet {
            Packet::Auth(auth) => self.receive(auth),
            Packet::Disconnect(disconnect) => Ok(Request::Disconnect(disconnect)),
            Packet::Connect(_) => Err(Violation::SecondConnect),
            _ => Err(Violation::BeforeConnAck),
        }
    }

    /// Takes an AUTH. It asks for [`Request::Authenticate`], to be answered by [`Authentication::challenge`] or
    /// [`Authentication::succeed`], or by the end of the connection.
    ///
    /// # Errors
    /// The clause that it broke.
    pub fn receive(&mut self, auth: Auth) -> Result<Request<'static>, Violation> {
        if auth.method.as_deref() != Some(&*self.method) {
            return Err(Violation::AuthMethodChanged);
        }
        let begins = match (auth.reason, self.turn) {
            (ReasonCode::ReAuthenticate, Turn::Nobody) => true,
            (ReasonCode::ContinueAuthentication, Turn::Client) => false,
            (reason, _) => return Err(Violation::AuthOutOfTurn(reason)),
        };
        self.turn = Turn::Server;
        Ok(Request::Authenticate { begins, data: auth.data })
    }

    /// The AUTH that asks the client for more [MQTT-4.12.0-2]. No data at all asks for its first message.
    #[must_use]
    pub fn challenge(&mut self, data: Box<[u8]>) -> Packet<'static> {
        self.turn = Turn::Client;
        self.auth(ReasonCode::ContinueAuthentication, data)
    }

    /// CONNACK says that the first exchange is done.
    pub fn connected(&mut self) {
        self.turn = Turn::Nobody;
    }

    /// The AUTH that says that a later exchange is done.
    pub fn succeed(&mut self, data: Box<[u8]>) -> Packet<'static> {
        self.turn = Turn::Nobody;
        self.auth(ReasonCode::Success, data)
    }

    fn auth(&self, reason: ReasonCode, data: Box<[u8]>) -> Packet<'static> {
        let data = Some(data).filter(|data| !data.is_empty());
        Packet::Auth(Auth { reason, method: Some(self.method.as_ref().into()), data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mqtt::{Outbox, Timestamp, Version, packet::Disconnect},
        session::Session,
    };

    fn auth(reason: ReasonCode, method: &str) -> Auth {
        Auth { reason, method: Some(method.into()), data: Some([1].into()) }
    }

    fn in_turn(turn: Turn) -> Authentication {
        Authentication { method: "M".into(), turn }
    }

    const AGAIN: ReasonCode = ReasonCode::ReAuthenticate;
    const GO_ON: ReasonCode = ReasonCode::ContinueAuthentication;

    /// [MQTT-4.12.0-3]: the client goes on with 0x18, where it was asked; [MQTT-4.12.1-1]: it begins anew with 0x19, where nothing is under
    /// way. All else is a Protocol Error.
    #[test]
    fn who_may_say_what_when() {
        for (turn, reason, begins) in [
            (Turn::Nobody, AGAIN, Some(true)),
            (Turn::Nobody, GO_ON, None),
            (Turn::Client, AGAIN, None),
            (Turn::Client, GO_ON, Some(false)),
            (Turn::Server, AGAIN, None),
            (Turn::Server, GO_ON, None),
            (Turn::Nobody, ReasonCode::Success, None),
            (Turn::Client, ReasonCode::Success, None),
        ] {
            let mut state = in_turn(turn);
            match (state.receive(auth(reason, "M")), begins) {
                (Ok(Request::Authenticate { begins, data: Some(_) }), Some(expected)) => assert_eq!(begins, expected),
                (Err(violation), None) => {
                    assert_eq!(violation, Violation::AuthOutOfTurn(reason));
                    assert_eq!(violation.reason(), ReasonCode::ProtocolError);
                }
                other => panic!("{turn:?} {reason:?}: {other:?}"),
            }
            assert_eq!(state.turn == Turn::Server, begins.is_some() || turn == Turn::Server);
        }
    }

    /// [MQTT-4.12.0-5], [MQTT-4.12.1-1]: another method than that of CONNECT, or none.
    #[test]
    fn the_method_stays() {
        for (turn, reason) in [(Turn::Nobody, AGAIN), (Turn::Client, GO_ON)] {
            for method in [Some("m"), Some("M "), Some(""), None] {
                let packet = Auth { method: method.map(str::to_owned), ..auth(reason, "M") };
                let violation = in_turn(turn).receive(packet).unwrap_err();
                assert_eq!(
                    (&violation, violation.reason()),
                    (&Violation::AuthMethodChanged, ReasonCode::ProtocolError)
                );
            }
        }
    }

    /// [MQTT-3.1.2-30]: before CONNACK only AUTH and DISCONNECT.
    #[test]
    fn before_connack() {
        let mut state = in_turn(Turn::Client);
        assert!(matches!(state.receive_early(Packet::Auth(auth(GO_ON, "M"))), Ok(Request::Authenticate { .. })));
        let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::Success));
        assert!(matches!(state.receive_early(disconnect), Ok(Request::Disconnect(_))));
        let violation = state.receive_early(Packet::PingReq).unwrap_err();
        assert_eq!((&violation, violation.reason()), (&Violation::BeforeConnAck, ReasonCode::ProtocolError));
    }

    /// A session has a method as long as the connection whose CONNECT named it [MQTT-4.12.0-6], [MQTT-4.12.0-7].
    #[test]
    fn the_method_is_of_the_connection() {
        let mut session = Session::new(1, "c".into(), 60);
        let mut outbox = Outbox::new(Version::V5);
        let mut receive = |session: &mut Session| {
            let request = session.receive(Packet::Auth(auth(AGAIN, "M")), Timestamp::default(), &mut outbox);
            request.map(|request| matches!(request, Request::Authenticate { begins: true, data: Some(_) }))
        };
        assert_eq!(receive(&mut session), Err(Violation::AuthWithoutMethod));
        session.authenticated(Some(Box::new(in_turn(Turn::Nobody))));
        assert_eq!(receive(&mut session), Ok(true));
        assert_eq!(receive(&mut session), Err(Violation::AuthOutOfTurn(AGAIN)));
        session.disconnected();
        assert_eq!(receive(&mut session), Err(Violation::AuthWithoutMethod));
    }

    /// [MQTT-4.12.0-2]: a challenge is an AUTH with 0x18 and the method [MQTT-4.12.0-5]; success of a later exchange is 0x00.
    #[test]
    fn answers() {
        let mut state = in_turn(Turn::Server);
        let challenge = Auth { reason: GO_ON, method: Some("M".into()), data: None };
        assert_eq!(state.challenge(Box::default()), Packet::Auth(challenge));
        assert_eq!(state.turn, Turn::Client);
        state.connected();
        assert_eq!(state.turn, Turn::Nobody);
        state.turn = Turn::Server;
        assert_eq!(state.succeed([1].into()), Packet::Auth(auth(ReasonCode::Success, "M")));
        assert_eq!(state.turn, Turn::Nobody);
    }
}
