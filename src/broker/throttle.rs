//! Keeps lines of the log that others can cause at will from filling it. Must not know what they say.

use parking_lot::Mutex;

use crate::mqtt::Timestamp;

/// So many lines in a second of one kind, and how many were left out.
#[derive(Debug)]
pub struct Throttle {
    per_sec: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Timestamp,
    said: u32,
    left_out: u64,
}

impl Throttle {
    /// Lets `per_sec` lines pass in each second.
    #[must_use]
    pub const fn new(per_sec: u32) -> Self {
        Self { per_sec, state: Mutex::new(State { since: Timestamp(0), said: 0, left_out: 0 }) }
    }

    /// Whether a line may be written now: then how many were left out since the one before.
    pub fn pass(&self, now: Timestamp) -> Option<u64> {
        let mut state = self.state.lock();
        if now.millis_since(state.since) >= 1000 {
            (state.since, state.said) = (now, 0);
        }
        if state.said >= self.per_sec {
            state.left_out += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_pass_at_their_rate_and_the_rest_is_told_of() {
        let throttle = Throttle::new(2);
        let at = |millis: u64| Timestamp(1_000_000 + millis);
        let said: Vec<_> = [0, 1, 2, 999, 1000, 1001, 1002, 2500].map(|millis| throttle.pass(at(millis))).into();
        assert_eq!(said, [Some(0), Some(0), None, None, Some(2), Some(0), None, Some(1)]);
    }
}
