//! A disk that fails: each packet gets its answer, the rest goes on, and with the disk comes everything back, without a restart.

use std::collections::BTreeSet;

use crate::support::{
    Broker, Client, Connect, Disk, Lost, Packet, Random, Setup, Will,
    broker::find,
    client::publish_of,
    eventually,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish},
};

/// What a client does while the disk fails, and what must come of it then and afterwards.
type Case = (&'static str, fn(&mut Stage));

const CASES: [Case; 14] = [
    ("PUBLISH of QoS 1", |stage| stage.refused(5, 1, false)),
    ("PUBLISH of QoS 2", |stage| stage.refused(5, 2, false)),
    ("PUBLISH of QoS 1 before v5", |stage| stage.refused(4, 1, false)),
    ("PUBLISH of QoS 2 before v5", |stage| stage.refused(4, 2, false)),
    ("PUBLISH of QoS 1 of a kept session", |stage| stage.refused(5, 1, true)),
    ("PUBLISH of QoS 2 of a kept session", |stage| stage.refused(5, 2, true)),
    ("a retained PUBLISH", Stage::retained),
    ("PUBREL", Stage::pubrel),
    ("PUBREC", Stage::pubrec),
    ("SUBSCRIBE", Stage::subscribe),
    ("UNSUBSCRIBE", Stage::unsubscribe),
    ("CONNECT", Stage::connect),
    ("DISCONNECT with a will", |stage| stage.will(true)),
    ("the end of a connection with a will", |stage| stage.will(false)),
];

#[test]
fn a_full_disk() {
    play("a_full_disk", "write 28 0 -1 .log\n", true);
}

#[test]
fn a_disk_that_is_full_in_the_middle_of_a_record() {
    play("a_disk_that_is_full_in_the_middle_of_a_record", "write 0 0 1 .log\nwrite 28 0 -1 .log\n", true);
}

#[test]
fn a_write_that_fails_once() {
    play("a_write_that_fails_once", "write 5 0 1 .log\n", false);
}

#[test]
fn a_sync_that_fails_once() {
    play("a_sync_that_fails_once", "sync 5 0 1 .log\n", false);
}

#[test]
fn a_disk_that_syncs_nothing() {
    play("a_disk_that_syncs_nothing", "sync 5 0 -1 *\n", true);
}

/// Plays all cases with these faults (`tests/preload/disk.c` reads them), which last until they are healed, or do not.
fn play(test: &str, faults: &'static str, last: bool) {
    let mut random = Random::seeded(test);
    let (disk, setup) = Disk::below(Setup::new().durability("fsync"));
    let mut stage = Stage::new(setup.start(), disk, faults, last);
    for (case, play) in CASES {
        println!("{case}");
        stage.number += 1;
        play(&mut stage);
    }
    stage.keep();
    no_failed_sync_is_trusted(&stage.disk.events());
    // What was promised after a failure does not hang on what failed.
    stage.broker.kill9();
    stage.disk.cut(&mut random);
    stage.broker.restart();
    stage.all_is_kept();
}

/// A file whose sync failed is not synced again: what it holds is written anew, elsewhere.
fn no_failed_sync_is_trusted(events: &[String]) {
    let inode = |event: &String, kind: &str| Some(event.strip_prefix(kind)?.split(' ').next()?.to_owned());
    let files: BTreeSet<String> = events.iter().filter_map(|event| inode(event, "create ")).collect();
    let mut failed = BTreeSet::new();
    for event in events {
        failed.extend(inode(event, "unsynced ").filter(|inode| files.contains(inode)));
        let synced = inode(event, "synced ");
        assert!(synced.is_none_or(|inode| !failed.contains(&inode)), "{event}, after that had failed");
    }
}

struct Stage {
    broker: Broker,
    disk: Disk,
    faults: &'static str,
    lasts: bool,
    /// Made anew for each case.
    number: u32,
    /// Lines of the log before the last failure.
    since: usize,
    kept: Vec<String>,
    keeper: Client,
    talker: Client,
    listener: Client,
}

impl Stage {
    fn new(broker: Broker, disk: Disk, faults: &'static str, lasts: bool) -> Self {
        let mut sleeper = broker.connect(&sleeper());
        sleeper.subscribe("kept", 1);
        sleeper.disconnect();
        let (keeper, talker, mut listener) = (broker.v5("keeper"), broker.v4("talker"), broker.v5("listener"));
        listener.subscribe("passing", 0);
        Self { broker, disk, faults, lasts, number: 0, since: 0, kept: Vec::new(), keeper, talker, listener }
    }

    /// Has a message acknowledged that must not be lost any more.
    fn keep(&mut self) {
        let text = format!("kept-{}", self.kept.len());
        self.keeper.publish("kept", &text, 1);
        self.kept.push(text);
    }

    /// What was acknowledged is there, once and in order. What was refused may be, where it was a sync that failed.
    fn all_is_kept(&self) {
        self.broker.v4("end").publish("kept", "end", 1);
        let mut client = self.broker.connect(&sleeper());
        assert!(client.session_present());
        let (kept, refused): (Vec<String>, _) =
            client.texts_until("end").into_iter().partition(|text| self.kept.contains(text));
        assert_eq!(kept, self.kept);
        assert!(refused.is_empty() || self.faults.starts_with("sync"), "{refused:?}");
    }

    fn name(&self, of: &str) -> String {
        format!("{of}-{}", self.number)
    }

    /// A client with a session that is kept.
    fn persistent(&self, level: u8) -> Connect {
        Connect::new(level, &self.name(&format!("client-{level}"))).persistent()
    }

    /// The disk fails from here on, with what so many connections do next.
    fn fail(&mut self, connections: u64) {
        // What those that are gone leave behind is written with what is kept now.
        self.broker.until_status("clients_connected", |count| count == 3 + connections);
        self.keep();
        self.since = self.broker.log_len();
        self.disk.fail(self.faults);
    }

    /// While it fails, what needs no disk goes on; the status tells; then it works again.
    fn heal(&mut self) {
        self.talker.publish("passing", "all the same", 0);
        assert_eq!(self.listener.text(), "all the same");
        let healthy = |broker: &Broker| find(&broker.status(), "healthy").and_then(serde_json::Value::as_bool).unwrap();
        if self.lasts {
            eventually("a failure in the status", || (!healthy(&self.broker)).then_some(()));
            assert_eq!(self.broker.refused(&Connect::v5("nobody").persistent()), 0x88);
            assert_eq!(self.broker.refused(&Connect::v4("nobody").persistent()), 3);
        }
        self.disk.heal();
        self.broker.wait_log_from(self.since, "the store works again", |line| line.contains("the store works again"));
        assert!(healthy(&self.broker));
    }

    fn refused(&mut self, level: u8, qos: u8, kept: bool) {
        let connect = if kept { self.persistent(level) } else { Connect::new(level, &self.name("client")) };
        let mut client = self.broker.connect(&connect);
        self.fail(1);
        client.send_publish(&Publish { id: 7, ..publish_of("kept", self.name("refused"), qos) });
        match (level, qos, kept) {
            (5, 1, _) => assert_eq!(client.acknowledged(PUBACK, 7), 0x97),
            (5, 2, false) => assert_eq!(client.acknowledged(PUBREC, 7), 0x97),
            // Its id may be on the disk: it is to be sent again.
            _ => drop(client.closed()),
        }
        self.heal();
        if kept && qos == 2 {
            let mut client = self.broker.connect(&connect);
            client.send_publish(&Publish { id: 7, dup: true, ..publish_of("kept", self.name("refused"), qos) });
            assert_eq!(client.acknowledged(PUBREC, 7), 0);
            client.send(&wire::ack(PUBREL, 7));
            assert_eq!(client.acknowledged(PUBCOMP, 7), 0);
            self.kept.push(self.name("refused"));
        }
    }

    fn retained(&mut self) {
        let mut client = self.broker.v5("setter");
        client.publish_retained("state", "old", 1);
        self.fail(1);
        let new = Publish { retain: true, ..publish_of("state", "new", 1) };
        assert_eq!(client.publish_code(&new), 0x97);
        self.heal();
        let mut reader = self.broker.v4("reader");
        reader.subscribe("state", 1);
        assert!(reader.text() == "old" || self.faults.starts_with("sync"), "memory is as the disk is");
        client.publish_retained("state", "", 1);
    }

    fn pubrel(&mut self) {
        let connect = self.persistent(5);
        let mut client = self.broker.connect(&connect);
        client.send_publish(&Publish { id: 7, ..publish_of("passing", "x", 2) });
        assert_eq!(client.acknowledged(PUBREC, 7), 0);
        assert_eq!(self.listener.text(), "x");
        self.fail(1);
        client.send(&wire::ack(PUBREL, 7));
        client.closed();
        self.heal();
        let mut client = self.broker.connect(&connect);
        client.send(&wire::ack(PUBREL, 7));
        client.acknowledged(PUBCOMP, 7);
    }

    fn pubrec(&mut self) {
        let connect = self.persistent(5);
        let mut client = self.broker.connect(&connect);
        let topic = self.name("once");
        client.subscribe(&topic, 2);
        self.broker.v4("publisher").publish(&topic, "x", 2);
        let id = client.delivery().id;
        self.fail(1);
        client.send(&wire::ack(PUBREC, id));
        client.closed();
        self.heal();
        let mut client = self.broker.connect(&connect);
        // Whether it knows of the PUBREC or not.
        if let Packet::Publish(again) = client.receive() {
            assert_eq!((again.id, again.dup), (id, true));
            client.send(&wire::ack(PUBREC, id));
            assert_eq!(client.acknowledged(PUBREL, id), 0);
        }
        client.send(&wire::ack(PUBCOMP, id));
        client.nothing();
    }

    fn subscribe(&mut self) {
        for level in [5, 4] {
            let connect = self.persistent(level);
            let mut client = self.broker.connect(&connect);
            client.subscribe("before", 1);
            self.fail(1);
            let topic = self.name("during");
            assert_eq!(client.subscribe_all(&[(&topic, 1)]), [if level == 5 { 0x83 } else { 0x80 }]);
            self.heal();
            let mut publisher = self.broker.v4("publisher");
            publisher.publish(&topic, "not granted", 1);
            publisher.publish("before", "granted", 1);
            let mut client = self.broker.connect(&connect);
            let got = client.texts_until("granted");
            assert!(got.is_empty() || self.faults.starts_with("sync"), "what was refused is not subscribed to");
            client.unsubscribe(&["before", &topic]);
        }
    }

    fn unsubscribe(&mut self) {
        for level in [5, 4] {
            let connect = self.persistent(level);
            let mut client = self.broker.connect(&connect);
            client.subscribe("before", 1);
            self.fail(1);
            if level == 5 {
                assert_eq!(client.unsubscribe(&["before"]), [0x83]);
            } else {
                client.send(&wire::unsubscribe(false, 9, &["before"]));
                client.closed();
            }
            self.heal();
            self.broker.v4("publisher").publish("before", "x", 1);
            let mut client = self.broker.connect(&connect);
            if !self.faults.starts_with("sync") {
                assert_eq!(client.text(), "x");
            }
            client.unsubscribe(&["before"]);
        }
    }

    fn connect(&mut self) {
        for (level, code) in [(5, 0x88), (4, 3)] {
            self.fail(0);
            assert_eq!(self.broker.refused(&self.persistent(level)), code);
            self.heal();
        }
        self.fail(0);
        let mortal = Connect::v5("mortal").will(Will::new("will", "not accepted"));
        assert_eq!(self.broker.refused(&mortal), 0x88);
        self.heal();
    }

    /// Published once where the connection ended without DISCONNECT, else not at all.
    fn will(&mut self, says_goodbye: bool) {
        let watcher = self.persistent(5);
        let mut client = self.broker.connect(&watcher);
        client.subscribe("will", 1);
        client.disconnect();
        let mortal = Connect::v5(&self.name("mortal")).will(Will::new("will", "gone").qos(1));
        let client = self.broker.connect(&mortal);
        self.fail(1);
        if says_goodbye {
            client.disconnect()
        } else {
            client.cut()
        }
        let _: Result<(), Lost> = self.broker.tcp().try_login(&self.persistent(4)).map(drop);
        self.heal();
        self.broker.v4("publisher").publish("will", "end", 1);
        let mut client = self.broker.connect(&watcher);
        let expected: &[&str] = if says_goodbye { &[] } else { &["gone"] };
        assert_eq!(client.texts_until("end"), expected);
        client.unsubscribe(&["will"]);
    }
}

fn sleeper() -> Connect {
    Connect::v4("sleeper").persistent()
}
