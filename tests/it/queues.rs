//! Queues that are full: what becomes of what comes, by each policy, with a log and without; who is told, what is counted and logged,
//! and that what is in flight is never dropped.

use serde_json::Value as Json;

use crate::support::{
    Broker, Client, Connect, Setup,
    client::publish_of,
    eventually,
    wire::{self, PUBACK, PUBCOMP, PUBREL, Publish},
};

const QUOTA_EXCEEDED: u8 = 0x97;

/// A number of the status, by its path.
fn number(broker: &Broker, path: &str) -> u64 {
    let status = broker.status();
    let found = path.split('.').try_fold(&status, |status, key| status.get(key));
    found.and_then(Json::as_u64).unwrap_or_else(|| panic!("no number at {path:?} in {status}"))
}

#[track_caller]
fn until(broker: &Broker, path: &str, expected: u64) {
    eventually(&format!("{path} is {expected}"), || (number(broker, path) == expected).then_some(()));
}

/// A session that is kept, with a subscription, whose client is away.
fn keep(broker: &Broker, client_id: &str, filter: &str, qos: u8) {
    let mut client = broker.connect(&Connect::v5(client_id).persistent());
    client.subscribe(filter, qos);
    client.disconnect();
}

fn back(broker: &Broker, client_id: &str) -> Client {
    broker.connect(&Connect::v5(client_id).persistent().clean(false))
}

/// Publishes the numbers, QoS 1, in one write of an MQTT 3 client.
fn burst(client: &mut Client, topic: &str, numbers: std::ops::Range<u32>) {
    let id = |n: u32| n as u16 + 1;
    let publish = |n: u32| wire::publish(false, &Publish { id: id(n), ..publish_of(topic, n.to_string(), 1) });
    client.send(&numbers.clone().flat_map(publish).collect::<Vec<_>>());
    for n in numbers {
        client.acknowledged(PUBACK, id(n));
    }
}

/// Publishes the numbers, QoS 1; the codes of their answers.
fn publish_numbers(client: &mut Client, topic: &str, numbers: std::ops::Range<u32>) -> Vec<u8> {
    numbers.map(|n| client.publish_code(&publish_of(topic, n.to_string(), 1))).collect()
}

fn with(options: &str) -> Broker {
    Setup::new().config(&format!("[session]\n{options}\n")).start()
}

/// Cases D33, D36: a publisher whose message nobody else is to have is told that the queue is full, in MQTT 5; its packet id is free
/// again [MQTT-4.3.3-9]. What was taken is delivered, nothing is dropped without a count and a line.
#[test]
fn refuse() {
    let broker = with("max_queued_messages = 10");
    keep(&broker, "away", "t/#", 2);
    let mut publisher = broker.v5("publisher");
    let codes = publish_numbers(&mut publisher, "t/1", 0..20);
    assert_eq!(codes, [[0; 10], [QUOTA_EXCEEDED; 10]].concat());
    for _ in 0..2 {
        let same = Publish { id: 7, ..publish_of("t/1", "x", 2) };
        assert_eq!(publisher.publish_code(&same), QUOTA_EXCEEDED, "the packet id is free, and the queue still full");
    }
    assert_eq!(publisher.publish_code(&Publish { id: 7, ..publish_of("nobody", "x", 2) }), 0x10, "a new exchange");
    // MQTT 3 has no word for it.
    let mut old = broker.v4("old");
    old.publish("t/1", "x", 1);
    old.publish("t/1", "x", 2);
    until(&broker, "dropped.queue_full", 14);
    // Where somebody else has it, it is taken.
    let mut other = broker.v4("other");
    other.subscribe("t/2", 1);
    assert_eq!(publisher.publish_code(&publish_of("t/2", "both", 1)), 0);
    assert_eq!(other.text(), "both");
    until(&broker, "dropped.queue_full", 15);
    broker.wait_log("the session by its name", |line| line.contains("messages were dropped") && line.contains("away"));
    let most = &broker.status()["drops_by_session"][0];
    assert_eq!((most["client"].as_str(), most["drops"]["dropped_queue_full"].as_u64()), (Some("away"), Some(15)));
    let mut away = back(&broker, "away");
    for n in 0..10 {
        assert_eq!(away.text(), n.to_string());
    }
    away.nothing();
    assert_eq!(publish_numbers(&mut publisher, "t/1", 0..1), [0], "there is room again");
    assert_eq!(away.text(), "0");
    let lines = broker.log_lines().iter().filter(|line| line.contains("messages were dropped")).count();
    assert_eq!(lines, 1, "one a minute");
}

/// A session without a log refuses, too: its client is connected and does not acknowledge.
#[test]
fn refuse_without_a_log() {
    for qos in [1, 2] {
        let broker = with("max_queued_messages = 10");
        let mut slow = broker.connect(&Connect::v5("slow").receive_maximum(1));
        slow.subscribe("t", qos);
        let mut publisher = broker.v5("publisher");
        let codes: Vec<u8> = (0..30).map(|n| publisher.publish_code(&publish_of("t", [n], qos))).collect();
        let taken = codes.iter().take_while(|code| **code == 0).count();
        assert!(
            (10..=12).contains(&taken),
            "what is in flight, what its connection has in hand, and the rest: {taken}"
        );
        assert!(codes[taken..].iter().all(|code| *code == QUOTA_EXCEEDED), "{codes:?}");
        until(&broker, "dropped.queue_full", 30 - taken as u64);
        for n in 0..taken {
            assert_eq!(slow.message().payload, [n as u8]);
        }
        slow.nothing();
    }
}

/// The newest is dropped, and no publisher is told.
#[test]
fn drop_newest() {
    let broker = with("max_queued_messages = 10\nqueue_full = \"drop-newest\"");
    keep(&broker, "away", "t", 1);
    let mut publisher = broker.v5("publisher");
    assert_eq!(publish_numbers(&mut publisher, "t", 0..20), [0; 20]);
    until(&broker, "dropped.queue_full", 10);
    let mut away = back(&broker, "away");
    let got: Vec<u32> = (0..10).map(|_| away.text().parse().unwrap()).collect();
    assert_eq!(got, (0..10).collect::<Vec<_>>());
    away.nothing();
}

/// The oldest is dropped for a client that is away, however fast they come; all are counted.
#[test]
fn drop_oldest_of_who_is_away() {
    let broker = with("max_queued_messages = 10\nqueue_full = \"drop-oldest\"");
    keep(&broker, "away", "t", 1);
    let mut publisher = broker.v4("publisher");
    let mut bytes = Vec::new();
    for n in 0..1000_u32 {
        bytes.extend(wire::publish(false, &Publish { id: n as u16 + 1, ..publish_of("t", n.to_string(), 1) }));
    }
    publisher.send(&bytes);
    for n in 0..1000 {
        publisher.acknowledged(PUBACK, n + 1);
    }
    until(&broker, "dropped.queue_full", 990);
    let mut away = back(&broker, "away");
    let got: Vec<u32> = (0..10).map(|_| away.text().parse().unwrap()).collect();
    assert_eq!(got, (990..1000).collect::<Vec<_>>());
    away.nothing();
    broker.wait_log("the session by its name", |line| line.contains("messages were dropped") && line.contains("away"));
}

/// The oldest that waits is dropped for a client that is there and does not acknowledge; what is in flight to it stays. Many more than it may
/// have come meanwhile, so that its mailbox falls behind its log.
#[test]
fn drop_oldest_of_who_is_slow() {
    let broker = with("max_queued_messages = 10\nqueue_full = \"drop-oldest\"");
    let mut slow = broker.connect(&Connect::v5("slow").persistent().receive_maximum(2));
    slow.subscribe("t", 2);
    let mut publisher = broker.v5("publisher");
    for round in 0..3 {
        let total: u32 = if round == 2 { 6000 } else { 50 };
        let before = number(&broker, "dropped.queue_full");
        let first = [0, 1].map(|n| {
            publisher.publish("t", n.to_string(), 1 + (round % 2) as u8);
            slow.delivery()
        });
        for n in 2..total {
            publisher.publish("t", n.to_string(), 1 + (round % 2) as u8);
        }
        until(&broker, "dropped.queue_full", before + u64::from(total) - 10);
        for (n, publish) in first.iter().enumerate() {
            assert_eq!(publish.payload, n.to_string().as_bytes());
            if publish.qos == 1 {
                slow.send(&wire::ack(PUBACK, publish.id));
            } else {
                slow.send(&wire::ack(wire::PUBREC, publish.id));
                slow.acknowledged(wire::PUBREL, publish.id);
                slow.send(&wire::ack(wire::PUBCOMP, publish.id));
            }
        }
        let got: Vec<u32> = (0..8).map(|_| slow.text().parse().unwrap()).collect();
        assert_eq!(got, (total - 8..total).collect::<Vec<_>>(), "round {round}");
        slow.nothing();
    }
}

/// The same for a session without a log: what its connection has in hand is sent, the newest of the rest follow.
#[test]
fn drop_oldest_without_a_log() {
    let broker = with("max_queued_messages = 10\nqueue_full = \"drop-oldest\"");
    let mut slow = broker.connect(&Connect::v5("slow").receive_maximum(2));
    slow.subscribe("t", 1);
    let mut publisher = broker.v5("publisher");
    assert_eq!(publish_numbers(&mut publisher, "t", 0..100), [0; 100]);
    let dropped = number(&broker, "dropped.queue_full");
    let got: Vec<u32> = (0..100 - dropped).map(|_| slow.text().parse().unwrap()).collect();
    slow.nothing();
    assert!((10..=14).contains(&got.len()), "{got:?}");
    assert_eq!(got[..2], [0, 1], "what was in flight");
    assert_eq!(got[got.len() - 5..], [95, 96, 97, 98, 99]);
    assert!(got.is_sorted());
}

/// Where all is dropped that a connection has in hand and did not send, what it sent does not come back: nothing is lost, nothing doubled.
#[test]
fn drop_oldest_of_all_that_is_in_hand() {
    let broker = with("max_queued_messages = 10\nqueue_full = \"drop-oldest\"");
    let mut slow = broker.connect(&Connect::v5("slow").persistent().receive_maximum(5));
    slow.subscribe("t", 1);
    let mut publisher = broker.v4("publisher");
    burst(&mut publisher, "t", 0..50);
    let in_flight: Vec<Publish> = (0..5).map(|_| slow.delivery()).collect();
    for round in 1..4 {
        burst(&mut publisher, "t", round * 50..(round + 1) * 50);
        until(&broker, "dropped.queue_full", u64::from(round + 1) * 50 - 10);
    }
    for publish in in_flight {
        slow.send(&wire::ack(PUBACK, publish.id));
    }
    let got: Vec<u32> = (0..5).map(|_| slow.text().parse().unwrap()).collect();
    assert_eq!(got, (195..200).collect::<Vec<_>>());
    slow.nothing();
}

/// [MQTT-4.4.0-1]: what an earlier connection had in flight is sent again, and not dropped, although the client's window is smaller now and
/// what comes meanwhile is too much.
#[test]
fn drop_oldest_spares_what_an_earlier_connection_sent() {
    let broker = with("max_queued_messages = 10\nqueue_full = \"drop-oldest\"");
    let mut slow = broker.connect(&Connect::v5("slow").persistent().receive_maximum(5));
    slow.subscribe("t", 1);
    let mut publisher = broker.v4("publisher");
    burst(&mut publisher, "t", 0..5);
    let ids: Vec<u16> = (0..5).map(|_| slow.delivery().id).collect();
    slow.cut();
    let mut slow = broker.connect(&Connect::v5("slow").persistent().clean(false).receive_maximum(1));
    let first = slow.delivery();
    burst(&mut publisher, "t", 5..55);
    slow.send(&wire::ack(PUBACK, first.id));
    let again: Vec<Publish> = std::iter::once(first).chain((1..5).map(|_| slow.message())).collect();
    for (n, publish) in again.iter().enumerate() {
        let expected = (n.to_string().into_bytes(), ids[n], true);
        assert_eq!((publish.payload.clone(), publish.id, publish.dup), expected);
    }
    let mut got = vec![slow.text()];
    got.extend(slow.texts_until("54"));
    slow.nothing();
    assert!(got.len() < 10, "{got:?}");
    until(&broker, "dropped.queue_full", 55 - (5 + got.len() as u64 + 1));
}

/// A queue with a small limit drops its oldest, too, for a client that takes what there is and does not acknowledge.
#[test]
fn drop_oldest_of_a_small_queue() {
    for limit in ["max_queued_messages = 10", "max_queued_bytes = 2000"] {
        let broker = with(&format!("{limit}\nqueue_full = \"drop-oldest\""));
        let mut slow = broker.connect(&Connect::v5("slow").receive_maximum(1));
        slow.subscribe("t", 1);
        let mut publisher = broker.v4("publisher");
        burst(&mut publisher, "t", 0..50);
        let first = slow.delivery();
        burst(&mut publisher, "t", 50..100);
        slow.send(&wire::ack(PUBACK, first.id));
        let got = slow.texts_until("99");
        slow.nothing();
        until(&broker, "dropped.queue_full", 98 - got.len() as u64);
    }
}

/// Nothing is dropped for a message that is larger than the queue may be.
#[test]
fn drop_oldest_not_in_vain() {
    for (online, filter) in [(true, "t"), (false, "t"), (true, "$share/g/t"), (false, "$share/g/t")] {
        let broker = with("max_queued_bytes = 5000\nqueue_full = \"drop-oldest\"");
        let connect = Connect::v5("slow").receive_maximum(1);
        let connect = if online { connect } else { connect.persistent() };
        let mut slow = broker.connect(&connect);
        slow.subscribe(filter, 1);
        let mut slow = if online {
            Some(slow)
        } else {
            slow.disconnect();
            None
        };
        let mut publisher = broker.v5("publisher");
        for n in 0..3 {
            publisher.publish("t", [vec![b'x'; 1000], vec![n]].concat(), 1);
        }
        let first = slow.as_mut().map(Client::delivery);
        publisher.publish("t", vec![b'x'; 6000], 1);
        until(&broker, "dropped.queue_full", 1);
        let mut slow = slow.unwrap_or_else(|| broker.connect(&connect.clean(false)));
        if let Some(first) = &first {
            slow.send(&wire::ack(PUBACK, first.id));
        }
        for n in u8::from(first.is_some())..3 {
            assert_eq!(slow.message().payload.last(), Some(&n), "online: {online}, {filter}");
        }
        slow.nothing();
    }
}

/// One that is never acknowledged, and all behind it dropped but for the last: a group takes what comes all the same.
#[test]
fn drop_oldest_of_a_group_behind_one_that_is_stuck() {
    let broker = with("max_queued_messages = 2\nqueue_full = \"drop-oldest\"");
    let mut slow = broker.connect(&Connect::v5("slow").persistent().receive_maximum(1));
    slow.subscribe("$share/g/t", 1);
    let mut publisher = broker.v4("publisher");
    burst(&mut publisher, "t", 0..1);
    let first = slow.delivery();
    burst(&mut publisher, "t", 1..50);
    until(&broker, "dropped.queue_full", 48);
    slow.send(&wire::ack(PUBACK, first.id));
    assert_eq!(slow.text(), "49");
    slow.nothing();
}

/// The client that is too slow is disconnected, and told why; what is kept for it then drops the newest.
#[test]
fn disconnect() {
    for level in [4, 5] {
        let broker = with("max_queued_messages = 10\nqueue_full = \"disconnect\"\nmax_inflight_messages = 1");
        let mut slow = broker.connect(&Connect::new(level, "slow").persistent());
        slow.subscribe("t", 1);
        let mut publisher = broker.v5("publisher");
        assert_eq!(publish_numbers(&mut publisher, "t", 0..30), [0; 30]);
        assert_eq!(slow.closed_eventually(), (level == 5).then_some(QUOTA_EXCEEDED));
        broker.wait_log("why", |line| line.contains("disconnected") && line.contains("session.queue_full"));
        until(&broker, "dropped.queue_full", 20);
        let mut slow = broker.connect(&Connect::new(level, "slow").persistent().clean(false));
        assert!(slow.session_present());
        let got: Vec<u32> = (0..10).map(|_| slow.text().parse().unwrap()).collect();
        assert_eq!(got, (0..10).collect::<Vec<_>>());
        slow.nothing();
    }
}

/// Bytes of a queue count, stored or not, and are counted down again as its messages are settled; over a restart, too.
#[test]
fn bytes() {
    let mut broker = with("max_queued_bytes = 12000");
    keep(&broker, "away", "t", 2);
    let large = publish_of("t", vec![b'x'; 1000], 1);
    for round in 0..3 {
        let mut publisher = broker.v5("publisher");
        let codes: Vec<u8> = (0..20).map(|_| publisher.publish_code(&large)).collect();
        assert_eq!(codes, [[0; 10].as_slice(), &[QUOTA_EXCEEDED; 10]].concat(), "round {round}");
        if cfg!(feature = "rocksdb") {
            if round == 1 {
                broker.kill9();
            } else {
                broker.terminate();
            }
            broker.restart();
            let mut publisher = broker.v5("publisher");
            assert_eq!(publisher.publish_code(&large), QUOTA_EXCEEDED, "round {round}: it is known after the restart");
        }
        let mut away = back(&broker, "away");
        for _ in 0..10 {
            assert_eq!(away.message().payload.len(), 1000);
        }
        away.nothing();
        away.disconnect();
        until(&broker, "metrics.queued_bytes", 0);
    }
}

/// Case D92: all queues together are bounded. Who is connected and takes its messages is served on; a queue that empties makes room.
#[test]
fn all_queues_together() {
    let broker = Setup::new().config("[broker]\nmax_total_queued_bytes = 100000\n").start();
    let mut publisher = broker.v5("publisher");
    for n in 0..10 {
        keep(&broker, &format!("away{n}"), &format!("t/{n}"), 1);
    }
    let mut refused = 0;
    for n in 0..10 {
        for _ in 0..20 {
            let code = publisher.publish_code(&publish_of(&format!("t/{n}"), vec![b'x'; 1000], 1));
            refused += u64::from(code == QUOTA_EXCEEDED);
        }
    }
    assert!((105..=115).contains(&refused), "{refused}");
    assert_eq!(number(&broker, "dropped.all_queues_full"), refused);
    let queued = number(&broker, "metrics.queued_bytes");
    assert!((95_000..=100_000).contains(&queued), "{queued}");
    let mut there = broker.v5("there");
    there.subscribe("t/there", 1);
    for _ in 0..50 {
        assert_eq!(publisher.publish_code(&publish_of("t/there", vec![b'x'; 1000], 1)), 0);
        there.message();
    }
    back(&broker, "away9").disconnect();
    let mut away = back(&broker, "away0");
    for _ in 0..20 {
        away.message();
    }
    away.ping();
    away.disconnect();
    eventually("room", || (publisher.publish_code(&publish_of("t/9", vec![b'x'; 1000], 1)) == 0).then_some(()));
    // Sessions that end give back what they held.
    for n in 0..10 {
        drop(broker.connect(&Connect::v5(&format!("away{n}"))));
    }
    until(&broker, "metrics.queued_bytes", 0);
}

/// Case D41: QoS 0 messages for a client that is away are queued where that is configured, and not else; each comes once.
#[test]
fn qos_0() {
    for on in [false, true] {
        let broker = with(&format!("queue_qos0 = {on}"));
        let mut publisher = broker.v4("publisher");
        for (granted, expected) in [(0, [].as_slice()), (1, &["one"])] {
            let (client_id, topic) = (format!("granted {granted}"), format!("t/{granted}"));
            keep(&broker, &client_id, &topic, granted);
            publisher.publish(&topic, "zero", 0);
            publisher.publish(&topic, "one", 1);
            let mut away = back(&broker, &client_id);
            for expected in if on { ["zero", "one"].as_slice() } else { expected } {
                assert_eq!(away.text(), *expected);
            }
            away.nothing();
            publisher.publish(&topic, "now", 0);
            assert_eq!(away.text(), "now");
            away.ping();
            away.disconnect();
            let mut again = back(&broker, &client_id);
            again.nothing();
            again.disconnect();
        }
        until(&broker, "metrics.queued_bytes", 0);
    }
}

/// A shared group has a queue of its own, with the same limits; its sole publisher is told.
#[test]
fn shared_groups() {
    for (policy, codes, expected) in [
        ("refuse", [[0; 10], [QUOTA_EXCEEDED; 10]].concat(), 0..10),
        ("drop-newest", vec![0; 20], 0..10),
        ("drop-oldest", vec![0; 20], 10..20),
    ] {
        let broker = with(&format!("max_queued_messages = 10\nqueue_full = \"{policy}\""));
        keep(&broker, "away", "$share/g/t", 1);
        let mut publisher = broker.v5("publisher");
        assert_eq!(publish_numbers(&mut publisher, "t", 0..20), codes, "{policy}");
        until(&broker, "dropped.queue_full", 10);
        let mut away = back(&broker, "away");
        let got: Vec<u32> = (0..10).map(|_| away.text().parse().unwrap()).collect();
        assert_eq!(got, expected.collect::<Vec<_>>(), "{policy}");
        away.nothing();
        away.disconnect();
        let many = publish_numbers(&mut publisher, "t", 0..5000);
        assert_eq!(many.iter().filter(|code| **code == 0).count(), if policy == "refuse" { 10 } else { 5000 });
        until(&broker, "dropped.queue_full", 10 + 4990);
    }
}

/// A shared group whose members are away drops its oldest however fast they come, also where more waits than it holds in memory.
#[test]
fn drop_oldest_of_a_long_shared_queue() {
    let broker = with("max_queued_messages = 3000\nqueue_full = \"drop-oldest\"");
    keep(&broker, "away", "$share/g/t", 1);
    let mut publisher = broker.v4("publisher");
    for from in (0..20_000).step_by(5000) {
        burst(&mut publisher, "t", from..from + 5000);
    }
    until(&broker, "dropped.queue_full", 17_000);
    let mut away = back(&broker, "away");
    let got: Vec<u32> = (0..3000).map(|_| away.text().parse().unwrap()).collect();
    assert_eq!(got, (17_000..20_000).collect::<Vec<_>>());
    away.nothing();
}

/// QoS 2 is handed over by its commit: what a publisher was told was taken has its place by then, and the rest is refused before.
#[test]
fn what_is_promised_is_kept() {
    let broker = with("max_queued_messages = 10");
    let mut there = broker.v5("there");
    there.subscribe("t", 2);
    // What the store remembers of it goes by a commit.
    let mut publisher = broker.connect(&Connect::v5("publisher").persistent());
    let publish = |n: u16| wire::publish(true, &Publish { id: n, ..publish_of("t", n.to_string(), 2) });
    publisher.send(&(1..=100).flat_map(publish).collect::<Vec<u8>>());
    let codes: Vec<u8> = (1..=100).map(|n| publisher.acknowledged(wire::PUBREC, n)).collect();
    let taken: Vec<usize> = (0..100).filter(|n| codes[*n] == 0).collect();
    assert!(codes.iter().all(|code| [0, QUOTA_EXCEEDED].contains(code)), "{codes:?}");
    until(&broker, "dropped.queue_full", 100 - taken.len() as u64);
    for n in taken {
        assert_eq!(there.text(), (n + 1).to_string());
        publisher.send(&wire::ack(PUBREL, n as u16 + 1));
        assert_eq!(publisher.acknowledged(PUBCOMP, n as u16 + 1), 0);
    }
    there.nothing();
    // The places are given back.
    for n in 0..30 {
        assert_eq!(publisher.publish_code(&publish_of("t", n.to_string(), 2)), 0);
        assert_eq!(there.text(), n.to_string());
    }
}

/// What is retained waits for room in the queue, in memory or in the log: all of it comes, however little may wait.
#[test]
fn what_is_retained_is_not_dropped_for_want_of_room() {
    for (level, qos, persistent) in [(4, 0, false), (5, 1, false), (5, 0, true), (5, 2, true), (4, 1, true)] {
        for limits in ["max_queued_messages = 10", "max_queued_bytes = 300"] {
            let broker = with(limits);
            let mut publisher = broker.v5("publisher");
            for n in 0..300 {
                publisher.publish_retained(&format!("r/{n:03}"), "x", 1);
            }
            let connect = Connect::new(level, "short");
            let mut short = broker.connect(&if persistent { connect.persistent() } else { connect });
            short.subscribe("r/#", qos);
            for n in 0..300 {
                assert_eq!(short.message().topic, format!("r/{n:03}"));
            }
            short.nothing();
            assert_eq!(number(&broker, "dropped.queue_full"), 0);
        }
    }
}
