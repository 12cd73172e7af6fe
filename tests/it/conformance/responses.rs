//! Request and response (4.10): the Response Information of CONNACK, and what it is good for.

use crate::support::{
    Broker, Connect, Setup, Value,
    client::publish_of,
    wire::{Publish, property},
};

fn asking(client_id: &str) -> Connect {
    Connect::v5(client_id).property(property::REQUEST_RESPONSE_INFORMATION, Value::Byte(1))
}

/// What a client that asks is told.
fn told(broker: &Broker, connect: &Connect) -> Option<String> {
    match broker.connect(connect).connack_property(property::RESPONSE_INFORMATION) {
        None => None,
        Some(Value::Text(topic)) => Some(topic.clone()),
        other => panic!("{other:?}"),
    }
}

/// [MQTT-3.1.2-28]: who asks is told a topic of its own, who does not ask, or says 0, is not. A requester gets its answer there.
#[test]
fn response_information_is_told_on_request_only() {
    let broker = Broker::start();
    assert_eq!(told(&broker, &asking("one")).as_deref(), Some("response/one"));
    assert_eq!(told(&broker, &Connect::v5("one")), None);
    let no = Connect::v5("one").property(property::REQUEST_RESPONSE_INFORMATION, Value::Byte(0));
    assert_eq!(told(&broker, &no), None);
    // Ids that would leave their level.
    for odd in ["a/b", "+", "a#", "a/+"] {
        assert_eq!(told(&broker, &asking(odd)), None, "{odd}");
    }
    let mut responder = broker.v5("responder");
    responder.subscribe("request", 1);
    let mut requester = broker.connect(&asking("requester"));
    let Some(Value::Text(topic)) = requester.connack_property(property::RESPONSE_INFORMATION).cloned() else {
        panic!()
    };
    requester.subscribe(&format!("{topic}/#"), 1);
    requester.publish_as(&Publish {
        properties: vec![
            (property::RESPONSE_TOPIC, Value::Text(format!("{topic}/1"))),
            (property::CORRELATION_DATA, Value::Binary(vec![7])),
        ],
        ..publish_of("request", "how many?", 1)
    });
    let request = responder.message();
    let Some((_, Value::Text(reply_to))) = request.properties.iter().find(|(id, _)| *id == property::RESPONSE_TOPIC)
    else {
        panic!("{request:?}")
    };
    responder.publish(reply_to, "seven", 1);
    let reply = requester.message();
    assert_eq!((reply.topic.as_str(), reply.payload.as_slice()), ("response/requester/1", &b"seven"[..]));
}

/// It is told only where the ACL lets the client receive everything below it.
#[test]
fn response_information_is_what_the_acl_permits() {
    for (acl, expected) in [
        ("topic readwrite other/#\n", None),
        ("topic write response/#\n", None),
        ("topic read response/one/only\n", None),
        ("topic read response/+\n", None),
        ("topic deny response/one/secret\ntopic read response/#\n", None),
        ("topic deny response/two/#\ntopic read response/#\n", Some("response/one")),
        ("pattern readwrite response/%c/#\n", Some("response/one")),
        ("topic read #\n", Some("response/one")),
    ] {
        let setup = Setup::new();
        setup.file("acl", acl);
        let broker = setup.config("[auth]\nacl_file = \"acl\"\n").start();
        assert_eq!(told(&broker, &asking("one")).as_deref(), expected, "{acl}");
        assert!(told(&broker, &asking("two")).is_none_or(|topic| topic == "response/two"), "{acl}");
    }
}

/// The prefix is an option; empty, nobody is told. A CONNACK that is too large with it goes without.
#[test]
fn the_response_topic_is_an_option() {
    let with =
        |prefix: &str| Setup::new().config(&format!("[session]\nresponse_topic_prefix = \"{prefix}\"\n")).start();
    let broker = with("fleet/%c/answers");
    assert_eq!(told(&broker, &asking("one")).as_deref(), Some("fleet/one/answers"));
    let id = "x".repeat(200);
    let small = asking(&id).property(property::MAXIMUM_PACKET_SIZE, Value::Four(60));
    assert_eq!(told(&broker, &small), None);
    broker.connect(&asking(&"x".repeat(65_535))).ping();
    assert_eq!(told(&with(""), &asking("one")), None);
    let refused = Setup::new().config("[session]\nresponse_topic_prefix = \"response\"\n").refused();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("response_topic_prefix") && said.contains("%c"), "{said}");
}
