//! One caller in the journal: what was charged to one record here, by parts of its window.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limit::{Algorithm, Key, Limit, Millis};

/// Charges of one such part of a window are one sum.
const PARTS: u64 = 8;

/// One record, and what was charged to it here.
pub(in crate::store) struct Caller {
    pub(in crate::store) limit: Arc<Limit>,
    pub(in crate::store) key: Key,
    /// Whether the store has been told once, and has said that it did not take it.
    pub(in crate::store) tried: bool,
    /// The share of the rate at which a token bucket is paid back.
    pub(super) rate: u32,
    /// Oldest first; of a token bucket one.
    sums: SmallVec<[Sum; 2]>,
}

#[derive(Clone, Copy)]
struct Sum {
    /// The tick of its last charge; of a fixed window, of its first.
    at: u64,
    /// Units of cost; of a token bucket, what was owed then: `window` a token.
    cost: u64,
}

impl Caller {
    /// One who has charged nothing.
    pub(super) fn new(limit: Arc<Limit>, key: Key, rate: u32) -> Self {
        Self { limit, key, tried: false, rate, sums: SmallVec::new() }
    }

    /// What the store is told: (when, by its clock, and how much), for a store whose clock shows `now` at
    /// `ticks`.
    pub(in crate::store) fn told(
        &self,
        ticks: u64,
        now: Millis,
    ) -> impl Iterator<Item = (Millis, u32)> {
        let weighs = self.sums.iter().filter(move |sum| !self.is_over(sum, ticks));
        weighs.map(move |sum| match self.limit.algorithm {
            Algorithm::TokenBucket => {
                let owed = self.owed(sum, ticks).div_ceil(self.limit.quota.window);
                (now, clamp(owed))
            }
            _ => ((now + sum.at).saturating_sub(ticks), clamp(sum.cost)),
        })
    }

    /// How many corrections that is, at most.
    pub(in crate::store) fn len(&self) -> usize {
        self.sums.len()
    }

    pub(super) fn add(&mut self, at: u64, cost: u64, ticks: u64) {
        if self.limit.algorithm == Algorithm::TokenBucket {
            let owed = self.sums.first().map_or(0, |sum| self.owed(sum, ticks));
            let cost = owed.saturating_add(cost.saturating_mul(self.limit.quota.window));
            self.sums = SmallVec::from_iter([Sum { at: ticks, cost }]);
            return;
        }
        let part = self.part(at);
        let place = self.sums.partition_point(|sum| self.part(sum.at) < part);
        match self.sums.get(place).copied() {
            Some(sum) if self.part(sum.at) == part => {
                let first = self.limit.algorithm == Algorithm::FixedWindow;
                let at = if first { sum.at.min(at) } else { sum.at.max(at) };
                self.sums[place] = Sum { at, cost: sum.cost.saturating_add(cost) };
            }
            _ => {
                self.sums.insert(place, Sum { at, cost });
                let past = self.sums.iter().take_while(|sum| self.is_over(sum, ticks)).count();
                self.sums.drain(..past);
            }
        }
    }

    /// Adds what was known of him before, or is known of another quota.
    pub(super) fn join(&mut self, other: Self, ticks: u64) {
        for sum in &other.sums {
            let tokens = match self.limit.algorithm {
                Algorithm::TokenBucket => other.owed(sum, ticks).div_ceil(other.limit.quota.window),
                _ => sum.cost,
            };
            self.add(sum.at, tokens, ticks);
        }
        if other.limit.quota != self.limit.quota {
            (self.limit, self.rate) = (other.limit, other.rate);
        }
    }

    pub(super) fn take_off(&mut self, cost: u32, at: u64, ticks: u64) {
        if self.limit.algorithm == Algorithm::TokenBucket {
            let Some(&sum) = self.sums.first() else { return };
            let given = u64::from(cost).saturating_mul(self.limit.quota.window);
            let cost = self.owed(&sum, ticks).saturating_sub(given);
            self.sums[0] = Sum { at: ticks, cost };
            return;
        }
        // Two clocks of whole ms told the time: it may have been the part before, or after.
        let (part, mut left) = (self.part(at), u64::from(cost));
        for part in [Some(part), part.checked_sub(1), Some(part + 1)].into_iter().flatten() {
            let width = self.width();
            for sum in self.sums.iter_mut().filter(|sum| sum.at / width == part) {
                let taken = left.min(sum.cost);
                (sum.cost, left) = (sum.cost - taken, left - taken);
            }
        }
    }

    /// The length of the parts of a window that charges are summed up by.
    fn width(&self) -> u64 {
        (self.limit.quota.window / PARTS).max(1)
    }

    fn part(&self, at: u64) -> u64 {
        at / self.width()
    }

    /// What a token bucket owes still.
    fn owed(&self, sum: &Sum, ticks: u64) -> u64 {
        let flowed = ticks.saturating_sub(sum.at).saturating_mul(self.rate.into());
        sum.cost.saturating_sub(flowed)
    }

    /// Whether a sum is too old to weigh.
    fn is_over(&self, sum: &Sum, ticks: u64) -> bool {
        let quota = &self.limit.quota;
        let reach = match self.limit.algorithm {
            Algorithm::TokenBucket => return self.owed(sum, ticks) == 0,
            Algorithm::SlidingWindow => quota.window + quota.sub_window(),
            _ => quota.window,
        };
        sum.cost == 0 || sum.at.saturating_add(reach) <= ticks
    }

    pub(super) fn is_past(&self, ticks: u64) -> bool {
        self.sums.iter().all(|sum| self.is_over(sum, ticks))
    }
}

fn clamp(cost: u64) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}
