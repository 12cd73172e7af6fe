//! Retained messages (3.3.1.3), one per topic: which there are, in memory; what they say, in the store, and of the last ones in memory, too.
//! Must not know who asks for them.

use std::{
    collections::{HashMap, VecDeque},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;

use crate::{
    mqtt::{Message, Timestamp, TopicFilter, TopicMap, TopicName, topic_map::Place},
    storage::{Author, Batch, Lsn, Outcome},
};

use super::{Broker, Config, Receiver, Route};

#[derive(Debug, Default)]
pub(super) struct Retained {
    all: RwLock<All>,
    max_messages: u64,
    max_bytes: u64,
    /// What was claimed and is not kept yet.
    claimed_messages: AtomicU64,
    claimed_bytes: AtomicU64,
}

/// One that is retained, as it was found.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) topic: TopicName,
    /// None: the store has it.
    pub(super) message: Option<Arc<Message>>,
    /// Who published it. None: a release that did not ask has stored it.
    pub(super) author: Option<Arc<Author>>,
    version: u64,
    /// Somebody has judged whether it may be sent.
    pub(super) judged: bool,
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

/// All that is retained.
#[derive(Debug, Default)]
pub(super) struct All {
    by_topic: TopicMap<Slot>,
    /// Each once, with how many messages of its are retained: a publisher of a million of them is held once.
    authors: HashMap<Arc<Author>, u64, foldhash::fast::RandomState>,
    bytes: u64,
    cache: Cache,
    expiry: Expiry,
    /// Counts what was inserted and removed.
    changes: u64,
    /// While all is read from the store anew: what changed since, and in which batch.
    changed: Option<HashMap<TopicName, Lsn>>,
}

/// What is known of one without reading it.
#[derive(Debug)]
struct Slot {
    /// While the cache holds it.
    message: Option<Arc<Message>>,
    author: Option<Arc<Author>>,
    /// [`NEVER`] where it does not.
    expires_at: Timestamp,
    /// The change that has put it here.
    version: u64,
    /// As [`Message::size`] counts.
    size: u32,
    /// All whose subscription stood by then have it in their mailboxes or logs.
    came_live: bool,
}

/// The messages of the last changes, oldest first, each with its batch.
#[derive(Debug, Default)]
struct Cache {
    messages: VecDeque<(Arc<Message>, Lsn)>,
    /// Of those that are retained.
    bytes: u64,
    max_bytes: u64,
    /// How many of `messages` may not be retained any more.
    stale: usize,
}

/// When to look for what has expired: all topics are gone through, in rounds, a part at a time. So it takes no memory for each of them.
#[derive(Debug)]
struct Expiry {
    /// Nothing expires before, as far as the present round has seen.
    soonest: Timestamp,
    /// Where the present round goes on.
    at: Option<Place>,
    /// The next round begins no earlier, however much expires.
    rests_until: Timestamp,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { soonest: NEVER, at: None, rests_until: Timestamp(0) }
    }
}

impl Expiry {
    fn is_due(&self, now: Timestamp) -> bool {
        self.at.is_some() || self.soonest.max(self.rests_until) <= now
    }
}

impl Retained {
    pub(super) fn new(config: &Config) -> Self {
        let cache = Cache { max_bytes: config.retained_cache_bytes, ..Cache::default() };
        Self {
            all: RwLock::new(All { cache, ..All::default() }),
            max_messages: config.max_retained_messages,
            max_bytes: config.max_retained_bytes,
            ..Self::default()
        }
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
        let messages = all.by_topic.len() as u64 + self.claimed_messages.fetch_add(1, Ordering::AcqRel);
        let bytes = all.bytes + self.claimed_bytes.fetch_add(size, Ordering::AcqRel) + size;
        let too_many = self.max_messages > 0 && messages >= self.max_messages;
        let too_large = |bytes: u64| self.max_bytes > 0 && bytes > self.max_bytes;
        if too_many || too_large(bytes) {
            // What it replaces makes room.
            let replaced = all.by_topic.get(&message.topic).map(|slot| u64::from(slot.size));
            if too_many && replaced.is_none() || too_large(bytes.saturating_sub(replaced.unwrap_or(0))) {
                self.unclaim(size);
                return Retain::NoRoom;
            }
        }
        Retain::Keep
    }

    fn unclaim(&self, size: u64) {
        self.claimed_messages.fetch_sub(1, Ordering::AcqRel);
        self.claimed_bytes.fetch_sub(size, Ordering::AcqRel);
    }

    /// Keeps `message`, which was claimed, as the retained one of its topic [MQTT-3.3.1-5]. `comes_live` tells whether all get it live whose
    /// subscription stands now, `is_written` whose batch the store has.
    fn insert(
        &self,
        message: &Arc<Message>,
        author: &Author,
        batch: &Batch,
        comes_live: impl FnOnce() -> bool,
        is_written: impl Fn(Lsn) -> bool,
    ) {
        let mut all = self.all.write();
        all.note(&message.topic, batch);
        self.unclaim(message.size() as u64);
        all.changes += 1;
        // Asked under the lock: who subscribes counts the changes afterwards.
        all.insert(message, Some(author), Some(batch.lsn()), comes_live());
        all.evict(is_written);
    }

    /// `true` where there was one, or may be one in the store.
    fn remove(&self, topic: &TopicName, batch: &Batch) -> bool {
        let mut all = self.all.write();
        all.note(topic, batch);
        all.remove(topic) || all.changed.is_some()
    }

    /// The same, of one that has expired, and was not replaced meanwhile.
    fn remove_expired(&self, topic: &TopicName, batch: &Batch, now: Timestamp) -> bool {
        let mut all = self.all.write();
        if all.by_topic.get(topic).is_none_or(|slot| slot.expires_at > now) {
            return false;
        }
        all.note(topic, batch);
        all.remove(topic)
    }

    /// From now on changes are noted, for [`Retained::replace`]. What is to be filled with all that the store holds.
    pub(super) fn watch(&self) -> All {
        let mut all = self.all.write();
        all.changed = Some(HashMap::new());
        all.changes += 1;
        All { changes: all.changes, ..All::default() }
    }

    /// The store holds what `new` does. What changed while it was read stands, unless its commit failed.
    pub(super) fn replace(&self, mut new: All, failed: impl Fn(Lsn) -> bool) {
        let mut all = self.all.write();
        for (topic, lsn) in all.changed.take().unwrap_or_default() {
            if failed(lsn) {
                continue;
            }
            match all.by_topic.remove(&topic) {
                Some(mut slot) => {
                    slot.author = slot.author.map(|author| new.share(&author));
                    new.put(&topic, slot, lsn);
                }
                None => drop(new.remove(&topic)),
            }
        }
        new.changes = all.changes.max(new.changes) + 1;
        new.cache.max_bytes = all.cache.max_bytes;
        *all = new;
    }

    /// How many changes were made: what is retained from here on comes live, for a subscription that the router knows.
    pub(super) fn changes(&self) -> u64 {
        self.all.read().changes
    }

    /// Some of what `filter` matches, from `from` on, that has not expired and did not come live after `since` changes, about as much as there is
    /// `room` for (messages, bytes): where what follows begins, and how many changes were made before.
    pub(super) fn page(
        &self,
        filter: &TopicFilter,
        from: &Place,
        since: u64,
        room: (usize, usize),
        now: Timestamp,
    ) -> (VecDeque<Kept>, Option<Place>, u64) {
        let mut page = VecDeque::new();
        let mut bytes = 0;
        let all = self.all.read();
        let next = all.by_topic.walk(filter, from, PAGE_STEPS, |key, slot| {
            if slot.is_due(since, now)
                && let Some(topic) = key.topic()
            {
                page.push_back(slot.kept(topic));
                bytes += slot.size as usize;
            }
            let full = page.len() >= room.0.min(PAGE_MESSAGES) || bytes >= room.1.min(PAGE_BYTES);
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (page, next, all.changes)
    }

    /// Makes `page` what is retained now, if there were more than `seen` changes: what was removed, has expired or was replaced goes, unless what
    /// replaced it does not come live.
    pub(super) fn refresh(&self, page: &mut VecDeque<Kept>, seen: &mut u64, since: u64, now: Timestamp) {
        let all = self.all.read();
        if std::mem::replace(seen, all.changes) == all.changes {
            return;
        }
        page.retain_mut(|kept| {
            let Some(slot) = all.by_topic.get(&kept.topic).filter(|slot| slot.is_due(since, now)) else { return false };
            if slot.version != kept.version {
                *kept = slot.kept(kept.topic.clone());
            }
            true
        });
    }

    /// Topics whose message has expired, out of the next `steps` ones; `true` where the round has not come to its end.
    fn expired(&self, now: Timestamp, steps: usize) -> (Vec<TopicName>, bool) {
        if !self.all.read().expiry.is_due(now) {
            return (Vec::new(), false);
        }
        self.all.write().expired(now, steps)
    }

    /// Bytes of the retained messages, roughly.
    pub(super) fn bytes(&self) -> u64 {
        self.all.read().bytes
    }

    pub(super) fn len(&self) -> usize {
        self.all.read().by_topic.len()
    }
}

impl All {
    /// What the store holds, as it is read at the start.
    pub(super) fn insert_stored(&mut self, message: &Arc<Message>, author: Option<&Author>) {
        self.insert(message, author, None, false);
    }

    /// Without the batch of a message, the store holds it.
    fn insert(&mut self, message: &Arc<Message>, author: Option<&Author>, lsn: Option<Lsn>, came_live: bool) {
        let slot = Slot {
            message: lsn.map(|_| message.clone()),
            author: author.map(|author| self.share(author)),
            expires_at: message.expires_at.unwrap_or(NEVER),
            version: self.changes,
            size: u32::try_from(message.size()).unwrap_or(u32::MAX),
            came_live,
        };
        self.put(&message.topic, slot, lsn.unwrap_or_default());
    }

    fn put(&mut self, topic: &TopicName, slot: Slot, lsn: Lsn) {
        self.bytes += u64::from(slot.size);
        self.expiry.soonest = self.expiry.soonest.min(slot.expires_at);
        if let Some(message) = &slot.message {
            self.cache.bytes += u64::from(slot.size);
            self.cache.messages.push_back((message.clone(), lsn));
        }
        if let Some(old) = self.by_topic.insert(topic, slot) {
            self.forget(&old);
        }
    }

    /// `true` where there was one.
    fn remove(&mut self, topic: &TopicName) -> bool {
        self.changes += 1;
        let old = self.by_topic.remove(topic);
        old.iter().for_each(|old| self.forget(old));
        old.is_some()
    }

    /// The cache lets go of what is too much for it: the oldest first, and none that the store does not have yet.
    fn evict(&mut self, is_written: impl Fn(Lsn) -> bool) {
        while self.cache.bytes > self.cache.max_bytes
            && let Some((message, _)) = self.cache.messages.pop_front_if(|(_, lsn)| is_written(*lsn))
        {
            match self.by_topic.get_mut(&message.topic) {
                Some(slot) if slot.message.as_ref().is_some_and(|cached| Arc::ptr_eq(cached, &message)) => {
                    slot.message = None;
                    self.cache.bytes = self.cache.bytes.saturating_sub(u64::from(slot.size));
                }
                _ => self.cache.stale = self.cache.stale.saturating_sub(1),
            }
        }
    }

    fn expired(&mut self, now: Timestamp, steps: usize) -> (Vec<TopicName>, bool) {
        let from = self.expiry.at.take().unwrap_or_else(|| {
            // From here on it is the soonest of what the round finds and of what comes meanwhile.
            self.expiry.soonest = NEVER;
            self.expiry.rests_until = now.plus_millis(self.by_topic.len() as u64 / EXPIRY_PER_MILLI);
            Place::default()
        });
        let mut rest = self.by_topic.iter_from(&from);
        let mut expired = Vec::new();
        for (key, slot) in rest.by_ref().take(steps) {
            if slot.expires_at > now {
                self.expiry.soonest = self.expiry.soonest.min(slot.expires_at);
            } else {
                expired.extend(key.topic());
            }
        }
        self.expiry.at = rest.next().map(|(key, _)| key.into());
        (expired, self.expiry.at.is_some())
    }

    /// The one `Author` that is like this one, for one more message.
    fn share(&mut self, author: &Author) -> Arc<Author> {
        if let Some((known, _)) = self.authors.get_key_value(author) {
            let known = known.clone();
            *self.authors.entry(known.clone()).or_default() += 1;
            return known;
        }
        self.bytes += bytes_of(author);
        let author = Arc::new(author.clone());
        self.authors.insert(author.clone(), 1);
        author
    }

    /// `old` is no longer retained.
    fn forget(&mut self, old: &Slot) {
        self.bytes = self.bytes.saturating_sub(u64::from(old.size));
        if old.message.is_some() {
            self.cache.forget(old.size);
        }
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

impl Cache {
    /// One of these is not retained any more. Once most are not, those go that nobody else holds.
    fn forget(&mut self, size: u32) {
        self.bytes = self.bytes.saturating_sub(u64::from(size));
        self.stale += 1;
        if self.stale > STALE_MAX && self.stale > self.messages.len() / 2 {
            self.messages.retain(|(message, _)| Arc::strong_count(message) > 1);
            self.messages.shrink_to(2 * self.messages.len());
            self.stale = 0;
        }
    }
}

impl Slot {
    /// Whether a replay is to send it that began after `since` changes.
    fn is_due(&self, since: u64, now: Timestamp) -> bool {
        self.expires_at > now && !(self.came_live && self.version > since)
    }

    fn kept(&self, topic: TopicName) -> Kept {
        let (message, author) = (self.message.clone(), self.author.clone());
        Kept { topic, message, author, version: self.version, judged: false }
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
        route: &Route,
        retain: Retain,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        if retain == Retain::NoRoom || message.payload.is_empty() || message.is_expired(now) {
            if retain == Retain::Keep && !message.payload.is_empty() {
                self.retained.unclaim(message.size() as u64);
            }
            if self.retained.remove(&message.topic, batch) {
                batch.delete_retained(&message.topic);
            }
            return;
        }
        let author = Author { username: publisher.identity.clone().into(), client_id: publisher.client_id.clone() };
        batch.put_retained(message, Some(&author));
        let comes_live = || self.is_fresh(route);
        let is_written = |lsn| self.store.outcome(lsn) == Outcome::Durable;
        self.retained.insert(message, &author, batch, comes_live, is_written);
    }

    /// Removes what has expired of a part of all that is retained; `true` where more is to be looked at.
    pub(super) fn expire_retained(&self, now: Timestamp, limit: usize) -> bool {
        let (expired, more) = self.retained.expired(now, limit);
        if !expired.is_empty() {
            self.store.write(|batch| {
                for topic in &expired {
                    if self.retained.remove_expired(topic, batch, now) {
                        batch.delete_retained(topic);
                    }
                }
            });
        }
        more
    }
}

/// How many messages that are not retained any more the cache may hold, however few it holds.
const STALE_MAX: usize = 64;
/// When it expires, if it never does.
const NEVER: Timestamp = Timestamp(u64::MAX);
/// How many topics are looked at per millisecond, on average, for what has expired: a million within 5 seconds.
const EXPIRY_PER_MILLI: u64 = 200;
/// What one page holds at most, and how many topics are looked at for it: as long as that takes, nothing new is retained.
const PAGE_MESSAGES: usize = 128;
const PAGE_BYTES: usize = 128 * 1024;
const PAGE_STEPS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::QoS;

    const ROOM: (usize, usize) = (usize::MAX, usize::MAX);

    fn message(topic: &str, expires_at: Option<u64>) -> Arc<Message> {
        Arc::new(Message {
            topic: name(topic),
            payload: Box::new([1]),
            qos: QoS::AtMostOnce,
            retain: true,
            properties: Box::default(),
            expires_at: expires_at.map(Timestamp),
            publisher: 0,
        })
    }

    fn name(topic: &str) -> TopicName {
        TopicName::parse(topic).unwrap()
    }

    fn author(name: Option<&str>) -> Author {
        Author { username: name.map(Arc::from), client_id: "id".into() }
    }

    /// Room for the messages of this many topics of three characters.
    fn with_cache(messages: u64) -> All {
        let max_bytes = messages * message("t/1", None).size() as u64;
        All { cache: Cache { max_bytes, ..Cache::default() }, ..All::default() }
    }

    impl All {
        fn keep(&mut self, topic: &str, lsn: u64, written: u64) {
            self.changes += 1;
            self.insert(&message(topic, None), None, Some(Lsn(lsn)), false);
            self.evict(|lsn| lsn.0 <= written);
        }

        fn cached(&self) -> Vec<String> {
            let all = self.by_topic.iter_from(&Place::default());
            let cached = all.filter(|(_, slot)| slot.message.is_some());
            cached.map(|(key, _)| key.topic().unwrap().as_str().to_owned()).collect()
        }
    }

    #[test]
    fn an_author_is_held_once_and_as_long_as_something_of_it_is_retained() {
        let mut all = All::default();
        let size = message("t/1", None).size() as u64;
        for topic in ["t/1", "t/2", "t/1"] {
            all.insert_stored(&message(topic, None), Some(&author(Some("ann"))));
        }
        assert_eq!((all.authors.len(), all.bytes), (1, 2 * size + bytes_of(&author(Some("ann")))));
        let authors = ["t/1", "t/2"].map(|topic| all.by_topic.get(&name(topic)).unwrap().author.clone().unwrap());
        assert!(Arc::ptr_eq(&authors[0], &authors[1]));
        all.insert_stored(&message("t/2", None), Some(&author(None)));
        all.insert_stored(&message("t/1", None), None);
        assert_eq!((all.authors.len(), all.bytes), (1, 2 * size + bytes_of(&author(None))));
        for topic in ["t/1", "t/2"] {
            assert!(all.remove(&name(topic)));
        }
        assert_eq!((all.authors.len(), all.bytes), (0, 0));
    }

    /// What the store does not have yet stays in memory, and so does all that came after it.
    #[test]
    fn the_cache_lets_go_of_the_oldest_that_is_written() {
        let mut all = with_cache(2);
        for (lsn, topic) in ["t/1", "t/2", "t/3", "t/4"].into_iter().enumerate() {
            all.keep(topic, lsn as u64 + 1, 0);
        }
        assert_eq!(all.cached(), ["t/1", "t/2", "t/3", "t/4"]);
        all.evict(|lsn| lsn.0 <= 1);
        assert_eq!(all.cached(), ["t/2", "t/3", "t/4"]);
        all.evict(|_| true);
        assert_eq!(all.cached(), ["t/3", "t/4"]);
        // Replaced again and again, it takes no place of others.
        for lsn in 5..1000 {
            all.keep("t/3", lsn, lsn);
            assert!(all.cache.messages.len() <= 2 + 2 * STALE_MAX);
        }
        assert_eq!(all.cached(), ["t/3", "t/4"]);
        all.remove(&name("t/3"));
        all.keep("t/5", 1000, 1000);
        assert_eq!(all.cached(), ["t/4", "t/5"]);
        all.keep("t/6", 1001, 1001);
        assert_eq!((all.cached(), all.by_topic.len()), (vec!["t/5".into(), "t/6".into()], 5));
        assert_eq!(all.cache.bytes, all.cache.max_bytes);
    }

    /// A page is what is retained when it is sent: what was replaced is another one, what was removed is none.
    #[test]
    fn a_page_is_made_what_is_retained_now() {
        let retained = Retained { all: RwLock::new(with_cache(2)), ..Retained::default() };
        for topic in ["t/1", "t/2", "t/3", "t/4"] {
            retained.all.write().keep(topic, 1, 1);
        }
        let filter = TopicFilter::parse("t/+").unwrap();
        let (mut page, next, mut seen) = retained.page(&filter, &Place::default(), u64::MAX, ROOM, Timestamp(0));
        let here = |page: &VecDeque<Kept>| -> Vec<_> {
            page.iter().map(|kept| (kept.topic.as_str().to_owned(), kept.message.is_some())).collect()
        };
        let is = |topic: &str, here| (topic.to_owned(), here);
        assert_eq!(here(&page), [is("t/1", false), is("t/2", false), is("t/3", true), is("t/4", true)]);
        assert_eq!(next, None);
        page.iter_mut().for_each(|kept| kept.judged = true);
        retained.all.write().keep("t/2", 2, 1);
        retained.all.write().remove(&name("t/3"));
        retained.all.write().keep("t/5", 2, 2);
        retained.refresh(&mut page, &mut seen, u64::MAX, Timestamp(0));
        assert_eq!(here(&page), [is("t/1", false), is("t/2", true), is("t/4", true)]);
        assert_eq!(page.iter().map(|kept| kept.judged).collect::<Vec<_>>(), [true, false, true]);
    }

    /// What came live after a subscription began is not sent to it again; what was routed before it stood did not come.
    #[test]
    fn what_comes_live_is_not_sent_again() {
        let retained = Retained { all: RwLock::new(with_cache(9)), ..Retained::default() };
        let keep = |topic: &str, came_live| {
            let mut all = retained.all.write();
            all.changes += 1;
            all.insert(&message(topic, None), None, Some(Lsn(1)), came_live);
        };
        ["t/1", "t/2", "t/3", "t/4"].into_iter().for_each(|topic| keep(topic, true));
        let since = retained.changes();
        keep("t/1", true);
        keep("t/2", false);
        let filter = TopicFilter::parse("#").unwrap();
        let (mut page, _, mut seen) = retained.page(&filter, &Place::default(), since, ROOM, Timestamp(0));
        let topics = |page: &VecDeque<Kept>| page.iter().map(|kept| kept.topic.as_str().to_owned()).collect::<Vec<_>>();
        assert_eq!(topics(&page), ["t/2", "t/3", "t/4"]);
        keep("t/3", true);
        keep("t/4", false);
        retained.refresh(&mut page, &mut seen, since, Timestamp(0));
        assert_eq!(topics(&page), ["t/2", "t/4"]);
    }

    /// A rebuild takes what the store holds, and what changed meanwhile.
    #[test]
    fn what_changes_while_the_store_is_read_stands_unless_its_commit_failed() {
        let retained = Retained { all: RwLock::new(with_cache(9)), ..Retained::default() };
        let keep = |topic: &str, lsn| {
            let mut all = retained.all.write();
            if let Some(changed) = &mut all.changed {
                changed.insert(name(topic), Lsn(lsn));
            }
            all.keep(topic, lsn, 0);
        };
        keep("t/1", 1);
        keep("t/2", 1);
        let (mut page, _, mut seen) =
            retained.page(&TopicFilter::parse("#").unwrap(), &Place::default(), u64::MAX, ROOM, Timestamp(0));
        let mut stored = retained.watch();
        keep("t/2", 2);
        keep("t/3", 3);
        keep("t/4", 2);
        for topic in ["t/1", "t/2"] {
            stored.insert_stored(&message(topic, None), Some(&author(None)));
        }
        retained.replace(stored, |lsn| lsn == Lsn(3));
        let all = retained.all.read();
        assert_eq!(all.cached(), ["t/2", "t/4"]);
        assert_eq!((all.by_topic.len(), all.changed.is_none()), (3, true));
        assert_eq!(all.bytes, 3 * message("t/1", None).size() as u64 + bytes_of(&author(None)));
        drop(all);
        retained.refresh(&mut page, &mut seen, u64::MAX, Timestamp(0));
        assert_eq!(page.iter().map(|kept| kept.message.is_some()).collect::<Vec<_>>(), [false, true]);
    }

    /// Rounds find what has expired, once each, and none begins before something can have.
    #[test]
    fn what_has_expired_is_found_a_part_at_a_time() {
        let retained = Retained::default();
        let keep = |topic: usize, at| {
            retained.all.write().insert_stored(&message(&format!("t/{topic:04}"), at), None);
        };
        (0..1000).for_each(|n| keep(n, (n % 2 == 0).then_some(1000 + n as u64)));
        let round = |now: u64| {
            let (mut found, mut parts) = (0, 0);
            loop {
                let (expired, more) = retained.expired(Timestamp(now), 100);
                assert!(expired.len() <= 100);
                found += expired.len();
                parts += 1;
                expired.iter().for_each(|topic| assert!(retained.all.write().remove(topic)));
                if !more {
                    return (found, parts);
                }
            }
        };
        assert_eq!(round(999), (0, 1), "nothing is looked at");
        assert_eq!(round(1000), (1, 10));
        assert_eq!(round(1001), (0, 1), "the soonest is known");
        assert_eq!(round(1002), (0, 1), "it rests");
        assert_eq!(round(1499), (249, 10));
        keep(5000, Some(1));
        assert_eq!(round(1500), (0, 1), "it rests");
        assert_eq!(round(1510), (7, 8));
    }
}
