//! The format of a store, in a file beside RocksDB's own: so a store of a later release is refused before any of them is touched. The
//! store's own mark, which needs it open, holds where there is no such file.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{Error, FORMAT_VERSION};

pub(super) struct FormatNote {
    path: PathBuf,
    noted: Option<u32>,
}

impl FormatNote {
    /// # Errors
    /// [`Error::NewerFormat`]; [`Error::Engine`].
    pub(super) fn read(store: &Path) -> Result<Self, Error> {
        let path = store.join("FORMAT");
        let noted = match fs::read_to_string(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            noted => noted.ok().and_then(|noted| noted.trim().parse().ok()),
        };
        match noted {
            Some(found) if found > FORMAT_VERSION => Err(Error::NewerFormat { found }),
            noted => Ok(Self { path, noted }),
        }
    }

    /// Before the first record in this release's format is written.
    pub(super) fn renew(self) -> Result<(), Error> {
        if self.noted == Some(FORMAT_VERSION) {
            return Ok(());
        }
        self.replace().map_err(failed)
    }

    /// A power cut leaves the old note or the new one.
    fn replace(&self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::create_new(&new)?;
        file.write_all(format!("{FORMAT_VERSION}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.path.parent().map_or(Ok(()), |store| File::open(store)?.sync_all())
    }
}

fn failed(cause: io::Error) -> Error {
    Error::Engine { doing: "noting its format", cause: cause.into() }
}
