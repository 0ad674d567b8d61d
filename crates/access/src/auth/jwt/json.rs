//! JSON of tokens and key sets, read strictly: a name that an object has twice is an error, because
//! two readers could take two values for it (RFC 8725, 2.4 and RFC 7519, 4).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A JSON value without duplicate names. Numbers that do not fit are an error.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of at least 0.
    Unsigned(u64),
    /// A negative whole number.
    Negative(i64),
    /// Another number.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<JsonValue>),
    /// An object.
    Object(JsonObject),
}

/// A JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonObject(BTreeMap<String, JsonValue>);

impl JsonObject {
    /// Reads an object.
    ///
    /// # Errors
    ///
    /// The text is no valid JSON, another value than an object, too deep, has a name twice, or a
    /// number that does not fit. The error quotes none of the values.
    pub fn parse(text: &[u8]) -> Result<Self, JsonError> {
        match serde_json::from_slice(text) {
            Ok(JsonValue::Object(object)) => Ok(object),
            Ok(_) => Err(JsonError::NotAnObject),
            Err(error) => Err(JsonError::Malformed { line: error.line(), column: error.column() }),
        }
    }

    /// The value called `name`; `None` if it is missing or `null`.
    pub fn get(&self, name: &str) -> Option<&JsonValue> {
        self.0.get(name).filter(|value| **value != JsonValue::Null)
    }

    /// True if the object has this name, even with the value `null`.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The text called `name`.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }
}

/// Why a text is no valid object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JsonError {
    /// It is another value.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// It is no JSON, or has a name twice.
    #[error("it is not valid JSON, or has a name twice (line {line}, column {column})")]
    Malformed {
        /// The line of the fault.
        line: usize,
        /// Its column.
        column: usize,
    },
}

impl JsonValue {
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list; of a text, the text itself.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let items = match self {
            Self::List(items) => items,
            other => std::slice::from_ref(other),
        };
        items.iter().filter_map(Self::as_text)
    }

    /// True for a text and for a whole number, which can name someone.
    pub fn is_name(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Unsigned(_) | Self::Negative(_))
    }

    /// A text, number or boolean as text; `None` for other values.
    pub fn scalar(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Bool(true) => Cow::Borrowed("true"),
            Self::Bool(false) => Cow::Borrowed("false"),
            Self::Unsigned(number) => Cow::Owned(number.to_string()),
            Self::Negative(number) => Cow::Owned(number.to_string()),
            Self::Float(number) => Cow::Owned(number.to_string()),
            Self::Null | Self::List(_) | Self::Object(_) => return None,
        })
    }
}

impl<'de> Deserialize<'de> for JsonValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

/// From here on, not every whole number is a float: 2^53.
const EXACT: f64 = 9_007_199_254_740_992.0;

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = JsonValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<JsonValue, E> {
        Ok(JsonValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<JsonValue, E> {
        Ok(JsonValue::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<JsonValue, E> {
        Ok(JsonValue::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<JsonValue, E> {
        Ok(u64::try_from(value).map_or(JsonValue::Negative(value), JsonValue::Unsigned))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<JsonValue, E> {
        // Two whole numbers of this size may be read as one.
        if value.abs() >= EXACT {
            return Err(E::custom("a number that does not fit"));
        }
        Ok(JsonValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<JsonValue, E> {
        Ok(JsonValue::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<JsonValue, E> {
        Ok(JsonValue::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(JsonValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<JsonValue, A::Error> {
        let mut object = BTreeMap::new();
        while let Some((name, value)) = members.next_entry::<String, JsonValue>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("duplicate name"));
            }
        }
        Ok(JsonValue::Object(JsonObject(object)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_object_is_read_strictly() {
        let object = JsonObject::parse(br#"{"a":"x","b":[1,"y",null],"c":-1,"d":1.5,"e":null}"#);
        let object = object.unwrap();
        assert_eq!((object.text("a"), object.get("e"), object.has("e")), (Some("x"), None, true));
        assert_eq!(object.get("b").unwrap().texts().collect::<Vec<_>>(), ["y"]);
        assert_eq!(object.get("c").unwrap().scalar().unwrap(), "-1");
        assert_eq!(object.get("d").unwrap().scalar().unwrap(), "1.5");
        assert!(object.get("c").unwrap().is_name() && !object.get("d").unwrap().is_name());
        for large in ["18446744073709551616", "-9223372036854775809", "9007199254740993.0", "1e300"]
        {
            assert!(JsonObject::parse(format!("{{\"a\":{large}}}").as_bytes()).is_err(), "{large}");
        }
        assert_eq!(JsonObject::parse(b"[]"), Err(JsonError::NotAnObject));
        for wrong in [
            &b""[..],
            b"{",
            b"{} {}",
            b"{\"a\":1,\"a\":1}",
            b"{\"a\":1,\"\\u0061\":1}",
            b"{\"x\":{\"a\":1,\"a\":1}}",
            b"{\"a\":1e999}",
            b"{\"a\":\"\xff\"}",
            b"\xef\xbb\xbf{}",
            b"{\"a\":NaN}",
            b"{'a':1}",
        ] {
            let error = JsonObject::parse(wrong);
            assert!(matches!(error, Err(JsonError::Malformed { .. })), "{wrong:?} {error:?}");
        }
        let deep = [b"{\"a\":".repeat(200), b"1".to_vec(), b"}".repeat(200)].concat();
        assert!(JsonObject::parse(&deep).is_err(), "as deep as the stack");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = JsonObject::parse(&bytes);
        }

        #[test]
        fn a_repeated_name_is_found(names in prop::collection::vec("[a-c]{1,2}", 0..5)) {
            let members: Vec<String> = names.iter().map(|name| format!("\"{name}\":0")).collect();
            let text = format!("{{{}}}", members.join(","));
            let unique: std::collections::BTreeSet<_> = names.iter().collect();
            let is_valid = JsonObject::parse(text.as_bytes()).is_ok();
            prop_assert_eq!(is_valid, unique.len() == names.len());
        }
    }
}
