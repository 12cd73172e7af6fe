//! The composition root: the only place that wires the parts, and that knows in which order they start and stop. Must not know
//! what the parts do.

mod data_dir;
mod opening;

use std::{
    io,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use crate::{
    auth::{Auth, FileError},
    broker::{Broker, Dropped, Farewell, RecoveryError, Signal},
    clock,
    config::{Config, Loaded, NamedFiles},
    control::{Control, Socket},
    net::{Admission, Listener, ListenerError, Shared, Verifying},
    storage::{self, Durability},
};

use opening::Opening;

pub use data_dir::{DataDirError, hold};

/// Why the broker did not start, or did not end in order.
#[derive(Debug, Error)]
pub enum Error {
    /// The runtime cannot be built.
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    /// The data directory cannot be used.
    #[error("{source}{named_by}")]
    DataDir {
        /// Why.
        source: DataDirError,
        /// The option that names it.
        named_by: String,
    },
    /// The store is damaged, and is to be left as it is.
    #[error(
        "{}\nthe store in {} is damaged, and is not served; to start with what can be read of it, and have it moved to {}: \
         `pinnace serve --quarantine` (storage.on_corruption = \"quarantine\"); or bring back a backup by `pinnace restore`",
        storage::in_full(&**source),
        data_dir.join("store").display(),
        data_dir.join(storage::QUARANTINE).display()
    )]
    Damaged {
        /// What is damaged, with its causes.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// The data directory.
        data_dir: PathBuf,
    },
    /// The store does not open.
    #[error(transparent)]
    Store(#[from] storage::Error),
    /// What the store holds cannot be taken over.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// A file of authorization is not right.
    #[error("{source}{named_by}")]
    Auth {
        /// What is wrong with it.
        source: FileError,
        /// The option that names it.
        named_by: String,
    },
    /// A listener does not open.
    #[error("{source}{named_by}")]
    Listener {
        /// Why.
        source: Box<ListenerError>,
        /// The option that names its address, or the file.
        named_by: String,
    },
    /// The control socket cannot be made.
    #[error("{}: cannot open the control socket: {source}", path.display())]
    Control {
        /// The data directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Signals cannot be received.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
}

/// Serves until SIGTERM, SIGINT or `pinnace drain`.
///
/// # Errors
/// [`Error`]
pub fn run(loaded: Loaded) -> Result<(), Error> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if loaded.config.server.worker_threads > 0 {
        runtime.worker_threads(loaded.config.server.worker_threads);
    }
    let runtime = runtime.enable_all().build().map_err(Error::Runtime)?;
    let served = runtime.block_on(serve(loaded));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn serve(loaded: Loaded) -> Result<(), Error> {
    let files = loaded.named_files();
    let Loaded { config, data_dir, .. } = &loaded;
    clock::begin();
    let max_connections = raise_descriptor_limit();
    let named_by = |option| loaded.named_by(option);
    let _held_until_the_end =
        data_dir::hold(data_dir).map_err(|source| Error::DataDir { source, named_by: named_by("server.data_dir") })?;
    let auth = Auth::load(&config.auth)
        .map_err(|source| Error::Auth { named_by: files.named_by(&source.path).to_owned(), source })?;
    say_what_is_allowed(config, &auth, &files);
    let opening = Arc::new(Opening { config: config.clone(), data_dir: data_dir.clone(), progress: Arc::default() });
    let running = Arc::new(OnceLock::new());
    let socket = Socket::open(data_dir).map_err(|source| Error::Control { path: data_dir.clone(), source })?;
    let stop = Arc::new(Notify::new());
    let control = control(&opening, &running, &stop, files.clone());
    let reload = control.reload.clone();
    let mut signals = Signals::new().map_err(Error::Signals)?;
    tracing::info!(path = %socket.path().display(), "control socket open");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(socket.serve(control).await) });
    let broker = tokio::select! {
        broker = opening.run(auth) => broker?,
        // What is being read stays as it is.
        () = signals.stop() => return Ok(()),
        () = stop.notified() => return Ok(()),
    };
    let verifying = Arc::new(Verifying::default());
    let admission = Arc::new(Admission::new(&config.network, max_connections));
    let mut listeners = Vec::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        let opened = Listener::open(listener, broker.clone(), admission.clone(), verifying.clone());
        listeners.push(opened.map_err(|source| {
            let named_by = match &source {
                ListenerError::Bind { .. } => loaded.named_by(&format!("listener[{index}].address")),
                ListenerError::Tls { source, .. } => files.named_by(source.path()).to_owned(),
            };
            Error::Listener { source: Box::new(source), named_by }
        })?);
    }
    let shared: Arc<[Arc<Shared>]> = listeners.iter().map(Listener::shared).collect();
    let _ = running.set(Running { broker: broker.clone(), listeners: shared, data_dir: data_dir.clone() });
    if config.broker.sys_interval_secs > 0 {
        // It stands there before the first client comes.
        broker.publish_sys(clock::now());
        tasks.spawn(publish_sys(broker.clone()));
    }
    for listener in listeners {
        let shared = listener.shared();
        tracing::info!(address = %shared.address, tls = shared.is_tls(), "listening");
        tasks.spawn(listener.run());
    }
    tasks.spawn(sweep(broker.clone()));
    tasks.spawn(mend_store(broker.clone()));
    // Without systemd there is nobody to tell.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "ready");
    signals.serve(&stop, reload).await;
    stop_in_order(&broker, tasks, config, &mut signals).await;
    broker.note_time(clock::now(), clock::wall());
    broker.store.close()?;
    tracing::info!("stopped");
    Ok(())
}

/// Completes what is in flight, stops accepting, tells the clients, waits until their sessions are parked.
async fn stop_in_order(
    broker: &Arc<Broker>,
    mut tasks: tokio::task::JoinSet<()>,
    config: &Config,
    signals: &mut Signals,
) {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    tracing::info!("stopping");
    broker.stop(Farewell::new(config.server.server_reference.clone(), config.server.server_moved));
    tokio::select! {
        () = drain(broker, Duration::from_secs(u64::from(config.server.drain_secs))) => {}
        () = signals.stop() => tracing::warn!("told again to stop: what is in flight is not waited for"),
    }
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    let grace = Duration::from_secs(u64::from(config.server.shutdown_grace_secs));
    let gone = async {
        while broker.metrics.connections_open.get() > 0 {
            broker.registry.raise_all(Signal::SHUTDOWN);
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(grace, gone).await.is_err() {
        let left = broker.metrics.connections_open.get();
        tracing::warn!(connections = left, "the time to shut down is over; the rest is closed without a word");
    }
}

/// Until no client is left, or `time` is over. New ones are let in as far as to hear that they must go elsewhere.
async fn drain(broker: &Broker, time: Duration) {
    let drained = async {
        while broker.metrics.clients_connected.get() > 0 {
            broker.registry.raise_all(Signal::DRAIN);
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(time, drained).await.is_err() {
        let left = broker.metrics.clients_connected.get();
        tracing::warn!(clients = left, "the time to drain is over: what is in flight is not waited for any longer");
    }
}

/// The signals of an operator.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Until one of those that stop the broker.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Until it is time to stop.
    async fn serve(&mut self, stop: &Notify, reload: Arc<dyn Fn() -> Result<(), Vec<String>> + Send + Sync>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                () = stop.notified() => return,
                _ = self.hangup.recv() => {
                    let reload = reload.clone();
                    // What it found is in the log.
                    let _ = tokio::task::spawn_blocking(move || reload()).await;
                }
            }
        }
    }
}

/// What the control socket speaks of, once it is there.
struct Running {
    broker: Arc<Broker>,
    listeners: Arc<[Arc<Shared>]>,
    data_dir: PathBuf,
}

fn control(opening: &Arc<Opening>, running: &Arc<OnceLock<Running>>, stop: &Arc<Notify>, files: NamedFiles) -> Control {
    let (opening, stop) = (opening.clone(), stop.clone());
    let [for_status, for_reload, for_backup, for_store] = [(); 4].map(|()| running.clone());
    let starting = || "the store is still being read: see `pinnace status`".to_owned();
    Control {
        status: Arc::new(move || for_status.get().map_or_else(|| opening.status(), status)),
        reload: Arc::new(move || {
            let running = for_reload.get().ok_or_else(|| vec![starting()])?;
            reload(&running.broker, &running.listeners, &files)
        }),
        drain: Arc::new(move || stop.notify_one()),
        backup: Arc::new(move |dir, keep| backup(&for_backup.get().ok_or_else(starting)?.broker, dir, keep)),
        store: Arc::new(move |largest| told(for_store.get().ok_or_else(starting)?.broker.store.stats(largest))),
    }
}

fn backup(broker: &Broker, dir: &Path, keep: Option<NonZeroU32>) -> Result<Value, String> {
    tracing::info!(dir = %dir.display(), "backup begun");
    let made = told(broker.store.backup(dir, keep));
    match &made {
        Ok(backup) => tracing::info!(dir = %dir.display(), %backup, "backup made"),
        Err(error) => tracing::error!(dir = %dir.display(), error, "the backup failed"),
    }
    made
}

/// As the control socket tells it.
fn told(outcome: Result<impl serde::Serialize, storage::Error>) -> Result<Value, String> {
    outcome
        .map_err(|error| storage::in_full(&error))
        .and_then(|found| serde_json::to_value(found).map_err(|error| error.to_string()))
}

/// Reads ACL, passwords and TLS files again: all of them, then puts them in force. A bad file changes nothing.
fn reload(broker: &Broker, listeners: &[Arc<Shared>], files: &NamedFiles) -> Result<(), Vec<String>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    let mut errors = Vec::new();
    let rules = broker.auth.read().map_err(|faults| {
        errors.extend(faults.iter().map(|fault| format!("{fault}{}", files.named_by(&fault.path))));
    });
    let mut tls = Vec::new();
    for listener in listeners {
        match listener.read_tls() {
            Ok(read) => tls.push((listener, read)),
            Err(error) => errors.push(format!("{error}{}", files.named_by(error.path()))),
        }
    }
    if let (Ok(rules), true) = (rules, errors.is_empty()) {
        for (path, problem) in broker.auth.emptied(&rules) {
            tracing::warn!(file = %path.display(), "{problem}{}", files.named_by(path));
        }
        tls.into_iter().for_each(|(listener, read)| listener.install(read));
        broker.auth.install(rules);
        broker.registry.raise_all(Signal::RULES);
        tracing::info!("reloaded");
        return Ok(());
    }
    for error in &errors {
        tracing::error!(%error, "reload refused; what was in force stays in force");
    }
    Err(errors)
}

fn status(Running { broker, listeners, data_dir }: &Running) -> Value {
    let health = broker.store.health();
    let most_drops = broker.most_drops(DROPPERS_TOLD);
    let mut metrics = serde_json::Map::new();
    let mut dropped = serde_json::Map::new();
    let mut limited = serde_json::Map::new();
    for sample in broker.samples() {
        let (group, name) = match sample.name.split_once('_') {
            Some(("dropped", reason)) => (&mut dropped, reason),
            Some(("limited", limit)) => (&mut limited, limit),
            _ => (&mut metrics, sample.name),
        };
        group.insert(name.to_owned(), sample.value.into());
    }
    let listeners: Vec<_> = listeners
        .iter()
        .map(|one| json!({ "address": one.address.to_string(), "tls": one.is_tls(), "connections": one.open() }))
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_secs": clock::uptime().as_secs(),
        "ready": health.failure.is_none() && !broker.is_stopping(),
        "state": if broker.is_stopping() { "stopping" } else { "running" },
        "listeners": listeners,
        "metrics": metrics,
        "dropped": dropped,
        "limited": limited,
        "drops_by_session": drops_of("client", most_drops.sessions),
        "drops_by_group": drops_of("group", most_drops.groups),
        "storage": {
            "engine": health.engine,
            "durability": health.durability.name(),
            "healthy": health.failure.is_none(),
            "failure": health.failure,
            "commits": health.batches,
            "syncs": health.syncs,
            "operations": health.operations,
            "open_bytes": health.open_bytes,
            "quarantined": quarantined(data_dir),
        },
    })
}

/// Where damaged stores are, until an operator removes them.
fn quarantined(data_dir: &Path) -> Vec<String> {
    let found = std::fs::read_dir(data_dir.join(storage::QUARANTINE));
    let paths = found.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path().display().to_string()));
    let mut paths: Vec<String> = paths.collect();
    paths.sort();
    paths
}

/// Those that have dropped most, each under `key`.
fn drops_of(key: &str, most: Vec<Dropped>) -> Vec<Value> {
    let told = |one: Dropped| {
        let drops: serde_json::Map<String, Value> =
            one.by_reason.iter().map(|(reason, count)| (reason.counter().to_owned(), (*count).into())).collect();
        json!({ key: one.name, "drops": drops })
    };
    most.into_iter().map(told).collect()
}

/// One slow clock for all that expires.
async fn sweep(broker: Arc<Broker>) {
    let mut tick = tokio::time::interval(SWEEP_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        broker.watch_time(clock::now(), clock::wall());
        loop {
            let begun = std::time::Instant::now();
            if !broker.sweep(clock::now(), SWEEP_AT_ONCE) {
                break;
            }
            // However much is due at once, it takes a quarter of one processor.
            tokio::time::sleep(begun.elapsed() * 3).await;
        }
    }
}

/// What the broker tells of itself, at its interval.
async fn publish_sys(broker: Arc<Broker>) {
    let every = Duration::from_secs(u64::from(broker.config.sys_interval_secs));
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        broker.publish_sys(clock::now());
    }
}

/// After a failed commit: sessions that may be ahead of the store are closed, and read anew from a store that works again.
async fn mend_store(broker: Arc<Broker>) {
    loop {
        std::future::poll_fn(|cx| {
            broker.store.when_failed(cx.waker());
            if broker.store.failure().is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if let Some(error) = broker.store.failure() {
            tracing::error!(
                error = storage::in_full(&*error),
                "the store failed: what is durable is refused until it works again"
            );
        }
        let mut pause = POLL;
        loop {
            // At every attempt: who was just being let in when the store failed came too late for the one before.
            while broker.logged_online() {
                broker.registry.raise_all(Signal::STORE_FAILED);
                tokio::time::sleep(POLL).await;
            }
            let rebuilt = {
                let broker = broker.clone();
                tokio::task::spawn_blocking(move || broker.rebuild(clock::now())).await
            };
            match rebuilt {
                Ok(Ok(())) => break,
                Ok(Err(error)) => tracing::error!(error = storage::in_full(&error), "the store does not work yet"),
                Err(error) => tracing::error!(%error, "reading the store anew failed"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MEND_PAUSE_MAX);
        }
        tracing::info!(sessions = broker.registry.len(), "the store works again");
    }
}

/// Raises the limit of open files to what the system allows. How many connections that leaves room for.
fn raise_descriptor_limit() -> u32 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or_else(|| u32::MAX.into());
    let max_connections = u32::try_from(descriptors.saturating_sub(DESCRIPTORS_KEPT)).unwrap_or(u32::MAX).max(1);
    tracing::info!(descriptors, max_connections, "limits");
    max_connections
}

fn say_what_is_allowed(config: &Config, auth: &Auth, files: &NamedFiles) {
    for listener in config.listeners.iter().filter(|listener| listener.allows_anonymous()) {
        tracing::warn!(address = %listener.address, "anonymous clients are allowed on this listener");
    }
    if config.auth.acl_file.is_none() {
        tracing::warn!("no ACL file: clients may publish and subscribe to everything");
    }
    for (path, problem) in auth.empty(&auth.rules()) {
        tracing::warn!(file = %path.display(), "{problem}{}", files.named_by(path));
    }
    if config.storage.durability == Durability::Memory {
        tracing::warn!("durability is memory: nothing survives the end of the process");
    }
}

/// Descriptors for the store, listeners and the rest.
const DESCRIPTORS_KEPT: u64 = 512;
/// How many of the sessions, and of the shared groups, that drop messages `pinnace status` names.
const DROPPERS_TOLD: usize = 10;
const SWEEP_EVERY: Duration = Duration::from_millis(500);
const SWEEP_AT_ONCE: usize = 32;
const POLL: Duration = Duration::from_millis(50);
const MEND_PAUSE_MAX: Duration = Duration::from_secs(5);
