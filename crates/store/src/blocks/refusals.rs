//! [`RefusalCounts`]: refusals that Redis does not know yet, by the record of their block.

use std::sync::Arc;

use hashbrown::{HashMap, hash_map::Entry};
use parking_lot::Mutex;
use tidegate_base::time::MonotonicTime;
use tidegate_charge::{Charge, Key, Limit, StoreDecision};
use tidegate_limit::Change;

use super::block_record;

/// Number of shards, each behind its own lock.
const SHARDS: usize = 16;

/// Maximum number of records in a shard. Refusals of further callers are sent one by one.
const MAX_PER_SHARD: usize = 4_096;

/// Refusals of the process, for all workers.
#[derive(Default)]
pub(super) struct RefusalCounts {
    shards: [Mutex<HashMap<u128, CallerRefusals, ahash::RandomState>>; SHARDS],
}

/// The refusals of one caller within the block's window.
struct CallerRefusals {
    block: Arc<Limit>,
    key: Key,
    /// In Redis, by its last reply and the calls since.
    sent: u64,
    pending: u64,
    /// When the window ends, or later.
    ends: MonotonicTime,
}

impl RefusalCounts {
    /// Counts a refusal. Returns the number of refusals to send at once: all that are pending if
    /// the block begins with this one, else 0.
    pub(super) fn count(&self, block: &Charge<'_>, monotonic: MonotonicTime) -> u64 {
        let (limit, record) = (block.limit, block_record(block));
        let mut shard = self.shard(record).lock();
        if shard.len() >= MAX_PER_SHARD && !shard.contains_key(&record) {
            return 1;
        }
        let ends = monotonic.after(limit.quota.window);
        let caller = match shard.entry(record) {
            Entry::Occupied(caller) => caller.into_mut(),
            Entry::Vacant(vacant) => {
                let (block, key) = (Arc::clone(limit), block.key);
                vacant.insert(CallerRefusals { block, key, sent: 0, pending: 0, ends })
            }
        };
        if caller.ends <= monotonic {
            (caller.sent, caller.ends) = (0, ends);
        }
        caller.pending = caller.pending.saturating_add(1);
        if caller.sent.saturating_add(caller.pending) < limit.quota.limit {
            return 0;
        }
        // If the window began later than assumed, no block begins yet: count on from here.
        caller.sent = caller.sent.saturating_add(caller.pending).min(limit.quota.limit - 1);
        std::mem::take(&mut caller.pending)
    }

    /// Takes all pending refusals, and drops the callers whose window has ended.
    pub(super) fn take(&self, monotonic: MonotonicTime) -> Vec<(Arc<Limit>, Key, Change)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|_, caller| {
                let refusals = std::mem::take(&mut caller.pending);
                if refusals > 0 {
                    caller.sent = caller.sent.saturating_add(refusals);
                    let change = Change::Overdraw { cost: refusals };
                    taken.push((Arc::clone(&caller.block), caller.key, change));
                }
                refusals > 0 || caller.ends > monotonic
            });
        }
        taken
    }

    /// Records what Redis has counted, by a reply that was received at `received`.
    pub(super) fn record_reply(
        &self,
        block: &Charge<'_>,
        counted: &StoreDecision,
        received: MonotonicTime,
    ) {
        let record = block_record(block);
        let mut shard = self.shard(record).lock();
        if counted.decision.remaining == 0 {
            shard.remove(&record);
        } else if let Some(caller) = shard.get_mut(&record) {
            caller.sent = counted.decision.used;
            let left = counted.decision.reset_at.since(counted.at);
            caller.ends = received.after(left);
        }
    }

    /// Forgets the refusals of a record.
    pub(super) fn discard(&self, record: u128) {
        self.shard(record).lock().remove(&record);
    }

    fn shard(&self, record: u128) -> &Mutex<HashMap<u128, CallerRefusals, ahash::RandomState>> {
        &self.shards[record as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use tidegate_base::time::{StoreTime, ms};
    use tidegate_charge::{DecisionSource, LimitIdentity};
    use tidegate_limit::{Algorithm, Decision, Millis, Quota};

    use super::*;

    const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

    fn at_ms(ms: u64) -> MonotonicTime {
        MonotonicTime::from_ms(ms)
    }

    fn limit() -> Arc<Limit> {
        let quota = Quota::new(
            4,
            Millis::from_secs(10),
            Algorithm::Block { duration: Millis::from_secs(60) },
        );
        Arc::new(Limit::new(LimitIdentity::new("login~block", 1), quota))
    }

    fn counted(used: u64) -> StoreDecision {
        let decision = Decision {
            admitted: true,
            limit: 4,
            remaining: 4_u64.saturating_sub(used),
            used,
            reset_at: NOW + ms(5_000),
            retry_at: None,
            wait: Millis::ZERO,
        };
        StoreDecision::new(decision, NOW, DecisionSource::Store)
    }

    #[test]
    fn refusals_are_summed_up_and_the_last_one_is_sent_at_once() {
        let (counts, limit) = (RefusalCounts::default(), limit());
        let block = Charge { limit: &limit, key: Key(7), cost: 1 };
        assert_eq!([0, 1].map(|at| counts.count(&block, at_ms(at))), [0, 0]);
        let taken = counts.take(at_ms(100));
        assert_eq!(taken.len(), 1, "one correction");
        assert_eq!((taken[0].1, taken[0].2), (Key(7), Change::Overdraw { cost: 2 }));
        assert!(counts.take(at_ms(200)).is_empty(), "each once");
        assert_eq!([300, 301].map(|at| counts.count(&block, at_ms(at))), [0, 2]);
    }

    #[test]
    fn the_counts_of_other_gateways_are_added() {
        let (counts, limit) = (RefusalCounts::default(), limit());
        let block = Charge { limit: &limit, key: Key(7), cost: 1 };
        counts.count(&block, at_ms(0));
        counts.take(at_ms(100));
        counts.record_reply(&block, &counted(3), at_ms(101));
        assert_eq!(counts.count(&block, at_ms(102)), 1);
        counts.record_reply(&block, &counted(2), at_ms(103));
        assert_eq!(counts.count(&block, at_ms(5_104)), 0, "the window has ended");
        counts.record_reply(&block, &counted(9), at_ms(5_105));
        assert!(counts.take(at_ms(5_200)).is_empty(), "a block has begun");
    }

    #[test]
    fn memory_is_bounded() {
        let (counts, limit) = (RefusalCounts::default(), limit());
        let count = |key| counts.count(&Charge { limit: &limit, key: Key(key), cost: 1 }, at_ms(0));
        let sent: u64 = (0..100_000).map(count).sum();
        let held = counts.take(at_ms(1)).len();
        assert_eq!(held + sent as usize, 100_000, "none is lost");
        assert!(held <= SHARDS * MAX_PER_SHARD, "{held}");
        assert!(counts.take(at_ms(10_001)).is_empty());
        assert!(counts.shards.iter().all(|shard| shard.lock().is_empty()), "they expire");
    }
}
