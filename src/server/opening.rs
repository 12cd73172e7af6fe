//! From a data directory to a broker that holds what is stored there; what is damaged is refused or moved aside, as configured.
//!
//! Must not know listeners.

use std::{path::PathBuf, sync::Arc, time::Duration};

use sd_notify::NotifyState;
use serde_json::{Value, json};

use super::Error;
use crate::{
    auth::Auth,
    broker::{Broker, RecoveryError, time},
    clock,
    config::Config,
    storage::{self, OnCorruption, Progress, Store},
};

/// What is opened, and how far that is.
pub(super) struct Opening {
    pub(super) config: Config,
    pub(super) data_dir: PathBuf,
    pub(super) progress: Arc<Progress>,
}

impl Opening {
    /// Opens the store and reads it, on a thread of its own; tells the log and systemd how far it is.
    pub(super) async fn run(self: Arc<Self>, auth: Auth) -> Result<Arc<Broker>, Error> {
        let opening = self.clone();
        let mut opened = tokio::task::spawn_blocking(move || opening.open(auth));
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TELL_EVERY, TELL_EVERY);
        loop {
            tokio::select! {
                opened = &mut opened => {
                    let broker = opened.map_err(|error| Error::Runtime(error.into()))??;
                    tracing::info!(
                        data_dir = %self.data_dir.display(),
                        durability = self.config.storage.durability.name(),
                        sessions = broker.registry.len(),
                        retained = broker.retained(),
                        "store open"
                    );
                    return Ok(broker);
                }
                _ = tick.tick() => self.tell(),
            }
        }
    }

    /// For the status, until the broker is ready.
    pub(super) fn status(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_secs": clock::uptime().as_secs(),
            "ready": false,
            "state": "recovering",
            "recovery": { "records_read": self.progress.read(), "records_estimated": self.progress.estimated() },
        })
    }

    fn tell(&self) {
        let (read, estimated) = (self.progress.read(), self.progress.estimated());
        tracing::info!(records_read = read, records_estimated = estimated, "reading the store");
        let status = format!("Reading the store: {read} of about {estimated} records");
        let more_time = NotifyState::ExtendTimeoutUsec((10 * TELL_EVERY).as_micros().try_into().unwrap_or(u32::MAX));
        // Without systemd there is nobody to tell.
        let _ = sd_notify::notify(&[NotifyState::Status(&status), more_time]);
    }

    fn open(&self, auth: Auth) -> Result<Arc<Broker>, Error> {
        let damage = match self.try_open(auth) {
            Err(Error::Damaged { source, .. }) if self.config.storage.on_corruption == OnCorruption::Quarantine => {
                source
            }
            opened => return opened,
        };
        storage::quarantine(&self.data_dir, &self.config.storage, &*damage)?;
        // The one before went with the broker that did not come to be.
        let auth = Auth::load(&self.config.auth);
        self.try_open(auth.map_err(|source| Error::Auth { source, named_by: String::new() })?)
    }

    fn try_open(&self, auth: Auth) -> Result<Arc<Broker>, Error> {
        let Config { storage, broker, session, durability, .. } = &self.config;
        let store = Store::open(&self.data_dir, storage).map_err(|error| self.judge(error))?;
        let store = Arc::new(store.with_rules(durability.clone()).with_progress(self.progress.clone()));
        let broker = Broker::new(broker.clone(), session.clone(), store, auth);
        let recovered = self.recover(&broker);
        if recovered.is_err() {
            // To be opened again, by this process or another one.
            broker.store.close()?;
        }
        match recovered {
            Ok(()) => Ok(broker),
            Err(RecoveryError::Store(error)) => Err(self.judge(error)),
            Err(error @ RecoveryError::Filter { .. }) => Err(self.damaged(error)),
            Err(error) => Err(Error::Recovery(error)),
        }
    }

    /// Takes over what the store holds, at the time that it is by now.
    fn recover(&self, broker: &Arc<Broker>) -> Result<(), RecoveryError> {
        if let Some(note) = broker.store.time()? {
            clock::resume(time::at_start(note, clock::wall(), self.config.storage.max_downtime_secs));
        }
        broker.recover(clock::now())?;
        broker.watch_time(clock::now(), clock::wall());
        Ok(())
    }

    fn judge(&self, error: storage::Error) -> Error {
        if error.is_damage() { self.damaged(error) } else { Error::Store(error) }
    }

    fn damaged(&self, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Damaged { source: Box::new(error), data_dir: self.data_dir.clone() }
    }
}

const TELL_EVERY: Duration = Duration::from_secs(2);
