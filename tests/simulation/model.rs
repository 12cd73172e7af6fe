//! What must be true: what was published and acknowledged, who is owed what, and what came.
//!
//! Must not know the broker's inside.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pinnace::mqtt::{QoS, TopicFilter, TopicName};

/// The number of a publication; it stands in its payload.
pub type Number = usize;

/// One message that a client published.
#[derive(Debug)]
pub struct Publication {
    pub publisher: usize,
    pub topic: &'static str,
    pub qos: QoS,
    /// How often its publisher sent it.
    pub attempts: u32,
    pub acked: bool,
    /// Clients with a subscription that stood when it was first sent, with the life of their session and the span of the subscription.
    owed: Vec<(usize, u32, u64)>,
    /// Groups of whom one member is owed it, with the state of the group then.
    owed_to_groups: Vec<(&'static str, GroupState)>,
}

/// What changes when a group may lose what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupState {
    /// How often it had no persistent member any more.
    emptied: u32,
    /// How often a session of a member ended, or a member left.
    left: u32,
}

#[derive(Debug, Default)]
struct Group {
    state: GroupState,
    /// Members that a SUBACK stands for, with whether they are persistent.
    members: BTreeMap<usize, bool>,
}

/// What one client, or all members of one group, received of one publication.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    /// PUBLISHes.
    all: u32,
    /// PUBLISHes without DUP, but for those to sessions that ended with the broker: whoever has the message of a group next gets it for the
    /// first time.
    first: u32,
    /// Of them, to sessions that end with the broker.
    passing: u32,
    /// Handed to the application, above QoS 0.
    delivered: u32,
    /// Of them, with QoS 2.
    exactly: u32,
}

/// A retained message, or none where `number` is.
#[derive(Debug)]
struct Retained {
    number: Option<Number>,
    sent_at: u64,
    acked_at: Option<u64>,
    /// Of the publication, a clearing one too.
    key: u64,
}

#[derive(Debug, Default)]
pub struct Model {
    pub step: u64,
    pub publications: Vec<Publication>,
    groups: BTreeMap<&'static str, Group>,
    received: HashMap<(Receiver, Number), Received>,
    /// Per client, publisher, published and granted QoS: the last first delivery.
    last: HashMap<(usize, u32, usize, u8, u8), Number>,
    retained: BTreeMap<&'static str, Vec<Retained>>,
    next_key: u64,
    /// How often the broker has started anew.
    pub starts: u32,
    pub deliveries: u64,
    /// Folds all that came, in order.
    pub trace: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Receiver {
    Client(usize, u32),
    Group(&'static str),
}

/// Who receives: a client with the life of its session, for a group where it is a member of one.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    pub client: usize,
    pub life: u32,
    pub group: Option<&'static str>,
    /// Its session outlives the broker.
    pub persistent: bool,
    /// Its connection is to this broker, not to one before.
    pub current: bool,
}

/// A PUBLISH as a client received it.
#[derive(Debug, Clone, Copy)]
pub struct Came {
    pub number: Number,
    pub qos: QoS,
    pub dup: bool,
    /// The application has it already: QoS 2, under this packet id.
    pub known: bool,
}

impl Model {
    /// A client is about to send a new PUBLISH, while the subscriptions in `standing` stand: client, life, span, filter, QoS.
    pub fn published<'a>(
        &mut self,
        publisher: usize,
        topic: &'static str,
        qos: QoS,
        standing: impl Iterator<Item = (usize, u32, u64, &'a str, QoS)>,
    ) -> Number {
        let mut owed = BTreeSet::new();
        for (client, life, span, filter, granted) in standing {
            if matches(filter, topic) && qos != QoS::AtMostOnce && granted != QoS::AtMostOnce {
                owed.insert((client, life, span));
            }
        }
        let groups = self.groups.iter().filter(|(filter, group)| {
            qos != QoS::AtMostOnce
                && matches(inner(filter), topic)
                && group.members.values().any(|persistent| *persistent)
        });
        let owed_to_groups = groups.map(|(filter, group)| (*filter, group.state)).collect();
        self.publications.push(Publication {
            publisher,
            topic,
            qos,
            attempts: 0,
            acked: false,
            owed: owed.into_iter().collect(),
            owed_to_groups,
        });
        self.publications.len() - 1
    }

    /// A retained PUBLISH is about to be sent; `number` is none where it clears. Gives what [`Model::retained_acked`] takes.
    pub fn retains(&mut self, topic: &'static str, number: Option<Number>) -> u64 {
        self.next_key += 1;
        let put = Retained { number, sent_at: self.step, acked_at: None, key: self.next_key };
        self.retained.entry(topic).or_default().push(put);
        self.next_key
    }

    pub fn retained_acked(&mut self, key: u64) {
        let step = self.step;
        for put in self.retained.values_mut().flatten().filter(|put| put.key == key) {
            put.acked_at = Some(step);
        }
    }

    /// SUBACK came for a member of a group.
    pub fn joined(&mut self, filter: &'static str, client: usize, persistent: bool) {
        self.groups.entry(filter).or_default().members.insert(client, persistent);
    }

    /// A member's session ended, or it leaves: from now on it may have left.
    pub fn left(&mut self, filter: &'static str, client: usize) {
        let group = self.groups.entry(filter).or_default();
        group.state.left += 1;
        if group.members.remove(&client).is_some() && !group.members.values().any(|persistent| *persistent) {
            group.state.emptied += 1;
        }
    }

    /// The broker ended.
    pub fn restarted(&mut self) {
        self.starts += 1;
        for received in self.received.values_mut() {
            received.first -= std::mem::take(&mut received.passing);
        }
    }

    /// A PUBLISH without RETAIN came to `who`.
    pub fn came(&mut self, who: Who, came: Came) {
        self.fold(&[who.client as u64, came.number as u64, came.qos as u64, came.dup.into()]);
        let Came { number, qos, dup, known } = came;
        let publication = &self.publications[number];
        assert!(qos as u8 <= publication.qos as u8, "QoS raised: {came:?} {publication:?}");
        let receiver = who.group.map_or(Receiver::Client(who.client, who.life), Receiver::Group);
        let received = self.received.entry((receiver, number)).or_default();
        received.all += 1;
        received.first += u32::from(!dup && (who.persistent || who.current));
        received.passing += u32::from(!dup && !who.persistent && who.current);
        if !known {
            self.deliveries += 1;
            received.delivered += u32::from(qos != QoS::AtMostOnce);
            received.exactly += u32::from(qos == QoS::ExactlyOnce);
        }
        assert!(received.exactly <= 1, "QoS 2 delivered twice: {came:?} to {who:?}: {publication:?}");
        let most = match publication.qos {
            QoS::ExactlyOnce => 1,
            _ => publication.attempts,
        };
        assert!(received.first <= most, "sent anew {} times: {came:?} to {who:?}: {publication:?}", received.first);
        // What its publisher sent again may come behind what overtook it then.
        if who.group.is_none() && received.all == 1 && publication.attempts == 1 {
            let class = (who.client, who.life, publication.publisher, publication.qos as u8, qos as u8);
            let last = self.last.insert(class, number);
            assert!(
                last.is_none_or(|last| last <= number),
                "order: {last:?} before {number} for {who:?}: {publication:?}"
            );
        }
    }

    /// A PUBLISH with RETAIN came: `number` must not have been replaced, for sure, before each of the SUBSCRIBEs sent at `asked_at`.
    /// A retained PUBLISH came to who asked at those steps, after what had come live on its topic.
    pub fn retained_came(&mut self, number: Number, asked_at: &[u64], live: &[Number]) {
        self.fold(&[number as u64]);
        let topic = self.publications[number].topic;
        let puts = self.retained.get(topic).map(Vec::as_slice).unwrap_or_default();
        let put = puts.iter().find(|put| put.number == Some(number)).expect("it was retained");
        let possible = asked_at.iter().any(|at| !replaced(puts, put, *at));
        // One whose commit failed may have come live, and is retained by nobody.
        let replaces = |other: &Retained| {
            let is_live = other.number.is_some_and(|number| live.contains(&number));
            is_live && other.acked_at.is_some() && put.acked_at.is_some_and(|acked_at| acked_at < other.sent_at)
        };
        let is_older = puts.iter().any(replaces);
        assert!(!is_older, "{number} on {topic} is retained no more, as its receiver knows: {live:?}, {puts:?}");
        assert!(possible, "an old retained message: {number} on {topic}, asked at {asked_at:?}: {puts:?}");
    }

    /// Whether `found` can be what is retained of each topic now.
    pub fn check_retained(&self, found: &BTreeMap<String, Number>) {
        for (topic, puts) in &self.retained {
            let possible: Vec<Option<Number>> =
                puts.iter().filter(|put| !replaced(puts, put, self.step)).map(|put| put.number).collect();
            let none = puts.iter().all(|put| put.acked_at.is_none());
            let found = found.get(*topic).copied();
            assert!(
                possible.contains(&found) || (found.is_none() && none),
                "retained of {topic}: {found:?}, possible {possible:?}"
            );
        }
    }

    /// Which deliveries are owed and did not come, each with its client where it is one, of those whose session and subscription stood all the time.
    pub fn missing(&self, stood: impl Fn(usize, u32, u64) -> bool) -> Vec<(Option<usize>, String)> {
        let mut missing = Vec::new();
        for (number, publication) in self.publications.iter().enumerate().filter(|(_, one)| one.acked) {
            let owed = publication.owed.iter().filter(|(client, life, span)| stood(*client, *life, *span));
            let owed: BTreeSet<_> = owed.map(|(client, life, _)| (*client, *life)).collect();
            for (client, life) in owed {
                let received = self.received.get(&(Receiver::Client(client, life), number));
                if received.is_none_or(|received| received.delivered == 0) {
                    missing.push((Some(client), format!("{number} to client {client}: {publication:?}")));
                }
            }
            for (filter, then) in &publication.owed_to_groups {
                let now = self.groups[filter].state;
                let lost = match publication.qos {
                    QoS::ExactlyOnce => now != *then,
                    _ => now.emptied != then.emptied,
                };
                let received = self.received.get(&(Receiver::Group(filter), number));
                if !lost && received.is_none_or(|received| received.delivered == 0) {
                    missing.push((None, format!("{number} to group {filter}: {publication:?}")));
                }
            }
        }
        missing
    }

    fn fold(&mut self, values: &[u64]) {
        for value in values {
            self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17);
        }
    }
}

/// Whether another one took the place of `put` for sure before step `at`.
fn replaced(puts: &[Retained], put: &Retained, at: u64) -> bool {
    let Some(stood_from) = put.acked_at else { return false };
    puts.iter().any(|other| other.sent_at > stood_from && other.acked_at.is_some_and(|acked_at| acked_at < at))
}

pub fn matches(filter: &str, topic: &str) -> bool {
    let filter = TopicFilter::parse(filter).expect("a filter");
    filter.matches(&TopicName::parse(topic).expect("a topic"))
}

/// The Topic Filter of a Shared Subscription.
fn inner(filter: &str) -> &str {
    filter.splitn(3, '/').nth(2).expect("$share/name/filter")
}
