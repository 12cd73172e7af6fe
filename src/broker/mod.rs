//! Joins sessions, the router, storage and authorization: what it means to connect, publish, subscribe and leave.
//!
//! Knows no socket: a connection is an owner of a session and a signal that wakes it.

pub mod config;
mod drops;
mod farewell;
mod group;
mod hand_over;
mod mailbox;
mod overfull;
mod pages;
mod publish;
mod queues;
mod recovery;
mod registry;
mod replay;
mod retained;
mod subscribe;
mod subscriptions;
mod sweep;
mod sys;
#[cfg(test)]
mod tests;
mod throttle;
pub mod time;
mod will;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};

/// Why the log of a session cannot be read.
pub use crate::storage::Error as LogError;
pub use config::Config;
pub use drops::{Dropped, MostDrops};
pub use farewell::Farewell;
pub use group::Group;
pub use mailbox::{Receiver, Signal};
pub use pages::{Held, LogPage, Reading};
pub use publish::{Route, Turn};
pub use recovery::RecoveryError;
pub use registry::{Ended, Owner, Refused, Registry};
pub use replay::{Page, PageIs};
pub use subscriptions::Subscriptions;
pub use sys::is_of_broker;
pub use throttle::Throttle;

use crate::{
    auth::{Auth, Identity},
    metrics::{DropReason, Limit, Metrics, Sample},
    mqtt::{Message, Outbox, PacketId, QoS, ReasonCode, Shown, Timestamp, packet::Connect},
    router::{Generations, Router, Target},
    session::{Delivery, Reply, Session, Settled, Source, Terms},
    storage::{LogEntry, Lsn, OpenEntry, Outcome, Step, Store, StoredSession, UNSTORED},
};
use group::Groups;
use mailbox::Extent;
use pages::Pages;
use publish::Op;
use queues::Queues;
use replay::Replay;
use retained::Retained;
use sweep::Sweep;
use sys::Sys;
use time::TimeWatch;
use will::PendingWill;

/// By session.
type UnpublishedWills = HashMap<u64, (Lsn, Arc<Message>)>;

/// The broker: everything that connections share.
#[derive(Debug)]
pub struct Broker {
    this: Weak<Self>,
    /// What all clients share.
    pub config: Config,
    /// What one client may use.
    pub limits: crate::session::Limits,
    /// The store.
    pub store: Arc<Store>,
    /// Who may do what.
    pub auth: Auth,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Client id to session.
    pub registry: Registry,
    router: RwLock<Router>,
    generations: Arc<Generations>,
    receivers: DashMap<u64, Arc<Receiver>, foldhash::fast::RandomState>,
    groups: Groups,
    retained: Retained,
    sweep: Sweep,
    time_watch: TimeWatch,
    sys: Sys,
    queues: Arc<Queues>,
    pages: Arc<Pages>,
    next_unstored_id: AtomicU64,
    /// By session, the Will that is published by a commit that is under way or has failed, and that commit.
    unpublished_wills: Arc<Mutex<UnpublishedWills>>,
    /// Whether everything is being read from the store anew: nobody is let in meanwhile.
    rebuilding: RwLock<bool>,
    /// Set once the broker stops.
    farewell: OnceLock<Farewell>,
}

/// A session with what the broker keeps of it.
#[derive(Debug)]
pub struct Client {
    /// The protocol state.
    pub session: Session,
    /// Where its messages are put.
    pub receiver: Arc<Receiver>,
    /// What it subscribes to.
    pub subscriptions: Subscriptions,
    /// Those that are still to be sent what is retained, in turn.
    replays: VecDeque<Replay>,
    will: Option<Box<PendingWill>>,
    /// The store has a record of it.
    stored: bool,
    disconnected_at: Option<Timestamp>,
    said: sweep::Said,
}

/// What a CONNECT led to.
#[derive(Debug)]
pub struct Connected {
    /// The session goes on [MQTT-3.2.2-2].
    pub session_present: bool,
    /// The commit that CONNACK waits for, if any.
    pub commit: Option<u64>,
}

impl Broker {
    /// A broker without sessions.
    #[must_use]
    pub fn new(config: Config, limits: crate::session::Limits, store: Arc<Store>, auth: Auth) -> Arc<Self> {
        let router = Router::default();
        let each = queues::Limits {
            messages: limits.max_queued_messages,
            bytes: limits.max_queued_bytes,
            full: limits.queue_full,
        };
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            limits,
            metrics: store.metrics().clone(),
            store,
            auth,
            registry: Registry::default(),
            generations: router.generations(),
            router: RwLock::new(router),
            receivers: DashMap::default(),
            groups: Groups::default(),
            retained: Retained::new(&config),
            sweep: Sweep::default(),
            time_watch: TimeWatch::default(),
            sys: Sys::default(),
            queues: Arc::new(Queues::new(each, config.max_total_queued_bytes)),
            pages: Arc::new(Pages::new(config.max_resuming_bytes)),
            next_unstored_id: AtomicU64::new(UNSTORED),
            unpublished_wills: Arc::default(),
            rebuilding: RwLock::new(false),
            farewell: OnceLock::new(),
            config,
        })
    }

    /// Itself, for what outlives a turn.
    fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// Makes or resumes the session of a CONNECT that was let in (3.1.4). CONNACK must wait for the commit that it names.
    ///
    /// # Errors
    /// [`Refused::StoreFailed`], [`Refused::TooManySessions`]; the session is not disturbed.
    pub fn connect(
        &self,
        owner: &mut Owner,
        connect: &Connect,
        terms: &Terms,
        identity: &Identity,
        signal: &Arc<Signal>,
        now: Timestamp,
    ) -> Result<Connected, Refused> {
        let rebuilding = self.rebuilding.read();
        let claimed_logged = owner.client.as_ref().is_some_and(|client| client.session.logged);
        let needs_store = terms.session_expiry_secs > 0 || connect.will.is_some() || claimed_logged;
        if *rebuilding || needs_store && self.store_failed() {
            return Err(Refused::StoreFailed);
        }
        if owner.client.is_none() && self.has_all_sessions() {
            self.metrics.limited(Limit::Sessions);
            return Err(Refused::TooManySessions);
        }
        let mut turn = Turn::default();
        let expired = owner.client.as_ref().is_some_and(|client| client.has_expired(now));
        turn.counts.sessions_expired += u64::from(expired);
        let discarded = if connect.clean_start || expired { owner.client.take() } else { None };
        let mut durable = discarded.as_ref().is_some_and(|old| old.stored || old.will.is_some());
        if let Some(old) = discarded {
            self.sweep.session_ended(&old);
            self.end_session(old, &mut turn, now);
        }
        let session_present = owner.client.is_some();
        let mut client = match owner.client.take() {
            Some(mut client) => {
                // The client is back in time: its Will is not published [MQTT-3.1.3-9].
                durable |= client.will.take().is_some();
                client
            }
            None => self.new_client(owner.client_id(), connect, terms, identity),
        };
        client.disconnected_at = None;
        client.reconnect_replays();
        client.session.expiry_secs = terms.session_expiry_secs;
        let will = connect.will.as_ref().map(|will| Box::new(PendingWill::new(will, terms.session_expiry_secs)));
        durable |= client.session.logged || will.is_some();
        let commit = durable.then(|| {
            let ((), lsn) = self.store.write(|batch| {
                batch.require_durable();
                if client.session.logged {
                    batch.put_session(&client.record(true, now));
                    client.stored = true;
                }
                match &will {
                    Some(will) => batch.put_will(&will.record(&client, None)),
                    None => batch.delete_will(client.session.id),
                }
            });
            lsn.0
        });
        client.will = will;
        let log = client.session.log();
        let (head, beyond) = (log.head(), log.settled_beyond());
        client.receiver.online(signal.clone(), head, beyond);
        self.groups_online(&client, Some(terms.send_maximum), &mut turn, now);
        self.metrics.clients_connected_maximum.raise(self.metrics.clients_connected.increment());
        owner.client = Some(client);
        self.finish(&mut turn);
        Ok(Connected { session_present, commit })
    }

    /// CONNACK stands in `outbox`: what was in flight follows.
    pub fn resume(&self, client: &mut Client, terms: Terms, outbox: &mut Outbox, now: Timestamp) {
        let mut turn = Turn::default();
        for source in client.session.connected(terms, now, outbox) {
            self.give_up(client, &mut turn, source, DropReason::TooLarge, now);
        }
        self.dispatch(client, &mut turn, now);
        self.finish(&mut turn);
    }

    fn new_client(&self, client_id: &Arc<str>, connect: &Connect, terms: &Terms, identity: &Identity) -> Box<Client> {
        let id = if terms.session_expiry_secs > 0 || connect.will.is_some() {
            self.store.write(|batch| batch.new_id()).0
        } else {
            self.next_unstored_id.fetch_add(1, Ordering::Relaxed)
        };
        let session = Session::new(id, client_id.clone(), terms.session_expiry_secs);
        let receiver = Arc::new(Receiver::new(
            id,
            client_id.clone(),
            identity.clone(),
            session.logged,
            self.queues.clone(),
            Extent::default(),
        ));
        self.receivers.insert(id, receiver.clone());
        self.metrics.sessions.increment();
        Box::new(Client {
            session,
            receiver,
            subscriptions: Subscriptions::default(),
            replays: VecDeque::new(),
            will: None,
            stored: false,
            disconnected_at: None,
            said: sweep::Said::default(),
        })
    }

    /// Whether there are as many sessions as there may be. Those that are made at this moment may go beyond by as many as there are threads.
    fn has_all_sessions(&self) -> bool {
        self.config.max_sessions > 0 && self.metrics.sessions.get() >= self.config.max_sessions
    }

    /// What may wait in the queue of a session, or of a shared group.
    fn queue_limits(&self) -> queues::Limits {
        self.queues.limits
    }

    /// PUBREL of the client: its packet id is forgotten, and PUBCOMP follows once that is durable [MQTT-4.3.3-11].
    pub fn release(&self, client: &mut Client, turn: &mut Turn, packet_id: PacketId) {
        let logged = client.session.logged;
        if logged {
            turn.push(Op::Forget(packet_id));
            turn.require_durable();
        }
        client.session.acknowledge(pubcomp(packet_id), logged);
    }

    /// A QoS 2 PUBLISH that is here already: PUBREC again, once all before it is durable.
    pub fn duplicate(&self, client: &mut Client, turn: &mut Turn, packet_id: PacketId) {
        let logged = client.session.logged;
        if logged {
            turn.require_durable();
        }
        client.session.acknowledge(pubrec(packet_id), logged);
    }

    /// The client acknowledged a delivery.
    pub fn settle(&self, client: &mut Client, turn: &mut Turn, settled: Settled, now: Timestamp) {
        let id = client.session.id;
        if settled.refused {
            turn.counts.dropped(DropReason::Refused);
            client.receiver.count_drop(DropReason::Refused);
        }
        if settled.complete {
            match settled.source {
                Source::Direct => {}
                Source::Log { seq, body, size } => self.settle_entry(client, turn, seq, body, size),
                Source::Lease { group, seq, .. } => self.lease_settled(client, turn, group, seq, now),
            }
            return;
        }
        let recorded = match settled.source {
            Source::Log { seq, .. } => {
                let packet_id = client.session.log().open(seq).map_or(0, |open| open.packet_id);
                client.session.log().set_open(seq, crate::session::Open { packet_id, released: true });
                Some((id, OpenEntry { seq, holder: 0, packet_id, step: Step::Released }))
            }
            // A group that has ended, or lives in memory, records nothing.
            Source::Lease { logged: false, .. } => None,
            Source::Lease { group, .. } if self.groups.by_id(group).is_none() => None,
            Source::Lease { group, seq, .. } => {
                let packet_id = settled.packet_id.get();
                Some((group, OpenEntry { seq, holder: id, packet_id, step: Step::Released }))
            }
            Source::Direct => None,
        };
        // PUBREL waits until its PUBREC is recorded: else a crash would send the PUBLISH again to a client that completed it.
        let durable = recorded.is_some() && client.session.logged;
        if let Some((log, open)) = recorded.filter(|_| durable) {
            turn.push(Op::Open(log, open));
            turn.require_durable();
        }
        client.session.acknowledge(pubrel(settled.packet_id), durable);
    }

    /// Entry `seq` of the client's own log is done with.
    pub fn settle_entry(&self, client: &mut Client, turn: &mut Turn, seq: u64, body: u64, size: u32) {
        if client.session.log().settle(seq, size) {
            turn.push(Op::Close(client.session.id, seq));
        }
        if body > 0 {
            turn.push(Op::Release(body));
        } else {
            turn.freed += u64::from(size);
        }
    }

    /// A delivery was sent. One of QoS 0 that the log holds is done with.
    pub fn sent(&self, client: &mut Client, turn: &mut Turn, delivery: &Delivery) {
        if delivery.qos == QoS::AtMostOnce
            && let Source::Log { seq, body, size } = delivery.source
        {
            self.settle_entry(client, turn, seq, body, size);
        }
    }

    /// A delivery could not be sent, and never will be: it is settled, and counted.
    pub fn give_up(&self, client: &mut Client, turn: &mut Turn, source: Source, reason: DropReason, now: Timestamp) {
        turn.counts.dropped(reason);
        client.receiver.count_drop(reason);
        match source {
            Source::Direct => {}
            Source::Log { seq, body, size } => self.settle_entry(client, turn, seq, body, size),
            Source::Lease { group, seq, .. } => self.lease_settled(client, turn, group, seq, now),
        }
    }

    /// The packet id of a delivery must be recorded before it leaves.
    pub fn record_packet_id(&self, client: &mut Client, turn: &mut Turn, source: Source, packet_id: PacketId) {
        let id = client.session.id;
        let (log, holder, seq) = match source {
            Source::Log { seq, .. } => {
                let open = crate::session::Open { packet_id: packet_id.get(), released: false };
                client.session.log().set_open(seq, open);
                (id, 0, seq)
            }
            Source::Lease { group, seq, .. } => (group, id, seq),
            Source::Direct => return,
        };
        turn.push(Op::Open(log, OpenEntry { seq, holder, packet_id: packet_id.get(), step: Step::Sent }));
        turn.require_durable();
    }

    /// DISCONNECT may change the Session Expiry Interval (3.14.2.2.2).
    pub fn set_session_expiry(&self, client: &mut Client, secs: u32) {
        client.session.expiry_secs = secs.min(self.limits.max_session_expiry_secs);
        if let Some(will) = &mut client.will {
            will.session_expiry_secs = client.session.expiry_secs;
        }
    }

    /// A connection leaves its session. Gives back the session where it goes on.
    fn leave(&self, mut client: Box<Client>, ended: Ended) -> Option<Box<Client>> {
        let now = crate::clock::now();
        let mut turn = Turn::default();
        if client.disconnected_at.is_some() {
            // Claimed by a connection that ended before it had a part in the session.
            return Some(client);
        }
        self.metrics.clients_connected.decrement();
        self.return_mail(&client, &mut turn, now);
        client.session.disconnected();
        client.disconnected_at = Some(now);
        if ended == Ended::StoreFailed && client.session.logged {
            // What is in memory may be ahead of the store: it is read anew before the next connection.
            self.finish(&mut turn);
            return Some(client);
        }
        match ended {
            Ended::Normally | Ended::Unanswered => drop(self.discard_will(&mut client)),
            Ended::Abnormally | Ended::StoreFailed => self.will_after_disconnect(&mut client, &mut turn, now, now),
            Ended::Stopping => {}
        }
        if client.session.expiry_secs == 0 && ended != Ended::Stopping {
            self.sweep.session_ended(&client);
            self.end_session(client, &mut turn, now);
            self.finish(&mut turn);
            return None;
        }
        if client.session.logged {
            let record = client.record(false, now);
            self.store.write(|batch| batch.put_session(&record));
            self.sweep.session_expires(&mut client);
        }
        self.dispatch(&mut client, &mut turn, now);
        self.finish(&mut turn);
        client.session.logged.then_some(client)
    }

    /// The session ends: nothing of it remains but its Will, which is published now [MQTT-3.1.2-10]. What the sweep has of it is gone.
    fn end_session(&self, mut client: Box<Client>, turn: &mut Turn, now: Timestamp) {
        self.return_mail(&client, turn, now);
        self.publish_will(&mut client, turn, now);
        self.dispatch(&mut client, turn, now);
        let tail = self.forget(&client);
        self.groups_abandon(&mut client, turn, now);
        if client.stored {
            let state = publish::log_state(client.session.log());
            let settled: u64 = state.settled.iter().map(|(from, to)| to - from + 1).sum();
            turn.counts.dropped_session_ended += tail.saturating_sub(state.head + settled);
            self.store.write(|batch| {
                batch.delete_session(client.session.id);
                batch.discard_log(client.session.id, &state, tail);
            });
        }
    }

    /// Takes the session out of memory: nobody finds it any more. The end of its log.
    fn forget(&self, client: &Client) -> u64 {
        let tail = client.receiver.end();
        {
            let mut router = self.router.write();
            for filter in client.subscriptions.keys().filter(|filter| filter.share.is_none()) {
                router.unsubscribe(&filter.filter, Target::Session(client.session.id));
            }
        }
        if self.receivers.remove_if(&client.session.id, |_, present| Arc::ptr_eq(present, &client.receiver)).is_some() {
            self.metrics.sessions.decrement();
        }
        tail
    }

    /// Wakes whom the turn touched, and counts.
    pub fn finish(&self, turn: &mut Turn) {
        turn.wake();
        self.drop_oldest_soon(turn);
        self.metrics.add(&mut turn.counts);
    }

    /// What became of commit `lsn`, in the session's words.
    #[must_use]
    pub fn commit(&self, lsn: u64) -> crate::session::Commit {
        match self.store.outcome(Lsn(lsn)) {
            Outcome::Pending => crate::session::Commit::Pending,
            Outcome::Durable => crate::session::Commit::Done,
            Outcome::Failed => crate::session::Commit::Failed,
        }
    }

    /// The same; `waker` is woken once the outcome of a pending one is known.
    pub fn when_committed(&self, lsn: u64, waker: &Waker) -> crate::session::Commit {
        if self.commit(lsn) == crate::session::Commit::Pending {
            self.store.when_committed(Lsn(lsn), waker);
        }
        self.commit(lsn)
    }

    /// Whether what is stored need not wait; else `waker` is woken once it may come.
    pub fn has_room(&self, waker: &Waker) -> bool {
        if self.store.is_full() {
            self.store.when_room(waker);
        }
        !self.store.is_full()
    }

    /// Whether the store has failed, and does not work again yet.
    #[must_use]
    pub fn store_failed(&self) -> bool {
        self.store.failure().is_some()
    }

    /// A page of the log of session `id`, from entry `from` on, of about `most_bytes`. Entries that are damaged are passed over: they
    /// are lost, and the rest of the log is not. Blocks on the disk.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn read_log(&self, id: u64, mut from: u64, most_bytes: usize) -> Result<Vec<Delivery>, LogError> {
        loop {
            let error = match self.store.read_log(id, from, PAGE_MESSAGES, most_bytes) {
                Ok(page) => return Ok(page.into_iter().map(delivery_of).collect()),
                Err(error) => error,
            };
            let lost = error.damaged_entries().filter(|(log, lost)| *log == id && *lost.end() >= from);
            let Some((_, lost)) = lost else { return Err(error) };
            let receiver = self.receivers.get(&id).map(|receiver| receiver.clone());
            let client = receiver.as_ref().map_or("", |receiver| &*receiver.client_id);
            // Where nothing can be read up to its end, the log ends where its receiver knows it to.
            let to = receiver.as_ref().map_or(from, |receiver| receiver.tail()).min(*lost.end());
            let messages = to.saturating_sub(from) + 1;
            let error = crate::storage::in_full(&error);
            tracing::error!(client = %Shown(client), from, to, error, "messages cannot be read and are lost");
            let mut turn = Turn::default();
            turn.counts.drop_all(DropReason::StorageFailed, messages);
            self.finish(&mut turn);
            from = lost.end().saturating_add(1);
        }
    }

    /// Whether a session that the store keeps is connected.
    #[must_use]
    pub fn logged_online(&self) -> bool {
        self.receivers.iter().any(|receiver| receiver.logged && receiver.is_online())
    }

    /// How many subscriptions the router has: a shared group counts as one.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.router.read().len()
    }

    /// Every metric with its value now.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        let groups = self.groups.all();
        let shared: usize = groups.iter().map(|group| group.members()).sum();
        // Each group has one subscription of its own.
        self.metrics.subscriptions.set(self.subscriptions().saturating_sub(groups.len()) as u64);
        self.metrics.shared_subscriptions.set(shared as u64);
        self.metrics.retained_messages.set(self.retained() as u64);
        self.metrics.retained_bytes.set(self.retained.bytes());
        self.metrics.queued_bytes.set(self.queues.bytes());
        self.metrics.snapshot()
    }

    /// How many messages are retained.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.retained.len()
    }
}

impl Client {
    fn record(&mut self, connected: bool, now: Timestamp) -> StoredSession {
        StoredSession {
            id: self.session.id,
            client_id: self.session.client_id.to_string(),
            username: self.receiver.identity.username().map(str::to_owned),
            expiry_secs: self.session.expiry_secs,
            connected,
            disconnected_at: now,
            sent_until: self.session.log().sent_until,
        }
    }
}

fn delivery_of(entry: LogEntry) -> Delivery {
    let ids = entry.head.subscription_ids;
    let size = counted_size(entry.head.log_bytes, &entry.message);
    Delivery {
        message: entry.message,
        qos: entry.head.qos,
        retain: entry.head.retain,
        subscription_ids: (!ids.is_empty()).then(|| Arc::from(ids.as_slice())),
        source: Source::Log { seq: entry.seq, body: entry.body.unwrap_or_default(), size },
    }
}

/// What a log counts for an entry. Those of the first releases, which have no `log_bytes`, were never counted.
fn counted_size(log_bytes: u64, message: &crate::mqtt::Message) -> u32 {
    if log_bytes > 0 { u32::try_from(message.size()).unwrap_or(u32::MAX) } else { 0 }
}

fn pubrec(packet_id: PacketId) -> Reply {
    Reply::Ack(crate::mqtt::packet::AckKind::PubRec, packet_id, ReasonCode::Success)
}

fn pubrel(packet_id: PacketId) -> Reply {
    Reply::Ack(crate::mqtt::packet::AckKind::PubRel, packet_id, ReasonCode::Success)
}

fn pubcomp(packet_id: PacketId) -> Reply {
    Reply::Ack(crate::mqtt::packet::AckKind::PubComp, packet_id, ReasonCode::Success)
}

const PAGE_MESSAGES: usize = 256;
