//! The time of the broker across restarts, and steps of the wall clock while it runs. A note in the store says what the two were at one
//! moment: how long the broker was down is how far the wall clock has come since. Must not read a clock: it is told.

use parking_lot::Mutex;

use crate::{
    mqtt::Timestamp,
    storage::{Lsn, Outcome, StoredTime},
};

use super::Broker;

/// The time at a start when the wall clock says `wall`. It never goes back; and a wall clock that has gone back since `note`, or further ahead
/// than `max_downtime_secs`, does not tell how long the broker was down: it goes on as if it had not been.
#[must_use]
pub fn at_start(note: StoredTime, wall: Timestamp, max_downtime_secs: u64) -> Timestamp {
    let down = wall.millis_since(note.wall);
    let (wall_before, wall_now) = (secs(note.wall), secs(wall));
    if note.wall.millis_since(wall) >= STEP_MILLIS {
        tracing::warn!(
            wall_before,
            wall_now,
            "the wall clock is behind what it was when the broker last ran: how long it was down is not known, and nothing expires by it"
        );
    } else if down > max_downtime_secs.saturating_mul(1_000) {
        tracing::warn!(
            wall_before,
            wall_now,
            "the wall clock is ahead of when the broker last ran by more than storage.max_downtime_secs, which is not believed: nothing \
             expires by it"
        );
    } else {
        return note.time.plus_millis(down);
    }
    note.time
}

/// Watches the wall clock, and keeps the note.
#[derive(Debug, Default)]
pub(super) struct TimeWatch(Mutex<Watch>);

#[derive(Debug, Default)]
struct Watch {
    seen: Option<StoredTime>,
    noted: Option<(Timestamp, Lsn)>,
}

impl Broker {
    /// To be called every second or so. A step of the wall clock is told, and noted at once; else a note follows what else is stored, once a
    /// minute.
    pub fn watch_time(&self, time: Timestamp, wall: Timestamp) {
        let mut watch = self.time_watch.0.lock();
        let seen = watch.seen.replace(StoredTime { time, wall });
        let expected = seen.map_or(wall, |seen| seen.wall.plus_millis(time.millis_since(seen.time)));
        let stepped = wall.0.abs_diff(expected.0) >= STEP_MILLIS;
        if stepped {
            tracing::warn!(
                wall_before = secs(expected),
                wall_now = secs(wall),
                "the wall clock was set: nothing expires, or lives, by it"
            );
        }
        let due = watch.noted.is_none_or(|(at, commit)| {
            let lost = self.store.outcome(commit) == Outcome::Failed;
            lost || time.millis_since(at) >= NOTE_EVERY_MILLIS && self.store.health().written > commit.0
        });
        let first = watch.noted.is_none();
        if stepped || due {
            let ((), commit) = self.store.write(|batch| {
                batch.put_time(StoredTime { time, wall });
                if stepped || first {
                    // Were it lost, the next start would take the step for the time that the broker was down, or go back before this start.
                    batch.require_durable();
                }
            });
            watch.noted = Some((time, commit));
        }
    }

    /// The broker stops at this moment.
    pub fn note_time(&self, time: Timestamp, wall: Timestamp) {
        self.store.write(|batch| batch.put_time(StoredTime { time, wall }));
    }
}

/// Seconds since 1970, for the log.
fn secs(time: Timestamp) -> u64 {
    time.0 / 1_000
}

/// A step of the wall clock by less is none: it is told by two readings that are not taken at one moment.
const STEP_MILLIS: u64 = 5_000;
const NOTE_EVERY_MILLIS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        auth::Auth,
        mqtt::PacketId,
        storage::{Config, Durability, MemoryEngine, Store},
    };

    #[test]
    fn how_long_the_broker_was_down_is_told_by_the_wall_clock_within_bounds() {
        const YEAR: u64 = 365 * 86_400;
        let note = StoredTime { time: Timestamp(5_000_000), wall: Timestamp(1_700_000_000_000) };
        let cases: [(i64, u64); 8] = [
            (0, 0),
            (1, 1),
            (3 * 7 * 86_400, 3 * 7 * 86_400),
            (YEAR as i64, YEAR),
            (YEAR as i64 + 1, 0),
            (50 * YEAR as i64, 0),
            (-1, 0),
            (-1_700_000_000, 0),
        ];
        for (ahead_secs, counted_secs) in cases {
            let wall = Timestamp(note.wall.0.saturating_add_signed(ahead_secs * 1_000));
            assert_eq!(at_start(note, wall, YEAR), note.time.plus_secs(counted_secs), "{ahead_secs} s");
        }
    }

    #[test]
    fn the_note_follows_what_is_stored_once_a_minute_and_a_step_at_once() {
        let config = Config { durability: Durability::Memory, ..Config::default() };
        let store = Store::with_engine(Arc::new(MemoryEngine::new()), &config).unwrap();
        let auth = Auth::load(&crate::auth::Config::default()).unwrap();
        let broker =
            Broker::new(crate::broker::Config::default(), crate::session::Limits::default(), Arc::new(store), auth);
        let noted = || broker.store.time().unwrap().map(|note| note.time.0 / 1_000);
        let store_something = || broker.store.write(|batch| batch.put_received(1, PacketId::MIN)).0;
        let watch = |secs: u64, ahead_secs: u64| {
            let time = Timestamp(secs * 1_000);
            broker.watch_time(time, time.plus_secs(ahead_secs));
        };
        watch(0, 0);
        assert_eq!(noted(), Some(0), "at the start");
        watch(100, 0);
        assert_eq!(noted(), Some(0), "nothing was stored since");
        store_something();
        watch(101, 0);
        assert_eq!(noted(), Some(101));
        store_something();
        watch(130, 1);
        assert_eq!(noted(), Some(101), "within a minute");
        watch(131, 1_000);
        assert_eq!(noted(), Some(131), "a step");
        watch(161, 1_000);
        assert_eq!(noted(), Some(131), "the same one");
    }
}
