//! Values that are written as one short text: what all of them share.

/// A value with one spelling in the file. [`text_value!`] makes a serde type of it.
pub(super) trait Text: Sized {
    /// What a fault says was expected.
    const EXPECTED: &'static str;
    /// The spelling as a regular expression, for editors.
    const PATTERN: &'static str;
    /// True where a fault must not repeat the text, because it may hold a password.
    const SECRET: bool = false;

    fn read(text: &str) -> Option<Self>;
}

/// Implements Deserialize, Serialize (by Display) and `JsonSchema` for a [`Text`].
macro_rules! text_value {
    ($type:ident) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use super::text::Text;
                use serde::de::{Error, Unexpected};

                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::read(&text).ok_or_else(|| {
                    let secret = Unexpected::Other("this value");
                    let found = if Self::SECRET { secret } else { Unexpected::Str(&text) };
                    D::Error::invalid_value(found, &Self::EXPECTED)
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
                use super::text::Text;

                schemars::json_schema!({
                    "type": "string",
                    "description": Self::EXPECTED,
                    "pattern": Self::PATTERN,
                })
            }
        }
    };
}
pub(super) use text_value;

/// Whether `text` is an HTTP token (RFC 9110, 5.6.2): what a header or cookie name consists of.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
pub(super) fn read<T: Text>(text: &str) -> Option<T> {
    T::read(text)
}
