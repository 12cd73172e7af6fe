//! `pinnace store import`.
//!
//! Must not know what a line looks like.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use super::{
    super::{
        Failure, interrupt, print,
        progress::{Progress, Unit},
    },
    DataDir,
    line::Line,
};
use crate::storage::{Config, Error, Import, NewStore, Refused};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file to read; `-` for standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    data: DataDir,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// All of the file is imported, or nothing.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let name = args.file.display().to_string();
    let unreadable = |error: io::Error| Failure::Failed(format!("{name}: cannot read it: {error}"));
    let (input, bytes): (Box<dyn Read>, u64) = if args.file == Path::new("-") {
        (Box::new(io::stdin().lock()), 0)
    } else {
        let file = File::open(&args.file).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        (Box::new(file), bytes)
    };
    let held = args.data.hold_to_write()?;
    interrupt::removes(&NewStore::place(&held.dir))?;
    let new = NewStore::begin(&held.dir).map_err(Failure::failed)?;
    let mut progress = Progress::new(args.quiet, "importing", Unit::Bytes, bytes);
    let mut lines = Lines { input: BufReader::with_capacity(1 << 16, input), buffer: Vec::new(), number: 0 };
    let imported = new.import(&Config::default(), |import| lines.import_into(import, &mut progress));
    drop(progress);
    let imported = imported.map_err(|stop| match stop {
        Stop::Line(problem) => Failure::Failed(format!("{name}:{}: {problem}; nothing is imported", lines.number)),
        Stop::Store(error) => Failure::failed(error),
    })?;
    new.install().map_err(Failure::failed)?;
    print(format_args!(
        "{} sessions, {} groups, {} queue entries, {} shared bodies, {} retained messages, {} wills imported\n",
        imported.sessions, imported.groups, imported.entries, imported.bodies, imported.retained, imported.wills
    ))
}

struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// Of the line that was read last; the first is 1.
    number: u64,
}

enum Stop {
    Line(String),
    Store(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl<R: BufRead> Lines<R> {
    /// The first free id, as the header names it.
    fn import_into(&mut self, import: &mut Import<'_>, progress: &mut Progress) -> Result<u64, Stop> {
        let header = self.next(progress)?.ok_or_else(|| Stop::Line("the file is empty".to_owned()))?;
        let next_id = header.as_header().map_err(Stop::Line)?;
        loop {
            let line = self.next(progress)?.ok_or_else(|| Stop::Line("the end of the export is missing".to_owned()))?;
            let Some(item) = line.into_item().map_err(Stop::Line)? else { break };
            import.add(item).map_err(|refused| match refused {
                Refused::Store(error) => Stop::Store(error),
                refused => Stop::Line(refused.to_string()),
            })?;
        }
        match self.next(progress)? {
            None => Ok(next_id),
            Some(_) => Err(Stop::Line("it follows the end of the export".to_owned())),
        }
    }

    fn next(&mut self, progress: &mut Progress) -> Result<Option<Line>, Stop> {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEEP_BYTES);
        self.number += 1;
        let mut limited = (&mut self.input).take(LINE_MAX_BYTES);
        let read = limited.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|error| Stop::Line(format!("cannot read it: {error}")))?;
        if read == 0 {
            return Ok(None);
        }
        progress.add(read as u64);
        if !self.buffer.ends_with(b"\n") {
            return Err(Stop::Line("the file ends in the middle of a line, or the line is too long".to_owned()));
        }
        serde_json::from_slice(&self.buffer).map(Some).map_err(|error| Stop::Line(error.to_string()))
    }
}

/// The largest payload of MQTT in base64, and as much again for its properties.
const LINE_MAX_BYTES: u64 = 1 << 30;
const BUFFER_KEEP_BYTES: usize = 1 << 20;
