//! From the store to memory: at the start, and after a commit failed and memory ran ahead of the store.
//!
//! Must not know how records are encoded.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use thiserror::Error;

use crate::{
    auth::Identity,
    mqtt::{Filter, PacketId, Timestamp, topic::InvalidTopic},
    session::{LogView, Open, Session},
    storage::{
        self, Batch, LogEntry, Lsn, OpenEntry, Orphan, Outcome, Recovered, RecoveredLog, Step, StoredSession,
        StoredSubscription, StoredWill,
    },
};

use super::{Broker, Client, Receiver, Subscriptions, Turn, mailbox::Extent, retained::All, will::PendingWill};

/// Why the store's content cannot be taken over.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] storage::Error),
    /// Connections of stored sessions are still there, or between two connections.
    #[error("sessions that may be ahead of the store are not back yet")]
    Busy,
    /// A record holds what no record may.
    #[error("the store holds the topic filter {filter:?} of client {client:?}, which is not valid")]
    Filter {
        /// Whose.
        client: String,
        /// Which.
        filter: String,
        /// What is wrong with it.
        source: InvalidTopic,
    },
}

/// What the store holds.
#[derive(Default)]
struct Found {
    sessions: Vec<FoundSession>,
    groups: Vec<(storage::StoredGroup, Filter, RecoveredLog)>,
    /// QoS 2 leases, each with its group and entry.
    leases: Vec<(u64, OpenEntry, LogEntry)>,
    wills: Vec<StoredWill>,
    retained: All,
    orphans: Vec<Orphan>,
}

impl Found {
    /// Who was connected when the broker died may have been sent all that was logged, and is offline since now. It is written down, so that
    /// neither grows with the next start.
    fn nobody_is_connected(&mut self, batch: &mut Batch, now: Timestamp) {
        let mut served = HashSet::new();
        for FoundSession { stored, subscriptions, log, .. } in &mut self.sessions {
            if !std::mem::take(&mut stored.connected) {
                continue;
            }
            (stored.sent_until, stored.disconnected_at) = (log.tail, now);
            batch.put_session(stored);
            served.extend(subscriptions.iter().map(|(filter, _)| filter).filter(|filter| filter.share.is_some()));
        }
        for (group, filter, log) in &mut self.groups {
            let was_served = served.contains(filter);
            if was_served || group.sent_until > log.tail {
                group.sent_until = log.tail;
                batch.put_group(group);
            }
        }
    }
}

struct FoundSession {
    stored: StoredSession,
    subscriptions: Vec<(Filter, StoredSubscription)>,
    received: Vec<PacketId>,
    log: RecoveredLog,
}

/// Sessions by their ids.
type Clients = BTreeMap<u64, Box<Client>>;

impl Broker {
    /// Takes over all that the store holds. Nobody is connected yet.
    ///
    /// # Errors
    /// [`RecoveryError`]
    pub fn recover(self: &Arc<Self>, now: Timestamp) -> Result<(), RecoveryError> {
        let found = self.find()?;
        self.take_over(found, Clients::new(), now);
        Ok(())
    }

    fn find(&self) -> Result<Found, RecoveryError> {
        let mut found = Found { retained: self.retained.watch(), ..Found::default() };
        let mut fault = None;
        let orphans = self.store.recover(&mut |record| match record {
            Recovered::Session { session, subscriptions, received, log } => {
                let parsed = subscriptions.into_iter().map(|one| Ok((parse(&session.client_id, &one.filter)?, one)));
                match parsed.collect() {
                    Ok(subscriptions) => {
                        found.sessions.push(FoundSession { stored: session, subscriptions, received, log });
                    }
                    Err(error) => fault = Some(error),
                }
            }
            Recovered::Group { group, log } => {
                match parse(&group.share, &format!("$share/{}/{}", group.share, group.filter)) {
                    Ok(filter) => found.groups.push((group, filter, log)),
                    Err(error) => fault = Some(error),
                }
            }
            Recovered::Retained(message, author) => found.retained.insert_stored(&message, author.as_ref()),
            Recovered::Will(will) => found.wills.push(will),
        })?;
        fault.map_or(Ok(()), Err)?;
        found.orphans = orphans;
        for (group, _, log) in &found.groups {
            for open in &log.open {
                let page = self.store.read_log(group.log, open.seq, 1, 0)?;
                let entry = page.into_iter().find(|entry| entry.seq == open.seq);
                found.leases.extend(entry.map(|entry| (group.log, *open, entry)));
            }
        }
        Ok(found)
    }

    /// Makes memory what the store is. `old`: the sessions that memory had; who publishes to them meanwhile finds their receivers.
    fn take_over(&self, mut found: Found, mut old: Clients, now: Timestamp) {
        let mut turn = Turn::default();
        self.store.write(|batch| found.orphans.iter().for_each(|orphan| orphan.discard(batch)));
        self.retained
            .replace(std::mem::take(&mut found.retained), |lsn| self.store.outcome(lsn) == storage::Outcome::Failed);
        self.store.write(|batch| found.nobody_is_connected(batch, now));
        for (group, filter, log) in &found.groups {
            self.restore_group(group.log, filter.clone(), restore_view(log, group.sent_until), log.tail, log.bytes);
        }
        let mut clients = Clients::new();
        for session in std::mem::take(&mut found.sessions) {
            let old = old.remove(&session.stored.id);
            clients.insert(session.stored.id, self.restore_client(session, old, &mut turn, now));
        }
        while let Some((_, mut client)) = old.pop_first() {
            self.forget(&client);
            self.groups_abandon(&mut client, &mut turn, now);
        }
        let stored = |id| found.groups.iter().any(|(group, ..)| group.log == id);
        self.forget_logs_of_groups(stored);
        for (group, open, entry) in found.leases {
            if let Some(group) = self.groups.by_id(group) {
                let holder = clients.get_mut(&open.holder).map(Box::as_mut);
                self.restore_lease(&group, &open, entry, holder, &mut turn);
            }
        }
        self.drop_empty_groups(&mut turn);
        self.restore_wills(found.wills, &mut clients, &mut turn, now);
        for mut client in clients.into_values() {
            self.sweep.session_expires(&mut client);
            self.registry.park(client);
        }
        self.finish(&mut turn);
    }

    fn restore_client(
        &self,
        found: FoundSession,
        mut old: Option<Box<Client>>,
        turn: &mut Turn,
        now: Timestamp,
    ) -> Box<Client> {
        let FoundSession { stored, subscriptions, received, log } = found;
        let client_id: Arc<str> = stored.client_id.as_str().into();
        let view = restore_view(&log, stored.sent_until);
        let settled = view.settled_bytes();
        let extent = Extent {
            tail: log.tail,
            head: view.head(),
            beyond: view.settled_beyond(),
            appended: settled + log.bytes,
            settled,
        };
        let session = Session::recovered(stored.id, client_id.clone(), stored.expiry_secs, received, view);
        let receiver = match &old {
            Some(old) => {
                old.receiver.restored(extent);
                old.receiver.clone()
            }
            None => {
                let identity = Identity::from(stored.username.as_deref().map(Arc::from));
                let queues = self.queues.clone();
                let receiver = Arc::new(Receiver::new(stored.id, client_id, identity, true, queues, extent));
                self.receivers.insert(stored.id, receiver.clone());
                self.metrics.sessions.increment();
                receiver
            }
        };
        // When its client left, and whether its Will is still due, memory knows better.
        let disconnected_at = old.as_ref().and_then(|old| old.disconnected_at).or(Some(stored.disconnected_at));
        let will = old.as_mut().and_then(|old| old.will.take());
        let said = old.as_ref().map(|old| old.said).unwrap_or_default();
        let mut client = Box::new(Client {
            session,
            receiver,
            subscriptions: Subscriptions::default(),
            replays: VecDeque::new(),
            will,
            stored: true,
            disconnected_at,
            said,
        });
        // As they were granted, also where a new one would be granted less [MQTT-3.8.4-8].
        for (filter, stored) in subscriptions {
            let StoredSubscription { options, subscription_id, replay, .. } = stored;
            if let Some(from) = replay {
                client.resume_replay(filter.clone(), from);
            }
            let id = subscription_id.unwrap_or_default();
            self.add_route(&client, &filter, options, id, turn, now);
            client.subscriptions.insert(filter, (options, id));
        }
        for filter in old.iter().flat_map(|old| old.subscriptions.keys()) {
            if !client.subscriptions.contains_key(filter) {
                self.remove_route(&mut client, filter, turn, now);
            }
        }
        client
    }

    /// The client of each stored Will is gone with the broker that died: its delay runs from now, or ran from its disconnection.
    fn restore_wills(&self, wills: Vec<StoredWill>, clients: &mut Clients, turn: &mut Turn, now: Timestamp) {
        for client in clients.values_mut() {
            let since = client.disconnected_at.unwrap_or(now);
            self.will_after_disconnect(client, turn, since, now);
        }
        for stored in wills {
            let due_at = stored.due_at;
            match clients.get_mut(&stored.session) {
                Some(client) => {
                    client.will = Some(Box::new(PendingWill::restore(stored)));
                    match due_at {
                        Some(at) if at > now => self.sweep.will_due(client, at),
                        Some(_) => self.publish_will(client, turn, now),
                        None => self.will_after_disconnect(client, turn, now, now),
                    }
                }
                None => {
                    let mut client = self.ghost(&stored);
                    client.will = Some(Box::new(PendingWill::restore(stored)));
                    self.publish_will(&mut client, turn, now);
                }
            }
        }
    }

    /// The session of a Will that ended with the broker: it has nothing else.
    fn ghost(&self, stored: &StoredWill) -> Client {
        let client_id: Arc<str> = stored.client_id.as_str().into();
        let identity = Identity::from(stored.username.as_deref().map(Arc::from));
        let queues = self.queues.clone();
        let receiver = Receiver::new(stored.session, client_id.clone(), identity, false, queues, Extent::default());
        Client {
            session: Session::new(stored.session, client_id, 0),
            receiver: Arc::new(receiver),
            subscriptions: Default::default(),
            replays: Default::default(),
            will: None,
            stored: false,
            disconnected_at: None,
            said: Default::default(),
        }
    }

    /// After a commit failed, memory is ahead of the store, never behind: a stored session or Will that it does not know has ended, and
    /// the commit that says so failed. The Wills that it knows are those that are due, and those whose publication failed.
    fn discard_ended(&self, found: &mut Found, old: &Clients, now: Timestamp) {
        let ended: Vec<_> = found.sessions.extract_if(.., |session| !old.contains_key(&session.stored.id)).collect();
        let has_failed = |_: &u64, (lsn, _): &mut (Lsn, _)| self.store.outcome(*lsn) == Outcome::Failed;
        let unpublished: HashMap<_, _> = self.unpublished_wills.lock().extract_if(has_failed).collect();
        // A later Will of the same session is one that CONNACK did not accept.
        let is_unpublished =
            |will: &StoredWill| unpublished.get(&will.session).is_some_and(|(_, message)| **message == will.message);
        let (again, mut wills): (Vec<_>, Vec<_>) =
            std::mem::take(&mut found.wills).into_iter().partition(is_unpublished);
        found.wills = again.into_iter().map(|will| StoredWill { due_at: Some(now), ..will }).collect();
        wills.retain(|will| match old.get(&will.session) {
            Some(client) => client.will.is_none(),
            // Else its client is connected.
            None => !self.receivers.contains_key(&will.session),
        });
        self.store.write(|batch| {
            for FoundSession { stored, log, .. } in &ended {
                batch.delete_session(stored.id);
                batch.discard_log(stored.id, &log.state, log.tail);
            }
            wills.iter().for_each(|will| batch.delete_will(will.session));
        });
    }

    /// Whether the registry holds every session that the store keeps. It does not while one is connected, or goes from one connection to
    /// the next.
    fn all_parked(&self) -> bool {
        let logged = self.receivers.iter().filter(|receiver| receiver.logged);
        let logged: Vec<_> = logged.map(|receiver| receiver.clone()).collect();
        logged.iter().all(|receiver| {
            let is_parked = |client: &mut Client| client.session.id == receiver.session;
            self.registry.with_parked(&receiver.client_id, is_parked) == Some(true)
        })
    }

    /// After a commit failed: everything that the store should hold is read from it anew. Connections of stored sessions must be gone.
    ///
    /// # Errors
    /// [`RecoveryError`]: the store still does not work, or such a connection is not gone. To be tried again; until then nothing is
    /// forgotten, so that what is published to stored sessions fails and is not lost.
    pub fn rebuild(self: &Arc<Self>, now: Timestamp) -> Result<(), RecoveryError> {
        let rebuilding = Rebuilding::begin(self).filter(|_| self.all_parked()).ok_or(RecoveryError::Busy)?;
        let mut found = self.store.reopen(|| self.find())?;
        let old = self.registry.evict_all().into_iter().map(|client| (client.session.id, client)).collect();
        self.discard_ended(&mut found, &old, now);
        self.take_over(found, old, now);
        drop(rebuilding);
        Ok(())
    }
}

/// While it lives, everything is read from the store anew: nobody is let in, nothing expires.
struct Rebuilding<'a>(&'a Broker);

impl<'a> Rebuilding<'a> {
    /// None where another one lives.
    fn begin(broker: &'a Broker) -> Option<Self> {
        let another = std::mem::replace(&mut *broker.rebuilding.write(), true);
        (!another).then_some(Self(broker))
    }
}

impl Drop for Rebuilding<'_> {
    fn drop(&mut self) {
        *self.0.rebuilding.write() = false;
    }
}

fn restore_view(log: &RecoveredLog, sent_until: u64) -> LogView {
    let open = log.open.iter().filter(|open| open.holder == 0);
    let open = open.map(|open| (open.seq, Open { packet_id: open.packet_id, released: open.step == Step::Released }));
    let state = &log.state;
    let mut view = LogView::restore(state.head, state.settled.iter().copied(), state.trimmed, open, sent_until);
    view.set_settled_bytes(state.settled_bytes);
    view
}

fn parse(client: &str, filter: &str) -> Result<Filter, RecoveryError> {
    Filter::parse(filter).map_err(|source| RecoveryError::Filter {
        client: client.into(),
        filter: filter.into(),
        source,
    })
}
