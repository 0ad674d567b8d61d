//! A deserializer that wraps another one and replaces references to environment variables in its values, as
//! [`environment`](super::environment) does in the tree. The cross-check reads through it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};

use super::MAX_FILE_SIZE;
use super::environment::resolve;
use super::secret::EnvLookup;

/// A wrapped deserializer, visitor, seed or access.
pub(super) struct Resolving<'e, T> {
    inner: T,
    env: EnvLookup<'e>,
    read_as: ReadAs,
}

/// The type that a replaced text may take.
#[derive(Clone, Copy)]
enum ReadAs {
    /// A whole number, a boolean or text.
    Any,
    /// A number.
    Float,
    /// Text.
    Text,
}

impl<'e, T> Resolving<'e, T> {
    pub(super) fn new(inner: T, env: EnvLookup<'e>) -> Self {
        Self { inner, env, read_as: ReadAs::Text }
    }

    fn wrap<U>(&self, inner: U) -> Resolving<'e, U> {
        Resolving::new(inner, self.env)
    }

    fn split<U>(self, inner: U, read_as: ReadAs) -> (T, Resolving<'e, U>) {
        (self.inner, Resolving { inner, env: self.env, read_as })
    }
}

macro_rules! read {
    ($($method:ident as $read_as:ident through $inner:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            let (inner, visitor) = self.split(visitor, ReadAs::$read_as);
            inner.$inner(visitor)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Resolving<'_, D> {
    type Error = D::Error;

    read! {
        deserialize_any as Any through deserialize_any;
        deserialize_bool as Any through deserialize_any;
        deserialize_i8 as Any through deserialize_any;
        deserialize_i16 as Any through deserialize_any;
        deserialize_i32 as Any through deserialize_any;
        deserialize_i64 as Any through deserialize_any;
        deserialize_u8 as Any through deserialize_any;
        deserialize_u16 as Any through deserialize_any;
        deserialize_u32 as Any through deserialize_any;
        deserialize_u64 as Any through deserialize_any;
        deserialize_f32 as Float through deserialize_any;
        deserialize_f64 as Float through deserialize_any;
        deserialize_char as Text through deserialize_char;
        deserialize_str as Text through deserialize_str;
        deserialize_string as Text through deserialize_string;
        deserialize_bytes as Text through deserialize_bytes;
        deserialize_byte_buf as Text through deserialize_byte_buf;
        deserialize_option as Text through deserialize_option;
        deserialize_unit as Text through deserialize_unit;
        deserialize_seq as Text through deserialize_seq;
        deserialize_map as Text through deserialize_map;
        deserialize_identifier as Text through deserialize_identifier;
        deserialize_ignored_any as Text through deserialize_ignored_any;
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.split(visitor, ReadAs::Text);
        inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.split(visitor, ReadAs::Text);
        inner.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.split(visitor, ReadAs::Text);
        inner.deserialize_tuple(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.split(visitor, ReadAs::Text);
        inner.deserialize_tuple_struct(name, len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.split(visitor, ReadAs::Text);
        inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.split(visitor, ReadAs::Text);
        inner.deserialize_enum(name, variants, visitor)
    }
}

macro_rules! forward {
    ($($method:ident $type:ty;)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Resolving<'_, V> {
    type Value = V::Value;

    forward! {
        visit_bool bool;
        visit_i64 i64;
        visit_u64 u64;
        visit_f64 f64;
        visit_bytes &[u8];
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        // Our reader reports references that cannot be replaced.
        let resolved =
            resolve(text, MAX_FILE_SIZE, self.env).map_err(|_| E::custom("a faulty reference"))?;
        let Some(resolved) = resolved else { return self.inner.visit_str(text) };
        let text = &*resolved.text;
        let read_as = if resolved.references.is_empty() { ReadAs::Text } else { self.read_as };
        match read_as {
            ReadAs::Float => match text.parse() {
                Ok(number) => self.inner.visit_f64(number),
                Err(_) => self.inner.visit_str(text),
            },
            ReadAs::Any => {
                if let Ok(number) = text.parse::<u64>() {
                    self.inner.visit_u64(number)
                } else if let Ok(number) = text.parse::<i64>() {
                    self.inner.visit_i64(number)
                } else if let Ok(flag) = text.parse::<bool>() {
                    self.inner.visit_bool(flag)
                } else {
                    self.inner.visit_str(text)
                }
            }
            ReadAs::Text => self.inner.visit_str(text),
        }
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.visit_some(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.visit_newtype_struct(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        let items = self.wrap(items);
        self.inner.visit_seq(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        let entries = self.wrap(entries);
        self.inner.visit_map(entries)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        let variant = self.wrap(variant);
        self.inner.visit_enum(variant)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Resolving<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.deserialize(deserializer)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Resolving<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.wrap(seed);
        self.inner.next_element_seed(seed)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Resolving<'_, A> {
    type Error = A::Error;

    /// Keys are not replaced.
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.wrap(seed);
        self.inner.next_value_seed(seed)
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Resolving<'_, A> {
    type Error = A::Error;
    type Variant = A::Variant;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, A::Variant), A::Error> {
        let seed = self.wrap(seed);
        self.inner.variant_seed(seed)
    }
}
