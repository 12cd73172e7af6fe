//! Which options there are, and of what type: learned from the `Deserialize` of the modules' own `Config` types.
//!
//! A [`Probe`] is a deserializer that walks to one place and either reports what is expected there or delivers one value.
//! So no second table of options can fall behind the code. Must not know where values come from.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, Expected, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::Config;

/// What stands at one place of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A table with these keys.
    Table(&'static [&'static str]),
    /// A list; its elements stand at [`ELEMENT`].
    List,
    /// A single value.
    Leaf(Kind),
}

/// The type of a single value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer; the string says which.
    Integer(String),
    /// A string; the string says of what form.
    Text(String),
    /// A path; a relative one in a file starts at the file's directory.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// The step from a list to its elements.
pub const ELEMENT: &str = "[]";

/// What stands at `path`, if anything.
pub fn node(path: &[&str]) -> Option<Node> {
    let mut found = None;
    // The probe stops the deserialization by an error as soon as it knows.
    let _ = Config::deserialize(Probe { path, goal: Goal::Learn(&mut found) });
    found
}

/// Whether `value` may stand at `path`.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check(path: &[&str], value: &Value) -> Result<(), String> {
    let mut outcome = None;
    // Other options may be missing: only the outcome at `path` counts.
    let _ = Config::deserialize(Probe { path, goal: Goal::Deliver(value, &mut outcome) });
    outcome.unwrap_or_else(|| Err("unknown key".into()))
}

/// The keys of every single value, as paths; elements of lists at [`ELEMENT`].
pub fn leaves() -> Vec<(Vec<&'static str>, Kind)> {
    let mut leaves = Vec::new();
    let mut open: Vec<Vec<&'static str>> = vec![Vec::new()];
    while let Some(path) = open.pop() {
        match node(&path) {
            Some(Node::Table(keys)) => {
                open.extend(keys.iter().rev().map(|key| path.iter().copied().chain([*key]).collect()));
            }
            Some(Node::List) => open.push(path.into_iter().chain([ELEMENT]).collect()),
            Some(Node::Leaf(kind)) => leaves.push((path, kind)),
            None => {}
        }
    }
    leaves
}

/// The list in whose elements `path` is, if any.
pub fn list_of<'a, 's>(path: &'a [&'s str]) -> Option<&'a [&'s str]> {
    path.get(..path.iter().position(|step| *step == ELEMENT)?)
}

struct Probe<'p> {
    path: &'p [&'p str],
    goal: Goal<'p>,
}

enum Goal<'p> {
    Learn(&'p mut Option<Node>),
    Deliver(&'p Value, &'p mut Option<Result<(), String>>),
}

impl<'p> Probe<'p> {
    fn step(self) -> Option<(&'p str, Self)> {
        let (first, rest) = self.path.split_first()?;
        Some((first, Probe { path: rest, goal: self.goal }))
    }

    /// At the goal: reports `node`, or delivers the value through `deliver`.
    fn arrive<T>(self, node: Node, deliver: impl FnOnce(Value) -> Result<T, serde_json::Error>) -> Result<T, Stop> {
        match self.goal {
            _ if !self.path.is_empty() => Err(Stop),
            Goal::Learn(found) => {
                *found = Some(node);
                Err(Stop)
            }
            Goal::Deliver(value, outcome) => {
                let delivered = deliver(value.clone());
                *outcome = Some(delivered.as_ref().map(|_| ()).map_err(ToString::to_string));
                delivered.map_err(|_| Stop)
            }
        }
    }
}

/// Ends a deserialization whose outcome is noted elsewhere.
#[derive(Debug)]
struct Stop;

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stop")
    }
}

impl std::error::Error for Stop {}

impl de::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! leaf {
    ($($method:ident => |$expected:ident| $kind:expr;)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
            let $expected = (&visitor as &dyn Expected).to_string();
            self.arrive(Node::Leaf($kind), |value| value.$method(visitor))
        })+
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    leaf! {
        deserialize_bool => |_expected| Kind::Bool;
        deserialize_u8 => |expected| Kind::Integer(expected);
        deserialize_u16 => |expected| Kind::Integer(expected);
        deserialize_u32 => |expected| Kind::Integer(expected);
        deserialize_u64 => |expected| Kind::Integer(expected);
        deserialize_str => |expected| text(expected);
        deserialize_string => |expected| text(expected);
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.arrive(Node::Leaf(Kind::Choice(variants)), |value| value.deserialize_enum(name, variants, visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        if self.path.is_empty() {
            return self.arrive(Node::Table(fields), |value| value.deserialize_struct(name, fields, visitor));
        }
        let Some((key, inner)) = self.step() else { return Err(Stop) };
        if fields.contains(&key) {
            visitor.visit_map(OneEntry { key: Some(key), inner: Some(inner) })
        } else {
            Err(Stop)
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        if self.path.is_empty() {
            return self.arrive(Node::List, |value| value.deserialize_seq(visitor));
        }
        match self.step() {
            Some((ELEMENT, inner)) => visitor.visit_seq(OneElement(Some(inner))),
            _ => Err(Stop),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct map identifier ignored_any
    }
}

/// Serde names what a `PathBuf` expects so; [`tests`] notices a change.
const PATH_EXPECTED: &str = "path string";

fn text(expected: String) -> Kind {
    if expected == PATH_EXPECTED { Kind::Path } else { Kind::Text(expected) }
}

struct OneEntry<'p> {
    key: Option<&'p str>,
    inner: Option<Probe<'p>>,
}

impl<'de> MapAccess<'de> for OneEntry<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stop> {
        let Some(key) = self.key.take() else { return Ok(None) };
        seed.deserialize(de::value::StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        seed.deserialize(self.inner.take().ok_or(Stop)?)
    }
}

struct OneElement<'p>(Option<Probe<'p>>);

impl<'de> SeqAccess<'de> for OneElement<'_> {
    type Error = Stop;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Stop> {
        self.0.take().map(|probe| seed.deserialize(probe)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_types_of_options_are_learned_from_their_structs() {
        let cases: &[(&[&str], Option<Node>)] = &[
            (&["server", "worker_threads"], Some(Node::Leaf(Kind::Integer("usize".into())))),
            (&["server", "data_dir"], Some(Node::Leaf(Kind::Path))),
            (&["auth", "password_file"], Some(Node::Leaf(Kind::Path))),
            (&["listener"], Some(Node::List)),
            (&["listener", ELEMENT, "address"], Some(Node::Leaf(Kind::Text("socket address".into())))),
            (&["listener", ELEMENT, "allow_anonymous"], Some(Node::Leaf(Kind::Bool))),
            (&["listener", ELEMENT, "tls", "client_ca"], Some(Node::Leaf(Kind::Path))),
            (&["storage", "durability"], Some(Node::Leaf(Kind::Choice(&["fsync", "os", "memory"])))),
            (&["log", "level"], Some(Node::Leaf(Kind::Text("a string".into())))),
            (&["session", "receive_maximum"], Some(Node::Leaf(Kind::Integer("a nonzero u16".into())))),
            (&["session", "nothing"], None),
            (&["session", "receive_maximum", "deeper"], None),
        ];
        for (path, expected) in cases {
            assert_eq!(&node(path), expected, "{path:?}");
        }
        assert!(matches!(node(&[]), Some(Node::Table(keys)) if keys.contains(&"session")));
    }

    #[test]
    fn a_value_is_checked_by_the_type_that_will_hold_it() {
        let cases: &[(&[&str], Value, Result<(), &str>)] = &[
            (&["session", "receive_maximum"], json!(7), Ok(())),
            (&["session", "receive_maximum"], json!(0), Err("expected a nonzero u16")),
            (&["session", "receive_maximum"], json!(70_000), Err("expected a nonzero u16")),
            (&["session", "receive_maximum"], json!("7"), Err("string \"7\"")),
            (&["session", "max_queued_bytes"], json!(-1), Err("integer `-1`")),
            (&["listener", ELEMENT, "address"], json!("127.0.0.1:1"), Ok(())),
            (&["listener", ELEMENT, "address"], json!("localhost:1"), Err("socket address")),
            (&["listener", ELEMENT, "tls"], json!({"certificate": "c"}), Err("missing field `key`")),
            (&["listener", ELEMENT, "tls"], json!({"certificate": "c", "key": "k"}), Ok(())),
            (&["storage", "durability"], json!("fsnc"), Err("unknown variant")),
            (&["log", "format"], json!("json"), Ok(())),
            (&["auth", "password_file"], json!(3), Err("expected path string")),
            (&["nowhere"], json!(3), Err("unknown key")),
        ];
        for (path, value, expected) in cases {
            match (check(path, value), expected) {
                (Ok(()), Ok(())) => {}
                (Err(problem), Err(part)) => assert!(problem.contains(part), "{path:?} {value}: {problem}"),
                (outcome, _) => panic!("{path:?} {value}: {outcome:?}"),
            }
        }
    }

    #[test]
    fn every_leaf_is_found() {
        let keys: Vec<String> = leaves().iter().map(|(path, _)| path.join(".")).collect();
        for key in ["listener.[].tls.require_client_certificate", "log.level", "server.shutdown_grace_secs"] {
            assert!(keys.iter().any(|found| found == key), "{key} in {keys:?}");
        }
    }
}
