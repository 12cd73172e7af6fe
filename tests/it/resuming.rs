//! Sessions that come back and take what has waited for them: how much of it is in memory meanwhile, and who waits for whom.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::support::{
    Broker, Connect, PATIENCE, Setup,
    client::publish_of,
    wire::{self, PUBACK, Packet, Publish},
};

/// Sessions that are kept, each with as many messages waiting as there are in `payloads`; all get all.
fn backlog(broker: &Broker, sessions: usize, messages: u16, size: usize) {
    for session in 0..sessions {
        let mut client = broker.connect(&Connect::v5(&format!("s{session}")).persistent());
        client.subscribe("all", 1);
        client.disconnect();
    }
    let mut publisher = broker.v4("publisher");
    for id in 1..=messages {
        publisher.send(&wire::publish(false, &Publish { id, ..publish_of("all", vec![id as u8; size], 1) }));
    }
    for id in 1..=messages {
        publisher.acknowledged(PUBACK, id);
    }
}

/// Connects as a client that sends CONNECT and reads nothing; its kernel has little room, so that what comes stays with the broker.
fn mute(broker: &Broker, session: usize) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&broker.address().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(&Connect::v5(&format!("s{session}")).persistent().clean(false).encode()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream
}

/// Clients that come back and take nothing, until they hold what they can. How much that is, and what else a client that comes then does.
fn held_for_the_mute(max_resuming_bytes: usize, meanwhile: impl FnOnce(&Broker)) -> u64 {
    let options = format!(
        "[broker]\nmax_resuming_bytes = {max_resuming_bytes}\n[storage]\nrocksdb_cache_bytes = 1048576\nrocksdb_memtable_bytes = 1048576\n"
    );
    let mut broker = Setup::new().config(&options).start();
    backlog(&broker, 1 + MUTE, MESSAGES, SIZE);
    broker.kill9();
    broker.restart();
    let before = broker.resident_bytes();
    let others: Vec<_> = (1..=MUTE).map(|session| mute(&broker, session)).collect();
    let (mut sent, deadline) = (0, Instant::now() + PATIENCE);
    while broker.status_number("bytes_sent") > sent && Instant::now() < deadline {
        sent = broker.status_number("bytes_sent");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(sent < MUTE as u64 * u64::from(MESSAGES) * SIZE as u64, "all of it went to the kernel");
    let held = broker.resident_bytes().saturating_sub(before);
    meanwhile(&broker);
    drop(others);
    held
}

/// Those who take nothing hold little together, and keep nobody from what waits for him, although they hold all that may be in memory.
#[test]
fn who_takes_nothing_keeps_nobody_waiting() {
    let unbounded = held_for_the_mute(1 << 30, |_| {});
    let bounded = held_for_the_mute(256 << 10, |broker| {
        let mut client = broker.connect(&Connect::v5("s0").persistent().clean(false));
        for number in 1..=MESSAGES {
            let Packet::Publish(publish) = client.receive() else { panic!("no PUBLISH") };
            assert_eq!((publish.payload[0], publish.payload.len()), (number as u8, SIZE));
            client.send(&wire::ack(PUBACK, publish.id));
        }
        client.nothing();
    });
    assert!(bounded < unbounded / 2, "{bounded} bytes, and {unbounded} without a bound");
}

const MUTE: usize = 40;
const MESSAGES: u16 = 800;
const SIZE: usize = 8000;
