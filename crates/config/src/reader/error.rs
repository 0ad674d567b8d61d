//! The error type of the deserializer, and faults from serde's own errors.

use std::fmt::{self, Display};

use serde::de::{self, Expected, Unexpected};

use crate::fault::Mismatch;
use crate::located::quote_value;

#[derive(Debug)]
pub(super) enum Error {
    /// A fault that has not been reported yet.
    Mismatch(Mismatch),
    /// A key is missing, either in the text or because its faulty value was skipped.
    Missing,
    /// The fault has been reported.
    Reported,
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch(mismatch) => {
                write!(f, "{}, expected {}", mismatch.what, mismatch.expected)
            }
            Self::Missing | Self::Reported => f.write_str("a fault that is reported separately"),
        }
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: Display>(message: T) -> Self {
        let message = message.to_string();
        let (what, expected) =
            message.split_once(", expected ").unwrap_or((&message, "another value"));
        Self::Mismatch(Mismatch::new(what, expected))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Bool(value) => format!("`{value}`"),
            Unexpected::Unsigned(value) => format!("`{value}`"),
            Unexpected::Signed(value) => format!("`{value}`"),
            Unexpected::Float(value) => format!("`{value}`"),
            Unexpected::Str(text) => format!("`{}`", quote_value(text)),
            Unexpected::Unit => "nothing".to_owned(),
            Unexpected::Seq => "a list".to_owned(),
            Unexpected::Map => "a mapping".to_owned(),
            other => other.to_string(),
        };
        Self::Mismatch(Mismatch::new(found, expected.to_string()))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        Self::Mismatch(Mismatch::new(format!("`{}`", quote_value(found)), one_of(expected)))
    }

    fn unknown_field(found: &str, expected: &'static [&'static str]) -> Self {
        let what = format!("unknown key `{}`", quote_value(found));
        Self::Mismatch(Mismatch::new(what, one_of(expected)))
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::Mismatch(Mismatch::new(format!("`{name}` again"), "each key once"))
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        let what = format!("{length} values");
        Self::Mismatch(Mismatch::new(what, expected.to_string()))
    }

    fn missing_field(_: &'static str) -> Self {
        Self::Missing
    }
}

/// The names as `a, b or c`.
pub(super) fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}
