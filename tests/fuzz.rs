//! A short run of every fuzz target (fuzz/README.md) with inputs from a seed, and of every input that once broke something.
//! `PINNACE_SEED` sets the seed, `PINNACE_FUZZ_RUNS` the number of inputs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

#[path = "../fuzz/harness/mod.rs"]
mod harness;
#[path = "simulation/random.rs"]
mod random;

use std::path::PathBuf;

use random::Random;

/// The files of a folder of inputs, in the order of their names.
fn inputs(folder: &str, target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder).join(target);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry can be read").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("an input can be read"))).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}")))
}

/// Says how to see the input again that broke something.
struct Shown(String);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Short ones mostly, so that many are run.
fn any_bytes(random: &mut Random) -> Vec<u8> {
    let most = random.pick(&[20, 200, 200, 2000]);
    (0..random.below(most)).map(|_| random.next() as u8).collect()
}

/// A known input with a few bytes changed, left out or put in.
fn mutant(random: &mut Random, known: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = known.get(random.below(known.len())).map(|(_, bytes)| bytes.clone()).unwrap_or_default();
    for _ in 0..random.below(5) {
        let at = random.below(bytes.len() + 1);
        let any = random.next() as u8;
        let byte = random.pick(&[0, 1, 2, 3, 0x0B, 0x23, 0x26, 0x7F, 0x80, 0xFF, any]);
        match (random.below(6), bytes.get_mut(at)) {
            (0, _) => bytes.truncate(at),
            (1, _) | (_, None) => bytes.insert(at, byte),
            (2, Some(_)) => drop(bytes.remove(at)),
            (_, Some(changed)) => *changed = byte,
        }
    }
    bytes
}

fn check(name: &str, runs: u64) {
    let (_, run) = harness::TARGETS.iter().find(|(target, _)| *target == name).expect("a target");
    let mut known = inputs("regressions", name);
    for (path, bytes) in &known {
        let shown = Shown(format!("to see it again: {}", path.display()));
        run(bytes);
        std::mem::forget(shown);
    }
    known.extend(inputs("seeds", name));
    let seed = number("PINNACE_SEED").unwrap_or(1);
    let mut random = Random::new(seed);
    for round in 0..number("PINNACE_FUZZ_RUNS").unwrap_or(runs) {
        let known_one = !known.is_empty() && random.chance(70);
        let bytes = if known_one { mutant(&mut random, &known) } else { any_bytes(&mut random) };
        let shown = Shown(format!("to see it again: PINNACE_SEED={seed} (input {round})\n{bytes:02x?}"));
        run(&bytes);
        std::mem::forget(shown);
    }
}

#[test]
fn frames_and_packets() {
    check("codec", 60_000);
}

#[test]
fn a_session_driven_by_packets() {
    check("session", 1_500);
}

#[test]
fn topics_and_filters() {
    check("topics", 2_000);
}
