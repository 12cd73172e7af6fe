//! The engine on a real disk.

use super::*;
use crate::{
    mqtt::QoS,
    storage::{
        Durability, LogState, Lsn, Outcome, Recovered, Store, StoredGroup,
        tests::{config, head, message, wait_until},
    },
};

#[test]
fn what_was_committed_is_there_after_a_clean_end_and_after_a_kill() {
    for durability in [Durability::Fsync, Durability::Os] {
        let dir = tempfile::tempdir().unwrap();
        let config = config(durability);
        let store = Store::open(dir.path(), &config).unwrap();
        commit(&store, 1);
        store.close().unwrap();
        let store = Store::open(dir.path(), &config).unwrap();
        assert_eq!(groups(&store), [1]);
        commit(&store, 2);
        // The files as a kill leaves them: nothing was closed.
        let killed = copy(dir.path());
        drop(store);
        let store = Store::open(killed.path(), &config).unwrap();
        assert_eq!(groups(&store), [1, 2], "{durability:?}");
    }
}

#[test]
fn a_directory_in_use_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &config(Durability::Fsync)).unwrap();
    let error = Store::open(dir.path(), &config(Durability::Fsync)).unwrap_err();
    let path = dir.path().join("store");
    assert!(matches!(&error, Error::InUse(in_use) if *in_use == path), "{error:?}");
    assert!(error.to_string().contains(&path.display().to_string()));
    drop(store);
    Store::open(dir.path(), &config(Durability::Fsync)).unwrap();
}

/// What was synced and is damaged is refused, wherever it is; what was not may be torn, or lack pages in the middle.
#[test]
fn a_torn_end_is_a_crash_and_any_other_damage_is_damage() {
    for (durability, pages) in [(Durability::Fsync, 0), (Durability::Os, 0), (Durability::Os, 1), (Durability::Os, 9)] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &config(durability)).unwrap();
        (1..=2000).for_each(|id| commit(&store, id));
        let crashed = copy(dir.path());
        drop(store);
        let path = newest_log(crashed.path());
        let mut bytes = fs::read(&path).unwrap();
        let (page, end) = (bytes.len() / 2 / 4096 * 4096, bytes.len());
        match pages {
            0 => bytes[page] ^= 0x10,
            // A page that was never written reads as zeros. Some of them begin where a record does.
            pages => bytes[page..page + pages * 4096].fill(0),
        }
        bytes.truncate(end - 5);
        fs::write(&path, &bytes).unwrap();
        let opened = Store::open(crashed.path(), &config(durability));
        if durability == Durability::Fsync {
            let error = opened.unwrap_err();
            assert!(matches!(&error, Error::DamagedLog { log, at } if *log == path && *at <= page as u64), "{error:?}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is touched");
        } else {
            let found = groups(&opened.unwrap());
            assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>(), "a beginning of what was written");
            assert!((900..1100).contains(&found.len()), "{} of 2000", found.len());
        }
    }
}

#[test]
fn the_last_commit_may_be_torn_whatever_it_promised() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &config(Durability::Fsync)).unwrap();
    (1..=50).for_each(|id| commit(&store, id));
    let torn = copy(dir.path());
    drop(store);
    let path = newest_log(torn.path());
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let store = Store::open(torn.path(), &config(Durability::Fsync)).unwrap();
    assert_eq!(groups(&store), (1..=49).collect::<Vec<_>>());
}

#[test]
fn a_later_format_is_refused_by_name_also_with_more_tables() {
    let dir = tempfile::tempdir().unwrap();
    let engine = RocksEngine::open(&dir.path().join("store"), &config(Durability::Fsync)).unwrap();
    let mut db = engine.db.write();
    let locked = Arc::get_mut(db.as_mut().unwrap()).unwrap();
    locked.db.create_cf("later", &Options::default()).unwrap();
    drop(db);
    let mut ops = Ops::default();
    ops.put(Table::Meta, b"format", |out| out.extend_from_slice(&7u32.to_be_bytes()));
    engine.write(&ops, true).unwrap();
    engine.close().unwrap();
    let error = Store::open(dir.path(), &config(Durability::Fsync)).unwrap_err();
    assert!(matches!(error, Error::NewerFormat { found: 7 }), "{error:?}");
}

/// A backlog that is written and settled over and over takes no more room than what is kept for a while anyway.
#[test]
fn what_is_settled_gives_its_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { rocksdb_memtable_bytes: 2 << 20, rocksdb_wal_bytes: 2 << 20, ..config(Durability::Os) };
    let store = Store::open(dir.path(), &config).unwrap();
    let mut state = LogState::default();
    let mut written = 0;
    for round in 0..300u64 {
        let mut message = message("t", 900, round);
        // Nothing that compresses.
        let noise = (0..900u64).map(|i| ((i + 900 * round).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8);
        message.payload = noise.collect();
        let lsn = store.write(|batch| {
            let body = batch.body(&message, 1);
            for seq in state.head + 1..=state.head + 200 {
                batch.append(1, seq, &head(QoS::AtLeastOnce), &body);
            }
            state.head += 200;
            batch.require_durable();
        });
        wait(&store, lsn.1);
        written += 200 * message.size();
        assert_eq!(store.read_log(1, state.head - 199, 1000, usize::MAX).unwrap().len(), 200);
        store.write(|batch| {
            batch.trim(1, state.trimmed + 1, state.head);
            state.trimmed = state.head;
            batch.put_log_state(1, &state);
        });
    }
    store.close().unwrap();
    let size: u64 =
        fs::read_dir(dir.path().join("store")).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 12 << 20 && written > 50 << 20, "{size} bytes are left of {written}");
}

/// Also where nothing more is written.
#[test]
fn what_was_settled_gives_its_space_back_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { rocksdb_memtable_bytes: 2 << 20, rocksdb_wal_bytes: 2 << 20, ..config(Durability::Os) };
    let store = Store::open(dir.path(), &config).unwrap();
    let mut message = message("t", 1000, 0);
    let mut noise = 1u64;
    for seq in 1..=20_000u64 {
        let mut next = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        };
        message.payload = (0..1000).map(|_| next()).collect();
        let lsn = store.write(|batch| {
            let body = batch.body(&message, 1);
            batch.append(1, seq, &head(QoS::AtLeastOnce), &body);
        });
        if seq % 1000 == 0 {
            store.write(|batch| batch.require_durable());
            wait(&store, lsn.1);
        }
    }
    let files = || -> u64 {
        let all = fs::read_dir(dir.path().join("store")).unwrap().flatten();
        let tables = all.filter(|file| file.path().extension().is_some_and(|extension| extension == "sst"));
        tables.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    };
    wait_until(|| files() > 15 << 20);
    store.write(|batch| {
        batch.trim(1, 1, 20_000);
        batch.put_log_state(1, &LogState { head: 20_000, trimmed: 20_000, ..LogState::default() });
        batch.freed(20_000_000);
    });
    wait_until(|| files() < 1 << 20);
}

#[test]
fn the_engine_does_what_the_one_in_memory_does() {
    let dir = tempfile::tempdir().unwrap();
    let engines: [Arc<dyn Engine>; 2] = [
        Arc::new(RocksEngine::open(dir.path(), &config(Durability::Os)).unwrap()),
        Arc::new(crate::storage::MemoryEngine::new()),
    ];
    let mut ops = Ops::default();
    for table in Table::ALL {
        for number in 0..100u8 {
            ops.put(table, &[number / 10, number], |out| out.push(number));
        }
        ops.delete(table, &[1, 15]);
        ops.delete_range(table, &[2], &[4, 42]);
        ops.delete_range(table, &[9], &[9]);
        ops.put(table, &[3, 33], |out| out.extend_from_slice(b"again"));
    }
    let ranges: [(&[u8], &[u8]); 6] =
        [(&[], &[255]), (&[1], &[2]), (&[2], &[4]), (&[2], &[3]), (&[200], &[255]), (&[4, 41], &[4, 43])];
    let [found, expected] = engines.map(|engine| {
        engine.write(&ops, true).unwrap();
        engine.reopen().unwrap();
        if engine.name() == "memory" {
            // It forgets nothing in a reopening.
            assert!(engine.get(Table::Meta, &[0, 1]).unwrap().is_some());
        }
        let mut found = Vec::new();
        for table in Table::ALL {
            for (from, to) in ranges {
                let mut records = Vec::new();
                engine
                    .scan(table, from, to, &mut |key, value| {
                        records.push((key.to_vec(), value.to_vec()));
                        if records.len() < 30 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    })
                    .unwrap();
                found.push((records, engine.last_key(table, from, to).unwrap()));
            }
            found.push((Vec::new(), engine.get(table, &[3, 33]).unwrap()));
            found.push((Vec::new(), engine.get(table, &[3, 34]).unwrap()));
            let many = engine.get_many(table, &[&[9, 91], &[1, 15], &[3, 33]]).unwrap();
            found.extend(many.into_iter().map(|value| (Vec::new(), value)));
        }
        engine.sync().unwrap();
        engine.close().unwrap();
        engine.close().unwrap();
        assert!(matches!(engine.write(&ops, false), Err(Error::Closed)));
        assert!(matches!(engine.get(Table::Meta, &[1]), Err(Error::Closed)));
        found
    });
    assert_eq!(found, expected);
}

/// Adds a group and waits until it is durable.
fn commit(store: &Store, log: u64) {
    let (sender, outcome) = std::sync::mpsc::channel();
    let ((), lsn): (_, Lsn) = store.write(|batch| {
        batch.put_group(&StoredGroup { log, share: "g".into(), filter: "f".into(), sent_until: 0 });
        batch.after_commit(store.durability().level(), Box::new(move |outcome| sender.send(outcome).unwrap()));
    });
    assert_eq!(outcome.recv().unwrap(), Outcome::Durable);
    wait(store, lsn);
}

fn groups(store: &Store) -> Vec<u64> {
    let mut found = Vec::new();
    store
        .recover(&mut |recovered| match recovered {
            Recovered::Group { group, .. } => found.push(group.log),
            other => panic!("{other:?}"),
        })
        .unwrap();
    found
}

fn wait(store: &Store, lsn: Lsn) {
    wait_until(|| store.outcome(lsn) == Outcome::Durable);
}

/// RocksDB may remove a file meanwhile: then it is tried again.
fn copy(dir: &Path) -> tempfile::TempDir {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        match try_copy(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && std::time::Instant::now() < deadline => {}
            copied => return copied.unwrap(),
        }
    }
}

fn try_copy(dir: &Path) -> std::io::Result<tempfile::TempDir> {
    let to = tempfile::tempdir()?;
    fs::create_dir(to.path().join("store"))?;
    for file in fs::read_dir(dir.join("store"))? {
        let file = file?;
        fs::copy(file.path(), to.path().join("store").join(file.file_name()))?;
    }
    Ok(to)
}

fn newest_log(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir.join("store")).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|name| name == "log")).max().unwrap()
}
