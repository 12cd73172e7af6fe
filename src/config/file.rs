//! The configuration file: TOML, checked against the schema with line and column.
//!
//! Must not know what an option means, nor open the files that it names.

use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};
use toml_edit::{Document, Item, TableLike, Value as Toml};

use super::fault::{Fault, Origin, Origins, did_you_mean};
use super::layers::Layer;
use super::schema::{self, ELEMENT, Kind, Node};

/// Reads the file at `path`, notes where each value stands, and reports every fault.
pub(super) fn read(path: &Path, origins: &mut Origins, faults: &mut Vec<Fault>) -> Layer {
    let mut bytes = Vec::new();
    // A pipe is read to its end, a device without one is not.
    let read = std::fs::File::open(path).and_then(|file| file.take(SIZE_MAX + 1).read_to_end(&mut bytes));
    let problem = match read {
        Ok(size) if size as u64 > SIZE_MAX => Some(format!("is longer than {SIZE_MAX} bytes: no configuration is")),
        Ok(_) => None,
        Err(error) => Some(format!("cannot be read: {error}")),
    };
    if let Some(problem) = problem {
        let origin = Origin::File { path: path.into(), line: 0, column: 0 };
        faults.push(Fault { origin, key: String::new(), problem });
        return Layer::default();
    }
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text, path, origins, faults),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes().get(..good).unwrap_or_default()).into_owned();
            let origin = position(&text, path, good);
            faults.push(Fault { origin, key: String::new(), problem: "the file must be UTF-8".into() });
            Layer::default()
        }
    }
}

const SIZE_MAX: u64 = 1 << 20;

fn parse(text: &str, path: &Path, origins: &mut Origins, faults: &mut Vec<Fault>) -> Layer {
    // A byte order mark is not TOML, but editors write it.
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let text = text.get(start..).unwrap_or_default();
    match Document::parse(text) {
        Ok(document) => {
            let dir = path.parent().unwrap_or_else(|| Path::new(""));
            let mut reader = Reader { text, path, dir, origins, faults };
            Layer(reader.table(document.as_table(), &Place::default(), 0..0).unwrap_or_default())
        }
        Err(error) => {
            let start = error.span().map_or(0, |span| span.start);
            let (origin, key) = (position(text, path, start), key_at(text, start));
            faults.push(Fault { origin, key, problem: error.message().to_owned() });
            Layer::default()
        }
    }
}

/// A place in the configuration: by the steps of the schema, and as it is named to people.
#[derive(Clone, Default)]
struct Place {
    steps: Vec<&'static str>,
    name: String,
}

impl Place {
    fn key(&self, key: &'static str) -> Self {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        Self { steps: self.steps.iter().copied().chain([key]).collect(), name }
    }

    fn element(&self, index: usize) -> Self {
        let steps = self.steps.iter().copied().chain([ELEMENT]).collect();
        Self { steps, name: format!("{}[{index}]", self.name) }
    }
}

struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
    dir: &'a Path,
    origins: &'a mut Origins,
    faults: &'a mut Vec<Fault>,
}

impl Reader<'_> {
    fn table(&mut self, table: &dyn TableLike, place: &Place, span: Range<usize>) -> Option<Map<String, Value>> {
        let Some(Node::Table(known)) = schema::node(&place.steps) else { return None };
        let faults_before = self.faults.len();
        let mut values = Map::new();
        for (typed, item) in table.iter() {
            let key_span = table.get_key_value(typed).and_then(|(key, _)| key.span()).or_else(|| item.span());
            let key_span = key_span.unwrap_or_else(|| span.clone());
            let Some(key) = known.iter().copied().find(|known| *known == typed) else {
                let whole = if place.name.is_empty() { typed.to_owned() } else { format!("{}.{typed}", place.name) };
                let near = unknown_key(typed, &place.steps, known);
                self.fault(key_span, whole, format!("unknown key{near}"));
                continue;
            };
            let place = place.key(key);
            if let Some(value) = self.item(item, &place, key_span) {
                values.insert(key.to_owned(), value);
            }
        }
        // What only the whole shows, a missing key for one; only where its parts are right.
        if self.faults.len() == faults_before
            && let Err(problem) = schema::check(&place.steps, &Value::Object(values.clone()))
        {
            self.fault(span, place.name.clone(), problem);
        }
        Some(values)
    }

    fn item(&mut self, item: &Item, place: &Place, key_span: Range<usize>) -> Option<Value> {
        let span = item.span().unwrap_or_else(|| key_span.clone());
        match schema::node(&place.steps)? {
            Node::Table(_) => match item.as_table_like() {
                Some(table) => self.table(table, place, key_span).map(Value::Object),
                None => self.fault(span, place.name.clone(), format!("expected a table: [{}]", place.name)),
            },
            Node::List => self.list(item, place, span),
            Node::Leaf(kind) => {
                let value = item.as_value().and_then(plain);
                let Some(value) = value else {
                    return self.fault(span, place.name.clone(), "expected a single value".into());
                };
                self.leaf(value, &kind, place, span)
            }
        }
    }

    fn list(&mut self, item: &Item, place: &Place, span: Range<usize>) -> Option<Value> {
        let tables: Option<Vec<Element<'_>>> = match item {
            Item::ArrayOfTables(tables) => {
                Some(tables.iter().map(|table| (table as &dyn TableLike, table.span())).collect())
            }
            Item::Value(Toml::Array(values)) => values
                .iter()
                .map(|value| value.as_inline_table().map(|table| (table as &dyn TableLike, value.span())))
                .collect(),
            _ => None,
        };
        let Some(tables) = tables else {
            return self.fault(span, place.name.clone(), format!("expected a list of tables: [[{}]]", place.name));
        };
        self.origins.set(place.name.clone(), position(self.text, self.path, span.start));
        let mut values = Vec::new();
        for (index, (table, table_span)) in tables.into_iter().enumerate() {
            let place = place.element(index);
            let table_span = table_span.unwrap_or_else(|| span.clone());
            self.origins.set(place.name.clone(), position(self.text, self.path, table_span.start));
            values.extend(self.table(table, &place, table_span).map(Value::Object));
        }
        Some(Value::Array(values))
    }

    fn leaf(&mut self, value: Value, kind: &Kind, place: &Place, span: Range<usize>) -> Option<Value> {
        if let Err(problem) = schema::check(&place.steps, &value) {
            let near = match (kind, &value) {
                (Kind::Choice(words), Value::String(typed)) => did_you_mean(typed, words.iter().copied()),
                _ => String::new(),
            };
            return self.fault(span, place.name.clone(), format!("{problem}{near}"));
        }
        let value = match (kind, value) {
            (Kind::Path, Value::String(path)) if path.is_empty() => {
                return self.fault(span, place.name.clone(), "the path is empty; leave the option out instead".into());
            }
            (Kind::Path, Value::String(path)) => match from_dir(self.dir, Path::new(&path)).to_str() {
                Some(path) => path.into(),
                None => return self.fault(span, place.name.clone(), "the path of the file must be UTF-8".into()),
            },
            (_, value) => value,
        };
        self.origins.set(place.name.clone(), position(self.text, self.path, span.start));
        Some(value)
    }

    fn fault(&mut self, span: Range<usize>, key: String, problem: String) -> Option<Value> {
        self.faults.push(Fault { origin: position(self.text, self.path, span.start), key, problem });
        None
    }
}

/// An element of a list, and where it stands.
type Element<'a> = (&'a dyn TableLike, Option<Range<usize>>);

/// `; did you mean ...?` for a key that `steps` does not have: the nearest there, or the same key in another section.
fn unknown_key(typed: &str, steps: &[&str], known: &[&str]) -> String {
    let near = did_you_mean(typed, known.iter().copied());
    if !near.is_empty() {
        return near;
    }
    let elsewhere = schema::leaves().into_iter().map(|(path, _)| path).find(|path| path.last() == Some(&typed));
    match elsewhere {
        Some(path) if path.get(..path.len().saturating_sub(1)) != Some(steps) => {
            format!("; did you mean {}?", path.join(".").replace(".[]", ""))
        }
        _ => format!("; known here: {}", known.join(", ")),
    }
}

/// A relative path in a file starts at the directory of the file.
fn from_dir(dir: &Path, path: &Path) -> PathBuf {
    dir.join(path).components().filter(|component| *component != Component::CurDir).collect()
}

/// A TOML value of a type that an option can have.
fn plain(value: &Toml) -> Option<Value> {
    match value {
        Toml::String(value) => Some(value.value().as_str().into()),
        Toml::Integer(value) => Some((*value.value()).into()),
        Toml::Float(value) => Some((*value.value()).into()),
        Toml::Boolean(value) => Some((*value.value()).into()),
        Toml::Datetime(_) | Toml::Array(_) | Toml::InlineTable(_) => None,
    }
}

/// The key of the line at `offset` of a text that is no TOML, as far as it can be told: empty where there is none.
fn key_at(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let from = before.rfind('\n').map_or(0, |at| at + 1);
    let (above, line) = (before.get(..from).unwrap_or_default(), text.get(from..).unwrap_or_default());
    let Some((key, _)) = line.lines().next().unwrap_or_default().split_once('=') else { return String::new() };
    let header = above.lines().rev().map(str::trim_start).find(|line| line.starts_with('['));
    let table = header.map(|header| header.trim_start_matches('[').split(']').next().unwrap_or_default().trim());
    table.map_or_else(|| key.trim().to_owned(), |table| format!("{table}.{}", key.trim()))
}

fn position(text: &str, path: &Path, offset: usize) -> Origin {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Origin::File {
        path: path.into(),
        line: before.matches('\n').count() + 1,
        column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
    }
}
