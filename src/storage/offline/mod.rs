//! The store while no broker runs on it: read as it lies, checked, exported, and made anew from an export or a backup.
//!
//! Who calls this holds the lock of the data directory. Must not know how anything is shown or written down outside of the store.

mod aside;
mod backup;
mod check;
mod export;
mod import;
#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

use super::{Config, Engine, Error, Stats, recover, stats};

pub use aside::NewStore;
pub use backup::{backup, backups, has_backup, restore, verify_backup};
pub use check::{Checked, Finding};
pub use export::{Content, Item, Selection};
pub use import::{Import, Imported, Refused};

/// A store that is only read: nothing in its directory changes.
pub struct Snapshot {
    engine: Arc<dyn Engine>,
}

impl Snapshot {
    /// Opens the store in `data_dir`.
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::NewerFormat`], [`Error::UnknownFormat`], [`Error::NoEngine`], [`Error::Engine`].
    pub fn open(data_dir: &Path, config: &Config) -> Result<Self, Error> {
        Self::open_in(&data_dir.join("store"), config)
    }

    /// The store whose files are in `dir`.
    fn open_in(dir: &Path, config: &Config) -> Result<Self, Error> {
        must_exist(dir)?;
        Self::of(engine_to_read(dir, config)?)
    }

    /// On an engine of the caller's.
    pub(super) fn of(engine: Arc<dyn Engine>) -> Result<Self, Error> {
        recover::format(&*engine)?;
        Ok(Self { engine })
    }

    /// See [`super::Store::stats`].
    ///
    /// # Errors
    /// As there.
    pub fn stats(&self, largest: usize) -> Result<Stats, Error> {
        stats::stats(&*self.engine, largest)
    }

    /// How many records there are, as the engine estimates: for a display of progress.
    #[must_use]
    pub fn estimated_records(&self) -> u64 {
        self.engine.disk_use().map_or(0, |disk| disk.tables.values().map(|table| table.records).sum())
    }

    /// The first id that the store has not given to anything.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Engine`].
    pub fn next_id(&self) -> Result<u64, Error> {
        recover::next_id(&*self.engine)
    }

    /// Reads every record, and what records say of each other; gives each finding to `found`, and goes on. `tick` is told how many
    /// records were read since it was told last. Bytes that were damaged on the disk are found by the engine's checksums.
    ///
    /// # Errors
    /// [`Error::Engine`] where the engine cannot say what it has; what cannot be read is a finding.
    pub fn check(&self, tick: &mut dyn FnMut(u64), found: &mut dyn FnMut(Finding)) -> Result<Checked, Error> {
        check::check(&*self.engine, tick, found)
    }

    /// Gives `each` all that is stored, until it fails: the time, sessions and groups, each before its queue, then retained messages, then wills.
    /// Shared bodies come before the first entry that refers to them. What the next start would remove is left out.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Engine`], and that of `each`.
    pub fn export<E: From<Error>>(
        &self,
        what: Selection,
        each: &mut dyn FnMut(Item) -> Result<(), E>,
    ) -> Result<(), E> {
        export::export(&*self.engine, what, each)
    }
}

/// An engine would make what is missing.
fn must_exist(dir: &Path) -> Result<(), Error> {
    let reading = |cause| Error::file(dir, "reading the directory")(cause);
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::NoStore(dir.to_owned())),
        Err(error) => Err(reading(error)),
        Ok(mut files) => match files.next() {
            Some(file) => file.map(drop).map_err(reading),
            None => Err(Error::NoStore(dir.to_owned())),
        },
    }
}

#[cfg(feature = "rocksdb")]
fn engine_to_read(dir: &Path, config: &Config) -> Result<Arc<dyn Engine>, Error> {
    Ok(Arc::new(super::rocks::RocksEngine::open_to_read(dir, config)?))
}

#[cfg(not(feature = "rocksdb"))]
fn engine_to_read(_dir: &Path, config: &Config) -> Result<Arc<dyn Engine>, Error> {
    Err(Error::NoEngine(config.durability))
}
