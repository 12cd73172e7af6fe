//! How the values of one measurement are spread: all of them since the start, and the quantiles of the last minute or two.
//!
//! Must not know what is measured.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Values in buckets that grow with them: a quantile is at most a quarter above the true one.
#[derive(Debug, Default)]
pub struct Histogram(Mutex<State>);

/// What it tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many values there were since the start.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// The value that half of the recent ones do not exceed; 0 where there are none.
    pub p50: u64,
    /// The value that 99 of 100 recent ones do not exceed.
    pub p99: u64,
    /// The highest recent one.
    pub max: u64,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    sum: u64,
    current: Window,
    /// The minute before it.
    previous: Window,
    since: Option<Instant>,
}

#[derive(Debug)]
struct Window {
    buckets: [u32; BUCKETS],
    max: u64,
}

impl Histogram {
    /// Adds a value.
    pub fn record(&self, value: u64) {
        self.0.lock().record(value, Instant::now());
    }

    /// What it tells now.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.0.lock().summary(Instant::now())
    }
}

impl State {
    fn record(&mut self, value: u64, now: Instant) {
        self.advance(now);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.current.max = self.current.max.max(value);
        if let Some(bucket) = self.current.buckets.get_mut(bucket(value)) {
            *bucket = bucket.saturating_add(1);
        }
    }

    fn summary(&mut self, now: Instant) -> Summary {
        self.advance(now);
        let max = self.current.max.max(self.previous.max);
        Summary { count: self.count, sum: self.sum, p50: self.quantile(50, max), p99: self.quantile(99, max), max }
    }

    /// Forgets what is older than the window before the current one.
    fn advance(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let age = now.saturating_duration_since(since);
        if age < WINDOW {
            return;
        }
        let last = std::mem::take(&mut self.current);
        self.previous = if age < 2 * WINDOW { last } else { Window::default() };
        self.since = Some(now);
    }

    /// The upper end of the bucket in which the value at `percent` of all stands.
    fn quantile(&self, percent: u64, max: u64) -> u64 {
        let counts =
            || self.current.buckets.iter().zip(&self.previous.buckets).map(|(a, b)| u64::from(*a) + u64::from(*b));
        let total: u64 = counts().sum();
        let mut left = (total * percent).div_ceil(100);
        for (at, count) in counts().enumerate() {
            if count >= left {
                return last_of(at).min(max);
            }
            left -= count;
        }
        max
    }
}

impl Default for Window {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], max: 0 }
    }
}

/// Small values have a bucket each; from then on each power of two has [`STEPS`] of them.
fn bucket(value: u64) -> usize {
    let Some(octave) = value.checked_ilog2().and_then(|log| log.checked_sub(STEPS_LOG)) else {
        return usize::try_from(value).unwrap_or_default();
    };
    let within = (value >> octave) - STEPS;
    let at = u64::from(octave + 1) * STEPS + within;
    usize::try_from(at).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The highest value of that bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    match (bucket / STEPS).checked_sub(1) {
        None => bucket,
        Some(octave) => ((STEPS + bucket % STEPS + 1) << octave) - 1,
    }
}

const STEPS_LOG: u32 = 2;
const STEPS: u64 = 1 << STEPS_LOG;
/// Up to 2^41: microseconds of three weeks. What is higher counts as that.
const BUCKETS: usize = 160;
const WINDOW: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_a_bucket_whose_end_is_at_most_a_quarter_above_it() {
        let mut last = 0;
        for value in (0..5_000u64).chain((13..40).flat_map(|log| [(1 << log) - 1, 1 << log, (1 << log) + 1])) {
            let at = bucket(value);
            assert!(at >= last && at < BUCKETS, "{value}: {at} after {last}");
            assert!((value..=value + value / 4).contains(&last_of(at)), "{value}: up to {}", last_of(at));
            last = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_of_the_last_minutes_and_sums_of_all_time() {
        let mut state = State::default();
        let start = Instant::now();
        assert_eq!(state.summary(start), Summary::default());
        (1..=100).for_each(|value| state.record(value, start));
        let Summary { count, sum, p50, p99, max } = state.summary(start);
        assert_eq!((count, sum, max), (100, 5_050, 100));
        assert!((50..=62).contains(&p50) && (99..=100).contains(&p99), "{p50} {p99}");
        // A minute later they still count beside the new ones, two minutes after those no more.
        (0..100).for_each(|_| state.record(1_000, start + WINDOW));
        assert_eq!(state.summary(start + WINDOW).max, 1_000);
        assert!(state.summary(start + WINDOW).p50 <= 111);
        let Summary { count, p50, max, .. } = state.summary(start + 2 * WINDOW);
        assert_eq!((count, p50, max), (200, 1_000, 1_000));
        let Summary { count, sum, p99, max, .. } = state.summary(start + 4 * WINDOW);
        assert_eq!((count, sum, p99, max), (200, 105_050, 0, 0));
    }
}
