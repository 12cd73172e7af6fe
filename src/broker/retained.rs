//! Retained messages (3.3.1.3): one per topic, in memory and in the store. Must not know who asks for them.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use crate::{
    mqtt::{Message, Timestamp, TopicFilter, TopicName, TopicTrie},
    storage::{Batch, Lsn},
};

use super::Broker;

#[derive(Debug, Default)]
pub(super) struct Retained {
    all: RwLock<All>,
}

#[derive(Debug, Default)]
struct All {
    by_topic: TopicTrie<Arc<Message>>,
    /// While all is read from the store anew: what changed since, and in which batch.
    changed: Option<HashMap<TopicName, Lsn>>,
}

impl Retained {
    /// Keeps `message` as the retained one of its topic [MQTT-3.3.1-5].
    fn insert(&self, message: Arc<Message>, batch: &Batch) {
        let mut all = self.all.write();
        all.note(&message.topic, batch);
        all.by_topic.insert_topic(&message.topic.clone(), message);
    }

    /// `true` where there was one, or may be one in the store.
    fn remove(&self, topic: &TopicName, batch: &Batch) -> bool {
        let mut all = self.all.write();
        all.note(topic, batch);
        all.by_topic.remove_topic(topic).is_some() || all.changed.is_some()
    }

    /// From now on changes are noted, for [`Retained::replace`].
    pub(super) fn watch(&self) {
        self.all.write().changed = Some(HashMap::new());
    }

    /// The store holds `stored`. What changed while it was read stands, unless its commit failed.
    pub(super) fn replace(&self, stored: Vec<Arc<Message>>, failed: impl Fn(Lsn) -> bool) {
        let mut all = self.all.write();
        let mut by_topic = TopicTrie::default();
        for message in stored {
            by_topic.insert_topic(&message.topic.clone(), message);
        }
        for (topic, lsn) in all.changed.take().unwrap_or_default() {
            if failed(lsn) {
                continue;
            }
            match all.by_topic.get_topic(&topic) {
                Some(message) => drop(by_topic.insert_topic(&topic, message.clone())),
                None => drop(by_topic.remove_topic(&topic)),
            }
        }
        all.by_topic = by_topic;
    }

    /// All that match `filter` and have not expired.
    pub(super) fn matching(&self, filter: &TopicFilter, now: Timestamp) -> Vec<Arc<Message>> {
        let mut found = Vec::new();
        self.all.read().by_topic.matching(filter, &mut |message: &Arc<Message>| {
            if !message.is_expired(now) {
                found.push(message.clone());
            }
        });
        found
    }

    /// The one of `topic` now, unless it has expired.
    pub(super) fn get(&self, topic: &TopicName, now: Timestamp) -> Option<Arc<Message>> {
        self.all.read().by_topic.get_topic(topic).filter(|message| !message.is_expired(now)).cloned()
    }

    fn expires_at(&self, topic: &TopicName) -> Option<Timestamp> {
        self.all.read().by_topic.get_topic(topic)?.expires_at
    }

    pub(super) fn len(&self) -> usize {
        self.all.read().by_topic.len()
    }
}

impl All {
    fn note(&mut self, topic: &TopicName, batch: &Batch) {
        if let Some(changed) = &mut self.changed {
            changed.insert(topic.clone(), batch.lsn());
        }
    }
}

impl Broker {
    /// A message with RETAIN: replaces the retained one of its topic; an empty payload removes it [MQTT-3.3.1-6],
    /// [MQTT-3.3.1-7].
    pub(super) fn retain(&self, message: &Arc<Message>, batch: &mut Batch, now: Timestamp) {
        if message.payload.is_empty() || message.is_expired(now) {
            if self.retained.remove(&message.topic, batch) {
                self.sweep.retained_removed(&message.topic);
                batch.delete_retained(&message.topic);
            }
            return;
        }
        if let Some(at) = message.expires_at {
            self.sweep.retained_expires(&message.topic, at);
        }
        batch.put_retained(message);
        self.retained.insert(message.clone(), batch);
    }

    /// The retained message of `topic` may have expired: removes it if so.
    pub(super) fn expire_retained(&self, topic: &TopicName, now: Timestamp) {
        self.store.write(|batch| match self.retained.expires_at(topic) {
            Some(at) if at > now => self.sweep.retained_expires(topic, at),
            Some(_) if self.retained.remove(topic, batch) => batch.delete_retained(topic),
            _ => {}
        });
    }
}
