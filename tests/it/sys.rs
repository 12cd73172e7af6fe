//! What the broker tells of itself under `$SYS`: complete, exact, unstored, and for those alone who ask for it by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use serde_json::{Value as Json, json};

use crate::support::{
    Broker, Client, Connect, PATIENCE, Setup, Value,
    broker::DURABILITY,
    client::publish_of,
    tools::MosquittoSub,
    wire::{self, Publish, property},
};

const EVERY_SECOND: &str = "[broker]\nsys_interval_secs = 1\n";

/// Queues that hold so many of more than a hundred values.
fn short(messages: u32) -> String {
    format!("{EVERY_SECOND}[session]\nmax_queued_messages = {messages}\n")
}

fn every_second() -> Broker {
    Setup::new().config(EVERY_SECOND).start()
}

/// A client that subscribes to `$SYS/#`, with the value of each topic below `$SYS/broker/`.
struct Watcher {
    client: Client,
    values: BTreeMap<String, String>,
}

impl Watcher {
    /// What it knows then came as the retained messages of its SUBSCRIBE.
    fn new(broker: &Broker) -> Self {
        let mut client = broker.v5("watcher");
        client.subscribe("$SYS/#", 2);
        // What this brings ends what that one brought.
        client.subscribe("$SYS/broker/version", 0);
        let mut values = BTreeMap::new();
        loop {
            let message = client.delivery();
            let is_new = message.retain;
            assert_eq!(message.qos, 0, "{}", message.topic);
            let (name, value) = told(message);
            if values.insert(name.clone(), value).is_some() && is_new {
                assert_eq!(name, "version", "came twice");
                client.unsubscribe(&["$SYS/broker/version"]);
                return Self { client, values };
            }
        }
    }

    /// Reads on until `wanted`.
    fn until(&mut self, what: &str, mut wanted: impl FnMut(&BTreeMap<String, String>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !wanted(&self.values) {
            assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}; {:#?}", self.values);
            let (name, value) = told(self.client.delivery());
            self.values.insert(name, value);
        }
    }

    /// Reads on until all these have these values.
    fn until_all(&mut self, wanted: &[(&str, u64)]) {
        let are = |values: &BTreeMap<String, String>| {
            wanted.iter().all(|(name, value)| values.get(*name) == Some(&value.to_string()))
        };
        self.until(&format!("{wanted:?}"), are);
    }

    /// Reads on for so many renewals.
    fn intervals(&mut self, count: u32) {
        for _ in 0..count {
            let uptime = self.values["uptime"].clone();
            self.until("another uptime", |values| values["uptime"] != uptime);
        }
    }
}

/// Name and value.
fn told(message: Publish) -> (String, String) {
    let name = message.topic.strip_prefix("$SYS/broker/").expect("a topic of the broker").to_owned();
    let value = String::from_utf8(message.payload).unwrap();
    assert!(!value.is_empty(), "{name} has no value");
    (name, value)
}

/// A subscriber to `$SYS/#` is sent the complete set at once, however long the values have not changed (D138): mosquitto's names, every
/// metric and every reason of a drop. Each is a retained message of QoS 0.
#[test]
fn the_complete_set_comes_at_once() {
    let broker = every_second();
    let loads = LOADS.iter().flat_map(|name| ["1min", "5min", "15min"].map(|over| format!("load/{name}/{over}")));
    let mut names: Vec<String> = MOSQUITTO.iter().map(ToString::to_string).chain(loads).collect();
    for (group, folder) in [("metrics", "metrics"), ("dropped", "drops")] {
        let status = broker.status();
        let metrics = status[group].as_object().expect("a group of metrics");
        names.extend(metrics.keys().map(|name| format!("{folder}/{name}")));
    }
    let mut watcher = Watcher::new(&broker);
    let check = |watcher: &Watcher| {
        let missing: Vec<_> = names.iter().filter(|name| !watcher.values.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{missing:?} are not in {:#?}", watcher.values);
    };
    check(&watcher);
    let first = watcher.values.clone();
    assert_eq!(first["version"], format!("pinnace version {}", env!("CARGO_PKG_VERSION")));
    assert_eq!(first["storage/durability"], DURABILITY);
    assert_eq!((first["storage/healthy"].as_str(), first["storage/failure"].as_str()), ("1", "none"));
    assert!(first["heap/current"].parse::<u64>().unwrap() > 1 << 20);
    assert!(first["uptime"].ends_with(" seconds"));
    watcher.intervals(3);
    drop(watcher);
    let later = Watcher::new(&broker);
    check(&later);
    assert!(first.keys().eq(later.values.keys()), "{first:#?} {:#?}", later.values);
}

/// Who is there already is sent what changed, without the RETAIN flag [MQTT-3.3.1-12], and nothing else again.
#[test]
fn changes_are_published_and_what_did_not_change_is_not() {
    let broker = every_second();
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("$SYS/broker/version", 0);
    watcher.subscribe("$SYS/broker/uptime", 1);
    watcher.subscribe("$SYS/broker/clients/connected", 1);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let other = broker.v5("other");
    while seen.get("$SYS/broker/uptime").is_none_or(|count| *count < 3) {
        let message = watcher.delivery();
        assert_eq!(message.qos, 0);
        if !message.retain {
            *seen.entry(message.topic).or_default() += 1;
        }
    }
    // The two clients came within one interval or two.
    let changes = seen.remove("$SYS/broker/clients/connected").unwrap_or_default();
    assert!((1..=2).contains(&changes), "{changes}");
    assert_eq!(seen.len(), 1, "only the uptime changed besides: {seen:?}");
    other.disconnect();
}

/// [MQTT-4.7.2-1]: a filter that begins with a wildcard matches no topic of the broker, retained or not.
#[test]
fn a_leading_wildcard_does_not_reach_it() {
    let broker = every_second();
    let mut curious = broker.v5("curious");
    curious.subscribe("#", 0);
    curious.subscribe("+/broker/uptime", 0);
    curious.subscribe("+/#", 0);
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("$SYS/broker/+", 0);
    let mut uptimes = 0;
    while uptimes < 3 {
        uptimes += u32::from(watcher.delivery().topic == "$SYS/broker/uptime");
    }
    curious.nothing();
}

/// Counts are exact after clients that come, go, are cut off and take each other over, a thousand times, and none is ever negative (D137).
#[test]
fn counts_are_exact() {
    let broker = every_second();
    let mut watcher = Watcher::new(&broker);
    let mut kept: Vec<Client> =
        (0..5).map(|n| broker.connect(&Connect::v5(&format!("kept-{n}")).persistent())).collect();
    for client in &mut kept {
        assert_eq!(client.subscribe_all(&[("a/+", 1), ("b", 0), ("$share/g/b", 1)]), [1, 0, 1]);
    }
    // Each twice: what replaces counts once.
    kept[0].subscribe("a/+", 2);
    kept[0].subscribe("$share/g/b", 0);
    kept[1].unsubscribe(&["b", "$share/g/b", "never"]);
    for n in 0..250 {
        let level = [3, 4, 5][n % 3];
        broker.connect(&Connect::new(level, "polite")).disconnect();
        broker.connect(&Connect::new(level, "cut")).cut();
        let taken = broker.connect(&Connect::new(level, "rival"));
        broker.connect(&Connect::new(level, "rival")).disconnect();
        drop(taken);
    }
    for client in kept.split_off(2) {
        client.disconnect();
    }
    broker.until_status("clients_connected", |count| count == 3);
    watcher.until_all(&[
        ("clients/connected", 3),
        ("clients/active", 3),
        ("clients/disconnected", 3),
        ("clients/inactive", 3),
        ("clients/total", 6),
        ("clients/expired", 0),
        ("subscriptions/count", 1 + 9),
        ("shared_subscriptions/count", 4),
        ("metrics/connects_received", 1 + 5 + 4 * 250),
        ("metrics/connections_accepted", 1 + 5 + 4 * 250),
    ]);
    // Beside the six there were one or two at a time, and those that were cut off a moment ago.
    let most: u64 = watcher.values["clients/maximum"].parse().unwrap();
    assert!((7..=16).contains(&most), "{most}");
    drop(kept);
    watcher.until_all(&[("clients/connected", 1), ("clients/disconnected", 5), ("clients/total", 6)]);
}

/// Packets, messages and bytes of both directions, as the client counts them.
#[test]
fn traffic_is_counted_as_it_goes_over_the_wire() {
    let broker = Broker::start();
    let mut client = broker.v5("client");
    client.subscribe("a", 1);
    client.publish("a", "12345", 1);
    client.message();
    client.publish("b", "1234567", 0);
    client.ping();
    // CONNECT, SUBSCRIBE, PUBLISH, PUBACK, PUBLISH, PINGREQ against CONNACK, SUBACK, PUBACK, PUBLISH, PINGRESP.
    for (name, expected) in [
        ("packets_received", 6),
        ("packets_sent", 5),
        ("messages_received", 2),
        ("messages_delivered", 1),
        ("payload_bytes_received", 12),
        ("payload_bytes_sent", 5),
        ("connects_received", 1),
    ] {
        broker.until_status(name, |count| {
            assert!(count <= expected, "{name} is {count}, not {expected}");
            count == expected
        });
    }
}

/// Sessions that expire are counted.
#[test]
fn expired_sessions_are_counted() {
    let broker = every_second();
    let mut watcher = Watcher::new(&broker);
    broker.connect(&Connect::v5("brief").clean(false).expiry(1)).disconnect();
    broker.connect(&Connect::v5("long").persistent()).disconnect();
    watcher.until_all(&[("clients/expired", 1), ("clients/disconnected", 1), ("clients/total", 2)]);
}

/// It is no message of anybody: not retained, not logged for those who are away, not dropped, and not stored.
#[test]
fn it_is_neither_stored_nor_counted() {
    let mut broker = every_second();
    let mut sleeper = broker.connect(&Connect::v5("sleeper").persistent());
    assert_eq!(sleeper.subscribe_all(&[("$SYS/#", 0x21), ("$share/g/$SYS/#", 1)]), [1, 1]);
    sleeper.disconnect();
    Watcher::new(&broker).intervals(3);
    let status = broker.status();
    for name in ["retained_messages", "messages_queued", "messages_received"] {
        assert_eq!(status["metrics"][name], 0, "{name}");
    }
    let drops = status["dropped"].as_object().unwrap();
    assert!(drops.values().all(|count| count == 0), "{drops:?}");
    if DURABILITY == "fsync" {
        broker.terminate();
        let from = broker.log_len();
        broker.restart();
        broker.wait_log_from(from, "what was found in the store", |line| line.contains("\"retained\":0"));
    }
}

/// More values than a queue holds: nobody is disconnected or told of a drop for them, and every one that changes comes in the end, though
/// others that change each second stand before it.
#[test]
fn a_queue_that_is_too_short_for_it() {
    let broker = Setup::new().config(&format!("{}queue_full = \"disconnect\"\n", short(10))).start();
    let mut client = broker.v5("short");
    // Without what stands there already.
    assert_eq!(client.subscribe_all(&[("$SYS/#", 0x20)]), [0]);
    let changing = ["uptime", "clients/total", "subscriptions/count", "load/sockets/1min", "load/sockets/15min"];
    expect_all(&mut client, changing.map(str::to_owned).into());
    none_dropped(&broker);
    client.ping();
}

/// What does not fit at the SUBSCRIBE comes with the next renewals, all of it, although most of it never changes.
#[test]
fn what_stands_there_comes_in_pieces() {
    let broker = Setup::new().config(&short(30)).start();
    let whole = every_second();
    let names: BTreeSet<String> = Watcher::new(&whole).values.into_keys().collect();
    for level in [4, 5] {
        let mut client = broker.connect(&Connect::new(level, "short"));
        client.subscribe("$SYS/#", 0);
        expect_all(&mut client, names.clone());
        client.ping();
        // What it has no room for behind what waits already is no drop either.
        assert_eq!(client.subscribe_all(&[("$SYS/broker/metrics/#", 0), ("$SYS/broker/storage/#", 0)]), [0, 0]);
        client.ping();
        none_dropped(&broker);
    }
    // A renewal is for those who missed it: nobody else is told again.
    let mut other = broker.v5("other");
    other.subscribe("$SYS/broker/version", 0);
    assert_eq!(other.delivery().topic, "$SYS/broker/version");
    let mut short = broker.v5("another");
    short.subscribe("$SYS/#", 0);
    expect_all(&mut short, ["version".to_owned()].into());
    other.nothing();
}

/// Reads on until each of these has come.
fn expect_all(client: &mut Client, mut wanted: BTreeSet<String>) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while !wanted.is_empty() {
        assert!(Instant::now() < deadline, "not within {:?}: {wanted:?}", 2 * PATIENCE);
        wanted.remove(&told(client.delivery()).0);
    }
}

fn none_dropped(broker: &Broker) {
    let drops = broker.status()["dropped"].clone();
    assert!(drops.as_object().unwrap().values().all(|count| count == 0), "{drops}");
}

/// What is too large for a client, or not sent when its connection ends or the rules change, is no drop.
#[test]
fn what_is_not_sent_is_no_drop() {
    let setup = Setup::new();
    setup.file("acl", "topic read $SYS/#\n");
    let broker = setup.config(&format!("{EVERY_SECOND}[auth]\nacl_file = \"acl\"\n")).start();
    let mut small = broker.connect(&Connect::v5("small").property(property::MAXIMUM_PACKET_SIZE, Value::Four(40)));
    small.subscribe("$SYS/#", 0);
    let mut uptimes = 0;
    while uptimes < 3 {
        uptimes += u32::from(small.delivery().topic == "$SYS/broker/uptime");
    }
    // More than the sockets hold: what was asked for again and again waits in the broker.
    let mut never = broker.v5("never");
    let mut cut = broker.v5("cut");
    for client in [&mut never, &mut cut] {
        let subscribe = wire::subscribe(true, 1, &[], &[("$SYS/#", 0)]);
        client.send(&subscribe.repeat(2000));
    }
    broker.until_status("packets_received", |count| count > 1000);
    cut.cut();
    broker.file("acl", "topic read $SYS/broker/uptime\n");
    broker.reload();
    never.cut();
    broker.until_status("clients_connected", |count| count == 1);
    none_dropped(&broker);
}

/// Reads on until it is told `expected`, as JSON.
fn until_json(watcher: &mut Client, expected: &Json) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let value: Json = serde_json::from_str(&told(watcher.delivery()).1).expect("JSON");
        if value == *expected {
            return;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {expected}, but {value}");
    }
}

/// A session that is kept, with a subscription, whose client is away.
fn keep(broker: &Broker, client_id: &str, filter: &str) {
    let mut client = broker.connect(&Connect::v5(client_id).persistent());
    client.subscribe(filter, 2);
    client.disconnect();
}

/// Which sessions drop messages, and why, is told in one value; who only misses what is not kept for it is not among them, and who ends
/// leaves.
#[test]
fn drops_are_told_by_session() {
    let broker = Setup::new().config(&short(5)).start();
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("$SYS/broker/drops/sessions", 0);
    until_json(&mut watcher, &json!([]));
    keep(&broker, "a/+/#\"", "both/#");
    keep(&broker, "b", "both/b");
    keep(&broker, "none", "qos0");
    let mut publisher = broker.v5("publisher");
    for (topic, qos) in [("both/b", 1); 8].into_iter().chain([("both/x", 2); 2]) {
        publisher.publish_code(&publish_of(topic, "x", qos));
    }
    publisher.publish("both/x", "x", 0);
    publisher.publish("qos0", "x", 0);
    publisher.ping();
    let a = json!({ "client": "a/+/#\"", "total": 6, "drops": { "queue_full": 5, "not_persistent": 1 } });
    let b = json!({ "client": "b", "total": 3, "drops": { "queue_full": 3 } });
    until_json(&mut watcher, &json!([a, b]));
    publisher.publish_code(&publish_of("both/b", "x", 1));
    let a = json!({ "client": "a/+/#\"", "total": 7, "drops": { "queue_full": 6, "not_persistent": 1 } });
    let b = json!({ "client": "b", "total": 4, "drops": { "queue_full": 4 } });
    until_json(&mut watcher, &json!([a, b]));
    broker.v5("a/+/#\"").disconnect();
    until_json(&mut watcher, &json!([b]));
}

/// The same of shared groups, in the status and the log as well; a group that ends leaves.
#[test]
fn drops_are_told_by_group() {
    let broker = Setup::new().config(&short(5)).start();
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("$SYS/broker/drops/groups", 0);
    until_json(&mut watcher, &json!([]));
    keep(&broker, "member", "$share/g/t/#");
    keep(&broker, "other", "$share/h/u");
    let mut publisher = broker.v5("publisher");
    for _ in 0..8 {
        publisher.publish_code(&publish_of("t/1", "x", 1));
    }
    publisher.publish("t/1", "x", 0);
    publisher.publish("u", "x", 0);
    publisher.ping();
    let group = json!({ "group": "$share/g/t/#", "total": 4, "drops": { "queue_full": 3, "not_persistent": 1 } });
    until_json(&mut watcher, &json!([group]));
    let drops = json!({ "dropped_queue_full": 3, "dropped_not_persistent": 1 });
    assert_eq!(broker.status()["drops_by_group"], json!([{ "group": "$share/g/t/#", "drops": drops }]));
    broker.wait_log("its name", |line| line.contains("messages were dropped") && line.contains("$share/g/t/#"));
    broker.v5("member").disconnect();
    until_json(&mut watcher, &json!([]));
}

/// `$share/g/$SYS/#` works (D68): nothing at the SUBSCRIBE, then each change to one of the members.
#[test]
fn shared_subscriptions_reach_it() {
    let broker = every_second();
    let mut member = broker.v5("member");
    member.subscribe("$share/g/$SYS/broker/uptime", 1);
    let message = member.delivery();
    assert_eq!((message.topic.as_str(), message.qos, message.retain), ("$SYS/broker/uptime", 0, false));
}

/// With an ACL file it needs a rule, as with mosquitto; a narrow one gives what it names and counts the rest as no drop.
#[test]
fn an_acl_file_must_allow_it() {
    let setup = Setup::new();
    setup.file("acl", "topic readwrite #\nuser ops\ntopic read $SYS/broker/uptime\n");
    let broker = setup.config(&format!("{EVERY_SECOND}[auth]\nacl_file = \"acl\"\n")).start();
    let mut anyone = broker.v5("anyone");
    assert_eq!(anyone.subscribe_all(&[("$SYS/#", 0), ("$SYS/broker/uptime", 0)]), [0x87, 0x87]);
    broker.file("acl", "topic readwrite #\ntopic read $SYS/broker/uptime\n");
    broker.reload();
    anyone.subscribe("$SYS/#", 0);
    for _ in 0..3 {
        assert_eq!(anyone.delivery().topic, "$SYS/broker/uptime");
    }
    let publish = publish_of("$SYS/broker/uptime", "for ever", 1);
    assert_eq!(anyone.publish_code(&publish), 0x87);
    assert_eq!(broker.status()["dropped"]["acl_denied"], 1, "the PUBLISH alone");
}

/// An interval of 0 turns it off.
#[test]
fn it_can_be_turned_off() {
    let broker = Setup::new().config("[broker]\nsys_interval_secs = 0\n").start();
    let mut watcher = broker.v5("watcher");
    watcher.subscribe("$SYS/#", 0);
    // A retained message may follow the first PINGRESP, never the second.
    watcher.nothing();
    watcher.nothing();
}

/// Subscription Identifiers, Retain As Published and Retain Handling hold as for any topic.
#[test]
fn subscription_options_hold() {
    let broker = every_second();
    let mut watcher = broker.v5("watcher");
    let published = 0x08;
    let never = 0x20;
    watcher.subscribe("$SYS/broker/version", never);
    watcher.nothing();
    watcher.nothing();
    let id = [(property::SUBSCRIPTION_ID, Value::Variable(7))];
    assert_eq!(watcher.subscribe_with(&id, &[("$SYS/broker/uptime", published | never)]), [0]);
    let message = watcher.delivery();
    assert!(message.retain, "as published");
    assert_eq!(message.properties, id);
}

/// A mosquitto client reads it as it reads mosquitto's.
#[test]
fn mosquitto_sub_reads_it() {
    let broker = every_second();
    let mut sub = MosquittoSub::subscribed(broker.port(), ["-t", "$SYS/broker/load/connections/+", "-C", "3"]);
    let mut topics: Vec<String> = (0..3).map(|_| sub.message().split(' ').next().unwrap().to_owned()).collect();
    topics.sort();
    assert_eq!(topics, ["15min", "1min", "5min"].map(|over| format!("$SYS/broker/load/connections/{over}")));
    assert_eq!(sub.end().0, Some(0));
}

/// What mosquitto 2.x publishes and means the same, below `$SYS/broker/`.
const MOSQUITTO: &[&str] = &[
    "bytes/received",
    "bytes/sent",
    "clients/active",
    "clients/connected",
    "clients/disconnected",
    "clients/expired",
    "clients/inactive",
    "clients/maximum",
    "clients/total",
    "connections/socket/count",
    "heap/current",
    "heap/maximum",
    "messages/received",
    "messages/sent",
    "publish/bytes/received",
    "publish/bytes/sent",
    "publish/messages/dropped",
    "publish/messages/received",
    "publish/messages/sent",
    "retained messages/count",
    "shared_subscriptions/count",
    "subscriptions/count",
    "uptime",
    "version",
];

/// What it has load averages of.
const LOADS: &[&str] = &[
    "bytes/received",
    "bytes/sent",
    "connections",
    "messages/received",
    "messages/sent",
    "publish/dropped",
    "publish/received",
    "publish/sent",
    "sockets",
];
