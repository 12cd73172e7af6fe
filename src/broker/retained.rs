//! Retained messages (3.3.1.3): one per topic, in memory and in the store, with who published it. Must not know who asks for them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;

use crate::{
    auth::{Access, Judge, Rules, Who},
    mqtt::{Message, Timestamp, TopicFilter, TopicName, TopicTrie},
    storage::{Author, Batch, Lsn},
};

use super::{Broker, Config, Receiver};

#[derive(Debug, Default)]
pub(super) struct Retained {
    all: RwLock<All>,
    max_messages: u64,
    max_bytes: u64,
    /// What was claimed and is not kept yet.
    claimed_messages: AtomicU64,
    claimed_bytes: AtomicU64,
}

/// One that is retained.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) message: Arc<Message>,
    /// Who published it. None: a release that did not ask has stored it, or nobody is to be asked for.
    pub(super) author: Option<Arc<Author>>,
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
    by_topic: TopicTrie<Kept>,
    /// Each once, with how many messages of its are retained: a publisher of a million of them is held once.
    authors: HashMap<Arc<Author>, u64, foldhash::fast::RandomState>,
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
    #[inline]
    pub(super) fn claim(&self, message: &Message) -> Retain {
        if message.retain { self.claim_place(message) } else { Retain::No }
    }

    fn claim_place(&self, message: &Message) -> Retain {
        if message.payload.is_empty() {
            return Retain::Keep;
        }
        let size = message.size() as u64;
        let all = self.all.read();
        let replaced = all.by_topic.get_topic(&message.topic).map(|kept| kept.message.size() as u64);
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
    fn insert(&self, message: Arc<Message>, author: &Author, batch: &Batch) {
        let mut all = self.all.write();
        all.note(&message.topic, batch);
        self.unclaim(message.size() as u64);
        all.insert(message, Some(author));
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
    pub(super) fn replace(&self, stored: Vec<Kept>, failed: impl Fn(Lsn) -> bool) {
        let mut all = self.all.write();
        let mut new = All::default();
        stored.into_iter().for_each(|kept| new.insert(kept.message, kept.author.as_deref()));
        for (topic, lsn) in all.changed.take().unwrap_or_default() {
            if failed(lsn) {
                continue;
            }
            match all.by_topic.get_topic(&topic) {
                Some(kept) => new.insert(kept.message.clone(), kept.author.as_deref()),
                None => drop(new.remove(&topic)),
            }
        }
        *all = new;
    }

    /// All that match `filter` and have not expired.
    pub(super) fn matching(&self, filter: &TopicFilter, now: Timestamp) -> Vec<Kept> {
        let mut found = Vec::new();
        self.all.read().by_topic.matching(filter, &mut |kept: &Kept| {
            if !kept.message.is_expired(now) {
                found.push(kept.clone());
            }
        });
        found
    }

    /// The one of `topic` now, unless it has expired.
    pub(super) fn get(&self, topic: &TopicName, now: Timestamp) -> Option<Kept> {
        self.all.read().by_topic.get_topic(topic).filter(|kept| !kept.message.is_expired(now)).cloned()
    }

    fn expires_at(&self, topic: &TopicName) -> Option<Timestamp> {
        self.all.read().by_topic.get_topic(topic)?.message.expires_at
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
    fn insert(&mut self, message: Arc<Message>, author: Option<&Author>) {
        self.bytes += message.size() as u64;
        let author = author.map(|author| self.share(author));
        if let Some(old) = self.by_topic.insert_topic(&message.topic.clone(), Kept { message, author }) {
            self.forget(&old);
        }
    }

    /// `true` where there was one.
    fn remove(&mut self, topic: &TopicName) -> bool {
        let old = self.by_topic.remove_topic(topic);
        old.iter().for_each(|old| self.forget(old));
        old.is_some()
    }

    /// The one `Author` that is like this one, for one more message.
    fn share(&mut self, author: &Author) -> Arc<Author> {
        let known = self.authors.get_key_value(author).map(|(known, _)| known.clone());
        let author = known.unwrap_or_else(|| {
            self.bytes += bytes_of(author);
            Arc::new(author.clone())
        });
        *self.authors.entry(author.clone()).or_default() += 1;
        author
    }

    /// `old` is no longer retained.
    fn forget(&mut self, old: &Kept) {
        self.bytes = self.bytes.saturating_sub(old.message.size() as u64);
        let Some(author) = &old.author else { return };
        let Some(messages) = self.authors.get_mut(author) else { return };
        *messages -= 1;
        if *messages == 0 {
            self.authors.remove(author);
            self.bytes = self.bytes.saturating_sub(bytes_of(author));
        }
    }

    fn note(&mut self, topic: &TopicName, batch: &Batch) {
        if let Some(changed) = &mut self.changed {
            changed.insert(topic.clone(), batch.lsn());
        }
    }
}

impl Kept {
    /// What no client published.
    pub(super) fn of_nobody(message: Arc<Message>) -> Self {
        Self { message, author: None }
    }
}

/// Tells whose right to publish still stands. Messages of one author often follow each other: its rules are looked up once.
pub(super) struct Authors<'a> {
    rules: &'a Rules,
    last: Option<(Arc<Author>, Option<Judge<'a>>)>,
}

impl<'a> Authors<'a> {
    pub(super) fn new(rules: &'a Rules) -> Self {
        Self { rules, last: None }
    }

    /// Whether who published `kept` may publish it now.
    pub(super) fn may_publish(&mut self, kept: &Kept) -> bool {
        let Some(author) = &kept.author else { return true };
        if !self.last.as_ref().is_some_and(|(last, _)| Arc::ptr_eq(last, author)) {
            let who = Who { username: author.username.as_deref(), client_id: &author.client_id };
            self.last = Some((author.clone(), self.rules.judge(who)));
        }
        let judge = self.last.as_ref().and_then(|(_, judge)| judge.as_ref());
        judge.is_none_or(|judge| judge.verdict(Access::Publish, &kept.message.topic).allowed)
    }
}

/// What it takes in memory, roughly.
fn bytes_of(author: &Author) -> u64 {
    (author.client_id.len() + author.username.as_ref().map_or(0, |name| name.len()) + 96) as u64
}

impl Broker {
    /// A message with RETAIN: replaces the retained one of its topic; an empty payload removes it [MQTT-3.3.1-6],
    /// [MQTT-3.3.1-7]. `retain` is what [`Retained::claim`] has said.
    pub(super) fn retain(
        &self,
        message: &Arc<Message>,
        publisher: &Receiver,
        retain: Retain,
        batch: &mut Batch,
        now: Timestamp,
    ) {
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
        let author = Author { username: publisher.identity.clone().into(), client_id: publisher.client_id.clone() };
        batch.put_retained(message, Some(&author));
        self.retained.insert(message.clone(), &author, batch);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::QoS;

    #[test]
    fn an_author_is_held_once_and_as_long_as_something_of_it_is_retained() {
        let mut all = All::default();
        let message = |topic: &str| {
            Arc::new(Message {
                topic: TopicName::parse(topic).unwrap(),
                payload: Box::new([1]),
                qos: QoS::AtMostOnce,
                retain: true,
                properties: Box::default(),
                expires_at: None,
                publisher: 0,
            })
        };
        let author = |name: Option<&str>| Author { username: name.map(Arc::from), client_id: "id".into() };
        let size = message("t/1").size() as u64;
        for topic in ["t/1", "t/2", "t/1"] {
            all.insert(message(topic), Some(&author(Some("ann"))));
        }
        assert_eq!((all.authors.len(), all.bytes), (1, 2 * size + bytes_of(&author(Some("ann")))));
        let authors: Vec<_> = ["t/1", "t/2"]
            .map(|topic| all.by_topic.get_topic(&TopicName::parse(topic).unwrap()).unwrap().author.clone().unwrap())
            .into();
        assert!(Arc::ptr_eq(&authors[0], &authors[1]));
        all.insert(message("t/2"), Some(&author(None)));
        all.insert(message("t/1"), None);
        assert_eq!((all.authors.len(), all.bytes), (1, 2 * size + bytes_of(&author(None))));
        for topic in ["t/1", "t/2"] {
            assert!(all.remove(&TopicName::parse(topic).unwrap()));
        }
        assert_eq!((all.authors.len(), all.bytes), (0, 0));
    }
}
