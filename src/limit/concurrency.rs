//! Requests in flight: each holds a slot until it ends.
//!
//! The quota `L` is the number of slots. A slot is taken on a lease of the window `W`: its holder
//! gives it back ([`refund`]) when the request ends, and renews it before the lease ends ([`charge`], then
//! [`refund`] of the one before). What a gateway held that died comes back when its leases end.
//!
//! A lease ends at a multiple of a step, a sixty-fourth of the window, rounded up: never before `W` has
//! passed, and up to a step later. Leases that end together are one entry, so a record has at most 65 of
//! them, however many slots are held (82 while clocks differ by as much as they may).
//!
//! A lease is known by the time of its charge. A clock that steps back by no more than a quarter of `W`
//! changes no lease: each lasts up to that much longer. One that was set back further makes all leases
//! begin anew, as one that is known by no time: what its holders give back or renew, and is in no step of
//! its own, is taken off that one. So no slot counts twice. A holder that renews a lease when a third
//! of it is over has left it long before it ends.
//!
//! What holds, for charges that were admitted by an unchanged quota: at any time at most `L` slots are
//! held by leases that last. When a slot becomes free cannot be told: `retry_at` is when enough leases
//! would end if none was given back or renewed.
//!
//! The Lua twin is `lua/concurrency.lua`: function for function the same.

use super::{Decision, Millis, Quota};

/// A lease ends at a multiple of the window divided by this.
const STEPS: Millis = 64;

/// How far a clock may step back and leave the leases as they are: the window divided by this.
const TOLERANCE: Millis = 4;

/// What is remembered of one caller under one limit. [`State::default`] is a caller never seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// When the last lease ends, or would have ended had it not been given back.
    pub reset_at: Millis,
    /// When the leases end that began anew because the clock was set back; 0 before that.
    renewed_until: Millis,
    /// Slots on all leases below.
    total: u32,
    /// By their ends, the soonest first.
    leases: Vec<Lease>,
}

/// The slots whose leases end together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Lease {
    /// At that time they are over.
    until: Millis,
    /// How many; never 0.
    count: u32,
}

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than a quarter of the window.
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
    let until = lease_end(quota, charged_at);
    let left = cost - reading.take(state, until, cost);
    // Its own step may be none by this clock, or that of another's lease.
    if left > 0 && until > now {
        reading.take(state, state.renewed_until, left);
    }
    reading.decision(state, quota, 0)
}

/// When the record means nothing any more.
pub fn expires_at(state: &State) -> Millis {
    state.reset_at
}

/// When a lease ends that begins at `at`.
fn lease_end(quota: &Quota, at: Millis) -> Millis {
    let step = quota.window.div_ceil(STEPS);
    at.saturating_add(quota.window).div_ceil(step).saturating_mul(step)
}

impl State {
    /// The first lease that ends after `at`; their number, if none does.
    fn after(&self, at: Millis) -> usize {
        self.leases.partition_point(|lease| lease.until <= at)
    }

    /// Lets all leases begin anew if the clock was set back.
    fn follow_clock(&mut self, quota: &Quota, now: Millis) {
        if self.reset_at <= lease_end(quota, now + quota.window / TOLERANCE) {
            return;
        }
        let until = lease_end(quota, now);
        (self.reset_at, self.renewed_until) = (until, until);
        self.leases.clear();
        if self.total > 0 {
            self.leases.push(Lease { until, count: self.total });
        }
    }
}

/// A record as it stands at one time.
struct Reading {
    now: Millis,
    /// The first lease that lasts.
    first: usize,
    /// Slots held: above the limit where a lowered quota, or a correction, overdrew it.
    used: u32,
}

impl Reading {
    fn new(state: &mut State, quota: &Quota, now: Millis) -> Self {
        state.follow_clock(quota, now);
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
        let until = lease_end(quota, self.now);
        let next = state.after(until);
        // The clock may have stepped back: a later charge need not end later.
        match state.leases[..next].last_mut().filter(|lease| lease.until == until) {
            Some(lease) => lease.count += cost,
            None => state.leases.insert(next, Lease { until, count: cost }),
        }
        self.used += cost;
        state.total = self.used;
        state.reset_at = state.reset_at.max(until);
    }

    /// Takes at most `cost` slots off the leases that end at `until`, if they last; tells how many.
    fn take(&mut self, state: &mut State, until: Millis, cost: u32) -> u32 {
        let Some(at) = state.after(until).checked_sub(1).filter(|&at| at >= self.first) else {
            return 0;
        };
        let lease = &mut state.leases[at];
        if lease.until != until {
            return 0;
        }
        let taken = cost.min(lease.count);
        lease.count -= taken;
        if lease.count == 0 {
            state.leases.remove(at);
        }
        state.total -= taken;
        self.used -= taken;
        taken
    }
}

#[cfg(test)]
mod set_back;
#[cfg(test)]
mod tests;
