//! The sliding window: weighted counters of sub-windows.
//!
//! A window of `W` is divided into `k` sub-windows of `s = W/k`. The record counts the
//! charges of the current sub-window and of the `k` before it. The oldest count is weighted by the
//! share of its sub-window that still lies inside the window; if the quota is strict, it counts in
//! full until its sub-window has left the window. The record is the same in both cases, so a reload
//! may change strictness.
//!
//! Record: `updated_at` and `reset_at` (ms) and `k + 1` counts, newest first.
//!
//! Bounds, for charges admitted under an unchanged quota `L`:
//! - any `k` aligned sub-windows hold at most `L`;
//! - any interval of `W - s` holds at most `L`;
//! - any interval of `W` that ends `e` ms into a sub-window holds at most `L + old*e/s`, which is
//!   less than `2L`; `old` is the count of the sub-window in which the interval starts;
//! - if the quota is strict, any interval of `W` holds at most `L`.
//!
//! Source: `ClassDojo`'s sliding window, which is `k = 1` (two counters in Redis instead of a
//! sorted set of all requests), and its proposal of a higher resolution. A higher `k` confines the
//! error to one shorter sub-window. The Lua counterpart is `lua/sliding_window.lua`.

use tidegate_base::time::{Millis, StoreTime};

use super::{Decision, MAX_STEP_BACK, MAX_UNITS, Quota, counts::Counts};

/// The record of one caller under one limit. [`SlidingWindowState::default`] is a new caller's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SlidingWindowState {
    /// The time of the last charge or refund.
    pub updated_at: StoreTime,
    /// The reset time that was reported; not valid if it has passed.
    pub reset_at: StoreTime,
    /// The units charged in the sub-window of `updated_at` and in each of the `k` before it, newest
    /// first. Stored inline up to `k = 7`.
    pub counts: Counts,
}

/// Decides on a charge of `cost` at `now` without charging it.
///
/// The record changes only if the clock was set back by more than [`MAX_STEP_BACK`]: it then moves
/// back with the clock, and the caller must store it.
pub fn decide(
    state: &mut SlidingWindowState,
    quota: &Quota,
    now: StoreTime,
    cost: u64,
) -> Decision {
    let now = follow_clock(state, quota, now);
    let view = SlidingWindowView::new(state, quota, now);
    view.decision(state, quota, cost)
}

/// Charges `cost` at `now` without a check: call [`decide`] first unless an overdraft is allowed.
/// The sum of the counts of a window saturates at [`MAX_UNITS`].
pub fn charge(
    state: &mut SlidingWindowState,
    quota: &Quota,
    now: StoreTime,
    cost: u64,
) -> Decision {
    charge_batch(state, quota, now, cost, cost)
}

/// Charges `cost`, the total of several requests. `reset_at` is computed for a request that costs
/// `unit`.
pub fn charge_batch(
    state: &mut SlidingWindowState,
    quota: &Quota,
    now: StoreTime,
    cost: u64,
    unit: u64,
) -> Decision {
    let now = follow_clock(state, quota, now);
    let view = SlidingWindowView::new(state, quota, now);
    view.charge(state, quota, cost, unit)
}

/// Charges `cost` if [`decide`] admits it, reading the record once.
pub fn admit(state: &mut SlidingWindowState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let now = follow_clock(state, quota, now);
    let view = SlidingWindowView::new(state, quota, now);
    if cost <= view.remaining(quota) {
        view.charge(state, quota, cost, cost)
    } else {
        view.decision(state, quota, cost)
    }
}

/// Refunds up to `cost` units that were charged at `charged_at`, if the record still counts that
/// sub-window. `reset_at` stays.
pub fn refund(
    state: &mut SlidingWindowState,
    quota: &Quota,
    now: StoreTime,
    charged_at: StoreTime,
    cost: u64,
) -> Decision {
    let now = follow_clock(state, quota, now);
    let mut view = SlidingWindowView::new(state, quota, now);
    let age = view.index.checked_sub(charged_at.whole_periods(view.s));
    if let Some(age) = age.and_then(|age| usize::try_from(age).ok()).filter(|&age| age <= view.k) {
        let refunded = cost.min(count_at(&state.counts, view.shift, age));
        if refunded > 0 {
            // `reset_at` must not move back with the counts from which it was computed: store it.
            state.reset_at = view.decision(state, quota, 0).reset_at;
            view.shift_counts(state).subtract(age, refunded);
            // The counts were shifted to now.
            state.updated_at = now;
            view = SlidingWindowView::new(state, quota, now);
            state.check_invariants();
        }
    }
    view.decision(state, quota, 0)
}

/// Refunds up to `cost` units, those of the newest sub-windows first. `reset_at` stays.
pub fn release(
    state: &mut SlidingWindowState,
    quota: &Quota,
    now: StoreTime,
    cost: u64,
) -> Decision {
    let at = follow_clock(state, quota, now);
    let mut left = cost;
    for age in 0..=u64::from(quota.algorithm.resolution()) {
        let view = SlidingWindowView::new(state, quota, at);
        let count = count_at(&state.counts, view.shift, age as usize);
        let part = left.min(count);
        if part > 0 {
            refund(state, quota, now, at.before(view.s * age), part);
            left -= part;
        }
    }
    let view = SlidingWindowView::new(state, quota, at);
    view.decision(state, quota, 0)
}

/// The first ms at which the record is equivalent to a new caller's, or up to a sub-window later:
/// no charge counts, and `reset_at` has passed.
pub fn expires_at(state: &SlidingWindowState, quota: &Quota) -> StoreTime {
    let last_charge_counts_until = state.updated_at + quota.window + quota.sub_window();
    state.reset_at.max(last_charge_counts_until)
}

/// The time at which to read the record: never before `updated_at`, unless the clock was set back;
/// the record then moves back with it.
fn follow_clock(state: &mut SlidingWindowState, quota: &Quota, now: StoreTime) -> StoreTime {
    let behind = state.updated_at.since(now);
    if behind.is_zero() {
        return now;
    }
    if behind <= MAX_STEP_BACK {
        return state.updated_at;
    }
    let s = quota.sub_window();
    let back = state.updated_at.whole_periods(s) - now.whole_periods(s);
    state.reset_at = state.reset_at.before(s * back);
    state.updated_at = now;
    now
}

impl SlidingWindowState {
    /// Checks the record after a charge or a refund.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.reset_at >= self.updated_at, "reset before a charge: {self:?}");
    }
}

/// The start of the sub-window `index`.
fn sub_window_start(index: u64, s: Millis) -> StoreTime {
    StoreTime::ZERO.after(s.saturating_mul(index))
}

/// A record as read at `now`.
struct SlidingWindowView {
    now: StoreTime,
    /// The length of a sub-window.
    s: Millis,
    /// The number of sub-windows in a window.
    k: usize,
    /// The current sub-window's number since the epoch.
    index: u64,
    /// Number of sub-windows since the record was updated, at most `k + 1`.
    shift: usize,
    /// The units that count in full: in the current sub-window and the `k - 1` before it.
    full: u64,
    /// The count of the oldest sub-window.
    old: u64,
    /// The part of `old` that counts at `now`, rounded up.
    weighted: u64,
}

impl SlidingWindowView {
    fn new(state: &SlidingWindowState, quota: &Quota, now: StoreTime) -> Self {
        let s = quota.sub_window();
        let k = quota.algorithm.resolution() as usize;
        let index = now.whole_periods(s);
        let start = sub_window_start(index, s);
        let shift = if state.updated_at >= start {
            0
        } else {
            // Rounded up: any time in the previous sub-window is one sub-window back.
            usize::try_from(start.since(state.updated_at).div_ceil(s))
                .map_or(k + 1, |n| n.min(k + 1))
        };
        let full = state.counts.sum(k - shift.min(k));
        let old = count_at(&state.counts, shift, k);
        let weighted =
            if quota.algorithm.is_strict() { old } else { weigh(old, (start + s).since(now), s) };
        Self { now, s, k, index, shift, full, old, weighted }
    }

    /// The units that can still be charged.
    fn remaining(&self, quota: &Quota) -> u64 {
        quota.limit.saturating_sub(self.full + self.weighted)
    }

    /// The units used, at most [`MAX_UNITS`]. Above the limit if the quota was lowered or
    /// overdrawn.
    fn used(&self) -> u64 {
        (self.full + self.weighted).min(MAX_UNITS)
    }

    /// The decision on a charge of `cost`.
    fn decision(&self, state: &SlidingWindowState, quota: &Quota, cost: u64) -> Decision {
        let remaining = self.remaining(quota);
        let admitted = cost <= remaining;
        let (mut reset_at, mut retry_at) = (self.reset_at(state), None);
        if remaining == 0 {
            retry_at = self.retry_at(state, quota, 1);
            // The stored `reset_at` includes this, unless the quota was lowered since.
            reset_at = reset_at.max(retry_at.unwrap_or_default());
        }
        if admitted {
            retry_at = None;
        } else if cost != 1 {
            retry_at = self.retry_at(state, quota, cost);
        }
        Decision {
            admitted,
            limit: quota.limit,
            remaining,
            used: self.used(),
            reset_at,
            retry_at,
            wait: Millis::ZERO,
        }
    }

    /// Writes a charge of `cost` into the record; `unit` as for [`charge_batch`].
    fn charge(
        mut self,
        state: &mut SlidingWindowState,
        quota: &Quota,
        cost: u64,
        unit: u64,
    ) -> Decision {
        if cost == 0 {
            return self.decision(state, quota, 0);
        }
        let cost = cost.min(MAX_UNITS - self.full);
        self.shift_counts(state).add(0, cost);
        self.full += cost;
        state.updated_at = self.now;
        state.reset_at = self.reset_at(state);
        let remaining = self.remaining(quota);
        if remaining < unit {
            // An overdraft may be above the quota: then `reset_at` is for a cost of 1.
            let retry_at = self.retry_at(state, quota, unit);
            let retry_at = retry_at.or_else(|| self.retry_at(state, quota, 1));
            state.reset_at = state.reset_at.max(retry_at.unwrap_or_default());
        }
        state.check_invariants();
        Decision {
            admitted: true,
            limit: quota.limit,
            remaining,
            used: self.used(),
            reset_at: state.reset_at,
            retry_at: None,
            wait: Millis::ZERO,
        }
    }

    /// Shifts the record's `k + 1` counts so that the first belongs to the current sub-window.
    fn shift_counts<'s>(&mut self, state: &'s mut SlidingWindowState) -> &'s mut Counts {
        state.counts.shift(self.k + 1, std::mem::take(&mut self.shift));
        &mut state.counts
    }

    /// The stored `reset_at` if it is in the future, or else the time at which the oldest non-zero
    /// sub-window leaves the window; now if all are 0.
    fn reset_at(&self, state: &SlidingWindowState) -> StoreTime {
        if state.reset_at > self.now {
            return state.reset_at;
        }
        let counts = &state.counts;
        let oldest = (0..=self.k).rev().find(|&age| count_at(counts, self.shift, age) > 0);
        oldest.map_or(self.now, |age| {
            sub_window_start(self.index + (self.k + 1 - age) as u64, self.s)
        })
    }

    /// The first ms from now on at which `cost` would be admitted if nothing else were charged;
    /// `None` if it is above the quota.
    ///
    /// In the `m`th sub-window from now, `full` counts in full, and the weighted `old` must fit
    /// into the rest, `r = L - cost - full`. At `e` ms into that sub-window,
    /// `ceil((s-e)*old/s) <= r` must hold: it does from `e = s - floor(r*s/old)` on. If the quota
    /// is strict, all of `old` must fit into `r`.
    fn retry_at(&self, state: &SlidingWindowState, quota: &Quota, cost: u64) -> Option<StoreTime> {
        let room = quota.limit.checked_sub(cost)?;
        let (counts, mut full, mut old) = (&state.counts, self.full, self.old);
        for m in 0..=self.k + 1 {
            if m > 0 {
                old = self.k.checked_sub(m).map_or(0, |age| count_at(counts, self.shift, age));
                full -= old;
            }
            let Some(rest) = room.checked_sub(full) else { continue };
            let start = sub_window_start(self.index + m as u64, self.s);
            if old <= rest {
                return Some(start.max(self.now));
            }
            if quota.algorithm.is_strict() {
                continue;
            }
            let offset = self.s - mul_div_floor(rest, self.s, old);
            if offset < self.s {
                return Some((start + offset).max(self.now));
            }
        }
        // Unreachable: in sub-window `k + 1` from now nothing counts, so `room` suffices.
        None
    }
}

/// The count of the sub-window `age` before the current one.
fn count_at(counts: &Counts, shift: usize, age: usize) -> u64 {
    age.checked_sub(shift).map_or(0, |at| counts.get(at))
}

/// `ceil(count * left / s)`, where `left <= s`.
fn weigh(count: u64, left: Millis, s: Millis) -> u64 {
    let (left, s) = (left.as_ms(), s.as_ms());
    if count == 0 {
        return 0;
    }
    match count.checked_mul(left) {
        Some(product) => product.div_ceil(s),
        // Exact, and never above `count`.
        None => (u128::from(count) * u128::from(left)).div_ceil(u128::from(s)) as u64,
    }
}

/// `floor(rest * s / old)`, where `rest < old`.
fn mul_div_floor(rest: u64, s: Millis, old: u64) -> Millis {
    Millis::from_ms(match rest.checked_mul(s.as_ms()) {
        Some(product) => product / old,
        // Exact, and below `s`.
        None => (u128::from(rest) * u128::from(s.as_ms()) / u128::from(old)) as u64,
    })
}

#[cfg(test)]
mod tests;
