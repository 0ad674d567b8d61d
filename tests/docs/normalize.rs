//! Replaces text that differs from run to run: dates, times, ids, waits, versions.

/// `line` with the number after each `label` replaced.
fn after_label(line: &str, label: &str) -> String {
    let mut parts = line.split(label);
    let mut normal = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let has_number = rest.len() < part.len();
        normal += label;
        normal += if has_number { "N" } else { "" };
        normal += rest;
    }
    normal
}

/// Labels whose number depends on the moment, and `content-length`, which depends on the others.
const LABELS: [&str; 11] = [
    "retry-after: ",
    "\"retry-after\":",
    "retry in ",
    "try again in ",
    "content-length: ",
    "\"duration_ms\":",
    "\"upstream_ms\":",
    "\"ticks\":",
    "\"now_ms\":",
    "curl/",
    "\"time\":\"",
];

/// Replaces an id (hexadecimal, 16 digits or more) or a time (in s or ms since 1970).
fn normalize_word(word: &str) -> &str {
    let is_hex = word.chars().all(|c| c.is_ascii_hexdigit());
    let is_number = word.chars().all(|c| c.is_ascii_digit());
    if is_number && [10, 13].contains(&word.len()) && word.starts_with('1') {
        "TIME"
    } else if is_hex && word.len() >= 16 {
        "ID"
    } else {
        word
    }
}

/// Replaces everything in `line` that differs from run to run.
pub(crate) fn normalize_line(line: &str) -> String {
    if line.to_ascii_lowercase().starts_with("date: ") {
        return "date: DATE".to_owned();
    }
    let mut normal =
        LABELS.iter().fold(line.trim_end().to_owned(), |line, label| after_label(&line, label));
    if let Some(at) = normal.find("\"time\":\"N") {
        // The rest of a date, up to its quote.
        let begin = at + "\"time\":\"N".len();
        let end = begin + normal[begin..].find('"').unwrap_or(0);
        normal.replace_range(begin..end, "");
    }
    let mut words = String::new();
    let mut begin = 0;
    for (at, c) in normal.char_indices().chain([(normal.len(), ' ')]) {
        if !c.is_ascii_alphanumeric() {
            words += normalize_word(&normal[begin..at]);
            words.extend((at < normal.len()).then_some(c));
            begin = at + c.len_utf8();
        }
    }
    words
}

/// Whether the lines of `actual` are those of `expected`; a line `...` stands for any number of
/// lines.
pub(crate) fn matches(expected: &[&str], actual: &[&str]) -> bool {
    match (expected, actual) {
        ([], []) => true,
        (["...", rest @ ..], _) => (0..=actual.len()).any(|at| matches(rest, &actual[at..])),
        ([first, expected @ ..], [own, actual @ ..]) => {
            normalize_line(first) == normalize_line(own) && matches(expected, actual)
        }
        _ => false,
    }
}

#[test]
fn varying_text_is_replaced() {
    for (text, normal) in [
        ("Date: Sat, 21 Nov 2026 06:56:53 GMT", "date: DATE"),
        ("x-ratelimit-reset: 1795244222", "x-ratelimit-reset: TIME"),
        ("x-ratelimit-limit: 100", "x-ratelimit-limit: 100"),
        ("retry-after: 11", "retry-after: N"),
        ("x-request-id: 520e7ab9db66c88e2b71a8d7bc122259", "x-request-id: ID"),
        ("{\"time\":\"2026-11-22T10:00:00.123Z\",\"a\":1}", "{\"time\":\"N\",\"a\":1}"),
        ("via: 1.1 tidegate-dd4af86b4f8e6310", "via: 1.1 tidegate-ID"),
        ("\"duration_ms\":0.25,", "\"duration_ms\":N,"),
    ] {
        assert_eq!(normalize_line(text), normal);
    }
}

#[test]
fn dots_stand_for_any_lines() {
    assert!(matches(&["a", "...", "d"], &["a", "b", "c", "d"]));
    assert!(matches(&["a", "..."], &["a"]));
    assert!(!matches(&["a", "...", "d"], &["a", "b"]));
    assert!(!matches(&["a"], &["a", "b"]));
}
