//! What a shared group knows: its members, what waits, what is leased to whom, and how far its log is settled.
//!
//! Must not know how the log is read or written.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use crate::{
    broker::config::{Redeliver, Strategy},
    metrics::DropReason,
    mqtt::{Message, QoS, Timestamp, TopicName, packet::SubscriptionOptions},
    session::{Delivery, Hold, LogView, Source, limits::QueueFull},
    storage::{LogEntry, Lsn, Outcome},
};

use super::{
    super::{
        Broker, Receiver, Turn, counted_size,
        drops::Drops,
        hand_over::HandOver,
        mailbox::{Put, SERVED_BYTES},
        publish::lower,
        queues::Share,
    },
    Group,
    choice::Choice,
};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) members: Vec<Member>,
    /// Whose turn it is.
    pub(super) next: usize,
    pub(super) tail: u64,
    /// The bytes of all entries that there ever were.
    pub(super) appended: u64,
    pub(super) share: Share,
    /// What nobody gets.
    pub(super) drops: Drops,
    pub(super) last_commit: u64,
    pub(super) view: LogView,
    /// Messages that no member has, in order.
    pub(super) waiting: VecDeque<Entry>,
    pub(super) leased: BTreeMap<u64, (u64, Entry)>,
    /// The last entry that was ever leased.
    pub(super) leased_until: u64,
    /// The last entry that a member's full queue did not take.
    pub(super) refused: Option<(u64, DropReason)>,
    /// Publishers with something in flight, where each has its member: to whom the last of it went, and how much of it that one has.
    pub(super) pinned: HashMap<u64, (u64, usize), foldhash::fast::RandomState>,
    pub(super) passed: Passed,
    /// Entries settled whose records are still to be removed from the store.
    pub(super) unrecorded: Vec<Entry>,
    /// QoS 2 entries whose lease was taken back; the store may have a record of it.
    pub(super) unleased: Vec<u64>,
    /// The last persistent member that was there is not any more. How far the log was sent is to be recorded before that is: until then
    /// all of it counts as sent.
    pub(super) left: bool,
    /// Entries after `read_to` are in the log alone.
    pub(super) behind: bool,
    pub(super) read_to: u64,
    pub(super) loading: bool,
    /// Counts the times that the state was read from the store: a page of before is not for after.
    pub(super) epoch: u64,
    /// The last member has left: the group is no more.
    pub(super) ended: bool,
}

/// What is known of the entries that wait first: nobody who has room may have them. It holds until a member gains something.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// So many.
    pub(super) count: usize,
    /// Their topics; by publisher, where each has its member.
    topics: HashSet<TopicName, foldhash::fast::RandomState>,
    publishers: HashSet<u64, foldhash::fast::RandomState>,
    /// The generation of the rules that they were judged by.
    rules: u64,
    /// The bound was reached, and that was told.
    stalled: bool,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) receiver: Arc<Receiver>,
    /// Stands for its client id.
    pub(super) key: u64,
    pub(super) options: SubscriptionOptions,
    pub(super) ids: Option<Arc<[u32]>>,
    pub(super) online: bool,
    pub(super) leases: usize,
    pub(super) window: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) message: Arc<Message>,
    /// Stands for its publisher's client id.
    pub(super) publisher: u64,
    /// As published.
    pub(super) retain: bool,
    pub(super) body: u64,
    pub(super) again: bool,
    /// The commit that hands it over; 0 where none does.
    pub(super) commit: u64,
    /// The bytes of all entries of the group up to and with this one.
    pub(super) log_bytes: u64,
}

impl State {
    pub(super) fn member(&mut self, session: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.receiver.session == session)
    }

    /// An entry that was read from the log.
    pub(super) fn wait_again(&mut self, entry: LogEntry) {
        if self.view.is_settled(entry.seq) || self.leased.contains_key(&entry.seq) {
            return;
        }
        let again = entry.seq <= self.view.sent_until;
        self.waiting.push_back(Entry { again, ..Entry::read(entry) });
    }

    /// Why there is no room for a message of `size`.
    pub(super) fn full(&self, broker: &Broker, size: u64) -> Option<DropReason> {
        if broker.queue_limits().are_reached(self.unsettled(), self.held(), size) {
            return Some(DropReason::QueueFull);
        }
        self.all_full(broker, size).then_some(DropReason::AllQueuesFull)
    }

    /// Where all queues are full together, a group that has little waiting, and somebody for it, is served on.
    fn all_full(&self, broker: &Broker, size: u64) -> bool {
        let served = || self.held() + size <= SERVED_BYTES && self.members.iter().any(Member::has_room);
        broker.queues.are_full(size) && !served()
    }

    /// Whether there is room for a message of `size` once the oldest that were never sent are dropped, as many as it takes of those that
    /// are here.
    pub(super) fn can_make_room(&self, broker: &Broker, size: u64) -> bool {
        let limits = broker.queue_limits();
        if limits.exclude(size) || self.all_full(broker, size) {
            return false;
        }
        let mut oldest = self.waiting.iter().filter(|entry| !entry.again);
        let (mut unsettled, mut held) = (self.unsettled(), self.held());
        while limits.are_reached(unsettled, held, size) {
            let Some(entry) = oldest.next() else { return false };
            unsettled = unsettled.saturating_sub(1);
            held = held.saturating_sub(entry.message.size() as u64);
        }
        true
    }

    /// How many messages wait, or are leased.
    fn unsettled(&self) -> u64 {
        self.tail.saturating_sub(self.view.head()).saturating_sub(self.view.settled_beyond())
    }

    fn held(&self) -> u64 {
        self.appended.saturating_sub(self.view.settled_bytes())
    }

    /// All queues together count what this one holds.
    pub(super) fn tell(&mut self, broker: &Broker) {
        let held = self.held();
        if !self.ended {
            self.share.is(held, &broker.queues);
        }
    }

    /// The oldest message that was never sent, to be dropped.
    pub(super) fn take_oldest(&mut self) -> Option<Entry> {
        let at = self.waiting.iter().position(|entry| !entry.again)?;
        self.passed.count -= usize::from(at < self.passed.count);
        self.waiting.remove(at)
    }

    /// The oldest message is to be dropped, and is in the log alone.
    pub(super) fn lacks_oldest(&self, broker: &Broker) -> bool {
        broker.limits.queue_full == QueueFull::DropOldest
            && self.full(broker, 0).is_some()
            && self.waiting.iter().all(|entry| entry.again)
    }

    /// Whether a message of `size` is taken beyond the limits until the oldest, which is in the log alone, has been read.
    pub(super) fn has_slack(&self, broker: &Broker, size: u64) -> bool {
        let limits = broker.queue_limits();
        self.behind
            && !limits.exclude(size)
            && !limits.with_slack().are_reached(self.unsettled(), self.held(), size)
            && !self.all_full(broker, size)
    }

    /// Drops the oldest of what was taken beyond the limits, as far as it is here. How many.
    pub(super) fn drop_excess(&mut self, group: &Group, broker: &Broker) -> u64 {
        let limits = broker.queue_limits();
        let mut dropped = 0;
        while limits.excess(self.unsettled(), self.held()) != (0, 0)
            && let Some(oldest) = self.take_oldest()
        {
            self.settle(group, oldest);
            dropped += 1;
        }
        dropped
    }

    /// Nobody gets so many messages. Those that may be missed are not counted.
    pub(super) fn count_drops(
        &mut self,
        group: &Group,
        broker: &Broker,
        turn: &mut Turn,
        reason: DropReason,
        count: u64,
    ) {
        if count == 0 || turn.offered.is_some() {
            return;
        }
        turn.counts.drop_all(reason, count);
        if self.drops.count(reason, count) && !self.ended {
            broker.queues.dropping.has_untold(group.id);
        }
    }

    /// QoS 0: to the next member that is there, or to nobody. Why it was dropped, if it was.
    pub(super) fn give_at_most_once(
        &mut self,
        group: &Group,
        broker: &Broker,
        entry: &Entry,
        turn: &mut Turn,
        later: Option<&mut HandOver>,
    ) -> Option<DropReason> {
        let reason = match self.choose(broker, entry, |member| member.online) {
            Choice::Member(at) => {
                let member = self.members.get(at)?;
                let delivery = member.delivery(entry, Source::Direct);
                let Some(later) = later else { return put(&member.receiver, delivery, turn) };
                return later.push(&member.receiver, delivery).inspect(|reason| turn.counts.dropped(*reason));
            }
            Choice::NoRoom => DropReason::NotPersistent,
            Choice::Denied => DropReason::AclDenied,
        };
        self.count_drops(group, broker, turn, reason, 1);
        Some(reason)
    }

    /// Leases what waits to members that have room. What a commit hands over, and what came after it, waits for that.
    pub(super) fn pump(&mut self, group: &Group, broker: &Broker, turn: &mut Turn, now: Timestamp) {
        let rules = broker.auth.generation();
        if self.passed.rules != rules {
            self.look_again();
            self.passed.rules = rules;
        }
        // Entries that only members without room may have are looked past: they must not block those for others.
        while let Some(entry) = self.waiting.get(self.passed.count) {
            let outcome = broker.store.outcome(Lsn(entry.commit));
            if outcome == Outcome::Pending {
                return;
            }
            let lost = match outcome {
                // Its publisher is told that it was not taken.
                Outcome::Failed if entry.message.qos == QoS::ExactlyOnce => Some(DropReason::StorageFailed),
                _ if !entry.again && entry.message.is_expired(now) => Some(DropReason::Expired),
                _ => None,
            };
            let chosen = match lost {
                Some(reason) => Err(reason),
                None => match self.choose_next(broker) {
                    Choice::Member(at) => Ok(at),
                    Choice::NoRoom if self.look_past(group, turn) => continue,
                    Choice::NoRoom => return,
                    Choice::Denied => Err(DropReason::AclDenied),
                },
            };
            let Some(entry) = self.waiting.remove(self.passed.count) else { return };
            match chosen {
                Ok(at) => self.lease(at, entry, group, broker, turn),
                Err(reason) => {
                    self.count_drops(group, broker, turn, reason, 1);
                    self.settle(group, entry);
                }
            }
        }
        self.passed.stalled = false;
    }

    /// The choice for the first entry that is not passed. One like another that was passed is not looked at: rooms only fill meanwhile, and
    /// a publisher's message must not overtake its earlier ones.
    fn choose_next(&mut self, broker: &Broker) -> Choice {
        let Some(entry) = self.waiting.get(self.passed.count).cloned() else { return Choice::NoRoom };
        let by_publisher = broker.config.shared_subscriptions.strategy == Strategy::HashPublisher;
        let Passed { topics, publishers, .. } = &self.passed;
        if publishers.contains(&entry.publisher) || topics.contains(&entry.message.topic) {
            return Choice::NoRoom;
        }
        let choice = self.choose(broker, &entry, Member::has_room);
        if matches!(choice, Choice::NoRoom) && by_publisher {
            self.passed.publishers.insert(entry.publisher);
        } else if matches!(choice, Choice::NoRoom) {
            self.passed.topics.insert(entry.message.topic.clone());
        }
        choice
    }

    /// Passes an entry that nobody with room may have. `false` where there is no room, or too much was passed.
    fn look_past(&mut self, group: &Group, turn: &mut Turn) -> bool {
        if !self.members.iter().any(Member::has_room) {
            // Not worth remembering: the first thing that happens is that somebody has room.
            self.look_again();
            return false;
        }
        if self.passed.count >= LOOK_PAST {
            self.stall(group, turn);
            return false;
        }
        self.passed.count += 1;
        true
    }

    /// Somebody has room, and what there may be for it is not looked for.
    pub(super) fn stall(&mut self, group: &Group, turn: &mut Turn) {
        if !std::mem::replace(&mut self.passed.stalled, true) {
            turn.counts.shared_stalls += 1;
            tracing::warn!(
                group = %group.filter,
                "a shared subscription stands still: more than {LOOK_PAST} messages wait for members that are full or away"
            );
        }
    }

    /// What waits last is left to the log, and so is what comes now.
    pub(super) fn fall_behind(&mut self) {
        self.behind = true;
        if let Some(last) = self.waiting.pop_back() {
            self.read_to = last.seq - 1;
            if last.again {
                self.view.sent_until = self.view.sent_until.max(last.seq);
            }
        }
        self.passed.count = self.passed.count.min(self.waiting.len());
    }

    /// A member gained something, or what waits changed its places: all of it is looked at anew.
    pub(super) fn look_again(&mut self) {
        self.passed.count = 0;
        self.passed.topics.clear();
        self.passed.publishers.clear();
    }

    fn lease(&mut self, at: usize, entry: Entry, group: &Group, broker: &Broker, turn: &mut Turn) {
        let Some(member) = self.members.get(at) else { return };
        let kept = member.receiver.logged && broker.config.shared_subscriptions.redeliver == Redeliver::OnSessionEnd;
        let logged = group.is_logged();
        let source = Source::Lease { group: group.id, seq: entry.seq, again: entry.again, logged, kept };
        let delivery = member.delivery(&entry, source);
        let receiver = member.receiver.clone();
        if delivery.qos == QoS::AtMostOnce {
            let reason = put(&receiver, Delivery { source: Source::Direct, ..delivery }, turn);
            self.refused = reason.map(|reason| (entry.seq, reason)).or(self.refused);
            self.settle(group, entry);
            return;
        }
        self.leased_to(broker, receiver.session, entry);
        put(&receiver, delivery, turn);
    }

    /// `session` holds `entry` from now on.
    pub(super) fn leased_to(&mut self, broker: &Broker, session: u64, entry: Entry) {
        if let Some(member) = self.member(session) {
            member.leases += 1;
        }
        if broker.config.shared_subscriptions.strategy == Strategy::HashPublisher {
            match self.pinned.entry(entry.publisher).or_insert((session, 0)) {
                (holder, count) if *holder == session => *count += 1,
                pinned => *pinned = (session, 1),
            }
        }
        self.leased_until = self.leased_until.max(entry.seq);
        self.leased.insert(entry.seq, (session, entry));
    }

    /// Nobody holds entry `seq` any more.
    pub(super) fn unleased(&mut self, seq: u64) -> Option<Entry> {
        let (session, entry) = self.leased.remove(&seq)?;
        let mut was_full = false;
        if let Some(member) = self.member(session) {
            was_full = !member.has_room();
            member.leases = member.leases.saturating_sub(1);
        }
        let mut moves = false;
        if let Some((holder, count)) = self.pinned.get_mut(&entry.publisher)
            && *holder == session
        {
            *count -= 1;
            moves = *count == 0;
        }
        if moves {
            self.pinned.remove(&entry.publisher);
        }
        // Else what was passed still waits for others.
        if was_full || moves && self.passed.publishers.contains(&entry.publisher) {
            self.look_again();
        }
        Some(entry)
    }

    pub(super) fn settle(&mut self, group: &Group, entry: Entry) {
        self.view.settle(entry.seq, counted_size(entry.log_bytes, &entry.message));
        if self.view.head() >= self.tail {
            self.view.set_settled_bytes(self.appended);
        }
        if group.is_logged() {
            self.unrecorded.push(entry);
        }
    }

    pub(super) fn is_unrecorded(&self) -> bool {
        self.left || !self.unrecorded.is_empty() || !self.unleased.is_empty()
    }

    /// Entries after it have not been sent to anybody.
    pub(super) fn sent_until(&self) -> u64 {
        self.leased_until.max(self.view.sent_until)
    }

    /// Messages that no member has.
    pub(super) fn undelivered(&self) -> u64 {
        self.waiting.len() as u64 + if self.behind { self.tail.saturating_sub(self.read_to) } else { 0 }
    }

    /// Takes the leases of `session` back, but for those in flight that it keeps: for ever, or until it is `leaving`. What is not in flight
    /// was never sent.
    pub(super) fn take_back(&mut self, session: u64, in_flight: &BTreeMap<u64, Hold>, leaving: bool, logged: bool) {
        let returns = |seq: &u64| match in_flight.get(seq) {
            Some(Hold::Client) => false,
            Some(Hold::Session) => leaving,
            Some(Hold::Connection) | None => true,
        };
        let held = self.leased.iter().filter(|(_, (holder, _))| *holder == session);
        let returned: Vec<u64> = held.map(|(seq, _)| *seq).filter(returns).collect();
        for seq in returned {
            self.give_back(seq, in_flight.contains_key(&seq), logged);
        }
    }

    /// Entry `seq` waits again, in its place; `sent`: it may have been sent.
    pub(super) fn give_back(&mut self, seq: u64, sent: bool, logged: bool) {
        let Some(mut entry) = self.unleased(seq) else { return };
        if entry.message.qos == QoS::ExactlyOnce && logged {
            self.unleased.push(seq);
        }
        entry.again |= sent;
        let at = self.waiting.partition_point(|one| one.seq < seq);
        self.waiting.insert(at, entry);
        self.look_again();
    }

    /// A persistent member is no longer there.
    pub(super) fn member_left(&mut self) {
        self.left |= !self.members.iter().any(|member| member.online && member.receiver.logged);
    }

    /// A member that leaves takes its turn with it.
    pub(super) fn remove_member(&mut self, session: u64) {
        let Some(at) = self.members.iter().position(|member| member.receiver.session == session) else { return };
        let member = self.members.remove(at);
        if member.receiver.logged {
            self.member_left();
        }
        if at < self.next {
            self.next -= 1;
        }
        self.look_again();
    }
}

impl Entry {
    /// One that was read from the log.
    pub(super) fn read(entry: LogEntry) -> Self {
        Self {
            seq: entry.seq,
            message: entry.message,
            publisher: entry.head.publisher,
            retain: entry.head.retain,
            body: entry.body.unwrap_or_default(),
            again: true,
            commit: 0,
            log_bytes: entry.head.log_bytes,
        }
    }
}

impl Member {
    pub(super) fn takes_more_than_once(&self) -> bool {
        self.options.qos != QoS::AtMostOnce
    }

    pub(super) fn has_room(&self) -> bool {
        self.online && self.leases < self.window
    }

    pub(super) fn delivery(&self, entry: &Entry, source: Source) -> Delivery {
        Delivery {
            message: entry.message.clone(),
            qos: lower(entry.message.qos, self.options.qos),
            retain: entry.retain && self.options.retain_as_published,
            subscription_ids: self.ids.clone(),
            source,
        }
    }
}

/// Why the delivery was dropped, if it was. A lease that the receiver does not take comes back as its connection ends.
fn put(receiver: &Receiver, delivery: Delivery, turn: &mut Turn) -> Option<DropReason> {
    if delivery.source == Source::Direct {
        return turn.put(receiver, delivery);
    }
    if let Put::Queued(signal) = receiver.put(delivery, |_| ()) {
        turn.touch(signal);
    }
    None
}

/// How many entries that nobody with room may have are looked past.
pub(super) const LOOK_PAST: usize = 1024;
