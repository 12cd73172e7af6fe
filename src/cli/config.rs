//! `pinnace config check` and `pinnace config show`.
//!
//! Must not change anything.

use std::fmt::Write;
use std::path::PathBuf;

use super::{Failure, print, serve};
use crate::auth::Auth;
use crate::config::{self, Flags, Kind, Loaded, OptionInfo};

/// `pinnace config ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Check a file, and the password and ACL files that it names; tells every fault.
    Check {
        /// The configuration file (TOML).
        file: PathBuf,
    },
    /// Show the values in force and where each came from; takes the flags of `serve`.
    Show(Box<serve::Args>),
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
        Command::Show(args) => print(show(&args.load()?)),
    }
}

/// The values in force as TOML, each with its origin in a comment; unset ones as comments, secrets hidden.
fn show(loaded: &Loaded) -> String {
    let values = serde_json::to_value(&loaded.config).unwrap_or_default();
    let options = config::options();
    let (of_listener, others): (Vec<&OptionInfo>, Vec<&OptionInfo>) =
        options.iter().partition(|option| option.table.split('.').next() == Some("listener"));
    let listeners = (0..loaded.config.listeners.len()).flat_map(|index| {
        let place = format!("listener[{index}]");
        of_listener.iter().map(move |option| (option.table.replacen("listener", &place, 1), *option))
    });
    let others = others.iter().map(|option| (option.table.clone(), *option));
    let mut text = String::new();
    let mut table = String::new();
    for (place, option) in listeners.chain(others) {
        let key = format!("{place}.{}", option.key);
        let pointer = format!("/{}", key.replace(']', "").replace(['.', '['], "/"));
        // Nothing there: the table is absent as a whole.
        let Some(value) = values.pointer(&pointer) else { continue };
        if table != place {
            let gap = if table.is_empty() { "" } else { "\n" };
            let _ = match option.table.as_str() {
                "listener" => writeln!(text, "{gap}[[listener]]"),
                name => writeln!(text, "{gap}[{name}]"),
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

    #[test]
    fn secrets_are_told_from_the_names_of_their_files() {
        for (key, kind, expected) in [
            ("password", Kind::Text("a string".into()), true),
            ("bridge_token", Kind::Text("a string".into()), true),
            ("password_file", Kind::Path, false),
            ("token", Kind::Path, false),
            ("level", Kind::Text("a string".into()), false),
        ] {
            let option = OptionInfo { table: "t".into(), key, kind, default: None };
            assert_eq!(is_secret(&option), expected, "{key}");
        }
    }
}
