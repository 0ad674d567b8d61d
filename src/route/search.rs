//! The search for a path in the trie of a host's paths.
//!
//! A node has one parent, so a search visits it at most once, and none deeper than the path has
//! segments: no path costs more than the patterns that begin as it does. It recurses no deeper than
//! the longest pattern has segments, and finds the end of each segment once.

use smallvec::SmallVec;

use super::tree::{Leaf, Target, Tree};

/// So many bytes of a segment are looked at one by one: most are shorter.
const SHORT: usize = 16;

/// The values of a path's parameters, in the pattern's order. An empty rest is left out.
pub(super) type Values<'p> = SmallVec<[&'p str; 4]>;

/// A search for one path.
pub(super) struct Search<'t, 'p> {
    tree: &'t Tree,
    path: &'p str,
    /// Where each segment ends, as far as the search has come.
    ends: SmallVec<[usize; 16]>,
    values: Values<'p>,
    #[cfg(test)]
    visited: usize,
}

impl<'t, 'p> Search<'t, 'p> {
    pub(super) fn new(tree: &'t Tree, path: &'p str) -> Self {
        Self {
            tree,
            path,
            ends: SmallVec::new(),
            values: SmallVec::new(),
            #[cfg(test)]
            visited: 0,
        }
    }

    /// Offers the leaves whose patterns match the path, the most specific first, until one is taken.
    #[inline]
    pub(super) fn run<T>(&mut self, mut take: impl FnMut(&'t Leaf) -> Option<T>) -> Option<T> {
        if self.path.starts_with('/') { self.visit(0, 0, &mut take) } else { None }
    }

    /// The values of the match that was taken.
    pub(super) fn into_values(self) -> Values<'p> {
        self.values
    }

    /// How many nodes were visited.
    #[cfg(test)]
    pub(super) fn visited(&self) -> usize {
        self.visited
    }

    /// Visits `node` for the segment of this number, and those after it. The last way on is taken in
    /// the loop. What is in `values` when nothing was taken is of no use.
    fn visit<T>(
        &mut self,
        mut node: usize,
        mut depth: usize,
        take: &mut impl FnMut(&'t Leaf) -> Option<T>,
    ) -> Option<T> {
        loop {
            #[cfg(test)]
            {
                self.visited += 1;
            }
            let tree = self.tree;
            let here = &tree.nodes[node];
            let Some((segment, left)) = self.segment(depth) else {
                return take(&tree.leaves[here.end?]);
            };
            depth += 1;
            let fixed = here.fixed(segment);
            let param = if segment.is_empty() { None } else { here.param };
            if param.is_none() && here.rest.is_none() && here.partial.is_empty() {
                node = fixed?;
                continue;
            }
            let values = self.values.len();
            if let Some(next) = fixed {
                let found = self.visit(next, depth, take);
                if found.is_some() {
                    return found;
                }
                self.values.truncate(values);
            }
            for partial in here.partial.iter().rev() {
                let Some((target, value)) = partial.step(segment, left) else { continue };
                self.values.extend((!value.is_empty()).then_some(value));
                let found = match target {
                    Target::Node(next) => self.visit(next, depth, take),
                    Target::Leaf(leaf) => take(&tree.leaves[leaf]),
                };
                if found.is_some() {
                    return found;
                }
                self.values.truncate(values);
            }
            if let Some(next) = param {
                self.values.push(segment);
                if here.rest.is_none() {
                    node = next;
                    continue;
                }
                let found = self.visit(next, depth, take);
                if found.is_some() {
                    return found;
                }
                self.values.truncate(values);
            }
            let leaf = here.rest?;
            if !left.is_empty() {
                self.values.push(left);
            }
            return take(&tree.leaves[leaf]);
        }
    }

    /// The segment of this number, and the path from there on; `None` past the last. Those before it
    /// are known.
    #[inline]
    fn segment(&mut self, depth: usize) -> Option<(&'p str, &'p str)> {
        let start = if depth == 0 { 1 } else { self.ends[depth - 1] + 1 };
        let left = self.path.get(start..)?;
        if depth == self.ends.len() {
            self.ends.push(start + length(left.as_bytes()));
        }
        Some((&self.path[start..self.ends[depth]], left))
    }
}

/// The length of the first segment of `left`.
#[inline]
fn length(left: &[u8]) -> usize {
    let short = &left[..left.len().min(SHORT)];
    match short.iter().position(|&byte| byte == b'/') {
        Some(length) => length,
        None if left.len() <= SHORT => left.len(),
        None => {
            let more = &left[SHORT..];
            SHORT + memchr::memchr(b'/', more).unwrap_or(more.len())
        }
    }
}

#[cfg(test)]
#[path = "search/tests.rs"]
mod tests;
