//! One generation as Redis keeps it: a flag byte, then the `bloomfilter` crate's own format, plain or
//! gzipped.

use super::{geometry::Geometry, seed::Seed};

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
    1 + 45 + geometry.bits / 8
}

/// What others read `bits` (as [`super::Filter::cut`] gives them) from.
pub fn encode(geometry: &Geometry, seed: &Seed, bits: &[u8]) -> Vec<u8> {
    let _ = (geometry, seed, bits);
    todo!()
}

/// The bits of a payload, if it is one of these sizes and this seed. Unpacks no more than that takes.
pub fn decode(geometry: &Geometry, seed: &Seed, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    let _ = (geometry, seed, payload);
    todo!()
}
