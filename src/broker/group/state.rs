//! What a shared group knows: its members, what waits, what is leased to whom, and how far its log is settled.
//!
//! Must not know how the log is read or written.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    auth::Access,
    metrics::DropReason,
    mqtt::{Message, QoS, Timestamp, packet::SubscriptionOptions},
    session::{Delivery, LogView, Source},
    storage::{LogEntry, Lsn, Outcome},
};

use super::{
    super::{
        Broker, Receiver, Turn,
        mailbox::Put,
        publish::{HandOver, lower},
    },
    Group,
};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) members: Vec<Member>,
    /// Whose turn it is.
    pub(super) next: usize,
    pub(super) tail: u64,
    pub(super) last_commit: u64,
    pub(super) view: LogView,
    /// Messages that no member has, in order.
    pub(super) waiting: VecDeque<Entry>,
    pub(super) leased: BTreeMap<u64, (u64, Entry)>,
    /// Entries settled whose records are still to be removed from the store.
    pub(super) unrecorded: Vec<Entry>,
    /// QoS 2 entries whose lease was taken back; the store may have a record of it.
    pub(super) unleased: Vec<u64>,
    /// Entries after `read_to` are in the log alone.
    pub(super) behind: bool,
    pub(super) read_to: u64,
    pub(super) loading: bool,
    /// Counts the times that the state was read from the store: a page of before is not for after.
    pub(super) epoch: u64,
    /// The last member has left: the group is no more.
    pub(super) ended: bool,
}

/// Who of a group gets a message.
pub(super) enum Choice {
    /// The member at this place.
    Member(usize),
    /// One who has the right to it, and cannot take it now.
    NoRoom,
    /// Nobody has the right to it, online or not.
    Denied,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) receiver: Arc<Receiver>,
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
    /// As published.
    pub(super) retain: bool,
    pub(super) body: u64,
    pub(super) again: bool,
    /// The commit that hands it over; 0 where none does.
    pub(super) commit: u64,
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
        let (retain, body) = (entry.head.retain, entry.body.unwrap_or_default());
        self.waiting.push_back(Entry { seq: entry.seq, message: entry.message, retain, body, again, commit: 0 });
    }

    /// QoS 0: to the next member that is there, or to nobody.
    pub(super) fn give_at_most_once(
        &mut self,
        broker: &Broker,
        entry: &Entry,
        turn: &mut Turn,
        later: Option<&mut HandOver>,
    ) {
        let at = match self.choose(broker, &entry.message, |member| member.online) {
            Choice::Member(at) => at,
            Choice::NoRoom => return turn.counts.dropped(DropReason::NotPersistent),
            Choice::Denied => return turn.counts.dropped(DropReason::AclDenied),
        };
        let Some(member) = self.members.get(at) else { return };
        let delivery = member.delivery(entry, Source::Direct);
        match later {
            Some(later) => later.push(&member.receiver, delivery),
            None => put(&member.receiver, delivery, turn),
        }
    }

    /// Leases what waits to members that have room. What a commit hands over, and what came after it, waits for that.
    pub(super) fn pump(&mut self, group: &Group, broker: &Broker, turn: &mut Turn, now: Timestamp) {
        // Entries that only members without room may have are looked past: they must not block those for others.
        let mut past = 0;
        while let Some(entry) = self.waiting.get(past) {
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
                None => {
                    let message = entry.message.clone();
                    match self.choose(broker, &message, Member::has_room) {
                        Choice::Member(at) => Ok(at),
                        Choice::NoRoom if past < LOOK_PAST && self.members.iter().any(Member::has_room) => {
                            past += 1;
                            continue;
                        }
                        Choice::NoRoom => return,
                        Choice::Denied => Err(DropReason::AclDenied),
                    }
                }
            };
            let at = match chosen {
                Ok(at) => at,
                Err(reason) => {
                    let Some(entry) = self.waiting.remove(past) else { return };
                    turn.counts.dropped(reason);
                    self.settle(group, entry);
                    continue;
                }
            };
            let Some(entry) = self.waiting.remove(past) else { return };
            let Some(member) = self.members.get_mut(at) else { return };
            let logged = group.is_logged();
            let source = Source::Lease { group: group.id, seq: entry.seq, again: entry.again, logged };
            let delivery = member.delivery(&entry, source);
            if delivery.qos == QoS::AtMostOnce {
                let delivery = Delivery { source: Source::Direct, ..delivery };
                put(&member.receiver, delivery, turn);
                self.settle(group, entry);
                continue;
            }
            member.leases += 1;
            let (receiver, session) = (member.receiver.clone(), member.receiver.session);
            self.leased.insert(entry.seq, (session, entry));
            put(&receiver, delivery, turn);
        }
    }

    pub(super) fn settle(&mut self, group: &Group, entry: Entry) {
        self.view.settle(entry.seq);
        if group.is_logged() {
            self.unrecorded.push(entry);
        }
    }

    pub(super) fn is_unrecorded(&self) -> bool {
        !self.unrecorded.is_empty() || !self.unleased.is_empty()
    }

    /// Messages that no member has.
    pub(super) fn undelivered(&self) -> u64 {
        self.waiting.len() as u64 + if self.behind { self.tail.saturating_sub(self.read_to) } else { 0 }
    }

    /// The next member in turn that `may` take a message and has the right to.
    pub(super) fn choose(&mut self, broker: &Broker, message: &Message, may: impl Fn(&Member) -> bool) -> Choice {
        let count = self.members.len();
        let rules = broker.auth.rules();
        let has_right = |member: &Member| {
            let who = member.receiver.identity.who(&member.receiver.client_id);
            rules.verdict(who, Access::Receive, &message.topic).allowed
        };
        for step in 0..count {
            let at = (self.next + step) % count;
            if self.members.get(at).is_some_and(|member| may(member) && has_right(member)) {
                self.next = (at + 1) % count;
                return Choice::Member(at);
            }
        }
        // Members of a group that the store remembers may still be to come.
        let waits = self.members.is_empty() || self.members.iter().any(|member| !may(member) && has_right(member));
        if waits { Choice::NoRoom } else { Choice::Denied }
    }

    /// Takes the leases of `session` back, but for QoS 2 that is `in_flight`. What is not in flight was never sent.
    pub(super) fn take_back(&mut self, session: u64, in_flight: &BTreeMap<u64, bool>, logged: bool) {
        let returned: Vec<u64> = self
            .leased
            .iter()
            .filter(|(seq, (holder, _))| *holder == session && in_flight.get(seq) != Some(&true))
            .map(|(seq, _)| *seq)
            .collect();
        for seq in returned.iter().rev() {
            if let Some((_, entry)) = self.leased.remove(seq) {
                if entry.message.qos == QoS::ExactlyOnce && logged {
                    self.unleased.push(*seq);
                }
                let again = entry.again || in_flight.contains_key(seq);
                self.waiting.push_front(Entry { again, ..entry });
            }
        }
        self.waiting.make_contiguous().sort_by_key(|entry| entry.seq);
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

/// A lease that the receiver does not take comes back as its connection ends.
fn put(receiver: &Receiver, delivery: Delivery, turn: &mut Turn) {
    let leased = delivery.source != Source::Direct;
    match receiver.put(delivery) {
        Put::Queued(signal) => turn.touch(signal),
        Put::Dropped(_) if leased => {}
        Put::Dropped(reason) => turn.counts.dropped(reason),
    }
}

/// How many entries that nobody with room may have are looked past.
pub(super) const LOOK_PAST: usize = 64;
