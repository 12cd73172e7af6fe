//! `pinnace backup` and `pinnace restore`.
//!
//! Must not copy anything itself: the broker that serves the store does, or `storage` where none runs.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{
    Failure, interrupt, live, print,
    progress::{Progress, Unit, ago},
    store::DataDir,
};
use crate::storage::{self, Backup, NewStore};

/// Makes a backup of the store, or tells of those that are there. A running broker makes it while it serves: what was acknowledged before is
/// in it. A further backup in the same directory adds what is new since.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory of backups; made where it is missing.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    data: DataDir,
    /// The control socket of the broker, where it is elsewhere.
    #[arg(long, value_name = "PATH", conflicts_with = "data_dir")]
    socket: Option<PathBuf>,
    /// Remove the oldest backups, so that so many stay.
    #[arg(long, value_name = "N")]
    keep: Option<NonZeroU32>,
    /// List the backups in DIR, and make none.
    #[arg(long, conflicts_with_all = ["keep", "verify"])]
    list: bool,
    /// Restore the newest backup in DIR, or the one of --backup, into a directory in DIR, check every record, and remove it; make none.
    #[arg(long, conflicts_with = "keep")]
    verify: bool,
    /// The backup to verify, by its number.
    #[arg(long, value_name = "ID", requires = "verify")]
    backup: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Restores a store from a backup into a data directory that has none. It is there as a whole, or not at all.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The directory of backups.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    data: DataDir,
    /// The backup, by its number [default: the newest].
    #[arg(long, value_name = "ID")]
    backup: Option<u32>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// # Errors
/// Why there is no backup, or what is wrong with it.
pub fn run(args: &Args) -> Result<(), Failure> {
    // The broker has a working directory of its own.
    let dir = std::path::absolute(&args.dir).map_err(Failure::failed)?;
    if args.list {
        let backups = storage::backups(&dir).map_err(Failure::failed)?;
        return list(args, &backups);
    }
    if args.verify {
        return verify(args, &dir);
    }
    let held = if args.socket.is_some() { None } else { args.data.try_hold_to_read()? };
    let progress = Progress::new(args.quiet, "backing up", Unit::Bytes, 0);
    let made = match held {
        Some(held) => {
            held.must_be_ours()?;
            let made = progress.while_filling(&dir, || storage::backup(&held.dir, &dir, args.keep));
            serde_json::to_value(made.map_err(Failure::failed)?).map_err(Failure::failed)?
        }
        None => {
            let socket = live::socket(args.socket.as_deref(), &args.data)?;
            progress.while_filling(&dir, || ask(&socket, &dir, args.keep))?
        }
    };
    tell(args, &made)
}

/// Has the broker make it.
fn ask(socket: &Path, dir: &Path, keep: Option<NonZeroU32>) -> Result<Value, Failure> {
    let name = dir.display();
    let text =
        dir.to_str().ok_or_else(|| Failure::Failed(format!("{name}: a broker takes no path that is not UTF-8")))?;
    let made = live::post(socket, "/v1/backup", &json!({ "dir": text, "keep": keep }))?;
    let id = made.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    match id {
        Some(id) if storage::has_backup(dir, id) => Ok(made),
        _ => Err(Failure::Failed(format!(
            "{name}: the broker has made a backup there, but here there is none: it has a file system of its own, as in a container or by \
             systemd's PrivateTmp=; name a directory that both see"
        ))),
    }
}

fn list(args: &Args, backups: &[Backup]) -> Result<(), Failure> {
    if args.json {
        return tell(args, &json!({ "backups": serde_json::to_value(backups).map_err(Failure::failed)? }));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    backups.iter().try_for_each(|backup| {
        if backup.is_damaged {
            return print(format_args!("backup {}: damaged, a file of it is missing\n", backup.id));
        }
        let ago = ago(now.saturating_sub(Duration::from_secs(backup.made_at_secs)));
        print(format_args!("backup {}: {} bytes in {} files, made {ago} ago\n", backup.id, backup.bytes, backup.files))
    })
}

fn tell(args: &Args, answer: &Value) -> Result<(), Failure> {
    if args.json { print(format_args!("{answer:#}\n")) } else { print(live::human(answer)) }
}

fn verify(args: &Args, dir: &Path) -> Result<(), Failure> {
    // Where backups have room, there is some for one more.
    let aside = tempfile::Builder::new().prefix("verify-").tempdir_in(dir);
    let aside = aside.map_err(|error| Failure::Failed(format!("{}: cannot verify in it: {error}", dir.display())))?;
    interrupt::removes(aside.path())?;
    let mut progress = Progress::new(args.quiet, "verifying", Unit::Records, 0);
    let mut told = Ok(());
    let mut tick = |records| progress.add(records);
    let verified = storage::verify_backup(dir, args.backup, aside.path(), &mut tick, &mut |finding| {
        if finding.is_fault && told.is_ok() {
            told = print(format_args!("fault: {finding}\n"));
        }
    });
    drop(progress);
    told?;
    let (backup, checked) = verified.map_err(Failure::failed)?;
    match checked.faults {
        0 => print(format_args!("backup {}: {} records, no fault\n", backup.id, checked.records)),
        faults => Err(Failure::Failed(format!("backup {} has {faults} faults", backup.id))),
    }
}

/// # Errors
/// Why nothing was restored.
pub fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let dir = std::path::absolute(&args.dir).map_err(Failure::failed)?;
    let backups = storage::backups(&dir).map_err(Failure::failed)?;
    let wanted = backups.iter().rev().find(|backup| args.backup.is_none_or(|id| backup.id == id));
    let bytes = wanted.map_or(0, |backup| backup.bytes);
    let held = args.data.hold_to_write()?;
    interrupt::removes(&NewStore::place(&held.dir))?;
    let new = NewStore::begin(&held.dir).map_err(Failure::failed)?;
    let progress = Progress::new(args.quiet, "restoring", Unit::Bytes, bytes);
    let place = new.path().to_owned();
    let restored = progress.while_filling(&place, || storage::restore(&dir, args.backup, new));
    let restored = restored.map_err(Failure::failed)?;
    print(format_args!("backup {} restored into {}: {} bytes\n", restored.id, held.dir.display(), restored.bytes))
}
