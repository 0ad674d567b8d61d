//! Heads of messages, read strictly and once: requests and answers share the parser. Pure.
//!
//! RFC 9112, 2.2 (line ends), 3 (request line), 3.2 (Host), 5 (fields), 6 (length), but stricter
//! wherever it lets a recipient repair what it receives. The parser goes on where it stopped when
//! more bytes have come, so a head costs one pass in whatever pieces it arrives.

use std::ops::Range;

use http::Method;

use super::{
    buffer::Buffer,
    characters::{has_control, token_length},
    fault::Fault,
    fields::{Fields, Place, Places, USUAL_FIELDS},
    start_line::{RequestLine, StartLine, StatusLine, Version},
    target::{Form, Target},
};

/// An answer has so many fields at the most: what a request may have if it is configured so.
const MAX_ANSWER_FIELDS: usize = 1024;
/// The longest head of an answer, in bytes.
const MAX_ANSWER_HEAD: usize = 64 * 1024;
/// `Connection` names so many options at the most.
const MAX_OPTIONS: u32 = 64;
/// The longest name of a field, in bytes.
const MAX_NAME: usize = 65_535;

/// How a message's body is delimited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Length {
    /// So many bytes; 0 is none.
    Known(u64),
    /// Chunks, until the last.
    Chunked,
}

/// The largest head, in bytes and in headers.
#[derive(Clone, Copy, Debug)]
pub struct HeadBounds {
    /// In bytes, from the method to the empty line.
    pub bytes: usize,
    /// In headers.
    pub headers: usize,
}

/// A request's head.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// The version.
    pub version: Version,
    /// The header fields. `Host` is the target's where the target names one.
    pub fields: Fields,
    /// How its body is delimited.
    pub body: Length,
    /// What `Connection` says.
    pub connection: Connection,
    /// Whether there is an `Expect`.
    pub expects: bool,
    pub(super) target: Target,
}

/// What the `Connection` fields of a message say.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Connection {
    /// `close`.
    pub close: bool,
    /// `keep-alive`.
    pub keep_alive: bool,
    /// Names of other fields.
    pub names: bool,
}

/// An answer's head.
#[derive(Clone, Debug)]
pub struct AnswerHead {
    /// The status.
    pub status: u16,
    /// The version.
    pub version: Version,
    /// The header fields.
    pub fields: Fields,
    /// What it says of the body's length, if anything.
    pub length: Option<Length>,
    /// What `Connection` says.
    pub connection: Connection,
}

/// A head that is being read.
#[derive(Debug)]
pub struct HeadParser<S> {
    bounds: HeadBounds,
    start: Option<S>,
    places: Places,
    seen: Seen,
    /// Where the line begins that is read next.
    line: usize,
    /// How far its end was looked for.
    searched: usize,
}

/// What the fields say of length, host and connection.
#[derive(Debug, Default)]
struct Seen {
    hosts: u32,
    /// What is wrong with a host; in an answer the field has no meaning.
    host_fault: Option<Fault>,
    length: Option<u64>,
    chunked: bool,
    connection: Connection,
    /// How many options `Connection` has.
    options: u32,
    expects: bool,
}

impl<S: StartLine> HeadParser<S> {
    fn new(bounds: HeadBounds) -> Self {
        let (places, seen) = (Places::with_capacity(USUAL_FIELDS), Seen::default());
        Self { bounds, start: None, places, seen, line: 0, searched: 0 }
    }

    /// Reads on in `bytes`: those of the last call, and what has come since. Returns the head's length
    /// once it is whole, the empty line included.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        while let Some(found) = memchr::memchr(b'\n', &bytes[self.searched..]) {
            let end = self.searched + found;
            if end >= self.bounds.bytes {
                return Err(self.too_large());
            }
            let line = bytes[self.line..end].strip_suffix(b"\r").ok_or(Fault::BareLf)?;
            if has_control(line) {
                return Err(Fault::Control);
            }
            let at = self.line;
            (self.line, self.searched) = (end + 1, end + 1);
            if self.start.is_none() {
                self.start = Some(S::parse(line)?);
            } else if line.is_empty() {
                return Ok(Some(end + 1));
            } else {
                self.field(line, at)?;
            }
        }
        self.searched = bytes.len();
        if bytes.len() > self.bounds.bytes { Err(self.too_large()) } else { Ok(None) }
    }

    /// What is too large: the first line alone, or all of the head.
    fn too_large(&self) -> Fault {
        if self.start.is_none() { Fault::TargetTooLong } else { Fault::HeadTooLarge }
    }

    fn field(&mut self, line: &[u8], at: usize) -> Result<(), Fault> {
        if self.places.len() >= self.bounds.headers {
            return Err(Fault::HeadTooLarge);
        }
        let (name, value) = split_field(line)?;
        let leading =
            line[name.len() + 1..].len() - line[name.len() + 1..].trim_ascii_start().len();
        let start = name.len() + 1 + leading;
        let plain =
            leading == 1 && line[name.len() + 1] == b' ' && start + value.len() == line.len();
        self.places.push(Place {
            name: at as u32,
            name_length: name.len() as u32,
            value: (at + start) as u32,
            value_length: value.len() as u32,
            end: if plain { self.line as u32 } else { 0 },
        });
        self.seen.field(name, value)
    }
}

/// Reads a head at the start of `bytes`, going on where `kept` stopped, or with `begin`. Returns what
/// `finish` makes of it once it is whole, and how many bytes it had; until then none are used.
pub fn read_on<S: StartLine, T>(
    kept: &mut Option<Box<HeadParser<S>>>,
    bytes: &[u8],
    begin: impl FnOnce() -> HeadParser<S>,
    finish: impl FnOnce(HeadParser<S>, &[u8]) -> Result<T, Fault>,
) -> Result<(Option<T>, usize), Fault> {
    if let Some(parser) = kept {
        let Some(length) = parser.parse(bytes)? else { return Ok((None, 0)) };
        let whole = kept.take().map(|parser| finish(*parser, &bytes[..length]));
        return Ok((whole.transpose()?, length));
    }
    let mut parser = begin();
    if let Some(length) = parser.parse(bytes)? {
        return Ok((Some(finish(parser, &bytes[..length])?), length));
    }
    *kept = Some(Box::new(parser));
    Ok((None, 0))
}

impl HeadParser<RequestLine> {
    /// Begins with a request.
    pub fn request(bounds: HeadBounds) -> Self {
        Self::new(bounds)
    }

    /// The request whose head is whole, and is all of `bytes`.
    pub fn finish(self, bytes: &[u8]) -> Result<RequestHead, Fault> {
        let RequestLine { method, target, version } = self.start.ok_or(Fault::RequestLine)?;
        if let Some(fault) = self.seen.host_fault {
            return Err(fault);
        }
        match self.seen.hosts {
            0 if version == Version::Http11 => return Err(Fault::HostMissing),
            0 | 1 => {}
            _ => return Err(Fault::HostRepeated),
        }
        let body = self.seen.length(version)?.unwrap_or(Length::Known(0));
        let mut fields = Fields::of(Buffer::copy_of(bytes), self.places);
        if let Form::Absolute { authority } = &target.form {
            fields.set("Host", &bytes[authority.clone()]);
        }
        let (connection, expects) = (self.seen.connection, self.seen.expects);
        Ok(RequestHead { method, version, fields, body, connection, expects, target })
    }
}

impl HeadParser<StatusLine> {
    /// Begins with an answer.
    pub fn answer() -> Self {
        Self::new(HeadBounds { bytes: MAX_ANSWER_HEAD, headers: MAX_ANSWER_FIELDS })
    }

    /// The answer whose head is whole, and is all of `bytes`.
    pub fn finish(self, bytes: &[u8]) -> Result<AnswerHead, Fault> {
        let StatusLine { status, version } = self.start.ok_or(Fault::StatusLine)?;
        let length = self.seen.length(version)?;
        if status == 101 {
            return Err(Fault::UnaskedSwitch);
        }
        let fields = Fields::of(Buffer::copy_of(bytes), self.places);
        Ok(AnswerHead { status, version, fields, length, connection: self.seen.connection })
    }
}

impl RequestHead {
    /// Reads the head that `bytes` begin with; `None` while it is incomplete. Returns its length, too.
    pub fn read(bytes: &[u8], bounds: HeadBounds) -> Result<Option<(Self, usize)>, Fault> {
        let mut parser = HeadParser::request(bounds);
        let Some(length) = parser.parse(bytes)? else { return Ok(None) };
        Ok(Some((parser.finish(&bytes[..length])?, length)))
    }

    /// The path as it was sent; `/` where there is none.
    pub fn path(&self) -> &str {
        match self.text(&self.target.path) {
            "" => "/",
            path => path,
        }
    }

    /// The query as it was sent, without the question mark.
    pub fn query(&self) -> Option<&str> {
        self.target.query.as_ref().map(|query| self.text(query))
    }

    /// Whether it asks about the server as a whole: `OPTIONS *`.
    pub fn is_about_server(&self) -> bool {
        self.target.form == Form::Asterisk
    }

    fn text(&self, place: &Range<usize>) -> &str {
        let bytes = self.fields.bytes().get(place.clone()).unwrap_or_default();
        // A target is ASCII.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// Whether the client may send another request behind this one.
    pub fn is_persistent(&self) -> bool {
        match self.version {
            Version::Http11 => !self.connection.close,
            Version::Http10 => self.connection.keep_alive && !self.connection.close,
        }
    }
}

impl AnswerHead {
    /// Reads the head that `bytes` begin with; `None` while it is incomplete. Returns its length, too.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, Fault> {
        let mut parser = HeadParser::answer();
        let Some(length) = parser.parse(bytes)? else { return Ok(None) };
        Ok(Some((parser.finish(&bytes[..length])?, length)))
    }

    /// Whether the upstream takes another request on the connection. HTTP/1.0 keeps it where it says
    /// so; a `close` counts wherever it stands.
    pub fn is_persistent(&self) -> bool {
        let kept = self.version == Version::Http11 || self.connection.keep_alive;
        kept && !self.connection.close
    }
}

impl Seen {
    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                self.hosts += 1;
                self.host_fault = self.host_fault.or(super::host::check(value).err());
            }
            6 if name.eq_ignore_ascii_case(b"expect") => self.expects = true,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.options += 1;
                    if self.options > MAX_OPTIONS {
                        return Err(Fault::ConnectionOptions);
                    }
                    self.connection.read(option);
                }
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let earlier = self.length.replace(decimal(value)?);
                if earlier.is_some() {
                    return Err(Fault::LengthRepeated);
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Fault::Coding);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn length(&self, version: Version) -> Result<Option<Length>, Fault> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(Fault::LengthAndCoding),
            (true, None) if version == Version::Http10 => Err(Fault::Coding),
            (true, None) => Ok(Some(Length::Chunked)),
            (false, length) => Ok(length.map(Length::Known)),
        }
    }
}

impl Connection {
    fn read(&mut self, option: &[u8]) {
        if option.eq_ignore_ascii_case(b"close") {
            self.close = true;
        } else if option.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
        } else if !option.is_empty() {
            self.names = true;
        }
    }
}

/// Cuts one field line into its name and its trimmed value.
pub(super) fn split_field(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let end = token_length(line);
    match (end, line.get(end)) {
        (0, Some(b' ' | b'\t')) => Err(Fault::Folded),
        (end, _) if end > MAX_NAME => Err(Fault::HeadTooLarge),
        (end, Some(b':')) if end > 0 => Ok((&line[..end], line[end + 1..].trim_ascii())),
        _ => Err(Fault::HeaderName),
    }
}

fn decimal(value: &[u8]) -> Result<u64, Fault> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Fault::LengthMalformed);
    }
    Ok(value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests;
