//! Topic Names and Topic Filters (4.7): parsed once, never validated again.
//!
//! Must not know who subscribes, nor what is kept under a name. Every walk is a loop: a topic may have 65,536 levels.

use std::{borrow::Borrow, fmt, str::Split, sync::Arc};

use thiserror::Error;

/// A valid Topic Name: not empty, at most 65,535 bytes, without wildcards and NUL [MQTT-4.7.3-1] to [MQTT-4.7.3-3],
/// [MQTT-3.3.2-2].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// Checks and copies `topic`.
    ///
    /// # Errors
    /// Which rule of 4.7 it breaks.
    pub fn parse(topic: &str) -> Result<Self, InvalidTopic> {
        Self::check(topic)?;
        Ok(Self(topic.into()))
    }

    /// Checks `topic` and shares it.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_shared(topic: Arc<str>) -> Result<Self, InvalidTopic> {
        Self::check(&topic)?;
        Ok(Self(topic))
    }

    /// Whether `topic` is a Topic Name, without keeping it.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn check(topic: &str) -> Result<(), InvalidTopic> {
        check_length(topic)?;
        // One pass without a branch per byte, which the compiler vectorizes; the kind of fault is looked for only then.
        if !topic.bytes().fold(false, |bad, byte| bad | matches!(byte, 0 | b'+' | b'#')) {
            return Ok(());
        }
        Err(if topic.contains('\0') { InvalidTopic::Nul } else { InvalidTopic::WildcardInName })
    }

    /// The topic as sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its levels, of which there is at least one; each may be empty (4.7.1.1).
    pub fn levels(&self) -> Split<'_, char> {
        self.0.split('/')
    }

    /// Whether it begins with `$`, so that no leading wildcard matches it [MQTT-4.7.2-1].
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with('$')
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A valid Topic Filter (4.7.1), without any `$share` prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicFilter(Arc<str>);

impl TopicFilter {
    /// Checks and copies `filter`. A text that begins with `$share/` is taken as it stands: see [`Filter::parse`].
    ///
    /// # Errors
    /// Which rule of 4.7 it breaks: [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1] to [MQTT-4.7.3-3].
    pub fn parse(filter: &str) -> Result<Self, InvalidTopic> {
        check_length(filter)?;
        if filter.contains('\0') {
            return Err(InvalidTopic::Nul);
        }
        let mut levels = filter.split('/').peekable();
        while let Some(level) = levels.next() {
            match level {
                "#" if levels.peek().is_some() => return Err(InvalidTopic::HashNotLast),
                "#" | "+" => {}
                _ if level.contains(['+', '#']) => return Err(InvalidTopic::PartOfLevel),
                _ => {}
            }
        }
        Ok(Self(filter.into()))
    }

    /// The filter as sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its levels, of which there is at least one; `+` and `#` are levels of their own.
    pub fn levels(&self) -> Split<'_, char> {
        self.0.split('/')
    }

    /// Whether it has `+` or `#`; without them it matches one topic alone.
    #[must_use]
    pub fn has_wildcards(&self) -> bool {
        self.0.bytes().any(|byte| matches!(byte, b'+' | b'#'))
    }

    /// Whether a message published to `topic` is for this filter (4.7) [MQTT-4.7.2-1], [MQTT-4.7.3-4].
    #[must_use]
    pub fn matches(&self, topic: &TopicName) -> bool {
        if topic.is_reserved() && self.leads_with_wildcard() {
            return false;
        }
        let mut names = topic.levels();
        for level in self.levels() {
            let fits = match level {
                "#" => return true, // also the parent: no level needs to follow
                "+" => names.next().is_some(),
                _ => names.next() == Some(level),
            };
            if !fits {
                return false;
            }
        }
        names.next().is_none()
    }

    /// Whether every topic that `other` matches is matched by this filter too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        if self.leads_with_wildcard() && other.0.starts_with('$') {
            return false;
        }
        // Every topic has a first level, and none is empty, so nothing that `/#` matches ends before the second.
        if matches!((self.as_str(), other.as_str()), ("+/#", "#") | ("/+/#" | "+/+/#", "/#")) {
            return true;
        }
        let mut theirs = other.levels();
        for ours in self.levels() {
            let covered = match (ours, theirs.next()) {
                ("#", _) => return true,
                ("+", Some(level)) => level != "#",
                (_, level) => level == Some(ours),
            };
            if !covered {
                return false;
            }
        }
        theirs.next().is_none()
    }

    /// Whether some topic is matched by both.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        if self.leads_with_wildcard() && other.0.starts_with('$')
            || other.leads_with_wildcard() && self.0.starts_with('$')
        {
            return false;
        }
        if matches!((self.as_str(), other.as_str()), ("+", "/#") | ("/#", "+")) {
            return false; // they meet in the empty text alone, which is no topic
        }
        let (mut ours, mut theirs) = (self.levels(), other.levels());
        loop {
            match (ours.next(), theirs.next()) {
                (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
                (Some("+"), Some(_)) | (Some(_), Some("+")) => {}
                (ours, theirs) if ours == theirs => {}
                _ => return false,
            }
        }
    }

    fn leads_with_wildcard(&self) -> bool {
        self.0.starts_with(['+', '#'])
    }
}

impl Borrow<str> for TopicFilter {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&TopicName> for TopicFilter {
    /// The filter that matches `topic` alone.
    fn from(topic: &TopicName) -> Self {
        Self(Arc::clone(&topic.0))
    }
}

/// What a SUBSCRIBE names: a Topic Filter, perhaps shared by a group (4.8.2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Filter {
    /// The ShareName, where it is a Shared Subscription [MQTT-4.8.2-1].
    pub share: Option<Arc<str>>,
    /// What it matches.
    pub filter: TopicFilter,
}

impl Filter {
    /// Checks and copies `filter`, with or without `$share/ShareName/` before it.
    ///
    /// # Errors
    /// Which rule it breaks: those of [`TopicFilter::parse`], [MQTT-4.8.2-1], [MQTT-4.8.2-2].
    pub fn parse(filter: &str) -> Result<Self, InvalidTopic> {
        check_length(filter)?;
        let Some(shared) = filter.strip_prefix(SHARE) else {
            return Ok(Self { share: None, filter: TopicFilter::parse(filter)? });
        };
        let (name, filter) = shared.split_once('/').ok_or(InvalidTopic::ShareName)?;
        if name.is_empty() || name.contains(['+', '#', '\0']) {
            return Err(InvalidTopic::ShareName);
        }
        Ok(Self { share: Some(name.into()), filter: TopicFilter::parse(filter)? })
    }

    /// Whether it is a Shared Subscription (4.8.2).
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.share.is_some()
    }
}

impl From<TopicFilter> for Filter {
    /// Not shared.
    fn from(filter: TopicFilter) -> Self {
        Self { share: None, filter }
    }
}

impl fmt::Display for Filter {
    /// The text as sent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.share {
            Some(name) => write!(f, "{SHARE}{name}/{}", self.filter),
            None => self.filter.fmt(f),
        }
    }
}

/// Why a text is no Topic Name or Topic Filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvalidTopic {
    /// [MQTT-4.7.3-1]
    #[error("a topic has at least one character")]
    Empty,
    /// [MQTT-4.7.3-3]
    #[error("a topic has at most 65,535 bytes")]
    TooLong,
    /// [MQTT-4.7.3-2]
    #[error("a topic has no NUL")]
    Nul,
    /// [MQTT-3.3.2-2]
    #[error("a Topic Name has no `+` or `#`")]
    WildcardInName,
    /// [MQTT-4.7.1-1]
    #[error("`#` stands only at the end")]
    HashNotLast,
    /// [MQTT-4.7.1-1], [MQTT-4.7.1-2]
    #[error("`+` and `#` each take a whole level")]
    PartOfLevel,
    /// [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    #[error("a Shared Subscription is `$share/NAME/FILTER` with a NAME without `/`, `+` and `#`")]
    ShareName,
}

fn check_length(topic: &str) -> Result<(), InvalidTopic> {
    match topic.len() {
        0 => Err(InvalidTopic::Empty),
        1..=MAX_BYTES => Ok(()),
        _ => Err(InvalidTopic::TooLong),
    }
}

const SHARE: &str = "$share/";
const MAX_BYTES: usize = 65_535;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(topic: &str) -> TopicName {
        TopicName::parse(topic).unwrap()
    }

    fn filter(filter: &str) -> TopicFilter {
        TopicFilter::parse(filter).unwrap()
    }

    #[test]
    fn names() {
        #[track_caller]
        fn check(topic: &str, expected: Result<(), InvalidTopic>) {
            assert_eq!(TopicName::parse(topic).map(|name| assert_eq!(name.to_string(), topic)), expected);
            assert_eq!(TopicName::parse_shared(topic.into()).map(drop), expected);
        }
        for good in ["a", "/", "a/b", "//", "$SYS/x", "é/☃", " ", "\u{feff}a", &"a".repeat(65_535)] {
            check(good, Ok(()));
        }
        check("", Err(InvalidTopic::Empty));
        check(&"a".repeat(65_536), Err(InvalidTopic::TooLong));
        check("a\0b", Err(InvalidTopic::Nul));
        check("a/+", Err(InvalidTopic::WildcardInName));
        check("a#", Err(InvalidTopic::WildcardInName));
    }

    #[test]
    fn filters() {
        #[track_caller]
        fn check(text: &str, expected: Result<Option<&str>, InvalidTopic>) {
            let parsed = Filter::parse(text);
            assert_eq!(parsed.clone().map(|f| f.to_string()), expected.map(|_| text.to_owned()));
            assert_eq!(parsed.map(|f| f.share), expected.map(|name| name.map(Into::into)));
        }
        for good in ["a", "#", "+", "+/#", "a/+/b", "/", "/+", "a//#", "$SYS/#", "$share", "é/+", &"/".repeat(65_535)]
        {
            check(good, Ok(None));
        }
        for (good, share) in
            [("$share/g/a", "g"), ("$share/g//", "g"), ("$share/é/#", "é"), ("$share/g/$share/h/x", "g")]
        {
            check(good, Ok(Some(share)));
        }
        for bad in ["$share/", "$share/g", "$share//t", "$share/+/t", "$share/#/t", "$share/g+/t", "$share/\0/t"] {
            check(bad, Err(InvalidTopic::ShareName));
        }
        check("$share/g/", Err(InvalidTopic::Empty));
        check("$share/g/#/a", Err(InvalidTopic::HashNotLast));
        check("", Err(InvalidTopic::Empty));
        check(&"a".repeat(65_536), Err(InvalidTopic::TooLong));
        check("a\0", Err(InvalidTopic::Nul));
        check("#/a", Err(InvalidTopic::HashNotLast));
        check("#/", Err(InvalidTopic::HashNotLast));
        for bad in ["a+", "+a", "a/b+/c", "a#", "a/#b", "++", "##", "+#"] {
            check(bad, Err(InvalidTopic::PartOfLevel));
        }
    }

    #[test]
    fn matching() {
        #[track_caller]
        fn check(text: &str, matched: &[&str], others: &[&str]) {
            let filter = filter(text);
            for topic in matched {
                assert!(filter.matches(&name(topic)), "{text} should match {topic}");
            }
            for topic in others {
                assert!(!filter.matches(&name(topic)), "{text} should not match {topic}");
            }
        }
        check("#", &["a", "/", "a/b", "é/x"], &["$SYS", "$SYS/a", "$"]);
        check("+", &["a"], &["/", "a/b", "$SYS"]);
        check("/+", &["/a", "/"], &["a", "/a/b"]);
        check("+/+", &["/a", "a/", "a/b"], &["a", "$SYS/a"]);
        check("+/#", &["a", "a/b/c"], &["$SYS/a"]);
        check("a/#", &["a", "a/", "a/b/c"], &["ab", "b", "/a"]);
        check("a/+/b", &["a/x/b", "a//b"], &["a/b", "a/x/y/b"]);
        check("$SYS/#", &["$SYS", "$SYS/a"], &["SYS/a"]);
        check("$SYS/+", &["$SYS/a"], &["$SYS", "$SYS/a/b"]);
        check("a/$x", &["a/$x"], &["a"]);
        check("a/+", &["a/$x"], &[]);
        check("a", &["a"], &["A", "a/", "/a"]);
    }

    #[test]
    fn covering_and_intersecting() {
        #[track_caller]
        fn check(ours: &str, theirs: &str, covers: bool, intersects: bool) {
            assert_eq!(filter(ours).covers(&filter(theirs)), covers, "{ours} covers {theirs}");
            assert_eq!(filter(ours).intersects(&filter(theirs)), intersects, "{ours} intersects {theirs}");
            assert_eq!(filter(theirs).intersects(&filter(ours)), intersects, "{theirs} intersects {ours}");
        }
        check("#", "a/+/b", true, true);
        check("a/+/b", "#", false, true);
        check("+/#", "#", true, true);
        check("#", "+/#", true, true);
        check("a/+/#", "a/#", false, true);
        check("a/#", "a", true, true);
        check("a/#", "a/+/#", true, true);
        check("+", "a", true, true);
        check("+", "+/+", false, false);
        check("+/a", "b/+", false, true);
        check("a/b", "a/c", false, false);
        check("#", "$SYS/a", false, false);
        check("+/a", "$SYS/a", false, false);
        check("$SYS/#", "$SYS/a", true, true);
        check("$SYS/#", "#", false, false);
        check("a/+", "a/#", false, true);
        check("a", "a/+", false, false);
        check("/+/#", "/#", true, true);
        check("+", "/#", false, false);
    }

    #[test]
    fn a_topic_of_the_greatest_depth() {
        let deep = "/".repeat(65_535);
        assert!(filter(&deep).matches(&name(&deep)));
        assert!(filter("#").matches(&name(&deep)));
        assert!(filter(&deep).covers(&filter(&deep)) && filter(&deep).intersects(&filter("+/#")));
    }

    /// All topics of up to three levels out of a few names, enough to tell any two of the generated filters apart.
    fn all_topics() -> Vec<TopicName> {
        let levels = ["", "a", "b", "$x"];
        let mut topics: Vec<String> = levels.iter().map(|&level| level.into()).collect();
        let mut last = topics.clone();
        for _ in 0..3 {
            last = last.iter().flat_map(|topic| levels.map(|level| format!("{topic}/{level}"))).collect();
            topics.extend(last.iter().cloned());
        }
        topics.iter().filter_map(|topic| TopicName::parse(topic).ok()).collect()
    }

    proptest! {
        #[test]
        fn covers_and_intersects_agree_with_matches(ours in "(\\+|a|\\$x)?(/(\\+|a)?){0,2}(/#)?", theirs in "(\\+|a|\\$x)?(/(\\+|a)?){0,2}(/#)?") {
            let (Ok(ours), Ok(theirs)) = (TopicFilter::parse(&ours), TopicFilter::parse(&theirs)) else { return Ok(()) };
            let topics = all_topics();
            let covers = topics.iter().all(|topic| ours.matches(topic) || !theirs.matches(topic));
            let intersects = topics.iter().any(|topic| ours.matches(topic) && theirs.matches(topic));
            prop_assert_eq!(ours.covers(&theirs), covers);
            prop_assert_eq!(ours.intersects(&theirs), intersects);
        }

        #[test]
        fn parsing_never_panics(text in ".{0,40}") {
            if let Ok(filter) = Filter::parse(&text) {
                prop_assert_eq!(filter.to_string(), text);
            }
        }
    }
}
