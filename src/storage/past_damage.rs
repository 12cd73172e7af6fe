//! Reading on behind what the engine cannot read: a table file is damaged block by block, and what stands behind a block is found by
//! asking for ever later keys.
//!
//! Must not know what keys and values mean.

use std::ops::ControlFlow;

use super::{Engine, Error, Table, keys::Key};

/// Keys that cannot be read.
#[cfg(any(test, feature = "rocksdb"))]
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) table: Table,
    /// All from here on.
    pub(super) from: Key,
    /// Up to this one, which can be read again, or is the end of what was asked for.
    pub(super) to: Key,
    /// The engine's words.
    pub(super) cause: Error,
}

/// Gives `each` the records of a range that can be read, in ascending order, and returns where others stood.
///
/// # Errors
/// What is no damage.
#[cfg(any(test, feature = "rocksdb"))]
pub(super) fn scan_past_damage(
    engine: &dyn Engine,
    table: Table,
    (mut from, to): (Key, Key),
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<Vec<Gap>, Error> {
    let mut gaps = Vec::new();
    loop {
        let mut last: Option<Key> = None;
        let scanned = engine.scan(table, &from, &to, &mut |key, value| {
            each(key, value);
            match &mut last {
                Some(last) => {
                    last.clear();
                    last.extend_from_slice(key);
                }
                none => *none = Some(Key::from_slice(key)),
            }
            ControlFlow::Continue(())
        });
        if let Some(mut behind) = last {
            behind.push(0);
            from = behind;
        }
        let cause = match scanned {
            Ok(()) => return Ok(gaps),
            Err(error) if error.is_damage() => error,
            Err(error) => return Err(error),
        };
        let next = next_readable(engine, table, &from, &to)?;
        gaps.push(Gap { table, from, to: next.clone().unwrap_or_else(|| to.clone()), cause });
        match next {
            Some(next) => from = next,
            None => return Ok(gaps),
        }
    }
}

/// The first key behind the damage at `from` that can be read; none where nothing up to `to` can be. Where a second block close by is
/// damaged, what stands between the two may be passed over.
///
/// # Errors
/// What is no damage.
pub(super) fn next_readable(engine: &dyn Engine, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Key>, Error> {
    let width = from.len() + SPARE_BYTES;
    let mut unreadable = Number::of(from, width);
    let end = Number::of(to, width);
    // Ever farther, up to a place that can be read.
    let mut bit = 0;
    let mut found = loop {
        let next = unreadable.plus_bit(bit).filter(|next| *next < end);
        let Some(next) = next else { break None };
        match first_from(engine, table, &next.0, to)? {
            Probe::Unreadable => unreadable = next,
            Probe::Nothing => break Some((next, None)),
            Probe::Key(key) => break Some((next, Some(key))),
        }
        bit += 1;
    };
    // Then back, to where the damage ends.
    let (mut readable, mut key) = match found.take() {
        Some(found) => found,
        None => (end, None),
    };
    while let Some(middle) = unreadable.middle(&readable) {
        match first_from(engine, table, &middle.0, to)? {
            Probe::Unreadable => unreadable = middle,
            Probe::Nothing => readable = middle,
            Probe::Key(found) => (readable, key) = (middle, Some(found)),
        }
    }
    Ok(key)
}

enum Probe {
    Key(Key),
    Nothing,
    Unreadable,
}

fn first_from(engine: &dyn Engine, table: Table, from: &[u8], to: &[u8]) -> Result<Probe, Error> {
    let mut first = Probe::Nothing;
    let scanned = engine.scan(table, from, to, &mut |key, _| {
        first = Probe::Key(Key::from_slice(key));
        ControlFlow::Break(())
    });
    match scanned {
        Ok(()) => Ok(first),
        Err(error) if error.is_damage() => Ok(Probe::Unreadable),
        Err(error) => Err(error),
    }
}

/// A key as a number of so many bytes, the most significant first: keys and numbers have the same order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Number(Vec<u8>);

impl Number {
    fn of(key: &[u8], width: usize) -> Self {
        let mut bytes = key.to_vec();
        bytes.resize(width, 0);
        Self(bytes)
    }

    /// With the bit of this value added; none where that is too large.
    fn plus_bit(&self, bit: usize) -> Option<Self> {
        let mut sum = self.clone();
        let mut carry = 1u16 << (bit % 8);
        let last = sum.0.len().checked_sub(1 + bit / 8)?;
        for byte in sum.0.get_mut(..=last)?.iter_mut().rev() {
            carry += u16::from(*byte);
            *byte = carry as u8;
            carry >>= 8;
        }
        (carry == 0).then_some(sum)
    }

    /// A number between the two; none where there is none.
    fn middle(&self, greater: &Self) -> Option<Self> {
        let mut carry = 0;
        let mut sum = vec![0; self.0.len()];
        for ((out, a), b) in sum.iter_mut().zip(&self.0).zip(&greater.0).rev() {
            carry += u16::from(*a) + u16::from(*b);
            *out = carry as u8;
            carry >>= 8;
        }
        for byte in &mut sum {
            let half = carry << 8 | u16::from(*byte);
            *byte = (half >> 1) as u8;
            carry = half & 1;
        }
        let middle = Self(sum);
        (middle > *self && middle < *greater).then_some(middle)
    }
}

/// So many bytes behind the key at which the damage was met, later keys are told apart.
const SPARE_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::storage::{MemoryEngine, Ops, Visit};

    /// Fails where it comes upon one of these keys.
    struct Damaged {
        inner: MemoryEngine,
        keys: BTreeSet<Vec<u8>>,
    }

    impl Engine for Damaged {
        fn name(&self) -> &'static str {
            "damaged"
        }
        fn write(&self, ops: &Ops, sync: bool) -> Result<(), Error> {
            self.inner.write(ops, sync)
        }
        fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
            self.inner.get(table, key)
        }
        fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut Visit<'_>) -> Result<(), Error> {
            let mut is_hit = false;
            self.inner.scan(table, from, to, &mut |key, value| {
                is_hit = self.keys.contains(key);
                if is_hit { ControlFlow::Break(()) } else { each(key, value) }
            })?;
            if is_hit { Err(Error::Corrupt { doing: "testing", cause: "hit".into() }) } else { Ok(()) }
        }
        fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, Error> {
            self.inner.last_key(table, from, to)
        }
        fn sync(&self) -> Result<(), Error> {
            Ok(())
        }
        fn reopen(&self) -> Result<(), Error> {
            Ok(())
        }
        fn close(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn all_but_one_damaged_block_is_read(
            keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..20), 1..60),
            first in 0..60usize,
            count in 1..20usize,
        ) {
            let inner = MemoryEngine::new();
            let mut ops = Ops::default();
            keys.iter().for_each(|key| ops.put(Table::Logs, key, |_| {}));
            inner.write(&ops, false).unwrap();
            let hit: BTreeSet<Vec<u8>> = keys.iter().skip(first).take(count).cloned().collect();
            let expected: Vec<_> = keys.iter().filter(|key| !hit.contains(*key)).cloned().collect();
            let engine = Damaged { inner, keys: hit.clone() };
            let mut read = Vec::new();
            let range = (Key::new(), Key::from_slice(&[0xFF; 24]));
            let gaps = scan_past_damage(&engine, Table::Logs, range, &mut |key, _| read.push(key.to_vec())).unwrap();
            prop_assert_eq!(read, expected);
            prop_assert_eq!(gaps.len(), usize::from(!hit.is_empty()));
            for gap in gaps {
                prop_assert!(hit.iter().all(|key| gap.from.as_slice() <= key.as_slice() && key.as_slice() < gap.to.as_slice()));
            }
        }
    }
}
