//! What queues drop: counted by session, or shared group, and by reason, said in the log, and told of those that drop most.
//!
//! Must not know why a message is dropped, nor who reads of it.

use std::{cmp::Reverse, collections::HashSet, sync::Arc};

use parking_lot::Mutex;

use crate::{
    metrics::DropReason,
    mqtt::{Shown, Timestamp},
};

use super::{Broker, Group, Receiver};

/// What one queue has dropped, by reason.
#[derive(Debug, Default)]
pub(super) struct Drops {
    by_reason: Vec<(DropReason, u64)>,
    /// How many were dropped when it was last said, and when that was.
    told: u64,
    told_at: Timestamp,
    is_due: bool,
}

/// The sessions and groups whose queues drop messages: nobody looks at all others to find them.
#[derive(Debug, Default)]
pub(super) struct Dropping(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    all: HashSet<u64>,
    /// Those who have not said so yet.
    untold: Vec<u64>,
}

/// What a session or a shared group has dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Its Client Identifier, or `$share/{name}/{filter}`.
    pub name: String,
    /// How many messages, for each reason that there was.
    pub by_reason: Vec<(DropReason, u64)>,
}

/// Those that have dropped most, most first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MostDrops {
    /// Sessions.
    pub sessions: Vec<Dropped>,
    /// Shared groups.
    pub groups: Vec<Dropped>,
}

enum Dropper {
    Session(Arc<Receiver>),
    Group(Arc<Group>),
}

impl Dropper {
    fn with_drops<R>(&self, look: impl FnOnce(&mut Drops) -> R) -> R {
        match self {
            Self::Session(receiver) => receiver.with_drops(look),
            Self::Group(group) => group.with_drops(look),
        }
    }

    fn dropped(&self) -> Dropped {
        let name = match self {
            Self::Session(receiver) => receiver.client_id.to_string(),
            Self::Group(group) => group.name(),
        };
        Dropped { name, by_reason: self.with_drops(|drops| drops.by_reason.clone()) }
    }
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

/// What is missed since nobody was there for it, and it is not kept, is none.
fn is_news(reason: DropReason) -> bool {
    reason != DropReason::NotPersistent
}

impl Dropping {
    /// A session or group has dropped something that is to be told.
    pub(super) fn has_untold(&self, id: u64) {
        let mut known = self.0.lock();
        known.all.insert(id);
        known.untold.push(id);
    }

    /// It is no more.
    pub(super) fn forget(&self, id: u64) {
        self.0.lock().all.remove(&id);
    }

    fn all(&self) -> Vec<u64> {
        self.0.lock().all.iter().copied().collect()
    }
}

impl Broker {
    /// Says in the log which sessions and groups dropped messages: each at most once a minute.
    pub(super) fn tell_drops(&self, now: Timestamp) {
        let untold = std::mem::take(&mut self.queues.dropping.0.lock().untold);
        let mut later = Vec::new();
        for id in untold {
            let Some(dropper) = self.dropper(id) else { continue };
            let Some(count) = dropper.with_drops(|drops| drops.tell(now)) else {
                later.push(id);
                continue;
            };
            let Dropped { name, by_reason } = dropper.dropped();
            let all: Vec<_> = by_reason.iter().map(|(reason, count)| format!("{} {count}", reason.counter())).collect();
            let (name, all) = (Shown(&name), all.join(", "));
            match dropper {
                Dropper::Session(_) => tracing::warn!(client = %name, dropped = count, all, "messages were dropped"),
                Dropper::Group(_) => tracing::warn!(group = %name, dropped = count, all, "messages were dropped"),
            }
        }
        self.queues.dropping.0.lock().untold.extend(later);
    }

    /// The sessions and the groups that have dropped most, at most `count` of each; those that have only missed what is not kept while
    /// nobody was there for it are left out. Costs nothing for those that drop nothing.
    #[must_use]
    pub fn most_drops(&self, count: usize) -> MostDrops {
        let (mut sessions, mut groups) = (Vec::new(), Vec::new());
        for id in self.queues.dropping.all() {
            let Some(dropper) = self.dropper(id) else { continue };
            let news = dropper.with_drops(|drops| drops.news());
            match dropper {
                Dropper::Session(_) => sessions.push((Reverse(news), id)),
                Dropper::Group(_) => groups.push((Reverse(news), id)),
            }
        }
        let dropped = |(_, id)| Some(self.dropper(id)?.dropped());
        let most = |all| least(all, count).into_iter().filter_map(dropped).collect();
        MostDrops { sessions: most(sessions), groups: most(groups) }
    }

    fn dropper(&self, id: u64) -> Option<Dropper> {
        let session = self.receivers.get(&id).map(|receiver| Dropper::Session(receiver.clone()));
        session.or_else(|| self.groups.by_id(id).map(Dropper::Group))
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
        assert_eq!((drops.by_reason.as_slice(), drops.news()), (&all[..], 6));
    }

    #[test]
    fn the_least_in_order() {
        for count in 0..8 {
            let expected: Vec<u32> = (0..6).take(count).collect();
            assert_eq!(least(vec![3, 1, 5, 0, 4, 2], count), expected);
        }
    }
}
