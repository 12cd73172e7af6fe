//! All that is stored, item by item, in an order in which it can be stored again.
//!
//! Must not know what becomes of the items.

use std::{collections::HashSet, sync::Arc};

use super::super::{
    BodyId, Engine, EntryHead, Error, LogId, LogState, Recovered, RecoveredLog, Seq, StoredTime, Table, Unreadable,
    keys,
    log::Stored,
    record::{self, EntryMessage},
    recover::{self, damaged},
};
use crate::mqtt::Message;

/// What to export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Sessions with their subscriptions and inbound QoS 2 ids, wills and shared groups.
    pub sessions: bool,
    /// The queues of sessions and groups. They belong to these: not without `sessions`.
    pub queues: bool,
    /// Retained messages.
    pub retained: bool,
}

/// One thing that is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// What all times go by.
    Time(StoredTime),
    /// A session, group, retained message or will.
    Record(Recovered),
    /// A message that several entries share.
    Body {
        /// What they refer to it by.
        id: BodyId,
        /// The message.
        message: Arc<Message>,
    },
    /// An entry of a queue; those of one queue come in their order.
    Entry {
        /// The id of the session or group.
        log: LogId,
        /// Its number.
        seq: Seq,
        /// What is of this receiver alone.
        head: EntryHead,
        /// Its message.
        content: Content,
    },
}

/// How an entry holds its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// In itself.
    Message(Arc<Message>),
    /// In an [`Item::Body`]. That of an entry that is settled may be gone.
    Body(BodyId),
}

/// See [`super::Snapshot::export`].
pub(super) fn export<E: From<Error>>(
    engine: &dyn Engine,
    what: Selection,
    each: &mut dyn FnMut(Item) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(time) = recover::time(engine)? {
        each(Item::Time(time))?;
    }
    let mut bodies = HashSet::new();
    let mut outcome = Ok(());
    recover::recover(engine, &mut |mut recovered| {
        let wanted = match recovered {
            Recovered::Retained(..) => what.retained,
            Recovered::Session { .. } | Recovered::Group { .. } | Recovered::Will(_) => what.sessions,
        };
        if !wanted || outcome.is_err() {
            return;
        }
        let queue = if what.queues { queue_of(&recovered) } else { without_queue(&mut recovered) };
        outcome = each(Item::Record(recovered)).and_then(|()| match queue {
            Some((log, state)) => export_queue(engine, log, &state, &mut bodies, each),
            None => Ok(()),
        });
    })?;
    outcome
}

fn queue_of(recovered: &Recovered) -> Option<(LogId, LogState)> {
    match recovered {
        Recovered::Session { session, log, .. } => Some((session.id, log.state.clone())),
        Recovered::Group { group, log } => Some((group.log, log.state.clone())),
        Recovered::Retained(..) | Recovered::Will(_) => None,
    }
}

/// Its queue is empty, and goes on with its numbers: a client may hold packet ids that come from those before.
fn without_queue(recovered: &mut Recovered) -> Option<(LogId, LogState)> {
    if let Recovered::Session { log, .. } | Recovered::Group { log, .. } = recovered {
        let tail = log.tail;
        let settled_bytes = log.state.settled_bytes.saturating_add(log.bytes);
        let state = LogState { head: tail, trimmed: tail, settled: Vec::new(), settled_bytes };
        *log = RecoveredLog { state, open: Vec::new(), tail, bytes: 0 };
    }
    None
}

fn export_queue<E: From<Error>>(
    engine: &dyn Engine,
    log: LogId,
    state: &LogState,
    bodies: &mut HashSet<BodyId>,
    each: &mut dyn FnMut(Item) -> Result<(), E>,
) -> Result<(), E> {
    let mut from = state.trimmed.saturating_add(1);
    loop {
        let page = Stored::read(engine, log, from, PAGE_ENTRIES, PAGE_BYTES)?;
        let Some(&(last, ..)) = page.entries.last() else {
            return page.damage.map_or(Ok(()), |damage| Err(damage.into()));
        };
        for (seq, head, message) in page.entries {
            let content = match message {
                EntryMessage::Inline(message) => Content::Message(Arc::new(message)),
                EntryMessage::Shared(id) => {
                    if !bodies.contains(&id) {
                        match body(engine, id)? {
                            Some(message) => each(Item::Body { id, message: Arc::new(message) })?,
                            // Released, but not yet trimmed.
                            None if state.is_settled(seq) => {}
                            None => {
                                let (table, key) = (Table::Logs, keys::entry(log, seq).to_vec());
                                return Err(Error::Damaged { table, key, cause: Unreadable::NoBody(id) }.into());
                            }
                        }
                        bodies.insert(id);
                    }
                    Content::Body(id)
                }
            };
            each(Item::Entry { log, seq, head, content })?;
        }
        let Some(next) = last.checked_add(1) else { return Ok(()) };
        from = next;
    }
}

fn body(engine: &dyn Engine, id: BodyId) -> Result<Option<Message>, Error> {
    let key = keys::body(id);
    let bytes = engine.get(Table::Bodies, &key)?;
    bytes.map(|bytes| record::get_message(&bytes).map_err(damaged(Table::Bodies, &key))).transpose()
}

const PAGE_ENTRIES: usize = 1024;
const PAGE_BYTES: usize = 1 << 20;
