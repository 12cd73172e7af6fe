//! The way of a PUBLISH, top to bottom: verdict and route, then hand-over, once for all that one turn of a connection published.
//!
//! What must survive goes into one write of the store per turn. Sequence number, batch and mailbox are one step under the log's lock,
//! and the order of the batch is the order of every log. Must not know a packet's bytes.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    auth::{Access, Identity},
    metrics::{Counts, DropReason},
    mqtt::{Message, PacketId, QoS, ReasonCode, Shown, Timestamp, TopicName, packet::AckKind, packet::Publish},
    router::{Match, Target},
    session::{Delivery, Reply, Violation, limits::QueueFull},
    storage::{Batch, Body, Level, OpenEntry},
};

use super::{
    Broker, Client, Group, Receiver, Signal, Throttle,
    group::{Given, hash_of},
    hand_over::HandOver,
    mailbox::{Extent, Put, delivery},
    retained::Retain,
};

/// What one turn of a connection has gathered, to be handed over at its end.
#[derive(Debug, Default)]
pub struct Turn {
    ops: Vec<Op>,
    /// Something in `ops` goes to the store.
    stored: bool,
    /// A reply waits for what is in `ops`, and it is to be as durable as the store.
    awaited: bool,
    /// A reply waits for a message in `ops`: for this level of its topic, or a higher one's.
    level: Option<Level>,
    /// Whom to wake at the end of the turn.
    touched: Vec<Arc<Signal>>,
    /// What was counted.
    pub counts: Counts,
    routes: Routes,
    /// Bytes of log entries that are settled.
    pub(super) freed: u64,
    /// Sessions that are to drop their oldest messages.
    pub(super) overfull: Vec<Arc<Receiver>>,
    /// What it publishes may be missed: how often a full queue did not take it. None: nothing may.
    pub(super) offered: Option<u64>,
    /// Set once the commit has handed over this client's last QoS 2 message: what follows waits behind it.
    held: Option<Arc<AtomicBool>>,
}

/// One effect on what others see, or on the store.
#[derive(Debug)]
pub(super) enum Op {
    /// A message for all that `route` names. With `record` its packet id is remembered with it.
    Publish { message: Arc<Message>, route: Arc<Route>, answer: Option<Answer>, record: bool, retain: Retain },
    /// PUBREL came: forget the QoS 2 packet id.
    Forget(PacketId),
    /// Record the step or packet id of an entry in flight.
    Open(u64, OpenEntry),
    /// The entry is settled; something was recorded of it.
    Close(u64, u64),
    /// The receiver is done with this shared body.
    Release(u64),
    /// The Will of this session is published, or refused. `again`: where that cannot be stored, it is to be published again.
    WillDone { session: u64, again: Option<Arc<Message>> },
    /// A member of the group has settled this entry.
    Settle(Arc<Group>, u64),
}

/// What answers a PUBLISH.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    packet_id: PacketId,
    /// It is that reply of the session, see [`Session::queued`](crate::session::Session::queued).
    queued: u64,
}

/// Everybody who gets the messages of one publisher on one topic.
#[derive(Debug)]
pub struct Route {
    topic: TopicName,
    part: usize,
    generation: u64,
    rules: u64,
    /// The line of the ACL file that denies the publisher; 0 where no rule allows it.
    denied: Option<u32>,
    pub(super) hops: Vec<Hop>,
    /// Stands for the publisher's client id; of use to groups alone.
    pub(super) publisher: u64,
    /// A message above QoS 0 goes to a log.
    logged: bool,
    /// So does one of QoS 0.
    keeps_all: bool,
    /// What the acknowledgement of a message waits for, where it waits for the store.
    level: Level,
    /// The same of one of QoS 2.
    level_exactly_once: Level,
    /// Subscribers that the ACL keeps this topic from.
    withheld: u64,
}

/// One of them, and how it gets them.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) to: To,
    qos: QoS,
    retain_as_published: bool,
    ids: Option<Arc<[u32]>>,
}

#[derive(Debug)]
pub(super) enum To {
    Receiver(Arc<Receiver>),
    Group(Arc<Group>),
}

#[derive(Debug, Default)]
struct Routes {
    last: Option<Arc<Route>>,
    by_topic: HashMap<Box<str>, Arc<Route>, foldhash::fast::RandomState>,
    /// What `by_topic` takes, in bytes, roughly.
    bytes: usize,
}

impl Turn {
    /// Notes whom to wake at the end of the turn.
    pub(super) fn touch(&mut self, signal: Option<Arc<Signal>>) {
        self.touched.extend(signal);
    }

    /// Puts a delivery that no log holds into the mailbox of its receiver, and counts what is dropped for it. Why it was dropped, if it was.
    pub(super) fn put(&mut self, receiver: &Receiver, delivery: Delivery) -> Option<DropReason> {
        if let Some(missed) = &mut self.offered {
            match receiver.offer(delivery) {
                Put::Queued(signal) => self.touched.extend(signal),
                // Who is away misses nothing: it subscribes again, or waits for the next change.
                Put::Dropped(DropReason::QueueFull | DropReason::AllQueuesFull) => *missed += 1,
                Put::Dropped(_) => {}
            }
            return None;
        }
        let counts = &mut self.counts;
        match receiver.put(delivery, |reason| counts.dropped(reason)) {
            Put::Queued(signal) => {
                self.touched.extend(signal);
                None
            }
            Put::Dropped(reason) => {
                self.counts.dropped(reason);
                Some(reason)
            }
        }
    }

    pub(super) fn push(&mut self, op: Op) {
        self.stored = true;
        self.ops.push(op);
    }

    /// A reply waits for what was gathered.
    pub(super) fn require_durable(&mut self) {
        self.stored = true;
        self.awaited = true;
    }

    /// Wakes everybody who was given something. To be called however the turn ended.
    pub fn wake(&mut self) {
        for signal in self.touched.drain(..) {
            signal.raise(Signal::MAIL);
        }
    }

    /// Gives back the memory that an idle connection does not need.
    pub fn release(&mut self) {
        self.ops.shrink_to(0);
        self.touched.shrink_to(0);
        self.overfull.shrink_to(0);
        self.routes.release();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.wake();
        // Nobody sees to them now: they may be asked again.
        for receiver in &self.overfull {
            receiver.has_looked(u64::MAX);
        }
    }
}

impl Route {
    fn level(&self, qos: QoS) -> Level {
        if qos == QoS::ExactlyOnce { self.level_exactly_once } else { self.level }
    }

    /// What it takes in memory with its place in the cache, roughly.
    fn bytes(&self) -> usize {
        size_of::<Self>() + 64 + 2 * self.topic.as_str().len() + self.hops.len() * size_of::<Hop>()
    }
}

impl Routes {
    /// The route to `topic`, if it is `fresh`; else it is forgotten.
    fn get(&mut self, topic: &str, fresh: impl Fn(&Arc<Route>) -> bool) -> Option<Arc<Route>> {
        let known = self.by_topic.get(topic)?;
        if fresh(known) {
            self.last = Some(known.clone());
            return self.last.clone();
        }
        let stale = self.by_topic.remove(topic)?;
        self.bytes = self.bytes.saturating_sub(stale.bytes());
        None
    }

    /// Remembers a route that is not known.
    fn insert(&mut self, route: &Arc<Route>) {
        if self.bytes + route.bytes() > ROUTES_MAX_BYTES {
            self.by_topic.clear();
            self.bytes = 0;
        }
        self.bytes += route.bytes();
        self.by_topic.insert(route.topic.as_str().into(), route.clone());
        self.last = Some(route.clone());
    }

    /// Forgets all but the last, where that is short.
    fn release(&mut self) {
        let last = self.last.take().filter(|last| last.hops.len() <= HOPS_AT_REST);
        *self = Self { last, ..Self::default() };
    }
}

impl Broker {
    /// A PUBLISH of `client`. The message leaves with [`Broker::dispatch`]; the reply is queued.
    ///
    /// # Errors
    /// What no reply can tell the client of; the connection must end.
    pub fn publish(
        &self,
        client: &mut Client,
        turn: &mut Turn,
        publish: &Publish<'_>,
        alias: Option<TopicName>,
        now: Timestamp,
    ) -> Result<(), Violation> {
        turn.counts.messages_received += 1;
        turn.counts.payload_bytes_received += publish.payload.len() as u64;
        // The codec has checked the name: only an empty one would give no route, and that is a violation already.
        let Some(route) = self.route(&mut turn.routes, &client.receiver, publish.topic, alias) else { return Ok(()) };
        if let Some(line) = route.denied {
            self.deny(client, turn, publish, &route.topic, NonZeroU32::new(line));
            return Ok(());
        }
        if publish.payload_is_utf8 && self.limits.check_payload_format && std::str::from_utf8(publish.payload).is_err()
        {
            return self.refuse_payload(client, turn, publish, &route.topic, now);
        }
        let message = Arc::new(Message {
            topic: route.topic.clone(),
            payload: publish.payload.into(),
            qos: publish.qos,
            retain: publish.retain,
            properties: publish.properties.as_ref().into(),
            expires_at: publish.expiry_secs.map(|secs| now.plus_secs(u64::from(secs))),
            publisher: client.session.id,
        });
        let retain = self.retained.claim(&message);
        if retain == Retain::NoRoom {
            turn.counts.dropped(DropReason::RetainedFull);
            self.log_retained_full(&client.receiver, now);
            if client.session.version().is_v5()
                && let Some(packet_id) = publish.packet_id
            {
                client.session.acknowledge(answer(publish.qos, packet_id, ReasonCode::QuotaExceeded), false);
                return Ok(());
            }
        }
        turn.counts.dropped_acl_denied += route.withheld;
        let record = publish.qos == QoS::ExactlyOnce && client.session.logged;
        let durable = publish.qos != QoS::AtMostOnce && (route.logged || publish.retain || record);
        if durable || publish.retain || route.keeps_all {
            turn.stored = true;
        }
        let answer = publish.packet_id.map(|packet_id| {
            let reason = if route.hops.is_empty() { ReasonCode::NoMatchingSubscribers } else { ReasonCode::Success };
            client.session.acknowledge(answer(publish.qos, packet_id, reason), durable);
            turn.level = turn.level.max(durable.then_some(route.level(publish.qos)));
            Answer { packet_id, queued: client.session.queued() }
        });
        turn.ops.push(Op::Publish { message, route, answer, record, retain });
        Ok(())
    }

    /// The payload is not the UTF-8 that it claims to be (3.3.2.3.2).
    fn refuse_payload(
        &self,
        client: &mut Client,
        turn: &mut Turn,
        publish: &Publish<'_>,
        topic: &TopicName,
        now: Timestamp,
    ) -> Result<(), Violation> {
        static SAID: Throttle = Throttle::new(1);
        turn.counts.dropped(DropReason::PayloadFormat);
        let who = &client.receiver;
        if let Some(left_out) = SAID.pass(now) {
            tracing::info!(
                client = %Shown(&who.client_id),
                identity = %who.identity,
                topic = %Shown(topic.as_str()),
                left_out,
                "publish refused: the payload is not the UTF-8 that it claims to be"
            );
        }
        let Some(packet_id) = publish.packet_id else { return Err(Violation::PayloadFormatInvalid) };
        client.session.acknowledge(answer(publish.qos, packet_id, ReasonCode::PayloadFormatInvalid), false);
        Ok(())
    }

    fn log_retained_full(&self, publisher: &Receiver, now: Timestamp) {
        static SAID: Throttle = Throttle::new(1);
        if let Some(left_out) = SAID.pass(now) {
            let client = Shown(&publisher.client_id);
            tracing::warn!(%client, left_out, "not retained: broker.max_retained_messages or max_retained_bytes is reached");
        }
    }

    /// A message that no client publishes now: a Will.
    pub(super) fn publish_message(&self, turn: &mut Turn, message: Message, publisher: &Receiver) {
        let mut routes = Routes::default();
        let Some(route) = self.route(&mut routes, publisher, "", Some(message.topic.clone())) else { return };
        turn.counts.dropped_acl_denied += route.withheld;
        turn.stored |= message.retain || route.keeps_all || (route.logged && message.qos != QoS::AtMostOnce);
        let retain = self.retained.claim(&message);
        if retain == Retain::NoRoom {
            turn.counts.dropped(DropReason::RetainedFull);
            self.log_retained_full(publisher, crate::clock::now());
        }
        turn.ops.push(Op::Publish { message: Arc::new(message), route, answer: None, record: false, retain });
    }

    /// Whether the ACL lets `receiver` publish to `topic`, and the line that says so.
    pub(super) fn may_publish(&self, receiver: &Receiver, topic: &TopicName) -> Result<(), Option<NonZeroU32>> {
        let verdict = self.auth.rules().verdict(receiver.identity.who(&receiver.client_id), Access::Publish, topic);
        if verdict.allowed { Ok(()) } else { Err(verdict.line) }
    }

    /// Whether the ACL lets `client` receive `topic` now.
    #[must_use]
    pub fn may_receive(&self, client: &Client, topic: &TopicName) -> bool {
        let receiver = &client.receiver;
        self.auth.rules().verdict(receiver.identity.who(&receiver.client_id), Access::Receive, topic).allowed
    }

    fn deny(
        &self,
        client: &mut Client,
        turn: &mut Turn,
        publish: &Publish<'_>,
        topic: &TopicName,
        line: Option<NonZeroU32>,
    ) {
        turn.counts.publishes_denied += 1;
        turn.counts.dropped(DropReason::AclDenied);
        self.log_denied("publish", &client.receiver, topic.as_str(), line);
        let Some(packet_id) = publish.packet_id else { return };
        let version = client.session.version();
        let reason = if version.is_v5() { ReasonCode::NotAuthorized } else { ReasonCode::Success };
        client.session.acknowledge(answer(publish.qos, packet_id, reason), false);
    }

    pub(super) fn log_denied(&self, what: &str, receiver: &Receiver, topic: &str, line: Option<NonZeroU32>) {
        let file = self.auth.acl_file().map_or_else(|| "built-in rules".to_owned(), |path| path.display().to_string());
        tracing::info!(
            client = %Shown(&receiver.client_id),
            identity = %receiver.identity,
            topic = %Shown(topic),
            rule = %line.map_or_else(|| format!("{file}: no rule allows it"), |line| format!("{file}:{line}")),
            "{what} denied"
        );
    }

    fn route(
        &self,
        routes: &mut Routes,
        publisher: &Receiver,
        topic: &str,
        alias: Option<TopicName>,
    ) -> Option<Arc<Route>> {
        let rules = self.auth.generation();
        let fresh = |route: &Arc<Route>| route.rules == rules && self.is_fresh(route);
        let name = alias.as_ref().map_or(topic, TopicName::as_str);
        if let Some(last) = &routes.last
            && last.topic.as_str() == name
            && fresh(last)
        {
            return Some(last.clone());
        }
        if let Some(known) = routes.get(name, fresh) {
            return Some(known);
        }
        let topic = match alias {
            Some(topic) => topic,
            None => TopicName::parse(topic).ok()?,
        };
        let route = Arc::new(self.find_route(publisher, topic, rules));
        routes.insert(&route);
        Some(route)
    }

    /// Whether no subscription has come or gone since that may be for the topic of `route`.
    pub(super) fn is_fresh(&self, route: &Route) -> bool {
        self.generations.of(route.part) == route.generation
    }

    pub(super) fn find_route(&self, publisher: &Receiver, topic: TopicName, rules_generation: u64) -> Route {
        let part = self.generations.part(topic.as_str());
        let (generation, matches) = {
            let router = self.router.read();
            (self.generations.of(part), router.route(&topic, publisher.session))
        };
        let rules = self.auth.rules();
        let verdict = rules.verdict(publisher.identity.who(&publisher.client_id), Access::Publish, &topic);
        let denied = (!verdict.allowed).then(|| verdict.line.map_or(0, NonZeroU32::get));
        let level = self.store.level(&topic);
        let mut route = Route {
            topic,
            part,
            generation,
            rules: rules_generation,
            denied,
            hops: Vec::with_capacity(matches.len()),
            publisher: 0,
            logged: false,
            keeps_all: false,
            level,
            level_exactly_once: level,
            withheld: 0,
        };
        let may_receive = |identity: &Identity, client_id: &str| {
            rules.verdict(identity.who(client_id), Access::Receive, &route.topic).allowed
        };
        let mut hops = Vec::with_capacity(matches.len());
        for matched in matches {
            let to = match matched.target {
                Target::Session(id) => {
                    let Some(receiver) = self.receivers.get(&id).map(|one| one.clone()) else { continue };
                    if !may_receive(&receiver.identity, &receiver.client_id) {
                        route.withheld += 1;
                        continue;
                    }
                    route.logged |= receiver.logged && matched.qos != QoS::AtMostOnce;
                    route.keeps_all |= receiver.logged && self.limits.queue_qos0;
                    if receiver.logged && matched.qos == QoS::ExactlyOnce {
                        // Its packet id comes from the log. Were the entry lost and the id given to a durable one, the client would
                        // take that for a duplicate.
                        route.level_exactly_once = level.max(self.store.session_level());
                    }
                    To::Receiver(receiver)
                }
                // Its members' rights are looked at when one of them is chosen.
                Target::Group(id) => {
                    let Some(group) = self.groups.by_id(id) else { continue };
                    route.logged |= group.is_logged();
                    route.publisher = hash_of(&publisher.client_id);
                    To::Group(group)
                }
            };
            hops.push(Hop::new(to, matched));
        }
        route.hops = hops;
        route
    }

    /// Hands over what the turn has gathered. Whatever happens to the connection afterwards, this has happened.
    pub fn dispatch(&self, client: &mut Client, turn: &mut Turn, now: Timestamp) {
        let log_changed = client.session.logged && client.session.log().take_changed();
        if turn.ops.is_empty() && !log_changed && !turn.awaited {
            return;
        }
        let held = turn.held.as_ref().is_some_and(|handed_over| !handed_over.load(Ordering::Acquire));
        let ops = std::mem::take(&mut turn.ops);
        if !turn.stored && !log_changed && !held {
            turn.ops = self.hand_over(ops, Some(client), turn, now);
            return;
        }
        turn.stored = false;
        let (awaited, level) = (std::mem::take(&mut turn.awaited), turn.level.take());
        let freed = std::mem::take(&mut turn.freed);
        let (handed_over, lsn) = self.store.write(|batch| {
            batch.freed(freed);
            if awaited {
                batch.require_durable();
            }
            if let Some(level) = level {
                batch.require(level);
            }
            let mut later = HandOver::new(batch);
            for op in &ops {
                self.apply(op, client, turn, batch, held, &mut later, now);
            }
            if log_changed {
                self.record_log(client, batch);
            }
            later.by_commit(self, batch)
        });
        if handed_over.is_some() {
            turn.held = handed_over;
        }
        client.session.ticket(lsn.0);
        turn.ops = ops;
        turn.ops.clear();
    }

    /// Hands over messages that need no store: each receiver is locked once for a run of messages on one route.
    pub(super) fn hand_over(
        &self,
        mut ops: Vec<Op>,
        mut client: Option<&mut Client>,
        turn: &mut Turn,
        now: Timestamp,
    ) -> Vec<Op> {
        let mut rest = ops.as_slice();
        while let Some(Op::Publish { route, .. }) = rest.first() {
            let run = rest
                .iter()
                .take_while(|op| matches!(op, Op::Publish { route: other, .. } if Arc::ptr_eq(route, other)))
                .count();
            let (now_handed, later) = rest.split_at(run);
            rest = later;
            let messages = now_handed.iter().filter_map(|op| match op {
                Op::Publish { message, .. } => Some(message),
                _ => None,
            });
            for hop in &route.hops {
                match &hop.to {
                    To::Receiver(receiver) => {
                        let all = messages.clone().map(|message| hop.delivery(message));
                        let counts = &mut turn.counts;
                        let signal = receiver.put_all(all, |at, reason| {
                            counts.dropped(reason);
                            if let (Some(client), Some(op)) = (client.as_deref_mut(), now_handed.get(at)) {
                                self.refuse_if_alone(client, op, reason);
                            }
                        });
                        turn.touched.extend(signal);
                    }
                    To::Group(group) => {
                        for (message, op) in messages.clone().zip(now_handed) {
                            let retain = hop.retain(message);
                            let publisher = route.publisher;
                            let mut given = group.give(self, message, publisher, retain, None, turn, None, now);
                            if given == Given::NeedsLog {
                                (given, _) = self.store.write(|batch| {
                                    let body = batch.body(message, 1);
                                    let log = Some((batch, &body));
                                    group.give(self, message, publisher, retain, log, turn, None, now)
                                });
                            }
                            if let (Some(client), Some(reason)) = (client.as_deref_mut(), given.dropped()) {
                                self.refuse_if_alone(client, op, reason);
                            }
                        }
                    }
                }
            }
        }
        ops.clear();
        ops
    }

    #[allow(clippy::too_many_arguments)] // one closure's worth of state, passed down one level
    fn apply(
        &self,
        op: &Op,
        client: &mut Client,
        turn: &mut Turn,
        batch: &mut Batch,
        held: bool,
        later: &mut HandOver,
        now: Timestamp,
    ) {
        match op {
            Op::Publish { message, route, answer, record, retain } => {
                if *retain != Retain::No {
                    self.retain(message, &client.receiver, route, *retain, batch, now);
                }
                let by_commit = held || !later.is_empty() || message.qos == QoS::ExactlyOnce;
                if message.qos == QoS::ExactlyOnce {
                    later.level = later.level.max(route.level_exactly_once);
                }
                let dropped = self.store_and_give(message, route, turn, batch, by_commit.then_some(later), now);
                let refused = dropped.is_some_and(|reason| self.refuse_if_alone(client, op, reason));
                if let Some(answer) = answer.filter(|_| *record && !refused) {
                    batch.put_received(client.session.id, answer.packet_id);
                }
            }
            Op::Forget(packet_id) => batch.delete_received(client.session.id, *packet_id),
            Op::Open(log, open) => batch.put_open(*log, open),
            Op::Close(log, seq) => batch.delete_open(*log, *seq),
            Op::Release(body) => batch.release_body(*body),
            Op::WillDone { session, again } => self.will_done(*session, again.as_ref(), batch),
            Op::Settle(group, seq) => group.settle(self, client.session.id, *seq, Some(batch), turn, now),
        }
    }

    /// A message was dropped at a full queue: its publisher is told so where nobody else is to have it. `true` where it is told.
    fn refuse_if_alone(&self, client: &mut Client, op: &Op, reason: DropReason) -> bool {
        let Op::Publish { route, answer: Some(answer), retain, .. } = op else { return false };
        self.limits.queue_full == QueueFull::Refuse
            && matches!(reason, DropReason::QueueFull | DropReason::AllQueuesFull)
            && route.hops.len() == 1
            && *retain != Retain::Keep
            && client.session.refuse(answer.queued)
    }

    /// Why a receiver did not get it: the last of them.
    fn store_and_give(
        &self,
        message: &Arc<Message>,
        route: &Route,
        turn: &mut Turn,
        batch: &mut Batch,
        mut later: Option<&mut HandOver>,
        now: Timestamp,
    ) -> Option<DropReason> {
        let keeps = |receiver: &Receiver, qos| {
            receiver.logged && (qos != QoS::AtMostOnce || self.limits.queue_qos0 && !receiver.is_online())
        };
        let logged = |hop: &&Hop| match &hop.to {
            To::Receiver(receiver) => keeps(receiver, hop.lower_qos(message)),
            To::Group(group) => group.is_logged(),
        };
        let mut body: Option<Body<'_>> = None;
        let logs = route.hops.iter().filter(logged).count();
        let mut dropped = None;
        for hop in &route.hops {
            let delivery = hop.delivery(message);
            let not_taken = match &hop.to {
                To::Group(group) => {
                    if group.is_logged() && body.is_none() {
                        body = Some(batch.body(message, logs));
                    }
                    let log = body.as_ref().map(|body| (&mut *batch, body));
                    let (publisher, retain) = (route.publisher, hop.retain(message));
                    group.give(self, message, publisher, retain, log, turn, later.as_deref_mut(), now).dropped()
                }
                To::Receiver(receiver) if keeps(receiver, delivery.qos) => {
                    let body = body.get_or_insert_with(|| batch.body(message, logs));
                    match receiver.append(batch, body, delivery, later.is_none()) {
                        Ok(appended) => {
                            turn.counts.messages_queued += 1;
                            turn.touched.extend(appended.signal);
                            if let (Some(delivery), Some(later)) = (appended.waits, later.as_deref_mut()) {
                                later.push(receiver, delivery);
                            }
                            if appended.overfull {
                                turn.overfull.push(receiver.clone());
                            }
                            None
                        }
                        Err(reason) => {
                            turn.counts.dropped(reason);
                            Some(reason)
                        }
                    }
                }
                To::Receiver(receiver) => match later.as_deref_mut() {
                    Some(later) => later.push(receiver, delivery).inspect(|reason| turn.counts.dropped(*reason)),
                    None => turn.put(receiver, delivery),
                },
            };
            dropped = not_taken.or(dropped);
        }
        dropped
    }

    /// Writes how far the session has worked through its log.
    pub(super) fn record_log(&self, client: &mut Client, batch: &mut Batch) {
        let id = client.session.id;
        let Extent { tail, appended, .. } = client.receiver.extent();
        let log = client.session.log();
        let done = log.head() >= tail;
        if done {
            log.set_settled_bytes(appended);
        }
        log.take_trims(if done { TRIM_AT_END } else { TRIM_AT }, |from, to| batch.trim(id, from, to));
        batch.put_log_state(id, &log_state(log));
        let (head, beyond, bytes) = (log.head(), log.settled_beyond(), log.settled_bytes());
        client.receiver.settled(head, beyond, bytes);
    }
}

/// The stored form of what is settled.
pub(super) fn log_state(log: &crate::session::LogView) -> crate::storage::LogState {
    let settled = log.settled_ranges().collect();
    crate::storage::LogState { head: log.head(), settled, trimmed: log.trimmed(), settled_bytes: log.settled_bytes() }
}

impl Hop {
    fn new(to: To, matched: Match) -> Self {
        let ids = (!matched.subscription_ids.is_empty()).then(|| matched.subscription_ids.into());
        Self { to, qos: matched.qos, retain_as_published: matched.retain_as_published, ids }
    }

    fn lower_qos(&self, message: &Message) -> QoS {
        lower(message.qos, self.qos)
    }

    pub(super) fn delivery(&self, message: &Arc<Message>) -> Delivery {
        delivery(message, self.lower_qos(message), self.retain(message), self.ids.clone())
    }

    /// RETAIN as this receiver sees it [MQTT-3.3.1-12], [MQTT-3.3.1-13].
    pub(super) fn retain(&self, message: &Message) -> bool {
        message.retain && self.retain_as_published
    }
}

/// What answers a PUBLISH of that QoS.
fn answer(qos: QoS, packet_id: PacketId, reason: ReasonCode) -> Reply {
    Reply::Ack(if qos == QoS::ExactlyOnce { AckKind::PubRec } else { AckKind::PubAck }, packet_id, reason)
}

/// The lower of two QoS levels [MQTT-3.8.4-8].
pub(super) fn lower(one: QoS, other: QoS) -> QoS {
    if (one as u8) < other as u8 { one } else { other }
}

/// What the routes that a busy connection remembers may take.
const ROUTES_MAX_BYTES: usize = 2 << 20;
/// How many receivers the last route may name that an idle connection remembers.
const HOPS_AT_REST: usize = 16;
/// Settled entries that are deleted by one range deletion.
const TRIM_AT: u64 = 512;
/// The same, where nothing else waits in the log.
const TRIM_AT_END: u64 = 64;
