//! SUBSCRIBE and UNSUBSCRIBE: rights, router and store.
//!
//! Must not know how a match is found (the router) or sent (the session), nor how what is retained gets there (`replay`).

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    auth::{Access, Identity},
    metrics::Limit,
    mqtt::{
        Filter, QoS, ReasonCode, Shown, Timestamp, TopicFilter,
        packet::{Connect, RetainHandling, SubAck, Subscribe, SubscriptionOptions, Unsubscribe},
    },
    router::{Subscription, Target},
    session::{Delivery, Reply, response},
};

use super::{Broker, Client, Throttle, Turn, mailbox::delivery, publish::lower, sys};

impl Broker {
    /// A SUBSCRIBE. What is retained and a filter asks for follows its SUBACK, by [`Broker::replay_page`]; gives what the broker tells of itself,
    /// which follows it, too. `waiting` is how much of that is not sent yet.
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
        // Each filter once, as its last mention wants it, and whether it is sent what is retained.
        let mut granted = BTreeMap::new();
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
                        *granted.entry(filter).or_default() |= send;
                        granted_qos(options.qos)
                    }
                    Err(reason) => self.refusal(client, reason),
                }
            })
            .collect();
        let stored = client.session.logged && !granted.is_empty();
        client.session.acknowledge(Reply::SubAck(SubAck { packet_id: subscribe.packet_id, reasons }), stored);
        let mut told = Vec::new();
        let since = self.retained.changes();
        for (filter, send) in &granted {
            match send {
                true if sys::speaks_of(&filter.filter) => self.tell(client, filter, waiting, &mut told),
                true => client.begin_replay(filter, since),
                false => client.change_replay(filter),
            }
        }
        if stored {
            let ((), lsn) = self.store.write(|batch| {
                batch.require_durable();
                for stored in granted.keys().filter_map(|filter| client.stored_subscription(filter)) {
                    batch.put_subscription(client.session.id, &stored);
                }
            });
            client.session.ticket(lsn.0);
        }
        told
    }

    /// Adds to `told` what the broker tells of itself under `filter`, as far as it may wait in memory; the rest comes later.
    fn tell(&self, client: &Client, filter: &Filter, waiting: usize, told: &mut Vec<Delivery>) {
        let Some(&(options, id)) = client.subscriptions.get(filter) else { return };
        let who = client.receiver.identity.who(&client.receiver.client_id);
        let rules = self.auth.rules();
        let receiver = rules.judge(who);
        let ids: Option<Arc<[u32]>> = (id > 0).then(|| Arc::from([id]));
        for message in self.sys.matching(&filter.filter) {
            if receiver.as_ref().is_some_and(|judge| !judge.verdict(Access::Receive, &message.topic).allowed) {
                continue;
            }
            if waiting + told.len() >= self.max_told() {
                self.sys.missed(&message.topic, client.session.id);
            } else {
                told.push(delivery(&message, lower(message.qos, options.qos), true, ids.clone()));
            }
        }
    }

    /// How much of what the broker tells of itself waits for one session in memory.
    fn max_told(&self) -> usize {
        usize::try_from(self.limits.max_queued_messages).ok().filter(|most| *most > 0).unwrap_or(usize::MAX)
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
                client.end_replay(&filter);
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

fn granted_qos(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}
