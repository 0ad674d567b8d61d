//! The file of consumers: a list of records in YAML, or a record in JSON in each line.
//!
//! A file may have a million records, for which a tree of the whole document would take seconds and
//! gigabytes. So they are read one by one: by the events of the YAML parser, or line by line.
//! References to environment variables are not replaced.

mod events;
mod json_lines;

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_base::sensitive::mask_forms;

use self::events::EventReader;
use super::MAX_FAULTS;
use super::fault::{Fault, Mismatch};
use super::file_text::FileText;
use super::located::{control_character, quote_value};
use super::location::Location;

/// Length of the shortest record, `- name: a`, in bytes.
const MIN_RECORD: usize = 10;
/// What a file contains.
const LIST: &str = "a list of consumers, or `[]` for none";

/// A record of a consumer. Its values have been read, and not checked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ConsumerRecord<'t> {
    /// The consumer's name.
    pub name: Cow<'t, str>,
    /// The name of its plan.
    pub plan: Option<Cow<'t, str>>,
    /// The first day of its months, as it is written.
    pub billing_day: Option<Cow<'t, str>>,
    /// Its keys.
    pub keys: SmallVec<[KeyRecord<'t>; 1]>,
    /// A hash of its password.
    pub password: Option<Cow<'t, str>>,
    /// True if its requests are refused.
    pub is_disabled: bool,
}

/// A key in a record.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyRecord<'t> {
    /// The name of the key, for operators.
    pub id: Option<Cow<'t, str>>,
    /// The SHA-256 of the key, in hexadecimal digits.
    pub sha256: Cow<'t, str>,
    /// When it ceases to be valid.
    pub expires: Option<Cow<'t, str>>,
}

/// A value of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecordPart {
    /// The consumer's name.
    Name,
    /// Its plan.
    Plan,
    /// The first day of its months.
    BillingDay,
    /// The name of the key with this index.
    KeyId(usize),
    /// The hash of the key with this index.
    KeyHash(usize),
    /// The expiry of the key with this index.
    KeyExpiry(usize),
    /// The hash of its password.
    Password,
}

/// A value of a record that cannot be used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecordFault {
    /// The value.
    pub part: RecordPart,
    /// What was found.
    pub what: String,
    /// What was expected instead.
    pub expected: String,
}

impl RecordFault {
    /// A fault of `part`. What has the form of a credential is masked.
    pub fn new(part: RecordPart, what: &str, expected: &str) -> Self {
        let [what, expected] = [what, expected].map(|text| mask_forms(text).into_owned());
        Self { part, what, expected }
    }
}

/// The places of a record's values.
#[derive(Debug, Default)]
struct RecordPlaces {
    name: Option<Location>,
    plan: Option<Location>,
    billing_day: Option<Location>,
    keys: SmallVec<[KeyPlaces; 1]>,
    password: Option<Location>,
}

/// The places of a key's values.
#[derive(Clone, Copy, Debug, Default)]
struct KeyPlaces {
    id: Option<Location>,
    sha256: Option<Location>,
    expires: Option<Location>,
}

/// A record, and the places of its values.
#[derive(Debug, Default)]
struct PlacedRecord<'t> {
    record: ConsumerRecord<'t>,
    places: RecordPlaces,
}

/// Receives the records of a file.
pub trait RecordSink {
    /// Adds the record that begins in `line`. Returns its faults, with which the file cannot be
    /// used.
    fn add(&mut self, record: &ConsumerRecord<'_>, line: usize) -> Vec<RecordFault>;

    /// Prepares for about this number of records. Called before the first one.
    fn reserve(&mut self, records: usize) {
        let _ = records;
    }
}

/// The text of a file of consumers.
#[derive(Clone, Copy, Debug)]
pub struct ConsumersText<'t> {
    /// The file's name, as the operator gave it.
    pub name: &'t str,
    /// Its content.
    pub text: &'t str,
}

/// What went wrong while a text is read.
struct FileFaults<'t> {
    file: FileText<'t>,
    faults: Vec<Fault>,
}

impl<'t> FileFaults<'t> {
    fn of(file: ConsumersText<'t>) -> Self {
        Self { file: FileText::new(file.name, file.text), faults: Vec::new() }
    }

    fn add(&mut self, location: Location, mismatch: &Mismatch) {
        if !self.is_full() {
            self.faults.push(Fault::new(&self.file, location, mismatch));
        }
    }

    /// Adds a fault of the record in JSON that is this line.
    fn add_in_line(&mut self, line: &str, location: Location, mismatch: &Mismatch) {
        if !self.is_full() {
            self.faults.push(Fault::in_item(self.file.name(), line, location, mismatch));
        }
    }

    fn is_full(&self) -> bool {
        self.faults.len() >= MAX_FAULTS
    }

    /// Passes a complete record on, and reports its faults.
    fn pass_on(&mut self, placed: &PlacedRecord<'_>, line: usize, sink: &mut dyn RecordSink) {
        for RecordFault { part, what, expected } in sink.add(&placed.record, line) {
            let start = Location { line, column: 1, width: 1 };
            let location = placed.places.of(part).unwrap_or(start);
            self.add(location, &Mismatch::new(what, expected));
        }
    }
}

impl RecordPlaces {
    fn of(&self, part: RecordPart) -> Option<Location> {
        match part {
            RecordPart::Name => self.name,
            RecordPart::Plan => self.plan,
            RecordPart::BillingDay => self.billing_day,
            RecordPart::Password => self.password,
            RecordPart::KeyId(index) => self.keys.get(index)?.id,
            RecordPart::KeyHash(index) => self.keys.get(index)?.sha256,
            RecordPart::KeyExpiry(index) => self.keys.get(index)?.expires,
        }
    }
}

impl ConsumersText<'_> {
    /// Passes the records to `sink`; returns the faults, at most 50.
    pub fn read(self, sink: &mut dyn RecordSink) -> Vec<Fault> {
        let mut faults = FileFaults::of(self);
        if let Some((location, mismatch)) = control_character(self.text) {
            faults.add(location, &mismatch);
            return faults.faults;
        }
        if is_blank(self.text) {
            // Probably a program has truncated it, and is about to write it. A list without
            // consumers is `[]`.
            let start = Location { line: 1, column: 1, width: 1 };
            faults.add(start, &Mismatch::new("the file has no content", LIST));
            return faults.faults;
        }
        // At most as many as fit, because the text may be no list of records.
        let is_json = json_lines::is_json(self.text);
        let start: &[u8] = if is_json { b"\n{" } else { b"\n- " };
        let starts = memchr::memmem::find_iter(self.text.as_bytes(), start).count() + 1;
        sink.reserve(starts.min(self.text.len() / MIN_RECORD));
        if is_json {
            json_lines::read(self.text, sink, &mut faults);
        } else if let Err((location, mismatch)) =
            EventReader::new(self.text).read(sink, &mut faults)
        {
            faults.add(location, &mismatch);
        }
        faults.faults
    }
}

/// True if the text has nothing but blank lines, comments and the mark of a document's start.
fn is_blank(text: &str) -> bool {
    let mut lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines().map(str::trim);
    lines.all(|line| line.is_empty() || line.starts_with('#') || line == "---")
}

/// The fault of a value that is not what a record has there.
fn mismatch(found: &str, expected: &str) -> Mismatch {
    Mismatch::new(format!("`{}`", quote_value(found)), expected)
}

#[cfg(test)]
mod tests;
