//! Logs: the backlog of a session or of a group (later of a queue or a stream) as entries numbered from 1, and which are settled.
//!
//! Must not know whose log it is.

use std::{ops::ControlFlow, sync::Arc};

use super::{
    BodyId, Engine, EntryHead, Error, LogId, LogState, OpenEntry, Seq, Table, Unreadable, keys,
    past_damage::next_readable,
    record::{self, EntryMessage},
};
use crate::mqtt::Message;

/// An entry of a log, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number; the first of a log is 1.
    pub seq: Seq,
    /// What this receiver's copy adds.
    pub head: EntryHead,
    /// The message.
    pub message: Arc<Message>,
    /// Where its body is stored apart, to be released by [`super::Batch::release_body`] when the entry is settled.
    pub body: Option<BodyId>,
}

/// A log as it is found at the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveredLog {
    /// What is settled.
    pub state: LogState,
    /// What was in flight and recorded.
    pub open: Vec<OpenEntry>,
    /// The highest number that was ever appended or settled; the next entry is `tail + 1`.
    pub tail: Seq,
    /// The bytes of its entries that are not settled.
    pub bytes: u64,
}

impl LogState {
    /// Whether the entry is settled.
    #[must_use]
    pub fn is_settled(&self, seq: Seq) -> bool {
        let after = self.settled.partition_point(|&(from, _)| from <= seq);
        seq <= self.head || after.checked_sub(1).and_then(|i| self.settled.get(i)).is_some_and(|&(_, to)| seq <= to)
    }

    /// Settles the entry; says whether it was open. Cheap near either end of what is in flight.
    pub fn settle(&mut self, seq: Seq) -> bool {
        if self.is_settled(seq) {
            return false;
        }
        let at = self.settled.partition_point(|&(from, _)| from <= seq);
        let joins_before = match at.checked_sub(1).and_then(|i| self.settled.get_mut(i)) {
            Some((_, to)) if to.checked_add(1) == Some(seq) => {
                *to = seq;
                true
            }
            _ => false,
        };
        let next = self.settled.get(at).copied().filter(|&(from, _)| seq.checked_add(1) == Some(from));
        match (joins_before, next) {
            (true, Some((_, to))) => {
                self.settled.remove(at);
                if let Some(before) = self.settled.get_mut(at - 1) {
                    before.1 = to;
                }
            }
            (false, Some((_, to))) => {
                if let Some(after) = self.settled.get_mut(at) {
                    *after = (seq, to);
                }
            }
            (true, None) => {}
            (false, None) => self.settled.insert(at, (seq, seq)),
        }
        if let Some(&(from, to)) = self.settled.first()
            && self.head.checked_add(1) == Some(from)
        {
            self.head = to;
            self.settled.remove(0);
        }
        true
    }

    /// The highest settled number.
    #[must_use]
    pub fn highest_settled(&self) -> Seq {
        self.settled.last().map_or(self.head, |&(_, to)| to)
    }
}

/// See [`super::Store::read_log`].
pub(super) fn read(
    engine: &dyn Engine,
    log: LogId,
    mut from: Seq,
    max_entries: usize,
    max_bytes: usize,
) -> Result<Vec<LogEntry>, Error> {
    loop {
        let stored = Stored::read(engine, log, from, max_entries, max_bytes)?;
        let Some(&(last, ..)) = stored.entries.last() else {
            return stored.damage.map_or(Ok(Vec::new()), Err);
        };
        let entries = stored.resolve(engine, log, max_bytes)?;
        if !entries.is_empty() {
            return Ok(entries);
        }
        // All of them were settled.
        from = last.saturating_add(1);
    }
}

/// Entries as they are stored.
pub(super) struct Stored {
    pub(super) entries: Vec<(Seq, EntryHead, EntryMessage)>,
    /// What ended the page.
    pub(super) damage: Option<Error>,
}

impl Stored {
    pub(super) fn read(
        engine: &dyn Engine,
        log: LogId,
        from: Seq,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Self, Error> {
        let mut stored = Self { entries: Vec::new(), damage: None };
        let mut bytes = 0;
        let range = (keys::entry(log, from), keys::entry(log.saturating_add(1), 0));
        let scanned = engine.scan(Table::Logs, &range.0, &range.1, &mut |key, value| {
            let count = stored.entries.len();
            if count >= max_entries || bytes >= max_bytes && count > 0 {
                return ControlFlow::Break(());
            }
            bytes += value.len();
            let seq = keys::parse_entry(key).map(|(_, seq)| seq).ok_or(Unreadable::Key);
            match seq.and_then(|seq| Ok((seq, record::get_entry(value)?))) {
                Ok((seq, (head, message))) => stored.entries.push((seq, head, message)),
                Err(cause) => {
                    stored.damage = Some(Error::Damaged { table: Table::Logs, key: key.to_vec(), cause });
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Err(cause) if cause.is_damage() => {
                // Told when what stands before it has been read.
                if stored.entries.is_empty() {
                    stored.damage = Some(unreadable(engine, log, from, cause)?);
                }
            }
            scanned => scanned?,
        }
        Ok(stored)
    }

    /// Fetches the shared bodies.
    fn resolve(self, engine: &dyn Engine, log: LogId, max_bytes: usize) -> Result<Vec<LogEntry>, Error> {
        let mut entries: Vec<LogEntry> = Vec::with_capacity(self.entries.len());
        let mut bytes = 0;
        for (seq, head, message) in self.entries {
            if bytes >= max_bytes && !entries.is_empty() {
                break;
            }
            let (message, body) = match message {
                EntryMessage::Inline(message) => (message, None),
                EntryMessage::Shared(id) => match engine.get(Table::Bodies, &keys::body(id)) {
                    Err(cause) if cause.is_damage() && entries.is_empty() => {
                        return Err(Error::DamagedEntries { log, from: seq, to: seq, cause: cause.into() });
                    }
                    Err(cause) if cause.is_damage() => break,
                    Err(error) => return Err(error),
                    // Settled, and so released, but not yet trimmed.
                    Ok(None) => continue,
                    Ok(Some(bytes)) => match record::get_message(&bytes) {
                        Ok(message) => (message, Some(id)),
                        Err(_) if !entries.is_empty() => break,
                        // Named by the entry, so that a reader can pass over it.
                        Err(cause) => {
                            let key = keys::entry(log, seq).to_vec();
                            return Err(Error::Damaged { table: Table::Logs, key, cause });
                        }
                    },
                },
            };
            bytes += message.size();
            entries.push(LogEntry { seq, head, message: Arc::new(message), body });
        }
        Ok(entries)
    }
}

/// The entries that a damaged place of the disk keeps from being read: `from` and those after it.
fn unreadable(engine: &dyn Engine, log: LogId, from: Seq, cause: Error) -> Result<Error, Error> {
    let range = (keys::entry(log, from), keys::entry(log.saturating_add(1), 0));
    let next = next_readable(engine, Table::Logs, &range.0, &range.1)?;
    let next = next.and_then(|key| keys::parse_entry(&key)).map(|(_, seq)| seq);
    let to = next.map_or(Seq::MAX, |next| next.saturating_sub(1).max(from));
    Ok(Error::DamagedEntries { log, from, to, cause: cause.into() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_settled_is_settled_in_any_order(order in prop::collection::vec(1..40u64, 0..60)) {
            let (mut state, mut model) = (LogState::default(), BTreeSet::new());
            for seq in order {
                prop_assert_eq!(state.settle(seq), model.insert(seq));
                for seq in 1..=41 {
                    prop_assert_eq!(state.is_settled(seq), model.contains(&seq));
                }
                prop_assert_eq!(state.highest_settled(), model.last().copied().unwrap_or(0));
                prop_assert!(!model.contains(&(state.head + 1)), "the head is as high as it can be");
                let mut last = state.head;
                for &(from, to) in &state.settled {
                    prop_assert!(from > last + 1 && from <= to, "ranges stand apart");
                    last = to;
                }
            }
        }
    }

    #[test]
    fn the_last_number_of_all_can_be_settled() {
        let mut state = LogState { head: u64::MAX - 2, settled: vec![(u64::MAX, u64::MAX)], ..LogState::default() };
        assert!(!state.settle(u64::MAX) && state.settle(u64::MAX - 1));
        assert_eq!(state, LogState { head: u64::MAX, ..LogState::default() });
    }
}
