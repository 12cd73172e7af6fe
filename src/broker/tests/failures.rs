//! The broker over a store that is stepped by hand, without sockets: what its owners may count on when the store fails.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::{super::*, connect};
use crate::{
    mqtt::{
        Filter, QoS, TopicName,
        packet::{RetainHandling, Subscribe, SubscriptionOptions, Will},
    },
    storage::{
        Config, Durability, EntryHead, Recovered, Table,
        faulty::{Fault, FaultyEngine},
    },
};

struct World {
    engine: Arc<FaultyEngine>,
    broker: Arc<Broker>,
}

impl World {
    fn new() -> Self {
        Self::started(Arc::new(FaultyEngine::new()), NOW)
    }

    fn started(engine: Arc<FaultyEngine>, now: Timestamp) -> Self {
        let config = Config { durability: Durability::Fsync, ..Config::default() };
        let store = Arc::new(Store::stepped(engine.clone(), &config).unwrap());
        let auth = Auth::load(&crate::auth::Config::default()).unwrap();
        let broker = Broker::new(crate::broker::Config::default(), crate::session::Limits::default(), store, auth);
        broker.recover(now).unwrap();
        Self { engine, broker }
    }

    fn claim(&self, client_id: &str) -> (Owner, Arc<Signal>) {
        let signal = Arc::new(Signal::default());
        let client_id = client_id.into();
        let claim = pin!(self.broker.registry.claim(&self.broker, &client_id, &Identity::ANONYMOUS, &signal));
        match claim.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(owner) => (owner.unwrap(), signal.clone()),
            Poll::Pending => panic!("{client_id} is owned"),
        }
    }

    /// A connection up to the commit that CONNACK waits for.
    fn connect(&self, client_id: &str, expiry_secs: u32, will: Option<Will>) -> Owner {
        let (mut owner, signal) = self.claim(client_id);
        let connect = connect(client_id, expiry_secs, will);
        let terms = Terms::negotiate(&connect, &self.broker.limits);
        self.broker.connect(&mut owner, &connect, &terms, &Identity::ANONYMOUS, &signal, NOW).unwrap();
        owner
    }

    /// The same, with CONNACK.
    fn connected(&self, client_id: &str, expiry_secs: u32, will: Option<Will>) -> Owner {
        let mut owner = self.connect(client_id, expiry_secs, will);
        self.step();
        owner.ended = Ended::Abnormally;
        owner
    }

    fn leave(&self, mut owner: Owner, ended: Ended) {
        owner.ended = ended;
        drop(owner);
    }

    fn step(&self) {
        while self.broker.store.step() {}
    }

    /// Commits fail from now on, and what is in the open batch does.
    fn fail(&self, fault: Fault) {
        self.engine.fail_after(0, fault);
        self.broker.store.write(|batch| batch.require_durable());
        self.step();
        assert!(self.broker.store_failed());
    }

    /// Wills leave something behind: they are retained.
    fn published(&self) -> usize {
        self.broker.retained()
    }

    fn stored(&self) -> (Vec<u64>, Vec<u64>) {
        self.step();
        let (mut sessions, mut wills) = (Vec::new(), Vec::new());
        let visit = &mut |record| match record {
            Recovered::Session { session, .. } => sessions.push(session.id),
            Recovered::Will(will) => wills.push(will.session),
            _ => {}
        };
        self.broker.store.recover(visit).unwrap();
        (sessions, wills)
    }
}

/// Who was connected when the broker died has been gone since the first start after that, not since the last one [MQTT-3.1.2-23].
#[test]
fn each_start_does_not_make_a_session_younger() {
    let world = World::new();
    let owner = world.connected("c", 60, None);
    let mut engine = Arc::new(world.engine.kill());
    for secs in [10, 20, 30] {
        let world = World::started(engine, NOW.plus_secs(secs));
        let since = world.broker.registry.with_parked("c", |client: &mut Client| client.disconnected_at);
        assert_eq!(since, Some(Some(NOW.plus_secs(10))), "after {secs} s");
        world.step();
        engine = Arc::new(world.engine.kill());
    }
    world.leave(owner, Ended::Abnormally);
}

#[test]
fn a_will_is_accepted_by_connack() {
    for (expiry_secs, ended, published) in
        [(0, Ended::Unanswered, 0), (60, Ended::Unanswered, 0), (0, Ended::Abnormally, 1), (0, Ended::Normally, 0)]
    {
        let world = World::new();
        let owner = world.connect("c", expiry_secs, Some(will(0)));
        assert_eq!(owner.ended, Ended::Unanswered);
        world.leave(owner, ended);
        assert_eq!(world.published(), published, "{expiry_secs} {ended:?}");
        assert!(world.stored().1.is_empty(), "{expiry_secs} {ended:?}");
    }
}

#[test]
fn a_will_is_published_once_whatever_the_store_does() {
    for fault in [Fault::Write, Fault::Sync] {
        for (expiry_secs, delay_secs, ended, at_once, later) in [
            (0, 0, Ended::Normally, 0, 0),
            (0, 0, Ended::Abnormally, 1, 1),
            (60, 0, Ended::Normally, 0, 0),
            (60, 0, Ended::Abnormally, 1, 1),
            (60, 0, Ended::StoreFailed, 0, 1),
            (60, 30, Ended::Abnormally, 0, 0),
            (60, 30, Ended::StoreFailed, 0, 0),
        ] {
            let case = format!("{fault:?} {expiry_secs} {delay_secs} {ended:?}");
            let world = World::new();
            let owner = world.connected("c", expiry_secs, Some(will(delay_secs)));
            let stays = world.connected("d", 0, Some(will(0)));
            let id = |owner: &Owner| owner.client.as_ref().unwrap().session.id;
            let (left, stayed) = (id(&owner), id(&stays));
            world.fail(fault);
            world.leave(owner, ended);
            assert_eq!(world.published(), at_once, "{case}: at once");
            world.broker.rebuild(crate::clock::now()).unwrap();
            // What was published while nothing could be stored is published again.
            assert_eq!(world.published(), later, "{case}: after the rebuilding");
            let waits = delay_secs > 0;
            let mut wills = world.stored().1;
            wills.sort_unstable();
            let expected = if waits { vec![left, stayed] } else { vec![stayed] };
            assert_eq!(wills, expected, "{case}");
            while world.broker.sweep(crate::clock::now().plus_secs(31), 16) {}
            assert_eq!(world.published(), later + usize::from(waits), "{case}: after its delay");
            world.leave(stays, Ended::Abnormally);
        }
    }
}

#[test]
fn a_session_that_ended_stays_ended_whatever_the_store_does() {
    for comes_back in [false, true] {
        let world = World::new();
        let owner = world.connected("c", 60, None);
        world.fail(Fault::Write);
        let mut owner = owner;
        world.broker.set_session_expiry(owner.client.as_mut().unwrap(), 0);
        world.leave(owner, Ended::Normally);
        let again = comes_back.then(|| world.connected("c", 0, None));
        assert!(world.broker.store_failed());
        world.broker.rebuild(NOW).unwrap();
        assert_eq!(world.stored().0, [0; 0], "{comes_back}");
        assert_eq!(world.broker.registry.len(), usize::from(comes_back));
        assert_eq!(world.broker.metrics.sessions.get(), u64::from(comes_back));
        drop(again);
        assert_eq!(world.broker.registry.len(), 0, "its place is its own");
        assert_eq!(world.broker.metrics.sessions.get(), 0);
    }
}

#[test]
fn a_rebuilding_waits_for_every_stored_session_and_fails_as_a_whole() {
    let world = World::new();
    world.leave(world.connected("c", 60, None), Ended::Normally);
    let owner = world.connected("d", 60, None);
    let (claimed, _) = world.claim("c");
    world.fail(Fault::Write);
    let is_busy = || matches!(world.broker.rebuild(NOW), Err(RecoveryError::Busy));
    assert!(is_busy(), "one is connected, one is between two connections");
    world.leave(owner, Ended::StoreFailed);
    assert!(is_busy());
    drop(claimed);
    // It can be opened, but not be read.
    world.engine.corrupt(Table::Retained, b"t", b"x");
    for _ in 0..2 {
        assert!(matches!(world.broker.rebuild(NOW), Err(RecoveryError::Store(_))));
        assert!(world.broker.store_failed(), "nothing is stored before all is read");
    }
    world.engine.corrupt(Table::Retained, b"t", RETAINED);
    world.broker.rebuild(NOW).unwrap();
    assert_eq!((world.stored().0.len(), world.broker.registry.len(), world.broker.retained()), (2, 2, 1));
    assert_eq!(world.broker.metrics.sessions.get(), 2);
}

#[test]
fn a_damaged_entry_of_a_log_is_passed_over() {
    for damaged in [vec![], vec![1], vec![2, 3], vec![4], vec![1, 2, 3, 4]] {
        let world = World::new();
        let owner = world.connected("c", 60, None);
        let log = owner.client.as_ref().unwrap().session.id;
        let message = PendingWill::new(&will(0), 0).record(owner.client.as_ref().unwrap(), None).message;
        world.broker.store.write(|batch| {
            let (qos, subscription_ids) = (QoS::AtLeastOnce, Default::default());
            let head = EntryHead { qos, retain: false, subscription_ids, publisher: 0, log_bytes: 0 };
            let body = batch.body(&message, 1);
            for seq in 1..=4 {
                batch.append(log, seq, &head, &body);
            }
        });
        world.step();
        for seq in &damaged {
            let key = [log.to_be_bytes(), u64::to_be_bytes(*seq)].concat();
            world.engine.corrupt(Table::Logs, &key, &[1, 0xFF]);
        }
        let (mut from, mut read) = (1, Vec::new());
        loop {
            let page = world.broker.read_log(log, from, usize::MAX).unwrap();
            let Some(last) = page.last() else { break };
            from = last.seq() + 1;
            read.extend(page.iter().map(Delivery::seq));
        }
        let expected: Vec<u64> = (1..=4).filter(|seq| !damaged.contains(seq)).collect();
        assert_eq!(read, expected, "{damaged:?}");
        let lost = world.broker.metrics.snapshot().find(|sample| sample.name == "dropped_storage_failed").unwrap();
        assert!(lost.value >= damaged.len() as u64, "{damaged:?}");
    }
}

fn will(delay_secs: u32) -> Will {
    Will {
        topic: TopicName::parse("will").unwrap(),
        payload: b"gone".as_slice().into(),
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: Box::default(),
        delay_secs,
        expiry_secs: None,
    }
}

const NOW: Timestamp = Timestamp(1_700_000_000_000);
/// A message as it is stored: topic `t`, payload `x`.
const RETAINED: &[u8] = &[1, 0b100, 0, 1, b't', 0, b'x'];

/// A damaged message is passed over and counted; where nothing can be read, all of it is tried again.
#[test]
fn what_is_retained_and_cannot_be_read_is_lost_alone() {
    let world = World::new();
    for topic in ["a", "b", "c"] {
        let will = Will { topic: TopicName::parse(topic).unwrap(), ..will(0) };
        let owner = world.connected(topic, 0, Some(will));
        world.leave(owner, Ended::Abnormally);
    }
    world.step();
    // After a start, memory has none of them.
    let world = World::started(Arc::new(world.engine.kill()), NOW);
    world.engine.corrupt(Table::Retained, b"b", b"?");
    let mut turn = Turn::default();
    let mut subscriber = world.connected("subscriber", 0, None);
    let client = subscriber.client.as_mut().unwrap();
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let filter = Filter::parse("#").unwrap();
    let subscribe = Subscribe { packet_id: PacketId::MIN, subscription_id: None, filters: vec![(Ok(filter), options)] };
    assert!(world.broker.subscribe(client, &mut turn, subscribe, 0, NOW).is_empty());
    assert!(world.broker.replay_page(client, NOW).is_none(), "SUBACK has not left");
    let mut outbox = Outbox::new(crate::mqtt::Version::V5);
    client.session.release(|_| crate::session::Commit::Done, NOW, &mut outbox).unwrap();
    let mut page = world.broker.replay_page(client, NOW).unwrap();
    assert_eq!(world.broker.check_page(client, &mut turn, &mut page, NOW), PageIs::Unread);
    world.broker.fill_page(&mut page).unwrap();
    assert_eq!(world.broker.check_page(client, &mut turn, &mut page, NOW), PageIs::Ready);
    let mut lost = world.broker.replay_page(client, NOW).unwrap();
    let taken = world.broker.take_page(client, &mut turn, &mut page, NOW);
    let topics: Vec<_> = taken.iter().map(|delivery| delivery.message.topic.as_str()).collect();
    assert_eq!((topics, client.replay_room()), (vec!["a", "c"], None));
    let failed = world.broker.metrics.snapshot().find(|one| one.name == DropReason::StorageFailed.counter());
    assert_eq!(failed.map(|one| one.value), Some(1));
    let _ = world.engine.power_cut(0);
    assert!(world.broker.fill_page(&mut lost).is_err());
    world.leave(subscriber, Ended::Normally);
}
