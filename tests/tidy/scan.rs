//! Reads Rust sources as text, well enough for the checks of `tidy`: no parser, no macro expansion.
//!
//! Must not know which rules there are.

use std::ops::Range;

/// The source with comments, strings and character literals blanked; lines and offsets stay where they are.
pub fn code(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at..] {
            [b'/', b'/', ..] => at + line_comment(&bytes[at..]),
            [b'/', b'*', ..] => at + block_comment(&bytes[at..]),
            [b'"', ..] => at + string(&bytes[at..]),
            [b'\'', ..] => at + character(&bytes[at..]),
            [byte, ..] if is_word(byte) => {
                let word = at + bytes[at..].iter().take_while(|byte| is_word(**byte)).count();
                match raw_string(&bytes[at..word], &bytes[word..]) {
                    Some(length) => word + length,
                    None => {
                        at = word;
                        continue;
                    }
                }
            }
            _ => {
                at += 1;
                continue;
            }
        };
        code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end.max(at + 1);
    }
    String::from_utf8(code).expect("whole literals and comments are blanked")
}

/// The code without what is compiled for tests only: `#[cfg(test)]` and the item after it.
pub fn without_tests(code: &str) -> String {
    let mut kept = code.as_bytes().to_vec();
    for range in tests(code) {
        kept[range].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    String::from_utf8(kept).expect("whole items are blanked")
}

/// Where the items that are compiled for tests only stand.
pub fn tests(code: &str) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (start, _) in code.match_indices("#[cfg(test)]") {
        if ranges.last().is_none_or(|last| last.end <= start) {
            ranges.push(start..item_end(code, start));
        }
    }
    ranges
}

/// The modules that are declared for tests only and stand in files of their own.
pub fn test_modules(code: &str) -> Vec<String> {
    let items = tests(code).into_iter().map(|range| &code[range]);
    items
        .filter_map(|item| item.strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name.trim().to_owned()))
        .collect()
}

/// The names that follow `crate::`, those in `crate::{..}` included, each with its line.
pub fn crate_paths(code: &str) -> Vec<(String, usize)> {
    let mut paths = Vec::new();
    for (start, found) in code.match_indices("crate::") {
        if code[..start].bytes().next_back().is_some_and(is_word) {
            continue;
        }
        let rest = &code[start + found.len()..];
        let line = line_of(code, start);
        match rest.strip_prefix('{') {
            Some(group) => paths.extend(first_level(group).into_iter().map(|name| (name, line))),
            None => paths.push((word(rest), line)),
        }
    }
    paths
}

/// Whether `path` (`tokio`, `Instant::now`) stands in the code as words of their own; its line.
pub fn mention(code: &str, path: &str) -> Option<usize> {
    let (start, _) = code.match_indices(path).find(|(start, _)| {
        let before = code[..*start].bytes().next_back();
        let after = code[start + path.len()..].bytes().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })?;
    Some(line_of(code, start))
}

/// Whether the crate `name` is used in the code: as the head of a path; its line.
pub fn use_of_crate(code: &str, name: &str) -> Option<usize> {
    let (start, _) = code.match_indices(name).find(|(start, _)| {
        let before = code[..*start].trim_end();
        let after = &code[start + name.len()..];
        let is_inner = before.ends_with("::") && before.trim_end_matches(':').bytes().next_back().is_some_and(is_word);
        let is_whole = !code[..*start].bytes().next_back().is_some_and(is_word);
        let is_head = after.starts_with("::") || (before.ends_with("use") && after.starts_with([';', ' ']));
        is_whole && !is_inner && is_head
    })?;
    Some(line_of(code, start))
}

/// Every function with a body: its name, its first line, and how many lines it has.
pub fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut functions = Vec::new();
    for (start, found) in code.match_indices("fn ") {
        let name = word(&code[start + found.len()..]);
        if name.is_empty() || code[..start].bytes().next_back().is_some_and(is_word) {
            continue;
        }
        let body = &code[start..item_end(code, start)];
        if body.ends_with('}') {
            functions.push((name, line_of(code, start), body.lines().count()));
        }
    }
    functions
}

/// The identifiers of normative statements (`MQTT-3.3.1-5`) in a text.
pub fn clauses(text: &str) -> Vec<&str> {
    let is_clause = |byte: u8| byte.is_ascii_digit() || byte == b'.' || byte == b'-';
    let found = ["MQTT-", "MQTT311-"].into_iter().flat_map(|prefix| text.match_indices(prefix));
    found
        .map(|(start, found)| {
            let rest = &text[start + found.len()..];
            let length = rest.bytes().take_while(|byte| is_clause(*byte)).count();
            text[start..start + found.len() + length].trim_end_matches(['.', '-'])
        })
        .collect()
}

/// The end of the item that starts at `start`: after its `;` or its closing brace, whichever ends it.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// The first names of the elements of `{a, b::{c, d}, e as f}`; `group` starts after the brace.
fn first_level(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0_usize;
    let mut fresh = true;
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => break,
            b'}' => depth -= 1,
            b',' if depth == 0 => fresh = true,
            _ if fresh && is_word(byte) => {
                names.push(word(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

/// The line, from 1, on which `offset` stands.
pub fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

fn word(text: &str) -> String {
    text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn line_comment(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len())
}

fn block_comment(bytes: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < bytes.len() {
        let (step, change) = match bytes[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth += change;
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// A character literal; of a lifetime the quote alone.
fn character(bytes: &[u8]) -> usize {
    match bytes {
        [_, b'\\', _, rest @ ..] => 3 + rest.iter().position(|byte| *byte == b'\'').map_or(0, |end| end + 1),
        [_, first, rest @ ..] => {
            let more = rest.iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
            if first.is_ascii() && more > 0 || rest.get(more) != Some(&b'\'') { 1 } else { more + 3 }
        }
        _ => 1,
    }
}

/// The length of the rest of a raw string whose prefix (`r`, `br`, `cr`) is `prefix`.
fn raw_string(prefix: &[u8], rest: &[u8]) -> Option<usize> {
    if !matches!(prefix, b"r" | b"br" | b"cr") {
        return None;
    }
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let closing: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &rest[hashes + 1..];
    let end = body.windows(closing.len()).position(|window| window == closing);
    Some(end.map_or(rest.len(), |end| hashes + 1 + end + closing.len()))
}

#[test]
fn comments_and_literals_are_blanked() {
    for (source, expected) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"f("x \" // y", z)"#, r"f(            , z)"),
        ("r\"\\\" b", "       b"),
        ("r#\"a\"b\"# c", "          c"),
        ("br##\"\"#\"## c", "            c"),
        ("b\"a\" c", "b    c"),
        ("var\"a\"", "var   "),
        ("'a' '\\'' '\\u{1f}' 'ä' x", "                     x"),
        ("fn f<'a>(x: &'a str, y: char) { y == '{' }", "fn f< a>(x: & a str, y: char) { y ==     }"),
        ("'outer: loop { break 'outer; }", " outer: loop { break  outer; }"),
        ("/// don't\nfn a() {}", "         \nfn a() {}"),
        ("\"open", "     "),
    ] {
        let blanked = code(source);
        assert_eq!(blanked.lines().count(), source.lines().count(), "{source:?}");
        assert_eq!(
            blanked.split_whitespace().collect::<Vec<_>>(),
            expected.split_whitespace().collect::<Vec<_>>(),
            "{source:?}"
        );
    }
}

#[test]
fn items_for_tests_are_found() {
    let source = "use a;\n#[cfg(test)]\nuse b;\nfn c() {}\n#[cfg(test)]\nmod d;\n#[cfg(test)]\n#[allow(x)]\nmod e { fn f() { [1; 2]; } }\nfn g() {}";
    let kept = without_tests(source);
    assert_eq!(kept.split_whitespace().collect::<String>(), "usea;fnc(){}fng(){}");
    assert_eq!(kept.lines().count(), source.lines().count());
    assert_eq!(test_modules(source), ["d"]);
}

#[test]
fn paths_within_the_crate_are_found() {
    let source = "use crate::mqtt::QoS;\nuse crate::{auth, broker::{self, x}, net as n};\n$crate::log!(); mycrate::x(); pub(crate) fn f() { crate::server::run() }";
    let found: Vec<String> = crate_paths(source).into_iter().map(|(name, line)| format!("{name}:{line}")).collect();
    assert_eq!(found, ["mqtt:1", "auth:2", "broker:2", "net:2", "log:3", "server:3"]);
}

#[test]
fn words_and_crates_are_told_from_others() {
    for (source, path, expected) in [
        ("use tokio::net;", "tokio", true),
        ("use mytokio::net;", "tokio", false),
        ("let tokio_x = 1;", "tokio", false),
        ("let now = Instant::now();", "Instant::now", true),
        ("let a: parking_lot::Mutex<u8>;", "Mutex", true),
        ("struct MutexLike;", "Mutex", false),
    ] {
        assert_eq!(mention(source, path).is_some(), expected, "{source}");
    }
    for (source, name, expected) in [
        ("use rocksdb::DB;", "rocksdb", true),
        ("use rocksdb;", "rocksdb", true),
        ("let x = ::rocksdb::DB::open();", "rocksdb", true),
        ("fn rocksdb() {}", "rocksdb", false),
        ("crate::rocksdb::x()", "rocksdb", false),
        ("librocksdb::x()", "rocksdb", false),
        ("self.rocksdb.len()", "rocksdb", false),
    ] {
        assert_eq!(use_of_crate(source, name).is_some(), expected, "{source}");
    }
}

#[test]
fn functions_are_measured() {
    let source = "trait T {\n    fn none(&self);\n    fn some(&self) -> [u8; 2] {\n        [1; 2]\n    }\n}\nfn one() {}\nlet f: fn(u8);";
    assert_eq!(functions(source), [("some".to_owned(), 3, 3), ("one".to_owned(), 7, 1)]);
}

#[test]
fn clauses_are_found() {
    let text = "[MQTT-3.3.1-5], [MQTT311-3.1.3-8] and MQTT-4.7.2-1.";
    assert_eq!(clauses(text), ["MQTT-3.3.1-5", "MQTT-4.7.2-1", "MQTT311-3.1.3-8"]);
}
