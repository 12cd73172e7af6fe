//! What survives a crash: sessions, logs, retained messages, wills, shared groups.
//!
//! All connections write into one open batch ([`Store::write`]); one thread commits it as a whole, and the number of the batch
//! ([`Lsn`]) is the ticket of everybody who waits for it. Knows `mqtt` alone; must not know who writes, nor why.

mod batch;
mod commit;
mod directory;
mod durability;
mod engine;
mod error;
#[doc(hidden)]
pub mod faulty;
#[cfg(feature = "rocksdb")]
mod format_note;
#[cfg(feature = "rocksdb")]
mod frames;
mod garbage;
mod keys;
mod log;
mod memory;
mod offline;
mod past_damage;
#[cfg(feature = "rocksdb")]
mod quarantine;
mod record;
mod recover;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(feature = "rocksdb")]
mod salvage;
mod stats;
#[cfg(test)]
mod tests;
#[cfg(feature = "rocksdb")]
mod vet;
#[cfg(feature = "rocksdb")]
mod wal;

use std::{
    fmt,
    num::NonZeroU32,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    thread::JoinHandle,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    metrics::Metrics,
    mqtt::{Message, TopicName},
};
use commit::{Committer, Pace};

pub use batch::{Batch, Body, Callback};
pub use directory::make_dir;
pub use durability::{Durability, Level, Rule, Rules};
pub use engine::{Engine, Op, Ops, Table, Visit};
pub use error::{Error, Unreadable};
pub use log::{LogEntry, RecoveredLog};
pub use memory::MemoryEngine;
pub use offline::{
    Checked, Content, Finding, Import, Imported, Item, NewStore, Refused, Selection, Snapshot, backup, backups,
    has_backup, restore, verify_backup,
};
#[cfg(feature = "rocksdb")]
pub use quarantine::quarantine;
pub use record::{
    Author, EntryHead, LogState, OpenEntry, Step, StoredGroup, StoredSession, StoredSubscription, StoredTime,
    StoredWill,
};
pub use recover::{Orphan, Recovered};
pub use stats::{Backup, DiskUse, Queue, Stats, TableUse, tree};

/// Where damaged stores are, in the data directory.
pub const QUARANTINE: &str = "quarantine";
/// The id of a session, and of its log; the first is 1.
pub type SessionId = u64;
/// Ids from here on are never given by the store: those of sessions that it never hears of. They mean nothing to the next process.
pub const UNSTORED: SessionId = 1 << 63;
/// The id of a log; sessions, groups and bodies share the same numbers.
pub type LogId = u64;
/// The number of an entry in its log; the first is 1.
pub type Seq = u64;
/// The id of a body that is stored apart from the entries that refer to it.
pub type BodyId = u64;

/// The number of a commit: of the batch that was open when something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// What has become of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Not yet known.
    Pending,
    /// It survives what anybody who wrote into it has asked for by [`Batch::require`].
    Durable,
    /// Nobody may count on it. Whether it is stored is known again after [`Store::reopen`].
    Failed,
}

/// Options of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What an acknowledgement waits for: `fsync`, `os` or `memory`.
    pub durability: Durability,
    /// When the batch that is being collected is this large, in bytes, publishers wait for the disk.
    pub commit_max_bytes: usize,
    /// How long changes that nobody waits for may stay in memory, in milliseconds.
    pub lazy_commit_millis: u64,
    /// The longest time that the broker may have been down, in seconds.
    pub max_downtime_secs: u64,
    /// What a start does with a store that is damaged: `refuse` it, or move it aside and go on with what can be read (`quarantine`).
    pub on_corruption: OnCorruption,
    /// RocksDB: cache for blocks that were read, in bytes.
    pub rocksdb_cache_bytes: usize,
    /// RocksDB: changes kept in memory before they are sorted into files, in bytes, all tables together.
    pub rocksdb_memtable_bytes: usize,
    /// RocksDB: size of the write-ahead logs from which on the oldest tables in memory are written out, in bytes.
    pub rocksdb_wal_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            commit_max_bytes: 8 << 20,
            lazy_commit_millis: 10,
            max_downtime_secs: 365 * 86_400,
            on_corruption: OnCorruption::Refuse,
            rocksdb_cache_bytes: 16 << 20,
            rocksdb_memtable_bytes: 16 << 20,
            rocksdb_wal_bytes: 64 << 20,
        }
    }
}

/// What becomes of a damaged store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnCorruption {
    /// It is not served, and no record of it is changed.
    #[default]
    Refuse,
    /// It is moved aside, and what can be read of it becomes the store.
    Quarantine,
}

/// The state of the store, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// `rocksdb` or `memory`.
    pub engine: &'static str,
    /// As configured.
    pub durability: Durability,
    /// Why nothing can be stored at present; absent while all is well.
    pub failure: Option<String>,
    /// The last batch that was written.
    pub written: u64,
    /// The last batch that is as durable as the store.
    pub durable: u64,
    /// How many batches were written since the start.
    pub batches: u64,
    /// How many of them waited for the disk.
    pub syncs: u64,
    /// How many operations they held.
    pub operations: u64,
    /// Bytes in the batch that is being collected.
    pub open_bytes: usize,
    /// Discarded logs that are still being removed.
    pub discarded_logs: usize,
}

/// How far a start has come with reading what is stored.
#[derive(Debug, Default)]
pub struct Progress {
    read: AtomicU64,
    estimated: AtomicU64,
}

impl Progress {
    /// How many records have been read.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// How many there are, by the engine's estimate; 0 until it is opened.
    #[must_use]
    pub fn estimated(&self) -> u64 {
        self.estimated.load(Ordering::Relaxed)
    }
}

/// The store. Dropping it closes it.
pub struct Store {
    committer: Arc<Committer>,
    rules: Rules,
    progress: Arc<Progress>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens the store in `dir/store`, and makes it where there is none. With [`Durability::Memory`] the disk is not touched.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::NewerFormat`], [`Error::UnknownFormat`], [`Error::NoEngine`], [`Error::Engine`],
    /// [`Error::Damaged`], [`Error::DamagedLog`].
    pub fn open(dir: &Path, config: &Config) -> Result<Self, Error> {
        match config.durability {
            Durability::Memory => Self::with_engine(Arc::new(MemoryEngine::new()), config),
            Durability::Fsync | Durability::Os => Self::with_engine(engine_in(dir, config)?, config),
        }
    }

    /// A store on an engine of the caller's.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn with_engine(engine: Arc<dyn Engine>, config: &Config) -> Result<Self, Error> {
        let pace = if config.durability == Durability::Memory { Pace::AtOnce } else { Pace::Threaded };
        let committer = Arc::new(Committer::new(engine, config, pace)?);
        let store = Self { committer, rules: Rules::default(), progress: Arc::default(), threads: Mutex::default() };
        if pace == Pace::Threaded {
            store.spawn("pinnace-commit", Committer::run)?;
        }
        store.spawn("pinnace-discard", |committer| committer.garbage.run(committer))?;
        Ok(store)
    }

    /// The same store, with topics that are kept otherwise than it is.
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self.committer.keep_sessions_at(self.session_level());
        self
    }

    /// The same store, which tells there how far [`Store::recover`] is.
    #[must_use]
    pub fn with_progress(mut self, progress: Arc<Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// A store without threads, for tests: nothing is committed but by [`Store::step`].
    #[doc(hidden)]
    pub fn stepped(engine: Arc<dyn Engine>, config: &Config) -> Result<Self, Error> {
        let committer = Arc::new(Committer::new(engine, config, Pace::Stepped)?);
        Ok(Self { committer, rules: Rules::default(), progress: Arc::default(), threads: Mutex::default() })
    }

    /// Commits the open batch, or where there is none removes a page of a discarded log; says whether there was anything.
    #[doc(hidden)]
    pub fn step(&self) -> bool {
        self.committer.step() || self.committer.garbage.collect(&self.committer)
    }

    /// Gives `visit` all that is stored: sessions, then groups, then retained messages, then wills. For the start, and within
    /// [`Store::reopen`], while nothing is written. What is returned belongs to none of these. Blocks on the disk.
    ///
    /// # Errors
    /// [`Error::Damaged`] names the record that cannot be read; [`Error::Engine`].
    pub fn recover(&self, visit: &mut dyn FnMut(Recovered)) -> Result<Vec<Orphan>, Error> {
        let (engine, Progress { read, estimated }) = (self.committer.engine(), &*self.progress);
        let tables = engine.disk_use().map(|disk| disk.tables).unwrap_or_default();
        let records = |table: Table| tables.get(table.name()).map_or(0, |table| table.records);
        estimated.store(records(Table::Sessions) + records(Table::Retained), Ordering::Relaxed);
        read.store(0, Ordering::Relaxed);
        recover::recover(engine, &mut |recovered| {
            read.fetch_add(recovered.records(), Ordering::Relaxed);
            visit(recovered);
        })
    }

    /// Adds what `f` puts to the open batch, and says which batch that is. Never waits for the disk. `f` runs under the batch's
    /// lock, so it is short and does not call the store, and whoever holds a lock that such an `f` takes does not call this.
    ///
    /// After a failure, and after [`Store::close`], nothing is stored: the batch has failed, and its callbacks have run, when
    /// this returns. With [`Durability::Memory`] the batch is applied, and its callbacks have run, when this returns, unless
    /// another thread is just doing so or this is called by a callback.
    pub fn write<R>(&self, f: impl FnOnce(&mut Batch) -> R) -> (R, Lsn) {
        self.committer.write(f)
    }

    /// What [`Batch::put_time`] stored last; none in a store of an earlier release.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Engine`].
    pub fn time(&self) -> Result<Option<StoredTime>, Error> {
        recover::time(self.committer.engine())
    }

    /// What the acknowledgement of a message to `topic` waits for: what the first rule for it says, else as the store is.
    #[must_use]
    pub fn level(&self, topic: &TopicName) -> Level {
        self.rules.of(topic).map_or_else(|| self.durability().level(), |(_, rule)| rule.level)
    }

    /// What the acknowledgement of session state waits for: as the store is, and not less than any topic that a rule keeps. Else a power
    /// cut would bring a packet id back that was done with, and the message that has it next would be taken for a duplicate.
    #[must_use]
    pub fn session_level(&self) -> Level {
        self.rules.rules.iter().map(|rule| rule.level).fold(self.durability().level(), Level::max)
    }

    /// What has become of a batch. Two atomic loads, unless something failed.
    #[must_use]
    pub fn outcome(&self, lsn: Lsn) -> Outcome {
        self.committer.outcome(lsn)
    }

    /// Wakes once the outcome of `lsn` is known; at once if it is. A batch that nobody required is written soon by this, and not synced.
    pub fn when_committed(&self, lsn: Lsn, waker: &Waker) {
        self.committer.when_committed(lsn, waker);
    }

    /// Whether the open batch has reached its bound: whoever can wait, waits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.committer.is_full()
    }

    /// Wakes once there is room; at once if there is.
    pub fn when_room(&self, waker: &Waker) {
        self.committer.when_room(waker);
    }

    /// Reads committed entries, ascending from `from`: at most `max_entries`, and no further one once they hold `max_bytes`, but
    /// at least one if there is one. Entries that were trimmed are passed over; what is settled beyond the head of the log may be
    /// passed over, too. Blocks on the disk.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::DamagedEntries`] where the first one cannot be read (see [`Error::damaged_entries`]); a later one
    /// ends the page before it.
    /// [`Error::Engine`].
    pub fn read_log(
        &self,
        log: LogId,
        from: Seq,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<LogEntry>, Error> {
        log::read(self.committer.engine(), log, from, max_entries, max_bytes)
    }

    /// Adds a backup to those in `dir`, and keeps `keep` of them if it is given. What was written before the call is in it, whether
    /// somebody waits for it or not. Reads and writes go on meanwhile. Blocks for as long as it takes; not for a callback.
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::BackupRunning`], [`Error::BackupDir`], [`Error::Engine`], and the failure of a store that has failed.
    pub fn backup(&self, dir: &Path, keep: Option<NonZeroU32>) -> Result<Backup, Error> {
        let (sender, outcome) = std::sync::mpsc::sync_channel(1);
        self.write(|batch| {
            // The engine has it: the backup syncs what it takes.
            batch.after_commit(
                Level::Os,
                Box::new(move |outcome| {
                    let _ = sender.send(outcome);
                }),
            );
        });
        if outcome.recv() != Ok(Outcome::Durable) {
            let cause = self.failure().map_or_else(|| Error::Closed.into(), Into::into);
            return Err(Error::Engine { doing: "writing what was open", cause });
        }
        self.committer.engine().backup(dir, keep)
    }

    /// What is stored, counted, with the `largest` longest queues. Reads all records but those of queues: blocks on the disk.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Engine`].
    pub fn stats(&self, largest: usize) -> Result<Stats, Error> {
        stats::stats(self.committer.engine(), largest)
    }

    /// Reads the retained messages of `topics`, each in its place; none where there is none. Blocks on the disk.
    ///
    /// # Errors
    /// [`Error::Engine`] where none can be read; for one message alone that, or [`Error::Damaged`].
    pub fn read_retained(&self, topics: &[&TopicName]) -> Result<Vec<Result<Option<Message>, Error>>, Error> {
        let engine = self.committer.engine();
        let keys: Vec<_> = topics.iter().map(|topic| topic.as_str().as_bytes()).collect();
        let values: Vec<_> = match engine.get_many(Table::Retained, &keys) {
            Ok(values) => values.into_iter().map(Ok).collect(),
            // Damage on the disk has its place: the others can be read.
            Err(error) => {
                let values: Vec<_> = keys.iter().map(|key| engine.get(Table::Retained, key)).collect();
                if values.iter().all(Result::is_err) {
                    return Err(error);
                }
                values
            }
        };
        let read = |(key, value): (&&[u8], Result<Option<Vec<u8>>, Error>)| {
            let read = value?.map(|value| record::get_retained(&value)).transpose();
            match read {
                Ok(read) => Ok(read.map(|(message, _)| message)),
                Err(cause) => Err(Error::Damaged { table: Table::Retained, key: key.to_vec(), cause }),
            }
        };
        Ok(keys.iter().zip(values).map(read).collect())
    }

    /// As configured.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.committer.config().durability
    }

    /// The state of the store.
    #[must_use]
    pub fn health(&self) -> Health {
        let committer = &self.committer;
        Health {
            engine: committer.engine().name(),
            durability: self.durability(),
            failure: self.failure().map(|error| in_full(&error)),
            written: committer.written().0,
            durable: committer.durable().0,
            batches: committer.counts.batches.load(Ordering::Relaxed),
            syncs: committer.counts.syncs.load(Ordering::Relaxed),
            operations: committer.counts.operations.load(Ordering::Relaxed),
            open_bytes: committer.open_bytes(),
            discarded_logs: committer.garbage.len(),
        }
    }

    /// What is measured of its commits, and where everybody else counts, too.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.committer.metrics
    }

    /// Why nothing can be stored at present.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.committer.failure()
    }

    /// Wakes at the next failure; at once if nothing can be stored.
    pub fn when_failed(&self, waker: &Waker) {
        self.committer.when_failed(waker);
    }

    /// After a failure: closes the engine and opens it anew, then calls `read`, which reads what memory holds beyond the disk, by
    /// [`Store::recover`]. Batches work again only if that succeeds, too. Without a failure the engine is left as it is. Blocks on
    /// the disk; not for a callback.
    ///
    /// # Errors
    /// As [`Store::open`], and those of `read`; the store stays failed.
    pub fn reopen<R, E: From<Error>>(&self, read: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        self.committer.reopen(read)
    }

    /// Commits what is open, syncs, and lets go of the disk. Blocks on it; not for a callback.
    ///
    /// # Errors
    /// The failure, if any, that keeps it from the disk.
    pub fn close(&self) -> Result<(), Error> {
        let threads = std::mem::take(&mut *self.threads.lock());
        self.committer.stop();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the store has panicked");
            }
        }
        self.committer.close()
    }

    fn spawn(&self, name: &str, run: impl FnOnce(&Committer) + Send + 'static) -> Result<(), Error> {
        let committer = self.committer.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&committer))
            .map_err(|cause| Error::Engine { doing: "starting its threads", cause: cause.into() })?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(error = in_full(&error), "the store was not closed cleanly");
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("health", &self.health()).finish()
    }
}

/// The engine of [`Durability::Fsync`] and [`Durability::Os`], in `dir`; for benches that do without a store, too.
#[doc(hidden)]
#[cfg(feature = "rocksdb")]
pub fn durable_engine(dir: &Path, config: &Config) -> Result<Arc<dyn Engine>, Error> {
    Ok(Arc::new(rocks::RocksEngine::open(dir, config)?))
}

#[doc(hidden)]
#[cfg(not(feature = "rocksdb"))]
pub fn durable_engine(_dir: &Path, config: &Config) -> Result<Arc<dyn Engine>, Error> {
    Err(Error::NoEngine(config.durability))
}

#[cfg(not(feature = "rocksdb"))]
fn engine_in(data_dir: &Path, config: &Config) -> Result<Arc<dyn Engine>, Error> {
    durable_engine(data_dir, config)
}

/// Opens the store of a data directory, unless a later release wrote it.
#[cfg(feature = "rocksdb")]
fn engine_in(data_dir: &Path, config: &Config) -> Result<Arc<dyn Engine>, Error> {
    quarantine::resume(data_dir)?;
    let store = data_dir.join("store");
    let note = format_note::FormatNote::read(&store)?;
    let engine = durable_engine(&store, config)?;
    note.renew()?;
    Ok(engine)
}

/// There is nothing that could be damaged.
///
/// # Errors
/// [`Error::NoEngine`]
#[cfg(not(feature = "rocksdb"))]
pub fn quarantine(
    _data_dir: &Path,
    config: &Config,
    _cause: &dyn std::error::Error,
) -> Result<std::path::PathBuf, Error> {
    Err(Error::NoEngine(config.durability))
}

/// An error with all its causes, in one line.
pub fn in_full(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The format that this release writes. A release that changes it reads the older ones, and one that does not know it refuses it.
/// 2: logs count their bytes. 3: groups know what may have been sent. 4: who published a retained message.
/// 5: how far a subscription was sent what is retained; the time is noted, which need not be that of the wall clock.
pub const FORMAT_VERSION: u32 = 5;
