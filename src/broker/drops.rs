//! What queues drop: counted by session and reason, said in the log, and told of the sessions that drop most.
//!
//! Must not know why a message is dropped, nor who reads of it.

use std::{cmp::Reverse, collections::HashSet, sync::Arc};

use parking_lot::Mutex;

use crate::{
    metrics::DropReason,
    mqtt::{Shown, Timestamp},
};

use super::Broker;

/// What one session's queue has dropped, by reason.
#[derive(Debug, Default)]
pub(super) struct Drops {
    by_reason: Vec<(DropReason, u64)>,
    /// How many were dropped when it was last said, and when that was.
    told: u64,
    told_at: Timestamp,
    is_due: bool,
}

/// The sessions whose queues drop messages: nobody looks at all others to find them.
#[derive(Debug, Default)]
pub(super) struct Dropping(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    all: HashSet<u64>,
    /// Those who have not said so yet.
    untold: Vec<u64>,
}

/// What a session has dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Its Client Identifier.
    pub client_id: Arc<str>,
    /// How many messages, for each reason that there was.
    pub by_reason: Vec<(DropReason, u64)>,
}

impl Drops {
    /// Counts `more`. `true` where that is to be told, and nobody knows yet.
    pub(super) fn count(&mut self, reason: DropReason, more: u64) -> bool {
        match self.by_reason.iter_mut().find(|(of, _)| *of == reason) {
            Some((_, count)) => *count += more,
            None => self.by_reason.push((reason, more)),
        }
        is_news(reason) && !std::mem::replace(&mut self.is_due, true)
    }

    pub(super) fn by_reason(&self) -> Vec<(DropReason, u64)> {
        self.by_reason.clone()
    }

    /// How many are news.
    fn news(&self) -> u64 {
        self.by_reason.iter().filter(|(reason, _)| is_news(*reason)).map(|(_, count)| count).sum()
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

/// What a session misses while its client is away, since it is not kept, is none.
fn is_news(reason: DropReason) -> bool {
    reason != DropReason::NotPersistent
}

impl Dropping {
    /// `session` has dropped something that is to be told.
    pub(super) fn has_untold(&self, session: u64) {
        let mut known = self.0.lock();
        known.all.insert(session);
        known.untold.push(session);
    }

    /// The session is no more.
    pub(super) fn forget(&self, session: u64) {
        self.0.lock().all.remove(&session);
    }

    fn all(&self) -> Vec<u64> {
        self.0.lock().all.iter().copied().collect()
    }
}

impl Broker {
    /// Says in the log which sessions dropped messages: each at most once a minute.
    pub(super) fn tell_drops(&self, now: Timestamp) {
        let sessions = std::mem::take(&mut self.queues.dropping.0.lock().untold);
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
        self.queues.dropping.0.lock().untold.extend(later);
    }

    /// The sessions that have dropped most, at most `count`; those that have only missed what is not kept while their clients were away
    /// are left out. Costs nothing for sessions that drop nothing.
    #[must_use]
    pub fn most_drops(&self, count: usize) -> Vec<Dropped> {
        let receiver = |session| self.receivers.get(&session).map(|receiver| receiver.clone());
        let news = |session| Some((Reverse(receiver(session)?.with_drops(|drops| drops.news())), session));
        let most = least(self.queues.dropping.all().into_iter().filter_map(news).collect(), count);
        let dropped = |(_, session)| {
            let receiver = receiver(session)?;
            Some(Dropped { client_id: receiver.client_id.clone(), by_reason: receiver.dropped() })
        };
        most.into_iter().filter_map(dropped).collect()
    }
}

/// The `count` least of `all`, in order.
fn least<T: Ord>(mut all: Vec<T>, count: usize) -> Vec<T> {
    if count < all.len() {
        all.select_nth_unstable(count);
        all.truncate(count);
    }
    all.sort_unstable();
    all
}

const TOLD_EVERY_MILLIS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_told_once_a_minute_and_none_is_forgotten() {
        let mut drops = Drops::default();
        let at = |secs: u64| Timestamp(1_000_000_000).plus_secs(secs);
        assert!(!drops.count(DropReason::NotPersistent, 5), "no news");
        assert_eq!(drops.news(), 0);
        assert!(drops.count(DropReason::QueueFull, 1));
        assert!(!drops.count(DropReason::Expired, 1), "it is known");
        assert_eq!(drops.tell(at(0)), Some(7));
        assert!(drops.count(DropReason::QueueFull, 1));
        assert_eq!(drops.tell(at(1)), None);
        assert!(!drops.count(DropReason::QueueFull, 3));
        assert_eq!(drops.tell(at(60)), Some(4));
        let all = [(DropReason::NotPersistent, 5), (DropReason::QueueFull, 5), (DropReason::Expired, 1)];
        assert_eq!((drops.by_reason(), drops.news()), (all.to_vec(), 6));
    }

    #[test]
    fn the_least_in_order() {
        for count in 0..8 {
            let expected: Vec<u32> = (0..6).take(count).collect();
            assert_eq!(least(vec![3, 1, 5, 0, 4, 2], count), expected);
        }
    }
}
