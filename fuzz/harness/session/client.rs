//! What the client sees of one connection: what is in flight, which answers it waits for, and in what order.
//!
//! Must not know what the broker means by it.

use std::collections::{HashMap, VecDeque};

use pinnace::{
    mqtt::{
        Packet, QoS, Timestamp, Version,
        codec::{Sender, decode},
        frame::{Cut, cut},
        packet::AckKind,
    },
    session::{Commit, Terms},
};

/// The number of a message; it stands in its payload.
pub type Number = u64;

/// A connection as its client knows it.
pub struct Link {
    pub terms: Terms,
    /// Answers that are queued, in order.
    pub answers: VecDeque<Answer>,
    /// QoS 1 and 2 PUBLISHes of this connection that are not complete, by packet id.
    pub in_flight: HashMap<u16, Flight>,
    /// QoS 2 exchanges of earlier connections that go on with PUBREL.
    pub released: HashMap<u16, Number>,
    /// Topics by alias, as the client set them.
    pub aliases: HashMap<u16, String>,
    /// The same, as it was told them.
    told: HashMap<u16, String>,
    /// QoS 1 PUBLISHes of the client that PUBACK has not left for.
    pub unacknowledged: usize,
    /// QoS 2 ids whose PUBREC refuses them, and has not left: they are no duplicates on the next connection [MQTT-4.3.3-9].
    pub unheard: Vec<u16>,
    /// The client acknowledged what it was not sent: it has only itself to blame for packet ids.
    pub honest: bool,
}

/// An answer that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub what: What,
    pub id: u16,
    /// Waits for a commit: none is known yet where `lsn` is 0.
    pub durable: bool,
    pub lsn: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Ack(AckKind),
    SubAck,
    UnsubAck,
    /// A PUBLISH whose packet id must be recorded first.
    Held(Number),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flight {
    pub number: Number,
    pub qos: QoS,
    /// The client sent PUBREC.
    pub released: bool,
}

impl Link {
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            answers: VecDeque::new(),
            in_flight: HashMap::new(),
            released: HashMap::new(),
            aliases: HashMap::new(),
            told: HashMap::new(),
            unacknowledged: 0,
            unheard: Vec::new(),
            honest: true,
        }
    }

    pub fn version(&self) -> Version {
        self.terms.version
    }

    /// The topic of a PUBLISH that came [MQTT-3.1.2-26], [MQTT-3.3.2-8].
    pub fn resolve(&mut self, topic: &str, alias: Option<u16>) -> String {
        let Some(alias) = alias else { return topic.to_owned() };
        assert!((1..=self.terms.client_topic_alias_maximum).contains(&alias), "alias {alias}");
        if !topic.is_empty() {
            self.told.insert(alias, topic.to_owned());
        }
        self.told.get(&alias).cloned().expect("an alias that was set")
    }

    /// An answer is queued.
    pub fn awaits(&mut self, what: What, id: u16, durable: bool) {
        self.answers.push_back(Answer { what, id, durable, lsn: 0 });
    }

    /// Whether the client waits for a PUBLISH under this id.
    pub fn is_held(&self, id: u16) -> bool {
        self.answers.iter().any(|answer| answer.id == id && matches!(answer.what, What::Held(_)))
    }

    /// Whether a PUBREL for this id is queued.
    pub fn is_releasing(&self, id: u16) -> bool {
        self.answers.iter().any(|answer| answer.id == id && answer.what == What::Ack(AckKind::PubRel))
    }

    /// A PUBLISH above QoS 0 came: no id twice, no more than the client takes [MQTT-3.3.4-9].
    pub fn published(&mut self, id: u16, flight: Flight) {
        let before = self.in_flight.insert(id, flight);
        if !self.honest {
            return;
        }
        assert!(!self.released.contains_key(&id), "{id} is in use by an exchange whose PUBCOMP is due");
        assert_eq!(before, None, "{id} is in flight twice, now for {flight:?}");
        let most = usize::from(self.terms.send_maximum);
        assert!(self.in_flight.len() <= most, "{} in flight, and the client takes {most}", self.in_flight.len());
    }
}

/// What one operation sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Sent {
    Publish {
        id: u16,
        number: Number,
        qos: QoS,
        dup: bool,
        topic: String,
        alias: Option<u16>,
        expiry_secs: Option<u32>,
    },
    Ack {
        kind: AckKind,
        id: u16,
        failed: bool,
    },
    SubAck(u16),
    UnsubAck(u16),
    PingResp,
}

/// Reads `bytes` as the client does.
pub fn read(mut bytes: &[u8], terms: &Terms) -> Vec<Sent> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let Ok(Cut::Whole(frame)) = cut(bytes, terms.maximum_packet_size) else {
            panic!("no packet, or one that is larger than {}: {bytes:02x?}", terms.maximum_packet_size)
        };
        bytes = &bytes[frame.len..];
        all.push(match decode(frame, terms.version, Sender::Server).expect("well-formed") {
            Packet::Publish(publish) => Sent::Publish {
                id: publish.packet_id.map_or(0, u16::from),
                number: number(publish.payload),
                qos: publish.qos,
                dup: publish.dup,
                topic: publish.topic.to_owned(),
                alias: publish.topic_alias.map(u16::from),
                expiry_secs: publish.expiry_secs,
            },
            Packet::Ack(kind, ack) => Sent::Ack { kind, id: ack.packet_id.get(), failed: ack.reason.is_failure() },
            Packet::SubAck(ack) => Sent::SubAck(ack.packet_id.get()),
            Packet::UnsubAck(ack) => Sent::UnsubAck(ack.packet_id.get()),
            Packet::PingResp => Sent::PingResp,
            other => panic!("a session sends no {other:?}"),
        });
    }
    all
}

/// The payload of message `number`, of at least that many bytes.
pub fn payload(number: Number, len: usize) -> Box<[u8]> {
    let mut payload = format!("{number} ").into_bytes();
    payload.resize(len.max(payload.len()), b'x');
    payload.into()
}

fn number(payload: &[u8]) -> Number {
    let text = std::str::from_utf8(payload).expect("text");
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// The commits: what is done, and what failed.
#[derive(Default)]
pub struct Commits {
    /// The last that has a number.
    pub written: u64,
    pub done: u64,
    failed: Vec<u64>,
}

impl Commits {
    pub fn outcome(&self, lsn: u64) -> Commit {
        match () {
            () if lsn > self.done => Commit::Pending,
            () if self.failed.contains(&lsn) => Commit::Failed,
            () => Commit::Done,
        }
    }

    /// One more is decided.
    pub fn decide(&mut self, fails: bool) {
        if self.done < self.written {
            self.done += 1;
            if fails {
                self.failed.push(self.done);
            }
        }
    }
}

/// A time at which nothing has happened yet.
pub const BEGIN: Timestamp = Timestamp(1_000_000);
