//! What all queues share: how many bytes wait in them together, and which of them drop messages.
//!
//! Must not know what a queue holds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Broker, drops::Dropping};

/// What all queues share.
#[derive(Debug, Default)]
pub struct Queues {
    /// Bytes that wait in all queues together, as far as they have told.
    bytes: AtomicU64,
    /// The most of them; 0 is no limit.
    max_bytes: u64,
    /// Which of them drop messages.
    pub(super) dropping: Dropping,
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

impl Broker {
    /// Bytes that wait in all queues together: of sessions and shared groups, in memory and stored.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queues.bytes()
    }
}

const STEP_MAX: u64 = 4096;

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
}
