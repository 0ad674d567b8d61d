//! The chunked transfer coding, read strictly. Pure.
//!
//! It accepts less than RFC 9112, 7.1 allows: white space only in quoted values and, in a response, after a
//! size; CR LF only; bounded extensions, padding and trailers. So all recipients read an accepted body alike.

use super::{
    characters::is_token_byte, error::FramingError, head::name_length, message_kind::MessageKind,
};

/// The maximum length of one chunk's extensions, and of the white space after its size, in bytes.
const MAX_EXTENSION: u32 = 1024;

/// The maximum number of digits of a size: as many as 64 bits have, which some clients write
/// always.
const MAX_DIGITS: u32 = 16;

/// The first size that one more digit would take above 60 bits.
const TOO_LARGE: u64 = 1 << 56;

/// The position of the next byte.
#[derive(Debug)]
enum ChunkPosition {
    /// In a chunk's size.
    Size {
        size: u64,
        digits: u32,
    },
    /// In a chunk's extensions; `size` is the chunk's.
    Extension {
        size: u64,
        length: u32,
        part: Extension,
    },
    /// In white space after a size.
    Padding {
        size: u64,
        length: u32,
    },
    /// At the LF of a size line.
    SizeLf {
        size: u64,
    },
    /// In a chunk's data: the bytes left.
    Data(u64),
    /// At the CR after a chunk's data.
    DataCr,
    /// At the LF after a chunk's data.
    DataLf,
    Trailer,
    Done,
}

/// The position of the next byte in a chunk's extensions: RFC 9112, 7.1.1.
#[derive(Clone, Copy, Debug)]
enum Extension {
    /// After a semicolon.
    NameStart,
    Name,
    /// After an equals sign.
    ValueStart,
    /// In an unquoted value.
    Token,
    Quoted,
    /// After a backslash in a quoted value.
    Escaped,
    /// After the closing quote.
    QuotedEnd,
}

impl Extension {
    /// The position after `byte`; `None` if `byte` is not allowed here.
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::NameStart | Self::Name, byte) if is_token_byte(byte) => Self::Name,
            (Self::Name, b'=') => Self::ValueStart,
            (Self::ValueStart, b'"') => Self::Quoted,
            (Self::ValueStart | Self::Token, byte) if is_token_byte(byte) => Self::Token,
            (Self::Quoted, b'"') => Self::QuotedEnd,
            (Self::Quoted, b'\\') => Self::Escaped,
            (Self::Quoted | Self::Escaped, b'\t' | 0x20..=0x7e | 0x80..) => Self::Quoted,
            (Self::Name | Self::Token | Self::QuotedEnd, b';') => Self::NameStart,
            _ => return None,
        })
    }

    fn can_end(self) -> bool {
        matches!(self, Self::Name | Self::Token | Self::QuotedEnd)
    }
}

/// A part of a chunked body's content.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChunkedPart<'a> {
    /// Bytes of a chunk's data.
    Data(&'a [u8]),
    /// A trailer's name and value.
    Trailer(&'a [u8], &'a [u8]),
}

/// Decodes one chunked body and stops after its last byte.
#[derive(Debug)]
pub struct ChunkedDecoder {
    state: ChunkPosition,
    /// The bytes of the unfinished trailer line.
    line: Vec<u8>,
    /// The number of bytes of all trailer lines.
    trailers: usize,
    kind: MessageKind,
}

impl ChunkedDecoder {
    /// A decoder for the body of such a message.
    pub fn new(kind: MessageKind) -> Self {
        let state = ChunkPosition::Size { size: 0, digits: 0 };
        Self { state, line: Vec::new(), trailers: 0, kind }
    }

    /// True if the body's last byte was decoded.
    pub fn is_done(&self) -> bool {
        matches!(self.state, ChunkPosition::Done)
    }

    /// Decodes `bytes` and drops their content. Returns the number of bytes that belong to this
    /// body: all of them until it is done.
    ///
    /// # Errors
    /// The coding is malformed, or a bound is exceeded.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<usize, FramingError> {
        self.decode_with(bytes, |_| {})
    }

    /// Like [`Self::decode`], but passes the content to `sink`.
    ///
    /// # Errors
    /// The coding is malformed, or a bound is exceeded. `sink` has received the content before the
    /// error.
    pub fn decode_with(
        &mut self,
        bytes: &[u8],
        mut sink: impl FnMut(ChunkedPart<'_>),
    ) -> Result<usize, FramingError> {
        let mut at = 0;
        while at < bytes.len() && !self.is_done() {
            if let ChunkPosition::Data(left) = &mut self.state {
                let step = (*left).min((bytes.len() - at) as u64);
                *left -= step;
                sink(ChunkedPart::Data(&bytes[at..at + step as usize]));
                at += step as usize;
                if *left == 0 {
                    self.state = ChunkPosition::DataCr;
                }
            } else {
                self.step(bytes[at], &mut sink)?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// Reads one byte of a size line, of a chunk's end or of a trailer.
    fn step(
        &mut self,
        byte: u8,
        sink: &mut impl FnMut(ChunkedPart<'_>),
    ) -> Result<(), FramingError> {
        self.state = match self.state {
            ChunkPosition::Size { size, digits } => match char::from(byte).to_digit(16) {
                Some(digit) if digits < MAX_DIGITS && size < TOO_LARGE => {
                    ChunkPosition::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
                }
                None if digits > 0 && byte == b'\r' => ChunkPosition::SizeLf { size },
                // Some servers write all sizes with the same number of characters.
                None if digits > 0 && self.skips_padding(byte) => {
                    ChunkPosition::Padding { size, length: 1 }
                }
                None if digits > 0 && byte == b';' => {
                    ChunkPosition::Extension { size, length: 0, part: Extension::NameStart }
                }
                _ => return Err(FramingError::ChunkSize),
            },
            ChunkPosition::Padding { size, length } => match byte {
                b'\r' => ChunkPosition::SizeLf { size },
                b';' => ChunkPosition::Extension { size, length: 0, part: Extension::NameStart },
                _ if self.skips_padding(byte) && length < MAX_EXTENSION => {
                    ChunkPosition::Padding { size, length: length + 1 }
                }
                _ => return Err(FramingError::ChunkSize),
            },
            ChunkPosition::Extension { size, part, .. } if byte == b'\r' && part.can_end() => {
                ChunkPosition::SizeLf { size }
            }
            ChunkPosition::Extension { size, length, part } => match part.next(byte) {
                Some(part) if length < MAX_EXTENSION => {
                    ChunkPosition::Extension { size, length: length + 1, part }
                }
                _ => return Err(FramingError::ChunkExtension),
            },
            ChunkPosition::SizeLf { size } => match (byte, size) {
                (b'\n', 0) => ChunkPosition::Trailer,
                (b'\n', _) => ChunkPosition::Data(size),
                _ => return Err(FramingError::ChunkSize),
            },
            ChunkPosition::DataCr if byte == b'\r' => ChunkPosition::DataLf,
            ChunkPosition::DataLf if byte == b'\n' => ChunkPosition::Size { size: 0, digits: 0 },
            ChunkPosition::DataCr | ChunkPosition::DataLf => return Err(FramingError::ChunkEnd),
            ChunkPosition::Trailer => return self.trailer_step(byte, sink),
            ChunkPosition::Data(_) | ChunkPosition::Done => return Ok(()),
        };
        Ok(())
    }

    /// True for white space between a size and its CR LF in an upstream's response.
    fn skips_padding(&self, byte: u8) -> bool {
        self.kind == MessageKind::Response && matches!(byte, b' ' | b'\t')
    }

    fn trailer_step(
        &mut self,
        byte: u8,
        sink: &mut impl FnMut(ChunkedPart<'_>),
    ) -> Result<(), FramingError> {
        self.trailers += 1;
        if self.trailers > self.kind.max_trailers() {
            return Err(FramingError::TrailersTooLong(self.kind));
        }
        if byte != b'\n' {
            self.line.push(byte);
            return Ok(());
        }
        let line = self.line.strip_suffix(b"\r").ok_or(FramingError::BareLf)?;
        if line.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
            return Err(FramingError::Control);
        }
        if line.is_empty() {
            self.state = ChunkPosition::Done;
        } else {
            let (name, rest) = line.split_at(name_length(line)?);
            let value = rest[1..].trim_ascii();
            sink(ChunkedPart::Trailer(name, value));
        }
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &[u8]) -> Result<(usize, bool), FramingError> {
        let mut chunked = ChunkedDecoder::new(MessageKind::Request);
        let length = chunked.decode(body)?;
        Ok((length, chunked.is_done()))
    }

    #[test]
    fn well_formed_bodies_end_at_their_last_byte() {
        for (body, length) in [
            (&b"0\r\n\r\nGET"[..], 5),
            (b"3\r\nabc\r\n0\r\n\r\n", 13),
            (b"003;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n", 40),
            (b"0;a;b=c;d=\"e;\\\" f\"\r\n\r\n", 22),
            (b"0000000000000003\r\nabc\r\n0\r\n\r\n", 28),
        ] {
            assert_eq!(read(body), Ok((length, true)), "{:?}", String::from_utf8_lossy(body));
        }
        assert_eq!(read(b"3\r\nab"), Ok((5, false)));
    }

    #[test]
    fn padding_is_accepted_in_responses_and_bounded() {
        let decode = |kind, spaces: usize| {
            let body = [b"3", &b" ".repeat(spaces)[..], b"\r\nabc\r\n0\r\n\r\n"].concat();
            let mut chunked = ChunkedDecoder::new(kind);
            chunked.decode(&body).map(|_| chunked.is_done())
        };
        assert_eq!(decode(MessageKind::Response, 1024), Ok(true));
        assert_eq!(decode(MessageKind::Response, 1025), Err(FramingError::ChunkSize));
        assert_eq!(decode(MessageKind::Request, 1), Err(FramingError::ChunkSize));
    }

    #[test]
    fn malformed_and_unbounded_codings_are_rejected() {
        for (body, error) in [
            (&b"\r\n"[..], FramingError::ChunkSize),
            (b"g\r\n", FramingError::ChunkSize),
            (b"0x3\r\n", FramingError::ChunkSize),
            (b"-1\r\n", FramingError::ChunkSize),
            (b"+1\r\n", FramingError::ChunkSize),
            (b" 3\r\n", FramingError::ChunkSize),
            (b"3 \r\n", FramingError::ChunkSize),
            (b"3\n", FramingError::ChunkSize),
            (b"3\rabc", FramingError::ChunkSize),
            (b"ffffffffffffffff\r\n", FramingError::ChunkSize),
            (b"1000000000000000\r\n", FramingError::ChunkSize),
            (b"00000000000000003\r\n", FramingError::ChunkSize),
            (b"3\r\nabcd", FramingError::ChunkEnd),
            (b"3\r\nabc\n", FramingError::ChunkEnd),
            (b"3;a\nabc", FramingError::ChunkExtension),
            (b"3;\r\n", FramingError::ChunkExtension),
            (b"3;;a\r\n", FramingError::ChunkExtension),
            (b"3;a=\r\n", FramingError::ChunkExtension),
            (b"3;a b\r\n", FramingError::ChunkExtension),
            (b"3;=b\r\n", FramingError::ChunkExtension),
            (b"3;a=\"b\r\n", FramingError::ChunkExtension),
            (b"3;a=\"b\"c\r\n", FramingError::ChunkExtension),
            (b"3 ;a\r\n", FramingError::ChunkSize),
            (b"0\r\nX: y\n", FramingError::BareLf),
            (b"0\r\n x\r\n", FramingError::Folded),
            (b"0\r\nX y\r\n", FramingError::HeaderName),
            (b"0\r\nX: \0\r\n", FramingError::Control),
        ] {
            assert_eq!(read(body), Err(error), "{:?}", String::from_utf8_lossy(body));
        }
        let long = [b"1;".to_vec(), vec![b'a'; 2000]].concat();
        assert_eq!(read(&long), Err(FramingError::ChunkExtension));
        let many = [b"0\r\n".to_vec(), b"A: b\r\n".repeat(2000)].concat();
        assert_eq!(read(&many), Err(FramingError::TrailersTooLong(MessageKind::Request)));
    }

    proptest! {
        #[test]
        fn result_does_not_depend_on_how_the_bytes_are_split(
            body in prop::collection::vec(prop::sample::select(b"0123af;\r\n: Xz".to_vec()), 0..60),
            split in 0usize..60,
        ) {
            let whole = read(&body);
            let split = split.min(body.len());
            let mut chunked = ChunkedDecoder::new(MessageKind::Request);
            let parts = chunked.decode(&body[..split]).and_then(|first| {
                let second = if first == split { chunked.decode(&body[split..])? } else { 0 };
                Ok((first + second, chunked.is_done()))
            });
            prop_assert_eq!(whole, parts);
        }

        #[test]
        fn every_encoded_body_is_decoded_to_its_end(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                body.extend(chunk);
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n\r\n");
            let length = body.len();
            body.extend(b"GET / HTTP/1.1\r\n");
            prop_assert_eq!(read(&body), Ok((length, true)));
        }
    }
}
