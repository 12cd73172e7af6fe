//! [`TopicMap`]: values by Topic Name, in the order of the topic tree, so that what a filter matches is found from any place on.
//!
//! Must not know what the values are. Every walk is a loop: a peer chooses the depth.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, btree_map},
    ops::{
        Bound::{Included, Unbounded},
        ControlFlow,
    },
};

use smallvec::SmallVec;

use super::{TopicFilter, TopicName};

/// A map whose order is that of the topic tree: each topic stands before all that is below it, and nothing else comes between.
///
/// A key is the topic with its slashes as NUL, which no topic holds [MQTT-4.7.3-2] and nothing sorts before. So all below a topic is one
/// range, and a walk along a filter passes over what does not match by whole ranges.
#[derive(Debug, Clone)]
pub struct TopicMap<V> {
    by_key: BTreeMap<Box<[u8]>, V>,
}

/// A place in the order of all topics: before all of them, or at one, whether that is in the map or not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place(Box<[u8]>);

/// Where a value stands.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a>(&'a [u8]);

type Bytes = SmallVec<[u8; 64]>;

impl<V> Default for TopicMap<V> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new() }
    }
}

impl<V> TopicMap<V> {
    /// How many values it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The value of `topic`.
    #[must_use]
    pub fn get(&self, topic: &TopicName) -> Option<&V> {
        self.by_key.get(&*key_of(topic))
    }

    /// As [`Self::get`].
    pub fn get_mut(&mut self, topic: &TopicName) -> Option<&mut V> {
        self.by_key.get_mut(&*key_of(topic))
    }

    /// Sets the value of `topic`; gives the one before.
    pub fn insert(&mut self, topic: &TopicName, value: V) -> Option<V> {
        let key = key_of(topic);
        match self.by_key.get_mut(&*key) {
            Some(known) => Some(std::mem::replace(known, value)),
            None => self.by_key.insert(key.as_slice().into(), value),
        }
    }

    /// Removes the value of `topic`.
    pub fn remove(&mut self, topic: &TopicName) -> Option<V> {
        self.by_key.remove(&*key_of(topic))
    }

    /// All values from `from` on, in order.
    pub fn iter_from<'a>(&'a self, from: &Place) -> impl Iterator<Item = (Key<'a>, &'a V)> + use<'a, V> {
        self.range(&from.0).map(|(key, value)| (Key(key), value))
    }

    /// Gives `each` what `filter` matches from `from` on, in order, until it breaks, or `steps` topics were looked at: those that match, and
    /// those that lead to the next one. Where the rest begins; none at the end.
    pub fn walk<'a>(
        &'a self,
        filter: &TopicFilter,
        from: &Place,
        steps: usize,
        mut each: impl FnMut(Key<'a>, &'a V) -> ControlFlow<()>,
    ) -> Option<Place> {
        let levels: SmallVec<[&str; 16]> = filter.levels().collect();
        let mut rest = self.range(&from.0);
        for _ in 0..steps {
            let (key, value) = rest.next()?;
            match look(&levels, key) {
                Look::Matches if each(Key(key), value).is_break() => break,
                Look::Matches => {}
                Look::PassOver(to) => rest = self.range(&to),
                Look::End => return None,
            }
        }
        rest.next().map(|(key, _)| Place(key.clone()))
    }

    fn range(&self, from: &[u8]) -> btree_map::Range<'_, Box<[u8]>, V> {
        self.by_key.range::<[u8], _>((Included(from), Unbounded))
    }
}

impl Place {
    /// At `topic`.
    #[must_use]
    pub fn at(topic: &TopicName) -> Self {
        Self(key_of(topic).as_slice().into())
    }

    /// The place whose text this is: a topic, or none for the place before all.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(keyed(text).as_slice().into())
    }

    /// Its text, for [`Place::from_text`].
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&Key(&self.0).with_slashes()).into_owned()
    }
}

impl Key<'_> {
    /// The topic.
    #[must_use]
    pub fn topic(self) -> Option<TopicName> {
        TopicName::parse(std::str::from_utf8(&self.with_slashes()).ok()?).ok()
    }

    fn with_slashes(self) -> Bytes {
        self.0.iter().map(|byte| if *byte == SEPARATOR { b'/' } else { *byte }).collect()
    }
}

impl From<Key<'_>> for Place {
    fn from(key: Key<'_>) -> Self {
        Self(key.0.into())
    }
}

/// What a filter says of a key.
enum Look {
    Matches,
    /// It does not match, and neither does anything before that place.
    PassOver(Bytes),
    /// Neither it nor anything after it matches.
    End,
}

fn look(levels: &[&str], key: &[u8]) -> Look {
    let lead = levels.first().copied().unwrap_or_default();
    if matches!(lead, "+" | "#") && key.first() == Some(&b'$') {
        return Look::PassOver(Bytes::from_slice(&[b'$' + 1]));
    }
    let upto = |end: usize, then: &[u8]| {
        let mut place = Bytes::from_slice(key.get(..end).unwrap_or(key));
        place.extend_from_slice(then);
        Look::PassOver(place)
    };
    let mut start = 0;
    // Where the last level ends that `+` stands for.
    let mut plus = None;
    for &level in levels {
        if level == "#" {
            return Look::Matches; // also the parent
        }
        let Some(rest) = key.get(start..) else {
            // The topic ends before the filter does: what is below it comes next.
            let below = if level == "+" { "" } else { level };
            return upto(key.len(), &[&[SEPARATOR], below.as_bytes()].concat());
        };
        let name = rest.split(|byte| *byte == SEPARATOR).next().unwrap_or_default();
        let end = start + name.len();
        match name.cmp(level.as_bytes()) {
            _ if level == "+" => plus = Some(end),
            Ordering::Less => return upto(start, level.as_bytes()),
            Ordering::Equal => {}
            Ordering::Greater => return plus.map_or(Look::End, |end| upto(end, AFTER_ALL_BELOW)),
        }
        start = end + 1;
    }
    // Else the topic is deeper than the filter.
    if start > key.len() { Look::Matches } else { upto(start - 1, AFTER_ALL_BELOW) }
}

fn key_of(topic: &TopicName) -> Bytes {
    keyed(topic.as_str())
}

fn keyed(topic: &str) -> Bytes {
    topic.bytes().map(|byte| if byte == b'/' { SEPARATOR } else { byte }).collect()
}

/// Between the levels of a key.
const SEPARATOR: u8 = 0;
/// What stands behind a topic and all that is below it.
const AFTER_ALL_BELOW: &[u8] = &[SEPARATOR + 1];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map<'a>(topics: impl IntoIterator<Item = &'a str>) -> TopicMap<String> {
        let mut map = TopicMap::default();
        for topic in topics {
            map.insert(&TopicName::parse(topic).unwrap(), topic.to_owned());
        }
        map
    }

    /// All that `filter` matches, found with so many steps at a time, and how many walks that took.
    fn found(map: &TopicMap<String>, filter: &TopicFilter, steps: usize, at_once: usize) -> (Vec<String>, usize) {
        let (mut found, mut walks, mut from) = (Vec::new(), 0, Some(Place::default()));
        while let Some(place) = from {
            let mut count = 0;
            from = map.walk(filter, &place, steps, |key, topic| {
                assert_eq!(key.topic().unwrap().as_str(), topic);
                found.push(topic.clone());
                count += 1;
                if count == at_once { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            walks += 1;
        }
        (found, walks)
    }

    fn level() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["", "a", "aa", "b", "a b", "a!", "$", "$a", "\u{1}", "ü", "z"])
    }

    fn topic() -> impl Strategy<Value = String> {
        prop::collection::vec(level(), 1..5)
            .prop_map(|levels| levels.join("/"))
            .prop_filter("none", |topic| !topic.is_empty())
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop_oneof![3 => level(), 2 => Just("+")];
        (prop::collection::vec(level, 0..5), any::<bool>()).prop_filter_map("none", |(mut levels, all_below)| {
            levels.extend(all_below.then_some("#"));
            Some(levels.join("/")).filter(|filter| !filter.is_empty())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_walk_finds_what_matches_and_nothing_else(
            topics in prop::collection::btree_set(topic(), 0..40),
            filter in filter(),
            steps in 1..6usize,
            at_once in 1..4usize,
        ) {
            let map = map(topics.iter().map(String::as_str));
            let filter = TopicFilter::parse(&filter).unwrap();
            let (mut found, _) = found(&map, &filter, steps, at_once);
            let mut matching: Vec<_> =
                topics.into_iter().filter(|topic| filter.matches(&TopicName::parse(topic).unwrap())).collect();
            // The order of the tree is that of the levels.
            matching.sort_by(|one, other| one.split('/').cmp(other.split('/')));
            prop_assert_eq!(&found, &matching);
            found.dedup();
            prop_assert_eq!(found.len(), matching.len());
        }
    }

    /// What does not match is passed over, not looked at.
    #[test]
    fn a_walk_skips() {
        let topics: Vec<_> = (0..100).flat_map(|a| (0..100).map(move |b| format!("t/{a:02}/{b:02}"))).collect();
        let map = map(topics.iter().map(String::as_str));
        for (filter, expected, most) in [
            ("t/50/50", 1, 4),
            ("t/+/50", 100, 400),
            ("t/+", 0, 300),
            ("+/50/#", 100, 110),
            ("t/+/+/+", 0, 20_100),
            ("u/#", 0, 2),
            ("#", 10_000, 10_001),
        ] {
            let filter = TopicFilter::parse(filter).unwrap();
            let (found, steps) = found(&map, &filter, 1, 1);
            assert_eq!(found.len(), expected, "{filter}");
            assert!(steps <= most, "{filter}: {steps}");
        }
    }

    #[test]
    fn a_place_is_where_it_was() {
        let map = map(["a", "a/b", "a!", "b"]);
        for topic in ["a", "a/b", "a/a", "a!"] {
            let place = Place::at(&TopicName::parse(topic).unwrap());
            assert_eq!((place.text().as_str(), Place::from_text(topic)), (topic, place.clone()));
            let first = map.iter_from(&place).next().map(|(_, topic)| topic.as_str());
            assert_eq!(first, Some(if topic == "a/a" { "a/b" } else { topic }));
        }
        assert_eq!(map.iter_from(&Place::default()).count(), 4);
    }
}
