use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::fault::{Fault, Found, Location};
use super::tree::{Kind, Node};

/// The text that a configuration was read from: turns a path in it into a place in the file.
#[derive(Clone)]
pub struct Source {
    pub(super) name: Arc<str>,
    pub(super) text: Arc<str>,
    pub(super) root: Arc<Node>,
    /// Nodes that could not be read, by id; none where the file has no fault of form.
    pub(super) left_out: Arc<BTreeSet<usize>>,
}

/// Sections whose entries stand each for itself: a fault in one says nothing of the others.
const COLLECTIONS: [&str; 4] = ["listen", "upstreams", "limits", "routes"];

/// The name alone: there may be a password in the text.
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
    /// Where the file leaves the value out, the fault points at the nearest section around it.
    pub fn fault(&self, path: &str, what: impl Into<String>, expected: impl Into<String>) -> Fault {
        Fault::new(&self.name, &self.text, self.locate(path).0, Found::new(what, expected))
    }

    /// As [`Source::fault`], of the name at `path` rather than of what it holds: points at the key.
    pub fn fault_at_key(
        &self,
        path: &str,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> Fault {
        Fault::new(&self.name, &self.text, self.locate(path).1, Found::new(what, expected))
    }

    /// Whether what stands at `path` was not read, or not all of it, so that nothing can be said of
    /// it: what is wrong there is told already.
    pub fn is_unread(&self, path: &str) -> bool {
        if self.left_out.is_empty() {
            return false;
        }
        let nodes = self.walk(path).0;
        let Some((last, before)) = nodes.split_last() else { return true };
        let collection = |name: &str| COLLECTIONS.contains(&name);
        let before =
            before.iter().enumerate().filter(|(depth, (_, name))| *depth > 0 || !collection(name));
        let mut looked_at = before.map(|(_, node)| node).chain([last]);
        looked_at.any(|(node, _)| self.holds_unread(node))
    }

    /// The names in the collection `section`, also of entries that could not be read.
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
        entries.map(super::tree::Entry::name)
    }

    fn holds_unread(&self, node: &Node) -> bool {
        self.left_out.contains(&node.id)
            || match &node.kind {
                Kind::Scalar { .. } => false,
                Kind::List(items) => items.iter().any(|item| self.holds_unread(item)),
                Kind::Map(entries) => entries.iter().any(|entry| self.holds_unread(&entry.value)),
            }
    }

    /// Where the value at `path` is shown, and where its key is.
    fn locate(&self, path: &str) -> (Location, Location) {
        self.walk(path).1
    }

    /// The nodes on the way to `path`, each with the name that led to it, as far as they are there;
    /// and where the last is shown and its key is.
    fn walk(&self, path: &str) -> (Vec<(&Node, &str)>, (Location, Location)) {
        let (mut node, mut rest) = (&*self.root, path);
        let start = Location { line: 1, column: 1, width: 1 };
        let (mut found, mut nodes) = ((start, start), Vec::new());
        while !rest.is_empty() {
            let step = match &node.kind {
                Kind::Scalar { .. } => None,
                // The places are those of the items that were read.
                Kind::List(items) => index(rest).and_then(|(index, rest)| {
                    let mut read = items.iter().filter(|item| !self.left_out.contains(&item.id));
                    let item = read.nth(index)?;
                    Some((&**item, "", (item.location, item.location), rest))
                }),
                // The longest key that fits: names may have dots in them.
                Kind::Map(entries) => {
                    let fits = entries.iter().filter_map(|entry| {
                        let rest = after(rest, entry.name())?;
                        let places = (entry.location(), entry.key.location);
                        Some((&*entry.value, entry.name(), places, rest))
                    });
                    fits.min_by_key(|(_, _, _, rest)| rest.len())
                }
            };
            let Some((next, name, location, left)) = step else { break };
            nodes.push((next, name));
            (node, found, rest) = (next, location, left);
        }
        (nodes, found)
    }
}

/// `[3].rest` or `[3]` -> 3 and what follows.
fn index(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest.strip_prefix('.').unwrap_or(rest)))
}

/// What follows `name` in `path`, where `path` begins with just this name.
fn after<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(name)?;
    match rest.as_bytes().first() {
        None | Some(b'[') => Some(rest),
        Some(b'.') => Some(&rest[1..]),
        Some(_) => None,
    }
}
