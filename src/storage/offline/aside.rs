//! A store that is made beside its place and moved there when it is whole: a crash in between leaves nothing half.
//!
//! Must not know what is put into it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::super::{Error, make_dir};

/// The directory of a store in the making. Dropped without [`NewStore::install`] it is removed.
#[derive(Debug)]
pub struct NewStore {
    data_dir: PathBuf,
    aside: PathBuf,
}

impl NewStore {
    /// Makes an empty one in `data_dir`, where no store may be yet. What an interrupted attempt has left is removed.
    ///
    /// # Errors
    /// [`Error::StoreExists`], [`Error::File`].
    pub fn begin(data_dir: &Path) -> Result<Self, Error> {
        let place = data_dir.join("store");
        if !is_empty(&place)? {
            return Err(Error::StoreExists(place));
        }
        let new = Self { data_dir: data_dir.to_owned(), aside: Self::place(data_dir) };
        new.remove()?;
        make_dir(&new.aside).map_err(Error::file(&new.aside, "making the directory"))?;
        Ok(new)
    }

    /// Where one is made in `data_dir`. Nothing else is ever there.
    #[must_use]
    pub fn place(data_dir: &Path) -> PathBuf {
        data_dir.join("store.new")
    }

    /// Where it is made.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.aside
    }

    /// Has all of it on the disk, and puts it in its place at once.
    ///
    /// # Errors
    /// [`Error::File`]; nothing is in its place then.
    pub fn install(self) -> Result<(), Error> {
        sync_tree(&self.aside)?;
        let place = self.data_dir.join("store");
        // It replaces an empty directory, and no other.
        fs::rename(&self.aside, &place).map_err(Error::file(&place, "moving the new store into its place"))?;
        sync(&self.data_dir)
    }

    fn remove(&self) -> Result<(), Error> {
        match fs::remove_dir_all(&self.aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::file(&self.aside, "removing what is left of an earlier attempt")(error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for NewStore {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(error = super::super::in_full(&error), "a store that was not finished is left behind");
        }
    }
}

fn is_empty(dir: &Path) -> Result<bool, Error> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Error::file(dir, "looking for a store")(error)),
    }
}

fn sync_tree(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::file(dir, "reading the directory"))? {
        let path = entry.map_err(Error::file(dir, "reading the directory"))?.path();
        if path.is_dir() { sync_tree(&path)? } else { sync(&path)? }
    }
    sync(dir)
}

fn sync(path: &Path) -> Result<(), Error> {
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(Error::file(path, "syncing"))
}
