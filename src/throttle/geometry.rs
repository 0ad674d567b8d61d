//! How large the filters are, and how time is cut into generations.

use bloomfilter::Bloom;

/// A point in time or a length of it, in ms.
pub type Millis = u64;

const MINUTE: Millis = 60_000;

/// The most complete generations that are remembered: with the current one and the one that is being
/// cleared they are the 32 bits of a word.
pub const MAX_MEMORY: u32 = 30;

/// The most positions: 4 TiB of filters.
const MAX_BITS: f64 = (1_u64 << 40) as f64;

/// The most positions a token has: a rate of 2^-64, less than that of the tokens' own hashes.
const MAX_HASHES: u32 = 64;

/// What an operator asks of the filters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Distinct tokens a minute; above 0.
    pub capacity: u64,
    /// The share of unknown tokens that may be taken for known, over all live generations together;
    /// above 0, below 1.
    pub false_positive: f64,
    /// How long a token is known after its last good answer, in ms: whole minutes; above 0.
    pub memory: Millis,
}

/// Why there are no filters of such a sizing.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Unsizable {
    /// There is nothing to remember, or no time to remember it for.
    #[error("capacity and memory must be above 0")]
    Nothing,
    /// The rate is not one, or no hash of 64 bits can meet it.
    #[error(
        "the rate of false positives must be below 1, and above what 64 positions a token give"
    )]
    Rate,
    /// More memory than can be addressed; holds what it would take, in bytes.
    #[error("the filters would take {0:.1e} bytes of memory")]
    TooLarge(f64),
}

/// The filters' sizes. Gateways share filters only if they agree in all of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Positions of a filter, which are the bits of one generation: a multiple of 8, above 0.
    pub bits: usize,
    /// Positions that a token has; above 0.
    pub hashes: u32,
    /// The length of a generation in ms: whole minutes, above 0.
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
    /// A memory of more than [`MAX_MEMORY`] minutes has longer generations, and is rounded up to whole
    /// ones.
    pub fn new(sizing: &Sizing) -> Result<Self, Unsizable> {
        if sizing.capacity == 0 || sizing.memory == 0 {
            return Err(Unsizable::Nothing);
        }
        let minutes = sizing.memory.div_ceil(MINUTE);
        let generation = minutes.div_ceil(u64::from(MAX_MEMORY));
        let memory = minutes.div_ceil(generation) as u32;
        let live = f64::from(memory + 1);
        let rate = -f64::exp_m1(f64::ln_1p(-sizing.false_positive) / live);
        // Not a number is outside as well.
        if !(f64::MIN_POSITIVE..1.0).contains(&rate) {
            return Err(Unsizable::Rate);
        }
        let tokens = sizing.capacity as f64 * generation as f64;
        let bits = -tokens * rate.ln() / std::f64::consts::LN_2.powi(2);
        if bits > MAX_BITS {
            return Err(Unsizable::TooLarge(bits * 4.0));
        }
        // At least a token, and no more than 2^42 of them: a bit has at most 1.44 at a rate next to 1.
        let tokens = sizing.capacity.saturating_mul(generation) as usize;
        let bits = Bloom::<u64>::compute_bitmap_size(tokens, rate).max(1) * 8;
        let hashes = (bits as f64 / tokens as f64 * std::f64::consts::LN_2).round().max(1.0) as u32;
        if hashes > MAX_HASHES {
            return Err(Unsizable::Rate);
        }
        Ok(Self { bits, hashes, generation: generation * MINUTE, memory })
    }

    /// The memory that the filters take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bits as u64 * 4
    }

    /// The most active users that can be told from the filters: [`super::estimate::ceiling`].
    pub fn max_active(&self) -> u64 {
        super::estimate::ceiling(self)
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

#[cfg(test)]
mod tests;
