//! The table of all routes, and the search in it.
//!
//! A route matches when its host, its path and its methods do; among those that match, the most
//! specific wins: first by host (exact, then the longest wildcard, then any), then by path, then by
//! method (named before any). Paths are compared segment by segment from the left: fixed text, then
//! text around a parameter, more of it before less, then `{param}`, then `{*rest}`.
//!
//! A route that does not serve the method does not match, however specific it is: the next is
//! looked at. Only where none serves it are the methods told that the path has.

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use http::Method;
use smallvec::SmallVec;

use super::pattern::{HostPattern, PathPattern};
use super::search::{Search, Values};
use super::tree::Tree;

/// What a route answers for.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its hosts.
    pub host: HostPattern,
    /// Its paths.
    pub path: PathPattern,
    /// Its methods; empty: all.
    pub methods: Vec<Method>,
}

/// Two routes that would match the same requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TableError {
    /// The place of the first in the list.
    pub first: usize,
    /// The place of the second, which adds nothing.
    pub second: usize,
}

/// A route that was found.
#[derive(Debug)]
pub struct Found<'a> {
    /// Its place in the list that the table was built from.
    pub route: usize,
    /// The values of the path's parameters, by name.
    pub params: Params<'a>,
}

/// The values of a path's parameters, by name.
#[derive(Debug)]
pub struct Params<'a> {
    names: &'a [String],
    values: Values<'a>,
}

impl<'a> Params<'a> {
    /// The value of `{name}`, borrowed from the path. `None` where the pattern has no such parameter,
    /// and for a `{*name}` that stands for nothing.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().find_map(|(own, value)| (own == name).then_some(value))
    }

    /// Names and values in the pattern's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.names.iter().map(String::as_str).zip(self.values.iter().copied())
    }
}

/// What a search ends with.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// The most specific route.
    Found(Found<'a>),
    /// The path exists, for these methods.
    OtherMethods(Vec<Method>),
    /// No route has this host and path.
    Nothing,
}

/// All routes, ready to be searched.
#[derive(Clone, Debug, Default)]
pub struct Table {
    exact: Names,
    below: Names,
    /// The most labels that a name in `below` has.
    most_labels: usize,
    any: Tree,
    /// The names of each route's parameters.
    params: Vec<Box<[String]>>,
}

/// Paths by host name.
#[derive(Clone, Debug, Default)]
struct Names {
    trees: HashMap<String, Tree, RandomState>,
    /// The bytes of the longest name.
    longest: usize,
}

impl Table {
    /// Builds the table. Every pair of routes that match the same is reported, not the first alone.
    pub fn build(rules: &[Rule]) -> Result<Self, Vec<TableError>> {
        let mut table = Self::default();
        let mut errors = Vec::new();
        for (second, rule) in rules.iter().enumerate() {
            let clash = |first| errors.push(TableError { first, second });
            table.tree_mut(&rule.host).leaf_mut(&rule.path).add(second, &rule.methods, clash);
            table.params.push(rule.path.params().into());
        }
        errors.sort_by_key(|error| (error.second, error.first));
        errors.dedup();
        if errors.is_empty() { Ok(table) } else { Err(errors) }
    }

    fn tree_mut(&mut self, host: &HostPattern) -> &mut Tree {
        match host {
            HostPattern::Any => &mut self.any,
            HostPattern::Exact(name) => self.exact.tree_mut(name),
            HostPattern::Below(name) => {
                let labels = name.split('.').count();
                self.most_labels = labels.max(self.most_labels);
                self.below.tree_mut(name)
            }
        }
    }

    /// Searches for a request: `host` in lower case without port, `path` in normal form.
    pub fn find<'a>(&'a self, host: &str, path: &'a str, method: &Method) -> Lookup<'a> {
        let exact = self.exact.get(host).and_then(|tree| self.find_in(tree, path, method));
        let found = exact
            .or_else(|| self.below(host).find_map(|tree| self.find_in(tree, path, method)))
            .or_else(|| self.find_in(&self.any, path, method));
        match found {
            Some(found) => Lookup::Found(found),
            None => self.other_methods(host, path),
        }
    }

    #[inline]
    fn find_in<'a>(&'a self, tree: &Tree, path: &'a str, method: &Method) -> Option<Found<'a>> {
        let mut search = Search::new(tree, path);
        let route = search.run(|leaf| leaf.route(method))?;
        Some(Found {
            route,
            params: Params { names: &self.params[route], values: search.into_values() },
        })
    }

    /// The trees of the wildcards that `host` matches, the longest first.
    fn below<'t>(&'t self, host: &str) -> impl Iterator<Item = &'t Tree> {
        let mut below = SmallVec::<[&Tree; 4]>::new();
        if self.most_labels > 0 {
            let suffixes = suffixes(host, self.most_labels, self.below.longest);
            below.extend(suffixes.filter_map(|suffix| self.below.get(suffix)));
        }
        below.into_iter().rev()
    }

    #[cold]
    fn other_methods<'a>(&self, host: &str, path: &str) -> Lookup<'a> {
        let mut methods: Vec<Method> = Vec::new();
        // Most paths without a route have no methods either.
        let mut told = None::<HashSet<&Method, RandomState>>;
        let exact = self.exact.get(host).into_iter();
        for tree in exact.chain(self.below(host)).chain([&self.any]) {
            let mut named = Vec::new();
            Search::new(tree, path).run(|leaf| {
                named.extend(leaf.methods());
                None::<()>
            });
            named.sort_by_key(|(named, _)| *named);
            let new = named
                .into_iter()
                .filter(|(_, method)| told.get_or_insert_with(HashSet::default).insert(*method));
            methods.extend(new.map(|(_, method)| method.clone()));
        }
        if methods.is_empty() { Lookup::Nothing } else { Lookup::OtherMethods(methods) }
    }
}

impl Names {
    fn tree_mut(&mut self, name: &str) -> &mut Tree {
        self.longest = name.len().max(self.longest);
        self.trees.entry_ref(name).or_default()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<&Tree> {
        // A longer name is not worth its hash.
        if name.len() > self.longest { None } else { self.trees.get(name) }
    }
}

/// What follows each of the last `labels` dots of `host`, the shortest first, as long as it is no
/// longer than `longest`: a host of many labels costs no more look-ups than the patterns have labels.
fn suffixes(host: &str, labels: usize, longest: usize) -> impl Iterator<Item = &str> {
    let dots = memchr::memrchr_iter(b'.', host.as_bytes()).take(labels);
    dots.map(|dot| &host[dot + 1..]).take_while(move |suffix| suffix.len() <= longest)
}

#[cfg(test)]
mod reference;
#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;
