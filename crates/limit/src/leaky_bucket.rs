//! The leaky bucket: a constant rate, enforced by delaying requests that come faster.
//!
//! Requests of cost 1 are released exactly `W / L` apart: each takes the next free slot and is
//! delayed until then, or refused if the delay would exceed `max_wait`. A request of cost `q` takes
//! `q` adjacent slots and is released in the first; all of them must begin within `max_wait`.
//!
//! Slots may be refunded in any order. A refund of the last taken slots shortens the backlog; an
//! earlier one leaves a run of free slots (`free_slots.rs`), which goes to the first request that
//! fits into it. After every request has refunded its slots, no slot is taken.
//!
//! Refunded slots are dropped, and so pass unused, if a record would need more than 32 runs for
//! them, or if the quota changes or the clock is set back after the refund. If several slots begin
//! in the same ms, a slot of a request of cost > 1 may also pass unused, because the ms does not
//! identify it.
//!
//! In a decision, `limit` is the number of slots within `max_wait`: the requests that can be
//! admitted at once. `remaining` is the number of free ones among them. A request of cost > 1 may
//! be refused although enough slots are free, if they are not adjacent. A change of the quota keeps
//! the taken slots.
//!
//! Record: a [`GcraState`], whose TAT is the end of the taken slots, and the runs of free slots
//! before it.
//!
//! Bound, for charges admitted under an unchanged quota: no two requests share a slot, none is
//! released before its slot, and none is delayed by more than `max_wait`. So any interval of `W`
//! releases at most `L` requests of cost 1.
//!
//! Source: CALLR, "Rate limiting for distributed systems with Redis and Lua" (the second script),
//! with a TAT in place of the sorted set of slots. The Lua counterpart is `lua/leaky_bucket.lua`.

use tidegate_base::time::{Millis, StoreTime};

use super::{
    Decision, GcraState, MAX_EXACT_BACKLOG, Quota,
    free_slots::{FreeSlots, StoredRun},
    gcra::{extend_backlog, unit_backlog},
};

/// Maximum units of a quota, and slots of one request: a record counts them in 32 bits.
pub const MAX_SLOTS: u64 = u32::MAX as u64;

/// How much later than `retry_at` a client retries, because headers tell whole seconds. A
/// run of free slots that can be reached for a shorter time is not waited for: it could have
/// passed.
const MAX_ROUNDING: Millis = Millis::from_secs(1);

/// Longest `max_wait`: 32 bits of a fingerprint tell records of limits apart that differ in it.
pub const MAX_WAIT: Millis = Millis::from_ms(u32::MAX as u64);

/// The record of one caller under one limit. [`LeakyBucketState::default`] is a new caller's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LeakyBucketState {
    /// Its TAT is the end of the taken slots.
    gcra: GcraState,
    /// The free slots before the TAT.
    free_slots: Box<[StoredRun]>,
}

/// The number of slots that begin within `max_wait`: the requests that can be admitted at once.
pub fn capacity(quota: &Quota) -> u64 {
    let max_delay = quota.algorithm.max_wait().saturating_mul(quota.limit);
    max_delay / quota.window + 1
}

/// Decides on a charge of `cost` at `now` without charging it.
///
/// The record changes only if the clock was set back by more than [`super::MAX_STEP_BACK`]: it then
/// moves back with the clock.
pub fn decide(state: &mut LeakyBucketState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    LeakyBucketView::new(state, quota, now).decision(state, cost)
}

/// Charges `cost` at `now`, at most [`MAX_SLOTS`], without a check: call [`decide`] first unless an
/// overdraft is allowed. The decision's `wait` is the delay until the request's slot.
pub fn charge(state: &mut LeakyBucketState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let cost = cost.min(MAX_SLOTS);
    let mut view = LeakyBucketView::new(state, quota, now);
    let wait = if cost > 0 { view.charge(state, cost) } else { Millis::ZERO };
    Decision { wait, ..view.decision(state, 0) }
}

/// Charges `cost` if [`decide`] admits it.
pub fn admit(state: &mut LeakyBucketState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Refunds `cost` slots, the first of which begins at `slot`. `reset_at` stays.
pub fn refund(
    state: &mut LeakyBucketState,
    quota: &Quota,
    now: StoreTime,
    slot: StoreTime,
    cost: u64,
) -> Decision {
    let mut view = LeakyBucketView::new(state, quota, now);
    view.refund(state, slot, cost.min(MAX_SLOTS));
    view.decision(state, 0)
}

/// The first ms at which the record is equivalent to a new caller's: every slot and `reset_at` have
/// passed.
pub fn expires_at(state: &LeakyBucketState) -> StoreTime {
    state.gcra.expires_at()
}

/// A record as read at `now`. Lengths of time are in units of `1 / rate` ms.
struct LeakyBucketView<'a> {
    quota: &'a Quota,
    now: StoreTime,
    rate: u64,
    /// From now to the end of the taken slots.
    backlog: u64,
    /// The free slots in the backlog; none if the last charge was made at another rate.
    free_slots: FreeSlots,
    /// True if the last charge was made at this rate.
    same_rate: bool,
}

impl<'a> LeakyBucketView<'a> {
    fn new(state: &mut LeakyBucketState, quota: &'a Quota, now: StoreTime) -> Self {
        let updated_at = state.gcra.updated_at;
        let now = state.gcra.follow_clock(now);
        if state.gcra.updated_at != updated_at {
            state.free_slots = Box::default();
        }
        let rate = quota.limit;
        let backlog = state.gcra.backlog_at_rate(now, rate);
        let same_rate = state.gcra.rate() == rate;
        let stored: &[StoredRun] = if same_rate && backlog > 0 { &state.free_slots } else { &[] };
        let free_slots = FreeSlots::read(stored, now, rate, quota.window);
        Self { quota, now, rate, backlog, free_slots, same_rate }
    }

    /// Writes a charge into the record. Returns the request's delay.
    fn charge(&mut self, state: &mut LeakyBucketState, cost: u64) -> Millis {
        let begins = if let Some(free) = self.first_free(cost) {
            self.free_slots.take(free.cast_signed(), cost);
            free
        } else {
            let backlog = self.backlog;
            self.backlog = extend_backlog(backlog, self.quota, cost);
            backlog
        };
        self.write(state);
        // An overdraft may never fit: then `reset_at` is for a cost of 1.
        let latest = self.latest_start(cost).unwrap_or_else(|| self.max_delay());
        state.gcra.reset_at = self.reset_at(state).max(self.empties_to(latest));
        self.check_invariants(state);
        self.time_to(begins)
    }

    /// Frees `cost` slots of which the first begins at `slot`, if they are taken and have not
    /// passed.
    fn refund(&mut self, state: &mut LeakyBucketState, slot: StoreTime, cost: u64) {
        let max = i128::from(MAX_EXACT_BACKLOG);
        let length = i128::from(cost) * i128::from(unit_backlog(self.quota));
        let slot_position = (i128::from(slot.as_unix_ms()) - i128::from(self.now.as_unix_ms()))
            * i128::from(self.rate);
        if self.backlog == 0 || cost == 0 || length > max || slot_position.abs() > max / 2 {
            return;
        }
        let (length, slot_position) = (length as i64, slot_position as i64);
        let (rate, unit) = (self.rate.cast_signed(), unit_backlog(self.quota).cast_signed());
        let backlog = self.backlog.cast_signed();
        let last = backlog - length;
        let mut begins = last;
        // A quota change rounds the backlog up to a whole ms, so of the slots that were taken
        // before it, only the last can still be identified.
        let latest = if self.same_rate { slot_position } else { slot_position + rate - 1 };
        if last > latest {
            // The last slot that begins at or before `slot_position`.
            let back = backlog - slot_position;
            if !self.same_rate || back.unsigned_abs() > MAX_EXACT_BACKLOG {
                return;
            }
            begins = backlog - (back + unit - 1) / unit * unit;
        }
        begins = self.free_slots.last_taken(begins, length);
        if begins <= slot_position - rate {
            return;
        }
        // `reset_at` must not move back with the backlog from which it was computed: store it.
        let reset_at = self.reset_at(state);
        if begins == last {
            self.backlog = self.free_slots.trim_end(last).max(0).cast_unsigned();
        } else if begins + length > 0 {
            self.free_slots.insert(begins, cost.cast_signed());
        } else {
            return;
        }
        self.write(state);
        state.gcra.reset_at = reset_at;
        self.check_invariants(state);
    }

    /// The reset time: the stored one if it is in the future, else the next time at which a taken
    /// slot leaves room for another one within `max_wait`. Never before a request of cost 1 fits
    /// after the taken slots.
    ///
    /// Free slots before them do not count: they pass, and a caller that waits longer than until
    /// the reset must find a slot too.
    fn reset_at(&self, state: &LeakyBucketState) -> StoreTime {
        let max_delay = self.max_delay();
        let fits_at = self.empties_to(max_delay);
        if state.gcra.reset_at > self.now {
            return state.gcra.reset_at.max(fits_at);
        }
        let Some(left) = max_delay.checked_sub(self.backlog) else { return fits_at };
        let unit = unit_backlog(self.quota);
        let next = unit - left % unit;
        if next <= self.backlog { self.now + self.time_to(next) } else { self.now }
    }

    /// The first ms at which the backlog is at most `rest`.
    fn empties_to(&self, rest: u64) -> StoreTime {
        self.now + self.time_to(self.backlog.saturating_sub(rest))
    }

    /// The time from now to `position`, rounded up.
    fn time_to(&self, position: u64) -> Millis {
        Millis::from_ms(position.div_ceil(self.rate))
    }

    fn write(&mut self, state: &mut LeakyBucketState) {
        if self.backlog == 0 {
            self.free_slots.clear();
        }
        state.gcra.set_backlog(self.now, self.backlog, self.rate);
        state.free_slots = self.free_slots.write(self.now);
    }

    /// Checks the record that was just written.
    fn check_invariants(&self, state: &LeakyBucketState) {
        state.gcra.check_invariants();
        self.free_slots.check_invariants(self.backlog.cast_signed());
    }

    /// `max_wait` in units of `1 / rate` ms.
    fn max_delay(&self) -> u64 {
        self.quota.algorithm.max_wait().as_ms() * self.rate
    }

    /// The last position at which the first of `cost` adjacent slots may begin, so that the last of
    /// them begins within `max_wait`.
    fn latest_start(&self, cost: u64) -> Option<u64> {
        let before_last = cost.saturating_sub(1).saturating_mul(unit_backlog(self.quota));
        self.max_delay().checked_sub(before_last).filter(|_| cost <= MAX_SLOTS)
    }

    /// The position of the first `cost` adjacent free slots in the backlog that fit into
    /// `max_wait`.
    fn first_free(&self, cost: u64) -> Option<u64> {
        let latest = self.latest_start(cost)?.cast_signed();
        let first = self.free_slots.first_fit(cost, latest).filter(|&first| first <= latest);
        first.map(i64::cast_unsigned)
    }

    /// The decision on a charge of `cost`.
    fn decision(&self, state: &LeakyBucketState, cost: u64) -> Decision {
        let (unit, backlog) = (unit_backlog(self.quota), self.backlog);
        let max_delay = self.max_delay();
        let limit = capacity(self.quota);
        // Overdrawn slots, which begin after `max_wait`, also count as used.
        let (remaining, used) = match max_delay.checked_sub(backlog) {
            Some(left) => (left / unit + 1, limit - (left / unit + 1)),
            None => (0, limit + (backlog - max_delay).div_ceil(unit) - 1),
        };
        let free = self.free_slots.count_until(max_delay.cast_signed());
        let latest = self.latest_start(cost);
        let after = latest.filter(|&latest| backlog <= latest).map(|_| backlog);
        let begins = if cost == 0 { Some(0) } else { self.first_free(cost).or(after) };
        let retry_at = latest.filter(|_| begins.is_none()).map(|latest| {
            let lasts = latest >= MAX_ROUNDING.as_ms() * self.rate;
            let first = self.free_slots.first_fit(cost, latest.cast_signed()).filter(|_| lasts);
            self.now + self.time_to(first.map_or(backlog, i64::cast_unsigned) - latest)
        });
        Decision {
            admitted: begins.is_some(),
            limit,
            remaining: remaining + free,
            used: used - free,
            reset_at: self.reset_at(state),
            retry_at,
            wait: begins.map_or(Millis::ZERO, |begins| self.time_to(begins)),
        }
    }
}

#[cfg(test)]
mod out_of_order;
#[cfg(test)]
mod refunds;
#[cfg(test)]
mod tests;
