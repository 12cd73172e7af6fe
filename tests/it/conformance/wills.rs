//! Will Messages (3.1.2.5, 3.1.3.2): when they are published, and when not.

use std::time::{Duration, Instant};

use super::watch;
use crate::support::{Broker, Client, Connect, Lost, Setup, Will, wire};

/// A cut connection publishes its will at the will's QoS and with its RETAIN (D13) [MQTT-3.1.2-7], [MQTT-3.1.2-8], [MQTT-3.1.2-14],
/// [MQTT-3.1.2-15].
#[test]
fn a_cut_connection_publishes_its_will() {
    let broker = Broker::start();
    let mut watcher = watch(&broker, "will/#");
    for level in 3..=5 {
        for qos in 0..3 {
            for retain in [false, true] {
                let topic = format!("will/{level}/{qos}/{retain}");
                let mut will = Will::new(&topic, "gone").qos(qos);
                will.retain = retain;
                broker.connect(&Connect::new(level, "mortal").will(will)).cut();
                let message = watcher.message();
                assert_eq!((message.topic.as_str(), message.qos, message.retain), (topic.as_str(), qos, false));
                let mut late = broker.v4("late");
                late.subscribe(&topic, 0);
                if retain {
                    assert!(late.message().retain);
                }
                late.nothing();
            }
        }
    }
}

/// The will is published too when the broker ends the connection: for a malformed packet, for one too large (D15), or because the client
/// ended its sending side (D94) [MQTT-3.1.2-8].
#[test]
fn a_connection_ended_by_the_broker_publishes_its_will() {
    let broker = Setup::new().config("[session]\nmax_packet_size_bytes = 10000\n").start();
    let mut watcher = watch(&broker, "will");
    let large = wire::packet(0x30, &[b'x'; 10_001]);
    for (level, bytes) in [(4, &[0x36, 0x00][..]), (5, &[0x36, 0x00]), (5, &[0xd1, 0x00]), (4, &large), (5, &large)] {
        let mut client = broker.connect(&Connect::new(level, "mortal").will(Will::new("will", "broken")));
        client.send(bytes);
        client.closed();
        assert_eq!(watcher.text(), "broken");
    }
    let mut client = broker.connect(&Connect::v5("mortal").will(Will::new("will", "half closed")));
    client.subscribe("anything", 0);
    client.shut_sending();
    assert_eq!(watcher.text(), "half closed");
}

/// A client that is taken over publishes its will [MQTT-3.1.4-3]; one with a delay does not, while its session goes on [MQTT-3.1.3-9].
#[test]
fn a_take_over_is_no_death_of_a_session() {
    let broker = Broker::start();
    let mut watcher = watch(&broker, "will");
    let _first = broker.connect(&Connect::v5("same").expiry(100).will(Will::new("will", "at once")));
    let _second = broker.connect(&Connect::v5("same").persistent().will(Will::new("will", "delayed").delay(100)));
    assert_eq!(watcher.text(), "at once");
    let third = broker.connect(&Connect::v5("same").persistent());
    third.disconnect();
    watcher.nothing();
    // The session ends before the delay is over: published at the earlier of the two.
    let fourth = broker.connect(&Connect::v5("same").persistent().will(Will::new("will", "session over").delay(100)));
    let fifth = broker.connect(&Connect::v5("same"));
    assert_eq!(watcher.text(), "session over");
    drop((fourth, fifth));
}

/// A Will Delay is waited for, and a client that comes back in time keeps its will to itself [MQTT-3.1.3-9]; a session that ends earlier
/// ends the waiting.
#[test]
fn a_will_delay_is_waited_for() {
    let broker = Broker::start();
    let mut watcher = watch(&broker, "will");
    let began = Instant::now();
    broker.connect(&Connect::v5("late").expiry(100).will(Will::new("will", "after a second").delay(1))).cut();
    broker.connect(&Connect::v5("back").expiry(100).will(Will::new("will", "never").delay(1))).cut();
    let _back = broker.connect(&Connect::v5("back").persistent());
    assert_eq!(watcher.text(), "after a second");
    assert!(began.elapsed() >= Duration::from_millis(900), "after {:?}", began.elapsed());
    broker.connect(&Connect::v5("short").expiry(1).will(Will::new("will", "session over").delay(100))).cut();
    broker.connect(&Connect::v5("none").will(Will::new("will", "no session").delay(100))).cut();
    assert_eq!(watcher.text(), "no session");
    assert_eq!(watcher.text(), "session over");
    watcher.nothing();
}

/// Wills come from every listener (D20).
#[test]
fn every_listener_publishes_wills() {
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.2:0\"\n";
    let broker = Setup::new().config(config).start();
    let mut watcher = watch(&broker, "will/+");
    for address in broker.addresses() {
        let topic = format!("will/{}", address.ip());
        drop(Client::tcp(*address).login(&Connect::v4("mortal").will(Will::new(&topic, "gone"))));
        assert_eq!(watcher.message().topic, topic);
    }
}

/// A will with an invalid topic or QoS is no CONNECT [MQTT-3.1.2-12].
#[test]
fn a_will_must_be_publishable() {
    let broker = Broker::start();
    for will in [Will::new("a/+", "x"), Will::new("#", "x"), Will::new("", "x"), Will::new("a", "x").qos(3)] {
        for level in 4..=5 {
            let mut client = broker.tcp();
            match client.try_login(&Connect::new(level, "x").will(will.clone())) {
                Err(Lost::Closed) => {}
                Ok(wire::Packet::ConnAck { code, .. }) => assert_ne!(code, 0, "{will:?}"),
                other => panic!("{will:?}: {other:?}"),
            }
        }
    }
}

/// A will that was published is gone: the next connection without one leaves none behind [MQTT-3.1.2-10]; a will of an earlier connection does not
/// come back either.
#[test]
fn a_will_is_published_once() {
    let broker = Broker::start();
    let mut watcher = watch(&broker, "will");
    for level in 4..=5 {
        let connect = Connect::new(level, "mortal").persistent();
        broker.connect(&connect.clone().will(Will::new("will", "first"))).cut();
        assert_eq!(watcher.text(), "first");
        broker.connect(&connect).cut();
        let next = broker.connect(&connect.clone().will(Will::new("will", "second")));
        next.disconnect();
        broker.connect(&connect).cut();
        broker.connect(&connect).disconnect();
        watcher.nothing();
    }
}

/// Before v5 a client that is taken over publishes its will, whatever the new CONNECT says [MQTT311-3.1.2-8]; in v5 too, unless the session goes on
/// and the will has a delay (3.1.3.2.2) [MQTT-3.1.3-9].
#[test]
fn a_take_over_publishes_the_will_of_older_versions() {
    let broker = Broker::start();
    let mut watcher = watch(&broker, "will");
    for (old, new) in [(3, 3), (3, 4), (4, 3), (4, 4), (4, 5), (5, 4), (5, 5)] {
        for clean in [false, true] {
            let will = Will::new("will", "gone").qos(1);
            let mut first = broker.connect(&Connect::new(old, "same").persistent().will(will));
            let next = broker.connect(&Connect::new(new, "same").clean(clean));
            first.closed();
            assert_eq!(watcher.text(), "gone", "{old} by {new}, clean: {clean}");
            next.disconnect();
            watcher.nothing();
        }
    }
}
