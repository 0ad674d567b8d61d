//! Which rule a request falls under: host, path and method. Pure.

pub mod normalize;
pub mod pattern;
mod search;
pub mod table;
mod tree;

pub use pattern::{HostPattern, PathPattern, PatternError};
pub use table::{Found, Lookup, Params, Rule, Table, TableError};
