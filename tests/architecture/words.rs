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

/// A turn of phrase that must be read twice.
struct Habit {
    /// In lower case, with the spaces around it.
    phrase: &'static str,
    instead: &'static str,
}

const HABITS: [Habit; 10] = [
    Habit { phrase: ", too.", instead: "`also` in its place, or nothing" },
    Habit { phrase: ", too;", instead: "`also` in its place, or nothing" },
    Habit { phrase: ", too:", instead: "`also` in its place, or nothing" },
    Habit { phrase: " of http/2", instead: "`HTTP/2 frames`" },
    Habit { phrase: " of grpc", instead: "`a gRPC status`" },
    Habit { phrase: " told ", instead: "reported, logged, exposed" },
    Habit { phrase: " so many ", instead: "the number, or its name" },
    Habit { phrase: " those that ", instead: "the noun" },
    Habit { phrase: " others that ", instead: "the noun" },
    Habit { phrase: " what is there", instead: "the noun" },
];

/// The prose of a file as paragraphs, each with the line that it begins in: the text of a Markdown
/// file outside of code blocks, the comments of source. Lower case, one space before and after.
fn paragraphs(file: &Source) -> Vec<(usize, String)> {
    let comment = match file.path.rsplit('.').next() {
        Some("rs") => Some("//"),
        Some("lua") => Some("--"),
        _ => None,
    };
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    let mut is_code = false;
    for (index, line) in file.text.lines().enumerate() {
        if comment.is_none() && line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let (text, is_trailing) = match comment {
            None if is_code => ("", false),
            None => (line, false),
            Some(mark) => comment_of_line(line, mark),
        };
        let text = text.trim().to_lowercase();
        match paragraphs.last_mut() {
            _ if text.is_empty() => {}
            Some((_, paragraph)) if continues && !is_trailing => {
                paragraph.push_str(&text);
                paragraph.push(' ');
            }
            _ => paragraphs.push((index + 1, format!(" {text} "))),
        }
        continues = !text.is_empty() && !is_trailing;
    }
    paragraphs
}

/// The comment of a line, empty without one, and true if code precedes it.
fn comment_of_line<'a>(line: &'a str, mark: &str) -> (&'a str, bool) {
    for (at, _) in line.match_indices(mark) {
        let code = &line[..at];
        // A `//` in a URL is no comment.
        if code.is_empty() || code.ends_with(char::is_whitespace) {
            return (line[at..].trim_start_matches(['/', '!', '-']), !code.trim().is_empty());
        }
    }
    ("", false)
}

/// Rule: prose has none of the [`HABITS`].
fn habits(files: &[Source]) -> Vec<String> {
    let paragraphs: Vec<_> = files.iter().map(|file| (&file.path, paragraphs(file))).collect();
    let mut violations = Vec::new();
    for habit in &HABITS {
        let mut places = Vec::new();
        for (path, paragraphs) in &paragraphs {
            for (line, text) in paragraphs {
                let count = text.matches(habit.phrase).count();
                places.extend((0..count).map(|_| format!("  {path}:{line}")));
            }
        }
        if !places.is_empty() {
            violations.push(format!(
                "\"{}\", better: {}:\n{}",
                habit.phrase,
                habit.instead,
                places.join("\n")
            ));
        }
    }
    violations
}

#[test]
fn prose_has_no_habits() {
    let mut files: Vec<_> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(read).into();
    for (directory, ending) in
        [("src", ".rs"), ("crates", ".rs"), ("tests", ".rs"), ("lua", ".lua"), ("docs", ".md")]
    {
        files.extend(all(directory, ending));
    }
    // The reference repeats the comments of `crates/config/src`; this file quotes the habits.
    let exempt = ["docs/src/configuration-reference.md", "tests/architecture/words.rs"];
    files.retain(|file| !exempt.contains(&&*file.path));
    assert_none(&habits(&files));
}

#[test]
fn habits_are_found_in_prose_only() {
    assert_breaks(habits, "src/a.rs", "/// It closes those\n/// that wait.", "");
    assert_breaks(habits, "src/a.rs", "let a = 1; // so many of it", "");
    assert_breaks(habits, "lua/a.lua", "-- A status of gRPC, too.", "");
    assert_breaks(habits, "README.md", "Frames of HTTP/2.", "");
    let code = "let a = \"those that\"; /// those\nlet b = 1; // that";
    assert_none(&habits(&[Source::new("src/a.rs", code)]));
    assert_none(&habits(&[Source::new("README.md", "```\nFrames of HTTP/2.\n```")]));
}

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
        ("crates", ".rs"),
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
