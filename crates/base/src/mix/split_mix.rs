//! `SplitMix64` (Steele, Lea and Flood, 2014): random numbers from a seed. Its output function
//! alone is also a hash.

/// The increment of `SplitMix64`: the golden ratio in 64 bits.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes 64 bits: the output function of `SplitMix64`. Different values stay different, and 0 stays
/// 0.
#[inline]
pub fn mix64(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// `SplitMix64`, a generator of 64 bits of state.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(INCREMENT);
        mix64(self.0)
    }

    /// A random number in `0..bound`; 0 for a bound of 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation (Vigna, `splitmix64.c`) with the seed
    /// 1234567.
    #[test]
    fn the_sequence_is_that_of_the_reference() {
        let mut random = SplitMix::new(1_234_567);
        let first = [(); 3].map(|()| random.bits());
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, expected);
    }
}
