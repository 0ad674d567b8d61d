//! Rule: prose is plain technical English. Machines are "it", and no comment is a riddle.

use crate::{
    assert_breaks, assert_none,
    source::{Source, all, read},
};

/// Words of a private language, each with what to write instead.
const BANNED: [(&str, &str); 11] = [
    ("whoever", "the caller, the client, the process"),
    ("whomever", "the caller, the client, the process"),
    ("somebody", "a client, an operator, another process"),
    ("nobody", "no client, no task"),
    ("anybody", "a client, another process"),
    ("everybody", "every client, every caller"),
    ("he", "it"),
    ("him", "it"),
    ("his", "its"),
    ("himself", "itself"),
    ("itselves", "themselves"),
];

fn private_words(files: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            let words = line.to_lowercase().replace(|c: char| !c.is_alphanumeric(), " ");
            let words = format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "));
            for (word, instead) in BANNED {
                if words.contains(&format!(" {word} ")) {
                    let place = format!("{}:{}", file.path, at + 1);
                    violations.push(format!("{place}: \"{word}\", better: {instead}"));
                }
            }
        }
    }
    violations
}

#[test]
fn prose_has_no_private_words() {
    let mut files: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(read).into();
    for (directory, ending) in [
        ("src", ".rs"),
        ("tests", ".rs"),
        ("benches", ".rs"),
        ("fuzz/fuzz_targets", ".rs"),
        ("lua", ".lua"),
        ("config", ".yaml"),
        ("docs", ".md"),
    ] {
        files.extend(all(directory, ending));
    }
    files.retain(|file| file.path != "tests/architecture/words.rs");
    assert_none(&private_words(&files));
    assert_breaks(private_words, "src/a.rs", "// Whoever asks is told.", "");
    assert_none(&private_words(&[Source::new("src/a.rs", "// The other caches this history.")]));
}
