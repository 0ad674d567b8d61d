//! Access lines in the format `combined` of nginx and Apache:
//! `CLIENT - USER [TIME] "METHOD PATH PROTOCOL" STATUS BYTES "REFERER" "USER-AGENT"`. The user is
//! the token's keyed hash, and the path has no query.

use super::{
    AccessField, AccessLine,
    time::TimeCache,
    values::{push_address, push_hex, push_number},
};

/// The fields of a line.
pub(super) const FIELDS: [AccessField; 10] = [
    AccessField::Client,
    AccessField::Token,
    AccessField::Time,
    AccessField::Method,
    AccessField::Path,
    AccessField::Protocol,
    AccessField::Status,
    AccessField::Bytes,
    AccessField::Referer,
    AccessField::UserAgent,
];

pub(super) fn append(line: &AccessLine<'_>, times: &mut TimeCache, out: &mut Vec<u8>) {
    push_address(line.client, out);
    out.extend_from_slice(b" - ");
    match line.token {
        Some(hash) => push_hex(hash, out),
        None => out.push(b'-'),
    }
    out.extend_from_slice(b" [");
    times.push_common(line.time, out);
    out.extend_from_slice(b"] \"");
    if line.method.is_empty() {
        out.push(b'-');
    } else {
        push_quotable(line.method, out);
        out.push(b' ');
        push_quotable(line.path, out);
        out.push(b' ');
        push_quotable(line.protocol.as_bytes(), out);
    }
    out.extend_from_slice(b"\" ");
    push_number(line.status.into(), out);
    out.push(b' ');
    push_number(line.bytes, out);
    for header in [line.referer, line.user_agent] {
        out.extend_from_slice(b" \"");
        push_quotable(if header.is_empty() { b"-" } else { header }, out);
        out.push(b'"');
    }
    out.push(b'\n');
}

/// Appends text for a quoted field. As in nginx, quotes, backslashes and all but printable ASCII
/// become `\xHH`.
fn push_quotable(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        if matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\' {
            out.push(byte);
        } else {
            let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value & 15)];
            out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte)]);
        }
    }
}
