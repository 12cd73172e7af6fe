//! The durable engine: RocksDB. Only this file and those in `rocks/` name it.
//!
//! The write-ahead log is always on. A torn end is the normal trace of a crash, and is cut off (`wal`); damage anywhere before is damage:
//! opening is refused then, where other modes of recovery would silently drop what follows, and with it what was acknowledged as durable.
//! Must not know what keys and values mean.

pub(super) mod backup;
mod files;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File},
    num::NonZeroU32,
    ops::{ControlFlow, Deref},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, ErrorKind,
    LogLevel, Options, ReadOptions, WriteBatch, WriteOptions,
};

use rustix::fs::{FlockOperation, flock};

use super::{
    Backup, Config, DiskUse, Engine, Error, OnCorruption, Op, Ops, Table, Visit, make_dir,
    quarantine::quarantine,
    vet,
    wal::{self, Mark},
};

/// The engine behind [`super::Durability::Fsync`] and [`super::Durability::Os`].
pub(super) struct RocksEngine {
    dir: PathBuf,
    config: Config,
    /// `None` while closed.
    db: RwLock<Option<Arc<Locked>>>,
    /// The last sequence number that is known to be synced.
    synced: AtomicU64,
    /// The oldest log that is needed, as batches tell it.
    oldest: AtomicU64,
    /// Whether something was not as it was written: the next opening has to deal with it.
    is_damaged: AtomicBool,
    /// Held while a backup is made: one at a time, and the database stays open.
    backing_up: Mutex<()>,
}

/// A database in a directory that is locked: RocksDB locks it too, but not yet when its logs are cut.
struct Locked {
    db: DB,
    _dir: File,
}

impl Deref for Locked {
    type Target = DB;

    fn deref(&self) -> &DB {
        &self.db
    }
}

impl RocksEngine {
    /// Opens the database in `dir`; makes it, and the directory, where there is none.
    pub(super) fn open(dir: &Path, config: &Config) -> Result<Self, Error> {
        make_dir(dir)
            .map_err(|cause| Error::Engine { doing: "making the directory of the store", cause: cause.into() })?;
        let engine = Self::of(open(dir, config)?, dir, config);
        engine.begin_log()?;
        Ok(engine)
    }

    /// Opens the database in `dir` as it lies, write-ahead log included. Nothing is written, not even its diary.
    pub(super) fn open_to_read(dir: &Path, config: &Config) -> Result<Self, Error> {
        let locked = lock(dir)?;
        let options = database_options(config);
        let opened = DB::open_cf_descriptors_read_only(&options, dir, families(dir, &options, config), false);
        let db = opened.map_err(failed("opening the database"))?;
        Ok(Self::of(Locked { db, _dir: locked }, dir, config))
    }

    fn of(db: Locked, dir: &Path, config: &Config) -> Self {
        Self {
            dir: dir.to_owned(),
            config: config.clone(),
            db: RwLock::new(Some(Arc::new(db))),
            synced: AtomicU64::default(),
            oldest: AtomicU64::default(),
            is_damaged: AtomicBool::default(),
            backing_up: Mutex::default(),
        }
    }

    /// Moves a store aside that turned out to be damaged, where that is configured.
    fn mend(&self) -> Result<(), Error> {
        let is_wanted =
            self.config.on_corruption == OnCorruption::Quarantine && self.is_damaged.load(Ordering::Relaxed);
        if let Some(data_dir) = self.dir.parent().filter(|_| is_wanted) {
            let found = Error::Corrupt { doing: "working with it", cause: "the log says where it was met".into() };
            quarantine(data_dir, &self.config, &found)?;
            self.is_damaged.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(rocksdb::Error) -> Error {
        move |cause| {
            let error = failed(doing)(cause);
            if error.is_damage() {
                self.is_damaged.store(true, Ordering::Relaxed);
            }
            error
        }
    }

    fn db(&self) -> RwLockReadGuard<'_, Option<Arc<Locked>>> {
        self.db.read()
    }

    /// Has the first record of a new log on the disk, so that it is known where the next ones belong, and that a log must be there.
    fn begin_log(&self) -> Result<(), Error> {
        self.has_synced(self.db().as_ref().ok_or(Error::Closed)?);
        self.write(&Ops::default(), true)?;
        vet::log_has_begun(&self.dir)
    }

    fn has_synced(&self, db: &DB) {
        self.synced.store(db.latest_sequence_number(), Ordering::Relaxed);
    }

    /// What the next batch tells, and whether it has to be synced: a log is said to be the oldest once its beginning is on the disk. Else a power
    /// cut that takes that could not be told from damage, as nothing stands before it.
    fn mark(&self, db: &DB) -> Result<(Mark, bool), Error> {
        let oldest = db.property_int_value(OLDEST_LOG).map_err(failed("asking for its logs"))?.unwrap_or_default();
        let begins = oldest != self.oldest.load(Ordering::Relaxed);
        if begins {
            db.flush_wal(true).map_err(self.failed("syncing the write-ahead log"))?;
            self.has_synced(db);
            self.oldest.store(oldest, Ordering::Relaxed);
        }
        Ok((Mark { synced: self.synced.load(Ordering::Relaxed), oldest }, begins))
    }
}

impl Engine for RocksEngine {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn write(&self, ops: &Ops, sync: bool) -> Result<(), Error> {
        let db = self.db();
        let db = db.as_ref().ok_or(Error::Closed)?;
        let families = Families::of(db)?;
        let (mark, begins) = self.mark(db)?;
        let sync = sync || begins;
        let mut options = WriteOptions::new();
        options.set_sync(sync);
        // It is waited here: RocksDB, whose flush has failed, would hold the write until it has recovered, and recover once nobody writes.
        options.set_no_slowdown(true);
        while let Err(cause) = db.write_opt(families.batch(ops, mark), &options) {
            let waits = cause.kind() == ErrorKind::Incomplete && !has_failed_behind(db)?;
            if !waits {
                return Err(self.failed("writing a batch")(cause));
            }
            std::thread::sleep(STALL);
        }
        if sync {
            self.has_synced(db);
        }
        Ok(())
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let db = self.db();
        let db = db.as_ref().ok_or(Error::Closed)?;
        db.get_cf(family(db, table)?, key).map_err(self.failed("reading a record"))
    }

    fn get_many(&self, table: Table, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut wanted: Vec<_> = keys.iter().copied().zip(0..).collect();
        wanted.sort_unstable();
        let (Some(&(first, _)), Some(&(last, _))) = (wanted.first(), wanted.last()) else { return Ok(Vec::new()) };
        let db = self.db();
        let db = db.as_ref().ok_or(Error::Closed)?;
        // One pass: what stands close together is reached by steps, at a tenth of what it costs to look each of them up.
        let mut records = db.raw_iterator_cf_opt(family(db, table)?, bounded(first, &[last, &[0]].concat()));
        let mut found: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        records.seek(first);
        for (key, at) in wanted {
            let mut steps = 0;
            while steps < STEPS_MAX && records.key().is_some_and(|present| present < key) {
                records.next();
                steps += 1;
            }
            if records.key().is_some_and(|present| present < key) {
                records.seek(key);
            }
            if let (Some(place), Some(value)) = (found.get_mut(at), records.value())
                && records.key() == Some(key)
            {
                *place = Some(value.to_vec());
            }
        }
        records.status().map_err(failed("reading records"))?;
        Ok(found)
    }

    fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut Visit<'_>) -> Result<(), Error> {
        let db = self.db();
        let db = db.as_ref().ok_or(Error::Closed)?;
        let mut records = db.raw_iterator_cf_opt(family(db, table)?, bounded(from, to));
        records.seek(from);
        while let Some((key, value)) = records.item() {
            if each(key, value) == ControlFlow::Break(()) {
                return Ok(());
            }
            records.next();
        }
        records.status().map_err(self.failed("reading records"))
    }

    fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let db = self.db();
        let db = db.as_ref().ok_or(Error::Closed)?;
        let mut records = db.raw_iterator_cf_opt(family(db, table)?, bounded(from, to));
        records.seek_to_last();
        let last = records.key().map(<[u8]>::to_vec);
        records.status().map_err(self.failed("reading records"))?;
        Ok(last)
    }

    fn sync(&self) -> Result<(), Error> {
        let db = self.db();
        let db = db.as_ref().ok_or(Error::Closed)?;
        db.flush_wal(true).map_err(self.failed("syncing the write-ahead log"))?;
        self.has_synced(db);
        Ok(())
    }

    fn reopen(&self) -> Result<(), Error> {
        let Some(_none_is_made) = self.backing_up.try_lock() else {
            return Err(Error::BackupRunning);
        };
        let mut db = self.db.write();
        // Closed before it is opened: it holds the lock of the directory.
        *db = None;
        self.mend()?;
        *db = Some(Arc::new(open(&self.dir, &self.config)?));
        drop(db);
        self.begin_log()
    }

    fn close(&self) -> Result<(), Error> {
        let backing_up = self.backing_up.try_lock_for(BACKUP_PATIENCE);
        if backing_up.is_none() {
            tracing::warn!("a backup that is being made is given up");
        }
        // It says of the last acknowledged batch that it was synced.
        match self.write(&Ops::default(), true) {
            Ok(()) | Err(Error::Closed) => {}
            Err(error) => tracing::warn!(%error, "the write-ahead log ends without a mark"),
        }
        if let Some(db) = self.db.write().take() {
            // What table files hold is known by size and checksum, and the next start need not read it from the log.
            for table in Table::ALL {
                if let Err(error) = db.flush_cf(family(&db, table)?) {
                    tracing::warn!(%table, %error, "what the write-ahead log alone holds stays there");
                }
            }
            db.cancel_all_background_work(backing_up.is_some());
        }
        Ok(())
    }

    fn backup(&self, dir: &Path, keep: Option<NonZeroU32>) -> Result<Backup, Error> {
        let _one = self.backing_up.try_lock().ok_or(Error::BackupRunning)?;
        let db = self.db().clone().ok_or(Error::Closed)?;
        backup::make(&db, &self.dir, dir, keep)
    }

    fn disk_use(&self) -> Result<DiskUse, Error> {
        let db = self.db();
        files::disk_use(db.as_ref().ok_or(Error::Closed)?, &self.dir)
    }

    fn compact(&self, table: Table, from: &[u8], to: &[u8]) -> Result<(), Error> {
        // Held meanwhile: what is opened anew must be closed before.
        let db = self.db();
        let db = db.as_ref().ok_or(Error::Closed)?;
        db.compact_range_cf(family(db, table)?, Some(from), Some(to));
        Ok(())
    }

    fn fences(&self, table: Table) -> Result<Vec<Vec<u8>>, Error> {
        let db = self.db();
        files::fences(db.as_ref().ok_or(Error::Closed)?, table)
    }
}

/// The handles of all tables.
struct Families<'a> {
    meta: &'a ColumnFamily,
    sessions: &'a ColumnFamily,
    logs: &'a ColumnFamily,
    retained: &'a ColumnFamily,
    bodies: &'a ColumnFamily,
}

impl<'a> Families<'a> {
    fn of(db: &'a DB) -> Result<Self, Error> {
        Ok(Self {
            meta: family(db, Table::Meta)?,
            sessions: family(db, Table::Sessions)?,
            logs: family(db, Table::Logs)?,
            retained: family(db, Table::Retained)?,
            bodies: family(db, Table::Bodies)?,
        })
    }

    fn batch(&self, ops: &Ops, mark: Mark) -> WriteBatch {
        let mut batch = WriteBatch::with_capacity_bytes(ops.size());
        batch.put_log_data(mark.encode());
        for op in ops.iter() {
            match op {
                Op::Put { table, key, value } => batch.put_cf(self.get(table), key, value),
                Op::Delete { table, key } => batch.delete_cf(self.get(table), key),
                Op::DeleteRange { table, from, to } => batch.delete_range_cf(self.get(table), from, to),
            }
        }
        batch
    }

    fn get(&self, table: Table) -> &'a ColumnFamily {
        match table {
            Table::Meta => self.meta,
            Table::Sessions => self.sessions,
            Table::Logs => self.logs,
            Table::Retained => self.retained,
            Table::Bodies => self.bodies,
        }
    }
}

/// Keeps other processes out for as long as the file is open.
fn lock(dir: &Path) -> Result<File, Error> {
    let locking = |cause| Error::Engine { doing: "locking the directory of the store", cause };
    let file = File::open(dir).map_err(|cause| locking(cause.into()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse(dir.to_owned())),
        Err(cause) => Err(locking(cause.into())),
    }
}

/// A damaged database, to be read as far as it can be; its files stay as they are.
pub(super) fn open_damaged(dir: &Path, config: &Config) -> Result<RocksEngine, Error> {
    let locked = lock(dir)?;
    let mut options = database_options(config);
    options.create_if_missing(false);
    options.create_missing_column_families(false);
    options.set_paranoid_checks(false);
    options.set_track_and_verify_wals_in_manifest(false);
    options.set_wal_recovery_mode(DBRecoveryMode::SkipAnyCorruptedRecord);
    let opened = DB::open_cf_descriptors_read_only(&options, dir, families(dir, &options, config), false);
    let db = opened.map_err(failed("opening the damaged database"))?;
    Ok(RocksEngine::of(Locked { db, _dir: locked }, dir, config))
}

/// A database of the table files and write-ahead logs in `dir`, whose order is found out anew. Changes them.
pub(super) fn open_repaired(dir: &Path, config: &Config) -> Result<RocksEngine, Error> {
    name_tables(dir, config).map_err(|cause| Error::Engine { doing: "naming the tables", cause })?;
    let options = database_options(config);
    DB::repair(&options, dir).map_err(failed("repairing the damaged database"))?;
    let locked = lock(dir)?;
    let opened = DB::open_cf_descriptors(&options, dir, families(dir, &options, config));
    let db = opened.map_err(failed("opening the repaired database"))?;
    Ok(RocksEngine::of(Locked { db, _dir: locked }, dir, config))
}

/// A repair learns the tables from their files alone, and leaves out what a log holds for others. So each gets a file here, which holds
/// no more than that a key that nothing has is gone.
fn name_tables(dir: &Path, config: &Config) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let aside = dir.join("tables");
    make_dir(&aside)?;
    let db = open(&aside, config)?;
    for table in Table::ALL {
        let table = family(&db, table)?;
        db.delete_cf(table, [0xFF; 16])?;
        db.flush_cf(table)?;
    }
    for (file, number) in db.live_files()?.iter().zip(TABLE_FILES_FROM..) {
        fs::copy(aside.join(file.name.trim_start_matches('/')), dir.join(format!("{number:06}.sst")))?;
    }
    drop(db);
    fs::remove_dir_all(aside)?;
    Ok(())
}

fn open(dir: &Path, config: &Config) -> Result<Locked, Error> {
    let locked = lock(dir)?;
    let synced = vet::vet(dir)?;
    if let Some(torn) = wal::cut_torn_end(dir, &synced)? {
        tracing::warn!(
            log = %torn.log.display(),
            at = torn.at,
            bytes = torn.bytes,
            saved = %torn.saved.display(),
            "the end of the write-ahead log is torn, as a crash leaves it, and was cut off: nothing says that it was synced"
        );
    }
    vet::log_begins_anew(dir)?;
    let options = database_options(config);
    let opened = DB::open_cf_descriptors(&options, dir, families(dir, &options, config)).map_err(|cause| {
        // RocksDB has no kind of its own for this.
        let lock = dir.join("LOCK");
        if cause.kind() == ErrorKind::IOError && cause.as_ref().contains(&*lock.to_string_lossy()) {
            return Error::InUse(dir.to_owned());
        }
        failed("opening the database")(cause)
    });
    Ok(Locked { db: opened?, _dir: locked })
}

fn families(dir: &Path, options: &Options, config: &Config) -> Vec<ColumnFamilyDescriptor> {
    let cache = Cache::new_lru_cache(config.rocksdb_cache_bytes);
    let mut families: Vec<_> = Table::ALL
        .iter()
        .map(|&table| ColumnFamilyDescriptor::new(table.name(), table_options(table, config, &cache)))
        .collect();
    // A later release may have more tables. They have to be opened for its format version to be read, and refused by name.
    for name in DB::list_cf(options, dir).unwrap_or_default() {
        if Table::ALL.iter().all(|table| table.name() != name) {
            families.push(ColumnFamilyDescriptor::new(name, Options::default()));
        }
    }
    families
}

fn database_options(config: &Config) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    // A write-ahead log that was synced and is missing or shorter at the start is damage too.
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_max_total_wal_size(config.rocksdb_wal_bytes);
    options.set_db_write_buffer_size(config.rocksdb_memtable_bytes);
    options.set_max_background_jobs(2);
    options.set_max_open_files(256);
    options.set_avoid_unnecessary_blocking_io(true);
    // Its own diary.
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(3);
    options.set_max_log_file_size(1 << 20);
    options.set_stats_dump_period_sec(0);
    // The list of files is written anew when it has this size; RocksDB's default is a gigabyte.
    options.set_max_manifest_file_size(4 << 20);
    options
}

fn table_options(table: Table, config: &Config, cache: &Cache) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    // Counts indexes and filters to the cache's bound.
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    if table == Table::Bodies {
        blocks.set_bloom_filter(10.0, false);
    }
    let mut options = Options::default();
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size((config.rocksdb_memtable_bytes / 2).max(1 << 20));
    // What is settled gives its space back soon: files full of deletions are compacted without waiting for their turn.
    options.add_compact_on_deletion_collector_factory(1024, 512, 0.5);
    options
}

/// Whether a flush or a compaction has failed since it was opened.
fn has_failed_behind(db: &DB) -> Result<bool, Error> {
    let count = db.property_int_value(BACKGROUND_ERRORS).map_err(failed("asking for its failures"))?;
    Ok(count.is_some_and(|count| count > 0))
}

fn bounded(from: &[u8], to: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(from);
    options.set_iterate_upper_bound(to);
    options
}

fn family(db: &DB, table: Table) -> Result<&ColumnFamily, Error> {
    db.cf_handle(table.name())
        .ok_or_else(|| Error::Engine { doing: "finding a table", cause: format!("no table {table}").into() })
}

fn failed(doing: &'static str) -> impl FnOnce(rocksdb::Error) -> Error {
    move |cause| match cause.kind() {
        ErrorKind::Corruption => Error::Corrupt { doing, cause: cause.into() },
        // RocksDB has no kind of its own for a table file that is missing.
        ErrorKind::IOError if cause.as_ref().contains("No such file") && cause.as_ref().contains(".sst") => {
            Error::Corrupt { doing, cause: cause.into() }
        }
        _ => Error::Engine { doing, cause: cause.into() },
    }
}

/// The number of the first file of [`name_tables`]: later than all that a store comes to have.
const TABLE_FILES_FROM: u64 = 900_000_000;
/// The property that tells the number of the oldest log that is needed.
const OLDEST_LOG: &str = "rocksdb.min-log-number-to-keep";
const BACKGROUND_ERRORS: &str = "rocksdb.background-errors";
/// How long a write waits at a time while flushes or compactions are behind.
const STALL: Duration = Duration::from_millis(2);
/// How long a closing waits for a backup that is being made, before the end of the process ends that too.
const BACKUP_PATIENCE: Duration = Duration::from_secs(10);
/// How many records are stepped over to the next one that is wanted before it is looked up.
const STEPS_MAX: usize = 8;
