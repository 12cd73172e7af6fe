//! The open batch: typed puts of everything that is stored, collected by all connections and written as one.
//!
//! Must not know when it is written, nor by which engine.

use std::{collections::HashMap, fmt};

use super::{
    Author, BodyId, EntryHead, Level, LogId, LogState, Lsn, OpenEntry, Outcome, Seq, SessionId, StoredGroup,
    StoredSession, StoredSubscription, StoredTime, StoredWill,
    engine::{Ops, Table},
    garbage::Garbage,
    keys::{self, OwnerKey},
    record::{self, EntryBody},
    recover::Opened,
};
use crate::mqtt::{Message, PacketId, TopicName};

/// The open batch. What one [`super::Store::write`] puts into it is committed together, with what others put before and after.
pub struct Batch {
    pub(super) lsn: Lsn,
    pub(super) ops: Ops,
    /// Somebody waits for this batch: write it soon, and synced if that is what they need.
    pub(super) required: Option<Level>,
    /// See [`super::Store::session_level`].
    pub(super) session_level: Level,
    pub(super) callbacks: Vec<Callback>,
    /// Logs that this batch discards.
    pub(super) garbage: Vec<Garbage>,
    /// See [`Batch::freed`].
    pub(super) freed: u64,
    ids: Ids,
    bodies: Bodies,
    /// Counts the reopenings: what was read before one must not be written after it.
    pub(super) generation: u64,
    /// The messages that the present write encoded, see [`Body`].
    scratch: Vec<u8>,
    /// Counts the writes.
    turn: u64,
}

/// What [`Batch::after_commit`] takes.
pub type Callback = Box<dyn FnOnce(Outcome) + Send>;

impl Batch {
    /// A number that no session, log or body has or had, on this disk, in any run of the broker.
    pub fn new_id(&mut self) -> u64 {
        let id = self.ids.next;
        if id >= self.ids.reserved {
            self.ids.reserved = id + ID_BLOCK;
            let reserved = self.ids.reserved;
            self.ops.put(Table::Meta, keys::NEXT_ID, |out| record::put_id(out, reserved));
        }
        self.ids.next = id + 1;
        id
    }

    /// Which batch this is.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Somebody waits for the outcome of this batch: it is committed soon, and its outcome is known once it has reached the highest level
    /// that anybody asked for. So the number of the batch is all that those who wait need to know.
    /// Where nobody asks, the batch may wait for `lazy_commit_millis`, and is not synced before a later one is.
    pub fn require(&mut self, level: Level) {
        self.required = self.required.max(Some(level));
    }

    /// [`Batch::require`], at [`super::Store::session_level`]: for what belongs to no topic.
    pub fn require_durable(&mut self) {
        self.require(self.session_level);
    }

    /// Runs `f` once the outcome of this batch at `level` is known, in the order of these calls, after the outcome is visible in
    /// [`super::Store::outcome`] and before those who wait for it are woken. Implies [`Batch::require`]. `f` may call
    /// [`super::Store::write`].
    pub fn after_commit(&mut self, level: Level, f: Callback) {
        self.require(level);
        self.callbacks.push(f);
    }

    /// Stores a session, or stores it anew.
    pub fn put_session(&mut self, session: &StoredSession) {
        let key = keys::owner(session.id, OwnerKey::Session);
        self.ops.put(Table::Sessions, &key, |out| record::put_session(out, session));
    }

    /// Removes a session with its subscriptions, inbound QoS 2 ids, log state and open entries. Its log is discarded apart
    /// ([`Batch::discard_log`]), and so is its will ([`Batch::delete_will`]).
    pub fn delete_session(&mut self, id: SessionId) {
        self.delete_owner(id);
    }

    /// Stores a subscription; one with the same filter is replaced [MQTT-3.8.4-3].
    pub fn put_subscription(&mut self, session: SessionId, subscription: &StoredSubscription) {
        let key = keys::owner(session, OwnerKey::Subscription(&subscription.filter));
        self.ops.put(Table::Sessions, &key, |out| record::put_subscription(out, subscription));
    }

    /// Removes the subscription with this filter.
    pub fn delete_subscription(&mut self, session: SessionId, filter: &str) {
        self.ops.delete(Table::Sessions, &keys::owner(session, OwnerKey::Subscription(filter)));
    }

    /// Stores the will of a session; it has at most one.
    pub fn put_will(&mut self, will: &StoredWill) {
        self.ops.put(Table::Sessions, &keys::will(will.session), |out| record::put_will(out, will));
    }

    /// Removes the will of a session.
    pub fn delete_will(&mut self, session: SessionId) {
        self.ops.delete(Table::Sessions, &keys::will(session));
    }

    /// Records the id of an inbound QoS 2 PUBLISH [MQTT-4.3.3-10].
    pub fn put_received(&mut self, session: SessionId, packet_id: PacketId) {
        self.ops.put(Table::Sessions, &keys::owner(session, OwnerKey::Received(packet_id)), record::put_nothing);
    }

    /// Forgets the id of an inbound QoS 2 PUBLISH, at its PUBREL [MQTT-4.3.3-12].
    pub fn delete_received(&mut self, session: SessionId, packet_id: PacketId) {
        self.ops.delete(Table::Sessions, &keys::owner(session, OwnerKey::Received(packet_id)));
    }

    /// Encodes a message for [`Batch::append`]. `receivers` is how many logs will get it, as far as it is known: a large message for
    /// several is stored once, and each `append` of it is one reference to it.
    pub fn body<'m>(&mut self, message: &'m Message, receivers: usize) -> Body<'m> {
        if receivers > 1 && message.payload.len() >= SHARED_PAYLOAD_MIN {
            let id = self.new_id();
            self.ops.put(Table::Bodies, &keys::body(id), |out| record::put_message(out, message));
            self.bodies.add(id, 0);
            return Body(Encoded::Shared { id, message });
        }
        let start = self.scratch.len();
        record::put_message(&mut self.scratch, message);
        Body(Encoded::Inline { message, turn: self.turn, at: (start, self.scratch.len()) })
    }

    /// Appends an entry. The caller numbers the entries of a log, one by one from 1, in the order of these calls. Where the body is
    /// stored apart, its id is returned: what [`Batch::release_body`] takes when the entry is settled.
    pub fn append(&mut self, log: LogId, seq: Seq, head: &EntryHead, body: &Body<'_>) -> Option<BodyId> {
        let (turn, scratch) = (self.turn, &self.scratch);
        let (encoded, shared) = match body.0 {
            Encoded::Shared { id, .. } if self.bodies.counts.contains_key(&id) => (EntryBody::Shared(id), Some(id)),
            // One that nothing referred to at the end of its batch is gone.
            Encoded::Shared { message, .. } => (EntryBody::Message(message), None),
            // Bytes that belong to an earlier write are gone.
            Encoded::Inline { message, turn: of, at: (from, to) } => match scratch.get(from..to) {
                Some(bytes) if of == turn => (EntryBody::Encoded(bytes), None),
                _ => (EntryBody::Message(message), None),
            },
        };
        self.ops.put(Table::Logs, &keys::entry(log, seq), |out| record::put_entry(out, head, encoded));
        if let Some(id) = shared {
            self.bodies.add(id, 1);
        }
        shared
    }

    /// So many bytes of entries are settled. Once it is worth it, the engine is asked to give back what they took.
    pub fn freed(&mut self, bytes: u64) {
        self.freed += bytes;
    }

    /// Stores which entries of a log are settled. What it settles of shared bodies is released in the same batch.
    pub fn put_log_state(&mut self, log: LogId, state: &LogState) {
        self.ops.put(Table::Sessions, &keys::owner(log, OwnerKey::LogState), |out| record::put_log_state(out, state));
    }

    /// Stores the state of an entry in flight.
    pub fn put_open(&mut self, log: LogId, open: &OpenEntry) {
        self.ops.put(Table::Sessions, &keys::owner(log, OwnerKey::Open(open.seq)), |out| record::put_open(out, open));
    }

    /// Forgets the state of an entry in flight.
    pub fn delete_open(&mut self, log: LogId, seq: Seq) {
        self.ops.delete(Table::Sessions, &keys::owner(log, OwnerKey::Open(seq)));
    }

    /// One entry that refers to a shared body is settled. The last one removes the body.
    pub fn release_body(&mut self, id: BodyId) {
        self.bodies.release(id);
    }

    /// Removes the entries `from` to `to`, inclusive. All must be settled, and their bodies released; some may be gone. The last entry of a
    /// log that is not settled as a whole must stay: its [`EntryHead::log_bytes`] tells a start what waits. Best called once per some
    /// hundred entries: a long range is one operation, but readers have to step over it for a while.
    pub fn trim(&mut self, log: LogId, from: Seq, to: Seq) {
        if to.saturating_sub(from) < TRIM_SINGLY_MAX {
            for seq in from..=to {
                self.ops.delete(Table::Logs, &keys::entry(log, seq));
            }
        } else {
            self.ops.delete_range(Table::Logs, &keys::entry(log, from), &keys::entry(log, to.saturating_add(1)));
        }
    }

    /// Stores the time, and the wall clock at that moment.
    pub fn put_time(&mut self, time: StoredTime) {
        self.ops.put(Table::Meta, keys::TIME, |out| record::put_time(out, time));
    }

    /// Gives up a whole log, whose last entry is `tail` or an earlier one. What is left of it is removed in the background page by page, and
    /// the shared bodies of the entries that `state` does not settle are released; this goes on after a crash. Nothing may be
    /// appended to the log any more.
    pub fn discard_log(&mut self, log: LogId, state: &LogState, tail: Seq) {
        if tail <= state.trimmed {
            return;
        }
        let garbage = Garbage { log, from: state.trimmed + 1, to: tail, state: state.clone() };
        self.ops.put(Table::Meta, &keys::garbage(log), |out| record::put_garbage(out, &garbage));
        self.garbage.push(garbage);
    }

    /// Stores the retained message of its topic, and who published it.
    pub fn put_retained(&mut self, message: &Message, author: Option<&Author>) {
        self.ops.put(Table::Retained, message.topic.as_str().as_bytes(), |out| {
            record::put_retained(out, message, author);
        });
    }

    /// Removes the retained message of a topic.
    pub fn delete_retained(&mut self, topic: &TopicName) {
        self.ops.delete(Table::Retained, topic.as_str().as_bytes());
    }

    /// Stores a group.
    pub fn put_group(&mut self, group: &StoredGroup) {
        self.ops.put(Table::Sessions, &keys::owner(group.log, OwnerKey::Group), |out| record::put_group(out, group));
    }

    /// Removes a group with its log state and leases. Its log is discarded apart ([`Batch::discard_log`]).
    pub fn delete_group(&mut self, log: LogId) {
        self.delete_owner(log);
    }

    pub(super) fn new(opened: Opened, session_level: Level) -> (Self, Vec<Garbage>) {
        let mut batch = Self {
            lsn: Lsn(1),
            ops: Ops::default(),
            required: None,
            session_level,
            callbacks: Vec::new(),
            garbage: Vec::new(),
            freed: 0,
            ids: Ids { next: 1, reserved: 1 },
            bodies: Bodies::default(),
            generation: 0,
            scratch: Vec::new(),
            turn: 0,
        };
        let garbage = batch.reload(opened);
        (batch, garbage)
    }

    /// Takes up what the disk holds, and says which logs are discarded there. Ids that were given out are not given out again.
    pub(super) fn reload(&mut self, opened: Opened) -> Vec<Garbage> {
        self.ids = Ids { next: self.ids.next.max(opened.next_id), reserved: opened.next_id };
        self.bodies = Bodies { counts: opened.body_counts, touched: Vec::new() };
        self.generation += 1;
        opened.garbage
    }

    /// Opens it for one write.
    pub(super) fn begin(&mut self) {
        self.turn += 1;
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_KEEP_BYTES);
    }

    /// Whether there is nothing to commit.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.required.is_none() && self.bodies.touched.is_empty()
    }

    /// Gives up what it holds, but for the callbacks.
    pub(super) fn abandon(&mut self) -> Vec<Callback> {
        self.ops.clear(0);
        self.garbage.clear();
        self.freed = 0;
        self.bodies.touched.clear();
        self.required = None;
        std::mem::take(&mut self.callbacks)
    }

    pub(super) fn delete_garbage(&mut self, log: LogId) {
        self.ops.delete(Table::Meta, &keys::garbage(log));
    }

    /// Writes down the counts of the bodies that were touched. Called once, when nothing more is added.
    pub(super) fn seal(&mut self) {
        self.bodies.seal(&mut self.ops);
    }

    fn delete_owner(&mut self, id: LogId) {
        let (from, to) = keys::owner_range(id);
        self.ops.delete_range(Table::Sessions, &from, &to);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("lsn", &self.lsn).field("ops", &self.ops.len()).finish_non_exhaustive()
    }
}

/// A message as [`Batch::append`] stores it.
#[derive(Debug, Clone, Copy)]
pub struct Body<'m>(Encoded<'m>);

#[derive(Debug, Clone, Copy)]
enum Encoded<'m> {
    Shared {
        id: BodyId,
        message: &'m Message,
    },
    /// In the batch's scratch, for as long as that write lasts.
    Inline {
        message: &'m Message,
        turn: u64,
        at: (usize, usize),
    },
}

/// Ids not yet given out.
#[derive(Debug, Clone, Copy)]
struct Ids {
    next: u64,
    /// The first that is not reserved on disk.
    reserved: u64,
}

/// How many entries refer to each shared body.
#[derive(Debug, Default)]
struct Bodies {
    counts: HashMap<BodyId, u32, foldhash::fast::FixedState>,
    touched: Vec<BodyId>,
}

impl Bodies {
    fn add(&mut self, id: BodyId, references: u32) {
        *self.counts.entry(id).or_default() += references;
        self.touched.push(id);
    }

    fn release(&mut self, id: BodyId) {
        match self.counts.get_mut(&id) {
            Some(count) if *count > 0 => {
                *count -= 1;
                self.touched.push(id);
            }
            _ => tracing::error!(body = id, "a shared body was released more often than it was stored"),
        }
    }

    fn seal(&mut self, ops: &mut Ops) {
        self.touched.sort_unstable();
        self.touched.dedup();
        for id in self.touched.drain(..) {
            match self.counts.get(&id) {
                Some(&count) if count > 0 => {
                    ops.put(Table::Bodies, &keys::body_count(id), |out| record::put_count(out, count));
                }
                _ => {
                    self.counts.remove(&id);
                    ops.delete(Table::Bodies, &keys::body(id));
                    ops.delete(Table::Bodies, &keys::body_count(id));
                }
            }
        }
    }
}

/// A write with more than this to encode gives the memory back, in bytes.
const SCRATCH_KEEP_BYTES: usize = 64 << 10;
/// Ids are reserved on disk in blocks of this many.
const ID_BLOCK: u64 = 1024;
/// From this payload on, in bytes, a message for several receivers is stored once.
const SHARED_PAYLOAD_MIN: usize = 1024;
/// Up to this many entries a trim removes one by one: cheaper for readers than a range.
const TRIM_SINGLY_MAX: u64 = 16;
