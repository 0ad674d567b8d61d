//! Counters in this process: shared by all workers, exact, bounded and expiring.
//!
//! Records are spread over shards, each a table behind a lock. A request locks the shards of all
//! its records in ascending order, decides all charges, and makes all or none. The fixed order
//! prevents deadlocks, and no request sees half of another's charges.

mod eviction;
mod shard;
mod table;
#[cfg(test)]
mod tests;

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_charge::{Adjustment, Charge, DecisionSource, Key, Limit, StoreDecision, Verdict};
use tidegate_limit::{Algorithm, Decision, MAX_UNITS, Quota, leaky_bucket};

use self::shard::{RecordCharge, RecordShard};
use super::record_id::record_id;

/// Maximum number of shards.
const MAX_SHARDS: usize = 256;

/// Minimum number of records per shard, unless the whole store holds fewer. Smaller shards would
/// fill unevenly without reducing contention further.
const MIN_RECORDS_PER_SHARD: usize = 1_024;

/// Number of calls of [`MemoryStore::expire`] that together sweep a whole shard.
const CALLS_PER_SWEEP: usize = 16;

/// Maximum number of slots that [`MemoryStore::expire`] visits before it releases the shard's lock.
const SLOTS_PER_LOCK: usize = 1_024;

/// One charge of a request with several charges.
struct JointCharge {
    charge: RecordCharge,
    /// The cost of this charge plus all earlier ones on the same record.
    running_cost: u64,
    decision: Option<Decision>,
}

/// The counters of all limits, in this process's memory.
pub struct MemoryStore {
    /// Their number is a power of two.
    shards: Box<[CachePadded<Mutex<RecordShard>>]>,
}

impl MemoryStore {
    /// An empty store of at most `max_keys` records.
    pub fn new(max_keys: usize) -> Self {
        let wanted = (max_keys / MIN_RECORDS_PER_SHARD).clamp(1, MAX_SHARDS);
        let count = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let shard = || CachePadded::new(Mutex::new(RecordShard::new(max_keys / count)));
        Self { shards: (0..count).map(|_| shard()).collect() }
    }

    /// Decides all charges of a request at `now`, and charges all or none.
    pub fn charge(&self, charges: &[Charge<'_>], now: StoreTime) -> Verdict {
        self.charge_as(DecisionSource::Store, charges, now, 1)
    }

    /// Decides and charges like [`Self::charge`], but enforces a share of each quota: the fallback
    /// for Redis. Each of `gateways` has an even share, rounded up, so that the shares add up to at
    /// least the quota.
    pub fn charge_share(&self, charges: &[Charge<'_>], now: StoreTime, gateways: u32) -> Verdict {
        self.charge_as(DecisionSource::Fallback, charges, now, gateways)
    }

    fn charge_as(
        &self,
        source: DecisionSource,
        charges: &[Charge<'_>],
        now: StoreTime,
        gateways: u32,
    ) -> Verdict {
        if let [charge] = charges {
            let charge = RecordCharge::new(charge, charge.cost, gateways);
            let mut verdict = Verdict::empty();
            let decision = self.lock(self.shard_of(charge.id)).admit(&charge, now);
            verdict.push(StoreDecision::new(decision, now, source), charge.enforce);
            return verdict;
        }
        let mut joint: SmallVec<[JointCharge; 4]> = charges
            .iter()
            .map(|charge| RecordCharge::new(charge, total_cost(charges, charge), gateways))
            .map(|charge| JointCharge { charge, running_cost: charge.cost, decision: None })
            .collect();
        let admitted = self.charge_all(&mut joint, now);
        let mut verdict = Verdict::empty();
        for JointCharge { charge, decision, .. } in joint {
            if let Some(decision) = decision {
                verdict.push(StoreDecision::new(decision, now, source), charge.enforce);
            }
        }
        debug_assert_eq!(verdict.admitted, admitted);
        verdict
    }

    /// Decides all charges, and makes them if every enforced limit admits. True if it made them.
    fn charge_all(&self, charges: &mut [JointCharge], now: StoreTime) -> bool {
        // A second charge on the same record is decided on top of the first.
        for index in 1..charges.len() {
            let (before, rest) = charges.split_at_mut(index);
            let same = before.iter().filter(|other| other.charge.id == rest[0].charge.id);
            rest[0].running_cost =
                same.fold(rest[0].charge.cost, |sum, other| add_costs(sum, other.charge.cost));
        }
        let mut shards: SmallVec<[usize; 4]> =
            charges.iter().map(|joint| self.shard_of(joint.charge.id)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[MutexGuard<'_, RecordShard>; 4]> =
            shards.iter().map(|&shard| self.lock(shard)).collect();
        let position = |id| shards.partition_point(|&shard| shard < self.shard_of(id));
        let mut admitted = true;
        for JointCharge { charge, running_cost, decision } in &mut *charges {
            let decided = locked[position(charge.id)].decide(charge, now, *running_cost);
            admitted &= decided.admitted || !charge.enforce;
            *decision = Some(decided);
        }
        if admitted {
            for JointCharge { charge, running_cost, decision } in charges {
                let shard = &mut locked[position(charge.id)];
                *decision = Some(if decision.is_some_and(|decision| decision.admitted) {
                    shard.charge(charge, now)
                } else {
                    Decision { admitted: false, ..shard.decide(charge, now, *running_cost) }
                });
            }
        }
        admitted
    }

    /// Decides each charge independently at `now`, and charges nothing.
    pub fn peek(&self, charges: &[Charge<'_>], now: StoreTime) -> Verdict {
        self.peek_as(DecisionSource::Store, charges, now, 1)
    }

    /// Like [`Self::peek`], for a share of each quota as in [`Self::charge_share`].
    pub fn peek_share(&self, charges: &[Charge<'_>], now: StoreTime, gateways: u32) -> Verdict {
        self.peek_as(DecisionSource::Fallback, charges, now, gateways)
    }

    fn peek_as(
        &self,
        source: DecisionSource,
        charges: &[Charge<'_>],
        now: StoreTime,
        gateways: u32,
    ) -> Verdict {
        let mut verdict = Verdict::empty();
        for charge in charges.iter().map(|charge| RecordCharge::new(charge, charge.cost, gateways))
        {
            let decision = self.lock(self.shard_of(charge.id)).decide(&charge, now, charge.cost);
            verdict.push(StoreDecision::new(decision, now, source), charge.enforce);
        }
        verdict
    }

    /// Removes the record of a caller under `limit`.
    pub fn reset(&self, limit: &Limit, key: Key) {
        let id = nonzero_record_id(limit, key);
        self.lock(self.shard_of(id)).remove(id);
    }

    /// Adjusts a charge, and returns the decision after it, for the share of one of `gateways` as
    /// in [`Self::charge_share`].
    pub fn adjust(&self, adjustment: &Adjustment<'_>, now: StoreTime, gateways: u32) -> Decision {
        let &Adjustment { limit, key, change } = adjustment;
        // The share depends on the limit's cost, not on the adjustment's.
        let charge = Charge { limit, key, cost: limit.cost };
        let charge = RecordCharge {
            cost: change.cost(),
            ..RecordCharge::new(&charge, limit.cost, gateways)
        };
        self.lock(self.shard_of(charge.id)).adjust(&charge, now, change)
    }

    /// Removes expired records from a bounded part of each shard; a full sweep takes several calls.
    /// Called once a second by the control task.
    pub fn expire(&self, now: StoreTime) {
        for shard in 0..self.shards.len() {
            let mut left = self.lock(shard).slots() / CALLS_PER_SWEEP + SLOTS_PER_LOCK / 4;
            while left > 0 {
                let part = left.min(SLOTS_PER_LOCK);
                if self.lock(shard).sweep(part, now) {
                    break;
                }
                left -= part;
            }
        }
    }

    /// The number of records. Takes every lock, one after the other.
    pub fn len(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).len()).sum()
    }

    /// True if there are no records. Takes every lock, one after the other.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of records that fit into the allocated tables. Takes every lock, one after the
    /// other.
    pub fn capacity(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).capacity()).sum()
    }

    /// The number of records removed before they expired, because the store was full. Takes every
    /// lock, one after the other.
    pub fn evictions(&self) -> u64 {
        (0..self.shards.len()).map(|shard| self.lock(shard).evictions()).sum()
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, RecordShard> {
        self.shards[shard].lock()
    }

    /// The shard of a record: from the upper half of the id, because the table hashes by the lower
    /// half.
    fn shard_of(&self, id: u128) -> usize {
        (id >> 64) as usize & (self.shards.len() - 1)
    }
}

/// The id of a caller's record under a limit; never 0, which marks an empty slot.
fn nonzero_record_id(limit: &Limit, key: Key) -> u128 {
    record_id(limit, key).max(1)
}

/// The share of a quota that one of `gateways` enforces by itself, for a request of `cost`.
fn share(quota: Quota, cost: u64, gateways: u32) -> Quota {
    if gateways <= 1 {
        return quota;
    }
    let limit = quota.limit.div_ceil(gateways.into());
    match quota.algorithm {
        Algorithm::LeakyBucket { max_wait } => {
            let max_wait = max_wait.max(needed_max_wait(&quota, limit, cost));
            Quota { limit, algorithm: Algorithm::LeakyBucket { max_wait }, ..quota }
        }
        Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::FixedWindow
        | Algorithm::CalendarWindow(_)
        | Algorithm::TokenBucket
        | Algorithm::Concurrency
        | Algorithm::Block { .. } => {
            // At least `cost`: a smaller share would always refuse the request, without a retry
            // time.
            Quota { limit: limit.max(cost).min(quota.limit), ..quota }
        }
    }
}

/// The `max_wait` with which an empty bucket of this share's `rate` admits a request of `cost`;
/// zero if the request does not fit into the whole quota. It may exceed the configured
/// `max_wait`, but only for later slots of the request: it waits for its first slot alone, which
/// begins in time.
fn needed_max_wait(quota: &Quota, rate: u64, cost: u64) -> Millis {
    if cost > quota.capacity() {
        return Millis::ZERO;
    }
    // The last slot, in units of `1 / rate` ms.
    let last = quota.window.saturating_mul(cost.max(1) - 1).as_ms();
    Millis::from_ms(last.div_ceil(rate)).min(leaky_bucket::MAX_WAIT)
}

/// The sum of two costs, or more than any quota if it is above the largest quota.
fn add_costs(one: u64, other: u64) -> u64 {
    one.saturating_add(other).min(MAX_UNITS + 1)
}

/// The total cost that a request charges to the record of `charge`.
fn total_cost(charges: &[Charge<'_>], charge: &Charge<'_>) -> u64 {
    let id = |charge: &Charge<'_>| nonzero_record_id(charge.limit, charge.key);
    let of_record = charges.iter().filter(|other| id(other) == id(charge));
    of_record.fold(0, |sum, other| add_costs(sum, other.cost))
}

impl RecordCharge {
    /// The charge of one record, with a share of the quota that is large enough for `min_cost`.
    fn new(charge: &Charge<'_>, min_cost: u64, gateways: u32) -> Self {
        let Limit { quota, enforce, .. } = **charge.limit;
        let quota = share(quota, min_cost, gateways);
        let id = nonzero_record_id(charge.limit, charge.key);
        Self { id, quota, cost: charge.cost, enforce }
    }
}
