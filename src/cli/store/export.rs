//! `pinnace store export`.
//!
//! Must not know what a line looks like.

use std::{
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{
    super::{
        Failure, interrupt,
        progress::{Progress, Unit},
    },
    DataDir,
    line::Line,
};
use crate::storage::{Config, Error, Selection, Snapshot, in_full};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file to write, which must not exist; `-` for standard output.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    data: DataDir,
    /// Sessions with their subscriptions, shared groups and wills. Without any of these three: everything.
    #[arg(long)]
    sessions: bool,
    /// Queues, and the sessions and groups that they belong to.
    #[arg(long)]
    queues: bool,
    /// Retained messages.
    #[arg(long)]
    retained: bool,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

impl Args {
    fn selection(&self) -> Selection {
        let all = !(self.sessions || self.queues || self.retained);
        Selection {
            sessions: all || self.sessions || self.queues,
            queues: all || self.queues,
            retained: all || self.retained,
        }
    }
}

/// The file is there once it is whole, or not at all.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let held = args.data.hold_to_read()?;
    let snapshot = Snapshot::open(&held.dir, &Config::default()).map_err(Failure::failed)?;
    let mut progress = Progress::new(args.quiet, "exporting", Unit::Records, snapshot.estimated_records());
    if args.file == Path::new("-") {
        return match write(&snapshot, args.selection(), &mut progress, io::stdout().lock()) {
            // A reader such as `head` has gone.
            Err(Stop::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome.map_err(|stop| stop.told("standard output")),
        };
    }
    let name = args.file.display();
    let unwritable = |error: io::Error| Failure::Failed(format!("{name}: cannot write it: {error}"));
    if args.file.exists() {
        return Err(Failure::Failed(format!("{name}: it exists; name a new file, or move it away")));
    }
    let dir = args.file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let file = tempfile::Builder::new().prefix(".pinnace-export-").tempfile_in(dir).map_err(unwritable)?;
    interrupt::removes(file.path())?;
    write(&snapshot, args.selection(), &mut progress, file.as_file()).map_err(|stop| stop.told(&name.to_string()))?;
    file.as_file().sync_all().map_err(unwritable)?;
    file.persist_noclobber(&args.file).map_err(|error| unwritable(error.error))?;
    Ok(())
}

fn write(snapshot: &Snapshot, what: Selection, progress: &mut Progress, to: impl Write) -> Result<(), Stop> {
    let mut to = BufWriter::with_capacity(1 << 16, to);
    let mut put = |line: &Line| -> Result<(), Stop> {
        serde_json::to_writer(&mut to, line).map_err(|error| Stop::Write(error.into()))?;
        to.write_all(b"\n")?;
        Ok(())
    };
    put(&Line::header(snapshot.next_id()?))?;
    snapshot.export(what, &mut |item| {
        progress.add(1);
        put(&Line::from(item))
    })?;
    put(&Line::End)?;
    Ok(to.flush()?)
}

/// What ends an export.
enum Stop {
    Read(Error),
    Write(io::Error),
}

impl Stop {
    fn told(self, name: &str) -> Failure {
        match self {
            Self::Read(error @ Error::Damaged { .. }) => {
                Failure::Failed(format!("{}; `pinnace store check` tells all that is wrong", in_full(&error)))
            }
            Self::Read(error) => Failure::failed(error),
            Self::Write(error) => Failure::Failed(format!("{name}: cannot write it: {error}")),
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Read(error)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}
