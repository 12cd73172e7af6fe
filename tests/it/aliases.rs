//! Topic aliases that a client is sent (3.3.2.3.4).

use std::collections::BTreeMap;

use crate::support::{
    Broker, Client, Connect, Packet, Random, Setup, Value,
    client::publish_of,
    wire::{self, PUBACK, Publish, property},
};

/// What a client knows of the aliases of its connection.
#[derive(Default)]
struct Aliases {
    maximum: u16,
    names: BTreeMap<u16, String>,
    /// Messages that came without a name.
    unnamed: usize,
}

impl Aliases {
    fn new(maximum: u16) -> Self {
        Self { maximum, ..Self::default() }
    }

    /// The topic that `publish` stands for.
    fn topic(&mut self, publish: &Publish) -> String {
        let Some((_, Value::Two(alias))) = publish.properties.iter().find(|(id, _)| *id == property::TOPIC_ALIAS)
        else {
            assert_ne!(publish.topic, "", "neither name nor alias");
            return publish.topic.clone();
        };
        assert!((1..=self.maximum).contains(alias), "alias {alias} of {}", self.maximum);
        if publish.topic.is_empty() {
            self.unnamed += 1;
        } else {
            self.names.insert(*alias, publish.topic.clone());
        }
        self.names.get(alias).unwrap_or_else(|| panic!("alias {alias} was not set: {publish:?}")).clone()
    }
}

fn connect(id: &str, maximum: u16) -> Connect {
    Connect::v5(id).persistent().property(property::TOPIC_ALIAS_MAXIMUM, Value::Two(maximum))
}

/// Takes the next message, whose payload is its topic.
fn take(client: &mut Client, aliases: &mut Aliases) -> Publish {
    let publish = client.delivery();
    assert_eq!(aliases.topic(&publish).as_bytes(), publish.payload, "{publish:?}");
    publish
}

/// Over reconnects, re-sends and all QoS, every topic is right and every alias one that this connection was told, and few names are sent
/// twice [MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-7], [MQTT-3.3.2-8], [MQTT-3.3.2-11] (D78).
#[test]
fn aliases_stand_for_their_topics() {
    let mut random = Random::seeded("aliases_stand_for_their_topics");
    let broker = Broker::start();
    let mut publisher = broker.v4("publisher");
    let mut unnamed = 0;
    for (round, maximum) in [5_u16, 65_535, 0, 1, 5].into_iter().enumerate() {
        let mut aliases = Aliases::new(maximum);
        let mut client = broker.connect(&connect("c", maximum));
        if round == 0 {
            client.subscribe("fleet/#", 1);
        }
        for _ in 0..if round == 0 { 0 } else { 20 } {
            let again = take(&mut client, &mut aliases);
            assert!(again.dup && again.qos == 1, "it was in flight when the last connection ended: {again:?}");
            client.send(&wire::ack(PUBACK, again.id));
        }
        for n in 0..200 {
            // Nine of ten go to few topics.
            let topic = format!("fleet/{}", if random.below(10) > 0 { random.below(4) } else { random.below(100) });
            publisher.publish(&topic, &topic, random.below(2) as u8);
            let publish = take(&mut client, &mut aliases);
            if publish.qos == 1 {
                client.send(&wire::ack(PUBACK, publish.id));
            }
            assert!(aliases.names.len() <= usize::from(maximum).min(64), "message {n}");
        }
        for _ in 0..20 {
            publisher.publish("fleet/1", "fleet/1", 1);
            take(&mut client, &mut aliases);
        }
        unnamed += aliases.unnamed;
        client.cut();
    }
    assert!(unnamed > 400, "of 800 messages to clients that take aliases, {unnamed} were sent by alias");
}

/// While there are free aliases, a topic's first message sets one, and all later ones come by it alone, whatever their QoS.
#[test]
fn a_free_alias_is_set_by_the_first_message() {
    let broker = Broker::start();
    let mut client = broker.connect(&connect("c", 2));
    client.subscribe("fleet/#", 2);
    let mut publisher = broker.v4("publisher");
    let mut aliases = Aliases::new(2);
    for (n, topic) in ["fleet/a", "fleet/b"].into_iter().enumerate() {
        for qos in 0..3 {
            publisher.publish(topic, topic, qos);
            let publish = take(&mut client, &mut aliases);
            assert_eq!((publish.topic.as_str(), aliases.names.len()), (if qos == 0 { topic } else { "" }, n + 1));
        }
    }
}

/// The operator's limit holds too; 0 turns aliases off.
#[test]
fn the_limit_of_aliases_holds() {
    for limit in [0_u16, 2] {
        let broker = Setup::new().config(&format!("[session]\nclient_topic_alias_maximum = {limit}\n")).start();
        let mut client = broker.connect(&connect("c", 65_535));
        client.subscribe("fleet/#", 0);
        let mut publisher = broker.v4("publisher");
        let mut aliases = Aliases::new(limit);
        for n in 0..60 {
            let topic = format!("fleet/{}", n % 3);
            publisher.publish(&topic, &topic, 0);
            take(&mut client, &mut aliases);
        }
        assert_eq!(aliases.names.len(), usize::from(limit));
    }
}

/// What is too large for the client with its name is counted and not sent, and sets no alias; what fits by its alias comes
/// [MQTT-3.1.2-24], [MQTT-3.1.2-25].
#[test]
fn aliases_and_the_maximum_packet_size() {
    let broker = Broker::start();
    let topic = format!("fleet/{}", "x".repeat(94));
    let small = |payload: usize| Publish { payload: vec![b'x'; payload], ..publish_of(&topic, "", 0) };
    // Fixed header 2, topic 2 + 100, Property Length 1: 105 and the payload by name; 8 and the payload by alias.
    let connect = connect("c", 5).property(property::MAXIMUM_PACKET_SIZE, Value::Four(109));
    let mut client = broker.connect(&connect);
    client.subscribe("fleet/#", 0);
    let mut publisher = broker.v4("publisher");
    // The first two would set the alias with 3 bytes more than there are.
    for payload in [4, 4, 5, 1] {
        publisher.publish_as(&small(payload));
    }
    let mut aliases = Aliases::new(5);
    for (payload, named) in [(4, true), (4, true), (1, true)] {
        let publish = client.delivery();
        assert_eq!((publish.payload.len(), !publish.topic.is_empty()), (payload, named));
        assert_eq!(aliases.topic(&publish), topic);
    }
    assert_eq!(aliases.names.len(), 1, "the last one set it");
    for payload in [50, 102, 101] {
        publisher.publish_as(&small(payload));
    }
    for payload in [50, 101] {
        let publish = client.delivery();
        assert_eq!((publish.payload.len(), publish.topic.as_str()), (payload, ""));
        assert_eq!(aliases.topic(&publish), topic);
    }
    broker.until_status("too_large", |count| count == 2);
    assert!(matches!(client.try_receive(std::time::Duration::ZERO), Err(_) | Ok(Packet::PingResp)));
    client.nothing();
}
