//! The leaky bucket: a constant rate, kept by delaying what comes faster.
//!
//! Requests of cost 1 are released `W / L` ms apart, exactly: each takes the next free slot, waits for
//! it, and is refused if that would take longer than `max_wait`. This is CALLR's second script with a
//! whole number of ms and a fraction in place of a sorted set of slots ([`Horizon`]). A request that
//! costs `q` takes `q` slots in a row and is released in the first; all of them must be within `max_wait`.
//!
//! Slots are given back in any order. The last that is taken moves the end of what is taken; one before
//! it is kept as free (`holes.rs`), and goes to the first request that it is long enough for. So after all
//! have given back what they took, nothing is taken. 32 runs of free slots are kept; what is more passes
//! unused. So does what was freed before the quota was changed or the clock was set back, and, where
//! several slots fall into one ms, now and then one of a request that took several.
//!
//! What is told of it: `limit` is the number of slots within `max_wait`, and so of requests that could
//! come at once; `remaining` how many of them are free. A request that costs more than 1 may be refused
//! though as many are free, if they are not in a row. A new quota keeps the slots that are taken.
//!
//! What holds: of an unchanged quota no two requests are released in the same slot, nor any slot
//! before its time; and no request waits longer than `max_wait`.
//!
//! The Lua twin is `lua/leaky_bucket.lua`: function for function the same.

use super::{
    Decision, Horizon, MAX_EXACT, Millis, Quota,
    holes::{Hole, Holes},
    horizon::owe,
};

/// What is remembered of one caller under one limit. [`State::default`] is a caller never seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// Where the slots that are taken end.
    horizon: Horizon,
    /// Those before it that are free.
    holes: Box<[Hole]>,
}

/// The slots within `max_wait`: what can be admitted at once.
pub fn slots(quota: &Quota) -> u64 {
    u64::from(quota.max_wait) * u64::from(quota.limit) / quota.window + 1
}

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than [`super::MAX_STEP_BACK`]: it then
/// moves back with the clock.
pub fn decide(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    Reading::new(state, quota, now).decision(state, cost)
}

/// Charges `cost` at `now` and tells what holds after it, and how long the request waits for its slot.
/// It does not ask: whoever may not overdraw has asked [`decide`].
pub fn charge(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let mut reading = Reading::new(state, quota, now);
    let wait = if cost > 0 { reading.charge(state, cost) } else { 0 };
    Decision { wait, ..reading.decision(state, 0) }
}

/// [`decide`] and, where that admits, [`charge`].
pub fn admit(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Gives back `cost` slots, the first of which begins at `slot`. The reset-at stays.
pub fn refund(state: &mut State, quota: &Quota, now: Millis, slot: Millis, cost: u32) -> Decision {
    let mut reading = Reading::new(state, quota, now);
    reading.refund(state, slot, cost);
    reading.decision(state, 0)
}

/// When the record means nothing any more: every slot has passed, and so has the reset-at.
pub fn expires_at(state: &State) -> Millis {
    state.horizon.reset_at
}

/// A record as it stands at one time. Lengths of time are in units of `1 / rate` ms.
struct Reading<'a> {
    quota: &'a Quota,
    now: Millis,
    rate: u64,
    /// Where the slots that are taken end.
    ahead: u64,
    /// Those before it that are free; none where another quota made them.
    holes: Holes,
    /// Whether the last charge was made under this quota.
    same_rate: bool,
}

impl<'a> Reading<'a> {
    fn new(state: &mut State, quota: &'a Quota, now: Millis) -> Self {
        let seen = state.horizon.seen;
        let now = state.horizon.settle(now);
        if state.horizon.seen != seen {
            state.holes = Box::default();
        }
        let rate = u64::from(quota.limit);
        let ahead = state.horizon.ahead_at(now, rate);
        let same_rate = state.horizon.rate() == rate;
        let stored: &[Hole] = if same_rate && ahead > 0 { &state.holes } else { &[] };
        let holes = Holes::read(stored, now, rate, quota.window);
        Self { quota, now, rate, ahead, holes, same_rate }
    }

    /// Writes a charge into the record; tells how long the request waits.
    fn charge(&mut self, state: &mut State, cost: u32) -> Millis {
        let begins = if let Some(hole) = self.hole(cost) {
            self.holes.take(hole.cast_signed(), cost);
            hole
        } else {
            let ahead = self.ahead;
            self.ahead = owe(ahead, self.rate, self.quota.window, cost);
            ahead
        };
        self.write(state);
        state.horizon.promise();
        begins.div_ceil(self.rate)
    }

    /// Frees `cost` slots of which the first is released at `slot`, if they are taken and not over.
    fn refund(&mut self, state: &mut State, slot: Millis, cost: u32) {
        let most = i128::from(MAX_EXACT);
        let given = i128::from(cost) * i128::from(self.quota.window);
        let until = (i128::from(slot) - i128::from(self.now)) * i128::from(self.rate);
        if self.ahead == 0 || cost == 0 || given > most || until.abs() > most / 2 {
            return;
        }
        let (given, until) = (given as i64, until as i64);
        let (rate, window) = (self.rate.cast_signed(), self.quota.window.cast_signed());
        let ahead = self.ahead.cast_signed();
        let last = ahead - given;
        let mut begins = last;
        // Another quota's slots were rounded up to a ms: of them only the last can be told.
        let latest = if self.same_rate { until } else { until + rate - 1 };
        if last > latest {
            // The latest that is released at that ms.
            let back = ahead - until;
            if !self.same_rate || back.unsigned_abs() > MAX_EXACT {
                return;
            }
            begins = ahead - (back + window - 1) / window * window;
        }
        begins = self.holes.place(begins, given);
        if begins <= until - rate {
            return;
        }
        if begins == last {
            self.ahead = self.holes.absorb(last).max(0).cast_unsigned();
        } else if begins + given > 0 {
            self.holes.add(begins, cost.into());
        } else {
            return;
        }
        self.write(state);
    }

    fn write(&mut self, state: &mut State) {
        if self.ahead == 0 {
            self.holes.clear();
        }
        state.horizon.set(self.now, self.ahead, self.rate);
        state.holes = self.holes.write(self.now);
    }

    /// What the first of `cost` slots must not begin after, for the last of them to be within `max_wait`.
    fn latest(&self, cost: u32) -> Option<u64> {
        let patience = u64::from(self.quota.max_wait) * self.rate;
        patience.checked_sub(u64::from(cost).saturating_sub(1).saturating_mul(self.quota.window))
    }

    /// Where `cost` free slots in a row begin within `max_wait`, if there are some before those that are
    /// taken end.
    fn hole(&self, cost: u32) -> Option<u64> {
        let latest = self.latest(cost)?.cast_signed();
        let first = self.holes.first(cost, latest).filter(|&first| first <= latest);
        first.map(i64::cast_unsigned)
    }

    /// What a charge of `cost` would meet.
    fn decision(&self, state: &State, cost: u32) -> Decision {
        let (rate, window, ahead) = (self.rate, self.quota.window, self.ahead);
        let patience = u64::from(self.quota.max_wait) * rate;
        let limit = slots(self.quota);
        // Slots that start too late to be taken count as used, too: those that were overdrawn.
        let (remaining, used) = match patience.checked_sub(ahead) {
            Some(left) => (left / window + 1, limit - (left / window + 1)),
            None => (0, limit + (ahead - patience).div_ceil(window) - 1),
        };
        let free = self.holes.free(patience.cast_signed());
        let latest = self.latest(cost);
        let after = latest.filter(|&latest| ahead <= latest).map(|_| ahead);
        let begins = if cost == 0 { Some(0) } else { self.hole(cost).or(after) };
        let retry_at = latest.filter(|_| begins.is_none()).map(|latest| {
            let first = self.holes.first(cost, latest.cast_signed());
            self.now + (first.map_or(ahead, i64::cast_unsigned) - latest).div_ceil(rate)
        });
        Decision {
            admitted: begins.is_some(),
            limit,
            remaining: remaining + free,
            used: used - free,
            reset_at: state.horizon.reset_at.max(self.now),
            retry_at,
            wait: begins.map_or(0, |begins| begins.div_ceil(rate)),
        }
    }
}

#[cfg(test)]
mod given_back;
#[cfg(test)]
mod out_of_order;
#[cfg(test)]
mod tests;
