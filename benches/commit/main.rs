//! What a commit costs: filling the open batch, reading a log in pages, and durable commits a second with many writers.

// A bench that cannot set up what it measures has nothing to say.
#![allow(clippy::expect_used)]
#![allow(missing_docs)] // criterion's macros write a public function

#[allow(dead_code, reason = "what `benches/durable` takes of it")]
mod storelimit;

use std::{
    hint::black_box,
    sync::{Arc, Condvar, Mutex},
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pinnace::{
    mqtt::{Message, QoS, TopicName},
    storage::{Config, Durability, Engine, EntryHead, Error, Lsn, Ops, Outcome, Store, Table, Visit},
};

criterion_group!(benches, filling, reading, committing, bare);
criterion_main!(benches);

/// One message into one log, without a disk: what a publisher's turn pays.
fn filling(c: &mut Criterion) {
    let mut group = c.benchmark_group("fill");
    for (name, payload, receivers) in
        [("64B/1", 64, 1u64), ("64B/10", 64, 10), ("4KiB/1", 4096, 1), ("4KiB/10", 4096, 10)]
    {
        let (message, head) = (message(payload), head());
        let engine = Arc::new(Discarding);
        let config = Config { commit_max_bytes: 1 << 20, ..config(Durability::Os) };
        let store = Store::with_engine(engine, &config).expect("a store");
        group.throughput(Throughput::Elements(receivers));
        let mut seq = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                seq += 1;
                while store.is_full() {
                    std::thread::yield_now();
                }
                store.write(|batch| {
                    let body = batch.body(black_box(&message), receivers as usize);
                    for log in 1..=receivers {
                        batch.append(log, seq, &head, &body);
                    }
                })
            });
        });
    }
    group.finish();
}

fn reading(c: &mut Criterion) {
    let mut group = c.benchmark_group("read");
    for durability in durabilities() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path(), &config(durability)).expect("a store");
        let (message, head) = (message(64), head());
        for seq in 1..=10_000 {
            store.write(|batch| {
                let body = batch.body(&message, 1);
                batch.append(1, seq, &head, &body);
            });
        }
        let ((), lsn) = store.write(|batch| batch.require_durable());
        Parked::new().wait(&store, lsn);
        group.throughput(Throughput::Elements(100));
        let mut from = 0;
        group.bench_function(format!("page of 100, {}", durability.name()), |b| {
            b.iter(|| {
                from = (from + 100) % 9_900;
                store.read_log(1, from + 1, 100, usize::MAX).expect("a page")
            });
        });
    }
    group.finish();
}

/// Durable commits with 64 writers, each waiting for its own; and what the disk itself gives, one sync after another.
fn committing(c: &mut Criterion) {
    let mut group = c.benchmark_group("commit");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let dir = tempfile::tempdir().expect("a directory");
    let file = std::fs::File::create(dir.path().join("file")).expect("a file");
    group.throughput(Throughput::Elements(1));
    group.bench_function("fdatasync alone", |b| {
        b.iter(|| {
            std::io::Write::write_all(&mut &file, &[7; 256]).expect("a write");
            file.sync_data().expect("a sync");
        });
    });
    for durability in durabilities() {
        for writers in [1, 64] {
            let dir = tempfile::tempdir().expect("a directory");
            let store = Store::open(dir.path(), &config(durability)).expect("a store");
            group.bench_function(format!("{writers} writers, {}", durability.name()), |b| {
                b.iter_custom(|commits| commit(&store, writers, commits));
            });
        }
    }
    group.finish();
}

/// What the engine gives without a store: the bound of all that is measured above.
fn bare(c: &mut Criterion) {
    if !cfg!(feature = "rocksdb") {
        return;
    }
    let mut group = c.benchmark_group("storelimit");
    for durability in [Durability::Fsync, Durability::Os] {
        for batch in [1, 100, 1000] {
            let dir = tempfile::tempdir().expect("a directory");
            let load = storelimit::Load { durability, payload_bytes: 200, logs: 64, batch };
            let mut writer = storelimit::Writer::open(dir.path(), load).expect("an engine");
            group.throughput(Throughput::Elements(batch));
            group.bench_function(format!("batch of {batch}, {}", durability.name()), |b| {
                b.iter(|| writer.batch().expect("a write"));
            });
        }
    }
    group.finish();
}

fn commit(store: &Store, writers: u64, commits: u64) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                let (message, head, parked) = (message(200), head(), Parked::new());
                for seq in 1..=commits.div_ceil(writers) {
                    let ((), lsn) = store.write(|batch| {
                        let body = batch.body(&message, 1);
                        batch.append(writer + 1, seq, &head, &body);
                        batch.require_durable();
                    });
                    parked.wait(store, lsn);
                }
            });
        }
    });
    start.elapsed()
}

fn durabilities() -> Vec<Durability> {
    if cfg!(feature = "rocksdb") {
        vec![Durability::Fsync, Durability::Os, Durability::Memory]
    } else {
        vec![Durability::Memory]
    }
}

fn config(durability: Durability) -> Config {
    Config { durability, ..Config::default() }
}

fn message(payload: usize) -> Message {
    Message {
        topic: TopicName::parse("site/building/12/sensor/42").expect("a topic"),
        payload: (0..payload).map(|i| (i * i) as u8).collect(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Box::default(),
        expires_at: None,
        publisher: 7,
    }
}

fn head() -> EntryHead {
    let (qos, subscription_ids) = (QoS::AtLeastOnce, Default::default());
    EntryHead { qos, retain: false, subscription_ids, publisher: 0, log_bytes: 0 }
}

/// A thread that waits for commits.
struct Parked {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parked {
    fn new() -> Arc<Self> {
        Arc::new(Self { woken: Mutex::new(false), changed: Condvar::new() })
    }

    fn wait(self: &Arc<Self>, store: &Store, lsn: Lsn) {
        while store.outcome(lsn) == Outcome::Pending {
            store.when_committed(lsn, &Waker::from(self.clone()));
            let mut woken = self.woken.lock().expect("no panic");
            while !std::mem::take(&mut *woken) {
                woken = self.changed.wait(woken).expect("no panic");
            }
        }
        assert_eq!(store.outcome(lsn), Outcome::Durable);
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().expect("no panic") = true;
        self.changed.notify_one();
    }
}

/// An engine that costs nothing.
struct Discarding;

impl Engine for Discarding {
    fn name(&self) -> &'static str {
        "none"
    }

    fn write(&self, _: &Ops, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn get(&self, _: Table, _: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(None)
    }

    fn scan(&self, _: Table, _: &[u8], _: &[u8], _: &mut Visit<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn last_key(&self, _: Table, _: &[u8], _: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(None)
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn reopen(&self) -> Result<(), Error> {
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}
