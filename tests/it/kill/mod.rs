//! The broker's end in the middle of everything, round after round: by `kill -9`, and by a power cut that leaves of the disk what was synced and
//! some of the rest. What was acknowledged is held against a model: nothing of it is lost, QoS 2 is never doubled, the order of each publisher is
//! kept, retained messages and subscriptions are right, wills come once.
//!
//! `PINNACE_TEST_ROUNDS` sets the number of rounds, `PINNACE_SEED` the choices.

mod group;
mod publisher;
mod receiver;
mod retained;
mod sink;
mod subscriber;
mod wills;

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::support::{Broker, Client, Connect, Disk, Lost, PATIENCE, Packet, Random, Setup};

use self::{
    group::Group, publisher::Publisher, receiver::Receiver, retained::Retained, sink::Sink, subscriber::Subscriber,
    wills::Wills,
};

const KILLS: u64 = 60;
const POWER_CUTS: u64 = 20;
const FAILURES: u64 = 12;
/// Every so many rounds the sinks are there while messages are published; else they are away, which is the case that stores everything.
const ONLINE_EVERY: u64 = 6;

#[test]
fn what_was_acknowledged_survives_kills() {
    let random = Random::seeded("what_was_acknowledged_survives_kills");
    World::new(Broker::start(), None, random).run(rounds(KILLS));
}

#[test]
fn what_was_acknowledged_survives_power_cuts() {
    let random = Random::seeded("what_was_acknowledged_survives_power_cuts");
    let (disk, setup) = Disk::below(short_of_memory());
    World::new(setup.start(), Some(disk), random).run(rounds(POWER_CUTS));
}

/// The disk fails in the middle of each round and is healed, and a later power cut shows what was built on what failed.
#[test]
fn what_was_acknowledged_survives_a_failing_disk() {
    let random = Random::seeded("what_was_acknowledged_survives_a_failing_disk");
    let (disk, setup) = Disk::below(short_of_memory());
    let world = World::new(setup.start(), Some(disk), random);
    World { disk_fails: true, ..world }.run(rounds(FAILURES));
}

/// Little memory, so that logs and tables come and go while it runs.
fn short_of_memory() -> Setup {
    let config = "[storage]\nrocksdb_memtable_bytes = 1048576\nrocksdb_wal_bytes = 1048576\n";
    Setup::new().durability("fsync").config(config)
}

/// The disk does forget: where nothing is synced, a power cut takes what was acknowledged.
#[test]
fn a_power_cut_takes_what_was_not_synced() {
    let mut random = Random::seeded("a_power_cut_takes_what_was_not_synced");
    let (mut disk, setup) = Disk::below(Setup::new().durability("os"));
    let mut broker = setup.start();
    let connect = Connect::v4("sleeper").persistent();
    let mut lost = 0;
    for _ in 0..5 {
        let mut client = broker.connect(&connect);
        client.subscribe("t", 1);
        client.disconnect();
        let mut publisher = broker.v4("publisher");
        (0..20u8).for_each(|n| publisher.publish("t", [n; 500], 1));
        broker.kill9();
        assert!(disk.cut(&mut random).unsynced > 10_000);
        broker.restart();
        let mut client = broker.connect(&connect);
        client.publish("t", "last", 1);
        client.subscribe("t", 1);
        client.publish("t", "last", 1);
        let mut got = 0;
        while client.message().payload != b"last" {
            got += 1;
        }
        lost += 20 - got;
    }
    assert!(lost > 0, "every acknowledged message is there after five power cuts without a sync");
}

fn rounds(default: u64) -> u64 {
    std::env::var("PINNACE_TEST_ROUNDS").map_or(default, |text| text.parse().expect("PINNACE_TEST_ROUNDS is a number"))
}

/// Somebody who knows what it was promised.
trait Actor: Send {
    /// Works until the connection is lost, or ends before.
    fn work(&mut self, address: SocketAddr);
    /// After a restart, when nobody works: holds what it was promised against what is there.
    fn check(&mut self, check: &Check<'_>);
}

/// Something that fails once, or until it is healed: on the log, or on the files that come and go behind it.
fn faults(random: &mut Random) -> String {
    let call = ["write", "sync", "open", "rename"][random.below(4) as usize];
    let error = [5, 28][random.below(2) as usize];
    let part = [".log", ".log", ".sst", "MANIFEST", "*"][random.below(5) as usize];
    let count = if random.below(2) == 0 { "1" } else { "-1" };
    format!("{call} {error} {} {count} {part}\n", random.below(4))
}

/// Connects, also where the store does not work for a while. An error that is no [`Lost::Io`] may be tried again. Whether the session was there.
fn login(address: SocketAddr, connect: &Connect) -> Result<(Client, bool), Lost> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = Client::try_tcp(address)?;
        match client.try_login(connect)? {
            Packet::ConnAck { code: 0, session_present, .. } => return Ok((client, session_present)),
            Packet::ConnAck { code: 0x88 | 3, .. } if Instant::now() < deadline => {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            other => panic!("{}: {other:?}", connect.client_id),
        }
    }
}

/// What a failing disk may do to one at work, as it is not acknowledged.
fn is_refusal(packet: &Packet) -> bool {
    match packet {
        Packet::Disconnect { code: 0x83, .. } | Packet::Ack { code: 0x97, .. } => true,
        Packet::SubAck { codes, .. } | Packet::UnsubAck { codes, .. } => codes.iter().all(|code| *code == 0x83),
        _ => false,
    }
}

/// What there is to be held against.
struct Check<'a> {
    broker: &'a Broker,
    round: u64,
    /// How many messages each publisher has published.
    published: &'a [u64],
    /// Every handshake of every publisher is over.
    is_last: bool,
}

impl Check<'_> {
    /// Publishes the end of this round to those who listen there.
    fn mark(&self, topic: &str) {
        self.broker.v4("marker").publish(topic, self.round.to_be_bytes(), 1);
    }
}

struct World {
    broker: Broker,
    /// What loses its power with the broker.
    disk: Option<Disk>,
    /// It fails before that, too.
    disk_fails: bool,
    random: Random,
    publishers: Vec<Publisher>,
    sinks: Vec<Sink>,
    others: Vec<Box<dyn Actor>>,
}

impl World {
    fn new(broker: Broker, disk: Option<Disk>, mut random: Random) -> Self {
        let publishers: Vec<Publisher> = [(4, 1), (5, 1), (4, 2), (5, 2)]
            .iter()
            .enumerate()
            .map(|(n, (level, qos))| Publisher::new(n, *level, *qos, random.fork()))
            .collect();
        let sinks = vec![
            Sink::new(&broker, &Connect::v5("sink-2"), 2, publishers.len()),
            Sink::new(&broker, &Connect::v4("sink-1"), 1, publishers.len()),
        ];
        let others: Vec<Box<dyn Actor>> = vec![
            Box::new(Group::new(&broker, random.fork())),
            Box::new(Retained::new(random.fork())),
            Box::new(Subscriber::new(&broker, random.fork())),
            Box::new(Wills::new(&broker, random.fork())),
        ];
        Self { broker, disk, disk_fails: false, random, publishers, sinks, others }
    }

    fn run(mut self, rounds: u64) {
        for round in 0..rounds {
            self.storm(round % ONLINE_EVERY == ONLINE_EVERY - 1);
            self.restart();
            for at in 0..self.sinks.len() {
                if self.random.below(3) == 0 {
                    self.sinks[at].read(self.broker.address(), self.random.below(200) as usize);
                    self.broker.kill9();
                    self.restart();
                }
            }
            let is_last = round == rounds - 1;
            if is_last {
                self.publishers.iter_mut().for_each(|publisher| publisher.finish(self.broker.address()));
            }
            if is_last || self.random.below(2) == 0 {
                self.check(round, is_last);
            }
        }
        let published: u64 = self.publishers.iter().map(|publisher| publisher.next).sum();
        let failed = |line: &&String| line.contains("the store failed:");
        let failures = self.broker.log_lines().iter().filter(failed).count();
        println!("{published} messages in {rounds} rounds, with {failures} failures of the store");
        assert_eq!(failures > 0, self.disk_fails);
    }

    /// Lets everybody work until so many messages were acknowledged, then kills the broker.
    fn storm(&mut self, online: bool) {
        let (address, count) = (self.broker.address(), &AtomicU64::new(0));
        let enough = 20 + self.random.below(300);
        let mut wanted = enough;
        let Self { broker, disk, random, publishers, sinks, others, .. } = self;
        std::thread::scope(|scope| {
            for publisher in publishers {
                scope.spawn(move || publisher.stream(address, count));
            }
            for sink in sinks.iter_mut().filter(|_| online) {
                scope.spawn(move || sink.read(address, usize::MAX));
            }
            for other in others {
                scope.spawn(move || other.work(address));
            }
            let until = |enough| {
                let deadline = Instant::now() + PATIENCE;
                while count.load(Ordering::Relaxed) < enough && Instant::now() < deadline {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            };
            until(enough);
            if let Some(disk) = disk.as_mut().filter(|_| self.disk_fails) {
                let from = broker.log_len();
                disk.fail(&faults(random));
                // Some of them hit what is written now and then only.
                let deadline = Instant::now() + Duration::from_millis(20 + random.below(300));
                let is_told = || broker.log_lines()[from..].iter().any(|line| line.contains("the store failed"));
                while Instant::now() < deadline && !is_told() {
                    std::thread::park_timeout(Duration::from_millis(5));
                }
                disk.heal();
                wanted = count.load(Ordering::Relaxed) + enough;
                until(wanted);
            }
            // Before anything fails: they work until the broker is gone.
            broker.kill9();
        });
        let count = count.load(Ordering::Relaxed);
        assert!(count >= wanted, "{count} acknowledgements within {PATIENCE:?}, not {wanted}");
    }

    fn restart(&mut self) {
        // Some power cuts hit what the start after a kill has made.
        if let Some(disk) = self.disk.as_mut().filter(|_| self.random.below(4) > 0) {
            disk.cut(&mut self.random);
        }
        self.broker.restart();
    }

    fn check(&mut self, round: u64, is_last: bool) {
        let published: Vec<u64> = self.publishers.iter().map(|publisher| publisher.next).collect();
        let check = Check { broker: &self.broker, round, published: &published, is_last };
        check.mark("load/marker");
        self.sinks.iter_mut().for_each(|sink| sink.check(&check));
        self.others.iter_mut().for_each(|other| other.check(&check));
    }
}
