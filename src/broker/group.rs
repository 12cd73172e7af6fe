//! Shared Subscriptions (4.8.2): a group gives each message to one of its members, as a lease.
//!
//! With a persistent member the group is a log, and a lease survives a crash; without one it lives in memory. QoS 1 in flight goes to
//! another member when its holder leaves [MQTT-4.8.2-5]; QoS 2 in flight only ever to the same client [MQTT-4.8.2-4]. Must not know how its
//! members are connected.

mod choice;
mod state;

use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    metrics::DropReason,
    mqtt::{Filter, Message, PacketId, QoS, Timestamp, packet::SubscriptionOptions},
    router::{Subscription, Target},
    session::{Delivery, Hold, LogView, Source, limits::QueueFull},
    storage::{Batch, Body, EntryHead, Error, LogEntry, Lsn, OpenEntry, Outcome, Step, StoredGroup},
};

use super::{
    Broker, Client, Turn,
    drops::Drops,
    hand_over::HandOver,
    is_of_broker,
    publish::{Op, log_state},
};
pub(super) use choice::hash_of;
use state::{Entry, LOOK_PAST, Member, State};

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_filter: Mutex<GroupsByFilter>,
    by_id: DashMap<u64, Arc<Group>, foldhash::fast::RandomState>,
}

type GroupsByFilter = HashMap<Filter, Arc<Group>, foldhash::fast::RandomState>;

/// One group: everybody who subscribes to `$share/{name}/{filter}`.
#[derive(Debug)]
pub struct Group {
    id: u64,
    filter: Filter,
    logged: AtomicBool,
    state: Mutex<State>,
}

/// What became of a message that a group was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// A member has it, or it waits for one.
    Taken,
    /// It was dropped.
    Dropped(DropReason),
    /// The group has become a log: the message must be given with one.
    NeedsLog,
}

impl From<Option<DropReason>> for Given {
    fn from(dropped: Option<DropReason>) -> Self {
        dropped.map_or(Self::Taken, Self::Dropped)
    }
}

impl Given {
    pub(super) fn dropped(self) -> Option<DropReason> {
        if let Self::Dropped(reason) = self { Some(reason) } else { None }
    }
}

impl Groups {
    pub(super) fn by_id(&self, id: u64) -> Option<Arc<Group>> {
        self.by_id.get(&id).map(|group| group.clone())
    }

    pub(super) fn by_filter(&self, filter: &Filter) -> Option<Arc<Group>> {
        self.by_filter.lock().get(filter).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Group>> {
        self.by_id.iter().map(|group| group.clone()).collect()
    }
}

impl Group {
    fn new(id: u64, filter: Filter, logged: bool, state: State) -> Arc<Self> {
        Arc::new(Self { id, filter, logged: AtomicBool::new(logged), state: Mutex::new(state) })
    }

    /// Names the group, and its log.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether a member is persistent: the group then is a log.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.logged.load(Ordering::Acquire)
    }

    /// Gives `message` to a member, or keeps it until one has room. `log` is where it is appended, for a group with a log. With `later`
    /// the commit of that batch hands it over. Others that wait are given, too: what is returned is about this message alone.
    #[allow(clippy::too_many_arguments)] // the publish path passes what it holds
    pub(super) fn give(
        self: &Arc<Self>,
        broker: &Broker,
        message: &Arc<Message>,
        publisher: u64,
        retain: bool,
        log: Option<(&mut Batch, &Body<'_>)>,
        turn: &mut Turn,
        later: Option<&mut HandOver>,
        now: Timestamp,
    ) -> Given {
        let mut state = self.state.lock();
        if state.ended {
            turn.counts.dropped(DropReason::SessionEnded);
            return Given::Dropped(DropReason::SessionEnded);
        }
        let (seq, log_bytes) = (state.tail + 1, state.appended + message.size() as u64);
        let message_of = message.clone();
        let mut entry =
            Entry { seq, message: message_of, publisher, retain, body: 0, again: false, commit: 0, log_bytes };
        // Members that take QoS 0 alone are not kept anything for.
        if message.qos == QoS::AtMostOnce || !state.members.iter().any(Member::takes_more_than_once) {
            return Given::from(state.give_at_most_once(self, broker, &entry, turn, later));
        }
        if log.is_none() && self.is_logged() {
            return Given::NeedsLog;
        }
        if let Some(reason) = self.make_room(broker, &mut state, message.size() as u64, turn) {
            return Given::Dropped(reason);
        }
        let mut batch = None;
        if let Some((open, body)) = log.filter(|_| self.is_logged()) {
            let (qos, subscription_ids) = (message.qos, Default::default());
            let head = EntryHead { qos, retain, subscription_ids, publisher, log_bytes };
            entry.body = open.append(self.id, entry.seq, &head, body).unwrap_or_default();
            state.last_commit = open.lsn().0;
            turn.counts.messages_queued += 1;
            batch = Some(open);
        }
        (state.tail, state.appended) = (seq, log_bytes);
        if !state.behind {
            if let Some(later) = later {
                entry.commit = later.commit;
                later.await_commit(self);
            }
            state.read_to = seq;
            state.waiting.push_back(entry);
            state.pump(self, broker, turn, now);
        }
        // What is served at once never waits, and is not told of.
        state.tell(broker);
        if let Some(batch) = batch {
            self.record(&mut state, batch);
        }
        if self.is_logged() && !state.behind && state.waiting.len() > HELD_MESSAGES {
            state.fall_behind();
        }
        self.load_if_behind(broker, &mut state, turn);
        Given::from(state.refused.take().filter(|(refused, _)| *refused == seq).map(|(_, reason)| reason))
    }

    /// Makes room for a message of `size`, where that is the policy and not in vain. Where there is none it is dropped: why.
    fn make_room(
        self: &Arc<Self>,
        broker: &Broker,
        state: &mut State,
        size: u64,
        turn: &mut Turn,
    ) -> Option<DropReason> {
        let mut in_vain = None;
        while let Some(reason) = state.full(broker, size) {
            let drops_oldest = reason == DropReason::QueueFull && broker.limits.queue_full == QueueFull::DropOldest;
            let in_vain = *in_vain.get_or_insert_with(|| !state.can_make_room(broker, size));
            if drops_oldest && in_vain && state.has_slack(broker, size) {
                // What is in the log alone must be here to be dropped.
                self.load_if_behind(broker, state, turn);
                return None;
            }
            state.count_drops(self, broker, turn, reason, 1);
            let Some(oldest) = (drops_oldest && !in_vain).then(|| state.take_oldest()).flatten() else {
                return Some(reason);
            };
            state.settle(self, oldest);
        }
        None
    }

    /// `session` has settled entry `seq`.
    pub(super) fn settle(
        self: &Arc<Self>,
        broker: &Broker,
        session: u64,
        seq: u64,
        batch: Option<&mut Batch>,
        turn: &mut Turn,
        now: Timestamp,
    ) {
        let mut state = self.state.lock();
        if state.leased.get(&seq).is_none_or(|(holder, _)| *holder != session) {
            return;
        }
        let Some(entry) = state.unleased(seq) else { return };
        state.settle(self, entry);
        state.pump(self, broker, turn, now);
        state.tell(broker);
        if let Some(batch) = batch {
            self.record(&mut state, batch);
        }
        self.load_if_behind(broker, &mut state, turn);
    }

    /// `session` has lost the right to entry `seq` before it was sent: it goes to another member.
    fn give_back(self: &Arc<Self>, broker: &Broker, session: u64, seq: u64, turn: &mut Turn, now: Timestamp) {
        let mut state = self.state.lock();
        if state.leased.get(&seq).is_some_and(|(holder, _)| *holder == session) {
            state.give_back(seq, false, self.is_logged());
            self.pump(broker, &mut state, turn, now);
            drop(state);
            self.flush(broker);
        }
    }

    /// A persistent member comes: what the group holds in memory goes into its log.
    fn become_log(&self, batch: &mut Batch) {
        let mut state = self.state.lock();
        batch.put_group(&stored_group(self, state.sent_until()));
        state.last_commit = batch.lsn().0;
        for entry in state.waiting.iter_mut() {
            append(self.id, entry, batch);
        }
        for (seq, (holder, entry)) in &mut state.leased {
            append(self.id, entry, batch);
            if entry.message.qos == QoS::ExactlyOnce {
                // After a crash it may go to nobody else.
                let open = OpenEntry { seq: *seq, holder: *holder, packet_id: 0, step: Step::Sent };
                batch.put_open(self.id, &open);
            }
        }
        // Entries count what was there before them: without what of it is settled they would all seem to wait after a restart.
        batch.put_log_state(self.id, &log_state(&state.view));
        self.logged.store(true, Ordering::Release);
    }

    /// What became of the commit that entries wait for is known.
    pub(super) fn committed(self: &Arc<Self>, broker: &Broker, turn: &mut Turn, now: Timestamp) {
        self.pump(broker, &mut self.state.lock(), turn, now);
        self.flush(broker);
    }

    /// Whether `session` still holds the lease of `seq`.
    pub fn is_leased_to(&self, seq: u64, session: u64) -> bool {
        self.state.lock().leased.get(&seq).is_some_and(|(holder, _)| *holder == session)
    }

    /// `$share/{name}/{filter}`.
    pub(super) fn name(&self) -> String {
        self.filter.to_string()
    }

    pub(super) fn with_drops<R>(&self, look: impl FnOnce(&mut Drops) -> R) -> R {
        look(&mut self.state.lock().drops)
    }

    /// How many subscriptions it is made of.
    pub(super) fn members(&self) -> usize {
        self.state.lock().members.len()
    }

    #[cfg(test)]
    pub(super) fn has_member(&self, session: u64) -> bool {
        self.state.lock().member(session).is_some()
    }

    fn pump(self: &Arc<Self>, broker: &Broker, state: &mut State, turn: &mut Turn, now: Timestamp) {
        state.pump(self, broker, turn, now);
        state.tell(broker);
        self.load_if_behind(broker, state, turn);
    }

    /// Writes what was settled since the last time.
    fn record(&self, state: &mut State, batch: &mut Batch) {
        if std::mem::take(&mut state.left) {
            batch.put_group(&stored_group(self, state.sent_until()));
        }
        for seq in state.unleased.drain(..) {
            batch.delete_open(self.id, seq);
        }
        for entry in state.unrecorded.drain(..) {
            if entry.message.qos == QoS::ExactlyOnce {
                batch.delete_open(self.id, entry.seq);
            }
            if entry.body > 0 {
                batch.release_body(entry.body);
            }
        }
        if !self.is_logged() || !state.view.take_changed() {
            return;
        }
        state.view.take_trims(TRIM_AT, |from, to| batch.trim(self.id, from, to));
        batch.put_log_state(self.id, &log_state(&state.view));
    }

    /// The same, where no batch was at hand. Not under the group's lock.
    fn flush(&self, broker: &Broker) {
        if self.is_logged() && self.state.lock().is_unrecorded() {
            broker.store.write(|batch| self.record(&mut self.state.lock(), batch));
        }
    }

    /// Reads on in the log, off the runtime's threads, once nothing waits in memory but what may be looked past.
    fn load_if_behind(self: &Arc<Self>, broker: &Broker, state: &mut State, turn: &mut Turn) {
        let wanted = || state.members.iter().any(Member::has_room) || state.lacks_oldest(broker);
        if !state.behind || state.loading || !wanted() {
            return;
        }
        if state.waiting.len() > LOOK_PAST {
            return state.stall(self, turn);
        }
        let (Some(broker), Ok(runtime)) = (broker.this(), tokio::runtime::Handle::try_current()) else { return };
        state.loading = true;
        let (group, commit) = (self.clone(), Lsn(state.last_commit));
        let (from, to, epoch) = (state.read_to + 1, state.tail, state.epoch);
        runtime.spawn(async move {
            poll_fn(|context| {
                broker.store.when_committed(commit, context.waker());
                if broker.store.outcome(commit) == Outcome::Pending { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            let store = broker.store.clone();
            let id = group.id;
            let page = tokio::task::spawn_blocking(move || store.read_log(id, from, PAGE_MESSAGES, PAGE_BYTES)).await;
            match page {
                Ok(page) => group.loaded(&broker, epoch, from, to, page),
                Err(error) => {
                    tracing::error!(group = %group.filter, %error, "reading the log of a shared group failed");
                    let mut state = group.state.lock();
                    state.loading &= state.epoch != epoch;
                }
            }
        });
    }

    /// A page of the log, which ended at `to` when it was asked for.
    fn loaded(self: &Arc<Self>, broker: &Broker, epoch: u64, from: u64, to: u64, page: Result<Vec<LogEntry>, Error>) {
        let mut turn = Turn::default();
        {
            let mut state = self.state.lock();
            if state.epoch != epoch || state.ended {
                return;
            }
            state.loading = false;
            let (page, damaged) = match page {
                Ok(page) => (page, None),
                Err(error) => {
                    tracing::error!(group = %self.filter, %error, "cannot read the log of a shared group");
                    match error.damaged_entries() {
                        Some((_, lost)) => (Vec::new(), Some((*lost.end()).min(to))),
                        None => return,
                    }
                }
            };
            // The group goes on behind an entry that cannot be read.
            state.count_drops(
                self,
                broker,
                &mut turn,
                DropReason::StorageFailed,
                damaged.map_or(0, |last| last.saturating_sub(from) + 1),
            );
            // Only an empty page says that nothing is left.
            let end = damaged.or_else(|| page.last().map(|entry| entry.seq)).unwrap_or(to);
            let mut next = from;
            for entry in page {
                // Entries that are missing were never logged, or are settled and trimmed.
                state.view.settle_up_to(next, entry.seq);
                next = entry.seq + 1;
                state.wait_again(entry);
            }
            state.view.settle_up_to(next, end + 1);
            state.read_to = end;
            state.behind = end < state.tail;
            if broker.limits.queue_full == QueueFull::DropOldest {
                let excess = state.drop_excess(self, broker);
                state.count_drops(self, broker, &mut turn, DropReason::QueueFull, excess);
            }
            self.pump(broker, &mut state, &mut turn, crate::clock::now());
        }
        self.flush(broker);
        broker.finish(&mut turn);
    }
}

impl Broker {
    pub(super) fn join_group(
        &self,
        client: &Client,
        filter: &Filter,
        options: SubscriptionOptions,
        id: u32,
        turn: &mut Turn,
        now: Timestamp,
    ) {
        let group = {
            // Held until the member is in, so that the group does not end meanwhile.
            let mut groups = self.groups.by_filter.lock();
            let group = match groups.get(filter) {
                Some(group) => group.clone(),
                None => {
                    let (id, _) = self.store.write(Batch::new_id);
                    self.add_group(Group::new(id, filter.clone(), false, State::default()), &mut groups)
                }
            };
            if client.session.logged && !group.is_logged() {
                self.store.write(|batch| group.become_log(batch));
                // Routes remember whether a message must be stored.
                self.router.write().touch(&filter.filter);
            }
            let mut state = group.state.lock();
            let ids: Option<Arc<[u32]>> = (id > 0).then(|| Arc::from([id]));
            match state.member(client.session.id) {
                Some(member) => (member.options, member.ids) = (options, ids),
                None => state.members.push(Member {
                    receiver: client.receiver.clone(),
                    key: hash_of(&client.receiver.client_id),
                    options,
                    ids,
                    online: client.receiver.is_online(),
                    leases: 0,
                    window: client.session.terms().map_or(0, |terms| usize::from(terms.send_maximum)).min(LEASES_MAX),
                }),
            }
            state.look_again();
            drop(state);
            group
        };
        group.pump(self, &mut group.state.lock(), turn, now);
        group.flush(self);
    }

    fn add_group(&self, group: Arc<Group>, groups: &mut GroupsByFilter) -> Arc<Group> {
        let options = SubscriptionOptions {
            qos: QoS::ExactlyOnce,
            no_local: false,
            retain_as_published: true,
            retain_handling: crate::mqtt::packet::RetainHandling::Never,
        };
        let target = Target::Group(group.id);
        self.groups.by_id.insert(group.id, group.clone());
        groups.insert(group.filter.clone(), group.clone());
        let subscription = Subscription { target, options, subscription_id: 0 };
        self.router.write().subscribe(&group.filter.filter, subscription);
        group
    }

    /// A group that the store remembers; its members come as their sessions are restored. One that is known keeps its members, and what
    /// it has leased to those that are connected.
    pub(super) fn restore_group(&self, id: u64, filter: Filter, mut view: LogView, tail: u64, bytes: u64) {
        let appended = view.settled_bytes() + bytes;
        let (behind, read_to) = (tail > view.head(), view.head());
        let Some(group) = self.groups.by_id(id) else {
            let mut state = State { behind, read_to, tail, view, appended, ..State::default() };
            state.tell(self);
            self.add_group(Group::new(id, filter, true, state), &mut self.groups.by_filter.lock());
            return;
        };
        let mut state = group.state.lock();
        let mut old = std::mem::take(&mut *state);
        view.sent_until = view.sent_until.max(old.sent_until());
        old.members.iter_mut().for_each(|member| member.leases = 0);
        let stays =
            |session: u64| old.members.iter().any(|one| one.receiver.session == session && !one.receiver.logged);
        old.leased.retain(|_, (holder, _)| stays(*holder));
        // Numbers that were given out and lost are not given out again.
        let tail = tail.max(old.tail);
        *state = State {
            members: old.members,
            leased: old.leased,
            next: old.next,
            last_commit: old.last_commit,
            epoch: old.epoch + 1,
            behind: tail > read_to,
            read_to,
            tail,
            view,
            appended,
            share: old.share,
            drops: old.drops,
            ..State::default()
        };
        for (holder, entry) in std::mem::take(&mut state.leased).into_values() {
            state.leased_to(self, holder, entry);
        }
        state.tell(self);
    }

    /// Groups that should be in the store and are not, since the commit that told of them failed: they live in memory from now on.
    pub(super) fn forget_logs_of_groups(&self, stored: impl Fn(u64) -> bool) {
        for group in self.groups.all().into_iter().filter(|group| group.is_logged() && !stored(group.id)) {
            group.logged.store(false, Ordering::Release);
            let mut state = group.state.lock();
            state.unrecorded.clear();
            state.unleased.clear();
            state.left = false;
            if std::mem::take(&mut state.behind) {
                // What was in the log alone is gone with it, and waits for nobody.
                let (from, tail) = (state.read_to + 1, state.tail);
                state.view.settle_up_to(from, tail + 1);
            }
            drop(state);
            self.router.write().touch(&group.filter.filter);
        }
    }

    /// A QoS 2 lease that the store remembers. Where its holder is no more, nobody else may have the message [MQTT-4.8.2-5].
    pub(super) fn restore_lease(
        &self,
        group: &Group,
        open: &OpenEntry,
        entry: LogEntry,
        holder: Option<&mut Client>,
        turn: &mut Turn,
    ) {
        let mut state = group.state.lock();
        let (seq, retain) = (entry.seq, entry.head.retain);
        let entry = Entry::read(entry);
        if let Some((client, packet_id)) = holder.zip(PacketId::new(open.packet_id)) {
            let source = Source::Lease { group: group.id, seq, again: true, logged: true, kept: false };
            let member = state.member(client.session.id);
            let delivery = (open.step == Step::Sent).then(|| Delivery {
                message: entry.message.clone(),
                qos: QoS::ExactlyOnce,
                retain: retain && member.as_ref().is_some_and(|member| member.options.retain_as_published),
                subscription_ids: member.and_then(|member| member.ids.clone()),
                source,
            });
            client.session.restore_lease(source, packet_id, delivery);
            state.leased_to(self, client.session.id, entry);
        } else if !state.leased.contains_key(&seq) {
            state.count_drops(group, self, turn, DropReason::SessionEnded, 1);
            state.settle(group, entry);
            drop(state);
            group.flush(self);
        }
    }

    /// With `ends` the session is no more; else it completes what it was sent.
    pub(super) fn leave_group(
        &self,
        client: &mut Client,
        filter: &Filter,
        ends: bool,
        turn: &mut Turn,
        now: Timestamp,
    ) {
        let Some(group) = self.groups.by_filter(filter) else { return };
        if !ends {
            self.adopt_leases(client, &group, turn, now);
        }
        let mut groups = self.groups.by_filter.lock();
        let mut state = group.state.lock();
        state.take_back(client.session.id, &leases_of(client, &group), true, group.is_logged());
        state.remove_member(client.session.id);
        if state.members.is_empty() {
            if !std::mem::replace(&mut state.ended, true) {
                groups.remove(filter);
                drop(groups);
                self.end_group(&group, state, turn);
            }
            return;
        }
        drop(groups);
        group.pump(self, &mut state, turn, now);
        drop(state);
        group.flush(self);
    }

    /// What only this session may have, and is under way, is completed by it though it leaves the group: from its own log [MQTT-3.10.4-3].
    fn adopt_leases(&self, client: &mut Client, group: &Arc<Group>, turn: &mut Turn, now: Timestamp) {
        for (seq, hold) in leases_of(client, group) {
            if hold == Hold::Connection {
                continue;
            }
            let Some(entry) = group.state.lock().leased.get(&seq).map(|(_, entry)| entry.clone()) else { continue };
            let id = client.session.id;
            if client.session.logged {
                self.store.write(|batch| {
                    adopt_into_log(client, group.id, &entry, hold, batch);
                    group.settle(self, id, seq, Some(batch), turn, now);
                });
            } else {
                client.session.adopt(group.id, seq, Source::Direct);
                group.settle(self, id, seq, None, turn, now);
                group.flush(self);
            }
        }
    }

    /// The group has no members any more, and nobody finds it by its filter.
    fn end_group(&self, group: &Group, mut state: MutexGuard<'_, State>, turn: &mut Turn) {
        turn.counts.dropped_session_ended += state.undelivered();
        state.waiting.clear();
        state.share.ends(&self.queues);
        self.queues.dropping.forget(group.id);
        drop(state);
        self.router.write().unsubscribe(&group.filter.filter, Target::Group(group.id));
        self.groups.by_id.remove(&group.id);
        if group.is_logged() {
            self.store.write(|batch| {
                let mut state = group.state.lock();
                group.record(&mut state, batch);
                batch.delete_group(group.id);
                batch.discard_log(group.id, &log_state(&state.view), state.tail);
            });
        }
    }

    /// The client's connection came, or went: its groups count on it, or no more.
    pub(super) fn groups_online(&self, client: &Client, window: Option<u16>, turn: &mut Turn, now: Timestamp) {
        for filter in client.subscriptions.keys().filter(|filter| filter.share.is_some()) {
            let Some(group) = self.groups.by_filter(filter) else { continue };
            let mut state = group.state.lock();
            if window.is_none() {
                state.take_back(client.session.id, &leases_of(client, &group), false, group.is_logged());
            }
            let leases = state.leased.values().filter(|(holder, _)| *holder == client.session.id).count();
            if let Some(member) = state.member(client.session.id) {
                member.online = window.is_some();
                member.leases = leases;
                member.window = usize::from(window.unwrap_or_default()).min(LEASES_MAX);
            }
            if client.session.logged && window.is_none() {
                state.member_left();
            }
            state.look_again();
            group.pump(self, &mut state, turn, now);
            drop(state);
            group.flush(self);
        }
    }

    /// The session ends: its groups go on without it. QoS 2 in flight is given up [MQTT-4.8.2-5].
    pub(super) fn groups_abandon(&self, client: &mut Client, turn: &mut Turn, now: Timestamp) {
        let mut held: Vec<_> = client.session.leases().filter(|lease| lease.2 == Hold::Client).collect();
        held.sort_unstable();
        for (group, seq, _) in held {
            let Some(group) = self.groups.by_id(group) else { continue };
            group.state.lock().count_drops(&group, self, turn, DropReason::SessionEnded, 1);
            group.settle(self, client.session.id, seq, None, turn, now);
            group.flush(self);
        }
        let filters: Vec<_> = client.subscriptions.keys().filter(|filter| filter.share.is_some()).cloned().collect();
        for filter in filters {
            self.leave_group(client, &filter, true, turn, now);
        }
    }

    /// A delivery that waits for the client, which has lost the right to it, is given up; one of a group goes to another member.
    pub fn withdraw(&self, client: &mut Client, turn: &mut Turn, source: Source, now: Timestamp) {
        match source {
            Source::Lease { group, seq, .. } => {
                if let Some(group) = self.groups.by_id(group) {
                    group.give_back(self, client.session.id, seq, turn, now);
                }
            }
            _ => self.give_up(client, turn, source, DropReason::AclDenied, now),
        }
    }

    /// A member settled its lease.
    pub(super) fn lease_settled(&self, client: &Client, turn: &mut Turn, group: u64, seq: u64, now: Timestamp) {
        let Some(group) = self.groups.by_id(group) else { return };
        if group.is_logged() {
            turn.push(Op::Settle(group, seq));
        } else {
            group.settle(self, client.session.id, seq, None, turn, now);
        }
    }

    /// Whether a delivery that was put in the client's mailbox is still its own.
    #[must_use]
    pub fn is_current(&self, client: &Client, source: Source) -> bool {
        match source {
            Source::Lease { group, seq, .. } => {
                self.groups.by_id(group).is_some_and(|group| group.is_leased_to(seq, client.session.id))
            }
            _ => true,
        }
    }

    /// The connection is going: what nobody took from its mailbox goes back, or is counted.
    pub(super) fn return_mail(&self, client: &Client, turn: &mut Turn, now: Timestamp) {
        for delivery in client.receiver.offline() {
            if delivery.source == Source::Direct && !is_of_broker(&delivery.message.topic) {
                turn.counts.dropped(DropReason::NotPersistent);
            }
        }
        self.groups_online(client, None, turn, now);
    }

    /// Removes groups that no session restored is a member of.
    pub(super) fn drop_empty_groups(&self, turn: &mut Turn) {
        for group in self.groups.all() {
            let mut groups = self.groups.by_filter.lock();
            let mut state = group.state.lock();
            if state.members.is_empty() && !std::mem::replace(&mut state.ended, true) {
                groups.remove(&group.filter);
                drop(groups);
                self.end_group(&group, state, turn);
            }
        }
    }
}

/// The leases of `group` that are in flight to `client`.
fn leases_of(client: &Client, group: &Group) -> BTreeMap<u64, Hold> {
    client.session.leases().filter(|lease| lease.0 == group.id).map(|lease| (lease.1, lease.2)).collect()
}

fn adopt_into_log(client: &mut Client, group: u64, entry: &Entry, hold: Hold, batch: &mut Batch) {
    let qos = if hold == Hold::Client { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
    let Some(source @ Source::Log { seq, .. }) = client.receiver.adopt(batch, &entry.message, qos) else { return };
    if let Some((packet_id, released)) = client.session.adopt(group, entry.seq, source) {
        let step = if released { Step::Released } else { Step::Sent };
        batch.put_open(client.session.id, &OpenEntry { seq, holder: 0, packet_id: packet_id.get(), step });
    }
}

/// Appends what was held in memory alone.
fn append(log: u64, entry: &mut Entry, batch: &mut Batch) {
    let message = entry.message.clone();
    let body = batch.body(&message, 1);
    let Entry { retain, publisher, log_bytes, .. } = *entry;
    let head = EntryHead { qos: message.qos, retain, subscription_ids: Default::default(), publisher, log_bytes };
    entry.body = batch.append(log, entry.seq, &head, &body).unwrap_or_default();
}

fn stored_group(group: &Group, sent_until: u64) -> StoredGroup {
    StoredGroup {
        log: group.id,
        share: group.filter.share.as_deref().unwrap_or_default().to_owned(),
        filter: group.filter.filter.as_str().to_owned(),
        sent_until,
    }
}

/// How many messages a group with a log holds in memory.
const HELD_MESSAGES: usize = 1024;
const PAGE_MESSAGES: usize = 512;
const PAGE_BYTES: usize = 1 << 20;
/// How many leases a member may have at once.
const LEASES_MAX: usize = 256;
const TRIM_AT: u64 = 256;
