//! What can be read of a damaged store, record by record, into a new one, and what cannot.
//!
//! What does not fit together any more is put right here: entries whose shared body is gone, bodies that nothing refers to, queues that
//! nobody owns. Must not know files, nor how a damaged store is opened.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

use super::{
    BodyId, Engine, Error, FORMAT_VERSION, LogId, LogState, Ops, Seq, Table, Unreadable,
    keys::{self, Key, OwnerKey},
    past_damage::{Gap, scan_past_damage},
    record::{self, EntryMessage},
};
use crate::mqtt::{Filter, Shown};

/// What is lost, a line for each part of it.
#[derive(Debug, Default)]
pub(super) struct Losses {
    lines: Vec<String>,
    /// Lines that are too many to be kept.
    more: usize,
}

impl Losses {
    pub(super) fn add(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        } else {
            self.more += 1;
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.lines.len() + self.more
    }

    /// Whether nothing is lost.
    fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The lines.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "nothing beyond what is said above");
        }
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        if self.more > 0 { writeln!(f, "and {} more", self.more) } else { Ok(()) }
    }
}

/// Where records of `wreck` cannot be read.
///
/// # Errors
/// What is no damage.
pub(super) fn survey(wreck: &dyn Engine) -> Result<Vec<Gap>, Error> {
    let mut gaps = Vec::new();
    for table in TABLES {
        gaps.extend(scan_past_damage(wreck, table, everything(), &mut |_, _| {})?);
    }
    Ok(gaps)
}

/// Copies what can be read of `wreck` to `fresh`, which is empty. What `wreck` cannot give is taken from `older`, a view of the same store
/// without the files that are damaged: it may give what was true before.
///
/// # Errors
/// [`Error::NewerFormat`]; what is no damage.
pub(super) fn salvage(
    wreck: Option<&impl Engine>,
    older: Option<&impl Engine>,
    fresh: &dyn Engine,
    losses: &mut Losses,
) -> Result<(), Error> {
    let older = older.map(|older| older as &dyn Engine);
    let mut salvage = Salvage { fresh, ops: Ops::default(), seen: Seen::default(), losses, failure: None };
    for table in TABLES {
        let Some(wreck) = wreck else {
            for gap in older.map_or(Ok(Vec::new()), |older| salvage.copy(older, table, everything()))? {
                salvage.fill(&gap, None)?;
            }
            continue;
        };
        for gap in salvage.copy(wreck, table, everything())? {
            salvage.fill(&gap, older)?;
        }
    }
    salvage.finish()
}

fn everything() -> (Key, Key) {
    (Key::new(), Key::from_slice(EVERYTHING_END))
}

struct Salvage<'a> {
    fresh: &'a dyn Engine,
    ops: Ops,
    seen: Seen,
    losses: &'a mut Losses,
    failure: Option<Error>,
}

/// What the records that were read say of each other.
#[derive(Default)]
struct Seen {
    records: u64,
    has_format: bool,
    next_id: u64,
    owners: BTreeMap<LogId, Owner>,
    /// The state of logs that were discarded.
    discarded: HashMap<LogId, LogState>,
    bodies: HashSet<BodyId>,
    counts: HashMap<BodyId, u32>,
    logs: BTreeMap<LogId, Log>,
}

#[derive(Default)]
struct Owner {
    name: Option<String>,
    records: u64,
    state: LogState,
}

/// The entries of a log that are there.
#[derive(Default)]
struct Log {
    waiting: u64,
    tail: Seq,
}

impl Salvage<'_> {
    /// What is missing in one view, from the other one.
    fn fill(&mut self, gap: &Gap, older: Option<&dyn Engine>) -> Result<(), Error> {
        let Gap { table, from, to, cause } = gap;
        let before = self.seen.records;
        let lost = match older {
            Some(older) => self.copy(older, *table, (from.clone(), to.clone()))?.len(),
            None => 0,
        };
        let found = self.seen.records - before;
        self.losses.add(format!(
            "table {table}: what stood from {} up to {} cannot be read ({}); {found} records were found there in other files, \
             and may be older than the last ones{}",
            self.seen.describe(*table, from),
            self.seen.describe(*table, to),
            super::in_full(cause),
            if lost > 0 { "; others cannot be read there either" } else { "" }
        ));
        Ok(())
    }

    /// Copies what can be read, and returns where it cannot.
    fn copy(&mut self, from: &dyn Engine, table: Table, range: (Key, Key)) -> Result<Vec<Gap>, Error> {
        let gaps = scan_past_damage(from, table, range, &mut |key, value| {
            if self.failure.is_some() {
                return;
            }
            let taken = match self.seen.take(table, key, value) {
                Ok(taken) => taken,
                Err(Fault::Unreadable(cause)) => {
                    let what = self.seen.describe(table, key);
                    self.losses.add(format!("table {table}: {what} cannot be read: {cause}"));
                    false
                }
                Err(Fault::Error(error)) => {
                    self.failure = Some(error);
                    false
                }
            };
            if taken {
                self.seen.records += 1;
                self.ops.put(table, key, |out| out.extend_from_slice(value));
            }
            if self.ops.size() >= WRITE_BYTES {
                self.failure = self.write(false).err();
            }
        });
        self.failure.take().map_or(gaps, Err)
    }

    fn write(&mut self, sync: bool) -> Result<(), Error> {
        self.fresh.write(&self.ops, sync)?;
        self.ops.clear(WRITE_BYTES);
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        self.tell_lost_messages();
        self.tell_lost_owners();
        let Self { seen, ops, .. } = &mut self;
        for id in &seen.bodies {
            match seen.counts.get(id) {
                Some(&count) => ops.put(Table::Bodies, &keys::body_count(*id), |out| record::put_count(out, count)),
                None => ops.delete(Table::Bodies, &keys::body(*id)),
            }
        }
        // Ids are never given again, also those that only lost records had.
        let next_id = seen.next_id + ID_RESERVE;
        ops.put(Table::Meta, keys::NEXT_ID, |out| record::put_id(out, next_id));
        if !seen.has_format {
            ops.put(Table::Meta, keys::FORMAT, |out| record::put_format(out, FORMAT_VERSION));
        }
        self.write(true)
    }

    /// Numbers of a log run without a gap, so that it is known how many of those that wait are missing.
    fn tell_lost_messages(&mut self) {
        for (id, log) in &self.seen.logs {
            let Some(owner) = self.seen.owners.get(id) else { continue };
            let state = &owner.state;
            let settled: u64 = state.settled.iter().map(|(from, to)| to - from + 1).sum();
            let waiting = log.tail.saturating_sub(state.head).saturating_sub(settled);
            let lost = waiting.saturating_sub(log.waiting);
            if lost > 0 {
                self.losses.add(format!("messages that waited for {} and are gone: {lost}", self.seen.name(*id)));
            }
        }
    }

    /// What is left of a session whose own record is gone is removed by the next start.
    fn tell_lost_owners(&mut self) {
        for (id, owner) in self.seen.owners.iter().filter(|(_, owner)| owner.name.is_none()) {
            let waiting = self.seen.logs.get(id).map_or(0, |log| log.waiting);
            self.losses.add(format!(
                "the record of {} is gone, and with it what belongs to it: records {}, messages {waiting}",
                self.seen.name(*id),
                owner.records
            ));
        }
    }
}

/// Why a record is not taken.
enum Fault {
    Unreadable(Unreadable),
    Error(Error),
}

impl From<Unreadable> for Fault {
    fn from(cause: Unreadable) -> Self {
        Self::Unreadable(cause)
    }
}

impl Seen {
    /// Whether a record is to be kept.
    fn take(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        match table {
            Table::Meta => self.take_meta(key, value),
            Table::Bodies => self.take_body(key, value),
            Table::Sessions => self.take_owner(key, value),
            Table::Logs => self.take_entry(key, value),
            Table::Retained => {
                let topic = std::str::from_utf8(key).map_err(|_| Unreadable::Key)?;
                let (message, _) = record::get_retained(value)?;
                let is_its_own = message.topic.as_str() == topic;
                if is_its_own { Ok(true) } else { Err(Unreadable::Key.into()) }
            }
        }
    }

    fn take_meta(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        if key == keys::FORMAT {
            let found = record::get_format(value)?;
            if found > FORMAT_VERSION {
                return Err(Fault::Error(Error::NewerFormat { found }));
            }
            self.has_format = true;
            return Ok(true);
        }
        if key == keys::NEXT_ID {
            self.next_id = self.next_id.max(record::get_id(value)?);
            return Ok(false);
        }
        if key == keys::TIME {
            record::get_time(value)?;
            return Ok(true);
        }
        let log = keys::parse_garbage(key).ok_or(Unreadable::Key)?;
        self.discarded.insert(log, record::get_garbage(log, value)?.state);
        self.note_id(log);
        Ok(true)
    }

    fn take_body(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        if keys::parse_body_count(key).is_some() {
            // Counted anew.
            return Ok(false);
        }
        let id = keys::parse_body(key).ok_or(Unreadable::Key)?;
        record::get_message(value)?;
        self.bodies.insert(id);
        self.note_id(id);
        Ok(true)
    }

    fn take_owner(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        if let Some(session) = keys::parse_will(key) {
            record::get_will(session, value)?;
            self.note_id(session);
            return Ok(true);
        }
        let (id, kind) = keys::parse_owner(key).ok_or(Unreadable::Key)?;
        let mut owner = Owner::default();
        match kind {
            OwnerKey::Session => {
                let session = record::get_session(id, value)?;
                owner.name = Some(format!("client {}", Shown(&session.client_id)));
            }
            OwnerKey::Group => {
                let group = record::get_group(id, value)?;
                let filter = format!("$share/{}/{}", group.share, group.filter);
                Filter::parse(&filter).map_err(|_| Unreadable::Invalid("filter"))?;
                owner.name = Some(format!("group {}", Shown(&filter)));
            }
            OwnerKey::LogState => owner.state = record::get_log_state(value)?,
            OwnerKey::Subscription(filter) => {
                Filter::parse(filter).map_err(|_| Unreadable::Invalid("filter"))?;
                record::get_subscription(filter, value)?;
            }
            OwnerKey::Received(_) => record::get_nothing(value)?,
            OwnerKey::Open(seq) => drop(record::get_open(seq, value)?),
        }
        let known = self.owners.entry(id).or_default();
        known.records += 1;
        known.name = owner.name.or_else(|| known.name.take());
        if kind == OwnerKey::LogState {
            known.state = owner.state;
        }
        self.note_id(id);
        Ok(true)
    }

    fn take_entry(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        let (id, seq) = keys::parse_entry(key).ok_or(Unreadable::Key)?;
        self.note_id(id);
        let state = self.owners.get(&id).map(|owner| &owner.state).or_else(|| self.discarded.get(&id));
        // Of a queue that nobody owns, nobody would ever remove it.
        let Some(state) = state else {
            self.owners.entry(id).or_default();
            self.logs.entry(id).or_default().waiting += 1;
            return Ok(false);
        };
        let is_settled = state.is_settled(seq);
        let log = self.logs.entry(id).or_default();
        log.tail = log.tail.max(seq);
        let (_, message) = record::get_entry(value)?;
        if is_settled {
            return Ok(true);
        }
        if let EntryMessage::Shared(body) = message {
            if !self.bodies.contains(&body) {
                return Ok(false);
            }
            *self.counts.entry(body).or_default() += 1;
        }
        log.waiting += 1;
        Ok(true)
    }

    fn note_id(&mut self, id: u64) {
        self.next_id = self.next_id.max(id + 1);
    }

    fn name(&self, id: LogId) -> String {
        let named = self.owners.get(&id).and_then(|owner| owner.name.clone());
        named.unwrap_or_else(|| format!("session or group {id}"))
    }

    /// A key as an operator reads it.
    fn describe(&self, table: Table, key: &[u8]) -> String {
        if key.is_empty() {
            return "the beginning".into();
        }
        if key == EVERYTHING_END {
            return "the end".into();
        }
        match table {
            Table::Sessions | Table::Logs => {
                let id = key.get(usize::from(table == Table::Sessions)..).and_then(|key| key.split_first_chunk());
                id.map_or_else(|| "?".into(), |(id, _)| self.name(u64::from_be_bytes(*id)))
            }
            Table::Retained => format!("topic {}", Shown(&String::from_utf8_lossy(key))),
            Table::Meta | Table::Bodies => format!("key {}", super::error::Hex(key)),
        }
    }
}

/// In this order: entries refer to bodies and to owners.
const TABLES: [Table; 5] = [Table::Meta, Table::Bodies, Table::Sessions, Table::Logs, Table::Retained];
const EVERYTHING_END: &[u8] = &[0xFF; 9];
const WRITE_BYTES: usize = 1 << 20;
const LINES_MAX: usize = 10_000;
/// Ids that lost records may have had beyond those that were found.
const ID_RESERVE: u64 = 1 << 20;
