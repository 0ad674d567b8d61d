//! The paths of one host: a trie with a level for each segment.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::{Equivalent, HashMap};
use http::Method;

use super::pattern::{PathPattern, Segment};

/// Up to so many keys are compared one by one.
const FEW: usize = 8;

/// The paths of one host.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The first is the root: what follows the path's first slash.
    pub(super) nodes: Vec<Node>,
    pub(super) leaves: Vec<Leaf>,
}

/// What may follow a slash.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The nodes after fixed segments.
    fixed: Map<Box<str>, usize>,
    /// The bytes of the longest of them.
    longest: usize,
    /// Parameters with fixed text around them; the least specific first.
    pub(super) partial: Vec<Partial>,
    /// The node after `{name}`.
    pub(super) param: Option<usize>,
    /// The leaf of `{*name}`.
    pub(super) rest: Option<usize>,
    /// The leaf of the pattern that ends before this segment.
    pub(super) end: Option<usize>,
}

/// A map that is quick for few keys, too.
#[derive(Clone, Debug)]
pub(super) enum Map<K, V> {
    Few(Vec<(K, V)>),
    Many(HashMap<K, V, RandomState>),
}

/// Segments that are a parameter between fixed texts of certain lengths.
#[derive(Clone, Debug)]
pub(super) struct Partial {
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

/// Where a partly fixed segment leads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// To what follows the parameter.
    Node(usize),
    /// To the end of the pattern.
    Leaf(usize),
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
    named: Map<Method, Named>,
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
        let node = &mut self.nodes[node];
        if let Some(known) = node.fixed(text) {
            return known;
        }
        node.longest = text.len().max(node.longest);
        node.fixed.insert(text.into(), next);
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
}

impl Node {
    /// The node after the fixed segment `text`. A longer text than there is is not worth its hash.
    #[inline]
    pub(super) fn fixed(&self, text: &str) -> Option<usize> {
        if text.len() > self.longest { None } else { self.fixed.get(text).copied() }
    }

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

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<K: Eq + Hash, V> Map<K, V> {
    #[inline]
    fn get<Q: Equivalent<K> + Hash + ?Sized>(&self, key: &Q) -> Option<&V> {
        match self {
            Self::Few(few) => few.iter().find_map(|(k, v)| key.equivalent(k).then_some(v)),
            Self::Many(many) => many.get(key),
        }
    }

    /// Adds a key that is not there yet.
    fn insert(&mut self, key: K, value: V) {
        match self {
            Self::Few(few) if few.len() < FEW => few.push((key, value)),
            Self::Few(few) => *self = Self::Many(few.drain(..).chain([(key, value)]).collect()),
            Self::Many(many) => drop(many.insert(key, value)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few.iter().map(|(k, v)| (k, v))), None),
            Self::Many(many) => (None, Some(many.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }
}

impl Partial {
    /// Where `segment` leads if it has the texts of one of the patterns, and the parameter's value.
    /// `left` is the path from this segment on.
    pub(super) fn step<'p>(&self, segment: &'p str, left: &'p str) -> Option<(Target, &'p str)> {
        let Shape { fixed, is_param, prefix } = self.shape;
        if is_param {
            let before = segment.get(..prefix)?;
            // A value has at least one byte.
            let end = segment.len().checked_sub(fixed - prefix).filter(|end| *end > prefix)?;
            let (value, after) = segment.get(prefix..)?.split_at_checked(end - prefix)?;
            let node = *self.targets.get(&TextsIn(before, after))?;
            Some((Target::Node(node), value))
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
            match self.named.get(method) {
                Some(first) if first.route == route => {}
                Some(first) => clash(first.route),
                None => self.named.insert(method.clone(), named),
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
