//! Shared subscriptions as the operator wants them: strategies, redelivery, and members that lose a right.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    auth::{login, password_line},
    support::{
        Broker, Client, Connect, Packet, Setup, eventually,
        wire::{self, PUBACK, PUBREC, PUBREL, Publish},
    },
};

fn broker(options: &str) -> Broker {
    Setup::new().config(&format!("[broker.shared_subscriptions]\n{options}\n")).start()
}

fn member(broker: &Broker, id: &str, window: u16) -> Client {
    let mut client = broker.connect(&Connect::v5(id).persistent().receive_maximum(window));
    client.subscribe("$share/g/t/#", 2);
    client
}

/// What came for each of `members` once `count` have come in all; nothing is acknowledged.
fn take(members: &mut [&mut Client], count: usize) -> Vec<Vec<Publish>> {
    let mut got: Vec<Vec<Publish>> = members.iter().map(|_| Vec::new()).collect();
    eventually("all messages of the group", || {
        for (member, got) in members.iter_mut().zip(&mut got) {
            while let Ok(Packet::Publish(publish)) = member.try_receive(Duration::from_millis(5)) {
                got.push(publish);
            }
        }
        (got.iter().map(Vec::len).sum::<usize>() >= count).then_some(())
    });
    got
}

/// `sticky`: all to one while it is connected, then to another one.
#[test]
fn sticky() {
    let broker = broker("strategy = \"sticky\"");
    let mut publisher = broker.v5("publisher");
    let (mut first, mut second) = (member(&broker, "first", 100), member(&broker, "second", 100));
    (0..10).for_each(|n| publisher.publish(&format!("t/{n}"), "x", 1));
    let got = take(&mut [&mut first, &mut second], 10);
    assert_eq!((got[0].len(), got[1].len()), (10, 0));
    first.disconnect();
    publisher.publish("t/last", "x", 1);
    let got = take(&mut [&mut second], 11).remove(0);
    assert_eq!((got.iter().filter(|one| one.dup).count(), got[10].topic.as_str()), (10, "t/last"), "in order: {got:?}");
}

/// `least-in-flight`: who acknowledges gets more.
#[test]
fn least_in_flight() {
    let broker = broker("strategy = \"least-in-flight\"");
    let mut publisher = broker.v5("publisher");
    let (mut idle, mut busy) = (member(&broker, "idle", 100), member(&broker, "busy", 100));
    let mut held = 0;
    for n in 0..20 {
        publisher.publish("t/x", n.to_string(), 1);
        let got = take(&mut [&mut idle, &mut busy], 1);
        held += got[0].len();
        got[1].iter().for_each(|one| busy.send(&wire::ack(PUBACK, one.id)));
        busy.ping();
    }
    assert_eq!(held, 1, "one that it never acknowledged, and no more");
}

/// `hash-publisher`: each publisher has its member, over all topics, and waits for it while its window is full, without a gap in its order.
#[test]
fn hash_publisher() {
    let broker = broker("strategy = \"hash-publisher\"");
    let mut members: Vec<_> = (0..3).map(|n| member(&broker, &format!("member-{n}"), 2)).collect();
    let mut publishers: Vec<_> = (0..8).map(|n| broker.v5(&format!("publisher-{n}"))).collect();
    for n in 0..10 {
        for (from, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(&format!("t/{from}/{n}"), n.to_string(), 1);
        }
    }
    let mut of: BTreeMap<String, (usize, u32)> = BTreeMap::new();
    let mut count = 0;
    eventually("all messages", || {
        for (at, member) in members.iter_mut().enumerate() {
            while let Ok(Packet::Publish(publish)) = member.try_receive(Duration::from_millis(5)) {
                let from = publish.topic.split('/').nth(1).unwrap().to_owned();
                let number: u32 = String::from_utf8_lossy(&publish.payload).parse().unwrap();
                let (with, next) = of.entry(from.clone()).or_insert((at, 0));
                assert_eq!((*with, *next), (at, number), "publisher {from}");
                *next += 1;
                count += 1;
                member.send(&wire::ack(PUBACK, publish.id));
            }
        }
        (count == 80).then_some(())
    });
    assert!(of.values().any(|(at, _)| *at != of["0"].0), "all publishers with one member");
}

/// QoS 1 in flight goes to another member when its holder's connection ends, or by option only when its session ends [MQTT-4.8.2-5]; QoS 2
/// to nobody [MQTT-4.8.2-4].
#[test]
fn redelivery() {
    for (option, on_disconnect) in [("on-disconnect", true), ("on-session-end", false)] {
        let broker = broker(&format!("redeliver = \"{option}\"\nstrategy = \"sticky\""));
        let mut publisher = broker.v5("publisher");
        let mut holder = member(&broker, "holder", 100);
        publisher.publish("t/1", "one", 1);
        publisher.publish("t/2", "two", 2);
        let got = take(&mut [&mut holder], 2).remove(0);
        let mut other = member(&broker, "other", 100);
        holder.cut();
        broker.until_status("clients_connected", |count| count == 2);
        publisher.publish("t/3", "three", 0);
        let first = other.delivery();
        if on_disconnect {
            assert_eq!((first.payload.as_slice(), first.dup), (&b"one"[..], true));
            assert_eq!(other.delivery().payload, b"three");
        } else {
            assert_eq!(first.payload, b"three", "what is in flight waits for its holder");
        }
        let mut holder = broker.connect(&Connect::v5("holder").persistent());
        assert!(holder.session_present());
        if !on_disconnect {
            let again = holder.delivery();
            assert_eq!((again.payload.as_slice(), again.dup, again.id), (&b"one"[..], true, got[0].id));
        }
        let again = holder.delivery();
        assert_eq!((again.payload.as_slice(), again.dup, again.id), (&b"two"[..], true, got[1].id));
        holder.send(&wire::ack(PUBREC, again.id));
        assert_eq!(holder.acknowledged(PUBREL, again.id), 0);
        // The session ends: QoS 1 goes on, QoS 2 is given up and counted.
        holder.cut();
        broker.until_status("clients_connected", |count| count == 2);
        broker.connect(&Connect::v5("holder")).disconnect();
        if !on_disconnect {
            let again = other.delivery();
            assert_eq!((again.payload.as_slice(), again.dup), (&b"one"[..], true));
        }
        other.nothing();
        assert_eq!(broker.status_number("session_ended"), 1);
    }
}

/// What waited in a group while all its members were away was never sent, also after restarts of the broker: it has no DUP [MQTT-3.3.1-1],
/// and what of it expires is dropped. What was in flight as the broker died comes again, expired or not [MQTT-4.3.3-7].
#[test]
#[cfg(feature = "rocksdb")]
fn what_waits_is_not_taken_for_sent_after_a_restart() {
    use crate::support::{Value, client::publish_of, wire::property};

    let mut broker = broker("");
    let expires = || vec![(property::MESSAGE_EXPIRY, Value::Four(1))];
    let publish = |broker: &Broker, text: &str, properties| {
        let publish = Publish { properties, ..publish_of("t/x", text, 1) };
        assert_eq!(broker.v5("publisher").publish_code(&publish), 0);
    };
    let mut holder = member(&broker, "holder", 2);
    publish(&broker, "sent", expires());
    assert_eq!(holder.delivery().payload, b"sent");
    broker.kill9();
    broker.restart();
    publish(&broker, "waits", vec![]);
    publish(&broker, "expires", expires());
    let began = std::time::Instant::now();
    broker.kill9();
    broker.restart();
    let mut other = broker.v5("other");
    while began.elapsed() < Duration::from_millis(1_600) {
        assert!(other.try_receive(Duration::from_millis(100)).is_err());
    }
    let mut holder = broker.connect(&Connect::v5("holder").persistent());
    for (text, dup) in [("sent", true), ("waits", false)] {
        let got = holder.message();
        assert_eq!((String::from_utf8_lossy(&got.payload).as_ref(), got.dup), (text, dup));
    }
    holder.nothing();
    assert_eq!(broker.status_number("expired"), 1);
    // A member that left in peace held nothing.
    holder.disconnect();
    publish(&broker, "later", vec![]);
    broker.terminate();
    broker.restart();
    let mut holder = broker.connect(&Connect::v5("holder").persistent());
    let got = holder.message();
    assert_eq!((got.payload.as_slice(), got.dup), (&b"later"[..], false));
}

/// A message that waits for a member which loses the right to it goes to another one that has it.
#[test]
fn what_waits_for_a_member_without_the_right_goes_to_another() {
    let rules = |first: &str| {
        format!("user first\ntopic read own\n{first}user second\ntopic read t/#\nuser publisher\ntopic write #\n")
    };
    let setup = Setup::new();
    setup.file("acl", rules("topic read t/#\n"));
    setup.file(
        "passwords",
        ["first", "second", "publisher"]
            .map(|name| password_line(name, format!("secret of {name}").as_bytes()))
            .concat(),
    );
    let broker = setup
        .config("[[listener]]\naddress = \"127.0.0.1:0\"\n[auth]\nacl_file = \"acl\"\npassword_file = \"passwords\"\n")
        .start();
    let mut first = broker.connect(&login(Connect::v5("first").persistent().receive_maximum(1), "first"));
    first.subscribe("own", 1);
    first.subscribe("$share/g/t/#", 1);
    let mut publisher = broker.connect(&login(Connect::v5("publisher"), "publisher"));
    // The window is full of another message: what the group gives waits in the mailbox.
    publisher.publish("own", "in flight", 1);
    let in_flight = first.delivery();
    publisher.publish("t/x", "waits", 1);
    let mut second = broker.connect(&login(Connect::v5("second").persistent(), "second"));
    second.subscribe("$share/g/t/#", 1);
    second.nothing();
    broker.file("acl", rules(""));
    broker.reload();
    let moved = second.delivery();
    assert_eq!((moved.payload.as_slice(), moved.dup), (&b"waits"[..], false), "it was never sent");
    first.send(&wire::ack(PUBACK, in_flight.id));
    first.nothing();
    assert_eq!(broker.status_number("acl_denied"), 0);
}
