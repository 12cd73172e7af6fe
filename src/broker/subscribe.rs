//! SUBSCRIBE and UNSUBSCRIBE: rights, router, store, and the retained messages that a new subscription is sent.
//!
//! Must not know how a match is found (the router) or sent (the session).

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    auth::{Access, Identity},
    metrics::{DropReason, Limit},
    mqtt::{
        Filter, Message, QoS, ReasonCode, Shown, Timestamp, TopicFilter,
        packet::{Connect, RetainHandling, SubAck, Subscribe, SubscriptionOptions, Unsubscribe},
    },
    router::{Subscription, Target},
    session::{Delivery, Reply, response},
    storage::{Batch, StoredSubscription},
};

use super::{
    Broker, Client, Throttle, Turn,
    mailbox::delivery,
    publish::lower,
    retained::{Authors, Kept},
    sys,
};

impl Broker {
    /// A SUBSCRIBE. Gives the retained messages that it asks for and that no log holds; they follow its SUBACK. `waiting` is how many of
    /// earlier ones are not sent yet.
    pub fn subscribe(
        &self,
        client: &mut Client,
        turn: &mut Turn,
        subscribe: Subscribe,
        waiting: usize,
        now: Timestamp,
    ) -> Vec<Delivery> {
        // What this connection published before must be seen by what it subscribes to now.
        self.dispatch(client, turn, now);
        let id = subscribe.subscription_id.unwrap_or_default();
        // Each filter once, as its last mention wants it.
        let mut sends = BTreeMap::new();
        let mut granted = Vec::new();
        let reasons = subscribe
            .filters
            .into_iter()
            .map(|(filter, options)| {
                let filter = match filter {
                    Ok(filter) => filter,
                    Err(text) => {
                        // One that is valid was too long or too deep.
                        if Filter::parse(&text).is_ok() {
                            turn.counts.limited(Limit::Topics);
                        }
                        return self.refusal(client, ReasonCode::TopicFilterInvalid);
                    }
                };
                let options = self.offered(options);
                match self.grant(client, turn, &filter, options, id, now) {
                    Ok(send) => {
                        if send {
                            sends.insert(filter.clone(), options);
                        }
                        granted.push((filter, options));
                        granted_qos(options.qos)
                    }
                    Err(reason) => self.refusal(client, reason),
                }
            })
            .collect();
        let stored = client.session.logged && !granted.is_empty();
        client.session.acknowledge(Reply::SubAck(SubAck { packet_id: subscribe.packet_id, reasons }), stored);
        let retained = self.retained_for(client, turn, &sends, id, now);
        if !stored {
            return self.keep_what_fits(client, turn, retained, waiting);
        }
        let ((), mut lsn) = self.store.write(|batch| {
            batch.require_durable();
            for (filter, options) in &granted {
                let subscription_id = (id > 0).then_some(id);
                let stored = StoredSubscription { filter: filter.to_string(), options: *options, subscription_id };
                batch.put_subscription(client.session.id, &stored);
            }
        });
        // What must reach a session that the store keeps goes by its log: it survives the connection, and QoS 2 a crash.
        let (logged, rest): (Vec<_>, Vec<_>) =
            retained.into_iter().partition(|one| one.delivery.qos != QoS::AtMostOnce);
        let mut logged = logged.into_iter();
        while !logged.as_slice().is_empty() {
            ((), lsn) = self.store.write(|batch| self.log_retained(client, turn, batch, &mut logged, now));
        }
        client.session.ticket(lsn.0);
        self.keep_what_fits(client, turn, rest, waiting)
    }

    /// The retained messages that the filters of one SUBSCRIBE are sent, at most as many as may wait for a session. Filters beyond that are
    /// not looked at, and count as one message each.
    fn retained_for(
        &self,
        client: &Client,
        turn: &mut Turn,
        sends: &BTreeMap<Filter, SubscriptionOptions>,
        id: u32,
        now: Timestamp,
    ) -> Vec<Retained> {
        let who = client.receiver.identity.who(&client.receiver.client_id);
        let rules = self.auth.rules();
        let (receiver, mut authors) = (rules.judge(who), Authors::new(&rules));
        let ids: Option<Arc<[u32]>> = (id > 0).then(|| Arc::from([id]));
        let most = self.max_retained();
        let mut retained = Vec::new();
        let mut dropped = 0;
        for (filter, options) in sends {
            let of_broker = sys::speaks_of(&filter.filter);
            if retained.len() >= most && !of_broker {
                dropped += 1;
                continue;
            }
            let found = if of_broker {
                self.sys.matching(&filter.filter).into_iter().map(Kept::of_nobody).collect()
            } else {
                self.retained.matching(&filter.filter, now)
            };
            for kept in found {
                let message = &kept.message;
                if options.no_local && message.publisher == client.session.id {
                    continue;
                }
                if receiver.as_ref().is_some_and(|judge| !judge.verdict(Access::Receive, &message.topic).allowed) {
                    // What the broker tells of itself is no message of anybody that could be lost.
                    turn.counts.dropped_acl_denied += u64::from(!of_broker);
                } else if self.is_withheld(&kept, &mut authors, turn, now) {
                    continue;
                } else if retained.len() >= most {
                    dropped += self.leave_out(client, message);
                } else {
                    let delivery = delivery(message, lower(message.qos, options.qos), true, ids.clone());
                    retained.push(Retained { delivery, granted: options.qos });
                }
            }
        }
        drop_retained(client, turn, dropped);
        retained
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
                topic = %Shown(kept.message.topic.as_str()),
                client = %Shown(&author.client_id),
                identity = %Identity::from(author.username.clone()),
                left_out,
                "retained message withheld: its publisher may not publish there any more (auth.check_retain_source)"
            );
        }
        true
    }

    /// What of `retained` may wait in memory beside `waiting`; the rest is not sent.
    fn keep_what_fits(
        &self,
        client: &Client,
        turn: &mut Turn,
        mut retained: Vec<Retained>,
        waiting: usize,
    ) -> Vec<Delivery> {
        let room = self.max_retained().saturating_sub(waiting).min(retained.len());
        let rest = retained.split_off(room);
        let dropped = rest.iter().map(|one| self.leave_out(client, &one.delivery.message)).sum();
        drop_retained(client, turn, dropped);
        retained.into_iter().map(|one| one.delivery).collect()
    }

    /// There is no room for a retained message. How many are dropped: what the broker tells of itself comes later.
    fn leave_out(&self, client: &Client, message: &Message) -> u64 {
        if !sys::is_of_broker(&message.topic) {
            return 1;
        }
        self.sys.missed(&message.topic, client.session.id);
        0
    }

    /// The most retained messages that wait for one session in memory.
    fn max_retained(&self) -> usize {
        usize::try_from(self.limits.max_queued_messages).ok().filter(|most| *most > 0).unwrap_or(usize::MAX)
    }

    /// Appends some of `retained` to the client's log: one write holds the store for a short time only.
    fn log_retained(
        &self,
        client: &Client,
        turn: &mut Turn,
        batch: &mut Batch,
        retained: &mut impl Iterator<Item = Retained>,
        now: Timestamp,
    ) {
        batch.require_durable();
        let rules = self.auth.rules();
        let mut authors = Authors::new(&rules);
        let mut bytes = 0;
        for Retained { mut delivery, granted } in retained.take(LOGGED_MESSAGES) {
            // Replaced since it was looked up: its successor is due, or else an older message would follow a newer one.
            let Some(kept) = self.retained.get(&delivery.message.topic, now) else { continue };
            if !Arc::ptr_eq(&kept.message, &delivery.message) && self.is_withheld(&kept, &mut authors, turn, now) {
                continue;
            }
            let message = kept.message;
            delivery.qos = lower(message.qos, granted);
            delivery.message = message.clone();
            let body = batch.body(&message, 1);
            match client.receiver.append_behind(batch, &body, &delivery) {
                Ok(signal) => {
                    turn.counts.messages_queued += 1;
                    turn.touch(signal);
                }
                Err(reason) => turn.counts.dropped(reason),
            }
            bytes += message.size();
            if bytes >= LOGGED_BYTES {
                return;
            }
        }
    }

    /// An UNSUBSCRIBE.
    pub fn unsubscribe(&self, client: &mut Client, turn: &mut Turn, unsubscribe: Unsubscribe, now: Timestamp) {
        self.dispatch(client, turn, now);
        let mut removed = Vec::new();
        let reasons = unsubscribe
            .filters
            .into_iter()
            .map(|filter| {
                let Ok(filter) = filter else { return ReasonCode::TopicFilterInvalid };
                if client.subscriptions.remove(&filter).is_none() {
                    return ReasonCode::NoSubscriptionExisted;
                }
                self.remove_route(client, &filter, turn, now);
                removed.push(filter);
                ReasonCode::Success
            })
            .collect();
        let stored = client.session.logged && !removed.is_empty();
        client.session.acknowledge(Reply::UnsubAck(SubAck { packet_id: unsubscribe.packet_id, reasons }), stored);
        if stored {
            let ((), lsn) = self.store.write(|batch| {
                batch.require_durable();
                for filter in &removed {
                    batch.delete_subscription(client.session.id, &filter.to_string());
                }
            });
            client.session.ticket(lsn.0);
        }
    }

    /// One filter of a SUBSCRIBE. Whether what is retained is to be sent.
    fn grant(
        &self,
        client: &mut Client,
        turn: &mut Turn,
        filter: &Filter,
        options: SubscriptionOptions,
        id: u32,
        now: Timestamp,
    ) -> Result<bool, ReasonCode> {
        self.check_available(filter, id)?;
        let who = client.receiver.identity.who(&client.receiver.client_id);
        let rules = self.auth.rules();
        let verdict = rules.may_subscribe(who, &filter.filter);
        if !verdict.allowed {
            turn.counts.subscriptions_denied += 1;
            self.log_denied("subscribe", &client.receiver, &filter.to_string(), verdict.line);
            return Err(ReasonCode::NotAuthorized);
        }
        let known = client.subscriptions.contains_key(filter);
        if !known && client.subscriptions.len() >= self.max_subscriptions() {
            self.log_subscriptions_full(client, turn, now);
            return Err(ReasonCode::QuotaExceeded);
        }
        self.add_route(client, filter, options, id, turn, now);
        client.subscriptions.insert(filter.clone(), (options, id));
        let send = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => !known,
            RetainHandling::Never => false,
        };
        // Never for a Shared Subscription (4.8.2).
        Ok(send && filter.share.is_none() && self.limits.retain_available)
    }

    /// The Response Information for a client that asks for it: a topic under which the ACL lets it receive everything. None for a client
    /// that does not ask [MQTT-3.1.2-28].
    #[must_use]
    pub fn response_information(&self, connect: &Connect, client_id: &str, identity: &Identity) -> Option<String> {
        if !connect.request_response_information {
            return None;
        }
        let topic = response::topic(&self.limits.response_topic_prefix, client_id, identity.username())?;
        let below = TopicFilter::parse(&format!("{topic}/#")).ok()?;
        let permitted = self.auth.rules().may_receive_all(identity.who(client_id), &below);
        permitted.then(|| topic.as_str().to_owned())
    }

    /// Whether CONNACK offers what a subscription needs (3.2.2.3.11 to 3.2.2.3.13).
    fn check_available(&self, filter: &Filter, id: u32) -> Result<(), ReasonCode> {
        let limits = &self.limits;
        if filter.share.is_some() && !limits.shared_subscriptions_available {
            return Err(ReasonCode::SharedSubscriptionsNotSupported);
        }
        if id > 0 && !limits.subscription_identifiers_available {
            return Err(ReasonCode::SubscriptionIdentifiersNotSupported);
        }
        if filter.filter.has_wildcards() && !limits.wildcard_subscriptions_available {
            return Err(ReasonCode::WildcardSubscriptionsNotSupported);
        }
        Ok(())
    }

    /// What is granted of the options that a subscription asks for [MQTT-3.2.2-10].
    fn offered(&self, options: SubscriptionOptions) -> SubscriptionOptions {
        SubscriptionOptions { qos: lower(options.qos, self.limits.maximum_qos), ..options }
    }

    fn log_subscriptions_full(&self, client: &Client, turn: &mut Turn, now: Timestamp) {
        static SAID: Throttle = Throttle::new(1);
        turn.counts.limited(Limit::Subscriptions);
        if let Some(left_out) = SAID.pass(now) {
            let client = Shown(&client.session.client_id);
            tracing::info!(%client, left_out, "subscription refused: session.max_subscriptions is reached");
        }
    }

    /// Makes the router know a subscription of `client`.
    pub(super) fn add_route(
        &self,
        client: &Client,
        filter: &Filter,
        options: SubscriptionOptions,
        id: u32,
        turn: &mut Turn,
        now: Timestamp,
    ) {
        if filter.share.is_some() {
            self.join_group(client, filter, options, id, turn, now);
            return;
        }
        let target = Target::Session(client.session.id);
        let subscription = Subscription { target, options, subscription_id: id };
        self.router.write().subscribe(&filter.filter, subscription);
    }

    pub(super) fn remove_route(&self, client: &mut Client, filter: &Filter, turn: &mut Turn, now: Timestamp) {
        if filter.share.is_some() {
            self.leave_group(client, filter, false, turn, now);
        } else {
            self.router.write().unsubscribe(&filter.filter, Target::Session(client.session.id));
        }
    }

    fn refusal(&self, client: &Client, reason: ReasonCode) -> ReasonCode {
        // MQTT 3.1.1 knows one failure [MQTT311-3.9.3-2]; MQTT 3.1 knows none, and a granted QoS would be a lie.
        if client.session.version().is_v5() { reason } else { ReasonCode::UnspecifiedError }
    }

    fn max_subscriptions(&self) -> usize {
        usize::try_from(self.limits.max_subscriptions.get()).unwrap_or(usize::MAX)
    }
}

/// A retained message on its way to a new subscription.
struct Retained {
    delivery: Delivery,
    /// The QoS of the subscription.
    granted: QoS,
}

/// So many retained messages have no room.
fn drop_retained(client: &Client, turn: &mut Turn, count: u64) {
    turn.counts.dropped_queue_full += count;
    client.receiver.count_drops(DropReason::QueueFull, count);
}

fn granted_qos(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}

/// How many retained messages, and bytes of them, one write of the store appends to a log.
const LOGGED_MESSAGES: usize = 256;
const LOGGED_BYTES: usize = 256 * 1024;
