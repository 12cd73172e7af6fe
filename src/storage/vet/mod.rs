//! Whether all files that belong to a store are there, told from what it says of them before RocksDB opens it; nothing is touched.
//!
//! RocksDB would begin anew without a word where a log is missing, or where its list of files was cut. What stands in table files it checks
//! itself, as it reads them, and `wal` what stands in the logs. Must not know what keys and values mean.

mod manifest;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{
    Error,
    wal::{self, Unread},
};
use manifest::{Fault, Manifest};

/// Looks at the store in `dir`. Which of its write-ahead logs were synced as a whole, by number, and their sizes.
///
/// # Errors
/// [`Error::DamagedFile`] names what is not as it was written; [`Error::Engine`]: it cannot be read.
pub(super) fn vet(dir: &Path) -> Result<BTreeMap<u64, u64>, Error> {
    let files = Files::list(dir).map_err(unreadable)?;
    let Some(current) = files.current(dir)? else { return Ok(BTreeMap::new()) };
    let manifest = read_manifest(&current)?;
    if manifest.torn > 0 {
        tracing::warn!(
            file = %current.display(),
            bytes = manifest.torn,
            "the end of the store's MANIFEST is torn, as a crash leaves it"
        );
    }
    for (number, file) in &manifest.files {
        let path = dir.join(format!("{number:06}.sst"));
        let table = manifest.table_of(file);
        match fs::metadata(&path) {
            Ok(found) if found.len() == file.size => {}
            Ok(found) => {
                let problem = format!("a file of table {table}, has {} bytes instead of {}", found.len(), file.size);
                return Err(Error::DamagedFile { path, problem });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::DamagedFile { path, problem: format!("a file of table {table}, is missing") });
            }
            Err(error) => return Err(unreadable(error)),
        }
    }
    if dir.join(BEGUN).exists() && files.logs.iter().all(|log| wal::number(log) < Some(manifest.newest_log())) {
        let problem = format!(
            "the write-ahead log ({:06}.log, or a later one) is missing, and what it alone held is lost",
            manifest.newest_log()
        );
        return Err(Error::DamagedFile { path: dir.to_owned(), problem });
    }
    if !follows(&files, &manifest)? {
        let problem = "changes that stood before those of the write-ahead log are missing".into();
        return Err(Error::DamagedFile { path: current, problem });
    }
    Ok(manifest.synced_logs)
}

/// To be called before the store is opened: until its new log has begun, a power cut may take that, with nothing in it.
pub(super) fn log_begins_anew(dir: &Path) -> Result<(), Error> {
    match fs::remove_file(dir.join(BEGUN)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| File::open(dir)?.sync_all()).map_err(unreadable),
    }
}

/// The log is on the disk: from now on it must be there.
pub(super) fn log_has_begun(dir: &Path) -> Result<(), Error> {
    fs::write(dir.join(BEGUN), "").map_err(unreadable)
}

/// Whether the logs go on from where the table files end: a list of files that was cut knows less.
fn follows(files: &Files, manifest: &Manifest) -> Result<bool, Error> {
    let first = wal::first_change(&files.needed(manifest)).map_err(unreadable)?;
    Ok(first.is_none_or(|first| first <= manifest.last_sequence + 1))
}

/// Whether the store knows which files it consists of. Where it does not, those that are there have to tell it.
pub(super) fn knows_its_files(dir: &Path) -> bool {
    let known = || -> Result<bool, Error> {
        let files = Files::list(dir).map_err(unreadable)?;
        let Some(current) = files.current(dir)? else { return Ok(false) };
        let manifest = read_manifest(&current)?;
        Ok(manifest.torn == 0 && follows(&files, &manifest)?)
    };
    known().unwrap_or(false)
}

/// Copies the store to `copy`, without table files of which `is_bad` says so by their name, and with write-ahead logs that hold what can be
/// read of them. What cannot is returned.
pub(super) fn copy_readable(dir: &Path, copy: &Path, is_bad: &dyn Fn(&str) -> bool) -> io::Result<Vec<Unread>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let target = copy.join(&*name);
        if name.ends_with(".sst") {
            // Never changed: a second name will do.
            if !is_bad(&name) && fs::hard_link(&path, &target).is_err() {
                fs::copy(&path, &target)?;
            }
        } else if name == CURRENT || name.starts_with("MANIFEST-") {
            fs::copy(&path, &target)?;
        }
    }
    wal::copy_whole_records(dir, copy)
}

struct Files {
    has_current: bool,
    /// Write-ahead logs, oldest first.
    logs: Vec<PathBuf>,
    /// The first table file.
    table: Option<PathBuf>,
}

impl Files {
    fn list(dir: &Path) -> io::Result<Self> {
        let mut files = Self { has_current: false, logs: Vec::new(), table: None };
        if !dir.is_dir() {
            return Ok(files);
        }
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            files.has_current |= path.ends_with(CURRENT);
            if path.extension().is_some_and(|extension| extension == "sst") {
                files.table = Some(path);
            }
        }
        files.logs = wal::logs(dir)?;
        Ok(files)
    }

    /// The logs that may hold what table files do not.
    fn needed(&self, manifest: &Manifest) -> Vec<PathBuf> {
        let is_needed = |log: &&PathBuf| wal::number(log) >= Some(manifest.first_log());
        self.logs.iter().filter(is_needed).cloned().collect()
    }

    /// The MANIFEST in force; none where there is no store yet.
    fn current(&self, dir: &Path) -> Result<Option<PathBuf>, Error> {
        let path = dir.join(CURRENT);
        if !self.has_current {
            let is_store = self.table.is_some() || !self.logs.is_empty();
            return if is_store { Err(Error::DamagedFile { path, problem: "is missing".into() }) } else { Ok(None) };
        }
        let named = fs::read(&path).map_err(unreadable)?;
        let named = std::str::from_utf8(&named).ok().and_then(|name| name.strip_suffix('\n'));
        match named.filter(|name| name.starts_with("MANIFEST-") && !name.contains('/')) {
            Some(name) => Ok(Some(dir.join(name))),
            None => Err(Error::DamagedFile { path, problem: "does not name a MANIFEST".into() }),
        }
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let damaged = |problem: String| Error::DamagedFile { path: path.to_owned(), problem };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged("is missing".into())),
        file => file.map_err(unreadable)?,
    };
    let manifest = Manifest::read(io::BufReader::new(file)).map_err(|fault| match fault {
        Fault::Io(error) => unreadable(error),
        Fault::At(at) => damaged(format!("is damaged at byte {at}")),
        Fault::Record => damaged("holds a record that is none".into()),
    })?;
    Ok(manifest)
}

fn unreadable(cause: io::Error) -> Error {
    Error::Engine { doing: "looking at its files", cause: cause.into() }
}

const CURRENT: &str = "CURRENT";
/// While it is there, so is a write-ahead log.
const BEGUN: &str = "BEGUN";
