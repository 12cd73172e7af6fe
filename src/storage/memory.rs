//! The engine that keeps nothing: sorted maps in memory.
//!
//! Must not know what keys and values mean.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included},
};

use parking_lot::RwLock;

use super::{Engine, Error, Op, Ops, Table, Visit};

/// The engine behind [`super::Durability::Memory`].
#[derive(Debug, Default)]
pub struct MemoryEngine {
    /// `None` once closed.
    tables: RwLock<Option<Tables>>,
}

impl MemoryEngine {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { tables: RwLock::new(Some(Tables::default())) }
    }
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn write(&self, ops: &Ops, _sync: bool) -> Result<(), Error> {
        self.tables.write().as_mut().ok_or(Error::Closed)?.apply(ops);
        Ok(())
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.tables.read().as_ref().ok_or(Error::Closed)?.get(table, key))
    }

    fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut Visit<'_>) -> Result<(), Error> {
        self.tables.read().as_ref().ok_or(Error::Closed)?.scan(table, from, to, each);
        Ok(())
    }

    fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.tables.read().as_ref().ok_or(Error::Closed)?.last_key(table, from, to))
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn reopen(&self) -> Result<(), Error> {
        self.tables.write().get_or_insert_default();
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        *self.tables.write() = None;
        Ok(())
    }
}

/// The content of an engine, in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tables {
    meta: Map,
    sessions: Map,
    logs: Map,
    retained: Map,
    bodies: Map,
}

type Map = BTreeMap<Box<[u8]>, Box<[u8]>>;

impl Tables {
    pub(super) fn apply(&mut self, ops: &Ops) {
        for op in ops.iter() {
            match op {
                Op::Put { table, key, value } => {
                    self.map_mut(table).insert(key.into(), value.into());
                }
                Op::Delete { table, key } => {
                    self.map_mut(table).remove(key);
                }
                Op::DeleteRange { table, from, to } if from < to => {
                    self.map_mut(table).extract_if(Box::from(from)..Box::from(to), |_, _| true).for_each(drop);
                }
                Op::DeleteRange { .. } => {}
            }
        }
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.map(table).get(key).map(|value| value.to_vec())
    }

    pub(super) fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut Visit<'_>) {
        if from < to {
            let _ = self
                .map(table)
                .range::<[u8], _>((Included(from), Excluded(to)))
                .try_for_each(|(key, value)| each(key, value));
        }
    }

    pub(super) fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
        if from >= to {
            return None;
        }
        self.map(table).range::<[u8], _>((Included(from), Excluded(to))).next_back().map(|(key, _)| key.to_vec())
    }

    fn map(&self, table: Table) -> &Map {
        match table {
            Table::Meta => &self.meta,
            Table::Sessions => &self.sessions,
            Table::Logs => &self.logs,
            Table::Retained => &self.retained,
            Table::Bodies => &self.bodies,
        }
    }

    fn map_mut(&mut self, table: Table) -> &mut Map {
        match table {
            Table::Meta => &mut self.meta,
            Table::Sessions => &mut self.sessions,
            Table::Logs => &mut self.logs,
            Table::Retained => &mut self.retained,
            Table::Bodies => &mut self.bodies,
        }
    }
}
