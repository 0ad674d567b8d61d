//! The search for a path in the trie of a host's paths.
//!
//! A depth-first search with backtracking. A node has one parent, and its level is the index of a
//! segment, so a search visits each node at most once and finds the end of each segment once. The
//! recursion is bounded by the number of segments in the longest pattern.

use smallvec::SmallVec;

use super::tree::{Leaf, NextNode, Tree};

/// The number of bytes of a segment that are scanned without `memchr`. Most segments are shorter.
const LINEAR_SCAN: usize = 16;

/// The values of a path's parameters, in the pattern's order. An empty rest of the path is left
/// out.
pub(super) type PathValues<'p> = SmallVec<[&'p str; 4]>;

/// A search for one path.
pub(super) struct Search<'t, 'p> {
    tree: &'t Tree,
    path: &'p str,
    /// The end of each segment found so far.
    ends: SmallVec<[usize; 16]>,
    values: PathValues<'p>,
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

    /// Calls `take` with the leaves whose patterns match, the most specific first, until it returns
    /// a value.
    #[inline]
    pub(super) fn run<T>(&mut self, mut take: impl FnMut(&'t Leaf) -> Option<T>) -> Option<T> {
        if self.path.starts_with('/') { self.visit(0, 0, &mut take) } else { None }
    }

    /// The parameter values of the leaf that was taken.
    pub(super) fn into_values(self) -> PathValues<'p> {
        self.values
    }

    /// The number of visited nodes.
    #[cfg(test)]
    pub(super) fn visited(&self) -> usize {
        self.visited
    }

    /// Matches the segments from index `depth` on below `node`. The last branch is a step of the
    /// loop instead of a recursive call. Without a match, the content of `values` has no meaning.
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
            let current = &tree.nodes[node];
            let Some((segment, remaining_path)) = self.segment(depth) else {
                let end = current.end.and_then(|leaf| take(&tree.leaves[leaf]));
                return end.or_else(|| take(&tree.leaves[current.below?]));
            };
            depth += 1;
            let fixed = current.fixed(segment);
            let param = if segment.is_empty() { None } else { current.param };
            let has_rest = current.rest.is_some() || current.below.is_some();
            if param.is_none() && !has_rest && current.partial.is_empty() {
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
            for partial in current.partial.iter().rev() {
                let Some((target, value)) = partial.match_segment(segment, remaining_path) else {
                    continue;
                };
                self.values.extend((!value.is_empty()).then_some(value));
                let found = match target {
                    NextNode::Node(next) => self.visit(next, depth, take),
                    NextNode::Leaf(leaf) => take(&tree.leaves[leaf]),
                };
                if found.is_some() {
                    return found;
                }
                self.values.truncate(values);
            }
            if let Some(next) = param {
                self.values.push(segment);
                if !has_rest {
                    node = next;
                    continue;
                }
                let found = self.visit(next, depth, take);
                if found.is_some() {
                    return found;
                }
                self.values.truncate(values);
            }
            if let Some(leaf) = current.rest {
                self.values.extend((!remaining_path.is_empty()).then_some(remaining_path));
                let found = take(&tree.leaves[leaf]);
                if found.is_some() {
                    return found;
                }
                self.values.truncate(values);
            }
            let leaf = current.below?;
            // With the slash before it.
            self.values.extend(self.path.get(self.path.len() - remaining_path.len() - 1..));
            return take(&tree.leaves[leaf]);
        }
    }

    /// The segment with index `depth`, and the path from its start; `None` after the last segment.
    /// The ends of the earlier segments must be known.
    #[inline]
    fn segment(&mut self, depth: usize) -> Option<(&'p str, &'p str)> {
        let start = if depth == 0 { 1 } else { self.ends[depth - 1] + 1 };
        let remaining_path = self.path.get(start..)?;
        if depth == self.ends.len() {
            self.ends.push(start + segment_length(remaining_path.as_bytes()));
        }
        Some((&self.path[start..self.ends[depth]], remaining_path))
    }
}

/// The length of the first segment of `remaining_path`, in bytes.
#[inline]
fn segment_length(remaining_path: &[u8]) -> usize {
    let short = &remaining_path[..remaining_path.len().min(LINEAR_SCAN)];
    match short.iter().position(|&byte| byte == b'/') {
        Some(length) => length,
        None if remaining_path.len() <= LINEAR_SCAN => remaining_path.len(),
        None => {
            let more = &remaining_path[LINEAR_SCAN..];
            LINEAR_SCAN + memchr::memchr(b'/', more).unwrap_or(more.len())
        }
    }
}

#[cfg(test)]
mod tests;
