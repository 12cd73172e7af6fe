//! `kill -9` in the middle of streams of QoS 1 and QoS 2, round after round: every acknowledged message arrives, QoS 2 exactly once, in the
//! order of each publisher.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::support::{
    Broker, Client, Connect, Lost, PATIENCE, Packet, Random,
    client::publish_of,
    eventually,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish},
};

/// Rounds in which the receivers are away while messages are published, which is the case that stores everything.
const ROUNDS: u64 = 60;
/// Every so many rounds the receivers are there meanwhile.
const ONLINE_EVERY: u64 = 6;
const WINDOW: usize = 30;

/// Messages from publishers of both QoS and versions to two absent sessions, with a kill in the middle of each round; some rounds are killed
/// again while the sessions are being read.
#[test]
fn acknowledged_messages_survive_kills_in_the_middle() {
    let mut random = Random::seeded("acknowledged_messages_survive_kills_in_the_middle");
    let mut broker = Broker::start();
    let mut publishers: Vec<Publisher> = [(4, 1), (5, 1), (4, 2), (5, 2)]
        .iter()
        .enumerate()
        .map(|(n, (level, qos))| Publisher::new(n, *level, *qos))
        .collect();
    let mut sinks = [Sink::new("sink-2", 2, publishers.len()), Sink::new("sink-1", 1, publishers.len())];
    for sink in &sinks {
        sink.subscribe(&broker);
    }
    for round in 0..ROUNDS {
        let online = round % ONLINE_EVERY == ONLINE_EVERY - 1;
        stream_and_kill(
            &mut broker,
            &mut publishers,
            if online { &mut sinks } else { &mut [] },
            20 + random.below(300),
        );
        broker.restart();
        for sink in &mut sinks {
            if random.below(3) == 0 {
                sink.read(broker.address(), random.below(200) as usize);
                broker.kill9();
                broker.restart();
            }
        }
        let finish = round == ROUNDS - 1;
        if finish {
            for publisher in &mut publishers {
                publisher.finish(broker.address());
            }
        }
        if finish || random.below(2) == 0 {
            let mut marker = broker.v4("marker");
            marker.publish("load/marker", round.to_be_bytes(), 1);
            sinks.iter_mut().for_each(|sink| sink.drain(broker.address(), round, &publishers));
        }
    }
    let published: u64 = publishers.iter().map(|publisher| publisher.next).sum();
    println!("{published} messages over {ROUNDS} kills");
    for sink in &sinks {
        for publisher in &publishers {
            assert_eq!(
                sink.expected[publisher.index], publisher.next,
                "{} of publisher {}",
                sink.name, publisher.index
            );
        }
    }
}

/// Lets everybody stream until so many messages were acknowledged, then kills the broker.
fn stream_and_kill(broker: &mut Broker, publishers: &mut [Publisher], sinks: &mut [Sink], acknowledged: u64) {
    let (address, count) = (broker.address(), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        let streams: Vec<_> =
            publishers.iter_mut().map(|publisher| scope.spawn(move || publisher.stream(address, count))).collect();
        let readers: Vec<_> =
            sinks.iter_mut().map(|sink| scope.spawn(move || sink.read(address, usize::MAX))).collect();
        eventually("acknowledgements", || (count.load(Ordering::Relaxed) >= acknowledged).then_some(()));
        broker.kill9();
        for thread in streams.into_iter().chain(readers) {
            thread.join().unwrap();
        }
    });
}

/// How far a message of a publisher is.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// No acknowledgement yet.
    Sent,
    /// PUBREC came: PUBREL goes out.
    Received,
    /// Its handshake is over.
    Done,
}

/// A publisher with a persistent session, which resumes its handshakes as [MQTT-4.4.0-1] wants.
struct Publisher {
    index: usize,
    connect: Connect,
    qos: u8,
    /// The number of its next message.
    next: u64,
    /// What is not over, in order.
    open: VecDeque<(u16, u64, Step)>,
    connected_before: bool,
}

impl Publisher {
    fn new(index: usize, level: u8, qos: u8) -> Self {
        let connect = Connect::new(level, &format!("publisher-{index}")).persistent();
        Self { index, connect, qos, next: 0, open: VecDeque::new(), connected_before: false }
    }

    /// Publishes until the connection is lost.
    fn stream(&mut self, address: SocketAddr, acknowledged: &AtomicU64) {
        let Ok(mut client) = self.resume(address) else { return };
        loop {
            let mut bytes = Vec::new();
            while self.open.len() < WINDOW {
                let id = (self.next % 65_535) as u16 + 1;
                self.open.push_back((id, self.next, Step::Sent));
                bytes.extend(self.encode(id, self.next, false));
                self.next += 1;
            }
            if client.try_send(&bytes).is_err() || self.acknowledgement(&mut client, acknowledged).is_err() {
                return;
            }
        }
    }

    /// Brings every handshake to its end.
    fn finish(&mut self, address: SocketAddr) {
        let mut client = self.resume(address).expect("a connection");
        while !self.open.is_empty() {
            self.acknowledgement(&mut client, &AtomicU64::new(0)).expect("acknowledgements");
        }
        client.disconnect();
    }

    /// Connects and sends again what is not over.
    fn resume(&mut self, address: SocketAddr) -> Result<Client, Lost> {
        let mut client = Client::try_tcp(address)?;
        let connack = client.try_login(&self.connect)?;
        let Packet::ConnAck { session_present, code: 0, .. } = connack else { panic!("{connack:?}") };
        assert!(session_present || !self.connected_before, "the session of publisher {} is gone", self.index);
        self.connected_before = true;
        let mut bytes = Vec::new();
        for (id, number, step) in &self.open {
            match step {
                Step::Sent => bytes.extend(self.encode(*id, *number, true)),
                Step::Received => bytes.extend(wire::ack(PUBREL, *id)),
                Step::Done => {}
            }
        }
        client.try_send(&bytes)?;
        Ok(client)
    }

    /// Takes one acknowledgement.
    fn acknowledgement(&mut self, client: &mut Client, acknowledged: &AtomicU64) -> Result<(), Lost> {
        let Packet::Ack { kind, id, code, .. } = client.try_receive(PATIENCE)? else {
            panic!("not an acknowledgement")
        };
        // "Packet Identifier not found" is no error while a handshake is recovered (3.7.2.1): its PUBCOMP was lost.
        assert!(code < 0x80 || (kind == PUBCOMP && code == 0x92), "refused with {code:#x}");
        let open = self.open.iter_mut().find(|(open, ..)| *open == id).expect("an id that is in flight");
        match (kind, open.2) {
            (PUBACK, Step::Sent) | (PUBCOMP, Step::Received) => open.2 = Step::Done,
            (PUBREC, Step::Sent | Step::Received) => {
                open.2 = Step::Received;
                client.try_send(&wire::ack(PUBREL, id))?;
            }
            (kind, _) => panic!("an acknowledgement of kind {kind} at the wrong time"),
        }
        if kind != PUBCOMP {
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        while self.open.front().is_some_and(|(.., step)| *step == Step::Done) {
            self.open.pop_front();
        }
        Ok(())
    }

    fn encode(&self, id: u16, number: u64, dup: bool) -> Vec<u8> {
        let mut payload = number.to_be_bytes().to_vec();
        // Some are large enough to be stored once for both receivers.
        payload.resize(if number.is_multiple_of(7) { 3_000 } else { 40 }, self.index as u8);
        let topic = format!("load/{}", self.index);
        wire::publish(self.connect.level == 5, &Publish { id, dup, ..publish_of(&topic, payload, self.qos) })
    }
}

/// A receiver with a persistent session and a memory of its own, as a device with flash has.
struct Sink {
    name: &'static str,
    qos: u8,
    /// The next number of each publisher.
    expected: Vec<u64>,
    /// QoS 2 messages that are received and not released.
    unreleased: BTreeSet<u16>,
    marker: Option<u64>,
}

impl Sink {
    fn new(name: &'static str, qos: u8, publishers: usize) -> Self {
        Self { name, qos, expected: vec![0; publishers], unreleased: BTreeSet::new(), marker: None }
    }

    fn connect(&self) -> Connect {
        Connect::v5(self.name).persistent()
    }

    fn subscribe(&self, broker: &Broker) {
        let mut client = broker.connect(&self.connect());
        client.subscribe("load/#", self.qos);
        client.disconnect();
    }

    /// Reads so many messages at most, then cuts the connection; ends early where it is lost or nothing comes.
    fn read(&mut self, address: SocketAddr, count: usize) {
        // It may be killed before this reader has come.
        let Ok(mut client) = Client::try_tcp(address) else { return };
        match client.try_login(&self.connect()) {
            Ok(Packet::ConnAck { session_present: true, code: 0, .. }) => {}
            Err(Lost::Closed) => return,
            other => panic!("{}: {other:?}", self.name),
        }
        let patience = if count == usize::MAX { PATIENCE } else { Duration::from_millis(100) };
        for _ in 0..count {
            if self.take(&mut client, patience).is_err() {
                return;
            }
        }
    }

    /// Reads up to the marker of this round.
    fn drain(&mut self, address: SocketAddr, round: u64, publishers: &[Publisher]) {
        let mut client = Client::tcp(address).login(&self.connect());
        assert!(client.session_present(), "{}", self.name);
        while self.marker != Some(round) || !self.unreleased.is_empty() {
            if let Err(lost) = self.take(&mut client, PATIENCE) {
                let next: Vec<u64> = publishers.iter().map(|publisher| publisher.next).collect();
                panic!("{}: {lost:?} in round {round}; expects {:?} of {next:?}", self.name, self.expected);
            }
        }
        client.disconnect();
    }

    fn take(&mut self, client: &mut Client, patience: Duration) -> Result<(), Lost> {
        match client.try_receive(patience)? {
            Packet::Publish(publish) if publish.qos == 2 => {
                if self.unreleased.insert(publish.id) {
                    self.arrived(&publish);
                } else {
                    assert!(publish.dup, "an id that is not released yet, for a new message");
                }
                client.try_send(&wire::ack(PUBREC, publish.id))
            }
            Packet::Publish(publish) => {
                self.arrived(&publish);
                client.try_send(&wire::ack(PUBACK, publish.id))
            }
            Packet::Ack { kind: PUBREL, id, .. } => {
                self.unreleased.remove(&id);
                client.try_send(&wire::ack(PUBCOMP, id))
            }
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn arrived(&mut self, publish: &Publish) {
        let number = u64::from_be_bytes(publish.payload[..8].try_into().unwrap());
        if publish.topic == "load/marker" {
            self.marker = Some(number);
            return;
        }
        let publisher: usize = publish.topic["load/".len()..].parse().unwrap();
        let expected = &mut self.expected[publisher];
        let (name, dup) = (self.name, publish.dup);
        assert!(
            number <= *expected,
            "{name}: {number} of publisher {publisher} before {expected}: lost, or out of order"
        );
        let again = number < *expected;
        // A message that went out twice is the same one only at QoS 1, on either side.
        assert!(!again || publish.qos == 1, "{name}: {number} of publisher {publisher} twice at QoS 2, DUP {dup}");
        if !again {
            *expected += 1;
        }
    }
}
