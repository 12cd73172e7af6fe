//! A store made of items, as an export gives them. What they say of each other is checked, so that what is stored can be served.
//!
//! Must not know where the items come from.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use super::{
    super::{
        Batch, BodyId, Engine, Error, Level, LogId, LogState, Recovered, RecoveredLog, Seq, StoredGroup, StoredSession,
        StoredSubscription, Table, UNSTORED, keys,
        record::{self, EntryBody},
        recover::{self, Opened},
    },
    Content, Item, NewStore,
};
use crate::mqtt::{Filter, Message, PacketId};

/// Why an item is refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refused {
    #[error("the id {0} is not one that a store gives: 1 to 2^63 - 1")]
    Id(u64),
    #[error("the id {0} belongs to something that came before")]
    SameId(u64),
    #[error("a session of client {0:?} came before")]
    SameClient(String),
    #[error("the topic filter {0:?} is not valid: {1}")]
    Filter(String, String),
    #[error("no session and no group with the id {0} came before")]
    NoLog(LogId),
    #[error("entry {seq} of queue {log} comes after entry {last}")]
    Order { log: LogId, seq: Seq, last: Seq },
    #[error("what is settled, or in flight, in queue {0} is not in ascending order, apart from each other")]
    Queue(LogId),
    #[error("no body {0} came before")]
    NoBody(BodyId),
    #[error(transparent)]
    Store(#[from] Error),
}

/// What was imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Imported {
    pub sessions: u64,
    pub groups: u64,
    pub entries: u64,
    pub bodies: u64,
    pub retained: u64,
    pub wills: u64,
}

/// A store in the making. Of what it has taken it remembers the ids, no message.
pub struct Import<'e> {
    engine: &'e dyn Engine,
    batch: Batch,
    logs: HashMap<LogId, Log>,
    clients: HashSet<String>,
    /// How many entries refer to each.
    bodies: HashMap<BodyId, u32>,
    /// Beyond all ids so far.
    next_id: u64,
    imported: Imported,
}

/// What later items may say of a log.
struct Log {
    state: LogState,
    last: Seq,
}

impl<'e> Import<'e> {
    /// Into an empty engine.
    pub(in crate::storage) fn into(engine: &'e dyn Engine) -> Result<Self, Error> {
        recover::mark(engine)?;
        let (batch, _) = Batch::new(Opened { next_id: 1, ..Opened::default() }, Level::Fsync);
        Ok(Self {
            engine,
            batch,
            logs: HashMap::new(),
            clients: HashSet::new(),
            bodies: HashMap::new(),
            next_id: 1,
            imported: Imported::default(),
        })
    }

    /// Stores one more item.
    ///
    /// # Errors
    /// [`Refused`]
    pub fn add(&mut self, item: Item) -> Result<(), Refused> {
        match item {
            Item::Time(time) => self.batch.put_time(time),
            Item::Record(Recovered::Session { session, subscriptions, received, log }) => {
                self.add_session(&session, &subscriptions, &received, log)?;
            }
            Item::Record(Recovered::Group { group, log }) => self.add_group(&group, log)?,
            Item::Record(Recovered::Retained(message, author)) => {
                self.sees(message.publisher);
                self.batch.put_retained(&message, author.as_ref());
                self.imported.retained += 1;
            }
            Item::Record(Recovered::Will(will)) => {
                self.sees(will.session);
                self.batch.put_will(&will);
                self.imported.wills += 1;
            }
            Item::Body { id, message } => self.add_body(id, &message)?,
            Item::Entry { log, seq, head, content } => {
                let is_settled = self.next_entry(log, seq)?;
                let body = match &content {
                    Content::Message(message) => {
                        self.sees(message.publisher);
                        EntryBody::Message(message)
                    }
                    Content::Body(id) => {
                        self.sees(*id);
                        // One that is settled has released it.
                        if !is_settled {
                            *self.bodies.get_mut(id).ok_or(Refused::NoBody(*id))? += 1;
                        }
                        EntryBody::Shared(*id)
                    }
                };
                self.batch.ops.put(Table::Logs, &keys::entry(log, seq), |out| record::put_entry(out, &head, body));
                self.imported.entries += 1;
            }
        }
        if self.batch.ops.size() >= WRITE_BYTES { Ok(self.flush()?) } else { Ok(()) }
    }

    /// Has all of it stored, and the first free id: at least `next_id`, which may be that of the store that was exported.
    ///
    /// # Errors
    /// [`Error::Engine`]
    pub fn finish(mut self, next_id: u64) -> Result<Imported, Error> {
        for (id, count) in std::mem::take(&mut self.bodies) {
            if count > 0 {
                self.batch.ops.put(Table::Bodies, &keys::body_count(id), |out| record::put_count(out, count));
            } else {
                self.batch.ops.delete(Table::Bodies, &keys::body(id));
            }
            if self.batch.ops.size() >= WRITE_BYTES {
                self.flush()?;
            }
        }
        let next_id = self.next_id.max(next_id.min(UNSTORED));
        self.batch.ops.put(Table::Meta, keys::NEXT_ID, |out| record::put_id(out, next_id));
        self.flush()?;
        self.engine.sync()?;
        Ok(self.imported)
    }

    fn add_session(
        &mut self,
        session: &StoredSession,
        subscriptions: &[StoredSubscription],
        received: &[PacketId],
        log: RecoveredLog,
    ) -> Result<(), Refused> {
        if !self.clients.insert(session.client_id.clone()) {
            return Err(Refused::SameClient(session.client_id.clone()));
        }
        self.add_log(session.id, log)?;
        self.batch.put_session(session);
        for subscription in subscriptions {
            check_filter(&subscription.filter)?;
            self.batch.put_subscription(session.id, subscription);
        }
        received.iter().for_each(|&id| self.batch.put_received(session.id, id));
        self.imported.sessions += 1;
        Ok(())
    }

    fn add_group(&mut self, group: &StoredGroup, log: RecoveredLog) -> Result<(), Refused> {
        check_filter(&format!("$share/{}/{}", group.share, group.filter))?;
        self.add_log(group.log, log)?;
        self.batch.put_group(group);
        self.imported.groups += 1;
        Ok(())
    }

    fn add_log(&mut self, id: LogId, log: RecoveredLog) -> Result<(), Refused> {
        self.new_id(id)?;
        let mut end = log.state.head;
        for &(from, to) in &log.state.settled {
            if from > to || end.checked_add(1).is_none_or(|next| from <= next) {
                return Err(Refused::Queue(id));
            }
            end = to;
        }
        if !log.open.is_sorted_by_key(|open| open.seq) || log.state.trimmed > log.state.head {
            return Err(Refused::Queue(id));
        }
        if log.state != LogState::default() {
            self.batch.put_log_state(id, &log.state);
        }
        log.open.iter().for_each(|open| self.batch.put_open(id, open));
        self.logs.insert(id, Log { state: log.state, last: 0 });
        Ok(())
    }

    fn add_body(&mut self, id: BodyId, message: &Message) -> Result<(), Refused> {
        self.stored_id(id)?;
        self.sees(message.publisher);
        match self.bodies.entry(id) {
            Entry::Vacant(free) if !self.logs.contains_key(&id) => drop(free.insert(0)),
            _ => return Err(Refused::SameId(id)),
        }
        self.batch.ops.put(Table::Bodies, &keys::body(id), |out| record::put_message(out, message));
        self.imported.bodies += 1;
        Ok(())
    }

    /// Whether the entry, which is the next of its log, is settled.
    fn next_entry(&mut self, id: LogId, seq: Seq) -> Result<bool, Refused> {
        let log = self.logs.get_mut(&id).ok_or(Refused::NoLog(id))?;
        if seq <= log.last {
            return Err(Refused::Order { log: id, seq, last: log.last });
        }
        log.last = seq;
        Ok(log.state.is_settled(seq))
    }

    fn new_id(&mut self, id: u64) -> Result<(), Refused> {
        self.stored_id(id)?;
        if self.logs.contains_key(&id) || self.bodies.contains_key(&id) {
            return Err(Refused::SameId(id));
        }
        Ok(())
    }

    fn stored_id(&mut self, id: u64) -> Result<(), Refused> {
        if !(1..UNSTORED).contains(&id) {
            return Err(Refused::Id(id));
        }
        self.sees(id);
        Ok(())
    }

    /// An id that must not be given again. Those that no store gives mean nothing.
    fn sees(&mut self, id: u64) {
        if id < UNSTORED {
            self.next_id = self.next_id.max(id + 1);
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.engine.write(&self.batch.ops, false)?;
        self.batch.ops.clear(WRITE_BYTES);
        Ok(())
    }
}

impl NewStore {
    /// Fills it with what `items` gives to the [`Import`]; `items` returns the first id that is free, or 0.
    ///
    /// # Errors
    /// Those of `items`, [`Error::NoEngine`], [`Error::Engine`].
    pub fn import<E: From<Error>>(
        &self,
        config: &super::Config,
        items: impl FnOnce(&mut Import<'_>) -> Result<u64, E>,
    ) -> Result<Imported, E> {
        let engine = super::super::durable_engine(self.path(), config)?;
        let mut import = Import::into(&*engine)?;
        let next_id = items(&mut import)?;
        let imported = import.finish(next_id)?;
        engine.close()?;
        Ok(imported)
    }
}

fn check_filter(filter: &str) -> Result<(), Refused> {
    Filter::parse(filter).map(drop).map_err(|problem| Refused::Filter(filter.to_owned(), problem.to_string()))
}

const WRITE_BYTES: usize = 1 << 20;
