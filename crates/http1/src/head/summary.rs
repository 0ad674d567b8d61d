//! What the fields of a head say about its body, its host and its connection. Pure.

use super::{
    super::{characters::is_same_name, host},
    BodyLength, FramingError, Version,
};

/// The maximum number of options in `Connection`.
const MAX_OPTIONS: u32 = 64;

/// The connection options of a message: RFC 9110, 7.6.1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct ConnectionOptions {
    /// `close`.
    pub close: bool,
    /// `keep-alive`.
    pub keep_alive: bool,
    /// `upgrade`.
    pub upgrade: bool,
    /// Other options, which are names of hop-by-hop fields.
    pub lists_fields: bool,
}

/// Which fields that most requests lack a request has: others need not search them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RareFields {
    /// `Authorization`.
    pub authorization: bool,
    /// `Expect`.
    pub expect: bool,
    /// `Via`, or a field of twelve characters whose name ends in `-via`: what a proxy may send
    /// instead to servers that must not get `Via`.
    pub via: bool,
}

/// The length, host and connection options of a head, collected from its fields.
#[derive(Debug, Default)]
pub(super) struct FieldSummary {
    pub(super) host_count: u32,
    /// The error of the first malformed `Host`. Ignored in a response.
    pub(super) host_error: Option<FramingError>,
    pub(super) length: Option<u64>,
    pub(super) chunked: bool,
    pub(super) connection: ConnectionOptions,
    /// The number of options in `Connection`.
    pub(super) option_count: u32,
    pub(super) rare: RareFields,
}

impl FieldSummary {
    pub(super) fn add_field(&mut self, name: &[u8], value: &[u8]) -> Result<(), FramingError> {
        match name.len() {
            4 if is_same_name(name, b"host") => {
                self.host_count += 1;
                self.host_error = self.host_error.or(host::check(value).err());
            }
            3 if is_same_name(name, b"via") => self.rare.via = true,
            6 if is_same_name(name, b"expect") => self.rare.expect = true,
            10 if is_same_name(name, b"connection") => {
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.option_count += 1;
                    if self.option_count > MAX_OPTIONS {
                        return Err(FramingError::ConnectionOptions);
                    }
                    self.connection.add(option);
                }
            }
            12 if is_same_name(&name[8..], b"-via") => self.rare.via = true,
            13 if is_same_name(name, b"authorization") => self.rare.authorization = true,
            14 if is_same_name(name, b"content-length") => {
                let earlier = self.length.replace(decimal(value)?);
                if earlier.is_some() {
                    return Err(FramingError::LengthRepeated);
                }
            }
            17 if is_same_name(name, b"transfer-encoding") => {
                if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(FramingError::Coding);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// How the body is delimited. `Content-Length` beside `Transfer-Encoding` is refused (RFC 9112,
    /// 6.3), because servers differ in which one they follow.
    pub(super) fn body_length(&self, version: Version) -> Result<Option<BodyLength>, FramingError> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(FramingError::LengthAndCoding),
            (true, None) if version == Version::Http10 => Err(FramingError::Coding),
            (true, None) => Ok(Some(BodyLength::Chunked)),
            (false, length) => Ok(length.map(BodyLength::Known)),
        }
    }
}

impl ConnectionOptions {
    fn add(&mut self, option: &[u8]) {
        if option.eq_ignore_ascii_case(b"close") {
            self.close = true;
        } else if option.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
        } else if option.eq_ignore_ascii_case(b"upgrade") {
            self.upgrade = true;
        } else if !option.is_empty() {
            self.lists_fields = true;
        }
    }
}

fn decimal(value: &[u8]) -> Result<u64, FramingError> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(FramingError::LengthMalformed);
    }
    Ok(value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}
