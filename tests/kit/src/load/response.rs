//! Parses one HTTP/1.1 response at the start of a buffer: the parts that a load generator needs.

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;

/// A complete response at the start of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedResponse {
    /// The status code.
    pub(super) status: u16,
    /// Length of the content, without chunk framing, in bytes.
    pub(super) content: usize,
    /// Length of head and body on the wire, in bytes.
    pub(super) wire: usize,
}

/// The framing of the body.
enum Framing {
    Length(usize),
    Chunked,
}

/// The response at the start of `bytes`, or `None` while it is incomplete.
///
/// # Errors
///
/// It is not HTTP/1.1, or has neither `Content-Length` nor chunks: the load generator reuses
/// connections.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<ParsedResponse>> {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let (head, body) = (&bytes[..end], &bytes[end + 4..]);
    let digits = head.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = digits.and_then(|digits| number(digits, 10)).context("no HTTP/1.1 status line")?;
    let measured = match framing(head)? {
        Framing::Length(length) => (body.len() >= length).then_some((length, length)),
        Framing::Chunked => chunks(body)?,
    };
    Ok(measured.map(|(content, wire)| ParsedResponse {
        status: status as u16,
        content,
        wire: end + 4 + wire,
    }))
}

/// The framing of the body after `head`.
fn framing(head: &[u8]) -> Result<Framing> {
    for line in head.split(|&byte| byte == b'\n').skip(1) {
        if let Some(value) = value(line, b"content-length:") {
            return Ok(Framing::Length(number(value, 10).context("a bad Content-Length")?));
        }
        if let Some(value) = value(line, b"transfer-encoding:") {
            ensure!(value.eq_ignore_ascii_case(b"chunked"), "an unknown Transfer-Encoding");
            return Ok(Framing::Chunked);
        }
    }
    bail!("a response without a length: {}", String::from_utf8_lossy(head))
}

/// The trimmed value of a header line, if its name is `name` (lower case, with the colon).
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| rest.trim_ascii())
}

/// Content and wire length of a chunked body without trailers, or `None` while it is incomplete.
fn chunks(body: &[u8]) -> Result<Option<(usize, usize)>> {
    let (mut content, mut at) = (0, 0);
    loop {
        let Some(line) = memmem::find(&body[at..], b"\r\n") else { return Ok(None) };
        let size = number(&body[at..at + line], 16).context("a bad chunk size")?;
        at += line + 2 + size + 2;
        if at > body.len() {
            return Ok(None);
        }
        content += size;
        if size == 0 {
            return Ok(Some((content, at)));
        }
    }
}

/// A short number in ASCII.
fn number(digits: &[u8], radix: u32) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}
