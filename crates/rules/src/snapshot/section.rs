//! [`Section`]: a cursor into the configuration, which reports faults and notes at its position.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::path::Path;

use tidegate_config::{
    ConfigSource, EnvLookup, Fault, MAX_FAULTS, NotOne, SecretError, SecretReference, suggest,
};
use tidegate_identity::KeyPart;

/// Maximum number of names that a fault lists.
const MAX_NAMES: usize = 20;
/// Maximum number of names to compare for a suggestion.
const MAX_COMPARED: usize = 1_000;
/// The syntax of names, for faults.
const NAME_SYNTAX: &str = "a name of 1 to 64 letters, digits, `_`, `.` or `-`";

/// Which of the secrets that a configuration names are read while it is compiled. The values are in
/// variables of the environment, or in files.
#[derive(Clone, Copy)]
pub enum SecretReading<'e> {
    /// All: one that is missing or unusable is a fault. For a gateway that serves.
    Required(EnvLookup<'e>),
    /// All that this machine has: one that no machine could use is a fault. For commands that check
    /// a file.
    Present(EnvLookup<'e>),
    /// None. What needs a secret refuses: tokens are invalid, records cannot be sealed.
    Unread,
}

/// Collects the faults and notes of a configuration while it is compiled: at most [`MAX_FAULTS`] of
/// each, because locating one walks the whole file.
pub(super) struct FaultCollector<'a> {
    source: &'a ConfigSource,
    secrets: SecretReading<'a>,
    faults: RefCell<Vec<Fault>>,
    notes: RefCell<Vec<Fault>>,
}

impl<'a> FaultCollector<'a> {
    pub(super) fn new(source: &'a ConfigSource, secrets: SecretReading<'a>) -> Self {
        Self { source, secrets, faults: RefCell::default(), notes: RefCell::default() }
    }

    /// The configuration as a whole.
    pub(super) fn root(&self) -> Section<'_> {
        Section { collector: self, path: String::new() }
    }

    /// The faults and the notes. A configuration with a fault has no snapshot.
    pub(super) fn into_faults_and_notes(self) -> (Vec<Fault>, Vec<Fault>) {
        (self.faults.into_inner(), self.notes.into_inner())
    }
}

/// A value of the configuration: its path, such as `routes[2].match.path`, and the collector of its
/// faults.
#[derive(Clone)]
pub(super) struct Section<'a> {
    collector: &'a FaultCollector<'a>,
    path: String,
}

impl<'a> Section<'a> {
    /// The value of `key`, a key of the configuration's schema.
    pub(super) fn at(&self, key: &'static str) -> Self {
        #[cfg(test)]
        schema_keys::assert_has(key);
        self.entry(key)
    }

    /// The value of `name` in a map whose keys the operator chooses.
    pub(super) fn entry(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self { collector: self.collector, path: format!("{}{dot}{name}", self.path) }
    }

    /// The item `index` of a list, from 0.
    pub(super) fn index(&self, index: usize) -> Self {
        Self { collector: self.collector, path: format!("{}[{index}]", self.path) }
    }

    /// The whole configuration.
    pub(super) fn root(&self) -> Self {
        self.collector.root()
    }

    /// The path, as messages and log lines write it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The name of the file at `path`, the value, as the configuration has it.
    pub(super) fn file_name(&self, path: &Path) -> String {
        self.source().as_written(&self.path, path.display().to_string())
    }

    /// True if the file has this value, be it the default.
    pub(super) fn is_written(&self) -> bool {
        self.source().is_written(&self.path)
    }

    /// Reports a fault of the value, unless the value could not be read: that has been reported
    /// already.
    pub(super) fn fault(&self, what: impl Into<String>, expected: &str) {
        if self.is_full() || self.source().is_unreadable(&self.path) {
            return;
        }
        self.push_fault(self.source().fault(&self.path, what, expected));
    }

    /// Reports a fault of the key.
    pub(super) fn fault_at_key(&self, what: impl Into<String>, expected: &str) {
        if !self.is_full() {
            self.push_fault(self.source().fault_at_key(&self.path, what, expected));
        }
    }

    /// Reports a fault of the value unless `is_valid`.
    pub(super) fn ensure(&self, is_valid: bool, what: &str, expected: &str) {
        if !is_valid {
            self.fault(what, expected);
        }
    }

    /// The secret that `reference`, the value, names; `None` if it is not read. It has at least
    /// `min` bytes. Reports a fault as [`SecretReading`] says.
    pub(super) fn secret(&self, reference: &SecretReference, min: usize) -> Option<Box<str>> {
        let (env, is_required) = match self.collector.secrets {
            SecretReading::Required(env) => (env, true),
            SecretReading::Present(env) => (env, false),
            SecretReading::Unread => return None,
        };
        let report = |error: SecretError| {
            if is_required || error.is_fault() {
                self.fault(error.to_string(), &error.expected());
            }
        };
        reference.reveal_at_least(min, env).map_err(report).ok()
    }

    /// Reports a fault of another file that the configuration names.
    pub(super) fn fault_of_file(&self, fault: Fault) {
        if !self.is_full() {
            self.push_fault(fault);
        }
    }

    /// Reports a valid value that the operator may not intend.
    pub(super) fn note(&self, what: impl Into<String>, expected: &str) {
        self.push_note(|| self.source().fault(&self.path, what, expected));
    }

    /// Like [`Section::note`], but points at the key.
    pub(super) fn note_at_key(&self, what: impl Into<String>, expected: &str) {
        self.push_note(|| self.source().fault_at_key(&self.path, what, expected));
    }

    /// What is expected instead of a path without the parameter `param` of `part`. A name that
    /// comes from a variable is left out.
    pub(super) fn path_with(&self, part: &KeyPart, param: &str) -> String {
        let text = part.to_string();
        if self.source().mask_values(&text) == text {
            format!("a path with `{{{param}}}`")
        } else {
            "a path with this parameter".to_owned()
        }
    }

    /// Reports a key that is not a valid name. Names appear in headers, metrics and Redis keys.
    pub(super) fn ensure_key_name(&self, name: &str) {
        if !is_name(name) {
            self.fault_at_key(format!("`{name}`"), NAME_SYNTAX);
        }
    }

    /// Reports a value that is not a valid name.
    pub(super) fn ensure_value_name(&self, name: &str) {
        self.ensure(is_name(name), &format!("`{name}`"), NAME_SYNTAX);
    }

    /// Reports the value `name` if it is not in `known`, the defined upstreams or limits (`kind`).
    /// A name whose definition could not be read counts as known.
    pub(super) fn ensure_reference<T>(&self, kind: &str, name: &str, known: &BTreeMap<String, T>) {
        if let Some(expected) = self.expected_name(kind, &format!("{kind}s"), name, known) {
            self.fault(format!("unknown {kind} `{name}`"), &expected);
        }
    }

    /// Like [`Section::ensure_reference`], for a key that is a name.
    pub(super) fn ensure_key_reference<T>(
        &self,
        kind: &str,
        name: &str,
        known: &BTreeMap<String, T>,
    ) {
        if let Some(expected) = self.expected_name(kind, &format!("{kind}s"), name, known) {
            self.fault_at_key(format!("unknown {kind} `{name}`"), &expected);
        }
    }

    /// Reports the value `name` if it is not in `known`, the ways to authenticate.
    pub(super) fn ensure_auth_reference<T>(&self, name: &str, known: &BTreeMap<String, T>) {
        if let Some(expected) = self.expected_name("way to authenticate", "auth", name, known) {
            self.fault(format!("unknown way to authenticate `{name}`"), &expected);
        }
    }

    /// The names that are expected instead of `name`; `None` if it is in `known`, or if its
    /// definition in `section` could not be read.
    fn expected_name<T>(
        &self,
        kind: &str,
        section: &str,
        name: &str,
        known: &BTreeMap<String, T>,
    ) -> Option<String> {
        if known.contains_key(name) || self.is_full() {
            return None;
        }
        let is_defined = self.source().names(section).any(|defined| defined == name);
        if is_defined || self.source().is_absent(section) {
            return None;
        }
        // Names with faulty definitions are included.
        let mut all: Vec<&str> = self.source().names(section).collect();
        all.sort_unstable();
        let names = || all.iter().copied();
        Some(match suggest(name, names().take(MAX_COMPARED)) {
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
        })
    }

    /// True if the value could be read. Otherwise the configuration has a default or a placeholder
    /// in its place.
    pub(super) fn is_readable(&self) -> bool {
        !self.source().is_unreadable(&self.path)
    }

    /// True if the values of `keys` could be read, so that they can be compared.
    pub(super) fn can_read(&self, keys: &[&'static str]) -> bool {
        keys.iter().all(|key| self.at(key).is_readable())
    }

    /// The one of several values that the section has exactly one of. Reports others; `missing` is
    /// what to say if there is none, and what is expected.
    pub(super) fn only_one<T>(&self, value: Result<T, NotOne>, missing: (&str, &str)) -> Option<T> {
        match value {
            Ok(only) => return Some(only),
            Err(NotOne::Missing) => self.fault_at_key(missing.0, missing.1),
            Err(NotOne::Several { first, second }) => {
                let what = format!("both `{first}` and `{second}`");
                self.at(second).fault_at_key(what, "one of them");
            }
        }
        None
    }

    /// True if the file has `key` in this section of the first level.
    pub(super) fn has_key(&self, key: &'static str) -> bool {
        self.source().names(&self.path).any(|name| name == key)
    }

    /// The line number of the value, from 1.
    pub(super) fn line(&self) -> usize {
        self.source().fault(&self.path, "", "").location.line
    }

    /// True if any part of the configuration has a fault that was reported here.
    pub(super) fn has_faults(&self) -> bool {
        !self.faults().is_empty()
    }

    /// True if further faults are dropped, so that callers can skip expensive checks.
    pub(super) fn is_full(&self) -> bool {
        self.faults().len() >= MAX_FAULTS
    }

    fn source(&self) -> &'a ConfigSource {
        self.collector.source
    }

    fn faults(&self) -> Ref<'a, Vec<Fault>> {
        self.collector.faults.borrow()
    }

    fn push_fault(&self, fault: Fault) {
        self.collector.faults.borrow_mut().push(fault);
    }

    fn push_note(&self, note: impl FnOnce() -> Fault) {
        let mut notes = self.collector.notes.borrow_mut();
        if notes.len() < MAX_FAULTS {
            notes.push(note());
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=64).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The keys of the configuration, so that a test finds a misspelt one.
#[cfg(test)]
mod schema_keys {
    use std::{collections::BTreeSet, sync::LazyLock};

    use serde_json::Value;

    static KEYS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let mut keys = BTreeSet::new();
        add(tidegate_config::schema(), &mut keys);
        keys
    });

    fn add(schema: &Value, keys: &mut BTreeSet<String>) {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            keys.extend(properties.keys().cloned());
        }
        let parts = schema.as_object().into_iter().flat_map(|map| map.values());
        parts.chain(schema.as_array().into_iter().flatten()).for_each(|part| add(part, keys));
    }

    pub(super) fn assert_has(key: &str) {
        assert!(KEYS.contains(key), "no section of the configuration has the key `{key}`");
    }
}
