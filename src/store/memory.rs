//! Counters in this process: shared by all workers, exact, bounded, expiring.
//!
//! Records are spread over shards, each a table behind a lock. A request takes the locks of all its
//! records, in the order of their shards, decides all and charges all or none; so no two requests
//! wait for each other in a ring, and no one ever sees half a charge.

mod shard;
mod table;
#[cfg(test)]
mod tests;
mod worth;

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use self::shard::{Ask, Shard};
use super::record_id;
use crate::limit::{
    Algorithm, Charge, Decided, Decider, Decision, Key, Limit, Millis, Quota, Settlement, Verdict,
    leaky_bucket,
};

/// The most shards that records are spread over.
const MAX_SHARDS: usize = 256;

/// A shard is worth its lock only from so many records on; fewer also would make the bound uneven.
const MIN_KEYS_PER_SHARD: usize = 1_024;

/// A tick visits one in so many slots of each shard, so that a round takes so many ticks.
const TICKS_PER_ROUND: usize = 16;

/// The most slots visited under one lock.
const SLOTS_PER_LOCK: usize = 1_024;

/// One charge of a request with several, on its way.
struct Pending {
    ask: Ask,
    /// Its cost, and that of those before it on the same record.
    asked: u32,
    decision: Option<Decision>,
}

/// The counters of all limits, in this process's memory.
pub struct Memory {
    /// A power of two of them.
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl Memory {
    /// An empty store of at most `max_keys` records in all.
    pub fn new(max_keys: usize) -> Self {
        let wanted = (max_keys / MIN_KEYS_PER_SHARD).clamp(1, MAX_SHARDS);
        let count = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let shard = || CachePadded::new(Mutex::new(Shard::new(max_keys / count)));
        Self { shards: (0..count).map(|_| shard()).collect() }
    }

    /// Decides all charges of a request at `now`, and charges all or none.
    pub fn charge(&self, charges: &[Charge<'_>], now: Millis) -> Verdict {
        self.charge_as(Decider::Store, charges, now, 1)
    }

    /// The same in place of a Redis that gave no answer, for one of `gateways` that share each quota
    /// evenly, none of them losing the odd unit.
    pub fn charge_share(&self, charges: &[Charge<'_>], now: Millis, gateways: u32) -> Verdict {
        self.charge_as(Decider::Fallback, charges, now, gateways)
    }

    fn charge_as(
        &self,
        by: Decider,
        charges: &[Charge<'_>],
        now: Millis,
        gateways: u32,
    ) -> Verdict {
        if let [charge] = charges {
            let ask = ask(charge, charge.cost, gateways);
            let mut verdict = Verdict::empty();
            let decision = self.lock(self.shard_of(ask.id)).admit(&ask, now);
            verdict.push(Decided { decision, at: now, by }, ask.enforce);
            return verdict;
        }
        let mut asks: SmallVec<[Pending; 4]> = charges
            .iter()
            .map(|charge| ask(charge, cost_together(charges, charge), gateways))
            .map(|ask| Pending { ask, asked: ask.cost, decision: None })
            .collect();
        let admitted = self.charge_all(&mut asks, now);
        let mut verdict = Verdict::empty();
        for Pending { ask, decision, .. } in asks {
            if let Some(decision) = decision {
                verdict.push(Decided { decision, at: now, by }, ask.enforce);
            }
        }
        debug_assert_eq!(verdict.admitted, admitted);
        verdict
    }

    /// Decides all, and charges them if every one that is enforced admits; says whether.
    fn charge_all(&self, charges: &mut [Pending], now: Millis) -> bool {
        // Two charges on one record: the second is decided on top of the first.
        for at in 1..charges.len() {
            let (before, rest) = charges.split_at_mut(at);
            let same = before.iter().filter(|other| other.ask.id == rest[0].ask.id);
            rest[0].asked = same.fold(rest[0].ask.cost, |sum, c| sum.saturating_add(c.ask.cost));
        }
        let mut shards: SmallVec<[usize; 4]> =
            charges.iter().map(|charge| self.shard_of(charge.ask.id)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[MutexGuard<'_, Shard>; 4]> =
            shards.iter().map(|&shard| self.lock(shard)).collect();
        let place = |id| shards.partition_point(|&shard| shard < self.shard_of(id));
        let mut admitted = true;
        for Pending { ask, asked, decision } in &mut *charges {
            let decided = locked[place(ask.id)].decide(ask, now, *asked);
            admitted &= decided.admitted || !ask.enforce;
            *decision = Some(decided);
        }
        if admitted {
            for Pending { ask, asked, decision } in charges {
                let shard = &mut locked[place(ask.id)];
                *decision = Some(if decision.is_some_and(|decision| decision.admitted) {
                    shard.charge(ask, now)
                } else {
                    Decision { admitted: false, ..shard.decide(ask, now, *asked) }
                });
            }
        }
        admitted
    }

    /// What each of these charges would meet by itself at `now`; charges nothing.
    pub fn look(&self, charges: &[Charge<'_>], now: Millis) -> Verdict {
        self.look_as(Decider::Store, charges, now, 1)
    }

    /// The same in place of a Redis that gave no answer, as [`Self::charge_share`].
    pub fn look_share(&self, charges: &[Charge<'_>], now: Millis, gateways: u32) -> Verdict {
        self.look_as(Decider::Fallback, charges, now, gateways)
    }

    fn look_as(&self, by: Decider, charges: &[Charge<'_>], now: Millis, gateways: u32) -> Verdict {
        let mut verdict = Verdict::empty();
        for ask in charges.iter().map(|charge| ask(charge, charge.cost, gateways)) {
            let decision = self.lock(self.shard_of(ask.id)).decide(&ask, now, ask.cost);
            verdict.push(Decided { decision, at: now, by }, ask.enforce);
        }
        verdict
    }

    /// Forgets what `limit` remembers of a caller.
    pub fn reset(&self, limit: &Limit, key: Key) {
        let id = record(limit, key);
        self.lock(self.shard_of(id)).forget(id);
    }

    /// Corrects what a request was charged, and tells what holds after it: the share of one of
    /// `gateways`, as in [`Self::charge_share`].
    pub fn settle(&self, settlement: &Settlement<'_>, now: Millis, gateways: u32) -> Decision {
        let &Settlement { limit, key, change } = settlement;
        // The share is that of the charge, whatever the correction is.
        let charge = Charge { limit, key, cost: limit.cost };
        let ask = Ask { cost: change.cost(), ..ask(&charge, limit.cost, gateways) };
        self.lock(self.shard_of(ask.id)).settle(&ask, now, change)
    }

    /// Expires a bounded part of the records; a full round takes some ticks. To be called once a
    /// second from the control thread.
    pub fn tick(&self, now: Millis) {
        for shard in 0..self.shards.len() {
            let mut left = self.lock(shard).slots() / TICKS_PER_ROUND + SLOTS_PER_LOCK / 4;
            while left > 0 {
                let part = left.min(SLOTS_PER_LOCK);
                if self.lock(shard).sweep(part, now) {
                    break;
                }
                left -= part;
            }
        }
    }

    /// Records held. Takes every lock, one after the other.
    pub fn len(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).len()).sum()
    }

    /// Whether no record is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records that the tables could hold without growing: what memory is taken for.
    pub fn capacity(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).capacity()).sum()
    }

    /// Records removed before their time, because the store was full.
    pub fn evictions(&self) -> u64 {
        (0..self.shards.len()).map(|shard| self.lock(shard).evicted()).sum()
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock()
    }

    /// Which shard holds a record. The table hashes by the other half of the bits.
    fn shard_of(&self, id: u128) -> usize {
        (id >> 64) as usize & (self.shards.len() - 1)
    }
}

/// The name of the record that a limit keeps of a caller; never 0, which is no record's name.
fn record(limit: &Limit, key: Key) -> u128 {
    record_id::record(limit, key).max(1)
}

/// The share of a quota's number that one of `gateways` enforces alone, for a request of `cost`.
pub(super) fn share(quota: u32, cost: u32, gateways: u32) -> u32 {
    match gateways {
        0 | 1 => quota,
        // A share that no request fits into would refuse for ever, and could name no time to retry.
        _ => quota.div_ceil(gateways).max(cost).min(quota),
    }
}

/// The share of a leaky bucket's rate. A request of `cost` that fits into the whole bucket fits into the
/// empty share: its last slot may begin later than `max_wait`, and its first not, which is its wait.
fn leaky_share(quota: Quota, cost: u32, gateways: u32) -> Quota {
    let rate = quota.limit.div_ceil(gateways);
    if u64::from(cost) > leaky_bucket::slots(&quota) {
        return Quota { limit: rate, ..quota };
    }
    let last = (u64::from(cost.max(1)) - 1) * quota.window;
    let max_wait = u32::try_from(last.div_ceil(rate.into())).unwrap_or(u32::MAX);
    Quota { limit: rate, max_wait: quota.max_wait.max(max_wait), ..quota }
}

/// What a request charges the record of `charge` in all.
fn cost_together(charges: &[Charge<'_>], charge: &Charge<'_>) -> u32 {
    let id = |charge: &Charge<'_>| record(charge.limit, charge.key);
    let of_record = charges.iter().filter(|other| id(other) == id(charge));
    of_record.fold(0, |sum, other| sum.saturating_add(other.cost))
}

/// A charge, and the share of its quota into which `fits` must fit.
fn ask(charge: &Charge<'_>, fits: u32, gateways: u32) -> Ask {
    let quota = charge.limit.quota;
    let quota = match charge.limit.algorithm {
        _ if gateways <= 1 => quota,
        Algorithm::LeakyBucket => leaky_share(quota, fits, gateways),
        _ => Quota { limit: share(quota.limit, fits, gateways), ..quota },
    };
    let id = record(charge.limit, charge.key);
    let Limit { algorithm, enforce, .. } = *charge.limit;
    Ask { id, algorithm, quota, cost: charge.cost, enforce }
}
