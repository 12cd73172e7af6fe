//! Random histories against a model, with power cuts, failed writes and failed syncs at random points.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
};

use super::{config, head, message, reopen, session};
use crate::{
    mqtt::{
        Message, PacketId, QoS, Timestamp, TopicName,
        packet::{RetainHandling, SubscriptionOptions},
        topic_map::Place,
    },
    storage::{
        faulty::{Fault, FaultyEngine},
        *,
    },
};

#[test]
fn nothing_durable_is_lost_and_nothing_is_torn() {
    let seeds = match std::env::var("PINNACE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=40).collect(),
    };
    for seed in seeds {
        for durability in [Durability::Fsync, Durability::Os] {
            println!("PINNACE_SEED={seed} {durability:?}");
            History::new(seed, durability).run(250);
        }
    }
}

/// Stores at the end of random histories, discarded logs removed, each with its seed.
pub(in crate::storage) fn histories(seeds: std::ops::RangeInclusive<u64>) -> Vec<(u64, Arc<FaultyEngine>)> {
    seeds.map(|seed| (seed, History::new(seed, Durability::Fsync).run(250))).collect()
}

/// What the store holds, as far as a caller can see it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::storage) struct Model {
    pub(super) owners: BTreeMap<LogId, Owner>,
    wills: BTreeMap<SessionId, StoredWill>,
    retained: BTreeMap<String, (Message, Option<Author>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Owner {
    kind: Kind,
    subscriptions: BTreeMap<String, StoredSubscription>,
    received: BTreeSet<PacketId>,
    log: Log,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Session(StoredSession),
    Group(StoredGroup),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Log {
    state: LogState,
    open: BTreeMap<Seq, OpenEntry>,
    tail: Seq,
    /// The bytes of those that are not settled, as the last entry tells a start.
    bytes: u64,
    /// The entries that are not settled.
    entries: BTreeMap<Seq, (EntryHead, Message, Option<BodyId>)>,
}

/// Reads everything through the store's own surface.
pub(in crate::storage) fn model_of(store: &Store) -> Model {
    let mut model = Model::default();
    let mut order = Vec::new();
    let log = |id, found: RecoveredLog| {
        let mut entries = Vec::new();
        loop {
            let from = entries.last().map_or(found.state.head, |entry: &LogEntry| entry.seq) + 1;
            let page = store.read_log(id, from, 7, usize::MAX).unwrap();
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        let state = found.state.clone();
        Log {
            open: found.open.into_iter().map(|open| (open.seq, open)).collect(),
            tail: found.tail,
            bytes: found.bytes,
            entries: entries
                .into_iter()
                .filter(|entry| !state.is_settled(entry.seq))
                .map(|entry| (entry.seq, (entry.head, (*entry.message).clone(), entry.body)))
                .collect(),
            state: found.state,
        }
    };
    let orphans = store
        .recover(&mut |recovered| match recovered {
            Recovered::Session { session, subscriptions, received, log: found } => {
                order.push(1);
                let subscriptions = subscriptions.into_iter().map(|s| (s.filter.clone(), s)).collect();
                let owner = Owner {
                    log: log(session.id, found),
                    subscriptions,
                    received: received.into_iter().collect(),
                    kind: Kind::Session(session.clone()),
                };
                model.owners.insert(session.id, owner);
            }
            Recovered::Group { group, log: found } => {
                order.push(2);
                let owner = Owner::new(Kind::Group(group.clone()), log(group.log, found));
                model.owners.insert(group.log, owner);
            }
            Recovered::Retained(message, author) => {
                order.push(3);
                model.retained.insert(message.topic.as_str().to_owned(), ((*message).clone(), author));
            }
            Recovered::Will(will) => {
                order.push(4);
                model.wills.insert(will.session, will);
            }
        })
        .unwrap();
    store.write(|batch| orphans.iter().for_each(|orphan| orphan.discard(batch)));
    assert!(order.is_sorted(), "sessions, groups, retained, wills");
    model
}

impl Owner {
    fn new(kind: Kind, log: Log) -> Self {
        Self { kind, subscriptions: BTreeMap::new(), received: BTreeSet::new(), log }
    }
}

impl Model {
    /// How many unsettled entries refer to each shared body.
    fn bodies(&self) -> BTreeMap<BodyId, u32> {
        let mut counts = BTreeMap::new();
        for (_, _, body) in self.owners.values().flat_map(|owner| owner.log.entries.values()) {
            if let Some(id) = body {
                *counts.entry(*id).or_default() += 1;
            }
        }
        counts
    }

    /// The first thing in which two differ, for a failed test.
    fn difference(&self, other: &Self) -> String {
        let owners = self.owners.keys().chain(other.owners.keys());
        let owner = owners.copied().find(|id| self.owners.get(id) != other.owners.get(id));
        match owner {
            Some(id) => match (self.owners.get(&id), other.owners.get(&id)) {
                (Some(a), Some(b)) if a.log != b.log => {
                    let seqs = |log: &Log| log.entries.keys().copied().collect::<Vec<_>>();
                    let brief = |log: &Log| (log.state.clone(), log.tail, log.bytes, seqs(log), log.open.clone());
                    format!("log {id}: {:?} and {:?}", brief(&a.log), brief(&b.log))
                }
                (a, b) => format!("owner {id}, there {} and {}", a.is_some(), b.is_some()),
            },
            None if self.wills != other.wills => "a will".into(),
            None if self.retained != other.retained => "a retained message".into(),
            None => "nothing".into(),
        }
    }

    fn ids(&self) -> BTreeSet<u64> {
        let bodies = self.owners.values().flat_map(|owner| owner.log.entries.values()).filter_map(|entry| entry.2);
        self.owners.keys().copied().chain(bodies).collect()
    }
}

/// The shared bodies that are stored, with their counts; checks that each body has one and each count a body.
pub(in crate::storage) fn bodies_in(engine: &dyn Engine) -> BTreeMap<BodyId, u32> {
    let (mut bodies, mut counts) = (BTreeSet::new(), BTreeMap::new());
    engine
        .scan(Table::Bodies, &[], &[0xFF], &mut |key, value| {
            match keys::parse_body_count(key) {
                Some(id) => drop(counts.insert(id, record::get_count(value).unwrap())),
                None => drop(bodies.insert(u64::from_be_bytes(key[1..].try_into().unwrap()))),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(bodies, counts.keys().copied().collect());
    counts
}

/// A random history, its model, and all states that a crash may leave.
struct History {
    random: Random,
    durability: Durability,
    engine: Arc<FaultyEngine>,
    store: Store,
    model: Model,
    /// The model after each write, with the batch that it went into.
    states: Vec<(Lsn, Model)>,
    /// Ids that were ever given out in batches that survived.
    ids: BTreeSet<u64>,
    /// Ids given out since, with their batches.
    new_ids: Vec<(Lsn, u64)>,
}

impl History {
    fn new(seed: u64, durability: Durability) -> Self {
        let engine = Arc::new(FaultyEngine::new());
        Self {
            random: Random(seed),
            durability,
            store: Store::stepped(engine.clone(), &config(durability)).unwrap(),
            engine,
            model: Model::default(),
            states: vec![(Lsn(0), Model::default())],
            ids: BTreeSet::new(),
            new_ids: Vec::new(),
        }
    }

    fn run(mut self, steps: usize) -> Arc<FaultyEngine> {
        for _ in 0..steps {
            match self.random.below(40) {
                0 => self.power_cut(),
                1 => self.fail(),
                2..=12 => drop(self.store.step()),
                _ => self.write(),
            }
        }
        self.power_cut();
        self.check_garbage();
        // Not the one that ends with the store.
        Arc::new(self.engine.power_cut(usize::MAX))
    }

    fn write(&mut self) {
        let required = self.random.below(3) == 0;
        let count = 1 + self.random.below(3);
        let (model, random, given) = (&mut self.model, &mut self.random, &mut Vec::new());
        let ((), lsn) = self.store.write(|batch| {
            (0..count).for_each(|_| change(batch, model, random, given));
            if required {
                batch.require_durable();
            }
        });
        for id in given.drain(..) {
            assert!(!self.ids.contains(&id) && self.new_ids.iter().all(|&(_, other)| other != id), "id {id} again");
            self.new_ids.push((lsn, id));
        }
        self.states.push((lsn, self.model.clone()));
    }

    fn power_cut(&mut self) {
        let kept = match self.durability {
            // The process dies, the operating system lives.
            Durability::Os => usize::MAX,
            _ => self.random.below(1 + self.engine.unsynced() as u64) as usize,
        };
        let durable = self.store.health().durable;
        let left = Arc::new(self.engine.power_cut(kept));
        self.engine = left.clone();
        self.store = Store::stepped(left, &config(self.durability)).unwrap();
        self.survived(durable);
        // Batches are counted anew.
        self.states = vec![(Lsn(0), self.model.clone())];
        self.check_garbage();
    }

    fn fail(&mut self) {
        let fault = if self.random.below(2) == 0 { Fault::Write } else { Fault::Sync };
        self.engine.fail_after(0, fault);
        // Something to write, whatever the random change is.
        let doomed = message("r/doomed", 10, self.random.next());
        self.store.write(|batch| batch.put_retained(&doomed, None));
        self.model.retained.insert("r/doomed".into(), (doomed, None));
        self.write();
        let durable = self.store.health().durable;
        while self.store.step() {}
        assert!(self.store.failure().is_some());
        let (_, lsn) = self.store.write(|batch| batch.new_id());
        assert_eq!(self.store.outcome(lsn), Outcome::Failed);
        reopen(&self.store).unwrap();
        self.survived(durable);
        self.states = vec![(Lsn(durable), self.model.clone())];
    }

    /// Compares what is there now with the states that are allowed: those at the end of a batch, none before the last durable one.
    fn survived(&mut self, durable: u64) {
        let found = model_of(&self.store);
        let mut ends = self.states.iter().enumerate().filter(|&(at, (lsn, _))| {
            self.states.get(at + 1).is_none_or(|(next, _)| next > lsn)
                && self.states.get(at + 1).is_none_or(|(next, _)| next.0 > durable)
        });
        // The first that is alike: of later ones it is not known whether they survived.
        let alike = ends.find(|(_, (_, state))| *state == found).map(|(_, (lsn, _))| *lsn);
        drop(ends);
        let Some(lsn) = alike else {
            let differ: Vec<_> =
                self.states.iter().map(|(lsn, state)| format!("{lsn:?} {}", found.difference(state))).collect();
            panic!("no allowed state; durable {durable}; the states differ in\n{}", differ.join("\n"));
        };
        let survivors = self.new_ids.drain(..).filter(|&(of, _)| of <= lsn).map(|(_, id)| id);
        self.ids.extend(survivors);
        assert!(found.ids().is_subset(&self.ids), "what is stored has ids that were given out");
        self.model = found;
    }

    /// Once discarded logs are gone: every count is exact, and no entry is left of a log that is gone.
    fn check_garbage(&self) {
        while self.store.step() {}
        assert_eq!(bodies_in(&*self.engine), self.model.bodies());
        assert_eq!(self.store.health().discarded_logs, 0);
        let range = keys::all_garbage();
        assert_eq!(self.engine.last_key(Table::Meta, &range.0, &range.1).unwrap(), None);
        let mut logs = BTreeSet::new();
        self.engine
            .scan(Table::Logs, &[], &[0xFF], &mut |key, _| {
                logs.insert(keys::parse_entry(key).unwrap().0);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(logs.iter().all(|log| self.model.owners.contains_key(log)), "{logs:?}");
    }
}

/// One random change, to the batch and to the model alike.
fn change(batch: &mut Batch, model: &mut Model, random: &mut Random, given: &mut Vec<u64>) {
    let ids: Vec<LogId> = model.owners.keys().copied().collect();
    let Some(&id) = random.pick(&ids) else {
        return create(batch, model, random, given);
    };
    let owner = model.owners.get_mut(&id).unwrap();
    match random.below(20) {
        0 | 1 => create(batch, model, random, given),
        2 => {
            batch.discard_log(id, &owner.log.state, owner.log.tail);
            match owner.kind {
                Kind::Session(_) => batch.delete_session(id),
                Kind::Group(_) => batch.delete_group(id),
            }
            model.owners.remove(&id);
        }
        3..=8 => publish(batch, model, random, &ids, given),
        9..=12 => settle(batch, id, &mut owner.log, random),
        13 => {
            let topic = format!("r/{}", random.below(4));
            if random.below(3) == 0 {
                batch.delete_retained(&TopicName::parse(&topic).unwrap());
                model.retained.remove(&topic);
            } else {
                let message = message(&topic, 10, random.next());
                let username = (random.below(2) == 0).then(|| "ann".into());
                let author = (random.below(2) == 0).then(|| Author { username, client_id: "id".into() });
                batch.put_retained(&message, author.as_ref());
                model.retained.insert(topic, (message, author));
            }
        }
        14 => {
            if random.below(3) == 0 {
                batch.delete_will(id);
                model.wills.remove(&id);
            } else {
                let will = will(id, random.next());
                batch.put_will(&will);
                model.wills.insert(id, will);
            }
        }
        15 if !owner.log.entries.is_empty() => {
            let seqs: Vec<_> = owner.log.entries.keys().copied().collect();
            let seq = *random.pick(&seqs).unwrap();
            let step = if random.below(2) == 0 { Step::Sent } else { Step::Released };
            let open = OpenEntry { seq, holder: random.below(3), packet_id: random.next() as u16, step };
            batch.put_open(id, &open);
            owner.log.open.insert(seq, open);
        }
        _ if matches!(owner.kind, Kind::Group(_)) => {}
        15..=17 => {
            let filter = format!("f/{}/#", random.below(4));
            if random.below(3) == 0 {
                batch.delete_subscription(id, &filter);
                owner.subscriptions.remove(&filter);
            } else {
                let subscription = subscription(&filter, random.next());
                batch.put_subscription(id, &subscription);
                owner.subscriptions.insert(filter, subscription);
            }
        }
        _ => {
            let packet_id = PacketId::new(1 + random.below(5) as u16).unwrap();
            if random.below(2) == 0 {
                batch.delete_received(id, packet_id);
                owner.received.remove(&packet_id);
            } else {
                batch.put_received(id, packet_id);
                owner.received.insert(packet_id);
            }
        }
    }
}

fn create(batch: &mut Batch, model: &mut Model, random: &mut Random, given: &mut Vec<u64>) {
    let id = batch.new_id();
    given.push(id);
    let kind = if random.below(4) == 0 {
        let group = StoredGroup { log: id, share: "g".into(), filter: format!("f/{id}"), sent_until: id };
        batch.put_group(&group);
        Kind::Group(group)
    } else {
        let session = StoredSession { expiry_secs: random.next() as u32, ..session(id) };
        batch.put_session(&session);
        Kind::Session(session)
    };
    model.owners.insert(id, Owner::new(kind, Log::default()));
}

fn publish(batch: &mut Batch, model: &mut Model, random: &mut Random, ids: &[LogId], given: &mut Vec<u64>) {
    let large = random.below(2) == 0;
    let message = message("t/x", if large { 1500 } else { 20 }, random.next());
    let receivers: BTreeSet<LogId> = (0..1 + random.below(3)).filter_map(|_| random.pick(ids).copied()).collect();
    // The hint may be wrong.
    let body = batch.body(&message, receivers.len() + random.below(2) as usize);
    let mut bodies = BTreeSet::new();
    for id in receivers {
        let log = &mut model.owners.get_mut(&id).unwrap().log;
        log.tail += 1;
        log.bytes += message.size() as u64;
        let log_bytes = log.state.settled_bytes + log.bytes;
        let head = EntryHead { retain: large, log_bytes, ..head(QoS::ExactlyOnce) };
        let shared = batch.append(id, log.tail, &head, &body);
        bodies.extend(shared);
        log.entries.insert(log.tail, (head, message.clone(), shared));
    }
    assert!(bodies.len() <= 1);
    given.extend(bodies);
}

fn settle(batch: &mut Batch, id: LogId, log: &mut Log, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let seqs: Vec<_> = log.entries.keys().copied().take(6).collect();
        let Some(&seq) = random.pick(&seqs) else { break };
        assert!(log.state.settle(seq));
        let Some((_, message, body)) = log.entries.remove(&seq) else { break };
        log.bytes -= message.size() as u64;
        log.state.settled_bytes += message.size() as u64;
        if let Some(body) = body {
            batch.release_body(body);
        }
        if log.open.remove(&seq).is_some() {
            batch.delete_open(id, seq);
        }
    }
    if random.below(3) == 0 && log.state.head > log.state.trimmed {
        batch.trim(id, log.state.trimmed + 1, log.state.head);
        log.state.trimmed = log.state.head;
    }
    // Beyond the head nothing says what was trimmed: it may be trimmed again. The last entry stays.
    if random.below(2) == 0
        && let Some(&(from, to)) = random.pick(&log.state.settled)
        && to > from
    {
        let last = log.state.highest_settled();
        batch.trim(id, from, if to == last { to - 1 } else { to });
    }
    batch.put_log_state(id, &log.state);
}

fn subscription(filter: &str, number: u64) -> StoredSubscription {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: number.is_multiple_of(2),
        retain_as_published: number.is_multiple_of(3),
        retain_handling: RetainHandling::SendIfNew,
    };
    let subscription_id = (!number.is_multiple_of(5)).then_some((number % 268_435_455) as u32 + 1);
    let replay = number.is_multiple_of(7).then(|| Place::at(&TopicName::parse("r/1").unwrap()));
    StoredSubscription { filter: filter.into(), options, subscription_id, replay }
}

fn will(session: SessionId, number: u64) -> StoredWill {
    StoredWill {
        session,
        client_id: "c".into(),
        username: None,
        message: message("w", 5, number),
        delay_secs: 5,
        expiry_secs: number.is_multiple_of(2).then_some(9),
        session_expiry_secs: u32::MAX,
        due_at: number.is_multiple_of(3).then_some(Timestamp(number)),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.next() as usize;
        of.get(at.checked_rem(of.len())?)
    }
}
