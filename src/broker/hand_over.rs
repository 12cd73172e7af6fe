//! What the commit of a batch hands over: QoS 2, and what follows it from the same publisher. It belongs to the batch: the publisher may
//! be gone by then. Must not know what was written.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{
    metrics::DropReason,
    mqtt::QoS,
    session::{Delivery, Source},
    storage::{Batch, Level, Outcome},
};

use super::{Broker, Group, Receiver, Turn};

/// What a commit hands over: QoS 2, and what follows it from the same publisher.
#[derive(Debug)]
pub(super) struct HandOver {
    pub(super) commit: u64,
    /// What the commit is to reach before that.
    pub(super) level: Level,
    deliveries: Vec<(Arc<Receiver>, Delivery)>,
    /// Groups with entries that wait for it.
    groups: Vec<Arc<Group>>,
}

impl HandOver {
    pub(super) fn new(batch: &Batch) -> Self {
        Self { commit: batch.lsn().0, level: Level::Os, deliveries: Vec::new(), groups: Vec::new() }
    }

    /// Leaves it to the commit of `batch`; what it gives is set once that has handed over. None where there is nothing to do.
    pub(super) fn by_commit(self, broker: &Broker, batch: &mut Batch) -> Option<Arc<AtomicBool>> {
        if self.is_empty() {
            return None;
        }
        let broker = broker.this()?;
        let handed_over = Arc::new(AtomicBool::new(false));
        let done = handed_over.clone();
        batch.after_commit(
            self.level,
            Box::new(move |outcome| {
                self.run(&broker, outcome);
                done.store(true, Ordering::Release);
            }),
        );
        Some(handed_over)
    }

    /// Why it is refused now, since its publisher could not be told later.
    pub(super) fn push(&mut self, receiver: &Arc<Receiver>, delivery: Delivery) -> Option<DropReason> {
        if delivery.source == Source::Direct
            && let Some(reason) = receiver.promise(delivery.message.size())
        {
            return Some(reason);
        }
        self.deliveries.push((receiver.clone(), delivery));
        None
    }

    pub(super) fn await_commit(&mut self, group: &Arc<Group>) {
        if !self.groups.iter().any(|one| Arc::ptr_eq(one, group)) {
            self.groups.push(group.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.deliveries.is_empty() && self.groups.is_empty()
    }

    /// Where the commit failed, the publisher of what is QoS 2 or logged is told so; the rest is handed over all the same.
    fn run(self, broker: &Broker, outcome: Outcome) {
        let mut turn = Turn::default();
        for (receiver, delivery) in self.deliveries {
            let logged = delivery.source != Source::Direct;
            if !logged {
                receiver.keep_promise(delivery.message.size());
            }
            if outcome == Outcome::Durable && logged {
                turn.touch(receiver.committed(delivery));
            } else if outcome == Outcome::Durable || !logged && delivery.message.qos != QoS::ExactlyOnce {
                turn.put(&receiver, delivery);
            } else if !logged {
                turn.counts.dropped(DropReason::StorageFailed);
            }
        }
        for group in self.groups {
            group.committed(broker, &mut turn, crate::clock::now());
        }
        broker.finish(&mut turn);
    }
}
