//! What durability costs: pinnace against *storelimit* (the bare engine under the same records), one `fdatasync` of the same disk, and
//! Debian's mosquitto with its queue in memory. Everything in turns, in one run; medians.
//!
//! `cargo bench --bench durable` (`-- --rounds N`, `--seconds N`, `--only offline|online|lone|resume`). `PINNACE_BIN` names another build.

#![allow(
    clippy::indexing_slicing,
    reason = "every index comes from this program; what a broker sends is cut with bounds"
)]

#[path = "../load/broker.rs"]
#[allow(dead_code, reason = "what `benches/load` takes of it")]
mod broker;
#[path = "../load/drive.rs"]
#[allow(dead_code, reason = "what `benches/load` takes of it")]
mod drive;
mod flood;
#[path = "../load/histogram.rs"]
mod histogram;
#[path = "../commit/storelimit.rs"]
#[allow(dead_code, reason = "what `benches/commit` takes of it")]
mod storelimit;
#[path = "../load/wire.rs"]
mod wire;

use std::{error::Error, time::Duration};

use broker::{Kind, Process};
use drive::Load;
use flood::Flood;
use pinnace::storage::Durability;

type Fault = Box<dyn Error + Send + Sync>;
type Part = (&'static str, fn(&Options) -> Result<(), Fault>);

const PARTS: [Part; 4] = [("offline", offline), ("online", online), ("lone", lone), ("resume", resume)];

const OFFLINE: Flood = Flood { publishers: 100, window: 20, payload_bytes: 200 };
const ALONE: u64 = 300;
const RESUMED: u64 = 100_000;

struct Options {
    rounds: usize,
    measured: Duration,
    only: Option<String>,
}

fn main() -> Result<(), Fault> {
    let options = Options::parse(std::env::args().skip(1))?;
    broker::raise_file_limit();
    println!("{}; {}; {} rounds", Kind::Pinnace.version(), Kind::Mosquitto.version(), options.rounds);
    for (name, measure) in PARTS {
        if options.only.as_ref().is_none_or(|only| only == name) {
            eprintln!("{name}");
            measure(&options)?;
        }
    }
    Ok(())
}

/// Many publishers to sessions that are away: acknowledged messages a second.
fn offline(options: &Options) -> Result<(), Fault> {
    let mut rows = [Durability::Fsync, Durability::Os].map(|durability| (durability, Offline::default()));
    let mut mosquitto = Median::default();
    for _ in 0..options.rounds {
        for (durability, row) in &mut rows {
            row.measure(*durability, options.measured)?;
        }
        let process = Process::start(Kind::Mosquitto, "")?;
        OFFLINE.subscribe(&process)?;
        mosquitto.add(OFFLINE.run(&process, options.measured, u64::MAX)?.rate());
    }
    let Flood { publishers, window, payload_bytes } = OFFLINE;
    println!(
        "\nQoS 1 to absent sessions: {publishers} publishers, window {window}, {payload_bytes} bytes; acknowledged a second"
    );
    println!(
        "| durability | pinnace | CPU us/msg | records a batch | storelimit | pinnace / storelimit | mosquitto (memory) | pinnace / mosquitto |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mosquitto = mosquitto.value();
    for (durability, row) in &rows {
        let (rate, limit) = (row.rate.value(), row.limit.value());
        println!(
            "| {} | {rate:.0} | {:.2} | {:.0} | {limit:.0} | {:.2} | {mosquitto:.0} | {:.2} |",
            durability.name(),
            row.cpu.value(),
            row.batch.value(),
            rate / limit,
            rate / mosquitto,
        );
    }
    Ok(())
}

#[derive(Default)]
struct Offline {
    rate: Median,
    cpu: Median,
    batch: Median,
    limit: Median,
}

impl Offline {
    fn measure(&mut self, durability: Durability, measured: Duration) -> Result<(), Fault> {
        let process = Process::start(Kind::Pinnace, durability.name())?;
        OFFLINE.subscribe(&process)?;
        let before = process.status()?;
        let outcome = OFFLINE.run(&process, measured, u64::MAX)?;
        let batch = records_a_batch(&before, &process.status()?)?;
        drop(process);
        self.rate.add(outcome.rate());
        self.cpu.add(outcome.cpu_micros);
        self.batch.add(batch as f64);
        let Flood { publishers, payload_bytes, .. } = OFFLINE;
        let load = storelimit::Load { durability, payload_bytes, logs: publishers as u64, batch };
        let dir = tempfile::tempdir()?;
        self.limit.add(storelimit::write(dir.path(), load, measured)?.records_per_sec);
        Ok(())
    }
}

/// Ten publishers to ten sessions that are there, kept and not: CPU for each message.
fn online(options: &Options) -> Result<(), Fault> {
    const DURABILITY: Durability = Durability::Os;
    let loads = [Load::pairs("not kept", 10, 1), Load::pairs("kept", 10, 1).persistent()];
    let mut cpu = [Median::default(), Median::default()];
    let mut rate = [Median::default(), Median::default()];
    let [mut batch, mut of_message, mut limit] = [Median::default(), Median::default(), Median::default()];
    for _ in 0..options.rounds {
        for (index, load) in loads.iter().enumerate() {
            let process = Process::start(Kind::Pinnace, DURABILITY.name())?;
            let before = process.status()?;
            let outcome = drive::run(&process, load, 1_000, options.measured)?;
            if !outcome.correct() {
                return Err(format!("messages of sessions {} were lost, doubled or reordered", load.name).into());
            }
            cpu[index].add(outcome.broker_cpu_micros);
            rate[index].add(outcome.delivered_per_sec);
            if index == 0 {
                continue;
            }
            let after = process.status()?;
            let records = records_a_batch(&before, &after)?;
            batch.add(records as f64);
            of_message.add(
                grown(&before, &after, "/storage/operations")? / grown(&before, &after, "/metrics/messages_delivered")?,
            );
            drop(process);
            let load = storelimit::Load {
                durability: DURABILITY,
                payload_bytes: drive::PAYLOAD_BYTES,
                logs: 10,
                batch: records,
            };
            let dir = tempfile::tempdir()?;
            limit.add(storelimit::write(dir.path(), load, options.measured)?.cpu_micros);
        }
    }
    let [volatile, kept] = cpu.map(|cpu| cpu.value());
    let [volatile_rate, kept_rate] = rate.map(|rate| rate.value());
    let limit = limit.value();
    println!("\n10:10 QoS 1, durability os: CPU us of the broker for each message");
    println!(
        "| not kept (msg/s) | kept (msg/s) | operations a message | a batch | storelimit, a record | kept - not kept, in records |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    println!(
        "| {volatile:.3} ({volatile_rate:.0}) | {kept:.3} ({kept_rate:.0}) | {:.2} | {:.0} | {limit:.3} | {:.2} |",
        of_message.value(),
        batch.value(),
        (kept - volatile) / limit,
    );
    Ok(())
}

/// One message at a time: how long its acknowledgement takes.
fn lone(options: &Options) -> Result<(), Fault> {
    let (mut broker, mut disk) = (Median::default(), Median::default());
    for _ in 0..options.rounds {
        let process = Process::start(Kind::Pinnace, Durability::Fsync.name())?;
        let mut took = flood::one_by_one(&process, OFFLINE.payload_bytes, ALONE)?;
        took.sort_unstable();
        broker.add(took[took.len() / 2].as_secs_f64() * 1e6);
        let dir = tempfile::tempdir()?;
        disk.add(storelimit::fdatasync(dir.path(), ALONE as usize)?.as_secs_f64() * 1e6);
    }
    let (broker, disk) = (broker.value(), disk.value());
    println!("\nA lone QoS 1 message, durability fsync: median us to its acknowledgement");
    println!("| pinnace | fdatasync | pinnace / fdatasync | bound (1.5 fdatasync + 1 ms) |");
    println!("|---:|---:|---:|---:|");
    println!("| {broker:.0} | {disk:.0} | {:.2} | {:.0} |", broker / disk, 1.5 * disk + 1000.0);
    Ok(())
}

/// A session with a long queue comes back: messages a second.
fn resume(options: &Options) -> Result<(), Fault> {
    let (mut broker, mut limit) = (Median::default(), Median::default());
    let one = Flood { publishers: 1, window: 1000, ..OFFLINE };
    for _ in 0..options.rounds {
        let process = Process::start(Kind::Pinnace, Durability::Os.name())?;
        one.subscribe(&process)?;
        one.run(&process, Duration::from_secs(120), RESUMED)?;
        broker.add(flood::resume(&process, one.payload_bytes, RESUMED)?);
        let dir = tempfile::tempdir()?;
        limit.add(storelimit::scan(dir.path(), one.payload_bytes, RESUMED)?);
    }
    let (broker, limit) = (broker.value(), limit.value());
    println!("\nA session comes back to {RESUMED} messages of {} bytes: messages a second", one.payload_bytes);
    println!("| pinnace | storelimit's scan | pinnace / storelimit |");
    println!("|---:|---:|---:|");
    println!("| {broker:.0} | {limit:.0} | {:.2} |", broker / limit);
    Ok(())
}

/// How many operations one commit held on the average.
fn records_a_batch(before: &serde_json::Value, after: &serde_json::Value) -> Result<u64, Fault> {
    let commits = grown(before, after, "/storage/commits")?.max(1.0);
    Ok((grown(before, after, "/storage/operations")? / commits).round().max(1.0) as u64)
}

fn grown(before: &serde_json::Value, after: &serde_json::Value, pointer: &str) -> Result<f64, Fault> {
    let value = |status: &serde_json::Value| status.pointer(pointer).and_then(serde_json::Value::as_f64);
    let values = value(before).zip(value(after)).ok_or_else(|| format!("the status has no {pointer}"))?;
    Ok(values.1 - values.0)
}

/// What was measured, round by round.
#[derive(Default)]
struct Median(Vec<f64>);

impl Median {
    fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_unstable_by(f64::total_cmp);
    }

    fn value(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, Fault> {
        let mut options = Self { rounds: 5, measured: Duration::from_secs(3), only: None };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                // `cargo bench` says so itself.
                "--bench" => {}
                "--rounds" => options.rounds = value()?.parse()?,
                "--seconds" => options.measured = Duration::from_secs(value()?.parse()?),
                "--only" => options.only = Some(value()?),
                other => return Err(format!("unknown argument {other}").into()),
            }
        }
        Ok(options)
    }
}
