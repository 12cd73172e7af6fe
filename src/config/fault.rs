//! What can be wrong with a configuration, and where each value came from.
//!
//! Plain values. Must not know how a configuration is read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The code.
    Default,
    /// A file; line and column count from 1, the column in characters.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The column.
        column: usize,
    },
    /// An environment variable, by its name.
    Variable(String),
    /// A flag of the command line, by its name.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: 0, .. } => write!(f, "{}", path.display()),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Where each value came from, by its key (`session.receive_maximum`, `listener[0].address`).
#[derive(Debug, Clone, Default)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Where the value of `key` came from.
    #[must_use]
    pub fn of(&self, key: &str) -> &Origin {
        self.0.get(key).unwrap_or(&Origin::Default)
    }

    /// The place to look at for a fault of `key`: its own, else the closest around it.
    pub(super) fn near(&self, key: &str) -> &Origin {
        let mut key = key;
        loop {
            if let Some(origin) = self.0.get(key) {
                return origin;
            }
            let Some(end) = key.rfind(['.', '[']) else { return &Origin::Default };
            key = key.get(..end).unwrap_or_default();
        }
    }

    pub(super) fn set(&mut self, key: String, origin: Origin) {
        self.0.insert(key, origin);
    }

    /// Forgets `key` and everything below it.
    pub(super) fn clear(&mut self, key: &str) {
        self.0.retain(|found, _| {
            found.strip_prefix(key).is_none_or(|rest| !(rest.is_empty() || rest.starts_with(['.', '['])))
        });
    }
}

/// One fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands.
    pub origin: Origin,
    /// The key it is about; empty where it is about no single one.
    pub key: String,
    /// What is wrong and what to do.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

/// Every fault of a configuration; at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<Fault>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

/// `; did you mean ...?` with the nearest of `candidates`, or nothing where none is near.
pub(super) fn did_you_mean<'a>(typed: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    candidates
        .map(|candidate| (strsim::jaro_winkler(typed, candidate), candidate))
        .filter(|(likeness, _)| *likeness > LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| format!("; did you mean {candidate}?"))
        .unwrap_or_default()
}

const LIKENESS_MIN: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_of_the_value_itself_and_a_fault_points_near_it() {
        let variable = |name: &str| Origin::Variable(name.into());
        let mut origins = Origins::default();
        origins.set("listener[0]".into(), variable("X"));
        origins.set("listener[0].address".into(), variable("Y"));
        origins.set("listeners".into(), variable("Z"));
        assert_eq!(origins.of("listener[0].address"), &variable("Y"));
        assert_eq!(origins.of("listener[0].tls.key"), &Origin::Default);
        assert_eq!(origins.near("listener[0].tls.key"), &variable("X"));
        assert_eq!(origins.near("listener[1].tls.key"), &Origin::Default);
        origins.clear("listener");
        assert_eq!(origins.near("listener[0].address"), &Origin::Default);
        assert_eq!(origins.of("listeners"), &variable("Z"));
    }

    #[test]
    fn the_nearest_key_is_named_where_one_is_near() {
        let keys = ["session", "storage", "server"];
        assert_eq!(did_you_mean("sesion", keys.into_iter()), "; did you mean session?");
        assert_eq!(did_you_mean("storrage", keys.into_iter()), "; did you mean storage?");
        assert_eq!(did_you_mean("xyz", keys.into_iter()), "");
    }
}
