//! The concurrency limit: each request holds a slot while it is in flight.
//!
//! The quota `L` is the number of slots. A slot is held under a lease of the window `W`. Its holder gives
//! it back ([`refund`]) when the request ends, and renews the lease before it ends ([`charge`], then
//! [`refund`] of the previous lease). The slots of a gateway that died become free when its leases end.
//!
//! A lease ends at a multiple of `W / 64` (rounded up), so it lasts at least `W` and at most one such step
//! longer. Leases that end together share an entry: a record has at most 65 entries, however many slots
//! are held (82 while clocks differ by the largest tolerated step).
//!
//! A lease is identified by the time of its charge. A clock that steps back by at most `W / 4` changes no
//! lease, but each lasts longer by up to that step. After a larger step back all leases restart as one
//! entry that ends a window from now. A refund that finds no entry of its own is taken from that one, so
//! no slot counts twice. A holder that renews after a third of the window has left the entry long before
//! it ends.
//!
//! Record: `reset_at` (ms), `restarted_until` (ms), the total of the slots, and the entries (end in ms,
//! slots), the soonest first.
//!
//! Bound, for charges admitted under an unchanged quota: at any time, the leases that have not ended hold
//! at most `L` slots. When a slot will become free is unknown: `retry_at` assumes that no lease is given
//! back or renewed.
//!
//! The Lua twin is `lua/concurrency.lua`.

use super::{Decision, Millis, Quota};

/// The steps in a window: a lease ends at a multiple of a step.
const STEPS: Millis = 64;

/// A clock may step back by the window divided by this without a restart of the leases.
const TOLERANCE_DIVISOR: Millis = 4;

/// The record of one caller under one limit. [`State::default`] is that of a new caller.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// When the last lease ends, in ms, including leases that were given back.
    pub reset_at: Millis,
    /// When the leases end that restarted because the clock was set back, in ms; 0 if none did.
    restarted_until: Millis,
    /// The slots of all `leases`.
    total: u32,
    /// Ordered by their ends, the soonest first.
    leases: Vec<Lease>,
}

/// The slots whose leases end together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Lease {
    /// The first ms after the leases.
    ends_at: Millis,
    /// Never 0.
    slots: u32,
}

/// Decides on a charge of `cost` at `now` without charging it.
///
/// The record changes only if the clock was set back by more than a quarter of the window.
pub fn decide(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    Reading::new(state, quota, now).decision(state, quota, cost)
}

/// Takes `cost` slots at `now` without a check: call [`decide`] first unless an overdraft is allowed. The
/// total saturates at `u32::MAX`.
pub fn charge(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let mut reading = Reading::new(state, quota, now);
    reading.charge(state, quota, cost);
    reading.decision(state, quota, 0)
}

/// Charges `cost` if [`decide`] admits it.
pub fn admit(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Gives back `cost` slots that were taken at `charged_at`, as far as their lease has not ended and holds
/// them. `reset_at` stays.
pub fn refund(
    state: &mut State,
    quota: &Quota,
    now: Millis,
    charged_at: Millis,
    cost: u32,
) -> Decision {
    let mut reading = Reading::new(state, quota, now);
    let ends_at = lease_end(quota, charged_at);
    let left = cost - reading.release(state, ends_at, cost);
    // The leases may have restarted since: then this clock has no entry for `charged_at`, or one that
    // other leases hold.
    if left > 0 && ends_at > now {
        reading.release(state, state.restarted_until, left);
    }
    reading.decision(state, quota, 0)
}

/// The first ms at which the record is equivalent to that of a new caller.
pub fn expires_at(state: &State) -> Millis {
    state.reset_at
}

/// When a lease that begins at `at` ends.
fn lease_end(quota: &Quota, at: Millis) -> Millis {
    let step = quota.window.div_ceil(STEPS);
    at.saturating_add(quota.window).div_ceil(step).saturating_mul(step)
}

impl State {
    /// The index of the first lease that ends after `at`; the number of leases if none does.
    fn first_ending_after(&self, at: Millis) -> usize {
        self.leases.partition_point(|lease| lease.ends_at <= at)
    }

    /// Restarts all leases if the clock was set back.
    fn follow_clock(&mut self, quota: &Quota, now: Millis) {
        if self.reset_at <= lease_end(quota, now + quota.window / TOLERANCE_DIVISOR) {
            return;
        }
        let ends_at = lease_end(quota, now);
        (self.reset_at, self.restarted_until) = (ends_at, ends_at);
        self.leases.clear();
        if self.total > 0 {
            self.leases.push(Lease { ends_at, slots: self.total });
        }
    }
}

/// A record as read at `now`.
struct Reading {
    now: Millis,
    /// The index of the first lease that has not ended.
    first: usize,
    /// Slots held. Above the limit if the quota was lowered or overdrawn.
    used: u32,
}

impl Reading {
    fn new(state: &mut State, quota: &Quota, now: Millis) -> Self {
        state.follow_clock(quota, now);
        let (mut first, mut used) = (0, state.total);
        while let Some(lease) = state.leases.get(first).filter(|lease| lease.ends_at <= now) {
            used -= lease.slots;
            first += 1;
        }
        Self { now, first, used }
    }

    /// The decision on a charge of `cost`.
    fn decision(&self, state: &State, quota: &Quota, cost: u32) -> Decision {
        let remaining = u64::from(quota.limit.saturating_sub(self.used));
        let admitted = u64::from(cost) <= remaining;
        Decision {
            admitted,
            limit: u64::from(quota.limit),
            remaining,
            used: u64::from(self.used),
            reset_at: state.reset_at.max(self.now),
            retry_at: if admitted { None } else { self.retry_at(state, quota, cost) },
            wait: 0,
        }
    }

    /// When enough leases will have ended for `cost` if none is renewed or given back; `None` if `cost` is
    /// above the quota.
    fn retry_at(&self, state: &State, quota: &Quota, cost: u32) -> Option<Millis> {
        let room = quota.limit.checked_sub(cost)?;
        let (mut at, mut used) = (self.now, self.used);
        for lease in &state.leases[self.first..] {
            if used <= room {
                break;
            }
            at = lease.ends_at;
            used -= lease.slots;
        }
        Some(at)
    }

    /// Writes a charge into the record, and removes the leases that have ended.
    fn charge(&mut self, state: &mut State, quota: &Quota, cost: u32) {
        let cost = cost.min(u32::MAX - self.used);
        if cost == 0 {
            return;
        }
        state.leases.drain(..self.first);
        self.first = 0;
        let ends_at = lease_end(quota, self.now);
        let next = state.first_ending_after(ends_at);
        // The clock may have stepped back: then this charge ends before those of earlier charges.
        match state.leases[..next].last_mut().filter(|lease| lease.ends_at == ends_at) {
            Some(lease) => lease.slots += cost,
            None => state.leases.insert(next, Lease { ends_at, slots: cost }),
        }
        self.used += cost;
        state.total = self.used;
        state.reset_at = state.reset_at.max(ends_at);
    }

    /// Releases up to `cost` slots of the leases that end at `ends_at`, if they have not ended. Returns how
    /// many.
    fn release(&mut self, state: &mut State, ends_at: Millis, cost: u32) -> u32 {
        let Some(at) =
            state.first_ending_after(ends_at).checked_sub(1).filter(|&at| at >= self.first)
        else {
            return 0;
        };
        let lease = &mut state.leases[at];
        if lease.ends_at != ends_at {
            return 0;
        }
        let released = cost.min(lease.slots);
        lease.slots -= released;
        if lease.slots == 0 {
            state.leases.remove(at);
        }
        state.total -= released;
        self.used -= released;
        released
    }
}

#[cfg(test)]
mod clock_set_back;
#[cfg(test)]
mod tests;
