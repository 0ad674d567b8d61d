//! Routing: finds the route for a host, a path and a method. Pure.
//!
//! Each path has one normal form, so no spelling of a path bypasses a route. The most specific
//! route wins, whatever the order of the rules. A lookup visits each trie node at most
//! once, so the cost of a hostile path is bounded by the patterns that share its beginning.
//!
//! It does not know what a route does: [`RouteTable::find`] returns the index of a [`Rule`] in the
//! slice that the table was built from. It builds a table once and never changes it.
//!
//! | file | content |
//! |---|---|
//! | `normalize` | [`normalize::normalize`]: the normal form of a path |
//! | `readings` | [`readings::readings`]: what servers may read in a path that was not normalized |
//! | `pattern` | [`HostPattern`], [`PathPattern`]: the syntax of patterns |
//! | `condition` | [`Conditions`]: headers, query parameters and the share of callers of a route |
//! | `table` | [`RouteTable`]: all routes, by host |
//! | `tree` | the trie of one host's paths |
//! | `search` | the search for a path in a trie |
//!
//! ```
//! use http::Method;
//! use tidegate_route::{
//!     Conditions, HostPattern, Lookup, PathPattern, RouteTable, Rule,
//!     normalize::{Slashes, normalize},
//! };
//!
//! let rule = |path: &str| Rule {
//!     host: HostPattern::Any,
//!     path: PathPattern::parse(path).unwrap(),
//!     methods: vec![],
//!     conditions: Conditions::default(),
//! };
//! let table = RouteTable::build(&[rule("/{*rest}"), rule("/items/{id}")]).unwrap();
//! let path = normalize("/items/x/../%37", Slashes::Merge).unwrap();
//! let Lookup::Found(found) = table.find("api.example.com", &path, &Method::GET) else {
//!     panic!("no route")
//! };
//! assert_eq!((found.route, found.params.get("id")), (1, Some("7")));
//! ```

pub mod condition;
pub mod normalize;
pub mod pattern;
pub mod readings;
mod search;
pub mod table;
mod tree;

pub use condition::{
    Condition, ConditionResult, ConditionalRoute, Conditions, ConflictKind, ValueSource, ValueTest,
};
pub use pattern::{HostPattern, PathPattern, PatternError};
pub use table::{Lookup, Params, RouteConflict, RouteTable, Rule, TableMatch};
