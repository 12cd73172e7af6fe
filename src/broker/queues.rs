//! What all queues share: how many bytes wait in them together, and whose drops are still to be told.
//!
//! Must not know what a queue holds.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::{
    metrics::DropReason,
    mqtt::{Shown, Timestamp},
};

use super::{Broker, Receiver};

/// What all queues share.
#[derive(Debug, Default)]
pub struct Queues {
    /// Bytes that wait in all queues together, as far as they have told.
    bytes: AtomicU64,
    /// The most of them; 0 is no limit.
    max_bytes: u64,
    /// Sessions that have dropped something and not said so yet.
    untold: Mutex<Vec<u64>>,
}

impl Queues {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Whether `size` bytes more would be too many.
    pub(super) fn are_full(&self, size: u64) -> bool {
        self.max_bytes > 0 && self.bytes.load(Ordering::Relaxed) + size > self.max_bytes
    }

    /// Bytes that wait in all queues together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn has_untold(&self, session: u64) {
        self.untold.lock().push(session);
    }

    /// A queue that is small, or grows and shrinks a little, does not touch what all share.
    fn step(&self) -> u64 {
        if self.max_bytes == 0 { STEP_MAX } else { (self.max_bytes / 4096).min(STEP_MAX) }
    }
}

/// What one queue has told of its bytes.
#[derive(Debug, Default)]
pub(super) struct Share(u64);

impl Share {
    /// The queue holds so many bytes now. One that is empty is never counted as holding some.
    pub(super) fn is(&mut self, bytes: u64, queues: &Queues) {
        if bytes.abs_diff(self.0) > queues.step() || (bytes == 0 && self.0 > 0) {
            self.tell(bytes, queues);
        }
    }

    /// The queue is gone.
    pub(super) fn ends(&mut self, queues: &Queues) {
        self.tell(0, queues);
    }

    fn tell(&mut self, bytes: u64, queues: &Queues) {
        if bytes >= self.0 {
            queues.bytes.fetch_add(bytes - self.0, Ordering::Relaxed);
        } else {
            queues.bytes.fetch_sub(self.0 - bytes, Ordering::Relaxed);
        }
        self.0 = bytes;
    }
}

/// What one session's queue has dropped, by reason.
#[derive(Debug, Default)]
pub(super) struct Drops {
    by_reason: Vec<(DropReason, u64)>,
    /// How many were dropped when it was last said, and when that was.
    told: u64,
    told_at: Timestamp,
    is_due: bool,
}

impl Drops {
    /// Counts `more`. `true` where that is to be told, and nobody knows yet.
    pub(super) fn count(&mut self, reason: DropReason, more: u64) -> bool {
        match self.by_reason.iter_mut().find(|(of, _)| *of == reason) {
            Some((_, count)) => *count += more,
            None => self.by_reason.push((reason, more)),
        }
        // What a session without a log misses while its client is away is no news.
        reason != DropReason::NotPersistent && !std::mem::replace(&mut self.is_due, true)
    }

    pub(super) fn by_reason(&self) -> Vec<(DropReason, u64)> {
        self.by_reason.clone()
    }

    /// What is to be said now: how many since the last time. None where that was a short while ago.
    fn tell(&mut self, now: Timestamp) -> Option<u64> {
        if now.millis_since(self.told_at) < TOLD_EVERY_MILLIS {
            return None;
        }
        let all: u64 = self.by_reason.iter().map(|(_, count)| count).sum();
        self.is_due = false;
        self.told_at = now;
        Some(all - std::mem::replace(&mut self.told, all))
    }
}

impl Broker {
    /// Says in the log which sessions dropped messages: each at most once a minute.
    pub(super) fn tell_drops(&self, now: Timestamp) {
        let sessions = std::mem::take(&mut *self.queues.untold.lock());
        let mut later = Vec::new();
        for session in sessions {
            let Some(receiver) = self.receivers.get(&session).map(|receiver| receiver.clone()) else { continue };
            let Some(dropped) = receiver.with_drops(|drops| drops.tell(now)) else {
                later.push(session);
                continue;
            };
            let all: Vec<String> =
                receiver.dropped().iter().map(|(reason, count)| format!("{} {count}", reason.counter())).collect();
            tracing::warn!(client = %Shown(&receiver.client_id), dropped, all = all.join(", "), "messages were dropped");
        }
        self.queues.untold.lock().extend(later);
    }

    /// The sessions that have dropped most: see [`Receiver::dropped`].
    #[must_use]
    pub fn most_drops(&self, sessions: usize) -> Vec<Arc<Receiver>> {
        let dropped = |receiver: &Receiver| receiver.dropped().iter().map(|(_, count)| count).sum::<u64>();
        let mut found: Vec<_> = self.receivers.iter().map(|one| (dropped(&one), one.clone())).collect();
        found.retain(|(count, _)| *count > 0);
        found.sort_by_key(|(count, receiver)| (std::cmp::Reverse(*count), receiver.session));
        found.truncate(sessions);
        found.into_iter().map(|(_, receiver)| receiver).collect()
    }

    /// Bytes that wait in all queues together: of sessions and shared groups, in memory and stored.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queues.bytes()
    }
}

const STEP_MAX: u64 = 4096;
const TOLD_EVERY_MILLIS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_make_up_the_whole() {
        let queues = Queues::new(1 << 30);
        let (mut one, mut other) = (Share::default(), Share::default());
        one.is(4000, &queues);
        assert_eq!(queues.bytes(), 0, "a small queue does not tell");
        one.is(10_000, &queues);
        other.is(50_000, &queues);
        assert_eq!(queues.bytes(), 60_000);
        one.is(7_000, &queues);
        assert_eq!(queues.bytes(), 60_000);
        one.is(5_000, &queues);
        one.is(4_000, &queues);
        assert_eq!(queues.bytes(), 55_000);
        one.is(0, &queues);
        assert_eq!(queues.bytes(), 50_000, "what is empty is told, however little it held");
        other.ends(&queues);
        other.ends(&queues);
        assert_eq!(queues.bytes(), 0);
        let exact = Queues::new(1000);
        one.is(1, &exact);
        assert!(exact.are_full(1000) && !exact.are_full(999), "the smaller the limit, the finer the count");
        assert!(!Queues::new(0).are_full(u64::MAX / 2));
    }

    #[test]
    fn drops_are_told_once_a_minute_and_none_is_forgotten() {
        let mut drops = Drops::default();
        let at = |secs: u64| Timestamp(1_000_000_000).plus_secs(secs);
        assert!(drops.count(DropReason::QueueFull, 1));
        assert!(!drops.count(DropReason::Expired, 1), "it is known");
        assert_eq!(drops.tell(at(0)), Some(2));
        assert!(drops.count(DropReason::QueueFull, 1));
        assert_eq!(drops.tell(at(1)), None);
        assert!(!drops.count(DropReason::QueueFull, 1));
        assert_eq!(drops.tell(at(60)), Some(2));
        assert_eq!(drops.by_reason(), [(DropReason::QueueFull, 3), (DropReason::Expired, 1)]);
    }
}
