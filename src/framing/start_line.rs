//! The first line of a head: RFC 9112, 3 and 4. Pure.

use http::Method;

use super::{characters::is_token, fault::Fault, target::Target};

/// The protocol version of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// The first line of a head.
pub trait StartLine: Sized {
    /// Reads the line, without its end.
    fn parse(line: &[u8]) -> Result<Self, Fault>;
}

/// `GET /items HTTP/1.1`.
#[derive(Debug)]
pub struct RequestLine {
    pub(super) method: Method,
    pub(super) target: Target,
    pub(super) version: Version,
}

/// `HTTP/1.1 200 OK`.
#[derive(Debug)]
pub struct StatusLine {
    pub(super) status: u16,
    pub(super) version: Version,
}

impl StartLine for RequestLine {
    fn parse(line: &[u8]) -> Result<Self, Fault> {
        let method = memchr::memchr(b' ', line).ok_or(Fault::RequestLine)?;
        let rest = &line[method + 1..];
        let space = memchr::memchr(b' ', rest).ok_or(Fault::RequestLine)?;
        // Methods are told apart by case, but not by every upstream: `post` must not escape what counts
        // `POST`.
        if !is_token(&line[..method]) || line[..method].iter().any(u8::is_ascii_lowercase) {
            return Err(Fault::RequestLine);
        }
        let version = match &rest[space + 1..] {
            b"HTTP/1.1" => Version::Http11,
            b"HTTP/1.0" => Version::Http10,
            other if other.starts_with(b"HTTP/") && !other.contains(&b' ') => {
                return Err(Fault::Version);
            }
            _ => return Err(Fault::RequestLine),
        };
        let method_name = &line[..method];
        let method = Method::from_bytes(method_name).map_err(|_| Fault::RequestLine)?;
        let target = Target::parse(&rest[..space], method_name.len() + 1, &method)?;
        Ok(Self { method, target, version })
    }
}

impl StartLine for StatusLine {
    fn parse(line: &[u8]) -> Result<Self, Fault> {
        let version = match line.get(..9) {
            Some(b"HTTP/1.1 ") => Version::Http11,
            Some(b"HTTP/1.0 ") => Version::Http10,
            _ => return Err(Fault::StatusLine),
        };
        let ended = matches!(line.get(12), None | Some(b' '));
        let status = line.get(9..12).filter(|code| ended && code.iter().all(u8::is_ascii_digit));
        let status = status.ok_or(Fault::StatusLine)?;
        let status = status.iter().fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
        let known = (100..600).contains(&status);
        if known { Ok(Self { status, version }) } else { Err(Fault::StatusLine) }
    }
}
