//! The positions of a token in a filter: exactly those of a `u64` in the `bloomfilter` crate.

use siphasher::sip::SipHasher13;

use super::{Geometry, HashKeys};

/// The largest prime below 2^64: the modulus of the crate's derived hashes.
const PRIME: u64 = 0xffff_ffff_ffff_ffc5;

/// Computes positions in filters of one size with the same hash keys.
pub(super) struct PositionHasher {
    hashers: [SipHasher13; 2],
    bits: Divisor,
}

/// The two hashes of a token, which determine its positions.
#[derive(Clone, Copy)]
pub(super) struct TokenPositions<'a> {
    hashes: [u64; 2],
    bits: &'a Divisor,
}

impl PositionHasher {
    pub(super) fn new(geometry: &Geometry, hash_keys: &HashKeys) -> Self {
        Self { hashers: hash_keys.hashers(), bits: Divisor::new(geometry.bits as u64) }
    }

    #[inline]
    pub(super) fn of(&self, token: u64) -> TokenPositions<'_> {
        // The bytes that `Hash for u64` passes to the hasher.
        let bytes = token.to_ne_bytes();
        let hashes = [self.hashers[0].hash(&bytes), self.hashers[1].hash(&bytes)];
        TokenPositions { hashes, bits: &self.bits }
    }
}

impl TokenPositions<'_> {
    /// The `i`-th position, from 0.
    #[inline]
    pub(super) fn at(self, i: u32) -> usize {
        let [first, second] = self.hashes;
        let hash = match i {
            0 => first,
            1 => second,
            _ => below_prime(first.wrapping_add(u64::from(i).wrapping_mul(second))),
        };
        self.bits.remainder(hash) as usize
    }
}

/// `value % PRIME`; one subtraction suffices, because twice the prime exceeds any value.
#[inline]
fn below_prime(value: u64) -> u64 {
    if value >= PRIME { value - PRIME } else { value }
}

/// A divisor with its precomputed reciprocal.
struct Divisor {
    divisor: u64,
    /// 2^64 / divisor, rounded down; one less if the division is exact.
    reciprocal: u64,
}

impl Divisor {
    /// For a `divisor` between 1 and 2^63.
    fn new(divisor: u64) -> Self {
        Self { divisor, reciprocal: u64::MAX / divisor }
    }

    /// `value % divisor`, by multiplication (Barrett reduction).
    ///
    /// With `d` the divisor and `r` the reciprocal, `2^64/d - r` is above 0 and at most 1. So
    /// `value/d - value*r/2^64` is at least 0 and below 1, and the quotient is exact or one too
    /// small.
    #[inline]
    fn remainder(&self, value: u64) -> u64 {
        let quotient = ((u128::from(value) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = value - quotient * self.divisor;
        if rest >= self.divisor { rest - self.divisor } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn the_fast_remainder_equals_the_operator(
            divisor in prop_oneof![1..=64_u64, 1..=1_u64 << 63, 1..1_u64 << 34,
                (0..64_u32, -1..=1_i64).prop_map(|(bits, off)|
                    (1_u64 << bits).saturating_add_signed(off).clamp(1, 1 << 63))],
            value in prop_oneof![any::<u64>(), PRIME - 2..=u64::MAX, 0..100_u64],
            (times, off) in (any::<u64>(), -2..=2_i64),
        ) {
            let by = Divisor::new(divisor);
            let near = (times / divisor * divisor).saturating_add_signed(off);
            for value in [value, near] {
                prop_assert_eq!(by.remainder(value), value % divisor);
                prop_assert_eq!(below_prime(value), value % PRIME);
            }
        }
    }
}
