//! Shared groups under each strategy, with members that come, go and fall behind.
//!
//! Must not know sockets: a member's outbox is what it was sent.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZeroU16,
    sync::Arc,
};

use proptest::prelude::*;

use super::{super::*, connect};
use crate::{
    broker::config::{Redeliver, SharedSubscriptions, Strategy as Way},
    mqtt::{
        Filter, Message, Packet, QoS, TopicName, Version,
        codec::{Sender, decode},
        frame::{Cut, cut},
        packet::{Ack, AckKind, RetainHandling, Subscribe, SubscriptionOptions},
    },
    session::{Delivered, Limits, Request, limits::QueueFull},
    storage::{Config as StoreConfig, Durability, EntryHead, MemoryEngine, Recovered},
};

/// A message: its publisher and its number.
type Name = (usize, u64);

fn receiver(broker: &Broker, session: u64, client_id: Arc<str>) -> Receiver {
    let queues = broker.queues.clone();
    Receiver::new(session, client_id, Identity::ANONYMOUS, false, queues, mailbox::Extent::default())
}

struct Member {
    owner: Owner,
    outbox: Outbox,
    /// Sent, and not acknowledged.
    held: BTreeMap<PacketId, Name>,
}

/// A broker, publishers, and who of `members` is connected.
struct World {
    broker: Arc<Broker>,
    runtime: tokio::runtime::Runtime,
    members: Vec<Option<Member>>,
    persistent: bool,
    publishers: Vec<Receiver>,
    published: Vec<u64>,
    /// Each PUBLISH as it left: the message, to whom, DUP.
    sent: Vec<(Name, usize, bool)>,
    acknowledged: BTreeSet<Name>,
}

impl World {
    fn new(strategy: Way, redeliver: Redeliver, persistent: bool) -> Self {
        let shared_subscriptions = SharedSubscriptions { strategy, redeliver };
        Self::with(Config { shared_subscriptions, ..Config::default() }, Limits::default(), persistent)
    }

    fn with(config: Config, limits: Limits, persistent: bool) -> Self {
        let in_memory = StoreConfig { durability: Durability::Memory, ..StoreConfig::default() };
        let store = Store::with_engine(Arc::new(MemoryEngine::new()), &in_memory).expect("a store");
        let auth = Auth::load(&crate::auth::Config::default()).expect("no files");
        let broker = Broker::new(config, limits, Arc::new(store), auth);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let publishers = (0..PUBLISHERS)
            .map(|n| {
                let client_id = format!("publisher-{n}").into();
                receiver(&broker, 1000 + n, client_id)
            })
            .collect();
        let members = (0..MEMBERS).map(|_| None).collect();
        let published = vec![0; PUBLISHERS as usize];
        Self {
            broker,
            runtime,
            members,
            persistent,
            publishers,
            published,
            sent: Vec::new(),
            acknowledged: BTreeSet::new(),
        }
    }

    /// Member `at` connects, with a window, and subscribes where it is new.
    fn come(&mut self, at: usize, window: u16) {
        if self.members[at].is_some() {
            return;
        }
        let client_id: Arc<str> = format!("member-{at}").into();
        let signal = Arc::new(Signal::default());
        let claim = self.broker.registry.claim(&self.broker, &client_id, &Identity::ANONYMOUS, &signal);
        let mut owner = self.runtime.block_on(claim).expect("nobody else claims");
        let mut connect = connect(&client_id, if self.persistent { 3600 } else { 0 }, None);
        connect.receive_maximum = NonZeroU16::new(window).expect("not zero");
        let terms = Terms::negotiate(&connect, &self.broker.limits);
        let now = crate::clock::now();
        let connected = self
            .broker
            .connect(&mut owner, &connect, &terms, &Identity::ANONYMOUS, &signal, now)
            .expect("the store works");
        let mut outbox = Outbox::new(Version::V5);
        let client = owner.client.as_mut().expect("connected");
        self.broker.resume(client, terms, &mut outbox, now);
        if !connected.session_present {
            let options = SubscriptionOptions {
                qos: QoS::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Never,
            };
            let filters = vec![(Ok(Filter::parse("$share/g/t").expect("a filter")), options)];
            let subscribe = Subscribe { packet_id: PacketId::MIN, subscription_id: None, filters };
            let mut turn = Turn::default();
            self.broker.subscribe(client, &mut turn, subscribe, 0, now);
            self.broker.finish(&mut turn);
        }
        self.members[at] = Some(Member { owner, outbox, held: BTreeMap::new() });
        self.deliver();
    }

    fn leave(&mut self, at: usize) {
        drop(self.members[at].take());
        self.deliver();
    }

    /// The session ends, without its client.
    fn end(&mut self, at: usize) {
        self.leave(at);
        let client_id: Arc<str> = format!("member-{at}").into();
        let signal = Arc::new(Signal::default());
        let claim = self.broker.registry.claim(&self.broker, &client_id, &Identity::ANONYMOUS, &signal);
        let mut owner = self.runtime.block_on(claim).expect("nobody else claims");
        let mut connect = connect(&client_id, 0, None);
        connect.clean_start = true;
        let terms = Terms::negotiate(&connect, &self.broker.limits);
        let now = crate::clock::now();
        self.broker.connect(&mut owner, &connect, &terms, &Identity::ANONYMOUS, &signal, now).expect("the store works");
        drop(owner);
        self.deliver();
    }

    fn publish(&mut self, publisher: usize) {
        let number = self.published[publisher];
        self.published[publisher] += 1;
        let message = Message {
            topic: TopicName::parse("t").expect("a topic"),
            payload: [publisher as u64, number].map(u64::to_be_bytes).concat().into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: Box::default(),
            expires_at: None,
            publisher: 0,
        };
        let now = crate::clock::now();
        let mut turn = Turn::default();
        let from = &self.publishers[publisher];
        self.broker.publish_message(&mut turn, message, from);
        let session = crate::session::Session::new(from.session, from.client_id.clone(), 0);
        let receiver = receiver(&self.broker, from.session, from.client_id.clone());
        let mut client = Client {
            session,
            receiver: Arc::new(receiver),
            subscriptions: Subscriptions::default(),
            replays: Default::default(),
            will: None,
            stored: false,
            disconnected_at: None,
            said: Default::default(),
        };
        self.broker.dispatch(&mut client, &mut turn, now);
        self.broker.finish(&mut turn);
        self.deliver();
    }

    /// Every member takes its mail; what leaves is noted.
    fn deliver(&mut self) {
        let now = crate::clock::now();
        for (at, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            let client = member.owner.client.as_mut().expect("connected");
            let mut mail = VecDeque::new();
            client.receiver.take(&mut mail);
            for delivery in mail {
                if self.broker.is_current(client, delivery.source) {
                    assert_eq!(client.session.deliver(&delivery, now, &mut member.outbox), Delivered::Sent);
                }
            }
            for (packet_id, name, dup) in publishes(&mut member.outbox) {
                member.held.insert(packet_id, name);
                self.sent.push((name, at, dup));
            }
        }
    }

    /// Member `at` acknowledges the oldest that it holds.
    fn acknowledge(&mut self, at: usize) -> bool {
        let Some(member) = &mut self.members[at] else { return false };
        let Some((&packet_id, _)) = member.held.iter().min_by_key(|(_, name)| **name) else { return false };
        let name = member.held.remove(&packet_id).expect("held");
        self.acknowledged.insert(name);
        let now = crate::clock::now();
        let client = member.owner.client.as_mut().expect("connected");
        let ack = Packet::Ack(AckKind::PubAck, Ack { packet_id, reason: ReasonCode::Success });
        let mut turn = Turn::default();
        match client.session.receive(ack, now, &mut member.outbox) {
            Ok(Request::Settled(settled)) => self.broker.settle(client, &mut turn, settled, now),
            other => panic!("{other:?}"),
        }
        self.broker.dispatch(client, &mut turn, now);
        self.broker.finish(&mut turn);
        self.deliver();
        true
    }

    /// To whom the messages went, first sendings only, in order.
    fn went(&self) -> Vec<usize> {
        self.sent.iter().filter(|(_, _, dup)| !dup).map(|(_, at, _)| *at).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.broker.metrics.snapshot().find(|sample| sample.name == name).expect("a counter").value
    }
}

fn publishes(outbox: &mut Outbox) -> Vec<(PacketId, Name, bool)> {
    let bytes: Vec<u8> = outbox.slices().flatten().copied().collect();
    outbox.advance(bytes.len());
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while let Ok(Cut::Whole(frame)) = cut(rest, u32::MAX) {
        rest = &rest[frame.len..];
        if let Packet::Publish(publish) = decode(frame, Version::V5, Sender::Server).expect("what is sent can be read")
        {
            let number = |at: usize| u64::from_be_bytes(publish.payload[at..at + 8].try_into().expect("a number"));
            found.push((publish.packet_id.expect("QoS 1"), (number(0) as usize, number(8)), publish.dup));
        }
    }
    found
}

const MEMBERS: usize = 4;
const PUBLISHERS: u64 = 5;
const WAYS: [Way; 4] = [Way::RoundRobin, Way::LeastInFlight, Way::Sticky, Way::HashPublisher];

#[test]
fn each_in_turn() {
    for persistent in [false, true] {
        let mut world = World::new(Way::RoundRobin, Redeliver::OnDisconnect, persistent);
        (0..3).for_each(|at| world.come(at, 2));
        (0..6).for_each(|n| world.publish(n % 5));
        assert_eq!(world.went(), [0, 1, 2, 0, 1, 2]);
        // One without room is left out; one that leaves takes nobody's turn.
        world.publish(0);
        assert!(world.acknowledge(2) && world.acknowledge(2) && world.acknowledge(1));
        assert_eq!(world.went()[6..], [2]);
        world.publish(0);
        world.publish(0);
        assert_eq!(world.went()[7..], [1, 2]);
    }
}

#[test]
fn the_least_busy_gets_it() {
    let mut world = World::new(Way::LeastInFlight, Redeliver::OnDisconnect, false);
    (0..3).for_each(|at| world.come(at, 100));
    (0..5).for_each(|n| world.publish(n));
    assert_eq!(world.went(), [0, 1, 2, 0, 1]);
    world.publish(0);
    assert!(world.acknowledge(1) && world.acknowledge(1));
    (0..4).for_each(|n| world.publish(n));
    assert_eq!(world.went()[5..], [2, 1, 1, 2, 0], "two each, then in turn");
}

/// All to one; when it goes, what it had and what comes goes to another, and stays there.
#[test]
fn sticky_stays() {
    for persistent in [false, true] {
        let mut world = World::new(Way::Sticky, Redeliver::OnDisconnect, persistent);
        (0..3).for_each(|at| world.come(at, 2));
        (0..4).for_each(|n| world.publish(n));
        assert_eq!(world.went(), [0, 0], "the rest waits for it");
        world.acknowledge(0);
        assert_eq!(world.went(), [0, 0, 0]);
        world.leave(0);
        assert_eq!(world.sent[3..].iter().map(|(_, at, dup)| (*at, *dup)).collect::<Vec<_>>(), [(1, true), (1, true)]);
        world.come(0, 100);
        (0..3).for_each(|_| _ = world.acknowledge(1));
        (0..4).for_each(|n| world.publish(n));
        assert!(world.sent[3..].iter().all(|(_, at, _)| *at == 1), "it does not go back: {:?}", world.sent);
    }
}

/// Each publisher has its member; when one comes or goes, only those move that have to, to it or from it alone.
#[test]
fn publishers_keep_their_member() {
    fn round(world: &mut World) -> BTreeMap<usize, usize> {
        let begun = world.sent.len();
        (0..PUBLISHERS as usize).for_each(|n| world.publish(n));
        (0..MEMBERS).for_each(|at| while world.acknowledge(at) {});
        world.sent[begun..].iter().map(|((publisher, _), at, _)| (*publisher, *at)).collect()
    }
    let mut world = World::new(Way::HashPublisher, Redeliver::OnDisconnect, true);
    (0..3).for_each(|at| world.come(at, 100));
    let first = round(&mut world);
    assert_eq!((first.len(), round(&mut world)), (PUBLISHERS as usize, first.clone()));
    assert!(first.values().collect::<BTreeSet<_>>().len() > 1, "all with one: {first:?}");
    world.come(3, 100);
    let with_another = round(&mut world);
    let moved = first.iter().filter(|(publisher, at)| with_another[publisher] != **at);
    assert!(moved.clone().count() > 0, "nothing moved: the test shows nothing");
    assert!(moved.clone().all(|(publisher, _)| with_another[publisher] == 3), "{first:?}, then {with_another:?}");
    world.leave(3);
    assert_eq!(round(&mut world), first);
}

/// A publisher whose member has no room waits for it, also where a new member would get it; others go on.
#[test]
fn a_publisher_does_not_overtake_itself() {
    let mut world = World::new(Way::HashPublisher, Redeliver::OnDisconnect, true);
    (0..3).for_each(|at| world.come(at, 1));
    for _ in 0..20 {
        (0..PUBLISHERS as usize).for_each(|n| world.publish(n));
    }
    world.come(3, 100);
    let holders: BTreeMap<usize, usize> = world
        .members
        .iter()
        .enumerate()
        .flat_map(|(at, one)| one.iter().map(move |one| (at, one)))
        .flat_map(|(at, one)| one.held.values().map(move |(publisher, _)| (*publisher, at)))
        .collect();
    (0..PUBLISHERS as usize).for_each(|n| world.publish(n));
    for (publisher, at) in &holders {
        let of_it = world.sent.iter().filter(|((from, _), ..)| from == publisher);
        assert!(of_it.clone().all(|(_, to, _)| to == at), "publisher {publisher} did not wait: {:?}", world.sent);
    }
    for _ in 0..200 {
        (0..MEMBERS).for_each(|at| _ = world.acknowledge(at));
    }
    assert_eq!(world.acknowledged.len(), 21 * PUBLISHERS as usize, "none is left behind");
}

/// [MQTT-4.8.2-5]: QoS 1 in flight waits for its client where the configuration says so, until its session ends.
#[test]
fn what_is_in_flight_waits_for_its_session() {
    let mut world = World::new(Way::RoundRobin, Redeliver::OnSessionEnd, true);
    (0..2).for_each(|at| world.come(at, 100));
    (0..4).for_each(|n| world.publish(n));
    let first = [((0, 0), 0, false), ((1, 0), 1, false), ((2, 0), 0, false), ((3, 0), 1, false)];
    assert_eq!(world.sent, first);
    world.leave(0);
    world.publish(4);
    assert_eq!(world.sent[4..], [((4, 0), 1, false)], "what is new goes to who is there");
    world.come(0, 1);
    world.acknowledge(0);
    assert_eq!(world.sent[5..], [((0, 0), 0, true), ((2, 0), 0, true)], "within its window");
    world.end(0);
    assert_eq!(world.sent[7..], [((2, 0), 1, true)]);
    for _ in 0..4 {
        world.acknowledge(1);
    }
    assert_eq!(world.acknowledged.len(), 5);
}

/// More than a group looks past waits for members without room: that is counted once, and goes on with them.
#[test]
fn a_group_that_stands_still_says_so() {
    let mut world = World::new(Way::Sticky, Redeliver::OnDisconnect, false);
    (0..2).for_each(|at| world.come(at, 1));
    let all = 1100;
    (0..all).for_each(|_| world.publish(0));
    assert_eq!((world.sent.len(), world.counter("shared_stalls")), (1, 1));
    world.leave(0);
    while world.acknowledge(1) {}
    let expected: Vec<_> = (0..all).map(|number| ((0, number), 1, number == 0)).collect();
    assert_eq!(world.sent[1..], expected);
}

/// Where all queues together are full, a group goes on with members that take what comes, and takes nothing that would have to wait.
#[test]
fn a_group_that_is_served_goes_on_where_all_queues_are_full() {
    for persistent in [false, true] {
        let mut world =
            World::with(Config { max_total_queued_bytes: 1, ..Config::default() }, Limits::default(), persistent);
        world.come(0, 2);
        for _ in 0..3 {
            world.publish(0);
            assert!(world.acknowledge(0));
        }
        (0..3).for_each(|_| world.publish(1));
        assert_eq!((world.sent.len(), world.counter("dropped_all_queues_full")), (5, 1));
        world.acknowledge(0);
        world.publish(1);
        assert_eq!((world.sent.len(), world.counter("dropped_all_queues_full")), (6, 1));
    }
}

/// Where all queues together are full, `drop-oldest` drops the oldest of a group that is served nevertheless.
#[test]
fn a_group_that_is_served_drops_its_oldest_where_all_queues_are_full() {
    for persistent in [false, true] {
        let shared_subscriptions = SharedSubscriptions { strategy: Way::Sticky, ..SharedSubscriptions::default() };
        let config = Config { max_total_queued_bytes: 1, shared_subscriptions, ..Config::default() };
        let limits = Limits { max_queued_messages: 2, queue_full: QueueFull::DropOldest, ..Limits::default() };
        let mut world = World::with(config, limits, persistent);
        (0..2).for_each(|at| world.come(at, 1));
        (0..3).for_each(|_| world.publish(0));
        assert_eq!((world.counter("dropped_queue_full"), world.counter("dropped_all_queues_full")), (1, 0));
        while world.acknowledge(0) {}
        assert_eq!(world.acknowledged, BTreeSet::from([(0, 0), (0, 2)]), "the newest stays");
    }
}

/// What a group had settled before it became a log does not wait in it after a restart.
#[test]
fn a_group_that_becomes_a_log_knows_what_it_holds() {
    let mut world = World::new(Way::RoundRobin, Redeliver::OnDisconnect, false);
    world.come(0, 10);
    (0..3).for_each(|_| world.publish(0));
    assert!(world.acknowledge(0) && world.acknowledge(0));
    world.persistent = true;
    world.come(1, 10);
    let mut logs = Vec::new();
    let mut visit = |record| {
        if let Recovered::Group { log, .. } = record {
            logs.push(log);
        }
    };
    world.broker.store.recover(&mut visit).expect("the store can be read");
    let [log] = logs.as_slice() else { panic!("{logs:?}") };
    assert_eq!((log.state.head, log.tail), (2, 3));
    assert!(log.bytes > 0 && log.state.settled_bytes == 2 * log.bytes, "{log:?}");
}

/// Entries of the first releases have no place in what a log counts: as they are settled, nothing is taken from it.
#[test]
fn an_entry_that_was_never_counted_has_no_size() {
    let message = Arc::new(Message {
        topic: TopicName::parse("t").expect("a topic"),
        payload: Box::new([0; 100]),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Box::default(),
        expires_at: None,
        publisher: 0,
    });
    for (log_bytes, expected) in [(0, 0), (5000, message.size())] {
        let (qos, subscription_ids) = (QoS::AtLeastOnce, Default::default());
        let head = EntryHead { qos, retain: false, subscription_ids, publisher: 0, log_bytes };
        let delivery = delivery_of(LogEntry { seq: 1, head, message: message.clone(), body: None });
        let Source::Log { size, .. } = delivery.source else { panic!("{delivery:?}") };
        assert_eq!(size as usize, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    /// Under every strategy each message is acknowledged by somebody in the end, a message in flight is with one connected member at most,
    /// and the publishers of `hash-publisher` overtake themselves at no step.
    #[test]
    fn histories(
        way in prop::sample::select(WAYS.as_slice()),
        kept in any::<bool>(),
        persistent in any::<bool>(),
        steps in prop::collection::vec((0_u8..20, 0..MEMBERS, 0..PUBLISHERS as usize, 1_u16..6), 0..300),
    ) {
        let redeliver = if kept { Redeliver::OnSessionEnd } else { Redeliver::OnDisconnect };
        let mut world = World::new(way, redeliver, persistent);
        world.come(0, 3);
        for (step, at, publisher, window) in steps {
            match step {
                0 => world.come(at, window),
                1 if at > 0 || persistent => world.leave(at),
                2 if at > 0 => world.end(at),
                3..10 => _ = world.acknowledge(at),
                _ => world.publish(publisher),
            }
            let held = world.members.iter().flatten().flat_map(|member| member.held.values());
            let names: Vec<Name> = held.copied().collect();
            prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "held twice: {:?}", names);
            if way == Way::HashPublisher && !kept {
                for publisher in 0..PUBLISHERS as usize {
                    let with = world.members.iter().flatten().filter(|one| one.held.values().any(|name| name.0 == publisher));
                    prop_assert!(with.count() <= 1, "publisher {} with two members", publisher);
                }
                let mut last = BTreeMap::new();
                for ((publisher, number), _, dup) in &world.sent {
                    if !dup {
                        prop_assert!(last.insert(*publisher, *number).is_none_or(|before| before + 1 == *number));
                    }
                }
            }
        }
        (0..MEMBERS).for_each(|at| world.come(at, 5));
        while (0..MEMBERS).any(|at| world.acknowledge(at)) {}
        let all: BTreeSet<Name> =
            world.published.iter().enumerate().flat_map(|(from, count)| (0..*count).map(move |n| (from, n))).collect();
        prop_assert_eq!(&world.acknowledged, &all, "not all, or more");
    }
}
