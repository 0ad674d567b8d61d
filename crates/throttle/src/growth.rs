//! [`GrowthControl`]: decides from the fill of the generations when the filters grow and shrink.

use tidegate_base::time::{Millis, StoreTime};

use super::{Filter, payload};

/// The factor by which the filters shrink, and the smallest factor by which they grow.
const STEP: u32 = 4;

/// Decides once per tick whether the filters need another size.
///
/// A generation is full when half of its positions are set: it then has the tokens that it is sized
/// for. A filter that grows in the middle of a generation keeps the share of set positions; it is
/// then full when half of the positions that were still free are set. The filters grow at once to
/// the size for all tokens that are expected until the generation ends, because each further change
/// of size leaves more positions set.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrowthControl {
    /// The generation of the last tick; `None` before the first.
    generation: Option<u64>,
    /// The share of its positions that were free when it began, or when the filters were last
    /// resized.
    free: f64,
    /// The time at which that share was free.
    since: StoreTime,
}

impl GrowthControl {
    /// The growth that `filter` needs, at most `max_growth`; `None` if it already has this growth.
    /// `fills` are its [`Filter::fills`] at `now`.
    pub fn wanted(
        &mut self,
        filter: &Filter,
        fills: &[f64],
        max_growth: u32,
        now: StoreTime,
    ) -> Option<u32> {
        let (geometry, current) = (filter.geometry(), *filter.live_generations().end());
        let growth = geometry.growth;
        let free = 1.0 - fills.last().copied().unwrap_or(0.0);
        let before = self.generation.replace(current);
        if before != Some(current) {
            // At startup, the filters may have been loaded in the middle of a generation.
            self.free = if before.is_some() { 1.0 } else { free };
            self.since = geometry.start_of(current);
        }
        if growth > max_growth {
            return Some(max_growth);
        }
        if free * 2.0 <= self.free && growth < max_growth {
            let passed = now.since(self.since).max(Millis::MILLISECOND);
            let times = geometry.generation_length / passed;
            let times = u32::try_from(times + 1).unwrap_or(u32::MAX).min(max_growth);
            let wanted = growth.saturating_mul(times.next_power_of_two().max(STEP));
            return Some(wanted.min(max_growth));
        }
        let smaller = (growth / STEP).max(1);
        let is_due = growth > 1 && before != Some(current);
        let fits = || filter.fills(smaller).into_iter().all(payload::is_sparse_fill);
        (is_due && fits()).then_some(smaller)
    }

    /// Starts to count again after a change of size at `now`. `fill` is the share of set
    /// positions in the current generation.
    pub fn set_resized(&mut self, fill: f64, now: StoreTime) {
        (self.free, self.since) = (1.0 - fill, now);
    }
}

#[cfg(test)]
mod tests;
