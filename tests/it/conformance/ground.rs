//! Where wrong packets are tried: each from a client with a Will, before bystanders that exchange messages and notice nothing.

use crate::support::{
    Broker, Client, Connect, Will,
    wire::{self, Packet},
};

/// Bytes that are no UTF-8 Encoded String, and why [MQTT-1.5.4-1], [MQTT-1.5.4-2].
pub const BAD_TEXTS: [(&str, &[u8]); 9] = [
    ("a cut sequence", b"a\xe2\x82"),
    ("a lonely continuation", b"\x80a"),
    ("a broken sequence", b"\xc3\x28"),
    ("a surrogate", b"\xed\xa0\x80"),
    ("a pair of surrogates", b"\xed\xa0\xbd\xed\xb8\x80"),
    ("an overlong slash", b"a\xc0\xaf"),
    ("beyond U+10FFFF", b"\xf4\x90\x80\x80"),
    ("a byte that UTF-8 never has", b"\xff"),
    ("U+0000", b"a\0b"),
];

/// A broker with bystanders.
pub struct Ground {
    broker: Broker,
    level: u8,
    watcher: Client,
    subscriber: Client,
    publisher: Client,
    tried: u32,
}

impl Ground {
    /// For clients of this protocol level.
    pub fn new(level: u8) -> Self {
        let broker = Broker::start();
        let mut watcher = broker.v5("watcher");
        watcher.subscribe("will", 1);
        let mut subscriber = broker.v4("subscriber");
        subscriber.subscribe("bystanders", 1);
        let publisher = broker.v5("publisher");
        Self { broker, level, watcher, subscriber, publisher, tried: 0 }
    }

    fn culprit(&self) -> Client {
        let will = Will::new("will", "ended").qos(1);
        let connect = Connect::new(self.level, "culprit").will(will);
        // Not 0: a DISCONNECT may say another Session Expiry Interval.
        self.broker.connect(&if self.level == 5 { connect.expiry(1) } else { connect })
    }

    /// `bytes` end the connection, in v5 with a DISCONNECT of this reason, and the Will is published.
    pub fn ends(&mut self, name: &str, bytes: &[u8], reason: u8) {
        let mut culprit = self.culprit();
        culprit.send(bytes);
        assert_eq!(culprit.closed(), self.told(reason), "{name}: {bytes:02x?}");
        self.check(name, true);
    }

    /// The same, where packets before the wrong one are answered.
    pub fn ends_eventually(&mut self, name: &str, bytes: &[u8], reason: u8) {
        let mut culprit = self.culprit();
        culprit.send(bytes);
        assert_eq!(culprit.closed_eventually(), self.told(reason), "{name}");
        self.check(name, true);
    }

    fn told(&self, reason: u8) -> Option<u8> {
        (self.level == 5).then_some(reason)
    }

    /// `bytes` are a DISCONNECT as it should be.
    pub fn leaves(&mut self, name: &str, bytes: &[u8]) {
        let mut culprit = self.culprit();
        culprit.send(bytes);
        assert_eq!(culprit.closed(), None, "{name}");
        self.check(name, false);
    }

    /// `bytes` are a DISCONNECT that wants the Will published.
    pub fn leaves_with_will(&mut self, name: &str, bytes: &[u8]) {
        let mut culprit = self.culprit();
        culprit.send(bytes);
        assert_eq!(culprit.closed(), None, "{name}");
        self.check(name, true);
    }

    /// `bytes` are right: the connection goes on.
    pub fn stands(&mut self, name: &str, bytes: &[u8]) {
        let mut culprit = self.culprit();
        culprit.send(bytes);
        culprit.send(&wire::PINGREQ);
        loop {
            match culprit.try_receive(crate::support::PATIENCE) {
                Ok(Packet::PingResp) => break,
                Ok(Packet::Disconnect { .. }) | Err(_) => panic!("{name} is right, but ended: {bytes:02x?}"),
                Ok(_) => {}
            }
        }
        culprit.disconnect();
        self.check(name, false);
    }

    fn check(&mut self, name: &str, ended: bool) {
        self.tried += 1;
        if ended {
            assert_eq!(self.watcher.text(), "ended", "the Will after {name}");
        }
        let payload = self.tried.to_be_bytes();
        self.publisher.publish("bystanders", payload, 1);
        assert_eq!(self.subscriber.message().payload, payload, "{name}");
    }

    /// Wills were published as often as they should be, the bystanders are still there, and nothing of the others is left.
    pub fn nobody_else_noticed(mut self) {
        self.watcher.nothing();
        self.subscriber.nothing();
        self.broker.until_status("clients_connected", |clients| clients == 3);
        self.broker.until_status("subscriptions", |count| count == 2);
    }
}
