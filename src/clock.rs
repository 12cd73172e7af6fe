//! The one clock: the time of the broker. It begins with the wall clock, and goes on by a steady clock that also counts while the machine
//! is suspended; a restart goes on where the store says. So a step of the wall clock neither expires anything nor keeps it alive.
//!
//! Must not be read by the pure rooms: they are told the time.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

use crate::mqtt::Timestamp;

/// What the wall clock and the steady clock said when the process began, in milliseconds.
static START: OnceLock<(u64, u64)> = OnceLock::new();

/// How far the time of the broker is from the wall clock at the start plus what the steady clock has added, in milliseconds.
static SHIFT: AtomicI64 = AtomicI64::new(0);

/// What a simulation says; 0 where the clock runs by itself.
static SIMULATED: AtomicU64 = AtomicU64::new(0);

/// From now on it is `at`, in the whole process, until the next call.
#[doc(hidden)]
pub fn simulate(at: Timestamp) {
    SIMULATED.store(at.0, Ordering::Relaxed);
}

/// The process begins.
pub fn begin() {
    start();
}

/// It is `at` now, and the clock runs on from there. To be called before anybody counts on the time.
pub fn resume(at: Timestamp) {
    let unshifted = start().0.saturating_add(elapsed());
    SHIFT.store(at.0.wrapping_sub(unshifted).cast_signed(), Ordering::Relaxed);
}

/// The time now.
#[must_use]
pub fn now() -> Timestamp {
    let simulated = SIMULATED.load(Ordering::Relaxed);
    if simulated > 0 {
        return Timestamp(simulated);
    }
    let unshifted = start().0.saturating_add(elapsed());
    Timestamp(unshifted.saturating_add_signed(SHIFT.load(Ordering::Relaxed)))
}

/// What the wall clock says. Only to be compared with what it said before.
#[must_use]
pub fn wall() -> Timestamp {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(wall.as_millis()).unwrap_or_default())
}

/// The instant at which [`now`] will be `at`, if the machine is not suspended before.
#[must_use]
pub fn instant(at: Timestamp) -> Instant {
    Instant::now() + Duration::from_millis(at.millis_since(now()))
}

/// How long the process has run.
#[must_use]
pub fn uptime() -> Duration {
    Duration::from_millis(elapsed())
}

fn elapsed() -> u64 {
    steady().saturating_sub(start().1)
}

fn start() -> (u64, u64) {
    *START.get_or_init(|| (wall().0, steady()))
}

fn steady() -> u64 {
    let time = clock_gettime(STEADY);
    u64::try_from(time.tv_sec).unwrap_or_default() * 1_000 + u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000_000
}

/// Counts while the machine is suspended, too.
#[cfg(target_os = "linux")]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const STEADY: ClockId = ClockId::Monotonic;
