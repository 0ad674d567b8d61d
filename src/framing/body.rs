//! Bodies: how one is read to its end, and how one is written. The same for both directions. Pure.

use super::{
    chunked::{Chunked, Piece},
    fault::Fault,
    fields::Fields,
    head::Length,
};

/// Follows a body to its end, and no further.
#[derive(Debug)]
pub struct BodyDecoder {
    end: End,
    trailers: Option<Box<Fields>>,
}

/// How a body ends.
#[derive(Debug)]
enum End {
    /// It has ended.
    Over,
    /// After so many bytes more.
    After(u64),
    /// With its last chunk.
    Chunked(Box<Chunked>),
    /// With the connection.
    Close,
    /// Nowhere: what follows has no reading.
    Broken(Fault),
}

impl BodyDecoder {
    /// A body of this length; without one it ends with the connection.
    pub fn new(length: Option<Length>) -> Self {
        let end = match length {
            Some(Length::Known(0)) => End::Over,
            Some(Length::Known(length)) => End::After(length),
            Some(Length::Chunked) => End::Chunked(Box::default()),
            None => End::Close,
        };
        Self { end, trailers: None }
    }

    /// No body.
    pub fn none() -> Self {
        Self { end: End::Over, trailers: None }
    }

    /// Whether its last byte has been read.
    pub fn is_done(&self) -> bool {
        matches!(self.end, End::Over)
    }

    /// Whether it ends with the connection.
    pub fn is_until_close(&self) -> bool {
        matches!(self.end, End::Close)
    }

    /// How many bytes are left, where that is known.
    pub fn left(&self) -> Option<u64> {
        match self.end {
            End::Over => Some(0),
            End::After(left) => Some(left),
            End::Chunked(_) | End::Close | End::Broken(_) => None,
        }
    }

    /// What is wrong with it. Told when all that came before the fault has been read.
    pub fn fault(&self) -> Option<Fault> {
        match self.end {
            End::Broken(fault) => Some(fault),
            _ => None,
        }
    }

    /// The trailers, once it is done; given once.
    pub fn take_trailers(&mut self) -> Option<Box<Fields>> {
        self.trailers.take()
    }

    /// Reads on through `bytes`: what they carry is added to `out`. Returns how many of them belong to
    /// this body, which is all of them until it is done.
    pub fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        match &mut self.end {
            End::Over => Ok(0),
            End::Broken(fault) => Err(*fault),
            End::Close => {
                out.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            End::After(left) => {
                let count = (*left).min(bytes.len() as u64) as usize;
                out.extend_from_slice(&bytes[..count]);
                *left -= count as u64;
                if *left == 0 {
                    self.end = End::Over;
                }
                Ok(count)
            }
            End::Chunked(frame) => {
                let (before, trailers) = (out.len(), &mut self.trailers);
                let fed = frame.feed_with(bytes, |piece| match piece {
                    Piece::Data(data) => out.extend_from_slice(data),
                    Piece::Trailer(name, value) => {
                        let name = std::str::from_utf8(name).unwrap_or_default();
                        trailers.get_or_insert_default().push(name, value);
                    }
                });
                match fed {
                    Ok(_) if frame.is_done() => self.end = End::Over,
                    Ok(_) => {}
                    Err(fault) => {
                        self.end = End::Broken(fault);
                        // What came before it counts, however the bytes were cut.
                        return if out.len() > before { Ok(bytes.len()) } else { Err(fault) };
                    }
                }
                fed
            }
        }
    }

    /// The same, written to `out` by `encoder`. Returns also how many bytes of the body they carry.
    pub fn transfer(
        &mut self,
        bytes: &[u8],
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Result<(usize, usize), Fault> {
        encoder.write(out, |out| {
            let before = out.len();
            let used = self.decode(bytes, out)?;
            Ok((used, out.len() - before))
        })
    }

    /// The connection has ended. An error if the body had not.
    pub fn end_of_stream(&mut self) -> Result<(), Fault> {
        match self.end {
            End::Over => Ok(()),
            End::Close => {
                self.end = End::Over;
                Ok(())
            }
            End::After(_) | End::Chunked(_) => Err(Fault::Incomplete),
            End::Broken(fault) => Err(fault),
        }
    }
}

/// How a body is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyEncoder {
    /// As it is: its length is in the head, or its end is the connection's.
    Plain,
    /// In chunks.
    Chunked,
}

impl BodyEncoder {
    /// Writes to `out` what `fill` adds to it; no more than [`MAX_CHUNK`] bytes.
    pub fn write<T>(self, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        if self == Self::Plain {
            return fill(out);
        }
        let start = out.len();
        out.extend_from_slice(b"00000000\r\n");
        let data = out.len();
        let result = fill(out);
        let length = out.len() - data;
        debug_assert!(length <= MAX_CHUNK, "the size has eight digits");
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

    /// Writes the body's end to `out`, with `trailers` where it has any.
    pub fn finish(self, out: &mut Vec<u8>, trailers: impl FnOnce(&mut Vec<u8>)) {
        if self == Self::Chunked {
            out.extend_from_slice(b"0\r\n");
            trailers(out);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The most bytes that one chunk is written with.
pub const MAX_CHUNK: usize = u32::MAX as usize;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is read of `sent` when it comes in pieces of `step`: the data, and how much was used.
    fn read(length: Option<Length>, sent: &[u8], step: usize) -> Result<(Vec<u8>, usize), Fault> {
        let (mut decoder, mut out, mut used) = (BodyDecoder::new(length), Vec::new(), 0);
        for piece in sent.chunks(step) {
            let count = decoder.decode(piece, &mut out)?;
            used += count;
            if count < piece.len() {
                break;
            }
        }
        decoder.end_of_stream()?;
        Ok((out, used))
    }

    #[test]
    fn a_body_ends_where_its_head_says() {
        for step in [1, 2, 100] {
            assert_eq!(read(Some(Length::Known(3)), b"abcGET", step), Ok((b"abc".to_vec(), 3)));
            assert_eq!(read(Some(Length::Known(0)), b"GET", step), Ok((vec![], 0)));
            assert_eq!(read(None, b"abc", step), Ok((b"abc".to_vec(), 3)));
            let chunks = b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\nGET";
            assert_eq!(read(Some(Length::Chunked), chunks, step), Ok((b"abc".to_vec(), 18)));
            assert_eq!(read(Some(Length::Known(4)), b"abc", step), Err(Fault::Incomplete));
            assert_eq!(read(Some(Length::Chunked), b"1\r\na\r\n", step), Err(Fault::Incomplete));
        }
    }

    #[test]
    fn what_comes_before_a_fault_is_read_first_however_it_is_cut() {
        let sent = b"3\r\nabc\r\n2\r\ndeX";
        for step in 1..=sent.len() {
            let (mut decoder, mut out, mut fault) =
                (BodyDecoder::new(Some(Length::Chunked)), Vec::new(), None);
            for piece in sent.chunks(step) {
                fault = fault.or(decoder.decode(piece, &mut out).err());
            }
            assert_eq!((out.as_slice(), decoder.fault()), (&b"abcde"[..], Some(Fault::ChunkEnd)));
            assert!(fault.is_none_or(|fault| fault == Fault::ChunkEnd), "step {step}");
            assert_eq!(decoder.decode(b"", &mut out), Err(Fault::ChunkEnd));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            trailer in proptest::option::of("[!-~]{1,20}"),
            step in 1usize..50,
        ) {
            let (mut out, encoder) = (b"head".to_vec(), BodyEncoder::Chunked);
            for piece in &pieces {
                encoder.write(&mut out, |out| out.extend_from_slice(piece));
            }
            let trailers: Fields = trailer.iter().map(|value| ("x-sum", value)).collect();
            encoder.finish(&mut out, |out| trailers.write_to(out, |_, _| true));
            let (mut decoder, mut data) = (BodyDecoder::new(Some(Length::Chunked)), Vec::new());
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
