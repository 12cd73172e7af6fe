//! What can go wrong with the store.
//!
//! Must not know what a caller makes of it: which acknowledgement is withheld is the broker's concern.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use super::{BodyId, Durability, FORMAT_VERSION, LogId, Seq, engine::Table, keys};

/// A failure of the store, with its cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process, or another store of this one, has the directory open.
    #[error("the store in {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// A later release wrote this store.
    #[error("the store has format {found}; this release reads formats up to {FORMAT_VERSION}")]
    NewerFormat {
        /// The format that it is written in.
        found: u32,
    },
    /// The directory holds records, but not those of a store of ours.
    #[error("the store has records but no format version: it is damaged, or not a store of this broker")]
    UnknownFormat,
    /// A record that cannot be read. Others are not touched by it.
    #[error("damaged record in table {table}, key {}", Hex(.key))]
    Damaged {
        /// Where it stands.
        table: Table,
        /// Its key.
        key: Vec<u8>,
        /// What is wrong with it.
        #[source]
        cause: Unreadable,
    },
    /// A write-ahead log lacks what had been synced. Nothing was touched.
    #[error("the log {} is damaged at byte {at}: what stood there was on the disk, and later entries are there still", log.display())]
    DamagedLog {
        /// Its file.
        log: PathBuf,
        /// Where the last entry before the damage ends.
        at: u64,
    },
    /// A file of the store is missing, or not as it was written.
    #[error("{}: {problem}", .path.display())]
    DamagedFile {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// What the engine reads is not what it wrote: the disk, or something on the way to it, has changed it.
    #[error("the store is damaged: {doing}")]
    Corrupt {
        /// What was tried.
        doing: &'static str,
        /// The engine's own words.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Entries of a log stand where the disk has changed what the engine wrote. Others are not touched by it.
    #[error("entries of log {log} cannot be read, from {from} on")]
    DamagedEntries {
        /// Which log.
        log: LogId,
        /// The first of them.
        from: Seq,
        /// The last one.
        to: Seq,
        /// What the engine says.
        #[source]
        cause: Box<Self>,
    },
    /// The engine, and in it mostly the disk, refused.
    #[error("the store's engine failed: {doing}")]
    Engine {
        /// What was tried.
        doing: &'static str,
        /// The engine's own words.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// `fsync` and `os` need the durable engine, which this build leaves out.
    #[error("durability \"{}\" needs the feature \"rocksdb\", which this build leaves out", .0.name())]
    NoEngine(Durability),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// There is nothing where a store was to be read.
    #[error("there is no store in {}", .0.display())]
    NoStore(PathBuf),
    /// A store is where one was to be made.
    #[error(
        "{} holds a store already; move it away first: mv {} {}.old",
        .0.display(), .0.display(), .0.display()
    )]
    StoreExists(PathBuf),
    /// With `memory` there is nothing on the disk.
    #[error("durability \"memory\" keeps nothing on the disk: there is nothing to back up")]
    NoBackup,
    /// One backup at a time.
    #[error("a backup is being made already")]
    BackupRunning,
    /// A directory that cannot hold backups.
    #[error("{}: {problem}", path.display())]
    BackupDir {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// There is one more backup, and none less.
    #[error("backup {id} is made, but older ones could not be removed")]
    NotPurged {
        /// Its number.
        id: u32,
        /// The engine's own words.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file or directory of the store, or of its backups, cannot be made, written or removed.
    #[error("{}: {doing} failed", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

impl Error {
    /// Whether what was stored is not there as it was stored: trying again does not help.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::DamagedFile { .. }
                | Self::DamagedLog { .. }
                | Self::Corrupt { .. }
                | Self::Damaged { .. }
                | Self::UnknownFormat
        )
    }

    /// The entries that cannot be read, where the damage is in a log: a reader may go on behind them.
    #[must_use]
    pub fn damaged_entries(&self) -> Option<(LogId, RangeInclusive<Seq>)> {
        match self {
            Self::Damaged { table: Table::Logs, key, .. } => {
                let (log, seq) = keys::parse_entry(key)?;
                Some((log, seq..=seq))
            }
            Self::DamagedEntries { log, from, to, .. } => Some((*log, *from..=*to)),
            _ => None,
        }
    }

    /// For `map_err`: `doing` something with the file or directory at `path` failed.
    pub(super) fn file(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::File { path, doing, cause }
    }
}

/// Why a record cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It ends too early.
    #[error("it is cut short")]
    Short,
    /// It goes on after its end.
    #[error("it is followed by {0} unknown bytes")]
    Trailing(usize),
    /// Written by a later release.
    #[error("its version is {0}, which this release does not know")]
    Version(u8),
    /// A field has a value that nothing writes.
    #[error("its {0} is invalid")]
    Invalid(&'static str),
    /// The key is none that is written.
    #[error("its key is invalid")]
    Key,
    /// The body that it refers to is not there.
    #[error("its body {0} is missing")]
    NoBody(BodyId),
}

/// Bytes in hexadecimal digits.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
