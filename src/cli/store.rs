//! `pinnace store ...`: what the store of a data directory holds, and whether it is whole.
//!
//! Must not know how records are stored: `storage` reads and writes them.

mod check;
mod export;
mod import;
mod line;
mod stats;

use std::{
    fs::{self, File},
    io,
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::Failure;
use crate::{config, server};

/// `pinnace store ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Read every record and what records say of each other; exit code 1 if something is wrong. No broker may run.
    Check(check::Args),
    /// Count what is stored: sessions, queues, retained messages, disk. Asks the broker if one runs.
    Stats(stats::Args),
    /// Write all that is stored as JSON, one object a line. No broker may run.
    Export(export::Args),
    /// Make a store of what `export` has written. No broker may run, and no store may be there.
    Import(import::Args),
}

/// Runs the command.
///
/// # Errors
/// What went wrong, or is wrong with the store.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check(args) => check::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
    }
}

/// The data directory of a broker.
#[derive(Debug, clap::Args)]
pub(super) struct DataDir {
    /// The data directory of the broker [default: that of `pinnace serve`].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl DataDir {
    pub(super) fn path(&self) -> Result<PathBuf, Failure> {
        let env: Vec<_> = std::env::vars_os().collect();
        let dir = self.data_dir.clone().or_else(|| config::data_dir(&env));
        dir.ok_or_else(|| Failure::Configuration("no home directory: name the data by --data-dir".into()))
    }

    /// Holds it for as long as the command reads, without changing anything in it.
    pub(super) fn hold_to_read(&self) -> Result<Held, Failure> {
        let dir = self.path()?;
        self.try_hold_to_read()?.ok_or_else(|| served(&dir))
    }

    /// None while a broker serves it.
    pub(super) fn try_hold_to_read(&self) -> Result<Option<Held>, Failure> {
        let dir = self.path()?;
        match File::open(dir.join("lock")) {
            Ok(lock) => match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(Held { dir, _lock: Some(lock) })),
                Err(rustix::io::Errno::WOULDBLOCK) if is_served(&dir) => Ok(None),
                Err(rustix::io::Errno::WOULDBLOCK) => Err(in_use(&dir)),
                Err(error) => Err(Failure::Failed(format!("{}: cannot lock it: {error}", dir.display()))),
            },
            // No broker has ever run on it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Held { dir, _lock: None })),
            Err(error) => Err(Failure::Failed(format!("{}: cannot lock it: {error}", dir.display()))),
        }
    }

    /// Holds it for as long as the command writes; makes it where it is missing.
    pub(super) fn hold_to_write(&self) -> Result<Held, Failure> {
        let dir = self.path()?;
        let lock = server::hold(&dir).map_err(|error| match error {
            server::DataDirError::InUse { .. } if is_served(&dir) => served(&dir),
            server::DataDirError::InUse { .. } => in_use(&dir),
            error => Failure::unusable(error),
        })?;
        Ok(Held { dir, _lock: Some(lock) })
    }
}

/// A data directory on which no broker can start while this lives.
pub(super) struct Held {
    pub(super) dir: PathBuf,
    _lock: Option<fs::File>,
}

impl Held {
    /// What is written by another user, the broker could not use.
    pub(super) fn must_be_ours(&self) -> Result<(), Failure> {
        let Ok(found) = fs::metadata(&self.dir) else { return Ok(()) };
        let (owner, us) = (found.uid(), rustix::process::geteuid().as_raw());
        if owner == us {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "{} belongs to user {owner}, whose broker could not use what user {us} writes; use sudo -u '#{owner}'",
            self.dir.display()
        )))
    }
}

/// Whether it is a broker that holds it: commands answer nobody.
fn is_served(dir: &Path) -> bool {
    match UnixStream::connect(dir.join("control.sock")) {
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused),
        Ok(_) => true,
    }
}

fn in_use(dir: &Path) -> Failure {
    Failure::Failed(format!(
        "{}: another pinnace command works on it, or a broker that is starting or stopping; try again when that is done",
        dir.display()
    ))
}

fn served(dir: &Path) -> Failure {
    Failure::Failed(format!(
        "{}: a broker runs on it; stop it first, or restore a backup of it elsewhere",
        dir.display()
    ))
}
