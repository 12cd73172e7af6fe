//! From an accepted socket to a connected session: TLS, CONNECT, who it is, CONNACK. All within one deadline.
//!
//! Must not know what a session does once it is connected.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use thiserror::Error;
use tokio::net::TcpStream;

use super::{
    authenticate::{Authenticated, authenticate},
    connection::{self, Connection},
    ended::limit_of,
    listener::Shared,
    transport::Transport,
};
use crate::{
    auth::{Identity, certificate},
    broker::{Ended, Farewell, Owner, Refused, Signal, Throttle},
    clock,
    metrics::{Counts, Limit},
    mqtt::{
        Outbox, Packet, ReasonCode, Shown, Version,
        codec::{self, Malformed, Sender},
        frame::{self, Cut},
        outbox::TooLarge,
        packet::{ConnAck, ConnAckProperties, Connect},
    },
    session::{Commit, Terms, refuse_will},
};

/// Why no session came of a connection.
#[derive(Debug, Error)]
pub(super) enum Failed {
    #[error("not connected within {0} s")]
    TooSlow(u64),
    #[error("TLS: {0}")]
    Tls(std::io::Error),
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    #[error("closed before CONNECT")]
    Closed,
    #[error("closed before CONNACK")]
    GaveUp,
    #[error("malformed CONNECT: {malformed}")]
    Malformed { malformed: Malformed, version: Option<Version> },
    #[error("[MQTT-3.1.0-1] the first packet is no CONNECT")]
    NoConnect,
    #[error("the answer is larger than the client's Maximum Packet Size [MQTT-3.1.2-25]")]
    TooSmall,
    #[error("CONNECT refused with {:#04x}: {why}", *reason as u8)]
    Refused { reason: ReasonCode, version: Version, maximum_packet_size: u32, why: String },
    #[error("CONNECT refused with {:#04x}: the broker is shutting down", farewell.connack as u8)]
    Stopping { farewell: Farewell, version: Version, maximum_packet_size: u32 },
}

/// Serves one connection from its accept to its end.
pub(super) async fn serve(transport: Transport, peer: SocketAddr, shared: Arc<Shared>) {
    let secs = u64::from(shared.broker.limits.connect_timeout_secs.get());
    // Each phase in an allocation of its own: what a handshake needs must not stay with an idle connection.
    let begun = Box::pin(tokio::time::timeout(Duration::from_secs(secs), begin(transport, peer, &shared))).await;
    let connection = match begun {
        Ok(Ok(connection)) => connection,
        Ok(Err((failed, transport))) => return Box::pin(refuse(failed, transport, peer, &shared)).await,
        Err(_) => return Box::pin(refuse(Failed::TooSlow(secs), None, peer, &shared)).await,
    };
    let (connection, client_id, identity) = connection;
    tracing::info!(client = %Shown(&client_id), identity = %identity, %peer, listener = %shared.address, "connected");
    let (ended, transport, outbox) = Box::pin(connection.run()).await;
    tracing::info!(client = %Shown(&client_id), %peer, reason = %ended, "disconnected");
    Box::pin(connection::close(transport, outbox, &shared.broker.metrics)).await;
}

type Begun = (Box<Connection>, Arc<str>, Identity);

async fn begin(
    transport: Transport,
    peer: SocketAddr,
    shared: &Arc<Shared>,
) -> Result<Begun, (Failed, Option<Transport>)> {
    let (mut transport, certified) = match (transport, shared.acceptor.load_full()) {
        (Transport::Tcp(stream), Some(acceptor)) => {
            let stream = acceptor.accept(stream).await.map_err(|error| (Failed::Tls(error), None))?;
            let certified = certified_identity(&stream);
            (Transport::Tls(Box::new(stream)), certified)
        }
        (transport, _) => (transport, None),
    };
    match connect(&mut transport, peer, shared, certified).await {
        Ok((owner, signal, outbox, rest, Authenticated { identity, enhanced })) => {
            let proof = enhanced.map(|enhanced| enhanced.proof);
            let client_id = owner.client_id().clone();
            let connection = Connection::new(transport, shared.broker.clone(), owner, signal, proof, outbox, rest);
            Ok((connection, client_id, identity))
        }
        Err(failed) => Err((failed, Some(transport))),
    }
}

/// The common name of the client's certificate, where it gave one.
fn certified_identity(
    stream: &tokio_rustls::server::TlsStream<TcpStream>,
) -> Option<Result<Identity, certificate::CertificateError>> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    Some(certificate::common_name(certificate.as_ref()).map(Identity::named))
}

async fn refuse(failed: Failed, transport: Option<Transport>, peer: SocketAddr, shared: &Shared) {
    let mut counts = Counts { connections_refused: 1, ..Default::default() };
    if matches!(&failed, Failed::Refused { reason: ReasonCode::BadUserNameOrPassword | ReasonCode::NotAuthorized, .. })
    {
        counts.logins_failed = 1;
    }
    match &failed {
        Failed::TooSlow(_) => counts.limited(Limit::ConnectTimeout),
        Failed::Malformed { malformed: Malformed::PacketTooLarge, .. } => counts.limited(Limit::PacketSize),
        _ => {}
    }
    shared.broker.metrics.add(&mut counts);
    // Who connects and says nothing (a port scan, a health check) is not worth a line for the operator.
    match &failed {
        Failed::Closed => tracing::debug!(%peer, listener = %shared.address, "closed before CONNECT"),
        failed => {
            if let Some(left_out) = REFUSALS.pass(clock::now()) {
                tracing::info!(%peer, listener = %shared.address, reason = %failed, left_out, "connection refused");
            }
        }
    }
    let Some(transport) = transport else { return };
    let mut properties = ConnAckProperties::default();
    let (reason, version, maximum) = match failed {
        Failed::Refused { reason, version, maximum_packet_size, why } => {
            properties.reason_string = Some(why);
            (reason, version, maximum_packet_size)
        }
        Failed::Stopping { farewell, version, maximum_packet_size } => {
            properties.server_reference = farewell.server_reference;
            (farewell.connack, version, maximum_packet_size)
        }
        Failed::Malformed { malformed: Malformed::UnsupportedVersion { level_suggests_v5 }, .. } => {
            let version = if level_suggests_v5 { Version::V5 } else { Version::V3_1_1 };
            (ReasonCode::UnsupportedProtocolVersion, version, u32::MAX)
        }
        // What size of packet it takes is not known: no more than the reason.
        Failed::Malformed { malformed, version: Some(Version::V5) } => (malformed.reason(), Version::V5, u32::MAX),
        // Before MQTT 5.0 no return code says it [MQTT311-3.1.4-1]; and who says no version is no client (4.13).
        _ => return,
    };
    let mut outbox = Outbox::new(version);
    outbox.set_maximum_packet_size(maximum);
    // Nobody to tell where not even the bare code fits.
    let _ = answer(&mut outbox, ConnAck { session_present: false, reason, properties });
    connection::close(transport, outbox, &shared.broker.metrics).await;
}

async fn connect(
    transport: &mut Transport,
    peer: SocketAddr,
    shared: &Arc<Shared>,
    certified: Option<Result<Identity, certificate::CertificateError>>,
) -> Result<(Owner, Arc<Signal>, Outbox, Vec<u8>, Authenticated), Failed> {
    let (connect, mut rest) = read_connect(transport, shared).await?;
    let version = connect.version;
    if let Some(farewell) = shared.broker.farewell() {
        let maximum_packet_size = connect.maximum_packet_size;
        return Err(Failed::Stopping { farewell: farewell.clone(), version, maximum_packet_size });
    }
    let refused = |reason, why: &str| refusal(&connect, reason, why);
    let mut authenticated = authenticate(transport, &connect, &mut rest, shared, peer.ip(), certified).await?;
    let (client_id, assigned) = client_id(&connect, &refused)?;
    let broker = &shared.broker;
    let terms = Terms::negotiate(&connect, &broker.limits);
    if let Some((reason, why)) = connect.will.as_ref().and_then(|will| refuse_will(will, &terms, &broker.limits)) {
        return Err(refused(reason, why));
    }
    if let Some(exceeded) = connect.will.as_ref().and_then(|will| broker.limits.check_will(will).err()) {
        if let Some(limit) = limit_of(&exceeded) {
            broker.metrics.limited(limit);
        }
        return Err(refused(exceeded.reason(), &exceeded.to_string()));
    }
    if terms.keep_alive_secs != connect.keep_alive_secs {
        broker.metrics.limited(Limit::KeepAlive);
    }
    if broker.store_failed() && (terms.session_expiry_secs > 0 || connect.will.is_some()) {
        return Err(refused(ReasonCode::ServerUnavailable, "the store has failed"));
    }
    let signal = Arc::new(Signal::default());
    let refusal = |why| match why {
        Refused::OtherIdentity => refused(ReasonCode::NotAuthorized, "the session belongs to another identity"),
        Refused::TakenOver => refused(ReasonCode::ServerBusy, "a later connection with this client id came"),
        Refused::StoreFailed => refused(ReasonCode::ServerUnavailable, "the store has failed"),
        Refused::TooManySessions => {
            refused(ReasonCode::QuotaExceeded, "there are as many sessions as there may be (broker.max_sessions)")
        }
    };
    let mut owner =
        broker.registry.claim(broker, &client_id, &authenticated.identity, &signal).await.map_err(refusal)?;
    let connected = broker
        .connect(&mut owner, &connect, &terms, &authenticated.identity, &signal, clock::now())
        .map_err(refusal)?;
    if let Some(lsn) = connected.commit
        && !durable(shared, lsn).await
    {
        return Err(refused(ReasonCode::ServerUnavailable, "the store could not record the session"));
    }
    let mut outbox = Outbox::new(version);
    outbox.set_maximum_packet_size(terms.maximum_packet_size);
    outbox.request_problem_information(terms.problem_information);
    let mut properties = terms.connack(&connect, &broker.limits, assigned);
    properties.response_information = broker.response_information(&connect, &client_id, &authenticated.identity);
    authenticated.tell(&mut properties);
    let connack = ConnAck { session_present: connected.session_present, reason: ReasonCode::Success, properties };
    answer(&mut outbox, connack).map_err(|_| Failed::TooSmall)?;
    owner.ended = Ended::Abnormally;
    if let Some(client) = &mut owner.client {
        broker.resume(client, terms, &mut outbox, clock::now());
        client.session.authenticated(authenticated.state());
    }
    Ok((owner, signal, outbox, rest, authenticated))
}

/// CONNACK. What the client can do without is left out where it does not fit.
fn answer(outbox: &mut Outbox, connack: ConnAck) -> Result<(), TooLarge> {
    let mut packet = Packet::ConnAck(Box::new(connack));
    if outbox.packet(&packet).is_ok() {
        return Ok(());
    }
    if let Packet::ConnAck(connack) = &mut packet {
        connack.properties.response_information = None;
        connack.properties.server_reference = None;
    }
    outbox.packet(&packet)
}

pub(super) fn refusal(connect: &Connect, reason: ReasonCode, why: &str) -> Failed {
    let maximum_packet_size = connect.maximum_packet_size;
    Failed::Refused { reason, version: connect.version, maximum_packet_size, why: why.to_owned() }
}

async fn durable(shared: &Shared, lsn: u64) -> bool {
    poll_fn(|cx| match shared.broker.when_committed(lsn, cx.waker()) {
        Commit::Pending => std::task::Poll::Pending,
        outcome => std::task::Poll::Ready(outcome == Commit::Done),
    })
    .await
}

/// Reads until the CONNECT is whole; gives what came after it too. Nobody is known yet: little is read, and memory grows with what came.
async fn read_connect(transport: &mut Transport, shared: &Shared) -> Result<(Connect, Vec<u8>), Failed> {
    let limit = shared.broker.limits.max_packet_size_bytes.get().min(CONNECT_MAX);
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let mut chunk = [0; 2048];
        let read = poll_fn(|cx| transport.poll_read(cx, &mut chunk)).await?;
        if read == 0 {
            return Err(Failed::Closed);
        }
        bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
        // The first byte alone tells whether it can be a CONNECT.
        if bytes.first().map(|first| first >> 4) != Some(CONNECT) {
            return Err(Failed::NoConnect);
        }
        let malformed = |malformed| Failed::Malformed { malformed, version: codec::stated_version(&bytes) };
        let Cut::Whole(frame) = frame::cut(&bytes, limit).map_err(malformed)? else { continue };
        let length = frame.len;
        let Packet::Connect(connect) = codec::decode(frame, Version::V5, Sender::Client).map_err(malformed)? else {
            return Err(Failed::NoConnect);
        };
        let bytes_received = bytes.len() as u64;
        let mut counts = Counts { connects_received: 1, packets_received: 1, bytes_received, ..Counts::default() };
        shared.broker.metrics.add(&mut counts);
        return Ok((*connect, bytes.split_off(length)));
    }
}

/// The Client Identifier, and the one assigned where CONNECT had none [MQTT-3.1.3-6], [MQTT-3.1.3-7].
fn client_id(
    connect: &Connect,
    refused: &impl Fn(ReasonCode, &str) -> Failed,
) -> Result<(Arc<str>, Option<String>), Failed> {
    if !connect.client_id.is_empty() {
        return Ok((connect.client_id.as_str().into(), None));
    }
    if !connect.version.is_v5() && (!connect.clean_start || connect.version == Version::V3_1) {
        // [MQTT311-3.1.3-8]
        return Err(refused(ReasonCode::ClientIdentifierNotValid, "an empty client id needs Clean Session 1"));
    }
    let number = NEXT_ASSIGNED.fetch_add(1, Ordering::Relaxed);
    let assigned = format!("pinnace-{:x}-{number:x}", random());
    Ok((assigned.as_str().into(), Some(assigned)))
}

/// Different in each process, so that an assigned id is not one that an earlier process gave.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| std::collections::hash_map::RandomState::new().build_hasher().finish())
}

/// Who is refused can come again at once, and often.
static REFUSALS: Throttle = Throttle::new(50);
static NEXT_ASSIGNED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
/// The packet type; MQTT 3.1 leaves the flags open.
const CONNECT: u8 = 1;
/// A CONNECT with the longest client id, user name, password and Will fits.
const CONNECT_MAX: u32 = 512 * 1024;
