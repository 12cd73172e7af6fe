//! [`Shown`]: text that a client chose, as an operator reads it: one line of printable characters, of bounded length.
//!
//! Must not know where it is shown.

use std::fmt;

/// Shows at most the first 200 characters of a text, escaped; a longer one is followed by its length in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.char_indices().nth(CHARACTERS_MAX).map(|(at, _)| at);
        match end.and_then(|end| self.0.get(..end)) {
            None => write!(f, "{}", self.0.escape_debug()),
            Some(first) => write!(f, "{}... ({} bytes)", first.escape_debug(), self.0.len()),
        }
    }
}

const CHARACTERS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_and_odd_text_escaped() {
        assert_eq!(Shown("a\nb\u{1b}\u{e4}").to_string(), "a\\nb\\u{1b}\u{e4}");
        assert_eq!(Shown(&"\u{e4}".repeat(200)).to_string(), "\u{e4}".repeat(200));
        assert_eq!(Shown(&"\u{e4}".repeat(201)).to_string(), format!("{}... (402 bytes)", "\u{e4}".repeat(200)));
    }
}
