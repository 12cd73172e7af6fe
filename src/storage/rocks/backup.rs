//! Backups by RocksDB's own engine: files of tables are shared by all backups in a directory, by number, size and the session that wrote them.
//!
//! A directory of backups belongs to one store: its file [`MARK`] says to which, and is locked by who uses it. Must not know what is in the
//! database.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    num::NonZeroU32,
    path::{Component, Path},
};

use rocksdb::{
    DB, Env,
    backup::{BackupEngine, BackupEngineInfo, BackupEngineOptions, RestoreOptions},
};
use rustix::fs::{FlockOperation, flock};

use super::{
    super::{Backup, Error, make_dir, tree},
    failed,
};

/// Adds a backup of the database in `store` to those in `dir`, and keeps `keep` of them.
pub(super) fn make(db: &DB, store: &Path, dir: &Path, keep: Option<NonZeroU32>) -> Result<Backup, Error> {
    check_apart(store, dir)?;
    make_dir(dir).map_err(Error::file(dir, "making the directory"))?;
    let mut backups = Backups::hold(dir, &db.get_db_identity().map_err(failed("asking for its id"))?)?;
    let before = tree(dir);
    // What is in memory is written out first, so that it is a file that the next backup shares.
    backups.engine.create_new_backup_flush(db, true).map_err(failed("writing the backup"))?;
    let after = tree(dir);
    let newest = backups.engine.get_backup_info().pop().ok_or_else(|| refused(dir, "the backup is not there"))?;
    if let Some(keep) = keep {
        let purged = backups.engine.purge_old_backups(keep.get() as usize);
        purged.map_err(|cause| Error::NotPurged { id: newest.backup_id, cause: cause.into() })?;
    }
    Ok(Backup {
        new_bytes: Some(after.0.saturating_sub(before.0)),
        new_files: Some(after.1.saturating_sub(before.1)),
        ..backup(&newest)
    })
}

/// See [`crate::storage::backups`].
pub(in crate::storage) fn list(dir: &Path) -> Result<Vec<Backup>, Error> {
    Backups::hold_to_read(dir)?.list()
}

/// Puts the files of a backup, the newest if none is named, into the empty directory `to`; each is compared with its checksum.
pub(in crate::storage) fn restore(dir: &Path, id: Option<u32>, to: &Path) -> Result<Backup, Error> {
    let mut backups = Backups::hold_to_read(dir)?;
    let found = backups.list()?;
    let chosen = match id {
        None => found.last(),
        Some(id) => found.iter().find(|backup| backup.id == id),
    };
    let ids = || match found.iter().filter(|backup| !backup.is_damaged).map(|backup| backup.id.to_string()).collect() {
        sound if Vec::is_empty(&sound) => "there is none that is whole".to_owned(),
        sound => format!("there are: {}", sound.join(", ")),
    };
    match (chosen, id) {
        (Some(backup), _) if backup.is_damaged => {
            let problem = format!("a file of backup {} is missing; name another one by --backup; {}", backup.id, ids());
            Err(refused(dir, &problem))
        }
        (Some(backup), _) => {
            let restored = backups.engine.restore_from_backup(to, to, &RestoreOptions::default(), backup.id);
            restored.map(|()| backup.clone()).map_err(failed("restoring the backup"))
        }
        (None, Some(id)) => Err(refused(dir, &format!("it holds no backup {id}; {}", ids()))),
        (None, None) => Err(refused(dir, NO_BACKUPS)),
    }
}

/// A directory of backups in use.
struct Backups<'d> {
    dir: &'d Path,
    engine: BackupEngine,
    _lock: File,
}

impl<'d> Backups<'d> {
    /// For the store with this id to add to them; by nobody else meanwhile.
    fn hold(dir: &'d Path, store: &[u8]) -> Result<Self, Error> {
        let path = dir.join(MARK);
        let has_begun = path.try_exists().map_err(Error::file(&path, "looking for it"))?;
        if !has_begun && fs::read_dir(dir).map_err(Error::file(dir, "reading it"))?.next().is_some() {
            return Err(refused(dir, "it is not empty and holds no backups; name a directory of its own"));
        }
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut mark = opened.map_err(Error::file(&path, "opening it"))?;
        lock(dir, &mark, FlockOperation::NonBlockingLockExclusive)?;
        let mut found = Vec::new();
        mark.read_to_end(&mut found).map_err(Error::file(&path, "reading it"))?;
        if found.is_empty() {
            let written = mark.write_all(store).and_then(|()| mark.sync_all());
            written.and_then(|()| File::open(dir)?.sync_all()).map_err(Error::file(&path, "writing it"))?;
        } else if found != store {
            return Err(refused(dir, "it holds backups of another store; name a directory of its own"));
        }
        Ok(Self { dir, engine: open(dir)?, _lock: mark })
    }

    /// Nobody adds or removes any meanwhile.
    fn hold_to_read(dir: &'d Path) -> Result<Self, Error> {
        let path = dir.join(MARK);
        let mark = File::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => refused(dir, NO_BACKUPS),
            _ => Error::file(&path, "opening it")(error),
        })?;
        lock(dir, &mark, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { dir, engine: open(dir)?, _lock: mark })
    }

    /// By number. The engine says nothing of those that lack a file.
    fn list(&self) -> Result<Vec<Backup>, Error> {
        let meta = self.dir.join("meta");
        let reading = |cause| Error::file(&meta, "reading the directory")(cause);
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&meta).map_err(reading)? {
            if let Some(id) = entry.map_err(reading)?.file_name().to_str().and_then(|name| name.parse().ok()) {
                found.insert(id, Backup { id, is_damaged: true, ..Backup::default() });
            }
        }
        found.extend(self.engine.get_backup_info().iter().map(|info| (info.backup_id, backup(info))));
        Ok(found.into_values().collect())
    }
}

fn lock(dir: &Path, mark: &File, how: FlockOperation) -> Result<(), Error> {
    flock(mark, how).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => {
            refused(dir, "another pinnace works on its backups; try again when that is done")
        }
        error => Error::file(dir, "locking it")(error.into()),
    })
}

fn open(dir: &Path) -> Result<BackupEngine, Error> {
    // Syncs each file, unless told otherwise.
    let options = BackupEngineOptions::new(dir).map_err(failed("naming the directory of backups"))?;
    let env = Env::new().map_err(failed("opening the directory of backups"))?;
    BackupEngine::open(&options, &env).map_err(failed("opening the directory of backups"))
}

/// Whatever happens to the one, the other must stay.
fn check_apart(store: &Path, dir: &Path) -> Result<(), Error> {
    let data_dir = store.parent().unwrap_or(store);
    let data_dir = data_dir.canonicalize().map_err(Error::file(data_dir, "finding it"))?;
    if !dir.is_absolute() {
        return Err(refused(dir, "the path must be absolute"));
    }
    // What does not exist yet is where its nearest existing ancestor is.
    let existing = dir.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    let Some((ancestor, existing)) = existing else { return Err(refused(dir, "no part of the path is there")) };
    let missing = dir.strip_prefix(ancestor).unwrap_or(dir);
    if missing.components().any(|part| part == Component::ParentDir) {
        return Err(refused(dir, "a part of the path before .. is not there"));
    }
    if existing.starts_with(&data_dir) {
        return Err(refused(dir, "it is in the data directory; backups must be apart from what they save"));
    }
    Ok(())
}

fn refused(dir: &Path, problem: &str) -> Error {
    Error::BackupDir { path: dir.to_owned(), problem: problem.to_owned() }
}

fn backup(info: &BackupEngineInfo) -> Backup {
    Backup {
        id: info.backup_id,
        made_at_secs: u64::try_from(info.timestamp).unwrap_or_default(),
        bytes: info.size,
        files: info.num_files,
        ..Backup::default()
    }
}

/// In a directory of backups: names the store that they are of.
const MARK: &str = "pinnace-store";
const NO_BACKUPS: &str = "there are no backups in it";

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, sync::Arc};

    use crate::storage::{
        Config, Durability, Engine, Error, NewStore, Snapshot, Store, backups, restore,
        rocks::RocksEngine,
        tests::{config, message, session, wait_until},
    };

    /// What nobody waits for is in it as well, and one that is made meanwhile is refused, as is a reopening.
    #[test]
    fn all_that_was_written_before_is_in_it() {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kept = to.path().join("backups");
        let config = Config { lazy_commit_millis: u64::MAX, ..config(Durability::Fsync) };
        let store = Store::open(dir.path(), &config).unwrap();
        store.write(|batch| batch.put_session(&session(1)));
        assert_eq!(store.health().batches, 0);
        let made = store.backup(&kept, None).unwrap();
        assert!(made.id == 1 && made.new_bytes >= Some(made.bytes) && made.new_files >= Some(made.files), "{made:?}");
        store.write(|batch| batch.put_session(&session(2)));
        assert_eq!(store.backup(&kept, NonZeroU32::new(1)).unwrap().id, 2);
        assert_eq!(backups(&kept).unwrap().iter().map(|backup| backup.id).collect::<Vec<_>>(), [2]);
        let data_dir = tempfile::tempdir().unwrap();
        restore(&kept, None, NewStore::begin(data_dir.path()).unwrap()).unwrap();
        assert_eq!(Snapshot::open(data_dir.path(), &config).unwrap().stats(0).unwrap().sessions, 2);
    }

    #[test]
    fn one_backup_at_a_time_and_the_engine_stays_open_meanwhile() {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let engine = Arc::new(RocksEngine::open(&dir.path().join("store"), &config(Durability::Os)).unwrap());
        let held = engine.backing_up.lock();
        assert!(matches!(engine.backup(to.path(), None), Err(Error::BackupRunning)));
        assert!(matches!(engine.reopen(), Err(Error::BackupRunning)));
        assert_eq!(engine.get(crate::storage::Table::Meta, b"x").unwrap(), None, "it is open");
        let closing = {
            let engine = engine.clone();
            std::thread::spawn(move || engine.close())
        };
        drop(held);
        wait_until(|| closing.is_finished());
        closing.join().unwrap().unwrap();
        assert!(matches!(engine.backup(to.path(), None), Err(Error::Closed)));
    }

    /// One damaged file hides what is before its end, not what is behind it; of files that do not overlap, only what is in it.
    #[test]
    fn a_check_goes_on_behind_a_damaged_file() {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::open(dir.path(), &config(Durability::Fsync)).unwrap();
        for letter in ["a", "b", "c"] {
            store.write(|batch| {
                (0..100).for_each(|n| batch.put_retained(&message(&format!("{letter}/{n}"), 500, n), None));
            });
            // Each is written into a file of its own.
            store.backup(to.path(), None).unwrap();
        }
        store.close().unwrap();
        let place = dir.path().join("store");
        let engine = RocksEngine::open_to_read(&place, &config(Durability::Fsync)).unwrap();
        let files = engine.db().as_ref().unwrap().live_files().unwrap();
        let second = files.iter().find(|file| file.start_key.as_deref() == Some(b"b/0")).unwrap();
        let name = second.name.trim_start_matches('/');
        let mut bytes = std::fs::read(place.join(name)).unwrap();
        bytes[50] ^= 1;
        std::fs::write(place.join(name), bytes).unwrap();
        drop(engine);
        let snapshot = Snapshot::open(dir.path(), &config(Durability::Fsync)).unwrap();
        let mut found = Vec::new();
        let checked = snapshot.check(&mut |_| {}, &mut |finding| found.push(finding.to_string())).unwrap();
        assert!(checked.faults == 1 && found.len() == 1, "{found:?}");
        assert!(found[0].contains("from its beginning: what follows, up to key 632f30,"), "{found:?}");
        assert!(found[0].contains(name), "{found:?}");
        assert_eq!(checked.records, 1 + 100, "the format, and the last letter");
    }
}
