//! The messages between client, gateway and target.

use memchr::memmem;

/// Number of repetitions of the id in a body.
const REPETITIONS: usize = 16;

/// The body of the response to a request: 256 bytes, different for each request.
pub(super) fn body(id: u64) -> Vec<u8> {
    format!("{id:016x}").repeat(REPETITIONS).into_bytes()
}

/// A hash of an id, so that choices by it do not keep step with a rotation over targets.
pub(super) fn mix(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// The framing of a body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Framing {
    Length,
    Chunked,
}

impl Framing {
    /// The framing of the response to a request: half of them are chunked.
    pub(super) fn of(id: u64) -> Self {
        if mix(id).is_multiple_of(2) { Self::Length } else { Self::Chunked }
    }
}

/// The head of the response to a request.
pub(super) fn response_head(id: u64, status: &str, target: usize, framing: Framing) -> String {
    let framing = match framing {
        Framing::Length => format!("Content-Length: {}", body(id).len()),
        Framing::Chunked => "Transfer-Encoding: chunked".to_owned(),
    };
    format!("HTTP/1.1 {status}\r\nx-id: {id:016x}\r\nx-target: {target}\r\n{framing}\r\n\r\n")
}

/// The body of the response to a request, in its framing.
pub(super) fn framed_body(id: u64, framing: Framing) -> Vec<u8> {
    let body = body(id);
    if framing == Framing::Length {
        return body;
    }
    let (first, second) = body.split_at(body.len() / 2);
    let mut framed = Vec::new();
    for chunk in [first, second] {
        framed.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        framed.extend(chunk);
        framed.extend(b"\r\n");
    }
    framed.extend(b"0\r\n\r\n");
    framed
}

/// A request at a target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Received {
    /// A health check: a request without an id.
    Check,
    /// A request of the client.
    Request { id: u64, is_post: bool },
}

/// Takes a complete request off the front of `bytes`; `None` if it is not complete yet.
pub(super) fn take_request(bytes: &mut Vec<u8>) -> Option<Received> {
    let head_end = memmem::find(bytes, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..head_end]).to_ascii_lowercase();
    let length = header(&head, "content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    if bytes.len() < head_end + length {
        return None;
    }
    let mut words = head.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    bytes.drain(..head_end + length);
    let id = path.rsplit('/').next().and_then(|id| u64::from_str_radix(id, 16).ok());
    let Some(id) = id else { return Some(Received::Check) };
    Some(Received::Request { id, is_post: method == "post" })
}

/// The value of a header, in a head in lower case.
pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}
