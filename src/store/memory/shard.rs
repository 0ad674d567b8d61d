//! One shard of the memory store: records, how many there may be, and when they end.

use super::{
    table::{Entry, Table},
    worth::{Rank, Worth},
};
use crate::limit::{Algorithm, Change, Decision, Millis, Quota, State};

/// How many records an eviction looks at before it picks one.
const SAMPLE: usize = 16;

/// One charge as a shard sees it: a record's name and what is asked of it.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    /// The record: the caller's key combined with the limit's identity; uniformly random, never 0.
    pub(super) id: u128,
    pub(super) algorithm: Algorithm,
    pub(super) quota: Quota,
    pub(super) cost: u32,
    /// Whether it may refuse.
    pub(super) enforce: bool,
}

/// Records, how many there may be, and what has become of them.
pub(super) struct Shard {
    table: Table,
    max: usize,
    /// The slot at which the next sweep, or the next search for a victim, goes on.
    cursor: usize,
    evicted: u64,
}

impl Shard {
    /// An empty shard for at most `max` records, at least 1.
    pub(super) fn new(max: usize) -> Self {
        Self { table: Table::default(), max: max.max(1), cursor: 0, evicted: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many records the table could hold without growing.
    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// How many slots a full round of [`Self::sweep`] visits.
    pub(super) fn slots(&self) -> usize {
        self.table.slots()
    }

    /// Records removed before their time to make room.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What a charge would meet; charges nothing.
    pub(super) fn decide(&mut self, ask: &Ask, now: Millis, cost: u32) -> Decision {
        match self.table.find(ask.id) {
            Some(entry) => entry.state.decide(&ask.quota, now, cost),
            None => State::fresh(ask.algorithm).decide(&ask.quota, now, cost),
        }
    }

    /// Charges what was decided to be admitted.
    pub(super) fn charge(&mut self, ask: &Ask, now: Millis) -> Decision {
        self.write(ask, now, worth_of(ask.algorithm, ask.cost), |state| {
            state.charge(&ask.quota, now, ask.cost)
        })
    }

    /// Charges if it is admitted.
    pub(super) fn admit(&mut self, ask: &Ask, now: Millis) -> Decision {
        self.write(ask, now, worth_of(ask.algorithm, ask.cost), |state| {
            state.admit(&ask.quota, now, ask.cost)
        })
    }

    /// Corrects what was charged: gives back to a record that is still there, or charges without
    /// asking.
    pub(super) fn settle(&mut self, ask: &Ask, now: Millis, change: Change) -> Decision {
        if matches!(change, Change::Refund { .. }) && self.table.find(ask.id).is_none() {
            return State::fresh(ask.algorithm).decide(&ask.quota, now, 0);
        }
        let worth = worth_of(ask.algorithm, 0);
        self.write(ask, now, worth, |state| state.settle(&ask.quota, now, change))
    }

    /// Removes a record, if it is there.
    pub(super) fn forget(&mut self, id: u128) {
        if let Some(slot) = self.table.place(id) {
            self.table.remove(slot);
        }
    }

    fn write(
        &mut self,
        ask: &Ask,
        now: Millis,
        worth: impl FnOnce(Worth, &Decision) -> Worth,
        act: impl FnOnce(&mut State) -> Decision,
    ) -> Decision {
        if let Some(entry) = self.table.find(ask.id) {
            let decision = act(&mut entry.state);
            if decision.admitted {
                entry.expires = seconds_up(entry.state.expires_at(&ask.quota));
                entry.worth = worth(entry.worth, &decision);
            }
            return decision;
        }
        let mut state = State::fresh(ask.algorithm);
        let decision = act(&mut state);
        if decision.admitted && ask.cost > 0 {
            let expires = seconds_up(state.expires_at(&ask.quota));
            self.make_room(now);
            let worth = worth(Worth::new(seconds(now)), &decision);
            self.table.insert(Entry { id: ask.id, state, expires, worth });
        }
        decision
    }

    /// Where the shard is full, removes what has expired of the next few records that the cursor
    /// meets, or else the one of them that is worth the least ([`super::worth`]): made-up keys evict each
    /// other, and a caller near its limit keeps its counter. The order of the table is that of a keyed
    /// hash, so those few are a random sample; and because they are few, a new record stays for a while
    /// even where all others are worth more.
    fn make_room(&mut self, now: Millis) {
        if self.table.len() < self.max {
            return;
        }
        let now = seconds(now);
        let (mut met, mut dropped, mut least) = (0, false, None::<(usize, Rank)>);
        for _ in 0..self.table.slots() {
            let slot = self.cursor % self.table.slots();
            let Some(entry) = self.table.at(slot) else {
                self.cursor = slot + 1;
                continue;
            };
            met += 1;
            if entry.expires <= now {
                // Another record may move up into the slot: the cursor stays.
                self.table.remove(slot);
                dropped = true;
            } else {
                let rank = entry.worth.rank(now);
                if least.is_none_or(|(_, lowest)| rank < lowest) {
                    least = Some((slot, rank));
                }
                self.cursor = slot + 1;
            }
            if met == SAMPLE {
                break;
            }
        }
        if let (false, Some((slot, _))) = (dropped, least) {
            self.table.remove(slot);
            self.evicted += 1;
        }
    }

    /// Removes what has expired among the next `slots` slots. True when that ended a round of the
    /// whole table, which then gives back the memory that it no longer needs.
    pub(super) fn sweep(&mut self, slots: usize, now: Millis) -> bool {
        let now = seconds(now);
        let end = self.table.slots().min(self.cursor + slots);
        let mut slot = self.cursor;
        while slot < end {
            match self.table.at(slot) {
                // Another record may move up into the slot, so it is looked at again.
                Some(entry) if entry.expires <= now => self.table.remove(slot),
                _ => slot += 1,
            }
        }
        self.cursor = end;
        let round = end == self.table.slots();
        if round {
            self.cursor = 0;
            self.table.shrink();
        }
        round
    }
}

/// What a charge of this cost, or a correction (0), does to a record's worth. One that costs nothing must
/// not raise it.
fn worth_of(algorithm: Algorithm, cost: u32) -> impl FnOnce(Worth, &Decision) -> Worth {
    move |worth, decision| match algorithm {
        Algorithm::Concurrency => worth.held(decision),
        _ if cost > 0 => worth.charged(decision),
        _ => worth.corrected(decision),
    }
}

/// Milliseconds as whole seconds, rounded down; what is past 2106 stays in 2106.
fn seconds(at: Millis) -> u32 {
    u32::try_from(at / 1_000).unwrap_or(u32::MAX)
}

/// Milliseconds as whole seconds, rounded up.
fn seconds_up(at: Millis) -> u32 {
    u32::try_from(at.div_ceil(1_000)).unwrap_or(u32::MAX)
}
