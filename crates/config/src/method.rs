//! [`Method`]: the method of a request.

use std::fmt;

use tidegate_scalar::{ScalarValue, impl_scalar};

/// A request method, in capitals.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Method(pub String);

impl ScalarValue for Method {
    const EXPECTED: &'static str = "a method in capitals such as GET";
    const PATTERN: &'static str = "^[A-Z][A-Z0-9_-]*$";
    const EXAMPLE: &'static str = "GET";

    fn parse(text: &str) -> Option<Self> {
        let starts_with_letter = text.bytes().next()?.is_ascii_uppercase();
        let is_allowed = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b"_-".contains(&b);
        (starts_with_letter && text.bytes().all(is_allowed)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_scalar!(Method);
