//! Topic Names, Topic Filters, the trie in both directions and the router, each against the plainest reading of 4.7.
//!
//! Must not know the trie's inside.

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Result, Unstructured};
use pinnace::{
    mqtt::{
        Filter, QoS, TopicFilter, TopicName, TopicTrie,
        packet::{RetainHandling, SubscriptionOptions},
    },
    router::{Router, Subscription, Target},
};

/// Keys come and go, and after each step something is looked for.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut world = World::default();
    // Ends with the input.
    while !input.is_empty() && world.step(&mut input).is_ok() {}
    world.check_all();
}

#[derive(Default)]
struct World {
    by_filter: TopicTrie<String>,
    filters: BTreeMap<String, TopicFilter>,
    by_topic: TopicTrie<String>,
    topics: BTreeMap<String, TopicName>,
    router: Router,
    subscriptions: BTreeMap<(String, Target), Subscription>,
}

impl World {
    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=9)? {
            0..=2 => {
                let text = text(input)?;
                let Some(filter) = check_filter(&text) else { return Ok(()) };
                let held = self.by_filter.get_or_insert_with(&filter, || text.clone());
                assert_eq!(*held, text);
                self.filters.insert(text, filter);
            }
            3 => {
                let (text, filter) = self.some_filter(input)?;
                assert_eq!(self.by_filter.remove(&filter), self.filters.remove(&text).map(|_| text));
                assert_eq!(self.by_filter.get(&filter), None);
            }
            4..=5 => {
                let text = text(input)?;
                let Some(topic) = check_name(&text) else { return Ok(()) };
                let before = self.topics.insert(text.clone(), topic.clone()).map(|_| text.clone());
                assert_eq!(self.by_topic.insert_topic(&topic, text), before);
            }
            6 => {
                let (text, topic) = self.some_topic(input)?;
                assert_eq!(self.by_topic.remove_topic(&topic), self.topics.remove(&text).map(|_| text));
                assert_eq!(self.by_topic.get_topic(&topic), None);
            }
            7 => self.subscribe(input)?,
            8 => {
                let (_, one) = self.some_filter(input)?;
                let (_, other) = self.some_filter(input)?;
                check_pair(&one, &other);
            }
            _ => {
                let (_, topic) = self.some_topic(input)?;
                self.check_topic(&topic);
                self.check_route(&topic, input.int_in_range(1..=3)?);
            }
        }
        assert_eq!((self.by_filter.len(), self.by_topic.len()), (self.filters.len(), self.topics.len()));
        assert_eq!(self.router.len(), self.subscriptions.len());
        Ok(())
    }

    /// One that is there, or a new one.
    fn some_filter(&self, input: &mut Unstructured<'_>) -> Result<(String, TopicFilter)> {
        if input.ratio(3, 4)? && !self.filters.is_empty() {
            let at = input.choose_index(self.filters.len())?;
            return Ok(self.filters.iter().nth(at).map(|(text, filter)| (text.clone(), filter.clone())).unwrap());
        }
        let text = text(input)?;
        let filter = check_filter(&text).unwrap_or_else(|| TopicFilter::parse("#").unwrap());
        Ok((filter.to_string(), filter))
    }

    fn some_topic(&self, input: &mut Unstructured<'_>) -> Result<(String, TopicName)> {
        if input.ratio(3, 4)? && !self.topics.is_empty() {
            let at = input.choose_index(self.topics.len())?;
            return Ok(self.topics.iter().nth(at).map(|(text, topic)| (text.clone(), topic.clone())).unwrap());
        }
        let text = text(input)?;
        let topic = check_name(&text).unwrap_or_else(|| TopicName::parse("a").unwrap());
        Ok((topic.to_string(), topic))
    }

    fn subscribe(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (text, filter) = self.some_filter(input)?;
        let number = input.int_in_range(1..=3)?;
        let target = if input.ratio(1, 4)? { Target::Group(number) } else { Target::Session(number) };
        if input.ratio(1, 4)? {
            let there = self.subscriptions.remove(&(text, target)).is_some();
            assert_eq!(self.router.unsubscribe(&filter, target), there);
            return Ok(());
        }
        let options = SubscriptionOptions {
            qos: *input.choose(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])?,
            no_local: input.ratio(1, 4)?,
            retain_as_published: input.arbitrary()?,
            retain_handling: RetainHandling::Send,
        };
        let subscription = Subscription { target, options, subscription_id: input.int_in_range(0..=3)? };
        let new = self.subscriptions.insert((text, target), subscription.clone()).is_none();
        assert_eq!(self.router.subscribe(&filter, subscription), new);
        Ok(())
    }

    fn check_topic(&self, topic: &TopicName) {
        let expected: BTreeSet<&str> =
            self.filters.keys().map(String::as_str).filter(|filter| matches(filter, topic.as_str())).collect();
        let mut found = Vec::new();
        self.by_filter.matches(topic, &mut |text| found.push(text.clone()));
        assert_eq!(sorted(&found), expected.iter().copied().collect::<Vec<_>>(), "filters for {topic:?}");
        for filter in self.filters.values() {
            assert_eq!(filter.matches(topic), expected.contains(filter.as_str()), "{filter} for {topic}");
        }
    }

    fn check_filter(&self, filter: &TopicFilter) {
        let expected: Vec<&str> =
            self.topics.keys().map(String::as_str).filter(|topic| matches(filter.as_str(), topic)).collect();
        let mut found = Vec::new();
        self.by_topic.matching(filter, &mut |text| found.push(text.clone()));
        assert_eq!(sorted(&found), expected, "topics for {filter:?}");
    }

    /// One copy with the highest QoS and all identifiers [MQTT-3.3.4-2], [MQTT-3.3.4-3]; none by No Local [MQTT-3.8.3-3].
    fn check_route(&self, topic: &TopicName, publisher: u64) {
        let mut expected: BTreeMap<Target, (u8, bool, BTreeSet<u32>)> = BTreeMap::new();
        for ((filter, target), one) in &self.subscriptions {
            if !matches(filter, topic.as_str()) || one.options.no_local && *target == Target::Session(publisher) {
                continue;
            }
            let (qos, retain, ids) = expected.entry(*target).or_default();
            *qos = (*qos).max(one.options.qos as u8);
            *retain |= one.options.retain_as_published;
            ids.extend(Some(one.subscription_id).filter(|id| *id > 0));
        }
        let found = self.router.route(topic, publisher);
        assert_eq!(found.len(), expected.len(), "one match for each target");
        for one in found {
            let ids: BTreeSet<u32> = one.subscription_ids.iter().copied().collect();
            assert_eq!(ids.len(), one.subscription_ids.len(), "each identifier once");
            assert_eq!(Some(&(one.qos as u8, one.retain_as_published, ids)), expected.get(&one.target));
        }
    }

    fn check_all(&self) {
        self.topics.values().for_each(|topic| self.check_topic(topic));
        self.filters.values().for_each(|filter| self.check_filter(filter));
        let all: Vec<String> = self.by_topic.iter().cloned().collect();
        assert_eq!(sorted(&all), self.topics.keys().collect::<Vec<_>>());
    }
}

fn sorted(found: &[String]) -> Vec<&str> {
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    found.sort_unstable();
    found
}

/// Mostly levels that meet each other; now and then any text.
fn text(input: &mut Unstructured<'_>) -> Result<String> {
    if input.ratio(1, 16)? {
        return input.arbitrary().map(|text: &str| text.to_owned());
    }
    let count = input.int_in_range(1..=5)?;
    let levels: Vec<&str> = (0..count).map(|_| input.choose(LEVELS).copied()).collect::<Result<_>>()?;
    let mut text = levels.join("/");
    // What is too long is too long in bytes.
    if input.int_in_range(0..=127)? == 127 {
        text.push_str(&"é".repeat(input.int_in_range(32_000..=33_000)?));
    } else if input.int_in_range(0..=127)? == 127 {
        text.push_str(&"/".repeat(input.int_in_range(0..=5_000)?));
    }
    Ok(text)
}

fn is_length_valid(text: &str) -> bool {
    (1..=65_535).contains(&text.len())
}

fn check_name(text: &str) -> Option<TopicName> {
    let valid = is_length_valid(text) && !text.contains(['\0', '+', '#']);
    let parsed = TopicName::parse(text);
    assert_eq!(parsed.is_ok(), valid, "{text:?} as a name: {parsed:?}");
    assert_eq!(TopicName::check(text), parsed.as_ref().map(drop).map_err(|error| *error));
    let topic = parsed.ok()?;
    assert_eq!((topic.as_str(), topic.is_reserved()), (text, text.starts_with('$')));
    assert!(TopicFilter::from(&topic).matches(&topic) && !TopicFilter::from(&topic).has_wildcards());
    Some(topic)
}

fn is_filter(text: &str) -> bool {
    let levels: Vec<&str> = text.split('/').collect();
    let fits = |(at, level): (usize, &&str)| match *level {
        "#" => at + 1 == levels.len(),
        "+" => true,
        level => !level.contains(['+', '#', '\0']),
    };
    is_length_valid(text) && levels.iter().enumerate().all(fits)
}

fn check_filter(text: &str) -> Option<TopicFilter> {
    let parsed = TopicFilter::parse(text);
    assert_eq!(parsed.is_ok(), is_filter(text), "{text:?} as a filter: {parsed:?}");
    let subscribed = Filter::parse(text);
    match text.strip_prefix("$share/") {
        None => assert_eq!(subscribed, parsed.clone().map(Filter::from)),
        Some(shared) => {
            let valid = shared.split_once('/').is_some_and(|(name, filter)| {
                is_length_valid(text) && !name.is_empty() && !name.contains(['+', '#', '\0']) && is_filter(filter)
            });
            assert_eq!(subscribed.is_ok(), valid, "{text:?}: {subscribed:?}");
        }
    }
    if let Ok(filter) = subscribed {
        assert_eq!((filter.to_string(), filter.is_shared()), (text.to_owned(), text.starts_with("$share/")));
    }
    parsed.ok()
}

/// 4.7.1, 4.7.2, 4.7.3, word by word.
fn matches(filter: &str, topic: &str) -> bool {
    if filter.starts_with(['+', '#']) && topic.starts_with('$') {
        return false;
    }
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(level), Some(name)) if level == name => {}
            _ => return false,
        }
    }
}

/// `covers` and `intersects` say of all topics what a few witnesses show.
fn check_pair(one: &TopicFilter, other: &TopicFilter) {
    if one.levels().count().max(other.levels().count()) > 20 || one.as_str().len().max(other.as_str().len()) > 1000 {
        return;
    }
    let witnesses = witnesses(one, other);
    let covered = witnesses.iter().all(|topic| !other.matches(topic) || one.matches(topic));
    assert_eq!(one.covers(other), covered, "{one} covers {other}");
    let meet = witnesses.iter().any(|topic| one.matches(topic) && other.matches(topic));
    assert_eq!(one.intersects(other), meet, "{one} meets {other}");
    assert_eq!(other.intersects(one), meet);
}

/// Topics that tell two filters apart, or show that they meet: of every length that matters, with the names of either, of both, and with a
/// name that neither knows.
fn witnesses(one: &TopicFilter, other: &TopicFilter) -> Vec<TopicName> {
    let (one, other): (Vec<&str>, Vec<&str>) = (one.levels().collect(), other.levels().collect());
    let at = |filter: &[&str], at: usize| -> Option<String> {
        filter.get(at).filter(|level| !matches!(**level, "+" | "#")).map(|level| (*level).to_owned())
    };
    let mut found = Vec::new();
    for len in 1..=one.len().max(other.len()) + 1 {
        let fresh = || "never seen".to_owned();
        let of = |level: &dyn Fn(usize) -> String| (0..len).map(level).collect::<Vec<_>>().join("/");
        let texts = [
            of(&|level| at(&one, level).or_else(|| at(&other, level)).unwrap_or_else(fresh)),
            of(&|level| at(&other, level).or_else(|| at(&one, level)).unwrap_or_else(fresh)),
            of(&|level| at(&other, level).unwrap_or_else(fresh)),
        ];
        found.extend(texts.iter().filter_map(|text| TopicName::parse(text).ok()));
    }
    found
}

const LEVELS: &[&str] = &[
    "a", "b", "+", "#", "", "c", "$x", "d", "e", "f", "g", "h", "i", "j", "k", "$share", "é", "a+", "#b", "\0", "ab",
    " ", "+", "+", "#", "$SYS",
];
