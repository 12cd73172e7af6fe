//! What is retained on its way to new subscriptions: as there is room, as it is retained when it is sent, and through any crash.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use crate::support::{
    Broker, Connect, Packet, Random, Setup,
    client::{Client, publish_of},
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish},
};

fn topic(n: usize) -> String {
    format!("r/{}/{n:05}", n % 7)
}

/// Retains so many messages, at QoS 1 and 2, that say 0.
fn fill(broker: &Broker, count: usize) {
    let mut publisher = broker.v5("publisher");
    for from in (0..count).step_by(100) {
        let ids = 1..=100.min(count - from) as u16;
        let packet = |id: &u16| {
            let n = from + usize::from(*id) - 1;
            wire::publish(true, &Publish { retain: true, id: *id, ..publish_of(&topic(n), "0", 1 + (n % 2) as u8) })
        };
        publisher.send(&ids.clone().flat_map(|id| packet(&id)).collect::<Vec<u8>>());
        for id in ids {
            if (from + usize::from(id) - 1) % 2 == 1 {
                assert!(publisher.acknowledged(PUBREC, id) < 0x80);
                publisher.send(&wire::ack(PUBREL, id));
                assert_eq!(publisher.acknowledged(PUBCOMP, id), 0);
            } else {
                assert!(publisher.acknowledged(PUBACK, id) < 0x80);
            }
        }
    }
}

/// A client that remembers what came over all its connections, as QoS 2 asks it to.
struct Subscriber {
    client: Client,
    /// QoS 2 packet ids that were not released.
    held: HashSet<u16>,
    /// The last number by topic; one more where it was cleared since.
    came: HashMap<String, u32>,
}

impl Subscriber {
    fn new(client: Client) -> Self {
        Self { client, held: HashSet::new(), came: HashMap::new() }
    }

    /// Takes the next packet, and answers it. What comes is always newer than what came; `true` where it is the first of its topic.
    fn take(&mut self) -> bool {
        let publish = match self.client.receive() {
            Packet::Publish(publish) => publish,
            Packet::Ack { kind: PUBREL, id, .. } => {
                self.held.remove(&id);
                self.client.send(&wire::ack(PUBCOMP, id));
                return false;
            }
            other => panic!("{other:?}"),
        };
        let is_new = match publish.qos {
            2 => self.held.insert(publish.id),
            _ => !publish.dup || !self.came.contains_key(&publish.topic),
        };
        match publish.qos {
            0 => {}
            1 => self.client.send(&wire::ack(PUBACK, publish.id)),
            _ => self.client.send(&wire::ack(PUBREC, publish.id)),
        }
        if !is_new {
            return false;
        }
        let last = self.came.get(&publish.topic).copied();
        let text = String::from_utf8(publish.payload).unwrap();
        let number = if text.is_empty() { last.map_or(1, |last| last + 1) } else { text.parse().unwrap() };
        assert!(last.is_none_or(|last| number > last), "{number} after {last:?} on {}", publish.topic);
        self.came.insert(publish.topic, number);
        last.is_none()
    }
}

/// What a SUBACK has promised comes, whatever dies meanwhile, the client or the broker: at QoS 2 once, at QoS 1 again only as a duplicate.
#[cfg(feature = "rocksdb")]
#[test]
fn a_replay_goes_on_through_crashes() {
    const COUNT: usize = 3_000;
    let mut broker = Setup::new().config("[broker]\nretained_cache_bytes = 10000\n").start();
    let mut random = Random::seeded("a_replay_goes_on_through_crashes");
    fill(&broker, COUNT);
    let connect = Connect::v5("subscriber").persistent().receive_maximum(50);
    let mut subscriber = Subscriber::new(broker.connect(&connect));
    subscriber.client.subscribe("r/#", 2);
    let (mut ends_at, mut ends) = (0, 0);
    while subscriber.came.len() < COUNT || !subscriber.held.is_empty() {
        if subscriber.came.len() >= ends_at {
            ends_at += 1 + random.below(COUNT as u64 / 4) as usize;
            ends += 1;
            if random.below(3) > 0 {
                broker.kill9();
                broker.restart();
            }
            subscriber.client = broker.connect(&connect);
            assert!(subscriber.client.session_present());
        }
        subscriber.take();
    }
    assert!(ends > 3, "{ends}");
    // It is at its end, also after a start: only handshakes whose end was not stored go on.
    broker.kill9();
    broker.restart();
    let mut client = broker.connect(&connect);
    client.ping();
    while let Ok(packet) = client.try_receive(Duration::ZERO) {
        assert!(!matches!(&packet, Packet::Publish(publish) if !publish.dup), "{packet:?}");
    }
}

/// Each topic comes as it is when it is sent, once, never older than what came live, and not at all when it is cleared by then.
#[test]
fn a_replay_sends_what_is_retained_then() {
    const COUNT: usize = 1_500;
    let mut random = Random::seeded("a_replay_sends_what_is_retained_then");
    for (persistent, qos, cache) in [(false, 0, 0), (false, 1, 20_000), (false, 2, 1 << 24), (true, 0, 0), (true, 2, 0)]
    {
        let broker = Setup::new().config(&format!("[broker]\nretained_cache_bytes = {cache}\n")).start();
        fill(&broker, COUNT);
        let mut publisher = broker.v5("publisher");
        let connect = Connect::v5("subscriber").receive_maximum(5);
        let connect = if persistent { connect.persistent() } else { connect };
        let mut subscriber = Subscriber::new(broker.connect(&connect));
        subscriber.client.subscribe("r/#", qos);
        let mut expected: HashMap<String, u32> = (0..COUNT).map(|n| (topic(n), 0)).collect();
        for number in (2..).step_by(2).take(COUNT / 2) {
            subscriber.take();
            let topic = topic(random.below(COUNT as u64) as usize);
            publisher.publish_retained(&topic, number.to_string(), 1);
            let is_cleared = random.below(4) == 0;
            if is_cleared {
                publisher.publish_retained(&topic, "", 1);
            }
            expected.insert(topic, number + u32::from(is_cleared));
        }
        while subscriber.came != expected {
            subscriber.take();
        }
        if qos < 2 {
            subscriber.client.nothing();
        }
    }
}

/// Neither waits for the other: what comes live overtakes a long replay, and a replay goes on while much comes live.
#[test]
fn a_replay_and_what_comes_live_take_turns() {
    const COUNT: usize = 5_000;
    let broker = Setup::new().config("[broker]\nretained_cache_bytes = 0\n").start();
    fill(&broker, COUNT);
    for (persistent, qos) in [(false, 1), (true, 1)] {
        let connect = Connect::v5("subscriber").receive_maximum(10);
        let connect = if persistent { connect.persistent() } else { connect };
        let mut subscriber = Subscriber::new(broker.connect(&connect));
        subscriber.client.subscribe_all(&[("r/#", qos), ("live/#", qos)]);
        let mut publisher = broker.v5("publisher");
        for n in 0..1000 {
            publisher.publish(&format!("live/{n}"), "0", 1);
        }
        let (mut live, mut replayed) = (0, 0);
        while live < 1000 {
            if subscriber.take() {
                let all = subscriber.came.len();
                replayed = subscriber.came.keys().filter(|topic| topic.starts_with("r/")).count();
                live = all - replayed;
            }
        }
        assert!((100..COUNT).contains(&replayed), "{replayed} of {COUNT} came before 1000 live ones");
        while subscriber.came.len() < COUNT + 1000 {
            subscriber.take();
        }
        subscriber.client.nothing();
        subscriber.client.disconnect();
    }
}

/// Others are served while a client is sent all that is retained.
#[test]
fn a_replay_keeps_nobody_waiting() {
    const COUNT: usize = 10_000;
    let broker = Setup::new().config("[broker]\nretained_cache_bytes = 0\n").start();
    fill(&broker, COUNT);
    let (mut one, mut other) = (broker.v5("one"), broker.v5("other"));
    other.subscribe("pair", 0);
    let all = broker.v5("all");
    let replay = std::thread::spawn(move || {
        let mut all = Subscriber::new(all);
        all.client.subscribe("r/#", 1);
        while all.came.len() < COUNT {
            all.take();
        }
    });
    let (mut longest, mut rounds) = (Duration::ZERO, 0);
    while !replay.is_finished() {
        let sent = Instant::now();
        one.publish("pair", "x", 0);
        assert_eq!(other.text(), "x");
        longest = longest.max(sent.elapsed());
        rounds += 1;
    }
    replay.join().unwrap();
    assert!(rounds > 50 && longest < Duration::from_secs(1), "{rounds} messages, one took {longest:?}");
}

/// UNSUBSCRIBE ends a replay, and a new SUBSCRIBE begins it anew.
#[test]
fn a_replay_ends_with_its_subscription() {
    const COUNT: usize = 2_000;
    let broker = Broker::start();
    fill(&broker, COUNT);
    for persistent in [false, true] {
        let connect = Connect::v5("subscriber").receive_maximum(10);
        let mut client = broker.connect(&if persistent { connect.persistent() } else { connect });
        client.subscribe_all(&[("r/#", 1), ("end", 1)]);
        let first = client.message().topic;
        client.unsubscribe(&["r/#"]);
        // What a log holds, or was sent, comes to its end.
        broker.v5("publisher").publish("end", "", 1);
        let late = std::iter::repeat_with(|| client.message()).take_while(|message| message.topic != "end").count();
        assert!(late < 1000, "{late} after UNSUBACK");
        for retain_handling in [0u8, 1] {
            client.subscribe("r/#", 1 | retain_handling << 4);
            if retain_handling == 0 {
                assert_eq!(client.message().topic, first);
            }
        }
        let mut again = HashSet::new();
        while again.len() < COUNT - 1 {
            assert!(again.insert(client.message().topic), "once");
        }
        client.nothing();
        client.disconnect();
    }
}
