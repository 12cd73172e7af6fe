//! Who the client of a CONNECT is: by certificate, by user name and password, or by the Authentication Method that it names (4.12), which it
//! may use again later.
//!
//! Must not know what a session does, nor how a password or a proof is checked.

use std::{future::poll_fn, net::IpAddr, sync::Arc};

use super::{
    connection,
    ended::Ended,
    handshake::{Failed, refusal},
    listener::Shared,
    transport::Transport,
};
use crate::{
    auth::{
        Identity, Rules,
        certificate::CertificateError,
        scram::{self, Exchange, Refused, Step},
    },
    broker::Client,
    metrics::Counts,
    mqtt::{
        Outbox, ReasonCode, Version,
        codec::{self, Sender},
        frame::{self, Cut},
        packet::{ConnAckProperties, Connect},
    },
    session::{Authentication, Request, Violation},
};

/// A client whose CONNECT is authenticated.
#[derive(Debug)]
pub(super) struct Authenticated {
    pub(super) identity: Identity,
    /// Where CONNECT named a method.
    pub(super) enhanced: Option<Enhanced>,
}

/// What a method leaves behind: its state for the session, its mechanism for the connection.
#[derive(Debug)]
pub(super) struct Enhanced {
    state: Box<Authentication>,
    pub(super) proof: Box<Proof>,
    /// What the method says last.
    data: Box<[u8]>,
}

impl Authenticated {
    /// What CONNACK says of it [MQTT-4.12.0-5], [MQTT-4.12.0-6].
    pub(super) fn tell(&mut self, properties: &mut ConnAckProperties) {
        if let Some(enhanced) = &mut self.enhanced {
            properties.authentication_method = Some(enhanced.state.method().to_owned());
            properties.authentication_data = Some(std::mem::take(&mut enhanced.data));
        }
    }

    /// The state that the session goes on with.
    pub(super) fn state(&self) -> Option<Box<Authentication>> {
        self.enhanced.as_ref().map(|enhanced| enhanced.state.clone())
    }
}

/// How a client proves who it is, by the method of its CONNECT: the mechanism to the states of [`Authentication`].
#[derive(Debug)]
pub(super) struct Proof {
    /// Who it must be, or proved to be in its CONNECT.
    username: Option<Box<str>>,
    exchange: Option<Exchange>,
}

/// What follows from a client's data.
enum Answer {
    Challenge(Box<[u8]>),
    Proven { username: Box<str>, data: Box<[u8]> },
}

impl Proof {
    fn receive(&mut self, rules: &Rules, begins: bool, data: Option<&[u8]>) -> Result<Answer, Refused> {
        if begins {
            self.exchange = Some(Exchange::begin()?);
        }
        let (Some(exchange), Some(passwords)) = (&mut self.exchange, rules.passwords()) else {
            return Err(Refused::Wrong);
        };
        match exchange.receive(data, |name| passwords.verifier(name))? {
            Step::Challenge(data) => Ok(Answer::Challenge(data)),
            Step::Proven { username, data } => {
                self.exchange = None;
                // Another user's right password is the wrong one here.
                if *self.username.get_or_insert_with(|| username.clone()) != username {
                    return Err(Refused::Wrong);
                }
                Ok(Answer::Proven { username, data })
            }
        }
    }
}

/// Whether this method can be used: SCRAM needs passwords.
fn is_supported(method: &str, rules: &Rules) -> bool {
    method == scram::METHOD && rules.passwords().is_some()
}

/// Who the client is. A certificate's name stands above the user name that is proven otherwise; a method that CONNECT names must succeed all
/// the same, since the client wants to know the server by it. `rest` is what was read behind CONNECT.
pub(super) async fn authenticate(
    transport: &mut Transport,
    connect: &Connect,
    rest: &mut Vec<u8>,
    shared: &Arc<Shared>,
    peer: IpAddr,
    certified: Option<Result<Identity, CertificateError>>,
) -> Result<Authenticated, Failed> {
    let certified = certified.transpose().map_err(|error| {
        refusal(connect, ReasonCode::NotAuthorized, &format!("the client certificate gives no identity: {error}"))
    })?;
    let Some(state) = Authentication::begun(connect) else {
        let identity = match certified {
            Some(identity) => identity,
            None => by_password(connect, shared, peer).await?,
        };
        return Ok(Authenticated { identity, enhanced: None });
    };
    if !is_supported(state.method(), &shared.broker.auth.rules()) {
        let why = "the authentication method is not supported";
        return Err(refusal(connect, ReasonCode::BadAuthenticationMethod, why));
    }
    let dialogue = Dialogue { transport, connect, rest, shared, state };
    let (username, enhanced) = dialogue.run().await?;
    let identity = certified.unwrap_or_else(|| Identity::named(&*username));
    Ok(Authenticated { identity, enhanced: Some(enhanced) })
}

/// The exchange between CONNECT and CONNACK.
struct Dialogue<'a> {
    transport: &'a mut Transport,
    connect: &'a Connect,
    rest: &'a mut Vec<u8>,
    shared: &'a Shared,
    state: Authentication,
}

impl Dialogue<'_> {
    async fn run(mut self) -> Result<(Box<str>, Enhanced), Failed> {
        // A User Name that CONNECT gives is the one to be proven; a password is not needed, and not looked at.
        let username = self.connect.username.as_deref().map(Into::into);
        let mut proof = Box::new(Proof { username, exchange: None });
        let mut data = self.connect.authentication_data.clone();
        let mut begins = true;
        loop {
            // The rules in force now: an exchange may outlive a reload.
            let answer = proof.receive(&self.shared.broker.auth.rules(), begins, data.as_deref());
            match answer.map_err(|refused| self.refusal(&refused))? {
                Answer::Challenge(challenge) => self.challenge(challenge).await?,
                Answer::Proven { username, data } => {
                    self.nothing_more()?;
                    self.state.connected();
                    return Ok((username, Enhanced { state: Box::new(self.state), proof, data }));
                }
            }
            data = self.next().await?;
            begins = false;
        }
    }

    /// A wrong proof is told as a wrong password is.
    fn refusal(&self, refused: &Refused) -> Failed {
        let reason = match refused {
            Refused::Wrong => ReasonCode::BadUserNameOrPassword,
            _ => ReasonCode::NotAuthorized,
        };
        refusal(self.connect, reason, &refused.to_string())
    }

    async fn challenge(&mut self, data: Box<[u8]>) -> Result<(), Failed> {
        let mut outbox = Outbox::new(self.connect.version);
        outbox.set_maximum_packet_size(self.connect.maximum_packet_size);
        outbox.packet(&self.state.challenge(data)).map_err(|_| Failed::TooSmall)?;
        let mut counts = Counts::default();
        let sent = poll_fn(|cx| connection::poll_send(self.transport, &mut outbox, &mut counts, cx)).await;
        self.shared.broker.metrics.add(&mut counts);
        sent.map_err(Failed::Broken)
    }

    /// The client's next data. What must not come is refused by the CONNACK that is still due.
    async fn next(&mut self) -> Result<Option<Box<[u8]>>, Failed> {
        let limit = self.shared.broker.limits.max_packet_size_bytes.get().min(AUTH_MAX);
        loop {
            let malformed = |error: codec::Malformed| refusal(self.connect, error.reason(), &error.to_string());
            if let Cut::Whole(frame) = frame::cut(self.rest, limit).map_err(malformed)? {
                let length = frame.len;
                let packet = codec::decode(frame, Version::V5, Sender::Client).map_err(malformed)?;
                self.shared.broker.metrics.add(&mut Counts { packets_received: 1, ..Counts::default() });
                let request = self.state.receive_early(packet);
                self.rest.drain(..length);
                return match request.map_err(|violation| self.violated(&violation))? {
                    Request::Authenticate { data, .. } => Ok(data),
                    _ => Err(Failed::GaveUp),
                };
            }
            let mut chunk = [0; 1024];
            let read = poll_fn(|cx| self.transport.poll_read(cx, &mut chunk)).await?;
            if read == 0 {
                return Err(Failed::GaveUp);
            }
            self.shared.broker.metrics.add(&mut Counts { bytes_received: read as u64, ..Counts::default() });
            self.rest.extend_from_slice(chunk.get(..read).unwrap_or_default());
        }
    }

    /// Behind its last AUTH the client waits for CONNACK, or leaves [MQTT-3.1.2-30].
    fn nothing_more(&self) -> Result<(), Failed> {
        match self.rest.first() {
            None | Some(&DISCONNECT_BYTE) => Ok(()),
            Some(_) => Err(self.violated(&Violation::BeforeConnAck)),
        }
    }

    fn violated(&self, violation: &Violation) -> Failed {
        refusal(self.connect, violation.reason(), &violation.to_string())
    }
}

/// The client of a running session goes on proving who it is; its packets flow meanwhile, with the rights that it has.
pub(super) fn again(
    client: &mut Client,
    rules: &Rules,
    proof: Option<&mut Box<Proof>>,
    begins: bool,
    data: Option<&[u8]>,
    outbox: &mut Outbox,
    counts: &mut Counts,
) -> Result<(), Ended> {
    let (Some(proof), Some(state)) = (proof, client.session.authentication()) else {
        return Err(Violation::AuthWithoutMethod.into());
    };
    let answer = proof.receive(rules, begins, data).map_err(|refused| {
        counts.logins_failed += 1;
        Ended::NotAuthenticated(refused)
    })?;
    let packet = match answer {
        Answer::Challenge(data) => state.challenge(data),
        Answer::Proven { data, .. } => state.succeed(data),
    };
    outbox.packet(&packet).map_err(|_| Violation::AnswerTooLarge.into())
}

async fn by_password(connect: &Connect, shared: &Arc<Shared>, peer: IpAddr) -> Result<Identity, Failed> {
    let refused = |reason, why: &str| refusal(connect, reason, why);
    let rules = shared.broker.auth.rules();
    match (&connect.username, rules.passwords().is_some()) {
        (Some(username), true) => {
            let Some(password) = connect.password.clone() else {
                return Err(refused(ReasonCode::BadUserNameOrPassword, "a user name without a password"));
            };
            let name = username.clone();
            let verify = move || rules.passwords().is_some_and(|passwords| passwords.verify(&name, &password));
            if shared.verifying.run(peer, verify).await {
                Ok(Identity::named(username.as_str()))
            } else {
                Err(refused(ReasonCode::BadUserNameOrPassword, "wrong user name or password"))
            }
        }
        // Nobody vouches for the name: such a client is anonymous.
        _ if shared.allow_anonymous => Ok(Identity::ANONYMOUS),
        _ => Err(refused(ReasonCode::NotAuthorized, "this listener lets no anonymous client in")),
    }
}

/// An AUTH with the longest data and method fits.
const AUTH_MAX: u32 = 192 * 1024;
const DISCONNECT_BYTE: u8 = 0xE0;
