//! Deserializes the configuration's types from the tree and collects every fault.
//!
//! Serde stops at the first error. Therefore each faulty value is recorded and skipped, and
//! deserialization starts again without it, until a pass finds no further fault.

mod error;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, LazyLock};

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};

use self::error::{Error, one_of};
use super::MAX_FAULTS;
use super::fault::{Location, Mismatch};
use super::located::{Entry, Kind, Node, quote_value};
use super::suggest::suggest;

/// Deserializes `root`.
///
/// # Errors
///
/// All faults of the tree, up to [`MAX_FAULTS`].
pub(super) fn read<T: DeserializeOwned>(root: &Node) -> Result<T, PartialRead<T>> {
    let reader = Reader::default();
    loop {
        let value = reader.deserialize_node(std::marker::PhantomData::<T>, root, root.location);
        let faults = reader.faults.borrow().len();
        match value {
            Ok(value) if faults == 0 => return Ok(value),
            Err(_) if faults < MAX_FAULTS && !reader.is_skipped(root) => {}
            value => {
                let skipped = reader.skipped.into_inner();
                let partial = value.ok().map(|value| (value, skipped));
                return Err(PartialRead { faults: reader.faults.into_inner(), partial });
            }
        }
    }
}

/// The result of reading a tree with faults.
pub(super) struct PartialRead<T> {
    pub(super) faults: Vec<(Location, Mismatch)>,
    /// The value without the faulty nodes, and the ids of those nodes; `None` if it cannot be built
    /// without them.
    pub(super) partial: Option<(T, BTreeSet<usize>)>,
}

#[derive(Default)]
struct Reader {
    faults: RefCell<Vec<(Location, Mismatch)>>,
    skipped: RefCell<BTreeSet<usize>>,
    /// The ids of the mappings whose keys have been checked.
    checked: RefCell<BTreeSet<usize>>,
}

impl Reader {
    fn is_skipped(&self, node: &Node) -> bool {
        self.skipped.borrow().contains(&node.id)
    }

    fn add_fault(&self, at: Location, mismatch: Mismatch) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < MAX_FAULTS {
            faults.push((at, mismatch));
        }
    }

    fn deserialize_node<'de, S: DeserializeSeed<'de>>(
        &self,
        seed: S,
        node: &Node,
        at: Location,
    ) -> Result<S::Value, Error> {
        seed.deserialize(NodeDeserializer { reader: self, node, at }).map_err(|error| {
            if let Error::Mismatch(mismatch) = error {
                self.add_fault(at, mismatch);
            } else if let Error::Reported = error {
                return error;
            }
            self.skipped.borrow_mut().insert(node.id);
            Error::Reported
        })
    }

    /// Reports the unknown and the missing keys of a section.
    fn check_keys(&self, section: &str, known: &'static [&'static str], node: &Node, at: Location) {
        if !self.checked.borrow_mut().insert(node.id) {
            return;
        }
        let entries = entries(node);
        let mut misspelt = Vec::new();
        let unknown = entries.iter().filter(|entry| !known.contains(&entry.name()));
        for entry in unknown.take(MAX_FAULTS) {
            let all = known.join(", ");
            let expected = match suggest(entry.name(), known.iter().copied()) {
                Some(near) => {
                    misspelt.push(near);
                    format!("`{near}` (valid keys: {all})")
                }
                None => format!("one of {all}"),
            };
            let what = format!("unknown key `{}`", quote_value(entry.name()));
            self.add_fault(entry.key.location, Mismatch::new(what, expected));
        }
        for key in required_keys(section) {
            let is_present =
                misspelt.contains(&key) || entries.iter().any(|entry| entry.name() == key);
            if !is_present {
                let what = format!("missing key `{key}`");
                self.add_fault(
                    at,
                    Mismatch::new(what, format!("a line `{key}: ...` in this section")),
                );
            }
        }
    }
}

fn entries(node: &Node) -> &[Entry] {
    match &node.kind {
        Kind::Map(entries) => entries,
        _ => &[],
    }
}

/// The required keys of a section, according to the schema.
fn required_keys(section: &str) -> Vec<&'static str> {
    static SCHEMA: LazyLock<serde_json::Value> = LazyLock::new(|| super::schema().to_value());
    let definition = match &SCHEMA["$defs"][section] {
        serde_json::Value::Null => &*SCHEMA,
        definition => definition,
    };
    let keys = definition["required"].as_array();
    keys.into_iter().flatten().filter_map(serde_json::Value::as_str).collect()
}

#[derive(Clone, Copy)]
struct NodeDeserializer<'t> {
    reader: &'t Reader,
    node: &'t Node,
    at: Location,
}

impl<'t> NodeDeserializer<'t> {
    fn unexpected(&self) -> String {
        match &self.node.kind {
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a mapping".to_owned(),
            Kind::Scalar { .. } if self.node.is_empty() => "nothing".to_owned(),
            Kind::Scalar { text, .. } => format!("`{}`", quote_value(text)),
        }
    }

    fn refuse<T>(&self, expected: impl Into<String>) -> Result<T, Error> {
        Err(Error::Mismatch(Mismatch::new(self.unexpected(), expected)))
    }

    /// A number of type `T`. Quoted digits are text, not a number.
    fn number<T: std::str::FromStr>(&self, expected: impl Display) -> Result<T, Error> {
        let parsed = match &self.node.kind {
            Kind::Scalar { text, plain: true } => text.parse().ok(),
            _ => None,
        };
        parsed.map_or_else(|| self.refuse(expected.to_string()), Ok)
    }

    fn items(&self) -> Items<'t> {
        let items: &[Arc<Node>] = match &self.node.kind {
            Kind::List(items) => items,
            _ => &[],
        };
        Items { reader: self.reader, items: items.iter() }
    }

    fn fields(&self, known: Option<&'static [&'static str]>) -> Fields<'t> {
        let entries = entries(self.node).iter();
        Fields { reader: self.reader, entries, known, value: None }
    }
}

macro_rules! whole_numbers {
    ($($method:ident $visit:ident $type:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let range = format_args!("a whole number from {} to {}", $type::MIN, $type::MAX);
            visitor.$visit(self.number::<$type>(range)?)
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeDeserializer<'_> {
    type Error = Error;

    whole_numbers! {
        deserialize_i8 visit_i8 i8
        deserialize_i16 visit_i16 i16
        deserialize_i32 visit_i32 i32
        deserialize_i64 visit_i64 i64
        deserialize_u8 visit_u8 u8
        deserialize_u16 visit_u16 u16
        deserialize_u32 visit_u32 u32
        deserialize_u64 visit_u64 u64
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(self.number("a number")?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.number("true or false")?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.text() {
            Some(text) => visitor.visit_str(text),
            None => self.refuse("text"),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            Kind::List(_) => self.deserialize_seq(visitor),
            Kind::Map(_) => self.deserialize_map(visitor),
            Kind::Scalar { .. } if self.node.is_null() => visitor.visit_unit(),
            Kind::Scalar { text, plain: true } => {
                if let Ok(number) = text.parse::<u64>() {
                    visitor.visit_u64(number)
                } else if let Ok(number) = text.parse::<i64>() {
                    visitor.visit_i64(number)
                } else if let Ok(flag) = text.parse::<bool>() {
                    visitor.visit_bool(flag)
                } else {
                    visitor.visit_str(text)
                }
            }
            Kind::Scalar { text, .. } => visitor.visit_str(text),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            Kind::List(_) => visitor.visit_seq(self.items()),
            Kind::Scalar { .. } if self.node.is_empty() => visitor.visit_seq(self.items()),
            Kind::Scalar { text, .. } => {
                self.refuse(format!("a list, such as [{}]", quote_value(text)))
            }
            Kind::Map(_) => self.refuse("a list"),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            Kind::Map(_) => visitor.visit_map(self.fields(None)),
            Kind::Scalar { .. } if self.node.is_empty() => visitor.visit_map(self.fields(None)),
            _ => self.refuse("a mapping of names"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if !matches!(self.node.kind, Kind::Map(_)) && !self.node.is_empty() {
            return self.refuse(format!("a mapping with the keys {}", fields.join(", ")));
        }
        self.reader.check_keys(name, fields, self.node, self.at);
        visitor.visit_map(self.fields(Some(fields)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.node.text() {
            Some(text) => {
                let variant: StrDeserializer<'_, Error> = text.into_deserializer();
                visitor.visit_enum(variant)
            }
            None => self.refuse(one_of(variants)),
        }
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Items<'t> {
    reader: &'t Reader,
    items: std::slice::Iter<'t, Arc<Node>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let reader = self.reader;
        let Some(node) = self.items.find(|node| !reader.is_skipped(node)) else { return Ok(None) };
        reader.deserialize_node(seed, node, node.location).map(Some)
    }
}

struct Fields<'t> {
    reader: &'t Reader,
    entries: std::slice::Iter<'t, Entry>,
    known: Option<&'static [&'static str]>,
    value: Option<&'t Entry>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let (reader, known) = (self.reader, self.known);
        self.value = self.entries.find(|entry| {
            known.is_none_or(|known| known.contains(&entry.name()))
                && !reader.is_skipped(&entry.key)
                && !reader.is_skipped(&entry.value)
        });
        let Some(entry) = self.value else { return Ok(None) };
        let key: StrDeserializer<'_, Error> = entry.name().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        match self.value.take() {
            Some(entry) => self.reader.deserialize_node(seed, &entry.value, entry.location()),
            None => Err(de::Error::custom("a value was requested before its key")),
        }
    }
}
