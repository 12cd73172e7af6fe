//! Clients that others wrote, as their users use them, in MQTT 3.1.1 and 5.0: those of mosquitto, Paho for Python, mqtt.js and rumqttc.
//!
//! Each goes through the same: every QoS both ways, retained messages, a will, a session that is resumed with what waited for it, a large
//! message, unsubscribing; in version 5 properties, topic aliases and request/response. Paho and mqtt.js do so in `tests/clients/`.

mod mosquitto;
mod readme;
mod rumqttc;

use crate::support::{Broker, tools};

/// Paho for Python.
#[test]
fn paho_works() {
    let broker = Broker::start();
    for version in ["4", "5"] {
        tools::paho(broker.port(), ["--version", version]);
    }
}

/// mqtt.js.
#[test]
fn mqttjs_works() {
    let broker = Broker::start();
    for version in ["4", "5"] {
        tools::mqttjs(broker.port(), version);
    }
}
