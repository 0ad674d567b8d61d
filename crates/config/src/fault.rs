//! Faults of a configuration file: what is wrong, where, and what was expected.

use std::fmt;

use tidegate_base::escape::escape;
use tidegate_base::sensitive::{MASK, mask_login};

use super::ConfigSource;
use super::file_text::FileText;
use super::location::Location;
use super::redact::{QuotedLine, Shown, redact_url_credentials};

/// Maximum length of a quoted line, in characters.
const MAX_QUOTE: usize = 160;
/// Fewest characters of a part of a variable's value that are hidden.
const MIN_PART: usize = 3;

/// One error in a configuration.
///
/// Displayed as `FILE:LINE:COLUMN: WHAT, expected EXPECTED`, followed by the quoted line with
/// carets under the location; a file that cannot be read has no line and column. Whatever may be a
/// credential is replaced with stars, there and in both texts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// The file's name, as the user gave it.
    pub file: String,
    /// The location of the fault.
    pub location: Location,
    /// What was found.
    pub what: Shown,
    /// What was expected instead.
    pub expected: Shown,
    /// The displayed line; `None` for a fault of the whole file, such as one that does not exist.
    quote: Option<Shown>,
}

impl Fault {
    pub(super) fn new(file: &FileText<'_>, location: Location, mismatch: &Mismatch) -> Self {
        let index = file.hidden_scalars(location.line);
        let line = QuotedLine::new(file.text(), &index, location);
        Self {
            file: escape(&mask_login(file.name())).into_owned(),
            location,
            what: line.show(&redact_url_credentials(&mismatch.what)),
            expected: line.show(&mismatch.expected),
            quote: Some(line.shown),
        }
    }

    /// A fault in a line of a file whose lines are the items of a list.
    pub(super) fn in_item(file: &str, item: &str, location: Location, mismatch: &Mismatch) -> Self {
        // In brackets, the line is a list, and the same values are hidden as in a list of YAML.
        let text = FileText::new(file, format!("[{item}]"));
        let in_list = Location { line: 1, column: location.column + 1, ..location };
        let fault = Self::new(&text, in_list, mismatch);
        let quote = fault.quote.as_ref().map(Shown::without_brackets);
        Self { location, quote, ..fault }
    }

    /// A fault of a file that cannot be read: it has no line.
    pub fn of_whole_file(file: &str, what: &str, expected: &str) -> Self {
        Self { quote: None, ..Self::of_file(file, what, expected) }
    }

    /// A fault of the content of the file named `file`, which has no line of its own.
    pub fn of_file(file: &str, what: &str, expected: &str) -> Self {
        let location = Location { line: 1, column: 1, width: 1 };
        Self::new(&FileText::new(file, ""), location, &Mismatch::new(what, expected))
    }

    /// The displayed part of the line, and the carets to print beneath it.
    fn excerpt(&self) -> (String, String) {
        let quote = self.quote.as_deref().unwrap_or_default();
        let length = quote.chars().count();
        let column = (self.location.column - 1).min(length);
        let start = if length > MAX_QUOTE { column.saturating_sub(MAX_QUOTE / 2) } else { 0 };
        let shown: String = quote.chars().skip(start).take(MAX_QUOTE).collect();
        let max_width = shown.chars().count().saturating_sub(column - start).max(1);
        let indent = shown.chars().take(column - start).map(|c| if c == '\t' { c } else { ' ' });
        let caret = indent.chain(std::iter::repeat_n('^', self.location.width.clamp(1, max_width)));
        let caret = caret.collect();
        (shown, caret)
    }
}

impl Fault {
    /// Where it is, what it is and what was expected, in one line.
    pub fn in_one_line(&self) -> String {
        let Location { line, column, .. } = self.location;
        let place = match self.quote {
            Some(_) => format!(":{line}:{column}"),
            None => String::new(),
        };
        format!("{}{place}: {}, expected {}", self.file, self.what, self.expected)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, caret) = self.excerpt();
        let number = self.location.line.to_string();
        let margin = " ".repeat(number.len());
        f.write_str(&self.in_one_line())?;
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

    /// These faults, of the file that the configuration `source` names at `path`, as it is written
    /// there.
    #[must_use]
    pub fn of_named_file(mut self, source: &ConfigSource, path: &str) -> Self {
        for fault in &mut self.0 {
            fault.file = source.as_written(path, std::mem::take(&mut fault.file));
        }
        self
    }

    /// The faults in one line, for a field of a log.
    pub fn in_one_line(&self) -> String {
        self.0.iter().map(Fault::in_one_line).collect::<Vec<_>>().join("; ")
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

    /// The texts without quoted parts of `text` that are no parts of what was `written`: they are
    /// from the environment, as the name of a variable in a template may be.
    pub(super) fn without(&self, text: &str, written: &str) -> Self {
        let shown = |message: &str| {
            // A backtick in the value would end the quotation.
            if text.contains('`') {
                return "this value".to_owned();
            }
            let parts = message.split('`').enumerate().map(|(index, part)| {
                let inner = part.strip_suffix("...").unwrap_or(part);
                let is_quoted = index % 2 == 1 && inner.chars().count() >= MIN_PART;
                let is_own = !inner.contains("${") && text.contains(inner);
                if is_quoted && is_own && !written.contains(inner) { MASK } else { part }
            });
            parts.collect::<Vec<_>>().join("`")
        };
        Self { what: shown(&self.what), expected: shown(&self.expected) }
    }
}
