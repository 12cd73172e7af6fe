//! `mosquitto_pub`, `mosquitto_sub` and `mosquitto_rr`.

use crate::support::{
    Broker, Connect, Value,
    client::publish_of,
    tools::{self, MosquittoSub, Tool},
    wire::{Publish, property},
};

/// `mosquitto_pub` and `mosquitto_sub`: every QoS, wildcards, retained, will, a persistent session, 3.1.1 and 5.
#[test]
fn mosquitto_clients_work() {
    let broker = Broker::start();
    let port = broker.port();
    for version in ["mqttv31", "mqttv311", "mqttv5"] {
        let root = format!("home/{version}");
        let with = |args: &[&str]| {
            args.iter().map(|arg| arg.replace("ROOT", &root)).chain(["-V".into(), version.into()]).collect::<Vec<_>>()
        };
        let mut sub = MosquittoSub::subscribed(port, with(&["-t", "ROOT/+/temperature", "-q", "2"]));
        for qos in ["0", "1", "2"] {
            tools::publish(port, with(&["-t", "ROOT/attic/temperature", "-m", "21.5", "-q", qos]));
            assert_eq!(sub.message(), format!("{root}/attic/temperature {qos} 0 21.5"));
        }
        tools::publish(port, with(&["-t", "ROOT/state", "-m", "kept", "-q", "1", "-r"]));
        let mut late = MosquittoSub::start(port, with(&["-t", "ROOT/#", "-q", "1", "-C", "1"]));
        assert_eq!(late.message(), format!("{root}/state 1 1 kept"));
        tools::publish(port, with(&["-t", "ROOT/state", "-n", "-r"]));

        let mut watcher = MosquittoSub::subscribed(port, with(&["-t", "ROOT/will", "-q", "1"]));
        let will = ["-t", "ROOT/x", "--will-topic", "ROOT/will", "--will-payload", "gone", "--will-qos", "1"];
        MosquittoSub::subscribed(port, with(&will)).kill();
        assert_eq!(watcher.message(), format!("{root}/will 1 0 gone"));

        let mut persistent = with(&["-t", "ROOT/queue", "-q", "2", "-i", "sleeper", "-c"]);
        if version == "mqttv5" {
            persistent.extend(["-x".into(), "3600".into()]);
        }
        let leave = persistent.iter().cloned().chain(["-E".into()]);
        let (code, said) = MosquittoSub::start(port, leave).end();
        assert_eq!(code, Some(0), "{said:?}");
        for n in 0..10 {
            tools::publish(port, with(&["-t", "ROOT/queue", "-m", &n.to_string(), "-q", ["1", "2"][n / 5]]));
        }
        let mut awake = MosquittoSub::start(port, persistent.into_iter().chain(["-C".into(), "10".into()]));
        for n in 0..10 {
            assert_eq!(awake.message(), format!("{root}/queue {} 0 {n}", 1 + n / 5));
        }
        assert_eq!(awake.end().0, Some(0));
        broker.connect(&Connect::new(5, "sleeper")).disconnect();
    }
}

/// A message of 1.5 MB at every QoS, and UNSUBSCRIBE.
#[test]
fn large_messages_and_unsubscribing() {
    let broker = Broker::start();
    let port = broker.port();
    let payload: String = (0..1_500_000u32).map(|n| char::from(b'0' + (n / 3 % 70) as u8)).collect();
    let file = broker.file("large", &payload);
    for version in ["mqttv311", "mqttv5"] {
        let topics = ["-V", version, "-q", "2", "-t", "left", "-t", "large", "-U", "left"];
        let mut sub = MosquittoSub::start(port, topics);
        sub.line("UNSUBACK", |line| line.contains("received UNSUBACK"));
        for qos in ["0", "1", "2"] {
            tools::publish(port, ["-V", version, "-t", "left", "-m", "nobody", "-q", qos]);
            tools::publish(port, ["-V", version, "-t", "large", "-q", qos, "-f", file.to_str().unwrap()]);
            let message = sub.message();
            assert!(message == format!("large {qos} 0 {payload}"), "{} bytes", message.len());
        }
    }
}

/// The properties of a PUBLISH, the order of user properties and repeated names included; an alias that the client sets.
#[test]
fn properties_pass_through() {
    let broker = Broker::start();
    let format = "message %P|%C|%R|%D|%F|%E|%p";
    let mut sub = MosquittoSub::subscribed(broker.port(), ["-V", "mqttv5", "-t", "rich", "-q", "1", "-F", format]);
    let mut publish = vec!["-V", "mqttv5", "-t", "rich", "-q", "1", "-m", "21.5"];
    for property in [
        &["user-property", "unit", "C"][..],
        &["user-property", "room", "attic"],
        &["user-property", "unit", "F"],
        &["content-type", "text/plain"],
        &["response-topic", "answer"],
        &["correlation-data", "c-7"],
        &["payload-format-indicator", "1"],
        &["message-expiry-interval", "100"],
        &["topic-alias", "1"],
    ] {
        publish.extend(["-D", "publish"]);
        publish.extend(property);
    }
    // The second of two in one connection stands on the alias.
    publish.extend(["--repeat", "2"]);
    tools::publish(broker.port(), publish);
    for _ in 0..2 {
        let message = sub.message();
        let fields: Vec<&str> = message.split('|').collect();
        assert_eq!(fields[..5], ["unit:C room:attic unit:F", "text/plain", "answer", "c-7", "1"], "{message}");
        assert!((90..=100).contains(&fields[5].parse::<u32>().unwrap()), "{message}");
        assert_eq!(fields[6], "21.5");
    }
}

/// `mosquitto_rr` asks and prints the answer; in version 5 the request says where that is to go.
#[test]
fn mosquitto_rr_gets_its_answer() {
    let broker = Broker::start();
    let mut responder = broker.v5("responder");
    responder.subscribe("ask", 1);
    for version in ["mqttv311", "mqttv5"] {
        let mut args = vec!["-V", version, "-q", "1", "-t", "ask", "-e", "answers/mine", "-m", "6 x 7"];
        if version == "mqttv5" {
            args.extend(["-D", "publish", "correlation-data", "c-7"]);
        }
        let asking = Tool::start("mosquitto_rr", broker.port(), args);
        let request = responder.message();
        assert_eq!((request.qos, &*request.payload), (1, &b"6 x 7"[..]));
        let find = |id: u8| request.properties.iter().find(|(known, _)| *known == id).map(|(_, value)| value.clone());
        let mut answer = publish_of("answers/mine", "42", 1);
        if version == "mqttv5" {
            assert_eq!(find(property::RESPONSE_TOPIC), Some(Value::Text("answers/mine".into())));
            let correlation = find(property::CORRELATION_DATA).expect("correlation data");
            assert_eq!(correlation, Value::Binary(b"c-7".to_vec()));
            answer = Publish { properties: vec![(property::CORRELATION_DATA, correlation)], ..answer };
        }
        responder.publish_as(&answer);
        let output = asking.end();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n");
    }
}
