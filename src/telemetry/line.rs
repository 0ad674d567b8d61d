//! The format of an access line: JSON, written directly into a buffer.
//!
//! Formatted by hand because it is on the path of every request: it takes fewer than 1,500 instructions,
//! where building a tree of JSON values took 26,000.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

/// The last second that RFC 3339 can express, 9999-12-31T23:59:59Z, in s since the epoch.
const LAST_SECOND: u64 = 253_402_300_799;

/// Why a request or its response ended before it was complete.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CutReason {
    /// The client closed the connection before its response was complete.
    ClientClosed,
    /// The client stopped reading or sending.
    ClientTimeout,
    /// The response was truncated or malformed after its head.
    UpstreamBroken,
    /// The response's body paused for longer than `answer_idle_timeout`.
    UpstreamIdle,
    /// The response took longer than `answer_timeout`.
    AnswerTimeout,
    /// A tunnel was without a byte for longer than `tunnel_idle_timeout`.
    TunnelIdle,
    /// The gateway was stopped, and `drain_timeout` passed.
    DrainTimeout,
}

impl CutReason {
    /// The value of the field `cut` in the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientClosed => "client_closed",
            Self::ClientTimeout => "client_timeout",
            Self::UpstreamBroken => "upstream_broken",
            Self::UpstreamIdle => "upstream_idle",
            Self::AnswerTimeout => "answer_timeout",
            Self::TunnelIdle => "tunnel_idle",
            Self::DrainTimeout => "drain_timeout",
        }
    }
}

/// The fields of one request in the access log.
#[derive(Clone, Debug)]
pub struct AccessLine<'a> {
    /// When the request started, in ms since the epoch.
    pub time: u64,
    /// The client's address, as determined from trusted proxies.
    pub client: IpAddr,
    /// The method; empty if the request could not be parsed.
    pub method: &'a [u8],
    /// The requested host.
    pub host: &'a [u8],
    /// The normalized path, without query.
    pub path: &'a [u8],
    /// The protocol and its version, such as `HTTP/1.1`; empty if the request could not be parsed.
    pub protocol: &'static str,
    /// The response's status; 499 if the client closed before it.
    pub status: u16,
    /// The route's name; empty if there is none.
    pub route: &'a str,
    /// The decision of the limits: `admitted`, `refused` or `unknown`; `none` without limits or route;
    /// `throttled` if the throttle denied it; `not_checked` if it ended for another reason before the limits
    /// were charged.
    pub limit: &'static str,
    /// A keyed hash of the access token, if there is one. It only distinguishes callers.
    pub token: Option<u64>,
    /// Length of the response's body, in bytes.
    pub bytes: u64,
    /// Bytes of the client that went through a tunnel to the upstream; `None` without a tunnel.
    pub received: Option<u64>,
    /// Time from the request's head to the response's last byte.
    pub duration: Duration,
    /// Delay by a leaky bucket; a part of `duration`.
    pub delay: Duration,
    /// The server of the last attempt, as `host:port`; empty if there was none.
    pub upstream: &'a str,
    /// Time from the start of forwarding, connects and retries included, to the head of the response; `None`
    /// without a response.
    pub upstream_time: Option<Duration>,
    /// Number of attempts at upstream servers.
    pub attempts: u32,
    /// Why the request or its response ended early; `None` if it did not.
    pub cut: Option<CutReason>,
    /// Whether the response was sent completely.
    pub complete: bool,
    /// The request's id.
    pub request_id: &'a [u8],
}

impl AccessLine<'_> {
    /// The line as JSON, without a line feed.
    pub fn json(&self) -> String {
        let mut line = Vec::new();
        LineFormatter::default().append(self, &mut line);
        line.pop();
        // Always UTF-8: invalid bytes in fields were replaced.
        String::from_utf8(line).unwrap_or_default()
    }
}

/// Formats lines, and caches the formatted second of the last one.
#[derive(Debug)]
pub(super) struct LineFormatter {
    second: u64,
    /// `2023-11-14T22:13:20.`
    text: [u8; 20],
}

impl Default for LineFormatter {
    fn default() -> Self {
        Self { second: 0, text: *b"1970-01-01T00:00:00." }
    }
}

impl LineFormatter {
    /// Appends `line` and a line feed to `out`.
    pub(super) fn append(&mut self, line: &AccessLine<'_>, out: &mut Vec<u8>) {
        let texts = [line.method, line.host, line.path, line.request_id];
        let length: usize = texts.iter().map(|text| text.len()).sum();
        // Enough for everything below, except for escapes.
        out.reserve(512 + length + line.route.len() + line.upstream.len());
        out.extend_from_slice(b"{\"time\":\"");
        self.push_time(line.time, out);
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
        push_text(line.limit.as_bytes(), out);
        out.extend_from_slice(b"\",\"token\":\"");
        if let Some(hash) = line.token {
            push_hex(hash, out);
        }
        out.extend_from_slice(b"\",\"bytes\":");
        push_number(line.bytes, out);
        if let Some(received) = line.received {
            out.extend_from_slice(b",\"received\":");
            push_number(received, out);
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
        out.extend_from_slice(b",\"cut\":\"");
        out.extend_from_slice(line.cut.map_or("", CutReason::as_str).as_bytes());
        out.extend_from_slice(b"\",\"complete\":");
        out.extend_from_slice(if line.complete { b"true".as_slice() } else { b"false" });
        out.extend_from_slice(b",\"request_id\":\"");
        push_text(line.request_id, out);
        out.extend_from_slice(b"\"}\n");
    }

    /// Appends `time`, in ms since the epoch, in UTC by RFC 3339 with milliseconds.
    fn push_time(&mut self, time: u64, out: &mut Vec<u8>) {
        let second = (time / 1000).min(LAST_SECOND);
        if second != self.second {
            let at = std::time::UNIX_EPOCH + Duration::from_secs(second);
            let text = humantime::format_rfc3339_seconds(at).to_string();
            // `2023-11-14T22:13:20Z`: the cached text ends in `.` instead of `Z`.
            if let Some(text) = text.as_bytes().first_chunk::<19>() {
                self.text[..19].copy_from_slice(text);
                self.second = second;
            }
        }
        out.extend_from_slice(&self.text);
        out.extend_from_slice(&last_three_digits((time % 1000) as u32));
        out.push(b'Z');
    }
}

/// The last three decimal digits.
fn last_three_digits(number: u32) -> [u8; 3] {
    let digit = |value: u32| b'0' + (value % 10) as u8;
    [digit(number / 100), digit(number / 10), digit(number)]
}

fn push_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends milliseconds with three decimals.
fn push_millis(time: Duration, out: &mut Vec<u8>) {
    push_number(
        time.as_secs().saturating_mul(1000).saturating_add(time.subsec_millis().into()),
        out,
    );
    let [a, b, c] = last_three_digits(time.subsec_micros() % 1000);
    out.extend_from_slice(&[b'.', a, b, c]);
}

/// Appends sixteen hexadecimal digits.
fn push_hex(number: u64, out: &mut Vec<u8>) {
    let digits: [u8; 16] = std::array::from_fn(|at| {
        let digit = (number >> (60 - 4 * at)) as usize & 15;
        b"0123456789abcdef"[digit]
    });
    out.extend_from_slice(&digits);
}

fn push_address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            push_number(a.into(), out);
            for octet in [b, c, d] {
                out.push(b'.');
                push_number(octet.into(), out);
            }
        }
        IpAddr::V6(address) => push_ipv6(address, out),
    }
}

/// Appends the address in the form of RFC 5952: the longest run of zero groups is replaced by `::`.
fn push_ipv6(address: Ipv6Addr, out: &mut Vec<u8>) {
    if address.to_ipv4_mapped().is_some() {
        out.extend_from_slice(address.to_string().as_bytes());
        return;
    }
    let groups = address.segments();
    let (mut longest_zeros, mut at) = (0..0, 0);
    while at < groups.len() {
        let zeros = groups[at..].iter().take_while(|group| **group == 0).count();
        if zeros > 1 && zeros > longest_zeros.len() {
            longest_zeros = at..at + zeros;
        }
        at += zeros.max(1);
    }
    // The buffer is filled with colons, and `length` is advanced over them. Each group is followed by a
    // colon; the last one is removed.
    let (mut text, mut length) = ([b':'; 42], 0);
    at = 0;
    while at < groups.len() {
        if at == longest_zeros.start && !longest_zeros.is_empty() {
            length = if at == 0 { 2 } else { length + 1 };
            at = longest_zeros.end;
            continue;
        }
        let group = groups[at];
        let digits = (16 - (group | 1).leading_zeros() as usize).div_ceil(4);
        for digit in (0..digits).rev() {
            text[length] = b"0123456789abcdef"[usize::from(group >> (4 * digit)) & 15];
            length += 1;
        }
        length += 1;
        at += 1;
    }
    // No colon follows the last group, unless the address ends in `::`.
    length -= usize::from(longest_zeros.end != groups.len() || longest_zeros.is_empty());
    out.extend_from_slice(&text[..length]);
}

/// Appends the content of a JSON string. Invalid UTF-8 is replaced.
fn push_text(bytes: &[u8], out: &mut Vec<u8>) {
    if is_plain(bytes) {
        out.extend_from_slice(bytes);
    } else {
        push_escaped(bytes, out);
    }
}

/// Whether `bytes` are ASCII and need no escaping. Tests eight bytes at a time, as one word.
fn is_plain(bytes: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES * 0x80;
    // The result is 0 if no byte needs escaping. A borrow can set the high bit of a plain byte, but only
    // above a byte that needs escaping.
    let special = |word: u64| {
        let zero = |word: u64| word.wrapping_sub(ONES) & !word;
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let quote = zero(word ^ (ONES * u64::from(b'"')));
        let backslash = zero(word ^ (ONES * u64::from(b'\\')));
        (word | control | quote | backslash) & HIGH
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut found = words.iter().fold(0, |found, word| found | special(u64::from_ne_bytes(*word)));
    if !rest.is_empty() {
        let mut last = [b'0'; 8];
        last[..rest.len()].copy_from_slice(rest);
        found |= special(u64::from_ne_bytes(last));
    }
    found == 0
}

#[cold]
fn push_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid().as_bytes();
        let mut from = 0;
        for (at, &byte) in valid.iter().enumerate() {
            if byte >= 0x20 && byte != b'"' && byte != b'\\' {
                continue;
            }
            out.extend_from_slice(&valid[from..at]);
            from = at + 1;
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                _ => {
                    let digit = b"0123456789abcdef"[usize::from(byte & 15)];
                    out.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (byte >> 4), digit]);
                }
            }
        }
        out.extend_from_slice(&valid[from..]);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
