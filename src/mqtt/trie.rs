//! [`TopicTrie`]: values under Topic Filters or Topic Names, found in both directions.
//!
//! Levels between which nothing else stands share one node, so that memory goes with the values, not with their levels. Must not know
//! what the values are. Every walk is a loop with its stack on the heap, also when the trie is dropped:
//! a peer chooses the depth.

use std::{collections::HashMap, fmt, mem, slice};

use foldhash::fast::RandomState;

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
        let slot = &mut self.root.descend(filter.as_str()).value;
        if slot.is_none() {
            self.len += 1;
        }
        slot.get_or_insert_with(value)
    }

    /// The value under exactly `filter`.
    #[must_use]
    pub fn get(&self, filter: &TopicFilter) -> Option<&V> {
        self.root.find(filter.as_str())?.value.as_ref()
    }

    /// As [`Self::get`].
    pub fn get_mut(&mut self, filter: &TopicFilter) -> Option<&mut V> {
        self.root.find_mut(filter.as_str())?.value.as_mut()
    }

    /// Takes out the value under exactly `filter`, and gives back the memory that only it needed.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<V> {
        self.take(filter.as_str())
    }

    /// Puts `value` under `topic`; the value that it replaces.
    pub fn insert_topic(&mut self, topic: &TopicName, value: V) -> Option<V> {
        let old = self.root.descend(topic.as_str()).value.replace(value);
        self.len += usize::from(old.is_none());
        old
    }

    /// The value under exactly `topic`.
    #[must_use]
    pub fn get_topic(&self, topic: &TopicName) -> Option<&V> {
        self.root.find(topic.as_str())?.value.as_ref()
    }

    /// As [`Self::remove`].
    pub fn remove_topic(&mut self, topic: &TopicName) -> Option<V> {
        self.take(topic.as_str())
    }

    /// Calls `each` with the value of every Topic Filter that matches `topic` [MQTT-4.7.2-1], in no order.
    pub fn matches(&self, topic: &TopicName, each: &mut impl FnMut(&V)) {
        let mut wild = !topic.is_reserved(); // whether wildcards count at this level
        let mut waiting = Vec::new();
        let mut next = Some((&self.root, Some(topic.as_str())));
        while let Some((node, rest)) = next {
            next = None;
            let Some(rest) = node.pass(rest) else {
                next = waiting.pop();
                continue;
            };
            // Where the levels between end with `#`, that has taken the rest.
            if let (Some(value), None) = (&node.value, rest) {
                each(value);
            }
            if let Some(below) = &node.below {
                if let (true, Some(value)) = (wild, below.hash.as_ref().and_then(|hash| hash.value.as_ref())) {
                    each(value);
                }
                if let Some(rest) = rest {
                    let (level, rest) = first_level(rest);
                    if let (true, Some(plus)) = (wild, &below.plus) {
                        waiting.push((&**plus, rest));
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
            let mut rest = rest;
            let passes = node.between().all(|level| match rest.map(first_level) {
                Some(("#", _)) => true,
                Some((asked, after)) if asked == "+" || asked == level => {
                    rest = after;
                    true
                }
                _ => false,
            });
            if !passes {
                continue;
            }
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

    fn take(&mut self, key: &str) -> Option<V> {
        // The key of the node above, where that is not the root, and the level that it has the value's node under.
        let (mut above, mut under) = (None, "");
        let (mut node, mut rest) = (&self.root, Some(key));
        while let Some(levels) = rest {
            above = (key.len() - levels.len()).checked_sub(1).and_then(|end| key.get(..end));
            let (level, after) = first_level(levels);
            under = level;
            node = node.child(level)?;
            rest = node.strip(after)?;
        }
        node.value.as_ref()?;
        self.len -= 1;
        let parent = match above {
            Some(key) => self.root.find_mut(key)?,
            None => &mut self.root,
        };
        let node = parent.child_mut(under)?;
        let value = node.value.take();
        if node.below.is_some() {
            node.join();
        } else {
            parent.detach(under);
            if above.is_some() {
                parent.join();
            }
        }
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

/// What stands under the levels up to here. But for the root, one has a value or at least two children.
struct Node<V> {
    /// The levels between that by which its parent finds it and what stands here, as in a topic.
    between: Option<Box<str>>,
    value: Option<V>,
    below: Option<Box<Below<V>>>,
}

/// The children of a node, by the kind of their level.
struct Below<V> {
    plus: Option<Box<Node<V>>>,
    hash: Option<Box<Node<V>>>,
    named: Named<V>,
}

/// The children with a name: few in a list, many in a table.
enum Named<V> {
    Few(Vec<(Box<str>, Node<V>)>),
    Many(HashMap<Box<str>, Node<V>, RandomState>),
}

impl<V> Node<V> {
    const EMPTY: Self = Self { between: None, value: None, below: None };

    fn is_empty(&self) -> bool {
        self.value.is_none() && self.below.is_none()
    }

    fn child(&self, level: &str) -> Option<&Self> {
        let below = self.below.as_ref()?;
        match level {
            "+" => below.plus.as_deref(),
            "#" => below.hash.as_deref(),
            _ => below.named.get(level),
        }
    }

    fn child_mut(&mut self, level: &str) -> Option<&mut Self> {
        let below = self.below.as_mut()?;
        match level {
            "+" => below.plus.as_deref_mut(),
            "#" => below.hash.as_deref_mut(),
            _ => below.named.get_mut(level),
        }
    }

    fn find(&self, key: &str) -> Option<&Self> {
        let (mut node, mut rest) = (self, Some(key));
        while let Some(levels) = rest {
            let (level, after) = first_level(levels);
            node = node.child(level)?;
            rest = node.strip(after)?;
        }
        Some(node)
    }

    fn find_mut(&mut self, key: &str) -> Option<&mut Self> {
        let (mut node, mut rest) = (self, Some(key));
        while let Some(levels) = rest {
            let (level, after) = first_level(levels);
            node = node.child_mut(level)?;
            rest = node.strip(after)?;
        }
        Some(node)
    }

    /// What of `key` follows the levels between; none where they are not its first.
    fn strip<'k>(&self, key: Option<&'k str>) -> Option<Option<&'k str>> {
        let Some(between) = &self.between else { return Some(key) };
        let after = key?.strip_prefix(&**between)?;
        if after.is_empty() { Some(None) } else { after.strip_prefix('/').map(Some) }
    }

    /// What of a topic follows the levels between, which may be wildcards; none where it does not match them.
    fn pass<'t>(&self, topic: Option<&'t str>) -> Option<Option<&'t str>> {
        let mut rest = topic;
        for level in self.between() {
            if level == "#" {
                return Some(None);
            }
            let (name, after) = first_level(rest?);
            if level != "+" && level != name {
                return None;
            }
            rest = after;
        }
        Some(rest)
    }

    fn between(&self) -> impl Iterator<Item = &str> {
        self.between.iter().flat_map(|between| between.split('/'))
    }

    /// The node under `key`, made where it is missing.
    fn descend(&mut self, key: &str) -> &mut Self {
        let (mut node, mut rest) = (self, Some(key));
        while let Some(levels) = rest {
            let (level, after) = first_level(levels);
            let below = node.below.get_or_insert_with(|| Box::new(Below::new()));
            node = match level {
                "+" => below.plus.get_or_insert_with(|| Box::new(Self::EMPTY)),
                "#" => below.hash.get_or_insert_with(|| Box::new(Self::EMPTY)),
                _ => below.named.get_or_insert(level),
            };
            if node.is_empty() {
                node.between = after.map(Into::into);
                return node;
            }
            rest = node.part_from(after);
        }
        node
    }

    /// Ends the levels between where `key` differs from them: what stood here stands below then. What of `key` follows.
    fn part_from<'k>(&mut self, key: Option<&'k str>) -> Option<&'k str> {
        let Some(between) = self.between.take() else { return key };
        let (mut ours, mut theirs) = (Some(&*between), key);
        while let (Some(own), Some(key)) = (ours, theirs) {
            let ((level, after), (other, after_other)) = (first_level(own), first_level(key));
            if level != other {
                break;
            }
            (ours, theirs) = (after, after_other);
        }
        if let Some(own) = ours {
            let (level, after) = first_level(own);
            let lower = Self { between: after.map(Into::into), value: self.value.take(), below: self.below.take() };
            let common = (between.len() - own.len()).checked_sub(1);
            self.between = common.and_then(|end| between.get(..end)).map(Into::into);
            self.below = Some(Box::new(Below::of(level, lower)));
        } else {
            self.between = Some(between);
        }
        theirs
    }

    /// One that has no value takes in its only child.
    fn join(&mut self) {
        if self.value.is_some() || self.below.as_ref().is_none_or(|below| below.count() != 1) {
            return;
        }
        let Some((level, child)) = self.below.take().and_then(|below| below.into_only()) else { return };
        let levels = [self.between.as_deref(), Some(&*level), child.between.as_deref()];
        let levels: Vec<_> = levels.into_iter().flatten().collect();
        *self = Self { between: Some(levels.join("/").into()), ..child };
    }

    /// Takes out the child at `level`; the table of children goes with its last.
    fn detach(&mut self, level: &str) {
        let Some(below) = &mut self.below else { return };
        match level {
            "+" => below.plus = None,
            "#" => below.hash = None,
            _ => drop(below.named.remove(level)),
        }
        if below.count() == 0 {
            self.below = None;
        }
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
            waiting.extend([plus, hash].into_iter().flatten().map(|node| *node));
            match named {
                Named::Few(list) => waiting.extend(list.into_iter().map(|(_, node)| node)),
                Named::Many(table) => waiting.extend(table.into_values()),
            }
        }
    }
}

impl<V> Below<V> {
    fn new() -> Self {
        Self { plus: None, hash: None, named: Named::Few(Vec::new()) }
    }

    /// With one child.
    fn of(level: &str, child: Node<V>) -> Self {
        match level {
            "+" => Self { plus: Some(Box::new(child)), ..Self::new() },
            "#" => Self { hash: Some(Box::new(child)), ..Self::new() },
            _ => Self { named: Named::Few(vec![(level.into(), child)]), ..Self::new() },
        }
    }

    /// The child of one that has no other, and its level.
    fn into_only(self) -> Option<(Box<str>, Node<V>)> {
        match self {
            Self { plus: Some(child), .. } => Some(("+".into(), *child)),
            Self { hash: Some(child), .. } => Some(("#".into(), *child)),
            Self { named: Named::Few(list), .. } => list.into_iter().next(),
            Self { named: Named::Many(table), .. } => table.into_iter().next(),
        }
    }

    fn count(&self) -> usize {
        usize::from(self.plus.is_some()) + usize::from(self.hash.is_some()) + self.named.len()
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
                self.nodes.extend([&below.plus, &below.hash].into_iter().flatten().map(|node| &**node));
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
        let last = trie.root.child("fleet").unwrap();
        assert_eq!((last.between.as_deref(), last.below.is_none()), (Some("0/state/0"), true));
        assert_eq!(trie.iter().collect::<Vec<_>>(), vec![&0]);
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

    /// Each node but the root has a value, or leads to several.
    fn check_shape<V>(trie: &TopicTrie<V>) {
        let mut waiting = vec![&trie.root];
        let mut at_root = true;
        while let Some(node) = waiting.pop() {
            let below = node.below.as_deref();
            let children = below.map_or(0, Below::count);
            assert!(at_root || node.value.is_some() || children > 1, "{:?} has {children} children", node.between);
            assert!(below.is_none() || children > 0);
            at_root = false;
            waiting
                .extend(below.into_iter().flat_map(|below| [&below.plus, &below.hash]).flatten().map(|node| &**node));
            waiting.extend(node.named().map(|(_, node)| node));
        }
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
            check_shape(&by_filter);
            check_shape(&by_topic);
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
