//! `pinnace store check`.
//!
//! Must not mend anything.

use super::{
    super::{
        Failure, print,
        progress::{Progress, Unit},
    },
    DataDir,
};
use crate::storage::{Config, Error, Snapshot, in_full};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    data: DataDir,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Tells each finding in a line on standard output, and what was read in the last one.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let held = args.data.hold_to_read()?;
    let snapshot = Snapshot::open(&held.dir, &Config::default()).map_err(|error| match error {
        Error::Engine { .. } => {
            // A start mends what a power cut has left; a check changes nothing.
            let hint = "where the machine has lost power, start the broker once: it cuts off what was not synced";
            let dir = held.dir.display();
            Failure::Failed(format!("{dir}: the store cannot be read at all: {}; {hint}", in_full(&error)))
        }
        error => Failure::failed(error),
    })?;
    let mut progress = Progress::new(args.quiet, "checking", Unit::Records, snapshot.estimated_records());
    let mut told = Ok(());
    let checked = snapshot.check(&mut |records| progress.add(records), &mut |finding| {
        let kind = if finding.is_fault { "fault" } else { "left over, removed by the next start" };
        if told.is_ok() {
            told = print(format_args!("{kind}: {finding}\n"));
        }
    });
    drop(progress);
    told?;
    let checked = checked.map_err(Failure::failed)?;
    print(format_args!(
        "{} records read, {} faults, {} left over\n",
        checked.records, checked.faults, checked.leftovers
    ))?;
    match checked.faults {
        0 => Ok(()),
        faults => Err(Failure::Failed(format!("{}: the store has {faults} faults", held.dir.display()))),
    }
}
