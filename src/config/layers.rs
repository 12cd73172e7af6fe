//! The layers of the configuration, each overriding the one before: file, environment, flags.
//!
//! Each layer is checked against the schema and keeps the origin of its values; the `config` crate merges them.
//! Must not know what an option means: what cannot be combined is for `check`.

use std::ffi::OsString;
use std::path::Path;

use serde_json::{Map, Value};

use super::fault::{ConfigErrors, Fault, Origin, Origins, did_you_mean};
use super::schema::{self, ELEMENT, Kind};
use super::{Config, Flags, file};
use crate::storage::OnCorruption;

/// The prefix of the environment variables that set options.
const PREFIX: &str = "PINNACE__";

/// Reads and merges the layers.
pub(super) fn read(
    file: Option<&Path>,
    env: &[(OsString, OsString)],
    flags: Flags,
) -> Result<(Config, Origins), ConfigErrors> {
    let mut faults = Vec::new();
    let mut origins = Origins::default();
    let layers = [
        file.map(|path| file::read(path, &mut origins, &mut faults)).unwrap_or_default(),
        variables(env, &mut origins, &mut faults),
        from_flags(flags, &mut origins, &mut faults),
    ];
    if !faults.is_empty() {
        return Err(ConfigErrors(faults));
    }
    let mut builder = ::config::Config::builder();
    for layer in layers {
        builder = builder.add_source(layer);
    }
    let merged = builder.build().and_then(::config::Config::try_deserialize::<Config>);
    match merged {
        Ok(config) => Ok((config, origins)),
        Err(error) => Err(ConfigErrors(vec![Fault {
            origin: Origin::Default,
            key: String::new(),
            problem: format!("the layers cannot be combined: {error}"),
        }])),
    }
}

/// The values that one layer sets, nested as in the file.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer(pub(super) Map<String, Value>);

impl ::config::Source for Layer {
    fn clone_into_box(&self) -> Box<dyn ::config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<::config::Map<String, ::config::Value>, ::config::ConfigError> {
        Ok(self.0.iter().map(|(key, value)| (key.clone(), merge_value(value))).collect())
    }
}

fn merge_value(value: &Value) -> ::config::Value {
    let kind = match value {
        Value::Null => ::config::ValueKind::Nil,
        Value::Bool(value) => ::config::ValueKind::Boolean(*value),
        Value::Number(value) => match (value.as_i64(), value.as_u64()) {
            (Some(value), _) => ::config::ValueKind::I64(value),
            (None, Some(value)) => ::config::ValueKind::U64(value),
            (None, None) => ::config::ValueKind::Float(value.as_f64().unwrap_or_default()),
        },
        Value::String(value) => ::config::ValueKind::String(value.clone()),
        Value::Array(values) => ::config::ValueKind::Array(values.iter().map(merge_value).collect()),
        Value::Object(values) => {
            ::config::ValueKind::Table(values.iter().map(|(key, value)| (key.clone(), merge_value(value))).collect())
        }
    };
    ::config::Value::new(None, kind)
}

fn variables(env: &[(OsString, OsString)], origins: &mut Origins, faults: &mut Vec<Fault>) -> Layer {
    let known: Vec<(String, Vec<&str>, Kind)> = schema::leaves()
        .into_iter()
        .filter(|(path, _)| !path.contains(&ELEMENT))
        .map(|(path, kind)| (variable_name(&path), path, kind))
        .collect();
    let mut layer = Layer::default();
    for (name, value) in env {
        let name = name.to_string_lossy().into_owned();
        let fault = |key: String, problem: String| Fault { origin: Origin::Variable(name.clone()), key, problem };
        let Some((_, path, kind)) = known.iter().find(|(known, _, _)| *known == name) else {
            let names = known.iter().map(|(name, _, _)| name.as_str());
            faults.extend(unknown_variable(&name, names).map(|problem| fault(String::new(), problem)));
            continue;
        };
        let key = path.join(".");
        let checked = value
            .to_str()
            .ok_or_else(|| "the value is not UTF-8".to_owned())
            .and_then(|text| typed(text, kind))
            .and_then(|value| schema::check(path, &value).map(|()| value));
        match checked {
            Ok(value) => {
                insert(&mut layer.0, path, value);
                origins.set(key, Origin::Variable(name));
            }
            Err(problem) => faults.push(fault(key, problem)),
        }
    }
    layer
}

/// `PINNACE__SECTION__KEY` for an option.
pub(super) fn variable_name(path: &[&str]) -> String {
    format!("{PREFIX}{}", path.join("__").to_uppercase())
}

/// What is wrong with a variable that names no option, unless it is none of ours.
fn unknown_variable<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let bare = |name: &str| name.replace('_', "").to_uppercase();
    if !name.starts_with(PREFIX) {
        // PINNACE_SESSION_X is a slip for PINNACE__SESSION__X; other names may belong to others.
        let meant = known.into_iter().find(|known| bare(known) == bare(name))?;
        return Some(format!("unknown variable; did you mean {meant}?"));
    }
    if let Some(list) = lists().iter().find(|list| name.starts_with(&variable_name(list))) {
        let flag = if *list == ["listener"] { " (or --listen)" } else { "" };
        return Some(format!("[[{}]] is a list, which no variable can set; use the file{flag}", list.join(".")));
    }
    Some(format!("unknown variable{}", did_you_mean(name, known)))
}

/// Every list, as a path.
fn lists() -> Vec<Vec<&'static str>> {
    let mut lists: Vec<_> =
        schema::leaves().iter().filter_map(|(path, _)| schema::list_of(path).map(<[_]>::to_vec)).collect();
    lists.dedup();
    lists
}

/// The text of a variable as a value of its option's type: never guessed from its looks.
fn typed(text: &str, kind: &Kind) -> Result<Value, String> {
    match kind {
        _ if text.is_empty() => Err("the value is empty; unset the variable instead".into()),
        Kind::Bool => text.parse().map(Value::Bool).map_err(|_| format!("`{text}` is neither true nor false")),
        Kind::Integer(expected) => match text.parse::<u64>() {
            Ok(value) => Ok(value.into()),
            Err(_) => Err(format!("`{text}` is not a whole number of 0 or more, expected {expected}")),
        },
        Kind::Text(_) | Kind::Path | Kind::Choice(_) => Ok(text.into()),
    }
}

fn insert(table: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [key] => {
            table.insert((*key).to_owned(), value);
        }
        [key, rest @ ..] => {
            let inner = table.entry(*key).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

fn from_flags(flags: Flags, origins: &mut Origins, faults: &mut Vec<Fault>) -> Layer {
    let mut layer = Layer::default();
    if !flags.listen.is_empty() {
        let listeners = flags.listen.iter().map(|address| serde_json::json!({ "address": address.to_string() }));
        insert(&mut layer.0, &["listener"], listeners.collect());
        origins.clear("listener");
        for index in 0..flags.listen.len() {
            origins.set(format!("listener[{index}].address"), Origin::Flag("--listen"));
        }
    }
    let mut set = |path: &[&str], flag: &'static str, value: Value| {
        origins.set(path.join("."), Origin::Flag(flag));
        insert(&mut layer.0, path, value);
    };
    if let Some(dir) = flags.data_dir {
        match dir.to_str() {
            Some(dir) if !dir.is_empty() => set(&["server", "data_dir"], "--data-dir", dir.into()),
            _ => faults.push(Fault {
                origin: Origin::Flag("--data-dir"),
                key: "server.data_dir".into(),
                problem: "the path must be UTF-8 and not empty".into(),
            }),
        }
    }
    let words = [
        (&["storage", "durability"], "--durability", serde_json::to_value(flags.durability)),
        (
            &["storage", "on_corruption"],
            "--quarantine",
            serde_json::to_value(flags.quarantine.then_some(OnCorruption::Quarantine)),
        ),
        (&["log", "format"], "--log-format", serde_json::to_value(flags.log_format)),
    ];
    for (path, flag, word) in words {
        if let Ok(word @ Value::String(_)) = word {
            set(path, flag, word);
        }
    }
    layer
}
