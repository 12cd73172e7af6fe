//! Topic Aliases towards the client (3.3.2.3.4): the topics that it is sent most often get one.
//!
//! A topic is given an alias at its first message, while there are free ones; later it must come again, and be seen more often than one that
//! has an alias. All counts are halved after a while, so that what was once busy makes room. Must not know what is sent, nor whether it was.

use std::{collections::HashMap, hash::BuildHasher, num::NonZeroU16};

use crate::mqtt::TopicName;

/// The aliases of one connection [MQTT-3.3.2-7].
#[derive(Debug)]
pub(super) struct Aliases {
    maximum: usize,
    by_topic: HashMap<TopicName, usize, foldhash::fast::RandomState>,
    /// Alias n stands at n - 1.
    used: Vec<Used>,
    /// How often topics without an alias came lately, by hash: two places for each, and the lower counts.
    seen: Vec<u8>,
    /// The alias that a topic without one is compared with next.
    hand: usize,
    /// Messages since all counts were halved.
    counted: usize,
}

#[derive(Debug)]
struct Used {
    topic: TopicName,
    times: u8,
}

/// How a topic is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alias {
    /// By name.
    None,
    /// By this alias alone.
    Known(NonZeroU16),
    /// By name, with this alias; [`Aliases::set`] once the packet is on its way.
    New(NonZeroU16),
}

impl Aliases {
    /// For a client that takes aliases up to `maximum`; none where that is 0 [MQTT-3.1.2-26], [MQTT-3.1.2-27].
    pub(super) fn new(maximum: u16) -> Option<Box<Self>> {
        (maximum > 0).then(|| {
            Box::new(Self {
                maximum: usize::from(maximum),
                by_topic: HashMap::default(),
                used: Vec::new(),
                seen: vec![0; SEEN_MIN],
                hand: 0,
                counted: 0,
            })
        })
    }

    /// How a message to `topic` is to be sent; it counts as one.
    pub(super) fn of(&mut self, topic: &TopicName) -> Alias {
        // What the property takes is not more than the name.
        if !(TOPIC_MIN..=TOPIC_MAX).contains(&topic.as_str().len()) {
            return Alias::None;
        }
        self.age();
        if let Some(&at) = self.by_topic.get(topic) {
            if let Some(used) = self.used.get_mut(at) {
                used.times = used.times.saturating_add(1);
            }
            return number(at).map_or(Alias::None, Alias::Known);
        }
        let times = self.count(topic);
        let free = self.used.len();
        if free < self.maximum {
            return number(free).map_or(Alias::None, Alias::New);
        }
        if times < 2 {
            return Alias::None;
        }
        let at = self.hand;
        self.hand = (at + 1) % self.maximum;
        match self.used.get(at) {
            Some(used) if times > used.times => number(at).map_or(Alias::None, Alias::New),
            _ => Alias::None,
        }
    }

    /// The client was told that `alias` stands for `topic` from now on.
    pub(super) fn set(&mut self, alias: NonZeroU16, topic: &TopicName) {
        let at = usize::from(alias.get()) - 1;
        let used = Used { topic: topic.clone(), times: self.times(topic) };
        match self.used.get_mut(at) {
            Some(place) => {
                let before = std::mem::replace(place, used);
                self.by_topic.remove(&before.topic);
            }
            None => self.used.push(used),
        }
        self.by_topic.insert(topic.clone(), at);
        if self.used.len() * SEEN_FOR_EACH > self.seen.len() && self.seen.len() < SEEN_MAX {
            // Each place becomes two, and both go on from its count.
            self.seen.extend_from_within(..);
        }
    }

    /// Halves all counts now and then.
    fn age(&mut self) {
        self.counted += 1;
        if self.counted > self.seen.len() / 2 {
            self.counted = 0;
            self.used.iter_mut().for_each(|used| used.times /= 2);
            self.seen.iter_mut().for_each(|times| *times /= 2);
        }
    }

    /// Counts `topic`; gives how often it came lately, perhaps too often where others share both of its places.
    fn count(&mut self, topic: &TopicName) -> u8 {
        let times = self.times(topic).saturating_add(1);
        for place in self.places(topic) {
            if let Some(seen) = self.seen.get_mut(place) {
                *seen = times.max(*seen);
            }
        }
        times
    }

    fn times(&self, topic: &TopicName) -> u8 {
        self.places(topic).iter().filter_map(|place| self.seen.get(*place)).min().copied().unwrap_or_default()
    }

    fn places(&self, topic: &TopicName) -> [usize; 2] {
        let hash = self.by_topic.hasher().hash_one(topic);
        // The length is a power of two.
        [hash, hash >> 32]
            .map(|half| usize::try_from(half & u64::from(u32::MAX)).unwrap_or_default() & (self.seen.len() - 1))
    }
}

fn number(at: usize) -> Option<NonZeroU16> {
    NonZeroU16::new(u16::try_from(at + 1).ok()?)
}

/// An alias costs three bytes, and perhaps one more of the Property Length.
const TOPIC_MIN: usize = 5;
/// Longer topics get none: this bounds what one client's aliases hold in memory.
const TOPIC_MAX: usize = 1024;
/// Places that count topics without an alias, for each alias in use.
const SEEN_FOR_EACH: usize = 16;
/// Powers of two.
const SEEN_MIN: usize = 64;
const SEEN_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(text: &str) -> TopicName {
        TopicName::parse(text).expect("a topic")
    }

    fn aliases(maximum: u16) -> Box<Aliases> {
        Aliases::new(maximum).expect("more than none")
    }

    /// What is sent arrives.
    fn send(aliases: &mut Aliases, name: &TopicName) -> Alias {
        let alias = aliases.of(name);
        if let Alias::New(number) = alias {
            aliases.set(number, name);
        }
        alias
    }

    /// How many of a thousand messages are sent by alias alone.
    fn known_of_1000(aliases: &mut Aliases, mut next: impl FnMut() -> TopicName) -> usize {
        (0..1000).filter(|_| matches!(send(aliases, &next()), Alias::Known(_))).count()
    }

    /// xorshift64.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn a_topic_gets_a_free_alias_at_once() {
        let mut aliases = aliases(2);
        let [one, two] = [1, 2].map(|n| NonZeroU16::new(n).expect("not zero"));
        let (a, b) = (topic("fleet/a"), topic("fleet/b"));
        let said = [&a, &a, &a, &b, &b, &a, &b].map(|name| send(&mut aliases, name));
        let expected = [
            Alias::New(one),
            Alias::Known(one),
            Alias::Known(one),
            Alias::New(two),
            Alias::Known(two),
            Alias::Known(one),
            Alias::Known(two),
        ];
        assert_eq!(said, expected);
        for name in ["t/10".to_owned(), "x".repeat(TOPIC_MAX + 1)] {
            let name = topic(&name);
            assert_eq!([(); 9].map(|()| send(&mut aliases, &name)), [Alias::None; 9], "not worth one");
        }
        assert!(Aliases::new(0).is_none());
    }

    /// An alias that was offered and not sent stands for nothing.
    #[test]
    fn an_alias_that_was_not_sent_is_not_used() {
        let mut aliases = aliases(1);
        let name = topic("fleet/a");
        for _ in 0..5 {
            assert_eq!(aliases.of(&name), Alias::New(NonZeroU16::MIN));
        }
        aliases.set(NonZeroU16::MIN, &name);
        assert_eq!(aliases.of(&name), Alias::Known(NonZeroU16::MIN));
    }

    /// Busy topics keep their aliases among any number of topics that come once; when others become busy, those get them.
    #[test]
    fn the_most_used_topics_keep_their_aliases() {
        for maximum in [1_u16, 5, 64] {
            let mut aliases = aliases(maximum);
            let mut state = 0x9E37_79B9_7F4A_7C15;
            let mut once = 0_u64;
            for busy in ["old", "new", "newest"] {
                // Half of the messages are of as many busy topics as there are aliases, half of topics that never come again.
                let mut next = || {
                    let n = random(&mut state);
                    if n.is_multiple_of(2) {
                        once += 1;
                        return topic(&format!("once/{once}"));
                    }
                    topic(&format!("{busy}/{}", (n >> 1) % u64::from(maximum)))
                };
                for _ in 0..20 {
                    known_of_1000(&mut aliases, &mut next);
                }
                let known = known_of_1000(&mut aliases, &mut next);
                assert!(known > 400, "{known} of about 500 by alias, with {maximum} aliases and {busy} topics");
            }
        }
    }

    /// Few aliases and many topics of falling use: the aliases go to the head of the list.
    #[test]
    fn skewed_traffic_is_sent_by_alias() {
        let mut aliases = aliases(16);
        let topics: Vec<_> = (0..1000).map(|n| topic(&format!("fleet/{n}"))).collect();
        let mut state = 88_172_645_463_325_252;
        // Topic n comes about as often as 1/n: the first 16 of 1,000 are 45 % of all.
        let mut next = || {
            let unit = (random(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
            topics[(1000_f64.powf(unit) as usize).min(999)].clone()
        };
        for _ in 0..10 {
            known_of_1000(&mut aliases, &mut next);
        }
        let known: usize = (0..10).map(|_| known_of_1000(&mut aliases, &mut next)).sum();
        assert!(known > 3000, "{known} of 10,000 by alias, at best about 4,000");
    }

    /// Case D78: what one client's aliases take is bounded, whatever is sent.
    #[test]
    fn memory_is_bounded() {
        let mut aliases = aliases(u16::MAX);
        for n in 0..300_000_u32 {
            send(&mut aliases, &topic(&format!("fleet/{}", n / 2)));
        }
        assert_eq!(aliases.used.len(), aliases.by_topic.len());
        assert!(aliases.used.len() <= usize::from(u16::MAX) && aliases.seen.len() <= SEEN_MAX);
        let few = super::Aliases::new(u16::MAX).expect("more than none");
        assert_eq!((few.seen.len(), few.used.capacity(), few.by_topic.capacity()), (SEEN_MIN, 0, 0));
    }
}
