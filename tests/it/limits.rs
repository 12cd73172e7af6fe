//! Every limit reached: what the client is told in each version, what `pinnace status` counts, that nobody else notices, and that the
//! service recovers.

use std::time::{Duration, Instant};

use crate::support::{
    Broker, Client, Connect, Lost, Packet, Setup, Value, Will,
    client::publish_of,
    eventually,
    wire::{self, Publish, property},
};

const QUOTA_EXCEEDED: u8 = 0x97;
const LEVELS: [u8; 3] = [3, 4, 5];

/// A number of the status, by its path.
fn number(broker: &Broker, path: &str) -> u64 {
    let status = broker.status();
    let found = path.split('.').try_fold(&status, |status, key| status.get(key));
    found.and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("no number at {path:?} in {status}"))
}

fn limited(broker: &Broker, limit: &str) -> u64 {
    number(broker, &format!("limited.{limit}"))
}

fn until(broker: &Broker, path: &str, mut wanted: impl FnMut(u64) -> bool) {
    eventually(path, || wanted(number(broker, path)).then_some(()));
}

/// Whether a new connection is closed at once.
fn is_turned_away(broker: &Broker) -> bool {
    match Client::try_tcp(broker.address()) {
        Ok(mut client) => client.try_login(&Connect::v4("late")).is_err(),
        Err(_) => true,
    }
}

/// Case D19: excess is refused and counted, a reload at the limit changes nothing, and the service recovers.
#[test]
fn connections() {
    for (option, counter, held) in [
        ("max_connections = 3", "connections", 3),
        ("max_connections_per_address = 3", "connections_of_address", 3),
        ("max_new_connections_per_sec = 3", "connection_rate", 3),
        ("max_new_connections_per_sec_per_address = 3", "connection_rate", 3),
    ] {
        let broker = Setup::new().config(&format!("[network]\n{option}\n")).start();
        let mut clients: Vec<_> = (0..held).map(|n| broker.v5(&format!("held{n}"))).collect();
        for _ in 0..20 {
            assert!(is_turned_away(&broker), "{option}");
        }
        assert_eq!(limited(&broker, counter), 20, "{option}");
        assert_eq!(number(&broker, "metrics.connections_refused"), 20);
        broker.wait_log(option, |line| line.contains("connection refused: ") && line.contains("left_out"));
        let lines = broker.log_lines().iter().filter(|line| line.contains("connection refused: ")).count();
        assert!((1..=4).contains(&lines), "{lines} lines for 20 connections within a second or two");
        clients.iter_mut().for_each(Client::ping);
        broker.reload();
        assert!(number(&broker, "metrics.connections_open") <= held as u64);
        clients.into_iter().for_each(Client::disconnect);
        until(&broker, "metrics.connections_open", |open| open == 0);
        let begun = Instant::now();
        while is_turned_away(&broker) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{option}: does not recover");
        }
    }
}

/// Who connects and sends nothing, or half a CONNECT, is closed in time, and counted.
#[test]
fn connect_timeout() {
    let broker = Setup::new().config("[session]\nconnect_timeout_secs = 1\n").start();
    let mut silent = broker.tcp();
    let mut half = broker.tcp();
    half.send(&Connect::v5("half").encode()[..5]);
    let mut served = broker.v5("served");
    assert_eq!((silent.closed(), half.closed()), (None, None));
    until(&broker, "limited.connect_timeout", |count| count == 2);
    served.ping();
}

/// [MQTT-3.2.2-21], [MQTT-3.2.2-22]: a longer Keep Alive is replaced, and counted.
#[test]
fn keep_alive_maximum() {
    let broker = Setup::new().config("[session]\nmax_keep_alive_secs = 60\n").start();
    let longer = broker.connect(&Connect::v5("longer").keep_alive(61));
    assert_eq!(longer.connack_property(property::SERVER_KEEP_ALIVE), Some(&Value::Two(60)));
    let equal = broker.connect(&Connect::v5("equal").keep_alive(60));
    assert_eq!(equal.connack_property(property::SERVER_KEEP_ALIVE), None);
    drop(broker.connect(&Connect::v4("none").keep_alive(0)));
    assert_eq!(limited(&broker, "keep_alive"), 2);
}

/// One session more than there may be is refused (0x97; MQTT 3: code 3). One that is there can be taken up, and one that ends makes room.
#[test]
fn sessions() {
    let broker = Setup::new().config("[broker]\nmax_sessions = 2\n").start();
    broker.connect(&Connect::v5("kept").expiry(3600)).disconnect();
    let mut held = broker.v4("held");
    for (level, code) in [(3, 3), (4, 3), (5, QUOTA_EXCEEDED)] {
        assert_eq!(broker.refused(&Connect::new(level, "third")), code);
    }
    assert_eq!(limited(&broker, "sessions"), 3);
    broker.wait_log("the limit by its name", |line| line.contains("broker.max_sessions"));
    let kept = broker.connect(&Connect::v5("kept").expiry(3600).clean(false));
    assert!(kept.session_present());
    kept.disconnect();
    held.ping();
    held.disconnect();
    until(&broker, "metrics.sessions", |sessions| sessions == 1);
    broker.v5("third").ping();
}

/// A Will that is too large, or whose topic or User Properties exceed their limits, is refused with its CONNECT.
#[test]
fn wills() {
    let broker = Setup::new()
        .config(
            "[session]\nmax_will_bytes = 100\nmax_topic_bytes = 20\nmax_topic_levels = 3\nmax_user_properties = 2\n",
        )
        .start();
    let refused = |will: Will, level: u8| broker.refused(&Connect::new(level, "will").will(will));
    for level in LEVELS {
        let told = |code, in_v3| if level == 5 { code } else { in_v3 };
        assert_eq!(refused(Will::new("w", &"x".repeat(100)), level), told(QUOTA_EXCEEDED, 3));
        assert_eq!(refused(Will::new(&"w".repeat(21), "x"), level), told(0x90, 5));
        assert_eq!(refused(Will::new("a/b/c/d", "x").retained(), level), told(0x90, 5));
        broker.connect(&Connect::new(level, "will").will(Will::new("w", &"x".repeat(99)))).disconnect();
        broker.connect(&Connect::new(level, "will").will(Will::new("a/b/c/d", "x"))).disconnect();
    }
    assert_eq!((limited(&broker, "will_size"), limited(&broker, "topics")), (3, 6));
}

/// The client is told by DISCONNECT (v5), or only closed; counted; and the publisher beside it is served on.
#[track_caller]
fn ends(broker: &Broker, level: u8, bytes: &[u8], code: u8, counter: &str) {
    let before = limited(broker, counter);
    let mut client = broker.connect(&Connect::new(level, "greedy"));
    client.send(bytes);
    assert_eq!(client.closed(), (level == 5).then_some(code), "{counter} at level {level}");
    until(broker, &format!("limited.{counter}"), |count| count == before + 1);
}

/// Packet size, topic length, filters of one packet, and the packets that just fit.
#[test]
fn packets() {
    let broker = Setup::new()
        .config("[session]\nmax_packet_size_bytes = 2000\nmax_topic_bytes = 50\nmax_filters_per_packet = 5\n")
        .start();
    let mut beside = broker.v5("beside");
    beside.subscribe(&"t".repeat(50), 1);
    let filters: Vec<String> = (0..6).map(|n| format!("f{n}")).collect();
    let filters: Vec<(&str, u8)> = filters.iter().map(|filter| (filter.as_str(), 1)).collect();
    let names: Vec<&str> = filters.iter().map(|(name, _)| *name).collect();
    for level in LEVELS {
        let v5 = level == 5;
        ends(&broker, level, &wire::publish(v5, &publish_of("t", vec![0; 2000], 0)), 0x95, "packet_size");
        ends(&broker, level, &wire::publish(v5, &publish_of(&"t".repeat(51), "x", 0)), 0x90, "topics");
        ends(&broker, level, &wire::subscribe(v5, 1, &[], &filters), QUOTA_EXCEEDED, "filters_per_packet");
        ends(&broker, level, &wire::unsubscribe(v5, 1, &names), QUOTA_EXCEEDED, "filters_per_packet");
        let mut client = broker.connect(&Connect::new(level, "modest"));
        client.subscribe_all(&filters[..5]);
        client.unsubscribe(&names[..5]);
        client.publish(&"t".repeat(50), "fits", 1);
        assert_eq!(beside.text(), "fits");
        // MQTT 3.1 cannot say that a filter was refused.
        if level != 3 {
            let refused = if v5 { 0x8f } else { 0x80 };
            assert_eq!(client.subscribe_all(&[(&"f".repeat(51), 1), ("g", 1)]), [refused, 1]);
        }
    }
    assert!(broker.log_lines().iter().any(|line| line.contains("session.max_filters_per_packet")));
}

/// User Properties of one PUBLISH: their number and their bytes; nothing else of the properties is limited.
#[test]
fn user_properties() {
    let broker = Setup::new().config("[session]\nmax_user_properties = 3\nmax_user_property_bytes = 500\n").start();
    let with = |count: usize, length: usize| {
        let one = (property::USER_PROPERTY, Value::Pair("k".into(), "v".repeat(length)));
        Publish { properties: vec![one; count], id: 1, ..publish_of("t", "x", 1) }
    };
    ends(&broker, 5, &wire::publish(true, &with(4, 1)), QUOTA_EXCEEDED, "user_properties");
    ends(&broker, 5, &wire::publish(true, &with(1, 500)), QUOTA_EXCEEDED, "user_properties");
    let mut client = broker.v5("modest");
    client.subscribe("t", 0);
    client.publish_as(&with(3, 150));
    assert_eq!(client.message().properties.len(), 3);
    let data = Publish {
        properties: vec![(property::CORRELATION_DATA, Value::Binary(vec![b'x'; 1000]))],
        ..publish_of("t", "x", 1)
    };
    client.publish_as(&data);
    assert_eq!(client.message().properties.len(), 1);
}

/// Case D26 [MQTT-3.3.4-7]: one QoS 2 PUBLISH more than the Receive Maximum, none of them released, ends the connection with 0x93 and is counted.
/// MQTT 3 has no such limit, but packet ids: all of them are taken, and memory stays bounded.
#[test]
fn in_flight() {
    let mut broker = Setup::new().config("[session]\nreceive_maximum = 3\n").start();
    let unreleased = |v5: bool, ids: std::ops::RangeInclusive<u16>| -> Vec<u8> {
        ids.flat_map(|id| wire::publish(v5, &Publish { id, ..publish_of("t", "x", 2) })).collect()
    };
    ends_with_answers(&broker, &unreleased(true, 1..=4));
    assert_eq!(limited(&broker, "in_flight"), 1);
    let before = broker.resident_bytes();
    let mut old = broker.v4("old");
    for first in (1..=60_000).step_by(1000) {
        old.send(&unreleased(false, first..=first + 999));
        for id in first..first + 1000 {
            old.acknowledged(wire::PUBREC, id);
        }
    }
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{} KiB for 60,000 packet ids", grown >> 10);
    old.ping();
    assert!(broker.is_running());
}

#[track_caller]
fn ends_with_answers(broker: &Broker, bytes: &[u8]) {
    let mut client = broker.v5("greedy");
    client.send(bytes);
    assert_eq!(client.closed_eventually(), Some(0x93));
}

/// Case D64: many filters from one client end at the limit, each answered; they go, and there is room again.
#[test]
fn subscriptions() {
    let broker = Setup::new().config("[session]\nmax_subscriptions = 1000\n").start();
    for (level, refused) in [(4, 0x80), (5, QUOTA_EXCEEDED)] {
        let mut client = broker.connect(&Connect::new(level, "greedy"));
        let filters: Vec<String> = (0..5000).map(|n| format!("f/{n}")).collect();
        for (n, chunk) in filters.chunks(500).enumerate() {
            let chunk: Vec<(&str, u8)> = chunk.iter().map(|filter| (filter.as_str(), 1)).collect();
            let codes = client.subscribe_all(&chunk);
            assert_eq!(codes, vec![if n < 2 { 1 } else { refused }; 500]);
        }
        assert_eq!(client.subscribe_all(&[("f/1", 0)]), [0], "one that is there may change");
        until(&broker, "metrics.subscriptions", |count| count == 1000);
        for chunk in filters.chunks(500) {
            client.unsubscribe(&chunk.iter().map(String::as_str).collect::<Vec<_>>());
        }
        until(&broker, "metrics.subscriptions", |count| count == 0);
        assert_eq!(client.subscribe_all(&[("g", 2)]), [2]);
    }
    assert_eq!(limited(&broker, "subscriptions"), 8000);
    let lines = broker.log_lines().iter().filter(|line| line.contains("max_subscriptions")).count();
    assert!((1..100).contains(&lines), "{lines} lines");
}

/// Case D78: the broker's maximum of topic aliases binds, and long topics under them stay within the limit of topics.
#[test]
fn topic_aliases() {
    let broker = Setup::new().config("[session]\ntopic_alias_maximum = 5\n").start();
    let mut client = broker.v5("greedy");
    let topic = "t".repeat(60_000);
    for alias in 1..=5_u16 {
        let properties = vec![(property::TOPIC_ALIAS, Value::Two(alias))];
        client.publish_as(&Publish { properties, ..publish_of(&topic, "x", 1) });
    }
    client.send_publish(&Publish {
        properties: vec![(property::TOPIC_ALIAS, Value::Two(6))],
        ..publish_of(&topic, "x", 0)
    });
    assert_eq!(client.closed(), Some(0x94));
    broker.v4("other").ping();
}

/// Retained messages: as many and as large as are allowed. v5 is told 0x97, and its packet id is free again (case D33) [MQTT-4.3.3-9];
/// else the message is delivered, but not retained, and what it would have replaced is gone.
#[test]
fn retained_messages() {
    let broker = Setup::new().config("[broker]\nmax_retained_messages = 3\nmax_retained_bytes = 1500\n").start();
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("#", 1);
    let retained =
        |topic: &str, size: usize, qos: u8| Publish { retain: true, ..publish_of(topic, vec![b'x'; size], qos) };
    let mut v5 = broker.v5("v5");
    for topic in ["a", "b", "c"] {
        assert_eq!(v5.publish_code(&retained(topic, 1, 1)), 0);
        watcher.message();
    }
    for qos in [1, 2] {
        let refused = Publish { id: 77, ..retained("d", 1, qos) };
        assert_eq!(v5.publish_code(&refused), QUOTA_EXCEEDED);
        watcher.nothing();
        assert_eq!(v5.publish_code(&Publish { id: 77, ..publish_of("plain", "x", qos) }), 0, "the packet id is free");
        assert_eq!(watcher.message().topic, "plain");
    }
    assert_eq!(v5.publish_code(&retained("a", 2, 1)), 0, "one may be replaced");
    watcher.message();
    assert_eq!(v5.publish_code(&retained("a", 1500, 1)), QUOTA_EXCEEDED, "by one of its size");
    assert_eq!(number(&broker, "dropped.retained_full"), 3);
    assert_eq!(number(&broker, "metrics.retained_messages"), 3);
    // Those who cannot be told: delivered, not retained.
    let mut v4 = broker.v4("v4");
    v4.publish_as(&retained("e", 1, 1));
    assert_eq!(watcher.message().topic, "e");
    v4.publish_as(&retained("b", 1500, 0));
    assert_eq!(watcher.message().topic, "b");
    until(&broker, "dropped.retained_full", |count| count == 5);
    until(&broker, "metrics.retained_messages", |count| count == 2);
    // There is room again.
    assert_eq!(v5.publish_code(&retained("d", 1, 2)), 0);
    assert_eq!(v5.publish_code(&retained("c", 0, 1)), 0);
    until(&broker, "metrics.retained_messages", |count| count == 2);
    assert!(number(&broker, "metrics.retained_bytes") < 1500);
    broker.wait_log("the limit by its name", |line| line.contains("max_retained_messages"));
}

/// Publishes that come too fast are read late, not lost: nothing of the client is read meanwhile and its Keep Alive is suspended
/// [MQTT-3.1.2-22], what it sent before is answered, what others send it is delivered.
#[test]
fn publish_rate() {
    for (option, size) in [("max_publish_messages_per_sec = 100", 10), ("max_publish_bytes_per_sec = 10000", 100 - 4)] {
        let broker = Setup::new().config(&format!("[session]\n{option}\n")).start();
        let mut subscriber = broker.v5("subscriber");
        subscriber.subscribe("fast", 0);
        let mut fast = broker.connect(&Connect::v4("fast").keep_alive(1));
        fast.subscribe("to/fast", 1);
        let begun = Instant::now();
        // 350 in all: 10 of them at once, the rest takes 3.4 s: longer than one and a half times the Keep Alive.
        let mut bytes = Vec::new();
        for n in 0..350_u32 {
            let mut payload = vec![b'x'; size];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            bytes.extend(wire::publish(false, &publish_of("fast", payload, 0)));
        }
        bytes.extend([0xc0, 0]);
        fast.send(&bytes);
        until(&broker, "limited.publish_rate", |count| count > 0);
        // Meanwhile it is served, and so is everybody else.
        let mut other = broker.v5("other");
        other.publish("to/fast", "while it waits", 1);
        assert_eq!(fast.text(), "while it waits");
        assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
        for n in 0..350_u32 {
            assert_eq!(subscriber.message().payload[..4], n.to_be_bytes(), "{option}");
        }
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(3200), "350 at 100 a second took {took:?}");
        assert!(took < Duration::from_millis(6000), "350 at 100 a second took {took:?}");
        // Its PINGREQ, behind all that, is answered: its Keep Alive did not run out.
        fast.wait_for("PINGRESP", |packet| *packet == Packet::PingResp);
        let paused = broker.log_lines().iter().filter(|line| line.contains("reading pauses")).count();
        assert_eq!(paused, 1, "one line a minute");
        fast.ping();
    }
}

/// What follows a large packet is not read with it: it waits its turn as everything else does.
#[test]
fn publish_rate_behind_a_large_packet() {
    let broker = Setup::new().config("[session]\nmax_publish_messages_per_sec = 50\n").start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("fast", 0);
    let mut fast = broker.v5("fast");
    let mut bytes = wire::publish(true, &publish_of("fast", vec![b'x'; 400 * 1024], 0));
    for _ in 0..100 {
        bytes.extend(wire::publish(true, &publish_of("fast", vec![b'x'; 100], 0)));
    }
    fast.send(&bytes);
    assert_eq!(subscriber.message().payload.len(), 400 * 1024);
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(subscriber.message().payload.len(), 100);
    }
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
}

/// Case D03: two devices with one client id take it from each other without end: few take-overs, few lines, little CPU, others are served.
#[test]
fn two_devices_with_one_id() {
    let broker = Broker::start();
    let from = broker.log_len();
    let until = Instant::now() + Duration::from_secs(4);
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("t", 1);
    let connected: usize = std::thread::scope(|scope| {
        let devices: Vec<_> = (0..2)
            .map(|_| {
                let broker = &broker;
                scope.spawn(move || {
                    let mut connected = 0;
                    while Instant::now() < until {
                        let mut client = broker.tcp();
                        connected += usize::from(client.try_login(&Connect::v4("same")).is_ok());
                        while Instant::now() < until
                            && matches!(client.try_receive(Duration::from_millis(50)), Err(Lost::TimedOut))
                        {
                        }
                    }
                    connected
                })
            })
            .collect();
        let mut publisher = broker.v5("publisher");
        while Instant::now() < until {
            publisher.publish("t", "served", 1);
            assert_eq!(subscriber.text(), "served");
        }
        devices.into_iter().map(|device| device.join().unwrap()).sum()
    });
    assert!((4..100).contains(&connected), "{connected} take-overs in 4 s");
    assert!(limited(&broker, "takeovers") > 0);
    let lines = broker.log_lines()[from..].iter().filter(|line| line.contains("same")).count();
    assert!(lines < 250, "{lines} lines in 4 s");
    // The last one keeps it.
    let mut last = broker.v4("same");
    last.ping();
}
