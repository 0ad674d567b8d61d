//! The configuration file of envoyproxy/ratelimit: a domain, and a tree of descriptors.
//!
//! References to environment variables are not replaced.

use ahash::RandomState;
use hashbrown::HashMap;
use tidegate_base::time::Millis;
use tidegate_identity::trim_text;
use tidegate_vocabulary::RateLimitUnit;
use tidegate_vocabulary::UnitWindow;

use super::MAX_FAULTS;
use super::fault::{Fault, Faults, Mismatch};
use super::file_text::FileText;
use super::located::{self, LocatedEntry, LocatedNode, NodeKind};
use super::location::Location;
use super::suggest::suggest_key;

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorsFile {
    /// The domain.
    pub domain: String,
    /// Where the file has it.
    pub domain_location: Location,
    /// The descriptors of the first level.
    pub descriptors: Vec<DescriptorConfig>,
}

/// One entry of descriptors, and what follows it.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorConfig {
    /// The entry's name.
    pub key: String,
    /// The entry's value, or the beginning of its values with `*` at the end; empty: any value.
    pub value: String,
    /// The limit of descriptors that end here.
    pub rate_limit: Option<DescriptorRate>,
    /// The entries that may follow.
    pub descriptors: Vec<DescriptorConfig>,
    /// The limit refuses nothing.
    pub shadow_mode: bool,
    /// The limit refuses nothing, and the response reports that the descriptor is over it.
    pub quota_mode: bool,
    /// All values that begin as `value` share a counter.
    pub share_threshold: bool,
    /// Where the file has it.
    pub location: Location,
}

/// The limit of a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorRate {
    /// The quota and its window; `None`: unlimited.
    pub quota: Option<DescriptorQuota>,
    /// The name by which other limits replace it; empty without one.
    pub name: String,
    /// The names of the limits that it replaces.
    pub replaces: Vec<String>,
}

/// A quota and its window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DescriptorQuota {
    /// The quota; 0 admits nothing.
    pub requests: u32,
    /// The window.
    pub window: Millis,
}

const ROOT_KEYS: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR_KEYS: [&str; 9] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
];
const RATE_KEYS: [&str; 6] =
    ["unit", "requests_per_unit", "unlimited", "name", "replaces", "unit_multiplier"];

/// Reads the text of a file. `name` is its name in faults.
///
/// # Errors
///
/// All faults, at most 50.
pub fn read_descriptors(name: &str, text: &str) -> Result<DescriptorsFile, Faults> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = DescriptorsReading { file: FileText::new(name, text), faults: Vec::new() };
    let file = match located::read(text, None) {
        Err(faults) => reading.add_all(faults),
        Ok(tree) if !tree.faults.is_empty() => reading.add_all(tree.faults),
        Ok(tree) => reading.file(&tree.root),
    };
    match (Faults::new(reading.faults), file) {
        (None, Some(file)) => Ok(file),
        (faults, _) => {
            let none = || Fault::of_file(name, "no domain", "`domain` and `descriptors`").into();
            Err(faults.unwrap_or_else(none))
        }
    }
}

/// A fault of the file `name` with this text.
pub fn descriptors_fault(
    (name, text): (&str, &str),
    location: Location,
    what: impl Into<String>,
    expected: &str,
) -> Fault {
    Fault::new(&FileText::new(name, text), location, &Mismatch::new(what, expected))
}

struct DescriptorsReading<'t> {
    file: FileText<'t>,
    faults: Vec<Fault>,
}

impl DescriptorsReading<'_> {
    fn add(&mut self, location: Location, what: impl Into<String>, expected: impl Into<String>) {
        if self.faults.len() < MAX_FAULTS {
            let mismatch = Mismatch::new(what, expected);
            self.faults.push(Fault::new(&self.file, location, &mismatch));
        }
    }

    fn add_all(&mut self, faults: Vec<(Location, Mismatch)>) -> Option<DescriptorsFile> {
        for (location, Mismatch { what, expected }) in faults {
            self.add(location, what, expected);
        }
        None
    }

    fn file(&mut self, root: &LocatedNode) -> Option<DescriptorsFile> {
        let entries =
            self.mapping(root, &ROOT_KEYS, "a mapping with `domain` and `descriptors`")?;
        let domain = find(entries, "domain");
        let domain_location = domain.map_or(root.location, LocatedEntry::location);
        let domain = domain.and_then(|entry| self.text(entry)).unwrap_or_default();
        if domain.is_empty() {
            self.add(domain_location, "no `domain`", "the name of a domain");
        }
        let descriptors = self.descriptors(entries);
        Some(DescriptorsFile { domain, domain_location, descriptors })
    }

    /// The list `descriptors` of a mapping.
    fn descriptors(&mut self, entries: &[LocatedEntry]) -> Vec<DescriptorConfig> {
        let Some(entry) = find(entries, "descriptors") else { return Vec::new() };
        let NodeKind::List(items) = &entry.value.kind else {
            let what = if entry.value.is_null() { "nothing" } else { "another value" };
            let expected = "a list of descriptors, each with a `key`, or `[]` for none";
            self.add(entry.location(), what, expected);
            return Vec::new();
        };
        let all: Vec<_> = items.iter().filter_map(|item| self.descriptor(item)).collect();
        let mut lines = HashMap::<(&str, &str), usize, RandomState>::default();
        for read in &all {
            let line = read.location.line;
            let first = *lines.entry((&*read.key, &*read.value)).or_insert(line);
            if first != line {
                let value = if read.value.is_empty() { "" } else { "` and the value `" };
                let what =
                    format!("a second descriptor with the key `{}{value}{}`", read.key, read.value);
                self.add(read.location, what, format!("each once (line {first} has it)"));
            }
        }
        drop(lines);
        all
    }

    fn descriptor(&mut self, node: &LocatedNode) -> Option<DescriptorConfig> {
        let entries = self.mapping(node, &DESCRIPTOR_KEYS, "a mapping with a `key`")?;
        let key = find(entries, "key").and_then(|entry| self.text(entry)).unwrap_or_default();
        if key.is_empty() {
            self.add(node.location, "a descriptor without a `key`", "the name of an entry");
        }
        let value = find(entries, "value").and_then(|entry| self.text(entry)).unwrap_or_default();
        // Values of entries have no white space at their ends.
        let value = trim_text(&value).to_owned();
        let mut flag = |name: &str| self.flag(entries, name);
        let (shadow_mode, quota_mode) = (flag("shadow_mode"), flag("quota_mode"));
        let share_threshold = flag("share_threshold");
        // They only extend metrics, by labels of values that a client chooses.
        let _ = (flag("detailed_metric"), flag("value_to_metric"));
        let rate_limit = find(entries, "rate_limit").filter(|entry| !entry.value.is_null());
        Some(DescriptorConfig {
            key,
            value,
            rate_limit: rate_limit.and_then(|entry| self.rate(entry)),
            descriptors: self.descriptors(entries),
            shadow_mode,
            quota_mode,
            share_threshold,
            location: node.location,
        })
    }

    fn rate(&mut self, entry: &LocatedEntry) -> Option<DescriptorRate> {
        let expected = "a mapping with `unit` and `requests_per_unit`, or `unlimited: true`";
        let entries = self.mapping(&entry.value, &RATE_KEYS, expected)?;
        let name = find(entries, "name").and_then(|entry| self.text(entry)).unwrap_or_default();
        let replaces = self.replaces(entries, &name);
        let unit = find(entries, "unit");
        if self.flag(entries, "unlimited") {
            if let Some(unit) = unit {
                self.add(unit.location(), "a `unit` with `unlimited`", "one of them");
            }
            return Some(DescriptorRate { quota: None, name, replaces });
        }
        let Some(requests) = self.number(entries, "requests_per_unit") else {
            if find(entries, "requests_per_unit").is_none() {
                let expected = "a number of requests; 0 refuses all of them";
                self.add(entry.location(), "no `requests_per_unit`", expected);
            }
            return None;
        };
        let count = self.number(entries, "unit_multiplier").unwrap_or(1);
        let text = unit.and_then(|entry| self.text(entry)).unwrap_or_default();
        let window =
            RateLimitUnit::of_name(&text).and_then(|unit| UnitWindow { unit, count }.length());
        let Some(window) = window else {
            let location = unit.unwrap_or(entry).location();
            let expected = "second, minute, hour, day, week, month or year, and at most 366 days";
            self.add(location, format!("`{text}` times {count}"), expected);
            return None;
        };
        let quota = Some(DescriptorQuota { requests, window });
        Some(DescriptorRate { quota, name, replaces })
    }

    fn replaces(&mut self, entries: &[LocatedEntry], own: &str) -> Vec<String> {
        let Some(entry) = find(entries, "replaces").filter(|entry| !entry.value.is_null()) else {
            return Vec::new();
        };
        let NodeKind::List(items) = &entry.value.kind else {
            self.add(entry.location(), "another value", "a list such as [{name: other}]");
            return Vec::new();
        };
        let mut names = Vec::new();
        for item in items {
            let Some(entries) = self.mapping(item, &["name"], "a mapping with a `name`") else {
                continue;
            };
            let name = find(entries, "name").and_then(|entry| self.text(entry));
            match name.filter(|name| !name.is_empty()) {
                None => self.add(item.location, "no name", "the name of the limit to replace"),
                Some(name) if name == own => {
                    let expected = "the name of another limit";
                    self.add(item.location, format!("`{name}`, which is its own name"), expected);
                }
                Some(name) => names.push(name),
            }
        }
        names
    }

    fn mapping<'n>(
        &mut self,
        node: &'n LocatedNode,
        known: &[&'static str],
        expected: &str,
    ) -> Option<&'n [LocatedEntry]> {
        let NodeKind::Map(entries) = &node.kind else {
            let what = if node.is_null() { "nothing" } else { "another value" };
            self.add(node.location, what, expected);
            return None;
        };
        for entry in entries.iter().filter(|entry| !known.contains(&entry.name())) {
            let name = entry.name();
            let expected = suggest_key(name, known).map_or_else(
                || format!("one of {}", known.join(", ")),
                |meant| format!("`{meant}`"),
            );
            self.add(entry.key.location, format!("unknown key `{name}`"), expected);
        }
        Some(entries)
    }

    fn text(&mut self, entry: &LocatedEntry) -> Option<String> {
        if matches!(entry.value.kind, NodeKind::Scalar { .. }) {
            return entry.value.text().map(str::to_owned);
        }
        self.add(entry.key.location, "a list or a mapping", "one value");
        None
    }

    fn flag(&mut self, entries: &[LocatedEntry], name: &str) -> bool {
        let Some(entry) = find(entries, name) else { return false };
        match entry.value.text() {
            Some("true" | "True" | "TRUE") => true,
            Some("false" | "False" | "FALSE") => false,
            None if entry.value.is_null() => false,
            _ => {
                self.add(entry.location(), format!("`{name}` is no boolean"), "true or false");
                false
            }
        }
    }

    fn number(&mut self, entries: &[LocatedEntry], name: &str) -> Option<u32> {
        let entry = find(entries, name)?;
        let number = entry.value.text().and_then(|text| text.parse().ok());
        if number.is_none() {
            let expected = "a whole number from 0 to 4294967295";
            self.add(entry.location(), format!("`{name}` is no such number"), expected);
        }
        number
    }
}

fn find<'e>(entries: &'e [LocatedEntry], name: &str) -> Option<&'e LocatedEntry> {
    entries.iter().find(|entry| entry.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_reference_are_read() {
        let text = "
---
domain: rl
descriptors:
  - key: source_cluster
    value: proxy
    descriptors:
      - key: destination_cluster
        value: mock
        rate_limit:
          unit: minute
          requests_per_unit: 1
  - key: foo
    shadow_mode: true
    detailed_metric: true
    rate_limit: {unit: DAY, requests_per_unit: 2, unit_multiplier: 3, name: a, replaces: [{name: b}]}
  - key: qux
    value: a*
    share_threshold: true
    rate_limit:
      unlimited: true
";
        let file = read_descriptors("rl.yaml", text).unwrap();
        assert_eq!(file.domain, "rl");
        let [first, foo, qux] = &file.descriptors[..] else { panic!("{file:?}") };
        assert_eq!(
            (&*first.key, &*first.value, &first.rate_limit),
            ("source_cluster", "proxy", &None)
        );
        let quota = DescriptorQuota { requests: 1, window: Millis::from_mins(1) };
        assert_eq!(first.descriptors[0].rate_limit.as_ref().unwrap().quota, Some(quota));
        assert!(foo.shadow_mode && !foo.quota_mode && !foo.share_threshold);
        let rate = foo.rate_limit.as_ref().unwrap();
        assert_eq!(
            rate.quota,
            Some(DescriptorQuota { requests: 2, window: Millis::from_secs(3 * 86_400) })
        );
        assert_eq!((&*rate.name, &rate.replaces[..]), ("a", &["b".to_owned()][..]));
        assert!(qux.share_threshold);
        assert_eq!(qux.rate_limit.as_ref().unwrap().quota, None);
        assert_eq!(file.descriptors[1].location.line, 13);
    }

    #[test]
    fn faults_are_located() {
        let with = |line: &str| format!("domain: d\ndescriptors:\n  - key: a\n    {line}\n");
        for (text, expected) in [
            (
                "descriptors: []".to_owned(),
                "f.yaml:1:1: no `domain`, expected the name of a domain",
            ),
            ("domain: ''".to_owned(), "f.yaml:1:9: no `domain`, expected"),
            ("5".to_owned(), "f.yaml:1:1: another value, expected a mapping with `domain`"),
            ("domain: d\ndescriptors: 5".to_owned(), "f.yaml:2:14: another value, expected a list"),
            (with("valeu: b"), "f.yaml:4:5: unknown key `valeu`, expected `value`"),
            (
                with("rate_limit: {unit: fortnight, requests_per_unit: 5}"),
                "f.yaml:4:24: `fortnight` times 1, expected second, minute",
            ),
            (with("rate_limit: {requests_per_unit: 5}"), "f.yaml:4:5: `` times 1, expected second"),
            (
                with("rate_limit: {unit: day}"),
                "f.yaml:4:5: no `requests_per_unit`, expected a number of requests; 0 refuses all",
            ),
            (
                with("rate_limit: {unit: day, requests_per_unit: -5}"),
                "f.yaml:4:48: `requests_per_unit` is no such number",
            ),
            (
                with("rate_limit: {unit: day, unlimited: true}"),
                "f.yaml:4:24: a `unit` with `unlimited`, expected one of them",
            ),
            (
                with("rate_limit: {unit: day, name: x, replaces: [{name: x}]}"),
                "`x`, which is its own name",
            ),
            (
                with("rate_limit: {unit: day, replaces: [{name: ''}]}"),
                "no name, expected the name of the limit",
            ),
            (with("shadow_mode: maybe"), "f.yaml:4:18: `shadow_mode` is no boolean"),
            (with("value: [b]"), "f.yaml:4:5: a list or a mapping, expected one value"),
            (
                with("value: b\n  - key: a\n    value: b"),
                "f.yaml:5:5: a second descriptor with the key `a` and the value `b`, expected each once (line 3 has it)",
            ),
            ("domain: d\ndescriptors: [{value: b}]".to_owned(), "a descriptor without a `key`"),
            ("domain: d\n\tx".to_owned(), "f.yaml:1:9: not YAML"),
        ] {
            let faults = read_descriptors("f.yaml", &text).unwrap_err().to_string();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_is_a_file_or_has_faults(text in "[ -~\n]{0,200}") {
            let _ = read_descriptors("f.yaml", &text);
            let _ = read_descriptors("f.yaml", &format!("domain: d\ndescriptors:\n- key: a\n  {text}"));
        }
    }
}
