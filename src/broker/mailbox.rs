//! The hand-over to one receiver: bounded, and woken once per batch.
//!
//! For a session with a log the mailbox is a shortcut: the log is the truth. A mailbox that fell behind, or whose receiver is away,
//! holds nothing; the receiver then reads its log in pages until it has reached the end, and the mailbox opens again.
//! Must not know sessions or routes.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Waker,
};

use parking_lot::Mutex;

use crate::{
    auth::Identity,
    metrics::DropReason,
    mqtt::{Message, QoS},
    session::{Delivery, Source, limits::QueueFull},
    storage::{Batch, Body, EntryHead},
};

use super::{
    drops::Drops,
    queues::{Limits, Queues, Share},
};

/// Wakes one connection, and says why.
#[derive(Debug, Default)]
pub struct Signal {
    raised: AtomicU32,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    /// Mail has come.
    pub const MAIL: u32 = 1;
    /// Another connection claims the session.
    pub const TAKEN_OVER: u32 = 2;
    /// The broker is stopping: nothing more is to be done.
    pub const SHUTDOWN: u32 = 4;
    /// The store failed: what is in memory of this session may be ahead of it.
    pub const STORE_FAILED: u32 = 8;
    /// The rules of authorization changed.
    pub const RULES: u32 = 16;
    /// The broker is stopping: what is in flight is to be completed, and nothing new begun.
    pub const DRAIN: u32 = 32;
    /// The queue is full, and the client too slow to have one.
    pub const QUEUE_FULL: u32 = 64;
    /// The log holds more than it may: the oldest messages are to be dropped.
    pub const OVERFULL: u32 = 128;

    /// Says `what`, and wakes the connection unless it has been told already.
    pub fn raise(&self, what: u32) {
        if self.raised.fetch_or(what, Ordering::AcqRel) & what != what
            && let Some(waker) = self.waker.lock().take()
        {
            waker.wake();
        }
    }

    /// What was said since the last call. `waker` is woken by what is said from now on.
    pub fn take(&self, waker: &Waker) -> u32 {
        {
            let mut registered = self.waker.lock();
            if !registered.as_ref().is_some_and(|one| one.will_wake(waker)) {
                *registered = Some(waker.clone());
            }
        }
        if self.raised.load(Ordering::Acquire) == 0 { 0 } else { self.raised.swap(0, Ordering::AcqRel) }
    }
}

/// What publishers know of a session: where to put its messages.
#[derive(Debug)]
pub struct Receiver {
    /// Names the session, and its log.
    pub session: u64,
    /// Client Identifier.
    pub client_id: Arc<str>,
    /// Whose session it is.
    pub identity: Identity,
    /// Whether QoS 1 and 2 messages are logged for it.
    pub logged: bool,
    queues: Arc<Queues>,
    inbox: Mutex<Inbox>,
}

/// How far a log goes, and how far its session has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// The last sequence number given out.
    pub tail: u64,
    /// All up to it is settled.
    pub head: u64,
    /// What is settled beyond.
    pub beyond: u64,
    /// The bytes of all entries that the log ever had.
    pub appended: u64,
    /// The bytes of those that are settled.
    pub settled: u64,
}

impl Extent {
    /// How many entries are not settled.
    fn waiting(&self) -> u64 {
        self.tail.saturating_sub(self.head).saturating_sub(self.beyond)
    }
}

#[derive(Debug, Default)]
struct Inbox {
    mail: VecDeque<Delivery>,
    /// Bytes in `mail`.
    bytes: usize,
    /// Bytes in `mail` that no log holds.
    direct: u64,
    /// Messages, and bytes of them that no log holds, that the connection has taken and is sending.
    taken: (usize, u64),
    /// Messages, and bytes, that a commit is to hand over and no log holds.
    promised: (usize, u64),
    signal: Option<Arc<Signal>>,
    log: Extent,
    /// The commit that the last entry is in.
    last_commit: u64,
    /// The last entry that is something retained, and how many there were since the log was settled up to such a one.
    replayed: (u64, u64),
    /// Log entries are not held here: the receiver finds them in its log.
    behind: bool,
    ended: bool,
    /// The session has been asked to drop its oldest messages.
    asked: bool,
    share: Share,
    drops: Option<Box<Drops>>,
}

/// What became of a message given to a receiver.
#[derive(Debug)]
pub enum Put {
    /// It waits; who is to be woken, where it is the first.
    Queued(Option<Arc<Signal>>),
    /// It was dropped.
    Dropped(DropReason),
}

/// What became of an entry that was appended.
#[derive(Debug)]
pub struct Appended {
    /// Who is to be woken.
    pub signal: Option<Arc<Signal>>,
    /// What the commit is to hand over, by [`Receiver::committed`].
    pub waits: Option<Delivery>,
    /// The log holds more than it may: see [`Broker::drop_oldest_soon`](super::Broker).
    pub overfull: bool,
}

impl Receiver {
    /// The receiver of a session with this log. Nobody is connected.
    #[must_use]
    pub fn new(
        session: u64,
        client_id: Arc<str>,
        identity: Identity,
        logged: bool,
        queues: Arc<Queues>,
        log: Extent,
    ) -> Self {
        let mut inbox = Inbox { log, behind: true, ..Inbox::default() };
        inbox.tell(&queues);
        Self { session, client_id, identity, logged, queues, inbox: Mutex::new(inbox) }
    }

    /// The log was read from the store anew. Numbers that were given out and lost are not given out again.
    pub fn restored(&self, log: Extent) {
        let mut inbox = self.inbox.lock();
        let tail = inbox.log.tail.max(log.tail);
        inbox.log = Extent { tail, ..log };
        inbox.behind = true;
        inbox.tell(&self.queues);
    }

    /// A connection owns the session: `signal` wakes it. Its log is settled up to `head`, and `beyond` entries after that.
    pub fn online(&self, signal: Arc<Signal>, head: u64, beyond: u64) {
        let mut inbox = self.inbox.lock();
        (inbox.log.head, inbox.log.beyond) = (head, beyond);
        inbox.behind = self.logged && inbox.log.tail > head;
        inbox.signal = Some(signal);
        // Whoever was asked before may have found neither a session that is parked nor a connection.
        inbox.asked = false;
        inbox.asks_to_drop(self);
    }

    /// The connection is gone. Gives back what nobody took.
    pub fn offline(&self) -> VecDeque<Delivery> {
        let mut inbox = self.inbox.lock();
        inbox.signal = None;
        inbox.behind = true;
        inbox.asked = false;
        (inbox.bytes, inbox.direct, inbox.taken) = (0, 0, (0, 0));
        inbox.tell(&self.queues);
        std::mem::take(&mut inbox.mail)
    }

    /// The session is no more: whatever still comes is dropped. The last sequence number of its log.
    pub fn end(&self) -> u64 {
        let mut inbox = self.inbox.lock();
        inbox.ended = true;
        inbox.signal = None;
        inbox.mail = VecDeque::new();
        inbox.share.ends(&self.queues);
        if inbox.drops.is_some() {
            self.queues.dropping.forget(self.session);
        }
        inbox.log.tail
    }

    /// The last entry of the session's log.
    pub fn tail(&self) -> u64 {
        self.inbox.lock().log.tail
    }

    /// Whether a connection owns the session.
    pub fn is_online(&self) -> bool {
        self.inbox.lock().signal.is_some()
    }

    /// Hands over deliveries that no log holds, in order. `dropped` is told which of them were not taken, by number.
    pub fn put_all(
        &self,
        deliveries: impl Iterator<Item = Delivery>,
        mut dropped: impl FnMut(usize, DropReason),
    ) -> Option<Arc<Signal>> {
        let mut inbox = self.inbox.lock();
        let mut woken = None;
        for (at, delivery) in deliveries.enumerate() {
            match inbox.put(delivery, self, |reason| dropped(usize::MAX, reason)) {
                Put::Queued(signal) => woken = woken.or(signal),
                Put::Dropped(reason) => dropped(at, reason),
            }
        }
        inbox.tell(&self.queues);
        woken
    }

    /// Hands over one delivery that no log of this session holds; `dropped` is told of others that had to go for it. A lease is never
    /// dropped: its group bounds how many there are.
    pub fn put(&self, delivery: Delivery, dropped: impl FnMut(DropReason)) -> Put {
        let mut inbox = self.inbox.lock();
        let put = inbox.put(delivery, self, dropped);
        inbox.tell(&self.queues);
        put
    }

    /// Hands over one delivery that may be missed: where there is no room for it nothing is dropped in its place, counted or said.
    pub fn offer(&self, delivery: Delivery) -> Put {
        let mut inbox = self.inbox.lock();
        if inbox.ended {
            return Put::Dropped(DropReason::SessionEnded);
        }
        if inbox.signal.is_none() {
            return Put::Dropped(DropReason::NotPersistent);
        }
        let size = delivery.message.size();
        if let Some(reason) = inbox.full(size as u64, self) {
            return Put::Dropped(reason);
        }
        inbox.direct += size as u64;
        let signal = inbox.push(delivery, size);
        inbox.tell(&self.queues);
        Put::Queued(signal)
    }

    /// A commit is to hand over a delivery of `size` that no log holds: where a full queue refuses what is new, its publisher must be told
    /// before that. Why it is refused; else it has its place, until [`Receiver::keep_promise`].
    pub fn promise(&self, size: usize) -> Option<DropReason> {
        if self.queues.limits.full != QueueFull::Refuse {
            return None;
        }
        let mut inbox = self.inbox.lock();
        if inbox.signal.is_some()
            && let Some(reason) = inbox.full(size as u64, self)
        {
            inbox.count_drop(reason, self);
            return Some(reason);
        }
        inbox.promised = (inbox.promised.0 + 1, inbox.promised.1 + size as u64);
        None
    }

    /// The delivery is to be put now, or never.
    pub fn keep_promise(&self, size: usize) {
        if self.queues.limits.full == QueueFull::Refuse {
            let mut inbox = self.inbox.lock();
            let (messages, bytes) = inbox.promised;
            inbox.promised = (messages.saturating_sub(1), bytes.saturating_sub(size as u64));
        }
    }

    /// Appends to the log: number, batch and mailbox are one step. With `hand_over` false the commit hands it over.
    pub fn append(
        &self,
        batch: &mut Batch,
        body: &Body<'_>,
        mut delivery: Delivery,
        hand_over: bool,
    ) -> Result<Appended, DropReason> {
        let mut inbox = self.inbox.lock();
        delivery.source = self.append_to(&mut inbox, batch, body, &delivery)?;
        let overfull = inbox.asks_to_drop(self);
        let mut appended = Appended { signal: None, waits: None, overfull };
        if hand_over {
            appended.signal = inbox.hold(delivery);
        } else {
            appended.waits = Some(delivery);
        }
        Ok(appended)
    }

    /// Appends something retained to the log alone: the receiver reads it there, and so all that follows it, in the order of the log. Gives who is
    /// to be woken; none where it has to wait for room. An empty log has room for whatever it is.
    pub fn append_replayed(
        &self,
        batch: &mut Batch,
        body: &Body<'_>,
        delivery: &Delivery,
    ) -> Option<Option<Arc<Signal>>> {
        let mut inbox = self.inbox.lock();
        let size = delivery.message.size();
        if !inbox.takes_replayed(size as u64, self) {
            return None;
        }
        let head = entry_head(delivery);
        let others = inbox.replayed();
        inbox.log_entry(self, batch, head, body, size);
        inbox.replayed = (inbox.log.tail, others + 1);
        let was_behind = std::mem::replace(&mut inbox.behind, true);
        Some(if was_behind { None } else { inbox.signal.clone() })
    }

    /// How many retained messages, and bytes of them, are to be appended to the log now.
    pub fn replay_room(&self) -> (usize, usize) {
        let inbox = self.inbox.lock();
        let left = |limit: u64, held: u64| if limit > 0 { limit.saturating_sub(held) } else { u64::MAX };
        let waiting = inbox.log.waiting();
        let messages = left(self.queues.limits.messages, waiting).min(REPLAYED_AT_ONCE);
        let bytes = left(self.queues.limits.bytes, inbox.held());
        if !inbox.takes_replayed(0, self) || waiting.min(inbox.replayed()) > REPLAYED_AHEAD - REPLAYED_AT_ONCE {
            return (0, 0);
        }
        let at_least_one = |most: u64| usize::try_from(most).unwrap_or(usize::MAX).max(1);
        (at_least_one(messages), at_least_one(bytes))
    }

    fn append_to(
        &self,
        inbox: &mut Inbox,
        batch: &mut Batch,
        body: &Body<'_>,
        delivery: &Delivery,
    ) -> Result<Source, DropReason> {
        if inbox.ended {
            return Err(DropReason::SessionEnded);
        }
        let size = delivery.message.size();
        if let Some(reason) = inbox.log_full(size as u64, self) {
            inbox.refuse(reason, self);
            return Err(reason);
        }
        Ok(inbox.log_entry(self, batch, entry_head(delivery), body, size))
    }

    /// Appends a message that is in flight to the receiver already.
    pub fn adopt(&self, batch: &mut Batch, message: &Message, qos: QoS) -> Option<Source> {
        let mut inbox = self.inbox.lock();
        if inbox.ended {
            return None;
        }
        let body = batch.body(message, 1);
        let subscription_ids = Default::default();
        let head = EntryHead { qos, retain: false, subscription_ids, publisher: 0, log_bytes: 0 };
        Some(inbox.log_entry(self, batch, head, &body, message.size()))
    }

    /// The commit hands over an entry of the log.
    pub fn committed(&self, delivery: Delivery) -> Option<Arc<Signal>> {
        self.inbox.lock().hold(delivery)
    }

    /// Takes the mail, into an empty `mail`; what was taken before is sent. `true` where the log must be read on.
    pub fn take(&self, mail: &mut VecDeque<Delivery>) -> bool {
        let mut inbox = self.inbox.lock();
        // Where the oldest is dropped first, half of what may wait must stay where it can be.
        let count = if self.queues.limits.full == QueueFull::DropOldest && !self.logged {
            inbox.taken_at_once(self.queues.limits)
        } else {
            inbox.mail.len()
        };
        if count < inbox.mail.len() {
            mail.extend(inbox.mail.drain(..count));
            let bytes: usize = mail.iter().map(|delivery| delivery.message.size()).sum();
            let direct: u64 = mail.iter().map(direct_size).sum();
            inbox.bytes -= bytes.min(inbox.bytes);
            inbox.direct -= direct.min(inbox.direct);
            inbox.taken = (mail.len(), direct);
        } else {
            std::mem::swap(&mut inbox.mail, mail);
            inbox.taken = (mail.len(), inbox.direct);
            (inbox.bytes, inbox.direct) = (0, 0);
        }
        inbox.tell(&self.queues);
        inbox.behind && self.logged
    }

    /// An idle mailbox holds no memory.
    pub fn rest(&self) {
        let mut inbox = self.inbox.lock();
        if inbox.mail.is_empty() {
            inbox.mail = VecDeque::new();
        }
    }

    /// The receiver has read its log up to `read`. Opens the mailbox where that is the end of the log: `None`. Else: the end now, and the
    /// commit that holds it.
    pub fn catch_up(&self, read: u64) -> Option<(u64, u64)> {
        let mut inbox = self.inbox.lock();
        if inbox.log.tail <= read {
            inbox.behind = false;
            return None;
        }
        Some((inbox.log.tail, inbox.last_commit))
    }

    /// All up to `head` is settled, and `beyond` entries after that, which together had `bytes`.
    pub fn settled(&self, head: u64, beyond: u64, bytes: u64) {
        let mut inbox = self.inbox.lock();
        (inbox.log.head, inbox.log.beyond, inbox.log.settled) = (head, beyond, bytes);
        inbox.tell(&self.queues);
    }

    /// How far its log goes.
    pub fn extent(&self) -> Extent {
        self.inbox.lock().log
    }

    /// The commit that its last entry is in.
    pub fn last_commit(&self) -> u64 {
        self.inbox.lock().last_commit
    }

    /// How many messages, and bytes, its log holds beyond its limits.
    pub fn excess(&self) -> (u64, u64) {
        self.inbox.lock().excess(self)
    }

    /// The session has looked at all that its log holds up to commit `seen`, and is asked again by what makes the log too long from now on.
    /// `false` where there is more to look at already: then it counts as asked.
    pub fn has_looked(&self, seen: u64) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.asked = inbox.last_commit > seen && inbox.excess(self) != (0, 0);
        !inbox.asked
    }

    /// The session is between two connections, and is where it can be found: whether it is to be asked to drop its oldest. Whoever was asked
    /// before may not have found it.
    pub fn parked(&self) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.asked = false;
        inbox.asks_to_drop(self)
    }

    /// Counts a message that this session does not get.
    pub fn count_drop(&self, reason: DropReason) {
        self.inbox.lock().count_drop(reason, self);
    }

    /// Counts `count` of them.
    pub fn count_drops(&self, reason: DropReason, count: u64) {
        self.inbox.lock().count_drops(reason, count, self);
    }

    /// What this session's queue has dropped.
    pub(super) fn with_drops<R>(&self, look: impl FnOnce(&mut Drops) -> R) -> R {
        look(self.inbox.lock().drops.get_or_insert_default())
    }

    /// Wakes its connection, if there is one.
    pub fn raise(&self, what: u32) {
        let signal = self.inbox.lock().signal.clone();
        if let Some(signal) = signal {
            signal.raise(what);
        }
    }
}

impl Inbox {
    fn put(&mut self, delivery: Delivery, receiver: &Receiver, mut dropped: impl FnMut(DropReason)) -> Put {
        if self.ended {
            return Put::Dropped(DropReason::SessionEnded);
        }
        if self.signal.is_none() {
            // A lease that nobody takes is its group's again.
            if delivery.source == Source::Direct {
                self.count_drop(DropReason::NotPersistent, receiver);
            }
            return Put::Dropped(DropReason::NotPersistent);
        }
        let size = delivery.message.size();
        if delivery.source == Source::Direct {
            if let Some(reason) = self.full(size as u64, receiver) {
                let for_oldest =
                    reason == DropReason::QueueFull && receiver.queues.limits.full == QueueFull::DropOldest;
                let count = if for_oldest { self.makes_room(size as u64, receiver) } else { None };
                let Some(count) = count else {
                    self.refuse(reason, receiver);
                    return Put::Dropped(reason);
                };
                for _ in 0..count {
                    self.drop_oldest();
                    self.count_drop(reason, receiver);
                    dropped(reason);
                }
            }
            self.direct += size as u64;
        }
        Put::Queued(self.push(delivery, size))
    }

    /// Why a message that no log holds has no room.
    fn full(&self, size: u64, receiver: &Receiver) -> Option<DropReason> {
        if self.lacks_room(size, (0, 0), receiver) {
            return Some(DropReason::QueueFull);
        }
        self.all_full(size, receiver)
    }

    /// Whether this queue has no room for a message of `size` once so many messages, of so many bytes, were dropped.
    fn lacks_room(&self, size: u64, dropped: (usize, u64), receiver: &Receiver) -> bool {
        let mail = self.mail.len() - dropped.0;
        let messages = (mail + self.taken.0 + self.promised.0) as u64;
        receiver.queues.limits.are_reached(messages, self.held().saturating_sub(dropped.1), size)
            || (receiver.logged && self.behind && mail >= HELD_MESSAGES)
    }

    /// How many of the oldest messages that no log holds and nobody has taken are to be dropped for one of `size`. `None` where even all of
    /// them would be dropped in vain.
    fn makes_room(&self, size: u64, receiver: &Receiver) -> Option<usize> {
        if receiver.queues.limits.exclude(size) || self.all_full(size, receiver).is_some() {
            return None;
        }
        let mut oldest = self.mail.iter().filter(|delivery| delivery.source == Source::Direct);
        let mut dropped = (0, 0);
        while self.lacks_room(size, dropped, receiver) {
            dropped = (dropped.0 + 1, dropped.1 + direct_size(oldest.next()?));
        }
        Some(dropped.0)
    }

    /// How many messages a connection takes at once, where the oldest of the rest may be dropped: no more than half of what may wait.
    fn taken_at_once(&self, limits: Limits) -> usize {
        let half = |limit: u64| if limit > 0 { limit / 2 } else { u64::MAX };
        let most = usize::try_from(half(limits.messages)).unwrap_or(usize::MAX).clamp(1, TAKEN_AT_ONCE);
        let (mut bytes, room) = (0, half(limits.bytes));
        let fits = |delivery: &&Delivery| {
            bytes += direct_size(delivery);
            bytes <= room
        };
        self.mail.iter().take(most).take_while(fits).count().max(1)
    }

    /// Why an entry of the log has no room.
    fn log_full(&self, size: u64, receiver: &Receiver) -> Option<DropReason> {
        let mut limits = receiver.queues.limits;
        if limits.full == QueueFull::DropOldest {
            if limits.exclude(size) {
                // All others would be dropped for it, and then itself.
                return Some(DropReason::QueueFull);
            }
            // The session drops its oldest soon.
            limits = limits.with_slack();
        }
        if limits.are_reached(self.log.waiting(), self.held(), size) {
            return Some(DropReason::QueueFull);
        }
        self.all_full(size, receiver)
    }

    /// Whether the log has room for something retained of `size`: little waits in it, or little of what is retained, and it is within its
    /// limits; or nothing waits.
    fn takes_replayed(&self, size: u64, receiver: &Receiver) -> bool {
        let waiting = self.log.waiting();
        let is_full = || {
            receiver.queues.limits.are_reached(waiting, self.held(), size) || self.all_full(size, receiver).is_some()
        };
        !self.ended && (waiting == 0 || waiting.min(self.replayed()) < REPLAYED_AHEAD && !is_full())
    }

    /// How much of what is retained may wait in the log.
    fn replayed(&self) -> u64 {
        if self.log.head < self.replayed.0 { self.replayed.1 } else { 0 }
    }

    /// Where all queues are full together, who is connected and has little waiting is served on.
    fn all_full(&self, size: u64, receiver: &Receiver) -> Option<DropReason> {
        let served = || self.signal.is_some() && self.held() + size <= SERVED_BYTES;
        (receiver.queues.are_full(size) && !served()).then_some(DropReason::AllQueuesFull)
    }

    /// What waits here counts for so many bytes: what no log holds, and the log.
    fn held(&self) -> u64 {
        self.direct + self.taken.1 + self.promised.1 + self.log.appended.saturating_sub(self.log.settled)
    }

    fn excess(&self, receiver: &Receiver) -> (u64, u64) {
        receiver.queues.limits.excess(self.log.waiting(), self.held())
    }

    /// Whether the session is to be asked to drop its oldest; one that is connected is told here.
    fn asks_to_drop(&mut self, receiver: &Receiver) -> bool {
        if receiver.queues.limits.full != QueueFull::DropOldest || self.asked || self.excess(receiver) == (0, 0) {
            return false;
        }
        self.asked = true;
        if let Some(signal) = &self.signal {
            signal.raise(Signal::OVERFULL);
        }
        self.signal.is_none()
    }

    /// A message is not taken.
    fn refuse(&mut self, reason: DropReason, receiver: &Receiver) {
        self.count_drop(reason, receiver);
        if let Some(signal) = &self.signal
            && reason == DropReason::QueueFull
            && receiver.queues.limits.full == QueueFull::Disconnect
        {
            signal.raise(Signal::QUEUE_FULL);
        }
    }

    fn count_drop(&mut self, reason: DropReason, receiver: &Receiver) {
        self.count_drops(reason, 1, receiver);
    }

    fn count_drops(&mut self, reason: DropReason, count: u64, receiver: &Receiver) {
        if count > 0 && self.drops.get_or_insert_default().count(reason, count) && !self.ended {
            receiver.queues.dropping.has_untold(receiver.session);
        }
    }

    /// Drops the oldest message that no log holds and nobody has taken.
    fn drop_oldest(&mut self) {
        let oldest = self.mail.iter().position(|delivery| delivery.source == Source::Direct);
        let Some(delivery) = oldest.and_then(|at| self.mail.remove(at)) else { return };
        let size = delivery.message.size();
        self.bytes = self.bytes.saturating_sub(size);
        self.direct = self.direct.saturating_sub(size as u64);
    }

    fn log_entry(
        &mut self,
        receiver: &Receiver,
        batch: &mut Batch,
        mut head: EntryHead,
        body: &Body<'_>,
        size: usize,
    ) -> Source {
        self.log.tail += 1;
        self.log.appended += size as u64;
        self.last_commit = batch.lsn().0;
        head.log_bytes = self.log.appended;
        let shared = batch.append(receiver.session, self.log.tail, &head, body);
        self.tell(&receiver.queues);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        Source::Log { seq: self.log.tail, body: shared.unwrap_or_default(), size }
    }

    /// Holds an entry of the log, unless the receiver is away or behind: then it finds the entry in its log.
    fn hold(&mut self, delivery: Delivery) -> Option<Arc<Signal>> {
        if self.behind {
            return None;
        }
        let size = delivery.message.size();
        if self.mail.len() >= HELD_MESSAGES || self.bytes + size > HELD_BYTES {
            self.behind = true;
            return if self.mail.is_empty() { self.signal.clone() } else { None };
        }
        self.push(delivery, size)
    }

    fn push(&mut self, delivery: Delivery, size: usize) -> Option<Arc<Signal>> {
        let first = self.mail.is_empty();
        self.bytes += size;
        self.mail.push_back(delivery);
        if first { self.signal.clone() } else { None }
    }

    /// All queues together count what this one holds.
    fn tell(&mut self, queues: &Queues) {
        let held = self.held();
        if !self.ended {
            self.share.is(held, queues);
        }
    }
}

/// The bytes of a delivery, where no log holds it.
fn direct_size(delivery: &Delivery) -> u64 {
    if delivery.source == Source::Direct { delivery.message.size() as u64 } else { 0 }
}

/// What a log keeps of a delivery beside its message.
fn entry_head(delivery: &Delivery) -> EntryHead {
    let subscription_ids = delivery.subscription_ids.as_deref().unwrap_or_default().into();
    let (qos, retain) = (delivery.qos, delivery.retain);
    EntryHead { qos, retain, subscription_ids, publisher: 0, log_bytes: 0 }
}

/// A message as `receiver` gets it, before its source is known.
pub(super) fn delivery(message: &Arc<Message>, qos: QoS, retain: bool, ids: Option<Arc<[u32]>>) -> Delivery {
    Delivery { message: message.clone(), qos, retain, subscription_ids: ids, source: Source::Direct }
}

/// How much of its log a mailbox holds in memory before it falls behind.
const HELD_MESSAGES: usize = 4096;
const HELD_BYTES: usize = 1 << 20;
/// Something retained is appended to a log while less than this waits in it, or less of what is retained, and about so much at once.
const REPLAYED_AHEAD: u64 = 256;
const REPLAYED_AT_ONCE: u64 = 128;
/// How many messages a connection takes at most at once from a queue that drops its oldest.
const TAKEN_AT_ONCE: usize = 64;
/// What a connected client, or a shared group with a member that has room, may have waiting although all queues together are full.
pub(super) const SERVED_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests;
