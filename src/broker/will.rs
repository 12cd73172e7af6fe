//! Wills (3.1.2.5): stored with the session, published when the connection ends in any way but DISCONNECT with Success.
//!
//! Must not know why a connection ended.

use std::sync::Arc;

use crate::{
    metrics::DropReason,
    mqtt::{Message, QoS, Timestamp, packet::Will},
    storage::{Batch, Outcome, StoredWill},
};

use super::{Broker, Client, Turn, publish::Op};

/// The Will of a session that is online, or that has a Will Delay running.
#[derive(Debug)]
pub(super) struct PendingWill {
    message: Message,
    delay_secs: u32,
    expiry_secs: Option<u32>,
    pub(super) session_expiry_secs: u32,
}

impl PendingWill {
    pub(super) fn new(will: &Will, session_expiry_secs: u32) -> Self {
        let message = Message {
            topic: will.topic.clone(),
            payload: will.payload.clone(),
            qos: will.qos,
            retain: will.retain,
            properties: will.properties.clone(),
            expires_at: None,
            publisher: 0,
        };
        Self { message, delay_secs: will.delay_secs, expiry_secs: will.expiry_secs, session_expiry_secs }
    }

    pub(super) fn restore(stored: StoredWill) -> Self {
        Self {
            message: stored.message,
            delay_secs: stored.delay_secs,
            expiry_secs: stored.expiry_secs,
            session_expiry_secs: stored.session_expiry_secs,
        }
    }

    pub(super) fn record(&self, client: &Client, due_at: Option<Timestamp>) -> StoredWill {
        StoredWill {
            session: client.session.id,
            client_id: client.session.client_id.to_string(),
            username: client.receiver.identity.username().map(str::to_owned),
            message: self.message.clone(),
            delay_secs: self.delay_secs,
            expiry_secs: self.expiry_secs,
            session_expiry_secs: self.session_expiry_secs,
            due_at,
        }
    }

    /// When it is due if the connection ended at `now`: after its delay, or with the session, whichever comes first.
    pub(super) fn due_at(&self, now: Timestamp) -> Timestamp {
        now.plus_secs(u64::from(self.delay_secs.min(self.session_expiry_secs)))
    }
}

impl Broker {
    /// DISCONNECT with Success, or no CONNACK: the Will must not be published [MQTT-3.1.2-10], not after a crash either. The commit
    /// that says so.
    pub fn discard_will(&self, client: &mut Client) -> Option<u64> {
        client.will.take()?;
        let id = client.session.id;
        let ((), lsn) = self.store.write(|batch| {
            batch.delete_will(id);
            batch.require_durable();
        });
        Some(lsn.0)
    }

    /// The connection ended otherwise, at `since`: the Will is published now, or when its delay is over.
    pub(super) fn will_after_disconnect(&self, client: &mut Client, turn: &mut Turn, since: Timestamp, now: Timestamp) {
        let Some(will) = &client.will else { return };
        let due_at = will.due_at(since);
        if due_at <= now {
            self.publish_will(client, turn, now);
            return;
        }
        let record = will.record(client, Some(due_at));
        self.store.write(|batch| batch.put_will(&record));
        self.sweep.will_due(client, due_at);
    }

    /// Publishes the Will, if there is one left. The ACL is asked now [MQTT-3.1.2-8].
    pub(super) fn publish_will(&self, client: &mut Client, turn: &mut Turn, now: Timestamp) {
        let Some(will) = client.will.take() else { return };
        let id = client.session.id;
        let again = (will.message.qos != QoS::AtMostOnce || will.message.retain).then(|| will.message.clone().into());
        let done = Op::WillDone { session: id, again };
        let mut message = will.message;
        message.expires_at = will.expiry_secs.map(|secs| now.plus_secs(u64::from(secs)));
        message.publisher = id;
        // It was accepted, maybe before a restart, with the QoS that it has, and has it still: Maximum QoS limits what clients send, not what
        // they are sent (3.2.2.3.4). To retain it is what the broker does not do any more.
        message.retain &= self.limits.retain_available;
        match self.may_publish(&client.receiver, &message.topic) {
            Ok(()) => {
                self.publish_message(turn, message, &client.receiver);
                turn.push(done);
            }
            Err(line) => {
                turn.counts.publishes_denied += 1;
                turn.counts.dropped(DropReason::AclDenied);
                self.log_denied("will", &client.receiver, message.topic.as_str(), line);
                turn.push(done);
            }
        }
        self.dispatch(client, turn, now);
    }

    /// The Will of `session` needs not be stored any more. It was accepted by CONNACK, and nobody is left to be told that its commit failed: then
    /// it is published once more when the store works again.
    pub(super) fn will_done(&self, session: u64, again: Option<&Arc<Message>>, batch: &mut Batch) {
        batch.delete_will(session);
        if let Some(message) = again {
            let (unpublished, lsn) = (self.unpublished_wills.clone(), batch.lsn());
            // Noted before it can fail: a rebuilding that follows the failure at once finds it.
            unpublished.lock().insert(session, (lsn, message.clone()));
            let published = move |outcome| {
                let mut unpublished = unpublished.lock();
                if outcome == Outcome::Durable && unpublished.get(&session).is_some_and(|(of, _)| *of == lsn) {
                    unpublished.remove(&session);
                }
            };
            batch.after_commit(self.store.session_level(), Box::new(published));
        }
    }
}
