//! Deserializes the configuration's types from the tree and collects every fault.
//!
//! Serde stops at the first error. Therefore each faulty value is recorded and left out, and
//! deserialization is repeated without it until a pass finds no further fault. A required value
//! that is missing or faulty is replaced by a valid placeholder, so that the rest of its section is
//! still read. Ranges and required keys are those of the JSON Schema.

mod access;
mod elsewhere;
mod error;
mod schema;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, Visitor};
use tidegate_scalar::ScalarValue as _;

use self::elsewhere::places_of;
use self::error::{Error, one_of};
use self::schema::ValueSchema;
use super::fault::Mismatch;
use super::located::{LocatedEntry, LocatedNode, NodeKind, ScalarForm, quote_value};
use super::location::Location;
use super::rate::Rate;
use super::source::Unreadable;
use super::suggest::suggest_key;
use super::{Config, MAX_FAULTS};

/// The result of reading a tree.
pub(super) struct Reading {
    /// The configuration, with placeholders for required values that could not be read. `None` if
    /// the tree is not a mapping or has too many faults.
    pub(super) config: Option<Config>,
    /// All faults of the tree, up to [`MAX_FAULTS`].
    pub(super) faults: Vec<(Location, Mismatch)>,
    pub(super) unreadable: Unreadable,
}

/// Deserializes `root`. Faults for the nodes `unresolved` have been reported already.
pub(super) fn read(root: &LocatedNode, unresolved: BTreeSet<usize>) -> Reading {
    let reader = Reader::default();
    reader.unreadable.borrow_mut().nodes = unresolved;
    let config = loop {
        let seed = PhantomData::<Config>;
        match reader.deserialize_node(seed, root, root.location, ValueSchema::root()) {
            Ok(config) => break Some(config),
            Err(_) if reader.faults.borrow().len() >= MAX_FAULTS => break None,
            Err(_) if reader.is_unreadable(root) => break None,
            Err(_) => {}
        }
    };
    let (faults, unreadable) = (reader.faults.into_inner(), reader.unreadable.into_inner());
    Reading { config, faults, unreadable }
}

#[derive(Default)]
struct Reader {
    faults: RefCell<Vec<(Location, Mismatch)>>,
    unreadable: RefCell<Unreadable>,
    /// The ids of the mappings whose keys have been checked.
    checked: RefCell<BTreeSet<usize>>,
    /// The ids of nodes with an invalid value from the environment. They are read again as
    /// [`HIDDEN`], so that no message can depend on the value.
    hidden: RefCell<BTreeSet<usize>>,
}

/// A text that no type accepts.
const HIDDEN: &str = "\u{0}";

impl Reader {
    fn is_unreadable(&self, node: &LocatedNode) -> bool {
        self.unreadable.borrow().nodes.contains(&node.id)
    }

    fn add_fault(&self, at: Location, mismatch: Mismatch) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < MAX_FAULTS {
            faults.push((at, mismatch));
        }
    }

    // One instance for each type: what no type changes is in `enter` and `leave`.
    fn deserialize_node<'de, S: DeserializeSeed<'de>>(
        &self,
        seed: S,
        node: &LocatedNode,
        at: Location,
        schema: ValueSchema,
    ) -> Result<S::Value, Error> {
        let hidden = self.enter(node);
        let node = hidden.as_ref().unwrap_or(node);
        let deserializer = NodeDeserializer { reader: self, node, at, schema };
        let result = deserializer.check_amount().and_then(|()| seed.deserialize(deserializer));
        match result {
            Ok(value) if hidden.is_none() => Ok(value),
            Ok(_) => Err(self.leave(deserializer, deserializer.refusal("another value"))),
            Err(error) => Err(self.leave(deserializer, error)),
        }
    }

    /// The node to read in place of one whose value no message may depend on.
    fn enter(&self, node: &LocatedNode) -> Option<LocatedNode> {
        self.hidden.borrow().contains(&node.id).then(|| node.with_text(HIDDEN))
    }

    /// Records why a node cannot be read.
    fn leave(&self, deserializer: NodeDeserializer<'_>, error: Error) -> Error {
        let NodeDeserializer { node, at, .. } = deserializer;
        let is_first = node.written().is_some() && self.hidden.borrow_mut().insert(node.id);
        match error {
            Error::Mismatch(_) if is_first => return Error::Reported,
            Error::Mismatch(mismatch) => self.add_fault(at, deserializer.explain(mismatch)),
            Error::Missing => {}
            Error::Reported => return error,
        }
        self.unreadable.borrow_mut().nodes.insert(node.id);
        Error::Reported
    }

    /// Reports the unknown and the missing keys of a section.
    fn check_keys(&self, known: &[&'static str], section: NodeDeserializer<'_>) {
        let node = section.node;
        if !self.checked.borrow_mut().insert(node.id) {
            return;
        }
        let entries = entries(node);
        let mut absent = Vec::new();
        let unknown = entries.iter().filter(|entry| !known.contains(&entry.name()));
        for entry in unknown.take(MAX_FAULTS) {
            let key = quote_value(entry.name());
            let all = known.join(", ");
            let expected = match suggest_key(entry.name(), known) {
                Some(near) => {
                    absent.push(near);
                    format!("`{near}` (valid keys: {all})")
                }
                None => match places_of(entry.name()) {
                    Some(places) => format!("{places}; here one of {all}"),
                    None => format!("one of {all}"),
                },
            };
            let mismatch = Mismatch::new(format!("unknown key `{key}`"), expected);
            self.add_fault(entry.key.location, mismatch);
        }
        for key in section.schema.required() {
            if !absent.contains(&key) && !entries.iter().any(|entry| entry.name() == key) {
                let expected = format!("a line `{key}: ...` in this section");
                self.add_fault(section.at, Mismatch::new(format!("missing key `{key}`"), expected));
                absent.push(key);
            }
        }
        self.unreadable.borrow_mut().keys.extend(absent.into_iter().map(|key| (node.id, key)));
    }
}

fn entries(node: &LocatedNode) -> &[LocatedEntry] {
    match &node.kind {
        NodeKind::Map(entries) => entries,
        _ => &[],
    }
}

#[derive(Clone, Copy)]
struct NodeDeserializer<'t> {
    reader: &'t Reader,
    node: &'t LocatedNode,
    at: Location,
    schema: ValueSchema,
}

impl NodeDeserializer<'_> {
    fn unexpected(&self) -> String {
        match &self.node.kind {
            NodeKind::List(_) => "a list".to_owned(),
            NodeKind::Map(_) => "a mapping".to_owned(),
            NodeKind::Scalar { .. } if self.node.is_empty() => "nothing".to_owned(),
            NodeKind::Scalar { text, written, .. } => {
                format!("`{}`", quote_value(written.as_ref().unwrap_or(text)))
            }
        }
    }

    fn refusal(&self, expected: impl Into<String>) -> Error {
        Error::Mismatch(Mismatch::new(self.unexpected(), expected))
    }

    fn refuse<T>(&self, expected: impl Into<String>) -> Result<T, Error> {
        Err(self.refusal(expected))
    }

    /// The refusal of a value that is no list.
    fn refuse_as_list(&self) -> Error {
        let NodeKind::Scalar { text, written, .. } = &self.node.kind else {
            return self.refusal("a list");
        };
        let items = self.schema.items();
        let expected = match items.list_item(written.as_ref().unwrap_or(text)) {
            Some(item) => format!("a list, such as [{}]", quote_value(item)),
            None if items.is_section() => "a list of mappings".to_owned(),
            None => "a list".to_owned(),
        };
        self.refusal(expected)
    }

    /// The refusal of a value that is no text.
    fn refuse_as_text(&self) -> Error {
        match self.text_with_space() {
            Some(meant) => self.refusal(format!("`{meant}`, without a space after the colon")),
            None => self.refusal(self.schema.text_syntax()),
        }
    }

    /// The refusal of a value that is no section with `fields`.
    fn refuse_as_section(&self, fields: &[&str]) -> Error {
        let written = self.node.written().or(self.node.text());
        self.refusal(match written.and_then(|text| mapping_of(fields, text)) {
            Some(example) => format!("a mapping, such as {example}"),
            None => format!("a mapping with the keys {}", fields.join(", ")),
        })
    }

    /// The text `a:b` that a mapping `a: b` probably stands for.
    fn text_with_space(&self) -> Option<String> {
        let [entry] = entries(self.node) else { return None };
        let name = entry.name();
        let value = entry.value.written().or(entry.value.text())?;
        // The value may be the secret itself, and a reference is never quoted.
        let value = match name {
            "env" => "NAME".into(),
            "file" => "PATH".into(),
            _ => quote_value(value),
        };
        self.schema.has_text_kind(name).then(|| format!("{name}:{value}"))
    }

    /// Refuses a duration or size outside of its range.
    fn check_amount(&self) -> Result<(), Error> {
        match self.node.text() {
            Some(text) if !self.schema.includes_amount(text) => {
                self.refuse(self.schema.description())
            }
            _ => Ok(()),
        }
    }

    /// Adds the range of the key to a type's message and, if the value is in quotes, a hint to
    /// remove them.
    fn explain(&self, mut mismatch: Mismatch) -> Mismatch {
        let NodeKind::Scalar { text, form, written } = &self.node.kind else { return mismatch };
        if written.is_some() {
            mismatch.what = self.unexpected();
        }
        // A suggestion that is out of range does not help.
        let meant = mismatch.expected.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
        if let Some((meant, expected)) = meant
            && !self.schema.includes_amount(meant)
        {
            mismatch.expected = expected.to_owned();
        }
        if let Some((min, max)) = self.schema.amount_range() {
            let _ = write!(mismatch.expected, ", from {min} to {max}");
        }
        let is_number_or_flag = text.parse::<u64>().is_ok() || text.parse::<bool>().is_ok();
        if *form == ScalarForm::Quoted && is_number_or_flag && self.schema.accepts_unquoted() {
            mismatch.what.push_str(" in quotes, which is text");
            mismatch.expected.push_str(", without quotes");
        }
        mismatch
    }

    /// A plain scalar, parsed. Quoted digits are text, not a number.
    fn plain<T: std::str::FromStr>(&self) -> Option<T> {
        match &self.node.kind {
            NodeKind::Scalar { text, form: ScalarForm::Plain, .. } => text.parse().ok(),
            _ => None,
        }
    }

    /// A whole number within the key's range; `max` is the maximum of its type.
    fn whole_number(&self, max: u64) -> Result<u64, Error> {
        let bound = |keyword| self.schema.bound(keyword).and_then(serde_json::Number::as_u64);
        let (min, max) = (bound("minimum").unwrap_or(0), bound("maximum").unwrap_or(max));
        let expected = format!("a whole number from {min} to {max}");
        match self.plain::<u64>().filter(|number| (min..=max).contains(number)) {
            Some(_) if self.is_ambiguous_number() => self.refuse(format!(
                "{expected}, without the leading zero: YAML 1.1 reads it as octal"
            )),
            Some(number) => Ok(number),
            None if self.node.text().is_some_and(|text| Rate::parse(text).is_some()) => {
                let rate = "a rate stands in the place of a limit's mapping: `NAME: 100/1m`";
                self.refuse(format!("{expected}; {rate}"))
            }
            None => self.refuse(expected),
        }
    }

    /// True for digits after a leading zero: octal in YAML 1.1, decimal in YAML 1.2.
    fn is_ambiguous_number(&self) -> bool {
        let digits = self.node.text().map(|text| text.trim_start_matches(['+', '-']));
        digits.is_some_and(|text| text.len() > 1 && text.starts_with('0'))
    }
}

macro_rules! whole_numbers {
    ($($method:ident $type:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.visit_u64(self.whole_number($type::MAX.into())?)
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeDeserializer<'_> {
    type Error = Error;

    whole_numbers! {
        deserialize_u8 u8
        deserialize_u16 u16
        deserialize_u32 u32
        deserialize_u64 u64
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let bound = |keyword| self.schema.bound(keyword).and_then(serde_json::Number::as_f64);
        let bounds = bound("minimum").zip(bound("maximum"));
        let (min, max) = bounds.unwrap_or((f64::MIN, f64::MAX));
        match (self.plain::<f64>().filter(|number| (min..=max).contains(number)), bounds) {
            (Some(number), _) => visitor.visit_f64(number),
            (None, Some(_)) => self.refuse(format!("a number from {min} to {max}")),
            (None, None) => self.refuse("a number"),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.plain() {
            Some(flag) => visitor.visit_bool(flag),
            None => self.refuse("true or false"),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.text() {
            Some(text) => visitor.visit_str(text),
            None => Err(self.refuse_as_text()),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            NodeKind::List(_) => self.deserialize_seq(visitor),
            NodeKind::Map(_) if self.schema.may_be_text() => {
                let known: Vec<_> = self.schema.keys().collect();
                self.reader.check_keys(&known, self);
                visitor.visit_map(self.keys(&known))
            }
            NodeKind::Map(_) => self.deserialize_map(visitor),
            NodeKind::Scalar { .. } if self.node.is_null() => visitor.visit_unit(),
            NodeKind::Scalar { text, form: ScalarForm::Plain, .. } => {
                if let (Ok(number), false) = (text.parse::<u64>(), self.is_ambiguous_number()) {
                    visitor.visit_u64(number)
                } else if let Ok(number) = text.parse::<i64>() {
                    visitor.visit_i64(number)
                } else if let Ok(flag) = text.parse::<bool>() {
                    visitor.visit_bool(flag)
                } else {
                    visitor.visit_str(text)
                }
            }
            NodeKind::Scalar { text, .. } => visitor.visit_str(text),
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
            NodeKind::List(_) => visitor.visit_seq(self.items()),
            NodeKind::Scalar { .. } if self.node.is_empty() => visitor.visit_seq(self.items()),
            _ => Err(self.refuse_as_list()),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            NodeKind::Map(_) => visitor.visit_map(self.names()),
            NodeKind::Scalar { .. } if self.node.is_empty() => visitor.visit_map(self.names()),
            _ => self.refuse("a mapping of names"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if !matches!(self.node.kind, NodeKind::Map(_)) && !self.node.is_empty() {
            return Err(self.refuse_as_section(fields));
        }
        self.reader.check_keys(fields, self);
        visitor.visit_map(self.keys(fields))
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
        i8 i16 i32 i64 i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
        ignored_any
    }
}

/// The mapping with keys of `fields` that `text` probably stands for.
fn mapping_of(fields: &[&str], text: &str) -> Option<String> {
    let has = |key: &str| fields.contains(&key);
    if has("shards") {
        let server =
            text.strip_prefix("redis://").or(text.strip_prefix("rediss://")).unwrap_or(text);
        let is_address = server.contains(':')
            && server.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte));
        let scheme = if text.starts_with("rediss:") { "rediss" } else { "redis" };
        // Anything else may have a password.
        let server = if is_address { server } else { "HOST:6379" };
        return Some(format!("{{shards: [{{primary: '{scheme}://{server}'}}]}}"));
    }
    if has("targets") && text.contains("://") {
        return Some(format!("{{targets: [{}]}}", quote_value(text)));
    }
    (has("path") && has("methods") && text.starts_with('/')).then(|| format!("{{path: {text}}}"))
}
