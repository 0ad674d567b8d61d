//! Reads and writes message bodies: RFC 9112, 6. Requests and responses share the code. Pure.

use super::{
    chunked::{ChunkedDecoder, ChunkedPart},
    error::FramingError,
    fields::Fields,
    head::BodyLength,
    message_kind::MessageKind,
};

/// Decodes one body and stops after its last byte.
#[derive(Debug)]
pub struct BodyDecoder {
    state: BodyState,
    trailers: Option<Box<Fields>>,
}

#[derive(Debug)]
enum BodyState {
    /// The last byte was read.
    Done,
    /// `Content-Length`: the bytes that are left.
    Remaining(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked(Box<ChunkedDecoder>),
    /// The body ends with the connection.
    CloseDelimited,
    /// Malformed: the end of the body is unknown.
    Failed(FramingError),
}

impl BodyDecoder {
    /// A decoder for a request's body of this length.
    pub fn of_request(length: BodyLength) -> Self {
        Self::new(Some(length), MessageKind::Request)
    }

    /// A decoder for a response's body of this length. `None`: the body ends with the connection.
    pub fn of_response(length: Option<BodyLength>) -> Self {
        Self::new(length, MessageKind::Response)
    }

    fn new(length: Option<BodyLength>, kind: MessageKind) -> Self {
        let state = match length {
            Some(BodyLength::Known(0)) => BodyState::Done,
            Some(BodyLength::Known(length)) => BodyState::Remaining(length),
            Some(BodyLength::Chunked) => BodyState::Chunked(Box::new(ChunkedDecoder::new(kind))),
            None => BodyState::CloseDelimited,
        };
        Self { state, trailers: None }
    }

    /// A decoder for a message without a body.
    pub fn none() -> Self {
        Self { state: BodyState::Done, trailers: None }
    }

    /// True if the last byte was read.
    pub fn is_done(&self) -> bool {
        matches!(self.state, BodyState::Done)
    }

    /// True if the body ends with the connection.
    pub fn is_close_delimited(&self) -> bool {
        matches!(self.state, BodyState::CloseDelimited)
    }

    /// The number of bytes left, if it is known.
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            BodyState::Done => Some(0),
            BodyState::Remaining(left) => Some(left),
            BodyState::Chunked(_) | BodyState::CloseDelimited | BodyState::Failed(_) => None,
        }
    }

    /// The error that ended the body, once all data before it has been decoded.
    pub fn error(&self) -> Option<FramingError> {
        match self.state {
            BodyState::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Takes the trailer fields. Complete once [`Self::is_done`].
    pub fn take_trailers(&mut self) -> Option<Box<Fields>> {
        self.trailers.take()
    }

    /// Decodes `bytes` and appends the data to `out`. Returns the number of bytes that belong to
    /// this body: all of them until the body is done.
    ///
    /// # Errors
    /// The chunked coding is malformed. If `out` grew before the error was found, this call
    /// succeeds and the next one returns the error, so the result does not depend on how the bytes
    /// are split.
    pub fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, FramingError> {
        match &mut self.state {
            BodyState::Done => Ok(0),
            BodyState::Failed(error) => Err(*error),
            BodyState::CloseDelimited => {
                out.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            BodyState::Remaining(left) => {
                let count = (*left).min(bytes.len() as u64) as usize;
                out.extend_from_slice(&bytes[..count]);
                *left -= count as u64;
                if *left == 0 {
                    self.state = BodyState::Done;
                }
                Ok(count)
            }
            BodyState::Chunked(decoder) => {
                let (before, trailers) = (out.len(), &mut self.trailers);
                let decoded = decoder.decode_with(bytes, |piece| match piece {
                    ChunkedPart::Data(data) => out.extend_from_slice(data),
                    ChunkedPart::Trailer(name, value) => {
                        let name = std::str::from_utf8(name).unwrap_or_default();
                        trailers.get_or_insert_default().push(name, value);
                    }
                });
                match decoded {
                    Ok(_) if decoder.is_done() => self.state = BodyState::Done,
                    Ok(_) => {}
                    Err(error) => {
                        self.state = BodyState::Failed(error);
                        return if out.len() > before { Ok(bytes.len()) } else { Err(error) };
                    }
                }
                decoded
            }
        }
    }

    /// Decodes `bytes` and encodes the data into `out` with `encoder`. Returns the number of bytes
    /// that belong to this body, and the number of bytes of data in them.
    ///
    /// # Errors
    /// See [`Self::decode`].
    pub fn transcode(
        &mut self,
        bytes: &[u8],
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Result<(usize, usize), FramingError> {
        encoder.write(out, |out| {
            let before = out.len();
            let used = self.decode(bytes, out)?;
            Ok((used, out.len() - before))
        })
    }

    /// Ends the body, because the stream has ended.
    ///
    /// # Errors
    /// The stream ended before the body did, or the body is malformed.
    pub fn finish(&mut self) -> Result<(), FramingError> {
        match self.state {
            BodyState::Done => Ok(()),
            BodyState::CloseDelimited => {
                self.state = BodyState::Done;
                Ok(())
            }
            BodyState::Remaining(_) | BodyState::Chunked(_) => Err(FramingError::Incomplete),
            BodyState::Failed(error) => Err(error),
        }
    }
}

/// How a body is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyEncoder {
    /// Unframed: `Content-Length` or the connection's close delimits the body.
    Plain,
    /// In the chunked transfer coding.
    Chunked,
}

impl BodyEncoder {
    /// Writes the bytes that `fill` appends to `out` as one chunk, or as they are. `fill` may
    /// append at most [`MAX_CHUNK`] bytes.
    pub fn write<T>(self, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        if self == Self::Plain {
            return fill(out);
        }
        let start = out.len();
        out.extend_from_slice(b"00000000\r\n");
        let data = out.len();
        let result = fill(out);
        let length = out.len() - data;
        debug_assert!(length <= MAX_CHUNK, "a chunk size has at most eight digits");
        if length == 0 {
            out.truncate(start);
            return result;
        }
        let digits = (usize::BITS - length.leading_zeros()).div_ceil(4) as usize;
        for place in 0..digits {
            let digit = (length >> (4 * place)) & 0xf;
            out[data - 3 - place] = b"0123456789abcdef"[digit];
        }
        out.drain(start..data - 2 - digits);
        out.extend_from_slice(b"\r\n");
        result
    }

    /// Writes the end of the body to `out`. `trailers` writes the trailer fields of a chunked body.
    pub fn finish(self, out: &mut Vec<u8>, trailers: impl FnOnce(&mut Vec<u8>)) {
        if self == Self::Chunked {
            out.extend_from_slice(b"0\r\n");
            trailers(out);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The largest chunk that [`BodyEncoder::write`] writes, in bytes.
pub const MAX_CHUNK: usize = u32::MAX as usize;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes `input` in pieces of `step` bytes. Returns the data and the number of bytes used.
    fn decode(
        length: Option<BodyLength>,
        input: &[u8],
        step: usize,
    ) -> Result<(Vec<u8>, usize), FramingError> {
        let (mut decoder, mut out, mut used) = (BodyDecoder::of_response(length), Vec::new(), 0);
        for piece in input.chunks(step) {
            let count = decoder.decode(piece, &mut out)?;
            used += count;
            if count < piece.len() {
                break;
            }
        }
        decoder.finish()?;
        Ok((out, used))
    }

    #[test]
    fn body_ends_at_its_declared_length() {
        for step in [1, 2, 100] {
            assert_eq!(
                decode(Some(BodyLength::Known(3)), b"abcGET", step),
                Ok((b"abc".to_vec(), 3))
            );
            assert_eq!(decode(Some(BodyLength::Known(0)), b"GET", step), Ok((vec![], 0)));
            assert_eq!(decode(None, b"abc", step), Ok((b"abc".to_vec(), 3)));
            let chunks = b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\nGET";
            assert_eq!(decode(Some(BodyLength::Chunked), chunks, step), Ok((b"abc".to_vec(), 18)));
            let incomplete = Err(FramingError::Incomplete);
            assert_eq!(decode(Some(BodyLength::Known(4)), b"abc", step), incomplete);
            assert_eq!(decode(Some(BodyLength::Chunked), b"1\r\na\r\n", step), incomplete);
        }
    }

    #[test]
    fn data_before_an_error_is_decoded_however_the_bytes_are_split() {
        let input = b"3\r\nabc\r\n2\r\ndeX";
        let expected = FramingError::ChunkEnd;
        for step in 1..=input.len() {
            let (mut decoder, mut out, mut error) =
                (BodyDecoder::of_request(BodyLength::Chunked), Vec::new(), None);
            for piece in input.chunks(step) {
                error = error.or(decoder.decode(piece, &mut out).err());
            }
            assert_eq!((out.as_slice(), decoder.error()), (&b"abcde"[..], Some(expected)));
            assert!(error.is_none_or(|error| error == expected), "step {step}");
            assert_eq!(decoder.decode(b"", &mut out), Err(expected));
        }
    }

    proptest! {
        #[test]
        fn encoded_bodies_decode_to_the_same_data(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            trailer in proptest::option::of("[!-~]{1,20}"),
            step in 1usize..50,
        ) {
            let (mut out, encoder) = (b"head".to_vec(), BodyEncoder::Chunked);
            for piece in &pieces {
                encoder.write(&mut out, |out| out.extend_from_slice(piece));
            }
            let trailers: Fields = trailer.iter().map(|value| ("x-sum", value)).collect();
            encoder.finish(&mut out, |out| trailers.write_to(out, |_| true));
            let (mut decoder, mut data) = (BodyDecoder::of_request(BodyLength::Chunked), Vec::new());
            for bytes in out[4..].chunks(step) {
                prop_assert_eq!(decoder.decode(bytes, &mut data), Ok(bytes.len()));
            }
            prop_assert!(decoder.is_done());
            prop_assert_eq!(data, pieces.concat());
            let read = decoder.take_trailers();
            let read = read.as_ref().and_then(|fields| fields.get("X-Sum"));
            prop_assert_eq!(read, trailer.as_ref().map(String::as_bytes));
        }
    }
}
