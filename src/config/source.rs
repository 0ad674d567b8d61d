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
}

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

    /// Where the value at `path` is shown, and where its key is.
    fn locate(&self, path: &str) -> (Location, Location) {
        let (mut node, mut rest) = (&*self.root, path);
        let start = Location { line: 1, column: 1, width: 1 };
        let mut found = (start, start);
        while !rest.is_empty() {
            let step = match &node.kind {
                Kind::Scalar { .. } => None,
                Kind::List(items) => index(rest).and_then(|(index, rest)| {
                    let item = items.get(index)?;
                    Some((item, (item.location, item.location), rest))
                }),
                // The longest key that fits: names may have dots in them.
                Kind::Map(entries) => {
                    let fits = entries.iter().filter_map(|entry| {
                        let rest = after(rest, entry.name())?;
                        Some((&entry.value, (entry.location(), entry.key.location), rest))
                    });
                    fits.min_by_key(|(_, _, rest)| rest.len())
                }
            };
            let Some((next, location, left)) = step else { break };
            (node, found, rest) = (next, location, left);
        }
        found
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
