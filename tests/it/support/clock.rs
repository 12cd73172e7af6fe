//! A wall clock that is wrong: a library that is loaded before the C library shifts what the broker reads, as its log shows.

use std::{path::PathBuf, process::Command};

use super::Setup;

/// What the broker takes for the wall clock.
pub struct WallClock(PathBuf);

impl WallClock {
    /// Gives such a clock to a broker; it is right at first.
    pub fn of(setup: Setup) -> (Self, Setup) {
        let clock = Self(setup.file("clock", "0"));
        let source = setup.file("clock.c", SHIFT);
        let library = setup.dir().join("clock.so");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let built =
            Command::new(compiler).args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").output();
        let built = built.expect("a C compiler, as the store's engine needs one too");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let setup = setup.env("LD_PRELOAD", library.to_str().unwrap());
        let setup = setup.env("PINNACE_TEST_CLOCK", clock.0.to_str().unwrap());
        (clock, setup)
    }

    /// From now on it is so many seconds ahead.
    pub fn ahead(&self, secs: i64) {
        std::fs::write(&self.0, secs.to_string()).unwrap();
    }
}

/// Adds the seconds that the file of `PINNACE_TEST_CLOCK` holds to CLOCK_REALTIME.
const SHIFT: &str = r#"
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
