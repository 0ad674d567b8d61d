//! Pseudo-random numbers that are the same in every run.

/// The `SplitMix64` generator (Steele, Lea and Flood, 2014). The field is its state, initially the
/// seed.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number from 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// True with probability 1 / `count`; never if `count` is 0.
    pub fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }
}
