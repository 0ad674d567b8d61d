//! [`FileText`]: a file's name and text, and the scalars in it that its faults must not quote.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use super::hidden_scalars::ScalarIndex;

/// Longest text that is read from its beginning, in bytes. Files of consumers may have a million
/// records.
const MAX_WHOLE: usize = 256 << 10;
/// Number of bytes of a longer text that are read on either side of the fault's line.
const MAX_WINDOW: usize = 32 << 10;

/// A file that faults may be about.
pub(super) struct FileText<'t> {
    name: Cow<'t, str>,
    text: Cow<'t, str>,
    /// The hidden scalars of the whole text. The first fault makes it, and all others use it.
    index: OnceLock<ScalarIndex>,
}

impl<'t> FileText<'t> {
    /// The file with this name, as the user gave it, and this text.
    pub(super) fn new(name: impl Into<Cow<'t, str>>, text: impl Into<Cow<'t, str>>) -> Self {
        Self { name: name.into(), text: text.into(), index: OnceLock::new() }
    }

    /// The file's name, as the user gave it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The file's text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The hidden scalars of the text; of a long text, those around `line`.
    pub(super) fn hidden_scalars(&self, line: usize) -> Cow<'_, ScalarIndex> {
        if self.text.len() <= MAX_WHOLE {
            return Cow::Borrowed(self.index.get_or_init(|| ScalarIndex::of(&self.text, 0)));
        }
        let window = window(&self.text, line);
        let lines_before = memchr::memchr_iter(b'\n', &self.text.as_bytes()[..window.start]);
        Cow::Owned(ScalarIndex::of(&self.text[window], lines_before.count()))
    }
}

/// The bytes to read for a fault in `line` of a long text: the records around it.
fn window(text: &str, line: usize) -> Range<usize> {
    let newlines = memchr::memchr_iter(b'\n', text.as_bytes());
    let at = match line {
        0 | 1 => 0,
        _ => newlines.clone().nth(line - 2).map_or(text.len(), |at| at + 1),
    };
    let is_outer = |byte: u8| byte == b'-' || byte.is_ascii_alphabetic();
    let begins = |at: usize| text.as_bytes().get(at).copied().is_some_and(is_outer);
    let lowest = at.saturating_sub(MAX_WINDOW);
    let starts = memchr::memrchr_iter(b'\n', &text.as_bytes()[lowest..at]);
    let mut starts = std::iter::once(at).chain(starts.map(|newline| lowest + newline + 1));
    let start = starts.find(|start| begins(*start)).unwrap_or(at);
    let ends = memchr::memchr_iter(b'\n', &text.as_bytes()[at..]).map(|newline| at + newline + 1);
    let mut ends = ends.skip_while(|end| !begins(*end) && end - at < MAX_WINDOW);
    start..ends.next().unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::super::hidden_scalars::Relation;
    use super::super::location::Location;
    use super::*;

    #[test]
    fn a_long_text_is_read_around_the_fault() {
        let record = "- name: a\n  keys:\n    - hush\n";
        let text = record.repeat(100_000);
        let file = FileText::new("c.yaml", text);
        let index = file.hidden_scalars(3 * 50_000);
        let fault = Location { line: 3 * 50_000, column: 7, width: 4 };
        let found: Vec<_> = index.related_to(fault).collect();
        let [found] = &found[..] else { panic!("{found:?}") };
        assert_eq!(found.scalar.columns_in(150_000), Some(6..10));
        assert_eq!(found.relation, Relation::Same);
    }

    #[test]
    fn faults_of_a_file_share_one_reading() {
        let file = FileText::new("c.yaml", "password: hush\nother: 1\n");
        let [first, last] = [1, 2].map(|line| match file.hidden_scalars(line) {
            Cow::Borrowed(index) => std::ptr::from_ref(index),
            Cow::Owned(index) => panic!("{index:?}"),
        });
        assert!(std::ptr::eq(first, last));
    }
}
