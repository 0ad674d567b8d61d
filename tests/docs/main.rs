//! The documentation, held against the program: links, configurations, console output, reference.
//!
//! `UPDATE_DOCS=1 cargo test --test docs` writes the configuration reference and the output of
//! console blocks anew.
#![allow(missing_docs, reason = "a test's name says what it asserts")]

/// Files for the certificates that configurations name.
mod certificate_files;
/// Every configuration in a page loads.
mod configurations;
/// Every command in a page is run and its output compared.
mod console;
/// The README is short; metrics, examples, benches and tests are named correctly.
mod coverage;
/// Every relative link and anchor resolves.
mod links;
/// ARCHITECTURE.md names types and functions that exist.
mod names;
/// Replaces text that differs from run to run.
mod normalize;
/// nginx and HAProxy accept the configurations shown for them.
mod other_gateways;
/// Pages and their fenced blocks.
mod page;
/// A directory, a gateway and servers for the commands of one page.
mod page_environment;
/// The plot of requests a second is drawn from its table.
mod plot;
/// What the recipes promise is tried.
mod recipes;
/// Generates the configuration reference from the JSON Schema.
mod reference;
/// The schema's keys, in order, with types, defaults and descriptions.
mod schema_keys;
/// The schema for editors and `check` refuse the same values.
mod schema_strictness;
/// SUMMARY.md lists every page.
mod summary;

use std::path::Path;

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether pages are to be written instead of compared.
#[expect(clippy::disallowed_methods, reason = "an input of the tests, not of the gateway")]
pub(crate) fn is_updating() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}

/// Fails with one violation a line, if there is any.
pub(crate) fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}
