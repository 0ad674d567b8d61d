//! Access to the readable items of lists and entries of mappings.

use std::sync::Arc;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess};

use super::error::Error;
use super::schema::ValueSchema;
use super::{NodeDeserializer, Reader, entries};
use crate::located::{LocatedEntry, LocatedNode, NodeKind};

impl<'t> NodeDeserializer<'t> {
    /// The items of a list.
    pub(super) fn items(&self) -> Items<'t> {
        let items: &[Arc<LocatedNode>] = match &self.node.kind {
            NodeKind::List(items) => items,
            _ => &[],
        };
        Items { reader: self.reader, schema: self.schema.items(), rest: items.iter() }
    }

    /// The entries of a mapping of names.
    pub(super) fn names(&self) -> FieldAccess<'t> {
        let readable = |entry: &&LocatedEntry| {
            !self.reader.is_unreadable(&entry.key) && !self.reader.is_unreadable(&entry.value)
        };
        let entries = entries(self.node).iter().filter(readable);
        let fields = entries.map(|entry| {
            let schema = self.schema.value_of(entry.name());
            Field { name: entry.name(), entry: Some(entry), schema }
        });
        FieldAccess {
            reader: self.reader,
            rest: fields.collect::<Vec<_>>().into_iter(),
            value: None,
        }
    }

    /// The known keys of a section that can be read, and the required ones that cannot.
    pub(super) fn keys(&self, known: &[&'static str]) -> FieldAccess<'t> {
        let required: Vec<&str> = self.schema.required().collect();
        let fields = known.iter().filter_map(|&name| {
            let entries = entries(self.node).iter();
            let mut named = entries.filter(|entry| entry.name() == name);
            let entry = named.find(|entry| !self.reader.is_unreadable(&entry.value));
            let is_included = entry.is_some() || required.contains(&name);
            is_included.then(|| Field { name, entry, schema: self.schema.property(name) })
        });
        FieldAccess {
            reader: self.reader,
            rest: fields.collect::<Vec<_>>().into_iter(),
            value: None,
        }
    }
}

/// The readable items of a list.
pub(super) struct Items<'t> {
    reader: &'t Reader,
    schema: ValueSchema,
    rest: std::slice::Iter<'t, Arc<LocatedNode>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let reader = self.reader;
        let Some(node) = self.rest.find(|node| !reader.is_unreadable(node)) else {
            return Ok(None);
        };
        reader.deserialize_node(seed, node, node.location, self.schema).map(Some)
    }
}

struct Field<'t> {
    name: &'t str,
    /// `None` for a required key that is missing or whose value is faulty.
    entry: Option<&'t LocatedEntry>,
    schema: ValueSchema,
}

/// The entries of a mapping that are deserialized.
pub(super) struct FieldAccess<'t> {
    reader: &'t Reader,
    rest: std::vec::IntoIter<Field<'t>>,
    /// The field whose value follows.
    value: Option<Field<'t>>,
}

impl<'de> MapAccess<'de> for FieldAccess<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.value = self.rest.next();
        let Some(field) = &self.value else { return Ok(None) };
        let key: StrDeserializer<'_, Error> = field.name.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        match self.value.take() {
            Some(Field { entry: Some(entry), schema, .. }) => {
                self.reader.deserialize_node(seed, &entry.value, entry.location(), schema)
            }
            Some(Field { schema, .. }) => {
                let node = LocatedNode::unwritten(&schema.placeholder());
                self.reader.deserialize_node(seed, &node, node.location, schema)
            }
            None => Err(de::Error::custom("a value was requested before its key")),
        }
    }
}
