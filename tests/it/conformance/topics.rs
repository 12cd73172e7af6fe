//! Topic Names and Topic Filters (4.7): what matches what.

use crate::support::{Broker, Client};

/// What a filter matches (D61): by level, empty ones too; case counts, a mark of byte order is a character [MQTT-1.5.4-3], [MQTT-3.3.2-3],
/// [MQTT-4.7.1-2], [MQTT-4.7.2-1], [MQTT-4.7.3-4].
#[test]
fn filters_match_by_level() {
    let broker = Broker::start();
    let topics = ["/", "/a", "a", "a/", "a/b", "a//b", "a/b/c", "A", "$a/b", "a b/\u{e4}", "a/b/", "\u{feff}a"];
    let cases: [(&str, &[&str]); 14] = [
        ("#", &["/", "/a", "a", "a/", "a/b", "a//b", "a/b/c", "A", "a b/\u{e4}", "a/b/", "\u{feff}a"]),
        ("+", &["a", "A", "\u{feff}a"]),
        ("+/+", &["/", "/a", "a/", "a/b", "a b/\u{e4}"]),
        ("/+", &["/", "/a"]),
        ("a/#", &["a", "a/", "a/b", "a//b", "a/b/c", "a/b/"]),
        ("a/+", &["a/", "a/b"]),
        ("a/+/b", &["a//b"]),
        ("+/b/#", &["a/b", "a/b/c", "a/b/"]),
        ("$a/#", &["$a/b"]),
        ("+/b", &["a/b"]),
        ("$a/+", &["$a/b"]),
        ("A", &["A"]),
        ("a b/+", &["a b/\u{e4}"]),
        ("a/b/+", &["a/b/c", "a/b/"]),
    ];
    let mut publisher = broker.v5("publisher");
    for (filter, expected) in cases {
        let mut subscriber = broker.v4("subscriber");
        subscriber.subscribe(filter, 0);
        subscriber.subscribe("end", 0);
        for topic in topics {
            publisher.publish(topic, topic, 0);
        }
        publisher.publish("end", "\0end", 0);
        let mut got = subscriber.texts_until("\0end");
        got.retain(|topic| topic != "\0end");
        assert_eq!(got, expected, "{filter}");
        if filter == "#" {
            subscriber.texts_until_none();
        }
    }
}

impl Client {
    /// Takes what a filter of everything got beyond the end.
    fn texts_until_none(&mut self) {
        self.ping();
        while self.try_receive(std::time::Duration::ZERO).is_ok() {}
    }
}
