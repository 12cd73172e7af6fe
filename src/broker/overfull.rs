//! Queues that drop their oldest: a log that holds more than it may is cut by who owns its session, oldest first.
//!
//! Publishers append beyond the limit and ask for it. Must not know what a connection has taken already: that is not in the log's hands.

use std::{future::poll_fn, sync::Arc, task::Poll};

use crate::{
    metrics::DropReason,
    mqtt::{Shown, Timestamp},
    session::{Delivery, Source},
    storage::{Lsn, Outcome},
};

use super::{Broker, Client, Receiver, Turn, pages::PAGE_MAX_BYTES};

impl Client {
    /// Whether a delivery of the session's log was never sent, on this connection or an earlier one: what was, is not dropped
    /// [MQTT-4.4.0-1].
    pub fn was_never_sent(&mut self, delivery: &Delivery) -> bool {
        let Source::Log { seq, .. } = delivery.source else { return false };
        let known = self.session.knows(delivery.source);
        let log = self.session.log();
        !known && seq > log.sent_until && log.open(seq).is_none()
    }
}

impl Broker {
    /// Those whose queues the turn has made too long, and whose clients are away, have their oldest messages dropped, off the runtime's
    /// threads.
    pub(super) fn drop_oldest_soon(&self, turn: &mut Turn) {
        for receiver in turn.overfull.drain(..) {
            self.drop_oldest_of_parked(receiver);
        }
    }

    /// One task at a time for each receiver: until it ends, nobody is asked again.
    pub(super) fn drop_oldest_of_parked(&self, receiver: Arc<Receiver>) {
        let (Some(broker), Ok(runtime)) = (self.this(), tokio::runtime::Handle::try_current()) else {
            receiver.has_looked(u64::MAX);
            return;
        };
        runtime.spawn(async move {
            loop {
                let commit = receiver.last_commit();
                poll_fn(|context| {
                    broker.store.when_committed(Lsn(commit), context.waker());
                    if broker.store.outcome(Lsn(commit)) == Outcome::Pending { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                let (owner, cut) = (broker.clone(), receiver.clone());
                let looked = tokio::task::spawn_blocking(move || owner.cut(&cut)).await;
                let seen = if matches!(looked, Ok(true)) { commit } else { u64::MAX };
                if receiver.has_looked(seen) {
                    return;
                }
            }
        });
    }

    /// Drops the oldest messages of the log that were never sent, until it is within its limits. Blocks on the disk, but not the session.
    /// `false` where it could not look.
    pub(super) fn cut(&self, receiver: &Arc<Receiver>) -> bool {
        let parked = |act: &mut dyn FnMut(&mut Client)| {
            // What is read from the store anew must not be settled in what memory had before.
            let rebuilding = self.rebuilding.read();
            let is_it =
                |client: &mut Client| (!*rebuilding && client.session.id == receiver.session).then(|| act(client));
            self.registry.with_parked(&receiver.client_id, is_it).flatten()
        };
        let mut from = 0;
        let mut found = parked(&mut |client| {
            let log = client.session.log();
            from = log.next_unsettled(log.sent_until + 1);
        });
        while found.is_some() && receiver.excess() != (0, 0) {
            let page = match self.read_log(receiver.session, from, PAGE_MAX_BYTES) {
                Ok(page) => page,
                Err(error) => {
                    tracing::error!(client = %Shown(&receiver.client_id), %error, "a queue that is too long cannot be read");
                    return false;
                }
            };
            let Some(last) = page.last() else { return true };
            let after = last.seq() + 1;
            found = parked(&mut |client| {
                self.drop_oldest_of(client, &page, crate::clock::now());
                from = client.session.log().next_unsettled(after);
            });
        }
        if found.is_none() {
            // A connection owns it, and drops them; or whoever parks it asks again.
            receiver.raise(super::Signal::OVERFULL);
        }
        found.is_some()
    }

    fn drop_oldest_of(&self, client: &mut Client, page: &[Delivery], now: Timestamp) {
        let mut turn = Turn::default();
        let mut excess = client.receiver.excess();
        for delivery in page {
            if excess == (0, 0) {
                break;
            }
            if client.was_never_sent(delivery) {
                self.drop_for_excess(client, &mut turn, delivery, &mut excess, now);
            }
        }
        self.dispatch(client, &mut turn, now);
        self.finish(&mut turn);
    }

    /// Drops one message of the client's log for the sake of those that came later; `excess` is less by it.
    pub fn drop_for_excess(
        &self,
        client: &mut Client,
        turn: &mut Turn,
        delivery: &Delivery,
        excess: &mut (u64, u64),
        now: Timestamp,
    ) {
        let Source::Log { size, .. } = delivery.source else { return };
        self.give_up(client, turn, delivery.source, DropReason::QueueFull, now);
        *excess = (excess.0.saturating_sub(1), excess.1.saturating_sub(u64::from(size)));
    }
}
