//! `session.max_publish_messages_per_sec` and `max_publish_bytes_per_sec` hold within what one read brings, too.

use std::time::{Duration, Instant};

use crate::support::{
    Broker, Client, Connect, Lost, Packet, Setup,
    client::publish_of,
    wire::{self, PUBACK, Publish},
};

const PINGREQ: [u8; 2] = [0xc0, 0];

fn limited(option: &str) -> Broker {
    Setup::new().config(&format!("[session]\n{option}\n")).start()
}

/// `count` messages of QoS 0 with a number each, of a few bytes.
fn flood(count: u32) -> Vec<u8> {
    (0..count).flat_map(|n| wire::publish(false, &publish_of("f", n.to_be_bytes(), 0))).collect()
}

/// How many of the flood come until `until`; in order.
fn received(subscriber: &mut Client, until: Instant) -> u32 {
    let mut count = 0;
    loop {
        match subscriber.try_receive(until.saturating_duration_since(Instant::now())) {
            Ok(Packet::Publish(publish)) => assert_eq!(publish.payload, u32::to_be_bytes(count)),
            Err(Lost::TimedOut) => return count,
            other => panic!("{other:?}"),
        }
        count += 1;
    }
}

/// Thousands of small messages in one segment, behind CONNECT or with it: no more pass than the rate gives, one in advance.
#[test]
fn a_flood_in_one_segment_keeps_to_the_rate() {
    // Topic and payload take 5 bytes.
    for option in ["max_publish_messages_per_sec = 20", "max_publish_bytes_per_sec = 100"] {
        for with_connect in [false, true] {
            let broker = limited(option);
            let mut subscriber = broker.v4("subscriber");
            subscriber.subscribe("f", 0);
            let mut fast = broker.tcp();
            let (connect, flood) = (Connect::v4("fast").encode(), flood(3000));
            let begun = Instant::now();
            if with_connect {
                fast.send(&[connect, flood].concat());
            } else {
                fast.send(&connect);
                assert!(matches!(fast.receive(), Packet::ConnAck { code: 0, .. }));
                fast.send(&flood);
            }
            let count = received(&mut subscriber, begun + Duration::from_secs(2));
            let most = 20.0 * begun.elapsed().as_secs_f64() + 4.0;
            assert!(count >= 20 && f64::from(count) <= most, "{option}: {count} of 3,000, at most {most}");
        }
    }
}

/// What is held back is neither lost nor overtaken: those behind it are answered after it, and what was read comes
/// through although its client has gone meanwhile.
#[test]
fn what_is_held_back_keeps_its_order_and_is_not_lost() {
    let broker = limited("max_publish_messages_per_sec = 10");
    let mut subscriber = broker.v4("subscriber");
    subscriber.subscribe("f", 1);
    let mut fast = broker.v4("fast");
    let publish =
        |n: u16| wire::publish(false, &Publish { id: n + 1, ..publish_of("f", u32::from(n).to_be_bytes(), 1) });
    let begun = Instant::now();
    let packets = [PINGREQ.to_vec(), (0..8).flat_map(publish).collect(), PINGREQ.to_vec(), publish(8), vec![0xe0, 0]];
    fast.send(&packets.concat());
    assert_eq!(fast.receive(), Packet::PingResp);
    for id in 1..=8 {
        assert_eq!(fast.acknowledged(PUBACK, id), 0);
    }
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(fast.receive(), Packet::PingResp);
    assert_eq!(fast.acknowledged(PUBACK, 9), 0);
    assert_eq!(fast.closed(), None);
    for n in 0..9 {
        assert_eq!(subscriber.message().payload, u32::to_be_bytes(n));
    }
    let mut hasty = broker.v4("hasty");
    hasty.send(&flood(12));
    hasty.cut();
    for n in 0..12 {
        assert_eq!(subscriber.message().payload, u32::to_be_bytes(n));
    }
}
