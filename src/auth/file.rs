//! Reads the files that hold rules, and says where they are wrong.
//!
//! Knows nothing of what the lines mean.

use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// A file that cannot be used, and the place in it. Its text is `file:line:column: problem; what to do`.
#[derive(Debug)]
pub struct FileError {
    /// The file, as configured.
    pub path: PathBuf,
    /// The line, from 1. What concerns the file as a whole stands at 1:1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// What is wrong, and what to do about it. Never any part of a password or its hash.
    pub problem: String,
    /// Why the file could not be read, where that is the problem.
    pub source: Option<io::Error>,
}

impl FileError {
    /// A problem of the file as a whole.
    #[must_use]
    pub fn whole(path: &Path, problem: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: 1, column: 1, problem: problem.into(), source: None }
    }

    /// Whether there is no such file.
    pub(super) fn is_missing(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.kind() == io::ErrorKind::NotFound)
    }

    fn unreadable(path: &Path, problem: &str, source: io::Error) -> Self {
        Self { source: Some(source), ..Self::whole(path, problem) }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, column, problem, source } = self;
        write!(f, "{}:{line}:{column}: ", path.display())?;
        match source {
            Some(source) => write!(f, "{source}; {problem}"),
            None => f.write_str(problem),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// The content of the regular file at `path`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let metadata = fs::metadata(path).map_err(|source| {
        FileError::unreadable(
            path,
            "check that it exists, and that the broker's user may look into its directory",
            source,
        )
    })?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "not a regular file" };
        return Err(FileError::whole(path, format!("this is {kind}; name a file")));
    }
    fs::read(path).map_err(|source| FileError::unreadable(path, "check that the broker's user may read it", source))
}

/// A line without its end and the blanks around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) path: &'a Path,
    pub(super) number: NonZeroU32,
    pub(super) text: &'a str,
    /// The characters before `text`.
    indent: u32,
}

impl Line<'_> {
    /// What is wrong at the byte `at` of `text`.
    pub(super) fn fault(&self, at: usize, problem: impl Into<String>) -> FileError {
        let before = self.text.get(..at).unwrap_or(self.text).chars().count();
        let column = self.indent.saturating_add(saturated(before)).saturating_add(1);
        FileError { line: self.number.get(), column, ..FileError::whole(self.path, problem) }
    }
}

/// The lines of `text`, with LF or CRLF at their ends, and with or without a byte order mark.
pub(super) fn lines<'a>(text: &'a [u8], path: &'a Path) -> Result<Vec<Line<'a>>, FileError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut lines = Vec::new();
    let mut number = NonZeroU32::MIN;
    for bytes in text.split(|byte| *byte == b'\n') {
        lines.push(line(bytes, path, number)?);
        number = number.saturating_add(1);
    }
    Ok(lines)
}

fn line<'a>(bytes: &'a [u8], path: &'a Path, number: NonZeroU32) -> Result<Line<'a>, FileError> {
    let fault = |good: &str, problem: String| Line { path, number, text: good, indent: 0 }.fault(good.len(), problem);
    let full = match std::str::from_utf8(bytes) {
        Ok(full) => full,
        Err(error) => {
            let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let good = std::str::from_utf8(good).unwrap_or_default();
            return Err(fault(good, "not UTF-8; save the file as UTF-8 text".to_owned()));
        }
    };
    let without_indent = full.trim_ascii_start();
    let text = without_indent.trim_ascii_end();
    let indent = saturated(full.len() - without_indent.len());
    let line = Line { path, number, text, indent };
    match text.char_indices().find(|(_, character)| character.is_control() && *character != '\t') {
        Some((at, '\r')) => Err(line.fault(at, "a carriage return inside a line; end lines by LF or CRLF")),
        Some((at, control)) => {
            let problem = format!("the control character U+{:04X}; remove it", u32::from(control));
            Err(line.fault(at, problem))
        }
        None => Ok(line),
    }
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases D105, D143.
    #[test]
    fn lines_mean_the_same_however_they_end() {
        let expected = [(1, "a b"), (2, ""), (3, "c\td"), (4, "")];
        for text in ["a b\n\nc\td\n", "\u{feff}a b\r\n\r\nc\td\r\n", " a b\t \n  \n\tc\td \n \t", "a b \r\r\n\nc\td\n"]
        {
            let lines = lines(text.as_bytes(), Path::new("f")).unwrap();
            let lines: Vec<(u32, &str)> = lines.iter().map(|line| (line.number.get(), line.text)).collect();
            assert_eq!(lines, expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_text_has_a_place() {
        let cases: [(&[u8], &str); 5] = [
            (b"ok\n\xc3\xa9\xff\n", "f:2:2: not UTF-8; save the file as UTF-8 text"),
            (b"a\x00b", "f:1:2: the control character U+0000; remove it"),
            (b"  \x1b[2J", "f:1:3: the control character U+001B; remove it"),
            (b"a\rb\rc", "f:1:2: a carriage return inside a line; end lines by LF or CRLF"),
            (b"\x7fELF\x02\x01", "f:1:1: the control character U+007F; remove it"),
        ];
        for (text, error) in cases {
            assert_eq!(lines(text, Path::new("f")).unwrap_err().to_string(), error);
        }
    }

    /// Case D143.
    #[test]
    fn only_regular_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let problem = read(directory.path()).unwrap_err().to_string();
        assert!(problem.ends_with(":1:1: this is a directory; name a file"), "{problem}");
        let missing = read(&directory.path().join("none")).unwrap_err();
        assert!(missing.is_missing() && missing.to_string().contains("none:1:1: No such file"), "{missing}");
        let device = read(Path::new("/dev/null")).unwrap_err().to_string();
        assert_eq!(device, "/dev/null:1:1: this is not a regular file; name a file");
    }
}
