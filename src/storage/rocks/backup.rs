//! Backups by RocksDB's own engine: files of tables are shared by all backups in a directory, by name, size and checksum.
//!
//! Must not know what is in the database.

use std::{fs, path::Path};

use rocksdb::{
    DB, Env,
    backup::{BackupEngine, BackupEngineInfo, BackupEngineOptions, RestoreOptions},
};

use super::{
    super::{Backup, Error, make_dir, tree},
    failed, lock,
};

/// Adds a backup of the database in `store` to those in `dir`, and keeps `keep` of them.
pub(super) fn make(db: &DB, store: &Path, dir: &Path, keep: Option<usize>) -> Result<Backup, Error> {
    check_apart(store, dir)?;
    make_dir(dir).map_err(Error::file(dir, "making the directory"))?;
    if !holds_backups(dir) && fs::read_dir(dir).map_err(Error::file(dir, "reading it"))?.next().is_some() {
        return Err(refused(dir, "it is not empty and holds no backups; name a directory of its own"));
    }
    let _only_this_one = lock(dir).map_err(|error| match error {
        Error::InUse(_) => refused(dir, "another backup is being written into it"),
        error => error,
    })?;
    let mut engine = open(dir)?;
    let before = tree(dir);
    // What is in memory is written out first, so that it is a file that the next backup shares.
    engine.create_new_backup_flush(db, true).map_err(failed("writing the backup"))?;
    let after = tree(dir);
    let newest = engine.get_backup_info().pop().ok_or_else(|| refused(dir, "the backup is not there"))?;
    if let Some(keep) = keep {
        engine.purge_old_backups(keep).map_err(failed("removing old backups"))?;
    }
    Ok(Backup {
        new_bytes: Some(after.0.saturating_sub(before.0)),
        new_files: Some(after.1.saturating_sub(before.1)),
        ..backup(&newest)
    })
}

/// See [`crate::storage::backups`].
pub(in crate::storage) fn list(dir: &Path) -> Result<Vec<Backup>, Error> {
    Ok(open_existing(dir)?.get_backup_info().iter().map(backup).collect())
}

/// Puts the files of a backup, the newest if none is named, into the empty directory `to`; each is compared with its checksum.
pub(in crate::storage) fn restore(dir: &Path, id: Option<u32>, to: &Path) -> Result<Backup, Error> {
    let mut engine = open_existing(dir)?;
    let found = engine.get_backup_info();
    let chosen = match id {
        None => found.last(),
        Some(id) => found.iter().find(|backup| backup.backup_id == id),
    };
    let Some(chosen) = chosen else {
        let ids: Vec<String> = found.iter().map(|backup| backup.backup_id.to_string()).collect();
        let wanted = id.map_or_else(|| "no backup".to_owned(), |id| format!("no backup {id}"));
        return Err(refused(dir, &format!("it holds {wanted}; there are: {}", ids.join(", "))));
    };
    engine
        .restore_from_backup(to, to, &RestoreOptions::default(), chosen.backup_id)
        .map_err(failed("restoring the backup"))?;
    Ok(backup(chosen))
}

fn open_existing(dir: &Path) -> Result<BackupEngine, Error> {
    // The engine would make what is missing.
    if !holds_backups(dir) {
        return Err(refused(dir, "there are no backups in it"));
    }
    open(dir)
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
    let existing = dir.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    if existing.is_some_and(|existing| existing.starts_with(&data_dir)) {
        return Err(refused(dir, "it is in the data directory; backups must be apart from what they save"));
    }
    Ok(())
}

fn holds_backups(dir: &Path) -> bool {
    dir.join("meta").is_dir()
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
        new_bytes: None,
        new_files: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
        assert_eq!(store.backup(&kept, Some(1)).unwrap().id, 2);
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
