//! The load itself: one thread over epoll, prepared packets, one read for each readiness and one write for each turn of a connection.
//!
//! Each payload carries its stream, its number and the time it left; every subscriber checks that the numbers come without gap, doubling
//! or change of order. A closed loop bounds the messages in flight; a paced load leaves on schedule, and its latency counts from there.

use std::{
    collections::BTreeSet,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::{
    broker::{Process, cpu_of},
    histogram::Histogram,
    wire,
};

/// Bytes of every payload.
pub const PAYLOAD_BYTES: usize = 64;

/// Who publishes to whom.
pub struct Load {
    pub name: &'static str,
    publishers: usize,
    /// Subscribers of each publisher's topic.
    fan: usize,
    pub qos: u8,
    /// Messages a second of all publishers together; `None`: a closed loop.
    rate: Option<u64>,
    /// The sessions of the subscribers are kept.
    persistent: bool,
}

impl Load {
    /// Each publisher has its topic and its subscriber.
    pub const fn pairs(name: &'static str, pairs: usize, qos: u8) -> Self {
        Self { name, publishers: pairs, fan: 1, qos, rate: None, persistent: false }
    }

    /// One publisher, many subscribers.
    pub const fn fan_out(name: &'static str, subscribers: usize, qos: u8) -> Self {
        Self { name, publishers: 1, fan: subscribers, qos, rate: None, persistent: false }
    }

    /// With sessions of the subscribers that the broker keeps.
    pub const fn persistent(self) -> Self {
        Self { persistent: true, ..self }
    }

    /// On a schedule instead of as fast as the broker can.
    pub const fn paced(self, rate: u64) -> Self {
        Self { rate: Some(rate), ..self }
    }
}

/// What came of it within the measured time; faults are counted over the whole run.
pub struct Outcome {
    pub delivered_per_sec: f64,
    pub broker_cpu_micros: f64,
    pub broker_cpu_share: f64,
    pub own_cpu_share: f64,
    pub p50_micros: f64,
    pub p99_micros: f64,
    pub resident_bytes: u64,
    pub lost: u64,
    pub doubled: u64,
    pub reordered: u64,
}

impl Outcome {
    pub fn correct(&self) -> bool {
        self.lost + self.doubled + self.reordered == 0
    }
}

/// Drives one load; `in_flight` bounds the messages of all publishers together that some subscriber still lacks.
pub fn run(process: &Process, load: &Load, in_flight: u64, measured: Duration) -> io::Result<Outcome> {
    let mut driver = Driver::connect(process, load, in_flight)?;
    let warm = driver.now() + Duration::from_secs(1).as_nanos() as u64;
    driver.until(warm)?;
    let (cpu, own) = (process.cpu()?, cpu_of("self")?);
    let (from, received) = (driver.now(), driver.received);
    driver.measured_from = from;
    driver.until(from + measured.as_nanos() as u64)?;
    let secs = (driver.now() - from) as f64 / 1e9;
    let delivered = (driver.received - received) as f64;
    let cpu = (process.cpu()? - cpu).as_secs_f64();
    let own = (cpu_of("self")? - own).as_secs_f64();
    let resident_bytes = process.resident_bytes()?;
    driver.drain()?;
    Ok(Outcome {
        delivered_per_sec: delivered / secs,
        broker_cpu_micros: cpu * 1e6 / delivered.max(1.0),
        broker_cpu_share: cpu / secs,
        own_cpu_share: own / secs,
        p50_micros: driver.latency.quantile(0.5) as f64 / 1e3,
        p99_micros: driver.latency.quantile(0.99) as f64 / 1e3,
        resident_bytes,
        lost: driver.lost,
        doubled: driver.doubled,
        reordered: driver.reordered,
    })
}

/// Resident bytes that each of `count` idle connections costs.
pub fn idle_bytes(process: &Process, count: usize) -> io::Result<u64> {
    let before = process.resident_bytes()?;
    let mut held = Vec::with_capacity(count);
    while held.len() < count {
        let mut batch = Vec::new();
        for i in held.len()..count.min(held.len() + 100) {
            let mut stream = TcpStream::connect(process.address)?;
            stream.write_all(&wire::connect(&format!("idle-{i}"), true))?;
            batch.push(stream);
        }
        for stream in &mut batch {
            answer(stream, 0x20)?;
        }
        held.append(&mut batch);
    }
    std::thread::sleep(Duration::from_secs(2));
    Ok(process.resident_bytes()?.saturating_sub(before) / count.max(1) as u64)
}

/// Reads one packet of this first byte.
pub fn answer(stream: &mut TcpStream, first: u8) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut packet = [0; 4];
    stream.read_exact(&mut packet)?;
    if packet[0] != first || (first == 0x20 && packet[3] != 0) {
        return Err(io::Error::other(format!("an unexpected answer: {packet:02x?}")));
    }
    if packet[1] > 2 {
        stream.read_exact(&mut vec![0; usize::from(packet[1]) - 2])?;
    }
    Ok(())
}

/// One connection; those below `Driver::publishers` publish, the others subscribe.
struct Peer {
    stream: TcpStream,
    out: Vec<u8>,
    written: usize,
    partial: Vec<u8>,
    blocked: bool,
}

struct Publisher {
    packet: Vec<u8>,
    runnable: bool,
    sent: u64,
    /// Sum over its subscribers of the messages that came (or were given up).
    arrived: u64,
    acked: u64,
}

struct Driver {
    epoll: OwnedFd,
    peers: Vec<Peer>,
    publishers: Vec<Publisher>,
    /// Publishers whose window may have opened; on a schedule all of them are looked at.
    runnable: Vec<usize>,
    /// The next number that each subscriber expects.
    expected: Vec<u64>,
    missing: BTreeSet<(usize, u64)>,
    fan: usize,
    qos: u8,
    window: u64,
    /// Nanoseconds between two messages of one publisher.
    pace: Option<u64>,
    epoch: Instant,
    started: u64,
    measured_from: u64,
    stopped: bool,
    received: u64,
    latency: Histogram,
    lost: u64,
    doubled: u64,
    reordered: u64,
    buffer: Vec<u8>,
}

const BUFFER_BYTES: usize = 256 * 1024;
/// What a publisher puts into its outbox at a time.
const BURST_BYTES: usize = 64 * 1024;
const STAMP_BYTES: usize = 24;

impl Driver {
    fn connect(process: &Process, load: &Load, in_flight: u64) -> io::Result<Self> {
        let mut driver = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            peers: Vec::new(),
            publishers: Vec::new(),
            runnable: (0..load.publishers).collect(),
            expected: vec![0; load.publishers * load.fan],
            missing: BTreeSet::new(),
            fan: load.fan,
            qos: load.qos,
            window: (in_flight / load.publishers as u64).clamp(1, 30_000),
            pace: load.rate.map(|rate| load.publishers as u64 * 1_000_000_000 / rate),
            epoch: Instant::now(),
            started: 0,
            measured_from: u64::MAX,
            stopped: false,
            received: 0,
            latency: Histogram::new(),
            lost: 0,
            doubled: 0,
            reordered: 0,
            buffer: vec![0; BUFFER_BYTES],
        };
        for i in 0..load.publishers {
            let packet = wire::publish(&topic(i), load.qos, PAYLOAD_BYTES);
            driver.publishers.push(Publisher { packet, runnable: true, sent: 0, arrived: 0, acked: 0 });
            driver.join(process, &format!("publisher-{i}"), true, None)?;
        }
        for i in 0..load.publishers * load.fan {
            let filter = topic(i / load.fan);
            driver.join(process, &format!("subscriber-{i}"), !load.persistent, Some(&filter))?;
        }
        driver.started = driver.now();
        Ok(driver)
    }

    fn join(&mut self, process: &Process, client_id: &str, clean: bool, filter: Option<&str>) -> io::Result<()> {
        let mut stream = TcpStream::connect(process.address)?;
        stream.set_nodelay(true)?;
        stream.write_all(&wire::connect(client_id, clean))?;
        answer(&mut stream, 0x20)?;
        if let Some(filter) = filter {
            stream.write_all(&wire::subscribe(filter, self.qos))?;
            answer(&mut stream, 0x90)?;
        }
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(self.peers.len() as u64);
        epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN)?;
        self.peers.push(Peer { stream, out: Vec::new(), written: 0, partial: Vec::new(), blocked: false });
        Ok(())
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Runs until then; what is lost at the very end of a full window is given up after a second without progress.
    fn until(&mut self, end: u64) -> io::Result<()> {
        let (mut progress, mut at) = (self.received, self.now());
        loop {
            let now = self.now();
            if now >= end {
                return Ok(());
            }
            if self.received != progress {
                (progress, at) = (self.received, now);
            } else if now - at > 1_000_000_000 {
                self.give_up();
                at = now;
            }
            self.turn()?;
        }
    }

    /// Sends nothing more and takes what is under way.
    fn drain(&mut self) -> io::Result<()> {
        self.stopped = true;
        let (mut progress, mut at) = (self.received, self.now());
        while self.now() - at < 2_000_000_000 {
            let due: u64 =
                self.publishers.iter().map(|publisher| publisher.sent * self.fan as u64 - publisher.arrived).sum();
            if due == 0 && self.now() - at > 200_000_000 {
                break;
            }
            if self.received != progress {
                (progress, at) = (self.received, self.now());
            }
            self.turn()?;
        }
        self.give_up();
        Ok(())
    }

    fn give_up(&mut self) {
        for (i, expected) in self.expected.iter_mut().enumerate() {
            let Some(publisher) = self.publishers.get_mut(i / self.fan) else { continue };
            self.missing.extend((*expected..publisher.sent).map(|number| (i, number)));
            self.lost += publisher.sent - *expected;
            publisher.arrived += publisher.sent - *expected;
            *expected = publisher.sent;
        }
        (0..self.publishers.len()).for_each(|i| self.may_send(i));
    }

    /// One round: send what may be sent, wait, take what came.
    fn turn(&mut self) -> io::Result<()> {
        let next = if self.stopped { None } else { self.send()? };
        let mut patience = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        if let Some(at) = next {
            // epoll counts in milliseconds, which is too coarse for a schedule.
            patience.tv_nsec = at.saturating_sub(self.now()).min(10_000_000) as i64;
            interrupted(poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&patience)))?;
            patience.tv_nsec = 0;
        }
        let mut events = Vec::with_capacity(256);
        interrupted(epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)))?;
        for event in events {
            let (flags, index) = (event.flags, event.data.u64() as usize);
            if flags.contains(epoll::EventFlags::OUT) {
                self.flush(index)?;
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                self.read(index)?;
            }
        }
        Ok(())
    }

    /// Lets every publisher send what its window or its schedule allows; gives the time of the next that waits for its schedule.
    fn send(&mut self) -> io::Result<Option<u64>> {
        let mut next = None;
        let count = self.publishers.len() as u64;
        let looked_at =
            if self.pace.is_some() { (0..self.publishers.len()).collect() } else { std::mem::take(&mut self.runnable) };
        for i in looked_at {
            let now = self.now();
            let (Some(publisher), Some(peer)) = (self.publishers.get_mut(i), self.peers.get_mut(i)) else { continue };
            let first = peer.out.len();
            publisher.runnable = false;
            while peer.out.len() < BURST_BYTES {
                let behind = publisher.sent - publisher.arrived / self.fan as u64;
                let unacked = if self.qos > 0 { publisher.sent - publisher.acked } else { 0 };
                if behind.max(unacked) >= self.window {
                    break;
                }
                let mut leaves = now;
                if let Some(pace) = self.pace {
                    // Publishers take turns within a period, so that messages do not leave in bursts.
                    leaves = self.started + pace * publisher.sent + pace * i as u64 / count;
                    if leaves > now {
                        next = Some(next.map_or(leaves, |other: u64| other.min(leaves)));
                        break;
                    }
                }
                stamp(&mut publisher.packet, self.qos, i, publisher.sent, leaves);
                publisher.sent += 1;
                peer.out.extend_from_slice(&publisher.packet);
            }
            let full = peer.out.len() >= BURST_BYTES;
            if peer.out.len() > first {
                self.flush(i)?;
            }
            if full {
                self.may_send(i);
            }
        }
        Ok(next)
    }

    fn flush(&mut self, index: usize) -> io::Result<()> {
        let Some(peer) = self.peers.get_mut(index) else { return Ok(()) };
        while let Some(waiting) = peer.out.get(peer.written..).filter(|waiting| !waiting.is_empty()) {
            match peer.stream.write(waiting) {
                Ok(count) => peer.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let blocked = peer.written < peer.out.len();
        if !blocked {
            peer.out.clear();
            peer.written = 0;
        }
        if blocked != peer.blocked {
            peer.blocked = blocked;
            let interest = if blocked { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            epoll::modify(&self.epoll, &peer.stream, epoll::EventData::new_u64(index as u64), interest)?;
        }
        Ok(())
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
        let Some(peer) = self.peers.get_mut(index) else { return Ok(()) };
        let mut buffer = std::mem::take(&mut self.buffer);
        let kept = peer.partial.len();
        buffer[..kept].copy_from_slice(&peer.partial);
        peer.partial.clear();
        let count = match peer.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Err(io::Error::other(format!("the broker closed connection {index}"))),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let bytes = &buffer[..kept + count];
        let used =
            if index < self.publishers.len() { self.acks(index, bytes)? } else { self.deliveries(index, bytes)? };
        if let Some(peer) = self.peers.get_mut(index) {
            peer.partial.extend_from_slice(&bytes[used..]);
        }
        self.buffer = buffer;
        self.flush(index)
    }

    /// Takes the acknowledgements of a publisher, which must come in the order of their messages [MQTT-4.6.0-2].
    fn acks(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
        let Some(publisher) = self.publishers.get_mut(index) else { return Ok(bytes.len()) };
        let mut used = 0;
        while let Some((first, body, len)) = wire::cut(&bytes[used..]) {
            if first != 0x40 || body != packet_id(publisher.acked).to_be_bytes() {
                return Err(io::Error::other(format!("a wrong acknowledgement: {first:02x} {body:02x?}")));
            }
            publisher.acked += 1;
            used += len;
        }
        self.may_send(index);
        Ok(used)
    }

    /// Notes a publisher whose window may have opened.
    fn may_send(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        if !std::mem::replace(&mut publisher.runnable, true) {
            self.runnable.push(index);
        }
    }

    fn deliveries(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
        let subscriber = index - self.publishers.len();
        let stream = subscriber / self.fan;
        let now = self.now();
        let mut used = 0;
        while let Some((first, body, len)) = wire::cut(&bytes[used..]) {
            let Some((of, number, left)) = stamp_of(body).filter(|(of, ..)| first & 0xf0 == 0x30 && *of == stream)
            else {
                return Err(io::Error::other(format!("not a message of this stream: {first:02x} {body:02x?}")));
            };
            debug_assert_eq!(of, stream);
            if first & 0x06 != 0 {
                let topic_len = usize::from(u16::from_be_bytes([body[0], body[1]]));
                let id = u16::from_be_bytes([body[topic_len + 2], body[topic_len + 3]]);
                self.peers[index].out.extend_from_slice(&wire::puback(id));
            }
            self.arrived(subscriber, number);
            if left >= self.measured_from {
                self.latency.record(now.saturating_sub(left));
            }
            used += len;
        }
        self.may_send(stream);
        Ok(used)
    }

    fn arrived(&mut self, subscriber: usize, number: u64) {
        self.received += 1;
        let expected = &mut self.expected[subscriber];
        if number < *expected {
            if self.missing.remove(&(subscriber, number)) {
                self.reordered += 1;
                self.lost -= 1;
            } else {
                self.doubled += 1;
            }
            return;
        }
        if number > *expected {
            self.lost += number - *expected;
            self.missing.extend((*expected..number).map(|lost| (subscriber, lost)));
        }
        self.publishers[subscriber / self.fan].arrived += number + 1 - *expected;
        *expected = number + 1;
    }
}

/// A signal in between is no error.
fn interrupted(waited: rustix::io::Result<usize>) -> io::Result<()> {
    match waited {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn topic(stream: usize) -> String {
    format!("load/site-7/device-{stream:04}/a")
}

/// The packet identifier of the nth message: 1 to 65,535 over and over.
fn packet_id(number: u64) -> u16 {
    (number % 65_535 + 1) as u16
}

/// The payload begins with stream, number and time.
fn stamp(packet: &mut [u8], qos: u8, stream: usize, number: u64, leaves: u64) {
    let payload = packet.len() - PAYLOAD_BYTES;
    if qos > 0 {
        packet[payload - 2..payload].copy_from_slice(&packet_id(number).to_be_bytes());
    }
    packet[payload..payload + 8].copy_from_slice(&(stream as u64).to_be_bytes());
    packet[payload + 8..payload + 16].copy_from_slice(&number.to_be_bytes());
    packet[payload + 16..payload + STAMP_BYTES].copy_from_slice(&leaves.to_be_bytes());
}

fn stamp_of(body: &[u8]) -> Option<(usize, u64, u64)> {
    let payload = body.get(body.len().checked_sub(PAYLOAD_BYTES)?..)?;
    let word = |at: usize| payload.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    Some((word(0)? as usize, word(8)?, word(16)?))
}
