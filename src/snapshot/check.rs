use std::collections::BTreeMap;

use crate::config::{Duration, Fault, MAX_FAULTS, Source, Timeout, nearest};

/// The most names that a fault lists, and the most among which it looks for the one that was meant.
const MAX_NAMES: usize = 20;
const MAX_COMPARED: usize = 1_000;

/// Collects the faults of a configuration while it is compiled: the first [`MAX_FAULTS`], and as many
/// notes, because the place of each is looked for in the whole file.
pub(super) struct Check<'a> {
    source: &'a Source,
    pub(super) faults: Vec<Fault>,
    pub(super) notes: Vec<Fault>,
}

impl<'a> Check<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self { source, faults: Vec::new(), notes: Vec::new() }
    }

    /// Notes a fault of the value at `path`, unless it could not be read in the first place.
    pub(super) fn fault(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.is_full() || self.source.is_unread(path) {
            return;
        }
        self.faults.push(self.source.fault(path, what, expected));
    }

    /// Whether no more faults are taken, so that what they would say need not be found out.
    pub(super) fn is_full(&self) -> bool {
        self.faults.len() >= MAX_FAULTS
    }

    /// Whether the value at `path` could not be read.
    pub(super) fn is_unread(&self, path: &str) -> bool {
        self.source.is_unread(path)
    }

    /// Notes what works, and what the operator may not have meant.
    pub(super) fn note(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.notes.len() < MAX_FAULTS {
            self.notes.push(self.source.fault(path, what, expected));
        }
    }

    /// Notes a fault of the value at `path` unless it `holds`.
    pub(super) fn ensure(&mut self, holds: bool, path: &str, what: &str, expected: &str) {
        if !holds {
            self.fault(path, what, expected);
        }
    }

    /// Notes that the value at `path` is known, and that this version cannot do it yet.
    pub(super) fn unbuilt(&mut self, path: &str, what: &str, expected: &str) {
        self.fault(path, format!("{what} is not in this version"), expected);
    }

    /// The line of the value at `path`, from 1.
    pub(super) fn line(&self, path: &str) -> usize {
        self.source.fault(path, "", "").location.line
    }

    /// Notes a time of nothing where nothing could ever be done in time.
    pub(super) fn some_time(&mut self, path: &str, time: Duration) {
        self.ensure(time.millis() > 0, path, &format!("`{time}`"), "a time of at least 1ms");
    }

    /// The same of a time that may be off.
    pub(super) fn some_timeout(&mut self, path: &str, timeout: Timeout) {
        let expected = "a time of at least 1ms, or off";
        self.ensure(timeout.millis() != Some(0), path, &format!("`{timeout}`"), expected);
    }

    /// Notes a name, used as a key at `path`, that could not stand in a header, a metric or a
    /// Redis key.
    pub(super) fn key_name(&mut self, path: &str, name: &str) {
        if !is_name(name) && !self.is_full() {
            self.faults.push(self.source.fault_at_key(path, format!("`{name}`"), NAME));
        }
    }

    /// As [`Check::key_name`], of a name that is the value at `path`.
    pub(super) fn value_name(&mut self, path: &str, name: &str) {
        self.ensure(is_name(name), path, &format!("`{name}`"), NAME);
    }

    /// Notes a reference at `path` to a `kind` that is not among the `known`.
    pub(super) fn reference<T>(
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
        if self.source.names(&section).any(|unread| unread == name) {
            return;
        }
        let names = || known.keys().map(String::as_str);
        let expected = match nearest(name, names().take(MAX_COMPARED)) {
            Some(near) => format!("`{near}`"),
            None if known.is_empty() => format!("the name of one (no {kind} is defined)"),
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

const NAME: &str = "a name of 1 to 64 letters, digits, `_`, `.` or `-`";

fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}
