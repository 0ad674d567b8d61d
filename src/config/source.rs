//! The text of a configuration, in which a path such as `limits.a.quota` can be located.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::fault::{Fault, Location, Mismatch};
use super::located::{Node, NodeKind};

/// The text that a configuration was read from. It locates a path of the configuration in the file.
#[derive(Clone)]
pub struct ConfigSource {
    pub(super) name: Arc<str>,
    pub(super) text: Arc<str>,
    pub(super) root: Arc<Node>,
    pub(super) unreadable: Arc<Unreadable>,
}

/// What could not be read. It has a fault already, and the configuration has a default or a placeholder in
/// its place.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    /// The ids of faulty nodes.
    pub(super) nodes: BTreeSet<usize>,
    /// Missing or misspelt keys, each with the id of its section.
    pub(super) keys: BTreeSet<(usize, &'static str)>,
    /// The paths of both.
    paths: Vec<String>,
}

impl Unreadable {
    /// Finds the paths in the tree.
    pub(super) fn locate(&mut self, root: &Node) {
        if !self.nodes.is_empty() || !self.keys.is_empty() {
            self.paths.clear();
            self.locate_below(root, "");
        }
    }

    fn locate_below(&mut self, node: &Node, path: &str) {
        if self.nodes.contains(&node.id) {
            self.paths.push(path.to_owned());
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
                // One path for all faulty items, below the list's own; no readable item has it.
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
        f.debug_struct("ConfigSource").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ConfigSource {
    /// The file's name, as the user gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text, without a byte order mark.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A fault of the value at `path`, such as `routes[2].match.path` or `limits.per-caller.quota`.
    ///
    /// If the file does not contain the value, the fault points at the innermost section around it.
    pub fn fault(&self, path: &str, what: impl Into<String>, expected: impl Into<String>) -> Fault {
        Fault::new(&self.name, &self.text, self.locate(path).0, &Mismatch::new(what, expected))
    }

    /// As [`ConfigSource::fault`], but pointing at the key of `path` instead of its value.
    pub fn fault_at_key(
        &self,
        path: &str,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> Fault {
        Fault::new(&self.name, &self.text, self.locate(path).1, &Mismatch::new(what, expected))
    }

    /// True if the value at `path`, or a part of it, could not be read. Checks that depend on it would only
    /// find follow-up faults.
    pub fn is_unreadable(&self, path: &str) -> bool {
        let paths = &self.unreadable.paths;
        self.is_absent(path) || paths.iter().any(|faulty| is_within(faulty, path))
    }

    /// True if nothing of the value at `path` could be read; false if only parts of it could not be.
    pub fn is_absent(&self, path: &str) -> bool {
        self.unreadable.paths.iter().any(|faulty| is_within(path, faulty))
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
        entries.map(super::located::Entry::name)
    }

    /// The locations of the value at `path` and of its key, as far as the file has them.
    fn locate(&self, path: &str) -> (Location, Location) {
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
        locations
    }
}

/// True if `path` is the path `section` or lies below it.
fn is_within(path: &str, section: &str) -> bool {
    let below = path.strip_prefix(section);
    below.is_some_and(|below| {
        section.is_empty() || below.is_empty() || below.starts_with(['.', '['])
    })
}

/// Splits `[3].rest` or `[3]` into the index 3 and the rest.
fn split_index(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest.strip_prefix('.').unwrap_or(rest)))
}

/// The rest of `path` after its first step, if that is `name`.
fn strip_name<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(name)?;
    match rest.as_bytes().first() {
        None | Some(b'[') => Some(rest),
        Some(b'.') => Some(&rest[1..]),
        Some(_) => None,
    }
}
