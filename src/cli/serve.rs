//! `pinnace serve`, and the flags that set options.
//!
//! Must not serve: loads the configuration, starts the log and hands over to `server`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::{DeserializeOwned, IntoDeserializer};

use super::{Failure, logging};
use crate::config::{self, Flags, Loaded, LogFormat};
use crate::server;
use crate::storage::{self, Durability};

/// The flags of `pinnace serve`; each overrides the environment (`PINNACE__SECTION__KEY`) and the file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen there for plain MQTT instead of where the file says; may be repeated [default: 127.0.0.1:1883].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<SocketAddr>,
    /// Where the store and the control socket are [default: $XDG_STATE_HOME/pinnace or ~/.local/state/pinnace].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// What an acknowledgement promises: to survive a power cut, the end of the process, or nothing [default: fsync].
    #[arg(long, value_parser = one_of::<Durability>(&["fsync", "os", "memory"]))]
    durability: Option<Durability>,
    /// Where the store is damaged, move it aside, start with what can be read of it, and say what is lost.
    #[arg(long)]
    quarantine: bool,
    /// The form of the log [default: human on a terminal, else json].
    #[arg(long, value_parser = one_of::<LogFormat>(&["human", "json"]))]
    log_format: Option<LogFormat>,
}

impl Args {
    /// The configuration in force under these flags.
    ///
    /// # Errors
    /// Every fault of the file, the environment and the flags.
    pub fn load(self) -> Result<Loaded, config::ConfigErrors> {
        let Self { config, listen, data_dir, durability, quarantine, log_format } = self;
        let flags = Flags { listen, data_dir, durability, quarantine, log_format };
        config::load(config.as_deref(), std::env::vars_os(), flags)
    }
}

/// Serves until the process is told to stop.
///
/// # Errors
/// A wrong configuration, or a broker that could not start or ended by a fault.
pub fn run(args: Args) -> Result<(), Failure> {
    let loaded = args.load()?;
    logging::start(&loaded.config.log)?;
    server::run(loaded).map_err(|error| match error {
        server::Error::DataDir { .. }
        | server::Error::Damaged { .. }
        | server::Error::Store(storage::Error::NewerFormat { .. }) => Failure::unusable(error),
        error => Failure::failed(error),
    })
}

/// One of `words`, which the configuration spells the same way.
fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| {
        let word: serde::de::value::StringDeserializer<serde::de::value::Error> = word.into_deserializer();
        T::deserialize(word)
    })
}
