//! [`TopicTrie`]: values under Topic Filters or Topic Names, found in both directions.
//!
//! Must not know what the values are. Every walk is a loop with its stack on the heap, also when the trie is dropped:
//! a peer chooses the depth.

use std::{collections::HashMap, fmt, mem, slice, str::Split};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{TopicFilter, TopicName};

/// A map from topics, split into levels, to values.
///
/// The key of a value is a Topic Filter (find those that match a topic: [`Self::matches`]) or a Topic Name (find those that a
/// filter matches: [`Self::matching`]). The cost of a search is bounded by what is stored along the searched levels.
pub struct TopicTrie<V> {
    root: Node<V>,
    len: usize,
}

impl<V> TopicTrie<V> {
    /// An empty one; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { root: Node::EMPTY, len: 0 }
    }

    /// How many values it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value under `filter`, after inserting `value()` where there is none.
    pub fn get_or_insert_with(&mut self, filter: &TopicFilter, value: impl FnOnce() -> V) -> &mut V {
        let slot = &mut self.root.descend(filter.levels()).value;
        if slot.is_none() {
            self.len += 1;
        }
        slot.get_or_insert_with(value)
    }

    /// The value under exactly `filter`.
    #[must_use]
    pub fn get(&self, filter: &TopicFilter) -> Option<&V> {
        self.root.find(filter.levels())?.value.as_ref()
    }

    /// As [`Self::get`].
    pub fn get_mut(&mut self, filter: &TopicFilter) -> Option<&mut V> {
        self.root.find_mut(filter.levels())?.value.as_mut()
    }

    /// Takes out the value under exactly `filter`, and gives back the memory that only it needed.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<V> {
        self.take(filter.levels())
    }

    /// Puts `value` under `topic`; the value that it replaces.
    pub fn insert_topic(&mut self, topic: &TopicName, value: V) -> Option<V> {
        let old = self.root.descend(topic.levels()).value.replace(value);
        self.len += usize::from(old.is_none());
        old
    }

    /// The value under exactly `topic`.
    #[must_use]
    pub fn get_topic(&self, topic: &TopicName) -> Option<&V> {
        self.root.find(topic.levels())?.value.as_ref()
    }

    /// As [`Self::remove`].
    pub fn remove_topic(&mut self, topic: &TopicName) -> Option<V> {
        self.take(topic.levels())
    }

    /// Calls `each` with the value of every Topic Filter that matches `topic` [MQTT-4.7.2-1], in no order.
    pub fn matches(&self, topic: &TopicName, each: &mut impl FnMut(&V)) {
        let mut wild = !topic.is_reserved(); // whether wildcards count at this level
        let mut waiting = Vec::new();
        let mut next = Some((&self.root, Some(topic.as_str())));
        while let Some((node, rest)) = next {
            next = None;
            if let (Some(value), None) = (&node.value, rest) {
                each(value);
            }
            if let Some(below) = &node.below {
                if let (true, Some(value)) = (wild, &below.hash.value) {
                    each(value);
                }
                if let Some(rest) = rest {
                    let (level, rest) = first_level(rest);
                    if wild && !below.plus.is_empty() {
                        waiting.push((&below.plus, rest));
                    }
                    next = below.named.get(level).map(|child| (child, rest));
                }
            }
            wild = true;
            next = next.or_else(|| waiting.pop());
        }
    }

    /// Calls `each` with the value of every Topic Name that `filter` matches [MQTT-4.7.2-1], in no order.
    pub fn matching(&self, filter: &TopicFilter, each: &mut impl FnMut(&V)) {
        // `+` leaves an iterator over its children here; so the stack is as deep as the filter, however wide the trie.
        let mut waiting: Vec<(Children<'_, V>, bool, Option<&str>)> = Vec::new();
        let mut next = Some((&self.root, Some(filter.as_str())));
        let mut top = true;
        loop {
            let Some((node, rest)) = next.take() else {
                let Some((children, top, rest)) = waiting.last_mut() else { return };
                match children.find(|(level, _)| !(*top && level.starts_with('$'))) {
                    Some((_, child)) => next = Some((child, *rest)),
                    None => drop(waiting.pop()),
                }
                continue;
            };
            match rest.map(first_level) {
                None => node.value.iter().for_each(&mut *each),
                Some(("#", _)) => Walk::new(node, top).for_each(&mut *each),
                Some(("+", rest)) => waiting.push((node.named(), top, rest)),
                Some((level, rest)) => {
                    next = node.below.as_ref().and_then(|below| below.named.get(level)).map(|child| (child, rest));
                }
            }
            top = false;
        }
    }

    /// Every value, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        Walk::new(&self.root, false)
    }

    fn take<'k>(&mut self, levels: impl Iterator<Item = &'k str> + Clone) -> Option<V> {
        // The first pass finds the last place above the value that something else needs; below it all can go.
        let mut node = &self.root;
        let mut keep = 0;
        for (depth, level) in levels.clone().enumerate() {
            if node.value.is_some() || node.below.as_ref().is_some_and(|below| below.count() > 1) {
                keep = depth;
            }
            node = node.child(level)?;
        }
        node.value.as_ref()?;
        self.len -= 1;
        if node.below.is_some() {
            return self.root.find_mut(levels)?.value.take();
        }
        let mut levels = levels;
        let mut node = &mut self.root;
        for level in levels.by_ref().take(keep) {
            node = node.child_mut(level)?;
        }
        let mut gone = node.detach(levels.next()?)?;
        let value = gone.find_mut(levels).and_then(|node| node.value.take());
        gone.unravel();
        value
    }
}

impl<V> Default for TopicTrie<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> Drop for TopicTrie<V> {
    fn drop(&mut self) {
        mem::replace(&mut self.root, Node::EMPTY).unravel();
    }
}

impl<V> fmt::Debug for TopicTrie<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicTrie").field("len", &self.len).finish_non_exhaustive()
    }
}

/// What stands under the levels up to here. One without value and without anything below is not stored.
struct Node<V> {
    value: Option<V>,
    below: Option<Box<Below<V>>>,
}

/// The children of a node, by the kind of their level.
struct Below<V> {
    plus: Node<V>,
    hash: Node<V>,
    named: Named<V>,
}

/// The children with a name: few in a list, of which the first stands right here, many in a table.
enum Named<V> {
    Few(SmallVec<[(Box<str>, Node<V>); 1]>),
    Many(HashMap<Box<str>, Node<V>, RandomState>),
}

impl<V> Node<V> {
    const EMPTY: Self = Self { value: None, below: None };

    fn is_empty(&self) -> bool {
        self.value.is_none() && self.below.is_none()
    }

    fn child(&self, level: &str) -> Option<&Self> {
        let below = self.below.as_ref()?;
        match level {
            "+" => Some(&below.plus),
            "#" => Some(&below.hash),
            _ => below.named.get(level),
        }
    }

    fn child_mut(&mut self, level: &str) -> Option<&mut Self> {
        let below = self.below.as_mut()?;
        match level {
            "+" => Some(&mut below.plus),
            "#" => Some(&mut below.hash),
            _ => below.named.get_mut(level),
        }
    }

    fn find<'k>(&self, mut levels: impl Iterator<Item = &'k str>) -> Option<&Self> {
        levels.try_fold(self, |node, level| node.child(level))
    }

    fn find_mut<'k>(&mut self, mut levels: impl Iterator<Item = &'k str>) -> Option<&mut Self> {
        levels.try_fold(self, |node, level| node.child_mut(level))
    }

    /// The node under `levels`, made where it is missing.
    fn descend(&mut self, levels: Split<'_, char>) -> &mut Self {
        levels.fold(self, |node, level| {
            let below = node.below.get_or_insert_with(|| Box::new(Below::new()));
            match level {
                "+" => &mut below.plus,
                "#" => &mut below.hash,
                _ => below.named.get_or_insert(level),
            }
        })
    }

    /// Takes out the child at `level`; the table of children goes with its last.
    fn detach(&mut self, level: &str) -> Option<Self> {
        let below = self.below.as_mut()?;
        let child = match level {
            "+" => mem::replace(&mut below.plus, Self::EMPTY),
            "#" => mem::replace(&mut below.hash, Self::EMPTY),
            _ => below.named.remove(level)?,
        };
        if below.count() == 0 {
            self.below = None;
        }
        Some(child)
    }

    fn named(&self) -> Children<'_, V> {
        match self.below.as_ref().map(|below| &below.named) {
            None => Children::Few([].iter()),
            Some(Named::Few(list)) => Children::Few(list.iter()),
            Some(Named::Many(table)) => Children::Many(table.iter()),
        }
    }

    /// Drops it level by level instead of by recursion.
    fn unravel(self) {
        let mut waiting = vec![self];
        while let Some(node) = waiting.pop() {
            let Some(below) = node.below else { continue };
            let Below { plus, hash, named } = *below;
            waiting.extend([plus, hash].into_iter().filter(|node| !node.is_empty()));
            match named {
                Named::Few(list) => waiting.extend(list.into_iter().map(|(_, node)| node)),
                Named::Many(table) => waiting.extend(table.into_values()),
            }
        }
    }
}

impl<V> Below<V> {
    fn new() -> Self {
        Self { plus: Node::EMPTY, hash: Node::EMPTY, named: Named::Few(SmallVec::new()) }
    }

    fn count(&self) -> usize {
        usize::from(!self.plus.is_empty()) + usize::from(!self.hash.is_empty()) + self.named.len()
    }
}

impl<V> Named<V> {
    fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(table) => table.len(),
        }
    }

    fn get(&self, level: &str) -> Option<&Node<V>> {
        match self {
            Self::Few(list) => list.iter().find(|(name, _)| **name == *level).map(|(_, node)| node),
            Self::Many(table) => table.get(level),
        }
    }

    fn get_mut(&mut self, level: &str) -> Option<&mut Node<V>> {
        match self {
            Self::Few(list) => list.iter_mut().find(|(name, _)| **name == *level).map(|(_, node)| node),
            Self::Many(table) => table.get_mut(level),
        }
    }

    fn get_or_insert(&mut self, level: &str) -> &mut Node<V> {
        if let Self::Few(list) = self
            && list.len() >= FEW
            && !list.iter().any(|(name, _)| **name == *level)
        {
            *self = Self::Many(mem::take(list).into_iter().collect());
        }
        match self {
            Self::Few(list) => {
                let at = list.iter().position(|(name, _)| **name == *level).unwrap_or_else(|| {
                    list.reserve_exact(1);
                    list.push((level.into(), Node::EMPTY));
                    list.len() - 1
                });
                #[expect(clippy::indexing_slicing, reason = "found or pushed just above")]
                &mut list[at].1
            }
            Self::Many(table) => table.entry(level.into()).or_insert(Node::EMPTY),
        }
    }

    fn remove(&mut self, level: &str) -> Option<Node<V>> {
        match self {
            Self::Few(list) => {
                let at = list.iter().position(|(name, _)| **name == *level)?;
                let (_, node) = list.swap_remove(at);
                list.shrink_to_fit();
                Some(node)
            }
            Self::Many(table) => {
                let node = table.remove(level);
                if table.len() <= FEW / 2 {
                    *self = Self::Few(table.drain().collect());
                } else if table.len() < table.capacity() / 4 {
                    table.shrink_to(table.len() * 2);
                }
                node
            }
        }
    }
}

/// The named children of one node.
enum Children<'a, V> {
    Few(slice::Iter<'a, (Box<str>, Node<V>)>),
    Many(std::collections::hash_map::Iter<'a, Box<str>, Node<V>>),
}

impl<'a, V> Iterator for Children<'a, V> {
    type Item = (&'a str, &'a Node<V>);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Few(list) => list.next().map(|(level, node)| (&**level, node)),
            Self::Many(table) => table.next().map(|(level, node)| (&**level, node)),
        }
    }
}

/// Every value at and below a node, depth first.
struct Walk<'a, V> {
    nodes: Vec<&'a Node<V>>,
    waiting: Vec<Children<'a, V>>,
    /// Leave out the children of the first node that begin with `$`.
    skip_reserved: bool,
}

impl<'a, V> Walk<'a, V> {
    fn new(node: &'a Node<V>, skip_reserved: bool) -> Self {
        Self { nodes: vec![node], waiting: Vec::new(), skip_reserved }
    }

    fn next_node(&mut self) -> Option<&'a Node<V>> {
        loop {
            if let Some(node) = self.nodes.pop() {
                return Some(node);
            }
            let skip = self.skip_reserved && self.waiting.len() == 1;
            match self.waiting.last_mut()?.find(|(level, _)| !(skip && level.starts_with('$'))) {
                Some((_, node)) => return Some(node),
                None => drop(self.waiting.pop()),
            }
        }
    }
}

impl<'a, V> Iterator for Walk<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        loop {
            let node = self.next_node()?;
            if let Some(below) = &node.below {
                self.nodes.extend([&below.plus, &below.hash].into_iter().filter(|node| !node.is_empty()));
                self.waiting.push(node.named());
            }
            if node.value.is_some() {
                return node.value.as_ref();
            }
        }
    }
}

/// The first level of a topic, and what follows its `/`.
fn first_level(topic: &str) -> (&str, Option<&str>) {
    match topic.split_once('/') {
        Some((level, rest)) => (level, Some(rest)),
        None => (topic, None),
    }
}

/// Up to how many children are searched one by one.
const FEW: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).unwrap()
    }

    fn name(text: &str) -> TopicName {
        TopicName::parse(text).unwrap()
    }

    fn sorted<'a>(values: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut values: Vec<String> = values.cloned().collect();
        values.sort();
        values
    }

    fn found(search: impl FnOnce(&mut dyn FnMut(&String))) -> Vec<String> {
        let mut values = Vec::new();
        search(&mut |value| values.push(value.clone()));
        sorted(values.iter())
    }

    #[test]
    fn matches_in_both_directions() {
        #[track_caller]
        fn check(filters: &[&str], topics: &[&str], pairs: &[(&str, &str)]) {
            let (mut by_filter, mut by_topic) = (TopicTrie::new(), TopicTrie::new());
            for text in filters {
                by_filter.get_or_insert_with(&filter(text), || (*text).to_owned());
            }
            for topic in topics {
                assert_eq!(by_topic.insert_topic(&name(topic), (*topic).to_owned()), None);
            }
            let mut forwards = Vec::new();
            for topic in topics {
                by_filter.matches(&name(topic), &mut |filter| forwards.push((filter.clone(), (*topic).to_owned())));
            }
            let mut backwards = Vec::new();
            for text in filters {
                by_topic.matching(&filter(text), &mut |topic| backwards.push(((*text).to_owned(), topic.clone())));
            }
            let mut expected: Vec<_> = pairs.iter().map(|&(f, t)| (f.to_owned(), t.to_owned())).collect();
            for pairs in [&mut expected, &mut forwards, &mut backwards] {
                pairs.sort();
            }
            assert_eq!(forwards, expected);
            assert_eq!(backwards, expected);
        }
        check(&["a/b", "a/+", "#", "b/#", "+"], &["a/b"], &[("a/b", "a/b"), ("a/+", "a/b"), ("#", "a/b")]);
        check(&["a/#", "a", "+/#", "a/+"], &["a"], &[("a/#", "a"), ("a", "a"), ("+/#", "a")]);
        check(&["#", "+/x", "$SYS/#", "$SYS/+"], &["$SYS/x"], &[("$SYS/#", "$SYS/x"), ("$SYS/+", "$SYS/x")]);
        check(&["#", "+", "$SYS/#"], &["$SYS"], &[("$SYS/#", "$SYS")]);
        check(&["/+", "+/+", "/"], &["/"], &[("/+", "/"), ("+/+", "/"), ("/", "/")]);
        check(&["a/+/c/#"], &["a/$b/c", "a//c/d", "a/c"], &[("a/+/c/#", "a/$b/c"), ("a/+/c/#", "a//c/d")]);
    }

    #[test]
    fn values_come_and_go() {
        let mut trie = TopicTrie::new();
        assert!(trie.is_empty() && trie.remove(&filter("a/b")).is_none());
        *trie.get_or_insert_with(&filter("a/b"), || 1) += 1;
        *trie.get_or_insert_with(&filter("a/b"), || 1) += 1;
        trie.get_or_insert_with(&filter("a/#"), || 7);
        assert_eq!((trie.len(), trie.get(&filter("a/b")), trie.get(&filter("a"))), (2, Some(&3), None));
        *trie.get_mut(&filter("a/#")).unwrap() = 8;
        assert_eq!(
            (trie.remove(&filter("a")), trie.remove(&filter("a/+")), trie.remove(&filter("a/b/c"))),
            (None, None, None)
        );
        assert_eq!((trie.remove(&filter("a/b")), trie.remove(&filter("a/b")), trie.len()), (Some(3), None, 1));
        assert_eq!(trie.insert_topic(&name("a"), 5), None);
        assert_eq!(trie.insert_topic(&name("a"), 6), Some(5));
        assert_eq!(trie.get_topic(&name("a")), Some(&6));
        assert_eq!((trie.remove_topic(&name("a")), trie.len()), (Some(6), 1));
        assert_eq!((trie.remove(&filter("a/#")), trie.len()), (Some(8), 0));
        assert!(trie.root.is_empty());
    }

    /// Case D51.
    #[test]
    fn memory_returns() {
        let mut trie = TopicTrie::new();
        for n in 0..10_000 {
            trie.insert_topic(&name(&format!("fleet/{n}/state/{}", n % 7)), n);
        }
        for n in 1..10_000 {
            assert_eq!(trie.remove_topic(&name(&format!("fleet/{n}/state/{}", n % 7))), Some(n));
        }
        let Named::Few(devices) = &trie.root.child("fleet").unwrap().below.as_ref().unwrap().named else {
            panic!("one child should not be in a table");
        };
        assert_eq!((devices.len(), trie.iter().collect::<Vec<_>>()), (1, vec![&0]));
        trie.remove_topic(&name("fleet/0/state/0"));
        assert!(trie.root.is_empty());
    }

    #[test]
    fn a_topic_of_the_greatest_depth() {
        let deep = "/".repeat(65_535);
        let mut trie = TopicTrie::new();
        for text in [&deep, &"+/".repeat(32_767), &format!("{}#", &deep[1..])] {
            trie.get_or_insert_with(&filter(text), || text.clone());
        }
        assert_eq!(found(|each| trie.matches(&name(&deep), &mut |value| each(value))).len(), 2);
        assert_eq!(found(|each| trie.matching(&filter("#"), &mut |value| each(value))).len(), 3);
        assert_eq!(trie.remove(&filter(&deep)), Some(deep.clone()));
        assert_eq!(trie.get(&filter(&deep)), None);
        trie.insert_topic(&name(&deep), deep.clone());
        drop(trie);
    }

    /// Case D93.
    #[test]
    fn many_wildcards_on_many_levels() {
        let mut trie = TopicTrie::new();
        for n in 0..10_000_u32 {
            let levels: Vec<_> =
                (0..8).map(|bit| if n >> bit & 1 == 1 { "+".to_owned() } else { "x".to_owned() }).collect();
            trie.get_or_insert_with(&filter(&format!("{}/{}", levels.join("/"), n >> 8)), || n);
        }
        let mut count = 0;
        trie.matches(&name("x/x/x/x/x/x/x/x/3"), &mut |_| count += 1);
        assert_eq!(count, 256);
    }

    proptest! {
        #[test]
        fn agrees_with_brute_force(
            filters in prop::collection::btree_set("(\\+|[a-d]|\\$x)?(/(\\+|[a-l])?){0,3}(/#)?", 0..60),
            topics in prop::collection::btree_set("([a-d]|\\$x)?(/[a-l]?){0,3}", 0..60),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let mut filters: Vec<_> = filters.iter().filter_map(|text| TopicFilter::parse(text).ok()).collect();
            let mut topics: Vec<_> = topics.iter().filter_map(|text| TopicName::parse(text).ok()).collect();
            let (mut by_filter, mut by_topic) = (TopicTrie::new(), TopicTrie::new());
            for filter in &filters {
                by_filter.get_or_insert_with(filter, || filter.to_string());
            }
            for topic in &topics {
                by_topic.insert_topic(topic, topic.to_string());
            }
            for index in gone {
                if !filters.is_empty() {
                    let filter = filters.swap_remove(index.index(filters.len()));
                    prop_assert_eq!(by_filter.remove(&filter), Some(filter.to_string()));
                }
                if !topics.is_empty() {
                    let topic = topics.swap_remove(index.index(topics.len()));
                    prop_assert_eq!(by_topic.remove_topic(&topic), Some(topic.to_string()));
                }
            }
            prop_assert_eq!((by_filter.len(), by_topic.len()), (filters.len(), topics.len()));
            let all: Vec<_> = topics.iter().map(ToString::to_string).collect();
            prop_assert_eq!(sorted(by_topic.iter()), sorted(all.iter()));
            for topic in &topics {
                let expected: Vec<_> = filters.iter().filter(|f| f.matches(topic)).map(ToString::to_string).collect();
                prop_assert_eq!(found(|each| by_filter.matches(topic, &mut |v| each(v))), sorted(expected.iter()));
            }
            for filter in &filters {
                let expected: Vec<_> = topics.iter().filter(|t| filter.matches(t)).map(ToString::to_string).collect();
                prop_assert_eq!(found(|each| by_topic.matching(filter, &mut |v| each(v))), sorted(expected.iter()));
            }
        }
    }
}
