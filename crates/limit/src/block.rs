//! The block: refuses a caller for some time after another limit has refused it too often.
//!
//! A block is charged beside the limit that it belongs to, under the same key. A charge counts
//! nothing. The limit's refusals are counted ([`count_refusals`]), in a window that begins with the
//! first one. At `after` refusals the block begins. It ends
//! `duration` later, whatever arrives meanwhile.
//!
//! The quota's `limit` is `after`, its `window` the time within which refusals are counted.
//!
//! Record: `ends_at` (ms), the refusals counted, and whether the block has begun. The Lua
//! counterpart is `lua/block.lua`.

use tidegate_base::time::{Millis, StoreTime};

use super::{Decision, MAX_STEP_BACK, Quota};

/// Longest block: 49 days.
pub const MAX_DURATION: Millis = Millis::from_ms(u32::MAX as u64);

/// The record of one caller. [`BlockState::default`] is a new caller's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BlockState {
    /// The first ms after the window or, once the block has begun, after the block.
    pub ends_at: StoreTime,
    /// The refusals counted since the window began. During a block, refusals of requests that were
    /// decided before it still arrive: they are counted, and change nothing else.
    pub refusals: u32,
    /// True from the beginning of a block.
    pub has_begun: bool,
}

/// Decides on a request at `now`: refused until the block ends. `remaining` is the number of
/// refusals that are left before a block begins.
///
/// The record changes only if the clock was set back.
pub fn decide(state: &mut BlockState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    follow_clock(state, quota, now);
    decision(state, quota, now, cost)
}

/// Counts nothing: an admitted request is no refusal.
pub fn charge(state: &mut BlockState, quota: &Quota, now: StoreTime) -> Decision {
    decide(state, quota, now, 0)
}

/// Counts `refusals` of the limit at `now`, and begins the block at the last one that it takes.
pub fn count_refusals(
    state: &mut BlockState,
    quota: &Quota,
    now: StoreTime,
    refusals: u64,
) -> Decision {
    follow_clock(state, quota, now);
    if state.ends_at <= now {
        *state = BlockState { ends_at: now + quota.window, ..BlockState::default() };
    }
    let refusals = u64::from(state.refusals).saturating_add(refusals);
    state.refusals = u32::try_from(refusals).unwrap_or(u32::MAX);
    if u64::from(state.refusals) >= quota.limit && !state.has_begun {
        (state.has_begun, state.ends_at) = (true, now + quota.algorithm.block_duration());
    }
    decision(state, quota, now, 0)
}

/// The first ms at which the record is equivalent to a new caller's.
pub fn expires_at(state: &BlockState) -> StoreTime {
    state.ends_at
}

/// Moves the record back with a clock that was set back, and ends a block early if the
/// configuration has become shorter.
fn follow_clock(state: &mut BlockState, quota: &Quota, now: StoreTime) {
    let longest = if state.has_begun { quota.algorithm.block_duration() } else { quota.window };
    if state.ends_at > now + longest + MAX_STEP_BACK {
        state.ends_at = now + longest;
    }
}

fn decision(state: &BlockState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let limit = quota.limit;
    let is_live = state.ends_at > now;
    let (used, reset_at) = if is_live { (state.refusals.into(), state.ends_at) } else { (0, now) };
    let is_blocked = is_live && state.has_begun;
    let remaining = if is_blocked { 0 } else { limit.saturating_sub(used) };
    let admitted = cost <= remaining;
    let retry_at = (!admitted && cost <= quota.limit).then_some(reset_at);
    Decision { admitted, limit, remaining, used, reset_at, retry_at, wait: Millis::ZERO }
}

#[cfg(test)]
mod tests;
