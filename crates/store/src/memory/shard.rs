//! One shard of the memory store: its records, their bound, expiry and eviction.

use tidegate_base::time::{Millis, StoreTime};
use tidegate_limit::{Algorithm, AlgorithmState, Change, Decision, Quota};

use super::{
    eviction::{EvictionRank, RecordUsage},
    table::{RecordEntry, RecordTable},
};

/// Number of records that an eviction examines before it selects one.
const SAMPLE: usize = 16;

/// A charge of one record.
#[derive(Clone, Copy)]
pub(super) struct RecordCharge {
    /// The record's id: the caller's key combined with the limit's identity; uniformly random,
    /// never 0.
    pub(super) id: u128,
    pub(super) quota: Quota,
    pub(super) cost: u64,
    /// True if the limit may refuse.
    pub(super) enforce: bool,
}

/// A bounded table of records.
pub(super) struct RecordShard {
    table: RecordTable,
    max: usize,
    /// The slot at which the next sweep or eviction continues.
    cursor: usize,
    evictions: u64,
}

impl RecordShard {
    /// An empty shard for at most `max` records, at least 1.
    pub(super) fn new(max: usize) -> Self {
        Self { table: RecordTable::default(), max: max.max(1), cursor: 0, evictions: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Number of records that the table can hold without growing.
    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Number of slots that a full [`Self::sweep`] visits.
    pub(super) fn slots(&self) -> usize {
        self.table.slots()
    }

    /// Records removed before they expired, to make room.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Decides a charge of `cost`, and charges nothing.
    pub(super) fn decide(&mut self, charge: &RecordCharge, now: StoreTime, cost: u64) -> Decision {
        match self.table.find(charge.id) {
            Some(entry) => entry.state.decide(&charge.quota, now, cost),
            None => AlgorithmState::fresh(charge.quota.algorithm).decide(&charge.quota, now, cost),
        }
    }

    /// Makes a charge that [`Self::decide`] has admitted.
    pub(super) fn charge(&mut self, charge: &RecordCharge, now: StoreTime) -> Decision {
        if charge.quota.algorithm.is_block() {
            // It counts nothing, and must not make a record.
            return self.decide(charge, now, 0);
        }
        self.write(charge, now, usage_update(charge.quota.algorithm, charge.cost), |state| {
            state.charge(&charge.quota, now, charge.cost)
        })
    }

    /// Decides a charge, and makes it if it is admitted.
    pub(super) fn admit(&mut self, charge: &RecordCharge, now: StoreTime) -> Decision {
        if charge.quota.algorithm.is_block() {
            return self.decide(charge, now, charge.cost);
        }
        self.write(charge, now, usage_update(charge.quota.algorithm, charge.cost), |state| {
            state.admit(&charge.quota, now, charge.cost)
        })
    }

    /// Adjusts a charge: refunds to a record that still exists, or charges without a decision.
    pub(super) fn adjust(
        &mut self,
        charge: &RecordCharge,
        now: StoreTime,
        change: Change,
    ) -> Decision {
        if change.gives_back() && self.table.find(charge.id).is_none() {
            return AlgorithmState::fresh(charge.quota.algorithm).decide(&charge.quota, now, 0);
        }
        // A refusal of a block counts as a request, so that made-up keys do not evict blocked
        // callers.
        let cost = if charge.quota.algorithm.is_block() { charge.cost } else { 0 };
        let update = usage_update(charge.quota.algorithm, cost);
        self.write(charge, now, update, |state| state.adjust(&charge.quota, now, change))
    }

    /// Removes a record, if it exists.
    pub(super) fn remove(&mut self, id: u128) {
        if let Some(slot) = self.table.slot_of(id) {
            self.table.remove(slot);
        }
    }

    fn write(
        &mut self,
        charge: &RecordCharge,
        now: StoreTime,
        update: impl FnOnce(RecordUsage, &Decision) -> RecordUsage,
        apply: impl FnOnce(&mut AlgorithmState) -> Decision,
    ) -> Decision {
        if let Some(entry) = self.table.find(charge.id) {
            let decision = apply(&mut entry.state);
            if decision.admitted {
                entry.expires = to_seconds_ceil(entry.state.expires_at(&charge.quota));
                entry.usage = update(entry.usage, &decision);
            }
            return decision;
        }
        let mut state = AlgorithmState::fresh(charge.quota.algorithm);
        let decision = apply(&mut state);
        if decision.admitted && charge.cost > 0 {
            let expires = to_seconds_ceil(state.expires_at(&charge.quota));
            self.make_room(now);
            let usage = update(RecordUsage::new(now), &decision);
            self.table.insert(RecordEntry { id: charge.id, state, expires, usage });
        }
        decision
    }

    /// Makes room in a full shard. Among the next [`SAMPLE`] records, removes expired ones, or else
    /// the one with the lowest [`EvictionRank`], so that made-up keys evict each other and callers
    /// near their limits keep their counters. The table is ordered by a keyed hash, so these
    /// records are a random sample; because the sample is small, a new record survives for a while
    /// even if all others rank higher.
    fn make_room(&mut self, now: StoreTime) {
        if self.table.len() < self.max {
            return;
        }
        let now_seconds = to_seconds(now);
        let (mut visited, mut has_expired, mut victim) = (0, false, None::<(usize, EvictionRank)>);
        for _ in 0..self.table.slots() {
            let slot = self.cursor % self.table.slots();
            let Some(entry) = self.table.at(slot) else {
                self.cursor = slot + 1;
                continue;
            };
            visited += 1;
            if entry.expires <= now_seconds {
                // Another record may move up into the slot: the cursor stays.
                self.table.remove(slot);
                has_expired = true;
            } else {
                let rank = entry.usage.rank(now);
                if victim.is_none_or(|(_, lowest)| rank < lowest) {
                    victim = Some((slot, rank));
                }
                self.cursor = slot + 1;
            }
            if visited == SAMPLE {
                break;
            }
        }
        if let (false, Some((slot, _))) = (has_expired, victim) {
            self.table.remove(slot);
            self.evictions += 1;
        }
    }

    /// Removes expired records from the next `slots` slots. At the end of the table, shrinks the
    /// table and returns true.
    pub(super) fn sweep(&mut self, slots: usize, now: StoreTime) -> bool {
        let now_seconds = to_seconds(now);
        let end = self.table.slots().min(self.cursor + slots);
        let mut slot = self.cursor;
        while slot < end {
            match self.table.at_mut(slot) {
                // Another record may move up into the slot, so it is visited again.
                Some(entry) if entry.expires <= now_seconds => self.table.remove(slot),
                Some(entry) => {
                    entry.usage = entry.usage.with_bounded_age(now);
                    slot += 1;
                }
                None => slot += 1,
            }
        }
        self.cursor = end;
        let is_complete = end == self.table.slots();
        if is_complete {
            self.cursor = 0;
            self.table.shrink();
        }
        is_complete
    }
}

/// The update of a record's usage after a charge of `cost`, or after an adjustment (a `cost` of 0).
/// A charge that costs nothing must not raise the usage.
fn usage_update(
    algorithm: Algorithm,
    cost: u64,
) -> impl FnOnce(RecordUsage, &Decision) -> RecordUsage {
    move |usage, decision| {
        if algorithm.holds_permit() {
            usage.with_held_permits(decision)
        } else if cost > 0 {
            usage.with_charge(decision)
        } else {
            usage.with_adjustment(decision)
        }
    }
}

/// A time in whole seconds, rounded down, as a record has it; saturates in the year 2106.
fn to_seconds(at: StoreTime) -> u32 {
    u32::try_from(at.whole_periods(Millis::from_secs(1))).unwrap_or(u32::MAX)
}

/// A time in whole seconds, rounded up, as a record has it.
fn to_seconds_ceil(at: StoreTime) -> u32 {
    u32::try_from(at.as_unix_ms().div_ceil(1_000)).unwrap_or(u32::MAX)
}
