//! Publishers of QoS 1 with a window each, and the sessions that their messages wait for: one thread over epoll.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::event::{Timespec, epoll};

use crate::{broker::Process, drive::answer, wire};

/// What waits for whom.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// Each has a topic of its own, and an absent session that subscribes to it.
    pub publishers: usize,
    /// How many of its messages may be without an acknowledgement.
    pub window: u64,
    pub payload_bytes: usize,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub acknowledged: u64,
    pub secs: f64,
    /// Of the broker, for each acknowledged message.
    pub cpu_micros: f64,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.acknowledged as f64 / self.secs
    }
}

impl Flood {
    /// Makes the sessions that are away.
    pub fn subscribe(&self, process: &Process) -> io::Result<()> {
        for i in 0..self.publishers {
            let mut stream = connect(process, &format!("away-{i}"), false)?;
            stream.write_all(&wire::subscribe(&topic(i), 1))?;
            answer(&mut stream, 0x90)?;
            stream.write_all(&wire::DISCONNECT)?;
            // Closed by the broker: the session is away.
            stream.read_to_end(&mut Vec::new())?;
        }
        Ok(())
    }

    /// Publishes for so long, or so many messages.
    pub fn run(&self, process: &Process, measured: Duration, most: u64) -> io::Result<Outcome> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut publishers = Vec::new();
        for i in 0..self.publishers {
            let stream = connect(process, &format!("publisher-{i}"), true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
            let packet = wire::publish(&topic(i), 1, self.payload_bytes);
            publishers.push(Publisher { stream, packet, sent: 0, acknowledged: 0, partial: Vec::new() });
        }
        let (start, cpu) = (Instant::now(), process.cpu()?);
        let mut left = most;
        for publisher in &mut publishers {
            publisher.send(self, &mut left)?;
        }
        let mut acknowledged = 0;
        while start.elapsed() < measured && acknowledged < most {
            for index in ready(&epoll)? {
                let Some(publisher) = publishers.get_mut(index) else { continue };
                acknowledged += publisher.receive()?;
                publisher.send(self, &mut left)?;
            }
        }
        let secs = start.elapsed().as_secs_f64();
        let cpu = (process.cpu()? - cpu).as_secs_f64();
        Ok(Outcome { acknowledged, secs, cpu_micros: cpu * 1e6 / acknowledged.max(1) as f64 })
    }
}

fn ready(epoll: &OwnedFd) -> io::Result<Vec<usize>> {
    let mut events = Vec::with_capacity(256);
    let patience = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(events.iter().map(|event| event.data.u64() as usize).collect())
}

struct Publisher {
    stream: TcpStream,
    packet: Vec<u8>,
    sent: u64,
    acknowledged: u64,
    partial: Vec<u8>,
}

impl Publisher {
    /// Fills the window, which is small beside what a socket takes.
    fn send(&mut self, flood: &Flood, left: &mut u64) -> io::Result<()> {
        let count = (flood.window - (self.sent - self.acknowledged)).min(*left);
        let mut bytes = Vec::with_capacity(self.packet.len() * count as usize);
        let id_at = self.packet.len() - flood.payload_bytes - 2;
        for number in self.sent..self.sent + count {
            self.packet[id_at..id_at + 2].copy_from_slice(&packet_id(number).to_be_bytes());
            bytes.extend_from_slice(&self.packet);
        }
        self.sent += count;
        *left -= count;
        self.stream.write_all(&bytes)
    }

    /// How many acknowledgements came, in the order of their messages [MQTT-4.6.0-2].
    fn receive(&mut self) -> io::Result<u64> {
        let mut buffer = [0; 16 << 10];
        let count = match self.stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::other("the broker closed a connection")),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        self.partial.extend_from_slice(&buffer[..count]);
        let (mut used, before) = (0, self.acknowledged);
        while let Some((first, body, len)) = wire::cut(&self.partial[used..]) {
            if first != 0x40 || body != packet_id(self.acknowledged).to_be_bytes() {
                return Err(io::Error::other(format!("a wrong acknowledgement: {first:02x} {body:02x?}")));
            }
            self.acknowledged += 1;
            used += len;
        }
        self.partial.drain(..used);
        Ok(self.acknowledged - before)
    }
}

/// Latency of each of `count` messages that are published one by one.
pub fn one_by_one(process: &Process, payload_bytes: usize, count: u64) -> io::Result<Vec<Duration>> {
    let flood = Flood { publishers: 1, window: 1, payload_bytes };
    flood.subscribe(process)?;
    let stream = connect(process, "publisher-0", true)?;
    let packet = wire::publish(&topic(0), 1, payload_bytes);
    let mut publisher = Publisher { stream, packet, sent: 0, acknowledged: 0, partial: Vec::new() };
    let mut took = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        publisher.send(&flood, &mut 1)?;
        while publisher.receive()? == 0 {}
        took.push(start.elapsed());
    }
    Ok(took)
}

/// The session `away-0` comes back and takes `count` messages as fast as it can: messages a second from its CONNECT on.
pub fn resume(process: &Process, payload_bytes: usize, count: u64) -> io::Result<f64> {
    let start = Instant::now();
    let mut stream = connect(process, "away-0", false)?;
    let (mut bytes, mut filled, mut received) = (vec![0; 256 << 10], 0, 0);
    let mut acknowledgements = Vec::new();
    while received < count {
        let read = stream.read(&mut bytes[filled..])?;
        if read == 0 {
            return Err(io::Error::other(format!("the broker closed the connection after {received} messages")));
        }
        filled += read;
        let mut used = 0;
        while let Some((first, body, len)) = wire::cut(&bytes[used..filled]) {
            let id_at = body.len().checked_sub(payload_bytes + 2).filter(|_| first & 0xf6 == 0x32);
            let id_at = id_at.ok_or_else(|| io::Error::other(format!("not a message: {first:02x}")))?;
            acknowledgements.extend_from_slice(&[0x40, 2, body[id_at], body[id_at + 1]]);
            received += 1;
            used += len;
        }
        bytes.copy_within(used..filled, 0);
        filled -= used;
        stream.write_all(&acknowledgements)?;
        acknowledgements.clear();
    }
    Ok(received as f64 / start.elapsed().as_secs_f64())
}

fn connect(process: &Process, client_id: &str, clean: bool) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(process.address)?;
    stream.set_nodelay(true)?;
    stream.write_all(&wire::connect(client_id, clean))?;
    answer(&mut stream, 0x20)?;
    Ok(stream)
}

fn topic(publisher: usize) -> String {
    format!("load/site-7/device-{publisher:04}/a")
}

fn packet_id(number: u64) -> u16 {
    (number % 65_535 + 1) as u16
}
