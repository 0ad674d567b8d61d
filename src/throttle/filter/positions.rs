//! A token's positions: exactly those that the `bloomfilter` crate gives a `u64`.

use siphasher::sip::SipHasher13;

use super::{Geometry, Seed};

/// The largest prime below 2^64: the crate's modulus for its derived positions.
const PRIME: u64 = 0xffff_ffff_ffff_ffc5;

/// Where tokens lie in filters of one size, under one seed.
pub(super) struct Positions {
    sips: [SipHasher13; 2],
    bits: Divisor,
}

/// One token's two hashes, from which its positions follow.
#[derive(Clone, Copy)]
pub(super) struct Spots<'a> {
    hashes: [u64; 2],
    bits: &'a Divisor,
}

impl Positions {
    pub(super) fn new(geometry: &Geometry, seed: &Seed) -> Self {
        Self { sips: seed.sips(), bits: Divisor::new(geometry.bits as u64) }
    }

    #[inline]
    pub(super) fn of(&self, token: u64) -> Spots<'_> {
        // As `Hash for u64` gives it to the hasher.
        let bytes = token.to_ne_bytes();
        Spots { hashes: [self.sips[0].hash(&bytes), self.sips[1].hash(&bytes)], bits: &self.bits }
    }
}

impl Spots<'_> {
    /// The position number `i`.
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

/// `value % PRIME`: twice the prime is more than any value.
#[inline]
fn below_prime(value: u64) -> u64 {
    if value >= PRIME { value - PRIME } else { value }
}

/// Divides by one number often.
struct Divisor {
    divisor: u64,
    /// 2^64 over the divisor, rounded down; one less where it divides.
    reciprocal: u64,
}

impl Divisor {
    /// For a `divisor` between 1 and 2^63.
    fn new(divisor: u64) -> Self {
        Self { divisor, reciprocal: u64::MAX / divisor }
    }

    /// `value % divisor`, by multiplication (Barrett).
    ///
    /// With `d` the divisor and `r` the reciprocal, `2^64/d - r` is above 0 and at most 1, thus
    /// `value/d - value*r/2^64` is at least 0 and below 1: the quotient is right or one too small.
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
        fn the_remainder_is_the_remainder(
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
