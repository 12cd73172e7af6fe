//! The walls of the house, as `ARCHITECTURE.md` draws them: who may know whom, what is confined where, how long things may be.
//!
//! Reads the sources as text. Must not need anything but a checkout: no git, no network, no build of the program.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "tidy/scan.rs"]
mod scan;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pinnace::storage::Durability;

/// Who may know whom. A room that is not here may not be.
const ROOMS: &[(&str, &[&str])] = &[
    ("mqtt", &[]),
    ("metrics", &[]),
    ("clock", &["mqtt"]),
    ("router", &["mqtt"]),
    ("session", &["mqtt"]),
    ("auth", &["mqtt"]),
    ("storage", &["mqtt", "metrics"]),
    ("broker", &["mqtt", "session", "router", "storage", "auth", "metrics", "clock"]),
    ("net", &["broker", "session", "mqtt", "auth", "metrics", "clock"]),
    ("control", &["broker", "session", "mqtt", "auth", "metrics", "clock"]),
    // The modules whose Config it composes.
    ("config", &["net", "broker", "session", "storage", "auth"]),
    (
        "server",
        &["mqtt", "session", "router", "storage", "auth", "metrics", "clock", "broker", "net", "control", "config"],
    ),
    ("cli", &["server", "config", "auth", "storage", "mqtt"]),
];

/// The rooms without socket, clock, lock or task, and what gives one away.
const PURE: &[&str] = &["mqtt", "session", "router"];
const IMPURE: &[&str] =
    &["tokio", "Instant::now", "SystemTime::now", "Mutex", "RwLock", "std::net", "std::fs", "std::thread"];

/// Crates that one place alone may name.
const CONFINED: &[(&str, &str)] = &[
    ("rocksdb", "storage/rocks"),
    ("indicatif", "cli/progress.rs"),
    ("signal_hook", "cli/interrupt.rs"),
    ("mqttbytes", "mqtt/codec.rs"),
    ("x509_parser", "auth/certificate.rs"),
    ("rcgen", "cli/certs.rs"),
    ("rpassword", "cli/passwd.rs"),
    ("hyper", "cli/live.rs"),
    ("axum", "control"),
    ("toml_edit", "config"),
    ("argon2", "auth/password"),
    ("pbkdf2", "auth/password"),
];

/// Files and functions that are longer than allowed, with their lines now. It may only shrink: (file, function or "", lines).
const TOO_LONG: &[(&str, &str, usize)] = &[];
const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// One source file.
struct Source {
    /// From the root of the repository: `src/mqtt/topic.rs`.
    path: String,
    text: String,
    code: String,
    /// The code that is not for tests alone.
    shipped: String,
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let code = scan::code(&text);
        let is_shipped = path.starts_with("src/") && !path.ends_with("/tests.rs") && !path.contains("/tests/");
        let shipped = if is_shipped { scan::without_tests(&code) } else { String::new() };
        Self { path, text, code, shipped }
    }

    /// `mqtt` for `src/mqtt/topic.rs` and for `src/mqtt.rs`; none for `lib.rs`, `main.rs` and what is not in `src`.
    fn room(&self) -> Option<&str> {
        let inner = self.path.strip_prefix("src/")?;
        let room = inner.split('/').next()?.trim_end_matches(".rs");
        (!matches!(room, "lib" | "main")).then_some(room)
    }

    /// How deep the module of this file stands: 1 for a room itself.
    fn depth(&self) -> usize {
        let inner = self.path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
        inner.split('/').count()
    }

    /// The text that is for tests alone, comments included; doc comments above `#[cfg(test)]` are not.
    fn test_text(&self) -> String {
        if self.shipped.is_empty() {
            return self.text.clone();
        }
        scan::tests(&self.code).into_iter().map(|range| &self.text[range]).collect()
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust sources under the named folders; those that `mod x;` declares for tests only count as test code.
fn sources(folders: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> =
        folders.iter().map(|folder| root().join(folder)).filter(|path| path.is_dir()).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("under the root").to_str().expect("UTF-8").to_owned();
                found.push(Source::new(name, fs::read_to_string(&path).expect("a source is UTF-8")));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    let for_tests: Vec<String> = found.iter().flat_map(test_files).collect();
    for source in &mut found {
        if for_tests.contains(&source.path) {
            source.shipped.clear();
        }
    }
    assert!(!found.is_empty(), "there are sources under {folders:?}");
    found
}

fn test_files(source: &Source) -> Vec<String> {
    let base = source.path.trim_end_matches(".rs").trim_end_matches("/mod").to_owned();
    let names = scan::test_modules(&source.code);
    names.into_iter().flat_map(|name| [format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")]).collect()
}

fn check(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn no_room_knows_another_that_it_must_not() {
    check(sources(&["src"]).iter().flat_map(walls).collect());
}

fn walls(source: &Source) -> Vec<String> {
    let Some(room) = source.room() else { return Vec::new() };
    let Some((_, known)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return vec![format!(
            "{}: the room {room} is not in the plan; enter it in ROOMS with whom it may know",
            source.path
        )];
    };
    let mut faults: Vec<String> = scan::crate_paths(&source.shipped)
        .into_iter()
        .filter(|(name, _)| name != room && !known.contains(&name.as_str()))
        .map(|(name, line)| format!("{}:{line}: {room} must not know {name}", source.path))
        .collect();
    let out = "super::".repeat(source.depth());
    if let Some(at) = source.shipped.find(&out) {
        let line = scan::line_of(&source.shipped, at);
        faults.push(format!("{}:{line}: {out} leaves the room; write crate:: so that the wall is seen", source.path));
    }
    faults
}

#[test]
fn pure_rooms_are_pure() {
    check(sources(&["src"]).iter().flat_map(impurities).collect());
}

fn impurities(source: &Source) -> Vec<String> {
    let is_pure = source.room().is_some_and(|room| PURE.contains(&room));
    let words = IMPURE.iter().filter(|_| is_pure);
    words
        .filter_map(|word| scan::mention(&source.shipped, word).map(|line| (word, line)))
        .map(|(word, line)| format!("{}:{line}: `{word}` in a pure room; time and bytes are passed in", source.path))
        .collect()
}

#[test]
fn crates_stay_in_their_place() {
    check(sources(&["src"]).iter().flat_map(escapes).collect());
}

fn escapes(source: &Source) -> Vec<String> {
    let inner = source.path.trim_start_matches("src/");
    CONFINED
        .iter()
        .filter(|(_, place)| !inner.starts_with(place))
        .filter_map(|(name, place)| scan::use_of_crate(&source.shipped, name).map(|line| (name, place, line)))
        .map(|(name, place, line)| format!("{}:{line}: only {place} may name {name}", source.path))
        .collect()
}

#[test]
fn shipped_code_neither_unwraps_nor_expects() {
    check(sources(&["src"]).iter().flat_map(unwraps).collect());
}

fn unwraps(source: &Source) -> Vec<String> {
    [".unwrap()", ".expect("]
        .iter()
        .flat_map(|call| source.shipped.match_indices(call))
        .map(|(at, call)| format!("{}:{}: {call} outside of tests", source.path, scan::line_of(&source.shipped, at)))
        .collect()
}

#[test]
fn each_module_opens_with_what_it_does_and_must_not_know() {
    check(sources(&["src"]).iter().filter_map(unopened).collect());
}

fn unopened(source: &Source) -> Option<String> {
    let doc: String = source.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let limits = ["not", "no", "never", "nothing", "nobody", "only", "alone", "neither"];
    let words: Vec<String> = doc.split(|char: char| !char.is_alphanumeric()).map(str::to_lowercase).collect();
    if doc.is_empty() {
        return Some(format!("{}:1: opens without //!", source.path));
    }
    let is_limited = words.iter().any(|word| limits.contains(&word.as_str()));
    let is_exempt = source.shipped.is_empty() || source.room().is_none();
    (!is_limited && !is_exempt).then(|| format!("{}:1: //! does not say what the module must not know", source.path))
}

#[test]
fn nothing_is_too_long() {
    let sources = sources(&["src", "tests", "benches", "fuzz/src", "fuzz/harness"]);
    let mut faults = Vec::new();
    let mut seen: BTreeSet<&(&str, &str, usize)> = BTreeSet::new();
    for (source, function, line, lines, most) in sources.iter().flat_map(lengths) {
        let allowed = TOO_LONG.iter().find(|(path, name, _)| *path == source.path && *name == function);
        let what = if function.is_empty() { "the file".to_owned() } else { format!("fn {function}") };
        match allowed {
            None if lines > most => {
                faults.push(format!("{}:{line}: {what} has {lines} lines; at most {most}", source.path))
            }
            Some((_, _, before)) if lines != *before => {
                faults.push(format!(
                    "{}:{line}: {what} has {lines} lines and may only shrink: {before} in TOO_LONG",
                    source.path
                ));
            }
            _ => {}
        }
        seen.extend(allowed.filter(|_| lines > most));
    }
    faults.extend(
        TOO_LONG.iter().filter(|entry| !seen.contains(entry)).map(|entry| format!("{entry:?} in TOO_LONG is done")),
    );
    check(faults);
}

/// The lengths of the file and of its shipped functions: (source, function or "", line, lines, most).
fn lengths(source: &Source) -> Vec<(&Source, String, usize, usize, usize)> {
    let functions = scan::functions(&source.shipped).into_iter();
    let functions = functions.map(|(name, line, lines)| (source, name, line, lines, FUNCTION_LINES_MAX));
    let file = (source, String::new(), 1, source.text.lines().count(), FILE_LINES_MAX);
    std::iter::once(file).chain(functions).collect()
}

#[test]
fn every_dependency_is_used() {
    let sources = sources(&["src", "tests", "benches", "fuzz/harness"]);
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml can be read");
    let mut faults = Vec::new();
    for (name, is_dev) in dependencies(&manifest) {
        let ident = name.replace('-', "_");
        let mut code = sources.iter().map(|source| if is_dev { &source.code } else { &source.shipped });
        if !code.any(|code| scan::use_of_crate(code, &ident).is_some()) {
            faults.push(format!("Cargo.toml: nothing uses {name}"));
        }
    }
    check(faults);
}

/// The dependencies of a manifest, and whether only tests may need them.
fn dependencies(manifest: &str) -> Vec<(&str, bool)> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(head) = line.strip_prefix('[') {
            section = head.trim_end_matches(']');
        } else if let Some((name, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            match section {
                "dependencies" => found.push((name.trim(), false)),
                "dev-dependencies" => found.push((name.trim(), true)),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn the_manual_of_options_is_that_of_the_code() {
    let manual = fs::read_to_string(root().join("config/pinnace.toml")).expect("config/pinnace.toml can be read");
    let documented = documented(&manual);
    let mut faults = Vec::new();
    let options = pinnace::config::options();
    for option in &options {
        let name = format!("{}.{}", option.table, option.key);
        let Some(found) = documented.iter().find(|found| found.name == name) else {
            faults.push(format!("config/pinnace.toml: {name} is missing"));
            continue;
        };
        let says_none = ["Unset", "Required", "Default"].iter().any(|word| found.prose.contains(word));
        match &option.default {
            Some(default) if *default == found.value => {}
            None if says_none => {}
            None => faults.push(format!("config/pinnace.toml: {name} does not say what holds when it is unset")),
            Some(default) => {
                faults.push(format!("config/pinnace.toml: the default of {name} is {default}, not {}", found.value));
            }
        }
    }
    let is_option = |name: &str| options.iter().any(|option| format!("{}.{}", option.table, option.key) == name);
    let unknown = documented.iter().filter(|found| !is_option(&found.name));
    faults.extend(unknown.map(|found| format!("config/pinnace.toml: {} is no option", found.name)));
    let without_prose = documented.iter().filter(|found| found.prose.len() < 20);
    faults.extend(without_prose.map(|found| format!("config/pinnace.toml: {} is not explained", found.name)));
    check(faults);
}

#[test]
fn the_manual_can_be_loaded_as_it_is_and_with_every_option() {
    let manual = fs::read_to_string(root().join("config/pinnace.toml")).expect("config/pinnace.toml can be read");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pinnace.toml");
    let load = |text: &str, durability| {
        fs::write(&path, text).expect("written");
        let flags = pinnace::config::Flags { durability: Some(durability), ..pinnace::config::Flags::default() };
        pinnace::config::load(Some(&path), [("HOME".into(), "/home/x".into())].into_iter(), flags)
    };
    let plain = load(&manual, Durability::Memory).expect("the manual is a file of defaults").config;
    let defaults = pinnace::config::Config::default();
    assert_eq!(plain.listeners, defaults.listeners);
    assert_eq!(
        (plain.session, plain.auth, plain.log, plain.server),
        (defaults.session, defaults.auth, defaults.log, defaults.server)
    );
    let every: Vec<&str> = manual.lines().map(|line| uncommented(line).unwrap_or(line)).collect();
    // A build without the durable engine cannot serve the rules of durability.
    if cfg!(feature = "rocksdb") {
        load(&every.join("\n"), Durability::Os).expect("every option of the manual can be set");
    }
}

struct Documented {
    name: String,
    value: String,
    prose: String,
}

/// The options of the manual: `#key = value` under `[table]` or `#[table]`, with the comments above.
fn documented(manual: &str) -> Vec<Documented> {
    let mut table = String::new();
    let mut prose = String::new();
    let mut found = Vec::new();
    for line in manual.lines() {
        let option = uncommented(line).unwrap_or(line);
        if let Some(head) = option.strip_prefix('[') {
            table = head.trim_matches(['[', ']']).to_owned();
        } else if let Some((key, value)) = option.split_once(" = ").filter(|_| !option.starts_with('#')) {
            found.push(Documented {
                name: format!("{table}.{key}"),
                value: value.to_owned(),
                prose: std::mem::take(&mut prose),
            });
        } else if line.is_empty() {
            prose.clear();
        } else {
            prose.push_str(line.trim_start_matches(['#', ' ']));
            prose.push(' ');
        }
    }
    found
}

/// `key = value` of `#key = value`, and `[table]` of `#[table]`; prose has a blank after its `#`.
fn uncommented(line: &str) -> Option<&str> {
    line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with(' '))
}

#[test]
fn every_clause_is_named_by_a_test() {
    let mut clauses = listed(&root().join("tests/clauses.txt"));
    clauses.extend(listed(&root().join("tests/clauses-311.txt")));
    if sources(&["src/net"]).iter().any(|source| source.shipped.to_lowercase().contains("websocket")) {
        clauses.extend(WEBSOCKET.map(str::to_owned));
    }
    let named = named_by_tests();
    let missing = clauses.difference(&named);
    check(
        missing
            .map(|clause| {
                format!("{clause} is named by no test: [{clause}] in the doc comment of one that would see it broken")
            })
            .collect(),
    );
}

/// Chapter 6 binds a server that serves WebSockets.
const WEBSOCKET: [&str; 3] = ["MQTT-6.0.0-1", "MQTT-6.0.0-2", "MQTT-6.0.0-4"];

fn listed(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).expect("the list can be read");
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

fn named_by_tests() -> BTreeSet<String> {
    let others = |source: &Source| !source.path.starts_with("tests/tidy");
    let texts = sources(&["src", "tests"]).into_iter().filter(others).map(|source| source.test_text());
    texts.flat_map(|text| scan::clauses(&text).into_iter().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn the_checks_can_fail() {
    let source = |path: &str, text: &str| Source::new(path.to_owned(), text.to_owned());
    type Check = fn(&Source) -> Vec<String>;
    let cases: &[(&str, &str, Check, usize)] = &[
        ("src/mqtt/a.rs", "use crate::broker::B;", walls, 1),
        ("src/mqtt/a.rs", "use crate::mqtt::B; use super::c;", walls, 0),
        ("src/mqtt/a.rs", "// crate::broker\n#[cfg(test)] mod tests { use crate::broker; }", walls, 0),
        ("src/mqtt/a.rs", "use super::super::broker;", walls, 1),
        ("src/mqtt.rs", "use super::broker;", walls, 1),
        ("src/broker/mod.rs", "use crate::{mqtt, net, storage::{self, x}};", walls, 1),
        ("src/cellar.rs", "", walls, 1),
        ("src/main.rs", "use crate::broker;", walls, 0),
        ("src/session/a.rs", "fn a() { Instant::now(); }\nuse tokio::x;", impurities, 2),
        ("src/session/a.rs", "// Instant::now\nfn a(now: Timestamp) { \"tokio\"; }", impurities, 0),
        ("src/net/a.rs", "use tokio::x;", impurities, 0),
        ("src/storage/log.rs", "use rocksdb::DB;", escapes, 1),
        ("src/storage/rocks.rs", "use rocksdb::DB;", escapes, 0),
        ("src/mqtt/frame.rs", "#[cfg(test)] mod tests { use mqttbytes::x; }", escapes, 0),
        ("src/net/a.rs", "fn a() { b.unwrap(); c.expect(\"\"); }", unwraps, 2),
        (
            "src/net/a.rs",
            "fn a() { b.unwrap_or(1); \".unwrap()\"; }\n#[cfg(test)]\nmod t { fn a() { b.unwrap() } }",
            unwraps,
            0,
        ),
        ("src/net/a.rs", "use a;", |source| unopened(source).into_iter().collect(), 1),
        ("src/net/a.rs", "//! Does this.", |source| unopened(source).into_iter().collect(), 1),
        ("src/net/a.rs", "//! Does this. Must not know that.", |source| unopened(source).into_iter().collect(), 0),
    ];
    for (path, text, check, expected) in cases {
        let faults = check(&source(path, text));
        assert_eq!(faults.len(), *expected, "{path} {text:?}: {faults:?}");
    }
    let long = format!("fn a() {{\n{}}}\n", "b();\n".repeat(FUNCTION_LINES_MAX));
    let too_long = |source: &Source| lengths(source).iter().filter(|(_, _, _, lines, most)| lines > most).count();
    assert_eq!(too_long(&source("src/net/a.rs", &long)), 1);
    assert_eq!(too_long(&source("tests/it/a.rs", &long)), 0);
    assert_eq!(too_long(&source("tests/it/a.rs", &"\n".repeat(FILE_LINES_MAX + 1))), 1);
    let manifest =
        "[dependencies]\na-b = \"1\"\n# c = 1\n[dev-dependencies]\nd = { version = \"1\" }\n[lints.rust]\ne = 1\n";
    assert_eq!(dependencies(manifest), [("a-b", false), ("d", true)]);
    let manual = documented("[[t]]\n\n# About a.\n#a = 1\n\n#[t.u]\n# About b.\n#b = \"x\"\n");
    let manual: Vec<String> =
        manual.iter().map(|found| format!("{} {} {}", found.name, found.value, found.prose)).collect();
    assert_eq!(manual, ["t.a 1 About a. ", "t.u.b \"x\" About b. "]);
}
