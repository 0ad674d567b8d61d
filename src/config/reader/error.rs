//! What serde is told of a fault, and what it tells.

use std::fmt::{self, Display};

use serde::de::{self, Expected, Unexpected};

use crate::config::fault::Found;
use crate::config::tree::clip;

#[derive(Debug)]
pub(super) enum Error {
    /// Not yet among the faults.
    Found(Found),
    /// A key is missing, be it from the text or because its value was left out.
    Missing,
    /// Among the faults already.
    Noted,
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(found) => write!(f, "{}, expected {}", found.what, found.expected),
            Self::Missing | Self::Noted => f.write_str("a fault that is reported elsewhere"),
        }
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: Display>(message: T) -> Self {
        Self::Found(Found::new(message.to_string(), "something else"))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Bool(value) => format!("`{value}`"),
            Unexpected::Unsigned(value) => format!("`{value}`"),
            Unexpected::Signed(value) => format!("`{value}`"),
            Unexpected::Float(value) => format!("`{value}`"),
            Unexpected::Str(text) => format!("`{}`", clip(text)),
            Unexpected::Unit => "nothing".to_owned(),
            Unexpected::Seq => "a list".to_owned(),
            Unexpected::Map => "a mapping".to_owned(),
            other => other.to_string(),
        };
        Self::Found(Found::new(found, expected.to_string()))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        Self::Found(Found::new(format!("`{}`", clip(found)), one_of(expected)))
    }

    fn missing_field(_: &'static str) -> Self {
        Self::Missing
    }
}

pub(super) fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}
