//! The hand-over to one receiver: bounded, and woken once per batch.
//!
//! For a session with a log the mailbox is a shortcut: the log is the truth. A mailbox that fell behind, or whose receiver is away,
//! holds nothing; the receiver then reads its log in pages until it has reached the end, and the mailbox opens again.
//! Must not know sessions or routes.

use std::{
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
    session::{Delivery, Source},
    storage::{Batch, Body, EntryHead},
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
    limits: Limits,
    inbox: Mutex<Inbox>,
}

/// How much may wait for one receiver; 0 is no limit.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Messages.
    pub messages: u64,
    /// Bytes in memory.
    pub bytes: usize,
}

#[derive(Debug, Default)]
struct Inbox {
    mail: Vec<Delivery>,
    bytes: usize,
    signal: Option<Arc<Signal>>,
    /// The last sequence number given out.
    tail: u64,
    /// The receiver has settled all up to it.
    head: u64,
    /// What it has settled beyond.
    beyond: u64,
    /// The commit that the last entry is in.
    last_commit: u64,
    /// Log entries are not held here: the receiver finds them in its log.
    behind: bool,
    ended: bool,
}

/// What became of a message given to a receiver.
#[derive(Debug)]
pub enum Put {
    /// It waits; who is to be woken, where it is the first.
    Queued(Option<Arc<Signal>>),
    /// It was dropped.
    Dropped(DropReason),
}

impl Receiver {
    /// The receiver of a session whose log ends at `tail` and is settled up to `head`. Nobody is connected.
    #[must_use]
    pub fn new(
        session: u64,
        client_id: Arc<str>,
        identity: Identity,
        logged: bool,
        limits: Limits,
        head: u64,
        tail: u64,
    ) -> Self {
        let inbox = Inbox { tail, head, behind: true, ..Inbox::default() };
        Self { session, client_id, identity, logged, limits, inbox: Mutex::new(inbox) }
    }

    /// The log was read from the store anew: it is settled up to `head` and ends at `tail`. Numbers that were given out and lost are not
    /// given out again.
    pub fn restored(&self, head: u64, tail: u64) {
        let mut inbox = self.inbox.lock();
        (inbox.head, inbox.beyond) = (head, 0);
        inbox.tail = inbox.tail.max(tail);
        inbox.behind = true;
    }

    /// A connection owns the session: `signal` wakes it. Its log is settled up to `head`, and `beyond` entries after that.
    pub fn online(&self, signal: Arc<Signal>, head: u64, beyond: u64) {
        let mut inbox = self.inbox.lock();
        (inbox.head, inbox.beyond) = (head, beyond);
        inbox.behind = self.logged && inbox.tail > inbox.head;
        inbox.signal = Some(signal);
    }

    /// The connection is gone. Gives back what nobody took.
    pub fn offline(&self) -> Vec<Delivery> {
        let mut inbox = self.inbox.lock();
        inbox.signal = None;
        inbox.behind = true;
        inbox.bytes = 0;
        std::mem::take(&mut inbox.mail)
    }

    /// The session is no more: whatever still comes is dropped. The last sequence number of its log.
    pub fn end(&self) -> u64 {
        let mut inbox = self.inbox.lock();
        inbox.ended = true;
        inbox.signal = None;
        inbox.mail = Vec::new();
        inbox.tail
    }

    /// Whether a connection owns the session.
    pub fn is_online(&self) -> bool {
        self.inbox.lock().signal.is_some()
    }

    /// Hands over deliveries that no log holds, in order.
    pub fn put_all(
        &self,
        deliveries: impl Iterator<Item = Delivery>,
        mut dropped: impl FnMut(DropReason),
    ) -> Option<Arc<Signal>> {
        let mut inbox = self.inbox.lock();
        let mut woken = None;
        for delivery in deliveries {
            match inbox.put(delivery, self.limits, self.logged) {
                Put::Queued(signal) => woken = woken.or(signal),
                Put::Dropped(reason) => dropped(reason),
            }
        }
        woken
    }

    /// Hands over one delivery that no log of this session holds. A lease is never dropped: its group bounds how many there are.
    pub fn put(&self, delivery: Delivery) -> Put {
        self.inbox.lock().put(delivery, self.limits, self.logged)
    }

    /// Appends to the log: number, batch and mailbox are one step. With `hand_over` false the commit hands it over, by
    /// [`Receiver::committed`], and the delivery is given back.
    pub fn append(
        &self,
        batch: &mut Batch,
        body: &Body<'_>,
        mut delivery: Delivery,
        hand_over: bool,
    ) -> Result<(Option<Arc<Signal>>, Option<Delivery>), DropReason> {
        let mut inbox = self.inbox.lock();
        delivery.source = self.append_to(&mut inbox, batch, body, &delivery)?;
        if !hand_over {
            return Ok((None, Some(delivery)));
        }
        Ok((inbox.hold(delivery), None))
    }

    /// Appends to the log alone: the receiver reads it there, and so all that follows it, in the order of the log.
    pub fn append_behind(
        &self,
        batch: &mut Batch,
        body: &Body<'_>,
        delivery: &Delivery,
    ) -> Result<Option<Arc<Signal>>, DropReason> {
        let mut inbox = self.inbox.lock();
        self.append_to(&mut inbox, batch, body, delivery)?;
        let was_behind = std::mem::replace(&mut inbox.behind, true);
        Ok(if was_behind { None } else { inbox.signal.clone() })
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
        if is_full(self.limits.messages, inbox.tail, inbox.head, inbox.beyond) {
            return Err(DropReason::QueueFull);
        }
        inbox.tail += 1;
        inbox.last_commit = batch.lsn().0;
        let subscription_ids = delivery.subscription_ids.as_deref().unwrap_or_default().into();
        let head = EntryHead { qos: delivery.qos, retain: delivery.retain, subscription_ids, publisher: 0 };
        let shared = batch.append(self.session, inbox.tail, &head, body);
        Ok(Source::Log { seq: inbox.tail, body: shared.unwrap_or_default() })
    }

    /// Appends a message that is in flight to the receiver already. Its number, and its shared body (0: none).
    pub fn adopt(&self, batch: &mut Batch, message: &Message, qos: QoS) -> Option<(u64, u64)> {
        let mut inbox = self.inbox.lock();
        if inbox.ended {
            return None;
        }
        inbox.tail += 1;
        inbox.last_commit = batch.lsn().0;
        let body = batch.body(message, 1);
        let head = EntryHead { qos, retain: false, subscription_ids: Default::default(), publisher: 0 };
        let shared = batch.append(self.session, inbox.tail, &head, &body);
        Some((inbox.tail, shared.unwrap_or_default()))
    }

    /// The commit hands over an entry of the log.
    pub fn committed(&self, delivery: Delivery) -> Option<Arc<Signal>> {
        self.inbox.lock().hold(delivery)
    }

    /// Takes all mail, into an empty `mail`. `true` where the log must be read on.
    pub fn take(&self, mail: &mut Vec<Delivery>) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.bytes = 0;
        std::mem::swap(&mut inbox.mail, mail);
        inbox.behind && self.logged
    }

    /// An idle mailbox holds no memory.
    pub fn rest(&self) {
        let mut inbox = self.inbox.lock();
        if inbox.mail.is_empty() {
            inbox.mail = Vec::new();
        }
    }

    /// The receiver has read its log up to `read`. Opens the mailbox where that is the end of the log: `None`. Else: the end now, and the
    /// commit that holds it.
    pub fn catch_up(&self, read: u64) -> Option<(u64, u64)> {
        let mut inbox = self.inbox.lock();
        if inbox.tail <= read {
            inbox.behind = false;
            return None;
        }
        Some((inbox.tail, inbox.last_commit))
    }

    /// All up to `head` is settled, and `beyond` entries after that.
    pub fn settled(&self, head: u64, beyond: u64) {
        let mut inbox = self.inbox.lock();
        (inbox.head, inbox.beyond) = (head, beyond);
    }

    /// The last sequence number given out.
    pub fn tail(&self) -> u64 {
        self.inbox.lock().tail
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
    fn put(&mut self, delivery: Delivery, limits: Limits, logged: bool) -> Put {
        let leased = matches!(delivery.source, Source::Lease { .. });
        if self.ended {
            return Put::Dropped(DropReason::SessionEnded);
        }
        if self.signal.is_none() {
            return Put::Dropped(DropReason::NotPersistent);
        }
        let size = delivery.message.size();
        let full = (limits.messages > 0 && self.mail.len() as u64 >= limits.messages)
            || (limits.bytes > 0 && self.bytes + size > limits.bytes)
            || (logged && self.behind && delivery.qos == QoS::AtMostOnce && self.mail.len() >= HELD_MESSAGES);
        if full && !leased {
            return Put::Dropped(DropReason::QueueFull);
        }
        Put::Queued(self.push(delivery, size))
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
        self.mail.push(delivery);
        if first { self.signal.clone() } else { None }
    }
}

/// Whether no more than `limit` messages may wait in a log that ends at `tail` and is settled up to `head`, and `beyond` entries after
/// that; 0 is no limit. What one message that is never settled keeps from being trimmed is bounded too.
pub(super) fn is_full(limit: u64, tail: u64, head: u64, beyond: u64) -> bool {
    let span = tail.saturating_sub(head);
    limit > 0 && (span.saturating_sub(beyond) >= limit || span / SPAN_MAX >= limit)
}

/// A message as `receiver` gets it, before its source is known.
pub(super) fn delivery(message: &Arc<Message>, qos: QoS, retain: bool, ids: Option<Arc<[u32]>>) -> Delivery {
    Delivery { message: message.clone(), qos, retain, subscription_ids: ids, source: Source::Direct }
}

/// How much of its log a mailbox holds in memory before it falls behind.
const HELD_MESSAGES: usize = 4096;
const HELD_BYTES: usize = 1 << 20;
/// How many entries a log may span for each message that may wait.
const SPAN_MAX: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_full_of_what_waits() {
        #[track_caller]
        fn check((tail, head, beyond): (u64, u64, u64), expected: bool) {
            assert_eq!(is_full(10, tail, head, beyond), expected);
            assert!(!is_full(0, tail, head, beyond), "no limit");
        }
        check((9, 0, 0), false);
        check((10, 0, 0), true);
        check((110, 100, 0), true);
        check((110, 100, 1), false);
        // One that is stuck, and all behind it settled.
        check((151, 0, 150), false);
        check((160, 0, 159), true);
    }
}
