//! What a start finds in the store.
//!
//! Must not know what is done with it.

use std::{collections::HashMap, ops::ControlFlow, sync::Arc};

use super::{
    Author, Batch, BodyId, Engine, Error, FORMAT_VERSION, LogId, Ops, RecoveredLog, StoredGroup, StoredSession,
    StoredSubscription, StoredTime, StoredWill, Table, Unreadable,
    garbage::Garbage,
    keys::{self, Key, OwnerKey},
    record,
};
use crate::mqtt::{Message, PacketId};

/// One thing that survived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Recovered {
    /// A session with all that is its own.
    Session {
        session: StoredSession,
        subscriptions: Vec<StoredSubscription>,
        /// Inbound QoS 2 ids.
        received: Vec<PacketId>,
        log: RecoveredLog,
    },
    /// A group; the holders of its open entries are sessions.
    Group { group: StoredGroup, log: RecoveredLog },
    /// A retained message, and who published it. None: a release that did not ask has stored it.
    Retained(Arc<Message>, Option<Author>),
    /// A will, of a session that is stored or of one that was not persistent.
    Will(StoredWill),
}

impl Recovered {
    /// How many records it stands for, nearly.
    pub(super) fn records(&self) -> u64 {
        let own = match self {
            Self::Session { subscriptions, received, log, .. } => {
                1 + subscriptions.len() + received.len() + log.open.len()
            }
            Self::Group { log, .. } => 1 + log.open.len(),
            Self::Retained(..) | Self::Will(_) => 0,
        };
        own as u64 + 1
    }
}

/// What the store itself has to know of its content.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) next_id: u64,
    pub(super) body_counts: HashMap<BodyId, u32, foldhash::fast::FixedState>,
    pub(super) garbage: Vec<Garbage>,
}

/// Reads what the store has to know; marks an empty engine, and one of an older format, with the format version.
pub(super) fn open(engine: &dyn Engine) -> Result<Opened, Error> {
    check_format(engine)?;
    let mut opened = Opened { next_id: next_id(engine)?, ..Opened::default() };
    paged(engine, Table::Bodies, keys::body_counts(), &mut |key, value| {
        let id = keys::parse_body_count(key).ok_or(Unreadable::Key)?;
        opened.body_counts.insert(id, record::get_count(value)?);
        Ok(())
    })?;
    paged(engine, Table::Meta, keys::all_garbage(), &mut |key, value| {
        let log = keys::parse_garbage(key).ok_or(Unreadable::Key)?;
        opened.garbage.push(record::get_garbage(log, value)?);
        Ok(())
    })?;
    Ok(opened)
}

/// The first id that was not reserved.
pub(super) fn next_id(engine: &dyn Engine) -> Result<u64, Error> {
    match engine.get(Table::Meta, keys::NEXT_ID)? {
        Some(bytes) => record::get_id(&bytes).map_err(damaged(Table::Meta, keys::NEXT_ID)),
        None => Ok(1),
    }
}

/// See [`super::Store::time`].
pub(super) fn time(engine: &dyn Engine) -> Result<Option<StoredTime>, Error> {
    let stored = engine.get(Table::Meta, keys::TIME)?;
    stored.map(|bytes| record::get_time(&bytes).map_err(damaged(Table::Meta, keys::TIME))).transpose()
}

/// See [`super::Store::recover`]. What belongs to no session and no group is returned, to be removed.
pub(super) fn recover(engine: &dyn Engine, visit: &mut dyn FnMut(Recovered)) -> Result<Vec<Orphan>, Error> {
    // Groups stand among the sessions and come after them.
    let mut groups = Vec::new();
    let mut orphans = Vec::new();
    let mut owner = Owner::default();
    let mut finish = |owner: Owner| -> Result<(), Error> {
        let id = owner.id;
        match owner.recovered(engine)? {
            Ok(group @ Recovered::Group { .. }) => groups.push(group),
            Ok(session) => visit(session),
            // Nothing at all stands before the first owner.
            Err(_) if id == 0 => {}
            Err(log) => orphans.push(Orphan { id, log }),
        }
        Ok(())
    };
    paged(engine, Table::Sessions, keys::owners(), &mut |key, value| {
        let (id, kind) = keys::parse_owner(key).ok_or(Unreadable::Key)?;
        if id != owner.id {
            finish(std::mem::replace(&mut owner, Owner { id, ..Owner::default() }))?;
        }
        Ok(owner.add(kind, value)?)
    })?;
    finish(owner)?;
    groups.into_iter().for_each(&mut *visit);
    paged(engine, Table::Retained, (Key::new(), Key::from_slice(keys::TOPICS_END)), &mut |_, value| {
        let (message, author) = record::get_retained(value)?;
        visit(Recovered::Retained(Arc::new(message), author));
        Ok(())
    })?;
    paged(engine, Table::Sessions, keys::wills(), &mut |key, value| {
        let session = keys::parse_will(key).ok_or(Unreadable::Key)?;
        visit(Recovered::Will(record::get_will(session, value)?));
        Ok(())
    })?;
    Ok(orphans)
}

/// Records of an owner without the owner: something was written for a session after its end.
#[derive(Debug)]
pub struct Orphan {
    id: LogId,
    log: RecoveredLog,
}

impl Orphan {
    /// Removes them.
    pub fn discard(&self, batch: &mut Batch) {
        tracing::warn!(id = self.id, "records of a session or group that is gone are removed");
        batch.delete_session(self.id);
        batch.discard_log(self.id, &self.log.state, self.log.tail);
    }
}

/// The records of one owner, as they come.
#[derive(Debug, Default)]
struct Owner {
    /// 0 before the first one.
    id: LogId,
    session: Option<StoredSession>,
    group: Option<StoredGroup>,
    subscriptions: Vec<StoredSubscription>,
    received: Vec<PacketId>,
    log: RecoveredLog,
}

impl Owner {
    fn add(&mut self, key: OwnerKey<'_>, value: &[u8]) -> Result<(), Unreadable> {
        match key {
            OwnerKey::Session => self.session = Some(record::get_session(self.id, value)?),
            OwnerKey::Group => self.group = Some(record::get_group(self.id, value)?),
            OwnerKey::LogState => self.log.state = record::get_log_state(value)?,
            OwnerKey::Subscription(filter) => self.subscriptions.push(record::get_subscription(filter, value)?),
            OwnerKey::Received(packet_id) => {
                record::get_nothing(value)?;
                self.received.push(packet_id);
            }
            OwnerKey::Open(seq) => self.log.open.push(record::get_open(seq, value)?),
        }
        Ok(())
    }

    /// `Err` where there is no session and no group.
    fn recovered(self, engine: &dyn Engine) -> Result<Result<Recovered, RecoveredLog>, Error> {
        let mut log = self.log;
        let range = (keys::entry(self.id, 0), keys::entry(self.id.saturating_add(1), 0));
        let last = engine.last_key(Table::Logs, &range.0, &range.1)?;
        let seq = last.as_ref().and_then(|key| keys::parse_entry(key)).map_or(0, |(_, seq)| seq);
        log.tail = seq.max(log.state.highest_settled());
        if let Some(key) = last.filter(|_| log.state.head < seq)
            && let Some(entry) = engine.get(Table::Logs, &key)?
        {
            // One that cannot be read is told of when it is its turn.
            let appended = record::get_entry_head(&entry).map_or(0, |(head, _)| head.log_bytes);
            log.bytes = appended.saturating_sub(log.state.settled_bytes);
        }
        let (subscriptions, received) = (self.subscriptions, self.received);
        Ok(match (self.session, self.group) {
            (Some(session), _) => Ok(Recovered::Session { session, subscriptions, received, log }),
            (None, Some(group)) => Ok(Recovered::Group { group, log }),
            (None, None) => Err(log),
        })
    }
}

/// What [`paged`] calls with each key and value.
pub(super) type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), Stop> + 'a;

/// What ends [`paged`] early.
pub(super) enum Stop {
    /// This record.
    Unreadable(Unreadable),
    /// Something else.
    Error(Error),
}

impl From<Unreadable> for Stop {
    fn from(cause: Unreadable) -> Self {
        Self::Unreadable(cause)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Gives `each` every record of a range, page by page: between two pages nothing of the engine is held.
pub(super) fn paged(
    engine: &dyn Engine,
    table: Table,
    (mut from, to): (Key, Key),
    each: &mut Each<'_>,
) -> Result<(), Error> {
    let mut page: Vec<(Key, Vec<u8>)> = Vec::new();
    loop {
        let mut bytes = 0;
        engine.scan(table, &from, &to, &mut |key, value| {
            bytes += key.len() + value.len();
            page.push((Key::from_slice(key), value.to_vec()));
            if page.len() == PAGE_RECORDS || bytes >= PAGE_BYTES {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        let Some((last, _)) = page.last() else {
            return Ok(());
        };
        from = last.clone();
        from.push(0);
        for (key, value) in page.drain(..) {
            match each(&key, &value) {
                Ok(()) => {}
                Err(Stop::Unreadable(cause)) => return Err(damaged(table, &key)(cause)),
                Err(Stop::Error(error)) => return Err(error),
            }
        }
    }
}

/// The format that the engine is written in; none where it is empty.
pub(super) fn format(engine: &dyn Engine) -> Result<Option<u32>, Error> {
    if let Some(bytes) = engine.get(Table::Meta, keys::FORMAT)? {
        return match record::get_format(&bytes).map_err(damaged(Table::Meta, keys::FORMAT))? {
            found @ FORMAT_OLDEST..=FORMAT_VERSION => Ok(Some(found)),
            found if found > FORMAT_VERSION => Err(Error::NewerFormat { found }),
            _ => Err(Error::UnknownFormat),
        };
    }
    for table in Table::ALL {
        if engine.last_key(table, &[], EVERYTHING_END)?.is_some() {
            return Err(Error::UnknownFormat);
        }
    }
    Ok(None)
}

fn check_format(engine: &dyn Engine) -> Result<(), Error> {
    match format(engine)? {
        Some(FORMAT_VERSION) => Ok(()),
        // Each record says how it is written. An older release must not take the new ones for damaged.
        _ => mark(engine),
    }
}

/// On the disk before anything that is written in the format.
pub(super) fn mark(engine: &dyn Engine) -> Result<(), Error> {
    let mut ops = Ops::default();
    ops.put(Table::Meta, keys::FORMAT, |out| record::put_format(out, FORMAT_VERSION));
    engine.write(&ops, true)
}

pub(super) fn damaged(table: Table, key: &[u8]) -> impl FnOnce(Unreadable) -> Error {
    let key = key.to_vec();
    move |cause| Error::Damaged { table, key, cause }
}

/// The oldest format that can be read.
const FORMAT_OLDEST: u32 = 1;
const PAGE_RECORDS: usize = 1024;
const PAGE_BYTES: usize = 1 << 20;
/// Greater than all keys.
pub(super) const EVERYTHING_END: &[u8] = &[0xFF; 9];
