//! The text of a configuration, in which a path such as `limits.a.quota` can be located.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::Config;
use super::environment;
use super::fault::{Fault, Mismatch};
use super::file_text::FileText;
use super::located::{LocatedNode, NodeKind};
use super::location::Location;
use super::masks::Masks;

/// The text that a configuration was read from. It locates a path of the configuration in the file.
#[derive(Clone)]
pub struct ConfigSource {
    pub(super) file: Arc<FileText<'static>>,
    pub(super) root: Arc<LocatedNode>,
    pub(super) unreadable: Arc<Unreadable>,
    pub(super) masks: Arc<Masks>,
}

/// The values that could not be read. Each has been reported, and the configuration has a default
/// or a placeholder in its place.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    /// The ids of faulty nodes.
    pub(super) nodes: BTreeSet<usize>,
    /// Missing or misspelt keys, each with the id of its section.
    pub(super) keys: BTreeSet<(usize, &'static str)>,
    /// The paths of both.
    paths: BTreeSet<String>,
}

impl Unreadable {
    /// Finds the paths in the tree.
    pub(super) fn locate(&mut self, root: &LocatedNode) {
        if !self.nodes.is_empty() || !self.keys.is_empty() {
            self.paths.clear();
            self.locate_below(root, "");
        }
    }

    /// True if a path below `section` is unreadable.
    fn has_below(&self, section: &str) -> bool {
        let has = |start: String| {
            self.paths.range(start.clone()..).next().is_some_and(|next| next.starts_with(&start))
        };
        match section {
            "" => !self.paths.is_empty(),
            _ => has(format!("{section}.")) || has(format!("{section}[")),
        }
    }

    /// True if `path` or a section around it is unreadable.
    fn has_around(&self, path: &str) -> bool {
        let ends = path.match_indices(['.', '[']).map(|(at, _)| at);
        let mut sections = ends.chain([0, path.len()]).map(|end| &path[..end]);
        sections.any(|section| self.paths.contains(section))
    }

    fn locate_below(&mut self, node: &LocatedNode, path: &str) {
        if self.nodes.contains(&node.id) {
            self.paths.insert(path.to_owned());
            return;
        }
        let dot = if path.is_empty() { "" } else { "." };
        let absent = self.keys.range((node.id, "")..(node.id + 1, ""));
        self.paths.extend(absent.map(|(_, key)| format!("{path}{dot}{key}")));
        match &node.kind {
            NodeKind::Scalar { .. } => {}
            NodeKind::List(items) => {
                // Indices count only the items that could be read.
                let (faulty, readable): (Vec<_>, Vec<_>) =
                    items.iter().partition(|item| self.nodes.contains(&item.id));
                // One path without an index stands for all faulty items: no readable item has it.
                self.paths.extend(faulty.first().map(|_| format!("{path}[]")));
                for (index, item) in readable.into_iter().enumerate() {
                    self.locate_below(item, &format!("{path}[{index}]"));
                }
            }
            NodeKind::Map(entries) => {
                for entry in entries {
                    self.locate_below(&entry.value, &format!("{path}{dot}{}", entry.name()));
                }
            }
        }
    }
}

/// Only the name: the text may contain a password.
impl fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSource").field("name", &self.file.name()).finish_non_exhaustive()
    }
}

impl ConfigSource {
    /// The file's name, as the user gave it.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// The text, without a byte order mark.
    pub fn text(&self) -> &str {
        self.file.text()
    }

    /// A fault of the value at `path`, such as `routes[2].match.path` or `limits.per-caller.quota`.
    ///
    /// If the file does not contain the value, the fault points at the innermost section around it.
    pub fn fault(&self, path: &str, what: impl Into<String>, expected: impl Into<String>) -> Fault {
        let (node, (location, _), rest) = self.walk(path);
        let mismatch = self.masks.apply_to_mismatch(&Mismatch::new(what, expected));
        let mismatch = match (node.text(), node.written()) {
            (Some(text), Some(written)) if rest.is_empty() => mismatch.without(text, written),
            _ => mismatch,
        };
        Fault::new(&self.file, location, &mismatch)
    }

    /// Like [`ConfigSource::fault`], but points at the key of `path` instead of its value.
    pub fn fault_at_key(
        &self,
        path: &str,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> Fault {
        let mismatch = self.masks.apply_to_mismatch(&Mismatch::new(what, expected));
        Fault::new(&self.file, self.locate(path).1, &mismatch)
    }

    /// The value at `path`, whose text is `text`, as the file has it: with references to
    /// environment variables.
    pub fn as_written(&self, path: &str, text: String) -> String {
        let (node, rest) = self.find(path);
        match node.written().filter(|_| rest.is_empty()) {
            Some(written) => environment::without_defaults(written),
            None => text,
        }
    }

    /// True if the file has a value at `path`, be it the default.
    pub fn is_written(&self, path: &str) -> bool {
        self.find(path).1.is_empty()
    }

    /// Replaces the values of environment variables in `text` with their references as written,
    /// such as `${NAME}`. `text` consists of values of the configuration.
    pub fn mask_values<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.masks.apply_to_values(text)
    }

    /// Replaces them in a message, which quotes values between backticks.
    pub fn mask_message<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.masks.apply(text)
    }

    /// Also masks the canonical form of values from the environment, which messages may quote: `1m`
    /// for `60s`.
    pub(super) fn mask_canonical(&mut self, config: &Config) {
        if self.masks.is_empty() {
            return;
        }
        let mut values = Vec::new();
        if let Ok(config) = serde_json::to_value(config) {
            self.add_written("", &config, &mut values);
        }
        self.masks = Arc::new((*self.masks).clone().with(values));
    }

    /// Adds the scalars below `value`, at `path`, that are written with references.
    fn add_written(&self, path: &str, value: &Value, values: &mut Vec<(String, String)>) {
        let dot = if path.is_empty() { "" } else { "." };
        match value {
            Value::Object(entries) => {
                for (key, value) in entries {
                    self.add_written(&format!("{path}{dot}{key}"), value, values);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    self.add_written(&format!("{path}[{index}]"), value, values);
                }
            }
            Value::String(_) | Value::Number(_) => {
                let (node, rest) = self.find(path);
                // A limit that is written as a rate has both keys in one scalar.
                if let Some(written) =
                    node.written().filter(|_| matches!(rest, "" | "quota" | "window"))
                {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    values.push((text, written.to_owned()));
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// True if the value at `path`, or a part of it, could not be read. Checks of it would only
    /// find follow-up faults.
    pub fn is_unreadable(&self, path: &str) -> bool {
        self.is_absent(path) || self.unreadable.has_below(path)
    }

    /// True if the whole value at `path` could not be read; false if only parts of it are faulty.
    pub fn is_absent(&self, path: &str) -> bool {
        self.unreadable.has_around(path)
    }

    /// The names in the mapping `section`, including those of entries that could not be read.
    pub fn names(&self, section: &str) -> impl Iterator<Item = &str> {
        let sections = match &self.root.kind {
            NodeKind::Map(entries) => entries.as_slice(),
            _ => &[],
        };
        let entries = sections.iter().filter(move |entry| entry.name() == section);
        let entries = entries.flat_map(|entry| match &entry.value.kind {
            NodeKind::Map(entries) => entries.as_slice(),
            _ => &[],
        });
        entries.map(super::located::LocatedEntry::name)
    }

    /// The locations of the value at `path` and of its key, or of the innermost section around
    /// them.
    fn locate(&self, path: &str) -> (Location, Location) {
        self.walk(path).1
    }

    /// The innermost value around `path`, and the rest of the path.
    fn find<'p>(&self, path: &'p str) -> (&LocatedNode, &'p str) {
        let (node, _, rest) = self.walk(path);
        (node, rest)
    }

    fn walk<'p>(&self, path: &'p str) -> (&LocatedNode, (Location, Location), &'p str) {
        let (mut node, mut rest) = (&*self.root, path);
        let start = Location { line: 1, column: 1, width: 1 };
        let mut locations = (start, start);
        while !rest.is_empty() {
            let step = match &node.kind {
                NodeKind::Scalar { .. } => None,
                // Indices count only the items that could be read.
                NodeKind::List(items) => split_index(rest).and_then(|(index, rest)| {
                    let faulty = &self.unreadable.nodes;
                    let mut readable = items.iter().filter(|item| !faulty.contains(&item.id));
                    let item = readable.nth(index)?;
                    Some((&**item, (item.location, item.location), rest))
                }),
                // The longest matching key wins, because names may contain dots.
                NodeKind::Map(entries) => {
                    let candidates = entries.iter().filter_map(|entry| {
                        let rest = strip_name(rest, entry.name())?;
                        let locations = (entry.location(), entry.key.location);
                        Some((&*entry.value, locations, rest))
                    });
                    candidates.min_by_key(|(_, _, rest)| rest.len())
                }
            };
            let Some(found) = step else { break };
            (node, locations, rest) = found;
        }
        (node, locations, rest)
    }
}

/// Splits `[3].rest` or `[3]` into the index 3 and the rest.
fn split_index(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest.strip_prefix('.').unwrap_or(rest)))
}

/// The rest of `path` after `name`, if `name` is its first step.
fn strip_name<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(name)?;
    match rest.as_bytes().first() {
        None | Some(b'[') => Some(rest),
        Some(b'.') => Some(&rest[1..]),
        Some(_) => None,
    }
}
