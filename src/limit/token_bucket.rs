//! The token bucket, as GCRA keeps it: one point in time.
//!
//! A bucket of `L` tokens refills with `L` tokens each `W` ms. Instead of tokens the record keeps
//! when the bucket will be full again ([`Horizon`]): a charge of `q` tokens puts that off by
//! `q * W / L` ms, exactly, and is admitted if the bucket then owes no more than it holds.
//!
//! What holds, for charges that were admitted by an unchanged quota: any interval of `I` ms holds at
//! most the burst and what flows in, `L + L * I / W`. A new quota keeps the tokens that are owed; they
//! flow back at the old rate until the next charge.
//!
//! The Lua twin is `lua/token_bucket.lua`: function for function the same.

use super::{Decision, Horizon, Millis, Quota, horizon::owe};

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than [`super::MAX_STEP_BACK`]: it then
/// moves back with the clock.
pub fn decide(state: &mut Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = state.settle(now);
    decision(state, quota, now, cost)
}

/// Charges `cost` at `now` and tells what holds after it. It does not ask: whoever may not overdraw
/// has asked [`decide`]. What is owed ends near [`super::MAX_EXACT`].
pub fn charge(state: &mut Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = state.settle(now);
    if cost > 0 {
        let rate = u64::from(quota.limit);
        let owed = owe(state.ahead(now), rate, quota.window, cost);
        state.set(now, owed, rate);
        state.promise();
    }
    decision(state, quota, now, 0)
}

/// [`decide`] and, where that admits, [`charge`].
pub fn admit(state: &mut Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Gives back `cost` tokens that were charged at `charged_at`, unless they have flowed back already:
/// after a window they have. The reset-at stays.
pub fn refund(
    state: &mut Horizon,
    quota: &Quota,
    now: Millis,
    charged_at: Millis,
    cost: u32,
) -> Decision {
    let now = state.settle(now);
    let owed = state.ahead(now);
    if owed > 0 && now < charged_at.saturating_add(quota.window) {
        let given = u64::from(cost).saturating_mul(quota.window);
        state.set(now, owed.saturating_sub(given), state.rate());
    }
    decision(state, quota, now, 0)
}

/// When the record means nothing any more: the bucket is full, and the reset-at has passed.
pub fn expires_at(state: &Horizon) -> Millis {
    state.reset_at
}

/// What a charge of `cost` would meet.
fn decision(state: &Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let limit = u64::from(quota.limit);
    let owed = state.ahead(now);
    let used = owed.div_ceil(quota.window);
    let remaining = limit.saturating_sub(used);
    let admitted = u64::from(cost) <= remaining;
    let retry_at = if admitted {
        None
    } else {
        // As much as may be owed before the charge. The rate is that of the record, which is not
        // empty: a fresh one refuses nothing that is not above the quota.
        let room = quota.limit.checked_sub(cost).map(|room| u64::from(room) * quota.window);
        room.map(|room| now + (owed - room).div_ceil(state.rate()))
    };
    let reset_at = state.reset_at.max(now);
    Decision { admitted, limit, remaining, used, reset_at, retry_at, wait: 0 }
}

#[cfg(test)]
mod tests;
