//! `pinnace config check` and `pinnace config show`.
//!
//! Must not change anything.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Failure, print, serve};
use crate::auth::Auth;
use crate::config::{self, Flags, Kind, Loaded, OptionInfo};
use crate::mqtt::TopicName;

/// `pinnace config ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Check a file, and the password and ACL files that it names; tells every fault.
    Check {
        /// The configuration file (TOML).
        file: PathBuf,
    },
    /// Show the values in force and where each came from; takes the flags of `serve`.
    Show(Box<ShowArgs>),
}

/// What `config show` takes.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// Show what holds for the messages of this topic alone: how durable they are, and by which rule.
    #[arg(long)]
    topic: Option<String>,
    #[command(flatten)]
    serve: serve::Args,
}

/// Runs the command.
///
/// # Errors
/// Every fault of the configuration.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check { file } => {
            // The file alone is checked, not what the environment of this call would change in it.
            let env = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("PINNACE_"));
            let loaded = config::load(Some(&file), env, Flags::default())?;
            let files = loaded.named_files();
            Auth::load(&loaded.config.auth)
                .map_err(|error| Failure::Configuration(format!("{error}{}", files.named_by(&error.path))))?;
            print(format_args!("{}: no fault found\n", file.display()))
        }
        Command::Show(args) => {
            let ShowArgs { topic, serve } = *args;
            let loaded = serve.load()?;
            print(topic.map_or_else(|| Ok(show(&loaded)), |topic| show_topic(&loaded, &topic))?)
        }
    }
}

/// The values in force as TOML, each with its origin in a comment; unset ones as comments, secrets hidden.
fn show(loaded: &Loaded) -> String {
    let values = serde_json::to_value(&loaded.config).unwrap_or_default();
    let options = config::options();
    let mut text = String::new();
    let mut table = String::new();
    for (place, option) in options.chunk_by(|one, other| one.list == other.list).flat_map(|run| places(run, &values)) {
        let key = format!("{place}.{}", option.key);
        // Nothing there: the table is absent as a whole.
        let Some(value) = values.pointer(&pointer(&key)) else { continue };
        if table != place {
            let gap = if table.is_empty() { "" } else { "\n" };
            let _ = match (&option.list, &option.table) {
                (Some(list), name) if list == name => writeln!(text, "{gap}[[{name}]]"),
                (_, name) => writeln!(text, "{gap}[{name}]"),
            };
            table = place;
        }
        let origin = loaded.origins.of(&key);
        let _ = match config::to_toml(value) {
            Some(_) if is_secret(option) => writeln!(text, "{} = \"(hidden)\" # {origin}", option.key),
            Some(value) => writeln!(text, "{} = {value} # {origin}", option.key),
            None => writeln!(text, "# {} is unset # {origin}", option.key),
        };
    }
    let _ = writeln!(text, "\n# The data directory in force: {}", loaded.data_dir.display());
    text
}

/// The options of `run`, which stand in one list or in none, with the table of each: as often as the list has elements.
fn places<'a>(run: &'a [OptionInfo], values: &Value) -> Vec<(String, &'a OptionInfo)> {
    let Some(list) = run.first().and_then(|option| option.list.as_deref()) else {
        return run.iter().map(|option| (option.table.clone(), option)).collect();
    };
    let elements = values.pointer(&pointer(list)).and_then(Value::as_array).map_or(0, Vec::len);
    let place = |index: usize, table: &str| table.replacen(list, &format!("{list}[{index}]"), 1);
    (0..elements).flat_map(|index| run.iter().map(move |option| (place(index, &option.table), option))).collect()
}

/// `key` as the path of a JSON value.
fn pointer(key: &str) -> String {
    format!("/{}", key.replace(']', "").replace(['.', '['], "/"))
}

/// How durable the messages of `topic` are, and what says so.
fn show_topic(loaded: &Loaded, topic: &str) -> Result<String, Failure> {
    let wrong = |error| Failure::Configuration(format!("--topic {topic:?} is no topic name: {error}"));
    let (level, key, filter) = match loaded.config.durability.of(&TopicName::parse(topic).map_err(wrong)?) {
        Some((index, rule)) => {
            (json!(rule.level), format!("durability.rule[{index}]"), format!(", filter {:?}", rule.filter.as_str()))
        }
        None => (json!(loaded.config.storage.durability), "storage.durability".to_owned(), String::new()),
    };
    let origin = loaded.origins.of(&key);
    Ok(format!("durability = {level} # {key}{filter}: {origin}\n"))
}

/// Whether the value itself is a secret; the name of a file is none.
fn is_secret(option: &OptionInfo) -> bool {
    let ends = ["password", "secret", "token", "passphrase"];
    option.kind != Kind::Path && ends.iter().any(|end| option.key.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_in_force_are_shown_with_their_origins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        let file = "[[listener]]\naddress = '127.0.0.1:7'\n[[listener]]\naddress = '127.0.0.1:8'\n[listener.tls]\n\
                    certificate = '/c'\nkey = '/k'\n[session]\nreceive_maximum = 5\n[storage]\ndurability = 'memory'\n";
        std::fs::write(&path, file).unwrap();
        let env = [("PINNACE__LOG__LEVEL", "debug"), ("HOME", "/h")].map(|(name, value)| (name.into(), value.into()));
        let loaded = config::load(Some(&path), env.into_iter(), Flags::default()).unwrap();
        let shown = show(&loaded).replace(&path.display().to_string(), "p.toml");
        for expected in [
            "[[listener]]\naddress = \"127.0.0.1:7\" # p.toml:2:11\n# allow_anonymous is unset # default\n",
            "\n\n[[listener]]\naddress = \"127.0.0.1:8\" # p.toml:4:11\n",
            "\n[listener.tls]\ncertificate = \"/c\" # p.toml:6:15\n",
            "\nrequire_client_certificate = false # default\n",
            "\nreceive_maximum = 5 # p.toml:9:19\n",
            "\n[log]\nformat = \"auto\" # default\nlevel = \"debug\" # PINNACE__LOG__LEVEL\n",
            "\n# data_dir is unset # default\n",
            "\n# The data directory in force: /h/.local/state/pinnace\n",
        ] {
            assert!(shown.contains(expected), "{expected:?} in:\n{shown}");
        }
        assert_eq!(shown.matches("[listener.tls]").count(), 1, "{shown}");

        std::fs::write(&path, &shown).unwrap();
        let again = config::load(Some(&path), [("HOME".into(), "/h".into())].into_iter(), Flags::default()).unwrap();
        assert_eq!(again.config, loaded.config, "what is shown is a file with the same meaning");
    }

    /// Without the durable engine rules are refused.
    #[cfg(feature = "rocksdb")]
    #[test]
    fn rules_are_shown_as_a_whole_and_for_one_topic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        let file = "[storage]\ndurability = 'os'\n[[durability.rule]]\nfilter = 'a/b'\nlevel = 'fsync'\n\
                    [[durability.rule]]\nfilter = 'a/#'\nlevel = 'os'\n";
        std::fs::write(&path, file).unwrap();
        let load = || config::load(Some(&path), [("HOME".into(), "/h".into())].into_iter(), Flags::default()).unwrap();
        let loaded = load();
        let shown = show(&loaded).replace(&path.display().to_string(), "p.toml");
        let rules = "\n[[durability.rule]]\nfilter = \"a/b\" # p.toml:4:10\nlevel = \"fsync\" # p.toml:5:9\n\n\
                     [[durability.rule]]\nfilter = \"a/#\" # p.toml:7:10\nlevel = \"os\" # p.toml:8:9\n\n[auth]\n";
        assert!(shown.contains(rules), "{rules} in:\n{shown}");
        for (topic, expected) in [
            ("a/b", "durability = \"fsync\" # durability.rule[0], filter \"a/b\": p.toml:3:1\n"),
            ("a/b/c", "durability = \"os\" # durability.rule[1], filter \"a/#\": p.toml:6:1\n"),
            ("b", "durability = \"os\" # storage.durability: p.toml:2:14\n"),
        ] {
            let shown = show_topic(&loaded, topic).unwrap().replace(&path.display().to_string(), "p.toml");
            assert_eq!(shown, expected);
        }
        let Err(Failure::Configuration(problem)) = show_topic(&loaded, "a/#") else { panic!("a filter is no topic") };
        assert!(problem.contains("--topic \"a/#\" is no topic name"), "{problem}");
        std::fs::write(&path, show(&loaded)).unwrap();
        assert_eq!(load().config, loaded.config, "what is shown is a file with the same meaning");
    }

    #[test]
    fn secrets_are_told_from_the_names_of_their_files() {
        for (key, kind, expected) in [
            ("password", Kind::Text("a string".into()), true),
            ("bridge_token", Kind::Text("a string".into()), true),
            ("password_file", Kind::Path, false),
            ("token", Kind::Path, false),
            ("level", Kind::Text("a string".into()), false),
        ] {
            let option = OptionInfo { table: "t".into(), list: None, key, kind, default: None };
            assert_eq!(is_secret(&option), expected, "{key}");
        }
    }
}
