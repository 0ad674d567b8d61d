//! Caches denials of Redis, so that a refused caller costs no call until its retry time.
//!
//! A denial applies only to its record, quota and cost. A larger cost would also be refused, but
//! its retry time is unknown. That time must be exact: a client that waits for `Retry-After` is
//! admitted unless another request has charged its key meanwhile. A cost above the quota is the
//! exception: it is always refused, so any denial of the record answers it, without a
//! `Retry-After`.
//!
//! A denial ends at its retry time at the latest. The time until then is counted from the sending
//! of the call, less 1 ms, because two clocks in whole ms may differ by that much. The time that a
//! denial reports is never ahead of the store's clock, so a `Retry-After` computed from it is never
//! too short.
//!
//! Within that time, a denial is trusted for [`INITIAL_TRUST`] only, because another gateway may
//! return quota (by a refund, with unspent units, or after another shard refused the request)
//! without notifying this one. Each time that the store repeats the denial, it is trusted for twice
//! as long. A denial of a cost above the limit's own cost is not trusted at all, because another
//! gateway may charge the record with cheaper requests. While the store gives no answer, the last
//! denial stays in force until its retry time ([`DenyCache::get_stale`]).
//!
//! The table is 4-way set-associative, bounded, and allocated on first use. A new entry replaces an
//! expired one, or else the entry that expires first. A flood of callers can evict denials, but can
//! never cause a wrong answer.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tidegate_base::time::{Millis, MonotonicTime, StoreTime};
use tidegate_charge::{Charge, Limit};
use tidegate_limit::Decision;

use super::record_id::RecordId;

/// Number of shards of the table, each behind its own lock.
const SHARDS: usize = 64;

/// Number of sets in each shard.
const SETS_PER_SHARD: usize = 256;

/// Number of entries in a set.
const WAYS: usize = 4;

/// Time for which a new denial is trusted. An idle gateway returns its unspent units earlier, after
/// [`super::unit_lease::IDLE_TIMEOUT`].
pub const INITIAL_TRUST: Millis = Millis::from_secs(2);

/// The times of a call to the store. Monotonic times are those of
/// [`tidegate_system::clock::Clock::monotonic`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplyTiming {
    /// The monotonic time at which the call was sent.
    pub sent: MonotonicTime,
    /// The monotonic time at which the reply was received.
    pub received: MonotonicTime,
    /// The time of the decision, by the store's clock.
    pub decided_at: StoreTime,
}

/// A denial that is still in force.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Denial {
    /// The store's decision.
    pub decision: Decision,
    /// The store's current time, or slightly earlier.
    pub now: StoreTime,
}

/// The cache's hits and size.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DenyStats {
    /// Denials answered from the cache, without a call to the store.
    pub hits: u64,
    /// Denials that are currently trusted.
    pub entries: usize,
}

/// Redis's denials, for all workers of the process.
pub struct DenyCache {
    shards: Box<[CachePadded<CacheShard>]>,
}

struct CacheShard {
    /// The [`MonotonicTime`], in ms, at which the trust in every entry has ended. From then on
    /// [`DenyCache::get`] takes no lock.
    trusted_until: AtomicU64,
    /// The first ms (a [`MonotonicTime`]) after the last [`DenyCache::invalidate`] or
    /// [`DenyCache::clear`]. Replies to calls that were sent before this ms are not cached.
    invalidated: AtomicU64,
    table: Mutex<DenyTable>,
}

#[derive(Default)]
struct DenyTable {
    /// Empty until the first denial.
    sets: Box<[CacheSet]>,
    hits: u64,
}

/// The records of a set's entries are kept together, so that a lookup compares them in one cache
/// line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheSet {
    records: [u128; WAYS],
    entries: [Option<DenyEntry>; WAYS],
}

#[derive(Clone, Copy)]
struct DenyEntry {
    quota_id: u64,
    /// The first ms at which the retry time may have come.
    expires: MonotonicTime,
    /// The first ms at which the store is called again; at most `expires`.
    trusted_until: MonotonicTime,
    /// Time for which it is trusted after its call was sent.
    trust: Millis,
    /// The monotonic time at which the reply was received.
    received: MonotonicTime,
    /// The store's time of the decision.
    decided_at: StoreTime,
    decision: Decision,
    cost: u64,
}

impl CacheSet {
    const EMPTY: Self = Self { records: [0; WAYS], entries: [None; WAYS] };
}

impl DenyEntry {
    /// Checks the invariants between the fields, in debug builds.
    fn check_invariants(&self) {
        debug_assert!(!self.decision.admitted, "an admission");
        debug_assert!(self.trusted_until <= self.expires, "trusted beyond its retry time");
        debug_assert!(self.received < self.expires, "not in force when it was received");
        debug_assert!(self.cost > 0, "a cost of 0 is always admitted");
    }

    /// Time for which the denial that replaces this one is trusted: doubled if it repeats this
    /// one.
    fn next_trust(&self, timing: &ReplyTiming) -> Millis {
        let is_past = self.decision.retry_at.is_none_or(|retry_at| retry_at <= timing.decided_at);
        if is_past {
            INITIAL_TRUST
        } else if timing.sent < self.trusted_until {
            // Concurrent calls: this reply does not repeat the denial.
            self.trust
        } else {
            self.trust.saturating_mul(2)
        }
    }
}

impl Default for DenyCache {
    fn default() -> Self {
        let shard = || CacheShard {
            trusted_until: AtomicU64::new(0),
            invalidated: AtomicU64::new(0),
            table: Mutex::default(),
        };
        Self { shards: (0..SHARDS).map(|_| CachePadded::new(shard())).collect() }
    }
}

impl DenyCache {
    /// The maximum number of cached denials.
    pub const CAPACITY: usize = SHARDS * SETS_PER_SHARD * WAYS;

    /// True if denials of this limit are cached: it enforces, and its algorithm allows caching.
    pub fn is_cacheable(limit: &Limit) -> bool {
        limit.enforce && limit.algorithm().has_cacheable_denials()
    }

    /// Caches a decision of the store if it is a denial that is still in force when it is received.
    /// It replaces the previous denial of the same record, quota and cost.
    pub fn insert(&self, charge: &Charge<'_>, decision: &Decision, timing: ReplyTiming) {
        let wait =
            decision.retry_at.map_or(Millis::ZERO, |retry_at| retry_at.since(timing.decided_at));
        // 1 ms less, because the store's ms and this process's do not begin at the same time.
        let expires = timing.sent.after(wait.saturating_sub(Millis::MILLISECOND));
        if decision.admitted || !Self::is_cacheable(charge.limit) || expires <= timing.received {
            return;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, index) = self.locate(id.record);
        let mut table = shard.table.lock();
        if timing.sent.as_ms() < shard.invalidated.load(Ordering::Relaxed) {
            return;
        }
        if table.sets.is_empty() {
            table.sets = vec![CacheSet::EMPTY; SETS_PER_SHARD].into();
        }
        let set = &mut table.sets[index];
        let same = set.position(id, charge.cost);
        let way = same.unwrap_or_else(|| set.victim(timing.received));
        let repeated = same.and(set.entries[way].as_ref());
        let trust = if charge.cost > charge.limit.cost {
            // Another gateway may admit a cheaper request, which moves the reset and this retry
            // time.
            Millis::ZERO
        } else {
            repeated.map_or(INITIAL_TRUST, |entry| entry.next_trust(&timing))
        };
        let trusted_until = expires.min(timing.sent.after(trust));
        let entry = DenyEntry {
            quota_id: id.quota_id,
            expires,
            trusted_until,
            trust,
            received: timing.received,
            decided_at: timing.decided_at,
            decision: *decision,
            cost: charge.cost,
        };
        entry.check_invariants();
        set.records[way] = id.record;
        set.entries[way] = Some(entry);
        shard.trusted_until.fetch_max(trusted_until.as_ms(), Ordering::Relaxed);
    }

    /// The denial of this charge that is trusted at `monotonic`, if any.
    pub fn get(&self, charge: &Charge<'_>, monotonic: MonotonicTime) -> Option<Denial> {
        if !Self::is_cacheable(charge.limit) {
            return None;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, index) = self.locate(id.record);
        if monotonic.as_ms() >= shard.trusted_until.load(Ordering::Relaxed) {
            return None;
        }
        let mut table = shard.table.lock();
        let is_valid = |entry: &DenyEntry| monotonic < entry.trusted_until;
        let denial = table.sets.get(index)?.find(id, charge.cost, monotonic, is_valid)?;
        table.hits += 1;
        Some(denial)
    }

    /// The denial of this charge whose retry time has not come at `monotonic`, trusted or not: for
    /// use while the store gives no answer.
    pub fn get_stale(&self, charge: &Charge<'_>, monotonic: MonotonicTime) -> Option<Denial> {
        if !Self::is_cacheable(charge.limit) {
            return None;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, index) = self.locate(id.record);
        let table = shard.table.lock();
        table.sets.get(index)?.find(id, charge.cost, monotonic, |entry| monotonic < entry.expires)
    }

    /// Drops all denials of a record, for every quota and cost. Called after a charge or a return
    /// of units, which may move their retry times. Takes no lock before the first denial. Replies
    /// to calls in flight are still cached.
    pub fn remove(&self, record: u128) {
        let (shard, index) = self.locate(record);
        if shard.trusted_until.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut table = shard.table.lock();
        let Some(set) = table.sets.get_mut(index) else { return };
        for (id, entry) in set.records.iter().zip(&mut set.entries) {
            if *id == record {
                *entry = None;
            }
        }
    }

    /// Drops all denials of a record that was adjusted or reset at the store, at `monotonic` or
    /// before. Unlike [`Self::remove`], it also prevents the caching of replies to calls sent up to
    /// that time.
    pub fn invalidate(&self, record: u128, monotonic: MonotonicTime) {
        let (shard, _) = self.locate(record);
        {
            // A concurrent insert either sees this time, or its entry is removed below.
            let _table = shard.table.lock();
            shard.invalidated.fetch_max(monotonic.as_ms().saturating_add(1), Ordering::Relaxed);
        }
        self.remove(record);
    }

    /// Drops all denials, at `monotonic`. Like [`Self::invalidate`], it also prevents the caching
    /// of replies to calls sent up to that time.
    pub fn clear(&self, monotonic: MonotonicTime) {
        for shard in &self.shards {
            let mut table = shard.table.lock();
            shard.invalidated.fetch_max(monotonic.as_ms().saturating_add(1), Ordering::Relaxed);
            table.sets = Box::default();
        }
    }

    /// The hits, and the number of trusted denials at `monotonic`. Takes every lock, one after the
    /// other.
    pub fn stats(&self, monotonic: MonotonicTime) -> DenyStats {
        let mut stats = DenyStats::default();
        for shard in &self.shards {
            let table = shard.table.lock();
            stats.hits += table.hits;
            if monotonic.as_ms() < shard.trusted_until.load(Ordering::Relaxed) {
                let entries = table.sets.iter().flat_map(|set| set.entries.iter().flatten());
                stats.entries += entries.filter(|entry| monotonic < entry.trusted_until).count();
            }
        }
        stats
    }

    /// The shard and the set of a record. Record ids are uniformly random, so any bits select
    /// evenly.
    fn locate(&self, record: u128) -> (&CacheShard, usize) {
        let bits = record as usize;
        (&self.shards[bits % SHARDS], bits / SHARDS % SETS_PER_SHARD)
    }
}

impl CacheSet {
    /// The entry of this record, quota and cost.
    fn position(&self, id: RecordId, cost: u64) -> Option<usize> {
        let is_same = |&way: &usize| {
            let is_same = |entry: &DenyEntry| entry.quota_id == id.quota_id && entry.cost == cost;
            self.records[way] == id.record && self.entries[way].as_ref().is_some_and(is_same)
        };
        (0..WAYS).find(is_same)
    }

    /// The way to replace: an expired one, or else the way that expires first.
    fn victim(&self, monotonic: MonotonicTime) -> usize {
        let left = |&way: &usize| {
            let entry = self.entries[way].as_ref();
            entry.map_or(Millis::ZERO, |entry| entry.expires.since(monotonic))
        };
        (0..WAYS).min_by_key(left).unwrap_or(0)
    }

    /// The denial of this record, quota and cost (of any cost if `cost` is above the quota), if its
    /// entry `is_valid`.
    fn find(
        &self,
        id: RecordId,
        cost: u64,
        monotonic: MonotonicTime,
        is_valid: impl Fn(&DenyEntry) -> bool,
    ) -> Option<Denial> {
        let denial = |way: usize| {
            let entry = self.entries[way].as_ref().filter(|entry| is_valid(entry))?;
            let is_above_quota = cost > entry.decision.limit;
            let is_same = self.records[way] == id.record && entry.quota_id == id.quota_id;
            if !is_same || (entry.cost != cost && !is_above_quota) {
                return None;
            }
            let retry_at = entry.decision.retry_at.filter(|_| !is_above_quota);
            let decision = Decision { retry_at, ..entry.decision };
            let since = monotonic.since(entry.received).saturating_sub(Millis::MILLISECOND);
            Some(Denial { decision, now: entry.decided_at + since })
        };
        (0..WAYS).find_map(denial)
    }
}

#[cfg(test)]
mod tests;
