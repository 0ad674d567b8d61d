//! The token bucket, as GCRA: one point in time.
//!
//! A bucket of `L` tokens refills with `L` tokens every `W`. Instead of a number of tokens, the
//! record holds the time at which the bucket will be full again ([`GcraState`]). A charge of `q`
//! tokens delays that by exactly `q * W / L`, and is admitted if the bucket then lacks at most
//! `L` tokens. After a change of the quota the missing tokens stay missing, and refill at the old
//! rate until the next charge.
//!
//! While the last cost fits, `reset_at` is the time of the next token; once it does not, the time
//! at which it fits again.
//!
//! Record: [`GcraState`].
//!
//! Bound, for charges admitted under an unchanged quota: any interval of `I` holds at most the
//! burst and the refill, `L + L * I / W`; so any interval of `W` holds at most `2L`.
//!
//! Source: GCRA (ITU-T I.371). The Lua counterpart is `lua/token_bucket.lua`.

use tidegate_base::time::{Millis, StoreTime};

use super::{
    Decision, GcraState, Quota,
    gcra::{extend_backlog, unit_backlog},
};

/// Maximum units of a quota: a record holds the rate in 32 bits.
pub const MAX_UNITS: u64 = u32::MAX as u64;

/// Decides on a charge of `cost` at `now` without charging it.
///
/// The record changes only if the clock was set back by more than [`super::MAX_STEP_BACK`]: it then
/// moves back with the clock.
pub fn decide(state: &mut GcraState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let now = state.follow_clock(now);
    decision(state, quota, now, cost)
}

/// Charges `cost` at `now` without a check: call [`decide`] first unless an overdraft is allowed.
/// The backlog saturates near [`super::MAX_EXACT_BACKLOG`].
pub fn charge(state: &mut GcraState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let now = state.follow_clock(now);
    if cost > 0 {
        let rate = quota.limit;
        if state.rate() != rate {
            // The next token may come sooner at the new rate than was shown: the reset must not
            // move back.
            state.reset_at = decision(state, quota, now, 0).reset_at;
        }
        let backlog = extend_backlog(state.backlog(now), quota, cost);
        state.set_backlog(now, backlog, rate);
        // An overdraft may be above the quota: then `reset_at` is for a cost of 1.
        let unit = if cost > quota.limit { 1 } else { cost };
        let retry_at = retry_at(state, quota, now, unit);
        let shown = decision(state, quota, now, 0).reset_at;
        state.reset_at = shown.max(retry_at.unwrap_or_default());
    }
    state.check_invariants();
    decision(state, quota, now, 0)
}

/// Charges `cost` if [`decide`] admits it.
pub fn admit(state: &mut GcraState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Refunds `cost` tokens that were charged at `charged_at`, unless a window has passed since: they
/// have then been refilled. `reset_at` stays.
pub fn refund(
    state: &mut GcraState,
    quota: &Quota,
    now: StoreTime,
    charged_at: StoreTime,
    cost: u64,
) -> Decision {
    let now = state.follow_clock(now);
    let backlog = state.backlog(now);
    if backlog > 0 && now < charged_at.after(quota.window) {
        // `reset_at` must not move back with the backlog from which it was computed: store it.
        state.reset_at = decision(state, quota, now, 0).reset_at;
        let refunded = cost.saturating_mul(unit_backlog(quota));
        state.set_backlog(now, backlog.saturating_sub(refunded), state.rate());
    }
    state.check_invariants();
    decision(state, quota, now, 0)
}

/// The first ms at which the record is equivalent to a new caller's: the bucket is full, and
/// `reset_at` has passed.
pub fn expires_at(state: &GcraState) -> StoreTime {
    state.expires_at()
}

/// The decision on a charge of `cost`.
fn decision(state: &GcraState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let limit = quota.limit;
    let used = state.backlog(now).div_ceil(unit_backlog(quota));
    let remaining = limit.saturating_sub(used);
    let admitted = cost <= remaining;
    let mut reset_at = state.reset_at;
    if reset_at <= now {
        // The next token.
        let next = used.checked_sub(1);
        let next = next.map(|left| empties_to(state, now, left * unit_backlog(quota)));
        reset_at = next.unwrap_or(now);
    }
    if remaining == 0 {
        // The stored `reset_at` includes this, unless the quota was lowered since.
        reset_at = reset_at.max(retry_at(state, quota, now, 1).unwrap_or_default());
    }
    let retry_at = if admitted { None } else { retry_at(state, quota, now, cost) };
    Decision { admitted, limit, remaining, used, reset_at, retry_at, wait: Millis::ZERO }
}

/// The first ms at which `cost` is admitted if nothing else is charged; `None` if it is admitted
/// now, or above the quota.
fn retry_at(state: &GcraState, quota: &Quota, now: StoreTime, cost: u64) -> Option<StoreTime> {
    // The largest backlog that admits the charge.
    let room = quota.limit.checked_sub(cost)? * unit_backlog(quota);
    (state.backlog(now) > room).then(|| empties_to(state, now, room))
}

/// The first ms at which the backlog, which is larger now, is at most `rest`.
fn empties_to(state: &GcraState, now: StoreTime, rest: u64) -> StoreTime {
    now + Millis::from_ms((state.backlog(now) - rest).div_ceil(state.rate()))
}

#[cfg(test)]
mod tests;
