//! Which generations are live.

use std::ops::RangeInclusive;

use super::{GRACE, Geometry, Millis};

/// The live generations: at most 32, each with a slot of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Epoch {
    pub(super) oldest: u64,
    pub(super) current: u64,
}

impl Epoch {
    /// What is live at `now`: the current generation, the complete ones in memory, and until
    /// [`GRACE`] has passed one more.
    pub(super) fn at(geometry: &Geometry, now: Millis) -> Self {
        // Enough for eight thousand years of minutes.
        let current = geometry.index(now).min(u64::from(u32::MAX));
        let fresh = now.saturating_sub(current * geometry.generation) < GRACE;
        let back = u64::from(geometry.memory) + u64::from(fresh);
        Self { oldest: current.saturating_sub(back.min(31)), current }
    }

    /// What is live at `now` if `self` was: a clock that goes back brings nothing back.
    pub(super) fn turned(self, geometry: &Geometry, now: Millis) -> Self {
        let then = Self::at(geometry, now);
        Self { oldest: self.oldest.max(then.oldest), current: self.current.max(then.current) }
    }

    pub(super) fn range(self) -> RangeInclusive<u64> {
        self.oldest..=self.current
    }

    /// The slots of the live generations.
    pub(super) fn mask(self) -> u32 {
        let ones = u32::MAX >> (31 - (self.current - self.oldest) as u32 % 32);
        ones.rotate_left(self.oldest as u32 % 32)
    }

    /// The slot of the current generation, in an epoch as [`Self::pack`] made it.
    pub(super) fn slot(packed: u64) -> u32 {
        1 << ((packed >> 32) % 32)
    }

    /// The current generation in the upper half, the slots of all live ones in the lower.
    pub(super) fn pack(self) -> u64 {
        self.current << 32 | u64::from(self.mask())
    }

    pub(super) fn unpack(packed: u64) -> Self {
        let (current, live) = (packed >> 32, (packed as u32).count_ones());
        Self { oldest: current + 1 - u64::from(live), current }
    }
}
