//! Values that are written as one scalar in the file, such as a duration or an address.

/// A value that is parsed from one scalar. [`impl_scalar!`] implements serde and `schemars` for it.
pub(super) trait ScalarValue: Sized {
    /// The accepted syntax, for faults and the schema.
    const EXPECTED: &'static str;
    /// The accepted syntax as a regular expression, for the schema.
    const PATTERN: &'static str;
    /// A valid text, for editors.
    const EXAMPLE: &'static str;
    /// The smallest and the largest value, unless the key has a range of its own.
    const RANGE: Option<(&'static str, &'static str)> = None;
    /// True if faults must not quote the text, because it may contain a password.
    const SECRET: bool = false;

    /// The value, or `None` if `text` is invalid.
    fn parse(text: &str) -> Option<Self>;

    /// The value that the invalid `text` probably means.
    fn correction(_text: &str) -> Option<String> {
        None
    }
}

/// Implements `Deserialize`, `Serialize` (by `Display`) and `JsonSchema` for a [`ScalarValue`].
macro_rules! impl_scalar {
    ($type:ident) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use super::scalar::ScalarValue;
                use serde::de::{Error, Unexpected};

                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| {
                    let secret = Unexpected::Other("this value");
                    let found = if Self::SECRET { secret } else { Unexpected::Str(&text) };
                    match Self::correction(&text) {
                        None => D::Error::invalid_value(found, &Self::EXPECTED),
                        Some(meant) => {
                            let expected = format!("`{meant}`: {}", Self::EXPECTED);
                            D::Error::invalid_value(found, &expected.as_str())
                        }
                    }
                })
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                use super::scalar::ScalarValue;

                let mut schema = schemars::json_schema!({
                    "type": "string",
                    "description": Self::EXPECTED,
                    "pattern": Self::PATTERN,
                    "examples": [Self::EXAMPLE],
                });
                if let Some((minimum, maximum)) = Self::RANGE {
                    schema.insert("x-minimum".to_owned(), minimum.into());
                    schema.insert("x-maximum".to_owned(), maximum.into());
                }
                schema
            }
        }
    };
}
pub(super) use impl_scalar;

/// True if `text` is an HTTP token (RFC 9110, 5.6.2), the syntax of header and cookie names.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
pub(super) fn parse<T: ScalarValue>(text: &str) -> Option<T> {
    T::parse(text)
}
