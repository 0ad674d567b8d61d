//! The table of all routes, and the search in it.
//!
//! A route matches when its host, its path and its methods do; among those that match, the most
//! specific wins: first by host (exact, then the longest wildcard, then any), then by path (fixed
//! text, then `{param}`, then `{*rest}`), then by method (named before any).

use http::Method;
use smallvec::SmallVec;

use super::pattern::{HostPattern, PathPattern};

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
pub type Params<'a> = matchit::Params<'a, 'a>;

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

type Router = matchit::Router<usize>;

/// Routers of one host: one a method that some route names, and one for all the others.
#[derive(Clone, Debug, Default)]
struct Paths {
    named: Vec<(Method, Router)>,
    any: Router,
}

/// All routes, ready to be searched.
#[derive(Clone, Debug, Default)]
pub struct Table {
    exact: hashbrown::HashMap<String, Paths, ahash::RandomState>,
    below: hashbrown::HashMap<String, Paths, ahash::RandomState>,
    any: Paths,
}

impl Table {
    /// Builds the table. Every pair of routes that match the same is reported, not the first alone.
    pub fn build(rules: &[Rule]) -> Result<Self, Vec<TableError>> {
        let mut table = Self::default();
        let mut errors = Vec::new();
        let mut hosts: Vec<&HostPattern> = Vec::new();
        for rule in rules {
            if !hosts.contains(&&rule.host) {
                hosts.push(&rule.host);
            }
        }
        for host in hosts {
            let own: Vec<_> =
                rules.iter().enumerate().filter(|(_, rule)| rule.host == *host).collect();
            let paths = Paths::build(&own, &mut errors);
            match host {
                HostPattern::Any => table.any = paths,
                HostPattern::Exact(name) => drop(table.exact.insert(name.clone(), paths)),
                HostPattern::Below(name) => drop(table.below.insert(name.clone(), paths)),
            }
        }
        errors.sort_by_key(|error| (error.second, error.first));
        errors.dedup();
        if errors.is_empty() { Ok(table) } else { Err(errors) }
    }

    /// Searches for a request: `host` in lower case without port, `path` in normal form.
    pub fn find<'a>(&'a self, host: &str, path: &'a str, method: &Method) -> Lookup<'a> {
        let found = if self.exact.is_empty() && self.below.is_empty() {
            self.any.find(path, method)
        } else {
            self.hosts(host).find_map(|paths| paths.find(path, method))
        };
        match found {
            Some(found) => Lookup::Found(found),
            None => self.other_methods(host, path),
        }
    }

    fn hosts<'t>(&'t self, host: &str) -> impl Iterator<Item = &'t Paths> {
        let exact = if self.exact.is_empty() { None } else { self.exact.get(host) };
        let mut below = SmallVec::<[&Paths; 4]>::new();
        if !self.below.is_empty() {
            let suffixes = memchr::memchr_iter(b'.', host.as_bytes()).map(|dot| &host[dot + 1..]);
            below.extend(suffixes.filter_map(|suffix| self.below.get(suffix)));
        }
        exact.into_iter().chain(below).chain(std::iter::once(&self.any))
    }

    #[cold]
    fn other_methods<'a>(&self, host: &str, path: &str) -> Lookup<'a> {
        let mut methods: Vec<Method> = Vec::new();
        for (method, router) in self.hosts(host).flat_map(|paths| &paths.named) {
            if router.at(path).is_ok() && !methods.contains(method) {
                methods.push(method.clone());
            }
        }
        if methods.is_empty() { Lookup::Nothing } else { Lookup::OtherMethods(methods) }
    }
}

impl Paths {
    fn build(rules: &[(usize, &Rule)], errors: &mut Vec<TableError>) -> Self {
        let any: Vec<_> = rules.iter().copied().filter(|(_, r)| r.methods.is_empty()).collect();
        let mut methods: Vec<&Method> = Vec::new();
        for method in rules.iter().flat_map(|(_, rule)| &rule.methods) {
            if !methods.contains(&method) {
                methods.push(method);
            }
        }
        let named = methods.into_iter().map(|method| {
            let naming = rules.iter().copied().filter(|(_, rule)| rule.methods.contains(method));
            (method.clone(), router(&naming.collect::<Vec<_>>(), &any, errors))
        });
        Self { named: named.collect(), any: router(&any, &[], errors) }
    }

    fn find<'a>(&'a self, path: &'a str, method: &Method) -> Option<Found<'a>> {
        let router = self
            .named
            .iter()
            .find_map(|(named, router)| (named == method).then_some(router))
            .unwrap_or(&self.any);
        let found = router.at(path).ok()?;
        Some(Found { route: *found.value, params: found.params })
    }
}

/// One method's router: `first` are the routes that name it, `then` those for any method, which give
/// way to a route of the same shape.
fn router(
    first: &[(usize, &Rule)],
    then: &[(usize, &Rule)],
    errors: &mut Vec<TableError>,
) -> Router {
    let mut router = Router::new();
    let mut standing: Vec<(usize, &Rule)> = Vec::new();
    for (rank, &(index, rule)) in first.iter().map(|r| (0, r)).chain(then.iter().map(|r| (1, r))) {
        match router.insert(rule.path.as_str(), index) {
            Ok(()) => standing.push((index, rule)),
            Err(matchit::InsertError::Conflict { with }) => {
                let other = standing.iter().find(|(_, other)| other.path.as_str() == with);
                let gives_way = rank == 1
                    && other.is_some_and(|(other, _)| first.iter().any(|(own, _)| own == other))
                    && shape(&with) == shape(rule.path.as_str());
                if let (Some((other, _)), false) = (other, gives_way) {
                    errors.push(TableError { first: *other, second: index });
                }
            }
            // The pattern was parsed before, so nothing else can be wrong with it.
            Err(_) => {}
        }
    }
    for (index, rule) in standing {
        if let Some(bare) = rule.path.without_rest() {
            // A route for exactly this path is more specific, so it stays.
            let _ = router.insert(bare, index);
        }
    }
    router
}

/// A pattern without its parameters' names.
fn shape(path: &str) -> String {
    let mut parts = path.split('{');
    let head = parts.next().unwrap_or_default().to_owned();
    parts.fold(head, |shape, part| {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        shape + if name.starts_with('*') { "{*}" } else { "{}" } + rest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(host: &str, path: &str, methods: &[Method]) -> Rule {
        Rule {
            host: HostPattern::parse(host).unwrap(),
            path: PathPattern::parse(path).unwrap(),
            methods: methods.to_vec(),
        }
    }

    fn route(table: &Table, host: &str, path: &str, method: &Method) -> Option<usize> {
        match table.find(host, path, method) {
            Lookup::Found(found) => Some(found.route),
            _ => None,
        }
    }

    #[test]
    fn the_most_specific_route_wins() {
        let table = Table::build(&[
            rule("*", "/{*rest}", &[]),
            rule("*", "/items/{id}", &[]),
            rule("*", "/items/new", &[]),
            rule("*", "/items/{id}", &[Method::DELETE]),
            rule("*.example.com", "/items/{id}", &[]),
            rule("*.eu.example.com", "/items/{id}", &[]),
            rule("api.example.com", "/items/{id}", &[]),
        ])
        .unwrap();
        for (host, path, method, wanted) in [
            ("x", "/", Method::GET, 0),
            ("x", "/a/b", Method::GET, 0),
            ("x", "/items/5", Method::GET, 1),
            ("x", "/items/5/6", Method::GET, 0),
            ("x", "/items/new", Method::GET, 2),
            ("x", "/items/5", Method::DELETE, 3),
            ("x", "/items/new", Method::DELETE, 2),
            ("x", "/other", Method::DELETE, 0),
            ("a.example.com", "/items/5", Method::GET, 4),
            ("a.eu.example.com", "/items/5", Method::GET, 5),
            ("api.example.com", "/items/5", Method::GET, 6),
            ("api.example.com", "/other", Method::GET, 0),
            ("example.com", "/items/5", Method::GET, 1),
        ] {
            assert_eq!(route(&table, host, path, &method), Some(wanted), "{method} {host}{path}");
        }
    }

    #[test]
    fn an_exact_path_wins_over_an_empty_rest_in_either_order() {
        for order in [["/files/", "/files/{*rest}"], ["/files/{*rest}", "/files/"]] {
            let table = Table::build(&order.map(|path| rule("*", path, &[]))).unwrap();
            let exact = order.iter().position(|path| *path == "/files/");
            assert_eq!(route(&table, "x", "/files/", &Method::GET), exact);
            assert_ne!(route(&table, "x", "/files/a", &Method::GET), exact);
        }
    }

    #[test]
    fn a_path_with_other_methods_names_them() {
        let rules =
            [rule("*", "/a", &[Method::GET, Method::HEAD]), rule("h", "/a", &[Method::PUT])];
        let table = Table::build(&rules).unwrap();
        let Lookup::OtherMethods(methods) = table.find("h", "/a", &Method::POST) else {
            panic!("expected the methods of the path")
        };
        assert_eq!(methods, [Method::PUT, Method::GET, Method::HEAD]);
        assert!(matches!(table.find("h", "/b", &Method::POST), Lookup::Nothing));
    }

    #[test]
    fn two_routes_that_match_the_same_are_named() {
        let errors = Table::build(&[
            rule("*", "/items/{id}", &[]),
            rule("*", "/items/{name}", &[]),
            rule("a.b", "/x", &[Method::GET, Method::PUT]),
            rule("A.B", "/x", &[Method::PUT]),
            rule("*", "/x", &[Method::PUT]),
        ])
        .unwrap_err();
        assert_eq!(
            errors,
            [TableError { first: 0, second: 1 }, TableError { first: 2, second: 3 }]
        );
    }
}
