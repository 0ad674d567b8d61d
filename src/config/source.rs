//! The text of a configuration, in which a path such as `limits.a.quota` can be located.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::fault::{Fault, Location, Mismatch};
use super::located::{Kind, Node};

/// The text that a configuration was read from. It locates a path of the configuration in the file.
#[derive(Clone)]
pub struct Source {
    pub(super) name: Arc<str>,
    pub(super) text: Arc<str>,
    pub(super) root: Arc<Node>,
    /// The ids of the nodes that could not be read; empty if the file has no syntactic fault.
    pub(super) skipped: Arc<BTreeSet<usize>>,
}

/// Sections whose entries are independent: a fault in one entry does not affect the others.
const COLLECTIONS: [&str; 4] = ["listen", "upstreams", "limits", "routes"];

/// Only the name: the text may contain a password.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Source {
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
        Fault::new(&self.name, &self.text, self.locate(path).0, Mismatch::new(what, expected))
    }

    /// As [`Source::fault`], but pointing at the key of `path` instead of its value.
    pub fn fault_at_key(
        &self,
        path: &str,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> Fault {
        Fault::new(&self.name, &self.text, self.locate(path).1, Mismatch::new(what, expected))
    }

    /// True if the value at `path`, or a part of it, could not be read. Its fault is reported already, and
    /// semantic checks of it would only produce follow-up faults.
    pub fn is_skipped(&self, path: &str) -> bool {
        if self.skipped.is_empty() {
            return false;
        }
        let nodes = self.walk(path).0;
        let Some((last, before)) = nodes.split_last() else { return true };
        let is_collection = |name: &str| COLLECTIONS.contains(&name);
        let before = before
            .iter()
            .enumerate()
            .filter(|(depth, (_, name))| *depth > 0 || !is_collection(name));
        let mut relevant = before.map(|(_, node)| node).chain([last]);
        relevant.any(|(node, _)| self.contains_skipped(node))
    }

    /// The names in the mapping `section`, including those of entries that could not be read.
    pub fn names(&self, section: &str) -> impl Iterator<Item = &str> {
        let sections = match &self.root.kind {
            Kind::Map(entries) => entries.as_slice(),
            _ => &[],
        };
        let entries = sections.iter().filter(move |entry| entry.name() == section);
        let entries = entries.flat_map(|entry| match &entry.value.kind {
            Kind::Map(entries) => entries.as_slice(),
            _ => &[],
        });
        entries.map(super::located::Entry::name)
    }

    fn contains_skipped(&self, node: &Node) -> bool {
        self.skipped.contains(&node.id)
            || match &node.kind {
                Kind::Scalar { .. } => false,
                Kind::List(items) => items.iter().any(|item| self.contains_skipped(item)),
                Kind::Map(entries) => {
                    entries.iter().any(|entry| self.contains_skipped(&entry.value))
                }
            }
    }

    /// The locations of the value at `path` and of its key.
    fn locate(&self, path: &str) -> (Location, Location) {
        self.walk(path).1
    }

    /// The nodes along `path` as far as they exist, each with its name, and the locations of the last
    /// one's value and key.
    fn walk(&self, path: &str) -> (Vec<(&Node, &str)>, (Location, Location)) {
        let (mut node, mut rest) = (&*self.root, path);
        let start = Location { line: 1, column: 1, width: 1 };
        let (mut locations, mut nodes) = ((start, start), Vec::new());
        while !rest.is_empty() {
            let step = match &node.kind {
                Kind::Scalar { .. } => None,
                // Indices count only the items that could be read.
                Kind::List(items) => split_index(rest).and_then(|(index, rest)| {
                    let mut readable = items.iter().filter(|item| !self.skipped.contains(&item.id));
                    let item = readable.nth(index)?;
                    Some((&**item, "", (item.location, item.location), rest))
                }),
                // The longest matching key wins, because names may contain dots.
                Kind::Map(entries) => {
                    let candidates = entries.iter().filter_map(|entry| {
                        let rest = strip_name(rest, entry.name())?;
                        let locations = (entry.location(), entry.key.location);
                        Some((&*entry.value, entry.name(), locations, rest))
                    });
                    candidates.min_by_key(|(_, _, _, rest)| rest.len())
                }
            };
            let Some((next, name, found, left)) = step else { break };
            nodes.push((next, name));
            (node, locations, rest) = (next, found, left);
        }
        (nodes, locations)
    }
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
