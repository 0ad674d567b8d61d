//! The check of a whole head: request or answer. Pure.
//!
//! RFC 9112, 2.2 (line ends), 3 (request line), 3.2 (Host), 5 (fields), 6 (length), but stricter
//! wherever it lets a recipient repair what it receives.

use super::fault::Fault;

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
    let Some((seen, rest)) = check_fields(fields, max_headers)? else { return Ok(None) };
    match seen.hosts {
        0 if version == Version::Http11 => return Err(Fault::HostMissing),
        0 | 1 => {}
        _ => return Err(Fault::HostRepeated),
    }
    let length = seen.length(version)?.unwrap_or(Length::Known(0));
    Ok(Some((bytes.len() - rest.len(), length)))
}

/// Checks the answer's head that `bytes` begin with. Returns its length in bytes and its status;
/// `None` while the head is incomplete.
pub fn check_answer(bytes: &[u8]) -> Result<Option<(usize, u16)>, Fault> {
    let Some((line, fields)) = split_line(bytes)? else { return Ok(None) };
    let (version, status) = check_status_line(line)?;
    let Some((seen, rest)) = check_fields(fields, usize::MAX)? else { return Ok(None) };
    seen.length(version)?;
    if status == 101 {
        return Err(Fault::UnaskedSwitch);
    }
    Ok(Some((bytes.len() - rest.len(), status)))
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

/// Whether one of eight bytes is below 0x20, or 0x7f. The bit tricks are exact: no byte borrows from
/// another as long as each is compared with less than 0x80.
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
    if !is_token(&line[..method]) || target.is_empty() || memchr::memchr(b'\t', line).is_some() {
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

fn check_fields(mut rest: &[u8], max_headers: usize) -> Result<Option<(Seen, &[u8])>, Fault> {
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
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                seen.hosts += 1;
                check_host(value)?;
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
        Some((end, b':')) if end > 0 => Ok((&line[..end], line[end + 1..].trim_ascii())),
        _ => Err(Fault::HeaderName),
    }
}

/// RFC 9110, 7.2, for what a gateway serves: a name, an address or `[v6]`, and a port.
fn check_host(value: &[u8]) -> Result<(), Fault> {
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(head: &str) -> Result<Length, Fault> {
        let (end, length) = check_request(head.as_bytes(), 100)?.expect("a whole head");
        assert_eq!(end, head.len());
        Ok(length)
    }

    #[test]
    fn well_formed_requests_pass() {
        for (head, length) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Length::Known(0)),
            ("GET / HTTP/1.0\r\n\r\n", Length::Known(0)),
            ("POST /a?b HTTP/1.1\r\nHOST:a:80\r\ncontent-length: 12\r\n\r\n", Length::Known(12)),
            (
                "POST / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: Chunked \r\n\r\n",
                Length::Chunked,
            ),
            ("GET http://a/ HTTP/1.1\r\nHost: a\r\nX:\r\nY: \tz\u{e9}\r\n\r\n", Length::Known(0)),
        ] {
            assert_eq!(request(head), Ok(length), "{head:?}");
        }
    }

    #[test]
    fn what_has_two_readings_is_refused() {
        let with = |line: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
        for (head, fault) in [
            (with("Content-Length: 1\r\nTransfer-Encoding: chunked"), Fault::LengthAndCoding),
            (with("Transfer-Encoding: chunked\r\nContent-Length: 1"), Fault::LengthAndCoding),
            (with("Content-Length: 1\r\nContent-Length: 1"), Fault::LengthRepeated),
            (with("Content-Length: 1, 1"), Fault::LengthMalformed),
            (with("Content-Length: +1"), Fault::LengthMalformed),
            (with("Content-Length: 1a"), Fault::LengthMalformed),
            (with("Content-Length: 1 1"), Fault::LengthMalformed),
            (with("Content-Length:"), Fault::LengthMalformed),
            (with("Content-Length: 0x10"), Fault::LengthMalformed),
            (with("Content-Length: 9999999999999999999"), Fault::LengthMalformed),
            (with("Transfer-Encoding: chunked, chunked"), Fault::Coding),
            (with("Transfer-Encoding: gzip, chunked"), Fault::Coding),
            (with("Transfer-Encoding: identity"), Fault::Coding),
            (with("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"), Fault::Coding),
            (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Fault::Coding),
            (with("Transfer-Encoding:\u{b}chunked"), Fault::Control),
            (with("A: b\r\n folded"), Fault::Folded),
            (with("A : b"), Fault::HeaderName),
            (with(": b"), Fault::HeaderName),
            (with("no colon"), Fault::HeaderName),
            (with("A: b\0c"), Fault::Control),
            (with("A: b\rc"), Fault::Control),
            (with("A: b\nC: d"), Fault::BareLf),
            (with("host: b"), Fault::HostRepeated),
            ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), Fault::Coding),
            ("GET / HTTP/1.1\r\n\r\n".into(), Fault::HostMissing),
            ("GET / HTTP/1.1\r\nHost: \r\n\r\n".into(), Fault::HostMissing),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), Fault::HostMalformed),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), Fault::HostMalformed),
            ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n".into(), Fault::HostMalformed),
            ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".into(), Fault::HostMalformed),
            ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".into(), Fault::HostMalformed),
            ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
            ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
            ("GET /\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
            ("G@T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), Fault::Version),
            ("GET / HTTP/1.1\nHost: a\r\n\r\n".into(), Fault::BareLf),
        ] {
            assert_eq!(request(&head), Err(fault), "{head:?}");
        }
    }

    #[test]
    fn headers_are_counted() {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(99));
        assert_eq!(check_request(head.as_bytes(), 100), Ok(Some((head.len(), Length::Known(0)))));
        assert_eq!(check_request(head.as_bytes(), 99), Err(Fault::HeadTooLarge));
    }

    #[test]
    fn answers_are_checked_likewise() {
        let answer =
            |head: &str| check_answer(head.as_bytes()).map(|whole| whole.expect("a whole head").1);
        assert_eq!(answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"), Ok(200));
        assert_eq!(answer("HTTP/1.0 404\r\n\r\n"), Ok(404));
        for (head, fault) in [
            ("HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", Fault::BareLf),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                Fault::LengthRepeated,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                Fault::LengthAndCoding,
            ),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", Fault::Folded),
            ("HTTP/1.1 101 Switching\r\n\r\n", Fault::UnaskedSwitch),
            ("HTTP/1.1 20 OK\r\n\r\n", Fault::StatusLine),
            ("HTTP/1.1 2000\r\n\r\n", Fault::StatusLine),
            ("HTTP/2 200\r\n\r\n", Fault::StatusLine),
            ("hello\r\n\r\n", Fault::StatusLine),
        ] {
            assert_eq!(answer(head), Err(fault), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn control_characters_are_found_wherever_they_stand(
            mut line in prop::collection::vec(b' '..=b'~', 1..40), at: prop::sample::Index, byte: u8,
        ) {
            let at = at.index(line.len());
            line[at] = byte;
            prop_assert_eq!(has_control(&line), byte.is_ascii_control() && byte != b'\t');
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = check_request(&bytes, 100);
            let _ = check_answer(&bytes);
        }

        #[test]
        fn a_head_is_whole_at_its_last_byte_and_not_before(cut in 0usize..46) {
            let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
            prop_assert_eq!(check_request(&head[..cut], 100), Ok(None));
            prop_assert_eq!(check_request(head, 100), Ok(Some((47, Length::Known(3)))));
        }

        #[test]
        fn what_passes_has_one_length(lines in prop::collection::vec(
            prop::sample::select(vec![
                "Host: a", "Content-Length: 3", "content-length: 4", "Transfer-Encoding: chunked",
                "TRANSFER-ENCODING: gzip", "A: b", " c", "Content-Length : 3",
            ]), 0..5))
        {
            let head = format!("POST / HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n"));
            if let Ok(Some((_, length))) = check_request(head.as_bytes(), 100) {
                let lower = head.to_ascii_lowercase();
                let lengths = lower.matches("content-length").count();
                let codings = lower.matches("transfer-encoding").count();
                prop_assert!(lengths + codings <= 1);
                prop_assert_eq!(length == Length::Chunked, codings == 1);
            }
        }
    }
}
