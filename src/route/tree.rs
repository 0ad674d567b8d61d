//! The paths of one host: a trie with a level for each segment, and the search in it.
//!
//! A node has one parent, so a search visits it at most once, and none deeper than the path has
//! segments: no path costs more than the patterns that begin as it does. The search keeps its own
//! stack and finds the end of each segment once.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::{Equivalent, HashMap};
use http::Method;
use smallvec::SmallVec;

use super::pattern::{PathPattern, Segment};

/// Up to so many fixed segments of a node are compared one by one.
const FEW: usize = 8;

/// The paths of one host.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The first is the root: what follows the path's first slash.
    nodes: Vec<Node>,
    leaves: Vec<Leaf>,
}

/// What may follow a slash.
#[derive(Clone, Debug, Default)]
struct Node {
    fixed: Fixed,
    /// Parameters with fixed text around them; the least specific first.
    partial: Vec<Partial>,
    /// The node after `{name}`.
    param: Option<usize>,
    /// The leaf of `{*name}`.
    rest: Option<usize>,
    /// The leaf of the pattern that ends before this segment.
    end: Option<usize>,
}

/// The nodes after fixed segments.
#[derive(Clone, Debug)]
enum Fixed {
    Few(Vec<(Box<str>, usize)>),
    Many { nodes: HashMap<Box<str>, usize, RandomState>, longest: usize },
}

/// Segments that are a parameter between fixed texts of certain lengths.
#[derive(Clone, Debug)]
struct Partial {
    shape: Shape,
    targets: HashMap<Texts, usize, RandomState>,
}

/// The form of a partly fixed segment; the greater, the more specific.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Shape {
    /// The bytes of fixed text.
    fixed: usize,
    /// Whether it is `prefix{name}suffix`, not `prefix{*name}`.
    is_param: bool,
    /// The bytes of fixed text before the parameter.
    prefix: usize,
}

/// The fixed texts before and after a parameter.
type Texts = (Box<str>, Box<str>);

/// [`Texts`] in a path; hashes as they do.
#[derive(Hash)]
struct TextsIn<'p>(&'p str, &'p str);

impl Equivalent<Texts> for TextsIn<'_> {
    fn equivalent(&self, (prefix, suffix): &Texts) -> bool {
        *self.0 == **prefix && *self.1 == **suffix
    }
}

/// The routes of one path pattern.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    named: HashMap<Method, Named, RandomState>,
    any: Option<usize>,
}

/// A route that names a method.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Named {
    pub(super) route: usize,
    /// The method's place in the route's list.
    pub(super) place: usize,
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], leaves: Vec::new() }
    }
}

impl Tree {
    /// The leaf of `pattern`, which is made where there is none.
    pub(super) fn leaf_mut(&mut self, pattern: &PathPattern) -> &mut Leaf {
        let mut node = 0;
        for segment in pattern.segments() {
            node = match segment {
                Segment::Fixed(text) => self.fixed(node, text),
                Segment::Param { prefix, suffix } if prefix.is_empty() && suffix.is_empty() => {
                    let next = self.nodes.len();
                    let next = *self.nodes[node].param.get_or_insert(next);
                    self.grown_to(next)
                }
                Segment::Param { prefix, suffix } => {
                    let next = self.nodes.len();
                    let next = self.nodes[node].partial(true, prefix, suffix, next);
                    self.grown_to(next)
                }
                Segment::Rest { prefix } => {
                    let new = self.leaves.len();
                    let node = &mut self.nodes[node];
                    let leaf = if prefix.is_empty() {
                        *node.rest.get_or_insert(new)
                    } else {
                        node.partial(false, prefix, "", new)
                    };
                    return self.leaf(leaf);
                }
            };
        }
        let new = self.leaves.len();
        let leaf = *self.nodes[node].end.get_or_insert(new);
        self.leaf(leaf)
    }

    fn fixed(&mut self, node: usize, text: &str) -> usize {
        let next = self.nodes.len();
        let next = self.nodes[node].fixed.get_or_insert(text, next);
        self.grown_to(next)
    }

    /// `node`, which may be the next new one.
    fn grown_to(&mut self, node: usize) -> usize {
        if node == self.nodes.len() {
            self.nodes.push(Node::default());
        }
        node
    }

    /// The leaf with this number, which may be the next new one.
    fn leaf(&mut self, leaf: usize) -> &mut Leaf {
        if leaf == self.leaves.len() {
            self.leaves.push(Leaf::default());
        }
        &mut self.leaves[leaf]
    }

    /// The leaves whose patterns match `path`, the most specific first.
    pub(super) fn matches<'t, 'p>(&'t self, path: &'p str) -> Matches<'t, 'p> {
        let mut stack = SmallVec::new();
        if path.starts_with('/') {
            stack.push(Step { target: Target::Node { node: 0, depth: 0 }, values: 0, value: None });
        }
        Matches {
            tree: self,
            path,
            stack,
            ends: SmallVec::new(),
            values: SmallVec::new(),
            #[cfg(test)]
            visited: 0,
        }
    }
}

impl Node {
    /// What follows a partly fixed segment; `new` where there was none.
    fn partial(&mut self, is_param: bool, prefix: &str, suffix: &str, new: usize) -> usize {
        let shape = Shape { fixed: prefix.len() + suffix.len(), is_param, prefix: prefix.len() };
        let found = self.partial.binary_search_by_key(&shape, |partial| partial.shape);
        let place = found.unwrap_or_else(|place| {
            self.partial.insert(place, Partial { shape, targets: HashMap::default() });
            place
        });
        *self.partial[place].targets.entry((prefix.into(), suffix.into())).or_insert(new)
    }
}

impl Default for Fixed {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Fixed {
    #[inline]
    fn get(&self, text: &str) -> Option<usize> {
        match self {
            Self::Few(nodes) => {
                nodes.iter().find_map(|(name, node)| (**name == *text).then_some(*node))
            }
            // A longer text is not worth its hash.
            Self::Many { longest, .. } if text.len() > *longest => None,
            Self::Many { nodes, .. } => nodes.get(text).copied(),
        }
    }

    fn get_or_insert(&mut self, text: &str, new: usize) -> usize {
        if let Some(node) = self.get(text) {
            return node;
        }
        if let Self::Few(few) = self
            && few.len() == FEW
        {
            let longest = few.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            *self = Self::Many { nodes: few.drain(..).collect(), longest };
        }
        match self {
            Self::Few(few) => few.push((text.into(), new)),
            Self::Many { nodes, longest } => {
                *longest = text.len().max(*longest);
                nodes.insert(text.into(), new);
            }
        }
        new
    }
}

impl Partial {
    /// The way on over this segment of `path`, if it has the texts of one of the patterns.
    fn step<'p>(&self, segment: &'p str, left: &'p str, depth: usize) -> Option<Found<'p>> {
        let Shape { fixed, is_param, prefix } = self.shape;
        if is_param {
            let before = segment.get(..prefix)?;
            // A value has at least one byte.
            let end = segment.len().checked_sub(fixed - prefix).filter(|end| *end > prefix)?;
            let (value, after) = segment.get(prefix..)?.split_at_checked(end - prefix)?;
            let node = *self.targets.get(&TextsIn(before, after))?;
            Some((Target::Node { node, depth: depth + 1 }, value))
        } else {
            let (before, value) = left.split_at_checked(prefix)?;
            let leaf = *self.targets.get(&TextsIn(before, ""))?;
            Some((Target::Leaf(leaf), value))
        }
    }
}

impl Leaf {
    /// Adds `route` for its `methods`, all where there are none. `clash` is told of each route that
    /// is there already.
    pub(super) fn add(&mut self, route: usize, methods: &[Method], mut clash: impl FnMut(usize)) {
        if methods.is_empty() {
            match self.any {
                Some(other) => clash(other),
                None => self.any = Some(route),
            }
        }
        for (place, method) in methods.iter().enumerate() {
            let named = Named { route, place };
            let first = *self.named.entry(method.clone()).or_insert(named);
            if first.route != route {
                clash(first.route);
            }
        }
    }

    /// The route for `method`: one that names it before one for any.
    #[inline]
    pub(super) fn route(&self, method: &Method) -> Option<usize> {
        self.named.get(method).map(|named| named.route).or(self.any)
    }

    /// The methods that its routes name.
    pub(super) fn methods(&self) -> impl Iterator<Item = (Named, &Method)> {
        self.named.iter().map(|(method, named)| (*named, method))
    }
}

/// The values of a path's parameters, in the pattern's order. An empty rest is left out.
pub(super) type Values<'p> = SmallVec<[&'p str; 4]>;

/// A search; see [`Tree::matches`].
pub(super) struct Matches<'t, 'p> {
    tree: &'t Tree,
    path: &'p str,
    /// What is still to be tried; the most specific last.
    stack: SmallVec<[Step<'p>; 8]>,
    /// Where each segment ends, as far as the search has come.
    ends: SmallVec<[usize; 16]>,
    values: Values<'p>,
    /// The nodes that were visited; the bound of the search is tested by it.
    #[cfg(test)]
    visited: usize,
}

/// A way on, and the parameter's value on it.
type Found<'p> = (Target, &'p str);

#[derive(Clone, Copy, Debug)]
enum Target {
    /// The node, for the segment of this number.
    Node {
        node: usize,
        depth: usize,
    },
    Leaf(usize),
}

/// Something still to be tried.
struct Step<'p> {
    target: Target,
    /// How many values stand before.
    values: usize,
    value: Option<&'p str>,
}

impl<'t, 'p> Matches<'t, 'p> {
    /// The values of the match that came last.
    pub(super) fn into_values(self) -> Values<'p> {
        self.values
    }

    /// How many nodes were visited.
    #[cfg(test)]
    pub(super) fn visited(&self) -> usize {
        self.visited
    }

    /// Notes where `node` leads; returns its leaf where the path ends before it.
    fn visit(&mut self, node: usize, depth: usize) -> Option<&'t Leaf> {
        let tree = self.tree;
        #[cfg(test)]
        {
            self.visited += 1;
        }
        let node = &tree.nodes[node];
        let Some((start, end)) = self.segment(depth) else {
            return node.end.map(|leaf| &tree.leaves[leaf]);
        };
        let (left, segment) = (&self.path[start..], &self.path[start..end]);
        let values = self.values.len();
        if let Some(leaf) = node.rest {
            let value = Some(left).filter(|left| !left.is_empty());
            self.stack.push(Step { target: Target::Leaf(leaf), values, value });
        }
        if let Some(node) = node.param.filter(|_| !segment.is_empty()) {
            let target = Target::Node { node, depth: depth + 1 };
            self.stack.push(Step { target, values, value: Some(segment) });
        }
        for partial in &node.partial {
            if let Some((target, value)) = partial.step(segment, left, depth) {
                let value = Some(value).filter(|value| !value.is_empty());
                self.stack.push(Step { target, values, value });
            }
        }
        if let Some(node) = node.fixed.get(segment) {
            let target = Target::Node { node, depth: depth + 1 };
            self.stack.push(Step { target, values, value: None });
        }
        None
    }

    /// Where the segment of this number is; `None` past the last. Those before it are known.
    #[inline]
    fn segment(&mut self, depth: usize) -> Option<(usize, usize)> {
        let start = depth.checked_sub(1).map_or(1, |before| self.ends[before] + 1);
        if depth == self.ends.len() {
            let left = self.path.as_bytes().get(start..)?;
            let length = memchr::memchr(b'/', left).unwrap_or(left.len());
            self.ends.push(start + length);
        }
        Some((start, self.ends[depth]))
    }
}

impl<'t> Iterator for Matches<'t, '_> {
    type Item = &'t Leaf;

    fn next(&mut self) -> Option<&'t Leaf> {
        while let Some(Step { target, values, value }) = self.stack.pop() {
            self.values.truncate(values);
            self.values.extend(value);
            let found = match target {
                Target::Node { node, depth } => self.visit(node, depth),
                Target::Leaf(leaf) => Some(&self.tree.leaves[leaf]),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "tree/tests.rs"]
mod tests;
