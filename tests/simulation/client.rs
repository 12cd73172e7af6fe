//! A client that keeps the protocol to the letter, and checks that the broker does.
//!
//! Must not know the broker's inside: it has a stream of bytes.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    num::NonZeroU16,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use pinnace::mqtt::{
    Filter, Packet, PacketId, QoS, ReasonCode, Version,
    codec::{self, Sender},
    frame::{self, Cut},
    packet::{
        Ack, AckKind, ConnAck, Connect, Disconnect, Publish, RetainHandling, SubAck, Subscribe, SubscriptionOptions,
        Unsubscribe,
    },
};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use super::model::{Came, Model, Number, Who, matches};

pub struct Client {
    pub index: usize,
    pub name: String,
    pub version: Version,
    pub persistent: bool,
    pub receive_maximum: u16,
    /// The group that it is a member of; it then subscribes to nothing else.
    pub group: Option<&'static str>,
    pub link: Option<Link>,
    /// Grows when its session ends, or may have ended.
    pub life: u32,
    /// Whether the broker must have a session of it.
    pub present: Option<bool>,
    /// It sent a CONNECT with Clean Start 1 and does not know what came of it.
    pub must_start_clean: bool,
    pub reads: bool,
    pub acknowledges: bool,
    pub subscriptions: BTreeMap<&'static str, Subscribed>,
    outgoing: VecDeque<Outgoing>,
    spans: u64,
    /// QoS 2 ids received and not released, with what came under them.
    received: HashMap<u16, Number>,
    /// Filters that it asked for in this life, with the steps.
    asked: Vec<(&'static str, u64)>,
    /// What came with RETAIN.
    pub retained: BTreeMap<String, Number>,
}

/// A connection.
pub struct Link {
    stream: DuplexStream,
    input: Vec<u8>,
    output: Vec<u8>,
    pub connected: bool,
    /// Acknowledgements that it has not sent yet.
    held: VecDeque<(AckKind, u16)>,
    /// What the broker must answer next, of PUBLISHes.
    awaited: VecDeque<(AckKind, u16)>,
    /// What came live, by topic.
    live: HashMap<String, Vec<Number>>,
    /// Packet ids of deliveries that it has not acknowledged.
    in_flight: HashMap<u16, QoS>,
    subscribing: HashMap<u16, &'static str>,
    window: usize,
    /// Of the broker that it is to.
    starts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribed {
    pub qos: QoS,
    /// SUBACK came, and no UNSUBSCRIBE was sent since.
    pub stands: bool,
    /// The last SUBSCRIBE.
    id: u16,
    /// Names the time from the first SUBSCRIBE to an UNSUBSCRIBE, or to the end of the session.
    pub span: u64,
}

#[derive(Debug, Clone, Copy)]
struct Outgoing {
    id: u16,
    number: Option<Number>,
    topic: &'static str,
    qos: QoS,
    /// Of a retained one.
    retained: Option<u64>,
    padding: usize,
    /// PUBREC came.
    released: bool,
}

impl Client {
    pub fn new(index: usize, version: Version, persistent: bool, receive_maximum: u16) -> Self {
        Self {
            index,
            name: format!("client-{index}"),
            version,
            persistent,
            receive_maximum,
            group: None,
            link: None,
            life: 0,
            present: Some(false),
            must_start_clean: false,
            reads: true,
            acknowledges: true,
            subscriptions: BTreeMap::new(),
            outgoing: VecDeque::new(),
            spans: 0,
            received: HashMap::new(),
            asked: Vec::new(),
            retained: BTreeMap::new(),
        }
    }

    pub fn is_connected(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.connected)
    }

    pub fn has_unacknowledged(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Begins a connection over `stream`; one that it has is left as it is.
    pub fn connect(&mut self, stream: DuplexStream, clean_start: bool, model: &mut Model) {
        self.disconnected(model);
        let v5 = self.version.is_v5();
        // In MQTT 3 the session would end with the connection.
        let clean = clean_start && v5 || self.must_start_clean;
        if clean && self.persistent {
            self.session_ends(model);
            self.must_start_clean = true;
            self.present = None;
        }
        let connect = Connect {
            version: self.version,
            clean_start: clean || (!self.persistent && !v5),
            keep_alive_secs: 0,
            client_id: self.name.clone(),
            will: None,
            username: None,
            password: None,
            session_expiry_secs: if self.persistent { u32::MAX } else { 0 },
            receive_maximum: NonZeroU16::new(if v5 { self.receive_maximum } else { u16::MAX }).expect("not zero"),
            maximum_packet_size: u32::MAX,
            topic_alias_maximum: 0,
            request_response_information: false,
            request_problem_information: true,
            authentication_method: None,
            authentication_data: None,
        };
        self.link = Some(Link {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            connected: false,
            held: VecDeque::new(),
            awaited: VecDeque::new(),
            live: HashMap::new(),
            in_flight: HashMap::new(),
            subscribing: HashMap::new(),
            window: 20,
            starts: model.starts,
        });
        if self.present == Some(false) && self.persistent {
            self.present = None;
        }
        self.send(&Packet::Connect(Box::new(connect)));
    }

    /// Ends the connection, with a DISCONNECT or without.
    pub fn disconnect(&mut self, in_order: bool, model: &mut Model) {
        if in_order && self.is_connected() {
            self.send(&Packet::Disconnect(Disconnect::new(ReasonCode::Success)));
            self.flush();
        }
        self.disconnected(model);
    }

    /// The connection is gone.
    fn disconnected(&mut self, model: &mut Model) {
        if self.link.take().is_none() {
            return;
        }
        for subscribed in self.subscriptions.values_mut() {
            // What was being asked for may be so or not; it is asked for again before anything is owed.
            subscribed.stands &= self.persistent;
        }
        if !self.persistent {
            self.session_ends(model);
            self.present = Some(false);
        }
    }

    fn session_ends(&mut self, model: &mut Model) {
        self.life += 1;
        self.subscriptions.clear();
        self.outgoing.clear();
        self.received.clear();
        self.asked.clear();
        if let Some(group) = self.group {
            model.left(group, self.index);
        }
    }

    /// Publishes, if there is room for one more. `number` is none for a message without payload, which clears what is retained.
    pub fn can_publish(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.connected && self.outgoing.len() < link.window)
    }

    pub fn publish(
        &mut self,
        topic: &'static str,
        qos: QoS,
        number: Option<Number>,
        retained: Option<u64>,
        padding: usize,
        model: &mut Model,
    ) {
        let id = if qos == QoS::AtMostOnce { 0 } else { self.free_id() };
        let outgoing = Outgoing { id, number, topic, qos, retained, padding, released: false };
        if qos != QoS::AtMostOnce {
            self.outgoing.push_back(outgoing);
        }
        self.send_publish(outgoing, false, model);
    }

    pub fn subscribe(&mut self, filter: &'static str, qos: QoS, model: &Model) {
        let id = self.free_id();
        self.asked.push((filter, model.step));
        self.spans += 1;
        let before = self.subscriptions.get(filter);
        let (stands, span) = before.map_or((false, self.spans), |before| (before.stands, before.span));
        self.subscriptions.insert(filter, Subscribed { qos, stands, id, span });
        let options = SubscriptionOptions {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        let filters = vec![(Ok(Filter::parse(filter).expect("a filter")), options)];
        let packet_id = packet_id(id);
        self.send(&Packet::Subscribe(Subscribe { packet_id, subscription_id: None, filters }));
        self.link.as_mut().expect("connected").subscribing.insert(id, filter);
    }

    pub fn unsubscribe(&mut self, filter: &'static str, model: &mut Model) {
        let id = self.free_id();
        self.subscriptions.remove(filter);
        if let Some(group) = self.group {
            model.left(group, self.index);
        }
        let filters = vec![Ok(Filter::parse(filter).expect("a filter"))];
        self.send(&Packet::Unsubscribe(Unsubscribe { packet_id: packet_id(id), filters }));
        self.link.as_mut().expect("connected").subscribing.insert(id, "");
    }

    /// Reads what came and answers, writes what waits. Says whether anything moved.
    pub fn pump(&mut self, model: &mut Model) -> bool {
        let mut moved = false;
        if self.reads {
            moved |= self.read(model);
        }
        if self.acknowledges {
            while let Some((kind, id)) = self.link.as_mut().and_then(|link| link.held.pop_front()) {
                self.acknowledge(kind, id);
                moved = true;
            }
        }
        moved | self.flush()
    }

    fn read(&mut self, model: &mut Model) -> bool {
        let mut moved = false;
        loop {
            let Some(link) = &mut self.link else { return moved };
            let mut chunk = [0; 4096];
            let mut buffer = ReadBuf::new(&mut chunk);
            match Pin::new(&mut link.stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
                Poll::Pending => return moved,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => link.input.extend_from_slice(buffer.filled()),
                Poll::Ready(_) => {
                    self.disconnected(model);
                    return true;
                }
            }
            moved = true;
            self.take_packets(model);
        }
    }

    fn take_packets(&mut self, model: &mut Model) {
        while let Some(link) = &mut self.link {
            let input = std::mem::take(&mut link.input);
            let Cut::Whole(frame) = frame::cut(&input, u32::MAX).expect("well-formed") else {
                link.input = input;
                return;
            };
            link.input = input[frame.len..].to_vec();
            let packet = codec::decode(frame, self.version, Sender::Server).expect("well-formed");
            self.take(packet, model);
        }
    }

    fn take(&mut self, packet: Packet<'_>, model: &mut Model) {
        tracing::debug!("{} < {packet:?}", self.name);
        match packet {
            Packet::ConnAck(connack) => self.connack(&connack, model),
            Packet::Publish(publish) => self.received(&publish, model),
            Packet::Ack(AckKind::PubRel, ack) => {
                self.received.remove(&ack.packet_id.get());
                let link = self.link.as_mut().expect("connected");
                link.held.push_back((AckKind::PubComp, ack.packet_id.get()));
            }
            Packet::Ack(kind, ack) => self.acknowledged(kind, ack, model),
            Packet::SubAck(suback) => self.subscribed(&suback, model),
            Packet::UnsubAck(unsuback) => {
                let link = self.link.as_mut().expect("connected");
                assert!(link.subscribing.remove(&unsuback.packet_id.get()).is_some(), "UNSUBACK of nothing");
            }
            Packet::Disconnect(_) => self.disconnected(model),
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn connack(&mut self, connack: &ConnAck, model: &mut Model) {
        if connack.reason != ReasonCode::Success {
            self.disconnected(model);
            return;
        }
        let link = self.link.as_mut().expect("a connection");
        assert!(!link.connected, "a second CONNACK");
        link.connected = true;
        if let Some(most) = connack.properties.receive_maximum {
            link.window = usize::from(most).min(20);
        }
        if let Some(present) = self.present {
            assert_eq!(connack.session_present, present, "{}: session present", self.name);
        }
        assert!(!(self.must_start_clean && connack.session_present), "{}: a session after Clean Start", self.name);
        self.must_start_clean = false;
        self.present = Some(self.persistent);
        if !connack.session_present {
            self.subscriptions.clear();
            self.outgoing.clear();
            self.received.clear();
        }
        for outgoing in self.outgoing.clone() {
            if outgoing.released {
                self.send(&Packet::Ack(AckKind::PubRel, ack(outgoing.id)));
            } else {
                self.send_publish(outgoing, true, model);
            }
        }
    }

    fn received(&mut self, publish: &Publish<'_>, model: &mut Model) {
        let number = std::str::from_utf8(publish.payload).expect("text").split(' ').next().unwrap_or_default();
        let number: Option<Number> = number.parse().ok();
        let asked = self.asked.iter().filter(|(filter, _)| {
            let filter = if self.group.is_some() { filter.splitn(3, '/').nth(2).expect("a filter") } else { filter };
            matches(filter, publish.topic)
        });
        let asked_at: Vec<u64> = asked.map(|(_, step)| *step).collect();
        assert!(!asked_at.is_empty(), "{} never asked for {}", self.name, publish.topic);
        let mut known = false;
        if let Some(id) = publish.packet_id {
            let id = id.get();
            let most = if self.version.is_v5() { self.receive_maximum } else { u16::MAX };
            let link = self.link.as_mut().expect("connected");
            let before = link.in_flight.insert(id, publish.qos);
            assert!(before.is_none(), "{}: id {id} is in flight already", self.name);
            assert!(link.in_flight.len() <= usize::from(most), "{}: more in flight than {most}", self.name);
            if publish.qos == QoS::ExactlyOnce {
                link.held.push_back((AckKind::PubRec, id));
                let before = self.received.insert(id, number.unwrap_or(Number::MAX));
                known = before.is_some();
                assert!(
                    before.is_none_or(|before| before == number.unwrap_or(Number::MAX)),
                    "{}: {number:?} under id {id}, which stands for {before:?}",
                    self.name
                );
            } else {
                link.held.push_back((AckKind::PubAck, id));
            }
        }
        let Some(number) = number else { return };
        if publish.retain {
            self.retained.insert(publish.topic.to_owned(), number);
            // What was sent before is completed, however old it is.
            let live = self.link.as_ref().and_then(|link| link.live.get(publish.topic)).filter(|_| !publish.dup);
            model.retained_came(number, &asked_at, live.map_or(&[], Vec::as_slice));
        } else {
            if !publish.dup {
                let live = &mut self.link.as_mut().expect("connected").live;
                live.entry(publish.topic.to_owned()).or_default().push(number);
            }
            let link = self.link.as_ref().expect("connected");
            let who = Who {
                client: self.index,
                life: self.life,
                group: self.group,
                persistent: self.persistent,
                current: link.starts == model.starts,
            };
            model.came(who, Came { number, qos: publish.qos, dup: publish.dup, known });
        }
    }

    fn acknowledged(&mut self, kind: AckKind, ack: Ack, model: &mut Model) {
        let id = ack.packet_id.get();
        let link = self.link.as_mut().expect("connected");
        if kind != AckKind::PubComp {
            assert_eq!(link.awaited.pop_front(), Some((kind, id)), "{}: acknowledgements keep their order", self.name);
        }
        let Some(at) = self.outgoing.iter().position(|outgoing| outgoing.id == id) else {
            panic!("{}: {kind:?} of {id}, which is not in flight", self.name)
        };
        let outgoing = &mut self.outgoing[at];
        let taken = !ack.reason.is_failure();
        if kind != AckKind::PubComp && taken {
            if let Some(number) = outgoing.number {
                model.publications[number].acked = true;
            }
            if let Some(key) = outgoing.retained {
                model.retained_acked(key);
            }
        }
        if kind == AckKind::PubRec && taken {
            outgoing.released = true;
            self.send(&Packet::Ack(AckKind::PubRel, self::ack(id)));
        } else {
            self.outgoing.remove(at);
        }
    }

    fn subscribed(&mut self, suback: &SubAck, model: &mut Model) {
        let link = self.link.as_mut().expect("connected");
        let filter = link.subscribing.remove(&suback.packet_id.get()).expect("SUBACK of nothing");
        if suback.reasons[0].is_failure() {
            return;
        }
        if let Some(subscribed) = self.subscriptions.get_mut(filter).filter(|one| one.id == suback.packet_id.get()) {
            subscribed.stands = true;
            if self.group.is_some() {
                model.joined(filter, self.index, self.persistent);
            }
        }
    }

    fn acknowledge(&mut self, kind: AckKind, id: u16) {
        let link = self.link.as_mut().expect("connected");
        if kind != AckKind::PubRec {
            link.in_flight.remove(&id);
        }
        self.send(&Packet::Ack(kind, ack(id)));
    }

    fn send_publish(&mut self, outgoing: Outgoing, dup: bool, model: &mut Model) {
        let mut payload = outgoing.number.map_or_else(String::new, |number| format!("{number} "));
        if let Some(number) = outgoing.number {
            payload.extend(std::iter::repeat_n('x', outgoing.padding));
            model.publications[number].attempts += 1;
        }
        let publish = Publish {
            dup,
            qos: outgoing.qos,
            retain: outgoing.retained.is_some(),
            topic: outgoing.topic,
            packet_id: PacketId::new(outgoing.id),
            topic_alias: None,
            expiry_secs: None,
            payload_is_utf8: false,
            properties: Default::default(),
            subscription_ids: Vec::new(),
            payload: payload.as_bytes(),
        };
        let link = self.link.as_mut().expect("connected");
        match outgoing.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => link.awaited.push_back((AckKind::PubAck, outgoing.id)),
            QoS::ExactlyOnce => link.awaited.push_back((AckKind::PubRec, outgoing.id)),
        }
        self.send(&Packet::Publish(publish));
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let Some(link) = &mut self.link else { return };
        tracing::debug!("{} > {packet:?}", self.name);
        codec::encode(packet, self.version, &mut link.output).expect("it can be encoded");
    }

    fn flush(&mut self) -> bool {
        let Some(link) = &mut self.link else { return false };
        let mut moved = false;
        while !link.output.is_empty() {
            let stream = Pin::new(&mut link.stream);
            match stream.poll_write(&mut Context::from_waker(Waker::noop()), &link.output) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    link.output.drain(..written);
                    moved = true;
                }
                // A broken stream is seen when it is read.
                _ => break,
            }
        }
        moved
    }

    /// The lowest that is free, so that an id is used again soon.
    fn free_id(&self) -> u16 {
        let subscribing = |id| self.link.as_ref().is_some_and(|link| link.subscribing.contains_key(&id));
        (1..)
            .find(|id| !subscribing(*id) && self.outgoing.iter().all(|outgoing| outgoing.id != *id))
            .expect("a free id")
    }
}

fn ack(id: u16) -> Ack {
    Ack { packet_id: packet_id(id), reason: ReasonCode::Success }
}

fn packet_id(id: u16) -> PacketId {
    PacketId::new(id).expect("not zero")
}
