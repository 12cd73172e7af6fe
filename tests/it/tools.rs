//! What an operator does with the store: backup and restore, check, stats, export and import, by the commands.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::SystemTime,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use crate::support::{
    Broker, Client, Connect, PATIENCE, Random, Setup, Value, Will,
    broker::{pinnace, run, wait},
    client::publish_of,
    eventually,
    wire::{PUBCOMP, PUBREC, PUBREL, Packet, Publish, ack, property},
};

/// Runs a command on a data directory.
pub fn on(data_dir: &Path, args: &[&dyn AsRef<OsStr>]) -> Output {
    let flag: &OsStr = "--data-dir".as_ref();
    run(args.iter().map(|arg| arg.as_ref()).chain([flag, data_dir.as_os_str()]))
}

#[track_caller]
pub fn done(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out.into_owned()
}

/// Exit code 1 and one clear line.
#[track_caller]
pub fn refused(output: &Output, expected: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains(expected) && err.trim_end().lines().count() == 1, "{expected:?}: {err}");
}

#[track_caller]
pub fn json(output: &Output) -> Json {
    serde_json::from_str(&done(output)).unwrap()
}

/// Every file with its bytes and the time of its last change.
pub fn files(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(
                found.insert(path.clone(), (fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap())),
            ),
        }
    }
    found
}

/// Flips a bit in the first block of the largest file whose name ends like this.
fn damage(dir: &Path, ending: &str) -> PathBuf {
    let tables = files(dir).into_iter().filter(|(path, _)| path.to_string_lossy().ends_with(ending));
    let (path, (mut bytes, _)) = tables.max_by_key(|(_, (bytes, _))| bytes.len()).expect("a file of a table");
    bytes[20] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    path
}

/// Publishes numbers at QoS 1, one after the other, until it is told to stop.
fn publish_numbers(publisher: &mut Client, acknowledged: &AtomicU64, stop: &AtomicBool) {
    let mut random = Random::new(1);
    while !stop.load(Ordering::Relaxed) {
        let next = acknowledged.load(Ordering::Relaxed);
        let mut payload = next.to_be_bytes().to_vec();
        // Nothing that compresses.
        payload.extend(random.bytes(592));
        publisher.publish("load", payload, 1);
        acknowledged.store(next + 1, Ordering::Relaxed);
    }
}

/// What was acknowledged before the backup is in it, while publishing goes on; a second one adds what is new; both can be verified, and
/// restored after the broker was killed.
#[test]
fn a_backup_under_load_has_all_that_was_acknowledged() {
    let mut broker = Broker::start();
    let sleeper = Connect::v5("sleeper").persistent();
    let mut client = broker.connect(&sleeper);
    client.subscribe("load", 1);
    client.disconnect();
    broker.v5("other").publish_retained("kept", "value", 1);
    let backups = broker.dir().join("backups");
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        let mut publisher = broker.v5("publisher");
        let (acknowledged, stop) = (&acknowledged, &stop);
        scope.spawn(move || publish_numbers(&mut publisher, acknowledged, stop));
        for goal in [400, 450] {
            eventually("acknowledgements", || (acknowledged.load(Ordering::Relaxed) >= goal).then_some(()));
            let count = acknowledged.load(Ordering::Relaxed);
            let made = json(&on(&broker.data_dir(), &[&"backup", &backups, &"--json", &"--quiet"]));
            before.push((count, made));
            let count = acknowledged.load(Ordering::Relaxed);
            eventually("more", || (acknowledged.load(Ordering::Relaxed) > count).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    broker.kill9();
    assert!(done(&on(&broker.data_dir(), &[&"store", &"check"])).ends_with(" 0 faults, 0 left over\n"));
    let number = |at: usize, key: &str| before[at].1[key].as_u64().unwrap();
    let first = 400 * 600;
    assert!(number(0, "new_bytes") > first, "{before:?}");
    assert!(
        number(1, "new_bytes") + first < number(1, "bytes"),
        "the second one shares what the first has: {before:?}"
    );
    let listed = json(&run([OsStr::new("backup"), backups.as_os_str(), "--list".as_ref(), "--json".as_ref()]));
    let ids: Vec<u64> = listed["backups"].as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 2]);
    for (id, (count, _)) in (1..).zip(&before) {
        let id = id.to_string();
        let verified =
            run([OsStr::new("backup"), backups.as_os_str(), "--verify".as_ref(), "--backup".as_ref(), id.as_ref()]);
        assert!(done(&verified).contains("no fault"));
        let elsewhere = Setup::new();
        let data_dir = elsewhere.dir().join("data");
        done(&on(&data_dir, &[&"restore", &backups, &"--backup", &id]));
        let restored = elsewhere.start();
        let mut client = restored.connect(&sleeper);
        assert!(client.session_present());
        for number in 0..*count {
            assert_eq!(client.message().payload[..8], number.to_be_bytes(), "of {count} in backup {id}");
        }
        let mut other = restored.v5("other");
        other.subscribe("kept", 1);
        assert_eq!(other.text(), "value");
    }
}

/// Without a broker the command makes the backup itself; older ones go when it is told how many stay; what nobody waits for is in it.
#[test]
fn a_backup_of_a_store_at_rest() {
    let mut broker = Broker::start();
    let backups = broker.dir().join("deep/backups");
    broker.v5("client").publish_retained("kept", "value", 1);
    broker.terminate();
    for _ in 0..3 {
        done(&on(&broker.data_dir(), &[&"backup", &backups, &"--keep", &"2"]));
    }
    let listed = json(&run([OsStr::new("backup"), backups.as_os_str(), "--list".as_ref(), "--json".as_ref()]));
    let said = done(&run([OsStr::new("backup"), backups.as_os_str(), "--list".as_ref()]));
    assert!(said.lines().count() == 2 && said.contains("backup 3: ") && said.contains(" ago"), "{said}");
    let listed = listed["backups"].as_array().unwrap();
    assert_eq!(listed.iter().map(|one| one["id"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3]);
    assert!(listed.iter().all(|one| one["bytes"].as_u64().unwrap() > 0 && one["made_at_secs"].as_u64().unwrap() > 0));
    broker.restart();
    let mut client = broker.v5("client");
    client.subscribe("kept", 1);
    assert_eq!(client.text(), "value", "the store goes on");
}

/// A backup with a damaged file is found by its verification, and leaves nothing when it is restored.
#[test]
fn a_damaged_backup_is_not_restored() {
    let broker = Broker::start();
    let backups = broker.dir().join("backups");
    let mut client = broker.v5("client");
    (0..50).for_each(|n| client.publish_retained(&format!("kept/{n}"), "value", 1));
    done(&on(&broker.data_dir(), &[&"backup", &backups]));
    damage(&backups.join("shared_checksum"), ".sst");
    refused(&run([OsStr::new("backup"), backups.as_os_str(), "--verify".as_ref()]), "checksum");
    let elsewhere = broker.dir().join("elsewhere");
    refused(&on(&elsewhere, &[&"restore", &backups]), "checksum");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1, "the lock of the directory alone");
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_refused() {
    let mut broker = Broker::start();
    let (data_dir, backups) = (broker.data_dir(), broker.dir().join("backups"));
    refused(&on(&data_dir, &[&"backup", &data_dir.join("backups")]), "it is in the data directory");
    let foreign = broker.file("foreign.txt", "x");
    refused(&on(&data_dir, &[&"backup", &foreign.parent().unwrap()]), "holds no backups");
    refused(&on(&data_dir, &[&"backup", &foreign]), "foreign.txt");
    let (code, answer) = broker.control("POST", "/v1/backup");
    assert!((400..500).contains(&code), "{answer}");
    refused(&on(&data_dir, &[&"restore", &backups]), "there are no backups in it");
    done(&on(&data_dir, &[&"backup", &backups]));
    refused(&on(&data_dir, &[&"restore", &backups]), "a broker runs on it");
    broker.terminate();
    refused(&on(&data_dir, &[&"restore", &backups]), "mv ");
    refused(&on(&broker.dir().join("new"), &[&"restore", &backups, &"--backup", &"7"]), "no backup 7; there are: 1");
    refused(&on(&broker.dir().join("empty"), &[&"backup", &backups]), "there is no store");
    let forgetful = Setup::new().durability("memory").start();
    refused(&on(&forgetful.data_dir(), &[&"backup", &backups]), "nothing to back up");
}

/// Of message `n` of [`rich`]: some are stored once for all who get them.
fn payload(n: u8) -> Vec<u8> {
    vec![n; if n.is_multiple_of(2) { 3000 } else { 10 }]
}

/// A store with something of everything, at rest.
fn rich() -> Broker {
    let mut broker = Broker::start();
    for (name, qos) in [("first", 1), ("second", 2)] {
        let mut client = broker.connect(&Connect::v5(name).persistent());
        client.subscribe_with(&[(property::SUBSCRIPTION_ID, Value::Variable(7))], &[("t/#", qos)]);
        client.subscribe("$share/g/jobs", 1);
        client.disconnect();
    }
    let mut third = broker.connect(&Connect::v5("third").persistent());
    third.subscribe("exact", 2);
    third.disconnect();
    let dying = Will::new("will", "last words").qos(1).delay(3600);
    broker.connect(&Connect::v5("dying").persistent().will(dying)).cut();
    let mut publisher = broker.connect(&Connect::v5("publisher").persistent());
    let properties = vec![
        (property::USER_PROPERTY, Value::Pair("k".into(), "ü".into())),
        (property::CORRELATION_DATA, Value::Binary(vec![0, 255])),
        (property::USER_PROPERTY, Value::Pair("k".into(), "w".into())),
    ];
    for n in 0..10u8 {
        let message = Publish { properties: properties.clone(), ..publish_of("t/x", payload(n), 1 + n % 2) };
        publisher.publish_as(&Publish { retain: n == 9, ..message });
        publisher.publish("jobs", [n], 1);
    }
    // Received, and not released.
    publisher.send_publish(&Publish { id: 77, ..publish_of("t/half", "half", 2) });
    publisher.acknowledged(PUBREC, 77);
    publisher.publish("exact", "once", 2);
    // In flight: sent, and received but not released.
    broker.connect(&Connect::v5("first").persistent()).delivery();
    let mut third = broker.connect(&Connect::v5("third").persistent());
    let once = third.delivery();
    third.send(&ack(PUBREC, once.id));
    third.acknowledged(PUBREL, once.id);
    third.cut();
    broker.until_status("clients_connected", |clients| clients == 1);
    publisher.disconnect();
    broker.terminate();
    broker
}

/// What [`rich`] has stored, as clients see it.
fn check_rich(broker: &Broker) {
    let mut publisher = broker.connect(&Connect::v5("publisher").persistent());
    assert!(publisher.session_present());
    publisher.send(&ack(PUBREL, 77));
    assert_eq!(publisher.acknowledged(PUBCOMP, 77), 0, "its id is known");
    let mut jobs = Vec::new();
    for (name, qos) in [("first", 1), ("second", 2)] {
        let mut client = broker.connect(&Connect::v5(name).persistent());
        assert!(client.session_present());
        let mut next = 0u8;
        while next < 11 {
            let message = client.message();
            match message.topic.as_str() {
                "jobs" => jobs.push(message.payload[0]),
                "t/half" => {
                    assert_eq!((message.payload.as_slice(), next), (&b"half"[..], 10));
                    next = 11;
                }
                _ => {
                    assert_eq!(message.payload, payload(next));
                    assert_eq!(message.qos, (1 + next % 2).min(qos));
                    let texts: Vec<_> =
                        message.properties.iter().filter(|(id, _)| *id == property::USER_PROPERTY).collect();
                    assert_eq!(texts.len(), 2);
                    next += 1;
                }
            }
        }
        while jobs.len() < 10 && name == "second" {
            jobs.push(client.message().payload[0]);
        }
    }
    let mut third = broker.connect(&Connect::v5("third").persistent());
    let Packet::Ack { kind: PUBREL, id, .. } = third.receive() else { panic!("its PUBREL is due") };
    third.send(&ack(PUBCOMP, id));
    third.nothing();
    jobs.sort_unstable();
    assert_eq!(jobs, (0..10).collect::<Vec<u8>>(), "each job goes to one of the group");
    let mut other = broker.v5("other");
    other.subscribe("t/#", 1);
    assert_eq!(other.message().payload, vec![9; 10], "what is retained");
}

/// An export that is imported elsewhere is the same store: it exports the same, counts the same, and serves the same clients.
#[test]
fn an_export_is_imported_elsewhere() {
    let broker = rich();
    let first = broker.dir().join("first.jsonl");
    done(&on(&broker.data_dir(), &[&"store", &"export", &first]));
    refused(&on(&broker.data_dir(), &[&"store", &"export", &first]), "it exists");
    let text = fs::read_to_string(&first).unwrap();
    for kind in ["header", "time", "session", "group", "entry", "body", "retained", "will", "end"] {
        assert!(text.contains(&format!("{{\"kind\":\"{kind}\"")), "{kind} in {text}");
    }
    let elsewhere = Setup::new();
    let data_dir = elsewhere.dir().join("data");
    let said = done(&on(&data_dir, &[&"store", &"import", &first, &"--quiet"]));
    assert!(said.contains("5 sessions, 1 groups"), "{said}");
    let again = done(&on(&data_dir, &[&"store", &"export"]));
    assert_eq!(again, text);
    let stats = |dir: &Path| {
        let mut stats = json(&on(dir, &[&"store", &"stats", &"--json"]));
        // Files are laid out as they came to be.
        assert!(stats.as_object_mut().unwrap().remove("disk").is_some());
        stats
    };
    let (before, after) = (stats(&broker.data_dir()), stats(&data_dir));
    assert_eq!(after, before);
    assert_eq!((&after["sessions"], &after["groups"], &after["retained"]), (&5.into(), &1.into(), &1.into()));
    assert!(done(&on(&data_dir, &[&"store", &"check"])).contains(" 0 faults"));
    refused(&on(&data_dir, &[&"store", &"import", &first]), "mv ");
    check_rich(&elsewhere.start());
}

/// A part by itself, and what a running broker says of its store.
#[test]
fn a_part_is_exported_and_a_running_broker_counts() {
    let mut broker = rich();
    let kinds = |flag: &str| {
        let text = done(&on(&broker.data_dir(), &[&"store", &"export", &"-", &flag]));
        let mut kinds: Vec<String> = text
            .lines()
            .map(|line| serde_json::from_str::<Json>(line).unwrap()["kind"].as_str().unwrap().to_owned())
            .collect();
        kinds.dedup();
        kinds.sort();
        kinds.dedup();
        kinds.join(" ")
    };
    assert_eq!(kinds("--retained"), "end header retained time");
    assert_eq!(kinds("--sessions"), "end group header session time will");
    assert_eq!(kinds("--queues"), "body end entry group header session time will");
    broker.restart();
    for flag in ["check", "export", "import"] {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"store", &flag];
        if flag == "import" {
            args.push(&"/dev/null");
        }
        refused(&on(&broker.data_dir(), &args), "a broker runs on it");
    }
    let stats = json(&on(&broker.data_dir(), &[&"store", &"stats", &"--json", &"--largest", &"2"]));
    let names: Vec<_> =
        stats["largest_queues"].as_array().unwrap().iter().map(|one| one["of"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2);
    assert!(names.contains(&"second") && (&stats["sessions"], &stats["retained"]) == (&5.into(), &1.into()), "{stats}");
    let human = done(&on(&broker.data_dir(), &[&"store", &"stats"]));
    assert!(human.contains("queued_messages") && human.contains("disk.tables.logs.bytes"), "{human}");
}

/// A flipped byte is found, with its file; the check changes nothing.
#[test]
fn a_check_finds_damage_and_changes_nothing() {
    let broker = rich();
    let data_dir = broker.data_dir();
    // It writes what is in the log into files of tables.
    done(&on(&data_dir, &[&"backup", &broker.dir().join("backups")]));
    let before = files(&data_dir);
    let said = done(&on(&data_dir, &[&"store", &"check"]));
    assert!(said.ends_with(" 0 faults, 0 left over\n"), "{said}");
    done(&on(&data_dir, &[&"store", &"stats"]));
    done(&on(&data_dir, &[&"store", &"export"]));
    assert!(files(&data_dir) == before, "nothing was changed");
    let damaged = damage(&data_dir.join("store"), ".sst");
    let output = on(&data_dir, &[&"store", &"check"]);
    refused(&output, "faults");
    let said = String::from_utf8_lossy(&output.stdout);
    let name = damaged.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name) && said.contains("fault: table "), "{said}");
    refused(&on(&data_dir, &[&"store", &"export"]), name);
}

/// What is wrong with a line is told by its number, and nothing is imported.
#[test]
fn an_import_is_whole_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (data_dir, file) = (dir.path().join("data"), dir.path().join("export.jsonl"));
    let header = r#"{"kind":"header","format":"pinnace-export","version":1,"broker":"0.1.0","next_id":9}"#;
    let retained = r#"{"kind":"retained","message":{"topic":"a","payload":"eA==","qos":1,"retain":true}}"#;
    let end = r#"{"kind":"end"}"#;
    let cases: &[(&[&str], &str)] = &[
        (&[], "export.jsonl:1: the file is empty"),
        (&[retained, end], "export.jsonl:1: the first line must be the header"),
        (&[header, retained], "export.jsonl:3: the end of the export is missing"),
        (&[header, retained, "{", end], "export.jsonl:3: EOF while parsing"),
        (&[header, r#"{"kind":"body","id":1}"#, end], "export.jsonl:2: missing field `message`"),
        (&[header, end, retained], "export.jsonl:3: it follows the end"),
    ];
    for (lines, expected) in cases {
        fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        refused(&on(&data_dir, &[&"store", &"import", &file]), expected);
    }
    fs::write(&file, format!("{header}\n{retained}\n{end}")).unwrap();
    refused(&on(&data_dir, &[&"store", &"import", &file]), "export.jsonl:3: the file ends in the middle");
    refused(&on(&data_dir, &[&"store", &"import", &dir.path().join("none")]), "cannot read it");
    assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1, "the lock of the directory alone");
    fs::write(&file, format!("{header}\n{retained}\n{end}\n")).unwrap();
    done(&on(&data_dir, &[&"store", &"import", &file]));
}

/// Ctrl-C leaves nothing, whatever is under way: the store is just being made, or its input is awaited.
#[test]
fn an_interrupted_import_leaves_nothing() {
    for (round, until) in ["store.new", "store.new/CURRENT", "store.new/000004.log"].iter().cycle().take(12).enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        let mut command = pinnace();
        command.args(["store", "import", "-", "--data-dir"]).arg(dir.path());
        // Its input stays open.
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("a store in the making", || dir.path().join(until).exists().then_some(()));
        let signal = if round % 2 == 0 { Signal::INT } else { Signal::TERM };
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = wait(&mut child, PATIENCE).expect("it ends");
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(130), ""));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the lock of the directory alone");
    }
}
