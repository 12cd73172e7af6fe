//! Long waits on the simulated clock: minutes of silence, hours of absence. Each has a test over the network too, with limits of seconds.
//!
//! The handshake and the connection loop are the real ones, over pipes in memory; time stands still until the test moves it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

#[path = "simulation/executor.rs"]
mod executor;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use executor::Executor;
use pinnace::{
    auth::Auth,
    broker::Broker,
    clock,
    mqtt::Timestamp,
    net::Shared,
    session::Limits,
    storage::{Config, Durability, Store, faulty::FaultyEngine},
};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const PINGREQ: [u8; 2] = [0xc0, 0];
const PINGRESP: [u8; 2] = [0xd0, 0];

struct World {
    executor: Executor,
    broker: Arc<Broker>,
    shared: Arc<Shared>,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let now = clock::now();
        clock::simulate(now);
        let executor = Executor::new();
        let config = Config { durability: Durability::Os, ..Config::default() };
        let store = Arc::new(Store::stepped(Arc::new(FaultyEngine::new()), &config).expect("the store opens"));
        let auth = Auth::load(&pinnace::auth::Config::default()).expect("no files");
        let broker = Broker::new(pinnace::broker::Config::default(), Limits::default(), store, auth);
        executor.enter(|| broker.recover(now)).expect("nothing is stored");
        let shared = Shared::in_memory(broker.clone());
        Self { executor, broker, shared, now }
    }

    /// Lets everybody do what is due.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.executor.run();
            self.executor.enter(|| while self.broker.store.step() {});
        }
        self.executor.run();
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        clock::simulate(self.now);
        self.executor.enter(|| while self.broker.sweep(self.now, 16) {});
        self.settle();
    }

    /// A connection that has said this.
    fn connect(&mut self, connect: &[u8]) -> Wire {
        let (near, far) = tokio::io::duplex(65_536);
        self.executor.spawn(self.shared.clone().serve(far));
        let mut wire = Wire(near);
        wire.say(connect);
        self.settle();
        let connack = wire.hear().expect("open");
        assert_eq!((connack[0], connack[3]), (0x20, 0), "CONNACK: {connack:02x?}");
        wire
    }
}

/// A client's end, by the bytes.
struct Wire(DuplexStream);

impl Wire {
    fn say(&mut self, bytes: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut self.0).poll_write(&mut cx, bytes), Poll::Ready(Ok(n)) if n == bytes.len()));
    }

    /// What came; none where the broker has closed.
    fn hear(&mut self) -> Option<Vec<u8>> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut heard = Vec::new();
        loop {
            let mut space = [0; 4096];
            let mut buf = ReadBuf::new(&mut space);
            match Pin::new(&mut self.0).poll_read(&mut cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => return (!heard.is_empty()).then_some(heard),
                Poll::Ready(Ok(())) => heard.extend_from_slice(buf.filled()),
                Poll::Pending => return Some(heard),
                Poll::Ready(Err(_)) => return None,
            }
        }
    }
}

/// A CONNECT of v5: flags, Keep Alive, properties, client id and what follows it.
fn connect(flags: u8, keep_alive: u16, properties: &[u8], id: &str, rest: &[u8]) -> Vec<u8> {
    let mut body = b"\0\x04MQTT\x05".to_vec();
    body.push(flags);
    body.extend_from_slice(&keep_alive.to_be_bytes());
    body.push(properties.len() as u8);
    body.extend_from_slice(properties);
    body.extend_from_slice(&(id.len() as u16).to_be_bytes());
    body.extend_from_slice(id.as_bytes());
    body.extend_from_slice(rest);
    [&[0x10, body.len() as u8], &body[..]].concat()
}

fn expiry(secs: u32) -> Vec<u8> {
    [&[0x11], &secs.to_be_bytes()[..]].concat()
}

/// SUBSCRIBE to `filter`, of one letter, at QoS 2.
fn subscribe(filter: u8) -> Vec<u8> {
    vec![0x82, 7, 0, 1, 0, 0, 1, filter, 2]
}

/// A PUBLISH to a topic of one letter, with a Message Expiry Interval where `secs` is above 0; its payload is "x".
fn publish(topic: u8, qos: u8, retain: bool, secs: u32) -> Vec<u8> {
    let mut body = vec![0, 1, topic];
    body.extend_from_slice(if qos > 0 { &[0, 9] } else { &[] });
    if secs > 0 {
        body.extend_from_slice(&[5, 0x02]);
        body.extend_from_slice(&secs.to_be_bytes());
    } else {
        body.push(0);
    }
    body.push(b'x');
    [&[0x30 | qos << 1 | u8::from(retain), body.len() as u8], &body[..]].concat()
}

/// One history of a day, since there is one simulated clock: Keep Alive 0 (D10), deliveries that nobody
/// acknowledges (D30) [MQTT-4.4.0-1], sessions, wills and messages that expire [MQTT-3.3.2-5], [MQTT-3.3.2-6], [MQTT-4.1.0-2], [MQTT-3.1.3-9].
#[test]
fn a_day_of_long_waits() {
    let mut world = World::new();
    let mut forever = world.connect(&connect(2, 0, &[], "forever", &[]));
    let mut lazy = world.connect(&connect(2, 0, &[], "lazy", &[]));
    lazy.say(&subscribe(b't'));
    let mut watcher = world.connect(&connect(2, 0, &[], "watcher", &[]));
    watcher.say(&subscribe(b'w'));
    let mut publisher = world.connect(&connect(2, 0, &[], "publisher", &[]));
    world.settle();
    for wire in [&mut lazy, &mut watcher] {
        assert_eq!(wire.hear().expect("open")[0], 0x90, "SUBACK");
    }

    // QoS 1 and 2 in flight, for two minutes and for hours.
    publisher.say(&publish(b't', 1, false, 0));
    publisher.say(&publish(b't', 2, false, 0));
    world.settle();
    let sent = lazy.hear().expect("open");
    assert_eq!((sent[0], sent[2 + sent[1] as usize]), (0x32, 0x34), "both were sent: {sent:02x?}");
    for _ in 0..8 {
        world.wait(15_000);
        assert_eq!(lazy.hear().as_deref(), Some(&[][..]), "sent again on a living connection");
    }

    // A will with a delay of an hour, in a session of ten hours; a session of a minute; a will whose client comes back.
    let will = |delay: u32| {
        let delay = delay.to_be_bytes();
        [&[5, 0x18][..], &delay, b"\0\x01w\0\x04gone"].concat()
    };
    drop(world.connect(&connect(0x04, 0, &expiry(36_000), "late", &will(3600))));
    drop(world.connect(&connect(0x04, 0, &expiry(36_000), "back", &will(3600))));
    drop(world.connect(&connect(0x00, 0, &expiry(60), "short", &[])));
    let mut reader = world.connect(&connect(0x00, 0, &expiry(36_000), "reader", &[]));
    reader.say(&subscribe(b'r'));
    world.settle();
    drop(reader);
    world.settle();
    // To the absent reader and retained, both with two hours to live; and one of ten minutes.
    publisher.say(&publish(b'r', 1, true, 7200));
    publisher.say(&publish(b'r', 1, false, 600));
    world.settle();
    world.wait(30 * MINUTE);
    let back = world.connect(&connect(0x00, 0, &expiry(36_000), "back", &[]));
    assert_eq!(watcher.hear().as_deref(), Some(&[][..]), "before its delay");
    world.wait(31 * MINUTE);
    let heard = watcher.hear().expect("open");
    assert_eq!(heard.windows(4).filter(|window| window == b"gone").count(), 1, "one will: {heard:02x?}");
    let (near, far) = tokio::io::duplex(65_536);
    world.executor.spawn(world.shared.clone().serve(far));
    let mut short = Wire(near);
    short.say(&connect(0x00, 0, &expiry(60), "short", &[]));
    world.settle();
    assert_eq!(short.hear().expect("open")[2], 0, "a session of a minute is over after an hour");

    // The reader comes after 61 minutes: one message has expired, the other says what is left of its two hours.
    let (near, far) = tokio::io::duplex(65_536);
    world.executor.spawn(world.shared.clone().serve(far));
    let mut reader = Wire(near);
    reader.say(&connect(0x00, 0, &expiry(36_000), "reader", &[]));
    world.settle();
    let heard = reader.hear().expect("open");
    assert_eq!(heard[2], 1, "its session is there: {heard:02x?}");
    let delivery = &heard[2 + heard[1] as usize..];
    assert_eq!(delivery[1] as usize + 2, delivery.len(), "one message alone: {delivery:02x?}");
    let left = u32::from_be_bytes(delivery[9..13].try_into().unwrap());
    assert_eq!(left, 7200 - 61 * 60, "seconds left: {delivery:02x?}");

    // An hour later the retained message is gone; who wanted no Keep Alive stays.
    world.wait(HOUR);
    let mut late = world.connect(&connect(2, 0, &[], "late reader", &[]));
    late.say(&subscribe(b'r'));
    world.settle();
    assert_eq!(late.hear().expect("open").len(), 6, "SUBACK and nothing retained");
    world.wait(20 * HOUR);
    forever.say(&PINGREQ);
    lazy.say(&PINGREQ);
    world.settle();
    assert_eq!(forever.hear().as_deref(), Some(&PINGRESP[..]));
    assert_eq!(lazy.hear().as_deref(), Some(&PINGRESP[..]), "not sent again in a day");
    drop(back);
}
