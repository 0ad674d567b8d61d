//! The fixed window: one counter, and the time at which it ends.
//!
//! A window starts with its first charge and ends `W` ms later. The end is stored, as GitHub came to
//! do it: a reset that is worked out from a TTL wobbles. What is past its end means nothing, whoever
//! still holds it; a TTL only cleans up.
//!
//! What holds, for charges that were admitted by an unchanged quota `L`: each window holds at most
//! `L`; any interval of `W` meets at most two windows, and so holds at most `2L`.
//!
//! The Lua twin is `lua/fixed_window.lua`: function for function the same.

use super::{Decision, MAX_STEP_BACK, Millis, Quota};

/// What is remembered of one caller under one limit. [`State::default`] is a caller never seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// When the window ends; at that time it is over.
    pub reset_at: Millis,
    /// What was charged in it.
    pub count: u32,
}

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than [`MAX_STEP_BACK`], so that the
/// window's end is further ahead than a window is long: then it ends a window from now.
pub fn decide(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    settle(state, quota, now);
    decision(state, quota, now, cost)
}

/// Charges `cost` at `now` and tells what holds after it. It does not ask: whoever may not overdraw
/// has asked [`decide`]. A count ends at `u32::MAX`.
pub fn charge(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    settle(state, quota, now);
    if cost > 0 {
        if state.reset_at <= now {
            *state = State { reset_at: now + quota.window, count: 0 };
        }
        state.count = state.count.saturating_add(cost);
    }
    decision(state, quota, now, 0)
}

/// [`decide`] and, where that admits, [`charge`].
pub fn admit(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Gives back `cost` units that were charged at `charged_at`, if the window of that time still lasts,
/// and no more than it counts. Its end stays.
pub fn refund(
    state: &mut State,
    quota: &Quota,
    now: Millis,
    charged_at: Millis,
    cost: u32,
) -> Decision {
    settle(state, quota, now);
    let started = state.reset_at.saturating_sub(quota.window);
    if state.reset_at > now && (started..state.reset_at).contains(&charged_at) {
        state.count = state.count.saturating_sub(cost);
    }
    decision(state, quota, now, 0)
}

/// When the record means nothing any more.
pub fn expires_at(state: &State) -> Millis {
    state.reset_at
}

/// Moves the window with a clock that was set back.
fn settle(state: &mut State, quota: &Quota, now: Millis) {
    if state.reset_at > now + quota.window + MAX_STEP_BACK {
        state.reset_at = now + quota.window;
    }
}

/// What a charge of `cost` would meet.
fn decision(state: &State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let limit = u64::from(quota.limit);
    let (used, reset_at) =
        if state.reset_at > now { (u64::from(state.count), state.reset_at) } else { (0, now) };
    let remaining = limit.saturating_sub(used);
    let admitted = u64::from(cost) <= remaining;
    let retry_at = (!admitted && cost <= quota.limit).then_some(reset_at);
    Decision { admitted, limit, remaining, used, reset_at, retry_at, wait: 0 }
}

#[cfg(test)]
mod tests;
