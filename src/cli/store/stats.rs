//! `pinnace store stats`: of a store at rest, or of the one that a broker serves.
//!
//! Must not count anything itself.

use std::path::PathBuf;

use super::{
    super::{Failure, live, print},
    DataDir,
};
use crate::storage::{Config, Snapshot};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    data: DataDir,
    /// The control socket of a running broker, where it is elsewhere.
    #[arg(long, value_name = "PATH", conflicts_with = "data_dir")]
    socket: Option<PathBuf>,
    /// How many of the longest queues to name.
    #[arg(long, value_name = "N", default_value_t = 10)]
    largest: u16,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let held = if args.socket.is_some() { None } else { args.data.try_hold_to_read()? };
    let stats = match held {
        Some(held) => {
            let snapshot = Snapshot::open(&held.dir, &Config::default()).map_err(Failure::failed)?;
            let stats = snapshot.stats(args.largest.into()).map_err(Failure::failed)?;
            serde_json::to_value(stats).map_err(Failure::failed)?
        }
        None => {
            let socket = live::socket(args.socket.as_deref(), &args.data)?;
            live::get(&socket, &format!("/v1/store?largest={}", args.largest))?
        }
    };
    if args.json { print(format_args!("{stats:#}\n")) } else { print(live::human(&stats)) }
}
