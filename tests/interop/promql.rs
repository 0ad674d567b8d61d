//! The metrics that an expression of PromQL reads.

use std::collections::BTreeSet;

/// Words that are neither metrics nor functions.
const KEYWORDS: [&str; 14] = [
    "and",
    "bool",
    "by",
    "group_left",
    "group_right",
    "ignoring",
    "inf",
    "nan",
    "offset",
    "on",
    "or",
    "unless",
    "without",
    "atan2",
];

/// Keywords that a list of labels follows.
const BEFORE_LABELS: [&str; 6] = ["by", "group_left", "group_right", "ignoring", "on", "without"];

/// The names of the metrics in an expression.
pub(crate) fn metric_names(expression: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        if let Some(close) = matching(first) {
            rest = after(&rest[1..], close);
        } else if is_word_start(first) {
            let end = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
            let (word, more) = rest.split_at(end);
            rest = more.trim_start();
            if BEFORE_LABELS.contains(&word) {
                rest = rest.strip_prefix('(').map_or(rest, |labels| after(labels, ')'));
            } else if !KEYWORDS.contains(&word) && !is_call(rest) {
                names.insert(word.to_owned());
            }
        } else if first.is_ascii_digit() {
            // Skips the unit of a duration as well.
            rest =
                rest.trim_start_matches(|char: char| char.is_ascii_alphanumeric() || char == '.');
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    names
}

/// True if a word before this text is a function or an aggregation.
fn is_call(rest: &str) -> bool {
    let next = rest.split(|char| !is_word(char)).next();
    rest.starts_with('(') || matches!(next, Some("by" | "without"))
}

/// The closing character of a part without metrics: a text, a selector or a range.
fn matching(open: char) -> Option<char> {
    match open {
        '"' | '\'' => Some(open),
        '{' => Some('}'),
        '[' => Some(']'),
        _ => None,
    }
}

fn after(text: &str, close: char) -> &str {
    text.split_once(close).map_or("", |(_, rest)| rest)
}

fn is_word_start(char: char) -> bool {
    char.is_ascii_alphabetic() || char == '_' || char == ':'
}

fn is_word(char: char) -> bool {
    is_word_start(char) || char.is_ascii_digit()
}

#[test]
fn names_are_found_beside_functions_labels_and_texts() {
    for (expression, names) in [
        ("up{job=\"a_b\"} == 0", &["up"][..]),
        (
            "sum by (job, le) (rate(a_bucket[5m])) / on (job) c_total > 0.05",
            &["a_bucket", "c_total"],
        ),
        ("histogram_quantile(0.99, sum(rate(a[5m])) by (le)) > 1", &["a"]),
        ("time() - b_seconds > 14 * 86400 offset 5m", &["b_seconds"]),
        ("1e3 * c or vector(0) unless on () d", &["c", "d"]),
    ] {
        let found: Vec<_> = metric_names(expression).into_iter().collect();
        assert_eq!(found, names, "{expression}");
    }
}
