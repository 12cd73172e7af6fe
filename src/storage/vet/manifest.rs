//! What RocksDB's MANIFEST says: which table files and which write-ahead logs the store consists of.
//!
//! Every field is known by how long it is; those that are not needed are passed over. RocksDB itself decides whether the rest makes
//! sense.

use std::{
    collections::BTreeMap,
    io::{self, Read},
};

use crate::storage::frames::{Frame, Frames};

/// The store as its MANIFEST describes it.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// The table files by number.
    pub(super) files: BTreeMap<u64, File>,
    families: BTreeMap<u64, Family>,
    /// Up to this one, changes are in table files.
    pub(super) last_sequence: u64,
    log_number_min: u64,
    /// Write-ahead logs that were synced as a whole, by number, and their sizes.
    pub(super) synced_logs: BTreeMap<u64, u64>,
    /// Bytes at its end that are not a whole record: a crash while it was written.
    pub(super) torn: u64,
}

/// A table file.
#[derive(Debug)]
pub(super) struct File {
    family: u64,
    /// In bytes.
    pub(super) size: u64,
}

#[derive(Debug, Default)]
struct Family {
    name: String,
    log_number: u64,
}

/// Why it cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    /// Where it is damaged.
    At(u64),
    /// A record that is none.
    Record,
}

impl Manifest {
    pub(super) fn read(input: impl Read) -> Result<Self, Fault> {
        let mut manifest = Self::default();
        let mut frames = Frames::searching(input);
        let mut hole = None;
        while let Some(frame) = frames.next().map_err(Fault::Io)? {
            match (frame, hole) {
                (Frame::Record(_), Some((at, _))) => return Err(Fault::At(at)),
                (Frame::Record(record), None) => manifest.apply(record).ok_or(Fault::Record)?,
                (Frame::Hole { at, len }, None) => hole = Some((at, len)),
                (Frame::Hole { len, .. }, Some((at, before))) => hole = Some((at, before + len)),
            }
        }
        manifest.torn = hole.map_or(0, |(_, len)| len);
        Ok(manifest)
    }

    /// The table that a file belongs to.
    pub(super) fn table_of(&self, file: &File) -> &str {
        self.families.get(&file.family).map_or("?", |family| &family.name)
    }

    /// Write-ahead logs before this number are not needed any more.
    pub(super) fn first_log(&self) -> u64 {
        self.families.values().map(|family| family.log_number).min().unwrap_or(0).max(self.log_number_min)
    }

    /// The log that was written to when this was written, or a later one, must be there.
    pub(super) fn newest_log(&self) -> u64 {
        self.families.values().map(|family| family.log_number).max().unwrap_or(0)
    }

    fn apply(&mut self, record: &[u8]) -> Option<()> {
        let mut edit = Fields(record);
        // The family stands behind what is said of it.
        let (mut family, mut added, mut log_number) = (0, None, None);
        let (mut gone, mut new) = (Vec::new(), Vec::new());
        let mut is_dropped = false;
        while !edit.0.is_empty() {
            match edit.number()? {
                2 => log_number = Some(edit.number()?),
                // The previous log and the next file.
                9 | 3 => drop(edit.number()?),
                4 => self.last_sequence = self.last_sequence.max(edit.number()?),
                5 => {
                    edit.number()?;
                    edit.bytes()?;
                }
                6 => {
                    edit.number()?;
                    gone.push(edit.number()?);
                }
                10 => self.log_number_min = self.log_number_min.max(edit.number()?),
                103 => new.push(self.new_file(&mut edit)?),
                200 => family = edit.number()?,
                201 => added = Some(String::from_utf8_lossy(edit.bytes()?).into_owned()),
                202 => is_dropped = true,
                203 | 300 => drop(edit.number()?),
                LOG_SYNCED => self.log_synced(&mut Fields(edit.bytes()?))?,
                LOGS_GONE => self.synced_logs = self.synced_logs.split_off(&Fields(edit.bytes()?).number()?),
                // The comparator, and all that a reader may pass over.
                1 => drop(edit.bytes()?),
                tag if tag & IGNORABLE > 0 => drop(edit.bytes()?),
                _ => return None,
            }
        }
        if let Some(name) = added {
            self.families.insert(family, Family { name, log_number: 0 });
        }
        if let Some(log_number) = log_number {
            self.families.entry(family).or_default().log_number = log_number;
        }
        if is_dropped {
            self.families.remove(&family);
        }
        for number in gone {
            self.files.remove(&number);
        }
        self.files.extend(new.into_iter().map(|(number, size)| (number, File { family, size })));
        Some(())
    }

    fn log_synced(&mut self, edit: &mut Fields<'_>) -> Option<()> {
        let number = edit.number()?;
        while edit.number()? == 2 {
            self.synced_logs.insert(number, edit.number()?);
        }
        Some(())
    }

    /// Its number and size.
    fn new_file(&mut self, edit: &mut Fields<'_>) -> Option<(u64, u64)> {
        edit.number()?;
        let (number, size) = (edit.number()?, edit.number()?);
        // The first key and the last one, the first change and the last one.
        edit.bytes()?;
        edit.bytes()?;
        edit.number()?;
        self.last_sequence = self.last_sequence.max(edit.number()?);
        while edit.number()? != 1 {
            edit.bytes()?;
        }
        Some((number, size))
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// In a tag: what it stands for may be passed over.
const IGNORABLE: u64 = 1 << 13;
const LOG_SYNCED: u64 = IGNORABLE + 7;
const LOGS_GONE: u64 = IGNORABLE + 8;
