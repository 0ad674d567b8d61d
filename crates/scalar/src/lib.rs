//! Values that are written as one scalar of a file, such as a duration, an address or
//! `header:x-api-key`.
//!
//! A type says how it is written with [`ScalarValue`], and [`impl_scalar!`] makes the rest:
//! reading, writing and, with the feature `schema`, the JSON Schema. A text that is not valid is a
//! fault that says what was expected, what is wrong with the text, and what was probably meant.
//! `suggest` finds the known name that is closest to a misspelt one.
//!
//! It knows no type of its own: each stands where its meaning is, with its syntax beside it.
//!
//! ```
//! use std::fmt;
//! use tidegate_scalar::{ScalarValue, impl_scalar};
//!
//! #[derive(Debug, PartialEq)]
//! struct Percentage(u8);
//!
//! impl ScalarValue for Percentage {
//!     const EXPECTED: &'static str = "a percentage such as 25%";
//!     const PATTERN: &'static str = "^[0-9]{1,2}%$";
//!     const EXAMPLE: &'static str = "25%";
//!
//!     fn parse(text: &str) -> Option<Self> {
//!         text.strip_suffix('%')?.parse().ok().filter(|part| *part <= 99).map(Self)
//!     }
//!
//!     fn correction(text: &str) -> Option<String> {
//!         Self::parse(&format!("{text}%")).map(|meant| meant.to_string())
//!     }
//! }
//!
//! impl fmt::Display for Percentage {
//!     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
//!         write!(f, "{}%", self.0)
//!     }
//! }
//!
//! impl_scalar!(Percentage);
//!
//! assert_eq!(serde_json::from_str::<Percentage>("\"25%\"").unwrap(), Percentage(25));
//! let fault = serde_json::from_str::<Percentage>("\"25\"").unwrap_err().to_string();
//! assert!(fault.contains("expected `25%`: a percentage such as 25%"), "{fault}");
//! ```

mod suggest;

use std::borrow::Cow;

pub use suggest::suggest;

// What the macros name: their users need neither.
#[doc(hidden)]
#[cfg(feature = "schema")]
pub use schemars;
#[doc(hidden)]
pub use serde;

/// A value that is parsed from one scalar. [`impl_scalar!`] implements serde for it.
pub trait ScalarValue: Sized {
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

    /// The reason for which `text` is invalid, if there is more to say than the syntax.
    fn reason(_text: &str) -> Option<String> {
        None
    }

    /// The value that the invalid `text` probably means.
    fn correction(_text: &str) -> Option<String> {
        None
    }
}

/// Implements `Deserialize` and `Serialize` (by `Display`) for a [`ScalarValue`], and `JsonSchema`
/// with the feature `schema`.
#[macro_export]
macro_rules! impl_scalar {
    ($type:ident) => {
        impl<'de> $crate::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                use $crate::ScalarValue;
                use $crate::serde::de::{Error, Unexpected};

                let text = <String as $crate::serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| {
                    let secret = Unexpected::Other("this value");
                    let found = if Self::SECRET { secret } else { Unexpected::Str(&text) };
                    match Self::correction(&text) {
                        None => {
                            let expected = $crate::with_reason(Self::EXPECTED, Self::reason(&text));
                            D::Error::invalid_value(found, &&*expected)
                        }
                        Some(meant) => {
                            let expected = format!("`{meant}`: {}", Self::EXPECTED);
                            D::Error::invalid_value(found, &expected.as_str())
                        }
                    }
                })
            }
        }

        impl $crate::serde::Serialize for $type {
            fn serialize<S: $crate::serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        $crate::impl_schema!($type);
    };
}

/// Implements `JsonSchema` for a [`ScalarValue`].
#[cfg(feature = "schema")]
#[doc(hidden)]
#[macro_export]
macro_rules! impl_schema {
    ($type:ident) => {
        impl $crate::schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut $crate::schemars::SchemaGenerator) -> $crate::schemars::Schema {
                use $crate::ScalarValue;

                let mut schema = $crate::schemars::json_schema!({
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

/// Nothing without the feature `schema`.
#[cfg(not(feature = "schema"))]
#[doc(hidden)]
#[macro_export]
macro_rules! impl_schema {
    ($type:ident) => {};
}

/// The accepted syntax, and the reason for which a text is invalid.
pub fn with_reason(expected: &str, reason: Option<String>) -> Cow<'_, str> {
    match reason {
        None => Cow::Borrowed(expected),
        Some(reason) => Cow::Owned(format!("{expected}: {reason}")),
    }
}

/// True if `text` is an HTTP token (RFC 9110, 5.6.2), the syntax of header and cookie names.
pub fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}
