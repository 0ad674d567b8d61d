//! The frame of a chunked body, read strictly. Pure.
//!
//! It accepts less than RFC 9112, 7.1 allows: no white space outside of quoted values, CR LF only,
//! bounded extensions and trailers. All that it accepts, every recipient reads alike.

use super::{characters::is_token_byte, fault::Fault, head::split_field};

/// Extensions of one chunk, and all trailers together, may have so many bytes.
const MAX_EXTENSION: u32 = 1024;
const MAX_TRAILERS: usize = 8 * 1024;

/// Where in the frame the next byte stands.
#[derive(Debug)]
enum State {
    /// In a chunk's size: its value and digits so far.
    Size { value: u64, digits: u32 },
    /// In a chunk's extensions: their length so far.
    Extension { value: u64, length: u32, part: Extension },
    /// After a size line's CR.
    SizeLf { value: u64 },
    /// In a chunk's data: bytes left.
    Data(u64),
    /// After a chunk's data.
    DataCr,
    /// After that CR.
    DataLf,
    /// In the trailers.
    Trailer,
    /// After the last byte.
    Done,
}

/// Where in a chunk's extensions the next byte stands: RFC 9112, 7.1.1.
#[derive(Clone, Copy, Debug)]
enum Extension {
    /// After a semicolon.
    NameStart,
    /// In a name.
    Name,
    /// After an equals sign.
    ValueStart,
    /// In a value without quotes.
    Token,
    /// In a quoted value.
    Quoted,
    /// After a backslash in one.
    Escaped,
    /// After its closing quote.
    QuotedEnd,
}

impl Extension {
    /// The place after `byte`; `None` where none may stand there.
    fn after(self, byte: u8) -> Option<Self> {
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

    /// Whether the line may end here.
    fn may_end(self) -> bool {
        matches!(self, Self::Name | Self::Token | Self::QuotedEnd)
    }
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Piece<'a> {
    /// Bytes of the body.
    Data(&'a [u8]),
    /// A trailer's name and value.
    Trailer(&'a [u8], &'a [u8]),
}

/// Follows one chunked body from chunk to chunk.
#[derive(Debug)]
pub struct Chunked {
    state: State,
    /// The trailer line that has begun, and the length of all before.
    line: Vec<u8>,
    trailers: usize,
}

impl Default for Chunked {
    fn default() -> Self {
        Self { state: State::Size { value: 0, digits: 0 }, line: Vec::new(), trailers: 0 }
    }
}

impl Chunked {
    /// Whether the body's last byte has been fed.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Reads on through `bytes`; returns how many of them belong to this body, which is all of them
    /// until it is done.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.feed_with(bytes, |_| {})
    }

    /// The same, and hands what the frame carries to `sink`.
    pub fn feed_with(
        &mut self,
        bytes: &[u8],
        mut sink: impl FnMut(Piece<'_>),
    ) -> Result<usize, Fault> {
        let mut at = 0;
        while at < bytes.len() && !self.is_done() {
            if let State::Data(left) = &mut self.state {
                let step = (*left).min((bytes.len() - at) as u64);
                *left -= step;
                sink(Piece::Data(&bytes[at..at + step as usize]));
                at += step as usize;
                if *left == 0 {
                    self.state = State::DataCr;
                }
            } else {
                self.step(bytes[at], &mut sink)?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8, sink: &mut impl FnMut(Piece<'_>)) -> Result<(), Fault> {
        self.state = match self.state {
            State::Size { value, digits } => match char::from(byte).to_digit(16) {
                Some(digit) if digits < 15 => {
                    State::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
                }
                None if digits > 0 && byte == b'\r' => State::SizeLf { value },
                None if digits > 0 && byte == b';' => {
                    State::Extension { value, length: 0, part: Extension::NameStart }
                }
                _ => return Err(Fault::ChunkSize),
            },
            State::Extension { value, part, .. } if byte == b'\r' && part.may_end() => {
                State::SizeLf { value }
            }
            State::Extension { value, length, part } => match part.after(byte) {
                Some(part) if length < MAX_EXTENSION => {
                    State::Extension { value, length: length + 1, part }
                }
                _ => return Err(Fault::Trailer),
            },
            State::SizeLf { value } => match (byte, value) {
                (b'\n', 0) => State::Trailer,
                (b'\n', _) => State::Data(value),
                _ => return Err(Fault::ChunkSize),
            },
            State::DataCr if byte == b'\r' => State::DataLf,
            State::DataLf if byte == b'\n' => State::Size { value: 0, digits: 0 },
            State::DataCr | State::DataLf => return Err(Fault::ChunkEnd),
            State::Trailer => return self.trailer(byte, sink),
            State::Data(_) | State::Done => return Ok(()),
        };
        Ok(())
    }

    fn trailer(&mut self, byte: u8, sink: &mut impl FnMut(Piece<'_>)) -> Result<(), Fault> {
        self.trailers += 1;
        if self.trailers > MAX_TRAILERS {
            return Err(Fault::Trailer);
        }
        if byte != b'\n' {
            self.line.push(byte);
            return Ok(());
        }
        let line = self.line.strip_suffix(b"\r").ok_or(Fault::BareLf)?;
        if line.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
            return Err(Fault::Control);
        }
        if line.is_empty() {
            self.state = State::Done;
        } else {
            let (name, value) = split_field(line)?;
            sink(Piece::Trailer(name, value));
        }
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &[u8]) -> Result<(usize, bool), Fault> {
        let mut chunked = Chunked::default();
        let length = chunked.feed(body)?;
        Ok((length, chunked.is_done()))
    }

    #[test]
    fn well_formed_bodies_end_where_they_end() {
        for (body, length) in [
            (&b"0\r\n\r\nGET"[..], 5),
            (b"3\r\nabc\r\n0\r\n\r\n", 13),
            (b"003;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n", 40),
            (b"0;a;b=c;d=\"e;\\\" f\"\r\n\r\n", 22),
        ] {
            assert_eq!(read(body), Ok((length, true)), "{:?}", String::from_utf8_lossy(body));
        }
        assert_eq!(read(b"3\r\nab"), Ok((5, false)));
    }

    #[test]
    fn what_has_two_readings_is_refused() {
        for (body, fault) in [
            (&b"\r\n"[..], Fault::ChunkSize),
            (b"g\r\n", Fault::ChunkSize),
            (b"0x3\r\n", Fault::ChunkSize),
            (b"-1\r\n", Fault::ChunkSize),
            (b"+1\r\n", Fault::ChunkSize),
            (b" 3\r\n", Fault::ChunkSize),
            (b"3 \r\n", Fault::ChunkSize),
            (b"3\n", Fault::ChunkSize),
            (b"3\rabc", Fault::ChunkSize),
            (b"ffffffffffffffff\r\n", Fault::ChunkSize),
            (b"3\r\nabcd", Fault::ChunkEnd),
            (b"3\r\nabc\n", Fault::ChunkEnd),
            (b"3;a\nabc", Fault::Trailer),
            (b"3;\r\n", Fault::Trailer),
            (b"3;;a\r\n", Fault::Trailer),
            (b"3;a=\r\n", Fault::Trailer),
            (b"3;a b\r\n", Fault::Trailer),
            (b"3;=b\r\n", Fault::Trailer),
            (b"3;a=\"b\r\n", Fault::Trailer),
            (b"3;a=\"b\"c\r\n", Fault::Trailer),
            (b"3 ;a\r\n", Fault::ChunkSize),
            (b"0\r\nX: y\n", Fault::BareLf),
            (b"0\r\n x\r\n", Fault::Folded),
            (b"0\r\nX y\r\n", Fault::HeaderName),
            (b"0\r\nX: \0\r\n", Fault::Control),
        ] {
            assert_eq!(read(body), Err(fault), "{:?}", String::from_utf8_lossy(body));
        }
        let long = [b"1;".to_vec(), vec![b'a'; 2000]].concat();
        assert_eq!(read(&long), Err(Fault::Trailer));
        let many = [b"0\r\n".to_vec(), b"A: b\r\n".repeat(2000)].concat();
        assert_eq!(read(&many), Err(Fault::Trailer));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_cuts_do_not_matter(
            body in prop::collection::vec(prop::sample::select(b"0123af;\r\n: Xz".to_vec()), 0..60),
            cut in 0usize..60,
        ) {
            let whole = read(&body);
            let cut = cut.min(body.len());
            let mut chunked = Chunked::default();
            let parts = chunked.feed(&body[..cut]).and_then(|first| {
                let second = if first == cut { chunked.feed(&body[cut..])? } else { 0 };
                Ok((first + second, chunked.is_done()))
            });
            prop_assert_eq!(whole, parts);
        }

        #[test]
        fn every_body_is_followed_to_its_end(
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
