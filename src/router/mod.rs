//! Who wants this topic: subscriptions of sessions and of shared groups, in memory only.
//!
//! Must not know sessions, sockets, storage or authorization: a subscriber is a number.

mod subscribers;

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::mqtt::{QoS, TopicFilter, TopicName, TopicTrie, packet::SubscriptionOptions};
use subscribers::Subscribers;

/// Who may be sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The session of that id.
    Session(u64),
    /// The shared group of that id: one of its members [MQTT-4.8.2-3].
    Group(u64),
}

/// One subscription: whose it is, and its options.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    /// Whose it is.
    pub target: Target,
    /// Subscription Options.
    pub options: SubscriptionOptions,
    /// Subscription Identifier; 0 is none.
    pub subscription_id: u32,
}

/// What one target gets of one topic: the union of its subscriptions that match.
#[derive(Debug, Clone, PartialEq)]
pub struct Match {
    /// Who gets it.
    pub target: Target,
    /// The highest QoS of the subscriptions that match [MQTT-3.3.4-2].
    pub qos: QoS,
    /// One of them asks for Retain As Published.
    pub retain_as_published: bool,
    /// The identifiers of all of them [MQTT-3.3.4-3].
    pub subscription_ids: Vec<u32>,
}

/// All subscriptions.
#[derive(Debug, Default)]
pub struct Router {
    /// Under filters with wildcards.
    wild: TopicTrie<Subscribers>,
    /// Under filters that match one topic alone: they take a fraction of the memory here, and of the time.
    exact: HashMap<TopicFilter, Subscribers, foldhash::fast::RandomState>,
    subscriptions: usize,
    generations: Arc<Generations>,
}

impl Match {
    fn new(one: &Subscription) -> Self {
        let id = one.subscription_id;
        Self {
            target: one.target,
            qos: one.options.qos,
            retain_as_published: one.options.retain_as_published,
            subscription_ids: if id > 0 { vec![id] } else { Vec::new() },
        }
    }

    /// Takes in another subscription of the same target; always `true`.
    fn merge(&mut self, other: &Self) -> bool {
        if other.qos as u8 > self.qos as u8 {
            self.qos = other.qos;
        }
        self.retain_as_published |= other.retain_as_published;
        for id in &other.subscription_ids {
            if !self.subscription_ids.contains(id) {
                self.subscription_ids.push(*id);
            }
        }
        true
    }
}

impl Router {
    /// Adds `subscription` to `filter`, or replaces the one that the target has there [MQTT-3.8.4-3]. `true` where it is new.
    pub fn subscribe(&mut self, filter: &TopicFilter, subscription: Subscription) -> bool {
        let all = if filter.has_wildcards() {
            self.wild.get_or_insert_with(filter, Subscribers::new)
        } else {
            self.exact.entry(filter.clone()).or_insert_with(Subscribers::new)
        };
        let new = all.insert(subscription);
        self.subscriptions += usize::from(new);
        self.generations.changed(filter);
        new
    }

    /// Removes the subscription of `target` to `filter`. `true` where there was one.
    pub fn unsubscribe(&mut self, filter: &TopicFilter, target: Target) -> bool {
        let wild = filter.has_wildcards();
        let all = if wild { self.wild.get_mut(filter) } else { self.exact.get_mut(filter) };
        let Some(all) = all else { return false };
        let removed = all.remove(target);
        if all.is_empty() {
            if wild {
                self.wild.remove(filter);
            } else {
                self.exact.remove(filter);
                if self.exact.len() < self.exact.capacity() / 4 {
                    self.exact.shrink_to(self.exact.len() * 2);
                }
            }
        }
        self.subscriptions -= usize::from(removed);
        if removed {
            self.generations.changed(filter);
        }
        removed
    }

    /// What cached routes know of the topics that `filter` matches has changed, though no subscription has.
    pub fn touch(&mut self, filter: &TopicFilter) {
        self.generations.changed(filter);
    }

    /// Everybody who gets a message that `publisher` sends to `topic`, each once.
    #[must_use]
    pub fn route(&self, topic: &TopicName, publisher: u64) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        let mut filters = 0;
        let mut matched = |all: &Subscribers| {
            filters += 1;
            found.reserve(all.len());
            let heard = |one: &&Subscription| !(one.options.no_local && one.target == Target::Session(publisher));
            found.extend(all.blocks().flatten().filter(heard).map(Match::new));
        };
        if let Some(all) = self.exact.get(topic.as_str()) {
            matched(all);
        }
        self.wild.matches(topic, &mut matched);
        if filters > 1 {
            // Each filter's are in order, which this sort makes use of; the identifiers of one target stay in theirs.
            found.sort_by_key(|one| one.target);
            found.dedup_by(|next, first| first.target == next.target && first.merge(next));
        }
        found
    }

    /// How many subscriptions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.subscriptions
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.subscriptions == 0
    }

    /// Tells which parts of the topic space changed.
    #[must_use]
    pub fn generations(&self) -> Arc<Generations> {
        self.generations.clone()
    }
}

/// Counts the changes of each part of the topic space, so that a cached route is dropped only where something changed. Topics
/// belong to a part by their first level; a filter that begins with a wildcard belongs to all.
#[derive(Debug)]
pub struct Generations {
    parts: Vec<AtomicU64>,
    all: AtomicU64,
    hasher: foldhash::fast::FixedState,
}

impl Default for Generations {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| AtomicU64::new(0)).collect();
        Self { parts, all: AtomicU64::new(0), hasher: foldhash::fast::FixedState::default() }
    }
}

impl Generations {
    /// The part of the topic space that `topic` belongs to.
    #[must_use]
    pub fn part(&self, topic: &str) -> usize {
        let first = topic.split('/').next().unwrap_or_default();
        usize::try_from(self.hasher.hash_one(first)).unwrap_or(usize::MAX) % PARTS
    }

    /// Grows with each change that may concern `part`.
    #[must_use]
    pub fn of(&self, part: usize) -> u64 {
        let own = self.parts.get(part).map_or(0, |part| part.load(Ordering::Acquire));
        own + self.all.load(Ordering::Acquire)
    }

    fn changed(&self, filter: &TopicFilter) {
        let text = filter.as_str();
        let counter = if text.starts_with(['+', '#']) { Some(&self.all) } else { self.parts.get(self.part(text)) };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::AcqRel);
        }
    }
}

const PARTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::packet::RetainHandling;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).expect("a filter")
    }

    fn topic(text: &str) -> TopicName {
        TopicName::parse(text).expect("a topic")
    }

    fn qos(level: u8) -> QoS {
        [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(level)]
    }

    /// `(target, qos, no local, retain as published, id)`
    fn subscription((target, level, no_local, retain_as_published, subscription_id): Entry) -> Subscription {
        let options = SubscriptionOptions {
            qos: qos(level),
            no_local,
            retain_as_published,
            retain_handling: RetainHandling::Send,
        };
        Subscription { target, options, subscription_id }
    }

    type Entry = (Target, u8, bool, bool, u32);

    /// Who gets `name` from session 1, sorted: `(target, qos, retain as published, ids)`.
    #[track_caller]
    fn check(subscriptions: &[(&str, Entry)], name: &str, expected: &[(Target, u8, bool, &[u32])]) {
        let mut router = Router::default();
        for (text, entry) in subscriptions {
            router.subscribe(&filter(text), subscription(*entry));
        }
        let mut found = router.route(&topic(name), 1);
        found.sort_by_key(|one| one.target);
        for one in &mut found {
            one.subscription_ids.sort_unstable();
        }
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.target, one.qos as u8, one.retain_as_published, one.subscription_ids.as_slice()))
            .collect();
        assert_eq!(found, expected);
    }

    const A: Target = Target::Session(1);
    const B: Target = Target::Session(2);
    const G: Target = Target::Group(1);

    /// [MQTT-3.3.4-2] to [MQTT-3.3.4-4]: one copy for a client, with the highest QoS and every identifier.
    #[test]
    fn overlapping_subscriptions_are_one_match() {
        let all = [
            ("a/#", (A, 0, false, false, 7)),
            ("a/+", (A, 2, false, false, 3)),
            ("a/b", (A, 1, false, true, 7)),
            ("#", (A, 1, false, false, 0)),
            ("a/b", (B, 1, false, false, 0)),
            ("a/c", (B, 2, false, false, 9)),
        ];
        check(&all, "a/b", &[(A, 2, true, &[3, 7]), (B, 1, false, &[])]);
        check(&all, "a/c", &[(A, 2, false, &[3, 7]), (B, 2, false, &[9])]);
        check(&all, "x", &[(A, 1, false, &[])]);
        check(&all, "$SYS/x", &[]);
    }

    /// [MQTT-3.8.3-3]: each subscription for itself; another one that matches still delivers.
    #[test]
    fn no_local() {
        check(&[("a", (A, 1, true, false, 0)), ("a", (B, 1, true, false, 0))], "a", &[(B, 1, false, &[])]);
        check(&[("a", (A, 2, true, true, 5)), ("+", (A, 1, false, false, 6))], "a", &[(A, 1, false, &[6])]);
    }

    /// [MQTT-4.8.2-1], [MQTT-4.8.2-2]: a group is a target of its own, beside its members' own subscriptions.
    #[test]
    fn groups_are_targets_of_their_own() {
        let all = [
            ("a", (A, 0, false, false, 1)),
            ("a", (G, 2, false, true, 0)),
            ("+", (Target::Group(2), 1, false, false, 0)),
        ];
        check(&all, "a", &[(A, 0, false, &[1]), (G, 2, true, &[]), (Target::Group(2), 1, false, &[])]);
    }

    /// [MQTT-3.8.4-3], [MQTT-3.10.4-1], [MQTT-3.10.4-2]: a subscription to the same filter replaces the one before; leaving takes all away.
    #[test]
    fn subscribing_again_replaces() {
        let mut router = Router::default();
        let (a, wild) = (filter("a"), filter("+"));
        assert!(router.is_empty());
        assert!(router.subscribe(&a, subscription((A, 2, false, false, 1))));
        assert!(!router.subscribe(&a, subscription((A, 0, false, true, 2))));
        assert!(router.subscribe(&wild, subscription((A, 0, false, false, 3))));
        assert!(router.subscribe(&a, subscription((B, 1, false, false, 0))));
        assert_eq!(router.len(), 3);
        let found = router.route(&topic("a"), 9);
        let own = found.iter().find(|one| one.target == A).expect("a match");
        assert_eq!((own.qos, own.retain_as_published), (QoS::AtMostOnce, true));
        assert_eq!(own.subscription_ids, [2, 3]);
        assert!(!router.unsubscribe(&filter("b"), A));
        assert!(!router.unsubscribe(&wild, B));
        assert!(router.unsubscribe(&a, A));
        assert!(!router.unsubscribe(&a, A));
        assert_eq!((router.len(), router.route(&topic("a"), 9).len()), (2, 2));
        assert!(router.unsubscribe(&a, B));
        assert!(router.unsubscribe(&wild, A));
        assert!(router.is_empty() && router.route(&topic("a"), 9).is_empty());
    }

    /// A cached route is dropped by every change that may concern it, and by few others.
    #[test]
    fn generations_tell_what_changed() {
        let mut router = Router::default();
        let generations = router.generations();
        let of = |name: &str| generations.of(generations.part(name));
        let names = ["a/b", "a", "/a", "b/b", "$share"];
        for (text, concerns) in [
            ("a/b", &["a/b", "a"][..]),
            ("a/#", &["a/b", "a"]),
            ("a", &["a/b", "a"]),
            ("/a", &["/a"]),
            ("/#", &["/a"]),
            ("+/b", &names),
            ("#", &names),
        ] {
            let changes: [&dyn Fn(&mut Router); 4] = [
                &|router| _ = router.subscribe(&filter(text), subscription((A, 1, false, false, 0))),
                &|router| _ = router.subscribe(&filter(text), subscription((A, 2, false, false, 0))),
                &|router| router.touch(&filter(text)),
                &|router| _ = router.unsubscribe(&filter(text), A),
            ];
            for change in changes {
                let before = names.map(of);
                change(&mut router);
                for (name, before) in names.iter().zip(before) {
                    assert_eq!(of(name) > before, concerns.contains(name), "{text} and {name}");
                }
            }
            let before = names.map(of);
            router.unsubscribe(&filter(text), A);
            assert_eq!(names.map(of), before, "nothing changed");
        }
    }
}
