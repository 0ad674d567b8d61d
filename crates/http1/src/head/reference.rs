//! A second reader of heads, one byte at a time, which the tests compare with [`HeadParser`].

use super::{super::characters::is_token, *};

/// A complete head, as the reference reads it.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct ReferenceHead {
    /// The fields as lines `name: value`, each with CR LF.
    pub(super) lines: Vec<u8>,
    /// The length of the head in bytes, empty line included.
    pub(super) length: usize,
}

/// Reads the head at the start of `bytes`. `None`: it is incomplete, or a fault.
pub(super) fn read<S: StartLine>(
    bytes: &[u8],
    bounds: HeadBounds,
) -> Result<Option<ReferenceHead>, ()> {
    let (mut lines, mut count, mut start) = (Vec::new(), 0, 0);
    let mut summary = FieldSummary::default();
    let mut is_first = true;
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'\r', None) => break,
            (b'\r', Some(b'\n')) => {
                let line = &bytes[start..at];
                (start, at) = (at + 2, at + 2);
                if at > bounds.bytes {
                    return Err(());
                }
                if is_first {
                    S::parse(line).map_err(drop)?;
                    is_first = false;
                } else if line.is_empty() {
                    return Ok(Some(ReferenceHead { lines, length: at }));
                } else {
                    count += 1;
                    let (name, value) = split(line).filter(|_| count <= bounds.headers).ok_or(())?;
                    summary.add_field(name, value).map_err(drop)?;
                    lines.extend([name, b": ", value, b"\r\n"].concat());
                }
            }
            (byte, _) if byte == b'\t' || !byte.is_ascii_control() => at += 1,
            _ => return Err(()),
        }
    }
    if bytes.len() > bounds.bytes { Err(()) } else { Ok(None) }
}

/// The name and the value of a field line; `None` if it is malformed.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, mut value) = (&line[..colon], &line[colon + 1..]);
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    (is_token(name) && name.len() <= MAX_NAME).then_some((name, value))
}
