//! AUTH (3.15) and enhanced authentication (4.12).

use crate::support::{
    Broker, Connect, Value,
    wire::{self, property},
};

/// An authentication method that nobody knows is refused; AUTH without a method is a protocol error (D18) [MQTT-4.12.0-1].
#[test]
fn unknown_authentication_methods_are_refused() {
    let broker = Broker::start();
    let method = Connect::v5("x").property(property::AUTHENTICATION_METHOD, Value::Text("X".into()));
    assert_eq!(broker.refused(&method), 0x8c);
    let mut client = broker.v5("x");
    let mut body = vec![0x19];
    wire::properties(&mut body, &[(property::AUTHENTICATION_METHOD, Value::Text("X".into()))]);
    client.send(&wire::packet(0xf0, &body));
    assert_eq!(client.closed(), Some(0x82));
}
