//! Ranks records for eviction from a full store.
//!
//! An evicted record loses its count. Records are therefore ranked by the used share of their quota
//! times their number of charges, then by age. A flood of made-up keys is then evicted first: each
//! key is charged once, with any cost, and is newer than the callers that it competes with. No
//! bounded store can distinguish one kind of flood from callers: a flood with enough keys to fill
//! the store, each of which makes as many requests (up to [`MAX_LEVEL`]) and uses as much of its
//! quota as a caller.

use tidegate_base::time::StoreTime;
use tidegate_limit::Decision;

/// Maximum number of charges that are counted, and number of steps in which the used share of a
/// quota is measured.
const MAX_LEVEL: u32 = 15;

/// Creation times are in ms, modulo 2^24 (4.6 hours).
const AGE_MASK: u32 = (1 << 24) - 1;

/// Maximum age, in ms (2.3 hours). Sweeps set the age of older records to it, so that the creation
/// time does not wrap around.
const MAX_AGE: u32 = AGE_MASK / 2;

/// The number of charges (4 bits), the used share of the quota (4 bits) and the creation time (24
/// bits).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct RecordUsage(u32);

/// The eviction order: the lowest rank is evicted first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct EvictionRank {
    /// The number of charges times the used share of the quota.
    score: u32,
    age: u32,
}

impl RecordUsage {
    /// The usage of a record created at `now` and not charged yet.
    pub(super) fn new(now: StoreTime) -> Self {
        Self(now.as_unix_ms() as u32 & AGE_MASK)
    }

    /// The same usage with an age of at most [`MAX_AGE`] at `now`. Call it at least every hour.
    pub(super) fn with_bounded_age(self, now: StoreTime) -> Self {
        if self.age(now) <= MAX_AGE {
            return self;
        }
        Self(self.0 & !AGE_MASK | Self::new(now).0.wrapping_sub(MAX_AGE) & AGE_MASK)
    }

    /// The usage after one more charge; `decision` is the decision after it.
    pub(super) fn with_charge(self, decision: &Decision) -> Self {
        self.with((self.charges() + 1).min(MAX_LEVEL), share(decision))
    }

    /// The usage after an adjustment; `decision` is the decision after it.
    pub(super) fn with_adjustment(self, decision: &Decision) -> Self {
        self.with(self.charges(), share(decision))
    }

    /// The usage of a concurrency limit's record after a charge or an adjustment. The record has
    /// the highest rank while permits are held; the number of connections bounds the number of such
    /// records.
    pub(super) fn with_held_permits(self, decision: &Decision) -> Self {
        let level = if decision.used > 0 { MAX_LEVEL } else { 0 };
        self.with(level, level)
    }

    pub(super) fn rank(self, now: StoreTime) -> EvictionRank {
        let share = self.0 >> 24 & MAX_LEVEL;
        EvictionRank { score: self.charges() * share, age: self.age(now) }
    }

    /// In ms; 0 if the clock was set back since the creation.
    fn age(self, now: StoreTime) -> u32 {
        let age = (now.as_unix_ms() as u32).wrapping_sub(self.0) & AGE_MASK;
        if age > MAX_AGE / 2 * 3 { 0 } else { age }
    }

    fn charges(self) -> u32 {
        self.0 >> 28
    }

    fn with(self, charges: u32, share: u32) -> Self {
        Self(charges << 28 | share << 24 | self.0 & AGE_MASK)
    }
}

/// The used share of the quota, in parts of [`MAX_LEVEL`], rounded up.
fn share(decision: &Decision) -> u32 {
    let share = decision.used as f32 / decision.limit.max(1) as f32;
    ((share * MAX_LEVEL as f32).ceil() as u32).min(MAX_LEVEL)
}

#[cfg(test)]
mod tests {
    use tidegate_base::time::Millis;

    use super::*;

    fn decision(used: u64, limit: u64) -> Decision {
        Decision {
            admitted: true,
            limit,
            remaining: limit.saturating_sub(used),
            used,
            reset_at: StoreTime::ZERO,
            retry_at: None,
            wait: Millis::ZERO,
        }
    }

    fn ms(unix_ms: u64) -> StoreTime {
        StoreTime::from_unix_ms(unix_ms)
    }

    /// The rank after `charges` charges of one unit each.
    fn charged(created: u64, charges: u64, limit: u64) -> EvictionRank {
        let usage = (1..=charges).fold(RecordUsage::new(ms(created)), |usage, used| {
            usage.with_charge(&decision(used, limit))
        });
        usage.rank(ms(100))
    }

    #[test]
    fn more_requests_and_a_larger_share_rank_higher() {
        assert!(charged(50, 1, 1_000) < charged(50, 1, 1), "a larger share");
        assert!(charged(50, 1, 1) < charged(50, 9, 10), "more requests");
        assert!(charged(50, 2, 1_000) < charged(50, 1, 2));
        assert!(charged(60, 1, 1) < charged(50, 1, 1), "the older of equals");
        assert_eq!(charged(50, 1_000, 1_000), charged(50, 15, 15), "bounded");
        let overdrawn = RecordUsage::new(ms(50)).with_charge(&decision(30, 10));
        assert_eq!(overdrawn, RecordUsage::new(ms(50)).with_charge(&decision(10, 10)));
    }

    #[test]
    fn a_refund_lowers_the_rank() {
        let usage = RecordUsage::new(ms(50)).with_charge(&decision(10, 10));
        assert!(usage.with_adjustment(&decision(0, 10)).rank(ms(100)) < charged(99, 1, 1_000));
    }

    #[test]
    fn ages_survive_the_overflow_of_the_creation_time() {
        let overflow = u64::from(AGE_MASK);
        let (old, young) = (RecordUsage::new(ms(overflow - 5)), RecordUsage::new(ms(overflow + 5)));
        assert!(young.rank(ms(overflow + 10)) < old.rank(ms(overflow + 10)));
        assert_eq!(
            young.rank(ms(overflow)),
            young.rank(ms(overflow + 5)),
            "a clock that was set back"
        );
    }

    #[test]
    fn a_sweep_keeps_old_records_older_than_young_ones() {
        let mut old = RecordUsage::new(ms(0)).with_charge(&decision(10, 10));
        let before = old.rank(ms(0));
        for hour in 1..10_000 {
            let now = hour * 3_600_000;
            old = old.with_bounded_age(ms(now));
            let young = RecordUsage::new(ms(now - 3_600_000)).with_charge(&decision(10, 10));
            assert!(young.rank(ms(now)) < old.rank(ms(now)) || hour == 1, "in hour {hour}");
        }
        assert_eq!(old.rank(ms(0)).score, before.score);
    }
}
