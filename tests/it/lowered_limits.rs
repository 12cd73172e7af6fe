//! What a restart with less to offer (`session.maximum_qos`, `retain_available`) does to what clients were promised before.

use crate::support::{Broker, Connect, Setup, Will, client::publish_of};

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[session]\n";

fn lower(broker: &mut Broker) {
    broker.kill9();
    broker.file("pinnace.toml", format!("{LISTENER}maximum_qos = 0\nretain_available = false\n"));
    broker.restart();
}

/// A stored Will is published at its own QoS, which its CONNECT was accepted with, to a subscription of that QoS, which its SUBACK granted
/// [MQTT-3.8.4-8]; but it is not retained any more (3.2.2.3.5), nor does it say so, whatever Retain As Published asks for. A new
/// subscription is granted no more than is offered (3.2.2.3.4).
#[test]
fn a_stored_will_keeps_its_qos_and_is_not_retained_any_more() {
    let mut broker = Setup::new().config(LISTENER).start();
    broker.v5("publisher").publish_retained("will", "older", 1);
    let connect = Connect::v5("subscriber").persistent();
    let mut subscriber = broker.connect(&connect);
    const AS_PUBLISHED: u8 = 8;
    const NOTHING_RETAINED: u8 = 0x20;
    subscriber.subscribe("will", 2 | AS_PUBLISHED | NOTHING_RETAINED);
    let _mortal = broker.connect(&Connect::v4("mortal").will(Will::new("will", "last words").qos(2).retained()));
    lower(&mut broker);
    let mut subscriber = broker.connect(&connect);
    assert!(subscriber.session_present());
    let will = subscriber.message();
    assert_eq!((&*will.payload, will.qos, will.retain), (&b"last words"[..], 2, false));
    subscriber.nothing();
    assert_eq!(broker.status_number("retained_messages"), 1, "what was retained is kept, not replaced");
    let mut late = broker.v5("late");
    assert_eq!(late.subscribe_all(&[("will", 2)]), [0], "granted QoS 0");
    late.nothing();
}

/// Maximum QoS limits what clients send, not what they are sent: what was queued keeps its QoS, in a session and in a shared group
/// (3.2.2.3.4) [MQTT-3.8.4-8].
#[test]
fn what_was_queued_keeps_its_qos() {
    let mut broker = Setup::new().config(LISTENER).start();
    let connects = ["alone", "member"].map(|id| Connect::v5(id).persistent());
    for (connect, filter) in connects.iter().zip(["t", "$share/g/t"]) {
        let mut subscriber = broker.connect(connect);
        subscriber.subscribe(filter, 2);
        subscriber.disconnect();
    }
    let mut publisher = broker.v5("publisher");
    for qos in 1..3 {
        assert_eq!(publisher.publish_code(&publish_of("t", "x", qos)), 0);
    }
    lower(&mut broker);
    for connect in &connects {
        let mut subscriber = broker.connect(connect);
        assert_eq!([subscriber.message().qos, subscriber.message().qos], [1, 2], "{}", connect.client_id);
        subscriber.nothing();
    }
}
