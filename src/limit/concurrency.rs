//! Requests in flight: each holds a slot until it ends.
//!
//! The quota `L` is the number of slots. A slot is taken on a lease of the window `W`: whoever holds it
//! gives it back ([`refund`]) when the request ends, and takes it anew before the lease ends ([`charge`],
//! then [`refund`] of the one before). What is held by a gateway that died comes back when its leases end.
//!
//! A lease is known by its end: that of the ms of its charge, `W` later. Leases of one ms are one entry,
//! so there are at most as many entries as slots taken.
//!
//! What holds, for charges that were admitted by an unchanged quota: at any time at most `L` slots are
//! held by leases that last. When a slot becomes free cannot be known: `retry_at` is when enough leases
//! would end if nobody gave a slot back, and nobody took his anew.
//!
//! The Lua twin is `lua/concurrency.lua`: function for function the same.

use super::{Decision, MAX_STEP_BACK, Millis, Quota};

/// The most slots that a limit may have: a record is 10 bytes a slot, and is read and written whole.
pub const MAX_SLOTS: u32 = 10_000;

/// What is remembered of one caller under one limit. [`State::default`] is a caller never seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// When the last lease ends, or would have ended had it not been given back.
    pub reset_at: Millis,
    /// Slots on all leases below.
    total: u32,
    /// By their ends, the soonest first.
    leases: Vec<Lease>,
}

/// The slots that were taken in one ms.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Lease {
    /// At that time it is over.
    until: Millis,
    /// How many; never 0.
    count: u32,
}

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than [`MAX_STEP_BACK`], so that leases end
/// further ahead than a lease is long: then they end sooner.
pub fn decide(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    Reading::new(state, quota, now).decision(state, quota, cost)
}

/// Takes `cost` slots at `now` and tells what holds after it. It does not ask: whoever may not overdraw
/// has asked [`decide`]. What is taken ends at `u32::MAX`.
pub fn charge(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let mut reading = Reading::new(state, quota, now);
    reading.charge(state, quota, cost);
    reading.decision(state, quota, 0)
}

/// [`decide`] and, where that admits, [`charge`].
pub fn admit(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Gives back `cost` slots that were taken at `charged_at`, if their lease lasts still, and no more than
/// are on it. The reset-at stays.
pub fn refund(
    state: &mut State,
    quota: &Quota,
    now: Millis,
    charged_at: Millis,
    cost: u32,
) -> Decision {
    let mut reading = Reading::new(state, quota, now);
    reading.refund(state, charged_at.saturating_add(quota.window), cost);
    reading.decision(state, quota, 0)
}

/// When the record means nothing any more.
pub fn expires_at(state: &State) -> Millis {
    state.reset_at
}

impl State {
    /// The first lease that ends after `at`; their number, if none does.
    fn after(&self, at: Millis) -> usize {
        self.leases.partition_point(|lease| lease.until <= at)
    }

    /// Lets no lease last longer than one can that was taken by this clock.
    fn settle(&mut self, quota: &Quota, now: Millis) {
        let last = now + quota.window + MAX_STEP_BACK;
        if self.reset_at <= last {
            return;
        }
        self.reset_at = last;
        // Those that end at that time stay apart: nobody can give the shortened ones back.
        let first = self.after(last);
        let count = self.leases.drain(first..).map(|lease| lease.count).sum();
        if count > 0 {
            self.leases.push(Lease { until: last, count });
        }
    }
}

/// A record as it stands at one time.
struct Reading {
    now: Millis,
    /// The first lease that lasts.
    first: usize,
    /// Slots held: above the limit where a lowered quota, or a settlement, overdrew it.
    used: u32,
}

impl Reading {
    fn new(state: &mut State, quota: &Quota, now: Millis) -> Self {
        state.settle(quota, now);
        let (mut first, mut used) = (0, state.total);
        while let Some(lease) = state.leases.get(first).filter(|lease| lease.until <= now) {
            used -= lease.count;
            first += 1;
        }
        Self { now, first, used }
    }

    /// What a charge of `cost` would meet.
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

    /// When enough leases will have ended for `cost`, if nothing else happens; `None` if there never are
    /// so many slots.
    fn retry_at(&self, state: &State, quota: &Quota, cost: u32) -> Option<Millis> {
        let room = quota.limit.checked_sub(cost)?;
        let (mut at, mut used) = (self.now, self.used);
        for lease in &state.leases[self.first..] {
            if used <= room {
                break;
            }
            at = lease.until;
            used -= lease.count;
        }
        Some(at)
    }

    /// Writes a charge into the record, and forgets what has ended.
    fn charge(&mut self, state: &mut State, quota: &Quota, cost: u32) {
        let cost = cost.min(u32::MAX - self.used);
        if cost == 0 {
            return;
        }
        state.leases.drain(..self.first);
        self.first = 0;
        if state.leases.capacity() / 4 > state.leases.len() + 8 {
            state.leases.shrink_to(state.leases.len() * 2);
        }
        let until = self.now + quota.window;
        let next = state.after(until);
        // Workers' clocks may differ by a ms: a later one need not come later.
        match state.leases[..next].last_mut().filter(|lease| lease.until == until) {
            Some(lease) => lease.count += cost,
            None => state.leases.insert(next, Lease { until, count: cost }),
        }
        self.used += cost;
        state.total = self.used;
        state.reset_at = state.reset_at.max(until);
    }

    /// Takes `cost` slots off the lease that ends at `until`.
    fn refund(&mut self, state: &mut State, until: Millis, cost: u32) {
        let after = state.after(until);
        let Some(at) = after.checked_sub(1).filter(|&at| at >= self.first) else { return };
        let lease = &mut state.leases[at];
        if lease.until != until {
            return;
        }
        let taken = cost.min(lease.count);
        lease.count -= taken;
        if lease.count == 0 {
            state.leases.remove(at);
        }
        state.total -= taken;
        self.used -= taken;
    }
}

#[cfg(test)]
mod tests;
