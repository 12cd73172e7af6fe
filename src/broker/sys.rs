//! What the broker tells of itself, under `$SYS`: every metric there is, and under the names that mosquitto 2.x has for it whatever means
//! the same there.
//!
//! One view of all values is kept in memory and renewed at an interval: new subscribers get it whole, as retained messages; those who are
//! there get what changed, and each what its own queue had no room for before. Nothing of it is stored, counted as retained or counted as
//! dropped. Must not count anything itself.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    auth::Identity,
    clock,
    metrics::{Counts, DROPPED, Sample},
    mqtt::{Message, QoS, Shown, Timestamp, TopicFilter, TopicName, TopicTrie},
    storage::Health,
};

use super::{Broker, Dropped, MostDrops, Receiver, Route, Turn, mailbox::Extent, publish::To};

/// What stands under `$SYS` now.
#[derive(Debug, Default)]
pub(super) struct Sys {
    view: Mutex<View>,
}

#[derive(Debug, Default)]
struct View {
    by_topic: TopicTrie<Arc<Message>>,
    loads: [Load; LOADS.len()],
    renewed_at: Option<Timestamp>,
    /// How often it was renewed.
    renewals: u64,
    /// Whose queue, of a session or a shared group, had no room for a value that still stands.
    missed: HashMap<TopicName, HashSet<u64>>,
}

/// A value that somebody is to be told.
#[derive(Debug)]
struct Due {
    message: Arc<Message>,
    /// Those who missed it. None: it is new to all.
    to: Option<HashSet<u64>>,
}

/// Whether a message to `topic` is from the broker itself: nobody else may publish there. It may be missed: that is no drop.
#[must_use]
pub fn is_of_broker(topic: &TopicName) -> bool {
    topic.as_str().split('/').next() == Some(ROOT)
}

/// Whether `filter` matches topics of the broker alone: nobody else publishes there, and no other filter reaches them [MQTT-4.7.2-1].
pub(super) fn speaks_of(filter: &TopicFilter) -> bool {
    filter.levels().next() == Some(ROOT)
}

impl Sys {
    /// All that `filter` matches.
    pub(super) fn matching(&self, filter: &TopicFilter) -> Vec<Arc<Message>> {
        let mut found = Vec::new();
        self.view.lock().by_topic.matching(filter, &mut |message: &Arc<Message>| found.push(message.clone()));
        found
    }

    /// The queue of `session` has no room for the value of `topic`: it is told with the next renewals.
    pub(super) fn missed(&self, topic: &TopicName, session: u64) {
        self.view.lock().missed.entry(topic.clone()).or_default().insert(session);
    }
}

impl Broker {
    /// Renews what stands under `$SYS`, and gives what changed to those who subscribe to it.
    pub fn publish_sys(&self, now: Timestamp) {
        let numbers = Numbers::new(self.samples());
        let mut values = Values::default();
        values.process(clock::uptime().as_secs(), memory());
        values.storage(&self.store.health());
        values.metrics(&numbers);
        values.drops(&self.most_drops(DROPPERS_TOLD));
        let due = {
            let mut view = self.sys.view.lock();
            view.advance_loads(&numbers, now);
            values.loads(&view.loads);
            view.renew(values)
        };
        self.give_to_subscribers(due, now);
    }

    /// At QoS 0, and past the counters: who had no room for a value is offered it again the next time.
    fn give_to_subscribers(&self, due: Vec<Due>, now: Timestamp) {
        let (nobody, queues) = (Identity::ANONYMOUS, self.queues.clone());
        let publisher = Receiver::new(0, Arc::default(), nobody, false, queues, Extent::default());
        let rules = self.auth.generation();
        let mut turn = Turn::default();
        let mut missed = Vec::new();
        for Due { message, to } in due {
            let route = self.find_route(&publisher, message.topic.clone(), rules);
            let is_due = |id| to.as_ref().is_none_or(|to| to.contains(&id));
            let who = self.offer(&message, &route, is_due, &mut turn, now);
            if !who.is_empty() {
                missed.push((message.topic.clone(), who));
            }
        }
        let mut view = self.sys.view.lock();
        for (topic, who) in missed {
            view.missed.entry(topic).or_default().extend(who);
        }
        drop(view);
        turn.counts = Counts::default();
        self.finish(&mut turn);
    }

    /// Offers `message` to those on `route` for whom it is due. Those, sessions and groups, whose queue did not take it.
    fn offer(
        &self,
        message: &Arc<Message>,
        route: &Route,
        is_due: impl Fn(u64) -> bool,
        turn: &mut Turn,
        now: Timestamp,
    ) -> Vec<u64> {
        let mut missed = Vec::new();
        for hop in &route.hops {
            let id = match &hop.to {
                To::Receiver(receiver) => receiver.session,
                To::Group(group) => group.id(),
            };
            if !is_due(id) {
                continue;
            }
            turn.offered = Some(0);
            match &hop.to {
                To::Receiver(receiver) => drop(turn.put(receiver, hop.delivery(message))),
                To::Group(group) => {
                    group.give(self, message, route.publisher, hop.retain(message), None, turn, None, now);
                }
            }
            if turn.offered.take() != Some(0) {
                missed.push(id);
            }
        }
        missed
    }
}

impl View {
    fn advance_loads(&mut self, numbers: &Numbers, now: Timestamp) {
        let elapsed = self.renewed_at.map_or(0, |at| now.millis_since(at));
        for (load, (_, of)) in self.loads.iter_mut().zip(LOADS) {
            load.advance(numbers.get(of), elapsed);
        }
        self.renewed_at = Some(now);
    }

    /// Takes `values` for what stands here; gives those that differ from before, and those that somebody missed.
    fn renew(&mut self, mut values: Values) -> Vec<Due> {
        // Else a queue that is always too short would get the first of them alone.
        let first = begin(self.renewals, values.0.len());
        values.0.rotate_left(first);
        self.renewals += 1;
        let mut missed = std::mem::take(&mut self.missed);
        let mut due = Vec::new();
        for (name, value) in values.0 {
            let Ok(topic) = TopicName::parse(&format!("{ROOT}/broker/{name}")) else { continue };
            let known = self.by_topic.get_topic(&topic);
            if let Some(known) = known.filter(|known| *known.payload == *value.as_bytes()) {
                if let Some(who) = missed.remove(&topic) {
                    due.push(Due { message: known.clone(), to: Some(who) });
                }
                continue;
            }
            let message = Arc::new(Message {
                topic: known.map_or(topic, |known| known.topic.clone()),
                payload: value.into_bytes().into(),
                qos: QoS::AtMostOnce,
                retain: true,
                properties: Box::default(),
                expires_at: None,
                publisher: 0,
            });
            self.by_topic.insert_topic(&message.topic.clone(), message.clone());
            due.push(Due { message, to: None });
        }
        due
    }
}

/// With which of `values` values a renewal begins: each begins far from where those before it did, by the golden ratio. So a queue that
/// takes only N at a time gets every value within about twice `values` / N renewals, whatever room it and others have.
fn begin(renewal: u64, values: usize) -> usize {
    let at = (u128::from(renewal.wrapping_mul(GOLDEN)) * values as u128) >> u64::BITS;
    usize::try_from(at).unwrap_or(0)
}

/// Every number that is published, by its name: the metrics, and what follows from them.
#[derive(Debug)]
struct Numbers {
    metrics: Vec<(&'static str, u64)>,
    derived: [(&'static str, u64); 2],
}

impl Numbers {
    fn new(samples: impl Iterator<Item = Sample>) -> Self {
        let metrics: Vec<_> = samples.map(|sample| (sample.name, sample.value)).collect();
        let dropped = metrics.iter().filter(|(name, _)| name.starts_with(DROPPED)).map(|(_, value)| value).sum();
        let of = |name| metrics.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
        let offline = of("sessions").saturating_sub(of("clients_connected"));
        Self { metrics, derived: [("dropped", dropped), ("sessions_offline", offline)] }
    }

    fn get(&self, name: &str) -> u64 {
        self.metrics.iter().chain(&self.derived).find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
    }
}

/// What is to stand under `$SYS/broker/`: name and value.
#[derive(Debug, Default)]
struct Values(Vec<(String, String)>);

impl Values {
    fn put(&mut self, name: impl Into<String>, value: impl ToString) {
        self.0.push((name.into(), value.to_string()));
    }

    /// `memory`: now and at most, in bytes, where the system tells.
    fn process(&mut self, uptime_secs: u64, memory: Option<(u64, u64)>) {
        self.put("version", concat!("pinnace version ", env!("CARGO_PKG_VERSION")));
        self.put("uptime", format_args!("{uptime_secs} seconds"));
        if let Some((resident, maximum)) = memory {
            self.put("heap/current", resident);
            self.put("heap/maximum", maximum);
        }
    }

    fn storage(&mut self, health: &Health) {
        self.put("storage/engine", health.engine);
        self.put("storage/durability", health.durability.name());
        self.put("storage/healthy", u8::from(health.failure.is_none()));
        self.put("storage/failure", health.failure.as_deref().unwrap_or("none"));
        self.put("storage/commits", health.batches);
        self.put("storage/syncs", health.syncs);
        self.put("storage/operations", health.operations);
    }

    fn metrics(&mut self, numbers: &Numbers) {
        for (name, value) in &numbers.metrics {
            match name.strip_prefix(DROPPED) {
                Some(reason) => self.put(format!("drops/{reason}"), value),
                None => self.put(format!("metrics/{name}"), value),
            }
        }
        for (name, of) in MOSQUITTO {
            self.put(*name, numbers.get(of));
        }
    }

    /// One value for all sessions, and one for all groups: their names may hold what no topic may.
    fn drops(&mut self, most: &MostDrops) {
        for (name, key, all) in [("drops/sessions", "client", &most.sessions), ("drops/groups", "group", &most.groups)]
        {
            let told = |one: &Dropped| {
                let total: u64 = one.by_reason.iter().map(|(_, count)| count).sum();
                let drops: serde_json::Map<String, Value> =
                    one.by_reason.iter().map(|(reason, count)| (reason.name().to_owned(), (*count).into())).collect();
                json!({ key: Shown(&one.name).unescaped(), "total": total, "drops": drops })
            };
            self.put(name, Value::from_iter(all.iter().map(told)));
        }
    }

    fn loads(&mut self, loads: &[Load]) {
        for (load, (name, _)) in loads.iter().zip(LOADS) {
            for (average, minutes) in load.averages.iter().zip(MINUTES) {
                self.put(format!("load/{name}/{minutes}min"), format_args!("{average:.2}"));
            }
        }
    }
}

/// How much of something happens in a minute: moving averages over 1, 5 and 15 minutes that forget exponentially.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Load {
    total: u64,
    averages: [f64; MINUTES.len()],
}

impl Load {
    /// The counter stands at `total`, `elapsed` milliseconds after the last time.
    #[allow(clippy::cast_precision_loss)] // an average needs no more digits
    fn advance(&mut self, total: u64, elapsed: u64) {
        if elapsed == 0 {
            return;
        }
        let elapsed_minutes = elapsed as f64 / 60_000.0;
        let rate = total.saturating_sub(self.total) as f64 / elapsed_minutes;
        for (average, minutes) in self.averages.iter_mut().zip(MINUTES) {
            let kept = (-elapsed_minutes / f64::from(minutes)).exp();
            *average = rate + kept * (*average - rate);
        }
        self.total = total;
    }
}

/// The memory of this process that is resident, now and at most, in bytes.
fn memory() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let bytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    };
    Some((bytes("VmRSS")?, bytes("VmHWM")?))
}

const ROOT: &str = "$SYS";
/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const MINUTES: [u32; 3] = [1, 5, 15];
/// How many of the sessions, and of the shared groups, that drop most are told of.
const DROPPERS_TOLD: usize = 10;

/// The names that mosquitto 2.x has (`connections/socket/count` since 2.1), and the number that means the same here.
///
/// Left out are those for which there is none:
/// - `messages/stored`, `store/messages/count` and `store/messages/bytes` count each message once, however many sessions it waits for, with
///   all that is retained, `$SYS` included. Here each session has a log of its own, and only large bodies are shared between logs: how many
///   different messages they hold is not known without reading them all. Next to it come `metrics/queued_bytes`,
///   `metrics/retained_messages` and `metrics/retained_bytes`.
/// - `packet/out/count` and `packet/out/bytes` (2.1) are packets that wait for the sockets of all clients: here those stand encoded in
///   buffers that nobody but their connections looks at.
/// - `connection/#` are bridges, `log/#` is the log: here neither is a topic.
const MOSQUITTO: &[(&str, &str)] = &[
    ("bytes/received", "bytes_received"),
    ("bytes/sent", "bytes_sent"),
    ("clients/active", "clients_connected"),
    ("clients/connected", "clients_connected"),
    ("clients/disconnected", "sessions_offline"),
    ("clients/expired", "sessions_expired"),
    ("clients/inactive", "sessions_offline"),
    ("clients/maximum", "clients_connected_maximum"),
    ("clients/total", "sessions"),
    ("connections/socket/count", "connections_accepted"),
    ("messages/received", "packets_received"),
    ("messages/sent", "packets_sent"),
    ("publish/bytes/received", "payload_bytes_received"),
    ("publish/bytes/sent", "payload_bytes_sent"),
    ("publish/messages/dropped", "dropped"),
    ("publish/messages/received", "messages_received"),
    ("publish/messages/sent", "messages_delivered"),
    ("retained messages/count", "retained_messages"),
    ("shared_subscriptions/count", "shared_subscriptions"),
    ("subscriptions/count", "subscriptions"),
];

/// What has a load average, and the counter that it is made of.
const LOADS: &[(&str, &str)] = &[
    ("bytes/received", "bytes_received"),
    ("bytes/sent", "bytes_sent"),
    ("connections", "connects_received"),
    ("messages/received", "packets_received"),
    ("messages/sent", "packets_sent"),
    ("publish/dropped", "dropped"),
    ("publish/received", "messages_received"),
    ("publish/sent", "messages_delivered"),
    ("sockets", "connections_accepted"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::{DropReason, Metrics};

    fn payload(view: &View, name: &str) -> Option<String> {
        let topic = TopicName::parse(&format!("$SYS/broker/{name}")).unwrap();
        view.by_topic.get_topic(&topic).map(|message| String::from_utf8(message.payload.to_vec()).unwrap())
    }

    fn due(view: &mut View, metrics: &Metrics, at: u64) -> Vec<Due> {
        let numbers = Numbers::new(metrics.snapshot());
        let mut values = Values::default();
        values.metrics(&numbers);
        view.advance_loads(&numbers, Timestamp(at));
        values.loads(&view.loads);
        view.renew(values)
    }

    fn name(message: &Message) -> String {
        message.topic.as_str()["$SYS/broker/".len()..].to_owned()
    }

    fn renewed(view: &mut View, metrics: &Metrics, at: u64) -> Vec<String> {
        due(view, metrics, at).iter().map(|due| name(&due.message)).collect()
    }

    /// Every metric of the table is there, and mosquitto's names stand for metrics that exist.
    #[test]
    fn nothing_that_is_counted_is_left_out() {
        let metrics = Metrics::default();
        let mut view = View::default();
        let told: BTreeSet<String> = renewed(&mut view, &metrics, 1_000).into_iter().collect();
        for sample in metrics.snapshot() {
            let name = match sample.name.strip_prefix("dropped_") {
                Some(reason) => format!("drops/{reason}"),
                None => format!("metrics/{}", sample.name),
            };
            assert!(told.contains(&name), "{name}");
        }
        let numbers = Numbers::new(metrics.snapshot());
        let names: Vec<&str> = numbers.metrics.iter().chain(&numbers.derived).map(|(name, _)| *name).collect();
        for (name, of) in MOSQUITTO.iter().chain(LOADS) {
            assert!(names.contains(of), "{name} is said to be {of}");
        }
        assert!(MOSQUITTO.iter().all(|(name, _)| told.contains(*name)));
    }

    /// What is derived follows from the counters, and is never negative (D137).
    #[test]
    fn sums_and_differences() {
        let metrics = Metrics::default();
        let mut counts = Counts::default();
        DropReason::ALL.iter().for_each(|reason| counts.dropped(*reason));
        counts.dropped(DropReason::Expired);
        metrics.add(&mut counts);
        metrics.clients_connected.set(3);
        let mut view = View::default();
        renewed(&mut view, &metrics, 1_000);
        let of = |view: &View, name: &str| payload(view, name).unwrap();
        assert_eq!(of(&view, "publish/messages/dropped"), (DropReason::ALL.len() + 1).to_string());
        assert_eq!(of(&view, "drops/expired"), "2");
        assert_eq!(of(&view, "clients/disconnected"), "0");
        metrics.sessions.set(10);
        assert!(renewed(&mut view, &metrics, 2_000).contains(&"clients/disconnected".into()));
        assert_eq!(of(&view, "clients/disconnected"), "7");
        assert_eq!(of(&view, "clients/total"), "10");
    }

    /// Client ids may hold anything, and be long; what is told stays JSON of a bounded size.
    #[test]
    fn who_drops_is_told_as_json() {
        let told = |most: &MostDrops| {
            let mut values = Values::default();
            values.drops(most);
            let names: Vec<_> = values.0.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["drops/sessions", "drops/groups"]);
            values.0.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(told(&MostDrops::default()), ["[]", "[]"]);
        let dropped = |name: &str, by_reason: &[_]| Dropped { name: name.into(), by_reason: by_reason.to_vec() };
        let long = dropped(&"\u{1}".repeat(65_535), &[(DropReason::TooLarge, 1)]);
        let most = told(&MostDrops {
            sessions: vec![dropped("a/+/#\"\\é", &[(DropReason::QueueFull, 3), (DropReason::Expired, 2)]), long],
            groups: vec![dropped("$share/g/a", &[(DropReason::AllQueuesFull, 1)])],
        });
        let [sessions, groups] = [0, 1].map(|n| serde_json::from_str::<Value>(&most[n]).unwrap());
        let expected = json!({ "client": "a/+/#\"\\é", "total": 5, "drops": { "queue_full": 3, "expired": 2 } });
        assert_eq!(sessions[0], expected);
        assert_eq!(sessions[1]["client"].as_str().map(|id| id.ends_with("... (65535 bytes)")), Some(true));
        assert!(most[0].len() < 2_000, "{}", most[0].len());
        assert_eq!(groups, json!([{ "group": "$share/g/a", "total": 1, "drops": { "all_queues_full": 1 } }]));
    }

    /// Who is there gets what changed; the view stays whole (D138).
    #[test]
    fn what_did_not_change_is_not_told_again_and_stays() {
        let metrics = Metrics::default();
        let mut view = View::default();
        let all = renewed(&mut view, &metrics, 1_000);
        assert_eq!(renewed(&mut view, &metrics, 60_000), Vec::<String>::new());
        assert_eq!(view.by_topic.len(), all.len());
        metrics.retained_messages.set(2);
        let changed: BTreeSet<String> = renewed(&mut view, &metrics, 120_000).into_iter().collect();
        assert_eq!(changed, BTreeSet::from(["metrics/retained_messages".into(), "retained messages/count".into()]));
        assert_eq!(view.by_topic.len(), all.len());
        assert_eq!(payload(&view, "clients/total"), Some("0".into()));
    }

    /// What a full queue did not take comes again, once, and to whom it was missing.
    #[test]
    fn what_was_missed_is_told_again() {
        let metrics = Metrics::default();
        let sys = Sys::default();
        renewed(&mut sys.view.lock(), &metrics, 1_000);
        let missed = TopicName::parse("$SYS/broker/clients/total").unwrap();
        sys.missed(&missed, 7);
        sys.missed(&missed, 8);
        let mut view = sys.view.lock();
        let again = due(&mut view, &metrics, 2_000);
        assert_eq!((again.len(), again[0].message.topic.as_str()), (1, missed.as_str()));
        assert_eq!(again[0].to, Some(HashSet::from([7, 8])));
        assert_eq!(renewed(&mut view, &metrics, 3_000), Vec::<String>::new(), "once");
        drop(view);
        sys.missed(&missed, 7);
        metrics.sessions.set(2);
        let all = due(&mut sys.view.lock(), &metrics, 4_000);
        let total = all.iter().find(|due| due.message.topic == missed).unwrap();
        assert_eq!((&*total.message.payload, &total.to), (&b"2"[..], &None), "it is new to all");
    }

    /// However few of all values a queue takes each time, none of them waits for long, though all change each time.
    #[test]
    fn a_short_queue_gets_every_value_in_its_turn() {
        for values in [1, 2, 10, 89, 110, 128, 377] {
            for room in 1..=values {
                let mut last = vec![0; values];
                let renewals = 8 * values.div_ceil(room);
                for renewal in 0..renewals {
                    let from = begin(1_000 + renewal as u64, values);
                    (from..from + room).for_each(|at| last[at % values] = renewal);
                    let longest = last.iter().map(|at| renewal - at).max().unwrap();
                    assert!(longest <= 2 * values.div_ceil(room), "{room} of {values}: not for {longest} renewals");
                }
            }
        }
    }

    /// Others who have more room, or take other values, do not change that.
    #[test]
    fn what_one_misses_comes_to_it_alone() {
        let metrics = Metrics::default();
        let mut view = View::default();
        // One never reads, one takes ten at a time.
        let (stuck, short) = (1, 2);
        let mut waited: HashMap<String, u32> = HashMap::new();
        for n in 0..300 {
            metrics.add(&mut Counts { bytes_sent: 1_000 + n, packets_sent: 1 + n % 7, ..Counts::default() });
            let mut room = 10;
            for Due { message, to } in due(&mut view, &metrics, (n + 1) * 1_000) {
                let mut misses = HashSet::from([stuck]);
                if to.is_none_or(|to| to.contains(&short)) {
                    let waited = waited.entry(name(&message)).or_default();
                    if room > 0 {
                        room -= 1;
                        *waited = 0;
                    } else {
                        misses.insert(short);
                        *waited += 1;
                        assert!(*waited <= 30, "{message:?}");
                    }
                }
                view.missed.insert(message.topic.clone(), misses);
            }
        }
        assert_eq!(waited.len(), view.by_topic.len());
    }

    #[test]
    fn which_filters_speak_of_the_broker() {
        for (text, expected) in [
            ("$SYS/#", true),
            ("$SYS", true),
            ("$SYS/+/uptime", true),
            ("#", false),
            ("+/broker", false),
            ("$SYSTEM/#", false),
            ("a/$SYS", false),
        ] {
            assert_eq!(speaks_of(&TopicFilter::parse(text).unwrap()), expected, "{text}");
        }
        for (text, expected) in [("$SYS/broker/uptime", true), ("$SYS", true), ("$SYSTEM/x", false), ("a/$SYS", false)]
        {
            assert_eq!(is_of_broker(&TopicName::parse(text).unwrap()), expected, "{text}");
        }
    }

    /// By hand: with 60 in the first minute, an average over m minutes is 60 (1 - e^(-1/m)); each minute without any takes it down by the
    /// factor e^(-1/m).
    #[test]
    fn load_averages() {
        #[track_caller]
        fn check(load: &Load, expected: [f64; 3]) {
            for (average, expected) in load.averages.iter().zip(expected) {
                assert!((average - expected).abs() < 0.000_05, "{load:?}, not {expected:?}");
            }
        }
        let mut load = Load::default();
        load.advance(60, 60_000);
        check(&load, [37.9272, 10.8762, 3.8696]);
        load.advance(60, 60_000);
        check(&load, [13.9526, 8.9046, 3.6200]);
        load.advance(100, 30_000);
        check(&load, [39.9403, 15.6703, 6.1241]);
        // Nothing elapsed: nothing is known of the rate.
        load.advance(200, 0);
        check(&load, [39.9403, 15.6703, 6.1241]);
        // In one step or in many: at a constant rate that comes to the same.
        let mut steps = Load::default();
        let mut leap = Load::default();
        for n in 1..=30 {
            steps.advance(n * 20, 10_000);
        }
        leap.advance(600, 300_000);
        check(&steps, leap.averages);
    }

    #[test]
    fn loads_are_published_with_two_digits() {
        let metrics = Metrics::default();
        let mut view = View::default();
        renewed(&mut view, &metrics, 1_000);
        assert_eq!(payload(&view, "load/publish/received/1min"), Some("0.00".into()));
        metrics.add(&mut Counts { messages_received: 60, ..Counts::default() });
        renewed(&mut view, &metrics, 61_000);
        assert_eq!(payload(&view, "load/publish/received/1min"), Some("37.93".into()));
        assert_eq!(payload(&view, "load/publish/received/5min"), Some("10.88".into()));
        assert_eq!(payload(&view, "load/publish/received/15min"), Some("3.87".into()));
    }

    #[test]
    fn the_memory_of_this_process() {
        let (now, most) = memory().expect("Linux tells");
        assert!(now > 1 << 20 && most >= now, "{now} {most}");
    }
}
