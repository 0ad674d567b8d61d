//! [`DescriptorEntry`]: one entry of a descriptor, by which Envoy asks its rate limit service.

/// A name and its value in a descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DescriptorEntry<'r> {
    /// The name, which Envoy calls the key.
    pub name: &'r str,
    /// The value.
    pub value: &'r str,
}

/// The value of the first entry called `name`; empty without one.
pub(super) fn value_of<'r>(entries: &[DescriptorEntry<'r>], name: &str) -> &'r str {
    let entry = entries.iter().find(|entry| entry.name == name);
    entry.map_or("", |entry| entry.value)
}
