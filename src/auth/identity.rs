//! The identity of a client: a user name, or none.
//!
//! Knows nothing of how the name was proven.

use std::fmt;
use std::sync::Arc;

use super::Who;
use crate::mqtt::Shown;

/// A user name: that of CONNECT, or the certificate's common name on listeners with client certificates. None is an
/// anonymous client. The empty user name differs from none.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Identity(Option<Arc<str>>);

impl Identity {
    /// A client without a user name.
    pub const ANONYMOUS: Self = Self(None);

    /// The client that has proven to be `username`.
    #[must_use]
    pub fn named(username: impl Into<Arc<str>>) -> Self {
        Self(Some(username.into()))
    }

    /// The user name; None for an anonymous client.
    #[must_use]
    pub fn username(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// This identity under a client id, as the rules are asked for it.
    #[must_use]
    pub fn who<'a>(&'a self, client_id: &'a str) -> Who<'a> {
        Who { username: self.username(), client_id }
    }
}

impl From<Option<Arc<str>>> for Identity {
    fn from(username: Option<Arc<str>>) -> Self {
        Self(username)
    }
}

impl From<Identity> for Option<Arc<str>> {
    fn from(identity: Identity) -> Self {
        identity.0
    }
}

/// One line of printable characters, whatever the name holds. `<anonymous>` is never what a name gives.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.username() {
            None => f.write_str("<anonymous>"),
            Some(name) if name.starts_with('<') => write!(f, "\\{}", Shown(name)),
            Some(name) => write!(f, "{}", Shown(name)),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case D90: a name cannot forge a line of a log, nor another identity.
    #[test]
    fn display_is_one_printable_line() {
        let cases = [
            (Identity::ANONYMOUS, "<anonymous>"),
            (Identity::named("device-1"), "device-1"),
            (Identity::named(""), ""),
            (Identity::named("<anonymous>"), "\\<anonymous>"),
            (Identity::named("x\n2026 root logged in"), "x\\n2026 root logged in"),
            (Identity::named("\u{1b}[2J\r\t\0"), "\\u{1b}[2J\\r\\t\\0"),
            (Identity::named("a\u{202e}b\u{2028}"), "a\\u{202e}b\\u{2028}"),
            (Identity::named("gerät"), "gerät"),
        ];
        for (identity, shown) in cases {
            assert_eq!(identity.to_string(), shown);
            assert_eq!(format!("{identity:?}"), shown);
        }
    }

    #[test]
    fn the_empty_name_is_not_anonymous() {
        assert_ne!(Identity::named(""), Identity::ANONYMOUS);
        assert_eq!(Identity::named("a"), Identity::from(Some(Arc::from("a"))));
    }
}
