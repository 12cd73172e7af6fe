//! The lines of an ACL file.
//!
//! Knows the syntax alone; must not know which rule wins.
//!
//! The syntax is mosquitto's: `user NAME`, `topic [read|write|readwrite|deny] FILTER`, `pattern` likewise, and comments
//! that begin with `#`. Names and filters may contain spaces; a filter that does needs its access word. Words may also be
//! separated by tabs, and comments be indented. A filter that reads like an access word needs one before it: mosquitto would take
//! `topic deny` for a grant of the topic `deny`.

use super::acl::Access;
use super::file::{FileError, Line};
use crate::mqtt::{Shown, TopicFilter};

/// What a line says.
#[derive(Debug)]
pub(super) enum Statement<'a> {
    /// The following `topic` lines are this user's.
    User(&'a str),
    Topic(Permission, TopicFilter),
    /// The filter has yet to be filled with names.
    Pattern(Permission, TopicFilter),
}

/// The access word of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Read,
    Write,
    ReadWrite,
    Deny,
}

impl Permission {
    fn named(word: &str) -> Option<Self> {
        match word {
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            "readwrite" => Some(Self::ReadWrite),
            "deny" => Some(Self::Deny),
            _ => None,
        }
    }

    /// Whether a rule with this word decides about `access` to the topics that it matches.
    pub(super) fn concerns(self, access: Access) -> bool {
        match self {
            Self::Read => access == Access::Receive,
            Self::Write => access == Access::Publish,
            Self::ReadWrite | Self::Deny => true,
        }
    }
}

/// The statement of `line`; none on an empty line and a comment.
pub(super) fn statement<'a>(line: &Line<'a>) -> Result<Option<Statement<'a>>, FileError> {
    if line.text.is_empty() || line.text.starts_with('#') {
        return Ok(None);
    }
    let (keyword, rest) = split_word(line.text);
    match keyword {
        "user" if rest.is_empty() => Err(line.fault(line.text.len(), "no user name; write: user NAME")),
        "user" => Ok(Some(Statement::User(rest))),
        "topic" => rule(line, keyword, rest).map(|(permission, filter)| Some(Statement::Topic(permission, filter))),
        "pattern" => rule(line, keyword, rest).map(|(permission, filter)| Some(Statement::Pattern(permission, filter))),
        _ => {
            let word = Shown(keyword);
            Err(line.fault(0, format!("unknown word \"{word}\"; a line begins with user, topic, pattern or #")))
        }
    }
}

fn rule(line: &Line<'_>, keyword: &str, rest: &str) -> Result<(Permission, TopicFilter), FileError> {
    let column_of = |part: &str| line.text.len() - part.len();
    let (word, filter) = split_word(rest);
    let (permission, filter) = match (Permission::named(word), filter) {
        (_, "") if word.is_empty() => {
            let usage = format!("no topic; write: {keyword} [read|write|readwrite|deny] FILTER");
            return Err(line.fault(line.text.len(), usage));
        }
        (Some(_), "") => {
            let problem =
                format!("no topic after {word:?}; if the topic is named so, write: {keyword} readwrite {word}");
            return Err(line.fault(column_of(rest), problem));
        }
        (None, "") => (Permission::ReadWrite, word),
        (Some(permission), filter) => (permission, filter),
        (None, _) => {
            let word = Shown(word);
            let problem = format!(
                "\"{word}\" is no access; write read, write, readwrite or deny there, also before a topic with spaces in it"
            );
            return Err(line.fault(column_of(rest), problem));
        }
    };
    let filter = TopicFilter::parse(filter).map_err(|error| {
        let shown = Shown(filter);
        let problem =
            format!("\"{shown}\" is no topic filter: {error}; + stands alone in its level, # alone in the last");
        line.fault(column_of(filter), problem)
    })?;
    Ok((permission, filter))
}

/// The first word, and what follows the blanks after it.
fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    (word, rest.trim_ascii_start())
}
