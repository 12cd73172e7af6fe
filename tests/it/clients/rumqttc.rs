//! rumqttc, the client of many programs in Rust: its API for 3.1.1 and its API for 5.0 behind one [`Device`], and one scenario for both.

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::Instant,
};

use rumqttc::v5::mqttbytes::v5::PublishProperties;
use tokio::sync::oneshot;

use crate::support::{Broker, PATIENCE};

#[test]
fn rumqttc_works() {
    let broker = Broker::start();
    for version in [4, 5] {
        let connect = |name: &str| Device::connect(broker.port(), version, name, true, None).0;
        let (mut watcher, mut device) = (connect("watcher"), connect("device"));
        let steps: &[fn(&Broker, u8, &mut Device, &mut Device)] =
            &[every_qos, retained, will, session, large, unsubscribed];
        let of_v5: &[fn(&Broker, u8, &mut Device, &mut Device)] = &[properties, request_response];
        for step in steps.iter().chain(of_v5.iter().filter(|_| version == 5)) {
            step(&broker, version, &mut watcher, &mut device);
            assert!(watcher.messages.is_empty() && device.messages.is_empty());
        }
        watcher.disconnect();
        device.disconnect();
    }
}

fn every_qos(_: &Broker, _: u8, watcher: &mut Device, device: &mut Device) {
    watcher.subscribe("qos/+/value", 2);
    device.subscribe("order", 1);
    for qos in 0..3 {
        device.publish(&format!("qos/{qos}/value"), b"up", qos, false);
        watcher.expect(&format!("qos/{qos}/value"), b"up", qos, false);
        watcher.publish("order", b"down", qos, false);
        device.expect("order", b"down", qos.min(1), false);
    }
    watcher.unsubscribe("qos/+/value");
    device.unsubscribe("order");
}

fn retained(broker: &Broker, version: u8, _: &mut Device, device: &mut Device) {
    device.publish("state", b"kept", 1, true);
    let (mut late, _) = Device::connect(broker.port(), version, "late", true, None);
    late.subscribe("state", 2);
    late.expect("state", b"kept", 1, true);
    late.publish("state", b"", 1, true);
    late.expect("state", b"", 1, false);
    late.disconnect();
}

fn will(broker: &Broker, version: u8, watcher: &mut Device, _: &mut Device) {
    watcher.subscribe("will", 1);
    let (mortal, _) = Device::connect(broker.port(), version, "mortal", true, Some("will"));
    mortal.cut();
    watcher.expect("will", b"gone", 1, false);
}

fn session(broker: &Broker, version: u8, watcher: &mut Device, _: &mut Device) {
    let connect = |clean| Device::connect(broker.port(), version, "sleeper", clean, None);
    let (mut sleeper, present) = connect(false);
    assert!(!present);
    sleeper.subscribe("queue", 2);
    sleeper.disconnect();
    for n in 0..20 {
        watcher.publish("queue", &[n], 1 + n / 10, false);
    }
    let (mut sleeper, present) = connect(false);
    assert!(present);
    for n in 0..20 {
        sleeper.expect("queue", &[n], 1 + n / 10, false);
    }
    assert!(sleeper.messages.is_empty());
    sleeper.disconnect();
    let (sleeper, present) = connect(true);
    assert!(!present);
    sleeper.disconnect();
}

fn large(_: &Broker, _: u8, watcher: &mut Device, device: &mut Device) {
    watcher.subscribe("large", 2);
    let payload: Vec<u8> = (0..LARGE).map(|n| (n >> 4) as u8).collect();
    for qos in 0..3 {
        device.publish("large", &payload, qos, false);
        watcher.expect("large", &payload, qos, false);
    }
}

fn unsubscribed(_: &Broker, _: u8, watcher: &mut Device, device: &mut Device) {
    watcher.subscribe("left", 1);
    watcher.subscribe("stayed", 1);
    watcher.unsubscribe("left");
    device.publish("left", b"nobody", 1, false);
    device.publish("stayed", b"somebody", 1, false);
    watcher.expect("stayed", b"somebody", 1, false);
}

fn properties(_: &Broker, _: u8, watcher: &mut Device, device: &mut Device) {
    watcher.subscribe("rich", 1);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let sent = PublishProperties {
        payload_format_indicator: Some(1),
        response_topic: Some("answer".into()),
        correlation_data: Some((0..=255).collect::<Vec<u8>>().into()),
        user_properties: vec![pair("unit", "C"), pair("room", "attic"), pair("unit", "F")],
        content_type: Some("text/plain".into()),
        ..PublishProperties::default()
    };
    // The first sets the alias, the second stands on it.
    for topic in ["rich", ""] {
        let alias = PublishProperties { topic_alias: Some(1), message_expiry_interval: Some(100), ..sent.clone() };
        device.publish_with(topic, b"21.5", alias);
        let mut got = watcher.expect("rich", b"21.5", 1, false).expect("properties");
        let left = got.message_expiry_interval.take().expect("the rest of the interval");
        assert!((90..=100).contains(&left), "{left}");
        assert_eq!(got, sent);
    }
}

fn request_response(_: &Broker, _: u8, watcher: &mut Device, device: &mut Device) {
    device.subscribe("request", 1);
    watcher.subscribe("response/mine", 1);
    let correlation = PublishProperties { correlation_data: Some(vec![0, 255, 7].into()), ..Default::default() };
    let asked = PublishProperties { response_topic: Some("response/mine".into()), ..correlation.clone() };
    watcher.publish_with("request", b"6 x 7", asked);
    let request = device.expect("request", b"6 x 7", 1, false).expect("properties");
    let answer = PublishProperties { correlation_data: request.correlation_data, ..Default::default() };
    device.publish_with(&request.response_topic.expect("a response topic"), b"42", answer);
    let response = watcher.expect("response/mine", b"42", 1, false).expect("properties");
    assert_eq!(response.correlation_data, correlation.correlation_data);
}

/// What a client was told, in either version.
#[derive(Debug)]
enum Event {
    Connected {
        session_present: bool,
    },
    Granted(String),
    Unsubscribed,
    /// PUBACK or PUBCOMP, or that a PUBLISH of QoS 0 was written.
    Published,
    Message(Message),
    Lost(#[allow(dead_code, reason = "read in its Debug form")] String),
}

#[derive(Debug, PartialEq)]
struct Message {
    topic: String,
    payload: Vec<u8>,
    qos: u8,
    retain: bool,
    properties: Option<PublishProperties>,
}

enum Api {
    V4(rumqttc::AsyncClient),
    V5(rumqttc::v5::AsyncClient),
}

/// A client of either version.
struct Device {
    api: Api,
    events: Receiver<Event>,
    messages: VecDeque<Message>,
    /// Ends the connection where it stands.
    cut: oneshot::Sender<()>,
    driver: JoinHandle<()>,
}

/// Drives the event loop of either version on a thread of its own.
macro_rules! drive {
    ($eventloop:ident, $told:path) => {{
        let (sender, events) = channel();
        let (cut, mut stop) = oneshot::channel();
        let driver = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                loop {
                    let event = tokio::select! {
                        event = $eventloop.poll() => event,
                        _ = &mut stop => return,
                    };
                    match event {
                        Ok(event) => $told(event, &sender),
                        Err(error) => {
                            let _ = sender.send(Event::Lost(error.to_string()));
                            return;
                        }
                    }
                }
            });
        });
        (events, cut, driver)
    }};
}

impl Device {
    /// Connects; whether a session was present.
    fn connect(port: u16, version: u8, name: &str, clean: bool, will: Option<&str>) -> (Self, bool) {
        let id = format!("rumqttc-{version}-{name}");
        let (api, (events, cut, driver)) = if version == 5 {
            let mut options = rumqttc::v5::MqttOptions::new(id, "127.0.0.1", port);
            options.set_clean_start(clean).set_max_packet_size(Some(MAX_PACKET_SIZE));
            options.set_session_expiry_interval(Some(if clean { 0 } else { 3600 }));
            if let Some(topic) = will {
                let qos = rumqttc::v5::mqttbytes::QoS::AtLeastOnce;
                options.set_last_will(rumqttc::v5::mqttbytes::v5::LastWill::new(topic, "gone", qos, false, None));
            }
            let (client, mut eventloop) = rumqttc::v5::AsyncClient::new(options, 16);
            (Api::V5(client), drive!(eventloop, told_v5))
        } else {
            let mut options = rumqttc::MqttOptions::new(id, "127.0.0.1", port);
            options.set_clean_session(clean).set_max_packet_size(MAX_PACKET_SIZE as usize, MAX_PACKET_SIZE as usize);
            if let Some(topic) = will {
                options.set_last_will(rumqttc::LastWill::new(topic, "gone", rumqttc::QoS::AtLeastOnce, false));
            }
            let (client, mut eventloop) = rumqttc::AsyncClient::new(options, 16);
            (Api::V4(client), drive!(eventloop, told_v4))
        };
        let mut device = Self { api, events, messages: VecDeque::new(), cut, driver };
        match device.event() {
            Event::Connected { session_present } => (device, session_present),
            other => panic!("{name} was to be connected, but {other:?}"),
        }
    }

    fn subscribe(&mut self, topic: &str, qos: u8) {
        match &self.api {
            Api::V4(client) => client.try_subscribe(topic, rumqttc::qos(qos).unwrap()).unwrap(),
            Api::V5(client) => client.try_subscribe(topic, rumqttc::v5::mqttbytes::qos(qos).unwrap()).unwrap(),
        }
        match self.event() {
            Event::Granted(granted) => assert_eq!(granted, format!("[Success({:?})]", rumqttc::qos(qos).unwrap())),
            other => panic!("expected SUBACK for {topic}, got {other:?}"),
        }
    }

    fn unsubscribe(&mut self, topic: &str) {
        match &self.api {
            Api::V4(client) => client.try_unsubscribe(topic).unwrap(),
            Api::V5(client) => client.try_unsubscribe(topic).unwrap(),
        }
        let answer = self.event();
        assert!(matches!(answer, Event::Unsubscribed), "expected UNSUBACK for {topic}, got {answer:?}");
    }

    fn publish(&mut self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        match &self.api {
            Api::V4(client) => client.try_publish(topic, rumqttc::qos(qos).unwrap(), retain, payload).unwrap(),
            Api::V5(client) => {
                let qos = rumqttc::v5::mqttbytes::qos(qos).unwrap();
                client.try_publish(topic, qos, retain, payload.to_vec()).unwrap();
            }
        }
        self.published(topic);
    }

    /// With QoS 1 and properties.
    fn publish_with(&mut self, topic: &str, payload: &[u8], properties: PublishProperties) {
        let Api::V5(client) = &self.api else { panic!("properties need version 5") };
        let qos = rumqttc::v5::mqttbytes::QoS::AtLeastOnce;
        client.try_publish_with_properties(topic, qos, false, payload.to_vec(), properties).unwrap();
        self.published(topic);
    }

    fn published(&mut self, topic: &str) {
        let answer = self.event();
        assert!(matches!(answer, Event::Published), "expected the end of PUBLISH to {topic}, got {answer:?}");
    }

    /// The next message must be this one; its properties.
    fn expect(&mut self, topic: &str, payload: &[u8], qos: u8, retain: bool) -> Option<PublishProperties> {
        let next = self.messages.pop_front();
        let got = next.unwrap_or_else(|| match self.next(Instant::now() + PATIENCE) {
            Event::Message(message) => message,
            other => panic!("expected a message of {topic}, got {other:?}"),
        });
        assert_eq!((got.topic.as_str(), got.qos, got.retain), (topic, qos, retain));
        assert!(
            got.payload == payload,
            "{topic}: {} bytes, not the {} that were sent",
            got.payload.len(),
            payload.len()
        );
        got.properties
    }

    /// The next event that is no message; messages are kept.
    fn event(&mut self) -> Event {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.next(deadline) {
                Event::Message(message) => self.messages.push_back(message),
                event => return event,
            }
        }
    }

    fn next(&self, deadline: Instant) -> Event {
        self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).expect("rumqttc says something")
    }

    fn disconnect(mut self) {
        match &self.api {
            Api::V4(client) => client.try_disconnect().unwrap(),
            Api::V5(client) => client.try_disconnect().unwrap(),
        }
        let end = self.event();
        assert!(matches!(end, Event::Lost(_)), "expected the end of the connection, got {end:?}");
        self.driver.join().unwrap();
    }

    /// Ends without DISCONNECT.
    fn cut(self) {
        self.cut.send(()).unwrap();
        self.driver.join().unwrap();
    }
}

fn told_v4(event: rumqttc::Event, sender: &Sender<Event>) {
    use rumqttc::{Event::*, Outgoing, Packet};
    let told = match event {
        Incoming(Packet::ConnAck(ack)) => {
            assert_eq!(ack.code, rumqttc::ConnectReturnCode::Success);
            Event::Connected { session_present: ack.session_present }
        }
        Incoming(Packet::SubAck(ack)) => Event::Granted(format!("{:?}", ack.return_codes)),
        Incoming(Packet::UnsubAck(_)) => Event::Unsubscribed,
        Incoming(Packet::PubAck(_) | Packet::PubComp(_)) | Outgoing(Outgoing::Publish(0)) => Event::Published,
        Incoming(Packet::Publish(publish)) => Event::Message(Message {
            topic: publish.topic,
            payload: publish.payload.to_vec(),
            qos: publish.qos as u8,
            retain: publish.retain,
            properties: None,
        }),
        _ => return,
    };
    let _ = sender.send(told);
}

fn told_v5(event: rumqttc::v5::Event, sender: &Sender<Event>) {
    use rumqttc::{
        Outgoing,
        v5::{Event::*, mqttbytes::v5::Packet},
    };
    let told = match event {
        Incoming(Packet::ConnAck(ack)) => {
            assert_eq!(ack.code, rumqttc::v5::mqttbytes::v5::ConnectReturnCode::Success);
            Event::Connected { session_present: ack.session_present }
        }
        Incoming(Packet::SubAck(ack)) => Event::Granted(format!("{:?}", ack.return_codes)),
        Incoming(Packet::UnsubAck(_)) => Event::Unsubscribed,
        Incoming(Packet::PubAck(_) | Packet::PubComp(_)) | Outgoing(Outgoing::Publish(0)) => Event::Published,
        Incoming(Packet::Publish(publish)) => Event::Message(Message {
            topic: String::from_utf8(publish.topic.to_vec()).unwrap(),
            payload: publish.payload.to_vec(),
            qos: publish.qos as u8,
            retain: publish.retain,
            properties: publish.properties,
        }),
        _ => return,
    };
    let _ = sender.send(told);
}

const LARGE: u32 = 1_500_000;
const MAX_PACKET_SIZE: u32 = 2_000_000;
