//! The fixed window: one counter, and the time at which its window ends.
//!
//! A window starts with its first charge and ends `W` later, or it is a window of a calendar.
//! The end is stored in the record, because a reset time computed from a TTL differs from one
//! response to the next. A window past its end counts as empty, even if the store still has the
//! record; the TTL only frees memory.
//!
//! If the calendar itself changes, such as the first day of its months, a window that has begun ends
//! at the earlier of its stored end and the new calendar's.
//!
//! Record: `reset_at` (ms) and `count`.
//!
//! Bound, for charges admitted under an unchanged quota `L`: each window holds at most `L`. An
//! interval of `W` overlaps at most two windows, so it holds at most `2L`.
//!
//! Source: GitHub, "How we scaled the GitHub API with a sharded, replicated rate limiter in Redis"
//! (fixed window with a stored reset time). The Lua counterpart is `lua/fixed_window.lua`.

use tidegate_base::time::{Millis, StoreTime};

use super::{Algorithm, Decision, MAX_STEP_BACK, MAX_UNITS, Quota};

/// The record of one caller under one limit. [`FixedWindowState::default`] is a new caller's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FixedWindowState {
    /// The window's end: the first ms after it.
    pub reset_at: StoreTime,
    /// The units charged in the window.
    pub count: u64,
}

/// Decides on a charge of `cost` at `now` without charging it.
///
/// The record changes only if its window ends later than one that begins [`MAX_STEP_BACK`] after
/// `now`: the clock was set back, or the calendar changed. The window then ends where one that
/// contains `now` ends.
pub fn decide(state: &mut FixedWindowState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    follow_clock(state, quota, now);
    decision(state, quota, now, cost)
}

/// Charges `cost` at `now` without a check: call [`decide`] first unless an overdraft is allowed.
/// The count saturates at [`MAX_UNITS`].
pub fn charge(state: &mut FixedWindowState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    follow_clock(state, quota, now);
    if cost > 0 {
        if state.reset_at <= now {
            *state = FixedWindowState { reset_at: window_end(quota, now), count: 0 };
        }
        state.count = state.count.saturating_add(cost).min(MAX_UNITS);
    }
    state.check_invariants();
    decision(state, quota, now, 0)
}

/// Charges `cost` if [`decide`] admits it.
pub fn admit(state: &mut FixedWindowState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Refunds `cost` units charged at `charged_at`, if they belong to the current window; its count
/// never goes below 0, and its end stays.
pub fn refund(
    state: &mut FixedWindowState,
    quota: &Quota,
    now: StoreTime,
    charged_at: StoreTime,
    cost: u64,
) -> Decision {
    follow_clock(state, quota, now);
    let started = window_start(quota, state.reset_at);
    if state.reset_at > now && (started..state.reset_at).contains(&charged_at) {
        state.count = state.count.saturating_sub(cost);
    }
    state.check_invariants();
    decision(state, quota, now, 0)
}

/// The first ms at which the record is equivalent to a new caller's.
pub fn expires_at(state: &FixedWindowState) -> StoreTime {
    state.reset_at
}

impl FixedWindowState {
    fn check_invariants(&self) {
        let has_window = self.reset_at > StoreTime::ZERO;
        debug_assert!(has_window || self.count == 0, "units outside of a window: {self:?}");
    }
}

/// Moves the window back with a clock that was set back.
fn follow_clock(state: &mut FixedWindowState, quota: &Quota, now: StoreTime) {
    if state.reset_at <= now {
        return;
    }
    if state.reset_at > window_end(quota, now + MAX_STEP_BACK) {
        state.reset_at = window_end(quota, now);
    }
}

/// The end of a window whose first charge is at `now`.
fn window_end(quota: &Quota, now: StoreTime) -> StoreTime {
    match quota.algorithm {
        Algorithm::CalendarWindow(calendar) => calendar.window_at(now).end,
        _ => now + quota.window,
    }
}

/// The start of the window that ends at `end`.
pub fn window_start(quota: &Quota, end: StoreTime) -> StoreTime {
    match quota.algorithm {
        Algorithm::CalendarWindow(calendar) => {
            calendar.window_at(end.before(Millis::MILLISECOND)).start
        }
        _ => end.before(quota.window),
    }
}

/// The reset time of a caller without usage: `now`, or the end of the calendar's window.
fn unused_reset(quota: &Quota, now: StoreTime) -> StoreTime {
    match quota.algorithm {
        Algorithm::CalendarWindow(calendar) => calendar.window_at(now).end,
        _ => now,
    }
}

/// The decision on a charge of `cost`.
fn decision(state: &FixedWindowState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let limit = quota.limit;
    let (used, reset_at) = if state.reset_at > now {
        (state.count, state.reset_at)
    } else {
        (0, unused_reset(quota, now))
    };
    let remaining = limit.saturating_sub(used);
    let admitted = cost <= remaining;
    let retry_at = (!admitted && cost <= quota.limit).then_some(reset_at);
    Decision { admitted, limit, remaining, used, reset_at, retry_at, wait: Millis::ZERO }
}

#[cfg(test)]
mod tests;
