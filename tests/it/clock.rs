//! Steps of the wall clock: the broker goes by what a steady clock adds.
//!
//! The broker's own idea of the wall time is shifted by a library that is loaded before the C library; its log shows the shift.

use std::{path::PathBuf, process::Command};

use crate::support::{
    Connect, Setup, Value, Will,
    client::publish_of,
    eventually,
    wire::{Publish, property},
};

/// Adds the seconds that the file of `PINNACE_TEST_CLOCK` holds to CLOCK_REALTIME.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, time);
    const char *path = getenv("PINNACE_TEST_CLOCK");
    FILE *file = id == CLOCK_REALTIME && path ? fopen(path, "r") : NULL;
    if (file) {
        long shift = 0;
        if (fscanf(file, "%ld", &shift) == 1) time->tv_sec += shift;
        fclose(file);
    }
    return result;
}
"#;

fn shim(setup: &Setup) -> PathBuf {
    let source = setup.file("shim.c", SHIM);
    let library = setup.dir().join("shim.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").output();
    let built = built.expect("a C compiler, as the store's engine needs one too");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// The wall clock jumps by ten years, forth and back, with clients, a delayed will, a session and messages that expire: nobody is disconnected, and
/// nothing ends, or lives, for it (D139).
#[test]
fn a_step_of_the_wall_clock_changes_nothing() {
    const YEARS: i64 = 10 * 31_556_952;
    let setup = Setup::new();
    let shift = setup.file("shift", "0");
    let library = shim(&setup);
    let setup = setup.env("LD_PRELOAD", library.to_str().unwrap());
    let broker = setup.env("PINNACE_TEST_CLOCK", shift.to_str().unwrap()).start();
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
        std::fs::write(&shift, (years / 10 * YEARS).to_string()).unwrap();
        let from = broker.log_len();
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
}
