//! Conformance, a file per chapter of MQTT 5.0: each test names the clauses (`[MQTT-x.y.z-n]`, 3.1.1's own `[MQTT311-x.y.z-n]`) that it
//! would see broken. Where 3.1 or 3.1.1 answers otherwise, the same test runs for it too.
//!
//! Knows the wire and the configuration, nothing of the broker's inside.

mod acks;
mod auth;
mod capabilities;
mod connack;
mod connect;
mod connecting;
mod disconnect;
mod ground;
mod malformed;
mod network;
mod payload_format;
mod properties;
mod publish;
mod qos;
mod responses;
mod retained;
mod sessions;
mod shared;
mod subscribe;
mod topics;
mod unsubscribe;
mod wills;

use crate::support::{Broker, Client};

/// A subscriber of `filter` at `qos` and a publisher, both of v5.
fn pair(broker: &Broker, filter: &str, qos: u8) -> (Client, Client) {
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe(filter, qos);
    (subscriber, broker.v5("publisher"))
}

/// A client that watches for Will Messages under `filter`.
fn watch(broker: &Broker, filter: &str) -> Client {
    let mut watcher = broker.v5("watcher");
    watcher.subscribe(filter, 2);
    watcher
}
