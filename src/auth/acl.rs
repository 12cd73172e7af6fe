//! ACL rules with mosquitto's meaning, and the verdicts that follow from them.
//!
//! Knows topics and names; must not know how a name was proven, nor what a broker does with a denial.
//!
//! A client is subject to the `topic` rules of its own `user` blocks (an anonymous client: to those before the first `user`
//! line), and to all `pattern` rules. They are asked in this order, wherever they stand in the file, and the first one that
//! matches the topic and speaks of the access decides: own `deny`, own grants, pattern `deny`, pattern grants. What none
//! speaks of is denied. So an own grant overrides a `pattern deny`, and `deny` always forbids both reading and writing.
//!
//! Where Pinnace is stricter than mosquitto 2.0:
//! - A subscription is refused when nothing that its filter can match may be received; mosquitto grants each.
//! - A client id that contains `/` fills no granting pattern unless [`Options`] says so, and no name whose first character is
//!   `$` leads a granting pattern into the `$` topics. A denying pattern takes both as they are.
//! - The empty user name is not an anonymous client: it has no rules of its own, and fills no granting pattern.
//! - Nobody publishes to `$SYS` or `$CONTROL`, not even to the `state` topics of bridges.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;

use super::acl_file::{self, Permission, Statement};
use super::{FileError, file};
use crate::mqtt::{TopicFilter, TopicName};

/// The one that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who<'a> {
    /// None for an anonymous client.
    pub username: Option<&'a str>,
    /// The client id in use, be it chosen by the client or assigned by the broker.
    pub client_id: &'a str,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To publish to a topic, by PUBLISH or by a Will: mosquitto's `write`.
    Publish,
    /// To be sent a message of a topic: mosquitto's `read`.
    Receive,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The line of the rule that decided. None where no rule did: denied since nothing allows it, or allowed since there is no
    /// file.
    pub line: Option<NonZeroU32>,
}

/// Where the meaning of a file is the operator's choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether a client id that contains `/` may stand in the place of `%c` in a pattern that grants.
    pub client_id_with_slash_fills_pattern: bool,
}

/// The rules of one ACL file.
#[derive(Debug, Default)]
pub struct Acl {
    users: HashMap<Box<str>, Rules<TopicFilter>>,
    anonymous: Rules<TopicFilter>,
    patterns: Rules<Pattern>,
    options: Options,
}

impl Acl {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, or a line is not right.
    pub fn load(path: &Path, options: Options) -> Result<Self, FileError> {
        Self::parse(&file::read(path)?, path, options)
    }

    /// Reads `text`, the content of the file at `path`.
    ///
    /// # Errors
    /// A line is not right.
    pub fn parse(text: &[u8], path: &Path, options: Options) -> Result<Self, FileError> {
        let mut acl = Self { options, ..Self::default() };
        let mut user = None;
        for line in file::lines(text, path)? {
            match acl_file::statement(&line)? {
                None => {}
                Some(Statement::User(name)) => user = Some(name),
                Some(Statement::Topic(permission, filter)) => {
                    let rules = match user {
                        None => &mut acl.anonymous,
                        Some(name) => acl.users.entry(name.into()).or_default(),
                    };
                    rules.add(Rule { line: line.number, permission, what: filter });
                }
                Some(Statement::Pattern(permission, filter)) => {
                    acl.patterns.add(Rule { line: line.number, permission, what: Pattern::new(filter.as_str()) });
                }
            }
        }
        Ok(acl)
    }

    /// Whether there is no rule at all: nobody may do anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // A user without rules has no entry.
        self.users.is_empty() && self.anonymous.iter().next().is_none() && self.patterns.iter().next().is_none()
    }

    /// Whether `who` may publish or receive `topic`. Nobody may publish to `$SYS` or `$CONTROL`.
    #[must_use]
    pub fn verdict(&self, who: Who<'_>, access: Access, topic: &TopicName) -> Verdict {
        decide(self.in_order(who), access, topic)
    }

    /// The rules that hold for `who`, ready to be asked for many topics.
    #[must_use]
    pub fn judge(&self, who: Who<'_>) -> Judge<'_> {
        Judge(self.in_order(who).collect())
    }

    /// Whether `who` may receive some topic that `filter` matches. A shared subscription is asked for by the filter behind its
    /// `$share/name/`.
    ///
    /// Where it may not, the line is that of a `deny` that stands against all that would be granted.
    #[must_use]
    pub fn may_subscribe(&self, who: Who<'_>, filter: &TopicFilter) -> Verdict {
        let mut denies = Vec::new();
        let mut in_the_way = None;
        for rule in self.in_order(who).filter(|rule| rule.permission.concerns(Access::Receive)) {
            if rule.permission == Permission::Deny {
                denies.push(rule);
                continue;
            }
            let Some(common) = Overlap::of(filter, &rule.what) else { continue };
            match common.covered_by(&denies) {
                None => return rule.verdict(),
                Some(deny) => in_the_way = in_the_way.or(Some(deny)),
            }
        }
        Verdict { allowed: false, line: in_the_way }
    }

    /// Whether `who` may receive all topics that `filter` matches: a single rule grants them, and no `deny` that comes before it concerns any.
    #[must_use]
    pub fn may_receive_all(&self, who: Who<'_>, filter: &TopicFilter) -> bool {
        for rule in self.in_order(who).filter(|rule| rule.permission.concerns(Access::Receive)) {
            match rule.permission {
                Permission::Deny if rule.what.intersects(filter) => return false,
                Permission::Deny => {}
                _ if rule.what.covers(filter) => return true,
                _ => {}
            }
        }
        false
    }

    /// All rules that hold for `who`, in the order in which they decide.
    fn in_order<'a>(&'a self, who: Who<'_>) -> impl Iterator<Item = Rule<Cow<'a, TopicFilter>>> {
        let own = match who.username {
            None => Some(&self.anonymous),
            Some(name) => self.users.get(name),
        };
        let own = own.into_iter().flat_map(Rules::iter).map(|rule| rule.with(Cow::Borrowed(&rule.what)));
        let patterns = Some(&self.patterns).filter(|_| who.may_fill_patterns());
        let patterns = patterns.into_iter().flat_map(Rules::iter);
        let filled = patterns.filter_map(move |rule| {
            let filter = rule.what.fill(who, rule.permission, self.options)?;
            Some(rule.with(Cow::Owned(filter)))
        });
        own.chain(filled)
    }
}

impl Who<'_> {
    /// A name with a wildcard would make a filter out of a topic: it fills no pattern, and none holds for its owner.
    fn may_fill_patterns(&self) -> bool {
        let dangerous = |name: &str| name.contains(['+', '#', '\0']);
        !dangerous(self.client_id) && !self.username.is_some_and(dangerous)
    }
}

/// The rules that hold for one client, with the names in their places: what [`Acl::verdict`] works out anew for each topic.
#[derive(Debug)]
pub struct Judge<'a>(Vec<Rule<Cow<'a, TopicFilter>>>);

impl Judge<'_> {
    /// As [`Acl::verdict`].
    #[must_use]
    pub fn verdict(&self, access: Access, topic: &TopicName) -> Verdict {
        decide(self.0.iter(), access, topic)
    }
}

/// What the first of `rules` says that is about this.
fn decide<'a, R>(mut rules: impl Iterator<Item = R>, access: Access, topic: &TopicName) -> Verdict
where
    R: Borrow<Rule<Cow<'a, TopicFilter>>>,
{
    if is_reserved(access, topic) {
        return NOTHING_ALLOWS;
    }
    let decided = rules.find(|rule| {
        let rule = rule.borrow();
        rule.permission.concerns(access) && rule.what.matches(topic)
    });
    decided.map_or(NOTHING_ALLOWS, |rule| rule.borrow().verdict())
}

/// Whether nobody may do that, whatever a file says.
pub(super) fn is_reserved(access: Access, topic: &TopicName) -> bool {
    let topic = topic.as_str();
    access == Access::Publish && (topic.starts_with("$SYS") || topic.starts_with("$CONTROL"))
}

/// Rules in the order in which they decide among themselves: all `deny` first.
#[derive(Debug)]
struct Rules<T> {
    denies: Vec<Rule<T>>,
    grants: Vec<Rule<T>>,
}

impl<T> Rules<T> {
    fn add(&mut self, rule: Rule<T>) {
        match rule.permission {
            Permission::Deny => self.denies.push(rule),
            _ => self.grants.push(rule),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Rule<T>> {
        self.denies.iter().chain(&self.grants)
    }
}

impl<T> Default for Rules<T> {
    fn default() -> Self {
        Self { denies: Vec::new(), grants: Vec::new() }
    }
}

#[derive(Debug)]
struct Rule<T> {
    line: NonZeroU32,
    permission: Permission,
    what: T,
}

impl<T> Rule<T> {
    fn with<U>(&self, what: U) -> Rule<U> {
        Rule { line: self.line, permission: self.permission, what }
    }

    fn verdict(&self) -> Verdict {
        Verdict { allowed: self.permission != Permission::Deny, line: Some(self.line) }
    }
}

/// A filter with places for names.
#[derive(Debug)]
struct Pattern(Vec<Part>);

#[derive(Debug)]
enum Part {
    Literal(Box<str>),
    Username,
    ClientId,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((place, part)) = [("%u", Part::Username), ("%c", Part::ClientId)]
            .into_iter()
            .filter_map(|(mark, part)| Some((rest.find(mark)?, part)))
            .min_by_key(|(place, _)| *place)
        {
            let (literal, marked) = rest.split_at(place);
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.into()));
            }
            parts.push(part);
            rest = marked.get(2..).unwrap_or_default();
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.into()));
        }
        Self(parts)
    }

    /// The filter for `who`, if the names may stand in their places.
    fn fill(&self, who: Who<'_>, permission: Permission, options: Options) -> Option<TopicFilter> {
        let grants = permission != Permission::Deny;
        let mut filled = String::new();
        for part in &self.0 {
            let name = match part {
                Part::Literal(text) => {
                    filled.push_str(text);
                    continue;
                }
                Part::Username => who.username?,
                Part::ClientId => {
                    if grants && !options.client_id_with_slash_fills_pattern && who.client_id.contains('/') {
                        return None;
                    }
                    who.client_id
                }
            };
            if grants && (name.is_empty() || filled.is_empty() && name.starts_with('$')) {
                return None;
            }
            filled.push_str(name);
        }
        TopicFilter::parse(&filled).ok()
    }
}

/// The topics that two filters both match: again what a filter matches.
#[derive(Debug, PartialEq, Eq)]
struct Overlap<'a> {
    /// The levels before a `#`.
    levels: Vec<&'a str>,
    /// Whether a `#` follows.
    open: bool,
}

impl<'a> Overlap<'a> {
    fn of(one: &'a TopicFilter, other: &'a TopicFilter) -> Option<Self> {
        let (mut one, mut other) = (one.as_str().split('/').peekable(), other.as_str().split('/').peekable());
        let wild = |level: &str| level == "+" || level == "#";
        match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if a.starts_with('$') && wild(b) || b.starts_with('$') && wild(a) => return None,
            _ => {}
        }
        let mut levels = Vec::new();
        loop {
            match (one.next(), other.next()) {
                (None | Some("#"), None) | (None, Some("#")) => return Some(Self { levels, open: false }),
                (Some("#"), Some(level)) => return Some(Self::rest(levels, level, other)),
                (Some(level), Some("#")) => return Some(Self::rest(levels, level, one)),
                (Some("+"), Some(level)) | (Some(level), Some("+")) => levels.push(level),
                (Some(a), Some(b)) if a == b => levels.push(a),
                _ => return None,
            }
        }
    }

    /// What a `#` meets: all levels of the other filter from `level` on.
    fn rest(mut levels: Vec<&'a str>, level: &'a str, others: impl Iterator<Item = &'a str>) -> Self {
        levels.push(level);
        levels.extend(others);
        let open = levels.pop_if(|last| *last == "#").is_some();
        Self { levels, open }
    }

    /// The line of one of `denies`, if all of them together leave nothing.
    ///
    /// A level can hold any text, so there is a topic with a text in each `+` that no rule names: of the topics of one
    /// length either that one is left, or a single rule covers them all. Beyond the longest rule all lengths are alike.
    fn covered_by(&self, denies: &[Rule<Cow<'_, TopicFilter>>]) -> Option<NonZeroU32> {
        let first = self.levels.len().max(1);
        let longest = denies.iter().map(|deny| deny.what.as_str().split('/').count()).max()?;
        let last = if self.open { first.max(longest.saturating_add(1)) } else { first };
        let mut line = None;
        for length in first..=last {
            let levels: Vec<&str> = self.levels.iter().copied().chain(std::iter::repeat("+")).take(length).collect();
            let Ok(alike) = TopicFilter::parse(&levels.join("/")) else { continue };
            line = Some(denies.iter().find(|deny| deny.what.covers(&alike))?.line);
        }
        line
    }
}

const NOTHING_ALLOWS: Verdict = Verdict { allowed: false, line: None };

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn acl(text: &str) -> Acl {
        Acl::parse(text.as_bytes(), Path::new("acl"), Options::default()).unwrap()
    }

    fn topic(text: &str) -> TopicName {
        TopicName::parse(text).unwrap()
    }

    fn who<'a>(username: &'a str, client_id: &'a str) -> Who<'a> {
        Who { username: Some(username).filter(|name| *name != "-"), client_id }
    }

    /// Each case: user name (`-` for none), client id, access (`p`, `r` or `s` for subscribe), topic or filter, the deciding
    /// line with `+` for allowed and `-` for denied, 0 where no rule decides.
    type Case<'a> = (&'a str, &'a str, char, &'a str, i64);

    fn check(acl: &Acl, cases: &[Case<'_>]) {
        for &(username, client_id, kind, text, expected) in cases {
            let who = who(username, client_id);
            let verdict = match kind {
                'p' => acl.verdict(who, Access::Publish, &topic(text)),
                'r' => acl.verdict(who, Access::Receive, &topic(text)),
                _ => acl.may_subscribe(who, &TopicFilter::parse(text).unwrap()),
            };
            for (letter, access) in [('p', Access::Publish), ('r', Access::Receive)] {
                assert!(letter != kind || acl.judge(who).verdict(access, &topic(text)) == verdict);
            }
            let line = i64::from(verdict.line.map_or(0, NonZeroU32::get));
            let decided = if verdict.allowed { line } else { -line };
            assert_eq!(decided, expected, "{username} {client_id} {kind} {text}");
            assert!(!verdict.allowed || line > 0);
        }
    }

    #[test]
    fn rules_belong_to_the_user_above_them() {
        let acl = acl(
            "topic read news/#\n\nuser alice\ntopic a/+\ntopic write w\nuser bob smith\ntopic read b\nuser alice\ntopic read again",
        );
        check(
            &acl,
            &[
                ("-", "c", 'r', "news", 1),
                ("-", "c", 'r', "news/x/y", 1),
                ("-", "c", 'p', "news/x", 0),
                ("-", "c", 'r', "a/x", 0),
                ("alice", "c", 'r', "news/x", 0),
                ("alice", "c", 'r', "a/x", 4),
                ("alice", "c", 'p', "a/x", 4),
                ("alice", "c", 'p', "a/x/y", 0),
                ("alice", "c", 'p', "w", 5),
                ("alice", "c", 'r', "w", 0),
                ("alice", "c", 'r', "again", 9),
                ("bob smith", "c", 'r', "b", 7),
                ("bob", "c", 'r', "b", 0),
                ("Alice", "c", 'r', "a/x", 0),
                ("nobody", "c", 'r', "news", 0),
                ("", "c", 'r', "news", 0),
            ],
        );
        check(&self::acl(""), &[("-", "c", 'r', "a", 0), ("alice", "c", 'p', "a", 0), ("alice", "c", 's', "#", 0)]);
    }

    #[test]
    fn own_rules_come_before_patterns_and_denies_before_grants() {
        let acl = acl(
            "pattern readwrite t/%u/#\npattern deny t/+/locked\nuser u\ntopic readwrite x/#\ntopic deny x/no\ntopic read t/u/locked\ntopic deny t/u/own",
        );
        check(
            &acl,
            &[
                ("u", "c", 'r', "x/yes", 4),
                ("u", "c", 'r', "x/no", -5),
                ("u", "c", 'p', "x/no", -5),
                ("u", "c", 'r', "t/u/a", 1),
                ("u", "c", 'r', "t/u/locked", 6), // an own grant overrides a pattern's deny
                ("u", "c", 'p', "t/u/locked", -2),
                ("u", "c", 'r', "t/u/own", -7),
                ("v", "c", 'r', "t/v/locked", -2),
                ("v", "c", 'r', "t/v/other", 1),
                ("v", "c", 'r', "t/u/a", 0),
            ],
        );
    }

    /// Cases D107, D111, D115.
    #[test]
    fn names_fill_patterns() {
        let text = "pattern u/%u/#\npattern read c/%c/#\npattern write both/%c/%u\npattern x%u%cx\npattern all\npattern deny c/%c/%c/no";
        let acl = acl(text);
        check(
            &acl,
            &[
                ("dev/a", "id", 'p', "u/dev/a/x", 1),
                ("dev/a", "id", 'p', "u/dev/b/x", 0),
                ("a", "id", 'r', "c/id", 2),
                ("a", "id", 'p', "c/id", 0),
                ("a", "id", 'p', "both/id/a", 3),
                ("a", "id", 'r', "xaidx", 4),
                ("a", "id", 'r', "all", 5),
                ("a", "id", 'r', "c/id/id/no", -6),
                ("%c", "id", 'r', "u/%c/x", 1),
                ("%c", "id", 'r', "u/id/x", 0), // a name is filled in once
                // Anonymous: %c alone.
                ("-", "id", 'r', "c/id/x", 2),
                ("-", "id", 'p', "u/-/x", 0),
                ("-", "id", 'p', "both/id/-", 0),
                ("-", "id", 'r', "all", 5),
                // An id of the client's choice stays in its own level, but a deny holds for it as it is.
                ("a", "victim/x", 'r', "c/victim/x/y", 0),
                ("a", "victim/x", 'p', "both/victim/x/a", 0),
                ("a", "victim/x", 'r', "c/victim/x/victim/x/no", -6),
                ("a", "victim/x", 'p', "u/a/x", 1),
                // Names that are filters.
                ("+", "id", 'r', "u/a/x", 0),
                ("#", "id", 'r', "c/id/x", 0),
                ("a", "+", 'r', "c/id/x", 0),
                ("a", "+", 'r', "u/a/x", 0),
                ("a", "#", 'r', "all", 0),
                ("a\0", "id", 'r', "c/id/x", 0),
                // Empty names.
                ("", "id", 'r', "u//x", 0),
                ("", "id", 'r', "c/id/x", 2),
            ],
        );
        let options = Options { client_id_with_slash_fills_pattern: true };
        let literal = Acl::parse(text.as_bytes(), Path::new("acl"), options).unwrap();
        check(
            &literal,
            &[
                ("a", "victim/x", 'r', "c/victim/x/y", 2),
                ("a", "victim/x", 'p', "both/victim/x/a", 3),
                ("a", "x/+", 'r', "c/x/y", 0),
            ],
        );
    }

    #[test]
    fn dollar_topics_need_a_rule_that_says_so() {
        let acl =
            acl("user u\ntopic #\ntopic +/a\nuser sys\ntopic $SYS/#\nuser x\ntopic $x/+\npattern %c/#\npattern %u/#");
        check(
            &acl,
            &[
                ("u", "c", 'r', "$SYS/a", 0),
                ("u", "c", 'r', "$x/a", 0),
                ("u", "c", 'r', "x/$a", 2),
                ("u", "c", 's', "$SYS/#", 0),
                ("u", "c", 's', "$SYS/broker/uptime", 0),
                ("sys", "c", 'r', "$SYS/a/b", 5),
                ("sys", "c", 's', "$SYS/+", 5),
                ("sys", "c", 'p', "$SYS/a", 0),
                ("sys", "c", 'r', "a", 0),
                ("sys", "c", 's', "#", 8),
                ("sys", "c", 's', "+/x", 8),
                ("x", "c", 'p', "$x/a", 7),
                ("o", "$SYS", 'r', "$SYS/a", 0),
                ("$SYS", "c", 'r', "$SYS/a", 0),
                ("o", "$SYS", 's', "$SYS/a", 0),
            ],
        );
    }

    /// Cases D105, D143; mosquitto's own blanks.
    #[test]
    fn blanks_and_line_ends_change_nothing() {
        let cases: &[Case<'_>] = &[
            ("u v", "c", 'r', "a b/c", 3),
            ("u v", "c", 'p', "a b/c", 0),
            ("u v", "c", 'p', "w", 4),
            ("u v", "c", 'r', "t/c", 5),
        ];
        for text in [
            "# comment\nuser u v\ntopic read a b/c\ntopic w\npattern read t/%c\n",
            "# comment\r\nuser u v\r\ntopic read a b/c\r\ntopic w\r\npattern read t/%c\r\n",
            "\u{feff}# comment\n  user   u v  \ntopic  read   a b/c\t\n\ttopic\tw\npattern\tread\t t/%c",
            "   # comment\nuser\tu v\n topic read\ta b/c\ntopic readwrite w\r\npattern read t/%c \t\r\n",
        ] {
            check(&acl(text), cases);
        }
    }

    #[test]
    fn a_wrong_line_has_its_place_and_its_remedy() {
        let cases = [
            ("topic", "acl:1:6: no topic; write: topic [read|write|readwrite|deny] FILTER"),
            ("\n  pattern ", "acl:2:10: no topic; write: pattern [read|write|readwrite|deny] FILTER"),
            ("topic deny", "acl:1:7: no topic after \"deny\"; if the topic is named so, write: topic readwrite deny"),
            (
                "user u\n topic all a",
                "acl:2:8: \"all\" is no access; write read, write, readwrite or deny there, also before a topic with spaces in it",
            ),
            ("user", "acl:1:5: no user name; write: user NAME"),
            ("users a", "acl:1:1: unknown word \"users\"; a line begins with user, topic, pattern or #"),
            (
                "topic read a\nTopic read b",
                "acl:2:1: unknown word \"Topic\"; a line begins with user, topic, pattern or #",
            ),
        ];
        for (text, error) in cases {
            let fault = Acl::parse(text.as_bytes(), Path::new("acl"), Options::default()).unwrap_err();
            assert_eq!(fault.to_string(), error);
        }
        // A file that is no text at all may hold words without end: their beginning is quoted.
        for before in ["", "topic ", "topic read #"] {
            let text = format!("{before}{} x", "w".repeat(500_000));
            let fault = Acl::parse(text.as_bytes(), Path::new("acl"), Options::default()).unwrap_err().to_string();
            assert!(fault.len() < 400 && fault.contains("bytes)"), "{}", fault.len());
        }
        for (text, place) in [
            ("topic read ä/b+", "acl:1:12: "),
            ("topic a/#/b", "acl:1:7: "),
            ("pattern a/#%u", "acl:1:9: "),
            ("topic read a # b", "acl:1:12: "),
        ] {
            let fault = Acl::parse(text.as_bytes(), Path::new("acl"), Options::default()).unwrap_err().to_string();
            assert!(fault.starts_with(place) && fault.contains("is no topic filter"), "{fault}");
        }
    }

    /// Case D106: the caller asks for the filter behind `$share/name/`.
    #[test]
    fn a_subscription_is_refused_when_it_could_bring_nothing() {
        let acl = acl(
            "user u\ntopic read a/+/c\ntopic write w/#\ntopic deny a/x/c\nuser d\ntopic read t/#\ntopic deny t/+/#\nuser e\ntopic read t/#\ntopic deny t/#\npattern read p/%c/#\npattern deny p/+/no/#",
        );
        check(
            &acl,
            &[
                ("u", "c", 's', "a/b/c", 2),
                ("u", "c", 's', "#", 2),
                ("u", "c", 's', "+/+/+", 2),
                ("u", "c", 's', "a/#", 2),
                ("u", "c", 's', "a/+/c/#", 2),
                ("u", "c", 's', "+/+", 11),
                ("u", "c", 's', "a/b", 0),
                ("u", "c", 's', "a/x/c", -4),
                ("u", "c", 's', "a/x/#", -4),
                ("u", "c", 's', "w/#", 0),
                ("d", "c", 's', "t/#", 6), // t itself is left
                ("d", "c", 's', "t", 6),
                ("d", "c", 's', "t/a", -7),
                ("e", "c", 's', "t/#", -10),
                ("e", "c", 's', "p/c/no/x", -12),
                ("e", "c", 's', "p/c/+", 11),
                ("e", "c", 's', "p/+/no", -12),
                ("e", "c", 's', "p/d/#", 0),
                ("e", "c", 's', "$SYS/#", 0),
            ],
        );
    }

    #[test]
    fn all_of_a_subtree_may_be_received_where_nothing_of_it_is_denied() {
        let acl = acl(
            "user u\ntopic read a/#\ntopic write b/#\ntopic deny a/x/secret\ntopic read c/+/d\npattern readwrite r/%c/#\npattern deny a/y/#",
        );
        for (filter, allowed) in [
            ("a/z/#", true),
            ("a/x/#", false),
            ("a/#", false),
            ("b/z/#", false),
            ("c/z/#", false),
            ("c/z/d", true),
            ("r/me/#", true),
            ("r/other/#", false),
            // A user's own rules come first.
            ("a/y/#", true),
        ] {
            let filter = TopicFilter::parse(filter).unwrap();
            assert_eq!(acl.may_receive_all(who("u", "me"), &filter), allowed, "{filter}");
        }
    }

    #[test]
    fn the_example_holds_a_fleet_apart() {
        let path = Path::new("config/acl.example");
        let acl = Acl::parse(include_bytes!("../../config/acl.example"), path, Options::default()).unwrap();
        for (username, access, text, allowed) in [
            ("device-1", Access::Publish, "devices/device-1/state/on", true),
            ("device-1", Access::Receive, "devices/device-1/orders/reboot", true),
            ("device-1", Access::Receive, "devices/device-2/orders/reboot", false),
            ("device-1", Access::Publish, "devices/device-2/state/on", false),
            ("backend", Access::Publish, "devices/device-2/orders/reboot", true),
            ("dashboard", Access::Receive, "devices/device-1/state/on", true),
            ("dashboard", Access::Receive, "devices/device-1/events/door/open", false),
            ("-", Access::Receive, "devices/device-1/state/on", false),
        ] {
            assert_eq!(
                acl.verdict(who(username, "c"), access, &topic(text)).allowed,
                allowed,
                "{username} {access:?} {text}"
            );
        }
    }

    #[test]
    fn depth_and_length_are_no_trouble() {
        let deep = format!("a{}", "/+".repeat(32_000));
        let acl = acl(&format!("topic read {deep}\ntopic deny a/#\npattern deny %c/%c"));
        let id = "x".repeat(65_535);
        check(&acl, &[("-", "c", 's', &deep, -2), ("-", &id, 's', "#", -2), ("-", "c", 's', &format!("{deep}/#"), -2)]);
    }

    proptest! {
        #[test]
        fn a_subscription_is_granted_exactly_when_some_topic_is(
            rules in prop::collection::vec(("(topic|pattern)", "(read|deny|write)", rule_filter()), 1..8),
            filter in rule_filter(),
        ) {
            let lines: Vec<String> = rules.iter().map(|(kind, access, filter)| format!("{kind} {access} {filter}")).collect();
            let acl = acl(&lines.join("\n"));
            let filter = TopicFilter::parse(&filter).unwrap();
            let receivable = |topic: &&TopicName| filter.matches(topic) && acl.verdict(who("-", "c"), Access::Receive, topic).allowed;
            let topics = all_topics();
            let some = topics.iter().find(receivable);
            prop_assert_eq!(acl.may_subscribe(who("-", "c"), &filter).allowed, some.is_some(), "{:?} {} {:?}", lines, filter, some);
        }

        #[test]
        fn no_file_makes_it_panic(text in prop::collection::vec(any::<u8>(), 0..200), words in "((user|topic|pattern|read|deny|%u|%c|[+#/a \t])[ /]?){0,12}") {
            let _ = Acl::parse(&text, Path::new("acl"), Options::default());
            let _ = Acl::parse(words.as_bytes(), Path::new("acl"), Options::default());
        }
    }

    fn rule_filter() -> impl Strategy<Value = String> {
        prop_oneof![9 => "(\\+|a|b)(/(\\+|a|b)){0,2}(/#)?", 1 => Just("#".to_owned()), 1 => "\\$x(/a)?(/#)?"]
    }

    /// All topics of up to five levels of `a`, `b` and one that no rule names, and some under `$x`.
    fn all_topics() -> Vec<TopicName> {
        let mut all = vec!["a".to_owned(), "b".to_owned(), "z".to_owned(), "$x".to_owned()];
        let mut longest = all.clone();
        for _ in 1..5 {
            longest =
                longest.iter().flat_map(|start| ["a", "b", "z"].map(|level| format!("{start}/{level}"))).collect();
            all.extend_from_slice(&longest);
        }
        all.iter().map(|text| topic(text)).collect()
    }
}
