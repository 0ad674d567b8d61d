//! The wire format of one generation in Redis: a flag byte, then the format of the `bloomfilter`
//! crate, plain or gzipped. A payload has the size of the filter that it was written from, which
//! may be larger or smaller than the reader's; [`resize`] converts it.

use std::{
    cmp::Ordering,
    io::{Read, Write},
};

use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};

use super::{
    geometry::{Geometry, MAX_GROWTH},
    hash_keys::HashKeys,
};

/// The flag of an uncompressed payload.
const PLAIN: u8 = 0;
/// The flag of a gzipped payload.
const GZIP: u8 = 1;

/// The crate's format version.
const VERSION: u8 = 1;

/// Length of the crate's header in bytes: the version, the length of the bits in bytes (u64), the
/// number of positions per token (u32) and the seed; numbers are little-endian.
pub(super) const HEADER_LEN: usize = 1 + 8 + 4 + 32;

/// A filter is compressed if less than 1/N of its bits are set.
const SPARSE_RATIO: u64 = 5;

/// A filter is saturated and useless if less than 1/N of its bits are clear.
///
/// It is then filled with eight times the tokens that it is sized for; more than nine of ten
/// unknown tokens are then false positives. A filter that is less full still denies some unknown
/// tokens and must be used: otherwise active users would be denied only because there are more than
/// expected.
const SATURATION_RATIO: u64 = 256;

/// Maximum share of set bits in a sparse generation: the share at a quarter of the tokens that it
/// is sized for.
const SPARSE_FILL: f64 = 0.159;

/// The reason why a payload from Redis is not used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PayloadError {
    /// Not in the format that gateways write: empty, truncated, an unknown flag or version,
    /// trailing bytes.
    Malformed,
    /// Longer than the payload of a generation can be, compressed or decompressed.
    TooLong,
    /// Well-formed, but from filters of another configured size or number of hashes.
    Geometry,
    /// Well-formed, but hashed with another seed.
    Seed,
    /// Almost every token seems active, because most bits are set.
    Saturated,
    /// The key in Redis is not a hash, or it lacks the fields that gateways write.
    WrongType,
}

impl PayloadError {
    /// All errors, in the order of their discriminants.
    pub const ALL: [Self; 6] = [
        Self::Malformed,
        Self::TooLong,
        Self::Geometry,
        Self::Seed,
        Self::Saturated,
        Self::WrongType,
    ];

    /// The name in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Geometry => "geometry",
            Self::Seed => "seed",
            Self::Saturated => "saturated",
            Self::WrongType => "type",
        }
    }
}

/// Maximum length of a payload that filters of `geometry` can read, in bytes.
pub fn max_len(geometry: &Geometry) -> usize {
    // Gzip is used only if it is shorter.
    1 + HEADER_LEN + geometry.grown(MAX_GROWTH).bits / 8
}

/// Converts the bits of a generation to a filter of `len` bytes. One of the two sizes must divide
/// the other. A larger filter repeats the bits; a smaller one has the bits of all parts.
pub fn resize(bits: &[u8], len: usize) -> Vec<u8> {
    let mut resized = vec![0; len];
    if bits.is_empty() || len == 0 {
        return resized;
    }
    for at in (0..bits.len().max(len)).step_by(bits.len().min(len)) {
        let (ours, theirs) = (&mut resized[at % len..], &bits[at % bits.len()..]);
        ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours |= theirs);
    }
    resized
}

/// True if a generation has so few set bits that this size has room for more tokens.
pub fn is_sparse(bits: &[u8]) -> bool {
    is_sparse_fill(count_ones(bits) as f64 / (bits.len() * 8) as f64)
}

/// Like [`is_sparse`], for a share of set bits.
pub fn is_sparse_fill(fill: f64) -> bool {
    fill <= SPARSE_FILL
}

/// True if the filter is so full that almost every token seems active.
pub fn is_saturated(bits: &[u8]) -> bool {
    let all = bits.len() as u64 * 8;
    (all - count_ones(bits)) * SATURATION_RATIO < all
}

/// Encodes `bits`, which [`super::Filter::export`] returned.
pub fn encode(geometry: &Geometry, hash_keys: &HashKeys, bits: &[u8]) -> Vec<u8> {
    let header = header(geometry, hash_keys);
    let length = 1 + HEADER_LEN + bits.len();
    if count_ones(bits) * SPARSE_RATIO < bits.len() as u64 * 8 {
        let mut packed = GzEncoder::new(vec![GZIP], Compression::fast());
        let written = packed.write_all(&header).and_then(|()| packed.write_all(bits));
        // Writing to memory does not fail.
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

/// Decodes the bits of a payload with these hash keys and this geometry, at any growth. Allocates
/// only what the bits need, so a decompression bomb is harmless.
///
/// # Errors
///
/// [`PayloadError`] if the payload cannot be used.
pub fn decode(
    geometry: &Geometry,
    hash_keys: &HashKeys,
    payload: &[u8],
) -> Result<Vec<u8>, PayloadError> {
    if payload.len() > max_len(geometry) {
        return Err(PayloadError::TooLong);
    }
    let (flag, value) = payload.split_first().ok_or(PayloadError::Malformed)?;
    let bits = match *flag {
        PLAIN => {
            let (head, bits) = value.split_first_chunk().ok_or(PayloadError::Malformed)?;
            let length = check_header(geometry, hash_keys, head)?;
            match bits.len().cmp(&length) {
                Ordering::Less => return Err(PayloadError::Malformed),
                Ordering::Greater => return Err(PayloadError::TooLong),
                Ordering::Equal => bits.to_vec(),
            }
        }
        GZIP => decompress(geometry, hash_keys, value)?,
        _ => return Err(PayloadError::Malformed),
    };
    if is_saturated(&bits) { Err(PayloadError::Saturated) } else { Ok(bits) }
}

/// Decompresses a payload. Checks the header before it allocates memory for the bits, and reads the
/// stream to its end, where the checksum is.
fn decompress(
    geometry: &Geometry,
    hash_keys: &HashKeys,
    packed: &[u8],
) -> Result<Vec<u8>, PayloadError> {
    let mut reader = GzDecoder::new(packed);
    let mut head = [0; HEADER_LEN];
    reader.read_exact(&mut head).map_err(|_| PayloadError::Malformed)?;
    let length = check_header(geometry, hash_keys, &head)?;
    let mut bits = Vec::with_capacity(length + 1);
    let limit = length as u64 + 1;
    reader.by_ref().take(limit).read_to_end(&mut bits).map_err(|_| PayloadError::Malformed)?;
    if bits.len() > length {
        return Err(PayloadError::TooLong);
    }
    if bits.len() < length || !reader.into_inner().is_empty() {
        return Err(PayloadError::Malformed);
    }
    Ok(bits)
}

/// Checks that `head` is the header for these hash keys and this geometry at any growth. Returns
/// the length of the bits in bytes.
fn check_header(
    geometry: &Geometry,
    hash_keys: &HashKeys,
    head: &[u8; HEADER_LEN],
) -> Result<usize, PayloadError> {
    let sizes = (0..=MAX_GROWTH.ilog2()).map(|doublings| geometry.grown(1 << doublings));
    let mut headers = sizes.map(|sizes| (sizes, header(&sizes, hash_keys)));
    if head[0] != VERSION {
        return Err(PayloadError::Malformed);
    }
    match headers.find(|(_, expected)| head[1..13] == expected[1..13]) {
        None => Err(PayloadError::Geometry),
        Some((_, expected)) if head[13..] != expected[13..] => Err(PayloadError::Seed),
        Some((sizes, _)) => Ok(sizes.bits / 8),
    }
}

pub(super) fn header(geometry: &Geometry, hash_keys: &HashKeys) -> [u8; HEADER_LEN] {
    let mut header = [VERSION; HEADER_LEN];
    header[1..9].copy_from_slice(&(geometry.bits as u64 / 8).to_le_bytes());
    header[9..13].copy_from_slice(&geometry.hashes.to_le_bytes());
    header[13..].copy_from_slice(&hash_keys.positions);
    header
}

fn count_ones(bits: &[u8]) -> u64 {
    let (words, rest) = bits.as_chunks::<8>();
    let ones = |word: &[u8; 8]| u64::from(u64::from_ne_bytes(*word).count_ones());
    words.iter().map(ones).sum::<u64>()
        + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

#[cfg(test)]
mod tests;
