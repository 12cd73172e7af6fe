//! The configuration of the whole process: composes the `Config` of each module from file, environment and flags.
//!
//! Knows the options only by the types of the modules that own them. Must not act on any of them.

mod check;
mod fault;
mod file;
mod layers;
mod schema;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use fault::{ConfigErrors, Fault, Origin, Origins};
pub use schema::Kind;

use crate::net::config::ListenerConfig;
use crate::storage::Durability;
use crate::{auth, broker, net, session, storage};

/// Every option of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The sockets that clients connect to (`[[listener]]`).
    #[serde(rename = "listener")]
    pub listeners: Vec<ListenerConfig>,
    /// The limits on connections.
    pub network: net::Config,
    /// What survives a crash, and how well.
    pub storage: storage::Config,
    /// Topics that are kept otherwise.
    pub durability: storage::Rules,
    /// Who may come in and do what.
    pub auth: auth::Config,
    /// What all clients share.
    pub broker: broker::Config,
    /// The limits of each session.
    pub session: session::Limits,
    /// What is logged, and how.
    pub log: LogConfig,
    /// The process itself.
    pub server: ServerConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: vec![ListenerConfig::default()],
            network: net::Config::default(),
            storage: storage::Config::default(),
            durability: storage::Rules::default(),
            auth: auth::Config::default(),
            broker: broker::Config::default(),
            session: session::Limits::default(),
            log: LogConfig::default(),
            server: ServerConfig::default(),
        }
    }
}

/// How the log is written (`[log]`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The form of a line.
    pub format: LogFormat,
    /// The least severe level, or directives of the form `pinnace=debug,info`.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".into() }
    }
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

/// The process (`[server]`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Where the store and the control socket are. Unset: see [`default_data_dir`].
    pub data_dir: Option<PathBuf>,
    /// Threads that serve connections; 0: one per core.
    pub worker_threads: usize,
    /// How long a stop waits until what is in flight is acknowledged, in seconds.
    pub drain_secs: u32,
    /// How long connections may take to close after that, in seconds.
    pub shutdown_grace_secs: u32,
    /// Where clients of a broker that stops are to go (Server Reference, MQTT 5.0, 4.11).
    pub server_reference: Option<String>,
    /// Whether they are to go there from now on, not only for a while.
    pub server_moved: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            data_dir: None,
            worker_threads: 0,
            drain_secs: 5,
            shutdown_grace_secs: 5,
            server_reference: None,
            server_moved: false,
        }
    }
}

/// What the command line sets; each overrides the environment and the file.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--listen`: plain TCP listeners that replace those of the file.
    pub listen: Vec<SocketAddr>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--durability`.
    pub durability: Option<Durability>,
    /// `--quarantine`.
    pub quarantine: bool,
    /// `--log-format`.
    pub log_format: Option<LogFormat>,
}

/// A configuration in force, with where each of its values came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The effective values; what cannot be combined was refused.
    pub config: Config,
    /// The data directory: `server.data_dir`, else what [`default_data_dir`] names.
    pub data_dir: PathBuf,
    /// Where each value came from, by key.
    pub origins: Origins,
}

impl Loaded {
    /// `; named by KEY (PLACE)`, to follow what is wrong with a value that only its use shows. Empty where the value is the default.
    #[must_use]
    pub fn named_by(&self, key: &str) -> String {
        match self.origins.of(key) {
            Origin::Default => String::new(),
            origin => format!("; named by {key} ({origin})"),
        }
    }

    /// The files that options name.
    #[must_use]
    pub fn named_files(&self) -> NamedFiles {
        let auth = &self.config.auth;
        let mut named = vec![
            (auth.password_file.as_deref(), "auth.password_file".to_owned()),
            (auth.acl_file.as_deref(), "auth.acl_file".to_owned()),
        ];
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let Some(tls) = &listener.tls else { continue };
            let key = |option: &str| format!("listener[{index}].tls.{option}");
            named.push((Some(&tls.certificate), key("certificate")));
            named.push((Some(&tls.key), key("key")));
            named.push((tls.client_ca.as_deref(), key("client_ca")));
        }
        let found = named.into_iter().filter_map(|(path, key)| Some((path?.to_owned(), self.named_by(&key))));
        NamedFiles(found.collect())
    }
}

/// Which option names which file.
#[derive(Debug, Clone, Default)]
pub struct NamedFiles(Vec<(PathBuf, String)>);

impl NamedFiles {
    /// [`Loaded::named_by`] of the option that names `path`; empty where none does.
    #[must_use]
    pub fn named_by(&self, path: &Path) -> &str {
        self.0.iter().find(|(named, _)| named == path).map_or("", |(_, by)| by)
    }
}

/// Loads the configuration: defaults, then `file`, then `env` (`PINNACE__SECTION__KEY`), then `flags`, each overriding
/// the one before.
///
/// # Errors
/// Every fault, each with its place and what to do; the process should exit with code 2.
pub fn load(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    flags: Flags,
) -> Result<Loaded, ConfigErrors> {
    let env: Vec<(OsString, OsString)> = env.collect();
    let (config, origins) = layers::read(file, &env, flags)?;
    let mut faults = check::faults(&config, &origins);
    let data_dir = config.server.data_dir.clone().or_else(|| default_data_dir(&env)).unwrap_or_else(|| {
        let problem = "no home directory to keep data under: set server.data_dir or --data-dir".to_owned();
        faults.push(Fault { origin: Origin::Default, key: "server.data_dir".into(), problem });
        PathBuf::new()
    });
    if faults.is_empty() { Ok(Loaded { config, data_dir, origins }) } else { Err(ConfigErrors(faults)) }
}

/// `$XDG_STATE_HOME/pinnace`, else `$HOME/.local/state/pinnace`; a variable that is empty or relative does not count.
#[must_use]
pub fn default_data_dir(env: &[(OsString, OsString)]) -> Option<PathBuf> {
    let dir = |name: &str| {
        let value = env.iter().find(|(found, _)| found == name).map(|(_, value)| PathBuf::from(value));
        value.filter(|path| path.is_absolute())
    };
    let state = dir("XDG_STATE_HOME").or_else(|| dir("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("pinnace"))
}

/// The data directory of a broker that runs without a file: `PINNACE__SERVER__DATA_DIR`, else [`default_data_dir`].
#[must_use]
pub fn data_dir(env: &[(OsString, OsString)]) -> Option<PathBuf> {
    let variable = layers::variable_name(&["server", "data_dir"]);
    let set = env.iter().find(|(name, _)| *name == *variable).map(|(_, value)| PathBuf::from(value));
    set.or_else(|| default_data_dir(env))
}

/// One option: what `config/pinnace.toml` documents.
#[derive(Debug, Clone)]
pub struct OptionInfo {
    /// The table it stands in: `session`, `listener.tls`.
    pub table: String,
    /// The list whose elements have it, if any: `listener`.
    pub list: Option<String>,
    /// Its key in that table.
    pub key: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its default as TOML; none where it has none (unset, or required).
    pub default: Option<String>,
}

/// Every option, in the order of the code.
#[must_use]
pub fn options() -> Vec<OptionInfo> {
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    schema::leaves()
        .into_iter()
        .filter_map(|(path, kind)| {
            let default = path.iter().try_fold(&defaults, |value, step| match *step {
                schema::ELEMENT => value.get(0),
                key => value.get(key),
            });
            let (key, table) = path.split_last()?;
            let list = schema::list_of(&path).map(|list| list.join("."));
            let table: Vec<&str> = table.iter().copied().filter(|step| *step != schema::ELEMENT).collect();
            Some(OptionInfo { table: table.join("."), list, key, kind, default: default.and_then(to_toml) })
        })
        .collect()
}

/// A single value as TOML; none for null.
#[must_use]
pub fn to_toml(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(text) => Some(toml_edit::Value::from(text.as_str()).to_string()),
        serde_json::Value::Null => None,
        other => Some(other.to_string()),
    }
}
