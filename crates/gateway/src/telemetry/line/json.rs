//! Access lines as JSON.
//!
//! Formatted by hand because every request has a line: it takes fewer than 1,500 instructions, and
//! a tree of JSON values took 26,000.

use super::{
    AccessField, AccessLine, CutReason,
    time::TimeCache,
    values::{push_address, push_costs, push_hex, push_millis, push_number, push_text},
};

/// Appends `line` with the default fields. Written out, without a loop over fields, for speed.
pub(super) fn append(line: &AccessLine<'_>, times: &mut TimeCache, out: &mut Vec<u8>) {
    let texts = [line.method, line.host, line.path, line.request_id];
    let length: usize = texts.iter().map(|text| text.len()).sum();
    // Enough for everything below, except for escapes.
    out.reserve(512 + length + line.route.len() + line.upstream.len());
    out.extend_from_slice(b"{\"time\":\"");
    times.push_rfc3339(line.time, out);
    out.extend_from_slice(b"\",\"client\":\"");
    push_address(line.client, out);
    out.extend_from_slice(b"\",\"method\":\"");
    push_text(line.method, out);
    out.extend_from_slice(b"\",\"host\":\"");
    push_text(line.host, out);
    out.extend_from_slice(b"\",\"path\":\"");
    push_text(line.path, out);
    out.extend_from_slice(b"\",\"protocol\":\"");
    out.extend_from_slice(line.protocol.as_bytes());
    out.extend_from_slice(b"\",\"status\":");
    push_number(line.status.into(), out);
    out.extend_from_slice(b",\"route\":\"");
    push_text(line.route.as_bytes(), out);
    out.extend_from_slice(b"\",\"limit\":\"");
    out.extend_from_slice(line.limit.as_bytes());
    if !line.refused_by.is_empty() {
        out.extend_from_slice(b"\",\"refused_by\":\"");
        push_text(line.refused_by.as_bytes(), out);
    }
    out.extend_from_slice(b"\",\"token\":\"");
    if let Some(hash) = line.token {
        push_hex(hash, out);
    }
    if !line.consumer.is_empty() {
        out.extend_from_slice(b"\",\"consumer\":\"");
        push_text(line.consumer.as_bytes(), out);
    }
    out.extend_from_slice(b"\",\"bytes\":");
    push_number(line.bytes, out);
    if let Some(received) = line.received {
        out.extend_from_slice(b",\"received\":");
        push_number(received, out);
    }
    if !line.cost.is_empty() {
        out.extend_from_slice(b",\"cost\":");
        push_costs(line.cost, out);
    }
    out.extend_from_slice(b",\"duration_ms\":");
    push_millis(line.duration, out);
    out.extend_from_slice(b",\"delay_ms\":");
    push_millis(line.delay, out);
    out.extend_from_slice(b",\"upstream\":\"");
    push_text(line.upstream.as_bytes(), out);
    out.extend_from_slice(b"\",\"upstream_ms\":");
    match line.upstream_time {
        Some(time) => push_millis(time, out),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"attempts\":");
    push_number(line.attempts.into(), out);
    if let Some(priority) = line.priority {
        out.extend_from_slice(b",\"priority\":");
        push_number(priority.number().into(), out);
    }
    out.extend_from_slice(b",\"cut\":\"");
    out.extend_from_slice(line.cut.map_or("", CutReason::as_str).as_bytes());
    out.extend_from_slice(b"\",\"complete\":");
    out.extend_from_slice(if line.complete { b"true".as_slice() } else { b"false" });
    out.extend_from_slice(b",\"request_id\":\"");
    push_text(line.request_id, out);
    if let Some(trace_id) = &line.trace_id {
        out.extend_from_slice(b"\",\"trace_id\":\"");
        out.extend_from_slice(trace_id);
    }
    out.extend_from_slice(b"\"}\n");
}

/// A field with the text before its value: `,"path":`.
#[derive(Debug)]
pub(super) struct JsonField {
    field: AccessField,
    key: Box<[u8]>,
}

impl JsonField {
    pub(super) fn new(field: AccessField) -> Self {
        Self { field, key: format!(",\"{}\":", field.name()).into_bytes().into() }
    }
}

/// Appends `line` with these fields. `received` is left out without a tunnel, `trace_id` without a
/// trace, `refused_by` without a refusal, `cost` without a variable cost, and `priority` without
/// bounds of the upstream.
pub(super) fn append_fields(
    fields: &[JsonField],
    line: &AccessLine<'_>,
    times: &mut TimeCache,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    for JsonField { field, key } in fields {
        let is_absent = match field {
            AccessField::Received => line.received.is_none(),
            AccessField::Cost => line.cost.is_empty(),
            AccessField::TraceId => line.trace_id.is_none(),
            AccessField::Priority => line.priority.is_none(),
            AccessField::RefusedBy => line.refused_by.is_empty(),
            AccessField::Consumer => line.consumer.is_empty(),
            _ => false,
        };
        if is_absent {
            continue;
        }
        out.extend_from_slice(key);
        push_value(*field, line, times, out);
    }
    // The first comma begins the object.
    match out.get_mut(start) {
        Some(comma) => *comma = b'{',
        None => out.push(b'{'),
    }
    out.extend_from_slice(b"}\n");
}

fn push_value(field: AccessField, line: &AccessLine<'_>, times: &mut TimeCache, out: &mut Vec<u8>) {
    use AccessField as F;
    match field {
        F::Status => push_number(line.status.into(), out),
        F::Bytes => push_number(line.bytes, out),
        F::Received => push_number(line.received.unwrap_or_default(), out),
        F::Cost => push_costs(line.cost, out),
        F::DurationMs => push_millis(line.duration, out),
        F::DelayMs => push_millis(line.delay, out),
        F::UpstreamMs => match line.upstream_time {
            Some(time) => push_millis(time, out),
            None => out.extend_from_slice(b"null"),
        },
        F::Attempts => push_number(line.attempts.into(), out),
        F::Priority => push_number(line.priority.unwrap_or_default().number().into(), out),
        F::Complete => {
            out.extend_from_slice(if line.complete { b"true".as_slice() } else { b"false" });
        }
        _ => {
            out.push(b'"');
            match field {
                F::Time => times.push_rfc3339(line.time, out),
                F::Client => push_address(line.client, out),
                F::Token => {
                    if let Some(hash) = line.token {
                        push_hex(hash, out);
                    }
                }
                _ => push_text(line.text(field), out),
            }
            out.push(b'"');
        }
    }
}
