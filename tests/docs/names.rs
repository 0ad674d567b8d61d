//! Types, functions and constants that ARCHITECTURE.md names exist.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{assert_none, page::Page, root};

/// Adds every word in the source files under `directory`.
fn add_words(directory: &Path, words: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = entry.path();
        if entry.file_type().expect("a file type").is_dir() {
            add_words(&path, words);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let split = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.extend(split.map(str::to_owned));
            words.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
        }
    }
}

/// The names in a page: inline code that is a path of identifiers, such as `Type::method`, with or
/// without the parentheses of a call.
fn names(text: &str) -> Vec<&str> {
    let outside_fences = text.split("```").step_by(2);
    let spans = outside_fences.flat_map(|part| part.split('`').skip(1).step_by(2));
    let names = spans.filter_map(|span| span.split('(').next());
    let is_identifier = |name: &str| {
        name.starts_with(|c: char| c.is_alphabetic())
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    names.filter(|name| name.split("::").all(is_identifier)).collect()
}

/// Rule: every segment of every name is a word of the source.
fn unknown_names(page: &Page, words: &BTreeSet<String>) -> Vec<String> {
    let unknown = names(&page.text).into_iter().filter(|name| {
        !name.contains("NAME") && name.split("::").any(|segment| !words.contains(segment))
    });
    unknown.map(|name| format!("{}: `{name}` is not in the source", page.path)).collect()
}

#[test]
fn architecture_names_what_exists() {
    let mut words = BTreeSet::new();
    for directory in ["src", "tests", "benches", "lua", "fuzz/fuzz_targets", "scripts", ".ci"] {
        add_words(&root().join(directory), &mut words);
    }
    let page = Page::read("ARCHITECTURE.md");
    assert!(names(&page.text).len() > 200, "too few names found");
    assert_none(&unknown_names(&page, &words));
    // Put together, so that this file does not have the word.
    let text = ["`Gateway::handle` and `Tea", "pot::brew()`"].concat();
    let made_up = Page { path: page.path, text };
    assert_eq!(unknown_names(&made_up, &words).len(), 1);
}
