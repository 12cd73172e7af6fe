//! Retained messages on their way to new subscriptions (3.3.1.3): page by page, each as it is retained when it is sent.
//!
//! A subscription has a place in the order of all topics, and moves it on as its connection has room. Must not know how pages are sent.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    auth::{Access, Identity, Judge, Rules, Who},
    metrics::DropReason,
    mqtt::{Filter, QoS, Shown, Timestamp, TopicName, packet::SubscriptionOptions, topic_map::Place},
    session::Delivery,
    storage::{Author, Batch, StoredSubscription},
};

use super::{Broker, Client, LogError, Reading, Throttle, Turn, mailbox::delivery, publish::lower, retained::Kept};

/// What a subscription is still to be sent.
#[derive(Debug)]
pub(super) struct Replay {
    filter: Filter,
    from: Place,
    /// What came live after so many changes is not sent again.
    since: u64,
    /// It follows this reply of the session, see [`Session::queued`](crate::session::Session::queued): the SUBACK.
    gate: u64,
}

/// The next messages of a replay.
#[derive(Debug)]
pub struct Page {
    filter: Filter,
    gate: u64,
    options: SubscriptionOptions,
    ids: Option<Arc<[u32]>>,
    /// Whose messages are not wanted [MQTT-3.8.3-3].
    not_from: Option<u64>,
    since: u64,
    kept: VecDeque<Kept>,
    /// Where what follows begins; none: nothing does.
    next: Option<Place>,
    /// How many changes of what is retained it has seen.
    seen: u64,
    /// The generation of the rules that it was judged by.
    rules: u64,
}

/// Whether a page can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageIs {
    /// All of it is here, and is what is retained now.
    Ready,
    /// Some of it must be read: [`Broker::read_page`].
    Unread,
    /// Its replay has ended or begun anew, or the rules have changed: the next one takes its place.
    Stale,
}

impl Client {
    /// `filter` is sent all that is retained, after the reply that was queued last, but what came live after so many changes.
    pub(super) fn begin_replay(&mut self, filter: &Filter, since: u64) {
        self.end_replay(filter);
        let gate = self.session.queued();
        self.replays.push_back(Replay { filter: filter.clone(), from: Place::default(), since, gate });
    }

    /// One that the store remembers.
    pub(super) fn resume_replay(&mut self, filter: Filter, from: Place) {
        self.replays.push_back(Replay { filter, from, since: u64::MAX, gate: 0 });
    }

    /// `filter` is sent no more of what is retained.
    pub(super) fn end_replay(&mut self, filter: &Filter) {
        self.replays.retain(|replay| replay.filter != *filter);
    }

    /// The options of `filter` have changed, if it is still being sent what is retained: it goes on with these, after the reply that was queued last.
    pub(super) fn change_replay(&mut self, filter: &Filter) {
        let gate = self.session.queued();
        self.replays.iter_mut().filter(|replay| replay.filter == *filter).for_each(|replay| replay.gate = gate);
    }

    /// Another connection goes on: what an earlier one had queued is gone, and not all came live since.
    pub(super) fn reconnect_replays(&mut self) {
        self.replays.iter_mut().for_each(|replay| (replay.gate, replay.since) = (0, u64::MAX));
    }

    /// Where the replay of `filter` stands, if it has one.
    pub(super) fn replays_from(&self, filter: &Filter) -> Option<&Place> {
        self.replays.iter().find(|replay| replay.filter == *filter).map(|replay| &replay.from)
    }

    /// The stored form of one of its subscriptions.
    pub(super) fn stored_subscription(&self, filter: &Filter) -> Option<StoredSubscription> {
        let (options, id) = *self.subscriptions.get(filter)?;
        let (subscription_id, replay) = ((id > 0).then_some(id), self.replays_from(filter).cloned());
        Some(StoredSubscription { filter: filter.to_string(), options, subscription_id, replay })
    }

    /// How large a page of what is retained is to be (messages, bytes), once the SUBACK has left: about as large as there is room in the window, or
    /// in the log. None where there is no room, or nothing is to be sent.
    #[must_use]
    pub fn replay_room(&self) -> Option<(usize, usize)> {
        let replay = self.replays.front().filter(|replay| self.session.has_left(replay.gate))?;
        let room = match self.subscriptions.get(&replay.filter)?.0.qos {
            QoS::AtMostOnce => (usize::MAX, usize::MAX),
            _ if self.session.logged => self.receiver.replay_room(),
            _ => match self.direct_room() {
                0 => (0, 0),
                // Each page may have to be read: while it is, what comes live takes the room.
                room => (room.max(PAGE_AT_LEAST), usize::MAX),
            },
        };
        (room.0 > 0).then_some(room)
    }

    /// How many messages that no log holds may be sent at QoS 1 and 2.
    fn direct_room(&self) -> usize {
        // They have half of the packet ids.
        self.session.room().min(DIRECT_IDS.saturating_sub(self.session.in_flight()))
    }

    /// What of `page` is not taken is what its replay goes on with.
    fn move_replay(&mut self, page: &Page) {
        let place = page.kept.front().map(|kept| Place::at(&kept.topic)).or_else(|| page.next.clone());
        match (place, self.replays.front_mut().filter(|replay| page.is_of(replay))) {
            (Some(place), Some(replay)) => replay.from = place,
            (None, Some(_)) => drop(self.replays.pop_front()),
            (_, None) => {}
        }
    }
}

impl Page {
    /// Whether something is left of it.
    #[must_use]
    pub fn is_left(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The next delivery.
    fn front(&mut self) -> Option<Delivery> {
        while let Some(message) = self.kept.front()?.message.as_ref() {
            if self.not_from != Some(message.publisher) {
                let qos = lower(message.qos, self.options.qos);
                return Some(delivery(message, qos, true, self.ids.clone()));
            }
            self.kept.pop_front();
        }
        None
    }

    fn is_of(&self, replay: &Replay) -> bool {
        replay.gate == self.gate && replay.filter == self.filter
    }
}

impl Broker {
    /// The next page of what `client` is to be sent, about as large as there is room.
    #[must_use]
    pub fn replay_page(&self, client: &Client, now: Timestamp) -> Option<Page> {
        let room = client.replay_room()?;
        let &Replay { ref filter, ref from, since, gate } = client.replays.front()?;
        let (options, id) = *client.subscriptions.get(filter)?;
        let rules = self.auth.generation();
        let (kept, next, seen) = self.retained.page(&filter.filter, from, since, room, now);
        let ids = (id > 0).then(|| Arc::from([id]));
        let not_from = options.no_local.then_some(client.session.id);
        let filter = filter.clone();
        Some(Page { filter, gate, options, ids, not_from, since, kept, next, seen, rules })
    }

    /// Makes `page` what is retained now, without what may not be sent.
    pub fn check_page(&self, client: &Client, turn: &mut Turn, page: &mut Page, now: Timestamp) -> PageIs {
        if page.rules != self.auth.generation() || !client.replays.front().is_some_and(|replay| page.is_of(replay)) {
            return PageIs::Stale;
        }
        self.retained.refresh(&mut page.kept, &mut page.seen, page.since, now);
        self.judge(client, turn, page, now);
        if page.kept.iter().all(|kept| kept.message.is_some()) { PageIs::Ready } else { PageIs::Unread }
    }

    /// Reads what is missing of `page`, off the runtime's threads and in its turn. A message that cannot be read is passed over.
    #[must_use]
    pub fn read_page(self: &Arc<Self>, mut page: Page) -> Reading<Page> {
        self.read_in_turn(move |broker| broker.fill_page(&mut page).map(|()| page))
    }

    pub(super) fn fill_page(&self, page: &mut Page) -> Result<(), LogError> {
        let missing: Vec<&TopicName> =
            page.kept.iter().filter(|kept| kept.message.is_none()).map(|kept| &kept.topic).collect();
        let mut read = self.store.read_retained(&missing)?.into_iter();
        page.kept.retain_mut(|kept| {
            if kept.message.is_some() {
                return true;
            }
            kept.message = match read.next() {
                Some(Ok(message)) => message.map(Arc::new),
                Some(Err(error)) => {
                    tracing::error!(topic = %Shown(kept.topic.as_str()), %error, "a retained message cannot be read, and is not sent");
                    let mut turn = Turn::default();
                    turn.counts.dropped(DropReason::StorageFailed);
                    self.finish(&mut turn);
                    None
                }
                None => None,
            };
            kept.message.is_some()
        });
        Ok(())
    }

    /// Takes what of `page` there is room for; the replay goes on behind it. Gives what is to be sent now. The rest is appended to the log of
    /// a session that the store keeps, with how far it came: that survives the connection, and QoS 2 a crash.
    #[must_use]
    pub fn take_page(&self, client: &mut Client, turn: &mut Turn, page: &mut Page, now: Timestamp) -> Vec<Delivery> {
        let mut direct = Vec::new();
        if client.session.logged {
            self.store.write(|batch| self.log_page(client, turn, page, batch, &mut direct, now));
        } else {
            let mut room = client.direct_room();
            while direct.len() < SENT_AT_ONCE
                && let Some(delivery) = page.front()
                && (delivery.qos == QoS::AtMostOnce || room > 0)
            {
                room -= usize::from(delivery.qos != QoS::AtMostOnce);
                direct.push(delivery);
                page.kept.pop_front();
            }
            client.move_replay(page);
        }
        direct
    }

    fn log_page(
        &self,
        client: &mut Client,
        turn: &mut Turn,
        page: &mut Page,
        batch: &mut Batch,
        direct: &mut Vec<Delivery>,
        now: Timestamp,
    ) {
        // Whatever replaces it from here on comes behind it in the log.
        self.retained.refresh(&mut page.kept, &mut page.seen, page.since, now);
        self.judge(client, turn, page, now);
        while let Some(delivery) = page.front() {
            if delivery.qos == QoS::AtMostOnce {
                direct.push(delivery);
            } else {
                let body = batch.body(&delivery.message, 1);
                let Some(signal) = client.receiver.append_replayed(batch, &body, &delivery) else { break };
                batch.require_durable();
                turn.counts.messages_queued += 1;
                turn.touch(signal);
            }
            page.kept.pop_front();
        }
        client.move_replay(page);
        if let Some(stored) = client.stored_subscription(&page.filter) {
            batch.put_subscription(client.session.id, &stored);
        }
    }

    /// Drops from `page` what was not judged yet and may not be sent: what the client may not receive, and what its publisher has lost the right to
    /// publish.
    fn judge(&self, client: &Client, turn: &mut Turn, page: &mut Page, now: Timestamp) {
        if page.kept.iter().all(|kept| kept.judged) {
            return;
        }
        let rules = self.auth.rules();
        let receiver = rules.judge(client.receiver.identity.who(&client.receiver.client_id));
        let mut authors = Authors::new(&rules);
        page.kept.retain_mut(|kept| {
            if std::mem::replace(&mut kept.judged, true) {
                return true;
            }
            if receiver.as_ref().is_some_and(|judge| !judge.verdict(Access::Receive, &kept.topic).allowed) {
                turn.counts.dropped(DropReason::AclDenied);
                return false;
            }
            !self.is_withheld(kept, &mut authors, turn, now)
        });
    }

    /// Whether a retained message is not to be sent since its publisher has lost the right to publish it.
    fn is_withheld(&self, kept: &Kept, authors: &mut Authors<'_>, turn: &mut Turn, now: Timestamp) -> bool {
        static SAID: Throttle = Throttle::new(1);
        if !self.auth.checks_retain_source() || authors.may_publish(kept) {
            return false;
        }
        turn.counts.dropped(DropReason::AclDenied);
        if let (Some(author), Some(left_out)) = (&kept.author, SAID.pass(now)) {
            tracing::info!(
                topic = %Shown(kept.topic.as_str()),
                client = %Shown(&author.client_id),
                identity = %Identity::from(author.username.clone()),
                left_out,
                "retained message withheld: its publisher may not publish there any more (auth.check_retain_source)"
            );
        }
        true
    }
}

/// Tells whose right to publish still stands. Messages of one author often follow each other: its rules are looked up once.
struct Authors<'a> {
    rules: &'a Rules,
    last: Option<(Arc<Author>, Option<Judge<'a>>)>,
}

impl<'a> Authors<'a> {
    fn new(rules: &'a Rules) -> Self {
        Self { rules, last: None }
    }

    /// Whether who published `kept` may publish it now.
    fn may_publish(&mut self, kept: &Kept) -> bool {
        let Some(author) = &kept.author else { return true };
        if !self.last.as_ref().is_some_and(|(last, _)| Arc::ptr_eq(last, author)) {
            let who = Who { username: author.username.as_deref(), client_id: &author.client_id };
            self.last = Some((author.clone(), self.rules.judge(who)));
        }
        let judge = self.last.as_ref().and_then(|(_, judge)| judge.as_ref());
        judge.is_none_or(|judge| judge.verdict(Access::Publish, &kept.topic).allowed)
    }
}

/// How many messages a page has that is sent past the log, however few there is room for at once.
const PAGE_AT_LEAST: usize = 32;
/// How many messages are sent in one turn: others wait that long. A page is larger, since each costs a look into the store's files.
const SENT_AT_ONCE: usize = 32;
/// How many packet ids there are for what no log holds.
const DIRECT_IDS: usize = 32_768;
