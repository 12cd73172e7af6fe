//! A raw MQTT client over TCP or TLS: blocking, with a deadline on every read, and full control of every byte.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    PATIENCE,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Packet, Properties, Publish, Value, property},
};

/// A delivery whose handshake is done.
pub type Message = Publish;

/// Why nothing more can be read.
#[derive(Debug)]
pub enum Lost {
    /// The server closed the connection (end of file or reset).
    Closed,
    /// Nothing came within the deadline.
    TimedOut,
    /// Anything else.
    Io(std::io::Error),
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Tcp(tcp) => tcp,
            Self::Tls(tls) => &tls.sock,
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(buf),
            Self::Tls(tls) => tls.read(buf),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.write_all(bytes),
            Self::Tls(tls) => tls.write_all(bytes).and_then(|()| tls.flush()),
        }
    }
}

/// A Will.
#[derive(Debug, Clone, Default)]
pub struct Will {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub properties: Properties,
}

impl Will {
    /// A Will of QoS 0.
    pub fn new(topic: &str, payload: &str) -> Self {
        Self { topic: topic.into(), payload: payload.into(), ..Self::default() }
    }

    /// With this QoS.
    pub fn qos(self, qos: u8) -> Self {
        Self { qos, ..self }
    }

    /// Retained.
    pub fn retained(self) -> Self {
        Self { retain: true, ..self }
    }

    /// With a Will Delay Interval (v5).
    pub fn delay(mut self, secs: u32) -> Self {
        self.properties.push((property::WILL_DELAY, Value::Four(secs)));
        self
    }
}

/// What a CONNECT says; encoded as it stands.
#[derive(Debug, Clone)]
pub struct Connect {
    /// 3, 4 or 5.
    pub level: u8,
    pub clean: bool,
    pub keep_alive: u16,
    pub client_id: String,
    pub properties: Properties,
    pub will: Option<Will>,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
}

impl Connect {
    /// Of a protocol level, with a clean session and without keep alive.
    pub fn new(level: u8, client_id: &str) -> Self {
        Self {
            level,
            clean: true,
            keep_alive: 0,
            client_id: client_id.into(),
            properties: Vec::new(),
            will: None,
            username: None,
            password: None,
        }
    }

    /// MQTT 3.1.1.
    pub fn v4(client_id: &str) -> Self {
        Self::new(4, client_id)
    }

    /// MQTT 5.0.
    pub fn v5(client_id: &str) -> Self {
        Self::new(5, client_id)
    }

    /// A session that is kept: Clean Start 0 and, in v5, a Session Expiry Interval of an hour.
    pub fn persistent(self) -> Self {
        let v5 = self.level == 5;
        let kept = Self { clean: false, ..self };
        if v5 { kept.expiry(3600) } else { kept }
    }

    /// Clean Start (Clean Session).
    pub fn clean(self, clean: bool) -> Self {
        Self { clean, ..self }
    }

    /// A Session Expiry Interval (v5).
    pub fn expiry(self, secs: u32) -> Self {
        self.property(property::SESSION_EXPIRY, Value::Four(secs))
    }

    /// A Receive Maximum (v5).
    pub fn receive_maximum(self, count: u16) -> Self {
        self.property(property::RECEIVE_MAXIMUM, Value::Two(count))
    }

    /// Any property (v5).
    pub fn property(mut self, id: u8, value: Value) -> Self {
        self.properties.push((id, value));
        self
    }

    /// A Keep Alive.
    pub fn keep_alive(self, secs: u16) -> Self {
        Self { keep_alive: secs, ..self }
    }

    /// A Will.
    pub fn will(self, will: Will) -> Self {
        Self { will: Some(will), ..self }
    }

    /// User name and password.
    pub fn login(self, username: &str, password: impl Into<Vec<u8>>) -> Self {
        Self { username: Some(username.into()), password: Some(password.into()), ..self }
    }

    /// A user name alone.
    pub fn username(self, username: &str) -> Self {
        Self { username: Some(username.into()), ..self }
    }

    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        wire::binary(&mut body, if self.level == 3 { b"MQIsdp" } else { b"MQTT" });
        body.push(self.level);
        let will = self.will.as_ref().map_or(0, |will| 4 | will.qos << 3 | u8::from(will.retain) << 5);
        body.push(
            u8::from(self.clean) << 1
                | will
                | u8::from(self.password.is_some()) << 6
                | u8::from(self.username.is_some()) << 7,
        );
        body.extend_from_slice(&self.keep_alive.to_be_bytes());
        if self.level == 5 {
            wire::properties(&mut body, &self.properties);
        }
        wire::binary(&mut body, self.client_id.as_bytes());
        if let Some(will) = &self.will {
            if self.level == 5 {
                wire::properties(&mut body, &will.properties);
            }
            wire::binary(&mut body, will.topic.as_bytes());
            wire::binary(&mut body, &will.payload);
        }
        if let Some(username) = &self.username {
            wire::binary(&mut body, username.as_bytes());
        }
        if let Some(password) = &self.password {
            wire::binary(&mut body, password);
        }
        wire::packet(0x10, &body)
    }
}

/// A connection to a broker.
pub struct Client {
    stream: Stream,
    v5: bool,
    unread: Vec<u8>,
    aside: VecDeque<Packet>,
    next_id: u16,
    /// What the server said to the CONNECT, when it was sent by [`Client::login`].
    pub connack: Option<Packet>,
}

impl Client {
    /// A TCP connection on which nothing is said yet.
    pub fn tcp(address: SocketAddr) -> Self {
        Self::over(Stream::Tcp(dial(address)))
    }

    /// The same, to a broker that may be gone.
    pub fn try_tcp(address: SocketAddr) -> Result<Self, Lost> {
        Ok(Self::over(Stream::Tcp(try_dial(address).map_err(lost)?)))
    }

    /// A TLS connection on which nothing is said yet; the handshake is done with the first read or write.
    pub fn tls(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> Self {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let session = rustls::ClientConnection::new(config, name).expect("a TLS client");
        Self::over(Stream::Tls(Box::new(rustls::StreamOwned::new(session, dial(address)))))
    }

    fn over(stream: Stream) -> Self {
        Self { stream, v5: false, unread: Vec::new(), aside: VecDeque::new(), next_id: 0, connack: None }
    }

    /// Sends CONNECT and gives the answer: the CONNACK, or why there is none.
    pub fn try_login(&mut self, connect: &Connect) -> Result<Packet, Lost> {
        self.v5 = connect.level == 5;
        self.try_send(&connect.encode())?;
        let connack = self.try_receive(PATIENCE)?;
        assert!(matches!(connack, Packet::ConnAck { .. }), "a first packet that is no CONNACK: {connack:?}");
        self.connack = Some(connack.clone());
        Ok(connack)
    }

    /// Sends CONNECT, which must be accepted; gives the client back for chaining.
    pub fn login(mut self, connect: &Connect) -> Self {
        match self.try_login(connect) {
            Ok(Packet::ConnAck { code: 0, .. }) => self,
            other => panic!("CONNECT of {:?} was not accepted: {other:?}", connect.client_id),
        }
    }

    /// Whether the CONNACK said that a session was present.
    pub fn session_present(&self) -> bool {
        matches!(self.connack, Some(Packet::ConnAck { session_present: true, .. }))
    }

    /// A property of the CONNACK.
    pub fn connack_property(&self, id: u8) -> Option<&Value> {
        self.connack.as_ref()?.property(id)
    }

    /// Sets the version by which packets are read, for a CONNECT written by hand.
    pub fn speak_v5(&mut self, v5: bool) {
        self.v5 = v5;
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("a connection that takes bytes");
    }

    /// Sends bytes; an error where the server has closed.
    pub fn try_send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.stream.write_all(bytes).map_err(lost)
    }

    /// The next packet within `patience`, those put aside first.
    pub fn try_receive(&mut self, patience: Duration) -> Result<Packet, Lost> {
        match self.aside.pop_front() {
            Some(packet) => Ok(packet),
            None => self.read_packet(Instant::now() + patience),
        }
    }

    /// The next packet.
    pub fn receive(&mut self) -> Packet {
        self.try_receive(PATIENCE).expect("a packet")
    }

    /// The next packet, as the bytes of the wire.
    pub fn receive_bytes(&mut self) -> Vec<u8> {
        self.try_receive_bytes(Instant::now() + PATIENCE).expect("a packet")
    }

    /// As [`Client::receive_bytes`], with an error where the connection ends.
    pub fn try_receive_raw(&mut self) -> Result<Vec<u8>, Lost> {
        self.try_receive_bytes(Instant::now() + PATIENCE)
    }

    fn try_receive_bytes(&mut self, deadline: Instant) -> Result<Vec<u8>, Lost> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some((len, _)) = wire::cut(&self.unread) {
                return Ok(self.unread.drain(..len).collect());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Lost::TimedOut);
            }
            self.stream.tcp().set_read_timeout(Some(left)).map_err(lost)?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
    }

    fn read_packet(&mut self, deadline: Instant) -> Result<Packet, Lost> {
        self.try_receive_bytes(deadline).map(|bytes| wire::decode(self.v5, &bytes))
    }

    /// The first packet that `wanted` takes; others are put aside for later.
    pub fn wait_for(&mut self, what: &str, mut wanted: impl FnMut(&Packet) -> bool) -> Packet {
        self.try_wait_for(&mut wanted)
            .unwrap_or_else(|lost| panic!("{what} did not come: {lost:?}; aside: {:?}", self.aside))
    }

    /// As [`Client::wait_for`], with an error where the connection ends.
    pub fn try_wait_for(&mut self, wanted: &mut dyn FnMut(&Packet) -> bool) -> Result<Packet, Lost> {
        if let Some(at) = self.aside.iter().position(&mut *wanted) {
            return Ok(self.aside.remove(at).unwrap());
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let packet = self.read_packet(deadline)?;
            if wanted(&packet) {
                return Ok(packet);
            }
            self.aside.push_back(packet);
        }
    }

    /// Waits until the server closes; gives the Reason Code of its DISCONNECT, if it sent one (v5). Other packets are an error.
    pub fn closed(&mut self) -> Option<u8> {
        let mut reason = None;
        loop {
            match self.try_receive(PATIENCE) {
                Ok(Packet::Disconnect { code, .. }) if reason.is_none() => reason = Some(code),
                Ok(packet) => panic!("expected the end of the connection, got {packet:?}"),
                Err(Lost::Closed) => return reason,
                Err(other) => panic!("expected the end of the connection, got {other:?}"),
            }
        }
    }

    /// As [`Client::closed`], skipping what else still comes.
    pub fn closed_eventually(&mut self) -> Option<u8> {
        let mut reason = None;
        loop {
            match self.try_receive(PATIENCE) {
                Ok(Packet::Disconnect { code, .. }) => reason = Some(code),
                Ok(_) => {}
                Err(Lost::Closed) => return reason,
                Err(other) => panic!("expected the end of the connection, got {other:?}"),
            }
        }
    }

    /// PINGREQ and its PINGRESP; what comes before it is put aside.
    pub fn ping(&mut self) {
        self.send(&wire::PINGREQ);
        self.wait_for("PINGRESP", |packet| *packet == Packet::PingResp);
    }

    /// Asserts that nothing was sent to this client: the answer to a PINGREQ comes first. What other connections do must be settled before.
    pub fn nothing(&mut self) {
        self.ping();
        assert!(self.aside.is_empty(), "nothing was expected, but {:?}", self.aside);
    }

    /// A packet id that was not used lately.
    pub fn packet_id(&mut self) -> u16 {
        self.next_id = self.next_id % 0xffff + 1;
        self.next_id
    }

    /// SUBSCRIBE to one filter, which must be granted with the QoS asked for.
    pub fn subscribe(&mut self, filter: &str, qos: u8) {
        assert_eq!(self.subscribe_all(&[(filter, qos)]), [qos & 3], "SUBSCRIBE {filter} with options {qos:#x}");
    }

    /// SUBSCRIBE to filters with their options; gives the SUBACK's codes.
    pub fn subscribe_all(&mut self, filters: &[(&str, u8)]) -> Vec<u8> {
        self.subscribe_with(&[], filters)
    }

    /// SUBSCRIBE with properties.
    pub fn subscribe_with(&mut self, properties: &[(u8, Value)], filters: &[(&str, u8)]) -> Vec<u8> {
        let id = self.packet_id();
        self.send(&wire::subscribe(self.v5, id, properties, filters));
        match self.wait_for("SUBACK", |packet| matches!(packet, Packet::SubAck { .. })) {
            Packet::SubAck { id: answered, codes, .. } => {
                assert_eq!(answered, id, "the packet identifier of the SUBACK");
                codes
            }
            _ => unreachable!(),
        }
    }

    /// UNSUBSCRIBE from filters; gives the UNSUBACK's codes (none before v5).
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Vec<u8> {
        let id = self.packet_id();
        self.send(&wire::unsubscribe(self.v5, id, filters));
        match self.wait_for("UNSUBACK", |packet| matches!(packet, Packet::UnsubAck { .. })) {
            Packet::UnsubAck { id: answered, codes, .. } => {
                assert_eq!(answered, id, "the packet identifier of the UNSUBACK");
                codes
            }
            _ => unreachable!(),
        }
    }

    /// PUBLISH with its whole handshake, which must succeed.
    pub fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) {
        self.publish_as(&publish_of(topic, payload, qos));
    }

    /// A retained PUBLISH with its whole handshake.
    pub fn publish_retained(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) {
        self.publish_as(&Publish { retain: true, ..publish_of(topic, payload, qos) });
    }

    /// A PUBLISH of any make with its whole handshake; the packet identifier is chosen here. Gives the first acknowledgement's code.
    pub fn publish_as(&mut self, publish: &Publish) -> u8 {
        let code = self.publish_code(publish);
        assert!(code < 0x80, "PUBLISH to {} was refused with {code:#x}", publish.topic);
        code
    }

    /// As [`Client::publish_as`], where a refusal is an answer too.
    pub fn publish_code(&mut self, publish: &Publish) -> u8 {
        let id = if publish.qos > 0 { self.packet_id() } else { 0 };
        self.send_publish(&Publish { id, ..publish.clone() });
        match publish.qos {
            0 => 0,
            1 => self.acknowledged(PUBACK, id),
            _ => {
                let code = self.acknowledged(PUBREC, id);
                if code < 0x80 {
                    self.send(&wire::ack(PUBREL, id));
                    assert_eq!(self.acknowledged(PUBCOMP, id), 0, "PUBCOMP");
                }
                code
            }
        }
    }

    /// A PUBLISH alone, as it stands.
    pub fn send_publish(&mut self, publish: &Publish) {
        self.send(&wire::publish(self.v5, publish));
    }

    /// Waits for an acknowledgement; gives its code.
    pub fn acknowledged(&mut self, kind: u8, id: u16) -> u8 {
        let wanted = |packet: &Packet| matches!(packet, Packet::Ack { kind: k, id: i, .. } if (*k, *i) == (kind, id));
        match self.wait_for("the acknowledgement", wanted) {
            Packet::Ack { code, .. } => code,
            _ => unreachable!(),
        }
    }

    /// The next PUBLISH, with nothing said to it.
    pub fn delivery(&mut self) -> Publish {
        match self.receive() {
            Packet::Publish(publish) => publish,
            other => panic!("expected a PUBLISH, got {other:?}"),
        }
    }

    /// The next PUBLISH, acknowledged to the end of its handshake.
    pub fn message(&mut self) -> Message {
        let publish = self.delivery();
        match publish.qos {
            0 => {}
            1 => self.send(&wire::ack(PUBACK, publish.id)),
            _ => {
                self.send(&wire::ack(PUBREC, publish.id));
                assert_eq!(self.acknowledged(PUBREL, publish.id), 0);
                self.send(&wire::ack(PUBCOMP, publish.id));
            }
        }
        publish
    }

    /// The payload of the next message, acknowledged, as text.
    pub fn text(&mut self) -> String {
        String::from_utf8(self.message().payload).expect("text")
    }

    /// Messages up to the one whose payload is `last`, without it, as text.
    pub fn texts_until(&mut self, last: &str) -> Vec<String> {
        let mut texts = Vec::new();
        loop {
            let text = self.text();
            if text == last {
                return texts;
            }
            texts.push(text);
        }
    }

    /// DISCONNECT, then waits for the server's close.
    pub fn disconnect(mut self) {
        self.send(&wire::DISCONNECT);
        self.closed_eventually();
    }

    /// DISCONNECT with a Reason Code and properties (v5), then waits for the server's close.
    pub fn disconnect_with(mut self, code: u8, properties: &[(u8, Value)]) {
        self.send(&wire::disconnect(code, properties));
        self.closed_eventually();
    }

    /// Cuts the connection without a word.
    pub fn cut(self) {
        drop(self);
    }

    /// Ends the sending side only.
    pub fn shut_sending(&self) {
        self.stream.tcp().shutdown(Shutdown::Write).unwrap();
    }

    /// The socket below.
    pub fn socket(&self) -> &TcpStream {
        self.stream.tcp()
    }
}

/// A PUBLISH of topic, payload and QoS.
pub fn publish_of(topic: &str, payload: impl AsRef<[u8]>, qos: u8) -> Publish {
    Publish { topic: topic.into(), payload: payload.as_ref().to_vec(), qos, ..Publish::default() }
}

fn dial(address: SocketAddr) -> TcpStream {
    try_dial(address).expect("a broker that listens")
}

fn try_dial(address: SocketAddr) -> std::io::Result<TcpStream> {
    let tcp = TcpStream::connect_timeout(&address, PATIENCE)?;
    tcp.set_nodelay(true)?;
    tcp.set_write_timeout(Some(PATIENCE))?;
    Ok(tcp)
}

fn lost(error: std::io::Error) -> Lost {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Lost::TimedOut,
        ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::ConnectionAborted
        | ErrorKind::UnexpectedEof => Lost::Closed,
        _ => Lost::Io(error),
    }
}
