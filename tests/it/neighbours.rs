//! Hundreds of hostile or broken clients of every kind beside a well-served pair: what the pair sees with them is compared with what it sees
//! without them.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::support::{
    Broker, Client, Connect, Setup, Will,
    client::publish_of,
    eventually,
    wire::{self, PUBACK, Packet, Publish},
};

/// Of each kind.
const COUNT: usize = 120;
/// Exchanges of the pair for one figure.
const EXCHANGES: u32 = 300;
/// A burst for those who do not take it: more than a socket and an outbox hold, and than may be queued.
const BURST: u16 = 150;
const BURST_PAYLOAD: usize = 8 * 1024;
const ROUNDS: usize = 3;
/// How often the pair may try with them.
const TRIES: usize = 8;

/// What a client that does not do its part may cost: the outbox with its bound, what may be queued in references, and the allocator's share.
const BYTES_PER_STALLED: u64 = 128 * 1024;
/// The same for one that only sits there.
const BYTES_PER_IDLE: u64 = 24 * 1024;

const CONFIG: &str = "[session]\nmax_queued_messages = 100\nmax_inflight_messages = 20\nconnect_timeout_secs = 60\n";

/// Half-open, slow-reading, slow-writing (a byte a second), never-acknowledging, never-reading, never-finishing and connect-storming clients
/// cost bounded memory, delay nobody, take no message from anybody else, and cost no CPU time when nothing happens (D16, D83, D91).
#[test]
fn hostile_neighbours_are_not_noticed() {
    let broker = Setup::new().config(CONFIG).start();
    let mut pair = Pair::new(&broker);
    pair.warm_up();
    let alone: Vec<Duration> = (0..ROUNDS).map(|_| pair.percentile_99()).collect();
    let bound = *alone.iter().min().unwrap() * 5 + Duration::from_millis(20);

    let before = broker.resident_bytes();
    let idle = idle_crowd(broker.address());
    let sitting = broker.resident_bytes().saturating_sub(before);
    let most = idle.len() as u64 * BYTES_PER_IDLE;
    println!("{} kB for {} idle clients", sitting / 1024, idle.len());
    assert!(sitting < most, "{} kB for {} idle clients", sitting / 1024, idle.len());

    let mut bulk = broker.v4("bulk");
    let stalled = stalled_crowd(broker.address());
    burst(&mut bulk);
    broker.until_status("queue_full", |dropped| dropped > 0);
    let driver = Driver::start(broker.address(), idle, stalled);
    let mut with = Vec::new();
    // A machine that is busy with other tests may take a moment away; a broker that waits for a hostile client does so in every round.
    while with.len() < TRIES && with.last().is_none_or(|last| *last > bound) {
        burst(&mut bulk);
        with.push(pair.percentile_99());
    }
    println!("p99 alone {alone:?}, with {} hostile clients {with:?}", driver.count);
    assert!(with.last().is_some_and(|last| *last <= bound), "p99 {with:?}, alone {alone:?}");
    let grown = broker.resident_bytes().saturating_sub(before);
    let most = driver.count as u64 * BYTES_PER_STALLED;
    println!("{} kB for {} hostile clients", grown / 1024, driver.count);
    assert!(grown < most, "{} kB for {} hostile clients", grown / 1024, driver.count);

    driver.stop_driving();
    idle_broker_is_idle(&broker);
    drop(driver);
    pair.exchange();
}

/// Stalled clients are no reason to run.
fn idle_broker_is_idle(broker: &Broker) {
    let mut quiet = broker.v4("quiet");
    eventually("an idle broker", || {
        let before = broker.cpu();
        assert!(quiet.try_receive(Duration::from_secs(1)).is_err());
        (broker.cpu() - before < Duration::from_millis(100)).then_some(())
    });
}

/// A publisher and a subscriber of QoS 1, and one more who looks whether all comes.
struct Pair {
    publisher: Client,
    subscriber: Client,
    witness: Client,
    sent: u32,
}

impl Pair {
    fn new(broker: &Broker) -> Self {
        let (mut subscriber, mut witness) = (broker.v5("subscriber"), broker.v4("witness"));
        subscriber.subscribe("pair", 1);
        witness.subscribe("pair", 0);
        Self { publisher: broker.v5("publisher"), subscriber, witness, sent: 0 }
    }

    /// From PUBLISH to the arrival at the subscriber, and PUBACK came too.
    fn exchange(&mut self) -> Duration {
        let began = Instant::now();
        let id = (self.sent % 60_000) as u16 + 1;
        self.publisher.send_publish(&Publish { id, ..publish_of("pair", self.sent.to_string(), 1) });
        assert_eq!(self.subscriber.text(), self.sent.to_string());
        let took = began.elapsed();
        assert_eq!(self.publisher.acknowledged(PUBACK, id), 0);
        assert_eq!(self.witness.text(), self.sent.to_string(), "nobody else's messages are lost");
        self.sent += 1;
        took
    }

    fn warm_up(&mut self) {
        for _ in 0..EXCHANGES / 3 {
            self.exchange();
        }
    }

    fn percentile_99(&mut self) -> Duration {
        let mut all: Vec<Duration> = (0..EXCHANGES).map(|_| self.exchange()).collect();
        all.sort_unstable();
        all[all.len() * 99 / 100]
    }
}

/// How a hostile client goes on.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Says and reads nothing more: its machine is gone, and nobody says so.
    Silent,
    /// Writes a byte a second.
    Dripping,
    /// Reads a few bytes now and then.
    Sipping,
    /// Reads all, acknowledges nothing.
    Unacknowledging,
}

struct Hostile {
    kind: Kind,
    stream: TcpStream,
    /// What it drips.
    rest: Vec<u8>,
}

/// Clients that have nothing to receive: half a CONNECT, nothing at all, connected and gone, dripping.
fn idle_crowd(address: SocketAddr) -> Vec<Hostile> {
    let mut crowd = Vec::new();
    for n in 0..COUNT {
        let silent = |stream| Hostile { kind: Kind::Silent, stream, rest: Vec::new() };
        crowd.push(silent(socket(address)));
        let connect = Connect::v5(&format!("half-{n}")).encode();
        let half = socket(address);
        (&half).write_all(&connect[..1 + n % (connect.len() - 1)]).unwrap();
        crowd.push(silent(half));
        let gone = Connect::new(3 + (n % 3) as u8, &format!("gone-{n}")).will(Will::new("elsewhere", "x"));
        crowd.push(silent(connected(address, &gone, None)));
        let dripping = connected(address, &Connect::v4(&format!("dripping-{n}")), None);
        let rest = wire::publish(false, &publish_of("elsewhere", vec![b'x'; 1000], 0));
        crowd.push(Hostile { kind: Kind::Dripping, stream: dripping, rest });
    }
    crowd
}

/// Clients that are to receive and do not take it.
fn stalled_crowd(address: SocketAddr) -> Vec<Hostile> {
    let mut crowd = Vec::new();
    for n in 0..COUNT {
        let level = 4 + (n % 2) as u8;
        for (kind, name, qos) in [
            (Kind::Silent, "never-reading", (n % 3) as u8),
            (Kind::Sipping, "sipping", (n % 3) as u8),
            (Kind::Unacknowledging, "never-acknowledging", 1 + (n % 2) as u8),
        ] {
            let connect = Connect::new(level, &format!("{name}-{n}"));
            let connect = if n % 8 == 0 { connect.persistent() } else { connect };
            let stream = connected(address, &connect, Some(qos));
            crowd.push(Hostile { kind, stream, rest: Vec::new() });
        }
    }
    crowd
}

/// A socket that holds little, so that the rest waits in the broker.
fn socket(address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&address.into()).expect("a broker that accepts");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    stream
}

/// CONNECT, and SUBSCRIBE to the bulk.
fn connected(address: SocketAddr, connect: &Connect, qos: Option<u8>) -> TcpStream {
    let mut stream = socket(address);
    let v5 = connect.level == 5;
    let mut bytes = connect.encode();
    bytes.extend(qos.iter().flat_map(|qos| wire::subscribe(v5, 1, &[], &[("bulk", *qos)])));
    stream.write_all(&bytes).unwrap();
    let mut read = Vec::new();
    let mut due = 1 + usize::from(qos.is_some());
    while due > 0 {
        while let Some((len, _)) = wire::cut(&read) {
            let packet = wire::decode(v5, &read.drain(..len).collect::<Vec<u8>>());
            assert!(matches!(packet, Packet::ConnAck { code: 0, .. } | Packet::SubAck { .. }), "{packet:?}");
            due -= 1;
        }
        if due > 0 {
            let mut chunk = [0; 256];
            let count = stream.read(&mut chunk).expect("an answer");
            assert!(count > 0, "{} was refused", connect.client_id);
            read.extend_from_slice(&chunk[..count]);
        }
    }
    stream
}

fn burst(bulk: &mut Client) {
    let payload = vec![b'x'; BURST_PAYLOAD];
    let bytes: Vec<u8> = (1..=BURST)
        .flat_map(|id| wire::publish(false, &Publish { id, ..publish_of("bulk", &payload, 1 + (id % 2) as u8) }))
        .collect();
    bulk.send(&bytes);
    for id in 1..=BURST {
        let kind = if id % 2 == 0 { PUBACK } else { wire::PUBREC };
        assert_eq!(bulk.acknowledged(kind, id), 0);
        if kind == wire::PUBREC {
            bulk.send(&wire::ack(wire::PUBREL, id));
            assert_eq!(bulk.acknowledged(wire::PUBCOMP, id), 0);
        }
    }
}

/// Drives the crowd, and lets others storm the door.
struct Driver {
    driving: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    count: usize,
}

impl Driver {
    fn start(address: SocketAddr, mut crowd: Vec<Hostile>, stalled: Vec<Hostile>) -> Self {
        crowd.extend(stalled);
        let count = crowd.len();
        let (driving, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        crowd.iter().for_each(|hostile| hostile.stream.set_nonblocking(true).unwrap());
        let flags = (driving.clone(), ended.clone());
        let driver = std::thread::spawn(move || {
            let mut tick = 0;
            while !flags.1.load(Ordering::Relaxed) {
                if flags.0.load(Ordering::Relaxed) {
                    crowd.iter_mut().for_each(|hostile| hostile.go_on(tick));
                    tick += 1;
                }
                std::thread::park_timeout(TICK);
            }
        });
        let storming = driving.clone();
        let storm = std::thread::spawn(move || {
            for n in 0_u32.. {
                if !storming.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = socket(address);
                // Gone at once, in the middle of the CONNECT, before CONNACK, or right after it.
                let bytes = Connect::v4(&format!("storm-{}", n % 50)).encode();
                let _ = stream.write_all(&bytes[..if n % 4 == 0 { 0 } else { bytes.len() - (n % 4 == 1) as usize }]);
                if n % 4 == 3 {
                    let _ = stream.read(&mut [0; 4]);
                }
                drop(stream);
                std::thread::park_timeout(Duration::from_millis(2));
            }
        });
        Self { driving, ended, threads: vec![driver, storm], count }
    }

    /// Nobody does anything any more, and all stay.
    fn stop_driving(&self) {
        self.driving.store(false, Ordering::Relaxed);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop_driving();
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

const TICK: Duration = Duration::from_millis(50);

impl Hostile {
    fn go_on(&mut self, tick: u64) {
        match self.kind {
            Kind::Silent => {}
            Kind::Dripping => {
                if tick.is_multiple_of(20) && !self.rest.is_empty() {
                    let byte = self.rest.remove(0);
                    self.stream.write_all(&[byte]).expect("a broker that reads on");
                }
            }
            Kind::Sipping => _ = self.take(&mut [0; 64]),
            Kind::Unacknowledging => {
                let mut chunk = [0; 16 * 1024];
                while self.take(&mut chunk) == chunk.len() {}
            }
        }
    }

    fn take(&mut self, chunk: &mut [u8]) -> usize {
        match self.stream.read(chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("a hostile client was cut: {error}"),
        }
    }
}
