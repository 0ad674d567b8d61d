//! The check of a whole head: request or answer. Pure.
//!
//! RFC 9112, 2.2 (line ends), 3 (request line), 3.2 (Host), 5 (fields), 6 (length), but stricter
//! wherever it lets a recipient repair what it receives.

use std::ops::Range;

use smallvec::SmallVec;

use super::fault::Fault;

/// The HTTP library reads targets and names up to so many bytes.
const MAX_TARGET: usize = 65_534;
const MAX_NAME: usize = 65_535;

/// An answer has so many fields at the most: what a request may have if it is configured so.
const MAX_ANSWER_FIELDS: usize = 1024;

/// How a request's body is delimited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Length {
    /// So many bytes; 0 is none.
    Known(u64),
    /// Chunks, until the last.
    Chunked,
}

/// Checks the request's head that `bytes` begin with. Returns its length in bytes, the empty line
/// included, and the length of the body after it; `None` while the head is incomplete.
pub fn check_request(bytes: &[u8], max_headers: usize) -> Result<Option<(usize, Length)>, Fault> {
    let Some((line, fields)) = split_line(bytes)? else { return Ok(None) };
    let version = check_request_line(line)?;
    let Some((seen, rest)) = check_fields(fields, max_headers, |_, _| {})? else { return Ok(None) };
    if let Some(fault) = seen.host_fault {
        return Err(fault);
    }
    match seen.hosts {
        0 if version == Version::Http11 => return Err(Fault::HostMissing),
        0 | 1 => {}
        _ => return Err(Fault::HostRepeated),
    }
    let length = seen.length(version)?.unwrap_or(Length::Known(0));
    Ok(Some((bytes.len() - rest.len(), length)))
}

/// An answer's head that was checked.
#[derive(Debug)]
pub struct AnswerHead {
    /// Its length, the empty line included.
    pub bytes: usize,
    /// Its status.
    pub status: u16,
    /// Whether it is of HTTP/1.1, not 1.0.
    pub is_http_11: bool,
    /// What it says of the body's length, if anything.
    pub length: Option<Length>,
    /// Where the name and the trimmed value of each field stand in it.
    pub fields: SmallVec<[(Range<u32>, Range<u32>); 16]>,
}

impl AnswerHead {
    /// Checks the answer's head that `bytes` begin with; `None` while it is incomplete.
    pub fn check(bytes: &[u8]) -> Result<Option<Self>, Fault> {
        let Some((line, fields)) = split_line(bytes)? else { return Ok(None) };
        let (version, status) = check_status_line(line)?;
        let mut places = SmallVec::new();
        let start = bytes.as_ptr() as usize;
        let place = |part: &[u8]| {
            let at = (part.as_ptr() as usize - start) as u32;
            at..at + part.len() as u32
        };
        let keep = |name: &[u8], value: &[u8]| places.push((place(name), place(value)));
        let Some((seen, rest)) = check_fields(fields, MAX_ANSWER_FIELDS, keep)? else {
            return Ok(None);
        };
        let length = seen.length(version)?;
        if status == 101 {
            return Err(Fault::UnaskedSwitch);
        }
        let (bytes, is_http_11) = (bytes.len() - rest.len(), version == Version::Http11);
        Ok(Some(Self { bytes, status, is_http_11, length, fields: places }))
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    Http10,
    Http11,
}

/// What the fields say of length and host.
#[derive(Default)]
struct Seen {
    hosts: u32,
    /// What is wrong with a host; in an answer the field has no meaning.
    host_fault: Option<Fault>,
    length: Option<u64>,
    chunked: bool,
}

impl Seen {
    fn length(&self, version: Version) -> Result<Option<Length>, Fault> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(Fault::LengthAndCoding),
            (true, None) if version == Version::Http10 => Err(Fault::Coding),
            (true, None) => Ok(Some(Length::Chunked)),
            (false, length) => Ok(length.map(Length::Known)),
        }
    }
}

/// A line and what follows it; `None` while the line has no end.
type Cut<'a> = Option<(&'a [u8], &'a [u8])>;

/// Cuts the first line off, without its end; `None` while it has none.
fn split_line(bytes: &[u8]) -> Result<Cut<'_>, Fault> {
    let Some(lf) = memchr::memchr(b'\n', bytes) else { return Ok(None) };
    let line = bytes[..lf].strip_suffix(b"\r").ok_or(Fault::BareLf)?;
    if has_control(line) { Err(Fault::Control) } else { Ok(Some((line, &bytes[lf + 1..]))) }
}

/// Whether a control character other than a tab stands in `line`. Eight bytes at a time; the last
/// eight are looked at as one word, whatever has been seen of them.
fn has_control(line: &[u8]) -> bool {
    let (words, rest) = line.as_chunks::<8>();
    let last = line.last_chunk::<8>().filter(|_| !rest.is_empty());
    let suspect = match last {
        None if words.is_empty() => true,
        _ => words.iter().chain(last).any(|word| word_has_control(u64::from_le_bytes(*word))),
    };
    suspect && line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t')
}

/// Whether one of eight bytes may be below 0x20, or 0x7f. A borrow can raise a false suspicion, never
/// hide a true one.
fn word_has_control(word: u64) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const TOPS: u64 = ONES * 0x80;
    let below = word.wrapping_sub(ONES * 0x20) & !word;
    let delete = word ^ (ONES * 0x7f);
    let is_delete = delete.wrapping_sub(ONES) & !delete;
    (below | is_delete) & TOPS != 0
}

fn check_request_line(line: &[u8]) -> Result<Version, Fault> {
    let method = memchr::memchr(b' ', line).ok_or(Fault::RequestLine)?;
    let (target, version) = line[method + 1..]
        .split_at_checked(memchr::memchr(b' ', &line[method + 1..]).ok_or(Fault::RequestLine)?)
        .ok_or(Fault::RequestLine)?;
    if target.len() > MAX_TARGET {
        return Err(Fault::TargetTooLong);
    }
    if !is_token(&line[..method]) || !is_target(target) {
        return Err(Fault::RequestLine);
    }
    match &version[1..] {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        other if other.starts_with(b"HTTP/") && !other.contains(&b' ') => Err(Fault::Version),
        _ => Err(Fault::RequestLine),
    }
}

fn check_status_line(line: &[u8]) -> Result<(Version, u16), Fault> {
    let version = match line.get(..9) {
        Some(b"HTTP/1.1 ") => Version::Http11,
        Some(b"HTTP/1.0 ") => Version::Http10,
        _ => return Err(Fault::StatusLine),
    };
    let ended = matches!(line.get(12), None | Some(b' '));
    let status = line.get(9..12).filter(|code| ended && code.iter().all(u8::is_ascii_digit));
    let status = status.ok_or(Fault::StatusLine)?;
    let status = status.iter().fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
    if status < 100 { Err(Fault::StatusLine) } else { Ok((version, status)) }
}

fn check_fields(
    mut rest: &[u8],
    max_headers: usize,
    mut keep: impl FnMut(&[u8], &[u8]),
) -> Result<Option<(Seen, &[u8])>, Fault> {
    let mut seen = Seen::default();
    let mut count = 0;
    loop {
        let Some((line, after)) = split_line(rest)? else { return Ok(None) };
        rest = after;
        if line.is_empty() {
            return Ok(Some((seen, rest)));
        }
        count += 1;
        if count > max_headers {
            return Err(Fault::HeadTooLarge);
        }
        let (name, value) = check_field(line)?;
        keep(name, value);
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                seen.hosts += 1;
                seen.host_fault = seen.host_fault.or(check_host(value).err());
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let earlier = seen.length.replace(decimal(value)?);
                if earlier.is_some() {
                    return Err(Fault::LengthRepeated);
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if seen.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Fault::Coding);
                }
                seen.chunked = true;
            }
            _ => {}
        }
    }
}

/// Cuts one field line into its name and its trimmed value.
pub(super) fn check_field(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let end = line.iter().position(|&byte| !TOKEN[usize::from(byte)]);
    match end.map(|end| (end, line[end])) {
        Some((0, b' ' | b'\t')) => Err(Fault::Folded),
        Some((end, _)) if end > MAX_NAME => Err(Fault::HeadTooLarge),
        Some((end, b':')) if end > 0 => Ok((&line[..end], line[end + 1..].trim_ascii())),
        _ => Err(Fault::HeaderName),
    }
}

/// RFC 9110, 7.2, for what a gateway serves: a name, an address or `[v6]`, and a port.
pub(crate) fn check_host(value: &[u8]) -> Result<(), Fault> {
    if value.is_empty() {
        return Err(Fault::HostMissing);
    }
    let (host, port) = match value.iter().rposition(|&b| b == b':') {
        Some(colon) if !value[colon..].contains(&b']') => (&value[..colon], &value[colon + 1..]),
        _ => (value, &b""[..]),
    };
    let literal = host.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
    let well_formed = match literal {
        Some(inner) => {
            std::str::from_utf8(inner).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
        }
        None => host.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')),
    };
    let port_fits = port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    if well_formed && port_fits && !host.is_empty() { Ok(()) } else { Err(Fault::HostMalformed) }
}

fn decimal(value: &[u8]) -> Result<u64, Fault> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Fault::LengthMalformed);
    }
    Ok(value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| TOKEN[usize::from(byte)])
}

/// Whether the HTTP library will read `target` as it stands. RFC 9112, 3.2; browsers send some more
/// characters than RFC 3986 has, and those without another meaning pass.
pub(crate) fn is_target(target: &[u8]) -> bool {
    let first = if target.starts_with(b"/") { PLAIN } else { ODD };
    match target.iter().fold(first, |worst, &byte| worst.max(TARGET[usize::from(byte)])) {
        PLAIN => true,
        ODD => http::Uri::try_from(target).is_ok(),
        _ => false,
    }
}

/// What the library certainly reads, what it has to be asked about, and what is refused.
const PLAIN: u8 = 0;
const ODD: u8 = 1;
const REFUSED: u8 = 2;

static TARGET: [u8; 256] = {
    let mut table = [PLAIN; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            0..=b' ' | 0x7f.. | b'#' | b'<' | b'>' | b'\\' => REFUSED,
            b'"' | b'^' | b'`' | b'{' | b'|' | b'}' => ODD,
            _ => PLAIN,
        };
        byte += 1;
    }
    table
};

/// RFC 9110, 5.6.2.
static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric()
            || matches!(
                b,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests;
