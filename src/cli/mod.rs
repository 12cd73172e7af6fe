//! The command line: one file per subcommand.
//!
//! Must not serve anything itself: `serve` hands over to `server`, the live commands talk to a running broker.

pub mod backup;
pub mod certs;
pub mod config;
mod interrupt;
pub mod live;
pub mod logging;
pub mod passwd;
mod progress;
pub mod serve;
pub mod store;

use std::error::Error;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rustix::fs::Mode;

use crate::config::ConfigErrors;

/// An MQTT broker for fleets of IoT devices.
#[derive(Debug, Parser)]
#[command(name = "pinnace", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve MQTT until SIGTERM or SIGINT; needs no file.
    Serve(serve::Args),
    /// Check a configuration file, or show the values in force.
    #[command(subcommand)]
    Config(config::Command),
    /// What the running broker does: clients, messages, drops, storage.
    Status(live::Args),
    /// Let the running broker read its ACL, password and certificate files again.
    Reload(live::Args),
    /// Let the running broker take no new clients and send away those it has.
    Drain(live::Args),
    /// Back up the store, of a running broker or of one at rest.
    Backup(backup::Args),
    /// Restore the store from a backup.
    Restore(backup::RestoreArgs),
    /// Check, count, export or import the store.
    #[command(subcommand)]
    Store(store::Command),
    /// Add, replace or remove a user of a password file.
    Passwd(passwd::Args),
    /// Make certificates.
    #[command(subcommand)]
    Certs(certs::Command),
}

impl Cli {
    /// Runs the command; reports what went wrong on standard error.
    ///
    /// Exit code 0: done; 1: failed; 2: the command line or the configuration is wrong; 3: the data directory cannot be used as it is (in
    /// use, damaged, of a later release, of another user, read-only), and nothing in it was changed.
    #[must_use]
    pub fn run(self) -> ExitCode {
        if matches!(self.command, Command::Serve(_) | Command::Backup(_) | Command::Restore(_) | Command::Store(_)) {
            // RocksDB's files would be readable by all; they hold every payload.
            rustix::process::umask(Mode::RWXG | Mode::RWXO);
        }
        let outcome = match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Config(command) => config::run(command),
            Command::Status(args) => live::run(live::Verb::Status, &args),
            Command::Reload(args) => live::run(live::Verb::Reload, &args),
            Command::Drain(args) => live::run(live::Verb::Drain, &args),
            Command::Backup(args) => backup::run(&args),
            Command::Restore(args) => backup::restore(&args),
            Command::Store(command) => store::run(command),
            Command::Passwd(args) => passwd::run(args).map_err(Failure::failed),
            Command::Certs(certs::Command::Demo(args)) => certs::demo(&args.dir),
        };
        interrupt::wait_if_ending();
        let (code, message) = match outcome {
            Ok(()) => return ExitCode::SUCCESS,
            Err(Failure::Failed(message)) => (1, message),
            Err(Failure::Configuration(message)) => (2, message),
            Err(Failure::Unusable(message)) => (3, message),
        };
        let mut stderr = std::io::stderr().lock();
        for line in message.lines() {
            // Nobody is left to tell where standard error is closed.
            let _ = writeln!(stderr, "pinnace: {line}");
        }
        ExitCode::from(code)
    }
}

/// Why a command did not do its work.
#[derive(Debug)]
pub enum Failure {
    /// The work failed: exit code 1.
    Failed(String),
    /// The configuration is wrong: exit code 2.
    Configuration(String),
    /// The data directory cannot be used as it is: exit code 3.
    Unusable(String),
}

impl Failure {
    /// The work failed by `error` and its causes.
    pub fn failed(error: impl Error) -> Self {
        Self::Failed(Self::told(error))
    }

    /// The data directory cannot be used, as `error` says.
    pub fn unusable(error: impl Error) -> Self {
        Self::Unusable(Self::told(error))
    }

    fn told(error: impl Error) -> String {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some errors name their cause already.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = error.source();
        }
        message
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Configuration(errors.to_string())
    }
}

/// Writes to standard output; that a reader such as `head` has gone is no failure.
fn print(text: impl Display) -> Result<(), Failure> {
    match write!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_and_flags_are_understood() {
        let cases: &[(&[&str], bool)] = &[
            (&["serve"], true),
            (&["serve", "--listen", "127.0.0.1:0", "--listen", "[::1]:1883", "--data-dir", "/d"], true),
            (&["serve", "--durability", "memory", "--log-format", "json", "--config", "f"], true),
            (&["serve", "--quarantine"], true),
            (&["serve", "--durability", "disk"], false),
            (&["serve", "--listen", "localhost"], false),
            (&["serve", "--log-format", "auto"], false),
            (&["config", "check", "f"], true),
            (&["config", "check"], false),
            (&["config", "show", "--config", "f", "--listen", "127.0.0.1:1"], true),
            (&["status", "--json"], true),
            (&["status", "--data-dir", "/d", "--socket", "/s"], false),
            (&["drain", "--socket", "/s"], true),
            (&["reload", "--data-dir", "/d"], true),
            (&["backup", "d"], true),
            (&["backup", "d", "--keep", "3", "--data-dir", "/d"], true),
            (&["backup", "d", "--keep", "0"], false),
            (&["backup", "d", "--data-dir", "/d", "--socket", "/s"], false),
            (&["backup", "d", "--list", "--verify"], false),
            (&["backup", "d", "--backup", "1"], false),
            (&["backup"], false),
            (&["restore", "d", "--backup", "1", "--data-dir", "/d"], true),
            (&["store", "check", "--data-dir", "/d", "--quiet"], true),
            (&["store", "stats", "--json", "--largest", "3"], true),
            (&["store", "export", "--sessions", "--queues", "--retained"], true),
            (&["store", "import"], false),
            (&["store"], false),
            (&["certs", "demo", "dir"], true),
            (&["certs", "demo"], false),
            (&[], false),
        ];
        for (arguments, good) in cases {
            let parsed = Cli::try_parse_from(["pinnace"].iter().chain(*arguments));
            assert_eq!(parsed.is_ok(), *good, "{arguments:?}: {parsed:?}");
        }
    }

    #[test]
    fn an_error_is_told_with_its_causes_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read x: {0}")]
        struct Names(#[source] std::io::Error);
        #[derive(Debug, thiserror::Error)]
        #[error("start failed")]
        struct Hides(#[source] Names);
        let error = Hides(Names(std::io::Error::other("disk on fire")));
        let Failure::Failed(message) = Failure::failed(error) else { panic!("a failure") };
        assert_eq!(message, "start failed: cannot read x: disk on fire");
    }
}
