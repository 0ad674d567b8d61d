//! The outage ledger: what this process charged while Redis gave no answer, as one sum per record, which
//! Redis is charged when the record's shard is reachable again.
//!
//! A sum covers the current window and the previous one, and is at most the quota: it is never less than what
//! the limit counts, and does not grow with the length of the outage. The ledger is bounded; charges that
//! find no room are dropped and counted. Times are those of [`crate::clock::Clock::monotonic_ms`].

use std::sync::{
    Arc,
    atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use ahash::RandomState;
use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::record_id::record_id;
use crate::limit::{Adjustment, Algorithm, Change, Charge, Key, Limit};

/// Shards of the ledger, each behind its own lock.
const SHARDS: usize = 16;

/// The maximum number of records in each shard.
const RECORDS_PER_SHARD: usize = 1_024;

/// Minimum interval between two purges of a full shard, in ms.
const PURGE_INTERVAL: u64 = 1_000;

/// The sums of all records that were charged locally.
pub(super) struct OutageLedger {
    shards: Box<[CachePadded<Mutex<LedgerShard>>]>,
    /// The number of records; while it is 0, no lock is taken.
    records: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Default)]
struct LedgerShard {
    sums: HashMap<u128, WindowedSum, RandomState>,
    /// One copy of each limit, with its newest quota, shared by all records; by the limit's identity.
    limits: HashMap<u128, Arc<Limit>, RandomState>,
    /// The monotonic time of the last purge.
    purged_at: u64,
}

/// What one record was charged in the current window and the previous one.
struct WindowedSum {
    limit: Arc<Limit>,
    key: Key,
    /// The monotonic time at which the current window began.
    since: u64,
    /// The cost in the current window.
    cost: u32,
    /// The cost in the previous window.
    previous: u32,
}

/// A sum that was taken from the ledger.
#[derive(Debug)]
pub(super) struct OutageSum {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Key,
    pub(super) cost: u32,
}

impl WindowedSum {
    /// Begins a new window if the current one has ended.
    fn roll(&mut self, monotonic_ms: u64) {
        let window = self.limit.correction_window().max(1);
        match monotonic_ms.saturating_sub(self.since) / window {
            0 => {}
            1 => (self.previous, self.cost, self.since) = (self.cost, 0, self.since + window),
            _ => (self.previous, self.cost, self.since) = (0, 0, monotonic_ms),
        }
    }

    fn add(&mut self, cost: u32, monotonic_ms: u64) {
        self.roll(monotonic_ms);
        self.cost = self.cost.saturating_add(cost);
    }

    /// Deducts `cost`, from the current window first. Returns the part that exceeds the sum.
    fn deduct(&mut self, cost: u32) -> u32 {
        let rest = cost.saturating_sub(self.cost);
        self.cost = self.cost.saturating_sub(cost);
        let left = rest.saturating_sub(self.previous);
        self.previous = self.previous.saturating_sub(rest);
        left
    }

    /// What Redis is to be charged at `monotonic_ms`.
    fn total(&mut self, monotonic_ms: u64) -> u32 {
        self.roll(monotonic_ms);
        self.cost.saturating_add(self.previous).min(self.limit.quota.limit)
    }
}

/// Records charges and adjustments in the ledger, at one time.
#[derive(Clone, Copy)]
pub(super) struct OutageRecorder<'a> {
    pub(super) ledger: &'a OutageLedger,
    pub(super) monotonic_ms: u64,
}

impl OutageRecorder<'_> {
    /// Records a charge that was made locally.
    pub(super) fn record_charge(&self, charge: &Charge<'_>) {
        self.ledger.add(charge, self.monotonic_ms);
    }

    /// Records the adjustment of a charge that was made locally. Returns the part of a refund that is in no
    /// sum: Redis has been charged for it meanwhile, or never will be.
    pub(super) fn record_adjustment(&self, adjustment: &Adjustment<'_>) -> u32 {
        let &Adjustment { limit, key, change } = adjustment;
        match change {
            Change::Refund { cost, .. } => self.ledger.deduct(limit, key, cost, self.monotonic_ms),
            Change::Overdraw { cost } => {
                self.ledger.add(&Charge { limit, key, cost }, self.monotonic_ms);
                0
            }
        }
    }
}

impl Default for OutageLedger {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            records: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }
}

impl OutageLedger {
    /// The maximum number of records.
    #[cfg(test)]
    pub(super) const CAPACITY: usize = SHARDS * RECORDS_PER_SHARD;

    fn add(&self, charge: &Charge<'_>, monotonic_ms: u64) {
        let &Charge { limit, key, cost } = charge;
        // A leaky bucket's slots have passed when Redis is back, and concurrency leases are renewed there.
        let is_recorded =
            !matches!(limit.algorithm, Algorithm::LeakyBucket | Algorithm::Concurrency);
        if cost == 0 || !is_recorded {
            return;
        }
        let id = record_id(limit, key);
        let mut shard = self.shard_of(id).lock();
        if let Some(sum) = shard.sums.get_mut(&id).filter(|sum| sum.limit.quota == limit.quota) {
            return sum.add(cost, monotonic_ms);
        }
        let limit = shard.limit(limit);
        if let Some(sum) = shard.sums.get_mut(&id) {
            sum.limit = limit;
            return sum.add(cost, monotonic_ms);
        }
        if shard.sums.len() >= RECORDS_PER_SHARD
            && monotonic_ms >= shard.purged_at.saturating_add(PURGE_INTERVAL)
        {
            self.purge(&mut shard, monotonic_ms);
        }
        if shard.sums.len() >= RECORDS_PER_SHARD {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        shard.sums.insert(id, WindowedSum { limit, key, since: monotonic_ms, cost, previous: 0 });
        self.records.fetch_add(1, Relaxed);
    }

    fn deduct(&self, limit: &Limit, key: Key, cost: u32, monotonic_ms: u64) -> u32 {
        let id = record_id(limit, key);
        if self.len() > 0
            && let Some(sum) = self.shard_of(id).lock().sums.get_mut(&id)
        {
            sum.roll(monotonic_ms);
            return sum.deduct(cost);
        }
        cost
    }

    /// Removes the sum of a record.
    pub(super) fn remove(&self, limit: &Limit, key: Key) {
        let id = record_id(limit, key);
        if self.len() > 0 && self.shard_of(id).lock().sums.remove(&id).is_some() {
            self.records.fetch_sub(1, Relaxed);
        }
    }

    /// Drops sums that no longer count.
    pub(super) fn expire(&self, monotonic_ms: u64) {
        if self.len() > 0 {
            self.shards.iter().for_each(|shard| self.purge(&mut shard.lock(), monotonic_ms));
        }
    }

    fn purge(&self, shard: &mut LedgerShard, monotonic_ms: u64) {
        let before = shard.sums.len();
        shard.sums.retain(|_, sum| sum.total(monotonic_ms) > 0);
        shard.purged_at = monotonic_ms;
        self.records.fetch_sub(before - shard.sums.len(), Relaxed);
        shard.shrink();
    }

    /// Removes the sums of the keys that the filter `wanted` selects, and hands over those that still count.
    /// A record is counted in [`Self::len`] until its sum has been handed over.
    pub(super) fn take(
        &self,
        monotonic_ms: u64,
        wanted: impl Fn(Key) -> bool,
        mut hand_over: impl FnMut(OutageSum),
    ) {
        if self.len() == 0 {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.purge(&mut shard, monotonic_ms);
            for (_, mut sum) in shard.sums.extract_if(|_, sum| wanted(sum.key)) {
                let cost = sum.total(monotonic_ms);
                hand_over(OutageSum { limit: sum.limit, key: sum.key, cost });
                self.records.fetch_sub(1, Release);
            }
            shard.shrink();
        }
    }

    /// The number of records.
    pub(super) fn len(&self) -> usize {
        self.records.load(Acquire)
    }

    /// The number of charges that found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn shard_of(&self, id: u128) -> &Mutex<LedgerShard> {
        &self.shards[(id >> 64) as usize % SHARDS]
    }
}

impl LedgerShard {
    /// The shard's copy of a limit, with its newest quota.
    fn limit(&mut self, limit: &Limit) -> Arc<Limit> {
        let copy = self.limits.entry(limit.identity()).or_insert_with(|| Arc::new(limit.clone()));
        if copy.quota != limit.quota {
            *copy = Arc::new(limit.clone());
        }
        Arc::clone(copy)
    }

    /// Frees the memory of an empty shard.
    fn shrink(&mut self) {
        if self.sums.is_empty() {
            *self = Self { purged_at: self.purged_at, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests;
