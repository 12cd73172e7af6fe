//! What is measured, and the bound of each figure.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    Figure, Tell,
    broker::{DURABILITY, Kind, Process},
    clients::{self, WEEK},
    drive::{self, Load},
};

type Scenario = fn(usize, Tell<'_>) -> io::Result<()>;

/// By name, in the order in which they are run.
pub const ALL: [(&str, Scenario); 5] =
    [("idle", idle), ("backlog", backlog), ("shared", shared), ("churn", churn), ("expiry", expiry)];

/// Sessions whose clients are away, with subscriptions and nothing that waits.
fn idle(scale: usize, tell: Tell<'_>) -> io::Result<()> {
    let sessions = 100_000 / scale;
    let mut process = Process::start(Kind::Pinnace, DURABILITY)?;
    let empty = process.resident_bytes()?;
    let each = |bytes: u64| bytes.saturating_sub(empty) as f64 / sessions as f64;
    let begun = Instant::now();
    clients::enroll(process.address, sessions, 5, WEEK)?;
    tell(Figure::new(format!("{sessions} sessions made and left"), begun.elapsed().as_secs_f64(), "s"));
    let rested = |process: &Process| {
        settle();
        process.resident_bytes()
    };
    tell(Figure::new("memory of each, once they have left", each(rested(&process)?), "bytes").at_most(2048.0));
    let took = process.restart()?;
    tell(Figure::new("start with all of them", took.as_secs_f64(), "s"));
    tell(Figure::new("memory of each at most, during the start", each(process.peak_bytes()?), "bytes").at_most(2662.0));
    tell(Figure::new("memory of each, after the start", each(rested(&process)?), "bytes").at_most(2048.0));
    let begun = Instant::now();
    clients::enroll(process.address, sessions, 0, WEEK)?;
    tell(Figure::new("all came and left again", begun.elapsed().as_secs_f64(), "s"));
    tell(Figure::new("memory of each, once they have left", each(rested(&process)?), "bytes").at_most(2048.0));
    Ok(())
}

/// Sessions whose clients are away, with messages that wait.
fn backlog(scale: usize, tell: Tell<'_>) -> io::Result<()> {
    let (sessions, each) = (1000 / scale, 1000);
    let mut process = Process::start(Kind::Pinnace, DURABILITY)?;
    let empty = process.resident_bytes()?;
    let added = |bytes: u64| bytes.saturating_sub(empty) as f64 / MIB;
    clients::enroll(process.address, sessions, 1, WEEK)?;
    let begun = Instant::now();
    clients::publish(process.address, sessions * each, 1000, |number| clients::topic(number % sessions))?;
    let secs = begun.elapsed().as_secs_f64();
    tell(Figure::new(format!("{sessions} x {each} messages of 1 kB queued"), (sessions * each) as f64 / secs, "per s"));
    tell(Figure::new("memory added", added(process.resident_bytes()?), "MiB").at_most(64.0));
    settle();
    tell(Figure::new("memory added, a little later", added(process.resident_bytes()?), "MiB").at_most(64.0));
    tell(Figure::new("on the disk", process.stored_bytes()? as f64 / MIB, "MiB"));
    let took = process.restart()?;
    tell(Figure::new("start with all of them", took.as_secs_f64(), "s"));
    tell(Figure::new("memory added, at most during the start", added(process.peak_bytes()?), "MiB").at_most(64.0));
    settle();
    tell(Figure::new("memory added, after the start", added(process.resident_bytes()?), "MiB").at_most(64.0));
    let mut most = 0;
    let took = clients::resume(process.address, sessions, each, || {
        most = most.max(process.resident_bytes().unwrap_or_default());
    })?;
    tell(Figure::new("all come at once and take all", (sessions * each) as f64 / took.as_secs_f64(), "per s"));
    tell(Figure::new("memory added, at most meanwhile", added(most), "MiB").at_most(192.0));
    settle();
    tell(Figure::new("memory added, once they have left", added(process.resident_bytes()?), "MiB").at_most(64.0));
    tell(Figure::new("on the disk", process.stored_bytes()? as f64 / MIB, "MiB"));
    Ok(())
}

/// One large message for many sessions.
fn shared(scale: usize, tell: Tell<'_>) -> io::Result<()> {
    let (sessions, messages, size) = (1000, 20usize.div_ceil(scale), 100 << 10);
    let process = Process::start(Kind::Pinnace, DURABILITY)?;
    for session in 0..sessions {
        clients::enroll_one(process.address, session, &["all"])?;
    }
    settle();
    let before = process.stored_bytes()?;
    clients::publish(process.address, messages, size, |_| "all".into())?;
    let each = (process.stored_bytes()?.saturating_sub(before)) as f64 / messages as f64;
    tell(Figure::new(format!("disk for 100 KiB to {sessions} sessions, logs included"), each / 1024.0, "KiB"));
    let over = (each - size as f64) / sessions as f64;
    tell(Figure::new("of it, for each session, beside the message", over, "bytes").at_most(200.0));
    clients::resume(process.address, sessions, messages, || {})?;
    settle();
    let left = process.stored_bytes()?.saturating_sub(before) as f64 / MIB;
    tell(Figure::new("left once all have taken it", left, "MiB"));
    Ok(())
}

/// One session that takes and acknowledges messages over a long time, always with some that wait.
fn churn(scale: usize, tell: Tell<'_>) -> io::Result<()> {
    let messages = 10_000_000 / scale;
    let mut process = Process::start(Kind::Pinnace, DURABILITY)?;
    clients::enroll_one(process.address, 0, &[&clients::topic(0)])?;
    let mut done = 0;
    for share in [100, 10, 1] {
        let until = messages / share;
        let begun = Instant::now();
        let mut resumed = Duration::ZERO;
        let mut rounds = 0u32;
        let from = done;
        while done < until {
            let count = (until - done).min(CHURN_ROUND);
            clients::publish(process.address, count, 200, |_| clients::topic(0))?;
            resumed += clients::resume(process.address, 1, count, || {})?;
            rounds += 1;
            done += count;
        }
        let rate = (done - from) as f64 / begun.elapsed().as_secs_f64();
        tell(Figure::new(format!("{done} messages went through one session"), rate, "per s"));
        let each = resumed.as_secs_f64() / f64::from(rounds) * 1e3;
        tell(Figure::new(format!("time to take {CHURN_ROUND} of them"), each, "ms"));
        clients::publish(process.address, 1, 200, |_| clients::topic(0))?;
        let took = clients::resume(process.address, 1, 1, || {})?;
        tell(Figure::new("time to take a single one", took.as_secs_f64() * 1e3, "ms"));
        tell(Figure::new("on the disk", process.stored_bytes()? as f64 / MIB, "MiB"));
    }
    settle();
    tell(Figure::new("on the disk, a little later", process.stored_bytes()? as f64 / MIB, "MiB").at_most(96.0));
    let took = process.restart()?;
    tell(Figure::new("start", took.as_secs_f64() * 1e3, "ms"));
    tell(Figure::new("on the disk, after the start", process.stored_bytes()? as f64 / MIB, "MiB").at_most(96.0));
    Ok(())
}

/// Many sessions that expire in the same second, beside a pair of clients that goes on.
fn expiry(scale: usize, tell: Tell<'_>) -> io::Result<()> {
    let sessions = 100_000 / scale;
    let mut process = Process::start(Kind::Pinnace, DURABILITY)?;
    let empty = process.resident_bytes()?;
    let pair = Load::pairs("a pair", 1, 1).paced(1000);
    let alone = drive::run(&process, &pair, 100, Duration::from_secs(5))?;
    tell(Figure::new("p99 of a pair", alone.p99_micros, "us"));
    let begun = Instant::now();
    let expiry = Duration::from_secs(20 + sessions as u64 / 1000);
    clients::enroll(process.address, sessions, 5, expiry.as_secs() as u32)?;
    clients::publish(process.address, sessions, 100, clients::topic)?;
    if begun.elapsed() >= expiry {
        return Err(io::Error::other("the sessions expired before all were made"));
    }
    tell(Figure::new("on the disk", process.stored_bytes()? as f64 / MIB, "MiB"));
    // Who expires while the broker is down is due at its start.
    process.stop_for(expiry + Duration::from_secs(1))?;
    let begun = Instant::now();
    let cpu = process.cpu()?;
    let beside = drive::run(&process, &pair, 100, Duration::from_secs(5))?;
    tell(Figure::new(format!("p99 of it while {sessions} sessions expire"), beside.p99_micros, "us"));
    while process.status()?["metrics"]["sessions"] != 0 {
        if begun.elapsed() > Duration::from_secs(120) {
            return Err(io::Error::other("sessions do not expire"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    tell(Figure::new("until all were gone", begun.elapsed().as_secs_f64(), "s").at_most(60.0));
    tell(Figure::new("processor time meanwhile", (process.cpu()? - cpu).as_secs_f64(), "s"));
    settle();
    tell(Figure::new("memory left", process.resident_bytes()?.saturating_sub(empty) as f64 / MIB, "MiB").at_most(64.0));
    tell(Figure::new("on the disk", process.stored_bytes()? as f64 / MIB, "MiB"));
    Ok(())
}

/// What the broker does after something was asked of it is done.
fn settle() {
    std::thread::sleep(Duration::from_secs(3));
}

const MIB: f64 = (1 << 20) as f64;
/// How many messages wait at most in the session that takes many.
const CHURN_ROUND: usize = 10_000;
