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
    /// Ranges beyond the head, by their first entry; they stand apart from each other.
    settled: BTreeMap<u64, Range>,
    /// How many entries `settled` holds.
    beyond: u64,
    trimmed: u64,
    /// The bytes of what is settled up to the head and not trimmed.
    untrimmed_bytes: u64,
    /// The bytes of what is settled, as far as they are known.
    settled_bytes: u64,
    changed: bool,
    /// Entries up to this one may have been sent on an earlier connection: they carry DUP [MQTT-3.3.1-1].
    pub sent_until: u64,
    /// Entries with a recorded packet id (where that is not the derived one), or whose PUBREC was recorded.
    open: BTreeMap<u64, Open>,
}

/// A settled range: its last entry, and what of it may not be trimmed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    to: u64,
    untrimmed: Untrimmed,
}

/// Entries that may still be stored: so many, of so many bytes, none before `from` or after `to`. What lies between was trimmed, or was not:
/// to trim it twice does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Untrimmed {
    from: u64,
    to: u64,
    count: u64,
    bytes: u64,
}

impl Untrimmed {
    fn and(self, other: Self) -> Self {
        if self.count == 0 {
            return other;
        }
        if other.count == 0 {
            return self;
        }
        let (from, to) = (self.from.min(other.from), self.to.max(other.to));
        Self { from, to, count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
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
        let range = |(from, to)| {
            // Which of them were trimmed was known to the process that did it.
            (from, Range { to, untrimmed: Untrimmed { from, to, count: to - from + 1, bytes: 0 } })
        };
        let settled: BTreeMap<u64, Range> = settled.into_iter().map(range).collect();
        let beyond = settled.iter().map(|(from, range)| range.to - from + 1).sum();
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
        self.settled.iter().map(|(&from, range)| (from, range.to))
    }

    /// Whether `seq` is settled.
    #[must_use]
    pub fn is_settled(&self, seq: u64) -> bool {
        self.next_unsettled(seq) != seq
    }

    /// The first number from `seq` on that is not settled.
    #[must_use]
    pub fn next_unsettled(&self, seq: u64) -> u64 {
        if seq <= self.head {
            return self.head + 1;
        }
        self.settled.range(..=seq).next_back().map_or(seq, |(_, range)| seq.max(range.to + 1))
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
            self.untrimmed_bytes += u64::from(bytes);
            while let Some((&from, range)) = self.settled.first_key_value() {
                if from > self.head + 1 {
                    break;
                }
                self.head = self.head.max(range.to);
                self.beyond -= range.to - from + 1;
                self.untrimmed_bytes += range.untrimmed.bytes;
                self.settled.pop_first();
            }
            return recorded;
        }
        self.beyond += 1;
        let untrimmed = Untrimmed { from: seq, to: seq, count: 1, bytes: u64::from(bytes) };
        let mut range = Range { to: seq, untrimmed };
        if let Some(after) = self.settled.remove(&(seq + 1)) {
            range = Range { to: after.to, untrimmed: untrimmed.and(after.untrimmed) };
        }
        match self.settled.range_mut(..seq).next_back() {
            Some((_, before)) if before.to + 1 == seq => {
                range.untrimmed = before.untrimmed.and(range.untrimmed);
                *before = range;
            }
            _ => {
                self.settled.insert(seq, range);
            }
        }
        recorded
    }

    /// Settles every entry from `from` up to, and without, `to`.
    pub fn settle_up_to(&mut self, from: u64, to: u64) {
        let mut seq = self.next_unsettled(from);
        while seq < to {
            self.settle(seq, 0);
            seq = self.next_unsettled(seq);
        }
    }

    /// Whether it changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Gives `delete` the ranges of settled entries to delete, inclusive: up to the head and beyond, each once it is `at_least` entries long,
    /// or what it holds is large. The last settled entry beyond the head stays: it may be the last of the log, which tells a start how much
    /// the log holds.
    pub fn take_trims(&mut self, at_least: u64, mut delete: impl FnMut(u64, u64)) {
        let is_due = |count: u64, bytes: u64| count > 0 && (count >= at_least || bytes >= TRIM_BYTES);
        if is_due(self.head - self.trimmed, self.untrimmed_bytes) {
            delete(self.trimmed + 1, self.head);
            (self.trimmed, self.untrimmed_bytes) = (self.head, 0);
        }
        let last = self.settled.last_key_value().map_or(0, |(_, range)| range.to);
        for range in self.settled.values_mut() {
            let Untrimmed { from, to, count, bytes } = range.untrimmed;
            let stays = u64::from(to == last && count > 0);
            if is_due(count.saturating_sub(stays), bytes) {
                delete(from, to - stays);
                range.untrimmed = Untrimmed { from: to, to, count: stays, bytes: 0 };
            }
        }
    }

    /// Entries up to it are deleted; beyond the head some more may be.
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

/// Settled entries of so many bytes are deleted, however few they are.
const TRIM_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn settled_is_exactly_what_was_settled(seqs in prop::collection::vec(1u64..60, 0..80), at_least in 1u64..6) {
            let mut view = LogView::default();
            let mut model = std::collections::BTreeSet::new();
            let mut deleted = std::collections::BTreeSet::new();
            for seq in seqs {
                view.settle(seq, 0);
                model.insert(seq);
                for (from, to) in trims(&mut view, at_least) {
                    prop_assert!(from <= to);
                    deleted.extend(from..=to);
                }
                prop_assert!(deleted.is_subset(&model), "{:?} of {:?}", deleted, model);
                let last = model.last().copied().unwrap_or(0);
                prop_assert!(last <= view.head() || !deleted.contains(&last), "the last entry stays");
                // What is settled and still there is short of one trim in each range.
                let ranges = 1 + view.settled_ranges().count() as u64;
                let left = model.difference(&deleted).count() as u64;
                prop_assert!(left <= ranges * (at_least - 1) + 1, "{} left in {} ranges", left, ranges);
                for n in 1..64 {
                    let next = (n..).find(|n| !model.contains(n));
                    prop_assert_eq!(Some(view.next_unsettled(n)), next);
                }
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

    fn trims(view: &mut LogView, at_least: u64) -> Vec<(u64, u64)> {
        let mut trims = Vec::new();
        view.take_trims(at_least, |from, to| trims.push((from, to)));
        trims
    }

    #[test]
    fn trims_once_enough_is_settled() {
        let mut view = LogView::default();
        view.settle_up_to(1, 6);
        assert_eq!(trims(&mut view, 6), []);
        assert_eq!(trims(&mut view, 5), [(1, 5)]);
        assert_eq!(trims(&mut view, 1), []);
    }

    /// One entry that is never settled keeps nothing that is.
    #[test]
    fn trims_beyond_the_head_once_and_leaves_the_last() {
        let mut view = LogView::default();
        view.settle_up_to(2, 11);
        assert_eq!(trims(&mut view, 9), []);
        view.settle(11, 0);
        assert_eq!(trims(&mut view, 9), [(2, 10)]);
        assert_eq!(trims(&mut view, 1), []);
        view.settle_up_to(12, 21);
        assert_eq!(trims(&mut view, 9), [(11, 19)]);
        view.settle_up_to(31, 41);
        assert_eq!(trims(&mut view, 9), [(31, 39)]);
        assert_eq!(trims(&mut view, 1), [(20, 20)], "it is not the last any more");
        view.settle(1, 0);
        assert_eq!((view.head(), trims(&mut view, 20)), (20, vec![(1, 20)]));
    }

    #[test]
    fn trims_few_that_are_large() {
        let mut view = LogView::default();
        view.settle(1, 100 << 10);
        view.settle(3, 200 << 10);
        assert_eq!(trims(&mut view, 100), []);
        view.settle(4, 200 << 10);
        assert_eq!(trims(&mut view, 100), [(3, 3)], "the last stays");
        view.settle(2, 200 << 10);
        assert_eq!(trims(&mut view, 100), [(1, 4)]);
    }

    /// After a restart it is not known what was trimmed.
    #[test]
    fn trims_again_what_was_restored() {
        let mut view = LogView::restore(3, [(5, 9), (20, 29)], 3, [], 0);
        assert_eq!(trims(&mut view, 5), [(5, 9), (20, 28)]);
        assert_eq!(trims(&mut view, 1), []);
    }

    #[test]
    fn derived_ids_never_are_zero_and_stay_in_their_half() {
        for seq in [1, 2, 32_767, 32_768, 65_534, u64::MAX] {
            assert!((1..=LOG_IDS).contains(&derived_id(seq)), "{seq}");
        }
        assert_eq!(derived_id(32_768), 1);
    }
}
