//! The sliding window: weighted counters of sub-windows.
//!
//! A window of `W` ms is cut into `k` sub-windows of `s = W/k` ms. The charges of the current
//! sub-window and of the `k` before it are counted; the oldest counts only by the share of it that
//! still lies inside the window. With `k = 1` this is `ClassDojo`'s "sliding window" (two counters in
//! Redis instead of a sorted set of every request); a higher `k` confines its one inexactness to a
//! single sub-window.
//!
//! What holds, for charges that were admitted by an unchanged quota `L`:
//! - any `k` aligned sub-windows hold at most `L`;
//! - any interval of `W - s` holds at most `L`;
//! - any interval of `W` that ends `e` ms into a sub-window holds at most `L + old*e/s`, where `old`
//!   is the count of the sub-window that the interval's start cuts;
//! - with a strict quota the oldest sub-window counts in full until it has left the window, and any
//!   interval of `W` holds at most `L`. The record is the same, so a reload may change strictness.
//!
//! The Lua twin is `lua/sliding_window.lua`: function for function the same.

use super::{Decision, MAX_STEP_BACK, Millis, Quota, counts::Counts};

/// What is remembered of one caller under one limit. [`State::default`] is a caller never seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// When the last charge was made.
    pub seen: Millis,
    /// The reset-at that clients were told; in the past, it means nothing.
    pub reset_at: Millis,
    /// What was charged in the sub-window of `seen` and in each of the `k` before it, newest first.
    /// Up to `k = 7` they live inside the record.
    pub counts: Counts,
}

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than [`MAX_STEP_BACK`]: it then moves
/// back with the clock, and the caller must keep what was written.
pub fn decide(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = settle(state, quota, now);
    let reading = Reading::new(state, quota, now);
    reading.decision(state, quota, cost)
}

/// Charges `cost` at `now` and tells what holds after it. It does not ask: whoever may not overdraw
/// has asked [`decide`]. A count ends at `u32::MAX`.
pub fn charge(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    charge_for(state, quota, now, cost, cost)
}

/// The same for requests that cost `unit` each, together `cost`: the reset-at is worked out for one of
/// them.
pub fn charge_for(state: &mut State, quota: &Quota, now: Millis, cost: u32, unit: u32) -> Decision {
    let now = settle(state, quota, now);
    let reading = Reading::new(state, quota, now);
    reading.charge(state, quota, cost, unit)
}

/// [`decide`] and, where that admits, [`charge`], from one reading of the record.
pub fn admit(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = settle(state, quota, now);
    let reading = Reading::new(state, quota, now);
    if u64::from(cost) <= reading.remaining(quota) {
        reading.charge(state, quota, cost, cost)
    } else {
        reading.decision(state, quota, cost)
    }
}

/// Gives back `cost` units that were charged at `charged_at`: to the sub-window of that time if it
/// still weighs, and no more than it counts. The reset-at stays.
pub fn refund(
    state: &mut State,
    quota: &Quota,
    now: Millis,
    charged_at: Millis,
    cost: u32,
) -> Decision {
    let now = settle(state, quota, now);
    let mut reading = Reading::new(state, quota, now);
    let age = reading.index.checked_sub(charged_at / reading.s);
    if let Some(age) = age.and_then(|age| usize::try_from(age).ok()).filter(|&age| age <= reading.k)
    {
        let taken = u64::from(cost).min(aged(state.counts.all(), reading.shift, age));
        if taken > 0 {
            // What clients were told must not move back with what it was worked out from.
            state.reset_at = reading.decision(state, quota, 0).reset_at;
            reading.age(state)[age] -= taken as u32;
            // The counts are now as of now.
            state.seen = now;
            reading = Reading::new(state, quota, now);
        }
    }
    reading.decision(state, quota, 0)
}

/// When the record means nothing any more, or up to a sub-window later: then no count weighs and the
/// reset-at has passed.
pub fn expires_at(state: &State, quota: &Quota) -> Millis {
    let last_charge_weighs_until = state.seen + quota.window + quota.sub_window();
    state.reset_at.max(last_charge_weighs_until)
}

/// The time that counts for this record: it never runs backwards.
fn settle(state: &mut State, quota: &Quota, now: Millis) -> Millis {
    let behind = state.seen.saturating_sub(now);
    if behind == 0 {
        return now;
    }
    if behind <= MAX_STEP_BACK {
        return state.seen;
    }
    let s = quota.sub_window();
    let back = state.seen / s - now / s;
    state.reset_at = state.reset_at.saturating_sub(back * s);
    state.seen = now;
    now
}

/// The start of the sub-window `index`, in ms.
fn start_of(index: u64, s: Millis) -> Millis {
    index.saturating_mul(s)
}

/// A record as it stands at one time.
struct Reading {
    /// The time of the reading.
    now: Millis,
    /// A sub-window's length.
    s: Millis,
    /// Sub-windows in a window.
    k: usize,
    /// The current sub-window's number since the epoch.
    index: u64,
    /// How many sub-windows ago the record was charged, at most `k + 1`.
    shift: usize,
    /// What counts in full: the current sub-window and the `k - 1` before it.
    full: u64,
    /// What counts by its share: the sub-window before those.
    old: u64,
    /// The share of `old` that counts now, rounded up.
    weighted: u64,
}

impl Reading {
    fn new(state: &State, quota: &Quota, now: Millis) -> Self {
        let s = quota.sub_window();
        let k = quota.resolution as usize;
        let index = now / s;
        let start = index * s;
        let shift = if state.seen >= start {
            0
        } else {
            // `start - seen` is at least 1 ms; a part of a sub-window back is one sub-window back.
            usize::try_from((start - state.seen).div_ceil(s)).map_or(k + 1, |n| n.min(k + 1))
        };
        let counts = state.counts.all();
        let live = &counts[..(k - shift.min(k)).min(counts.len())];
        let full = live.iter().map(|&count| u64::from(count)).sum();
        let old = aged(counts, shift, k);
        let weighted = if quota.strict { old } else { weigh(old, start + s - now, s) };
        Self { now, s, k, index, shift, full, old, weighted }
    }

    /// What may still be charged now.
    fn remaining(&self, quota: &Quota) -> u64 {
        u64::from(quota.limit).saturating_sub(self.used())
    }

    /// What is used: `limit - remaining`, or more than the limit where a lowered quota overdrew it.
    fn used(&self) -> u64 {
        self.full + self.weighted
    }

    /// What a charge of `cost` would meet.
    fn decision(&self, state: &State, quota: &Quota, cost: u32) -> Decision {
        let remaining = self.remaining(quota);
        let admitted = u64::from(cost) <= remaining;
        let (mut reset_at, mut retry_at) = (self.reset_at(state), None);
        if remaining == 0 {
            retry_at = self.retry_at(state, quota, 1);
            // The stored reset-at covers this, unless the quota was lowered since.
            reset_at = reset_at.max(retry_at.unwrap_or(0));
        }
        if admitted {
            retry_at = None;
        } else if cost != 1 {
            retry_at = self.retry_at(state, quota, cost);
        }
        Decision {
            admitted,
            limit: u64::from(quota.limit),
            remaining,
            used: self.used(),
            reset_at,
            retry_at,
            wait: 0,
        }
    }

    /// Writes a charge of `cost` into the record, for requests of `unit` each.
    fn charge(mut self, state: &mut State, quota: &Quota, cost: u32, unit: u32) -> Decision {
        if cost == 0 {
            return self.decision(state, quota, 0);
        }
        let newest = &mut self.age(state)[0];
        let cost = cost.min(u32::MAX - *newest);
        *newest += cost;
        self.full += u64::from(cost);
        state.seen = self.now;
        state.reset_at = self.reset_at(state);
        let remaining = self.remaining(quota);
        if remaining < u64::from(unit) {
            // A cost that overdraws may be above the quota: then the reset is for a cost of 1.
            let retry_at = self.retry_at(state, quota, unit);
            let retry_at = retry_at.or_else(|| self.retry_at(state, quota, 1));
            state.reset_at = state.reset_at.max(retry_at.unwrap_or(0));
        }
        Decision {
            admitted: true,
            limit: u64::from(quota.limit),
            remaining,
            used: self.used(),
            reset_at: state.reset_at,
            retry_at: None,
            wait: 0,
        }
    }

    /// Moves the record's counts so that the first is the current sub-window's, and gives all `k + 1`.
    fn age<'s>(&mut self, state: &'s mut State) -> &'s mut [u32] {
        let length = self.k + 1;
        let counts = state.counts.first(length);
        let shift = std::mem::take(&mut self.shift).min(length);
        if shift > 0 {
            counts.copy_within(..length - shift, shift);
            counts[..shift].fill(0);
        }
        counts
    }

    /// The stored reset-at while it is ahead; else when the oldest live sub-window leaves the window;
    /// now, if nothing is live.
    fn reset_at(&self, state: &State) -> Millis {
        if state.reset_at > self.now {
            return state.reset_at;
        }
        let counts = state.counts.all();
        let oldest = (0..=self.k).rev().find(|&age| aged(counts, self.shift, age) > 0);
        oldest.map_or(self.now, |age| start_of(self.index + (self.k + 1 - age) as u64, self.s))
    }

    /// The first ms from now on at which `cost` would be admitted if nobody else charged; `None` if
    /// the quota never holds that much.
    ///
    /// In the sub-window `m` from now, what counts in full is `full`, the rest of `r = L - cost - full`
    /// must hold the weighted `old`, and `ceil((s-e)*old/s) <= r` from `e = s - floor(r*s/old)` on.
    /// Where the quota is strict, `r` must hold all of it.
    fn retry_at(&self, state: &State, quota: &Quota, cost: u32) -> Option<Millis> {
        let room = u64::from(quota.limit.checked_sub(cost)?);
        let (counts, mut full, mut old) = (state.counts.all(), self.full, self.old);
        for m in 0..=self.k + 1 {
            if m > 0 {
                old = self.k.checked_sub(m).map_or(0, |age| aged(counts, self.shift, age));
                full -= old;
            }
            let Some(rest) = room.checked_sub(full) else { continue };
            let start = start_of(self.index + m as u64, self.s);
            if old <= rest {
                return Some(start.max(self.now));
            }
            if quota.strict {
                continue;
            }
            let offset = self.s - ratio(rest, self.s, old);
            if offset < self.s {
                return Some((start + offset).max(self.now));
            }
        }
        // Not reached: in the sub-window k + 1 from now nothing counts and `room` is not negative.
        None
    }
}

/// The count of the sub-window `age` before the current one.
fn aged(counts: &[u32], shift: usize, age: usize) -> u64 {
    let at = age.checked_sub(shift);
    at.and_then(|at| counts.get(at)).map_or(0, |&count| u64::from(count))
}

/// `ceil(count * left / s)`, where `left <= s`.
fn weigh(count: u64, left: Millis, s: Millis) -> u64 {
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
fn ratio(rest: u64, s: Millis, old: u64) -> u64 {
    match rest.checked_mul(s) {
        Some(product) => product / old,
        // Exact, and below `s`.
        None => (u128::from(rest) * u128::from(s) / u128::from(old)) as u64,
    }
}

#[cfg(test)]
mod tests;
