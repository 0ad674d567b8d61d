//! One generation as Redis keeps it: a flag byte, then the `bloomfilter` crate's own format, plain or
//! gzipped.

use std::io::{Read, Write};

use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};

use super::{geometry::Geometry, seed::Seed};

/// The flag of what is not packed.
const PLAIN: u8 = 0;
/// The flag of what is.
const GZIP: u8 = 1;

/// The crate's version of its format.
const VERSION: u8 = 1;

/// The crate's header in bytes: the version, the length of the bits in bytes (64 bits), the positions
/// of a token (32 bits) and the seed; numbers with their lowest byte first.
pub(super) const HEADER: usize = 1 + 8 + 4 + 32;

/// One bit in so many set, or fewer, and packing is worth its time.
const SPARSE: u64 = 5;

/// With one bit in so many clear, or fewer, a filter says nothing of anybody.
///
/// A filter is half full with as many tokens as it was made for; this is eight times that, and takes
/// more than nine in ten unknown tokens for known. Less full it still tells some apart, and who is
/// active must not be forgotten because more came than were expected.
const CLEAR: u64 = 256;

/// Why a value from Redis is not used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// Not of the form that gateways write: empty, cut off, an unknown flag or version, bytes left over.
    Malformed,
    /// Larger than a generation can be, packed or unpacked.
    TooLong,
    /// Well-formed, of filters of another size.
    Geometry,
    /// Well-formed, hashed under another seed.
    Seed,
    /// So many bits are set that it says nothing of anybody.
    Saturated,
    /// The key in Redis holds no hash, or its fields are not what gateways write.
    Type,
}

/// The longest that a payload of `geometry` can be, in bytes.
pub fn max_len(geometry: &Geometry) -> usize {
    // Gzip is used only where it shortens.
    1 + HEADER + geometry.bits / 8
}

/// What others read `bits` (as [`super::Filter::cut`] gives them) from.
pub fn encode(geometry: &Geometry, seed: &Seed, bits: &[u8]) -> Vec<u8> {
    let header = header(geometry, seed);
    let length = 1 + HEADER + bits.len();
    if ones(bits) * SPARSE < bits.len() as u64 * 8 {
        let mut packed = GzEncoder::new(vec![GZIP], Compression::fast());
        let written = packed.write_all(&header).and_then(|()| packed.write_all(bits));
        // Nothing fails that is written to memory.
        if let Ok(packed) = written.and_then(|()| packed.finish())
            && packed.len() < length
        {
            return packed;
        }
    }
    let mut plain = Vec::with_capacity(length);
    plain.push(PLAIN);
    plain.extend_from_slice(&header);
    plain.extend_from_slice(bits);
    plain
}

/// The bits of a payload, if it is one of these sizes and this seed. Unpacks no more than that takes.
pub fn decode(geometry: &Geometry, seed: &Seed, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    if payload.len() > max_len(geometry) {
        return Err(Refusal::TooLong);
    }
    let (flag, value) = payload.split_first().ok_or(Refusal::Malformed)?;
    let bits = match *flag {
        PLAIN => {
            let (head, bits) = value.split_first_chunk().ok_or(Refusal::Malformed)?;
            check(geometry, seed, head)?;
            if bits.len() != geometry.bits / 8 {
                return Err(Refusal::Malformed);
            }
            bits.to_vec()
        }
        GZIP => unpack(geometry, seed, value)?,
        _ => return Err(Refusal::Malformed),
    };
    let clear = geometry.bits as u64 - ones(&bits).min(geometry.bits as u64);
    if clear * CLEAR < geometry.bits as u64 { Err(Refusal::Saturated) } else { Ok(bits) }
}

/// Reads the header before there is room for the rest, and the end after it: the checksum is there.
fn unpack(geometry: &Geometry, seed: &Seed, packed: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut reader = GzDecoder::new(packed);
    let mut head = [0; HEADER];
    reader.read_exact(&mut head).map_err(|_| Refusal::Malformed)?;
    check(geometry, seed, &head)?;
    let length = geometry.bits / 8;
    let mut bits = Vec::with_capacity(length + 1);
    let limit = length as u64 + 1;
    reader.by_ref().take(limit).read_to_end(&mut bits).map_err(|_| Refusal::Malformed)?;
    if bits.len() > length {
        return Err(Refusal::TooLong);
    }
    if bits.len() < length || !reader.into_inner().is_empty() {
        return Err(Refusal::Malformed);
    }
    Ok(bits)
}

/// Whether `head` is what gateways of these sizes and this seed write.
fn check(geometry: &Geometry, seed: &Seed, head: &[u8; HEADER]) -> Result<(), Refusal> {
    let right = header(geometry, seed);
    let differs = |part: std::ops::Range<usize>| head[part.clone()] != right[part];
    if differs(0..1) {
        Err(Refusal::Malformed)
    } else if differs(1..13) {
        Err(Refusal::Geometry)
    } else if differs(13..HEADER) {
        Err(Refusal::Seed)
    } else {
        Ok(())
    }
}

pub(super) fn header(geometry: &Geometry, seed: &Seed) -> [u8; HEADER] {
    let mut header = [VERSION; HEADER];
    header[1..9].copy_from_slice(&(geometry.bits as u64 / 8).to_le_bytes());
    header[9..13].copy_from_slice(&geometry.hashes.to_le_bytes());
    header[13..].copy_from_slice(&seed.positions);
    header
}

fn ones(bits: &[u8]) -> u64 {
    let (words, rest) = bits.as_chunks::<8>();
    let ones = |word: &[u8; 8]| u64::from(u64::from_ne_bytes(*word).count_ones());
    words.iter().map(ones).sum::<u64>()
        + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

#[cfg(test)]
mod tests;
