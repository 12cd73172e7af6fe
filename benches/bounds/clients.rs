//! Crowds of clients: sessions that are made and left, publishers that wait for every acknowledgement, and sessions that come back and
//! take all that waits for them.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};

use crate::wire;

/// A session that is kept: its client id of 24 bytes, and its filters of 30, of which no two are alike.
pub fn client_id(session: usize) -> String {
    format!("device-{session:09}-abcdefg")
}

/// See [`client_id`]. Some have wildcards.
pub fn filter(session: usize, number: usize) -> String {
    match number {
        0 => format!("fleet/{session:09}/command/abcdef"),
        1 => format!("fleet/{session:09}/config/+/abcde"),
        2 => format!("alarm/region-7/{session:09}/abc/#"),
        number => format!("fleet/{session:09}/state/{number}/abcde"),
    }
}

/// The topic that filter 0 of a session matches.
pub fn topic(session: usize) -> String {
    filter(session, 0)
}

/// One blocking connection.
pub struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Peer {
    /// Connects from one of many addresses, so that the ports suffice.
    pub fn open(to: SocketAddr, number: usize) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let from = Ipv4Addr::new(127, 0, 1, u8::try_from(number / 64 % 250).unwrap_or(0) + 1);
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect(&to.into())?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, input: Vec::new() })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for `count` packets of this kind; none else may come.
    pub fn expect(&mut self, kind: u8, count: usize) -> io::Result<()> {
        let mut left = count;
        let mut buffer = [0; 16 << 10];
        while left > 0 {
            let mut taken = 0;
            while left > 0
                && let Some((first, body, len)) = wire::cut(&self.input[taken..])
            {
                let refused = match first >> 4 {
                    2 => body[1] != 0,
                    4 => body.get(2).is_some_and(|reason| *reason >= 0x80),
                    9 => body.last().is_some_and(|reason| *reason >= 0x80),
                    _ => false,
                };
                if first >> 4 != kind || refused {
                    return Err(io::Error::other(format!("an unexpected answer: {first:02x} {body:02x?}")));
                }
                taken += len;
                left -= 1;
            }
            self.input.drain(..taken);
            if left > 0 {
                let read = self.stream.read(&mut buffer)?;
                if read == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                self.input.extend_from_slice(&buffer[..read]);
            }
        }
        Ok(())
    }
}

/// Makes sessions that live for `expiry_secs` after their clients have left, each with `filters` subscriptions of QoS 1.
pub fn enroll(to: SocketAddr, sessions: usize, filters: usize, expiry_secs: u32) -> io::Result<()> {
    for from in (0..sessions).step_by(AT_ONCE) {
        let mut peers = Vec::new();
        for session in from..sessions.min(from + AT_ONCE) {
            let mut peer = Peer::open(to, session)?;
            let mut hello = connect_v5(&client_id(session), expiry_secs);
            if filters > 0 {
                let filters: Vec<_> = (0..filters).map(|number| filter(session, number)).collect();
                hello.extend(subscribe_v5(&filters, 1));
            }
            peer.send(&hello)?;
            peers.push(peer);
        }
        for peer in &mut peers {
            peer.expect(2, 1)?;
            peer.expect(9, usize::from(filters > 0))?;
            peer.send(&wire::DISCONNECT)?;
        }
    }
    Ok(())
}

/// Makes one session with these filters.
pub fn enroll_one(to: SocketAddr, session: usize, filters: &[&str]) -> io::Result<()> {
    let mut peer = Peer::open(to, session)?;
    let filters: Vec<_> = filters.iter().map(ToString::to_string).collect();
    let hello = [connect_v5(&client_id(session), WEEK), subscribe_v5(&filters, 1)].concat();
    peer.send(&hello)?;
    peer.expect(2, 1)?;
    peer.expect(9, 1)?;
    peer.send(&wire::DISCONNECT)
}

/// Publishes `count` messages of QoS 1, the nth to `topic(n)`, and waits until all are acknowledged.
pub fn publish(to: SocketAddr, count: usize, size: usize, mut topic: impl FnMut(usize) -> String) -> io::Result<()> {
    let mut peer = Peer::open(to, 0)?;
    peer.send(&wire::connect("publisher", true))?;
    peer.expect(2, 1)?;
    let mut noise = 0x9E37_79B9_7F4A_7C15u64;
    let window = (WINDOW_BYTES / size.max(1)).clamp(1, 500);
    for from in (0..count).step_by(window) {
        let mut out = Vec::new();
        let to = count.min(from + window);
        for number in from..to {
            let topic = topic(number);
            let mut packet = wire::publish(&topic, 1, size);
            let payload = packet.len() - size;
            // Nothing that compresses.
            for byte in &mut packet[payload..] {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (noise >> 56) as u8;
            }
            let id = (number - from + 1) as u16;
            packet[payload - 2..payload].copy_from_slice(&id.to_be_bytes());
            out.extend(packet);
        }
        peer.send(&out)?;
        peer.expect(4, to - from)?;
    }
    peer.send(&wire::DISCONNECT)
}

/// A session that is back.
struct Drain {
    stream: TcpStream,
    input: Vec<u8>,
    out: Vec<u8>,
    got: usize,
}

/// All of `sessions` come back at once; each takes and acknowledges `each` messages, and leaves. `look` is called now and then.
pub fn resume(to: SocketAddr, sessions: usize, each: usize, mut look: impl FnMut()) -> io::Result<Duration> {
    let mut all = Vec::new();
    for session in 0..sessions {
        let Peer { stream, .. } = Peer::open(to, session)?;
        stream.set_nonblocking(true)?;
        let out = connect_v5(&client_id(session), WEEK);
        all.push(Drain { stream, input: Vec::new(), out, got: 0 });
    }
    let start = Instant::now();
    let mut buffer = vec![0; 64 << 10];
    while !all.is_empty() {
        let mut fds: Vec<_> = all
            .iter()
            .map(|one| {
                let out = if one.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::from_borrowed_fd(one.stream.as_fd(), PollFlags::IN | out)
            })
            .collect();
        if poll(&mut fds, Some(&Timespec { tv_sec: 30, tv_nsec: 0 }))? == 0 {
            let left: usize = all.iter().map(|one| each - one.got).sum();
            return Err(io::Error::other(format!("{} sessions lack {left} messages", all.len())));
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (one, _) in all.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            one.turn(each, &mut buffer)?;
        }
        all.retain(|one| one.got < each || !one.out.is_empty());
        look();
    }
    Ok(start.elapsed())
}

impl Drain {
    fn turn(&mut self, each: usize, buffer: &mut [u8]) -> io::Result<()> {
        match self.stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.input.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let mut taken = 0;
        while let Some((first, body, len)) = wire::cut(&self.input[taken..]) {
            if first >> 4 == 3 {
                let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
                self.out.extend(wire::puback(u16::from_be_bytes([body[topic + 2], body[topic + 3]])));
                self.got += 1;
                if self.got == each {
                    self.out.extend(wire::DISCONNECT);
                }
            }
            taken += len;
        }
        self.input.drain(..taken);
        if !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// CONNECT of MQTT 5.0 without keep alive, to a session that is kept, with a Session Expiry Interval.
fn connect_v5(client_id: &str, expiry_secs: u32) -> Vec<u8> {
    let mut body = b"\x00\x04MQTT\x05".to_vec();
    body.extend_from_slice(&[0, 0, 0, 5, 17]);
    body.extend_from_slice(&expiry_secs.to_be_bytes());
    wire::text(&mut body, client_id);
    wire::packet(0x10, &body)
}

/// SUBSCRIBE of MQTT 5.0 to some filters.
fn subscribe_v5(filters: &[String], qos: u8) -> Vec<u8> {
    let mut body = vec![0, 1, 0];
    for filter in filters {
        wire::text(&mut body, filter);
        body.push(qos);
    }
    wire::packet(0x82, &body)
}

const PATIENCE: Duration = Duration::from_secs(60);
/// How many connections a crowd has open.
const AT_ONCE: usize = 256;
/// How much a publisher has unacknowledged.
const WINDOW_BYTES: usize = 1 << 20;
pub const WEEK: u32 = 7 * 24 * 3600;
