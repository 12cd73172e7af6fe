//! The broker's part, and the model of both sides.
//!
//! Must not know the session's inside.

mod steps;

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU16,
    sync::Arc,
};

use arbitrary::{Result, Unstructured};
use pinnace::{
    mqtt::{
        Message, Outbox, Packet, PacketId, QoS, ReasonCode, Timestamp, TopicName, Version,
        outbox::Outgoing,
        packet::{Ack, AckKind, Publish, SubAck},
    },
    session::{Delivered, Delivery, Limits, Open, Reply, Request, Session, Settled, Source, Terms, Violation},
};

use super::{
    super::codec::take,
    client::{Answer, BEGIN, Commits, Flight, Link, Number, Sent, What, payload, read},
};

/// A message for the client, from its acceptance to its end.
struct Exchange {
    delivery: Delivery,
    /// The id that it was last sent under.
    id: Option<u16>,
    /// The connection that it was last sent on.
    connection: u64,
    /// When the session took it.
    order: u64,
    sent: bool,
    /// PUBREC came.
    taken: bool,
    done: bool,
}

pub struct World {
    session: Session,
    outbox: Outbox,
    now: Timestamp,
    link: Option<Link>,
    connection: u64,
    commits: Commits,
    /// QoS 2 ids of the client whose PUBREL has not come, and whether this connection brought them.
    received: HashMap<u16, bool>,
    exchanges: BTreeMap<Number, Exchange>,
    log: BTreeMap<u64, Number>,
    next_seq: u64,
    /// The entry to offer next.
    cursor: u64,
    leases: BTreeMap<u64, Number>,
    /// The most that any connection took at once.
    widest: usize,
    /// Deliveries that the session took.
    taken: u64,
    /// The last of them that this connection was sent again.
    resent: u64,
    jumps: u32,
    /// Of what is retained.
    max_levels: NonZeroU16,
}

/// Short and long, so that some are worth a Topic Alias.
const TOPICS: &[&str] =
    &["t", "a/topic/that/is/long/enough", "another/one/of/its/kind", "and/one/more/of/them", "the/last/of/them"];
const TWO: NonZeroU16 = NonZeroU16::new(2).unwrap();

impl World {
    pub fn new(input: &mut Unstructured<'_>) -> Result<Self> {
        let expiry = if input.ratio(3, 4)? { 3600 } else { 0 };
        let mut world = Self {
            session: Session::new(7, "client".into(), expiry),
            outbox: Outbox::new(Version::V5),
            now: BEGIN,
            link: None,
            connection: 0,
            commits: Commits::default(),
            received: HashMap::new(),
            exchanges: BTreeMap::new(),
            log: BTreeMap::new(),
            next_seq: 1,
            cursor: 1,
            leases: BTreeMap::new(),
            widest: 0,
            taken: 0,
            resent: 0,
            jumps: 0,
            max_levels: NonZeroU16::MAX,
        };
        let terms = world.terms(input)?;
        world.connect(terms);
        Ok(world)
    }

    pub fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=31)? {
            0 => {
                let terms = self.terms(input)?;
                self.connect(terms);
            }
            1 => self.lose_connection(),
            2..=6 => self.client_publishes(input)?,
            7..=12 => self.client_acknowledges(input)?,
            13 => self.client_lies(input)?,
            14 => self.client_asks(input)?,
            15 => self.client_babbles(input)?,
            16..=18 => self.offer_new(input)?,
            19..=21 => self.offer_log(),
            22 => self.offer_lease(),
            23..=25 => self.ticket(),
            26..=27 => self.commits.decide(input.ratio(1, 16)?),
            28..=29 => self.release(),
            30 => self.now = self.now.plus_millis(u64::from(input.arbitrary::<u16>()?)),
            _ => self.jump(),
        }
        self.check();
        Ok(())
    }

    fn terms(&mut self, input: &mut Unstructured<'_>) -> Result<Terms> {
        self.max_levels = *input.choose(&[TWO, NonZeroU16::MAX, NonZeroU16::MAX])?;
        let version = *input.choose(&[Version::V3_1, Version::V3_1_1, Version::V5, Version::V5])?;
        Ok(Terms {
            version,
            keep_alive_secs: *input.choose(&[0, 1, 60, u16::MAX])?,
            session_expiry_secs: self.session.expiry_secs,
            send_maximum: *input.choose(&[1, 2, 5, 20, u16::MAX])?,
            receive_maximum: *input.choose(&[1, 2, 5, u16::MAX])?,
            // Less than 10 bytes never come here: CONNACK would not fit.
            maximum_packet_size: if version.is_v5() {
                *input.choose(&[10, 40, 200, u32::MAX, u32::MAX])?
            } else {
                u32::MAX
            },
            client_topic_alias_maximum: if version.is_v5() { *input.choose(&[0, 1, 3, u16::MAX])? } else { 0 },
            topic_alias_maximum: if version.is_v5() { *input.choose(&[0, 2, u16::MAX])? } else { 0 },
            packet: (&Limits { max_topic_levels: self.max_levels, ..Limits::default() }).into(),
            ..Terms::default()
        })
    }

    fn connect(&mut self, terms: Terms) {
        self.lose_connection();
        self.connection += 1;
        self.resent = 0;
        self.outbox = Outbox::new(terms.version);
        self.outbox.set_maximum_packet_size(terms.maximum_packet_size);
        self.widest = self.widest.max(usize::from(terms.send_maximum));
        let too_large = self.session.connected(terms.clone(), self.now, &mut self.outbox);
        self.cursor = self.session.log().head() + 1;
        let sent = read(&take(&mut self.outbox), &terms);
        self.link = Some(Link::new(terms));
        self.give_up_too_large(&too_large);
        for one in sent {
            match one {
                Sent::Publish { dup, .. } => {
                    assert!(dup, "sent again without DUP: {one:?}");
                    self.sent_again(&one);
                }
                Sent::Ack { kind: AckKind::PubRel, id, failed: false } => {
                    let is_it = |(_, one): &(&Number, &Exchange)| {
                        let logged = matches!(one.delivery.source, Source::Log { .. });
                        one.id == Some(id) && one.taken && !one.done && !logged
                    };
                    let (number, _) = self.exchanges.iter().find(is_it).expect("PUBREL of an exchange");
                    self.link.as_mut().unwrap().released.insert(id, *number);
                }
                other => panic!("{other:?} right after CONNACK"),
            }
        }
    }

    /// They are complete [MQTT-3.1.2-25]: exactly those that do not fit.
    fn give_up_too_large(&mut self, sources: &[Source]) {
        let mut given_up = 0;
        for exchange in self.exchanges.values_mut().filter(|one| one.sent_or_held() && !one.taken && !one.done) {
            let of_session = match exchange.delivery.source {
                Source::Direct => true,
                Source::Lease { kept, .. } => kept || exchange.delivery.qos == QoS::ExactlyOnce,
                Source::Log { .. } => false,
            };
            if of_session && !self.outbox.takes(&outgoing(&exchange.delivery, self.now)) {
                exchange.done = true;
                given_up += 1;
                if let Source::Lease { seq, .. } = exchange.delivery.source {
                    self.leases.remove(&seq);
                }
            }
        }
        assert_eq!(sources.len(), given_up, "{sources:?}");
    }

    fn lose_connection(&mut self) {
        if let Some(link) = self.link.take() {
            self.session.disconnected();
            for id in &link.unheard {
                self.received.remove(id);
            }
            self.received.values_mut().for_each(|now| *now = false);
            assert_eq!(self.session.waiting(), 0);
        }
    }

    fn receive(&mut self, packet: Packet<'_>, input: &mut Unstructured<'_>) -> Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if let Packet::Ack(kind @ (AckKind::PubAck | AckKind::PubRec | AckKind::PubComp), ack) = packet {
            let id = ack.packet_id.get();
            let early = link.is_held(id) || kind == AckKind::PubComp && link.is_releasing(id);
            link.honest &= !early;
        }
        let forbidden = self.forbidden(&packet);
        let durable = input.ratio(3, 4).unwrap_or(true);
        let refuses = input.ratio(1, 8).unwrap_or(false);
        let result = self.session.receive(packet.clone(), self.now, &mut self.outbox);
        let sent = self.drain();
        match result {
            Err(violation) => {
                match violation {
                    Violation::ReceiveMaximumExceeded(_)
                    | Violation::TopicAliasInvalid(_)
                    | Violation::TopicAliasUnknown(_)
                    | Violation::TooManyLevels(_) => {
                        assert_eq!(forbidden, Some(violation.reason()), "{violation} of {packet:?}");
                    }
                    Violation::WrongAcknowledgement(id) => assert!(!self.fits(&packet), "{packet:?} of {id} fits"),
                    _ => assert!(
                        !matches!(packet, Packet::Publish(_) | Packet::Ack(..) | Packet::PingReq),
                        "{violation}"
                    ),
                }
                self.lose_connection();
                return Ok(());
            }
            Ok(request) => {
                assert_eq!(forbidden, None, "{packet:?}");
                if let (Packet::Publish(Publish { topic, topic_alias: Some(alias), .. }), Some(link)) =
                    (&packet, &mut self.link)
                    && !topic.is_empty()
                {
                    link.aliases.insert(alias.get(), (*topic).to_owned());
                }
                self.answer(&packet, request, durable, refuses);
            }
        }
        for one in sent {
            match one {
                Sent::PingResp => assert_eq!(packet, Packet::PingReq),
                Sent::Publish { dup: true, .. } => self.sent_again(&one),
                other => panic!("{other:?} in answer to {packet:?}"),
            }
        }
        let keep_alive = self.session.terms().map_or(0, |terms| terms.keep_alive_secs);
        let deadline = (keep_alive > 0).then(|| self.now.plus_millis(u64::from(keep_alive) * 1500));
        assert!(self.link.is_none() || self.session.keep_alive_deadline() == deadline);
        Ok(())
    }

    /// Whether it is what a message in flight waits for [MQTT-4.3.2-4], [MQTT-4.3.3-8].
    fn fits(&self, packet: &Packet<'_>) -> bool {
        let (Packet::Ack(kind, ack), Some(link)) = (packet, self.link.as_ref().filter(|link| link.honest)) else {
            return false;
        };
        let id = ack.packet_id.get();
        link.in_flight.get(&id).is_some_and(|flight| match kind {
            AckKind::PubAck => flight.qos == QoS::AtLeastOnce,
            AckKind::PubRec => flight.qos == QoS::ExactlyOnce,
            AckKind::PubComp => flight.released,
            AckKind::PubRel => true,
        })
    }

    /// Why a PUBLISH must end the connection [MQTT-3.3.4-8], [MQTT-3.3.2-9], and the limit on levels.
    fn forbidden(&self, packet: &Packet<'_>) -> Option<ReasonCode> {
        let (Packet::Publish(publish), Some(link)) = (packet, &self.link) else { return None };
        let alias = publish.topic_alias.map(NonZeroU16::get);
        let topic = match alias {
            Some(alias) if alias > link.terms.topic_alias_maximum => return Some(ReasonCode::TopicAliasInvalid),
            Some(alias) if publish.topic.is_empty() => match link.aliases.get(&alias) {
                Some(topic) => topic.as_str(),
                None => return Some(ReasonCode::ProtocolError),
            },
            _ => publish.topic,
        };
        if publish.retain && topic.split('/').count() > usize::from(self.max_levels.get()) {
            return Some(ReasonCode::TopicNameInvalid);
        }
        let id = publish.packet_id?.get();
        let open = link.unacknowledged + self.received.values().filter(|now| **now).count();
        let known = publish.qos == QoS::ExactlyOnce && self.received.get(&id) == Some(&true);
        let full = link.version().is_v5() && open >= usize::from(link.terms.receive_maximum) && !known;
        full.then_some(ReasonCode::ReceiveMaximumExceeded)
    }

    /// What the broker does for a request.
    fn answer(&mut self, packet: &Packet<'_>, request: Request<'_>, durable: bool, refuses: bool) {
        let reason = if refuses { ReasonCode::NotAuthorized } else { ReasonCode::Success };
        match request {
            Request::Nothing => self.nothing(packet),
            Request::Publish { publish, alias } => self.accept(&publish, alias.as_ref(), reason, durable),
            Request::Duplicate(id) => {
                assert!(self.received.insert(id.get(), true).is_some(), "{id} is no duplicate");
                self.reply(Reply::Ack(AckKind::PubRec, id, ReasonCode::Success), durable);
            }
            Request::Release(id) => {
                assert!(self.received.remove(&id.get()).is_some(), "{id} was not received");
                self.reply(Reply::Ack(AckKind::PubComp, id, ReasonCode::Success), durable);
            }
            Request::Subscribe(subscribe) => {
                let reasons = subscribe.filters.iter().map(|(filter, _)| match filter {
                    Ok(_) => ReasonCode::GrantedQoS1,
                    Err(_) => ReasonCode::TopicFilterInvalid,
                });
                let reasons = reasons.collect();
                self.reply(Reply::SubAck(SubAck { packet_id: subscribe.packet_id, reasons }), durable);
            }
            Request::Unsubscribe(unsubscribe) => {
                let reasons = vec![ReasonCode::Success; unsubscribe.filters.len()];
                self.reply(Reply::UnsubAck(SubAck { packet_id: unsubscribe.packet_id, reasons }), durable);
            }
            Request::Settled(settled) => self.settled(packet, settled),
            Request::Disconnect(_) => self.lose_connection(),
            Request::Authenticate { .. } => panic!("CONNECT named no Authentication Method"),
        }
    }

    fn reply(&mut self, reply: Reply, durable: bool) {
        let link = self.link.as_mut().expect("online");
        match &reply {
            Reply::Ack(kind, id, reason) => {
                if *kind == AckKind::PubRec && reason.is_failure() && link.version().is_v5() {
                    link.unheard.push(id.get());
                }
                link.awaits(What::Ack(*kind), id.get(), durable);
            }
            Reply::SubAck(ack) => link.awaits(What::SubAck, ack.packet_id.get(), durable),
            Reply::UnsubAck(ack) => link.awaits(What::UnsubAck, ack.packet_id.get(), durable),
            Reply::Publish(..) => panic!("the session queues it"),
        }
        self.session.acknowledge(reply, durable);
    }

    fn accept(&mut self, publish: &Publish<'_>, alias: Option<&TopicName>, reason: ReasonCode, durable: bool) {
        let link = self.link.as_mut().expect("online");
        if let Some(number) = publish.topic_alias {
            assert_eq!(alias.map(TopicName::as_str), link.aliases.get(&number.get()).map(String::as_str));
        }
        let Some(id) = publish.packet_id else { return };
        if publish.qos == QoS::AtLeastOnce {
            link.unacknowledged += 1;
            return self.reply(Reply::Ack(AckKind::PubAck, id, reason), durable);
        }
        assert_eq!(self.received.insert(id.get(), true), None, "{id} was published twice");
        self.reply(Reply::Ack(AckKind::PubRec, id, reason), durable);
    }

    fn nothing(&mut self, packet: &Packet<'_>) {
        let link = self.link.as_mut().expect("online");
        let Packet::Ack(kind, ack) = packet else { return assert_eq!(*packet, Packet::PingReq) };
        let id = ack.packet_id.get();
        let flight = link.in_flight.get(&id).filter(|_| link.honest);
        match kind {
            AckKind::PubRel => {
                assert!(!self.received.contains_key(&id), "{id} is to be released");
                link.awaits(What::Ack(AckKind::PubComp), id, false);
            }
            AckKind::PubRec => {
                assert!(flight.is_none_or(|one| one.qos != QoS::ExactlyOnce || one.released), "PUBREC of {id} is lost");
                // One that refuses what is not known leaves nothing to release [MQTT-4.3.3-4].
                let answered = self.session.waiting() > link.answers.len();
                assert!(answered || ack.reason.is_failure(), "PUBREC of {id} is not answered");
                if answered {
                    link.awaits(What::Ack(AckKind::PubRel), id, false);
                }
            }
            AckKind::PubAck => {
                assert!(flight.is_none_or(|one| one.qos != QoS::AtLeastOnce), "PUBACK of {id} is lost");
            }
            AckKind::PubComp => {
                assert!(flight.is_none_or(|one| !one.released), "PUBCOMP of {id} is lost");
                assert!(!link.honest || !link.released.contains_key(&id), "PUBCOMP of {id} is lost");
            }
        }
    }

    fn settled(&mut self, packet: &Packet<'_>, settled: Settled) {
        let Packet::Ack(kind, ack) = packet else { panic!("{packet:?} settles {settled:?}") };
        let id = ack.packet_id.get();
        assert_eq!(settled.packet_id.get(), id);
        let number = self.number_of(id, settled.source);
        let link = self.link.as_mut().expect("online");
        let exchange = self.exchanges.get_mut(&number).expect("an exchange");
        assert!(
            same_source(settled.source, exchange.delivery.source),
            "{settled:?} for {:?}",
            exchange.delivery.source
        );
        let fits = match kind {
            AckKind::PubAck => exchange.delivery.qos == QoS::AtLeastOnce && settled.complete,
            AckKind::PubRec => exchange.delivery.qos == QoS::ExactlyOnce && settled.complete == ack.reason.is_failure(),
            AckKind::PubComp => exchange.taken && settled.complete,
            AckKind::PubRel => false,
        };
        assert!(fits && !exchange.done, "{packet:?} settles {settled:?}");
        if settled.complete {
            exchange.done = true;
            link.in_flight.remove(&id);
            link.released.remove(&id);
            return self.end_source(settled.source);
        }
        exchange.taken = true;
        exchange.id = Some(id);
        if let Some(flight) = link.in_flight.get_mut(&id) {
            flight.released = true;
        }
        let durable = match settled.source {
            Source::Direct => false,
            Source::Lease { logged, .. } => logged,
            Source::Log { seq, .. } => {
                let packet_id = self.session.log().open(seq).map_or(0, |open| open.packet_id);
                self.session.log().set_open(seq, Open { packet_id, released: true });
                true
            }
        };
        self.reply(Reply::Ack(AckKind::PubRel, ack.packet_id, ReasonCode::Success), durable);
    }

    /// The message of that source, or of that id where no log holds it.
    fn number_of(&self, id: u16, source: Source) -> Number {
        let is_it =
            |one: &Exchange| one.delivery.source == Source::Direct && one.id == Some(id) && one.sent && !one.done;
        let found = match source {
            Source::Log { seq, .. } => self.log.get(&seq),
            Source::Lease { seq, .. } => self.leases.get(&seq),
            Source::Direct => self.exchanges.iter().find(|(_, one)| is_it(one)).map(|(number, _)| number),
        };
        *found.expect("a message of that source")
    }

    fn end_source(&mut self, source: Source) {
        match source {
            Source::Direct => {}
            Source::Log { seq, size, .. } => drop(self.session.log().settle(seq, size)),
            Source::Lease { seq, .. } => drop(self.leases.remove(&seq)),
        }
    }

    /// A new message: for the log, from a group, or for this client alone.
    fn offer_new(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let qos = *input.choose(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::ExactlyOnce])?;
        let len = *input.choose(&[0, 0, 0, 100, 10_000])?;
        let expires = if input.ratio(1, 8)? { Some(self.now.plus_secs(input.int_in_range(0..=9)?)) } else { None };
        let number = self.exchanges.len() as Number + 1;
        let source = match input.int_in_range(0..=3)? {
            0..=1 if qos != QoS::AtMostOnce && self.session.logged => {
                self.log.insert(self.next_seq, number);
                self.next_seq += 1;
                Source::Log { seq: self.next_seq - 1, body: 0, size: 1 }
            }
            2 if qos != QoS::AtMostOnce => {
                self.leases.insert(number, number);
                Source::Lease {
                    group: 9,
                    seq: number,
                    again: false,
                    logged: input.arbitrary()?,
                    kept: input.ratio(1, 4)?,
                }
            }
            _ => Source::Direct,
        };
        let message = Message {
            topic: TopicName::parse(input.choose(TOPICS)?).expect("a topic"),
            payload: payload(number, len),
            qos,
            retain: false,
            properties: Box::default(),
            expires_at: expires,
            publisher: 0,
        };
        let delivery = Delivery { message: Arc::new(message), qos, retain: false, subscription_ids: None, source };
        self.exchanges.insert(
            number,
            Exchange { delivery, id: None, connection: 0, order: 0, sent: false, taken: false, done: false },
        );
        if source == Source::Direct && matches!(self.deliver(number), None | Some(Delivered::Full)) {
            // The mailbox is not part of this.
            self.exchanges.get_mut(&number).expect("just made").done = true;
        }
        Ok(())
    }

    fn offer_log(&mut self) {
        let Some((&seq, &number)) = self.log.range(self.cursor..).next() else { return };
        match self.deliver(number) {
            None | Some(Delivered::Full) => {}
            Some(_) => self.cursor = seq + 1,
        }
    }

    fn offer_lease(&mut self) {
        let unknown =
            self.leases.iter().find(|(_, number)| !self.session.knows(self.exchanges[*number].delivery.source));
        let Some((_, &number)) = unknown else { return };
        let exchange = self.exchanges.get_mut(&number).expect("an exchange");
        if let Source::Lease { again, .. } = &mut exchange.delivery.source {
            *again = exchange.sent;
        }
        self.deliver(number);
    }

    /// None where nobody is there.
    fn deliver(&mut self, number: Number) -> Option<Delivered> {
        self.link.as_ref()?;
        let delivery = self.exchanges[&number].delivery.clone();
        let known = self.session.knows(delivery.source);
        let delivered = self.session.deliver(&delivery, self.now, &mut self.outbox);
        let sent = self.drain();
        assert_eq!(sent.len(), usize::from(delivered == Delivered::Sent), "{delivered:?} sends {sent:?}");
        assert_eq!(delivered == Delivered::Known, known);
        let link = self.link.as_mut()?;
        let exchange = self.exchanges.get_mut(&number)?;
        if matches!(delivered, Delivered::Sent | Delivered::Record { .. }) {
            self.taken += 1;
            exchange.order = self.taken;
        }
        match delivered {
            Delivered::Sent => match &sent[0] {
                one @ Sent::Publish { .. } => self.published(one),
                Sent::Ack { kind: AckKind::PubRel, id, failed: false } => {
                    assert!(exchange.taken && exchange.id == Some(*id), "PUBREL {id} of {number}");
                    link.released.insert(*id, number);
                }
                other => panic!("{other:?} for {delivery:?}"),
            },
            Delivered::Known | Delivered::Full => {}
            Delivered::Lost => panic!("no QoS 0 message stands in a log here: {delivery:?}"),
            Delivered::Expired | Delivered::TooLarge => {
                let expired = delivered == Delivered::Expired;
                assert!(
                    !expired || delivery.message.is_expired(self.now) && !exchange.sent,
                    "what was sent is completed"
                );
                exchange.done = true;
                self.end_source(delivery.source);
            }
            Delivered::Record { packet_id } => {
                assert!(exchange.id.is_none_or(|id| delivery.qos != QoS::ExactlyOnce || id == packet_id.get()));
                exchange.id = Some(packet_id.get());
                link.awaits(What::Held(number), packet_id.get(), true);
                if let Source::Log { seq, .. } = delivery.source {
                    self.session.log().set_open(seq, Open { packet_id: packet_id.get(), released: false });
                }
            }
        }
        Some(delivered)
    }

    fn sent_again(&mut self, sent: &Sent) {
        if let Sent::Publish { number, .. } = sent {
            let order = self.exchanges[number].order;
            assert!(self.resent < order, "{number} comes again too late");
            self.resent = order;
        }
        self.published(sent);
    }

    fn published(&mut self, sent: &Sent) {
        let Sent::Publish { id, number, qos, dup, topic, alias, expiry_secs } = sent else { panic!("{sent:?}") };
        let link = self.link.as_mut().expect("online");
        let exchange = self.exchanges.get_mut(number).expect("an exchange");
        assert_eq!(link.resolve(topic, *alias), exchange.delivery.message.topic.as_str());
        assert_eq!(*qos, exchange.delivery.qos);
        if link.honest {
            assert!(!exchange.done && !exchange.taken, "{number} is sent again after its acknowledgement");
            assert_ne!(exchange.connection, self.connection, "{number} is sent twice on one connection");
            assert!(!exchange.sent || *dup, "{number} is sent again without DUP");
            let same = *qos != QoS::ExactlyOnce || exchange.id.is_none_or(|before| before == *id);
            assert!(same, "{number} was known by {:?} and comes under {id}", exchange.id);
        }
        let left = exchange.delivery.message.expiry_secs_left(self.now).filter(|_| link.version().is_v5());
        assert_eq!(*expiry_secs, left);
        (exchange.sent, exchange.connection) = (true, self.connection);
        if *qos == QoS::AtMostOnce {
            exchange.done = true;
            return;
        }
        exchange.id = Some(*id);
        link.published(*id, Flight { number: *number, qos: *qos, released: false });
    }

    /// What was queued as durable goes into one more commit.
    fn ticket(&mut self) {
        self.commits.written += 1;
        let lsn = self.commits.written;
        self.session.ticket(lsn);
        for answer in self.link.iter_mut().flat_map(|link| &mut link.answers).filter(|one| one.durable && one.lsn == 0)
        {
            answer.lsn = lsn;
        }
    }

    /// Answers leave in order, none before its commit, and none stays that may leave [MQTT-4.6.0-2].
    fn release(&mut self) {
        if self.link.is_none() {
            return;
        }
        let commits = &self.commits;
        let result = self.session.release(|lsn| commits.outcome(lsn), self.now, &mut self.outbox);
        for one in self.drain() {
            let answer = self.link.as_mut().and_then(|link| link.answers.pop_front()).expect("an answer that is due");
            let failed = self.failed(answer).expect("an answer before its commit");
            self.left(answer.what, answer.id, failed, &one);
        }
        let link = self.link.as_mut().expect("online");
        match result {
            Ok(()) => {
                assert_eq!(self.session.waiting(), link.answers.len());
                assert!(link.answers.front().copied().is_none_or(|one| self.failed(one).is_none()), "an answer stays");
            }
            Err(violation) => {
                let answer = link.answers.pop_front().expect("an answer that could not leave");
                match violation {
                    Violation::AnswerTooLarge => assert!(matches!(answer.what, What::SubAck | What::UnsubAck)),
                    other => assert_eq!((other, self.failed(answer)), (Violation::NotDurable, Some(true))),
                }
                self.lose_connection();
            }
        }
    }

    /// Whether what the answer stands for failed; none while that is not known.
    fn failed(&self, answer: Answer) -> Option<bool> {
        use pinnace::session::Commit;
        match (answer.durable, answer.lsn) {
            (false, _) => Some(false),
            (true, 0) => None,
            (true, lsn) => match self.commits.outcome(lsn) {
                Commit::Pending => None,
                Commit::Done => Some(false),
                Commit::Failed => Some(true),
            },
        }
    }

    fn left(&mut self, what: What, id: u16, failed: bool, sent: &Sent) {
        let link = self.link.as_mut().expect("online");
        match (what, sent) {
            (What::Ack(kind), Sent::Ack { kind: other, id: of, failed: refused }) if (kind, id) == (*other, *of) => {
                assert!(!failed || *refused, "{sent:?} though the commit failed");
                match kind {
                    AckKind::PubAck => link.unacknowledged -= 1,
                    AckKind::PubRec if *refused => {
                        self.received.remove(&id);
                        link.unheard.iter().position(|of| *of == id).map(|at| link.unheard.remove(at));
                    }
                    _ => {}
                }
            }
            (What::SubAck, Sent::SubAck(of)) | (What::UnsubAck, Sent::UnsubAck(of)) if *of == id => {}
            (What::Held(number), Sent::Publish { number: of, .. }) if *of == number && !failed => self.published(sent),
            other => panic!("{sent:?} where {other:?} is next"),
        }
    }

    /// The log of the session gets many entries that are trimmed already: packet ids begin anew.
    fn jump(&mut self) {
        if self.session.logged && self.jumps < 2 && self.cursor == self.next_seq {
            self.jumps += 1;
            let to = self.next_seq + 32_766;
            self.session.log().settle_up_to(self.next_seq, to);
            (self.next_seq, self.cursor) = (to, to);
        }
    }

    fn drain(&mut self) -> Vec<Sent> {
        let bytes = take(&mut self.outbox);
        let none = Terms::default();
        read(&bytes, self.session.terms().unwrap_or(&none))
    }

    /// Memory is bounded by what the connections agreed on.
    fn check(&self) {
        assert!(self.session.in_flight() <= self.widest, "{} in flight", self.session.in_flight());
        let waiting = self.link.as_ref().map_or(0, |link| link.answers.len());
        assert_eq!(self.session.waiting(), waiting);
        if let Some(link) = self.link.as_ref().filter(|link| link.honest) {
            assert!(self.session.room() <= usize::from(link.terms.send_maximum) - link.in_flight.len());
        }
    }

    /// A well-behaved client comes, and all commits succeed: nothing may be left.
    pub fn calm(&mut self) {
        let mut none = Unstructured::new(&[]);
        let terms = Terms { version: Version::V5, session_expiry_secs: self.session.expiry_secs, ..Terms::default() };
        (self.widest, self.max_levels) = (usize::from(terms.send_maximum), NonZeroU16::MAX);
        self.connect(terms);
        let mut rounds = 0;
        while self.is_busy() {
            rounds += 1;
            assert!(rounds <= 10 + 4 * self.exchanges.len(), "it does not come to rest");
            loop {
                let before = self.cursor;
                self.offer_log();
                if self.cursor == before {
                    break;
                }
            }
            self.offer_lease();
            self.ticket();
            while self.commits.done < self.commits.written {
                self.commits.decide(false);
            }
            self.release();
            let link = self.link.as_ref().expect("online");
            let mut due: Vec<(AckKind, u16)> = self.received.keys().map(|id| (AckKind::PubRel, *id)).collect();
            due.extend(link.released.keys().map(|id| (AckKind::PubComp, *id)));
            due.extend(link.in_flight.iter().map(|(id, flight)| match flight {
                Flight { qos: QoS::AtLeastOnce, .. } => (AckKind::PubAck, *id),
                Flight { released: false, .. } => (AckKind::PubRec, *id),
                _ => (AckKind::PubComp, *id),
            }));
            for (kind, id) in due {
                let ack = Ack { packet_id: id_of(id), reason: ReasonCode::Success };
                self.receive(Packet::Ack(kind, ack), &mut none).expect("no input is needed");
            }
            self.check();
        }
        assert_eq!((self.session.in_flight(), self.session.waiting()), (0, 0));
        assert_eq!(self.session.log().head(), self.next_seq - 1, "a log that is worked through");
        for (number, exchange) in &self.exchanges {
            assert!(exchange.done, "message {number} is lost: {:?}", exchange.delivery.source);
        }
    }

    fn is_busy(&self) -> bool {
        let link = self.link.as_ref().expect("online");
        !(link.answers.is_empty()
            && link.in_flight.is_empty()
            && link.released.is_empty()
            && self.received.is_empty()
            && self.leases.is_empty()
            && self.log.range(self.cursor..).next().is_none())
    }
}

impl Exchange {
    /// The session has it in flight, perhaps from an earlier connection.
    fn sent_or_held(&self) -> bool {
        self.sent || self.id.is_some()
    }
}

fn same_source(one: Source, other: Source) -> bool {
    match (one, other) {
        (Source::Direct, Source::Direct) => true,
        (Source::Log { seq: one, .. }, Source::Log { seq: other, .. })
        | (Source::Lease { seq: one, .. }, Source::Lease { seq: other, .. }) => one == other,
        _ => false,
    }
}

fn outgoing(delivery: &Delivery, now: Timestamp) -> Outgoing<'_> {
    Outgoing {
        message: &delivery.message,
        qos: delivery.qos,
        retain: delivery.retain,
        dup: true,
        packet_id: Some(PacketId::MIN),
        subscription_ids: &[],
        topic_alias: None,
        now,
    }
}

fn id_of(id: u16) -> PacketId {
    PacketId::new(id).expect("not zero")
}
