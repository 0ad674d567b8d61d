//! The table of all routes.
//!
//! A route matches if its host, path and methods match. The most specific match wins: first by host
//! (exact, then the longest wildcard, then any), then by path, then by method (listed before any).
//! Paths are compared segment by segment from the left. The most specific segment is fixed text,
//! then a parameter with fixed text around it (the longer text first), then `{param}`, then
//! `{*rest}`, then the path below a prefix. If a pattern and a prefix both end where the path ends,
//! the pattern is more specific.
//!
//! A route that does not allow the request's method does not match, however specific it is. If no
//! matching route allows the method, the lookup returns the methods that these routes allow.
//!
//! Routes of one pattern and method may differ by their [`Conditions`]. Routes with more tests come
//! first. Of routes with equally many tests, the ones with a weight come first. Otherwise the order
//! of the configuration decides. The route without conditions is last. A route whose conditions are
//! not met does not match.

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use http::Method;
use smallvec::SmallVec;

use super::condition::{ConditionResult, ConditionalRoute, Conditions, ConflictKind};
use super::pattern::{HostPattern, PathPattern};
use super::search::{PathValues, Search};
use super::tree::{Leaf, Tree};

/// The requests that a route matches.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The hosts.
    pub host: HostPattern,
    /// The paths.
    pub path: PathPattern,
    /// The methods. An empty list allows all.
    pub methods: Vec<Method>,
    /// The further conditions.
    pub conditions: Conditions,
}

/// Two routes that exclude each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouteConflict {
    /// The index of the first route.
    pub first: usize,
    /// The index of the second route.
    pub second: usize,
    /// The reason.
    pub kind: ConflictKind,
}

/// The route that matches a request.
#[derive(Debug)]
pub struct TableMatch<'a> {
    /// The route's index in the list that the table was built from.
    pub route: usize,
    /// The values of the path's parameters, by name.
    pub params: Params<'a>,
}

/// The values of a path's parameters, by name.
#[derive(Debug, Default)]
pub struct Params<'a> {
    names: &'a [String],
    values: PathValues<'a>,
}

impl<'a> Params<'a> {
    /// The value of `{name}`, borrowed from the path; `None` if the pattern has no such parameter,
    /// or if `{*name}` is empty.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().find_map(|(param, value)| (param == name).then_some(value))
    }

    /// The names and values, in the pattern's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.names.iter().map(String::as_str).zip(self.values.iter().copied())
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// The most specific route.
    Found(TableMatch<'a>),
    /// The conditions of this route, the most specific one, could not be decided; another may
    /// apply.
    Undecided(usize),
    /// The path exists, but only for these methods.
    MethodNotAllowed(Vec<Method>),
    /// No route matches the host and path.
    NotFound,
}

/// All routes, by host.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    exact: HostTrees,
    wildcards: HostTrees,
    /// The largest number of labels of a name in `wildcards`.
    max_labels: usize,
    any: Tree,
    has_conditions: bool,
    /// The parameter names of each route.
    params: Vec<Box<[String]>>,
}

/// The tries of paths, by host name.
#[derive(Clone, Debug, Default)]
struct HostTrees {
    trees: HashMap<String, Tree, RandomState>,
    /// The length of the longest name, in bytes.
    longest: usize,
}

impl RouteTable {
    /// Builds the table.
    ///
    /// # Errors
    /// Every pair of routes that match the same requests, or whose weights together exceed 100.
    pub fn build(rules: &[Rule]) -> Result<Self, Vec<RouteConflict>> {
        let mut table = Self::default();
        let mut errors = Vec::new();
        for (second, rule) in rules.iter().enumerate() {
            let kind = ConflictKind::SameRequests;
            let conflict = |first| errors.push(RouteConflict { first, second, kind });
            let leaf = table.tree_mut(&rule.host).leaf_mut(&rule.path);
            if rule.conditions.is_empty() {
                leaf.add(second, &rule.methods, conflict);
            } else {
                leaf.add_conditional(second, &rule.methods, &rule.conditions);
                table.has_conditions = true;
            }
            table.params.push(rule.path.params().into());
        }
        let trees = table.exact.trees.values_mut().chain(table.wildcards.trees.values_mut());
        for leaf in trees.chain([&mut table.any]).flat_map(|tree| &mut tree.leaves) {
            leaf.arrange(|first, second, kind| errors.push(RouteConflict { first, second, kind }));
        }
        errors.sort_by_key(|error| (error.second, error.first, error.kind));
        errors.dedup();
        if errors.is_empty() { Ok(table) } else { Err(errors) }
    }

    fn tree_mut(&mut self, host: &HostPattern) -> &mut Tree {
        match host {
            HostPattern::Any => &mut self.any,
            HostPattern::Exact(name) => self.exact.tree_mut(name),
            HostPattern::Wildcard(name) => {
                let labels = name.split('.').count();
                self.max_labels = labels.max(self.max_labels);
                self.wildcards.tree_mut(name)
            }
        }
    }

    /// Finds the route of a request among the routes without conditions. `host` must be in lower
    /// case and without port, `path` in normal form.
    pub fn find<'a>(&'a self, host: &str, path: &'a str, method: &Method) -> Lookup<'a> {
        self.find_where(host, path, method, |_| ConditionResult::Unmet)
    }

    /// Like [`Self::find`], among all routes. `decide` tests a route's conditions on the request;
    /// it is called only for routes whose pattern matches.
    #[inline]
    pub fn find_where<'a>(
        &'a self,
        host: &str,
        path: &'a str,
        method: &Method,
        decide: impl FnMut(&ConditionalRoute) -> ConditionResult,
    ) -> Lookup<'a> {
        if self.has_conditions {
            return self.find_conditional(host, path, method, decide);
        }
        match self.find_by(host, path, &mut |leaf| leaf.route(method)) {
            Some(found) => Lookup::Found(found),
            None => self.other_methods(host, path, &mut |_| ConditionResult::Unmet),
        }
    }

    /// The slow path of [`Self::find_where`], not inlined: a lookup in a table without conditions
    /// stays small.
    #[inline(never)]
    fn find_conditional<'a>(
        &'a self,
        host: &str,
        path: &'a str,
        method: &Method,
        mut decide: impl FnMut(&ConditionalRoute) -> ConditionResult,
    ) -> Lookup<'a> {
        let mut is_undecided = false;
        let found = self.find_by(host, path, &mut |leaf| {
            let choice = leaf.route_where(method, &mut decide)?;
            is_undecided = choice.is_undecided;
            Some(choice.route)
        });
        match found {
            Some(found) if is_undecided => Lookup::Undecided(found.route),
            Some(found) => Lookup::Found(found),
            None => self.other_methods(host, path, &mut decide),
        }
    }

    /// The first route that `pick` takes from a matching leaf, the most specific leaf first.
    #[inline]
    fn find_by<'a>(
        &'a self,
        host: &str,
        path: &'a str,
        pick: &mut impl FnMut(&Leaf) -> Option<usize>,
    ) -> Option<TableMatch<'a>> {
        let exact = self.exact.get(host).and_then(|tree| self.find_in(tree, path, pick));
        exact
            .or_else(|| self.wildcards(host).find_map(|tree| self.find_in(tree, path, pick)))
            .or_else(|| self.find_in(&self.any, path, pick))
    }

    #[inline]
    fn find_in<'a>(
        &'a self,
        tree: &Tree,
        path: &'a str,
        pick: &mut impl FnMut(&Leaf) -> Option<usize>,
    ) -> Option<TableMatch<'a>> {
        let mut search = Search::new(tree, path);
        let route = search.run(pick)?;
        Some(TableMatch {
            route,
            params: Params { names: &self.params[route], values: search.into_values() },
        })
    }

    /// The tries of the wildcards that match `host`, the longest first.
    fn wildcards<'t>(&'t self, host: &str) -> impl Iterator<Item = &'t Tree> {
        let mut wildcards = SmallVec::<[&Tree; 4]>::new();
        if self.max_labels > 0 {
            let suffixes = suffixes(host, self.max_labels, self.wildcards.longest);
            wildcards.extend(suffixes.filter_map(|suffix| self.wildcards.get(suffix)));
        }
        wildcards.into_iter().rev()
    }

    /// The result for a request without a route: the methods that the path's routes allow, if any.
    #[cold]
    fn other_methods<'a>(
        &self,
        host: &str,
        path: &str,
        decide: &mut impl FnMut(&ConditionalRoute) -> ConditionResult,
    ) -> Lookup<'a> {
        let mut methods: Vec<Method> = Vec::new();
        // Allocated lazily: most paths without a route have no methods.
        let mut seen = None::<HashSet<&Method, RandomState>>;
        let exact = self.exact.get(host).into_iter();
        for tree in exact.chain(self.wildcards(host)).chain([&self.any]) {
            let mut listed = Vec::new();
            Search::new(tree, path).run(|leaf| {
                listed.extend(leaf.methods(decide));
                None::<()>
            });
            listed.sort_by_key(|(route, _)| *route);
            let unseen = listed
                .into_iter()
                .filter(|(_, method)| seen.get_or_insert_with(HashSet::default).insert(*method));
            methods.extend(unseen.map(|(_, method)| method.clone()));
        }
        if methods.is_empty() { Lookup::NotFound } else { Lookup::MethodNotAllowed(methods) }
    }
}

impl HostTrees {
    fn tree_mut(&mut self, name: &str) -> &mut Tree {
        self.longest = name.len().max(self.longest);
        self.trees.entry_ref(name).or_default()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<&Tree> {
        // A longer name cannot match, so it is not hashed.
        if name.len() > self.longest { None } else { self.trees.get(name) }
    }
}

/// The suffixes of `host` after its last `labels` dots, of at most `longest` bytes, the shortest
/// first. The bounds limit the lookups for a host with many labels.
fn suffixes(host: &str, labels: usize, longest: usize) -> impl Iterator<Item = &str> {
    let dots = memchr::memrchr_iter(b'.', host.as_bytes()).take(labels);
    dots.map(|dot| &host[dot + 1..]).take_while(move |suffix| suffix.len() <= longest)
}

#[cfg(test)]
mod conditional;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
