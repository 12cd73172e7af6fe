//! One table of all runs, or one line of JSON for each.

use serde_json::json;

use crate::{
    broker::{DURABILITY, Kind, MOSQUITTO},
    drive::{Outcome, PAYLOAD_BYTES},
};

/// One run.
pub struct Row {
    pub kind: Kind,
    pub load: &'static str,
    pub outcome: Outcome,
    /// Resident memory before the load.
    pub before_bytes: u64,
}

/// Idle connections: broker, how many, bytes of each.
pub type Idle = (Kind, usize, u64);

/// Prints the table.
pub fn table(rows: &[Row], idle: &[Idle], seconds: u64, in_flight: u64) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!();
    println!("{}, durability {DURABILITY}; {}", Kind::Pinnace.version(), Kind::Mosquitto.version());
    println!("mosquitto with {}", MOSQUITTO.trim().replace('\n', ", "));
    println!(
        "{cores} cores shared with the generator (one thread); {seconds} s measured after 1 s; MQTT 3.1.1, {PAYLOAD_BYTES} bytes, at most {in_flight} messages in flight"
    );
    println!(
        "Latency in a closed loop is mostly the window's own queue; the paced loads (2,000 messages/s) show the broker's."
    );
    println!(
        "Below each other broker: pinnace divided by it. *: the generator was at its limit. Faults: lost/doubled/reordered."
    );
    println!();
    println!(
        "| load | broker | messages/s | CPU us/msg | CPU % | p50 us | p99 us | RSS MiB (start) | faults | gen CPU % |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        let o = &row.outcome;
        println!(
            "| {} | {} | {} | {:.3} | {:.0} | {:.0} | {:.0} | {:.1} ({:.1}) | {}/{}/{} | {:.0}{} |",
            row.load,
            row.kind.name(),
            grouped(o.delivered_per_sec as u64),
            o.broker_cpu_micros,
            o.broker_cpu_share * 100.0,
            o.p50_micros,
            o.p99_micros,
            mib(o.resident_bytes),
            mib(row.before_bytes),
            o.lost,
            o.doubled,
            o.reordered,
            o.own_cpu_share * 100.0,
            if o.own_cpu_share > 0.9 { "*" } else { "" },
        );
        if row.kind != Kind::Pinnace
            && let Some(ours) = rows.iter().find(|other| other.kind == Kind::Pinnace && other.load == row.load)
        {
            let (ours, theirs) = (&ours.outcome, o);
            println!(
                "| {} | pinnace / it | {:.2} | {:.3} (1/{:.1}) | | {:.2} | {:.2} | {:.2} | | |",
                row.load,
                ours.delivered_per_sec / theirs.delivered_per_sec.max(1.0),
                ours.broker_cpu_micros / theirs.broker_cpu_micros.max(1e-9),
                theirs.broker_cpu_micros / ours.broker_cpu_micros.max(1e-9),
                ours.p50_micros / theirs.p50_micros.max(1e-9),
                ours.p99_micros / theirs.p99_micros.max(1e-9),
                ours.resident_bytes as f64 / theirs.resident_bytes.max(1) as f64,
            );
        }
    }
    println!();
    for (kind, count, bytes) in idle {
        println!(
            "idle connection over TCP, of {}: {} {} bytes resident each",
            grouped(*count as u64),
            kind.name(),
            grouped(*bytes)
        );
    }
}

/// Prints one object for each run.
pub fn json(rows: &[Row], idle: &[Idle]) {
    for row in rows {
        let o = &row.outcome;
        println!(
            "{}",
            json!({
                "load": row.load, "broker": row.kind.name(), "delivered_per_sec": o.delivered_per_sec,
                "broker_cpu_micros": o.broker_cpu_micros, "broker_cpu_share": o.broker_cpu_share, "own_cpu_share": o.own_cpu_share,
                "p50_micros": o.p50_micros, "p99_micros": o.p99_micros, "resident_bytes": o.resident_bytes,
                "before_bytes": row.before_bytes, "lost": o.lost, "doubled": o.doubled, "reordered": o.reordered,
            })
        );
    }
    for (kind, count, bytes) in idle {
        println!("{}", json!({"load": "idle", "broker": kind.name(), "connections": count, "bytes_each": bytes}));
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

/// With a comma at each thousand.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
