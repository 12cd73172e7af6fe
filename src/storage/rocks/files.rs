//! What the files of RocksDB take and where they begin.
//!
//! Must not know what stands in them.

use std::{fs, path::Path};

use rocksdb::{DB, properties};

use super::{
    super::{DiskUse, Error, Table, TableUse},
    failed, family,
};

pub(super) fn disk_use(db: &DB, dir: &Path) -> Result<DiskUse, Error> {
    let mut disk = others(dir)?;
    let live = db.live_files().map_err(failed("listing its files"))?;
    for table in Table::ALL {
        let family = family(db, table)?;
        let estimate = |name: &properties::PropName| {
            db.property_int_value_cf(family, name).map(Option::unwrap_or_default).map_err(failed("reading its counts"))
        };
        let mut of_table = TableUse {
            live_bytes: estimate(properties::ESTIMATE_LIVE_DATA_SIZE)?,
            records: estimate(properties::ESTIMATE_NUM_KEYS)?,
            ..TableUse::default()
        };
        for file in live.iter().filter(|file| file.column_family_name == table.name()) {
            of_table.files += 1;
            of_table.bytes += file.size as u64;
        }
        disk.tables.insert(table.name(), of_table);
    }
    let tables: u64 = disk.tables.values().map(|table| table.bytes).sum();
    disk.other_bytes = disk.other_bytes.saturating_sub(tables);
    Ok(disk)
}

/// What is no file of a table; `other_bytes` still with those.
fn others(dir: &Path) -> Result<DiskUse, Error> {
    let mut disk = DiskUse::default();
    for entry in fs::read_dir(dir).map_err(Error::file(dir, "reading the directory"))? {
        let entry = entry.map_err(Error::file(dir, "reading the directory"))?;
        // One that goes meanwhile takes nothing.
        let Ok(bytes) = entry.metadata().map(|found| found.len()) else { continue };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        match () {
            () if name.ends_with(".log") => disk.wal_bytes += bytes,
            () if name.starts_with("LOG") => disk.diary_bytes += bytes,
            () => disk.other_bytes += bytes,
        }
    }
    Ok(disk)
}

pub(super) fn fences(db: &DB, table: Table) -> Result<Vec<Vec<u8>>, Error> {
    let mut fences = Vec::new();
    for file in db.live_files().map_err(failed("listing its files"))? {
        if file.column_family_name != table.name() {
            continue;
        }
        fences.extend(file.start_key);
        fences.extend(file.end_key.map(|mut key| {
            key.push(0);
            key
        }));
    }
    fences.sort_unstable();
    fences.dedup();
    Ok(fences)
}
