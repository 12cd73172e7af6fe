//! What waits costs the disk and not the memory, and what is done with gives both back: one table of figures, each with its bound.
//!
//! `cargo bench --bench bounds` runs all of it (`-- backlog idle shared churn expiry` names scenarios; `--scale N` divides their sizes by N).
//! `PINNACE_BIN` names another build of pinnace. Knows the broker's command line and the wire, nothing of the crate.

#![allow(missing_docs)]
#![allow(
    clippy::indexing_slicing,
    reason = "every index comes from this program; what a broker sends is cut with bounds"
)]

#[path = "../load/broker.rs"]
#[allow(dead_code, reason = "the macro benchmark uses the rest")]
mod broker;
mod clients;
#[path = "../load/drive.rs"]
#[allow(dead_code, reason = "the macro benchmark uses the rest")]
mod drive;
#[path = "../load/histogram.rs"]
mod histogram;
mod scenarios;
#[path = "../load/wire.rs"]
#[allow(dead_code, reason = "the macro benchmark uses the rest")]
mod wire;

use std::error::Error;

/// What was measured, and what it may be.
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// The most that it may be; none where it is told to be read beside others.
    pub bound: Option<f64>,
}

impl Figure {
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, bound: None }
    }

    pub fn at_most(self, bound: f64) -> Self {
        Self { bound: Some(bound), ..self }
    }

    fn holds(&self) -> bool {
        self.bound.is_none_or(|bound| self.value <= bound)
    }

    fn print(&self) {
        let bound = self.bound.map_or(String::new(), |bound| {
            format!("at most {bound:.1}{}", if self.holds() { "" } else { "  EXCEEDED" })
        });
        println!("{:<72} {:>12.1} {:<8} {bound}", self.name, self.value, self.unit);
    }
}

/// Tells each figure as it comes.
pub type Tell<'a> = &'a mut dyn FnMut(Figure);

fn main() -> Result<(), Box<dyn Error>> {
    let mut scale = 1;
    let mut named = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // `cargo bench` says so itself.
            "--bench" => {}
            "--scale" => scale = args.next().ok_or("--scale needs a value")?.parse()?,
            name if scenarios::ALL.iter().any(|(known, _)| *known == name) => named.push(arg),
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    broker::raise_file_limit();
    let mut exceeded = 0;
    for (name, run) in scenarios::ALL {
        if named.is_empty() || named.iter().any(|one| one == name) {
            println!("{name}");
            let mut tell = |figure: Figure| {
                exceeded += usize::from(!figure.holds());
                figure.print();
            };
            run(scale, &mut tell)?;
        }
    }
    if exceeded > 0 {
        return Err(format!("{exceeded} figures exceed their bounds").into());
    }
    Ok(())
}
