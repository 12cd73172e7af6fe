//! One client's protocol state machine, without I/O: packets and the time in, bytes and requests out.
//!
//! Must not know sockets, other sessions, storage or authorization. The broker carries out what [`Session::receive`] asks for
//! and answers with [`Session::acknowledge`]; what must be durable first leaves with [`Session::release`].

mod aliases;
mod authentication;
mod connect;
mod inbound;
pub mod limits;
mod log;
mod outbound;
mod packet_limits;
pub mod rate;
pub mod response;
#[cfg(test)]
mod tests;
mod violation;

use std::sync::Arc;

pub use authentication::Authentication;
pub use connect::{Terms, refuse_will};
pub use inbound::{Reply, Request, Settled};
pub use limits::Limits;
pub use log::{LogView, Open};
pub use outbound::{Delivered, Delivery, Hold, Source};
pub use violation::Violation;

use crate::mqtt::{
    Outbox, Packet, Timestamp, Version,
    packet::{AckKind, Publish},
};
use inbound::Inbound;
use outbound::{Outbound, PubRec};
use rate::PublishRate;

/// What became of the commit that an acknowledgement waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// Not known yet.
    Pending,
    /// It is durable.
    Done,
    /// It failed and will never be.
    Failed,
}

/// A Session (4.1): the state of one client, online or not.
#[derive(Debug)]
pub struct Session {
    /// Names the session in the store; never reused.
    pub id: u64,
    /// Client Identifier.
    pub client_id: Arc<str>,
    /// Session Expiry Interval, in seconds; 0 ends it with its connection.
    pub expiry_secs: u32,
    /// Whether what it queues is logged: it was made with an expiry above 0.
    pub logged: bool,
    /// The state of its log, while there is no exchange to have it.
    log: LogView,
    exchange: Option<Box<Exchange>>,
    publish_rate: Option<Box<PublishRate>>,
}

/// What is under way between client and broker. Most sessions are offline for most of the time, and then nothing is.
#[derive(Debug)]
struct Exchange {
    terms: Terms,
    inbound: Inbound,
    outbound: Outbound,
    last_received: Timestamp,
    /// Of a connection whose CONNECT named a method.
    authentication: Option<Box<Authentication>>,
}

impl Exchange {
    fn new(log: LogView) -> Self {
        Self {
            terms: Terms::default(),
            inbound: Inbound::default(),
            outbound: Outbound::new(log),
            last_received: Timestamp::default(),
            authentication: None,
        }
    }

    fn acknowledged(&mut self, kind: AckKind, ack: crate::mqtt::packet::Ack) -> Result<Request<'static>, Violation> {
        let settled = match kind {
            AckKind::PubAck => self.outbound.puback(ack)?,
            AckKind::PubComp => self.outbound.pubcomp(ack)?,
            AckKind::PubRec | AckKind::PubRel => match self.outbound.pubrec(ack)? {
                PubRec::Settled(settled) => Some(settled),
                PubRec::Release(reason) => {
                    self.inbound.acknowledge(Reply::Ack(AckKind::PubRel, ack.packet_id, reason), false);
                    None
                }
                PubRec::Nothing => None,
            },
        };
        Ok(settled.map_or(Request::Nothing, Request::Settled))
    }

    /// Whether a new one would do as well.
    fn is_blank(&self) -> bool {
        self.inbound.is_blank() && self.outbound.in_flight() == 0
    }
}

impl Session {
    /// A new Session, without any state [MQTT-3.1.2-4].
    #[must_use]
    pub fn new(id: u64, client_id: Arc<str>, expiry_secs: u32) -> Self {
        Self {
            id,
            client_id,
            expiry_secs,
            logged: expiry_secs > 0,
            log: LogView::default(),
            exchange: None,
            publish_rate: None,
        }
    }

    fn exchange(&mut self) -> &mut Exchange {
        self.exchange.get_or_insert_with(|| Box::new(Exchange::new(std::mem::take(&mut self.log))))
    }

    /// One that the store remembers: `received` are its QoS 2 ids still to be released [MQTT-4.3.3-10].
    #[must_use]
    pub fn recovered(
        id: u64,
        client_id: Arc<str>,
        expiry_secs: u32,
        received: impl IntoIterator<Item = crate::mqtt::PacketId>,
        log: LogView,
    ) -> Self {
        let mut session = Self { logged: true, log, ..Self::new(id, client_id, expiry_secs) };
        let mut received = received.into_iter().peekable();
        if received.peek().is_some() {
            session.exchange().inbound.restore(received);
        }
        session
    }

    /// A connection begins under `terms`. Deliveries that were in flight and do not come from the log are sent again
    /// [MQTT-4.4.0-1]; those of the log come again through [`Session::deliver`]. Gives those that are larger than the client now takes:
    /// they are complete [MQTT-3.1.2-25].
    #[must_use]
    pub fn connected(&mut self, terms: Terms, now: Timestamp, outbox: &mut Outbox) -> Vec<Source> {
        self.expiry_secs = terms.session_expiry_secs;
        // A client that comes again has not earned anew what it has spent.
        if self.publish_rate.as_ref().is_none_or(|rate| !rate.is_of(terms.publish_rate)) {
            self.publish_rate = PublishRate::new(terms.publish_rate, now).map(Box::new);
        }
        let exchange = self.exchange();
        exchange.inbound.connected(&terms);
        let too_large = exchange.outbound.connected(&terms, now, outbox);
        exchange.terms = terms;
        exchange.last_received = now;
        exchange.authentication = None;
        too_large
    }

    /// The connection is gone. Keeps what the Session must keep and gives the rest of the memory back.
    pub fn disconnected(&mut self) {
        let Some(exchange) = &mut self.exchange else { return };
        exchange.inbound.disconnected();
        exchange.outbound.disconnected();
        exchange.authentication = None;
        if exchange.is_blank() {
            self.log = std::mem::take(exchange.outbound.log());
            self.exchange = None;
        }
    }

    /// The connection's CONNECT named a method, and its exchange is done: the client may authenticate again [MQTT-4.12.1-1].
    pub fn authenticated(&mut self, by: Option<Box<Authentication>>) {
        self.exchange().authentication = by;
    }

    /// What answers the last [`Request::Authenticate`].
    pub fn authentication(&mut self) -> Option<&mut Authentication> {
        self.exchange.as_mut()?.authentication.as_deref_mut()
    }

    /// The protocol version of the connection; while there is none, MQTT 3.1.1.
    #[must_use]
    pub fn version(&self) -> Version {
        self.terms().map_or(Version::V3_1_1, |terms| terms.version)
    }

    /// The terms of the connection; none while nothing is under way.
    #[must_use]
    pub fn terms(&self) -> Option<&Terms> {
        self.exchange.as_ref().map(|exchange| &exchange.terms)
    }

    /// Takes one packet of the client.
    ///
    /// # Errors
    /// The clause that the packet broke; the connection must end.
    pub fn receive<'a>(
        &mut self,
        packet: Packet<'a>,
        now: Timestamp,
        outbox: &mut Outbox,
    ) -> Result<Request<'a>, Violation> {
        let exchange = self.exchange();
        exchange.last_received = now;
        match packet {
            Packet::Publish(publish) => self.published(publish, now),
            Packet::Ack(AckKind::PubRel, ack) => Ok(exchange.inbound.pubrel(ack.packet_id, exchange.terms.version)),
            Packet::Ack(kind, ack) => {
                let request = exchange.acknowledged(kind, ack)?;
                exchange.outbound.resend(now, outbox);
                Ok(request)
            }
            Packet::Subscribe(mut subscribe) => {
                exchange.terms.packet.filters(subscribe.filters.len())?;
                for (filter, _) in &mut subscribe.filters {
                    if let Ok(asked) = filter
                        && !exchange.terms.packet.allows_topic(asked.filter.as_str())
                    {
                        *filter = Err(asked.to_string());
                    }
                }
                Ok(Request::Subscribe(subscribe))
            }
            Packet::Unsubscribe(unsubscribe) => {
                exchange.terms.packet.filters(unsubscribe.filters.len())?;
                Ok(Request::Unsubscribe(unsubscribe))
            }
            Packet::PingReq => {
                outbox.pingresp();
                Ok(Request::Nothing)
            }
            Packet::Disconnect(disconnect) => {
                if self.expiry_secs == 0 && disconnect.session_expiry_secs.is_some_and(|secs| secs > 0) {
                    return Err(Violation::ExpiryRaisedFromZero);
                }
                Ok(Request::Disconnect(disconnect))
            }
            Packet::Connect(_) => Err(Violation::SecondConnect),
            Packet::Auth(auth) => match &mut exchange.authentication {
                Some(authentication) => authentication.receive(auth),
                None => Err(Violation::AuthWithoutMethod),
            },
            Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                Err(Violation::ServerPacket)
            }
        }
    }

    fn published<'a>(&mut self, publish: Publish<'a>, now: Timestamp) -> Result<Request<'a>, Violation> {
        let exchange = self.exchange();
        exchange.terms.check_publish(&publish)?;
        exchange.terms.packet.publish(&publish)?;
        let (topic, rest) = (publish.topic.len(), publish.properties.len() + publish.payload.len());
        let request = exchange.inbound.publish(publish, &exchange.terms)?;
        if let Some(rate) = &mut self.publish_rate {
            // Everybody else gets the whole name.
            let topic = match &request {
                Request::Publish { alias: Some(name), .. } => name.as_str().len(),
                _ => topic,
            };
            rate.charge(topic + rest, now);
        }
        Ok(request)
    }

    /// Queues `reply`. Replies leave in the order in which they were queued [MQTT-4.6.0-2]; one that is `durable` waits for the
    /// next [`Session::ticket`].
    pub fn acknowledge(&mut self, reply: Reply, durable: bool) {
        self.exchange().inbound.acknowledge(reply, durable);
    }

    /// A PUBLISH of this turn was not taken: its answer, the `queued`th reply, says so by 0x97. `false` where the client cannot be told.
    pub fn refuse(&mut self, queued: u64) -> bool {
        self.exchange.as_mut().is_some_and(|exchange| exchange.terms.version.is_v5() && exchange.inbound.refuse(queued))
    }

    /// What was queued as durable since the last call stands in commit `lsn`.
    pub fn ticket(&mut self, lsn: u64) {
        if let Some(exchange) = &mut self.exchange {
            exchange.inbound.ticket(lsn);
        }
    }

    /// The commit that the first waiting reply needs, if any.
    #[must_use]
    pub fn awaited(&self) -> Option<u64> {
        self.exchange.as_ref()?.inbound.awaited()
    }

    /// Replies that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.inbound.waiting())
    }

    /// How many replies were ever queued: what must follow the last of them waits for [`Session::has_left`].
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.exchange.as_ref().map_or(0, |exchange| exchange.inbound.queued())
    }

    /// Whether the reply that was the `queued`th has left.
    #[must_use]
    pub fn has_left(&self, queued: u64) -> bool {
        self.queued() - self.waiting() as u64 >= queued
    }

    /// Sends every reply that is due; `commit` tells the outcome of a ticket.
    ///
    /// # Errors
    /// [`Violation::NotDurable`] where a commit failed that no Reason Code can tell the client of.
    pub fn release(
        &mut self,
        mut commit: impl FnMut(u64) -> Commit,
        now: Timestamp,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let logged = self.logged;
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        while let Some((reply, failed)) = exchange.inbound.due(&mut commit) {
            match reply {
                Reply::Publish(delivery, packet_id) if !failed => {
                    exchange.outbound.send_held(&delivery, packet_id, now, outbox);
                }
                reply => exchange.inbound.send(reply, failed, logged, exchange.terms.version, outbox)?,
            }
        }
        Ok(())
    }

    /// Sends `delivery`, if the client's window has room.
    pub fn deliver(&mut self, delivery: &Delivery, now: Timestamp, outbox: &mut Outbox) -> Delivered {
        let delivered = self.exchange().outbound.deliver(delivery, now, outbox);
        if let Delivered::Record { packet_id, .. } = delivered {
            self.acknowledge(Reply::Publish(Box::new(delivery.clone()), packet_id), true);
        }
        delivered
    }

    /// Whether a delivery from a log is in flight, or settled.
    #[must_use]
    pub fn knows(&self, source: Source) -> bool {
        match (&self.exchange, source) {
            (Some(exchange), source) => exchange.outbound.knows(source),
            (None, Source::Log { seq, .. }) => self.log.is_settled(seq),
            (None, Source::Direct | Source::Lease { .. }) => false,
        }
    }

    /// The first entry of its log from `seq` on that is neither settled nor in flight.
    #[must_use]
    pub fn next_unknown(&self, seq: u64) -> u64 {
        match &self.exchange {
            Some(exchange) => exchange.outbound.next_unknown(seq),
            None => self.log.next_unsettled(seq),
        }
    }

    /// How many more QoS 1 and 2 deliveries the client may get now [MQTT-3.3.4-9].
    #[must_use]
    pub fn room(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.outbound.room())
    }

    /// The state of its log: what is settled, what is open.
    pub fn log(&mut self) -> &mut LogView {
        match &mut self.exchange {
            Some(exchange) => exchange.outbound.log(),
            None => &mut self.log,
        }
    }

    /// A QoS 2 lease that the store remembers, still to be completed by this client [MQTT-4.8.2-4]. Without its `delivery`, PUBREC
    /// had come and PUBREL is due.
    pub fn restore_lease(&mut self, source: Source, packet_id: crate::mqtt::PacketId, delivery: Option<Delivery>) {
        self.exchange().outbound.restore_lease(source, packet_id, delivery);
    }

    /// The session leaves a group, or the group ends, while the delivery of its entry `seq` is under way: it goes on from `source`.
    /// Gives its packet id, and whether PUBREC came.
    pub fn adopt(&mut self, group: u64, seq: u64, source: Source) -> Option<(crate::mqtt::PacketId, bool)> {
        self.exchange.as_mut()?.outbound.adopt(group, seq, source)
    }

    /// The deliveries in flight that came by lease from a group: (group, seq), and how they are held.
    pub fn leases(&self) -> impl Iterator<Item = (u64, u64, Hold)> + '_ {
        self.exchange.iter().flat_map(|exchange| exchange.outbound.leases())
    }

    /// The deliveries in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.outbound.in_flight())
    }

    /// Whether nothing is under way: no delivery or PUBLISH is unacknowledged, and no reply waits.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.exchange
            .as_ref()
            .is_none_or(|exchange| exchange.outbound.in_flight() == 0 && exchange.inbound.is_at_rest())
    }

    /// When the Keep Alive runs out [MQTT-3.1.2-22]; none where it is off.
    #[must_use]
    pub fn keep_alive_deadline(&self) -> Option<Timestamp> {
        let exchange = self.exchange.as_ref()?;
        let secs = u64::from(exchange.terms.keep_alive_secs);
        (secs > 0).then(|| exchange.last_received.plus_millis(secs * 1500))
    }

    /// When the client may publish on, where it has published more than it may: until then nothing should be read from it.
    #[must_use]
    pub fn publish_resumes_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.publish_rate.as_ref()?.resumes_at().filter(|at| *at > now)
    }

    /// How many bytes should be read from the client at once, so that what it may not publish yet stays with it.
    #[must_use]
    pub fn read_at_most(&self) -> Option<usize> {
        self.publish_rate.as_deref().map(PublishRate::read_at_most)
    }

    /// Nothing was read for a while by our own choice: the Keep Alive starts anew.
    pub fn read_resumed(&mut self, now: Timestamp) {
        self.exchange().last_received = now;
    }
}
