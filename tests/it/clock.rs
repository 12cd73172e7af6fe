//! Steps of the wall clock: the broker goes by what a steady clock adds.

use crate::support::{
    Broker, Client, Connect, Setup, Value, WallClock, Will,
    client::publish_of,
    eventually,
    wire::{Publish, property},
};

/// A broker whose wall clock can be set.
fn start() -> (Broker, WallClock) {
    let (clock, setup) = WallClock::of(Setup::new());
    (setup.start(), clock)
}

/// The wall clock jumps by ten years, forth and back, with clients, a delayed will, a session and messages that expire: nobody is disconnected, and
/// nothing ends, or lives, for it (D139).
#[test]
fn a_step_of_the_wall_clock_changes_nothing() {
    const YEARS: i64 = 10 * 31_556_952;
    let (broker, clock) = start();
    let mut watcher = broker.connect(&Connect::v5("watcher").keep_alive(60));
    watcher.subscribe("will", 1);
    let mut publisher = broker.connect(&Connect::v4("publisher").keep_alive(60));
    let mut absent = broker.connect(&Connect::v5("absent").expiry(1_000));
    absent.subscribe("t", 1);
    absent.disconnect();
    let will = Will::new("will", "gone").delay(1_000);
    broker.connect(&Connect::v5("mortal").expiry(1_000).will(will)).cut();
    let mut properties = broker.v5("properties");
    let expiring = vec![(property::MESSAGE_EXPIRY, Value::Four(1_000))];
    properties.publish_as(&Publish { properties: expiring, retain: true, ..publish_of("t", "x", 1) });

    let year = 1970 + std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64 / 31_556_952;
    for years in [10, -10, 0] {
        clock.ahead(years / 10 * YEARS);
        let from = broker.log_len();
        broker.wait_log_from(from, "that the clock was set", |line| line.contains(SET));
        broker.v5("passing").disconnect();
        eventually("a line of the log that shows the shifted time", || {
            broker.log_lines()[from..].iter().find(|line| {
                let shown: Option<i64> =
                    line.strip_prefix("{\"timestamp\":\"").and_then(|rest| rest.get(..4)?.parse().ok());
                shown.is_some_and(|shown| (shown - year - years).abs() <= 1)
            })?;
            Some(())
        });
        watcher.nothing();
        publisher.ping();
        publisher.publish("elsewhere", "x", 1);
        assert_eq!(broker.status_number("retained_messages"), 1);
        let mut late = broker.v5("late");
        late.subscribe("t", 1);
        let message = late.message();
        let [(property::MESSAGE_EXPIRY, Value::Four(left))] = message.properties.as_slice() else {
            panic!("{message:?}")
        };
        assert!((900..=1_000).contains(left), "{left} s left");
        late.disconnect();
    }
    let mut absent = broker.connect(&Connect::v5("absent").persistent());
    assert!(absent.session_present());
    let message = absent.message();
    let Some((_, Value::Four(left))) = message.properties.first() else { panic!("{message:?}") };
    assert!((900..=1_000).contains(left), "{left} s left");
    assert!(broker.connect(&Connect::v5("mortal").persistent()).session_present());
    assert_eq!(broker.log_lines().iter().filter(|line| line.contains(SET)).count(), 3, "each step once");
}

fn end(broker: &mut Broker, clean: bool) {
    if clean {
        broker.terminate();
    } else {
        broker.kill9();
    }
}

fn kept(client_id: &str, secs: u32) -> Connect {
    Connect::v5(client_id).clean(false).expiry(secs)
}

/// Publishes a message that expires after `secs`.
fn publish_expiring(publisher: &mut Client, topic: &str, payload: &str, secs: u32, retain: bool) {
    let properties = vec![(property::MESSAGE_EXPIRY, Value::Four(secs))];
    publisher.publish_as(&Publish { properties, retain, ..publish_of(topic, payload, 1) });
}

/// The payload of a message, and the seconds that it has left.
fn left(message: &Publish) -> (&str, u32) {
    let [(property::MESSAGE_EXPIRY, Value::Four(left))] = message.properties.as_slice() else { panic!("{message:?}") };
    (std::str::from_utf8(&message.payload).unwrap(), *left)
}

/// What is due while the broker is down is due when it comes back, and nothing else: sessions, queued messages but those that were sent before,
/// retained ones and wills, those of clients that died with the broker too, each once.
#[test]
fn the_time_that_the_broker_was_down_counts() {
    for clean in [false, true] {
        let (mut broker, clock) = start();
        let watch = kept("watcher", 100_000);
        broker.connect(&watch).subscribe("will/#", 1);
        let (short, long) = (kept("short", 1_000), kept("long", 10_000));
        for connect in [&short, &long] {
            broker.connect(connect).subscribe("t", 1);
        }
        let mut publisher = broker.v5("publisher");
        publish_expiring(&mut publisher, "t", "sent", 1_000, false);
        let mut client = broker.connect(&long);
        assert_eq!(client.delivery().payload, b"sent");
        client.ping();
        client.cut();
        for (payload, secs) in [("early", 1_000), ("late", 10_000)] {
            publish_expiring(&mut publisher, "t", payload, secs, false);
            publish_expiring(&mut publisher, &format!("retained/{payload}"), payload, secs, true);
        }
        let will = |name: &str, secs| Will::new(&format!("will/{name}"), name).qos(1).delay(secs);
        broker.connect(&Connect::v5("a").expiry(5_000).will(will("due", 1_000))).cut();
        broker.connect(&Connect::v5("b").expiry(50_000).will(will("not yet", 20_000))).cut();
        let _died = broker.connect(&Connect::v5("c").expiry(5_000).will(will("died", 0)));
        broker.until_status("sessions_expired", |count| count == 0);
        end(&mut broker, clean);
        clock.ahead(2_000);
        broker.restart();
        assert!(!broker.connect(&short).session_present());
        let mut client = broker.connect(&long);
        assert!(client.session_present());
        let again = client.delivery();
        assert_eq!((&*again.payload, again.dup), (&b"sent"[..], true), "it may have arrived before");
        let message = client.message();
        let (payload, secs) = left(&message);
        assert!(payload == "late" && (7_900..=8_000).contains(&secs), "{payload} {secs}");
        client.nothing();
        let mut late = broker.v5("late");
        late.subscribe("retained/#", 1);
        let message = late.message();
        let (payload, secs) = left(&message);
        assert!(payload == "late" && (7_900..=8_000).contains(&secs), "{payload} {secs}");
        late.nothing();
        let mut watcher = broker.connect(&watch);
        let mut names = [watcher.text(), watcher.text()];
        names.sort();
        assert_eq!(names, ["died", "due"]);
        // Once: not at the next start either. What the watcher acknowledged is stored with what somebody waits for.
        watcher.ping();
        broker.connect(&kept("later", 1_000)).disconnect();
        end(&mut broker, clean);
        broker.restart();
        let mut watcher = broker.connect(&watch);
        watcher.nothing();
        watcher.disconnect();
    }
}

/// A wall clock that went back, or jumped by decades, between two runs does not say how long the broker was down; one that was set while it ran
/// says it all the same.
#[test]
fn a_wall_clock_that_is_wrong_at_a_start_expires_nothing_and_keeps_nothing() {
    for clean in [false, true] {
        let (mut broker, clock) = start();
        let sleeper = kept("sleeper", 100_000);
        broker.connect(&sleeper).subscribe("t", 1);
        publish_expiring(&mut broker.v5("publisher"), "t", "x", 50_000, false);
        let restarted = |broker: &mut Broker, secs: i64, said: &str| {
            end(broker, clean);
            let from = broker.log_len();
            clock.ahead(secs);
            broker.restart();
            if said.is_empty() {
                assert!(!broker.log_lines()[from..].iter().any(|line| line.contains("wall clock")));
            } else {
                broker.wait_log_from(from, said, |line| line.contains(said));
            }
            let mut client = broker.connect(&sleeper);
            assert!(client.session_present());
            // Not acknowledged: it comes again each time.
            let message = client.delivery();
            client.cut();
            left(&message).1
        };
        let now = i64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        // A gateway without a battery starts in 1970. It is told the time while it runs, and is down for a while.
        let secs = restarted(&mut broker, 10 - now, "the wall clock is behind");
        // Where the time goes on from the last note, that may be a minute old after a kill.
        assert!((49_900..=50_060).contains(&secs), "{secs}");
        let from = broker.log_len();
        clock.ahead(0);
        broker.wait_log_from(from, "that the clock was set", |line| line.contains(SET));
        // Its CONNACK waits for what was written before, the note of that.
        broker.connect(&kept("other", 1_000)).disconnect();
        let secs = restarted(&mut broker, 1_000, "");
        assert!((48_900..=49_060).contains(&secs), "{secs}");
        // Decades ahead, and a while later.
        let secs = restarted(&mut broker, 20 * 31_556_952, "storage.max_downtime_secs");
        assert!((48_900..=49_060).contains(&secs), "{secs}");
        let secs = restarted(&mut broker, 20 * 31_556_952 + 1_000, "");
        assert!((47_800..=48_060).contains(&secs), "{secs}");
    }
}

const SET: &str = "the wall clock was set";
