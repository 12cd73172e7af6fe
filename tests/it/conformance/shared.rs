//! Shared Subscriptions (4.8).

use std::collections::BTreeMap;

use crate::support::{
    Broker, Client, Connect, Packet, Value,
    wire::{self, PUBACK, Publish, property},
};

fn member(broker: &Broker, id: &str, filter: &str) -> Client {
    let mut client = broker.connect(&Connect::v5(id).persistent());
    client.subscribe(filter, 2);
    client
}

/// Takes what is there for each member until `count` messages came; gives how many each got.
fn shares(members: &mut [&mut Client], count: usize) -> Vec<usize> {
    let mut got = vec![0; members.len()];
    let mut seen = BTreeMap::new();
    crate::support::eventually("all messages of the group", || {
        for (i, member) in members.iter_mut().enumerate() {
            while let Ok(Packet::Publish(publish)) = member.try_receive(std::time::Duration::from_millis(20)) {
                member.send(&wire::ack(PUBACK, publish.id));
                assert_eq!(seen.insert(publish.payload.clone(), i), None, "a message twice");
                got[i] += 1;
            }
        }
        (seen.len() >= count).then_some(())
    });
    got
}

/// A shared group gives each message to one member, and to all of them some; groups do not share with one another, nor with plain
/// subscriptions (4.8.2).
#[test]
fn a_shared_group_divides_its_messages() {
    let broker = Broker::start();
    for persistent in [false, true] {
        let connect = |id: &str| {
            let connect = Connect::v5(id);
            broker.connect(&if persistent { connect.persistent() } else { connect })
        };
        let (mut a, mut b, mut other, mut plain) = (connect("a"), connect("b"), connect("other"), connect("plain"));
        a.subscribe("$share/g/t/#", 1);
        b.subscribe("$share/g/t/#", 1);
        other.subscribe("$share/h/t/#", 1);
        plain.subscribe("t/#", 1);
        let mut publisher = broker.v4("publisher");
        (0..100u8).for_each(|n| publisher.publish("t/x", [n], 1));
        let got = shares(&mut [&mut a, &mut b], 100);
        assert!(got.iter().all(|count| *count >= 20), "{got:?}");
        assert_eq!(shares(&mut [&mut other], 100), [100]);
        assert_eq!(shares(&mut [&mut plain], 100), [100]);
        [a, b, other, plain].into_iter().for_each(|client| {
            client.disconnect_with(0, &[(property::SESSION_EXPIRY, Value::Four(0))][..usize::from(persistent)]);
        });
    }
}

/// A member that left gets nothing more: what comes goes to those that are there (D65, D67); when all are gone, it waits for one.
#[test]
fn a_shared_group_serves_those_that_are_there() {
    let broker = Broker::start();
    let mut a = member(&broker, "a", "$share/g/t");
    let b = member(&broker, "b", "$share/g/t");
    let mut publisher = broker.v4("publisher");
    b.disconnect();
    (0..100u8).for_each(|n| publisher.publish("t", [n], 1));
    assert_eq!(shares(&mut [&mut a], 100), [100]);
    a.disconnect();
    (0..50u8).for_each(|n| publisher.publish("t", [n], 1));
    let mut b = broker.connect(&Connect::v5("b").persistent());
    assert!(b.session_present());
    assert_eq!(shares(&mut [&mut b], 50), [50]);
    let mut a = broker.connect(&Connect::v5("a").persistent());
    a.nothing();
    a.unsubscribe(&["$share/g/t"]);
    (0..10u8).for_each(|n| publisher.publish("t", [n], 1));
    assert_eq!(shares(&mut [&mut b], 10), [10]);
    a.nothing();
}

/// QoS 1 in flight to a member that leaves goes to another one; QoS 2 in flight only ever to the same client [MQTT-4.8.2-4], and to nobody
/// when its session ends [MQTT-4.8.2-5].
#[test]
fn what_a_leaving_member_holds_is_not_lost() {
    let broker = Broker::start();
    for qos in 1..=2 {
        let (first, second) = (format!("first-{qos}"), format!("second-{qos}"));
        let topic = format!("t/{qos}");
        let mut a = member(&broker, &first, &format!("$share/g/{topic}"));
        let mut publisher = broker.v4("publisher");
        publisher.publish(&topic, "held", qos);
        let held = a.delivery();
        let mut b = member(&broker, &second, &format!("$share/g/{topic}"));
        a.cut();
        if qos == 1 {
            assert_eq!(b.text(), "held");
        }
        b.nothing();
        let mut a = broker.connect(&Connect::v5(&first).persistent());
        if qos == 2 {
            let again = a.delivery();
            assert_eq!((again.dup, again.id, &*again.payload), (true, held.id, &b"held"[..]));
            a.send(&wire::ack(wire::PUBREC, again.id));
            a.acknowledged(wire::PUBREL, again.id);
            a.send(&wire::ack(wire::PUBCOMP, again.id));
        }
        a.nothing();
    }
    let mut a = member(&broker, "ending", "$share/g/end");
    let mut publisher = broker.v4("publisher");
    publisher.publish("end", "held", 2);
    a.delivery();
    let mut b = member(&broker, "staying", "$share/g/end");
    a.send(&wire::disconnect(0, &[(property::SESSION_EXPIRY, Value::Four(0))]));
    a.closed();
    publisher.publish("end", "next", 2);
    assert_eq!(b.text(), "next");
    b.nothing();
}

/// A message that a member refuses is not offered to another one, nor to it again (D66) [MQTT-4.8.2-6], [MQTT-4.4.0-2].
#[test]
fn a_refused_message_is_not_passed_on() {
    let broker = Broker::start();
    let mut a = member(&broker, "a", "$share/g/t");
    let mut publisher = broker.v4("publisher");
    publisher.publish("t", "refused", 1);
    let refused = a.delivery();
    let mut b = member(&broker, "b", "$share/g/t");
    a.send(&wire::ack_with(PUBACK, refused.id, 0x80));
    a.ping();
    a.disconnect();
    b.nothing();
    let mut a = broker.connect(&Connect::v5("a").persistent());
    a.nothing();
}

/// The QoS 2 messages that a member had in flight come again to it in their order, with DUP and their ids, and as PUBREL where PUBREC had come
/// [MQTT-4.8.2-4], [MQTT-4.4.0-1], [MQTT-4.6.0-1], [MQTT-4.3.3-5].
#[test]
fn a_members_exchanges_go_on_in_order() {
    let broker = Broker::start();
    let mut member = member(&broker, "member", "$share/g/t");
    let mut publisher = broker.v4("publisher");
    (0..6u8).for_each(|n| publisher.publish("t", [n], 2));
    let sent: Vec<Publish> = (0..6).map(|_| member.delivery()).collect();
    member.send(&wire::ack(wire::PUBREC, sent[3].id));
    assert_eq!(member.acknowledged(wire::PUBREL, sent[3].id), 0);
    member.cut();
    let mut member = broker.connect(&Connect::v5("member").persistent());
    assert!(member.session_present());
    let (mut again, mut released) = (Vec::new(), Vec::new());
    while again.len() < 5 || released.is_empty() {
        match member.receive() {
            Packet::Publish(publish) => again.push(publish),
            Packet::Ack { kind: wire::PUBREL, id, .. } => released.push(id),
            other => panic!("{other:?}"),
        }
    }
    let expected = [0, 1, 2, 4, 5].map(|n| Publish { dup: true, ..sent[n].clone() });
    assert_eq!((again, released), (expected.to_vec(), vec![sent[3].id]));
    member.nothing();
}
