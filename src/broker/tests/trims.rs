//! Logs whose first entry stays: what is settled behind it goes, and nobody reads it again.
//!
//! Must not know sockets.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{super::*, connect};
use crate::{
    mqtt::{
        Filter, Message, QoS, TopicName, Version,
        packet::{RetainHandling, Subscribe, SubscriptionOptions},
    },
    session::{Delivered, Limits, limits::QueueFull},
    storage::{self, Durability, Engine, MemoryEngine, Ops, Table},
};

/// Counts what is read of logs.
struct Counted {
    engine: MemoryEngine,
    read: AtomicU64,
}

impl Counted {
    fn new() -> Arc<Self> {
        Arc::new(Self { engine: MemoryEngine::new(), read: AtomicU64::new(0) })
    }

    fn count(&self, table: Table) -> usize {
        let mut count = 0;
        let each = &mut |_: &[u8], _: &[u8]| {
            count += 1;
            ControlFlow::Continue(())
        };
        self.engine.scan(table, &[], &[0xFF; 20], each).expect("it can be read");
        count
    }
}

impl Engine for Counted {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn write(&self, ops: &Ops, sync: bool) -> Result<(), storage::Error> {
        self.engine.write(ops, sync)
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, storage::Error> {
        self.engine.get(table, key)
    }

    fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut storage::Visit<'_>) -> Result<(), storage::Error> {
        self.engine.scan(table, from, to, &mut |key, value| {
            self.read.fetch_add(u64::from(table == Table::Logs), Ordering::Relaxed);
            each(key, value)
        })
    }

    fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, storage::Error> {
        self.engine.last_key(table, from, to)
    }

    fn sync(&self) -> Result<(), storage::Error> {
        self.engine.sync()
    }

    fn reopen(&self) -> Result<(), storage::Error> {
        self.engine.reopen()
    }

    fn close(&self) -> Result<(), storage::Error> {
        Ok(())
    }
}

fn broker(engine: &Arc<Counted>, max_queued_messages: u64) -> Arc<Broker> {
    let config = storage::Config { durability: Durability::Memory, ..storage::Config::default() };
    let store = Store::with_engine(engine.clone(), &config).expect("a store");
    let auth = Auth::load(&crate::auth::Config::default()).expect("no files");
    let limits = Limits { max_queued_messages, queue_full: QueueFull::DropOldest, ..Limits::default() };
    let broker = Broker::new(crate::broker::Config::default(), limits, Arc::new(store), auth);
    broker.recover(crate::clock::now()).expect("it can be read");
    broker
}

async fn connected(broker: &Arc<Broker>, client_id: &str, subscribes: bool) -> Owner {
    let (client_id, signal): (Arc<str>, _) = (client_id.into(), Arc::new(Signal::default()));
    let claim = broker.registry.claim(broker, &client_id, &Identity::ANONYMOUS, &signal);
    let mut owner = claim.await.expect("nobody else claims");
    let connect = connect(&client_id, 3600, None);
    let (terms, now) = (Terms::negotiate(&connect, &broker.limits), crate::clock::now());
    broker.connect(&mut owner, &connect, &terms, &Identity::ANONYMOUS, &signal, now).expect("the store works");
    if subscribes {
        let options = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Never,
        };
        let filters = vec![(Ok(Filter::parse("t").expect("a filter")), options)];
        let subscribe = Subscribe { packet_id: PacketId::MIN, subscription_id: None, filters };
        let mut turn = Turn::default();
        let client = owner.client.as_mut().expect("connected");
        broker.subscribe(client, &mut turn, subscribe, 0, now);
        broker.dispatch(client, &mut turn, now);
    }
    owner
}

fn publish(broker: &Broker, publisher: &mut Owner, count: usize, payload: usize) {
    let (mut turn, now) = (Turn::default(), crate::clock::now());
    let client = publisher.client.as_mut().expect("connected");
    for _ in 0..count {
        let message = Message {
            topic: TopicName::parse("t").expect("a topic"),
            payload: vec![7; payload].into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: Box::default(),
            expires_at: None,
            publisher: 0,
        };
        let receiver = client.receiver.clone();
        broker.publish_message(&mut turn, message, &receiver);
    }
    broker.dispatch(client, &mut turn, now);
    broker.finish(&mut turn);
}

/// The client is sent all that stands in its mailbox, and acknowledges what is after the entry `keeps`.
fn serve(broker: &Broker, owner: &mut Owner, keeps: u64) {
    let (mut turn, now) = (Turn::default(), crate::clock::now());
    let client = owner.client.as_mut().expect("connected");
    let mut mail = VecDeque::new();
    client.receiver.take(&mut mail);
    let mut outbox = Outbox::new(Version::V5);
    for delivery in mail {
        assert_eq!(client.session.deliver(&delivery, now, &mut outbox), Delivered::Sent);
        broker.sent(client, &mut turn, &delivery);
        if let Source::Log { seq, body, size } = delivery.source
            && seq > keeps
        {
            broker.settle_entry(client, &mut turn, seq, body, size);
        }
    }
    broker.dispatch(client, &mut turn, now);
    broker.finish(&mut turn);
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What no commit is asked for is written soon all the same: here it is asked for.
async fn commit(broker: &Broker) {
    let ((), lsn) = broker.store.write(storage::Batch::require_durable);
    until("it is committed", || broker.store.outcome(lsn) != storage::Outcome::Pending).await;
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A client that never acknowledges its first message, and all that follow it, keeps that one alone: in memory, on the disk, over a restart,
/// and with it the only body that is still shared.
#[test]
fn one_that_is_stuck_keeps_no_other() {
    runtime().block_on(async {
        let engine = Counted::new();
        let one = {
            let first = broker(&engine, 10);
            let (mut stuck, mut other) = (connected(&first, "c", true).await, connected(&first, "d", true).await);
            let mut publisher = connected(&first, "p", false).await;
            for turn in 0..1000 {
                publish(&first, &mut publisher, 10, 1500);
                serve(&first, &mut stuck, 1);
                serve(&first, &mut other, 0);
                if turn % 100 == 99 {
                    commit(&first).await;
                    let stored = engine.count(Table::Logs);
                    assert!(stored < 1200, "{stored} entries are stored of {}", 10 * turn);
                    assert_eq!(engine.count(Table::Bodies), 2, "one body and its count");
                }
            }
            let extent = stuck.client.as_ref().expect("connected").receiver.extent();
            assert_eq!((extent.head, extent.tail, extent.beyond), (0, 10_000, 9_999));
            drop((stuck, other, publisher));
            commit(&first).await;
            extent.appended - extent.settled
        };
        let second = broker(&engine, 10);
        let mut stuck = connected(&second, "c", true).await;
        let extent = stuck.client.as_ref().expect("connected").receiver.extent();
        assert_eq!((extent.head, extent.tail, extent.beyond), (0, 10_000, 9_999));
        assert_eq!(extent.appended - extent.settled, one, "bytes");
        let page = second
            .read_log(stuck.client.as_ref().expect("connected").session.id, 1, usize::MAX)
            .expect("it can be read");
        assert_eq!(page.first().map(Delivery::seq), Some(1));
        // The session ends: what is settled is not released once more.
        stuck.client.as_mut().expect("connected").session.expiry_secs = 0;
        drop(stuck);
        until("the log is collected", || engine.count(Table::Bodies) == 0).await;
    });
}

/// A client goes away with one message in flight; of what comes then, the oldest is dropped. Each message is read about once.
#[test]
fn what_was_dropped_is_not_read_again() {
    runtime().block_on(async {
        let engine = Counted::new();
        let broker = broker(&engine, 1000);
        let mut away = connected(&broker, "c", true).await;
        let mut publisher = connected(&broker, "p", false).await;
        publish(&broker, &mut publisher, 1, 100);
        serve(&broker, &mut away, 1);
        let receiver = away.client.as_ref().expect("connected").receiver.clone();
        drop(away);
        // Each time from where it was left, not from the message that is stuck.
        for _ in 0..ROUNDS {
            publish(&broker, &mut publisher, 100, 100);
            until("the log is cut", || receiver.excess() == (0, 0)).await;
        }
        let extent = receiver.extent();
        assert_eq!((extent.head, extent.tail - extent.beyond), (0, 1000));
        let read = engine.read.load(Ordering::Relaxed);
        // A page holds 256 messages, and the last one of a log may come too late for one.
        assert!(read < 600 * ROUNDS, "{read} entries were read");
        commit(&broker).await;
        let stored = engine.count(Table::Logs);
        assert!(stored < 2000, "{stored} entries are stored");
    });
}

/// What makes the log too long while its session is neither connected nor parked is seen to once it is parked.
#[test]
fn who_is_parked_is_asked_to_drop() {
    let (broker, runtime) = (broker(&Counted::new(), 100), runtime());
    let (away, mut publisher) =
        runtime.block_on(async { (connected(&broker, "c", true).await, connected(&broker, "p", false).await) });
    let receiver = away.client.as_ref().expect("connected").receiver.clone();
    receiver.offline();
    // Outside of the runtime nobody is sent to drop anything; nor would it be found.
    publish(&broker, &mut publisher, 200, 10);
    runtime.block_on(async {
        commit(&broker).await;
        assert!(!broker.cut(&receiver), "nobody is there");
        assert_eq!(receiver.excess(), (100, 0));
        drop(away);
        until("the log is cut", || receiver.excess() == (0, 0)).await;
    });
}

/// While everything is read from the store anew nothing is dropped in what memory had before.
#[test]
fn nothing_is_dropped_during_a_rebuilding() {
    let (broker, runtime) = (broker(&Counted::new(), 100), runtime());
    let (away, mut publisher) =
        runtime.block_on(async { (connected(&broker, "c", true).await, connected(&broker, "p", false).await) });
    let receiver = away.client.as_ref().expect("connected").receiver.clone();
    drop(away);
    // Outside of the runtime nobody is sent to drop anything.
    publish(&broker, &mut publisher, 200, 10);
    runtime.block_on(commit(&broker));
    *broker.rebuilding.write() = true;
    assert!(!broker.cut(&receiver));
    assert_eq!(receiver.excess(), (100, 0));
    *broker.rebuilding.write() = false;
    assert!(broker.cut(&receiver));
    assert_eq!(receiver.excess(), (0, 0));
}

/// How often a log is made too long.
const ROUNDS: u64 = 200;
