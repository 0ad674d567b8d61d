//! The epoch of a filter: its live generations.

use std::ops::RangeInclusive;

use tidegate_base::time::StoreTime;

use super::{GRACE, Geometry};

/// The live generations: at most 32, each with a slot of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Epoch {
    pub(super) oldest: u64,
    pub(super) current: u64,
}

impl Epoch {
    /// The live generations at `now`: the current one, the complete ones in memory, and one more
    /// until [`GRACE`] has passed.
    pub(super) fn at(geometry: &Geometry, now: StoreTime) -> Self {
        // Enough for 8,000 years of minutes.
        let current = geometry.index(now).min(u64::from(u32::MAX));
        let in_grace = now.since(geometry.start_of(current)) < GRACE;
        let back = u64::from(geometry.complete_generations) + u64::from(in_grace);
        Self { oldest: current.saturating_sub(back.min(31)), current }
    }

    /// The epoch at `now`, but never earlier than `self`, even if the clock goes back.
    pub(super) fn advanced(self, geometry: &Geometry, now: StoreTime) -> Self {
        let then = Self::at(geometry, now);
        Self { oldest: self.oldest.max(then.oldest), current: self.current.max(then.current) }
    }

    pub(super) fn range(self) -> RangeInclusive<u64> {
        self.oldest..=self.current
    }

    /// The mask of the slots of the live generations.
    pub(super) fn mask(self) -> u32 {
        let ones = u32::MAX >> (31 - (self.current - self.oldest) as u32 % 32);
        ones.rotate_left(self.oldest as u32 % 32)
    }

    /// The mask of the slot of the current generation of an epoch packed by [`Self::pack`].
    pub(super) fn current_slot_mask(packed: u64) -> u32 {
        1 << ((packed >> 32) % 32)
    }

    /// The mask of the slots of the live ones of `count` generations before the current one, of an
    /// epoch packed by [`Self::pack`]. `count` is at most 31.
    pub(super) fn recent_slots_mask(packed: u64, count: u32) -> u32 {
        let ones = (1_u32 << count) - 1;
        ones.rotate_left(((packed >> 32) as u32).wrapping_sub(count) % 32) & packed as u32
    }

    /// The epoch as one word: the current generation in the upper half, the mask of the live slots
    /// in the lower half.
    pub(super) fn pack(self) -> u64 {
        self.current << 32 | u64::from(self.mask())
    }

    pub(super) fn unpack(packed: u64) -> Self {
        let (current, live) = (packed >> 32, (packed as u32).count_ones());
        Self { oldest: current + 1 - u64::from(live), current }
    }
}
