//! The subscriptions to one filter: one, or a hundred thousand, in the order of their targets.
//!
//! Most filters have one, which stands right here. Up to a block they are one list; beyond it, lists of at most a block each. So a change costs a search and a short move however many there
//! are, and a walk through all is one through arrays. Must not know filters.

use super::{Subscription, Target};

/// Subscriptions, at most one for each target.
#[derive(Debug)]
#[allow(clippy::box_collection, reason = "a filter with one subscriber pays nothing for those with many")]
pub(super) enum Subscribers {
    None,
    One(Subscription),
    Few(Box<Vec<Subscription>>),
    /// Each block has some, and all of it is below the next one.
    Many(Box<Vec<Vec<Subscription>>>),
}

impl Subscribers {
    pub(super) fn new() -> Self {
        Self::None
    }

    /// Adds `subscription`, or replaces the one of its target. `true` where it is new.
    pub(super) fn insert(&mut self, subscription: Subscription) -> bool {
        let block = match self {
            Self::None => {
                *self = Self::One(subscription);
                return true;
            }
            Self::One(one) if one.target == subscription.target => {
                *one = subscription;
                return false;
            }
            Self::One(one) => {
                let mut few = vec![one.clone(), subscription];
                few.sort_unstable_by_key(|one| one.target);
                *self = Self::Few(Box::new(few));
                return true;
            }
            Self::Few(few) => few,
            Self::Many(blocks) => {
                let at = block_of(blocks, subscription.target);
                let full = blocks.get_mut(at).filter(|block| block.len() >= BLOCK);
                if let Some(block) = full {
                    // What comes in order fills its blocks.
                    if block.last().is_some_and(|last| last.target < subscription.target) && at + 1 == blocks.len() {
                        blocks.push(vec![subscription]);
                        return true;
                    }
                    let upper = blocks.get_mut(at).map(|block| block.split_off(BLOCK / 2)).unwrap_or_default();
                    blocks.insert(at + 1, upper);
                }
                let at = block_of(blocks, subscription.target);
                let Some(block) = blocks.get_mut(at) else { return false };
                block
            }
        };
        let new = put(block, subscription);
        if let Self::Few(few) = self
            && few.len() > BLOCK
        {
            let upper = few.split_off(BLOCK);
            *self = Self::Many(Box::new(vec![std::mem::take(&mut **few), upper]));
        }
        new
    }

    /// Removes that of `target`. `true` where there was one.
    pub(super) fn remove(&mut self, target: Target) -> bool {
        let blocks = match self {
            Self::None => return false,
            Self::One(one) if one.target == target => {
                *self = Self::None;
                return true;
            }
            Self::One(_) => return false,
            Self::Few(few) => {
                let taken = take(few, target);
                if few.len() <= 1 {
                    *self = few.pop().map_or(Self::None, Self::One);
                }
                return taken;
            }
            Self::Many(blocks) => blocks,
        };
        let at = block_of(blocks, target);
        let Some(block) = blocks.get_mut(at) else { return false };
        if !take(block, target) {
            return false;
        }
        // Small neighbours become one, and none stays empty.
        let empty = block.is_empty();
        for first in [at, at.wrapping_sub(1)] {
            let both = blocks.get(first..first.saturating_add(2)).map(|pair| pair.iter().map(Vec::len).sum::<usize>());
            if both.is_some_and(|both| both <= BLOCK / 2 || empty) {
                let mut upper = blocks.remove(first + 1);
                if let Some(lower) = blocks.get_mut(first) {
                    lower.append(&mut upper);
                }
                if empty {
                    break;
                }
            }
        }
        if blocks.len() <= 1 {
            *self = Self::Few(Box::new(blocks.pop().unwrap_or_default()));
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks().all(<[_]>::is_empty)
    }

    pub(super) fn len(&self) -> usize {
        self.blocks().map(<[_]>::len).sum()
    }

    /// All of them, a list at a time, in the order of their targets.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &[Subscription]> {
        let (few, many) = match self {
            Self::None => (&[][..], &[][..]),
            Self::One(one) => (std::slice::from_ref(one), &[][..]),
            Self::Few(few) => (few.as_slice(), &[][..]),
            Self::Many(blocks) => (&[][..], blocks.as_slice()),
        };
        std::iter::once(few).chain(many.iter().map(Vec::as_slice))
    }
}

/// The block that `target` is in, or belongs into.
fn block_of(blocks: &[Vec<Subscription>], target: Target) -> usize {
    blocks.partition_point(|block| block.first().is_some_and(|first| first.target <= target)).saturating_sub(1)
}

fn put(block: &mut Vec<Subscription>, subscription: Subscription) -> bool {
    match block.binary_search_by_key(&subscription.target, |one| one.target) {
        Ok(at) => {
            if let Some(place) = block.get_mut(at) {
                *place = subscription;
            }
            false
        }
        Err(at) => {
            block.insert(at, subscription);
            true
        }
    }
}

fn take(block: &mut Vec<Subscription>, target: Target) -> bool {
    let Ok(at) = block.binary_search_by_key(&target, |one| one.target) else { return false };
    block.remove(at);
    if block.len() < block.capacity() / 4 {
        block.shrink_to(block.len() * 2);
    }
    true
}

/// A move within one is six KiB at most.
const BLOCK: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::mqtt::{
        QoS,
        packet::{RetainHandling, SubscriptionOptions},
    };

    fn subscription(session: u64, subscription_id: u32) -> Subscription {
        let options = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        Subscription { target: Target::Session(session), options, subscription_id }
    }

    fn check(all: &Subscribers, model: &BTreeMap<u64, u32>) {
        let found: Vec<_> = all.blocks().flatten().map(|one| (one.target, one.subscription_id)).collect();
        let expected: Vec<_> = model.iter().map(|(session, id)| (Target::Session(*session), *id)).collect();
        assert_eq!(found, expected);
        assert_eq!((all.len(), all.is_empty()), (model.len(), model.is_empty()));
        if let Subscribers::Many(blocks) = all {
            assert!(blocks.iter().all(|block| !block.is_empty() && block.len() <= BLOCK) && blocks.len() > 1);
            assert!(blocks.len() <= 2 + 4 * model.len() / BLOCK, "{} blocks for {}", blocks.len(), model.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        /// Any order of coming, replacing and leaving gives what a map gives.
        #[test]
        fn agrees_with_a_map(
            steps in prop::collection::vec((0_u8..3, 0_u64..2500), 0..6000),
            leaving in prop::sample::select(vec![0_u8, 1, 2]),
        ) {
            let (mut all, mut model) = (Subscribers::new(), BTreeMap::new());
            for (step, session) in &steps {
                if *step < leaving {
                    prop_assert_eq!(all.remove(Target::Session(*session)), model.remove(session).is_some());
                } else {
                    let id = u32::from(*step);
                    prop_assert_eq!(all.insert(subscription(*session, id)), model.insert(*session, id).is_none());
                }
            }
            check(&all, &model);
            for (_, session) in &steps {
                prop_assert_eq!(all.remove(Target::Session(*session)), model.remove(session).is_some());
            }
            check(&all, &model);
        }
    }

    /// In order, the usual case, blocks are full; leaving gives the memory back.
    #[test]
    fn blocks_are_filled_and_merged() {
        let (mut all, mut model) = (Subscribers::new(), BTreeMap::new());
        for session in 0..10_000 {
            assert!(all.insert(subscription(session, 0)));
            model.insert(session, 0);
        }
        check(&all, &model);
        let Subscribers::Many(blocks) = &all else { panic!("one list of 10,000") };
        assert_eq!(blocks.len(), 10_000_usize.div_ceil(BLOCK));
        for session in (0..10_000).filter(|session| session % 50 > 0) {
            assert!(all.remove(Target::Session(session)));
            model.remove(&session);
        }
        check(&all, &model);
        model.keys().for_each(|session| assert!(all.remove(Target::Session(*session))));
        assert!(matches!(&all, Subscribers::None));
        assert_eq!(size_of::<Subscribers>(), size_of::<Vec<Subscription>>());
    }
}
