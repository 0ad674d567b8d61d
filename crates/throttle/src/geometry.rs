//! Sizes of the filters, and the division of time into generations.

use bloomfilter::Bloom;
use tidegate_base::time::{Millis, StoreTime};

/// The unit of [`Sizing::memory`] and of generations.
pub(crate) const MINUTE: Millis = Millis::from_mins(1);

/// Maximum number of complete generations. With the current one and the one that is being cleared,
/// they take the 32 bits of a word.
pub const MAX_COMPLETE_GENERATIONS: u32 = 30;

/// Maximum number of positions at the configured size: 4 TiB of filters.
const MAX_BITS: f64 = (1_u64 << 40) as f64;

/// Maximum of [`Geometry::growth`]. One payload of filters of this growth takes half as much memory
/// as all filters of the configured size.
pub const MAX_GROWTH: u32 = 16;

/// Maximum number of positions at which larger filters are surveyed ([`Geometry::surveyed`]).
const MAX_SURVEYED: usize = 1 << 20;

/// Number of positions of the configured size for each token in [`Geometry::max_newcomers`].
const POSITIONS_PER_NEWCOMER: usize = 1_152;

/// Minimum of [`Geometry::max_newcomers`].
const MIN_NEWCOMERS: usize = 1_024;

/// Maximum number of hashes of a token. It gives a false-positive rate of 2^-64, below the
/// collision rate of the tokens' own hashes.
const MAX_HASHES: u32 = 64;

/// The requirements of the operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Distinct tokens per minute; above 0.
    pub capacity: u64,
    /// The share of unknown tokens that may be mistaken for active ones, over all live generations
    /// together; above 0, below 1.
    pub false_positive: f64,
    /// Time for which a token stays active after its last good response: whole minutes; above 0.
    pub memory: Millis,
}

/// A whole minute since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UnixMinute(u64);

impl UnixMinute {
    /// The minute with this number since the Unix epoch.
    pub const fn from_minutes(minutes: u64) -> Self {
        Self(minutes)
    }

    /// The number of minutes since the Unix epoch, for encoding.
    pub const fn as_minutes(self) -> u64 {
        self.0
    }

    /// The minute that contains `time`.
    pub fn of(time: StoreTime) -> Self {
        Self(time.since(StoreTime::ZERO) / MINUTE)
    }

    /// When it begins.
    pub fn time(self) -> StoreTime {
        StoreTime::ZERO + MINUTE * self.0
    }

    /// The minute that is `length`, rounded down to whole minutes, before it; at least the first.
    #[must_use]
    pub fn before(self, length: Millis) -> Self {
        Self(self.0.saturating_sub(length / MINUTE))
    }
}

/// The reason why no filters meet a [`Sizing`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SizingError {
    /// The capacity or the memory is 0.
    #[error("capacity and memory must be above 0")]
    Zero,
    /// The false-positive rate is not between 0 and 1, or needs more than 64 hashes per token.
    #[error(
        "the false-positive rate must be below 1, and reachable with at most 64 hashes per token"
    )]
    Rate,
    /// The filters would need more than 4 TiB; the value is their size in bytes.
    #[error("the filters would take {gib:.0} GiB of memory", gib = .0 / f64::from(1 << 30))]
    TooLarge(f64),
}

/// The sizes of the filters. Gateways share filters if all sizes except the growth are equal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Number of positions, and of bits in one generation: a multiple of 8 times the growth, above
    /// 0.
    pub bits: usize,
    /// The size as a multiple of the configured one: a power of two, at most [`MAX_GROWTH`].
    ///
    /// A position is a hash modulo `bits`, and of any two sizes one divides the other, so filters
    /// convert into each other. The larger one repeats the bits of the smaller, which adds no false
    /// positive. The smaller one has the bits of all parts of the larger, as if every token had
    /// been recorded at its size.
    pub growth: u32,
    /// Number of hashes, and so of positions, of a token; above 0.
    pub hashes: u32,
    /// Duration of a generation: whole minutes, above 0.
    pub generation_length: Millis,
    /// Number of complete generations kept in addition to the current one; at most
    /// [`MAX_COMPLETE_GENERATIONS`].
    pub complete_generations: u32,
}

impl Geometry {
    /// The smallest filters that meet `sizing`.
    ///
    /// A filter for `n` tokens with the false-positive rate `p` has `-n ln p / ln2^2` bits (rounded
    /// up to whole bytes) and `bits/n ln2` positions per token, as in the `bloomfilter` crate. The
    /// false-positive rate of `G` such filters together is `P = 1 - (1-p)^G`.
    ///
    /// A [`Sizing::memory`] of more than [`MAX_COMPLETE_GENERATIONS`] minutes has generations of
    /// several minutes, and is rounded up to a multiple of their length.
    ///
    /// # Errors
    ///
    /// [`SizingError`] if no filters meet `sizing`.
    pub fn new(sizing: &Sizing) -> Result<Self, SizingError> {
        if sizing.capacity == 0 || sizing.memory.is_zero() {
            return Err(SizingError::Zero);
        }
        let minutes = sizing.memory.div_ceil(MINUTE);
        let generation = minutes.div_ceil(u64::from(MAX_COMPLETE_GENERATIONS));
        let complete_generations = minutes.div_ceil(generation) as u32;
        let live = f64::from(complete_generations + 1);
        let rate = -f64::exp_m1(f64::ln_1p(-sizing.false_positive) / live);
        // NaN is also outside.
        if !(f64::MIN_POSITIVE..1.0).contains(&rate) {
            return Err(SizingError::Rate);
        }
        let tokens = sizing.capacity as f64 * generation as f64;
        let bits = -tokens * rate.ln() / std::f64::consts::LN_2.powi(2);
        if bits > MAX_BITS {
            return Err(SizingError::TooLarge(bits * 4.0));
        }
        // At least one token: `capacity` is above 0.
        let tokens = sizing.capacity.saturating_mul(generation) as usize;
        let bits = Bloom::<u64>::compute_bitmap_size(tokens, rate).max(1) * 8;
        let hashes = (bits as f64 / tokens as f64 * std::f64::consts::LN_2).round().max(1.0) as u32;
        if hashes > MAX_HASHES {
            return Err(SizingError::Rate);
        }
        let generation_length = MINUTE * generation;
        Ok(Self { bits, growth: 1, hashes, generation_length, complete_generations })
    }

    /// The sizes with another growth.
    #[must_use]
    pub fn grown(self, growth: u32) -> Self {
        Self { bits: self.configured_bits() * growth as usize, growth, ..self }
    }

    /// Number of positions at the configured size.
    pub fn configured_bits(&self) -> usize {
        self.bits / self.growth as usize
    }

    /// Maximum number of new tokens that a gateway sends to the others, or receives, in a second.
    /// In a minute, they are as long as three generations: a little more than a minute's tokens.
    pub fn max_newcomers(&self) -> usize {
        (self.configured_bits() / POSITIONS_PER_NEWCOMER).max(MIN_NEWCOMERS)
    }

    /// Number of complete generations before the current one in which a token must have been
    /// recorded to be known well: its activity may reach the other gateways late.
    pub fn well_known(&self) -> u32 {
        self.complete_generations / 2
    }

    /// Number of positions of the configured size to read for an estimate of the number of tokens.
    /// Grown filters are read only at a part of these positions, so that growth costs no time.
    pub fn surveyed(&self) -> usize {
        let all = self.configured_bits();
        if self.growth == 1 { all } else { all.min(MAX_SURVEYED) }
    }

    /// The maximum growth whose filters take at most `bytes`; at least 1.
    pub fn max_growth(&self, bytes: u64) -> u32 {
        let times = bytes / self.grown(1).bytes();
        let growth = times.clamp(1, u64::from(MAX_GROWTH)) as u32;
        1 << growth.ilog2()
    }

    /// Memory of the filters, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bits as u64 * 4
    }

    /// The index of the generation of `now`, counted from the Unix epoch.
    pub fn index(&self, now: StoreTime) -> u64 {
        now.since(StoreTime::ZERO) / self.generation_length
    }

    /// The time at which the generation `index` starts.
    pub fn start_of(&self, index: u64) -> StoreTime {
        StoreTime::ZERO + self.generation_length * index
    }

    /// The first minute of the generation `index`.
    pub fn minute(&self, index: u64) -> UnixMinute {
        UnixMinute(index * (self.generation_length / MINUTE))
    }
}

#[cfg(test)]
mod tests;
