//! What goes to the client: packet ids, the window, and what each acknowledgement settles.
//!
//! Must not know how a message got here, nor how its log is stored.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    num::NonZeroU16,
    sync::Arc,
};

use crate::mqtt::{
    Message, Outbox, PacketId, QoS, ReasonCode, Timestamp,
    outbox::{Outgoing, TooLarge},
    packet::{Ack, AckKind},
};

use super::{
    LogView, Settled, Terms, Violation,
    aliases::{Alias, Aliases},
    log::{LOG_IDS, Open, derived_id},
};

/// A message on its way to one client.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The message.
    pub message: Arc<Message>,
    /// QoS to send it with: the lower of the published one and the granted one [MQTT-3.8.4-8].
    pub qos: QoS,
    /// RETAIN to send it with.
    pub retain: bool,
    /// Identifiers of the subscriptions that matched [MQTT-3.3.4-3].
    pub subscription_ids: Option<Arc<[u32]>>,
    /// Where it came from.
    pub source: Source,
}

impl Delivery {
    /// Its sequence number in the log that it came from; 0 where none holds it.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self.source {
            Source::Direct => 0,
            Source::Log { seq, .. } | Source::Lease { seq, .. } => seq,
        }
    }
}

/// Where a delivery came from: who is told when it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// No log holds it.
    Direct,
    /// Entry `seq` of the session's own log.
    Log {
        /// Sequence number.
        seq: u64,
        /// The shared body that the entry names; 0 where it holds its own.
        body: u64,
        /// The bytes that it counts for.
        size: u32,
    },
    /// Entry `seq` of a shared group, leased to this session.
    Lease {
        /// Names the group.
        group: u64,
        /// Sequence number within the group.
        seq: u64,
        /// It was sent to some member before: DUP [MQTT-3.3.1-1].
        again: bool,
        /// The group is a log, so that a QoS 2 lease outlives the process: its packet id is recorded before it leaves.
        logged: bool,
        /// QoS 1 in flight stays with the session when its connection ends; else it goes back to the group.
        kept: bool,
    },
}

/// How a lease in flight is bound to the session that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// QoS 1: until its connection ends.
    Connection,
    /// QoS 1: until the session ends.
    Session,
    /// QoS 2: only this client may ever complete it [MQTT-4.8.2-4].
    Client,
}

/// What a PUBREC leads to.
#[derive(Debug)]
pub(super) enum PubRec {
    Settled(Settled),
    /// PUBREL is sent at once, with that Reason Code.
    Release(ReasonCode),
    Nothing,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// It stands in the outbox.
    Sent,
    /// The session knows this entry: it is in flight, or settled.
    Known,
    /// The client's window is full: offer it again later.
    Full,
    /// Its Message Expiry Interval passed [MQTT-3.3.2-5].
    Expired,
    /// It is larger than the client's Maximum Packet Size [MQTT-3.1.2-24], [MQTT-3.1.2-25].
    TooLarge,
    /// It has QoS 0 and may have been sent before [MQTT-4.3.1-1].
    Lost,
    /// It waits until the broker has recorded `packet_id` for it.
    Record {
        /// The id that must be recorded.
        packet_id: PacketId,
    },
}

#[derive(Debug)]
struct Flight {
    source: Source,
    step: Step,
    /// Kept for what no log holds, to be sent again after a reconnect.
    delivery: Option<Box<Delivery>>,
    order: u64,
    /// This connection has not sent it again yet.
    waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// QoS 1: PUBACK is due.
    AtLeastOnce,
    /// QoS 2: PUBREC is due.
    ExactlyOnce,
    /// QoS 2: PUBCOMP is due.
    Released,
}

#[derive(Debug)]
pub(super) struct Outbound {
    window: u16,
    flights: HashMap<PacketId, Flight, foldhash::fast::RandomState>,
    /// Packet ids of log entries in flight whose id is not the derived one.
    moved: HashMap<u64, PacketId, foldhash::fast::RandomState>,
    /// Leases in flight: group and sequence number.
    leased: HashSet<(u64, u64), foldhash::fast::RandomState>,
    /// Packet ids above those of the log under which entries of the log were sent: they come again under them.
    reserved: HashSet<u16, foldhash::fast::RandomState>,
    /// Flights of an earlier connection in order; those that still wait are to be sent again.
    resend: VecDeque<PacketId>,
    /// How many flights wait.
    waiting: usize,
    /// Of this connection; none where the client, or a limit, wants none.
    aliases: Option<Box<Aliases>>,
    log: LogView,
    next_id: u16,
    order: u64,
}

impl Outbound {
    pub(super) fn new(log: LogView) -> Self {
        Self {
            window: u16::MAX,
            flights: HashMap::default(),
            moved: HashMap::default(),
            leased: HashSet::default(),
            reserved: HashSet::default(),
            resend: VecDeque::new(),
            waiting: 0,
            aliases: None,
            log,
            next_id: LOG_IDS,
            order: 0,
        }
    }

    pub(super) fn log(&mut self) -> &mut LogView {
        &mut self.log
    }

    /// Gives the deliveries that this client does not take any more, given its Maximum Packet Size now [MQTT-3.1.2-25].
    pub(super) fn connected(&mut self, terms: &Terms, now: Timestamp, outbox: &mut Outbox) -> Vec<Source> {
        self.window = terms.send_maximum;
        self.aliases = Aliases::new(terms.client_topic_alias_maximum);
        self.reserved = self.log.packet_ids().filter(|id| *id > LOG_IDS).collect();
        let mut again: Vec<_> = self.flights.iter().map(|(id, flight)| (flight.order, *id)).collect();
        again.sort_unstable();
        let mut too_large = Vec::new();
        for (_, packet_id) in again {
            let Some(flight) = self.flights.get_mut(&packet_id) else { continue };
            match &flight.delivery {
                _ if flight.step == Step::Released => outbox.ack(AckKind::PubRel, packet_id, ReasonCode::Success),
                Some(delivery) if outbox.takes(&outgoing(delivery, packet_id, true, now)) => {
                    flight.waits = true;
                    self.waiting += 1;
                    self.resend.push_back(packet_id);
                }
                _ => too_large.extend(self.remove(packet_id).map(|flight| flight.source)),
            }
        }
        self.resend(now, outbox);
        too_large
    }

    /// Sends again what an earlier connection had in flight, as far as the window goes [MQTT-4.4.0-1], [MQTT-3.3.4-9].
    #[inline]
    pub(super) fn resend(&mut self, now: Timestamp, outbox: &mut Outbox) {
        if !self.resend.is_empty() {
            self.resend_some(now, outbox);
        }
    }

    #[cold]
    fn resend_some(&mut self, now: Timestamp, outbox: &mut Outbox) {
        while self.flights.len() - self.waiting < usize::from(self.window) {
            let Some(packet_id) = self.resend.pop_front() else { return };
            // The client may have acknowledged it meanwhile: it has seen it before.
            let Some(flight) = self.flights.get_mut(&packet_id).filter(|flight| flight.waits) else { continue };
            flight.waits = false;
            self.waiting -= 1;
            if let Some(delivery) = flight.delivery.as_deref() {
                // Its size was looked at when the connection began.
                let _ = send(&mut self.aliases, &outgoing(delivery, packet_id, true, now), outbox);
            }
        }
    }

    /// Entries of the log leave the window; they come again as the log is read. What no log holds stays.
    pub(super) fn disconnected(&mut self) {
        let mut sent_until = self.log.sent_until;
        let leased = &mut self.leased;
        self.flights.values_mut().for_each(|flight| flight.waits = false);
        self.waiting = 0;
        self.flights.retain(|packet_id, flight| match flight.source {
            Source::Direct => true,
            Source::Lease { kept, .. } if kept || flight.step != Step::AtLeastOnce => true,
            Source::Lease { group, seq, .. } => {
                leased.remove(&(group, seq));
                false
            }
            Source::Log { seq, .. } => {
                sent_until = sent_until.max(seq);
                if flight.step == Step::Released || packet_id.get() != derived_id(seq) {
                    let moved = if packet_id.get() == derived_id(seq) { 0 } else { packet_id.get() };
                    self.log.set_open(seq, Open { packet_id: moved, released: flight.step == Step::Released });
                }
                false
            }
        });
        self.log.sent_until = sent_until;
        self.flights.shrink_to_fit();
        self.leased.shrink_to_fit();
        self.moved = HashMap::default();
        self.resend = VecDeque::new();
        self.aliases = None;
    }

    /// A QoS 2 lease that the store remembers. Without its message, PUBREC had come.
    pub(super) fn restore_lease(&mut self, source: Source, packet_id: PacketId, delivery: Option<Delivery>) {
        let step = if delivery.is_some() { Step::ExactlyOnce } else { Step::Released };
        self.insert(packet_id, source, step, delivery.map(Box::new));
    }

    /// The lease of entry `seq` of `group` is in flight from `source` from now on. Its packet id, and whether PUBREC came.
    pub(super) fn adopt(&mut self, group: u64, seq: u64, source: Source) -> Option<(PacketId, bool)> {
        let is_it = |flight: &Flight| matches!(flight.source, Source::Lease { group: of, seq: number, .. } if (of, number) == (group, seq));
        let (packet_id, flight) = self.flights.iter_mut().find(|(_, flight)| is_it(flight))?;
        let (packet_id, released) = (*packet_id, flight.step == Step::Released);
        flight.source = source;
        self.leased.remove(&(group, seq));
        if let Source::Log { seq, .. } = source {
            if !flight.waits {
                flight.delivery = None;
            }
            self.moved.insert(seq, packet_id);
            self.log.set_open(seq, Open { packet_id: packet_id.get(), released });
        }
        Some((packet_id, released))
    }

    pub(super) fn room(&self) -> usize {
        usize::from(self.window).saturating_sub(self.flights.len())
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = (u64, u64, Hold)> + '_ {
        self.flights.values().filter_map(|flight| {
            let Source::Lease { group, seq, kept, .. } = flight.source else { return None };
            let hold = match flight.step {
                Step::AtLeastOnce if kept => Hold::Session,
                Step::AtLeastOnce => Hold::Connection,
                Step::ExactlyOnce | Step::Released => Hold::Client,
            };
            Some((group, seq, hold))
        })
    }

    pub(super) fn deliver(&mut self, delivery: &Delivery, now: Timestamp, outbox: &mut Outbox) -> Delivered {
        if self.knows(delivery.source) {
            return Delivered::Known;
        }
        let open = match delivery.source {
            Source::Log { seq, .. } => self.log.open(seq),
            _ => None,
        };
        let again = match delivery.source {
            Source::Log { seq, .. } => seq <= self.log.sent_until || open.is_some(),
            Source::Lease { again, .. } => again,
            Source::Direct => false,
        };
        // What was sent is completed, expired or not [MQTT-4.3.3-7].
        if !again && delivery.message.is_expired(now) {
            return Delivered::Expired;
        }
        if delivery.qos == QoS::AtMostOnce {
            if again {
                return Delivered::Lost;
            }
            let outgoing = Outgoing { packet_id: None, ..outgoing(delivery, NonZeroU16::MIN, false, now) };
            let sent = send(&mut self.aliases, &outgoing, outbox);
            return if sent.is_ok() { Delivered::Sent } else { Delivered::TooLarge };
        }
        if self.room() == 0 {
            return Delivered::Full;
        }
        let Some((packet_id, record)) = self.choose_id(delivery, open) else { return Delivered::Full };
        if open.is_some_and(|open| open.released) {
            self.take_off(delivery, packet_id, Step::Released);
            outbox.ack(AckKind::PubRel, packet_id, ReasonCode::Success);
            return Delivered::Sent;
        }
        let step = if delivery.qos == QoS::ExactlyOnce { Step::ExactlyOnce } else { Step::AtLeastOnce };
        if record {
            if !outbox.takes(&outgoing(delivery, packet_id, again, now)) {
                return Delivered::TooLarge;
            }
            self.take_off(delivery, packet_id, step);
            return Delivered::Record { packet_id };
        }
        if send(&mut self.aliases, &outgoing(delivery, packet_id, again, now), outbox).is_err() {
            return Delivered::TooLarge;
        }
        self.take_off(delivery, packet_id, step);
        Delivered::Sent
    }

    /// Sends a delivery whose packet id is recorded by now.
    pub(super) fn send_held(&mut self, held: &Delivery, packet_id: PacketId, now: Timestamp, outbox: &mut Outbox) {
        let again = matches!(held.source, Source::Lease { again: true, .. });
        // Its size was looked at when the id was chosen.
        let _ = send(&mut self.aliases, &outgoing(held, packet_id, again, now), outbox);
    }

    fn take_off(&mut self, delivery: &Delivery, packet_id: PacketId, step: Step) {
        if let Source::Log { seq, .. } = delivery.source
            && packet_id.get() != derived_id(seq)
        {
            self.moved.insert(seq, packet_id);
        }
        let kept = match delivery.source {
            Source::Log { .. } => None,
            Source::Lease { kept: false, .. } if step == Step::AtLeastOnce => None,
            _ => Some(Box::new(delivery.clone())),
        };
        self.insert(packet_id, delivery.source, step, kept);
    }

    fn insert(&mut self, packet_id: PacketId, source: Source, step: Step, delivery: Option<Box<Delivery>>) {
        if let Source::Lease { group, seq, .. } = source {
            self.leased.insert((group, seq));
        }
        self.order += 1;
        self.flights.insert(packet_id, Flight { source, step, delivery, order: self.order, waits: false });
    }

    fn remove(&mut self, packet_id: PacketId) -> Option<Flight> {
        let flight = self.flights.remove(&packet_id)?;
        self.waiting -= usize::from(flight.waits);
        match flight.source {
            Source::Log { seq, .. } if !self.moved.is_empty() => {
                self.moved.remove(&seq);
            }
            Source::Lease { group, seq, .. } => {
                self.leased.remove(&(group, seq));
            }
            _ => {}
        }
        Some(flight)
    }

    /// A packet id that is not in flight, and whether it must be recorded before the PUBLISH leaves.
    fn choose_id(&mut self, delivery: &Delivery, open: Option<Open>) -> Option<(PacketId, bool)> {
        match delivery.source {
            Source::Log { seq, .. } => {
                if let Some(recorded) = open.and_then(|open| PacketId::new(open.packet_id)) {
                    // The client may know the message by this id, so that no other will do.
                    return Some((recorded, false)).filter(|_| !self.flights.contains_key(&recorded));
                }
                let derived = PacketId::new(derived_id(seq))?;
                if !self.flights.contains_key(&derived) {
                    return Some((derived, false));
                }
                let free = (1..=LOG_IDS)
                    .filter_map(|step| PacketId::new((derived.get() - 1 + step) % LOG_IDS + 1))
                    .find(|id| !self.flights.contains_key(id))?;
                Some((free, true))
            }
            Source::Lease { logged, .. } => Some((self.free_high_id()?, logged && delivery.qos == QoS::ExactlyOnce)),
            Source::Direct => Some((self.free_high_id()?, false)),
        }
    }

    fn free_high_id(&mut self) -> Option<PacketId> {
        for _ in LOG_IDS..u16::MAX {
            self.next_id = if self.next_id == u16::MAX { LOG_IDS + 1 } else { self.next_id + 1 };
            let id = PacketId::new(self.next_id)?;
            if !self.flights.contains_key(&id) && !self.reserved.contains(&self.next_id) {
                return Some(id);
            }
        }
        None
    }

    /// Whether it is in flight, or settled.
    pub(super) fn knows(&self, source: Source) -> bool {
        let seq = match source {
            Source::Log { seq, .. } => seq,
            Source::Lease { group, seq, .. } => return self.leased.contains(&(group, seq)),
            Source::Direct => return false,
        };
        self.log.is_settled(seq) || self.flies(seq)
    }

    /// Whether entry `seq` of the log is in flight.
    fn flies(&self, seq: u64) -> bool {
        self.moved.contains_key(&seq)
            || PacketId::new(derived_id(seq))
                .and_then(|id| self.flights.get(&id))
                .is_some_and(|flight| matches!(flight.source, Source::Log { seq: other, .. } if other == seq))
    }

    /// The first entry of the log from `seq` on that is neither in flight nor settled.
    pub(super) fn next_unknown(&self, seq: u64) -> u64 {
        let mut next = self.log.next_unsettled(seq);
        while self.flies(next) {
            next = self.log.next_unsettled(next + 1);
        }
        next
    }

    /// PUBACK. `None`: nobody waits for it.
    pub(super) fn puback(&mut self, ack: Ack) -> Result<Option<Settled>, Violation> {
        self.land_at(Step::AtLeastOnce, ack)
    }

    /// PUBCOMP. `None`: nobody waits for it.
    pub(super) fn pubcomp(&mut self, ack: Ack) -> Result<Option<Settled>, Violation> {
        self.land_at(Step::Released, ack)
    }

    fn land_at(&mut self, step: Step, ack: Ack) -> Result<Option<Settled>, Violation> {
        match self.flights.get(&ack.packet_id) {
            None => Ok(None),
            Some(flight) if flight.step == step => Ok(self.land(ack)),
            Some(_) => Err(Violation::WrongAcknowledgement(ack.packet_id)),
        }
    }

    /// PUBREC.
    pub(super) fn pubrec(&mut self, ack: Ack) -> Result<PubRec, Violation> {
        let refused = ack.reason.is_failure();
        let Some(flight) = self.flights.get_mut(&ack.packet_id) else {
            // One that refuses leaves nothing to release [MQTT-4.3.3-4].
            return Ok(if refused { PubRec::Nothing } else { PubRec::Release(ReasonCode::PacketIdentifierNotFound) });
        };
        match flight.step {
            Step::AtLeastOnce => Err(Violation::WrongAcknowledgement(ack.packet_id)),
            Step::Released => Ok(PubRec::Release(ReasonCode::Success)),
            Step::ExactlyOnce if refused => Ok(self.land(ack).map_or(PubRec::Nothing, PubRec::Settled)),
            Step::ExactlyOnce => {
                flight.step = Step::Released;
                flight.delivery = None;
                self.waiting -= usize::from(std::mem::take(&mut flight.waits));
                self.order += 1;
                flight.order = self.order;
                let source = flight.source;
                Ok(PubRec::Settled(Settled { packet_id: ack.packet_id, source, complete: false, refused: false }))
            }
        }
    }

    fn land(&mut self, ack: Ack) -> Option<Settled> {
        let flight = self.remove(ack.packet_id)?;
        if self.flights.is_empty() {
            self.flights.shrink_to(16);
        }
        // PUBCOMP only ends what PUBREC has taken.
        let refused = ack.reason.is_failure() && flight.step != Step::Released;
        Some(Settled { packet_id: ack.packet_id, source: flight.source, complete: true, refused })
    }
}

/// Queues a PUBLISH, by alias where its topic has one. What fits by name fits by alias too, but for one that is set: that costs three bytes
/// more, and without them the name alone may still fit.
fn send(aliases: &mut Option<Box<Aliases>>, outgoing: &Outgoing<'_>, outbox: &mut Outbox) -> Result<(), TooLarge> {
    let Some(aliases) = aliases else { return outbox.publish(outgoing) };
    let topic = &outgoing.message.topic;
    match aliases.of(topic) {
        Alias::None => outbox.publish(outgoing),
        Alias::Known(alias) => outbox.publish(&Outgoing { topic_alias: Some((alias, false)), ..*outgoing }),
        Alias::New(alias) => match outbox.publish(&Outgoing { topic_alias: Some((alias, true)), ..*outgoing }) {
            Ok(()) => {
                aliases.set(alias, topic);
                Ok(())
            }
            Err(TooLarge) => outbox.publish(outgoing),
        },
    }
}

fn outgoing(delivery: &Delivery, packet_id: PacketId, dup: bool, now: Timestamp) -> Outgoing<'_> {
    Outgoing {
        message: &delivery.message,
        qos: delivery.qos,
        retain: delivery.retain,
        dup,
        packet_id: Some(packet_id),
        subscription_ids: delivery.subscription_ids.as_deref().unwrap_or_default(),
        topic_alias: None,
        now,
    }
}
