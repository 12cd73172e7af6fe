//! Acknowledgements of the wrong kind: what a client may not answer to what it was sent.

use crate::support::{
    Broker, Connect, Packet,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL},
};

/// [MQTT-4.3.2-4], [MQTT-4.3.3-8], [MQTT-4.3.3-11], [MQTT311-4.8.0-1]: an acknowledgement of another kind than the one that is due ends the
/// connection; the message is not settled by it, and comes again.
#[test]
fn the_wrong_kind_ends_the_connection() {
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    for level in 3..=5 {
        for (qos, answers) in
            [(1, &[PUBREC][..]), (1, &[PUBCOMP]), (2, &[PUBACK]), (2, &[PUBCOMP]), (2, &[PUBREC, PUBACK])]
        {
            let connect = Connect::new(level, "subscriber").persistent();
            let mut subscriber = broker.connect(&connect);
            subscriber.subscribe("t", 2);
            publisher.publish("t", "again", qos);
            let sent = subscriber.delivery();
            let Some((wrong, before)) = answers.split_last() else { unreachable!() };
            for kind in before {
                subscriber.send(&wire::ack(*kind, sent.id));
                subscriber.acknowledged(PUBREL, sent.id);
            }
            subscriber.send(&wire::ack(*wrong, sent.id));
            assert_eq!(subscriber.closed(), (level == 5).then_some(0x82), "level {level}, QoS {qos}, {answers:?}");
            let mut subscriber = broker.connect(&connect);
            if before.is_empty() {
                assert_eq!(subscriber.text(), "again");
            } else {
                subscriber.acknowledged(PUBREL, sent.id);
                subscriber.send(&wire::ack(PUBCOMP, sent.id));
            }
            drop(subscriber);
            broker.connect(&Connect::new(level, "subscriber")).disconnect();
        }
    }
}

/// [MQTT-4.3.3-4]: a PUBREC that refuses has no PUBREL, for an id that nobody knows neither.
#[test]
fn a_refusing_pubrec_of_an_unknown_id_has_no_pubrel() {
    let broker = Broker::start();
    let mut client = broker.v5("x");
    client.send(&wire::ack_with(PUBREC, 77, 0x80));
    client.send(&wire::PINGREQ);
    assert_eq!(client.receive(), Packet::PingResp);
}
