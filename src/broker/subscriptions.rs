//! What one session subscribes to. Most have a few filters: those stand in a list, which takes half the memory of a tree.
//!
//! Must not know who is sent what for them.

use std::collections::BTreeMap;

use crate::mqtt::{Filter, packet::SubscriptionOptions};

/// Filters, each with what was granted.
#[derive(Debug)]
pub struct Subscriptions(Kept);

/// The options, and the Subscription Identifier (0: none).
type Granted = (SubscriptionOptions, u32);

#[derive(Debug)]
enum Kept {
    /// In the order of the filters.
    Few(Vec<(Filter, Granted)>),
    Many(BTreeMap<Filter, Granted>),
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self(Kept::Few(Vec::new()))
    }
}

impl Subscriptions {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kept::Few(few) => few.len(),
            Kept::Many(many) => many.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was granted for `filter`.
    #[must_use]
    pub fn get(&self, filter: &Filter) -> Option<&Granted> {
        match &self.0 {
            Kept::Few(few) => few.get(place(few, filter).ok()?).map(|(_, granted)| granted),
            Kept::Many(many) => many.get(filter),
        }
    }

    /// Whether there is one to `filter`.
    #[must_use]
    pub fn contains_key(&self, filter: &Filter) -> bool {
        self.get(filter).is_some()
    }

    /// Grants `filter`; what was granted for it before.
    pub fn insert(&mut self, filter: Filter, granted: Granted) -> Option<Granted> {
        match &mut self.0 {
            Kept::Many(many) => many.insert(filter, granted),
            Kept::Few(few) => match place(few, &filter) {
                Ok(at) => few.get_mut(at).map(|(_, known)| std::mem::replace(known, granted)),
                Err(at) => {
                    few.reserve_exact(1);
                    few.insert(at, (filter, granted));
                    if few.len() > FEW {
                        self.0 = Kept::Many(std::mem::take(few).into_iter().collect());
                    }
                    None
                }
            },
        }
    }

    /// Removes the one to `filter`; what was granted for it.
    pub fn remove(&mut self, filter: &Filter) -> Option<Granted> {
        match &mut self.0 {
            Kept::Few(few) => {
                let (_, granted) = few.remove(place(few, filter).ok()?);
                few.shrink_to_fit();
                Some(granted)
            }
            Kept::Many(many) => {
                let removed = many.remove(filter);
                if many.len() <= FEW / 2 {
                    self.0 = Kept::Few(std::mem::take(many).into_iter().collect());
                }
                removed
            }
        }
    }

    /// Their filters, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Filter> {
        let (few, many) = match &self.0 {
            Kept::Few(few) => (few.as_slice(), None),
            Kept::Many(many) => (&[][..], Some(many)),
        };
        few.iter().map(|(filter, _)| filter).chain(many.into_iter().flat_map(BTreeMap::keys))
    }
}

fn place(few: &[(Filter, Granted)], filter: &Filter) -> Result<usize, usize> {
    few.binary_search_by(|(known, _)| known.cmp(filter))
}

/// How many stand in a list.
const FEW: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mqtt::{QoS, packet::RetainHandling};

    proptest! {
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0_u8..3, 0_u32..60), 0..300), leaving in 0_u8..3) {
            let options = SubscriptionOptions {
                qos: QoS::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            };
            let (mut all, mut model) = (Subscriptions::default(), BTreeMap::new());
            for (step, number) in steps {
                let filter = Filter::parse(&format!("a/{number}")).expect("a filter");
                if step < leaving {
                    prop_assert_eq!(all.remove(&filter), model.remove(&filter));
                } else {
                    let granted = (options, u32::from(step));
                    prop_assert_eq!(all.insert(filter.clone(), granted), model.insert(filter.clone(), granted));
                }
                prop_assert_eq!(all.get(&filter), model.get(&filter));
                prop_assert_eq!((all.len(), all.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(all.keys().eq(model.keys()));
                prop_assert!(all.len() > FEW / 2 || matches!(all.0, Kept::Few(_)), "few are a list again");
                prop_assert!(all.len() <= FEW || matches!(all.0, Kept::Many(_)));
            }
        }
    }
}
