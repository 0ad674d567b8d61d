//! The rules of ARCHITECTURE.md, held against the source.
//!
//! Each rule is a function from files to violations, and each is shown a file that breaks it.
#![allow(missing_docs, reason = "a test's name says what it shows")]

/// No files of a room import each other in a circle.
mod circles;
/// Files: length, opening comments, twins.
mod layout;
/// Which room may import which, and what only some files may name.
mod rooms;
/// Parsed source.
mod source;
/// Prose.
mod words;

use source::Source;

fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

/// Asserts that `rule` finds a violation in a file at `path` with this text, and none at `elsewhere`.
fn breaks(rule: impl Fn(&[Source]) -> Vec<String>, path: &str, text: &str, elsewhere: &str) {
    let found = rule(&[Source::new(path, text)]);
    assert!(!found.is_empty(), "{path}: {text}");
    if !elsewhere.is_empty() {
        assert_none(&rule(&[Source::new(elsewhere, text)]));
    }
}
