//! The concurrency limit: each request holds a permit while it is in flight.
//!
//! The quota `L` is the number of permits. A permit is held under a lease of the window `W`. Its
//! holder refunds it when the request ends ([`refund`]), and renews the lease before the lease ends
//! ([`charge`], then [`refund`] of the previous lease). The permits of a process that died become
//! free when its leases end.
//!
//! A lease's end is rounded up to a multiple of `W / 64`. Leases that end together form a group: a
//! record has at most 65 groups, however many permits are held (82 while clocks differ by the
//! largest tolerated step).
//!
//! A lease is identified by the time of its charge. If the clock steps back by at most `W / 4`, no
//! lease changes, but each lasts longer by up to that step. After a larger step back all leases
//! restart as one group that ends a window from now. A refund whose own group no longer exists is
//! taken from this restarted group, so no permit counts twice. Holders renew after a third of the
//! window, so their permits leave the restarted group long before it ends.
//!
//! Record: `reset_at` (ms), `restarted_until` (ms), the total of the permits, and the groups (end
//! in ms, permits), the soonest first.
//!
//! Bound, for charges admitted under an unchanged quota: at any time, the leases that have not
//! ended hold at most `L` permits. The time at which a permit becomes free is unknown: `retry_at`
//! assumes that no lease is refunded or renewed.
//!
//! The Lua counterpart is `lua/concurrency.lua`.

use tidegate_base::time::{Millis, StoreTime};

use super::{Decision, Quota};

/// Maximum permits of a quota, and of all leases of a record together: a record counts them in 32
/// bits.
pub const MAX_UNITS: u64 = u32::MAX as u64;

/// A lease's end is rounded up to a multiple of the window divided by this.
const ROUNDING_DIVISOR: u64 = 64;

/// A clock may step back by the window divided by this without a restart of the leases.
const TOLERANCE_DIVISOR: u64 = 4;

/// The record of one caller under one limit. [`ConcurrencyState::default`] is a new caller's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ConcurrencyState {
    /// The end of the last lease, including refunded leases.
    pub reset_at: StoreTime,
    /// The end of the leases that restarted because the clock was set back; the epoch if none
    /// did.
    restarted_until: StoreTime,
    /// The permits of all `groups`.
    total: u32,
    /// Ordered by their ends, the soonest first.
    groups: Vec<PermitGroup>,
}

/// The permits whose leases end together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct PermitGroup {
    /// The leases' end: the first ms after them.
    ends_at: StoreTime,
    /// Never 0.
    permits: u32,
}

/// Decides on a charge of `cost` at `now` without charging it.
///
/// The record changes only if the clock was set back by more than a quarter of the window.
pub fn decide(state: &mut ConcurrencyState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    ConcurrencyView::new(state, quota, now).decision(state, quota, cost)
}

/// Takes `cost` permits at `now` without a check: call [`decide`] first unless an overdraft is
/// allowed. The total saturates at [`MAX_UNITS`].
pub fn charge(state: &mut ConcurrencyState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let mut view = ConcurrencyView::new(state, quota, now);
    view.charge(state, quota, cost);
    state.check_invariants();
    view.decision(state, quota, 0)
}

/// Charges `cost` if [`decide`] admits it.
pub fn admit(state: &mut ConcurrencyState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Refunds up to `cost` permits that were taken at `charged_at`, if their lease has not ended and
/// still holds them. `reset_at` stays.
pub fn refund(
    state: &mut ConcurrencyState,
    quota: &Quota,
    now: StoreTime,
    charged_at: StoreTime,
    cost: u64,
) -> Decision {
    let mut view = ConcurrencyView::new(state, quota, now);
    let ends_at = permit_end(quota, charged_at);
    let left = cost - view.release(state, ends_at, cost);
    // If the leases have restarted since the charge, their permits are in the restarted group: the
    // group at `ends_at` does not exist, or belongs to other leases.
    if left > 0 && ends_at > now {
        view.release(state, state.restarted_until, left);
    }
    state.check_invariants();
    view.decision(state, quota, 0)
}

/// Releases up to `cost` permits, those whose leases end first. `reset_at` stays.
pub fn release(state: &mut ConcurrencyState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let mut view = ConcurrencyView::new(state, quota, now);
    let mut left = cost;
    while left > 0 {
        let Some(group) = state.groups.get(view.first) else { break };
        let ends_at = group.ends_at;
        left -= view.release(state, ends_at, left);
    }
    state.check_invariants();
    view.decision(state, quota, 0)
}

/// The first ms at which the record is equivalent to a new caller's.
pub fn expires_at(state: &ConcurrencyState) -> StoreTime {
    state.reset_at
}

/// The end of a lease that begins at `at`.
fn permit_end(quota: &Quota, at: StoreTime) -> StoreTime {
    let multiple = Millis::from_ms(quota.window.as_ms().div_ceil(ROUNDING_DIVISOR));
    at.after(quota.window).round_up_to(multiple)
}

impl ConcurrencyState {
    /// The index of the first group that ends after `at`; the number of groups if none does.
    fn first_ending_after(&self, at: StoreTime) -> usize {
        self.groups.partition_point(|group| group.ends_at <= at)
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let held: u64 = self.groups.iter().map(|group| u64::from(group.permits)).sum();
        debug_assert_eq!(held, u64::from(self.total), "a wrong total: {self:?}");
        debug_assert!(self.groups.iter().all(|group| group.permits > 0), "no permit: {self:?}");
        let are_ordered = self.groups.is_sorted_by(|one, next| one.ends_at < next.ends_at);
        debug_assert!(are_ordered, "groups out of order: {self:?}");
        let last_end = self.groups.last().map_or(StoreTime::ZERO, |last| last.ends_at);
        debug_assert!(last_end <= self.reset_at, "a lease after the reset: {self:?}");
    }

    /// Restarts all leases if the clock was set back.
    fn follow_clock(&mut self, quota: &Quota, now: StoreTime) {
        if self.reset_at <= permit_end(quota, now + quota.window / TOLERANCE_DIVISOR) {
            return;
        }
        let ends_at = permit_end(quota, now);
        (self.reset_at, self.restarted_until) = (ends_at, ends_at);
        self.groups.clear();
        if self.total > 0 {
            self.groups.push(PermitGroup { ends_at, permits: self.total });
        }
    }
}

/// A record as read at `now`.
struct ConcurrencyView {
    now: StoreTime,
    /// The index of the first group that has not ended.
    first: usize,
    /// Permits held. Above the limit if the quota was lowered or overdrawn.
    used: u32,
}

impl ConcurrencyView {
    fn new(state: &mut ConcurrencyState, quota: &Quota, now: StoreTime) -> Self {
        state.follow_clock(quota, now);
        let (mut first, mut used) = (0, state.total);
        while let Some(group) = state.groups.get(first).filter(|group| group.ends_at <= now) {
            used -= group.permits;
            first += 1;
        }
        Self { now, first, used }
    }

    /// The decision on a charge of `cost`.
    fn decision(&self, state: &ConcurrencyState, quota: &Quota, cost: u64) -> Decision {
        let remaining = quota.limit.saturating_sub(self.used.into());
        let admitted = cost <= remaining;
        Decision {
            admitted,
            limit: quota.limit,
            remaining,
            used: u64::from(self.used),
            reset_at: state.reset_at.max(self.now),
            retry_at: if admitted { None } else { self.retry_at(state, quota, cost) },
            wait: Millis::ZERO,
        }
    }

    /// The time at which enough leases have ended for `cost` if none is renewed or refunded; `None`
    /// if `cost` is above the quota.
    fn retry_at(&self, state: &ConcurrencyState, quota: &Quota, cost: u64) -> Option<StoreTime> {
        let room = quota.limit.checked_sub(cost)?;
        let (mut at, mut used) = (self.now, u64::from(self.used));
        for group in &state.groups[self.first..] {
            if used <= room {
                break;
            }
            at = group.ends_at;
            used -= u64::from(group.permits);
        }
        Some(at)
    }

    /// Writes a charge into the record, and removes the leases that have ended.
    fn charge(&mut self, state: &mut ConcurrencyState, quota: &Quota, cost: u64) {
        let cost = cost.min((u32::MAX - self.used).into()) as u32;
        if cost == 0 {
            return;
        }
        state.groups.drain(..self.first);
        self.first = 0;
        let ends_at = permit_end(quota, self.now);
        let next = state.first_ending_after(ends_at);
        // If the clock has stepped back, this lease ends before the leases of earlier charges.
        match state.groups[..next].last_mut().filter(|group| group.ends_at == ends_at) {
            Some(group) => group.permits += cost,
            None => state.groups.insert(next, PermitGroup { ends_at, permits: cost }),
        }
        self.used += cost;
        state.total = self.used;
        state.reset_at = state.reset_at.max(ends_at);
    }

    /// Releases up to `cost` permits of the group that ends at `ends_at`, if it has not ended.
    /// Returns their number.
    fn release(&mut self, state: &mut ConcurrencyState, ends_at: StoreTime, cost: u64) -> u64 {
        let Some(index) =
            state.first_ending_after(ends_at).checked_sub(1).filter(|&index| index >= self.first)
        else {
            return 0;
        };
        let group = &mut state.groups[index];
        if group.ends_at != ends_at {
            return 0;
        }
        let released = cost.min(group.permits.into()) as u32;
        group.permits -= released;
        if group.permits == 0 {
            state.groups.remove(index);
        }
        state.total -= released;
        self.used -= released;
        released.into()
    }
}

#[cfg(test)]
mod clock_set_back;
#[cfg(test)]
mod tests;
