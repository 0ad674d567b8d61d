//! [`ClockOffset`]: how far clocks differ.

use tidegate_base::time::{Millis, StoreTime};

/// A clock minus another one, or minus itself before it was set, in whole ms. It is negative if the
/// other one is ahead.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClockOffset(i64);

impl ClockOffset {
    /// Clocks that agree.
    pub const ZERO: Self = Self(0);

    /// A clock that is ahead by this many ms; behind, if they are negative.
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// The ms by which the clock is ahead, for encoding.
    pub const fn as_ms(self) -> i64 {
        self.0
    }

    /// A clock that shows `time` while the other one shows `other`.
    pub const fn between(time: StoreTime, other: StoreTime) -> Self {
        Self(time.ms_since(other))
    }

    /// What the clock shows while the other one shows `other`.
    pub const fn apply(self, other: StoreTime) -> StoreTime {
        other.saturating_add_signed(self.0)
    }

    /// By how much this offset is larger than `earlier`.
    #[must_use]
    pub const fn minus(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Half of it, rounded towards zero.
    #[must_use]
    pub const fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// How far the clocks differ, whichever is ahead.
    pub const fn length(self) -> Millis {
        Millis::from_ms(self.0.unsigned_abs())
    }
}
