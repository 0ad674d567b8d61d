//! The trie of one host's path patterns, with a level for each segment.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::{Equivalent, HashMap};
use http::Method;

use super::condition::{ConditionResult, ConditionalRoute, Conditions, ConflictKind, arrange};
use super::pattern::{PathPattern, Segment};

/// The maximum number of keys that are searched linearly.
const MAX_LINEAR: usize = 8;

/// The path patterns of one host.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The first node is the root, after the path's first slash.
    pub(super) nodes: Vec<Node>,
    pub(super) leaves: Vec<Leaf>,
}

/// The branches after a slash.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The nodes after fixed segments.
    fixed: SmallMap<Box<str>, usize>,
    /// The length of the longest fixed segment, in bytes.
    longest_fixed: usize,
    /// Parameters with fixed text around them, the least specific first.
    pub(super) partial: Vec<PartialSegments>,
    /// The node after `{name}`.
    pub(super) param: Option<usize>,
    /// The leaf of `{*name}`.
    pub(super) rest: Option<usize>,
    /// The leaf of the pattern that ends here.
    pub(super) end: Option<usize>,
    /// The leaf of the prefix that ends here.
    pub(super) below: Option<usize>,
}

/// A map that is searched linearly while it has few keys.
#[derive(Clone, Debug)]
pub(super) enum SmallMap<K, V> {
    Linear(Vec<(K, V)>),
    Hashed(HashMap<K, V, RandomState>),
}

/// Segments of one shape: a parameter between fixed texts of the same lengths.
#[derive(Clone, Debug)]
pub(super) struct PartialSegments {
    shape: Shape,
    targets: HashMap<Texts, usize, RandomState>,
}

/// The shape of a partly fixed segment; a greater one is more specific.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Shape {
    /// The number of bytes of fixed text.
    fixed: usize,
    rest: PartialRest,
    /// The number of bytes of fixed text before the parameter.
    prefix: usize,
}

/// The part of the path that a partly fixed segment matches besides its fixed text; the greater one
/// is more specific.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum PartialRest {
    /// The rest of the path: `prefix{*name}`.
    Path,
    /// The rest of the segment: `prefix{name}suffix`.
    Param,
}

/// What follows a partly fixed segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum NextNode {
    /// The node for the next segment.
    Node(usize),
    /// The leaf after `{*name}`.
    Leaf(usize),
}

/// The fixed texts before and after a parameter.
type Texts = (Box<str>, Box<str>);

/// Borrowed [`Texts`] with the same hash.
#[derive(Hash)]
struct TextsRef<'p>(&'p str, &'p str);

impl Equivalent<Texts> for TextsRef<'_> {
    fn equivalent(&self, (prefix, suffix): &Texts) -> bool {
        *self.0 == **prefix && *self.1 == **suffix
    }
}

/// The routes of one path pattern.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    by_method: SmallMap<Method, MethodRoute>,
    /// The route for all other methods.
    any: Option<usize>,
    /// The routes with conditions, the most specific first.
    conditional: Vec<ConditionalRoute>,
}

/// The route of a leaf for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteCandidate {
    pub(super) route: usize,
    /// True if its conditions could not be decided, so that another route may apply.
    pub(super) is_undecided: bool,
}

/// A route that lists a method.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct MethodRoute {
    pub(super) route: usize,
    /// The method's index in the route's list.
    pub(super) index: usize,
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], leaves: Vec::new() }
    }
}

impl Tree {
    /// The leaf of `pattern`, created if it does not exist.
    pub(super) fn leaf_mut(&mut self, pattern: &PathPattern) -> &mut Leaf {
        let mut node = 0;
        for segment in pattern.segments() {
            node = match segment {
                Segment::Fixed(text) => self.fixed_or_new(node, text),
                Segment::Param { prefix, suffix } if prefix.is_empty() && suffix.is_empty() => {
                    let next = self.nodes.len();
                    let next = *self.nodes[node].param.get_or_insert(next);
                    self.node_or_new(next)
                }
                Segment::Param { prefix, suffix } => {
                    let next = self.nodes.len();
                    let next = self.nodes[node].partial_or_insert(
                        PartialRest::Param,
                        prefix,
                        suffix,
                        next,
                    );
                    self.node_or_new(next)
                }
                Segment::Rest { prefix } => {
                    let new = self.leaves.len();
                    let node = &mut self.nodes[node];
                    let leaf = if prefix.is_empty() {
                        *node.rest.get_or_insert(new)
                    } else {
                        node.partial_or_insert(PartialRest::Path, prefix, "", new)
                    };
                    return self.leaf_or_new(leaf);
                }
                Segment::Below => {
                    let new = self.leaves.len();
                    let leaf = *self.nodes[node].below.get_or_insert(new);
                    return self.leaf_or_new(leaf);
                }
            };
        }
        let new = self.leaves.len();
        let leaf = *self.nodes[node].end.get_or_insert(new);
        self.leaf_or_new(leaf)
    }

    /// The node after the fixed segment `text` of `node`, created if it does not exist.
    fn fixed_or_new(&mut self, node: usize, text: &str) -> usize {
        let next = self.nodes.len();
        let node = &mut self.nodes[node];
        if let Some(existing) = node.fixed(text) {
            return existing;
        }
        node.longest_fixed = text.len().max(node.longest_fixed);
        node.fixed.insert(text.into(), next);
        self.node_or_new(next)
    }

    /// Creates `node` if it is the next free index, and returns it.
    fn node_or_new(&mut self, node: usize) -> usize {
        if node == self.nodes.len() {
            self.nodes.push(Node::default());
        }
        node
    }

    /// The leaf with this index, created if the index is the next free one.
    fn leaf_or_new(&mut self, leaf: usize) -> &mut Leaf {
        if leaf == self.leaves.len() {
            self.leaves.push(Leaf::default());
        }
        &mut self.leaves[leaf]
    }
}

impl Node {
    /// The node after the fixed segment `text`. A text longer than all keys is not hashed.
    #[inline]
    pub(super) fn fixed(&self, text: &str) -> Option<usize> {
        if text.len() > self.longest_fixed { None } else { self.fixed.get(text).copied() }
    }

    /// The next node of a partly fixed segment; inserts `new` if there is none.
    fn partial_or_insert(
        &mut self,
        rest: PartialRest,
        prefix: &str,
        suffix: &str,
        new: usize,
    ) -> usize {
        let shape = Shape { fixed: prefix.len() + suffix.len(), rest, prefix: prefix.len() };
        let found = self.partial.binary_search_by_key(&shape, |partial| partial.shape);
        let index = found.unwrap_or_else(|index| {
            self.partial.insert(index, PartialSegments { shape, targets: HashMap::default() });
            index
        });
        *self.partial[index].targets.entry((prefix.into(), suffix.into())).or_insert(new)
    }
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self::Linear(Vec::new())
    }
}

impl<K: Eq + Hash, V> SmallMap<K, V> {
    #[inline]
    fn get<Q: Equivalent<K> + Hash + ?Sized>(&self, key: &Q) -> Option<&V> {
        match self {
            Self::Linear(linear) => linear.iter().find_map(|(k, v)| key.equivalent(k).then_some(v)),
            Self::Hashed(hashed) => hashed.get(key),
        }
    }

    /// Adds a key that the map does not have.
    fn insert(&mut self, key: K, value: V) {
        match self {
            Self::Linear(linear) if linear.len() < MAX_LINEAR => linear.push((key, value)),
            Self::Linear(linear) => {
                *self = Self::Hashed(linear.drain(..).chain([(key, value)]).collect());
            }
            Self::Hashed(hashed) => drop(hashed.insert(key, value)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (linear, hashed) = match self {
            Self::Linear(linear) => (Some(linear.iter().map(|(k, v)| (k, v))), None),
            Self::Hashed(hashed) => (None, Some(hashed.iter())),
        };
        linear.into_iter().flatten().chain(hashed.into_iter().flatten())
    }
}

impl PartialSegments {
    /// The next node and the parameter's value, if `segment` has the fixed texts of a pattern.
    /// `remaining_path` is the path from this segment on.
    pub(super) fn match_segment<'p>(
        &self,
        segment: &'p str,
        remaining_path: &'p str,
    ) -> Option<(NextNode, &'p str)> {
        let Shape { fixed, rest, prefix } = self.shape;
        if rest == PartialRest::Param {
            let before = segment.get(..prefix)?;
            // The value has at least one byte.
            let end = segment.len().checked_sub(fixed - prefix).filter(|end| *end > prefix)?;
            let (value, after) = segment.get(prefix..)?.split_at_checked(end - prefix)?;
            let node = *self.targets.get(&TextsRef(before, after))?;
            Some((NextNode::Node(node), value))
        } else {
            let (before, value) = remaining_path.split_at_checked(prefix)?;
            let leaf = *self.targets.get(&TextsRef(before, ""))?;
            Some((NextNode::Leaf(leaf), value))
        }
    }
}

impl Leaf {
    /// Adds `route` for `methods`, or for all methods if the list is empty. Calls `conflict` with
    /// each route that is already stored for the same method.
    pub(super) fn add(
        &mut self,
        route: usize,
        methods: &[Method],
        mut conflict: impl FnMut(usize),
    ) {
        if methods.is_empty() {
            match self.any {
                Some(other) => conflict(other),
                None => self.any = Some(route),
            }
        }
        for (index, method) in methods.iter().enumerate() {
            match self.by_method.get(method) {
                Some(first) if first.route == route => {}
                Some(first) => conflict(first.route),
                None => self.by_method.insert(method.clone(), MethodRoute { route, index }),
            }
        }
    }

    /// Adds a route with conditions. [`Self::arrange`] finds its conflicts.
    pub(super) fn add_conditional(
        &mut self,
        route: usize,
        methods: &[Method],
        conditions: &Conditions,
    ) {
        self.conditional.push(ConditionalRoute::new(route, methods, conditions.clone()));
    }

    /// Orders the routes with conditions, after all have been added. Calls `conflict` with the
    /// indices of each pair of routes that exclude each other.
    pub(super) fn arrange(&mut self, conflict: impl FnMut(usize, usize, ConflictKind)) {
        arrange(&mut self.conditional, conflict);
    }

    /// The route without conditions for `method`: the one that lists it, otherwise the one for all
    /// methods.
    #[inline]
    pub(super) fn route(&self, method: &Method) -> Option<usize> {
        self.listed(method).or(self.any)
    }

    /// The route for `method`: one that lists it, otherwise one for all methods. In each group, a
    /// route whose conditions are met precedes the one without conditions.
    pub(super) fn route_where(
        &self,
        method: &Method,
        decide: &mut impl FnMut(&ConditionalRoute) -> ConditionResult,
    ) -> Option<RouteCandidate> {
        let decided = |route| RouteCandidate { route, is_undecided: false };
        let listed = self.choose(|route| route.methods.contains(method), decide);
        listed
            .or_else(|| self.listed(method).map(decided))
            .or_else(|| self.choose(|route| route.methods.is_empty(), decide))
            .or(self.any.map(decided))
    }

    /// The route without conditions that lists `method`.
    #[inline]
    fn listed(&self, method: &Method) -> Option<usize> {
        self.by_method.get(method).map(|entry| entry.route)
    }

    /// The first candidate whose conditions are met or cannot be decided.
    fn choose(
        &self,
        is_candidate: impl Fn(&ConditionalRoute) -> bool,
        decide: &mut impl FnMut(&ConditionalRoute) -> ConditionResult,
    ) -> Option<RouteCandidate> {
        let mut candidates = self.conditional.iter().filter(|route| is_candidate(route));
        candidates.find_map(|route| {
            let verdict = decide(route);
            let is_undecided = verdict == ConditionResult::Unknown;
            (verdict != ConditionResult::Unmet)
                .then_some(RouteCandidate { route: route.route, is_undecided })
        })
    }

    /// The listed methods and their routes, without the routes whose conditions are not met.
    pub(super) fn methods<'l>(
        &'l self,
        decide: &mut impl FnMut(&ConditionalRoute) -> ConditionResult,
    ) -> Vec<(MethodRoute, &'l Method)> {
        let listed = self.by_method.iter().map(|(method, entry)| (*entry, method));
        let mut listed: Vec<_> = listed.collect();
        for conditional in &self.conditional {
            if !conditional.methods.is_empty() && decide(conditional) == ConditionResult::Met {
                let route = conditional.route;
                let methods = conditional.methods.iter().enumerate();
                listed
                    .extend(methods.map(|(index, method)| (MethodRoute { route, index }, method)));
            }
        }
        listed
    }
}
