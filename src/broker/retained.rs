//! Retained messages (3.3.1.3): one per topic, in memory and in the store. Must not know who asks for them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;

use crate::{
    mqtt::{Message, Timestamp, TopicFilter, TopicName, TopicTrie},
    storage::{Batch, Lsn},
};

use super::{Broker, Config};

#[derive(Debug, Default)]
pub(super) struct Retained {
    all: RwLock<All>,
    max_messages: u64,
    max_bytes: u64,
    /// What was claimed and is not kept yet.
    claimed_messages: AtomicU64,
    claimed_bytes: AtomicU64,
}

/// What a message with RETAIN does to what is retained under its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retain {
    /// It has no RETAIN.
    No,
    /// It takes that place; there is room for it.
    Keep,
    /// It is not kept for want of room; what it would have replaced is out of date.
    NoRoom,
}

#[derive(Debug, Default)]
struct All {
    by_topic: TopicTrie<Arc<Message>>,
    bytes: u64,
    /// While all is read from the store anew: what changed since, and in which batch.
    changed: Option<HashMap<TopicName, Lsn>>,
}

impl Retained {
    pub(super) fn new(config: &Config) -> Self {
        let (max_messages, max_bytes) = (config.max_retained_messages, config.max_retained_bytes);
        Self { max_messages, max_bytes, ..Self::default() }
    }

    /// Whether there is room for `message`: then it is set aside until [`Broker::retain`] keeps it.
    pub(super) fn claim(&self, message: &Message) -> Retain {
        if !message.retain {
            return Retain::No;
        }
        if message.payload.is_empty() {
            return Retain::Keep;
        }
        let size = message.size() as u64;
        let all = self.all.read();
        let replaced = all.by_topic.get_topic(&message.topic).map(|message| message.size() as u64);
        let messages = all.by_topic.len() as u64 + self.claimed_messages.fetch_add(1, Ordering::AcqRel);
        let bytes = all.bytes + self.claimed_bytes.fetch_add(size, Ordering::AcqRel) + size;
        let full = self.max_messages > 0 && messages >= self.max_messages && replaced.is_none()
            || self.max_bytes > 0 && bytes.saturating_sub(replaced.unwrap_or(0)) > self.max_bytes;
        if full {
            self.unclaim(size);
            return Retain::NoRoom;
        }
        Retain::Keep
    }

    fn unclaim(&self, size: u64) {
        self.claimed_messages.fetch_sub(1, Ordering::AcqRel);
        self.claimed_bytes.fetch_sub(size, Ordering::AcqRel);
    }

    /// Keeps `message`, which was claimed, as the retained one of its topic [MQTT-3.3.1-5].
    fn insert(&self, message: Arc<Message>, batch: &Batch) {
        let mut all = self.all.write();
        all.note(&message.topic, batch);
        self.unclaim(message.size() as u64);
        all.insert(message);
    }

    /// `true` where there was one, or may be one in the store.
    fn remove(&self, topic: &TopicName, batch: &Batch) -> bool {
        let mut all = self.all.write();
        all.note(topic, batch);
        all.remove(topic) || all.changed.is_some()
    }

    /// From now on changes are noted, for [`Retained::replace`].
    pub(super) fn watch(&self) {
        self.all.write().changed = Some(HashMap::new());
    }

    /// The store holds `stored`. What changed while it was read stands, unless its commit failed.
    pub(super) fn replace(&self, stored: Vec<Arc<Message>>, failed: impl Fn(Lsn) -> bool) {
        let mut all = self.all.write();
        let mut new = All::default();
        stored.into_iter().for_each(|message| new.insert(message));
        for (topic, lsn) in all.changed.take().unwrap_or_default() {
            if failed(lsn) {
                continue;
            }
            match all.by_topic.get_topic(&topic) {
                Some(message) => new.insert(message.clone()),
                None => drop(new.remove(&topic)),
            }
        }
        *all = new;
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

    /// Bytes that the retained messages take, roughly.
    pub(super) fn bytes(&self) -> u64 {
        self.all.read().bytes
    }

    pub(super) fn len(&self) -> usize {
        self.all.read().by_topic.len()
    }
}

impl All {
    fn insert(&mut self, message: Arc<Message>) {
        self.bytes += message.size() as u64;
        if let Some(old) = self.by_topic.insert_topic(&message.topic.clone(), message) {
            self.bytes = self.bytes.saturating_sub(old.size() as u64);
        }
    }

    /// `true` where there was one.
    fn remove(&mut self, topic: &TopicName) -> bool {
        let old = self.by_topic.remove_topic(topic);
        self.bytes = self.bytes.saturating_sub(old.as_ref().map_or(0, |old| old.size() as u64));
        old.is_some()
    }

    fn note(&mut self, topic: &TopicName, batch: &Batch) {
        if let Some(changed) = &mut self.changed {
            changed.insert(topic.clone(), batch.lsn());
        }
    }
}

impl Broker {
    /// A message with RETAIN: replaces the retained one of its topic; an empty payload removes it [MQTT-3.3.1-6],
    /// [MQTT-3.3.1-7]. `retain` is what [`Retained::claim`] has said.
    pub(super) fn retain(&self, message: &Arc<Message>, retain: Retain, batch: &mut Batch, now: Timestamp) {
        if retain == Retain::NoRoom || message.payload.is_empty() || message.is_expired(now) {
            if retain == Retain::Keep && !message.payload.is_empty() {
                self.retained.unclaim(message.size() as u64);
            }
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
