//! The sliding log: the time of every charge.
//!
//! A charge counts for exactly `W`.
//!
//! Record: `newest_at` and `reset_at` (ms), the total of all charges (modulo 2^32), and the
//! entries, oldest first. Charges of the same ms share an entry: its time and the total of the
//! charges before it. So the work does not grow with the cost, usage is one subtraction, and a
//! binary search finds the entry whose expiry makes room for a cost. There is at most one entry per
//! ms of the window. A refund removes the entry that it empties, so there are at most `L` entries,
//! unless charges overdraw the quota or the quota was lowered. Only the newest entry stays when it
//! is empty, and the next charge reuses it.
//!
//! Bound, for charges admitted under an unchanged quota `L`: any interval of `W` holds at most `L`.
//! Only this algorithm and a strict sliding window have that bound, and only this one frees each
//! charge exactly `W` after it was made.
//!
//! Source: CALLR, "Rate limiting for distributed systems with Redis and Lua" (the rolling window),
//! without its sorted set. The Lua counterpart is `lua/sliding_log.lua`, which stores the entries
//! in blocks.

use std::collections::VecDeque;

use tidegate_base::time::{Millis, StoreTime};

use super::{Decision, Quota};

/// Maximum window: entries store their times modulo 2^32 ms.
pub const MAX_WINDOW: Millis = Millis::from_ms(1 << 31);

/// Maximum units of a quota and of usage: the totals are counted modulo 2^32.
pub const MAX_UNITS: u64 = u32::MAX as u64;

/// Maximum number of entries that a refund may rewrite: the refunded one and all later ones. A
/// charge with more entries after it is not refunded; it was made at least 4 s ago.
pub const MAX_REFUND_DEPTH: usize = 4_096;
/// Maximum number of entries from which one correction releases units. Fewer than a block of the
/// record in Redis has.
const MAX_RELEASED_ENTRIES: usize = 128;

/// The record of one caller under one limit. [`SlidingLogState::default`] is a new caller's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SlidingLogState {
    /// The time of the newest entry.
    pub newest_at: StoreTime,
    /// The reset time that was reported; not valid if it has passed.
    pub reset_at: StoreTime,
    /// The total of all charges, modulo 2^32.
    total: u32,
    /// Oldest first.
    entries: VecDeque<LogEntry>,
}

/// The charges of one ms.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct LogEntry {
    /// The time of the charges, in ms modulo 2^32. Only differences between entries are used, which
    /// stay the same if the clock is set back.
    at: u32,
    /// The total of all charges before these, modulo 2^32.
    before: u32,
}

/// Decides on a charge of `cost` at `now` without charging it.
///
/// The record changes only if the clock was set back by more than [`super::MAX_STEP_BACK`]: it then
/// moves back with the clock.
pub fn decide(state: &mut SlidingLogState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let now = state.follow_clock(now);
    SlidingLogView::new(state, quota, now).decision(state, quota, cost)
}

/// Charges `cost` at `now` without a check: call [`decide`] first unless an overdraft is allowed.
/// Usage saturates at [`MAX_UNITS`].
pub fn charge(state: &mut SlidingLogState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let now = state.follow_clock(now);
    SlidingLogView::new(state, quota, now).charge(state, quota, cost)
}

/// Charges `cost` if [`decide`] admits it, reading the record once.
pub fn admit(state: &mut SlidingLogState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let now = state.follow_clock(now);
    let view = SlidingLogView::new(state, quota, now);
    if cost <= view.remaining(quota) {
        view.charge(state, quota, cost)
    } else {
        view.decision(state, quota, cost)
    }
}

/// Refunds up to `cost` units, those of the newest entries first, of which it looks at no more than
/// `MAX_RELEASED_ENTRIES`. `reset_at` stays.
pub fn release(state: &mut SlidingLogState, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
    let at = state.follow_clock(now);
    let first = SlidingLogView::new(state, quota, at).first;
    let (mut left, mut index) = (cost, state.entries.len());
    for _ in 0..MAX_RELEASED_ENTRIES {
        if left == 0 || index <= first {
            break;
        }
        index -= 1;
        let entry = state.entries[index];
        // Nothing is charged to the newer entries any more.
        let part = left.min(state.charged_since(entry));
        if part > 0 {
            let charged_at = state.entry_time(entry);
            refund(state, quota, now, charged_at, part);
            left -= part;
        }
    }
    SlidingLogView::new(state, quota, at).decision(state, quota, 0)
}

/// Refunds up to `cost` units that were charged at `charged_at`, if the entry of that ms has not
/// expired and still holds them. `reset_at` stays.
pub fn refund(
    state: &mut SlidingLogState,
    quota: &Quota,
    now: StoreTime,
    charged_at: StoreTime,
    cost: u64,
) -> Decision {
    let now = state.follow_clock(now);
    let mut view = SlidingLogView::new(state, quota, now);
    let index = state.search(view.first, |entry| state.entry_time(entry) < charged_at);
    let depth = state.entries.len() - index;
    let charged = state.entries.get(index).filter(|&&entry| state.entry_time(entry) == charged_at);
    let refunded = charged.filter(|_| depth <= MAX_REFUND_DEPTH).map_or(0, |entry| {
        let after = state.entries.get(index + 1).map_or(state.total, |next| next.before);
        // At most the charges of the entry, which fit into 32 bits.
        cost.min(u64::from(after.wrapping_sub(entry.before))) as u32
    });
    if refunded > 0 {
        // `reset_at` must not move back with the entries from which it was computed: store it.
        state.reset_at = view.decision(state, quota, 0).reset_at;
        for entry in state.entries.range_mut(index + 1..) {
            entry.before = entry.before.wrapping_sub(refunded);
        }
        state.total = state.total.wrapping_sub(refunded);
        // The newest entry stays, because the times of the others are relative to it.
        let next = state.entries.get(index + 1);
        if next.is_some_and(|next| next.before == state.entries[index].before) {
            state.entries.remove(index);
        }
        view = SlidingLogView::new(state, quota, now);
        state.check_invariants();
    }
    view.decision(state, quota, 0)
}

/// The first ms at which the record is equivalent to a new caller's.
pub fn expires_at(state: &SlidingLogState, quota: &Quota) -> StoreTime {
    state.reset_at.max(state.newest_at + quota.window)
}

impl SlidingLogState {
    /// The time at which to read the record: never before `newest_at`, unless the clock was set
    /// back; the record then moves back with it.
    fn follow_clock(&mut self, now: StoreTime) -> StoreTime {
        let (now, behind) = super::clamp_to_record(self.newest_at, now);
        if !behind.is_zero() {
            // The entries' times are relative to `newest_at`: they move with it.
            self.newest_at = now;
            self.reset_at = self.reset_at.before(behind);
        }
        now
    }

    /// Checks only the newest entries, because checking a whole long log would make its tests slow.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.reset_at >= self.newest_at, "reset before a charge: {self:?}");
        for (newer, older) in
            self.entries.iter().rev().zip(self.entries.iter().rev().skip(1)).take(4)
        {
            debug_assert_ne!(newer.at, older.at, "two entries of one ms");
            debug_assert_ne!(newer.before, older.before, "an empty entry that is not the newest");
        }
    }

    /// The time of an entry.
    fn entry_time(&self, entry: LogEntry) -> StoreTime {
        let newest = self.entries.back().map_or(entry.at, |newest| newest.at);
        let age = newest.wrapping_sub(entry.at);
        self.newest_at.before(Millis::from_ms(age.into()))
    }

    /// The units charged in an entry and all later ones.
    fn charged_since(&self, entry: LogEntry) -> u64 {
        u64::from(self.total.wrapping_sub(entry.before))
    }

    /// The index of the first entry from `from` on for which `holds` is false. `holds` must be
    /// false for all entries after it.
    fn search(&self, from: usize, holds: impl Fn(LogEntry) -> bool) -> usize {
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

/// A record as read at `now`.
struct SlidingLogView {
    now: StoreTime,
    /// The index of the oldest entry that has not expired.
    first: usize,
    /// Units used. Above the limit if the quota was lowered or overdrawn.
    used: u64,
}

impl SlidingLogView {
    fn new(state: &SlidingLogState, quota: &Quota, now: StoreTime) -> Self {
        let first = if now.since(state.newest_at) >= quota.window {
            state.entries.len()
        } else {
            state.search(0, |entry| state.entry_time(entry) + quota.window <= now)
        };
        let used = state.entries.get(first).map_or(0, |&entry| state.charged_since(entry));
        Self { now, first, used }
    }

    fn remaining(&self, quota: &Quota) -> u64 {
        quota.limit.saturating_sub(self.used)
    }

    /// The decision on a charge of `cost`.
    fn decision(&self, state: &SlidingLogState, quota: &Quota, cost: u64) -> Decision {
        let remaining = self.remaining(quota);
        let admitted = cost <= remaining;
        let mut reset_at = self.reset_at(state, quota);
        if remaining == 0 {
            // The stored `reset_at` includes this, unless the quota was lowered since.
            reset_at = reset_at.max(self.retry_at(state, quota, 1).unwrap_or_default());
        }
        Decision {
            admitted,
            limit: quota.limit,
            remaining,
            used: self.used,
            reset_at,
            retry_at: if admitted { None } else { self.retry_at(state, quota, cost) },
            wait: Millis::ZERO,
        }
    }

    /// Writes a charge into the record, and removes the expired entries.
    fn charge(mut self, state: &mut SlidingLogState, quota: &Quota, cost: u64) -> Decision {
        if cost == 0 {
            return self.decision(state, quota, 0);
        }
        let at = match state.entries.back() {
            Some(newest) => newest.at.wrapping_add(self.now.since(state.newest_at).as_ms() as u32),
            None => self.now.as_unix_ms() as u32,
        };
        state.entries.drain(..self.first);
        self.first = 0;
        match state.entries.back_mut() {
            // Its charges were refunded, so it is reused.
            Some(newest) if newest.before == state.total => newest.at = at,
            Some(newest) if newest.at == at => {}
            _ => {
                if state.entries.capacity() / 4 > state.entries.len() + 8 {
                    state.entries.shrink_to(state.entries.len() * 2);
                }
                state.entries.push_back(LogEntry { at, before: state.total });
            }
        }
        let requested = cost;
        let cost = cost.min(MAX_UNITS.saturating_sub(self.used));
        state.total = state.total.wrapping_add(cost as u32);
        self.used += cost;
        state.newest_at = self.now;
        state.reset_at = self.reset_at(state, quota);
        let remaining = self.remaining(quota);
        if remaining < requested {
            // An overdraft may be above the quota: then `reset_at` is for a cost of 1.
            let retry_at = self.retry_at(state, quota, requested);
            let retry_at = retry_at.or_else(|| self.retry_at(state, quota, 1));
            state.reset_at = state.reset_at.max(retry_at.unwrap_or_default());
        }
        state.check_invariants();
        Decision {
            admitted: true,
            limit: quota.limit,
            remaining,
            used: self.used,
            reset_at: state.reset_at,
            retry_at: None,
            wait: Millis::ZERO,
        }
    }

    /// The stored `reset_at` if it is in the future, or else the time at which the oldest live
    /// entry expires; now if none is live.
    fn reset_at(&self, state: &SlidingLogState, quota: &Quota) -> StoreTime {
        if state.reset_at > self.now {
            return state.reset_at;
        }
        let oldest = state.entries.get(self.first);
        oldest.map_or(self.now, |&oldest| state.entry_time(oldest) + quota.window)
    }

    /// The first ms from now on at which `cost` would be admitted if nothing else were charged;
    /// `None` if it is above the quota.
    fn retry_at(&self, state: &SlidingLogState, quota: &Quota, cost: u64) -> Option<StoreTime> {
        let room = quota.limit.checked_sub(cost)?;
        // The newest entry whose charges, together with all later charges, exceed `room` must
        // expire.
        let next = state.search(self.first, |entry| state.charged_since(entry) > room);
        let last = next.checked_sub(1).filter(|&last| last >= self.first);
        let last = last.and_then(|last| state.entries.get(last));
        Some(last.map_or(self.now, |&entry| state.entry_time(entry) + quota.window))
    }
}

#[cfg(test)]
mod tests;
