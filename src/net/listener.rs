//! A listening socket: accepts within its limits, and counts who is in. Must not know MQTT.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{
    Config, ListenerConfig, TlsConfig, TlsError, Verifying,
    admission::{Admission, Admitted, Full},
    handshake, tls,
    transport::Transport,
};
use crate::{broker::Broker, clock};

/// Why a listener cannot be opened.
#[derive(Debug, Error)]
pub enum ListenerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", hint(.source))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// Its TLS files are not usable.
    #[error("listener {address}: {source}")]
    Tls {
        /// Where.
        address: SocketAddr,
        /// The cause.
        source: TlsError,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another process listens there: stop it, or choose another address with --listen",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has this address",
        _ => "",
    }
}

/// What all connections of a listener share.
pub struct Shared {
    /// The address that it really listens on.
    pub address: SocketAddr,
    pub(super) broker: Arc<Broker>,
    pub(super) acceptor: ArcSwapOption<TlsAcceptor>,
    pub(super) allow_anonymous: bool,
    pub(super) verifying: Arc<Verifying>,
    tls: Option<TlsConfig>,
    max_connections: u32,
    open: AtomicU32,
    admission: Arc<Admission>,
}

/// TLS files that were read and are not in force yet.
pub struct NewTls(TlsAcceptor);

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    shared: Arc<Shared>,
}

impl Listener {
    /// Opens the socket and reads the TLS files. `admission` is that of all listeners.
    ///
    /// # Errors
    /// [`ListenerError`]
    pub fn open(
        config: &ListenerConfig,
        broker: Arc<Broker>,
        admission: Arc<Admission>,
        verifying: Arc<Verifying>,
    ) -> Result<Self, ListenerError> {
        let address = config.address;
        let acceptor = config.tls.as_ref().map(tls::acceptor).transpose();
        let acceptor = acceptor.map_err(|source| ListenerError::Tls { address, source })?;
        let socket = listen(address).map_err(|source| ListenerError::Bind { address, source })?;
        let address = socket.local_addr().unwrap_or(address);
        let shared = Arc::new(Shared {
            address,
            broker,
            acceptor: ArcSwapOption::from_pointee(acceptor),
            allow_anonymous: config.allows_anonymous(),
            verifying,
            tls: config.tls.clone(),
            max_connections: if config.max_connections == 0 { u32::MAX } else { config.max_connections },
            open: AtomicU32::new(0),
            admission,
        });
        Ok(Self { socket, shared })
    }

    /// What its connections share.
    #[must_use]
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Accepts for ever. To be dropped when the broker stops.
    pub async fn run(self) {
        loop {
            match self.socket.accept().await {
                Ok((stream, peer)) => self.accepted(stream, peer),
                Err(error) => {
                    // Out of descriptors, or a connection that broke while it waited: neither may become a busy loop.
                    tracing::warn!(listener = %self.shared.address, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn accepted(&self, stream: TcpStream, peer: SocketAddr) {
        let shared = self.shared.clone();
        let metrics = &shared.broker.metrics;
        metrics.add(&mut crate::metrics::Counts { connections_accepted: 1, ..Default::default() });
        let admitted = match shared.admit(peer) {
            Ok(admitted) => admitted,
            Err(why) => {
                let mut counts = crate::metrics::Counts { connections_refused: 1, ..Default::default() };
                counts.limited(why.limit());
                metrics.add(&mut counts);
                if let Some(left_out) = shared.admission.may_say(why) {
                    tracing::warn!(%peer, listener = %shared.address, left_out, "connection refused: {why}");
                }
                return;
            }
        };
        metrics.connections_open.increment();
        let _ = stream.set_nodelay(true);
        let guard = Open { shared: shared.clone(), _admitted: admitted };
        tokio::spawn(async move {
            handshake::serve(Transport::Tcp(stream), peer, shared).await;
            drop(guard);
        });
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Shared {
    /// Of a listener that has no socket: it serves what tests give it.
    #[doc(hidden)]
    #[must_use]
    pub fn in_memory(broker: Arc<Broker>) -> Arc<Self> {
        Arc::new(Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            broker,
            acceptor: ArcSwapOption::empty(),
            allow_anonymous: true,
            verifying: Arc::default(),
            tls: None,
            max_connections: u32::MAX,
            open: AtomicU32::new(0),
            admission: Arc::new(Admission::new(&Config::default(), u32::MAX)),
        })
    }

    /// Lets one more connection in, and counts it.
    fn admit(&self, peer: SocketAddr) -> Result<Admitted, Full> {
        if self.open.fetch_add(1, Ordering::AcqRel) >= self.max_connections {
            self.open.fetch_sub(1, Ordering::AcqRel);
            return Err(Full::Listener(self.max_connections));
        }
        let admitted = self.admission.admit(peer.ip(), clock::now());
        if admitted.is_err() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
        admitted
    }

    /// Serves one connection over `stream`, from its CONNECT to its end.
    #[doc(hidden)]
    pub async fn serve(self: Arc<Self>, stream: tokio::io::DuplexStream) {
        handshake::serve(Transport::Memory(stream), self.address, self).await;
    }

    /// Reads the TLS files again. Nothing changes until [`Shared::install`].
    ///
    /// # Errors
    /// The file that is not usable.
    pub fn read_tls(&self) -> Result<Option<NewTls>, TlsError> {
        self.tls.as_ref().map(|config| tls::acceptor(config).map(NewTls)).transpose()
    }

    /// New handshakes use what was read; connections go on.
    pub fn install(&self, tls: Option<NewTls>) {
        if let Some(NewTls(acceptor)) = tls {
            self.acceptor.store(Some(Arc::new(acceptor)));
        }
    }

    /// Whether it speaks TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connections open now.
    #[must_use]
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Acquire)
    }
}

/// Counts a connection until it is dropped, however its task ends.
struct Open {
    shared: Arc<Shared>,
    _admitted: Admitted,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::AcqRel);
        self.shared.broker.metrics.connections_open.decrement();
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for connections of the process before.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 4096;
