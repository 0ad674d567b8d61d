//! The leaky bucket: a constant rate, kept by delaying what comes faster.
//!
//! Requests of cost 1 are released `W / L` ms apart, exactly: each takes the next free slot, waits for
//! it, and is refused if that would take longer than `max_wait`. This is CALLR's second script with a
//! whole number of ms and a fraction in place of a sorted set of slots ([`Horizon`]). A request that
//! costs `q` takes `q` slots and is released in the first; all of them must be within `max_wait`.
//!
//! What is told of it: `limit` is the number of slots within `max_wait`, and so of requests that could
//! come at once; `remaining` how many of them are free. A new quota keeps the slots that are taken.
//!
//! What holds: of an unchanged quota no two requests are released in the same slot, nor any slot
//! before its time; and no request waits longer than `max_wait`.
//!
//! The Lua twin is `lua/leaky_bucket.lua`: function for function the same.

use super::{Decision, Horizon, MAX_EXACT, Millis, Quota, horizon::owe};

/// The slots within `max_wait`: what can be admitted at once.
pub fn slots(quota: &Quota) -> u64 {
    u64::from(quota.max_wait) * u64::from(quota.limit) / quota.window + 1
}

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than [`super::MAX_STEP_BACK`]: it then
/// moves back with the clock.
pub fn decide(state: &mut Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = state.settle(now);
    decision(state, quota, now, cost)
}

/// Charges `cost` at `now` and tells what holds after it, and how long the request waits for its slot.
/// It does not ask: whoever may not overdraw has asked [`decide`].
pub fn charge(state: &mut Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = state.settle(now);
    let rate = u64::from(quota.limit);
    let ahead = state.ahead_at(now, rate);
    if cost > 0 {
        state.set(now, owe(ahead, rate, quota.window, cost), rate);
        state.promise();
    }
    let wait = if cost > 0 { ahead.div_ceil(rate) } else { 0 };
    Decision { wait, ..decision(state, quota, now, 0) }
}

/// [`decide`] and, where that admits, [`charge`].
pub fn admit(state: &mut Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let decision = decide(state, quota, now, cost);
    if decision.admitted { charge(state, quota, now, cost) } else { decision }
}

/// Gives back `cost` slots, the first of which begins at `slot`, if they are the last that are taken:
/// otherwise whoever came next would get a slot that is another's. So whoever frees slots that are not
/// the last passes them on, and gives back those that are then free. The reset-at stays.
pub fn refund(
    state: &mut Horizon,
    quota: &Quota,
    now: Millis,
    slot: Millis,
    cost: u32,
) -> Decision {
    let now = state.settle(now);
    let rate = u64::from(quota.limit);
    let ahead = state.ahead_at(now, rate);
    if ahead > 0 && are_last(ahead, quota, now, slot, cost) {
        let given = u64::from(cost).saturating_mul(quota.window);
        state.set(now, ahead.saturating_sub(given), rate);
    }
    decision(state, quota, now, 0)
}

/// Whether no slot is taken after those `cost` of which the first begins at `slot`; that is a whole ms,
/// rounded up from where it really begins.
fn are_last(ahead: u64, quota: &Quota, now: Millis, slot: Millis, cost: u32) -> bool {
    let most = i128::from(MAX_EXACT);
    let until = (i128::from(slot) - i128::from(now)) * i128::from(quota.limit);
    let given = i128::from(cost) * i128::from(quota.window);
    i128::from(ahead) <= until.clamp(-most, most) + given.min(most)
}

/// When the record means nothing any more: every slot has passed, and so has the reset-at.
pub fn expires_at(state: &Horizon) -> Millis {
    state.reset_at
}

/// What a charge of `cost` would meet.
fn decision(state: &Horizon, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let (rate, window) = (u64::from(quota.limit), quota.window);
    let (ahead, patience) = (state.ahead_at(now, rate), u64::from(quota.max_wait) * rate);
    let limit = slots(quota);
    // Slots that start too late to be taken count as used, too: those that were overdrawn.
    let (remaining, used) = match patience.checked_sub(ahead) {
        Some(left) => (left / window + 1, limit - (left / window + 1)),
        None => (0, limit + (ahead - patience).div_ceil(window) - 1),
    };
    let admitted = u64::from(cost) <= remaining;
    // The last of its slots must not start later than `max_wait` from then.
    let last = patience.checked_sub(u64::from(cost).saturating_sub(1).saturating_mul(window));
    Decision {
        admitted,
        limit,
        remaining,
        used,
        reset_at: state.reset_at.max(now),
        retry_at: last.filter(|_| !admitted).map(|last| now + (ahead - last).div_ceil(rate)),
        wait: if admitted && cost > 0 { ahead.div_ceil(rate) } else { 0 },
    }
}

#[cfg(test)]
mod given_back;
#[cfg(test)]
mod tests;
