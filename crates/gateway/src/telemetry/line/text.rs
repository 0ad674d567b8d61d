//! Access lines for people:
//! `TIME STATUS METHOD HOST PATH CLIENT duration_ms=1.500 route=items ...`.

use tidegate_base::escape::{escape, is_unprintable};

use super::{
    AccessField, AccessLine, LimitCost,
    time::TimeCache,
    values::{push_address, push_hex, push_millis, push_number},
};
use crate::telemetry::style::Colours;

const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// A field with the text before its value.
#[derive(Debug)]
pub(super) struct TextField {
    field: AccessField,
    /// For example `route=`; empty for fields that are clear without a name.
    label: Box<[u8]>,
}

impl TextField {
    pub(super) fn new(field: AccessField, colours: Colours) -> Self {
        let label = match field {
            AccessField::Time
            | AccessField::Status
            | AccessField::Method
            | AccessField::Host
            | AccessField::Path
            | AccessField::Protocol
            | AccessField::Client => String::new(),
            _ if colours == Colours::On => format!("{DIM}{}={RESET}", field.name()),
            _ => format!("{}=", field.name()),
        };
        Self { field, label: label.into_bytes().into() }
    }
}

/// Appends `line` with these fields. An empty value is `-`, or is left out with its name.
pub(super) fn append(
    fields: &[TextField],
    colours: Colours,
    line: &AccessLine<'_>,
    times: &mut TimeCache,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    for TextField { field, label } in fields {
        if !label.is_empty() && is_empty(*field, line) {
            continue;
        }
        if out.len() > start {
            out.push(b' ');
        }
        out.extend_from_slice(label);
        let colour = colour(*field, line).filter(|_| colours == Colours::On);
        out.extend_from_slice(colour.unwrap_or_default().as_bytes());
        push_value(*field, line, times, out);
        if colour.is_some() {
            out.extend_from_slice(RESET.as_bytes());
        }
    }
    out.push(b'\n');
}

/// The escape sequence before a value.
fn colour(field: AccessField, line: &AccessLine<'_>) -> Option<&'static str> {
    match (field, line.status / 100) {
        (AccessField::Time, _) => Some(DIM),
        (AccessField::Status, 5..) => Some("\x1b[31m"),
        (AccessField::Status, 4) => Some("\x1b[33m"),
        (AccessField::Status, 3) => Some("\x1b[36m"),
        (AccessField::Status, _) => Some("\x1b[32m"),
        _ => None,
    }
}

fn is_empty(field: AccessField, line: &AccessLine<'_>) -> bool {
    match field {
        AccessField::Token => line.token.is_none(),
        AccessField::Received => line.received.is_none(),
        AccessField::Cost => line.cost.is_empty(),
        AccessField::UpstreamMs => line.upstream_time.is_none(),
        AccessField::Priority => line.priority.is_none(),
        AccessField::DelayMs => line.delay.is_zero(),
        AccessField::Bytes
        | AccessField::DurationMs
        | AccessField::Attempts
        | AccessField::Complete => false,
        _ => line.text(field).is_empty(),
    }
}

fn push_value(field: AccessField, line: &AccessLine<'_>, times: &mut TimeCache, out: &mut Vec<u8>) {
    use AccessField as F;
    match field {
        F::Time => times.push_rfc3339(line.time, out),
        F::Client => push_address(line.client, out),
        F::Status => push_number(line.status.into(), out),
        F::Bytes => push_number(line.bytes, out),
        F::Received => push_number(line.received.unwrap_or_default(), out),
        F::Cost => push_costs(line.cost, out),
        F::DurationMs => push_millis(line.duration, out),
        F::DelayMs => push_millis(line.delay, out),
        F::UpstreamMs => push_millis(line.upstream_time.unwrap_or_default(), out),
        F::Attempts => push_number(line.attempts.into(), out),
        F::Priority => push_number(line.priority.unwrap_or_default().number().into(), out),
        F::Complete => {
            out.extend_from_slice(if line.complete { b"true".as_slice() } else { b"false" });
        }
        F::Token => push_hex(line.token.unwrap_or_default(), out),
        _ => push_word(line.text(field), out),
    }
}

/// Appends costs as one word: `tokens:12,bytes:3400`.
fn push_costs(costs: &[LimitCost<'_>], out: &mut Vec<u8>) {
    for (index, LimitCost { limit, units }) in costs.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_word(limit.as_bytes(), out);
        out.push(b':');
        push_number(*units, out);
    }
}

/// Appends text as one word, in quotes if needed, and without characters that a terminal acts on.
fn push_word(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.is_empty() {
        out.push(b'-');
    } else if bytes != b"-"
        && bytes.iter().all(|byte| matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b'\\'))
    {
        out.extend_from_slice(bytes);
    } else {
        let text = String::from_utf8_lossy(bytes);
        let is_special =
            |char: char| matches!(char, '"' | '\\') || char.is_whitespace() || is_unprintable(char);
        if text != "-" && !text.contains(is_special) {
            out.extend_from_slice(text.as_bytes());
        } else {
            out.push(b'"');
            // The backslash is doubled first: later ones are the escapes'.
            let text = text.replace('\\', "\\\\");
            out.extend_from_slice(escape(&text).replace('"', "\\\"").as_bytes());
            out.push(b'"');
        }
    }
}
