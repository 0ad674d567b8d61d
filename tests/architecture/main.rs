//! The rules of ARCHITECTURE.md, held against the source.
//!
//! Each rule is a function from files to violations, and each has a test with a file that breaks
//! it.
#![allow(missing_docs, reason = "a test's name says what it asserts")]

/// No files of a crate or top-level module import each other in a cycle.
mod import_cycles;
/// Which top-level module of the root package may import which.
mod imports;
/// Files: length, opening comments, the two files of each algorithm.
mod layout;
/// One type for each type name.
mod names;
/// What only some files may name.
mod reserved;
/// Parsed source.
mod source;
/// Words that prose avoids.
mod words;

use source::Source;

fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

/// Asserts that `rule` finds a violation in a file at `path` with this text, and none at
/// `permitted_path`.
fn assert_breaks(
    rule: impl Fn(&[Source]) -> Vec<String>,
    path: &str,
    text: &str,
    permitted_path: &str,
) {
    let found = rule(&[Source::new(path, text)]);
    assert!(!found.is_empty(), "{path}: {text}");
    if !permitted_path.is_empty() {
        assert_none(&rule(&[Source::new(permitted_path, text)]));
    }
}
