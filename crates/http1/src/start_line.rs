//! The first line of a head: RFC 9112, 3 and 4. Pure.

use http::Method;

use super::{error::FramingError, target::RequestTarget};

/// The largest status code of a response.
pub const MAX_STATUS: u16 = 599;

/// The protocol version of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
}

impl Version {
    /// All of them, in the order of their values.
    pub const ALL: [Self; 3] = [Self::Http10, Self::Http11, Self::Http2];

    /// The name as in `Via`: `1.0`, `1.1` or `2`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "1.0",
            Self::Http11 => "1.1",
            Self::Http2 => "2",
        }
    }

    /// The name as in a request line, and for HTTP/2 its counterpart: `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`.
    pub fn protocol(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// The first line of a head.
pub trait StartLine: Sized {
    /// Parses the line, without its CR LF.
    ///
    /// # Errors
    /// The line is malformed, or the version is not supported.
    fn parse(line: &[u8]) -> Result<Self, FramingError>;
}

/// `GET /items HTTP/1.1`.
#[derive(Debug)]
pub struct RequestLine {
    pub(super) method: Method,
    pub(super) target: RequestTarget,
    pub(super) version: Version,
}

/// `HTTP/1.1 200 OK`.
#[derive(Debug)]
pub struct StatusLine {
    pub(super) status: u16,
    pub(super) version: Version,
}

impl StartLine for RequestLine {
    fn parse(line: &[u8]) -> Result<Self, FramingError> {
        let is_space = |byte: &u8| *byte == b' ';
        let end = line.iter().position(is_space).ok_or(FramingError::RequestLine)?;
        let (method, rest) = (&line[..end], &line[end + 1..]);
        let Some(([target @ .., b' '], version)) = rest.split_last_chunk() else {
            if rest.contains(&b' ') {
                parse_method(method)?;
            }
            return Err(FramingError::RequestLine);
        };
        let method = parse_method(method)?;
        let version = parse_version(*version);
        let parsed = version
            .and_then(|version| Ok((RequestTarget::parse(target, end + 1, &method)?, version)));
        match parsed {
            Ok((target, version)) => Ok(Self { method, target, version }),
            // The line has more than three words.
            Err(_) if target.contains(&b' ') => Err(FramingError::RequestLine),
            Err(error) => Err(error),
        }
    }
}

fn parse_version(version: [u8; 8]) -> Result<Version, FramingError> {
    match &version {
        b"HTTP/1.0" => Ok(Version::Http10),
        // RFC 9110, 2.5: a higher minor version is read as the highest known one.
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => Ok(Version::Http11),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(FramingError::Version)
        }
        _ => Err(FramingError::RequestLine),
    }
}

/// Parses a method.
///
/// # Errors
/// It is no token, or has lower-case letters.
pub(super) fn parse_method(method: &[u8]) -> Result<Method, FramingError> {
    // Methods are case-sensitive, but some upstreams ignore case: `post` must not bypass a limit on
    // `POST`.
    if method.iter().any(u8::is_ascii_lowercase) {
        return Err(FramingError::Method);
    }
    // Accepts tokens only.
    Method::from_bytes(method).map_err(|_| FramingError::Method)
}

impl StartLine for StatusLine {
    fn parse(line: &[u8]) -> Result<Self, FramingError> {
        let Some((version, [b' ', rest @ ..])) = line.split_first_chunk() else {
            return Err(FramingError::StatusLine);
        };
        let version = parse_version(*version).map_err(|_| FramingError::StatusLine)?;
        let ends = matches!(rest.get(3), None | Some(b' '));
        let status = rest.get(..3).filter(|code| ends && code.iter().all(u8::is_ascii_digit));
        let status = status.ok_or(FramingError::StatusLine)?;
        let status = status.iter().fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
        let is_valid = (100..=MAX_STATUS).contains(&status);
        if is_valid { Ok(Self { status, version }) } else { Err(FramingError::StatusLine) }
    }
}
