//! [`Shown`]: text that a client chose, as an operator reads it: one line of printable characters, of bounded length.
//!
//! Must not know where it is shown.

use std::fmt;

/// Shows at most the first 200 characters of a text, escaped; a longer one is followed by its length in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a str);

impl Shown<'_> {
    /// The same without the escapes, where what shows it has its own.
    #[must_use]
    pub fn unescaped(&self) -> String {
        self.cut().map_or_else(|| self.0.to_owned(), |first| format!("{first}... ({} bytes)", self.0.len()))
    }

    /// Its beginning, where it is too long.
    fn cut(&self) -> Option<&str> {
        let (end, _) = self.0.char_indices().nth(CHARACTERS_MAX)?;
        self.0.get(..end)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cut() {
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
        assert_eq!(Shown("a\"\n").unescaped(), "a\"\n");
        assert_eq!(Shown(&"\n".repeat(201)).unescaped(), format!("{}... (201 bytes)", "\n".repeat(200)));
        assert_eq!(Shown(&"\u{e4}".repeat(200)).to_string(), "\u{e4}".repeat(200));
        assert_eq!(Shown(&"\u{e4}".repeat(201)).to_string(), format!("{}... (402 bytes)", "\u{e4}".repeat(200)));
    }
}
