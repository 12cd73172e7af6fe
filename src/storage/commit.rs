//! Group commit: all connections write into one open batch, one thread commits it as a whole, and whoever waits for it is woken.
//! While one batch is being synced the next one fills, so the slower the disk, the larger the batches.
//!
//! Must not know what the batches hold.

use std::{
    collections::{HashSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::metrics::Metrics;

use super::{
    Batch, Callback, Config, Engine, Error, Level, Lsn, Ops, Outcome,
    garbage::{Collector, Garbage},
    recover,
};

/// The open batch, its way to the engine, and those who wait for it.
pub(super) struct Committer {
    engine: Arc<dyn Engine>,
    config: Config,
    pace: Pace,
    open: Mutex<Open>,
    /// Signalled when the committing thread has something to do.
    work: Condvar,
    /// Held while a batch is on its way: one at a time, in order.
    committing: Mutex<Spare>,
    marks: Marks,
    waiting: Mutex<VecDeque<(Lsn, Wakers)>>,
    pub(super) garbage: Collector,
    pub(super) counts: Counts,
    pub(super) metrics: Arc<Metrics>,
}

/// Who commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// The writer itself, before its write returns.
    AtOnce,
    /// A thread.
    Threaded,
    /// Whoever calls [`Committer::step`].
    Stepped,
}

/// What was committed since the start.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub(super) struct Counts {
    pub(super) batches: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) operations: AtomicU64,
}

struct Open {
    batch: Batch,
    /// When the first change that nobody waits for came into the batch.
    since: Option<Instant>,
    /// When somebody first waited for the batch.
    awaited_since: Option<Instant>,
    failure: Option<Arc<Error>>,
    stop: bool,
    room: Wakers,
    failed: Wakers,
}

/// A batch on its way.
struct Taken {
    lsn: Lsn,
    /// What those who wait for it need.
    required: Option<Level>,
    awaited_since: Option<Instant>,
}

/// Memory that one batch leaves to the next but one.
#[derive(Default)]
struct Spare {
    ops: Ops,
    callbacks: Vec<Callback>,
    garbage: Vec<Garbage>,
    freed: u64,
}

impl Committer {
    pub(super) fn new(engine: Arc<dyn Engine>, config: &Config, pace: Pace) -> Result<Self, Error> {
        let (batch, discarded) = Batch::new(recover::open(&*engine)?, config.durability.level());
        let garbage = Collector::new(config.rocksdb_wal_bytes);
        garbage.restart(discarded, batch.generation);
        Ok(Self {
            engine,
            config: config.clone(),
            pace,
            open: Mutex::new(Open {
                batch,
                since: None,
                awaited_since: None,
                failure: None,
                stop: false,
                room: Wakers::default(),
                failed: Wakers::default(),
            }),
            work: Condvar::new(),
            committing: Mutex::default(),
            marks: Marks::default(),
            waiting: Mutex::default(),
            garbage,
            counts: Counts::default(),
            metrics: Arc::default(),
        })
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn keep_sessions_at(&self, level: Level) {
        self.open.lock().batch.session_level = level;
    }

    /// See [`super::Store::write`].
    pub(super) fn write<R>(&self, f: impl FnOnce(&mut Batch) -> R) -> (R, Lsn) {
        let mut open = self.open.lock();
        open.batch.begin();
        // What came into the batch before a panic is committed like the rest: others may wait for it.
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut open.batch)));
        let lsn = open.batch.lsn;
        if open.failure.is_some() {
            let callbacks = open.batch.abandon();
            drop(open);
            run(callbacks, Outcome::Failed);
        } else {
            let wake = open.added(&self.config, &self.marks);
            self.marks.open_bytes.store(open.batch.ops.size(), Ordering::Relaxed);
            drop(open);
            match self.pace {
                Pace::AtOnce => self.commit_at_once(),
                Pace::Threaded if wake => {
                    self.work.notify_one();
                }
                Pace::Threaded | Pace::Stepped => {}
            }
        }
        (result.unwrap_or_else(|panic| resume_unwind(panic)), lsn)
    }

    pub(super) fn outcome(&self, lsn: Lsn) -> Outcome {
        self.marks.outcome(lsn)
    }

    /// The last batch that was written.
    pub(super) fn written(&self) -> Lsn {
        Lsn(self.marks.written.load(Ordering::Acquire))
    }

    /// The last batch that is as durable as the store.
    pub(super) fn durable(&self) -> Lsn {
        Lsn(self.marks.durable.load(Ordering::Acquire))
    }

    /// See [`super::Store::when_committed`].
    pub(super) fn when_committed(&self, lsn: Lsn, waker: &Waker) {
        let mut waiting = self.waiting.lock();
        // Outcomes become visible before the waiting are looked for, under this lock.
        if self.outcome(lsn) != Outcome::Pending {
            drop(waiting);
            return waker.wake_by_ref();
        }
        let at = waiting.partition_point(|(other, _)| *other < lsn);
        match waiting.get_mut(at) {
            Some((other, wakers)) if *other == lsn => wakers.add(waker),
            _ => {
                let mut wakers = Wakers::default();
                wakers.add(waker);
                waiting.insert(at, (lsn, wakers));
            }
        }
        drop(waiting);
        if lsn.0 > self.marks.required.load(Ordering::Acquire) {
            self.require(lsn);
        }
    }

    pub(super) fn open_bytes(&self) -> usize {
        self.marks.open_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.open_bytes() >= self.config.commit_max_bytes
    }

    /// See [`super::Store::when_room`].
    pub(super) fn when_room(&self, waker: &Waker) {
        let mut open = self.open.lock();
        if self.is_full() {
            open.room.add(waker);
        } else {
            drop(open);
            waker.wake_by_ref();
        }
    }

    pub(super) fn failure(&self) -> Option<Arc<Error>> {
        self.open.lock().failure.clone()
    }

    /// See [`super::Store::when_failed`].
    pub(super) fn when_failed(&self, waker: &Waker) {
        let mut open = self.open.lock();
        if open.failure.is_none() {
            open.failed.add(waker);
        } else {
            drop(open);
            waker.wake_by_ref();
        }
    }

    /// The committing thread: until it is stopped and has committed what was open.
    pub(super) fn run(&self) {
        while self.wait_for_work() {
            self.step();
        }
    }

    /// Commits the open batch, if it holds anything; says whether it did.
    pub(super) fn step(&self) -> bool {
        self.commit(&mut self.committing.lock())
    }

    /// See [`super::Store::reopen`].
    pub(super) fn reopen<R, E: From<Error>>(&self, read: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        let _committing = self.committing.lock();
        {
            let open = self.open.lock();
            match open.failure {
                _ if open.stop => return Err(Error::Closed.into()),
                None => {
                    drop(open);
                    return read();
                }
                Some(_) => {}
            }
        }
        self.engine.reopen()?;
        let opened = recover::open(&*self.engine)?;
        let read = read()?;
        let mut open = self.open.lock();
        let discarded = open.batch.reload(opened);
        open.failure = None;
        self.marks.recovered(open.batch.lsn);
        open.batch.lsn.0 += 1;
        self.garbage.restart(discarded, open.batch.generation);
        Ok(read)
    }

    /// Has what is open committed and synced, and ends the threads' loops.
    pub(super) fn stop(&self) {
        let mut open = self.open.lock();
        open.stop = true;
        open.batch.require_durable();
        drop(open);
        self.work.notify_one();
        self.garbage.stop();
    }

    /// After [`Committer::stop`] and the end of the threads. The failure, if any, that was in force before.
    pub(super) fn close(&self) -> Result<(), Error> {
        let mut spare = self.committing.lock();
        self.commit(&mut spare);
        let failure = match self.failure() {
            None => self.engine.sync().err().map(Arc::new),
            Some(error) if matches!(*error, Error::Closed) => return Ok(()),
            failure => failure,
        };
        let lsn = self.open.lock().batch.lsn;
        self.fail(lsn, Arc::new(Error::Closed), Vec::new());
        let closed = self.engine.close();
        match failure {
            Some(error) => Err(Error::Engine { doing: "writing what was open", cause: error.into() }),
            None => closed,
        }
    }

    /// Commits until nothing is open. Where another thread is just committing, it takes this batch too.
    fn commit_at_once(&self) {
        loop {
            let Some(mut spare) = self.committing.try_lock() else {
                return;
            };
            while self.commit(&mut spare) {}
            drop(spare);
            // Somebody may have written, and failed to get the lock, before it was given back.
            let open = self.open.lock();
            if open.batch.is_empty() || open.failure.is_some() {
                return;
            }
        }
    }

    fn commit(&self, spare: &mut Spare) -> bool {
        let mut open = self.open.lock();
        if open.failure.is_some() || open.batch.is_empty() {
            return false;
        }
        let Taken { lsn, required, awaited_since } = open.take(spare);
        self.marks.open_bytes.store(0, Ordering::Relaxed);
        let room = std::mem::take(&mut open.room);
        drop(open);
        room.wake();

        let sync = required == Some(Level::Fsync);
        let written = match (spare.ops.is_empty(), sync) {
            (false, _) => self.engine.write(&spare.ops, sync),
            (true, true) => self.engine.sync(),
            (true, false) => Ok(()),
        };
        let callbacks = std::mem::take(&mut spare.callbacks);
        match written {
            Ok(()) => {
                self.counts.add(&spare.ops, sync);
                self.succeed(lsn, sync, callbacks, spare);
                self.measure(&spare.ops, awaited_since);
            }
            Err(error) => self.fail(lsn, Arc::new(error), callbacks),
        }
        spare.ops.clear(SPARE_KEEP_BYTES);
        spare.garbage.clear();
        true
    }

    fn succeed(&self, lsn: Lsn, sync: bool, callbacks: Vec<Callback>, spare: &mut Spare) {
        if sync || self.config.durability.level() == Level::Os {
            self.marks.durable.store(lsn.0, Ordering::Release);
        }
        self.marks.written.store(lsn.0, Ordering::Release);
        self.garbage.committed(&mut spare.garbage, spare.freed);
        run(callbacks, Outcome::Durable);
        self.wake_through(lsn);
    }

    fn measure(&self, ops: &Ops, awaited_since: Option<Instant>) {
        if let Some(since) = awaited_since {
            self.metrics.commit_wait_micros.record(u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        self.metrics.commit_operations.record(ops.len() as u64);
        self.metrics.commit_bytes.record(ops.size() as u64);
    }

    /// Batch `lsn` is lost, and the open one with it. Those before it have reached what was asked of them.
    fn fail(&self, lsn: Lsn, error: Arc<Error>, mut callbacks: Vec<Callback>) {
        let mut open = self.open.lock();
        self.marks.failed(lsn);
        open.failure = Some(error);
        (open.since, open.awaited_since) = (None, None);
        callbacks.extend(open.batch.abandon());
        let room = std::mem::take(&mut open.room);
        let failed = std::mem::take(&mut open.failed);
        self.marks.open_bytes.store(0, Ordering::Relaxed);
        drop(open);
        run(callbacks, Outcome::Failed);
        self.wake_through(Lsn(u64::MAX));
        room.wake();
        failed.wake();
    }

    /// Somebody waits for batch `lsn`. One that is open no more is on its way.
    fn require(&self, lsn: Lsn) {
        let mut open = self.open.lock();
        if lsn == open.batch.lsn && open.batch.required.is_none() && open.failure.is_none() {
            open.batch.require(Level::Os);
            open.awaited_since = Some(Instant::now());
            self.marks.required.store(open.batch.lsn.0, Ordering::Release);
            drop(open);
            match self.pace {
                Pace::AtOnce => self.commit_at_once(),
                Pace::Threaded => {
                    self.work.notify_one();
                }
                Pace::Stepped => {}
            }
        }
    }

    /// Waits until there is a batch to commit; false when it is over.
    fn wait_for_work(&self) -> bool {
        let mut open = self.open.lock();
        loop {
            if open.stop {
                return open.failure.is_none() && !open.batch.is_empty();
            }
            match open.due(&self.config) {
                Due::Now => return true,
                Due::At(at) => {
                    self.work.wait_until(&mut open, at);
                }
                Due::Never => self.work.wait(&mut open),
            }
        }
    }

    fn wake_through(&self, lsn: Lsn) {
        let mut waiting = self.waiting.lock();
        let known = waiting.partition_point(|(other, _)| *other <= lsn);
        let known: Vec<_> = waiting.drain(..known).collect();
        drop(waiting);
        known.into_iter().for_each(|(_, wakers)| wakers.wake());
    }
}

enum Due {
    Now,
    At(Instant),
    Never,
}

impl Open {
    /// After something was added; says whether the committing thread should know.
    fn added(&mut self, config: &Config, marks: &Marks) -> bool {
        let lsn = self.batch.lsn.0;
        if self.batch.required.is_some() && marks.required.load(Ordering::Acquire) < lsn {
            marks.required.store(lsn, Ordering::Release);
            self.awaited_since = Some(Instant::now());
            return true;
        }
        if self.since.is_none() && !self.batch.is_empty() {
            self.since = Some(Instant::now());
            return true;
        }
        self.batch.ops.size() >= config.commit_max_bytes
    }

    fn due(&self, config: &Config) -> Due {
        match self.since {
            _ if self.failure.is_some() => Due::Never,
            _ if self.batch.required.is_some() || self.batch.ops.size() >= config.commit_max_bytes => Due::Now,
            None => Due::Never,
            Some(since) => match since.checked_add(Duration::from_millis(config.lazy_commit_millis)) {
                Some(at) if Instant::now() < at => Due::At(at),
                Some(_) => Due::Now,
                None => Due::Never,
            },
        }
    }

    /// Moves the batch out and opens the next one.
    fn take(&mut self, spare: &mut Spare) -> Taken {
        self.batch.seal();
        std::mem::swap(&mut self.batch.ops, &mut spare.ops);
        std::mem::swap(&mut self.batch.callbacks, &mut spare.callbacks);
        std::mem::swap(&mut self.batch.garbage, &mut spare.garbage);
        spare.freed = std::mem::take(&mut self.batch.freed);
        self.since = None;
        let lsn = self.batch.lsn;
        self.batch.lsn.0 += 1;
        Taken { lsn, required: self.batch.required.take(), awaited_since: self.awaited_since.take() }
    }
}

impl Counts {
    fn add(&self, ops: &Ops, sync: bool) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.syncs.fetch_add(sync.into(), Ordering::Relaxed);
        self.operations.fetch_add(ops.len() as u64, Ordering::Relaxed);
    }
}

/// What has become of the batches.
#[derive(Debug, Default)]
struct Marks {
    /// Batches up to this one have reached what was asked of them.
    written: AtomicU64,
    /// Batches up to this one are as durable as the store.
    durable: AtomicU64,
    /// Batches up to this one are committed soon, without anybody asking again. Raised under the lock of the open batch.
    required: AtomicU64,
    /// The last batch that failed: 0 before the first, `u64::MAX` while nothing works.
    last_failed: AtomicU64,
    /// Which batches failed: inclusive ranges, ascending.
    failures: Mutex<Vec<(u64, u64)>>,
    open_bytes: AtomicUsize,
}

impl Marks {
    fn outcome(&self, lsn: Lsn) -> Outcome {
        // In this order: what failed is known before the batches after it are written.
        let written = self.written.load(Ordering::Acquire);
        let failed = lsn.0 <= self.last_failed.load(Ordering::Acquire)
            && self.failures.lock().iter().any(|&(from, to)| (from..=to).contains(&lsn.0));
        match lsn.0 <= written {
            _ if failed => Outcome::Failed,
            true => Outcome::Durable,
            false => Outcome::Pending,
        }
    }

    fn failed(&self, lsn: Lsn) {
        let from = lsn.0.min(self.written.load(Ordering::Acquire) + 1);
        let mut failures = self.failures.lock();
        if failures.len() == FAILURES_KEPT {
            // Nobody waits any more for what was between the two oldest.
            let (from, _) = failures.remove(0);
            if let Some(next) = failures.first_mut() {
                next.0 = from;
            }
        }
        failures.push((from, u64::MAX));
        self.last_failed.store(u64::MAX, Ordering::Release);
    }

    /// Batches after `lsn` work again.
    fn recovered(&self, lsn: Lsn) {
        if let Some((_, to)) = self.failures.lock().last_mut() {
            *to = lsn.0;
        }
        self.last_failed.store(lsn.0, Ordering::Release);
    }
}

/// Tasks to be woken, each once however often it asks, in the order in which they asked.
#[derive(Default)]
struct Wakers {
    all: Vec<Waker>,
    /// What tells them apart: a waker that is kept keeps its task, so that no other one has the same.
    known: HashSet<(usize, usize), foldhash::fast::RandomState>,
}

impl Wakers {
    fn add(&mut self, waker: &Waker) {
        if self.known.insert((waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())) {
            self.all.push(waker.clone());
        }
    }

    fn wake(self) {
        self.all.into_iter().for_each(Waker::wake);
    }
}

fn run(callbacks: Vec<Callback>, outcome: Outcome) {
    for callback in callbacks {
        if catch_unwind(AssertUnwindSafe(|| callback(outcome))).is_err() {
            tracing::error!("what was to be done after a commit has panicked");
        }
    }
}

/// Memory that an empty batch keeps, in bytes.
const SPARE_KEEP_BYTES: usize = 1 << 20;
const FAILURES_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    struct Task(AtomicU64);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_task_is_woken_once_however_often_it_asks() {
        let tasks: Vec<_> = (0..100).map(|_| Arc::new(Task(AtomicU64::new(0)))).collect();
        let mut wakers = Wakers::default();
        for _ in 0..3 {
            tasks.iter().for_each(|task| wakers.add(&Waker::from(task.clone())));
        }
        assert_eq!(wakers.all.len(), tasks.len());
        wakers.wake();
        assert!(tasks.iter().all(|task| task.0.load(Ordering::Relaxed) == 1));
    }
}
