//! Faults of a configuration file: what is wrong, where, and what was expected.

use std::fmt;

use super::redact::{QuotedLine, redact_url_credentials};
use crate::escape::escape;

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
/// under the location. Whatever may be a credential is replaced with stars, there and in both texts.
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
        let line = QuotedLine::new(text, location.line);
        let column = location.column.saturating_sub(1);
        let columns = column..column.saturating_add(location.width.max(1));
        let shown = |text: &str| truncate(&escape(&line.hide(text, &columns)));
        Self {
            file: escape(file).into_owned(),
            location,
            what: shown(&redact_url_credentials(&mismatch.what)),
            expected: shown(&mismatch.expected),
            quote: line.shown,
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

/// Truncates the text to [`MAX_TEXT`] characters.
fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
