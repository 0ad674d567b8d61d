//! Reads Rust source as far as the rules need it: code without comments and texts, and the paths in it.

use std::path::Path;

/// One file of the house.
pub(crate) struct Source {
    /// From the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The top-level module that a file under `src/` belongs to: `route` of `src/route/table.rs`.
    pub(crate) fn module(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let first = inside.split('/').next().unwrap_or(inside);
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// The code: what stands in comments, texts and characters is blank.
    pub(crate) fn code(&self) -> String {
        let text: Vec<char> = self.text.chars().collect();
        let mut code = String::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            let end = at + not_code(&text[at..], code.chars().next_back());
            if end == at {
                code.push(text[at]);
                at += 1;
            } else {
                let lines = text[at..end].iter().filter(|c| **c == '\n').count();
                code.push(' ');
                code.extend(std::iter::repeat_n('\n', lines));
                at = end;
            }
        }
        code
    }

    /// Every path in the code, with the groups of `use` spelled out: `use a::{b, c::d}` is `a::b` and
    /// `a::c::d`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let code = self.code();
        let words = words(&code);
        let mut paths = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let begins = words[at].starts_with(is_word) && (at == 0 || words[at - 1] != "::");
            if begins { at = tree(&words, at, "", &mut paths) } else { at += 1 }
        }
        paths.retain(|path| path.contains("::"));
        paths
    }
}

/// How many characters from the start are a comment, a text or a character.
fn not_code(text: &[char], before: Option<char>) -> usize {
    let find = |end: &str, from: usize| {
        let end: Vec<char> = end.chars().collect();
        let found = text[from..].windows(end.len()).position(|window| window == end);
        found.map_or(text.len(), |at| from + at + end.len())
    };
    match text {
        ['/', '/', ..] => text.iter().position(|c| *c == '\n').unwrap_or(text.len()),
        ['/', '*', ..] => find("*/", 2),
        ['"', ..] => escaped(text, '"'),
        ['r', '"' | '#', ..] if !before.is_some_and(is_word) => {
            let marks = text[1..].iter().take_while(|c| **c == '#').count();
            if text.get(1 + marks) != Some(&'"') {
                return 0;
            }
            find(&format!("\"{}", "#".repeat(marks)), 2 + marks)
        }
        ['\'', '\\', ..] => escaped(text, '\''),
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

/// The length of a text or a character that may have escapes in it.
fn escaped(text: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Names, `::` and every other sign by itself.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            ':' if rest.starts_with("::") => 2,
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    words
}

/// Adds the paths that begin at word `at`; returns where they end.
fn tree(words: &[&str], mut at: usize, prefix: &str, paths: &mut Vec<String>) -> usize {
    let mut path = prefix.to_owned();
    while let Some(word) = words.get(at) {
        if word.starts_with(is_word) || *word == "*" {
            path.push_str(word);
            at += 1;
        } else if *word == "{" && path.ends_with("::") {
            at += 1;
            while at < words.len() && words[at] != "}" {
                let next = tree(words, at, &path, paths);
                // A comma is passed over; an `as` is read as a path that means nothing.
                at = next.max(at + 1);
            }
            return at + 1;
        } else {
            break;
        }
        if words.get(at) != Some(&"::") {
            break;
        }
        path.push_str("::");
        at += 1;
    }
    if path != prefix {
        paths.push(path.trim_end_matches("::").to_owned());
    }
    at
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One file of the house.
pub(crate) fn read(path: &str) -> Source {
    let text = std::fs::read_to_string(root().join(path));
    Source::new(path, &text.unwrap_or_else(|error| panic!("{path}: {error}")))
}

/// Every file under `folder` whose name ends in `ending`, in the order of their paths.
pub(crate) fn all(folder: &str, ending: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root().join(&folder));
        for entry in entries.unwrap_or_else(|error| panic!("{folder}: {error}")) {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name in UTF-8");
            let path = format!("{folder}/{name}");
            if entry.file_type().expect("a kind").is_dir() {
                folders.push(path);
            } else if name.ends_with(ending) {
                found.push(read(&path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[test]
fn comments_and_texts_are_not_code() {
    let text = r##"a::b /* c::d */ // e::f
        "g::h \" i::j" r#"k::l "m::n"# '"' '\'' x::<'static>() o::p"##;
    assert_eq!(Source::new("src/a.rs", text).paths(), ["a::b", "o::p"]);
}

#[test]
fn groups_are_spelled_out() {
    let text = "use a::{b, c::{self, d}, e::*, f as g};\nfn x() -> h::I { std::env::var(j) }";
    let paths = Source::new("src/a.rs", text).paths();
    for path in ["a::b", "a::c::self", "a::c::d", "a::e::*", "a::f", "h::I", "std::env::var"] {
        assert!(paths.iter().any(|found| found == path), "{path} in {paths:?}");
    }
}
