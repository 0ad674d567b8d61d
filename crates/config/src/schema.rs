//! The JSON Schema of the configuration. A test makes its file from the types, so that the program
//! does not contain what makes schemas.

#[cfg(test)]
mod of_types;

use std::sync::LazyLock;

use serde_json::Value;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../schema.json")).expect("a test compares the file")
});

/// The JSON Schema of the configuration after references are replaced.
pub fn schema() -> &'static Value {
    &SCHEMA
}
