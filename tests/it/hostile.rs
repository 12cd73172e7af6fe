//! Clients that mean no good, or are broken: bounded memory and time, and nobody else notices.

use std::time::{Duration, Instant};

use crate::support::{
    Broker, Client, Connect, Lost, Packet, Random, Setup,
    client::publish_of,
    wire::{self, PUBACK, PUBREC, Publish},
};

const MEGABYTE: u64 = 1 << 20;

/// CONNECTs that announce much, or send much, before anything is known of their sender (D82).
#[test]
fn large_connects_do_not_exhaust_memory() {
    let mut broker = Broker::start();
    let before = broker.resident_bytes();
    let held: Vec<_> = (0..200)
        .map(|n| {
            let mut client = broker.tcp();
            let announced: &[u8] = if n % 2 == 0 { &[0x10, 0x80, 0xad, 0xe2, 0x04] } else { &[0x10, 0x80, 0x80, 0x7a] };
            let mut bytes = announced.to_vec();
            bytes.extend_from_slice(b"\x00\x04MQTT\x04\xc2\x00\x00");
            bytes.resize(1_000_000, b'x');
            // The broker may close at any point.
            let _ = client.socket().set_write_timeout(Some(Duration::from_millis(200)));
            let _ = client.try_send(&bytes);
            client
        })
        .collect();
    broker.v4("other").ping();
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MEGABYTE, "{} MiB for 200 unknown clients", grown / MEGABYTE);
    assert!(broker.is_running());
    drop(held);
}

/// Connections that say nothing cost no CPU time (D83).
#[test]
fn silent_connections_cost_nothing() {
    let broker = Broker::start();
    let _held: Vec<Client> = (0..50).map(|_| broker.tcp()).collect();
    let mut idle = broker.v4("idle");
    idle.ping();
    let before = broker.cpu();
    assert!(matches!(idle.try_receive(Duration::from_secs(3)), Err(Lost::TimedOut)));
    let used = broker.cpu() - before;
    assert!(used < Duration::from_millis(300), "{used:?} of CPU in 3 s of silence");
}

/// Random bytes from many connections, before and after CONNECT, neither grow memory nor stop the service (D84).
#[test]
fn noise_is_survived() {
    let mut random = Random::seeded("noise_is_survived");
    let broker = Broker::start();
    let mut other = broker.v5("other");
    other.subscribe("t", 1);
    let before = broker.resident_bytes();
    for n in 0..400u16 {
        let mut client =
            if n % 2 == 0 { broker.tcp() } else { broker.connect(&Connect::new(3 + (n % 3) as u8, "noise")) };
        let most = if random.below(4) == 0 { 20_000 } else { 60 };
        let count = 1 + random.below(most) as usize;
        let mut bytes = random.bytes(count);
        if n % 4 == 1 {
            // Begins like a packet, so that it gets further.
            bytes[0] = [0x30, 0x32, 0x82, 0xa2, 0x34, 0xe0, 0x62, 0xf0][random.below(8) as usize];
        }
        let _ = client.try_send(&bytes);
    }
    other.publish("t", "still here", 1);
    assert_eq!(other.text(), "still here");
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MEGABYTE, "{} MiB", grown / MEGABYTE);
    broker.until_status("clients_connected", |clients| clients == 1);
}

/// TLS to a plain port is closed fast, with a line in the log (D86).
#[test]
fn a_wrong_protocol_is_closed_fast() {
    let broker = Broker::start();
    for first in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let from = broker.log_len();
        let began = Instant::now();
        let mut client = broker.tcp();
        client.send(first);
        client.closed();
        assert!(began.elapsed() < Duration::from_secs(3));
        broker.wait_log_from(from, "a refused connection", |line| line.contains("connection refused"));
    }
}

/// Client ids, user names and topics with line breaks and escape codes forge no log lines, in neither format (D90).
#[test]
fn the_log_cannot_be_forged() {
    let ids = ["x\n2026 root logged in", "\u{1b}[2J\u{1b}[31mred", "\r\u{85}\u{2028}x"];
    for format in ["json", "human"] {
        let acl = "topic read nothing\n";
        let setup = Setup::new().log_format(format);
        let path = setup.file("acl", acl);
        let broker = setup.env("PINNACE__AUTH__ACL_FILE", path.to_str().unwrap()).start();
        for id in ids {
            let mut client = broker.tcp();
            // Control characters may be refused altogether [MQTT-1.5.4-2] says "should not".
            if let Ok(Packet::ConnAck { code: 0, .. }) = client.try_login(&Connect::v5(id)) {
                let topic = format!("t/{id}");
                client.publish_code(&publish_of(&topic, "x", 1));
                let _ = client.try_send(&wire::DISCONNECT);
            }
        }
        let mut last = broker.v4("last");
        last.ping();
        broker.wait_log("the last connection", |line| line.contains("last"));
        let status = broker.status().to_string();
        for line in broker.log_lines().iter().chain([&status]) {
            assert!(!line.starts_with("2026 root"), "a forged line: {line:?}");
            assert!(!line.contains('\u{1b}'), "an escape code: {line:?}");
            assert!(format != "json" || serde_json::from_str::<serde_json::Value>(line).is_ok(), "not JSON: {line:?}");
        }
    }
}

/// One SUBSCRIBE that names a filter thousands of times is sent what is retained once; one that names many filters, once for each of them, as the
/// client takes it: no more of it waits in memory or in the log than may.
#[test]
fn one_subscribe_does_not_multiply_what_is_retained() {
    let broker = Setup::new().config("[session]\nmax_queued_messages = 500\n").start();
    let mut publisher = broker.v4("publisher");
    (0..200).for_each(|n| publisher.publish_retained(&format!("r/{n}"), "x", 1));
    for (persistent, qos) in [(false, 0), (true, 1)] {
        let before = broker.status_number("queue_full");
        let connect = Connect::v4(&format!("greedy {persistent}"));
        let mut greedy = broker.connect(&if persistent { connect.persistent() } else { connect });
        greedy.subscribe_all(&vec![("r/#", qos); 1000]);
        (0..200).for_each(|_| drop(greedy.text()));
        assert_eq!(broker.status_number("queue_full"), before);
        greedy.nothing();
        let filters = ["#", "+/#", "r/+", "+/+", "r/#", "r/+/#"].map(|filter| (filter, qos));
        greedy.subscribe_all(&filters);
        (0..200 * filters.len()).for_each(|_| drop(greedy.text()));
        greedy.nothing();
        assert_eq!(broker.status_number("queue_full"), before);
    }
}

/// A consumer that acknowledges nothing while much is published: its queue keeps to its limit, memory too, and the drops are counted (D91).
#[test]
fn a_slow_consumer_is_bounded() {
    for persistent in [false, true] {
        let broker = Setup::new().config("[session]\nmax_queued_messages = 500\nmax_inflight_messages = 20\n").start();
        let connect = Connect::v4("slow");
        let mut slow = broker.connect(&if persistent { connect.persistent() } else { connect });
        slow.subscribe("t", 1);
        let mut publisher = broker.v4("publisher");
        let before = broker.resident_bytes();
        let count = 10_000u32;
        for from in (0..count).step_by(500) {
            let packets = (0..500).flat_map(|i| {
                let mut payload = (from + i).to_be_bytes().to_vec();
                payload.resize(4_000, b'x');
                wire::publish(false, &Publish { id: i as u16 + 1, ..publish_of("t", payload, 1) })
            });
            publisher.send(&packets.collect::<Vec<u8>>());
            (1..=500).for_each(|id| assert_eq!(publisher.acknowledged(PUBACK, id), 0));
        }
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 32 * MEGABYTE, "{} MiB for a queue of 500 messages of 4 kB", grown / MEGABYTE);
        broker.until_status("queue_full", |dropped| dropped > 0);
        let mut got = Vec::new();
        slow.ping();
        while let Ok(Packet::Publish(publish)) = slow.try_receive(Duration::from_secs(1)) {
            got.push(u32::from_be_bytes(publish.payload[..4].try_into().unwrap()));
            slow.send(&wire::ack(PUBACK, publish.id));
        }
        assert!(got.is_sorted(), "order");
        let dropped = broker.status_number("queue_full");
        assert_eq!(got.len() as u64 + dropped, u64::from(count), "what did not arrive was counted");
        assert!(
            (500..=600).contains(&got.len()),
            "{} messages of a limit of 500 and 20 in flight, with what the sockets hold",
            got.len()
        );
    }
}

/// Connections that drop in the middle of QoS 2 flows, while the store works (D95).
#[test]
fn dropping_in_the_middle_of_qos_2_is_survived() {
    let mut random = Random::seeded("dropping_in_the_middle_of_qos_2_is_survived");
    let mut broker = Broker::start();
    for n in 0..300u16 {
        let connect = Connect::new(4 + (n % 2) as u8, &format!("client-{}", random.below(5)));
        let mut client = broker.connect(&if random.below(3) > 0 { connect.persistent() } else { connect });
        client.send(&wire::subscribe(connect_is_v5(n), 1, &[], &[("t", 2)]));
        for id in 1..=random.below(6) as u16 {
            client.send_publish(&Publish { id, ..publish_of("t", "x", 2) });
            if random.below(2) == 0 {
                let _ = client.try_send(&wire::ack(wire::PUBREL, id));
            }
        }
        for _ in 0..random.below(8) {
            match client.try_receive(Duration::from_millis(50)) {
                Ok(Packet::Publish(publish)) => drop(client.try_send(&wire::ack(PUBREC, publish.id))),
                Ok(Packet::Ack { kind: wire::PUBREL, id, .. }) => drop(client.try_send(&wire::ack(wire::PUBCOMP, id))),
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    assert!(broker.is_running());
    broker.v5("after").ping();
}

fn connect_is_v5(n: u16) -> bool {
    n % 2 == 1
}
