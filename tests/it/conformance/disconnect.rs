//! DISCONNECT (3.14), of either side.

use std::time::{Duration, Instant};

use super::watch;
use crate::support::{
    Broker, Connect, Value, Will,
    wire::{self, property},
};

/// A Session Expiry Interval in DISCONNECT counts (D37); one that was 0 cannot be raised (3.14.2.2.2).
#[test]
fn a_disconnect_may_change_the_session_expiry() {
    let broker = Broker::start();
    let expiry = |secs| [(property::SESSION_EXPIRY, Value::Four(secs))];
    let present = |id: &str| {
        let client = broker.connect(&Connect::v5(id).clean(false).expiry(100));
        let present = client.session_present();
        client.disconnect();
        present
    };
    broker.connect(&Connect::v5("at-once").expiry(100)).disconnect_with(0, &expiry(0));
    assert!(!present("at-once"));
    let left = Instant::now();
    broker.connect(&Connect::v5("soon").expiry(100)).disconnect_with(0, &expiry(1));
    let sessions = broker.status_number("sessions");
    broker.until_status("sessions", |now| now < sessions);
    assert!(left.elapsed() >= Duration::from_secs(1), "gone after {:?}", left.elapsed());
    assert!(!present("soon"));
    broker.connect(&Connect::v5("longer").expiry(1)).disconnect_with(0, &expiry(100));
    let mut raised = broker.v5("raised");
    raised.send(&wire::disconnect(0, &expiry(100)));
    assert_eq!(raised.closed(), Some(0x82));
    assert!(!present("raised"));
    assert!(present("longer"));
}

/// DISCONNECT 0x00 discards the will, any other reason publishes it (D14) [MQTT-3.14.4-3], [MQTT-3.1.2-10], in 3.1.1 [MQTT311-3.14.4-3].
#[test]
fn the_reason_of_a_disconnect_decides_about_the_will() {
    let broker = Broker::start();
    let mut watcher = watch(&broker, "will");
    let check = |level: u8, bytes: &[u8], name: &str| {
        let mut client = broker.connect(&Connect::new(level, "mortal").will(Will::new("will", name)));
        client.send(bytes);
        client.closed();
    };
    check(5, &wire::DISCONNECT, "none: normal, short");
    check(5, &[0xe0, 1, 0], "none: normal");
    check(4, &wire::DISCONNECT, "none: 3.1.1");
    check(5, &[0xe0, 1, 0x04], "with will");
    check(5, &wire::disconnect(0x80, &[]), "unspecified");
    let mut texts = [watcher.text(), watcher.text()];
    texts.sort();
    assert_eq!(texts, ["unspecified", "with will"]);
    watcher.nothing();
}

/// Every Reason Code there may be, by who may send it (3.14.2.1): one of the client's ends the connection, and but for 0x00 publishes the will;
/// one that only a server sends, or that no table has, is a Protocol Error, and publishes the will too [MQTT-3.14.2-1], [MQTT-3.14.4-3].
#[test]
fn a_client_uses_the_reason_codes_that_are_its_own() {
    const OWN: [u8; 15] =
        [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, IN_NO_TABLE_OF_3_14];
    // 2.4 has it for DISCONNECT, whoever sends it.
    const IN_NO_TABLE_OF_3_14: u8 = 0x8c;
    let broker = Broker::start();
    let mut watcher = watch(&broker, "will");
    for code in 0..=u8::MAX {
        let will = format!("will of 0x{code:02x}");
        let mut client = broker.connect(&Connect::v5("mortal").will(Will::new("will", &will)));
        client.send(&[0xe0, 1, code]);
        assert_eq!(client.closed(), (!OWN.contains(&code)).then_some(0x82), "0x{code:02x}");
        if code != 0 {
            assert_eq!(watcher.text(), will);
        }
    }
    watcher.nothing();
}
