//! The parser of message heads. Requests and responses share it. Pure.
//!
//! It follows RFC 9112, 2.2 (line ends), 3 (request line), 3.2 (Host), 5 (fields) and 6 (length),
//! but is stricter where the RFC lets a recipient repair a message. The parser is incremental: it
//! continues where it stopped, so a head costs one pass however its bytes are split.

mod http2;
mod summary;

use std::{num::NonZeroU32, ops::Range};

use http::Method;

use self::summary::FieldSummary;
pub use self::{
    http2::{Http2Head, StreamContent},
    summary::{ConnectionOptions, RareFields},
};
use super::{
    characters::token_length,
    controls::Controls,
    error::FramingError,
    expect::Expectation,
    fields::{FieldSpan, Fields, NameSignature},
    start_line::{RequestLine, StartLine, StatusLine, Version},
    target::{Form, RequestTarget},
};

/// The maximum number of fields of a response.
pub const MAX_RESPONSE_FIELDS: usize = 1024;
/// The longest head of a response, in bytes.
const MAX_RESPONSE_HEAD: usize = 64 * 1024;
/// The longest field name, in bytes.
const MAX_NAME: usize = 65_535;

/// How a message's body is delimited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyLength {
    /// By a length in bytes; 0 without a body.
    Known(u64),
    /// By the last chunk.
    Chunked,
}

/// The largest head that is accepted.
#[derive(Clone, Copy, Debug)]
pub struct HeadBounds {
    /// The maximum length in bytes, from the first line to the empty line.
    pub bytes: usize,
    /// The maximum number of header fields.
    pub headers: usize,
}

/// A request's head.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// The version.
    pub version: Version,
    /// The header fields. A target in absolute form replaces `Host`: RFC 9112, 3.2.2.
    pub fields: Fields,
    /// How the body is delimited.
    pub length: BodyLength,
    /// The options of `Connection`.
    pub connection: ConnectionOptions,
    /// Which of the rare fields it has.
    pub rare: RareFields,
    pub(super) target: RequestTarget,
}

/// A response's head.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// The status code, 100 to 599.
    pub status: u16,
    /// The version.
    pub version: Version,
    /// The header fields.
    pub fields: Fields,
    /// How the body is delimited; `None` without `Content-Length` and `Transfer-Encoding`.
    pub length: Option<BodyLength>,
    /// The options of `Connection`.
    pub connection: ConnectionOptions,
}

/// The incremental parser of one head.
#[derive(Debug)]
pub struct HeadParser<S> {
    bounds: HeadBounds,
    start: Option<S>,
    /// The fields so far, whose bytes are added at the end.
    fields: Fields,
    summary: FieldSummary,
    /// The offset of the current line.
    line: usize,
    /// The offset where the search for the line's end continues.
    searched: usize,
}

impl<S: StartLine> HeadParser<S> {
    fn new(bounds: HeadBounds) -> Self {
        let (fields, summary) = (Fields::new(), FieldSummary::default());
        Self { bounds, start: None, fields, summary, line: 0, searched: 0 }
    }

    /// Continues parsing. `bytes` begins with the bytes of the last call, and new bytes follow.
    /// Returns the length of the complete head, empty line included, or `None` while it is
    /// incomplete.
    ///
    /// # Errors
    /// The head is malformed, or exceeds its bounds.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, FramingError> {
        let mut controls = Controls::new(bytes, self.searched);
        loop {
            let end = controls.next().unwrap_or(bytes.len());
            match bytes.get(end..) {
                // Passes the line feed.
                Some([b'\r', b'\n', ..]) => drop(controls.next()),
                // The line is incomplete.
                Some([] | [b'\r']) | None => {
                    self.searched = end;
                    let is_too_large = bytes.len() > self.bounds.bytes;
                    return if is_too_large { Err(self.size_error()) } else { Ok(None) };
                }
                Some(_) if end >= self.bounds.bytes => return Err(self.size_error()),
                Some([b'\n', ..]) => return Err(FramingError::BareLf),
                Some(_) => return Err(FramingError::Control),
            }
            if end + 1 >= self.bounds.bytes {
                return Err(self.size_error());
            }
            let line = self.line..end;
            (self.line, self.searched) = (end + 2, end + 2);
            if self.start.is_none() {
                self.start = Some(S::parse(&bytes[line])?);
            } else if line.is_empty() {
                return Ok(Some(end + 2));
            } else {
                self.parse_field(bytes, line)?;
            }
        }
    }

    /// The fields of the complete head `bytes`.
    fn take_fields(&mut self, bytes: &[u8]) -> Fields {
        let mut fields = std::mem::take(&mut self.fields);
        fields.keep(bytes);
        fields
    }

    /// The error for a head that exceeds its bounds. With an incomplete first line, the target is
    /// too long.
    fn size_error(&self) -> FramingError {
        let max = self.bounds.bytes;
        match self.start {
            None => FramingError::TargetTooLong(max),
            Some(_) => FramingError::HeadTooLarge(max),
        }
    }

    /// Parses the field line `line` of the head in `bytes`.
    fn parse_field(&mut self, bytes: &[u8], line: Range<usize>) -> Result<(), FramingError> {
        if self.fields.len() >= self.bounds.headers {
            return Err(FramingError::TooManyFields(self.bounds.headers));
        }
        // The bytes after the line cannot continue its name.
        let length = name_length(&bytes[line.start..])?;
        let (offset, line) = (line.start, &bytes[line]);
        let (name, rest) = (&line[..length], &line[length + 1..]);
        // The usual case: one space, and no white space at the end.
        let (value, is_plain) = match rest {
            [b' ', value @ ..] if !has_outer_space(value) => (value, true),
            _ => (rest.trim_ascii(), false),
        };
        let start =
            if is_plain { name.len() + 2 } else { line.len() - rest.trim_ascii_start().len() };
        self.fields.push_span(FieldSpan {
            name: offset as u32,
            value: (offset + start) as u32,
            value_length: value.len() as u32,
            end: NonZeroU32::new(self.line as u32).filter(|_| is_plain),
            signature: NameSignature::of(name),
        });
        let hosts = self.summary.host_count;
        self.summary.add_field(name, value)?;
        if (hosts, self.summary.host_count) == (0, 1) {
            self.fields.mark_host();
        }
        Ok(())
    }
}

/// True if `value` begins or ends with white space.
fn has_outer_space(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_space(value.first()) || is_space(value.last())
}

/// Parses a head at the start of `bytes`, with the parser in `stored` or a new one from `begin`.
/// While the head is incomplete, the parser stays in `stored`. Returns the result of `finish` for
/// the complete head, and the number of bytes used: 0 while the head is incomplete.
///
/// # Errors
/// The head is malformed, or exceeds its bounds.
pub fn resume_parse<S: StartLine, T>(
    stored: &mut Option<Box<HeadParser<S>>>,
    bytes: &[u8],
    begin: impl FnOnce() -> HeadParser<S>,
    finish: impl FnOnce(&mut HeadParser<S>, &[u8]) -> Result<T, FramingError>,
) -> Result<(Option<T>, usize), FramingError> {
    if let Some(parser) = stored {
        let Some(length) = parser.parse(bytes)? else { return Ok((None, 0)) };
        let head = finish(parser, &bytes[..length])?;
        *stored = None;
        return Ok((Some(head), length));
    }
    let mut parser = begin();
    if let Some(length) = parser.parse(bytes)? {
        return Ok((Some(finish(&mut parser, &bytes[..length])?), length));
    }
    *stored = Some(Box::new(parser));
    Ok((None, 0))
}

impl HeadParser<RequestLine> {
    /// A parser for a request's head.
    pub fn request(bounds: HeadBounds) -> Self {
        Self::new(bounds)
    }

    /// Builds the head from `bytes`, which are exactly the complete head.
    ///
    /// # Errors
    /// `Host` is missing, repeated or malformed, or the body's length is ambiguous.
    pub fn finish(&mut self, bytes: &[u8]) -> Result<RequestHead, FramingError> {
        let RequestLine { method, target, version } =
            self.start.take().ok_or(FramingError::RequestLine)?;
        if let Some(error) = self.summary.host_error.take() {
            return Err(error);
        }
        match self.summary.host_count {
            0 if version == Version::Http11 => return Err(FramingError::HostMissing),
            0 | 1 => {}
            _ => return Err(FramingError::HostRepeated),
        }
        let length = self.summary.body_length(version)?.unwrap_or(BodyLength::Known(0));
        let mut fields = self.take_fields(bytes);
        if let Form::Absolute { authority } = &target.form {
            fields.set("Host", &bytes[authority.clone()]);
        }
        let (connection, rare) = (self.summary.connection, self.summary.rare);
        Ok(RequestHead { method, version, fields, length, connection, rare, target })
    }
}

impl HeadParser<StatusLine> {
    /// A parser for a response's head.
    pub fn response() -> Self {
        Self::new(HeadBounds { bytes: MAX_RESPONSE_HEAD, headers: MAX_RESPONSE_FIELDS })
    }

    /// Builds the head from `bytes`, which are exactly the complete head.
    ///
    /// # Errors
    /// The body's length is ambiguous, or the status is 101.
    pub fn finish(&mut self, bytes: &[u8]) -> Result<ResponseHead, FramingError> {
        let head = self.finish_upgrade(bytes)?;
        if head.status == 101 { Err(FramingError::UnexpectedUpgrade) } else { Ok(head) }
    }

    /// As [`Self::finish`], for the response to a request for an upgrade: a 101 is accepted.
    ///
    /// A 1xx response ends at its empty line, whatever its fields say (RFC 9112, 6.3), so a length
    /// in it is ignored.
    ///
    /// # Errors
    /// The body's length is ambiguous, or a 101 is not HTTP/1.1.
    pub fn finish_upgrade(&mut self, bytes: &[u8]) -> Result<ResponseHead, FramingError> {
        let StatusLine { status, version } = self.start.take().ok_or(FramingError::StatusLine)?;
        if status == 101 && version != Version::Http11 {
            return Err(FramingError::UnexpectedUpgrade);
        }
        let length = if status < 200 { None } else { self.summary.body_length(version)? };
        let fields = self.take_fields(bytes);
        Ok(ResponseHead { status, version, fields, length, connection: self.summary.connection })
    }
}

impl RequestHead {
    /// Parses the head at the start of `bytes`, and returns it with its length in bytes. `None`:
    /// the head is incomplete.
    ///
    /// # Errors
    /// The head is malformed, or exceeds `bounds`.
    pub fn read(bytes: &[u8], bounds: HeadBounds) -> Result<Option<(Self, usize)>, FramingError> {
        let mut parser = HeadParser::request(bounds);
        let Some(length) = parser.parse(bytes)? else { return Ok(None) };
        Ok(Some((parser.finish(&bytes[..length])?, length)))
    }

    /// True if the client asks for `100 Continue` before it sends its body.
    pub fn expects_continue(&self) -> bool {
        self.rare.expect && Expectation::of(&self.fields) == Expectation::Continue
    }

    /// The path as sent; `/` if the target has none.
    #[inline]
    pub fn path(&self) -> &str {
        match self.text(&self.target.path) {
            "" => "/",
            path => path,
        }
    }

    /// The path as bytes: [`Self::path`] without the check of its encoding.
    #[inline]
    pub fn path_bytes(&self) -> &[u8] {
        match self.fields.bytes().get(self.target.path.clone()) {
            None | Some([]) => b"/",
            Some(path) => path,
        }
    }

    /// The query as sent, without the question mark.
    #[inline]
    pub fn query(&self) -> Option<&str> {
        self.target.query.as_ref().map(|query| self.text(query))
    }

    /// True if the target is in asterisk form: `OPTIONS *`, a request about the server as a whole.
    pub fn is_asterisk_form(&self) -> bool {
        self.target.form == Form::Asterisk
    }

    fn text(&self, span: &Range<usize>) -> &str {
        let bytes = self.fields.bytes().get(span.clone()).unwrap_or_default();
        // Never fails: a target is ASCII.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// True if the client accepts trailers (RFC 9110, 10.1.4), which gRPC requires.
    pub fn accepts_trailers(&self) -> bool {
        let mut codings = self.fields.get_all("te").flat_map(|te| te.split(|byte| *byte == b','));
        codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    }

    /// True if the client may send another request on the connection.
    pub fn is_persistent(&self) -> bool {
        match self.version {
            Version::Http11 => !self.connection.close,
            Version::Http10 => self.connection.keep_alive && !self.connection.close,
            Version::Http2 => true,
        }
    }
}

impl ResponseHead {
    /// Parses the head at the start of `bytes`, and returns it with its length in bytes. `None`:
    /// the head is incomplete.
    ///
    /// # Errors
    /// The head is malformed, or larger than 64 KiB or 1024 fields.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, FramingError> {
        let mut parser = HeadParser::response();
        let Some(length) = parser.parse(bytes)? else { return Ok(None) };
        Ok(Some((parser.finish(&bytes[..length])?, length)))
    }

    /// True if the connection can be reused: without `close`, in HTTP/1.0 only with `keep-alive`.
    pub fn is_persistent(&self) -> bool {
        let kept = self.version == Version::Http11 || self.connection.keep_alive;
        kept && !self.connection.close
    }
}

/// The length of the name at the start of a field line. A colon follows it.
pub(super) fn name_length(line: &[u8]) -> Result<usize, FramingError> {
    let end = token_length(line);
    match (end, line.get(end)) {
        (0, Some(b' ' | b'\t')) => Err(FramingError::Folded),
        (end, _) if end > MAX_NAME => Err(FramingError::HeaderNameTooLong),
        (end, Some(b':')) if end > 0 => Ok(end),
        _ => Err(FramingError::HeaderName),
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
