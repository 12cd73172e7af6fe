//! What the store asks of a key-value engine, and the batch of operations that it writes at once.
//!
//! Must not know what keys and values mean.

use std::{fmt, num::NonZeroU32, ops::ControlFlow, ops::Range, path::Path};

use super::{Backup, DiskUse, Error};

/// A sorted map of byte strings in tables, written by one thread and read by many.
pub trait Engine: Send + Sync {
    /// Its name, for the operator.
    fn name(&self) -> &'static str;

    /// Applies `ops` in order, all or none, also across a crash. With `sync` it returns once they, and all that was written
    /// before, are on the disk. After an error it is unknown whether they are stored; [`Engine::reopen`] settles it.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Closed`].
    fn write(&self, ops: &Ops, sync: bool) -> Result<(), Error>;

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// The values of `keys`, each in its place.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn get_many(&self, table: Table, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    /// Gives `each` the records with `from <= key < to` in ascending order until it breaks. `each` must not call the engine.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut Visit<'_>) -> Result<(), Error>;

    /// The last key with `from <= key < to`.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// Returns once all that was written is on the disk.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn sync(&self) -> Result<(), Error>;

    /// Closes whatever is open and opens it anew, with what the disk holds.
    ///
    /// # Errors
    /// As [`Engine::write`]; the engine is closed then, and this may be tried again.
    fn reopen(&self) -> Result<(), Error>;

    /// Lets go of the disk. Everything else fails from then on with [`Error::Closed`].
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn close(&self) -> Result<(), Error>;

    /// Adds a backup of all that was written to those in `dir`, which share what they have in common; of them, `keep` stay, if it is
    /// given. Reads and writes go on meanwhile.
    ///
    /// # Errors
    /// [`Error::NoBackup`] by an engine without files; [`Error::BackupRunning`], [`Error::BackupDir`], [`Error::NotPurged`], and as [`Engine::write`].
    fn backup(&self, _dir: &Path, _keep: Option<NonZeroU32>) -> Result<Backup, Error> {
        Err(Error::NoBackup)
    }

    /// What it takes on the disk: nothing by an engine without files.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn disk_use(&self) -> Result<DiskUse, Error> {
        Ok(DiskUse::default())
    }

    /// Gives back the room of what was removed between the keys `from` and `to`. Blocks for as long as it takes to rewrite what is left there.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn compact(&self, _table: Table, _from: &[u8], _to: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    /// Keys at which a file of the table begins or has just ended, ascending: where a reader that meets damage may go on.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn fences(&self, _table: Table) -> Result<Vec<Vec<u8>>, Error> {
        Ok(Vec::new())
    }
}

/// What [`Engine::scan`] calls with each key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A table (a column family) of the engine. `keys` says what stands in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Table {
    Meta,
    Sessions,
    Logs,
    Retained,
    Bodies,
}

impl Table {
    /// All of them, each at the position of its number.
    pub const ALL: [Self; 5] = [Self::Meta, Self::Sessions, Self::Logs, Self::Retained, Self::Bodies];

    /// Its stored name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Sessions => "sessions",
            Self::Logs => "logs",
            Self::Retained => "retained",
            Self::Bodies => "bodies",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One operation of [`Ops`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op<'a> {
    Put {
        table: Table,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        table: Table,
        key: &'a [u8],
    },
    /// All keys with `from <= key < to`.
    DeleteRange {
        table: Table,
        from: &'a [u8],
        to: &'a [u8],
    },
}

/// Operations in their order, their bytes in one arena.
#[derive(Debug, Clone, Default)]
pub struct Ops {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    kind: Kind,
    table: Table,
    first: Range<usize>,
    second: Range<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Put,
    Delete,
    DeleteRange,
}

impl Ops {
    /// Sets `key` to what `value` appends to the arena (it may only append).
    pub fn put(&mut self, table: Table, key: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        let first = self.push(key);
        let start = self.bytes.len();
        value(&mut self.bytes);
        let second = start..self.bytes.len();
        self.entries.push(Entry { kind: Kind::Put, table, first, second });
    }

    /// Removes `key`.
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        let first = self.push(key);
        self.entries.push(Entry { kind: Kind::Delete, table, first, second: 0..0 });
    }

    /// Removes all keys with `from <= key < to`.
    pub fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]) {
        let first = self.push(from);
        let second = self.push(to);
        self.entries.push(Entry { kind: Kind::DeleteRange, table, first, second });
    }

    /// The operations in their order.
    pub fn iter(&self) -> impl Iterator<Item = Op<'_>> {
        let slice = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        self.entries.iter().map(move |entry| {
            let (table, first, second) = (entry.table, slice(&entry.first), slice(&entry.second));
            match entry.kind {
                Kind::Put => Op::Put { table, key: first, value: second },
                Kind::Delete => Op::Delete { table, key: first },
                Kind::DeleteRange => Op::DeleteRange { table, from: first, to: second },
            }
        })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of memory in use, roughly.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    /// Forgets all, and keeps at most `keep_bytes` of memory for the next ones.
    pub fn clear(&mut self, keep_bytes: usize) {
        self.bytes.clear();
        self.entries.clear();
        self.bytes.shrink_to(keep_bytes);
        self.entries.shrink_to(keep_bytes / size_of::<Entry>());
    }

    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }
}
