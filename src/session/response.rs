//! Response Information (3.1.2.11.6): the topic under which one client may be answered.
//!
//! Must not know whether the client may use it.

use crate::mqtt::TopicName;

/// `prefix` with `client_id` in the place of `%c` and `username` in that of `%u`. None where the prefix is empty, or a name is missing or
/// would not stay within its level: the topic must be this client's alone.
#[must_use]
pub fn topic(prefix: &str, client_id: &str, username: Option<&str>) -> Option<TopicName> {
    let mut topic = String::with_capacity(prefix.len() + client_id.len());
    let mut rest = prefix;
    while let Some(at) = rest.find('%') {
        let (literal, mark) = rest.split_at(at);
        let name = match mark.get(..2) {
            Some("%c") => client_id,
            Some("%u") => username?,
            _ => return None,
        };
        if name.is_empty()
            || name.contains(['/', '+', '#'])
            || topic.is_empty() && literal.is_empty() && name.starts_with('$')
        {
            return None;
        }
        topic.push_str(literal);
        topic.push_str(name);
        rest = mark.get(2..).unwrap_or_default();
    }
    topic.push_str(rest);
    // Room for a level below it.
    TopicName::parse(&topic).ok().filter(|topic| topic.as_str().len() + 2 <= usize::from(u16::MAX))
}

/// What is wrong with a prefix, in words.
#[must_use]
pub fn fault(prefix: &str) -> Option<&'static str> {
    if prefix.is_empty() {
        return None;
    }
    if prefix.ends_with('/') || prefix.starts_with('$') {
        return Some("the topic must neither begin with $ nor end with /");
    }
    if !prefix.contains("%c") && !prefix.contains("%u") {
        return Some(
            "every client would be answered under the same topic: put %c (client id) or %u (user name) into it",
        );
    }
    topic(prefix, "c", Some("u"))
        .is_none()
        .then_some("no topic name: it may hold %c and %u, but no other %, and no wildcard")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_their_places() {
        #[track_caller]
        fn check(prefix: &str, client_id: &str, username: Option<&str>, expected: Option<&str>) {
            let topic = topic(prefix, client_id, username);
            assert_eq!(topic.as_ref().map(TopicName::as_str), expected, "{prefix} {client_id}");
        }
        check("response/%c", "one", None, Some("response/one"));
        check("%u/%c/x", "one", Some("me"), Some("me/one/x"));
        check("response/%c", "%u", Some("me"), Some("response/%u"));
        check("%u/x", "one", None, None);
        check("", "one", None, None);
        check("%c", "$SYS", None, None);
        check("x%c", "$SYS", None, Some("x$SYS"));
        for odd in ["", "a/b", "+", "a#"] {
            check("response/%c", odd, None, None);
            check("response/%u", "one", Some(odd), None);
        }
        check("response/%c", &"x".repeat(65_535), None, None);
        let longest = "x".repeat(65_535 - 11);
        check("response/%c", &longest, None, Some(&format!("response/{longest}")));
    }

    #[test]
    fn faults() {
        for (prefix, right) in [
            ("", true),
            ("response/%c", true),
            ("%u", true),
            ("response", false),
            ("response/%c/", false),
            ("$x/%c", false),
            ("a/+/%c", false),
            ("%c/#", false),
            ("%c/%d", false),
            ("%c%", false),
        ] {
            assert_eq!(fault(prefix).is_none(), right, "{prefix}");
        }
    }
}
