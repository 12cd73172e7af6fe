//! The races of the broker, run on real threads: nothing waits for a chance here, every wait has a deadline and a reason to end.
//!
//! Must not know sockets.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use super::{super::*, connect};
use crate::{
    mqtt::{
        Filter, Message, QoS, TopicName, Version,
        packet::{RetainHandling, Subscribe, SubscriptionOptions, Unsubscribe},
    },
    session::{Delivered, Request},
    storage::{Config, Durability},
};

fn broker() -> Arc<Broker> {
    let config = Config { durability: Durability::Memory, ..Config::default() };
    let store = Store::with_engine(Arc::new(crate::storage::MemoryEngine::new()), &config).expect("a store");
    let auth = Auth::load(&crate::auth::Config::default()).expect("no files");
    Broker::new(crate::broker::Config::default(), crate::session::Limits::default(), Arc::new(store), auth)
}

fn begin(broker: &Arc<Broker>, owner: &mut Owner, signal: &Arc<Signal>, expiry_secs: u32) -> Connected {
    let connect = connect(owner.client_id(), expiry_secs, None);
    let terms = Terms::negotiate(&connect, &broker.limits);
    let now = crate::clock::now();
    broker.connect(owner, &connect, &terms, &Identity::ANONYMOUS, signal, now).expect("the store works")
}

fn message(number: u64) -> Arc<Message> {
    Arc::new(Message {
        topic: TopicName::parse("t").expect("a topic"),
        payload: number.to_be_bytes().into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Box::default(),
        expires_at: None,
        publisher: 0,
    })
}

fn receiver(logged: bool) -> Receiver {
    Receiver::new(1, "c".into(), Identity::ANONYMOUS, logged, Arc::default(), mailbox::Extent::default())
}

fn number(delivery: &Delivery) -> u64 {
    u64::from_be_bytes(delivery.message.payload.as_ref().try_into().expect("a number"))
}

/// Wakes a thread, and remembers that it did.
struct Bell {
    thread: Thread,
    rung: AtomicBool,
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), rung: AtomicBool::new(false) })
    }

    /// Waits until it rings.
    #[track_caller]
    fn wait(&self) {
        let begun = std::time::Instant::now();
        while !self.rung.swap(false, Ordering::AcqRel) {
            assert!(begun.elapsed() < PATIENCE, "a wake-up was lost");
            thread::park_timeout(PATIENCE);
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Every message comes, each publisher's in order, and the receiver sleeps only when it may.
#[test]
fn a_mailbox_wakes_its_receiver() {
    for _ in 0..20 {
        let receiver = Arc::new(receiver(false));
        let signal = Arc::new(Signal::default());
        receiver.online(signal.clone(), 0, 0);
        thread::scope(|scope| {
            for publisher in 0..PUBLISHERS {
                let receiver = &receiver;
                scope.spawn(move || {
                    for first in (0..MESSAGES).step_by(3) {
                        let numbers = first..(first + 3).min(MESSAGES);
                        let all = numbers
                            .map(|n| mailbox::delivery(&message(publisher << 32 | n), QoS::AtLeastOnce, false, None));
                        let woken = receiver.put_all(all, |_, reason| panic!("dropped: {reason:?}"));
                        if let Some(signal) = woken {
                            signal.raise(Signal::MAIL);
                        }
                    }
                });
            }
            let bell = Bell::new();
            let waker = Waker::from(bell.clone());
            let mut next = [0; PUBLISHERS as usize];
            let mut mail = VecDeque::new();
            while next.iter().sum::<u64>() < PUBLISHERS * MESSAGES {
                signal.take(&waker);
                assert!(!receiver.take(&mut mail), "it has no log");
                if mail.is_empty() {
                    bell.wait();
                }
                for delivery in mail.drain(..) {
                    let (publisher, n) = (number(&delivery) >> 32, number(&delivery) & u64::from(u32::MAX));
                    assert_eq!(n, next[publisher as usize], "in the order of publisher {publisher}");
                    next[publisher as usize] += 1;
                }
            }
        });
    }
}

/// A receiver that falls behind reads its log, and the mailbox opens again without a gap, a double or a lost wake-up.
#[test]
fn a_mailbox_that_fell_behind_opens_again() {
    let broker = broker();
    let receiver = Arc::new(receiver(true));
    let signal = Arc::new(Signal::default());
    receiver.online(signal.clone(), 0, 0);
    let (mut opened, mut seen) = (0, 0);
    thread::scope(|scope| {
        for _ in 0..PUBLISHERS {
            let (broker, receiver) = (&broker, &receiver);
            scope.spawn(move || {
                for n in 0..MESSAGES * 10 {
                    let message = message(n);
                    let (woken, _) = broker.store.write(|batch| {
                        let body = batch.body(&message, 1);
                        let delivery = mailbox::delivery(&message, QoS::AtLeastOnce, false, None);
                        receiver.append(batch, &body, delivery, true).expect("no limit").signal
                    });
                    if let Some(signal) = woken {
                        signal.raise(Signal::MAIL);
                    }
                }
            });
        }
        let bell = Bell::new();
        let waker = Waker::from(bell.clone());
        let mut mail = VecDeque::new();
        let end = PUBLISHERS * MESSAGES * 10;
        // More than a mailbox holds: it falls behind at least once.
        while receiver.extent().tail <= HELD {
            thread::yield_now();
        }
        while seen < end {
            signal.take(&waker);
            let behind = receiver.take(&mut mail);
            let idle = mail.is_empty();
            for delivery in mail.drain(..) {
                let seq = delivery.seq();
                assert!(seq <= seen + 1, "a gap: {seq} after {seen}");
                seen = seen.max(seq);
            }
            if behind {
                while let Some((tail, commit)) = receiver.catch_up(seen) {
                    assert!(tail > seen);
                    while broker.when_committed(commit, &waker) == crate::session::Commit::Pending {
                        bell.wait();
                    }
                    for delivery in broker.read_log(1, seen + 1, usize::MAX).expect("it can be read") {
                        assert_eq!(delivery.seq(), seen + 1, "a gap in the log");
                        seen = delivery.seq();
                    }
                }
                opened += 1;
            } else if idle && seen < end {
                bell.wait();
            }
        }
    });
    assert_eq!((seen, receiver.extent().tail), (PUBLISHERS * MESSAGES * 10, seen));
    assert!(opened > 0, "it never fell behind: the test shows nothing");
}

/// [MQTT-3.1.4-3]: one owner at a time, the latest claimant wins, earlier ones are told, and the session is never lost, though claimants
/// vanish at any moment.
#[test]
fn claims() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime");
    let broker = broker();
    let owned = Arc::new(AtomicBool::new(false));
    let (won, lost, vanished) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let counts = Arc::new((won, lost, vanished));
    let first = runtime.block_on(claim(broker.clone(), owned.clone(), counts.clone(), Until::Done));
    let session = first.expect("nobody else claims");
    let mut claimants = CLAIMANTS + 2;
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..CLAIMANTS {
            let task = claim(broker.clone(), owned.clone(), counts.clone(), Until::TakenOver);
            let counts = counts.clone();
            tasks.spawn(async move {
                if number % 3 > 0 {
                    return task.await;
                }
                // Vanishes after some turns, wherever it stands then.
                let mut task = Box::pin(task);
                for _ in 0..number % 7 {
                    let ready = poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx))).await;
                    if let Poll::Ready(session) = ready {
                        return session;
                    }
                    tokio::task::yield_now().await;
                }
                counts.2.fetch_add(1, Ordering::AcqRel);
                None
            });
            tokio::task::yield_now().await;
        }
        // One more takes over from whoever is left, until nobody is.
        loop {
            match tokio::time::timeout(Duration::from_millis(20), tasks.join_next()).await {
                Ok(None) => break,
                Ok(Some(done)) => {
                    assert!(done.expect("no panic").is_none_or(|found| found == session), "another session")
                }
                Err(_) => {
                    let more = claim(broker.clone(), owned.clone(), counts.clone(), Until::Done);
                    tokio::time::timeout(PATIENCE, more).await.expect("a claimant is served");
                    claimants += 1;
                }
            }
        }
        let last = claim(broker.clone(), owned.clone(), counts.clone(), Until::Done).await;
        assert_eq!(last, Some(session), "the latest wins, and has the session");
    });
    let (won, lost, vanished) = (&counts.0, &counts.1, &counts.2);
    let all = won.load(Ordering::Acquire) + lost.load(Ordering::Acquire) + vanished.load(Ordering::Acquire);
    assert_eq!(all, claimants, "each is served, told or gone");
    assert!(lost.load(Ordering::Acquire) > 0, "nobody was overtaken: the test shows nothing");
    assert_eq!(broker.registry.len(), 1);
    assert_eq!(broker.metrics.clients_connected.get(), 0);
    assert_eq!(broker.metrics.sessions.get(), 1);
    assert!(broker.registry.with_parked("c", |client| client.session.id) == Some(session), "it is parked");
}

#[derive(Clone, Copy, PartialEq)]
enum Until {
    Done,
    TakenOver,
}

/// Claims `c`, connects, and leaves. The session that it had.
async fn claim(
    broker: Arc<Broker>,
    owned: Arc<AtomicBool>,
    counts: Arc<(AtomicUsize, AtomicUsize, AtomicUsize)>,
    until: Until,
) -> Option<u64> {
    let signal = Arc::new(Signal::default());
    let Ok(mut owner) = broker.registry.claim(&broker, &"c".into(), &Identity::ANONYMOUS, &signal).await else {
        counts.1.fetch_add(1, Ordering::AcqRel);
        return None;
    };
    assert!(!owned.swap(true, Ordering::AcqRel), "two owners");
    // However this ends, the mark goes before the session does.
    let guard = Mark(owned);
    begin(&broker, &mut owner, &signal, 3600);
    let session = owner.client.as_ref().map(|client| client.session.id);
    if until == Until::TakenOver {
        poll_fn(|cx| if signal.take(cx.waker()) & Signal::TAKEN_OVER == 0 { Poll::Pending } else { Poll::Ready(()) })
            .await;
    }
    counts.0.fetch_add(1, Ordering::AcqRel);
    drop((guard, owner));
    session
}

struct Mark(Arc<AtomicBool>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Members come to one group and leave it at once, with messages under way: nobody is left in a group that has ended, and nothing of one.
#[test]
fn a_group_ends_with_its_last_member() {
    let broker = broker();
    let filter = Filter::parse("$share/g/t").expect("a filter");
    thread::scope(|scope| {
        for member in 0..4 {
            let (broker, filter) = (&broker, &filter);
            scope.spawn(move || {
                let client_id: Arc<str> = format!("member-{member}").into();
                let signal = Arc::new(Signal::default());
                let claim = broker.registry.claim(broker, &client_id, &Identity::ANONYMOUS, &signal);
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                let mut owner = runtime.block_on(claim).expect("nobody else claims");
                begin(broker, &mut owner, &signal, if member % 2 == 0 { 3600 } else { 0 });
                let client = owner.client.as_mut().expect("connected");
                let mut turn = Turn::default();
                for _ in 0..300 {
                    let now = crate::clock::now();
                    let filters = vec![(Ok(filter.clone()), options())];
                    let packet_id = PacketId::MIN;
                    broker.subscribe(
                        client,
                        &mut turn,
                        Subscribe { packet_id, subscription_id: None, filters },
                        0,
                        now,
                    );
                    let group = broker.groups.by_filter(filter).expect("its group");
                    assert!(group.has_member(client.session.id), "the group that is found is the group that it is in");
                    broker.publish_message(&mut turn, Message::clone(&message(1)), &client.receiver.clone());
                    broker.dispatch(client, &mut turn, now);
                    let filters = vec![Ok(filter.clone())];
                    broker.unsubscribe(client, &mut turn, Unsubscribe { packet_id, filters }, now);
                    broker.finish(&mut turn);
                }
                owner.ended = Ended::Normally;
            });
        }
    });
    assert_eq!(broker.subscriptions(), 0);
    assert!(broker.groups.all().is_empty() && broker.groups.by_filter(&filter).is_none());
}

/// A group whose members are away keeps its messages in the log alone once they are many, and reads on as members take them.
#[test]
fn a_group_that_fell_behind_reads_its_log() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let broker = broker();
        let signal = Arc::new(Signal::default());
        let client_id: Arc<str> = "c".into();
        let claim = || broker.registry.claim(&broker, &client_id, &Identity::ANONYMOUS, &signal);
        let mut owner = claim().await.expect("nobody else claims");
        begin(&broker, &mut owner, &signal, 3600);
        let (mut turn, now) = (Turn::default(), crate::clock::now());
        let client = owner.client.as_mut().expect("connected");
        let filters = vec![(Ok(Filter::parse("$share/g/t").expect("a filter")), options())];
        let subscribe = Subscribe { packet_id: PacketId::MIN, subscription_id: None, filters };
        broker.subscribe(client, &mut turn, subscribe, 0, now);
        drop(owner);
        let extent = mailbox::Extent::default();
        let publisher = Receiver::new(9, "p".into(), Identity::ANONYMOUS, false, Arc::default(), extent);
        let mut owner =
            broker.registry.claim(&broker, &"p".into(), &Identity::ANONYMOUS, &signal).await.expect("alone");
        begin(&broker, &mut owner, &signal, 0);
        let all = MESSAGES * 5;
        for n in 0..all {
            broker.publish_message(&mut turn, Message::clone(&message(n)), &publisher);
            broker.dispatch(owner.client.as_mut().expect("connected"), &mut turn, now);
        }
        drop(owner);
        let mut owner = claim().await.expect("it is parked");
        assert!(begin(&broker, &mut owner, &signal, 3600).session_present);
        let client = owner.client.as_mut().expect("connected");
        let mut outbox = crate::mqtt::Outbox::new(Version::V5);
        assert_eq!(client.session.connected(Terms { version: Version::V5, ..Terms::default() }, now, &mut outbox), []);
        let (mut mail, mut next) = (VecDeque::new(), 0);
        let begun = std::time::Instant::now();
        while next < all {
            assert!(begun.elapsed() < PATIENCE, "{next} of {all} came");
            client.receiver.take(&mut mail);
            for delivery in mail.drain(..) {
                assert!(broker.is_current(client, delivery.source));
                assert_eq!(number(&delivery), next, "in order, each once");
                next += 1;
                assert_eq!(client.session.deliver(&delivery, now, &mut outbox), Delivered::Sent);
                let packet_id =
                    PacketId::new(u16::try_from(32_767 + (next - 1) % 32_768 + 1).expect("an id")).expect("an id");
                let ack = crate::mqtt::packet::Ack { packet_id, reason: ReasonCode::Success };
                let puback = crate::mqtt::Packet::Ack(crate::mqtt::packet::AckKind::PubAck, ack);
                match client.session.receive(puback, now, &mut outbox) {
                    Ok(Request::Settled(settled)) => broker.settle(client, &mut turn, settled, now),
                    other => panic!("{other:?}"),
                }
            }
            broker.dispatch(client, &mut turn, now);
            tokio::task::yield_now().await;
        }
        broker.finish(&mut turn);
    });
}

/// A group that lived in memory takes what it holds into its log when a persistent member comes: what waits, and what is leased.
#[test]
fn a_group_becomes_a_log() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let broker = broker();
        let signal = Arc::new(Signal::default());
        let (mut turn, now) = (Turn::default(), crate::clock::now());
        let mut owners = Vec::new();
        for (client_id, expiry_secs) in [("in memory", 0), ("kept", 3600)] {
            let client_id: Arc<str> = client_id.into();
            let claim = broker.registry.claim(&broker, &client_id, &Identity::ANONYMOUS, &signal);
            let mut owner = claim.await.expect("nobody else claims");
            begin(&broker, &mut owner, &signal, expiry_secs);
            let client = owner.client.as_mut().expect("connected");
            let filters = vec![(Ok(Filter::parse("$share/g/t").expect("a filter")), options())];
            let subscribe = Subscribe { packet_id: PacketId::MIN, subscription_id: None, filters };
            broker.subscribe(client, &mut turn, subscribe, 0, now);
            for n in 0..400 {
                broker.publish_message(&mut turn, Message::clone(&message(n)), &client.receiver.clone());
                broker.dispatch(client, &mut turn, now);
            }
            owners.push(owner);
        }
        let mut logs = Vec::new();
        let found = broker.store.recover(&mut |record| {
            if let crate::storage::Recovered::Group { group, .. } = record {
                logs.push(group.log);
            }
        });
        found.expect("it can be read");
        assert_eq!(logs.len(), 1);
        let entries = broker.store.read_log(logs[0], 1, usize::MAX, usize::MAX).expect("it can be read");
        let seqs: Vec<u64> = entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, (1..=800).collect::<Vec<_>>());
        broker.finish(&mut turn);
    });
}

fn options() -> SubscriptionOptions {
    SubscriptionOptions {
        qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Never,
    }
}

/// No mailbox holds so many messages.
const HELD: u64 = 5_000;
const PUBLISHERS: u64 = 4;
const MESSAGES: u64 = 1000;
const CLAIMANTS: usize = 600;
const PATIENCE: Duration = Duration::from_secs(30);
