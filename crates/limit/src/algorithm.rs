//! The algorithms, and their properties.
//!
//! Each property is a method with an exhaustive `match`, so a new algorithm does not compile until
//! it defines all of them. Code outside of this module therefore calls these methods instead of
//! comparing algorithms.

use tidegate_base::time::Millis;

use super::{Calendar, MAX_UNITS, concurrency, leaky_bucket, sliding_log, token_bucket};

/// The algorithm of a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Algorithm {
    /// Weighted counters, one for each sub-window: [`super::sliding_window`].
    SlidingWindow {
        /// The number of sub-windows, at least 1; divides the window.
        resolution: u32,
        /// True if the oldest sub-window counts in full.
        strict: bool,
    },
    /// The time of every charge: [`super::sliding_log`].
    SlidingLog,
    /// One counter, and the time at which its window ends: [`super::fixed_window`].
    FixedWindow,
    /// As [`Self::FixedWindow`], in windows that start and end by a calendar.
    CalendarWindow(Calendar),
    /// A burst that refills at a constant rate: [`super::token_bucket`].
    TokenBucket,
    /// A constant rate, enforced by delays: [`super::leaky_bucket`].
    LeakyBucket {
        /// The longest delay, at most [`leaky_bucket::MAX_WAIT`].
        max_wait: Millis,
    },
    /// Permits that requests hold while they are in flight: [`super::concurrency`].
    Concurrency,
    /// Refuses callers that another limit has refused too often: [`super::block`]. It is
    /// charged beside that limit.
    Block {
        /// The length of a block, at most [`super::block::MAX_DURATION`].
        duration: Millis,
    },
}

impl Algorithm {
    /// Every algorithm but the block, with these options where it has them; the sliding window is
    /// not strict.
    pub fn all(resolution: u32, max_wait: Millis) -> [Self; 6] {
        [
            Self::SlidingWindow { resolution, strict: false },
            Self::SlidingLog,
            Self::FixedWindow,
            Self::TokenBucket,
            Self::LeakyBucket { max_wait },
            Self::Concurrency,
        ]
    }

    /// The calendar whose windows it counts in; `None` if its windows have a fixed length.
    pub fn calendar(self) -> Option<Calendar> {
        match self {
            Self::CalendarWindow(calendar) => Some(calendar),
            Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Concurrency
            | Self::Block { .. } => None,
        }
    }

    /// The name of its Lua counterpart (in the table `algorithms`), which is also that of its file.
    pub fn tag(self) -> &'static str {
        match self {
            Self::SlidingWindow { .. } => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::FixedWindow | Self::CalendarWindow(_) => "fixed_window",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::Concurrency => "concurrency",
            Self::Block { .. } => "block",
        }
    }

    /// Maximum units of a quota that it counts exactly.
    pub fn max_units(self) -> u64 {
        match self {
            Self::SlidingWindow { .. } | Self::FixedWindow | Self::CalendarWindow(_) => MAX_UNITS,
            Self::SlidingLog => sliding_log::MAX_UNITS,
            Self::TokenBucket => token_bucket::MAX_UNITS,
            Self::LeakyBucket { .. } => leaky_bucket::MAX_SLOTS,
            Self::Concurrency => concurrency::MAX_UNITS,
            Self::Block { .. } => u32::MAX.into(),
        }
    }

    /// True if units may be acquired in batches: see `acquire.rs`.
    pub fn can_lease(self) -> bool {
        match self {
            Self::SlidingWindow { .. } | Self::FixedWindow | Self::CalendarWindow(_) => true,
            Self::SlidingLog
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Concurrency
            | Self::Block { .. } => false,
        }
    }

    /// True if a charge is a permit, which its request holds, renews and releases when it ends.
    pub fn holds_permit(self) -> bool {
        match self {
            Self::Concurrency => true,
            Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Block { .. } => false,
        }
    }

    /// True if a charge takes a slot, which is a point in time. Two slots in the same ms differ
    /// from one slot of twice the cost, and the order of their refunds matters.
    pub fn takes_slot(self) -> bool {
        match self {
            Self::LeakyBucket { .. } => true,
            Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::Concurrency
            | Self::Block { .. } => false,
        }
    }

    /// True if a charge blocks other requests until it is refunded or its request ends, so that it
    /// must not outlive its request.
    pub fn blocks_others(self) -> bool {
        self.holds_permit() || self.takes_slot()
    }

    /// True if a denial stays correct until its retry time, so that it may be cached. A permit may
    /// be released at any time.
    pub fn has_cacheable_denials(self) -> bool {
        match self {
            Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Block { .. } => true,
            Self::Concurrency => false,
        }
    }

    /// True if the units that remain after an admission and the time of a retry can be predicted,
    /// so that callers may be told. The end of a request in flight is unpredictable.
    pub fn is_predictable(self) -> bool {
        match self {
            Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Block { .. } => true,
            Self::Concurrency => false,
        }
    }

    /// The number of sub-windows that a window is counted in.
    pub fn resolution(self) -> u32 {
        match self {
            Self::SlidingWindow { resolution, .. } => resolution,
            Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Concurrency
            | Self::Block { .. } => 1,
        }
    }

    /// True if a sub-window counts in full until it has left the window.
    pub fn is_strict(self) -> bool {
        match self {
            Self::SlidingWindow { strict, .. } => strict,
            Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Concurrency
            | Self::Block { .. } => false,
        }
    }

    /// The longest delay of an admitted request; zero if the algorithm delays none.
    pub fn max_wait(self) -> Millis {
        match self {
            Self::LeakyBucket { max_wait } => max_wait,
            Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::Concurrency
            | Self::Block { .. } => Millis::ZERO,
        }
    }

    /// The length of a block; zero if the algorithm is not a block.
    pub fn block_duration(self) -> Millis {
        match self {
            Self::Block { duration } => duration,
            Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::CalendarWindow(_)
            | Self::TokenBucket
            | Self::LeakyBucket { .. }
            | Self::Concurrency => Millis::ZERO,
        }
    }

    /// True for a block: its charges count nothing, and an overdraft counts refusals.
    pub fn is_block(self) -> bool {
        !self.block_duration().is_zero()
    }
}
