//! What this process admitted while Redis could not be asked: one sum a record, charged when its place
//! can be reached again.
//!
//! A sum is what was charged here in the last window and the one before it, at most the quota: never less
//! than what a window counts, and of a longer outage no more. Bounded: a record beyond that is dropped, and
//! counted. Times are ticks of [`crate::clock::Clock::ticks`], which no one sets.

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

use super::record_id::record;
use crate::limit::{Algorithm, Change, Charge, Key, Limit, Settlement};

/// Locks, each with its part of the records.
const SHARDS: usize = 16;

/// Records in each part.
const RECORDS: usize = 1_024;

/// The least time between two searches of a full part for what is past.
const BETWEEN_SEARCHES: u64 = 1_000;

/// See the module.
pub(super) struct OutageLedger {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Records held: while there is none, no lock is taken.
    held: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Shard {
    sums: HashMap<u128, Sum, RandomState>,
    /// One copy of each limit, of its newest quota, for all records; by its identity.
    limits: HashMap<u128, Arc<Limit>, RandomState>,
    /// The tick at which it was last searched for what is past.
    searched: u64,
}

/// What one record is to be charged.
struct Sum {
    limit: Arc<Limit>,
    key: Key,
    /// The tick at which the window of `cost` began.
    since: u64,
    cost: u32,
    /// The cost of the window before.
    before: u32,
}

/// A sum that was taken from the ledger.
#[derive(Debug)]
pub(super) struct OutageSum {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Key,
    pub(super) cost: u32,
}

impl Sum {
    /// Begins a new window where the last is over.
    fn roll(&mut self, ticks: u64) {
        let reach = self.limit.reach().max(1);
        match ticks.saturating_sub(self.since) / reach {
            0 => {}
            1 => (self.before, self.cost, self.since) = (self.cost, 0, self.since + reach),
            _ => (self.before, self.cost, self.since) = (0, 0, ticks),
        }
    }

    fn add(&mut self, cost: u32, ticks: u64) {
        self.roll(ticks);
        self.cost = self.cost.saturating_add(cost);
    }

    /// Takes so much off. Returns what it could not take off.
    fn take_off(&mut self, cost: u32) -> u32 {
        let rest = cost.saturating_sub(self.cost);
        self.cost = self.cost.saturating_sub(cost);
        let left = rest.saturating_sub(self.before);
        self.before = self.before.saturating_sub(rest);
        left
    }

    /// What is to be charged at that tick.
    fn total(&mut self, ticks: u64) -> u32 {
        self.roll(ticks);
        self.cost.saturating_add(self.before).min(self.limit.quota.limit)
    }
}

/// Writes to the ledger at one tick.
#[derive(Clone, Copy)]
pub(super) struct OutageRecorder<'a> {
    pub(super) ledger: &'a OutageLedger,
    pub(super) ticks: u64,
}

impl OutageRecorder<'_> {
    /// A charge was made here.
    pub(super) fn charged(&self, charge: &Charge<'_>) {
        self.ledger.add(charge, self.ticks);
    }

    /// A charge that was made here was corrected. Returns the part of a refund that is in no sum here: Redis
    /// has been charged it meanwhile, or is never charged it.
    pub(super) fn settled(&self, settlement: &Settlement<'_>) -> u32 {
        let &Settlement { limit, key, change } = settlement;
        match change {
            Change::Refund { cost, .. } => self.ledger.take_off(limit, key, cost, self.ticks),
            Change::Overdraw { cost } => {
                self.ledger.add(&Charge { limit, key, cost }, self.ticks);
                0
            }
        }
    }
}

impl Default for OutageLedger {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            held: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }
}

impl OutageLedger {
    /// The most records that are held.
    #[cfg(test)]
    pub(super) const CAPACITY: usize = SHARDS * RECORDS;

    fn add(&self, charge: &Charge<'_>, ticks: u64) {
        let &Charge { limit, key, cost } = charge;
        // Those slots are past when the place is there again, and leases are renewed by their holders.
        let counts = !matches!(limit.algorithm, Algorithm::LeakyBucket | Algorithm::Concurrency);
        if cost == 0 || !counts {
            return;
        }
        let id = record(limit, key);
        let mut shard = self.shard_of(id).lock();
        if let Some(sum) = shard.sums.get_mut(&id).filter(|sum| sum.limit.quota == limit.quota) {
            return sum.add(cost, ticks);
        }
        let limit = shard.limit(limit);
        if let Some(sum) = shard.sums.get_mut(&id) {
            sum.limit = limit;
            return sum.add(cost, ticks);
        }
        if shard.sums.len() >= RECORDS && ticks >= shard.searched.saturating_add(BETWEEN_SEARCHES) {
            self.search(&mut shard, ticks);
        }
        if shard.sums.len() >= RECORDS {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        shard.sums.insert(id, Sum { limit, key, since: ticks, cost, before: 0 });
        self.held.fetch_add(1, Relaxed);
    }

    fn take_off(&self, limit: &Limit, key: Key, cost: u32, ticks: u64) -> u32 {
        let id = record(limit, key);
        if self.len() > 0
            && let Some(sum) = self.shard_of(id).lock().sums.get_mut(&id)
        {
            sum.roll(ticks);
            return sum.take_off(cost);
        }
        cost
    }

    /// Drops what was charged to a record.
    pub(super) fn forget(&self, limit: &Limit, key: Key) {
        let id = record(limit, key);
        if self.len() > 0 && self.shard_of(id).lock().sums.remove(&id).is_some() {
            self.held.fetch_sub(1, Relaxed);
        }
    }

    /// Drops what no longer counts.
    pub(super) fn expire(&self, ticks: u64) {
        if self.len() > 0 {
            self.shards.iter().for_each(|shard| self.search(&mut shard.lock(), ticks));
        }
    }

    fn search(&self, shard: &mut Shard, ticks: u64) {
        let before = shard.sums.len();
        shard.sums.retain(|_, sum| sum.total(ticks) > 0);
        shard.searched = ticks;
        self.held.fetch_sub(before - shard.sums.len(), Relaxed);
        shard.shrink();
    }

    /// Hands over the sums of the keys that are `wanted`, as far as they still count. A sum is held until
    /// it has been handed over.
    pub(super) fn take(
        &self,
        ticks: u64,
        wanted: impl Fn(Key) -> bool,
        mut hand_over: impl FnMut(OutageSum),
    ) {
        if self.len() == 0 {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.search(&mut shard, ticks);
            for (_, mut sum) in shard.sums.extract_if(|_, sum| wanted(sum.key)) {
                let cost = sum.total(ticks);
                hand_over(OutageSum { limit: sum.limit, key: sum.key, cost });
                self.held.fetch_sub(1, Release);
            }
            shard.shrink();
        }
    }

    /// Records held.
    pub(super) fn len(&self) -> usize {
        self.held.load(Acquire)
    }

    /// Charges that had no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn shard_of(&self, id: u128) -> &Mutex<Shard> {
        &self.shards[(id >> 64) as usize % SHARDS]
    }
}

impl Shard {
    /// The shard's copy of a limit, of its newest quota.
    fn limit(&mut self, limit: &Limit) -> Arc<Limit> {
        let kept = self.limits.entry(limit.identity()).or_insert_with(|| Arc::new(limit.clone()));
        if kept.quota != limit.quota {
            *kept = Arc::new(limit.clone());
        }
        Arc::clone(kept)
    }

    /// Frees the memory of sums, when the last has gone.
    fn shrink(&mut self) {
        if self.sums.is_empty() {
            *self = Self { searched: self.searched, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests;
