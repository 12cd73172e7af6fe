//! A damaged store is moved aside as it is, and what can be read of it becomes the store.
//!
//! The store that is salvaged grows beside the damaged one, and takes its place by two renames once it is whole; a start that finds it
//! between them finishes that, and one that finds it earlier begins anew. Must not know what records mean.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use super::{
    Config, Engine, Error, QUARANTINE,
    past_damage::Gap,
    rocks::{self, RocksEngine},
    salvage::{self, Losses},
    vet,
};

/// Moves the store in `data_dir` to `quarantine/` there, with a report beside it, and makes a new one of what can be read; the log tells what
/// is lost. `cause`: what was found. The store must not be open.
///
/// # Errors
/// [`Error::NewerFormat`]; [`Error::Engine`], where the disk does not take the new one. The damaged store stays where it was then.
pub fn quarantine(data_dir: &Path, config: &Config, cause: &dyn std::error::Error) -> Result<PathBuf, Error> {
    let (store, work) = (data_dir.join(STORE), data_dir.join(WORK));
    remove(&work).map_err(failed)?;
    make(&work).map_err(failed)?;
    let mut losses = Losses::default();
    let fresh = RocksEngine::open(&work.join(STORE), config)?;
    let (wreck, older) = views(&store, &work, config, &mut losses)?;
    salvage::salvage(wreck.as_ref(), older.as_ref(), &fresh, &mut losses)?;
    fresh.close()?;
    drop((wreck, older));
    let dir = new_quarantine(data_dir).map_err(failed)?;
    let cause = super::in_full(cause);
    let report = format!("The store was damaged, and moved here:\n{cause}\n\nWhat is known to be lost:\n{losses}");
    fs::write(dir.join("report.txt"), report).map_err(failed)?;
    sync(&dir).map_err(failed)?;
    sync(&work).map_err(failed)?;
    fs::rename(&store, dir.join(STORE)).map_err(failed)?;
    sync(data_dir).map_err(failed)?;
    finish(data_dir).map_err(failed)?;
    tracing::error!(
        error = cause,
        moved_to = %dir.display(),
        losses = losses.len(),
        "the store was damaged: it was moved aside, and what can be read of it goes on; report.txt there says what is lost"
    );
    losses.iter().take(LOSSES_TOLD).for_each(|loss| tracing::error!("lost: {loss}"));
    Ok(dir)
}

/// Finishes, or undoes, what an earlier process began. To be called before the store is opened.
///
/// # Errors
/// The disk.
pub(super) fn resume(data_dir: &Path) -> Result<(), Error> {
    finish(data_dir)
        .map_err(|cause| Error::Engine { doing: "finishing the salvage of a damaged store", cause: cause.into() })
}

fn finish(data_dir: &Path) -> io::Result<()> {
    let (store, work) = (data_dir.join(STORE), data_dir.join(WORK));
    // The damaged one is moved away only when the new one is whole.
    if work.join(STORE).exists() && !store.exists() {
        fs::rename(work.join(STORE), &store)?;
        sync(data_dir)?;
    }
    remove(&work)
}

/// The damaged store, to be read as far as it can be; and where that is not all, one without its damaged files, whose order is found out
/// anew. None of the two touches a file of the store.
fn views(
    store: &Path,
    work: &Path,
    config: &Config,
    losses: &mut Losses,
) -> Result<(Option<RocksEngine>, Option<RocksEngine>), Error> {
    let copied = |name: &str, gaps: &[Gap]| {
        let copy = work.join(name);
        let causes: Vec<String> = gaps.iter().map(|gap| super::in_full(&gap.cause)).collect();
        let is_bad = |file: &str| causes.iter().any(|cause| cause.contains(file));
        make(&copy)
            .and_then(|()| vet::copy_readable(store, &copy, &is_bad))
            .map(|missing| (copy, missing))
            .map_err(failed)
    };
    let (copy, missing) = copied("damaged", &[])?;
    missing.iter().for_each(|missing| losses.add(missing.to_string()));
    let wreck = if vet::knows_its_files(store) { rocks::open_damaged(&copy, config).ok() } else { None };
    let gaps = wreck.as_ref().map_or(Ok(Vec::new()), |wreck| salvage::survey(wreck))?;
    if wreck.is_some() && gaps.is_empty() {
        return Ok((wreck, None));
    }
    if wreck.is_none() {
        losses.add(
            "its list of files cannot be read: all files that are there are read, and what was removed may be back"
                .into(),
        );
    }
    let (copy, _) = copied("repaired", &gaps)?;
    Ok((wreck, Some(rocks::open_repaired(&copy, config)?)))
}

fn failed(cause: io::Error) -> Error {
    Error::Engine { doing: "moving the damaged store aside", cause: cause.into() }
}

/// `quarantine/1`, or the next number that is free.
fn new_quarantine(data_dir: &Path) -> io::Result<PathBuf> {
    let all = data_dir.join(QUARANTINE);
    make(&all)?;
    let taken = fs::read_dir(&all)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok()).max();
    let dir = all.join((taken.unwrap_or(0) + 1).to_string());
    make(&dir)?;
    sync(&all)?;
    Ok(dir)
}

fn make(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

const STORE: &str = "store";
const WORK: &str = "salvage";
/// How many losses the log names; the report has all.
const LOSSES_TOLD: usize = 20;
