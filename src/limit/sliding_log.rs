//! The sliding log: the time of every charge.
//!
//! A charge counts for exactly `W` ms. So any interval of `W`, wherever it begins, holds at most the
//! quota `L`: the one algorithm, beside a strict sliding window, of which that is true, and the only
//! one that forgets each charge exactly `W` after it. This is CALLR's rolling window without its
//! sorted set.
//!
//! Charges of the same ms are one entry. An entry is a time and the sum of all charges before it, so
//! that a cost of 1,000 is no more work than a cost of 1, what is used is one subtraction, and the
//! entry at which enough has expired is found by halving. There are at most `L` entries, and at most
//! one for each ms of the window.
//!
//! The Lua twin is `lua/sliding_log.lua`: function for function the same, though it keeps the entries
//! in blocks.

use std::collections::VecDeque;

use super::{Decision, Millis, Quota};

/// The longest window: times are kept modulo 2^32 ms.
pub const MAX_WINDOW: Millis = 1 << 31;

/// How many entries may follow the one that a refund corrects; each of them is written. A request that
/// takes longer than that, 4 s at the very least, keeps its charge.
pub const MAX_REFUND_DEPTH: usize = 4_096;

/// What is remembered of one caller under one limit. [`State::default`] is a caller never seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// When the last charge was made: the time of the newest entry.
    pub seen: Millis,
    /// The reset-at that clients were told; in the past, it means nothing.
    pub reset_at: Millis,
    /// What was ever charged, modulo 2^32.
    total: u32,
    /// Oldest first.
    entries: VecDeque<Entry>,
}

/// The charges of one ms.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Entry {
    /// When, in ms modulo 2^32; by a clock that keeps running where the gateway's is set back.
    at: u32,
    /// What was charged before, modulo 2^32.
    before: u32,
}

/// Decides what a charge of `cost` at `now` would meet, and charges nothing. A cost of 0 only looks.
///
/// The record changes only if the clock was set back by more than [`super::MAX_STEP_BACK`]: it then
/// moves back with the clock.
pub fn decide(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = state.settle(now);
    Reading::new(state, quota, now).decision(state, quota, cost)
}

/// Charges `cost` at `now` and tells what holds after it. It does not ask: whoever may not overdraw
/// has asked [`decide`]. What is used ends at `u32::MAX`.
pub fn charge(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = state.settle(now);
    Reading::new(state, quota, now).charge(state, quota, cost)
}

/// [`decide`] and, where that admits, [`charge`], from one reading of the record.
pub fn admit(state: &mut State, quota: &Quota, now: Millis, cost: u32) -> Decision {
    let now = state.settle(now);
    let reading = Reading::new(state, quota, now);
    if u64::from(cost) <= reading.remaining(quota) {
        reading.charge(state, quota, cost)
    } else {
        reading.decision(state, quota, cost)
    }
}

/// Gives back `cost` units that were charged at `charged_at`: to the entry of that ms if it still
/// counts, and no more than it holds. The reset-at stays.
pub fn refund(
    state: &mut State,
    quota: &Quota,
    now: Millis,
    charged_at: Millis,
    cost: u32,
) -> Decision {
    let now = state.settle(now);
    let mut reading = Reading::new(state, quota, now);
    let at = state.search(reading.first, |entry| state.time(entry) < charged_at);
    let depth = state.entries.len() - at;
    let charged = state.entries.get(at).filter(|&&entry| state.time(entry) == charged_at);
    let taken = charged.filter(|_| depth <= MAX_REFUND_DEPTH).map_or(0, |entry| {
        let after = state.entries.get(at + 1).map_or(state.total, |next| next.before);
        cost.min(after.wrapping_sub(entry.before))
    });
    if taken > 0 {
        // What clients were told must not move back with what it was worked out from.
        state.reset_at = reading.decision(state, quota, 0).reset_at;
        for entry in state.entries.range_mut(at + 1..) {
            entry.before = entry.before.wrapping_sub(taken);
        }
        state.total = state.total.wrapping_sub(taken);
        reading = Reading::new(state, quota, now);
    }
    reading.decision(state, quota, 0)
}

/// When the record means nothing any more.
pub fn expires_at(state: &State, quota: &Quota) -> Millis {
    state.reset_at.max(state.seen + quota.window)
}

impl State {
    /// The time that counts for this record: it never runs backwards.
    fn settle(&mut self, now: Millis) -> Millis {
        let (now, behind) = super::settle(self.seen, now);
        if behind > 0 {
            // The entries' own clock runs on: they move with `seen`.
            self.seen = now;
            self.reset_at = self.reset_at.saturating_sub(behind);
        }
        now
    }

    /// The time of an entry, by the gateway's clock.
    fn time(&self, entry: Entry) -> Millis {
        let newest = self.entries.back().map_or(entry.at, |newest| newest.at);
        self.seen.saturating_sub(u64::from(newest.wrapping_sub(entry.at)))
    }

    /// What was charged from an entry on.
    fn since(&self, entry: Entry) -> u64 {
        u64::from(self.total.wrapping_sub(entry.before))
    }

    /// The first entry from `from` on for which `holds` does not hold; it does for none behind that.
    fn search(&self, from: usize, holds: impl Fn(Entry) -> bool) -> usize {
        let (mut low, mut high) = (from, self.entries.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if holds(self.entries[middle]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// A record as it stands at one time.
struct Reading {
    now: Millis,
    /// The oldest entry that counts.
    first: usize,
    /// What is used: above the limit where a lowered quota, or a settlement, overdrew it.
    used: u64,
}

impl Reading {
    fn new(state: &State, quota: &Quota, now: Millis) -> Self {
        let first = if now - state.seen.min(now) >= quota.window {
            state.entries.len()
        } else {
            state.search(0, |entry| state.time(entry) + quota.window <= now)
        };
        let used = state.entries.get(first).map_or(0, |&entry| state.since(entry));
        Self { now, first, used }
    }

    fn remaining(&self, quota: &Quota) -> u64 {
        u64::from(quota.limit).saturating_sub(self.used)
    }

    /// What a charge of `cost` would meet.
    fn decision(&self, state: &State, quota: &Quota, cost: u32) -> Decision {
        let remaining = self.remaining(quota);
        let admitted = u64::from(cost) <= remaining;
        let mut reset_at = self.reset_at(state, quota);
        if remaining == 0 {
            // The stored reset-at covers this, unless the quota was lowered since.
            reset_at = reset_at.max(self.retry_at(state, quota, 1).unwrap_or(0));
        }
        Decision {
            admitted,
            limit: u64::from(quota.limit),
            remaining,
            used: self.used,
            reset_at,
            retry_at: if admitted { None } else { self.retry_at(state, quota, cost) },
            wait: 0,
        }
    }

    /// Writes a charge into the record, and forgets what has expired.
    fn charge(mut self, state: &mut State, quota: &Quota, cost: u32) -> Decision {
        if cost == 0 {
            return self.decision(state, quota, 0);
        }
        let at = match state.entries.back() {
            Some(newest) => newest.at.wrapping_add((self.now - state.seen) as u32),
            None => self.now as u32,
        };
        state.entries.drain(..self.first);
        self.first = 0;
        if state.entries.back().is_none_or(|newest| newest.at != at) {
            if state.entries.capacity() / 4 > state.entries.len() + 8 {
                state.entries.shrink_to(state.entries.len() * 2);
            }
            state.entries.push_back(Entry { at, before: state.total });
        }
        let asked = cost;
        let cost = cost.min(u32::MAX - self.used.min(u64::from(u32::MAX)) as u32);
        state.total = state.total.wrapping_add(cost);
        self.used += u64::from(cost);
        state.seen = self.now;
        state.reset_at = self.reset_at(state, quota);
        let remaining = self.remaining(quota);
        if remaining < u64::from(asked) {
            // A cost that overdraws may be above the quota: then the reset is for a cost of 1.
            let retry_at = self.retry_at(state, quota, asked);
            let retry_at = retry_at.or_else(|| self.retry_at(state, quota, 1));
            state.reset_at = state.reset_at.max(retry_at.unwrap_or(0));
        }
        Decision {
            admitted: true,
            limit: u64::from(quota.limit),
            remaining,
            used: self.used,
            reset_at: state.reset_at,
            retry_at: None,
            wait: 0,
        }
    }

    /// The stored reset-at while it is ahead; else when the oldest live entry expires; now, if none is
    /// live.
    fn reset_at(&self, state: &State, quota: &Quota) -> Millis {
        if state.reset_at > self.now {
            return state.reset_at;
        }
        let oldest = state.entries.get(self.first);
        oldest.map_or(self.now, |&oldest| state.time(oldest) + quota.window)
    }

    /// The first ms from now on at which `cost` would be admitted if nobody else charged; `None` if
    /// the quota never holds that much.
    fn retry_at(&self, state: &State, quota: &Quota, cost: u32) -> Option<Millis> {
        let room = u64::from(quota.limit.checked_sub(cost)?);
        // The first entry from which on there is no more than room: the one before it must expire.
        let next = state.search(self.first, |entry| state.since(entry) > room);
        let last = next.checked_sub(1).filter(|&last| last >= self.first);
        let last = last.and_then(|last| state.entries.get(last));
        Some(last.map_or(self.now, |&entry| state.time(entry) + quota.window))
    }
}

#[cfg(test)]
mod tests;
