//! The macro benchmark: pinnace and Debian's mosquitto in turn under the same load, and one table of what each makes of it.
//!
//! `cargo bench --bench load` (`-- --quick`, `--only TEXT`, `--brokers pinnace,mosquitto,wirelimit`, `--in-flight N`, `--idle N`, `--json`).
//! `PINNACE_BIN` names another build of pinnace, `PINNACE_WIRELIMIT` a relay that only forwards frames, to measure as a third.
//! Knows the brokers' command lines and the wire, nothing of the crate.

#![allow(
    clippy::indexing_slicing,
    reason = "every index comes from this program; what a broker sends is cut with bounds"
)]

#[allow(dead_code, reason = "what `benches/durable` takes of it")]
mod broker;
#[allow(dead_code, reason = "what `benches/durable` takes of it")]
mod drive;
mod histogram;
mod report;
#[allow(dead_code, reason = "what `benches/durable` takes of it")]
mod wire;

use std::{error::Error, time::Duration};

use broker::{Kind, Process};
use drive::{Load, Outcome};
use report::Row;

const LOADS: [Load; 8] = [
    Load::pairs("10:10 QoS 0", 10, 0),
    Load::pairs("10:10 QoS 1", 10, 1),
    Load::pairs("200:200 QoS 0", 200, 0),
    Load::pairs("200:200 QoS 1", 200, 1),
    Load::fan_out("1:100 QoS 0", 100, 0),
    Load::fan_out("1:100 QoS 1", 100, 1),
    Load::pairs("10:10 QoS 0 paced", 10, 0).paced(2_000),
    Load::pairs("10:10 QoS 1 paced", 10, 1).paced(2_000),
];

struct Options {
    seconds: u64,
    only: Option<String>,
    brokers: Vec<Kind>,
    in_flight: u64,
    idle: usize,
    json: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let files = broker::raise_file_limit();
    let mut rows = Vec::new();
    for load in &LOADS {
        if options.only.as_ref().is_some_and(|only| !load.name.contains(only.as_str())) {
            continue;
        }
        for kind in options.brokers.iter().filter(|kind| kind.speaks(load.qos)) {
            rows.push(measure(*kind, load, &options)?);
        }
    }
    let mut idle = Vec::new();
    if options.idle > 0 && options.only.as_ref().is_none_or(|only| "idle".contains(only.as_str())) {
        let count = options.idle.min(files.saturating_sub(100));
        for kind in &options.brokers {
            eprintln!("idle: {count} connections to {}", kind.name());
            let process = Process::start(*kind, broker::DURABILITY)?;
            idle.push((*kind, count, drive::idle_bytes(&process, count)?));
        }
    }
    if options.json {
        report::json(&rows, &idle)
    } else {
        report::table(&rows, &idle, options.seconds, options.in_flight)
    }
    let wrong = rows.iter().filter(|row| row.kind == Kind::Pinnace && !row.outcome.correct()).count();
    if wrong > 0 {
        return Err(format!("pinnace lost, doubled or reordered messages under {wrong} loads").into());
    }
    Ok(())
}

fn measure(kind: Kind, load: &Load, options: &Options) -> Result<Row, Box<dyn Error>> {
    eprintln!("{}: {}", load.name, kind.name());
    let process = Process::start(kind, broker::DURABILITY)?;
    let before_bytes = process.resident_bytes()?;
    let outcome: Outcome = drive::run(&process, load, options.in_flight, Duration::from_secs(options.seconds))
        .map_err(|error| format!("{} under {}: {error}; its log: {}", kind.name(), load.name, process.log()))?;
    Ok(Row { kind, load: load.name, outcome, before_bytes })
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            seconds: 5,
            only: None,
            brokers: vec![Kind::Pinnace, Kind::Mosquitto],
            in_flight: 1_000,
            idle: 10_000,
            json: false,
        };
        if broker::wirelimit().is_some() {
            options.brokers.push(Kind::Wirelimit);
        }
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                // `cargo bench` says so itself.
                "--bench" => {}
                "--quick" => options.seconds = 2,
                "--json" => options.json = true,
                "--only" => options.only = Some(value()?),
                "--seconds" => options.seconds = number(&value()?)?,
                "--in-flight" => options.in_flight = number(&value()?)?,
                "--idle" => options.idle = number(&value()?)?,
                "--brokers" => options.brokers = value()?.split(',').map(Kind::parse).collect::<Result<_, _>>()?,
                other => return Err(format!("unknown argument {other}")),
            }
        }
        Ok(options)
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}
