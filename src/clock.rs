//! The one clock: wall time at the start of the process, and from then on what a steady clock adds to it. So a step of the wall clock
//! neither expires anything nor keeps it alive.
//!
//! Must not be read by the pure rooms: they are told the time.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::mqtt::Timestamp;

static START: OnceLock<(Instant, u64)> = OnceLock::new();

/// What a simulation says; 0 where the clock runs by itself.
static SIMULATED: AtomicU64 = AtomicU64::new(0);

/// From now on it is `at`, in the whole process, until the next call.
#[doc(hidden)]
pub fn simulate(at: Timestamp) {
    SIMULATED.store(at.0, Ordering::Relaxed);
}

/// The time now.
#[must_use]
pub fn now() -> Timestamp {
    let simulated = SIMULATED.load(Ordering::Relaxed);
    if simulated > 0 {
        return Timestamp(simulated);
    }
    let (start, wall) = start();
    let elapsed = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Timestamp(wall.saturating_add(elapsed))
}

/// The instant at which [`now`] will be `at`.
#[must_use]
pub fn instant(at: Timestamp) -> Instant {
    let (start, wall) = start();
    start + Duration::from_millis(at.0.saturating_sub(wall))
}

/// How long the process has run.
#[must_use]
pub fn uptime() -> Duration {
    start().0.elapsed()
}

fn start() -> (Instant, u64) {
    *START.get_or_init(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), u64::try_from(wall.as_millis()).unwrap_or_default())
    })
}
