//! Collects the faults and notes of a configuration.

use std::collections::BTreeMap;

use crate::config::{Duration, Fault, MAX_FAULTS, Source, Timeout, suggest};

/// Maximum number of names that a fault lists.
const MAX_NAMES: usize = 20;
/// Maximum number of names that are compared to find a suggestion.
const MAX_COMPARED: usize = 1_000;

/// Collects the faults of a configuration while it is compiled: at most [`MAX_FAULTS`] faults and as many
/// notes, because locating each one walks the whole file.
pub(super) struct Check<'a> {
    source: &'a Source,
    pub(super) faults: Vec<Fault>,
    pub(super) notes: Vec<Fault>,
}

impl<'a> Check<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self { source, faults: Vec::new(), notes: Vec::new() }
    }

    /// Reports a fault of the value at `path`, unless the value could not be read and has a fault already.
    pub(super) fn fault(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.is_full() || self.source.is_skipped(path) {
            return;
        }
        self.faults.push(self.source.fault(path, what, expected));
    }

    /// True if no more faults are recorded, so that callers can skip expensive checks.
    pub(super) fn is_full(&self) -> bool {
        self.faults.len() >= MAX_FAULTS
    }

    /// True if the value at `path` could not be read.
    pub(super) fn is_skipped(&self, path: &str) -> bool {
        self.source.is_skipped(path)
    }

    /// Reports a valid setting that the operator may not intend.
    pub(super) fn note(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.notes.len() < MAX_FAULTS {
            self.notes.push(self.source.fault(path, what, expected));
        }
    }

    /// Reports a fault of the value at `path` unless `is_valid`.
    pub(super) fn ensure(&mut self, is_valid: bool, path: &str, what: &str, expected: &str) {
        if !is_valid {
            self.fault(path, what, expected);
        }
    }

    /// Reports that this version does not support the value at `path` yet.
    pub(super) fn unsupported(&mut self, path: &str, what: &str, expected: &str) {
        self.fault(path, format!("{what} is not supported in this version"), expected);
    }

    /// The line number of the value at `path`, from 1.
    pub(super) fn line(&self, path: &str) -> usize {
        self.source.fault(path, "", "").location.line
    }

    /// Reports a duration of zero.
    pub(super) fn ensure_positive_duration(&mut self, path: &str, duration: Duration) {
        let expected = "a duration of at least 1ms";
        self.ensure(duration.millis() > 0, path, &format!("`{duration}`"), expected);
    }

    /// Reports a timeout of zero; `off` is valid.
    pub(super) fn ensure_positive_timeout(&mut self, path: &str, timeout: Timeout) {
        let expected = "a duration of at least 1ms, or off";
        self.ensure(timeout.millis() != Some(0), path, &format!("`{timeout}`"), expected);
    }

    /// Reports an invalid name, which is the key at `path`. Names appear in headers, metrics and Redis keys.
    pub(super) fn ensure_key_name(&mut self, path: &str, name: &str) {
        if !is_name(name) && !self.is_full() {
            self.faults.push(self.source.fault_at_key(path, format!("`{name}`"), NAME_SYNTAX));
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
        if self.source.names(&section).any(|defined| defined == name) {
            return;
        }
        let names = || known.keys().map(String::as_str);
        let expected = match suggest(name, names().take(MAX_COMPARED)) {
            Some(closest) => format!("`{closest}`"),
            None if known.is_empty() => format!("the name of a defined {kind} (there is none)"),
            None => {
                let first: Vec<&str> = names().take(MAX_NAMES).collect();
                let more = match known.len() - first.len() {
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
