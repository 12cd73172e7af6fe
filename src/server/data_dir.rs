//! The data directory: made where there is none, looked at before anything in it is touched, and held while the broker runs.
//!
//! Must not know what is in it, but for the lock.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, FlockOperation, access, flock},
    process::geteuid,
};
use thiserror::Error;

use crate::storage::make_dir;

/// Why it cannot be used.
#[derive(Debug, Error)]
pub enum DataDirError {
    /// It cannot be made, or not be looked at.
    #[error("{}: cannot use the data directory: {source}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is another user's: what this process would write there, that user's broker could not read.
    #[error(
        "{}: belongs to user {owner}, and this process runs as user {runs_as}; run it as that user, or hand the directory over by \
         `chown -R`",
        path.display()
    )]
    Foreign {
        /// The data directory, or the store in it.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
        /// Ours.
        runs_as: u32,
    },
    /// Nothing can be written there.
    #[error("{}: cannot be written: {source}", path.display())]
    ReadOnly {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another broker runs on it.
    #[error("{}: in use by another pinnace; stop it, or name another data directory by --data-dir", path.display())]
    InUse {
        /// Which.
        path: PathBuf,
    },
}

/// Makes the directory where there is none, and takes its lock, whatever the durability: the control socket is there too. The lock goes
/// with what is returned.
///
/// # Errors
/// [`DataDirError`]; nothing in the directory was changed then.
pub fn hold(path: &Path) -> Result<fs::File, DataDirError> {
    let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
    make_dir(path).map_err(unusable)?;
    let runs_as = geteuid().as_raw();
    for path in [path.to_owned(), path.join("store")] {
        match fs::metadata(&path) {
            Ok(found) if found.uid() != runs_as => {
                return Err(DataDirError::Foreign { path, owner: found.uid(), runs_as });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(DataDirError::Unusable { path, source }),
        }
        if let Err(error) = access(&path, Access::WRITE_OK | Access::EXEC_OK) {
            return Err(DataDirError::ReadOnly { path, source: error.into() });
        }
    }
    let lock = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path.join("lock"));
    let lock = lock.map_err(unusable)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DataDirError::InUse { path: path.to_owned() }),
        Err(error) => Err(unusable(error.into())),
    }
}
