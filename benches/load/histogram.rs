//! A histogram of durations with 64 steps to each doubling: an error below 2 % in a few kilobytes.

const STEPS: u64 = 64;

/// Counts of nanoseconds.
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Self { counts: vec![0; (STEPS * 48) as usize], total: 0 }
    }

    pub fn record(&mut self, nanos: u64) {
        if let Some(count) = self.counts.get_mut(slot(nanos)) {
            *count += 1;
            self.total += 1;
        }
    }

    /// The value that this share of all does not exceed, in nanoseconds; 0 where nothing was recorded.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (self.total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return value(slot as u64);
            }
        }
        0
    }
}

fn slot(nanos: u64) -> usize {
    if nanos < STEPS {
        return nanos as usize;
    }
    let doublings = u64::from(nanos.ilog2() - STEPS.ilog2());
    ((doublings + 1) * STEPS + (nanos >> doublings) - STEPS) as usize
}

/// The lower bound of a slot.
fn value(slot: u64) -> u64 {
    if slot < STEPS {
        return slot;
    }
    let doublings = slot / STEPS - 1;
    (slot % STEPS + STEPS) << doublings
}
