//! The main job with the smallest means: no file, every QoS in every version.

use crate::support::{Broker, Connect, broker};

/// A message goes from one client to another at every QoS, in every pair of versions; the lower QoS of publish and subscription
/// counts [MQTT-3.8.4-8]; every first delivery has DUP 0 [MQTT-4.3.1-1], [MQTT-4.3.2-2], [MQTT-4.3.3-2].
#[test]
fn a_message_goes_from_any_version_to_any_other_at_every_qos() {
    let broker = Broker::start();
    for from in 3..=5 {
        for to in 3..=5 {
            let mut subscriber = broker.connect(&Connect::new(to, "subscriber"));
            let mut publisher = broker.connect(&Connect::new(from, "publisher"));
            for granted in 0..3 {
                let topic = format!("room/{from}/{to}/{granted}");
                subscriber.subscribe(&topic, granted);
                for sent in 0..3 {
                    publisher.publish(&topic, [sent], sent);
                    let message = subscriber.message();
                    assert_eq!((message.topic.as_str(), &*message.payload), (topic.as_str(), &[sent][..]));
                    assert_eq!(message.qos, sent.min(granted), "{topic} at {sent}");
                    assert!(!message.retain && !message.dup);
                }
            }
            subscriber.nothing();
        }
    }
}

/// A file of 1.5 MB arrives whole at every QoS.
#[test]
fn a_large_payload_arrives_whole() {
    let broker = Broker::start();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("large", 2);
    let mut publisher = broker.v4("publisher");
    let payload: Vec<u8> = (0..1_500_000u32).flat_map(|n| [(n >> 8) as u8]).collect();
    for qos in 0..3 {
        publisher.publish("large", &payload, qos);
        assert!(subscriber.message().payload == payload);
    }
}

/// Without any file: loopback only, data under the XDG state directory, and the log says what is allowed and where the limits are.
#[test]
fn no_file_is_needed() {
    let home = tempfile::tempdir().unwrap();
    let mut command = broker::pinnace();
    // The one flag keeps off the port that another broker of this machine may hold.
    command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--durability", broker::DURABILITY]);
    command.env("XDG_STATE_HOME", home.path()).env("HOME", home.path());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut said = String::new();
    while !said.contains("\"ready\"") {
        said.push_str(&lines.next().expect("a log that says ready").unwrap());
        said.push('\n');
    }
    let _ = child.kill();
    let _ = child.wait();
    assert!(said.contains("anonymous clients are allowed"), "{said}");
    assert!(said.contains("no ACL file"), "{said}");
    assert!(said.contains("max_connections"), "{said}");
    assert!(home.path().join("pinnace").is_dir());
    let shown = broker::run(["config", "show", "--durability", broker::DURABILITY]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("\"127.0.0.1:1883\""), "{shown:?}");
}

/// One line for the start of a connection and one for its end, with the reason (9 of the main job).
#[test]
fn a_connection_is_two_lines_in_the_log() {
    let broker = Broker::start();
    let from = broker.log_len();
    broker.v5("polite").disconnect();
    broker.v5("cut").cut();
    let mut broken = broker.v5("broken");
    broken.send(&[0xff, 0xff]);
    broken.closed();
    for (client, reason) in [("polite", "disconnect"), ("cut", "closed"), ("broken", "malformed")] {
        broker.wait_log_from(from, reason, |line| line.contains(client) && line.to_lowercase().contains(reason));
        let lines = broker.log_lines();
        let about = lines[from..].iter().filter(|line| line.contains(&format!("\"{client}\""))).count();
        assert_eq!(about, 2, "{client}: {lines:#?}");
    }
}
