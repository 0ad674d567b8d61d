//! A body decodes to the same data and end however its bytes are split, and its re-encoded form
//! decodes to the same data.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::http1::{BodyDecoder, BodyEncoder, BodyLength, FramingError};

/// The data, the trailers, the length of the encoded body, and whether it is complete.
type Decoded = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>, usize, bool);

fuzz_target!(|input: (Option<u16>, Vec<u8>, &[u8])| {
    let (length, piece_lengths, bytes) = input;
    let length =
        length.map_or(BodyLength::Chunked, |length| BodyLength::Known(u64::from(length % 64)));
    let whole = read(length, &[], bytes);
    let pieces = read(length, &piece_lengths, bytes);
    assert_eq!(whole, pieces);
    let Ok((data, trailers, used, done)) = whole else { return };
    assert!(done || used == bytes.len(), "bytes of an incomplete body were left over");
    // The body is forwarded in new chunks.
    let mut decoder = BodyDecoder::of_request(length);
    let mut written = Vec::new();
    for piece in split(&piece_lengths, bytes) {
        let (_, added) =
            decoder.transcode(piece, BodyEncoder::Chunked, &mut written).expect("decoded before");
        assert!(added <= piece.len());
    }
    if !done {
        return;
    }
    let fields = decoder.take_trailers();
    BodyEncoder::Chunked.finish(&mut written, |out| {
        fields.iter().for_each(|fields| fields.write_to(out, |_| true));
    });
    let end = written.len();
    written.extend_from_slice(b"GET / HTTP/1.1\r\n");
    assert_eq!(
        read(BodyLength::Chunked, &piece_lengths, &written),
        Ok((data, trailers, end, true))
    );
});

fn read(length: BodyLength, piece_lengths: &[u8], bytes: &[u8]) -> Result<Decoded, FramingError> {
    let (mut decoder, mut data, mut used) = (BodyDecoder::of_request(length), Vec::new(), 0);
    for piece in split(piece_lengths, bytes) {
        let count = decoder.decode(piece, &mut data)?;
        used += count;
        if count < piece.len() {
            assert!(decoder.is_done());
            break;
        }
    }
    let done = decoder.is_done();
    assert_eq!(decoder.finish().is_ok(), done);
    let fields = decoder.take_trailers();
    let trailers = fields.iter().flat_map(|fields| fields.iter());
    let trailers = trailers.map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    Ok((data, trailers, used, done))
}

/// Splits `bytes` into pieces of these lengths; the rest is the last piece.
fn split<'a>(piece_lengths: &[u8], mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for length in piece_lengths {
        let (piece, rest) = bytes.split_at(usize::from(*length).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces.push(bytes);
    pieces
}
