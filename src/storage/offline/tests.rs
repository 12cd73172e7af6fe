//! A store that went through an export is the same; what is not as it is written is found.

use super::{
    super::{
        Content, EntryHead, Import, Item, LogState, MemoryEngine, OpenEntry, Ops, Recovered, RecoveredLog, Refused,
        Selection, Seq, Snapshot, Step, Store, StoredSession, StoredTime, Table,
        keys::{self, OwnerKey},
        record,
        tests::{bodies_in, config, head, histories, message, model_of, session},
    },
    *,
};
use crate::{
    mqtt::{QoS, Timestamp},
    storage::Durability,
};

const EVERYTHING: Selection = Selection { sessions: true, queues: true, retained: true };

fn exported(engine: &Arc<dyn Engine>, what: Selection) -> Vec<Item> {
    let snapshot = Snapshot::of(engine.clone()).unwrap();
    let mut items = Vec::new();
    snapshot
        .export(what, &mut |item| {
            items.push(item);
            Ok::<_, Error>(())
        })
        .unwrap();
    items
}

fn imported(items: Vec<Item>, next_id: u64) -> Result<Arc<dyn Engine>, Refused> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut import = Import::into(&*engine)?;
    items.into_iter().try_for_each(|item| import.add(item))?;
    import.finish(next_id)?;
    Ok(engine)
}

fn found(engine: &Arc<dyn Engine>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut records = 0;
    let snapshot = Snapshot::of(engine.clone()).unwrap();
    let checked = snapshot.check(&mut |more| records += more, &mut |finding| found.push(finding)).unwrap();
    assert_eq!(checked.records, records);
    assert_eq!(checked.faults, found.iter().filter(|finding| finding.is_fault).count() as u64);
    assert_eq!(checked.faults + checked.leftovers, found.len() as u64);
    found
}

/// Random stores, each as it was left: sessions, groups, queues with what is in flight, wills, retained messages.
#[test]
fn a_store_that_went_through_an_export_is_the_same() {
    for (seed, engine) in histories(1..=25) {
        let engine: Arc<dyn Engine> = engine;
        let before = Store::stepped(engine.clone(), &config(Durability::Fsync)).unwrap();
        let time = StoredTime { time: Timestamp(seed), wall: Timestamp(7) };
        before.write(|batch| batch.put_time(time));
        before.step();
        let snapshot = Snapshot::of(engine.clone()).unwrap();
        let next_id = snapshot.next_id().unwrap();
        let copy = imported(exported(&engine, EVERYTHING), next_id).unwrap();
        let after = Store::stepped(copy.clone(), &config(Durability::Fsync)).unwrap();
        assert_eq!(model_of(&after), model_of(&before), "seed {seed}");
        assert_eq!(bodies_in(&*copy), bodies_in(&*engine), "seed {seed}");
        assert_eq!(recover::next_id(&*copy).unwrap(), next_id, "seed {seed}");
        assert_eq!(after.time().unwrap(), Some(time));
        let (copy, original) = (stats::stats(&*copy, 9).unwrap(), stats::stats(&*engine, 9).unwrap());
        assert_eq!(copy, original, "seed {seed}");
    }
}

#[test]
fn what_was_written_in_order_has_no_fault() {
    for (seed, engine) in histories(1..=25) {
        let engine: Arc<dyn Engine> = engine;
        let faults: Vec<_> = found(&engine).into_iter().filter(|finding| finding.is_fault).collect();
        assert!(faults.is_empty(), "seed {seed}: {faults:?}");
    }
}

/// Queues that are left out are empty and keep their numbers; nothing refers to what is left out.
#[test]
fn a_part_can_be_exported_by_itself() {
    for (seed, engine) in histories(1..=5) {
        let engine: Arc<dyn Engine> = engine;
        let sessions = exported(&engine, Selection { queues: false, retained: false, ..EVERYTHING });
        let retained = exported(&engine, Selection { sessions: false, queues: false, ..EVERYTHING });
        let kinds = |items: &[Item]| {
            let is_retained = |item: &&Item| matches!(item, Item::Record(Recovered::Retained(..)));
            (items.iter().filter(is_retained).count(), items.len())
        };
        assert_eq!(kinds(&sessions).0, 0, "seed {seed}");
        assert_eq!(kinds(&retained).0, kinds(&retained).1, "seed {seed}");
        let whole = stats::stats(&*engine, 0).unwrap();
        let queues = |items: &[Item]| -> Vec<(u64, u64, u64, Seq)> {
            let all = items.iter().filter_map(|item| match item {
                Item::Record(Recovered::Session { session, log, .. }) => {
                    Some((session.id, session.sent_until, log.tail, log.state.settled_bytes + log.bytes))
                }
                Item::Record(Recovered::Group { group, log }) => {
                    Some((group.log, group.sent_until, log.tail, log.state.settled_bytes + log.bytes))
                }
                _ => None,
            });
            all.collect()
        };
        // A packet id that a client still holds is not given to another message.
        assert_eq!(queues(&sessions), queues(&exported(&engine, EVERYTHING)), "seed {seed}");
        let copy = imported([sessions, retained].concat(), 1).unwrap();
        assert!(found(&copy).is_empty(), "seed {seed}");
        let part = stats::stats(&*copy, 0).unwrap();
        assert_eq!(
            (part.sessions, part.groups, part.subscriptions),
            (whole.sessions, whole.groups, whole.subscriptions)
        );
        assert_eq!((part.retained, part.wills, part.queued_messages), (whole.retained, whole.wills, 0));
    }
}

#[test]
fn queues_are_counted_as_they_are() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store = Store::with_engine(engine.clone(), &config(Durability::Memory)).unwrap();
    for (id, count) in [(1, 3), (2, 0), (3, 5)] {
        store.write(|batch| {
            batch.put_session(&StoredSession { connected: id == 2, ..session(id) });
            let small = message("t", 10, 0);
            for seq in 1..=count {
                let body = batch.body(&small, 1);
                let head = EntryHead { log_bytes: seq * small.size() as u64, ..head(QoS::AtLeastOnce) };
                batch.append(id, seq, &head, &body);
            }
            batch.put_retained(&message("r", 1, id), None);
        });
    }
    let mut state = LogState { settled_bytes: 2 * message("t", 10, 0).size() as u64, ..LogState::default() };
    state.settle(1);
    state.settle(4);
    store.write(|batch| batch.put_log_state(3, &state));
    let stats = store.stats(1).unwrap();
    assert_eq!((stats.sessions, stats.sessions_connected, stats.sessions_offline), (3, 1, 2));
    assert_eq!((stats.queues, stats.queued_messages, stats.retained), (2, 6, 1));
    let bytes = 3 * message("t", 10, 0).size() as u64;
    let largest = super::super::Queue { of: "client-1".into(), messages: 3, bytes };
    assert_eq!((stats.queued_bytes, stats.largest_queues), (2 * bytes, vec![largest]));
}

/// One session with an entry of a shared body in flight, and a retained message.
fn small() -> Vec<Item> {
    let log = RecoveredLog {
        open: vec![OpenEntry { seq: 1, holder: 0, packet_id: 0, step: Step::Sent }],
        ..RecoveredLog::default()
    };
    let session = session(1);
    let (id, seq, body) = (session.id, 1, 2);
    let shared = Arc::new(message("t", 2000, 0));
    let retained = Recovered::Retained(Arc::new(message("r/t", 1, 0)), None);
    vec![
        Item::Record(Recovered::Session { session, subscriptions: Vec::new(), received: Vec::new(), log }),
        Item::Body { id: body, message: shared },
        Item::Entry { log: id, seq, head: head(QoS::ExactlyOnce), content: Content::Body(body) },
        Item::Record(retained),
    ]
}

#[test]
fn each_kind_of_fault_is_found_and_named() {
    type Damage = fn(&mut Ops);
    let cases: &[(&str, Damage, &[&str])] = &[
        ("nothing", |_| {}, &[]),
        (
            "a record that cannot be read",
            |ops| ops.put(Table::Sessions, &keys::owner(1, OwnerKey::Session), |out| out.push(9)),
            &["table sessions, key 01000000000000000101, session 1: its version is 9"],
        ),
        (
            "a key that nothing writes",
            |ops| ops.put(Table::Sessions, &[7], |out| out.push(1)),
            &["key 07, an unknown key: its key is invalid"],
        ),
        (
            "a body that is missing",
            |ops| ops.delete(Table::Bodies, &keys::body(2)),
            &[
                "table logs, key 00000000000000010000000000000001, entry 1 in the queue of client \"client-1\": its body 2 is missing",
            ],
        ),
        (
            "a wrong count",
            |ops| ops.put(Table::Bodies, &keys::body_count(2), |out| record::put_count(out, 7)),
            &["shared body 2: 1 entries refer to it, 7 are counted"],
        ),
        (
            "an entry in flight that is missing",
            |ops| ops.delete(Table::Logs, &keys::entry(1, 1)),
            &[
                "client \"client-1\", entry 1 in flight: its queue does not have it",
                "0 entries refer to it, 1 are counted",
            ],
        ),
        (
            "a retained message elsewhere",
            |ops| ops.put(Table::Retained, b"other", |out| record::put_retained(out, &message("r/t", 1, 0), None)),
            &["table retained, key 6f74686572, retained message of \"other\": its topic is invalid"],
        ),
        (
            "a client with two sessions",
            |ops| {
                let again = StoredSession { client_id: "client-1".into(), ..session(3) };
                ops.put(Table::Sessions, &keys::owner(3, OwnerKey::Session), |out| record::put_session(out, &again));
                ops.put(Table::Meta, keys::NEXT_ID, |out| record::put_id(out, 9));
            },
            &["client \"client-1\": client \"client-1\" has another session"],
        ),
        (
            "an id from the future",
            |ops| ops.put(Table::Meta, keys::NEXT_ID, |out| record::put_id(out, 2)),
            &["shared body 2: its id 2 was never given: the next one is 2"],
        ),
        (
            "a filter that is none",
            |ops| {
                let subscription = crate::storage::StoredSubscription {
                    filter: String::new(),
                    options: crate::mqtt::packet::SubscriptionOptions {
                        qos: QoS::AtMostOnce,
                        no_local: false,
                        retain_as_published: false,
                        retain_handling: crate::mqtt::packet::RetainHandling::Send,
                    },
                    subscription_id: None,
                    replay: None,
                };
                let key = keys::owner(1, OwnerKey::Subscription("a/#/b"));
                ops.put(Table::Sessions, &key, |out| record::put_subscription(out, &subscription));
            },
            &["subscription \"a/#/b\": the topic filter \"a/#/b\" is not valid"],
        ),
        (
            "bytes that become fewer",
            |ops| {
                let entry = EntryHead { log_bytes: 1, ..head(QoS::AtLeastOnce) };
                let body = message("t", 1, 0);
                ops.put(Table::Logs, &keys::entry(1, 2), |out| {
                    record::put_entry(out, &entry, record::EntryBody::Message(&body));
                });
            },
            &["entry 2 in the queue of client \"client-1\": it counts fewer bytes than entry 1"],
        ),
    ];
    for (name, damage, expected) in cases {
        let engine = imported(small(), 3).unwrap();
        let mut ops = Ops::default();
        damage(&mut ops);
        engine.write(&ops, false).unwrap();
        let found: Vec<String> = found(&engine).iter().filter(|one| one.is_fault).map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
        for (found, expected) in found.iter().zip(*expected) {
            assert!(found.contains(expected), "{name}: {found}");
        }
    }
}

/// What the next start removes is told, and is no fault.
#[test]
fn what_is_left_over_is_no_fault() {
    let engine = imported(small(), 3).unwrap();
    let mut ops = Ops::default();
    ops.delete(Table::Sessions, &keys::owner(1, OwnerKey::Session));
    engine.write(&ops, false).unwrap();
    let found = found(&engine);
    assert!(found.iter().any(|one| !one.is_fault && one.problem.contains("is gone")), "{found:?}");
    assert!(found.iter().all(|one| !one.is_fault), "{found:?}");
}

#[test]
fn an_import_refuses_what_could_not_be_served() {
    let entry = |log, seq, content| Item::Entry { log, seq, head: head(QoS::AtLeastOnce), content };
    let inline = || Content::Message(Arc::new(message("t", 1, 0)));
    let with_log = |state| {
        let log = RecoveredLog { state, ..RecoveredLog::default() };
        Item::Record(Recovered::Session { session: session(5), subscriptions: vec![], received: vec![], log })
    };
    let settled = |settled: Vec<(u64, u64)>| with_log(LogState { head: 3, settled, ..LogState::default() });
    let cases: Vec<(Item, &str)> = vec![
        (small().remove(0), "a session of client \"client-1\" came before"),
        (entry(9, 1, inline()), "no session and no group with the id 9 came before"),
        (entry(1, 1, inline()), "entry 1 of queue 1 comes after entry 1"),
        (entry(1, 2, Content::Body(8)), "no body 8 came before"),
        (Item::Body { id: 1, message: Arc::new(message("t", 1, 0)) }, "the id 1 belongs to something"),
        (Item::Body { id: 0, message: Arc::new(message("t", 1, 0)) }, "the id 0 is not one"),
        (settled(vec![(4, 4)]), "queue 5 is not in ascending order"),
        (settled(vec![(7, 8), (6, 6)]), "queue 5 is not in ascending order"),
        (with_log(LogState { head: 3, trimmed: 4, ..LogState::default() }), "queue 5 is not in ascending order"),
    ];
    for (item, expected) in cases {
        let items = [small(), vec![item]].concat();
        let refused = imported(items, 1).err().map(|refused| refused.to_string());
        assert!(refused.as_ref().is_some_and(|refused| refused.contains(expected)), "{expected}: {refused:?}");
    }
    assert!(imported([small(), vec![settled(vec![(5, 5), (8, 9)])]].concat(), 1).is_ok());
}

#[test]
fn a_new_store_is_there_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let listed = || {
        let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let new = NewStore::begin(dir.path()).unwrap();
    std::fs::write(new.path().join("half"), "x").unwrap();
    drop(new);
    assert!(listed().is_empty());
    // What a killed attempt leaves goes at the next one; an empty directory is no store.
    std::fs::create_dir_all(dir.path().join("store.new/left")).unwrap();
    std::fs::create_dir(dir.path().join("store")).unwrap();
    let new = NewStore::begin(dir.path()).unwrap();
    assert!(std::fs::read_dir(new.path()).unwrap().next().is_none());
    std::fs::write(new.path().join("whole"), "x").unwrap();
    new.install().unwrap();
    assert_eq!(listed(), ["store"]);
    assert!(dir.path().join("store/whole").exists());
    let refused = NewStore::begin(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("holds a store already") && refused.contains("mv "), "{refused}");
    assert_eq!(listed(), ["store"]);
}
