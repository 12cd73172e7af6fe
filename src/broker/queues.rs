//! What all queues share: their limits, how many bytes wait in them together, and which of them drop messages.
//!
//! Must not know what a queue holds.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::session::limits::QueueFull;

use super::{Broker, drops::Dropping};

/// What all queues share.
#[derive(Debug, Default)]
pub struct Queues {
    /// What may wait in each.
    pub(super) limits: Limits,
    /// Bytes that wait in all queues together, as far as they have told.
    bytes: AtomicU64,
    /// The most of them; 0 is no limit.
    max_bytes: u64,
    /// Which of them drop messages.
    pub(super) dropping: Dropping,
}

impl Queues {
    pub(super) fn new(limits: Limits, max_bytes: u64) -> Self {
        Self { limits, max_bytes, ..Self::default() }
    }

    /// Whether `size` bytes more would be too many.
    pub(super) fn are_full(&self, size: u64) -> bool {
        self.max_bytes > 0 && self.bytes.load(Ordering::Relaxed) + size > self.max_bytes
    }

    /// Bytes that wait in all queues together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A queue that is small, or grows and shrinks a little, does not touch what all share.
    fn step(&self) -> u64 {
        if self.max_bytes == 0 { STEP_MAX } else { (self.max_bytes / 4096).min(STEP_MAX) }
    }
}

/// How much may wait in one queue, of a session or a shared group, and what happens to more.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Messages; 0 is no limit.
    pub messages: u64,
    /// Bytes, stored or not; 0 is no limit.
    pub bytes: u64,
    /// What becomes of more.
    pub full: QueueFull,
}

impl Limits {
    /// Whether a queue of `messages`, of so many `bytes`, has no room for one more of `size`.
    pub(super) fn are_reached(self, messages: u64, bytes: u64, size: u64) -> bool {
        (self.messages > 0 && messages >= self.messages) || (self.bytes > 0 && bytes + size > self.bytes)
    }

    /// How many messages, and bytes, are too many.
    pub(super) fn excess(self, messages: u64, bytes: u64) -> (u64, u64) {
        let over = |what: u64, most: u64| if most > 0 { what.saturating_sub(most) } else { 0 };
        (over(messages, self.messages), over(bytes, self.bytes))
    }

    /// Whether one message of `size` alone is too large.
    pub(super) fn exclude(self, size: u64) -> bool {
        self.bytes > 0 && size > self.bytes
    }

    /// How far a log may go until its oldest messages have been dropped.
    pub(super) fn with_slack(self) -> Self {
        let more = |limit: u64, slack: u64| if limit > 0 { limit + slack } else { 0 };
        Self { messages: more(self.messages, SLACK_MESSAGES), bytes: more(self.bytes, SLACK_BYTES), ..self }
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

impl Broker {
    /// Bytes that wait in all queues together: of sessions and shared groups, in memory and stored.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queues.bytes()
    }
}

/// How far a log may go beyond its limits until somebody has dropped the oldest: about what one turn of a connection can publish.
const SLACK_MESSAGES: u64 = 32_768;
const SLACK_BYTES: u64 = 8 << 20;
const STEP_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_slack() {
        let limits = Limits { messages: 10, bytes: 100, full: QueueFull::DropOldest };
        assert_eq!([(9, 90), (9, 91), (10, 0)].map(|(n, bytes)| limits.are_reached(n, bytes, 10)), [false, true, true]);
        assert_eq!([(10, 100), (11, 99), (9, 103)].map(|(n, bytes)| limits.excess(n, bytes)), [(0, 0), (1, 0), (0, 3)]);
        assert_eq!([100, 101].map(|size| limits.exclude(size)), [false, true]);
        let slack = limits.with_slack();
        assert_eq!((slack.messages, slack.bytes), (10 + SLACK_MESSAGES, 100 + SLACK_BYTES));
        let none = Limits { messages: 0, bytes: 0, ..limits }.with_slack();
        assert!(!none.are_reached(u64::MAX, u64::MAX / 2, 1) && !none.exclude(u64::MAX));
        assert_eq!(none.excess(u64::MAX, u64::MAX), (0, 0));
    }

    #[test]
    fn the_shares_make_up_the_whole() {
        let queues = Queues::new(Limits::default(), 1 << 30);
        let (mut one, mut other) = (Share::default(), Share::default());
        one.is(4000, &queues);
        assert_eq!(queues.bytes(), 0, "a small queue does not tell");
        one.is(10_000, &queues);
        other.is(50_000, &queues);
        assert_eq!(queues.bytes(), 60_000);
        one.is(7_000, &queues);
        assert_eq!(queues.bytes(), 60_000);
        one.is(4_000, &queues);
        assert_eq!(queues.bytes(), 54_000);
        one.is(0, &queues);
        assert_eq!(queues.bytes(), 50_000, "what is empty is told, however little it held");
        other.ends(&queues);
        other.ends(&queues);
        assert_eq!(queues.bytes(), 0);
        let exact = Queues::new(Limits::default(), 1000);
        one.is(1, &exact);
        assert!(exact.are_full(1000) && !exact.are_full(999), "the smaller the limit, the finer the count");
        assert!(!Queues::new(Limits::default(), 0).are_full(u64::MAX / 2));
    }
}
