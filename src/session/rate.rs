//! How fast something may happen: a token bucket, and what one client may publish.
//!
//! Must not read the time: it is told.

use crate::mqtt::Timestamp;

/// A token bucket: so many in a second on average, and as many at once after a second of rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    per_sec: i64,
    /// What is left, in thousandths: that is what one millisecond brings for each token of a second. Below zero: what was taken in advance.
    left: i64,
    at: Timestamp,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub fn new(per_sec: u32, now: Timestamp) -> Self {
        let per_sec = i64::from(per_sec);
        Self { per_sec, left: per_sec * 1000, at: now }
    }

    /// One with a tenth of a second's worth, and at least one token: who comes anew has not rested.
    #[must_use]
    pub fn begun(per_sec: u32, now: Timestamp) -> Self {
        let new = Self::new(per_sec, now);
        Self { left: (new.left / 10).max(1000), ..new }
    }

    /// Takes one, if there is one.
    pub fn try_take(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        let there = self.left >= 1000;
        if there {
            self.left -= 1000;
        }
        there
    }

    /// Takes `count`, in advance where there are not so many.
    pub fn take(&mut self, count: usize, now: Timestamp) {
        self.refill(now);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.left = self.left.saturating_sub(count.saturating_mul(1000));
    }

    /// When what was taken in advance is made up for; none where nothing was.
    #[must_use]
    pub fn resumes_at(&self) -> Option<Timestamp> {
        let owed = u64::try_from(self.left.checked_neg()?).ok().filter(|owed| *owed > 0)?;
        Some(self.at.plus_millis(owed.div_ceil(u64::try_from(self.per_sec).unwrap_or(1).max(1))))
    }

    /// Tokens in a second.
    #[must_use]
    pub fn per_sec(&self) -> u32 {
        u32::try_from(self.per_sec).unwrap_or(u32::MAX)
    }

    /// Whole tokens left.
    #[must_use]
    pub fn left(&self) -> usize {
        usize::try_from(self.left / 1000).unwrap_or(0)
    }

    /// Whether nothing was taken of late: a new one would be the same.
    pub fn is_full(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        self.left >= self.per_sec * 1000
    }

    fn refill(&mut self, now: Timestamp) {
        let passed = i64::try_from(now.millis_since(self.at)).unwrap_or(i64::MAX);
        if passed > 0 {
            self.left = self.left.saturating_add(passed.saturating_mul(self.per_sec)).min(self.per_sec * 1000);
            self.at = now;
        }
    }
}

/// What a client may publish: messages and bytes, each by its own bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishRate {
    limits: (u32, u32),
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl PublishRate {
    /// Messages and bytes in a second; 0 is no limit. None where neither has one.
    pub(super) fn new(limits: (u32, u32), now: Timestamp) -> Option<Self> {
        let bucket = |per_sec| (per_sec > 0).then(|| Bucket::begun(per_sec, now));
        (limits != (0, 0)).then(|| Self { limits, messages: bucket(limits.0), bytes: bucket(limits.1) })
    }

    pub(super) fn is_of(&self, limits: (u32, u32)) -> bool {
        self.limits == limits
    }

    /// One message of so many bytes: its topic, alias or not, its properties and its payload.
    pub(super) fn charge(&mut self, size: usize, now: Timestamp) {
        if let Some(messages) = &mut self.messages {
            messages.take(1, now);
        }
        if let Some(bytes) = &mut self.bytes {
            bytes.take(size, now);
        }
    }

    pub(super) fn resumes_at(&self) -> Option<Timestamp> {
        let both = [&self.messages, &self.bytes];
        both.into_iter().flatten().filter_map(Bucket::resumes_at).max()
    }

    /// What is read at once is published at once: little where little is left.
    pub(super) fn read_at_most(&self) -> usize {
        let messages = self.messages.as_ref().map_or(usize::MAX, |bucket| bucket.left().saturating_mul(SMALL_MESSAGE));
        let bytes = self.bytes.as_ref().map_or(usize::MAX, Bucket::left);
        messages.min(bytes).max(READ_MIN)
    }
}

/// A PUBLISH of few bytes.
const SMALL_MESSAGE: usize = 32;
/// Smaller reads would cost more than what they hold back.
const READ_MIN: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_rate_and_no_more_than_a_second_of_it_at_once() {
        let start = Timestamp(50_000);
        let mut bucket = Bucket::new(10, start);
        let taken = |bucket: &mut Bucket, now: Timestamp| (0..100).take_while(|_| bucket.try_take(now)).count();
        assert_eq!(taken(&mut bucket, start), 10);
        assert_eq!(taken(&mut bucket, start.plus_millis(99)), 0);
        assert_eq!(taken(&mut bucket, start.plus_millis(100)), 1);
        assert!(!bucket.is_full(start.plus_millis(1099)));
        assert!(bucket.is_full(start.plus_millis(1100)));
        assert_eq!(taken(&mut bucket, start.plus_secs(1_000_000)), 10, "rest is not saved up");
        // A clock that stands still, or steps back, gives nothing.
        assert_eq!(taken(&mut bucket, start), 0);
        // In ten seconds, whenever it is asked: ten seconds' worth, and what was saved.
        let mut bucket = Bucket::new(10, start);
        let sum: usize = (0..=10_000).step_by(7).map(|at| taken(&mut bucket, start.plus_millis(at))).sum();
        assert!((108..=110).contains(&sum), "{sum}");
    }

    /// Who comes again and again without a session gets no second's worth each time.
    #[test]
    fn one_that_begins_is_nearly_empty() {
        let start = Timestamp(50_000);
        for (per_sec, expected) in [(1, 1), (10, 1), (100, 10), (1000, 100)] {
            let mut bucket = Bucket::begun(per_sec, start);
            assert_eq!(bucket.left(), expected, "{per_sec}");
            assert!(bucket.is_full(start.plus_secs(1)));
        }
    }

    #[test]
    fn what_is_taken_in_advance_is_waited_for() {
        let start = Timestamp(50_000);
        let mut bucket = Bucket::new(1000, start);
        bucket.take(1000, start);
        assert_eq!(bucket.resumes_at(), None, "all that was there");
        bucket.take(250, start);
        assert_eq!(bucket.resumes_at(), Some(start.plus_millis(250)));
        bucket.take(1, start.plus_millis(100));
        assert_eq!(bucket.resumes_at(), Some(start.plus_millis(251)));
        bucket.take(0, start.plus_millis(251));
        assert_eq!((bucket.resumes_at(), bucket.left()), (None, 0));
        bucket.take(usize::MAX, start.plus_secs(9));
        assert!(bucket.resumes_at().is_some_and(|at| at > start.plus_secs(1_000_000)), "nothing overflows");
        let mut largest = Bucket::new(u32::MAX, start);
        largest.take(usize::MAX, Timestamp(u64::MAX));
        assert!(largest.resumes_at().is_some());
    }
}
