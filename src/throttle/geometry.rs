//! How large the filters are, and how time is cut into generations.

use bloomfilter::Bloom;

/// A point in time or a length of it, in ms.
pub type Millis = u64;

const MINUTE: Millis = 60_000;

/// The most complete generations that are remembered: with the current one and the one that is being
/// cleared they are the 32 bits of a word.
pub const MAX_MEMORY: u32 = 30;

/// What an operator asks of the filters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Distinct tokens a minute.
    pub capacity: u64,
    /// The share of unknown tokens that may be taken for known, over all live generations together;
    /// above 0, below 1.
    pub false_positive: f64,
    /// How long a token is known after its last good answer, in ms: whole minutes.
    pub memory: Millis,
}

/// The filters' sizes. Gateways share filters only if they agree in all of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Positions of a filter, which are the bits of one generation: a multiple of 8.
    pub bits: usize,
    /// Positions that a token has.
    pub hashes: u32,
    /// The length of a generation in ms: whole minutes.
    pub generation: Millis,
    /// How many complete generations are remembered beside the current one; at most [`MAX_MEMORY`].
    pub memory: u32,
}

impl Geometry {
    /// The smallest filters that do what `sizing` asks.
    ///
    /// A filter of `n` tokens and rate `p` has `-n ln p / ln2^2` bits (rounded up to whole bytes) and
    /// `bits/n ln2` positions a token; `G` of them, each asked, answer falsely with
    /// `P = 1 - (1-p)^G`. Both formulas are those of the `bloomfilter` crate.
    ///
    /// # Panics
    ///
    /// If a value of `sizing` is 0, or the rate is not between 0 and 1.
    pub fn new(sizing: &Sizing) -> Self {
        let minutes = sizing.memory.div_ceil(MINUTE);
        let generation = minutes.div_ceil(u64::from(MAX_MEMORY)).max(1);
        let memory = minutes.div_ceil(generation) as u32;
        let tokens = sizing.capacity.saturating_mul(generation);
        let live = f64::from(memory + 1);
        let rate = -f64::exp_m1(f64::ln_1p(-sizing.false_positive) / live);
        let bytes = Bloom::<u64>::compute_bitmap_size(tokens as usize, rate);
        let bits = bytes * 8;
        let hashes = (bits as f64 / tokens as f64 * std::f64::consts::LN_2).round() as u32;
        Self { bits, hashes: hashes.max(1), generation: generation * MINUTE, memory }
    }

    /// The memory that the filters take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bits as u64 * 4
    }

    /// The generation of `now`, counted from the Unix epoch.
    pub fn index(&self, now: Millis) -> u64 {
        now / self.generation
    }

    /// The minute since the Unix epoch that the generation `index` starts with.
    pub fn minute(&self, index: u64) -> u64 {
        index * (self.generation / MINUTE)
    }
}
