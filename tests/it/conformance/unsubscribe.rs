//! UNSUBSCRIBE and UNSUBACK (3.10, 3.11).

use crate::support::{Broker, Connect, wire};

/// After UNSUBACK nothing new comes [MQTT-3.10.4-2]; what was on its way is completed [MQTT-3.10.4-3].
#[test]
fn an_unsubscribe_completes_what_is_in_flight() {
    let broker = Broker::start();
    for persistent in [false, true] {
        let connect = Connect::v5("subscriber").receive_maximum(1);
        let mut subscriber = broker.connect(&if persistent { connect.persistent() } else { connect });
        subscriber.subscribe("t", 2);
        let mut publisher = broker.v4("publisher");
        publisher.publish("t", "in flight", 2);
        let in_flight = subscriber.delivery();
        assert_eq!(subscriber.unsubscribe(&["t"]), [0]);
        publisher.publish("t", "too late", 2);
        subscriber.send(&wire::ack(wire::PUBREC, in_flight.id));
        assert_eq!(subscriber.acknowledged(wire::PUBREL, in_flight.id), 0);
        subscriber.send(&wire::ack(wire::PUBCOMP, in_flight.id));
        subscriber.nothing();
        subscriber.disconnect();
    }
}
