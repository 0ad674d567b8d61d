//! Reads one HTTP/1.1 answer from the start of a buffer: as little as a closed loop needs.

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;

/// A whole answer at the start of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// Length of the content, without chunk framing, in bytes.
    pub(crate) content: usize,
    /// Length of head and body on the wire, in bytes.
    pub(crate) wire: usize,
}

/// How the end of the body is found.
enum Framing {
    Length(usize),
    Chunked,
}

/// The answer at the start of `bytes`, or `None` while it is not whole yet.
///
/// Errors: no HTTP/1.1 answer, or one without `Content-Length` and chunks: its end would be the
/// connection's, and a closed loop of kept connections has no use for that.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<Answer>> {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let (head, body) = (&bytes[..end], &bytes[end + 4..]);
    let digits = head.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = digits.and_then(|digits| number(digits, 10)).context("no HTTP/1.1 status line")?;
    let measured = match framing(head)? {
        Framing::Length(length) => (body.len() >= length).then_some((length, length)),
        Framing::Chunked => chunks(body)?,
    };
    Ok(measured.map(|(content, wire)| Answer {
        status: status as u16,
        content,
        wire: end + 4 + wire,
    }))
}

/// How the body after `head` is framed.
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
    bail!("an answer without a length: {}", String::from_utf8_lossy(head))
}

/// The trimmed value of a header line, if its name is `name` (lower case, with the colon).
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| rest.trim_ascii())
}

/// Content and wire length of a chunked body without trailers, or `None` while it is not whole.
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
