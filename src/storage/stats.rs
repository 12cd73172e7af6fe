//! What is stored, counted: for the operator, from a store that is served as from one that is not.
//!
//! Must not know how it is shown.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{Engine, Error, Recovered, RecoveredLog, Table, keys, recover};

/// What a store holds. Bytes of records are those of their values, before compression.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    /// The stored format.
    pub format: u32,
    /// Persistent sessions.
    pub sessions: u64,
    /// Those whose client is connected, or was when its broker died.
    pub sessions_connected: u64,
    /// The others.
    pub sessions_offline: u64,
    /// Subscriptions of persistent sessions.
    pub subscriptions: u64,
    /// Packet Identifiers of inbound QoS 2 messages that are not released.
    pub received_ids: u64,
    /// Wills.
    pub wills: u64,
    /// Shared groups with a log.
    pub groups: u64,
    /// Queues, of sessions and of groups, that hold something.
    pub queues: u64,
    /// The messages in all queues, in flight or not.
    pub queued_messages: u64,
    /// Their bytes, as the limits count them.
    pub queued_bytes: u64,
    /// The longest queues, in bytes.
    pub largest_queues: Vec<Queue>,
    /// Retained messages.
    pub retained: u64,
    /// Their bytes, as the limits count them.
    pub retained_bytes: u64,
    /// Large messages that several queues share.
    pub shared_bodies: u64,
    /// Their bytes.
    pub shared_bodies_bytes: u64,
    /// Discarded logs that are still being removed.
    pub discarded_logs: u64,
    /// What it takes on the disk.
    pub disk: DiskUse,
}

/// What waits in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Whose: a Client Identifier, or `$share/` with name and filter of a group.
    pub of: String,
    /// Messages, in flight or not.
    pub messages: u64,
    /// Their bytes, as the limits count them.
    pub bytes: u64,
}

/// What a store takes on the disk, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DiskUse {
    /// The tables by their names, each with its files.
    pub tables: BTreeMap<&'static str, TableUse>,
    /// The write-ahead log.
    pub wal_bytes: u64,
    /// The engine's own diary.
    pub diary_bytes: u64,
    /// All else: files that wait for their removal, descriptions of the store.
    pub other_bytes: u64,
}

/// The files of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TableUse {
    /// How many files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that the newest values take, as the engine estimates.
    pub live_bytes: u64,
    /// Records in them, deletions counted in, and in memory, as the engine estimates.
    pub records: u64,
}

/// One backup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Backup {
    /// Counts up within its directory.
    pub id: u32,
    /// A file of it is missing: it cannot be restored, and nothing else is known of it. Other damage is found by restoring it.
    pub is_damaged: bool,
    /// When it was made, in seconds since the Unix epoch.
    pub made_at_secs: u64,
    /// Its bytes, those that it shares with others counted in.
    pub bytes: u64,
    /// Its files, likewise.
    pub files: u32,
    /// The bytes that the directory has just grown by; none where it was made earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_bytes: Option<u64>,
    /// The files, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_files: Option<u32>,
}

impl RecoveredLog {
    /// How many entries are not settled.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let beyond: u64 = self.state.settled.iter().map(|&(from, to)| to.saturating_sub(from).saturating_add(1)).sum();
        self.tail.saturating_sub(self.state.head).saturating_sub(beyond)
    }
}

/// Bytes and number of the files under `dir`, as far as they can be read: to tell how far something has come.
#[must_use]
pub fn tree(dir: &Path) -> (u64, u32) {
    let mut open: Vec<PathBuf> = vec![dir.to_owned()];
    let (mut bytes, mut files) = (0, 0);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => open.push(entry.path()),
                Ok(found) => (bytes, files) = (bytes + found.len(), files + 1),
                Err(_) => {}
            }
        }
    }
    (bytes, files)
}

/// See [`super::Store::stats`].
pub(super) fn stats(engine: &dyn Engine, largest: usize) -> Result<Stats, Error> {
    let mut stats = Stats { format: recover::format(engine)?.unwrap_or_default(), ..Stats::default() };
    recover::recover(engine, &mut |recovered| match recovered {
        Recovered::Session { session, subscriptions, received, log } => {
            stats.sessions += 1;
            stats.sessions_connected += u64::from(session.connected);
            stats.subscriptions += subscriptions.len() as u64;
            stats.received_ids += received.len() as u64;
            stats.add_queue(session.client_id, &log, largest);
        }
        Recovered::Group { group, log } => {
            stats.groups += 1;
            stats.add_queue(format!("$share/{}/{}", group.share, group.filter), &log, largest);
        }
        Recovered::Retained(message, _) => {
            stats.retained += 1;
            stats.retained_bytes += message.size() as u64;
        }
        Recovered::Will(_) => stats.wills += 1,
    })?;
    stats.sessions_offline = stats.sessions - stats.sessions_connected;
    stats.trim_queues(largest);
    let bodies = (keys::body(0), keys::body_counts().0);
    recover::paged(engine, Table::Bodies, bodies, &mut |_, value| {
        stats.shared_bodies += 1;
        stats.shared_bodies_bytes += value.len() as u64;
        Ok(())
    })?;
    recover::paged(engine, Table::Meta, keys::all_garbage(), &mut |_, _| {
        stats.discarded_logs += 1;
        Ok(())
    })?;
    stats.disk = engine.disk_use()?;
    Ok(stats)
}

impl Stats {
    fn add_queue(&mut self, of: String, log: &RecoveredLog, largest: usize) {
        let messages = log.waiting();
        if messages == 0 {
            return;
        }
        self.queues += 1;
        self.queued_messages += messages;
        self.queued_bytes += log.bytes;
        self.largest_queues.push(Queue { of, messages, bytes: log.bytes });
        // Sorted now and then, so that memory does not grow with the number of sessions.
        if self.largest_queues.len() >= largest.saturating_mul(2).max(QUEUES_UNSORTED_MAX) {
            self.trim_queues(largest);
        }
    }

    fn trim_queues(&mut self, largest: usize) {
        self.largest_queues
            .sort_by(|a, b| Reverse((a.bytes, a.messages)).cmp(&Reverse((b.bytes, b.messages))).then(a.of.cmp(&b.of)));
        self.largest_queues.truncate(largest);
    }
}

const QUEUES_UNSORTED_MAX: usize = 1024;
