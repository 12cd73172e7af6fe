//! How far a long command has come: a bar on a terminal, plain lines now and then elsewhere, both on standard error.
//!
//! Must not know what the command does.

use std::{
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::storage;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Records,
    Bytes,
}

/// Counts up to a total, and shows it. Nothing is left of a bar when it is dropped.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    unit: Unit,
    done: u64,
    total: u64,
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Nowhere,
    Bar(ProgressBar),
    Lines { began: Instant, last: Instant },
}

impl Progress {
    /// `what` is done, in a word or two; `total` may be an estimate, or 0 where it is not known.
    pub fn new(quiet: bool, what: &'static str, unit: Unit, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let shown = match quiet {
            true => Shown::Nowhere,
            false if bar.is_hidden() => Shown::Lines { began: Instant::now(), last: Instant::now() },
            false => {
                // The style first: what follows is drawn at once.
                bar.set_style(style(unit, total > 0));
                bar.set_message(what);
                Shown::Bar(bar)
            }
        };
        Self { what, unit, done: 0, total, shown }
    }

    /// So much more is done.
    pub fn add(&mut self, more: u64) {
        self.set(self.done.saturating_add(more));
    }

    /// So much is done.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        match &mut self.shown {
            Shown::Nowhere => {}
            Shown::Bar(bar) => {
                // The total is an estimate: the bar grows with what is beyond it.
                if self.total > 0 && done > self.total {
                    bar.set_length(done);
                }
                bar.set_position(done);
            }
            Shown::Lines { began, last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                let line = line(self.what, self.unit, done, self.total, began.elapsed());
                // Nobody is left to tell where standard error is closed.
                let _ = writeln!(std::io::stderr().lock(), "pinnace: {line}");
            }
            Shown::Lines { .. } => {}
        }
    }

    /// Runs `work`, which fills `dir`, and shows how it grows.
    pub fn while_filling<T: Send>(mut self, dir: &Path, work: impl FnOnce() -> T + Send) -> T {
        let before = storage::tree(dir).0;
        std::thread::scope(|scope| {
            let (sender, done) = std::sync::mpsc::sync_channel::<()>(0);
            let watcher = scope.spawn(move || {
                while done.recv_timeout(LOOK_EVERY) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    self.set(storage::tree(dir).0.saturating_sub(before));
                }
            });
            let outcome = work();
            drop(sender);
            let _ = watcher.join();
            outcome
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// How long that is, roughly.
pub fn ago(since: Duration) -> String {
    HumanDuration(since).to_string()
}

fn style(unit: Unit, total_is_known: bool) -> ProgressStyle {
    let template = match (unit, total_is_known) {
        (Unit::Records, true) => "{msg} [{bar:30}] {human_pos} of {human_len} records, {per_sec}, {eta} left",
        (Unit::Records, false) => "{spinner} {msg} {human_pos} records, {per_sec}",
        (Unit::Bytes, true) => "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        (Unit::Bytes, false) => "{spinner} {msg} {bytes}, {bytes_per_sec}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn line(what: &str, unit: Unit, done: u64, total: u64, elapsed: Duration) -> String {
    let count = |count| match unit {
        Unit::Records => HumanCount(count).to_string(),
        Unit::Bytes => HumanBytes(count).to_string(),
    };
    let per_sec = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let mut line = format!("{what}: {}", count(done));
    if total > done && per_sec > 0 {
        let left = HumanDuration(Duration::from_secs((total - done) / per_sec));
        line += &format!(" of {}, {} a second, {left} left", count(total), count(per_sec));
    } else {
        line += &format!(", {} a second", count(per_sec));
    }
    line
}

const LINE_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is_and_what_is_left() {
        let secs = Duration::from_secs;
        let cases = [
            (
                Unit::Records,
                2_000_000,
                6_000_000,
                secs(10),
                "check: 2,000,000 of 6,000,000, 200,000 a second, 20 seconds left",
            ),
            (Unit::Records, 7, 6, secs(1), "check: 7, 7 a second"),
            (Unit::Bytes, 3 << 20, 0, secs(3), "check: 3.00 MiB, 1.00 MiB a second"),
            (Unit::Bytes, 0, 5, secs(0), "check: 0 B, 0 B a second"),
        ];
        for (unit, done, total, elapsed, expected) in cases {
            assert_eq!(line("check", unit, done, total, elapsed), expected);
        }
    }

    #[test]
    fn what_fills_a_directory_is_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let progress = Progress::new(true, "backup", Unit::Bytes, 0);
        let written = progress.while_filling(dir.path(), || std::fs::write(dir.path().join("a"), "abc"));
        assert!(written.is_ok());
        assert_eq!(storage::tree(dir.path()), (3, 1));
    }
}
