//! The file of overrides: a mapping with `secret` and a list of `overrides`, whose values are
//! texts.
//!
//! The module of overrides checks the values, as it checks those of a request and of Redis.
//! References to environment variables are not replaced.

use super::MAX_FAULTS;
use super::fault::{Fault, Mismatch};
use super::file_text::FileText;
use super::located::{self, LocatedEntry, LocatedNode, NodeKind};
use super::location::Location;
use super::suggest::suggest_key;

/// A value of an override.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OverrideField {
    /// The limit's name.
    Limit,
    /// The consumer that it applies to.
    Consumer,
    /// The plan that it applies to.
    Plan,
    /// The hash of the key that it applies to.
    Hash,
    /// The quota.
    Quota,
    /// When it ends.
    Until,
    /// Why it was set.
    Reason,
    /// Who set it.
    By,
    /// When it was set.
    Set,
}

/// The values of an override as texts. None has been checked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OverrideFields {
    values: [Option<String>; OverrideField::ALL.len()],
}

/// A value of an override that cannot be used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OverrideFault {
    /// The value; `None`: the override as a whole.
    pub field: Option<OverrideField>,
    /// What was found.
    pub what: String,
    /// What was expected instead.
    pub expected: String,
}

/// The text of a file of overrides.
#[derive(Clone, Copy, Debug)]
pub struct OverridesText<'t> {
    /// The file's name, as the operator gave it.
    pub name: &'t str,
    /// Its content.
    pub text: &'t str,
}

/// What receives the values of a file; each returns its faults.
pub trait OverrideSink {
    /// The secret under which keys were hashed.
    fn secret(&mut self, text: &str) -> Option<OverrideFault>;

    /// The next override, which begins in `line`.
    fn add(&mut self, fields: OverrideFields, line: usize) -> Vec<OverrideFault>;
}

impl OverrideField {
    /// All fields, in the order in which they are written.
    pub const ALL: [Self; 9] = [
        Self::Limit,
        Self::Consumer,
        Self::Plan,
        Self::Hash,
        Self::Quota,
        Self::Until,
        Self::Reason,
        Self::By,
        Self::Set,
    ];

    /// Its key in files and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Consumer => "consumer",
            Self::Plan => "plan",
            Self::Hash => "hash",
            Self::Quota => "quota",
            Self::Until => "until",
            Self::Reason => "reason",
            Self::By => "by",
            Self::Set => "set",
        }
    }

    /// The field with this key.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }
}

impl OverrideFields {
    /// The value of `field`.
    pub fn get(&self, field: OverrideField) -> Option<&str> {
        self.values[field as usize].as_deref()
    }

    /// Sets the value of `field`; returns the one before.
    pub fn set(&mut self, field: OverrideField, value: String) -> Option<String> {
        self.values[field as usize].replace(value)
    }
}

/// What is read, and what goes wrong meanwhile.
struct OverridesReading<'t, 's> {
    file: FileText<'t>,
    sink: &'s mut dyn OverrideSink,
    faults: Vec<Fault>,
}

impl OverridesText<'_> {
    /// Passes the values to `sink`; returns the faults, at most 50.
    pub fn read(self, sink: &mut dyn OverrideSink) -> Vec<Fault> {
        let text = self.text.strip_prefix('\u{feff}').unwrap_or(self.text);
        let file = FileText::new(self.name, text);
        let mut reading = OverridesReading { file, sink, faults: Vec::new() };
        match located::read(text, Some(&|_| None)) {
            Err(faults) => reading.add_all(faults),
            Ok(tree) if !tree.faults.is_empty() => reading.add_all(tree.faults),
            Ok(tree) => reading.read(&tree.root),
        }
        reading.faults
    }
}

impl OverridesReading<'_, '_> {
    fn add(&mut self, location: Location, mismatch: &Mismatch) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault::new(&self.file, location, mismatch));
        }
    }

    fn add_all(&mut self, faults: Vec<(Location, Mismatch)>) {
        for (location, mismatch) in faults {
            self.add(location, &mismatch);
        }
    }

    fn read(&mut self, root: &LocatedNode) {
        let entries = match &root.kind {
            // Nothing is no empty list: it would lift every block.
            _ if root.is_null() => {
                let expected = "a list of overrides, or `overrides: []` for none";
                return self.add(root.location, &Mismatch::new("nothing", expected));
            }
            NodeKind::Map(entries) => entries,
            _ => {
                let expected = "a mapping with a list of `overrides`";
                return self.add(root.location, &Mismatch::new("another value", expected));
            }
        };
        self.check_keys(entries, &["secret", "overrides"]);
        for entry in entries {
            match (entry.name(), &entry.value.kind) {
                ("secret", _) => {
                    let fault = self.sink.secret(entry.value.text().unwrap_or_default());
                    if let Some(OverrideFault { what, expected, .. }) = fault {
                        self.add(entry.key.location, &Mismatch::new(what, expected));
                    }
                }
                ("overrides", NodeKind::List(items)) => {
                    for item in items {
                        self.read_override(item);
                    }
                }
                // Earlier versions wrote a file without overrides so.
                ("overrides", _) if entry.value.is_empty() => {}
                ("overrides", _) => {
                    let is_null = entry.value.is_null();
                    let what = if is_null { "nothing" } else { "another value" };
                    let expected = "a list of overrides, such as `- {limit: a, consumer: b, quota: 100}`, or `[]` \
                        for none";
                    self.add(entry.location(), &Mismatch::new(what, expected));
                }
                _ => {}
            }
        }
    }

    fn read_override(&mut self, node: &LocatedNode) {
        let NodeKind::Map(entries) = &node.kind else {
            let expected = "a mapping such as `{limit: a, consumer: b, quota: 100}`";
            return self.add(node.location, &Mismatch::new("another value", expected));
        };
        let names = OverrideField::ALL.map(OverrideField::name);
        let faults_before = self.faults.len();
        self.check_keys(entries, &names);
        let mut fields = OverrideFields::default();
        for entry in entries {
            let Some(field) = OverrideField::of_name(entry.name()) else { continue };
            match entry.value.text() {
                Some(text) => drop(fields.set(field, text.to_owned())),
                None if entry.value.is_null() => {}
                None => {
                    let mismatch = Mismatch::new("a list or a mapping", "one value");
                    self.add(entry.key.location, &mismatch);
                }
            }
        }
        if self.faults.len() > faults_before {
            return;
        }
        for OverrideFault { field, what, expected } in self.sink.add(fields, node.location.line) {
            let name = field.map(OverrideField::name);
            let entry = entries.iter().find(|entry| Some(entry.name()) == name);
            let location = entry.map_or(node.location, LocatedEntry::location);
            self.add(location, &Mismatch::new(what, expected));
        }
    }

    fn check_keys(&mut self, entries: &[LocatedEntry], known: &[&'static str]) {
        for entry in entries {
            let name = entry.name();
            if !known.contains(&name) {
                let expected = suggest_key(name, known).map_or_else(
                    || format!("one of {}", known.join(", ")),
                    |meant| format!("`{meant}`"),
                );
                let what = format!("unknown key `{name}`");
                self.add(entry.key.location, &Mismatch::new(what, expected));
            }
        }
    }
}
