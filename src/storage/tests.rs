//! The store as a whole: what its callers are promised, and the races of the commit.

mod history;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use history::Model;
pub(super) use history::{bodies_in, histories, model_of};

use super::{
    faulty::{Fault, FaultyEngine},
    *,
};
use crate::mqtt::{Message, QoS, Timestamp, TopicName};

#[test]
fn a_batch_fills_while_the_one_before_is_synced() {
    let engine = Arc::new(FaultyEngine::new());
    let store = Store::with_engine(engine.clone(), &config(Durability::Fsync)).unwrap();
    engine.hold();
    let first = put(&store, 1);
    wait_until(|| engine.is_holding());
    let second = put(&store, 2);
    assert_eq!((second, put(&store, 3)), (Lsn(first.0 + 1), second));
    let (early, late) = (Flag::new(), Flag::new());
    store.when_committed(first, &early.waker());
    store.when_committed(second, &late.waker());
    assert_eq!((store.outcome(first), store.outcome(second)), (Outcome::Pending, Outcome::Pending));
    assert!(!early.is_set() && !late.is_set());
    let writes = store.health().batches;
    engine.release();
    wait_until(|| late.is_set());
    assert!(early.is_set());
    assert_eq!((store.outcome(first), store.outcome(second)), (Outcome::Durable, Outcome::Durable));
    assert_eq!(store.health().batches, writes + 2, "two waiting writes share one commit");
    assert_eq!(engine.unsynced(), 0);
}

#[test]
fn what_nobody_waits_for_is_written_lazily_and_not_synced() {
    let engine = Arc::new(FaultyEngine::new());
    let store = Store::with_engine(engine.clone(), &config(Durability::Fsync)).unwrap();
    let ((), lsn) = store.write(|batch| batch.put_session(&session(1)));
    wait_until(|| store.outcome(lsn) == Outcome::Durable);
    assert_eq!((engine.unsynced(), store.health().durable), (1, 0));
    // Where a later sync fails, nobody was promised anything.
    engine.fail_after(0, Fault::Sync);
    let failed = put(&store, 2);
    wait_until(|| store.outcome(failed) == Outcome::Failed);
    assert_eq!(store.outcome(lsn), Outcome::Durable);
    // Waiting for it is a reason to write it soon.
    let engine = Arc::new(FaultyEngine::new());
    let never = Config { lazy_commit_millis: u64::MAX, ..config(Durability::Fsync) };
    let store = Store::with_engine(engine.clone(), &never).unwrap();
    let ((), lsn) = store.write(|batch| batch.put_session(&session(1)));
    let flag = Flag::new();
    store.when_committed(lsn, &flag.waker());
    wait_until(|| flag.is_set());
    assert_eq!((engine.unsynced(), store.outcome(lsn)), (1, Outcome::Durable));
    store.close().unwrap();
    assert_eq!(engine.unsynced(), 0, "a clean end syncs");
}

#[test]
fn a_commit_is_synced_if_anybody_in_it_needs_that() {
    for durability in [Durability::Fsync, Durability::Os] {
        let engine = Arc::new(FaultyEngine::new());
        let store = Store::with_engine(engine.clone(), &config(durability)).unwrap();
        let write = |id, levels: &[Level]| {
            let ((), lsn) = store.write(|batch| {
                batch.put_session(&session(id));
                levels.iter().for_each(|&level| batch.require(level));
            });
            wait_until(|| store.outcome(lsn) != Outcome::Pending);
            (lsn, store.outcome(lsn), engine.unsynced(), store.health().syncs)
        };
        let (by_os, outcome, unsynced, syncs) = write(1, &[Level::Os]);
        assert_eq!((outcome, unsynced, syncs), (Outcome::Durable, 1, 0));
        let (_, outcome, unsynced, syncs) = write(2, &[Level::Fsync, Level::Os]);
        assert_eq!((outcome, unsynced, syncs), (Outcome::Durable, 0, 1), "with all before it");
        let by_store = put(&store, 3);
        wait_until(|| store.outcome(by_store) == Outcome::Durable);
        assert_eq!(engine.unsynced(), usize::from(durability == Durability::Os), "as the store is");
        let (kept, _, unsynced, _) = write(4, &[Level::Os]);
        assert!(unsynced > 0);
        // What was asked of a commit was reached, whatever becomes of a later sync.
        engine.fail_after(0, Fault::Sync);
        let (_, outcome, ..) = write(5, &[Level::Fsync]);
        assert_eq!(outcome, Outcome::Failed);
        assert_eq!((store.outcome(by_os), store.outcome(kept)), (Outcome::Durable, Outcome::Durable));
        reopen(&store).unwrap();
        assert_eq!(store.outcome(kept), Outcome::Durable);
    }
}

#[test]
fn callbacks_run_in_order_after_the_outcome_and_before_the_wakers() {
    for durability in [Durability::Fsync, Durability::Os, Durability::Memory] {
        let engine: Arc<dyn Engine> = match durability {
            Durability::Memory => Arc::new(MemoryEngine::new()),
            _ => Arc::new(FaultyEngine::new()),
        };
        let store = Arc::new(Store::with_engine(engine, &config(durability)).unwrap());
        let (sender, done) = mpsc::channel();
        let flag = Flag::new();
        let mut expected = Vec::new();
        let mut last = Lsn(0);
        for number in 0..100 {
            let (store_in, sender, flag) = (Arc::downgrade(&store), sender.clone(), flag.clone());
            let ((), lsn) = store.write(|batch| {
                let lsn = batch.lsn;
                batch.after_commit(
                    durability.level(),
                    Box::new(move |outcome| {
                        let visible = store_in.upgrade().is_none_or(|store| {
                            // A callback may write.
                            store.write(|batch| batch.put_session(&session(number + 1)));
                            store.outcome(lsn) == outcome
                        });
                        sender.send((number, outcome, visible, flag.is_set())).unwrap();
                    }),
                );
            });
            expected.push((number, Outcome::Durable, true, false));
            last = lsn;
        }
        // Only the last batch wakes, after all callbacks.
        if store.outcome(last) == Outcome::Pending {
            store.when_committed(last, &flag.waker());
            wait_until(|| flag.is_set());
        }
        let found: Vec<_> = done.iter().take(100).collect();
        assert_eq!(found, expected, "{durability:?}");
    }
}

#[test]
fn a_failed_write_fails_all_from_it_on_until_the_engine_is_opened_anew() {
    for fault in [Fault::Write, Fault::Sync] {
        let engine = Arc::new(FaultyEngine::new());
        let store = Store::with_engine(engine.clone(), &config(Durability::Fsync)).unwrap();
        let good = put(&store, 1);
        wait_until(|| store.outcome(good) == Outcome::Durable);
        engine.hold();
        engine.fail_after(0, fault);
        let (sender, outcomes) = mpsc::channel();
        let write = |id| {
            let sender = sender.clone();
            let ((), lsn) = store.write(|batch| {
                batch.put_session(&session(id));
                batch.after_commit(Level::Fsync, Box::new(move |outcome| sender.send((id, outcome)).unwrap()));
            });
            lsn
        };
        let failed = Flag::new();
        store.when_failed(&failed.waker());
        let in_flight = write(2);
        wait_until(|| engine.is_holding());
        let open = write(3);
        let waiting = Flag::new();
        store.when_committed(open, &waiting.waker());
        engine.release();
        wait_until(|| failed.is_set() && waiting.is_set());
        let late = write(4);
        let all = [in_flight, open, late];
        let expected = [2, 3, 4].map(|id| (id, Outcome::Failed));
        assert_eq!(outcomes.iter().take(3).collect::<Vec<_>>(), expected, "each once, in order");
        assert!(all.iter().all(|&lsn| store.outcome(lsn) == Outcome::Failed));
        assert!(store.failure().is_some() && store.health().failure.is_some());

        reopen(&store).unwrap();
        assert!(store.failure().is_none());
        let again = write(5);
        assert_eq!(outcomes.recv_timeout(DEADLINE).unwrap(), (5, Outcome::Durable));
        assert_eq!(store.outcome(again), Outcome::Durable);
        assert!(all.iter().all(|&lsn| store.outcome(lsn) == Outcome::Failed), "what failed stays failed");
        assert_eq!(store.outcome(good), Outcome::Durable);
        let ids: Vec<_> = model_of(&store).owners.into_keys().collect();
        let kept: &[u64] = if fault == Fault::Sync { &[1, 2, 5] } else { &[1, 5] };
        assert_eq!(ids, kept);
    }
}

#[test]
fn a_lasting_failure_can_be_tried_again_and_ends() {
    let engine = Arc::new(FaultyEngine::new());
    let store = Store::with_engine(engine.clone(), &config(Durability::Fsync)).unwrap();
    engine.fail_after(0, Fault::Lasting);
    let lsn = put(&store, 1);
    wait_until(|| store.outcome(lsn) == Outcome::Failed);
    for _ in 0..3 {
        reopen(&store).unwrap_err();
        let lsn = put(&store, 2);
        assert_eq!(store.outcome(lsn), Outcome::Failed);
    }
    engine.heal();
    // Who opens it must be able to read it, too.
    let unread: Result<(), Error> = store.reopen(|| Err(Error::UnknownFormat));
    assert!(matches!(unread, Err(Error::UnknownFormat)) && store.failure().is_some());
    assert_eq!(store.outcome(put(&store, 2)), Outcome::Failed);
    reopen(&store).unwrap();
    let lsn = put(&store, 3);
    wait_until(|| store.outcome(lsn) == Outcome::Durable);
}

#[test]
fn the_open_batch_is_bounded() {
    let engine = Arc::new(FaultyEngine::new());
    let config = Config { commit_max_bytes: 4096, lazy_commit_millis: 3_600_000, ..config(Durability::Fsync) };
    let store = Store::with_engine(engine.clone(), &config).unwrap();
    engine.hold();
    let first = put(&store, 1);
    wait_until(|| engine.is_holding());
    let mut written = 0;
    while !store.is_full() {
        store.write(|batch| batch.put_retained(&message("t", 100, 0), None));
        written += 1;
    }
    assert!(written > 1);
    let room = Flag::new();
    store.when_room(&room.waker());
    assert!(!room.is_set());
    engine.release();
    wait_until(|| room.is_set() && !store.is_full());
    assert!(first < Lsn(store.health().written + 1));
    let now = Flag::new();
    store.when_room(&now.waker());
    assert!(now.is_set());
    // A full batch is written though nobody waits for it, and the lazy delay is not waited out.
    let before = store.health().written;
    for _ in 0..100 {
        store.write(|batch| batch.put_retained(&message("t", 100, 0), None));
    }
    wait_until(|| store.health().written > before);
}

/// Nobody waits for more than the write that is under way and the next one, however many write, and how much.
#[test]
fn a_wait_ends_with_the_next_write_at_the_latest() {
    let engine = Arc::new(FaultyEngine::new());
    let config = Config { commit_max_bytes: 4096, ..config(Durability::Fsync) };
    let store = Store::with_engine(engine.clone(), &config).unwrap();
    let committer = store.committer.clone();
    let written = move || committer.counts.batches.load(Ordering::SeqCst);
    let (waits, left) = (parking_lot::Mutex::new([0; 4]), AtomicU64::new(WRITERS));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each write takes a while.
            while left.load(Ordering::SeqCst) > 0 {
                engine.hold();
                wait_until(|| engine.is_holding() || left.load(Ordering::SeqCst) == 0);
                engine.release();
            }
        });
        for writer in 1..=WRITERS {
            let (store, written, waits, left) = (&store, &written, &waits, &left);
            scope.spawn(move || {
                for number in 0..WRITES {
                    // Half of them go on where a connection would be told to wait.
                    while writer % 2 == 0 && store.is_full() {
                        std::thread::yield_now();
                    }
                    let (sender, waited) = mpsc::channel();
                    store.write(|batch| {
                        batch.put_retained(&message("t", 1000, number), None);
                        let (before, written) = (written(), written.clone());
                        let level = if number % 3 == 0 { Level::Os } else { Level::Fsync };
                        batch.after_commit(level, Box::new(move |_| sender.send(written() - before).unwrap()));
                    });
                    let waited = waited.recv_timeout(DEADLINE).unwrap();
                    waits.lock()[usize::try_from(waited).unwrap().min(3)] += 1;
                }
                left.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let waits = waits.into_inner();
    assert_eq!((waits[0], waits[3]), (0, 0), "{waits:?}");
    assert!(waits[2] > 0, "a write was under way now and then: {waits:?}");
    let (metrics, health) = (store.metrics(), store.health());
    // The last is measured after it is told.
    wait_until(|| metrics.commit_bytes.summary().count == health.batches);
    let (wait, operations) = (metrics.commit_wait_micros.summary(), metrics.commit_operations.summary());
    assert_eq!((wait.count, operations.sum), (health.batches, health.operations));
    assert!(wait.max > 0 && metrics.commit_bytes.summary().sum > WRITERS * WRITES * 1000);
}

#[test]
fn after_the_end_everything_fails() {
    let store = Store::with_engine(Arc::new(FaultyEngine::new()), &config(Durability::Fsync)).unwrap();
    let last = put(&store, 1);
    store.close().unwrap();
    assert_eq!(store.outcome(last), Outcome::Durable);
    let lsn = put(&store, 2);
    assert_eq!(store.outcome(lsn), Outcome::Failed);
    let flag = Flag::new();
    store.when_committed(lsn, &flag.waker());
    assert!(flag.is_set());
    assert!(matches!(reopen(&store), Err(Error::Closed)));
    assert!(matches!(store.read_log(1, 1, 1, 1), Err(Error::Closed)));
    store.close().unwrap();
}

#[test]
fn a_panic_in_a_write_leaves_the_store_at_work() {
    let store = Store::with_engine(Arc::new(FaultyEngine::new()), &config(Durability::Fsync)).unwrap();
    let (sender, outcome) = mpsc::channel();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.write(|batch| {
            batch.after_commit(Level::Fsync, Box::new(move |outcome| sender.send(outcome).unwrap()));
            panic!("in the middle of a turn");
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(outcome.recv_timeout(DEADLINE).unwrap(), Outcome::Durable, "without another write");
    let lsn = put(&store, 1);
    wait_until(|| store.outcome(lsn) == Outcome::Durable);
}

#[test]
fn no_wake_is_lost() {
    for durability in [Durability::Fsync, Durability::Os, Durability::Memory] {
        let store = Store::with_engine(Arc::new(FaultyEngine::new()), &config(durability)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..1000 {
                        let ((), lsn) = store.write(|batch| {
                            batch.put_session(&session(1 + thread));
                            // The others are required by those who wait.
                            if (thread + number) % 3 > 0 {
                                batch.require_durable();
                            }
                        });
                        let flag = Flag::new();
                        store.when_committed(lsn, &flag.waker());
                        wait_until(|| flag.is_set());
                        assert_eq!(store.outcome(lsn), Outcome::Durable);
                    }
                });
            }
        });
    }
}

#[test]
fn memory_commits_before_a_write_returns_and_under_contention_soon_after() {
    let store = Store::with_engine(Arc::new(MemoryEngine::new()), &config(Durability::Memory)).unwrap();
    let lsn = put(&store, 1);
    assert_eq!(store.outcome(lsn), Outcome::Durable);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..2000 {
                    let lsn = put(store, 2 + thread * 2000 + number);
                    if store.outcome(lsn) == Outcome::Pending {
                        let flag = Flag::new();
                        store.when_committed(lsn, &flag.waker());
                        wait_until(|| flag.is_set());
                    }
                }
            });
        }
    });
    assert_eq!(model_of(&store).owners.len(), 8001);
}

#[test]
fn logs_are_read_in_pages() {
    let store = Store::with_engine(Arc::new(MemoryEngine::new()), &config(Durability::Memory)).unwrap();
    store.write(|batch| {
        for log in [1, 2, 3] {
            for seq in 1..=50 {
                let message = message("t", 100, seq);
                let body = batch.body(&message, 1);
                batch.append(log, seq, &head(QoS::AtLeastOnce), &body);
            }
        }
        batch.trim(2, 1, 10);
        batch.trim(2, 20, 40);
    });
    let seqs = |from, entries, bytes| -> Vec<Seq> {
        store.read_log(2, from, entries, bytes).unwrap().iter().map(|entry| entry.seq).collect()
    };
    assert_eq!(seqs(1, 3, usize::MAX), [11, 12, 13]);
    assert_eq!(seqs(18, 4, usize::MAX), [18, 19, 41, 42]);
    assert_eq!(seqs(49, 100, usize::MAX), [49, 50], "the next log is another one");
    assert_eq!(seqs(1, 100, 1), [11], "at least one");
    assert_eq!(seqs(1, 100, 500).len(), 3);
    assert_eq!(seqs(51, 100, usize::MAX), [0; 0]);
    assert_eq!(store.read_log(4, 1, 1, 1).unwrap(), []);
    // What is settled and released is passed over, be it a whole page.
    store.write(|batch| {
        for seq in 1..=7 {
            let message = message("t", 2000, seq);
            let body = batch.body(&message, 2);
            let shared = batch.append(5, seq, &head(QoS::AtLeastOnce), &body);
            shared.filter(|_| seq < 6).into_iter().for_each(|id| batch.release_body(id));
        }
    });
    let seqs = |max| store.read_log(5, 1, max, usize::MAX).unwrap().iter().map(|entry| entry.seq).collect::<Vec<_>>();
    assert_eq!((seqs(2), seqs(100)), (vec![6], vec![6, 7]));
}

#[test]
fn damage_is_named_and_does_not_spread() {
    let engine = Arc::new(FaultyEngine::new());
    let store = Store::stepped(engine.clone(), &config(Durability::Os)).unwrap();
    store.write(|batch| {
        batch.put_session(&session(1));
        let message = message("t", 10, 0);
        let body = batch.body(&message, 1);
        for seq in 1..=3 {
            batch.append(1, seq, &head(QoS::AtLeastOnce), &body);
        }
    });
    store.step();
    engine.corrupt(Table::Logs, &keys::entry(1, 2), &[1, 0xFF]);
    let page = store.read_log(1, 1, 10, usize::MAX).unwrap();
    assert_eq!(page.len(), 1, "what stands before the damage is read");
    let error = store.read_log(1, 2, 10, usize::MAX).unwrap_err();
    assert_eq!(error.damaged_entries(), Some((1, 2..=2)));
    assert_eq!(error.to_string(), "damaged record in table logs, key 00000000000000010000000000000002");
    assert_eq!(store.read_log(1, 3, 10, usize::MAX).unwrap().len(), 1, "and what stands behind it");
    engine.corrupt(Table::Sessions, &keys::owner(1, keys::OwnerKey::Session), &[9]);
    let error = store.recover(&mut |_| {}).unwrap_err();
    assert_eq!(
        in_full(&error),
        "damaged record in table sessions, key 01000000000000000101: its version is 9, which this release does not know"
    );
}

#[test]
fn formats_of_others_are_refused() {
    let engine = Arc::new(FaultyEngine::new());
    drop(Store::stepped(engine.clone(), &config(Durability::Os)).unwrap());
    let engine = Arc::new(engine.kill());
    engine.corrupt(Table::Meta, keys::FORMAT, &(FORMAT_VERSION + 1).to_be_bytes());
    let open = |engine: &Arc<FaultyEngine>| Store::stepped(engine.clone(), &config(Durability::Os));
    assert!(matches!(open(&engine), Err(Error::NewerFormat { found }) if found == FORMAT_VERSION + 1));
    engine.corrupt(Table::Meta, keys::FORMAT, &0u32.to_be_bytes());
    assert!(matches!(open(&engine), Err(Error::UnknownFormat)));
    engine.corrupt(Table::Meta, keys::FORMAT, &[0]);
    assert!(matches!(open(&engine), Err(Error::Damaged { .. })));
    let engine = Arc::new(FaultyEngine::new());
    engine.corrupt(Table::Retained, b"t", b"x");
    assert!(matches!(open(&engine), Err(Error::UnknownFormat)));
}

/// A release that does not know the records of this one refuses the store from the first start on: it would take them for damaged.
#[test]
fn an_older_format_is_read_and_marked_anew() {
    (1..FORMAT_VERSION).for_each(is_read_and_marked_anew);
}

fn is_read_and_marked_anew(format: u32) {
    let engine = Arc::new(FaultyEngine::new());
    engine.corrupt(Table::Meta, keys::FORMAT, &format.to_be_bytes());
    engine.corrupt(Table::Sessions, &keys::owner(1, keys::OwnerKey::Session), &[1, 1, b'c', 0, 60, 0, 0, 0]);
    // Entry 5 is inline, and does not count its bytes.
    let entry = [&[1, 1, 0][..], &[1, 1, 0, 1, b't', 0, b'x']].concat();
    engine.corrupt(Table::Logs, &keys::entry(1, 5), &entry);
    engine.corrupt(Table::Sessions, &keys::owner(1, keys::OwnerKey::LogState), &[1, 4, 4, 0]);
    engine.corrupt(Table::Retained, b"t", &[1, 0b101, 0, 1, b't', 0, b'x']);
    let store = Store::stepped(engine.clone(), &config(Durability::Os)).unwrap();
    let page = store.read_log(1, 1, 10, usize::MAX).unwrap();
    assert_eq!((page.len(), page[0].seq, page[0].head.log_bytes), (1, 5, 0));
    let (mut logs, mut retained) = (Vec::new(), 0);
    store
        .recover(&mut |record| match record {
            Recovered::Session { log, .. } => logs.push((log.state.head, log.tail, log.bytes)),
            Recovered::Retained(message, author) => {
                assert_eq!((&*message.payload, author), (&b"x"[..], None), "nobody knows who published it");
                retained += 1;
            }
            other => panic!("{other:?}"),
        })
        .unwrap();
    assert_eq!((logs, retained), (vec![(4, 5, 0)], 1));
    // The mark is on the disk, also where the power fails now.
    let format = engine.power_cut(0).get(Table::Meta, keys::FORMAT).unwrap();
    assert_eq!(format, Some(FORMAT_VERSION.to_be_bytes().to_vec()));
}

#[test]
fn records_of_a_session_that_is_gone_are_removed() {
    let engine = Arc::new(FaultyEngine::new());
    let store = Store::stepped(engine.clone(), &config(Durability::Os)).unwrap();
    store.write(|batch| {
        let message = message("t", 2000, 0);
        let body = batch.body(&message, 2);
        batch.append(7, 1, &head(QoS::AtLeastOnce), &body);
        batch.put_log_state(7, &LogState::default());
    });
    while store.step() {}
    assert_eq!(model_of(&store), Model::default());
    while store.step() {}
    assert_eq!(bodies_in(&*engine), BTreeMap::new());
    assert_eq!(store.read_log(7, 1, 10, usize::MAX).unwrap(), []);
}

#[test]
fn a_discarded_log_goes_page_by_page_across_crashes() {
    let mut engine = Arc::new(FaultyEngine::new());
    let mut store = Store::stepped(engine.clone(), &config(Durability::Os)).unwrap();
    let message = message("t", 2000, 0);
    let mut state = LogState::default();
    let ((), _) = store.write(|batch| {
        batch.put_session(&session(1));
        for seq in 1..=1000 {
            let body = batch.body(&message, 2);
            let shared = batch.append(1, seq, &head(QoS::AtLeastOnce), &body);
            batch.append(2, seq, &head(QoS::AtLeastOnce), &body);
            if seq % 10 == 0 {
                state.settle(seq);
                batch.release_body(shared.unwrap());
            }
        }
        batch.put_log_state(1, &state);
    });
    store.step();
    store.write(|batch| {
        batch.delete_session(1);
        batch.discard_log(1, &state, 1000);
    });
    store.step();
    let mut pages = 0;
    while store.health().discarded_logs > 0 {
        // A page, its commit, and the next page that is not committed.
        for _ in 0..3 {
            store.step();
        }
        pages += 1;
        engine = Arc::new(engine.kill());
        store = Store::stepped(engine.clone(), &config(Durability::Os)).unwrap();
    }
    assert!(pages > 3, "{pages}");
    assert_eq!(store.read_log(1, 1, 1, 1).unwrap(), []);
    assert_eq!(store.read_log(2, 1, 2000, usize::MAX).unwrap().len(), 1000);
    assert!(bodies_in(&*engine).values().all(|&count| count == 1), "each is released once");
    assert_eq!(bodies_in(&*engine).len(), 1000);
}

/// A page of a discarded log that was read before a reopening is not removed after it: the reopened store removes it itself.
#[test]
fn a_reopening_while_a_page_is_read_releases_nothing_twice() {
    let engine = Arc::new(Interrupted { inner: FaultyEngine::new(), interruption: parking_lot::Mutex::default() });
    let store = Arc::new(Store::stepped(engine.clone(), &config(Durability::Os)).unwrap());
    let message = message("t", 2000, 0);
    store.write(|batch| {
        let body = batch.body(&message, 3);
        (1..=3).for_each(|log| assert!(batch.append(log, 1, &head(QoS::AtLeastOnce), &body).is_some()));
        batch.discard_log(1, &LogState::default(), 1);
    });
    store.step();
    let in_the_middle = Arc::downgrade(&store);
    *engine.interruption.lock() = Some(Box::new(move |engine| {
        let store = in_the_middle.upgrade().unwrap();
        engine.fail_after(0, Fault::Write);
        store.write(|batch| batch.delete_retained(&TopicName::parse("t").unwrap()));
        store.step();
        assert!(store.failure().is_some());
        reopen(&store).unwrap();
        store.step();
    }));
    while store.step() {}
    assert!(engine.interruption.lock().is_none());
    assert_eq!(bodies_in(&*engine).into_values().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_body_outlives_its_write_in_no_wrong_way() {
    let store = Store::stepped(Arc::new(FaultyEngine::new()), &config(Durability::Os)).unwrap();
    for len in [10, 5000] {
        let (old, new) = (message("old", len, 0), message("new", len, 0));
        let (body, _) = store.write(|batch| batch.body(&old, 2));
        store.step();
        store.write(|batch| {
            batch.body(&new, 1);
            batch.append(1, 1, &head(QoS::AtLeastOnce), &body);
        });
        store.step();
        assert_eq!(*store.read_log(1, 1, 1, 1).unwrap()[0].message, old);
    }
}

pub(super) fn config(durability: Durability) -> Config {
    Config { durability, ..Config::default() }
}

/// Writes a session and waits for nothing.
fn reopen(store: &Store) -> Result<(), Error> {
    store.reopen(|| Ok(()))
}

fn put(store: &Store, id: SessionId) -> Lsn {
    let ((), lsn) = store.write(|batch| {
        batch.put_session(&session(id));
        batch.require_durable();
    });
    lsn
}

pub(super) fn session(id: SessionId) -> StoredSession {
    StoredSession {
        id,
        client_id: format!("client-{id}"),
        username: id.is_multiple_of(2).then(|| "user".into()),
        expiry_secs: 60,
        connected: true,
        disconnected_at: Timestamp(7),
        sent_until: 3,
    }
}

pub(super) fn message(topic: &str, payload_len: usize, number: u64) -> Message {
    let mut payload = vec![0xAB; payload_len];
    payload.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
    Message {
        topic: TopicName::parse(topic).unwrap(),
        payload: payload.into(),
        qos: QoS::ExactlyOnce,
        retain: number.is_multiple_of(2),
        properties: if number.is_multiple_of(3) { Box::new([1, 1]) } else { Box::default() },
        expires_at: number.is_multiple_of(5).then_some(Timestamp(number)),
        publisher: number % 100,
    }
}

pub(super) fn head(qos: QoS) -> EntryHead {
    let subscription_ids = [1, 268_435_455].into_iter().collect();
    EntryHead { qos, retain: false, subscription_ids, publisher: 0, log_bytes: 77 }
}

/// An engine that is interrupted by the next scan of a log.
struct Interrupted {
    inner: FaultyEngine,
    interruption: parking_lot::Mutex<Option<Interruption>>,
}

type Interruption = Box<dyn FnOnce(&FaultyEngine) + Send>;

impl Engine for Interrupted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn write(&self, ops: &Ops, sync: bool) -> Result<(), Error> {
        self.inner.write(ops, sync)
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.inner.get(table, key)
    }

    fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut Visit<'_>) -> Result<(), Error> {
        let scanned = self.inner.scan(table, from, to, each);
        if table == Table::Logs
            && let Some(interrupt) = { self.interruption.lock().take() }
        {
            interrupt(&self.inner);
        }
        scanned
    }

    fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.inner.last_key(table, from, to)
    }

    fn sync(&self) -> Result<(), Error> {
        self.inner.sync()
    }

    fn reopen(&self) -> Result<(), Error> {
        self.inner.reopen()
    }

    fn close(&self) -> Result<(), Error> {
        self.inner.close()
    }
}

/// A waker that remembers.
struct Flag(AtomicBool);

impl Flag {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false)))
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

pub(super) fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "it never came");
        std::thread::yield_now();
    }
}

const WRITERS: u64 = 8;
const WRITES: u64 = 200;
const DEADLINE: Duration = Duration::from_secs(30);
