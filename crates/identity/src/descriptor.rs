//! [`DescriptorEntry`]: one entry of a descriptor, by which Envoy asks its rate limit service.

use super::canonical::trim_text;

/// A name and its value in a descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DescriptorEntry<'r> {
    /// The name, which Envoy calls the key.
    pub name: &'r str,
    /// The value.
    pub value: &'r str,
}

impl<'r> DescriptorEntry<'r> {
    /// An entry as it was sent or written: without the white space at the ends of its value, as
    /// values of headers are read. Otherwise `mallory ` would pass a limit for `mallory`.
    pub fn new(name: &'r str, value: &'r str) -> Self {
        Self { name, value: trim_text(value) }
    }
}

/// The value of the first entry called `name`; empty without one.
pub(super) fn value_of<'r>(entries: &[DescriptorEntry<'r>], name: &str) -> &'r str {
    let entry = entries.iter().find(|entry| entry.name == name);
    entry.map_or("", |entry| entry.value)
}
