//! Backups of a store that no broker serves, and what is done with backups: they are listed, tried, restored.
//!
//! Must not know how a backup is made: that is the engine's.

use std::{num::NonZeroU32, path::Path};

use super::{
    super::{Backup, Config, Error, durable_engine, recover},
    Checked, Finding, NewStore, Snapshot, must_exist,
};

/// As [`super::super::Store::backup`], of the store in `data_dir`. It stays in the format that it is written in.
///
/// # Errors
/// [`Error::NoStore`], and as there.
pub fn backup(data_dir: &Path, dir: &Path, keep: Option<NonZeroU32>) -> Result<Backup, Error> {
    let store = data_dir.join("store");
    must_exist(&store)?;
    let engine = durable_engine(&store, &Config::default())?;
    recover::format(&*engine)?;
    let backup = engine.backup(dir, keep)?;
    engine.close()?;
    Ok(backup)
}

/// The backups in `dir`, the oldest first.
///
/// # Errors
/// [`Error::BackupDir`], [`Error::NoEngine`], [`Error::Engine`].
pub fn backups(dir: &Path) -> Result<Vec<Backup>, Error> {
    engine::list(dir)
}

/// Whether that backup is in `dir`, as this process sees it.
#[must_use]
pub fn has_backup(dir: &Path, id: u32) -> bool {
    dir.join("meta").join(id.to_string()).is_file()
}

/// Restores a backup, the newest if none is named, as a new store. Its files are compared with their checksums, and it is put in its place
/// as a whole, or not at all. A newest one that is damaged is an error: who wants an older one has to name it.
///
/// # Errors
/// [`Error::BackupDir`], [`Error::NewerFormat`], [`Error::File`], [`Error::Engine`].
pub fn restore(dir: &Path, id: Option<u32>, new: NewStore) -> Result<Backup, Error> {
    let backup = engine::restore(dir, id, new.path())?;
    // One that this release cannot read is of no use there.
    drop(Snapshot::open_in(new.path(), &Config::default())?);
    new.install()?;
    Ok(backup)
}

/// Restores a backup, the newest if none is named, into the empty directory `aside`, and checks it as [`Snapshot::check`] does.
///
/// # Errors
/// [`Error::BackupDir`], [`Error::NewerFormat`], [`Error::Engine`].
pub fn verify_backup(
    dir: &Path,
    id: Option<u32>,
    aside: &Path,
    tick: &mut dyn FnMut(u64),
    found: &mut dyn FnMut(Finding),
) -> Result<(Backup, Checked), Error> {
    let backup = engine::restore(dir, id, aside)?;
    let checked = Snapshot::open_in(aside, &Config::default())?.check(tick, found)?;
    Ok((backup, checked))
}

#[cfg(feature = "rocksdb")]
use super::super::rocks::backup as engine;

#[cfg(not(feature = "rocksdb"))]
mod engine {
    use super::{Backup, Error, Path};
    use crate::storage::Durability;

    pub(super) fn list(_: &Path) -> Result<Vec<Backup>, Error> {
        Err(Error::NoEngine(Durability::Fsync))
    }

    pub(super) fn restore(_: &Path, _: Option<u32>, _: &Path) -> Result<Backup, Error> {
        Err(Error::NoEngine(Durability::Fsync))
    }
}
