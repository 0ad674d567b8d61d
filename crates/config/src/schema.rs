//! The JSON Schemas of the configuration. A test makes their files from the types, so that the
//! program does not contain what makes schemas.

#[cfg(test)]
mod editor;
#[cfg(test)]
mod files;
#[cfg(test)]
mod of_types;
#[cfg(test)]
mod strict;

use std::sync::LazyLock;

use serde_json::Value;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../schema.json")).expect("a test compares the file")
});

/// The JSON Schema of the configuration after references are replaced.
pub fn schema() -> &'static Value {
    &SCHEMA
}

/// The text of the JSON Schema for editors: every value may also be a reference, and ranges,
/// names and lists are checked.
pub fn editor_schema() -> &'static str {
    include_str!("../editor_schema.json")
}
