//! What a commit survives: by the store as a whole, and by topic.
//!
//! Plain values. Must not know how a commit is made, nor who waits for it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::mqtt::{Filter, TopicFilter, TopicName};

/// How much the store survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The loss of power: acknowledgements wait for the disk.
    #[default]
    Fsync,
    /// The death of the process: acknowledgements wait for the operating system.
    Os,
    /// Nothing.
    Memory,
}

impl Durability {
    /// As it is written in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Os => "os",
            Self::Memory => "memory",
        }
    }

    /// What a commit waits for where no rule says otherwise.
    #[must_use]
    pub fn level(self) -> Level {
        match self {
            Self::Fsync => Level::Fsync,
            Self::Os | Self::Memory => Level::Os,
        }
    }
}

/// What a commit waits for. The higher one includes the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The operating system has it.
    Os,
    /// The disk has it.
    Fsync,
}

/// Topics whose messages are as durable as a rule says, not as the store is (`[durability]`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// `[[durability.rule]]`, in the order of the file.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The topics.
    #[serde(deserialize_with = "filter_of", serialize_with = "text_of")]
    pub filter: TopicFilter,
    /// What the acknowledgement of a message to one of them waits for.
    pub level: Level,
}

impl Rules {
    /// The rule for `topic`, and which it is: the first that matches, if any does.
    #[must_use]
    pub fn of(&self, topic: &TopicName) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.filter.matches(topic))
    }
}

fn filter_of<'de, D: Deserializer<'de>>(from: D) -> Result<TopicFilter, D::Error> {
    struct Visitor;

    impl de::Visitor<'_> for Visitor {
        type Value = TopicFilter;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a topic filter")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<TopicFilter, E> {
            let filter =
                Filter::parse(text).map_err(|error| E::custom(format!("{text:?} is no topic filter: {error}")))?;
            if filter.is_shared() {
                let problem =
                    format!("a rule is about topics, not about who shares them: write {:?}", filter.filter.as_str());
                return Err(E::custom(problem));
            }
            Ok(filter.filter)
        }
    }

    from.deserialize_str(Visitor)
}

fn text_of<S: Serializer>(filter: &TopicFilter, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(filter.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_holds() {
        let rule = |filter: &str, level| Rule { filter: TopicFilter::parse(filter).unwrap(), level };
        let rules =
            Rules { rules: vec![rule("a/+/alarm", Level::Fsync), rule("a/#", Level::Os), rule("a/b", Level::Fsync)] };
        for (topic, expected) in [
            ("a/1/alarm", Some((0, Level::Fsync))),
            ("a/1/alarm/2", Some((1, Level::Os))),
            ("a", Some((1, Level::Os))),
            ("a/b", Some((1, Level::Os))),
            ("b", None),
        ] {
            let found = rules.of(&TopicName::parse(topic).unwrap()).map(|(at, rule)| (at, rule.level));
            assert_eq!(found, expected, "{topic}");
        }
        let all = Rules { rules: vec![rule("#", Level::Os)] };
        assert!(all.of(&TopicName::parse("$SYS/x").unwrap()).is_none(), "as a subscription would match");
    }
}
