//! Faults of a configuration file: what is wrong, where, and what was expected.

use std::borrow::Cow;
use std::fmt;

use crate::{
    escape::{escape, is_unprintable},
    sensitive::{is_sensitive_name, sensitive_parameters},
};

/// Maximum length of a quoted line, in characters.
const MAX_QUOTE: usize = 160;
/// Maximum length of a fault's `what` and `expected` each, in characters.
const MAX_TEXT: usize = 1_500;

/// A location in a file. Lines and columns count from 1, columns in characters, as in an editor.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Location {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The number of characters that the caret marks; at least 1.
    pub width: usize,
}

/// One error in a configuration.
///
/// Displayed as `FILE:LINE:COLUMN: WHAT, expected EXPECTED`, followed by the quoted line with carets
/// under the location. Passwords in URLs are replaced with stars.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// The file's name, as the user gave it.
    pub file: String,
    /// The location of the fault.
    pub location: Location,
    /// What was found.
    pub what: String,
    /// What was expected instead.
    pub expected: String,
    quote: String,
}

impl Fault {
    pub(super) fn new(file: &str, text: &str, location: Location, mismatch: &Mismatch) -> Self {
        let line = text.lines().nth(location.line - 1).unwrap_or_default();
        Self {
            file: escape(file).into_owned(),
            location,
            what: truncate(&escape(&redact_url_credentials(&mismatch.what))),
            expected: truncate(&escape(&mismatch.expected)),
            quote: redact_line(line),
        }
    }

    /// A fault of the whole file named `file`.
    pub fn of_file(file: &str, what: &str, expected: &str) -> Self {
        let location = Location { line: 1, column: 1, width: 1 };
        Self::new(file, "", location, &Mismatch::new(what, expected))
    }

    /// The displayed part of the line, and the carets to print beneath it.
    fn excerpt(&self) -> (String, String) {
        let length = self.quote.chars().count();
        let column = (self.location.column - 1).min(length);
        let start = if length > MAX_QUOTE { column.saturating_sub(MAX_QUOTE / 2) } else { 0 };
        let shown: String = self.quote.chars().skip(start).take(MAX_QUOTE).collect();
        let max_width = shown.chars().count().saturating_sub(column - start).max(1);
        let indent = shown.chars().take(column - start).map(|c| if c == '\t' { c } else { ' ' });
        let caret = indent.chain(std::iter::repeat_n('^', self.location.width.clamp(1, max_width)));
        let caret = caret.collect();
        (shown, caret)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { line, column, .. } = self.location;
        let (shown, caret) = self.excerpt();
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        write!(f, "{}:{line}:{column}: {}, expected {}", self.file, self.what, self.expected)?;
        if shown.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{margin} |")?;
        writeln!(f, "{number} | {shown}")?;
        write!(f, "{margin} | {caret}")
    }
}

/// All faults of a configuration, in the order of the file. Never empty.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Sorts and deduplicates `faults`; `None` if there are none.
    pub fn new(mut faults: Vec<Fault>) -> Option<Self> {
        faults.sort_by(|a, b| (a.location, &a.what).cmp(&(b.location, &b.what)));
        faults.dedup();
        (!faults.is_empty()).then_some(Self(faults))
    }

    /// These faults and `others`, in the file's order.
    #[must_use]
    pub fn merge(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self.0.sort_by(|a, b| (a.location, &a.what).cmp(&(b.location, &b.what)));
        self
    }

    /// The faults in the file's order.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.0.iter()
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in self {
            writeln!(f, "{fault}\n")?;
        }
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "{} fault{plural} found", self.0.len())
    }
}

/// What was found and what was expected: a fault without its location.
#[derive(Clone, Debug)]
pub(super) struct Mismatch {
    pub(super) what: String,
    pub(super) expected: String,
}

impl Mismatch {
    pub(super) fn new(what: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { what: what.into(), expected: expected.into() }
    }
}

/// Replaces unprintable characters, passwords and secrets in the line; the columns stay the same.
fn redact_line(line: &str) -> String {
    let printable: String =
        line.chars().map(|c| if is_unprintable(c) && c != '\t' { '\u{fffd}' } else { c }).collect();
    let mut line = redact_secret_values(&redact_url_credentials(&printable));
    for value in sensitive_parameters(&line).into_iter().rev() {
        let stars = "*".repeat(line[value.clone()].chars().count());
        line.replace_range(value, &stars);
    }
    line
}

/// Truncates the text to [`MAX_TEXT`] characters.
fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Keys with names like those of credentials, whose values are harmless.
const HARMLESS_KEYS: [&str; 6] =
    ["auth_optional", "credentials", "forward_credentials", "hash_key", "key", "max_keys"];
/// Prefixes of values that only name where a credential is.
const REFERENCES: [&str; 5] = ["env:", "file:", "header:", "cookie:", "query:"];

/// Replaces everything after the first sensitive key with stars, unless its value is a reference such as
/// `env:NAME`.
fn redact_secret_values(text: &str) -> String {
    let mut values = text.match_indices(':').map(|(colon, _)| text.split_at(colon + 1));
    let found = values.find(|(before, value)| {
        let before = &before[..before.len() - 1];
        let is_quoted = before.ends_with(['"', '\'']);
        let key = before.trim_end_matches([' ', '\t', '"', '\'']);
        let start = key.rfind(|c: char| !c.is_alphanumeric() && !"-_.".contains(c));
        let key =
            start.map_or(key, |at| key[at..].trim_start_matches(|c: char| !c.is_alphanumeric()));
        // `header:x-token` is one value.
        let is_key =
            is_quoted || value.is_empty() || value.starts_with([' ', '\t', '"', '\'', '[', '{']);
        let reference = value.trim_start_matches([' ', '\t', '"', '\'', '[']);
        let is_secret = ["password", "secret"].iter().any(|word| key.contains(word));
        is_key
            && is_sensitive_name(key)
            && !HARMLESS_KEYS.contains(&key)
            && !REFERENCES.iter().any(|start| reference.starts_with(start))
            && (is_secret || !is_definition(value.trim_start()))
    });
    match found.map(|(before, _)| before.len()) {
        None => text.to_owned(),
        Some(start) => {
            let (value, closing) =
                text[start..].split_at(text.len() - start - closing(text, start));
            let stars = value.chars().map(|c| if c.is_whitespace() { c } else { '*' });
            text[..start].chars().chain(stars).chain(closing.chars()).collect()
        }
    }
}

/// The number of braces and brackets at the end of the line that close ones opened before `start`. They are
/// not part of an unquoted value.
fn closing(text: &str, start: usize) -> usize {
    let is_opening = |c: char| matches!(c, '{' | '[');
    let is_closing = |c: char| matches!(c, '}' | ']');
    let (before, value) = text.split_at(start);
    let opened = before.matches(is_opening).count();
    let open = opened.saturating_sub(before.matches(is_closing).count());
    value.bytes().rev().take(open).take_while(|byte| is_closing(char::from(*byte))).count()
}

/// True for a mapping, a list or a rate: the value of a limit that is named like a credential, such as
/// `per-token`. Rates of other gateways count as well, such as `100r/s`.
fn is_definition(value: &str) -> bool {
    value.starts_with(['{', '[']) || is_like_rate(value)
}

fn is_like_rate(value: &str) -> bool {
    let end = |c: char| c.is_whitespace() || ",}]#".contains(c);
    let word = value.split(end).next().unwrap_or_default();
    let after_digits = word.trim_start_matches(|c: char| c.is_ascii_digit());
    let Some((unit, time)) = after_digits.split_once('/') else { return false };
    let is_unit = |unit: &str| unit.len() <= 8 && unit.bytes().all(|b| b.is_ascii_alphabetic());
    let is_time = time.len() <= 8 && time.bytes().all(|b| b.is_ascii_alphanumeric());
    after_digits.len() < word.len() && is_unit(unit) && is_time
}

/// Replaces everything between the scheme of the first URL and the last `@` with stars. This may hide more
/// than the credentials, but never shows part of a password with a quote, a comma or a space.
pub(super) fn redact_url_credentials(text: &str) -> Cow<'_, str> {
    let credentials = text.find("://").map(|scheme| scheme + 3).zip(text.rfind('@'));
    match credentials.filter(|(start, end)| start < end) {
        None => Cow::Borrowed(text),
        Some((start, end)) => {
            let stars = "*".repeat(text[start..end].chars().count());
            Cow::Owned([&text[..start], &stars, &text[end..]].concat())
        }
    }
}
