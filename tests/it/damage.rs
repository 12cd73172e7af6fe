//! A store whose files are damaged: it is refused by name and left as it is, or moved aside, with a report; nothing is lost without a word.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    formats,
    support::{Broker, Connect, Packet, Random, Setup, client::Client},
};

/// What a file of a store can come to.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Flipped(usize),
    Cut(usize),
    Deleted,
}

impl Damage {
    fn inflict(self, path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        match self {
            Self::Flipped(at) => bytes[at] ^= 0x10,
            Self::Cut(len) => bytes.truncate(len),
            Self::Deleted => return fs::remove_file(path).unwrap(),
        }
        fs::write(path, bytes).unwrap();
    }
}

/// Every kind of file, at seeded places: the start refuses it, names it and says what to do; or it takes it, and then either nothing is
/// missing or the log tells of a torn end. With `--quarantine` it starts, has what can be read, and reports the rest.
#[test]
fn no_damage_is_passed_over_in_silence() {
    let mut broker = Broker::start();
    formats::fill(&mut broker);
    let store = broker.data_dir().join("store");
    let whole = {
        let setup = with_store(&store, Setup::new());
        found(&setup.start())
    };
    assert!(whole.len() > 10, "{whole:?}");
    let mut random = Random::seeded("no_damage_is_passed_over_in_silence");
    let mut cases = Vec::new();
    for (name, bytes) in listing(&store) {
        let mut below = || random.below(bytes.len() as u64) as usize;
        match name.split(['-', '.']).next().unwrap() {
            _ if bytes.is_empty() => cases.push((name, Damage::Deleted)),
            "LOG" => {}
            // What nothing depends on.
            "OPTIONS" | "IDENTITY" => cases.push((name, Damage::Deleted)),
            _ => {
                let damages = [Damage::Flipped(below()), Damage::Cut(below()), Damage::Deleted];
                cases.extend(damages.map(|damage| (name.clone(), damage)));
            }
        }
    }
    let mut refused = 0;
    for together in cases.chunks(8) {
        std::thread::scope(|scope| {
            let checks: Vec<_> =
                together.iter().map(|(name, damage)| scope.spawn(|| damaged(&store, name, *damage, &whole))).collect();
            refused += checks.into_iter().map(|check| usize::from(check.join().unwrap())).sum::<usize>();
        });
    }
    assert!(refused > 10 && refused < cases.len(), "{refused} of {} were refused", cases.len());
}

/// Whether the start refuses it.
fn damaged(store: &Path, name: &str, damage: Damage, whole: &BTreeSet<String>) -> bool {
    let case = format!("{name} {damage:?}");
    let setup = with_store(store, Setup::new());
    damage.inflict(&setup.dir().join("data/store").join(name));
    match start(setup) {
        Ok(broker) => {
            let is_told = broker.log_lines().iter().any(|line| line.contains("torn"));
            let there = found(&broker);
            assert!(is_told || there == *whole, "{case}: {:?} is missing", whole - &there);
            false
        }
        Err(said) => {
            assert!(said.contains("--quarantine") && said.contains("store"), "{case}: {said}");
            quarantined(&case, store, name, damage, whole);
            true
        }
    }
}

/// The same damage, and `--quarantine`.
fn quarantined(case: &str, store: &Path, name: &str, damage: Damage, whole: &BTreeSet<String>) {
    let setup = with_store(store, Setup::new().arg("--quarantine"));
    let data_dir = setup.dir().join("data");
    damage.inflict(&data_dir.join("store").join(name));
    let before = listing(&data_dir.join("store"));
    let broker = setup.start();
    let there = found(&broker);
    let aside = data_dir.join("quarantine/1");
    let report = fs::read_to_string(aside.join("report.txt")).unwrap();
    let status = broker.status();
    assert_eq!(status["storage"]["quarantined"][0], aside.display().to_string(), "{case}");
    assert!(broker.log_lines().iter().any(|line| line.contains("was moved aside")), "{case}");
    // RocksDB may have been asked to open it before it was known to be damaged; table files are never changed.
    for (name, bytes) in before.iter().filter(|(name, _)| name.ends_with(".sst")) {
        assert_eq!(fs::read(aside.join("store").join(name)).ok().as_ref(), Some(bytes), "{case}: {name} was touched");
    }
    let lost: BTreeSet<_> = whole - &there;
    // Where the step of a handshake is lost, its message may come again.
    let may_be_older = [".log", "may be older", "may be back"].iter().any(|word| report.contains(word));
    assert!(there.is_subset(whole) || may_be_older, "{case}: {:?} came from nowhere", &there - whole);
    let mut messages = BTreeMap::<&str, usize>::new();
    for what in &lost {
        let client = what.split_once("of client ").map(|(_, rest)| rest.split(':').next().unwrap());
        let is_told = match client {
            None => report.contains("table retained"),
            Some(client) if lost.contains(&format!("session of client {client}")) => {
                report.contains("the record of") || report.contains("table sessions")
            }
            // The Will of a client whose record of it is lost.
            Some(_) if what.contains(": will/") => report.contains("table sessions"),
            Some(client) => {
                *messages.entry(client).or_default() += 1;
                true
            }
        };
        assert!(is_told || report.contains(".log"), "{case}: {what} is lost and not told:\n{report}");
    }
    for (client, count) in messages {
        let is_told = report.contains(&format!("waited for client {client} and are gone: {count}\n"));
        assert!(is_told || report.contains(".log"), "{case}: {count} of {client} are lost and not told:\n{report}");
    }
    println!("{case}: lost {lost:?}");
}

/// A damaged store that is refused before RocksDB opens it is not touched at all.
#[test]
fn a_refusal_touches_nothing() {
    let mut broker = Broker::start();
    formats::fill(&mut broker);
    let data_dir = broker.data_dir();
    let log = newest(&data_dir.join("store"), ".log");
    Damage::Flipped(110).inflict(&log);
    let before = stamped(&data_dir);
    let (code, said) = broker.start_in_vain();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(&log.display().to_string()) && said.contains("pinnace restore"), "{said}");
    assert_eq!(stamped(&data_dir), before);
}

/// A start that dies while it moves a damaged store aside leaves a store.
#[test]
fn an_interrupted_salvage_is_finished() {
    let mut broker = Broker::start();
    formats::fill(&mut broker);
    let data_dir = broker.data_dir();
    // As if it had died between its two renames.
    fs::create_dir(data_dir.join("salvage")).unwrap();
    fs::rename(data_dir.join("store"), data_dir.join("salvage/store")).unwrap();
    broker.restart();
    assert!(broker.connect(&formats::reader()).session_present());
    assert!(!data_dir.join("salvage").exists());
    broker.kill9();
    // As if it had died earlier.
    fs::create_dir_all(data_dir.join("salvage/store")).unwrap();
    broker.restart();
    assert!(broker.connect(&formats::reader()).session_present());
}

fn with_store(store: &Path, setup: Setup) -> Setup {
    let target = setup.dir().join("data/store");
    fs::create_dir_all(&target).unwrap();
    listing(store).into_iter().for_each(|(name, bytes)| fs::write(target.join(name), bytes).unwrap());
    setup
}

fn start(setup: Setup) -> Result<Broker, String> {
    setup.try_start().map_err(|output| {
        assert_eq!(output.status.code(), Some(3));
        String::from_utf8_lossy(&output.stderr).into_owned()
    })
}

/// What of [`formats::fill`] is there.
fn found(broker: &Broker) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for id in ["reader", "other", "taker", "holder", "member", "device"] {
        let mut client = broker.connect(&formats::kept(id));
        if client.session_present() {
            found.insert(format!("session of client {id}"));
        }
        found.extend(received(&mut client).into_iter().map(|what| format!("message of client {id}: {what}")));
    }
    let mut late = broker.v5("late");
    late.subscribe("kept/#", 2);
    found.extend(received(&mut late).into_iter().map(|what| format!("retained {what}")));
    found
}

fn received(client: &mut Client) -> Vec<String> {
    let mut all = Vec::new();
    while let Ok(packet) = client.try_receive(Duration::from_millis(150)) {
        if let Packet::Publish(publish) = packet {
            all.push(format!("{} {:.20}", publish.topic, String::from_utf8_lossy(&publish.payload)));
        }
    }
    all
}

fn listing(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// All files below, with their content and the time of their last change.
fn stamped(dir: &Path) -> BTreeMap<PathBuf, (std::time::SystemTime, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            all.extend(stamped(&entry.path()));
        } else if kind.is_file() {
            let changed = entry.metadata().unwrap().modified().unwrap();
            all.insert(entry.path(), (changed, fs::read(entry.path()).unwrap()));
        }
    }
    all
}

fn newest(dir: &Path, end: &str) -> PathBuf {
    let names = listing(dir).into_keys().filter(|name| name.ends_with(end));
    dir.join(names.max().unwrap())
}

/// On a data directory with a store, prepared like that, the start says this in one line, and touches nothing.
fn refused_untouched(prepare: impl FnOnce(&Path), setup: Setup, said: &str) {
    let mut broker = Broker::start();
    formats::fill(&mut broker);
    let setup = with_store(&broker.data_dir().join("store"), setup);
    let data_dir = setup.dir().join("data");
    fs::write(data_dir.join("lock"), "").unwrap();
    prepare(&data_dir);
    let before = stamped(&data_dir);
    let output = setup.run_in_vain();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("pinnace: ")).collect();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(lines.len() == 1 && lines[0].contains(said), "{stderr}");
    assert_eq!(stamped(&data_dir), before);
}

#[test]
fn a_data_directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let chown = |path: &Path| std::os::unix::fs::chown(path, Some(12_345), None).unwrap();
    refused_untouched(chown, Setup::new(), "belongs to user 12345");
    refused_untouched(|dir| chown(&dir.join("store")), Setup::new(), "belongs to user 12345");
}

#[test]
fn a_read_only_data_directory_is_refused() {
    refused_untouched(|_| {}, Setup::new().read_only(), "cannot be written");
}

#[test]
fn a_data_directory_in_use_is_refused() {
    let broker = Broker::start();
    let data_dir = broker.data_dir();
    let before = stamped(&data_dir);
    let output = Setup::new().on(&data_dir).refused();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && stderr.contains("in use by another pinnace"), "{stderr}");
    assert_eq!(stamped(&data_dir), before);
}

/// A later release's store is not touched; one whose note of it is gone is refused all the same.
#[test]
fn a_store_of_a_later_release_is_refused() {
    let later = |data_dir: &Path| fs::write(data_dir.join("store/FORMAT"), "1000\n").unwrap();
    refused_untouched(later, Setup::new(), "the store has format 1000");
    let setup = Setup::new();
    let data_dir = setup.dir().join("data");
    fs::create_dir(&data_dir).unwrap();
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/newer-format.tgz");
    formats::tar(&["xzf".as_ref(), stored.as_ref(), "-C".as_ref(), data_dir.as_ref(), "--no-same-owner".as_ref()]);
    let setup = setup.arg("--quarantine");
    let output = setup.run_in_vain();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && stderr.contains("the store has format 1000"), "{stderr}");
    assert!(!data_dir.join("quarantine").exists());
}

/// A block of a queue that is damaged costs the messages in it: they are counted and told, and the rest is delivered.
#[test]
fn a_damaged_queue_is_delivered_around_the_damage() {
    let mut broker = Broker::start();
    let sleeper = Connect::v4("sleeper").persistent();
    let mut client = broker.connect(&sleeper);
    client.subscribe("t", 1);
    client.disconnect();
    let mut publisher = broker.v4("publisher");
    let mut random = Random::new(5);
    let expected: Vec<Vec<u8>> = (0..400u32).map(|n| [&n.to_be_bytes()[..], &random.bytes(96)].concat()).collect();
    expected.iter().for_each(|payload| publisher.publish("t", payload, 1));
    assert_eq!(broker.terminate().code(), Some(0));
    // The largest table file is that of the queue.
    let store = broker.data_dir().join("store");
    let tables = listing(&store).into_iter().filter(|(name, _)| name.ends_with(".sst"));
    let (name, bytes) = tables.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    Damage::Flipped(bytes.len() / 2).inflict(&store.join(name));
    broker.restart();
    let mut client = broker.connect(&sleeper);
    assert!(client.session_present());
    let mut got = Vec::new();
    while got.last() != expected.last() {
        got.push(client.message().payload);
    }
    client.nothing();
    let lost = expected.len() - got.len();
    assert!((1..100).contains(&lost), "{lost} of {} are lost", expected.len());
    assert!(got.iter().all(|payload| expected.contains(payload)) && got.is_sorted());
    broker.wait_log("what is lost, and whose it is", |line| line.contains("are lost") && line.contains("sleeper"));
    assert_eq!(broker.status()["dropped"]["storage_failed"].as_u64(), Some(lost as u64));
    // It does not meet the damage again.
    client.disconnect();
    publisher = broker.v4("publisher");
    publisher.publish("t", "new", 1);
    let mut client = broker.connect(&sleeper);
    assert_eq!(client.text(), "new");
}
