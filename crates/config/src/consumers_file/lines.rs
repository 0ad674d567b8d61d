//! Reads records that are written as usual: a key in a line, plain or simply quoted values, the
//! keys of a consumer as a list of mappings. It is several times faster than the events of the YAML
//! parser.
//!
//! A record ends where the next line begins with `- `. A record that is written in another way is
//! read by its events, alone; if that fails, the whole file is.

use std::borrow::Cow;

use super::super::location::Location;
use super::events::EventReader;
use super::{FileFaults, KeyPlaces, KeyRecord, PlacedRecord, RecordSink};

/// Reads all records. Returns false if the file is not a list whose records can be read one by one.
pub(super) fn read(text: &str, sink: &mut dyn RecordSink, faults: &mut FileFaults<'_>) -> bool {
    let mut lines = TextLines { text, at: 0, number: 0 };
    while let Some(line) = lines.peek() {
        if is_start(line) {
            break;
        }
        if !(is_ignored(line) || line == "---" && lines.is_unmarked()) {
            return false;
        }
        lines.advance(line);
    }
    let has_record = lines.at < text.len();
    while lines.at < text.len() && !faults.is_full() {
        let first = Position { at: lines.at, line: lines.number };
        lines.skip_record();
        let record = &text[first.at..lines.at];
        match RecordLines::read(record, first.line) {
            Some(placed) => faults.pass_on(&placed, first.line + 1, sink),
            None if has_mark(record) => return false,
            None if EventReader::new(record, first.line).read(sink, faults).is_err() => {
                return faults.is_full();
            }
            None => {}
        }
    }
    has_record
}

/// True for the first line of a record.
fn is_start(line: &str) -> bool {
    line.starts_with("- ") || line == "-"
}

/// True for an empty line and a comment.
fn is_ignored(line: &str) -> bool {
    let text = line.trim_start_matches(' ');
    text.is_empty() || text.starts_with('#')
}

/// True if a line of the record is a document's mark or a directive, after which other rules apply.
fn has_mark(record: &str) -> bool {
    record.lines().any(|line| ["---", "...", "%"].iter().any(|mark| line.starts_with(mark)))
}

/// Where a record begins.
struct Position {
    /// The offset in the text, in bytes.
    at: usize,
    /// The number of lines before it.
    line: usize,
}

/// A cursor over the lines of a text.
struct TextLines<'t> {
    text: &'t str,
    /// The offset of the next line, in bytes.
    at: usize,
    /// The number of lines before it.
    number: usize,
}

impl<'t> TextLines<'t> {
    /// The next line, without its line feed; `None` at the end.
    fn peek(&self) -> Option<&'t str> {
        let rest = &self.text[self.at..];
        if rest.is_empty() {
            return None;
        }
        Some(memchr::memchr(b'\n', rest.as_bytes()).map_or(rest, |end| &rest[..end]))
    }

    /// Passes `line`, the next one.
    fn advance(&mut self, line: &str) {
        self.at = (self.at + line.len() + 1).min(self.text.len());
        self.number += 1;
    }

    /// Passes the record that begins here.
    fn skip_record(&mut self) {
        if let Some(line) = self.peek() {
            self.advance(line);
        }
        while let Some(line) = self.peek().filter(|line| !is_start(line)) {
            self.advance(line);
        }
    }

    /// True if no line so far is a document's mark.
    fn is_unmarked(&self) -> bool {
        !self.text[..self.at].lines().any(|line| line == "---")
    }
}

/// Reads the lines of one record.
struct RecordLines<'t> {
    placed: PlacedRecord<'t>,
    /// The number of the line that is read.
    line: usize,
    has_flag: bool,
    list: KeyList,
    labels: Labels,
}

/// The state of a record's keys.
#[derive(Clone, Copy, Eq, PartialEq)]
enum KeyList {
    Absent,
    /// `keys:` was the last line.
    Open,
    /// The last key, whose dash has this indentation, may have further lines.
    Block(usize),
    /// The last key, whose dash has this indentation, is complete.
    Flow(usize),
    Closed,
}

/// The state of a record's labels.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Labels {
    Absent,
    Open,
    Closed,
}

/// A key and its value.
struct Entry<'t> {
    key: &'t str,
    value: &'t str,
    /// Where the value begins in its line, in characters.
    column: usize,
}

impl<'t> RecordLines<'t> {
    /// Reads a record; `None` if it is written in another way.
    fn read(text: &'t str, lines_before: usize) -> Option<PlacedRecord<'t>> {
        let mut reader = Self {
            placed: PlacedRecord::default(),
            line: lines_before,
            has_flag: false,
            list: KeyList::Absent,
            labels: Labels::Absent,
        };
        let mut lines = TextLines { text, at: 0, number: lines_before };
        while let Some(line) = lines.peek() {
            lines.advance(line);
            reader.line += 1;
            if !is_ignored(line) {
                reader.read_line(line)?;
            }
        }
        let have_hashes = reader.placed.places.keys.iter().all(|key| key.sha256.is_some());
        (reader.placed.places.name.is_some() && have_hashes).then_some(reader.placed)
    }

    fn read_line(&mut self, line: &'t str) -> Option<()> {
        // Other characters would make a column another one than the byte.
        if !are_all(line, |byte| matches!(byte, b' '..=b'~')) {
            return None;
        }
        let indent = line.len() - line.trim_start_matches(' ').len();
        let rest = &line[indent..];
        match (indent, rest.strip_prefix("- ")) {
            (0, Some(first)) => self.read_field(&Entry::read(first, 2)?),
            (2 | 4, Some(item)) if self.opens_key(indent) => self.begin_key(item, indent + 2),
            (2, None) => self.read_field(&Entry::read(rest, 2)?),
            (4 | 6, None) if self.continues_key(indent) => {
                self.read_key_field(&Entry::read(rest, indent)?)
            }
            (4, None) if self.labels == Labels::Open => {
                let Entry { key, value, .. } = Entry::read(rest, indent)?;
                scalar(key).and(scalar(value)).map(|_| ())
            }
            _ => None,
        }
    }

    /// True if a dash at `indent` begins a key.
    fn opens_key(&self, indent: usize) -> bool {
        match self.list {
            KeyList::Open => true,
            KeyList::Block(before) | KeyList::Flow(before) => before == indent,
            KeyList::Absent | KeyList::Closed => false,
        }
    }

    /// True if a line with this indentation belongs to the last key.
    fn continues_key(&self, indent: usize) -> bool {
        matches!(self.list, KeyList::Block(dash) if dash + 2 == indent)
    }

    fn read_field(&mut self, entry: &Entry<'t>) -> Option<()> {
        let place = Some(self.place(entry));
        if self.list != KeyList::Absent {
            self.list = KeyList::Closed;
        }
        if self.labels == Labels::Open {
            self.labels = Labels::Closed;
        }
        match entry.key {
            "name" if self.placed.places.name.is_none() => {
                self.placed.record.name = Cow::Borrowed(scalar(entry.value)?);
                self.placed.places.name = place;
            }
            "plan" if self.placed.places.plan.is_none() => {
                self.placed.record.plan = Some(Cow::Borrowed(scalar(entry.value)?));
                self.placed.places.plan = place;
            }
            "billing_day" if self.placed.places.billing_day.is_none() => {
                self.placed.record.billing_day = Some(Cow::Borrowed(scalar(entry.value)?));
                self.placed.places.billing_day = place;
            }
            "password" if self.placed.places.password.is_none() => {
                let hash = password_hash(entry.value).or_else(|| scalar(entry.value))?;
                self.placed.record.password = Some(Cow::Borrowed(hash));
                self.placed.places.password = place;
            }
            "disabled" if !self.has_flag => {
                self.has_flag = true;
                self.placed.record.is_disabled = match entry.value {
                    "true" => true,
                    "false" => false,
                    _ => return None,
                };
            }
            "keys" if self.list == KeyList::Absent && entry.value.is_empty() => {
                self.list = KeyList::Open;
            }
            "labels" if self.labels == Labels::Absent && entry.value.is_empty() => {
                self.labels = Labels::Open;
            }
            "labels" if self.labels == Labels::Absent => {
                self.labels = Labels::Closed;
                for label in FlowEntries::new(entry.value, entry.column)? {
                    let Entry { key, value, .. } = label?;
                    scalar(key).and(scalar(value))?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Begins a key with the item after its dash; `column` is where the item begins.
    fn begin_key(&mut self, item: &'t str, column: usize) -> Option<()> {
        self.placed.record.keys.push(KeyRecord::default());
        self.placed.places.keys.push(KeyPlaces::default());
        if !item.starts_with('{') {
            self.list = KeyList::Block(column - 2);
            return self.read_key_field(&Entry::read(item, column)?);
        }
        self.list = KeyList::Flow(column - 2);
        for entry in FlowEntries::new(item, column)? {
            self.read_key_field(&entry?)?;
        }
        Some(())
    }

    fn read_key_field(&mut self, entry: &Entry<'t>) -> Option<()> {
        let place = self.place(entry);
        let key = self.placed.record.keys.last_mut()?;
        let places = self.placed.places.keys.last_mut()?;
        let value = Cow::Borrowed(scalar(entry.value)?);
        match entry.key {
            "id" if places.id.is_none() => (key.id, places.id) = (Some(value), Some(place)),
            "sha256" if places.sha256.is_none() => {
                (key.sha256, places.sha256) = (value, Some(place));
            }
            "expires" if places.expires.is_none() => {
                (key.expires, places.expires) = (Some(value), Some(place));
            }
            _ => return None,
        }
        Some(())
    }

    fn place(&self, entry: &Entry<'_>) -> Location {
        let width = entry.value.len().max(1);
        Location { line: self.line, column: entry.column + 1, width }
    }
}

impl<'t> Entry<'t> {
    /// Reads `KEY: VALUE` or `KEY:`, which begins at `column`.
    fn read(text: &'t str, column: usize) -> Option<Self> {
        let colon = memchr::memchr(b':', text.as_bytes())?;
        let (key, rest) = (&text[..colon], &text[colon + 1..]);
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_plain_key = !key.is_empty() && key.bytes().all(is_plain);
        let value = rest.trim_start_matches(' ');
        let column = column + text.len() - value.len();
        is_plain_key.then_some(Self { key, value: value.trim_end_matches(' '), column })
    }
}

/// The entries of `{KEY: VALUE, ...}`, whose values have no comma, brace or bracket. An item is
/// `None` if an entry is written in another way.
struct FlowEntries<'t> {
    rest: Option<&'t str>,
    column: usize,
}

impl<'t> FlowEntries<'t> {
    fn new(text: &'t str, column: usize) -> Option<Self> {
        let inner = text.trim_end_matches(' ').strip_prefix('{')?.strip_suffix('}')?;
        let is_simple = !inner.bytes().any(|byte| matches!(byte, b'{' | b'}' | b'[' | b']'));
        is_simple.then_some(Self { rest: Some(inner), column: column + 1 })
    }
}

impl<'t> Iterator for FlowEntries<'t> {
    type Item = Option<Entry<'t>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest?;
        let end = memchr::memchr(b',', rest.as_bytes());
        let entry = &rest[..end.unwrap_or(rest.len())];
        let text = entry.trim_start_matches(' ');
        let column = self.column + entry.len() - text.len();
        self.rest = end.map(|end| &rest[end + 1..]);
        self.column += entry.len() + 1;
        Some(Entry::read(text, column))
    }
}

/// The text of a plain hash of a password; `None` for another value.
fn password_hash(value: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"$,=+./-".contains(&byte);
    (value.starts_with('$') && value.bytes().all(is_plain)).then_some(value)
}

/// True if all bytes of `text` pass. Without an early end, which would check one byte at a time.
fn are_all(text: &str, passes: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(true, |all, byte| all & passes(byte))
}

/// The text of a scalar that every YAML parser reads alike, and as text; `None` for another one.
fn scalar(value: &str) -> Option<&str> {
    for quote in ['"', '\''] {
        if let Some(rest) = value.strip_prefix(quote) {
            let inner = rest.strip_suffix(quote)?;
            let is_simple = !inner.bytes().any(|byte| matches!(byte, b'"' | b'\'' | b'\\'));
            return is_simple.then_some(inner);
        }
    }
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() | matches!(byte, b'+' | b'-'..=b':' | b'=' | b'@' | b'_')
    };
    let is_text = are_all(value, is_plain)
        && value.as_bytes().first()?.is_ascii_alphanumeric()
        && !value.ends_with(':')
        && !matches!(value, "null" | "Null" | "NULL");
    is_text.then_some(value)
}
