//! How far a session has worked through its log: what is settled, and what is open beyond that.
//!
//! Acknowledgements come out of order and QoS 2 takes two steps, so a cursor would not do. Must not know how
//! it is stored.

use std::collections::BTreeMap;

/// Highest packet id that stands for a sequence number; those above are for what no log holds.
pub(super) const LOG_IDS: u16 = 32_767;

/// What a session knows of its log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogView {
    head: u64,
    settled: BTreeMap<u64, u64>,
    /// How many entries `settled` holds.
    beyond: u64,
    trimmed: u64,
    /// The bytes of what is settled, as far as they are known.
    settled_bytes: u64,
    changed: bool,
    /// Entries up to this one may have been sent on an earlier connection: they carry DUP [MQTT-3.3.1-1].
    pub sent_until: u64,
    /// Entries with a recorded packet id (where that is not the derived one), or whose PUBREC was recorded.
    open: BTreeMap<u64, Open>,
}

/// What is recorded of an entry that is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Its packet id, where it is not the one that the sequence number gives; else 0.
    pub packet_id: u16,
    /// PUBREC was received: PUBREL is due, the PUBLISH is not sent again.
    pub released: bool,
}

impl LogView {
    /// The view that the store kept: all up to `head` is settled, and so are the inclusive ranges `settled`. Bytes are counted by
    /// [`LogView::set_settled_bytes`].
    #[must_use]
    pub fn restore(
        head: u64,
        settled: impl IntoIterator<Item = (u64, u64)>,
        trimmed: u64,
        open: impl IntoIterator<Item = (u64, Open)>,
        sent_until: u64,
    ) -> Self {
        let settled: BTreeMap<u64, u64> = settled.into_iter().collect();
        let beyond = settled.iter().map(|(from, to)| to - from + 1).sum();
        Self { head, settled, beyond, trimmed, sent_until, open: open.into_iter().collect(), ..Self::default() }
    }

    /// All entries up to it are settled.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// How many entries are settled beyond the head.
    #[must_use]
    pub fn settled_beyond(&self) -> u64 {
        self.beyond
    }

    /// The settled ranges beyond the head, inclusive.
    pub fn settled_ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.settled.iter().map(|(&from, &to)| (from, to))
    }

    /// Whether `seq` is settled.
    #[must_use]
    pub fn is_settled(&self, seq: u64) -> bool {
        seq <= self.head || self.settled.range(..=seq).next_back().is_some_and(|(_, &to)| seq <= to)
    }

    /// What is recorded of `seq`.
    #[must_use]
    pub fn open(&self, seq: u64) -> Option<Open> {
        self.open.get(&seq).copied()
    }

    /// The recorded packet ids.
    pub(super) fn packet_ids(&self) -> impl Iterator<Item = u16> + '_ {
        self.open.values().map(|open| open.packet_id).filter(|id| *id > 0)
    }

    /// Records `open` of `seq`.
    pub fn set_open(&mut self, seq: u64, open: Open) {
        self.open.insert(seq, open);
    }

    /// The bytes of all that is settled.
    #[must_use]
    pub fn settled_bytes(&self) -> u64 {
        self.settled_bytes
    }

    /// Sets them, where they are known: all that was ever appended is settled, or the store says so.
    pub fn set_settled_bytes(&mut self, bytes: u64) {
        self.settled_bytes = bytes;
    }

    /// Settles `seq`, an entry of `bytes` (0: not known): its delivery is complete or given up. `true` where something of it is recorded
    /// that must go.
    pub fn settle(&mut self, seq: u64, bytes: u32) -> bool {
        let recorded = self.open.remove(&seq).is_some();
        if self.is_settled(seq) {
            return recorded;
        }
        self.changed = true;
        self.settled_bytes += u64::from(bytes);
        if seq == self.head + 1 {
            self.head = seq;
            while let Some((&from, &to)) = self.settled.first_key_value() {
                if from > self.head + 1 {
                    break;
                }
                self.head = self.head.max(to);
                self.beyond -= to - from + 1;
                self.settled.pop_first();
            }
            return recorded;
        }
        self.beyond += 1;
        let mut range = (seq, seq);
        if let Some((&from, &to)) = self.settled.range(..seq).next_back()
            && to + 1 == seq
        {
            self.settled.remove(&from);
            range.0 = from;
        }
        if let Some(to) = self.settled.remove(&(seq + 1)) {
            range.1 = to;
        }
        self.settled.insert(range.0, range.1);
        recorded
    }

    /// Settles every entry from `from` up to, and without, `to`.
    pub fn settle_up_to(&mut self, from: u64, to: u64) {
        for seq in from..to {
            self.settle(seq, 0);
        }
    }

    /// Whether it changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The range of settled entries to delete, once there are `at_least` of them; inclusive.
    pub fn take_trim(&mut self, at_least: u64) -> Option<(u64, u64)> {
        (self.head - self.trimmed >= at_least.max(1)).then(|| {
            let range = (self.trimmed + 1, self.head);
            self.trimmed = self.head;
            range
        })
    }

    /// Entries up to it are deleted.
    #[must_use]
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }
}

/// The packet id that sequence number `seq` gives.
pub(super) fn derived_id(seq: u64) -> u16 {
    let id = (seq.saturating_sub(1) % u64::from(LOG_IDS)) + 1;
    u16::try_from(id).unwrap_or(LOG_IDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn settled_is_exactly_what_was_settled(seqs in prop::collection::vec(1u64..60, 0..80)) {
            let mut view = LogView::default();
            let mut model = std::collections::BTreeSet::new();
            for seq in seqs {
                view.settle(seq, 0);
                model.insert(seq);
                let head = (1..).take_while(|n| model.contains(n)).last().unwrap_or(0);
                prop_assert_eq!(view.head(), head);
                for n in 1..64 {
                    prop_assert_eq!(view.is_settled(n), model.contains(&n), "seq {}", n);
                }
                prop_assert_eq!(view.head() + view.settled_beyond(), model.len() as u64);
                let ranges: Vec<_> = view.settled_ranges().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "not merged: {:?}", ranges);
            }
        }
    }

    #[test]
    fn trims_once_enough_is_settled() {
        let mut view = LogView::default();
        for seq in 1..=5 {
            view.settle(seq, 0);
        }
        assert_eq!(view.take_trim(6), None);
        assert_eq!(view.take_trim(5), Some((1, 5)));
        assert_eq!(view.take_trim(1), None);
    }

    #[test]
    fn derived_ids_never_are_zero_and_stay_in_their_half() {
        for seq in [1, 2, 32_767, 32_768, 65_534, u64::MAX] {
            assert!((1..=LOG_IDS).contains(&derived_id(seq)), "{seq}");
        }
        assert_eq!(derived_id(32_768), 1);
    }
}
