//! Reads records in JSON, one in a line: the form of files that programs write, and several times
//! as fast as YAML.

use super::super::consumers::ConsumerConfig;
use super::super::fault::Mismatch;
use super::super::json_error::json_mistake;
use super::super::location::Location;
use super::{FileFaults, RecordSink};

/// What a line contains.
const RECORD: &str = "a record in each line, such as `{\"name\": \"acme\"}`";

/// True if the text has records in JSON: its first character that is not white space begins an
/// object.
pub(super) fn is_json(text: &str) -> bool {
    without_mark(text).trim_start().starts_with('{')
}

/// Reads all records. Empty lines are ignored.
pub(super) fn read(text: &str, sink: &mut dyn RecordSink, faults: &mut FileFaults<'_>) {
    for (index, line) in without_mark(text).lines().enumerate() {
        if faults.is_full() {
            return;
        }
        if !line.trim().is_empty() {
            read_line(line, index + 1, sink, faults);
        }
    }
}

fn read_line(line: &str, number: usize, sink: &mut dyn RecordSink, faults: &mut FileFaults<'_>) {
    let at = |column| Location { line: number, column, width: 1 };
    // The library would read a list as the values of a record.
    if !line.trim_start().starts_with('{') {
        faults.add_in_line(line, at(1), &Mismatch::new("no object in JSON", RECORD));
        return;
    }
    match serde_json::from_str::<ConsumerConfig>(line) {
        Ok(consumer) => {
            for fault in sink.add(&consumer.record(), number) {
                let mismatch = Mismatch::new(fault.what, fault.expected);
                faults.add_in_line(line, at(1), &mismatch);
            }
        }
        Err(error) => {
            let mistake = json_mistake(&error);
            let (what, expected) = mistake.split_once(", expected ").unwrap_or((&mistake, RECORD));
            let mismatch = Mismatch::new(what, expected);
            faults.add_in_line(line, at(error.column().max(1)), &mismatch);
        }
    }
}

/// The text without a byte order mark.
fn without_mark(text: &str) -> &str {
    text.trim_start_matches('\u{feff}')
}
