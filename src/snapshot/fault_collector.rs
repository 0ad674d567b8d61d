//! Collects the faults and notes of a configuration.

use std::collections::BTreeMap;

use crate::config::{ConfigSource, Fault, MAX_FAULTS, suggest};

/// Maximum number of names that a fault lists.
const MAX_NAMES: usize = 20;
/// Maximum number of names that are compared to find a suggestion.
const MAX_COMPARED: usize = 1_000;

/// Collects the faults of a configuration while it is compiled: at most [`MAX_FAULTS`] faults and as many
/// notes, because locating each one walks the whole file.
pub(super) struct FaultCollector<'a> {
    source: &'a ConfigSource,
    pub(super) faults: Vec<Fault>,
    pub(super) notes: Vec<Fault>,
}

impl<'a> FaultCollector<'a> {
    pub(super) fn new(source: &'a ConfigSource) -> Self {
        Self { source, faults: Vec::new(), notes: Vec::new() }
    }

    /// Reports a fault of the value at `path`, unless the value could not be read and has a fault already.
    pub(super) fn fault(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.is_full() || self.source.is_unreadable(path) {
            return;
        }
        self.faults.push(self.source.fault(path, what, expected));
    }

    /// True if no more faults are recorded, so that callers can skip expensive checks.
    pub(super) fn is_full(&self) -> bool {
        self.faults.len() >= MAX_FAULTS
    }

    /// True if the file has `key` in `section`.
    pub(super) fn has_key(&self, section: &str, key: &str) -> bool {
        self.source.names(section).any(|name| name == key)
    }

    /// True if the values of `keys` in `section` could be read. A check of several values needs it, because
    /// a value that could not be read has a default or a placeholder in its place.
    pub(super) fn can_read(&self, section: &str, keys: &[&str]) -> bool {
        !keys.iter().any(|key| self.source.is_unreadable(&format!("{section}.{key}")))
    }

    /// Reports a valid setting that the operator may not intend.
    pub(super) fn note(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.notes.len() < MAX_FAULTS {
            self.notes.push(self.source.fault(path, what, expected));
        }
    }

    /// As [`FaultCollector::note`], but about the key of `path`.
    pub(super) fn note_at_key(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.notes.len() < MAX_FAULTS {
            self.notes.push(self.source.fault_at_key(path, what, expected));
        }
    }

    /// Reports a fault of the value at `path` unless `is_valid`.
    pub(super) fn ensure(&mut self, is_valid: bool, path: &str, what: &str, expected: &str) {
        if !is_valid {
            self.fault(path, what, expected);
        }
    }

    /// The line number of the value at `path`, from 1.
    pub(super) fn line(&self, path: &str) -> usize {
        self.source.fault(path, "", "").location.line
    }

    /// Reports an invalid name, which is the key at `path`. Names appear in headers, metrics and Redis keys.
    pub(super) fn ensure_key_name(&mut self, path: &str, name: &str) {
        if !is_name(name) {
            self.fault_at_key(path, format!("`{name}`"), NAME_SYNTAX);
        }
    }

    /// Reports a fault of the key at `path`.
    pub(super) fn fault_at_key(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if !self.is_full() {
            self.faults.push(self.source.fault_at_key(path, what, expected));
        }
    }

    /// Reports an invalid name, which is the value at `path`.
    pub(super) fn ensure_value_name(&mut self, path: &str, name: &str) {
        self.ensure(is_name(name), path, &format!("`{name}`"), NAME_SYNTAX);
    }

    /// Reports the name at `path` if no upstream or limit (`kind`) in `known` has it. A name whose definition
    /// could not be read counts as known.
    pub(super) fn ensure_reference<T>(
        &mut self,
        path: &str,
        kind: &str,
        name: &str,
        known: &BTreeMap<String, T>,
    ) {
        if known.contains_key(name) || self.is_full() {
            return;
        }
        let section = format!("{kind}s");
        let is_defined = self.source.names(&section).any(|defined| defined == name);
        if is_defined || self.source.is_absent(&section) {
            return;
        }
        // Also those whose definitions have faults.
        let mut all: Vec<&str> = self.source.names(&section).collect();
        all.sort_unstable();
        let names = || all.iter().copied();
        let expected = match suggest(name, names().take(MAX_COMPARED)) {
            Some(closest) => format!("`{closest}`"),
            None if all.is_empty() => format!("the name of a defined {kind} (there is none)"),
            None => {
                let first: Vec<&str> = names().take(MAX_NAMES).collect();
                let more = match all.len() - first.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("one of {}{more}", first.join(", "))
            }
        };
        self.fault(path, format!("unknown {kind} `{name}`"), &expected);
    }
}

/// The syntax of names, for faults.
const NAME_SYNTAX: &str = "a name of 1 to 64 letters, digits, `_`, `.` or `-`";

fn is_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=64).contains(&name.len()) && name.bytes().all(is_allowed)
}
