//! The sums that Redis was charged after an outage, kept while they count. With them, a request that was
//! charged locally can still be refunded in Redis after its sum was charged there.
//!
//! The number of sums is bounded: one that finds no room cannot be refunded, so Redis counts too much.

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::limit::{Change, Millis};

/// The maximum number of records, as in the outage ledger.
const CAPACITY: usize = 1 << 14;

/// Merged sums by record.
#[derive(Default)]
pub(super) struct MergedSums(Mutex<HashMap<u128, MergedSum, RandomState>>);

/// The last sum that Redis was charged for one record.
struct MergedSum {
    /// When it was charged, in ms by the clock of Redis.
    charged_at: Millis,
    /// The part that has not been refunded.
    cost: u32,
    /// The monotonic time from which it no longer counts.
    expires: u64,
}

impl MergedSums {
    /// Adds a sum that Redis was charged; it counts until the monotonic time `expires`.
    pub(super) fn insert(&self, record: u128, charged_at: Millis, cost: u32, expires: u64) {
        let mut sums = self.0.lock();
        if let Some(sum) = sums.get_mut(&record) {
            let before = if sum.charged_at == charged_at { sum.cost } else { 0 };
            *sum = MergedSum { charged_at, cost: before.saturating_add(cost), expires };
        } else if sums.len() < CAPACITY {
            sums.insert(record, MergedSum { charged_at, cost, expires });
        }
    }

    /// Deducts up to `cost` from a record's sum, and returns the refund to be made in Redis; `None` if
    /// nothing of the sum is left.
    pub(super) fn take_refund(&self, record: u128, cost: u32) -> Option<Change> {
        let mut sums = self.0.lock();
        let sum = sums.get_mut(&record)?;
        let cost = cost.min(sum.cost);
        sum.cost -= cost;
        (cost > 0).then_some(Change::Refund { charged_at: sum.charged_at, cost })
    }

    /// Removes the sum of a record that the operator has deleted.
    pub(super) fn remove(&self, record: u128) {
        self.0.lock().remove(&record);
    }

    /// Drops sums that no longer count.
    pub(super) fn expire(&self, monotonic_ms: u64) {
        let mut sums = self.0.lock();
        if sums.is_empty() {
            return;
        }
        sums.retain(|_, sum| sum.expires > monotonic_ms && sum.cost > 0);
        if sums.is_empty() {
            *sums = HashMap::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refund(charged_at: Millis, cost: u32) -> Change {
        Change::Refund { charged_at, cost }
    }

    #[test]
    fn refunds_never_exceed_the_charged_sum() {
        let sums = MergedSums::default();
        sums.insert(1, 100, 5, 60);
        assert_eq!(sums.take_refund(1, 3), Some(refund(100, 3)));
        assert_eq!(sums.take_refund(1, 3), Some(refund(100, 2)));
        assert_eq!((sums.take_refund(1, 3), sums.take_refund(2, 3)), (None, None));
    }

    #[test]
    fn only_the_last_sum_of_a_record_can_be_refunded() {
        let sums = MergedSums::default();
        for (charged_at, cost) in [(100, 5), (100, 6), (200, 1)] {
            sums.insert(1, charged_at, cost, 60);
            let expected = if charged_at == 200 { refund(200, 1) } else { refund(100, 1) };
            assert_eq!(sums.take_refund(1, 1), Some(expected));
        }
        sums.insert(1, 200, 2, 60);
        sums.remove(1);
        assert_eq!(sums.take_refund(1, 1), None);
    }

    #[test]
    fn expired_sums_are_dropped_and_the_rest_is_bounded() {
        let sums = MergedSums::default();
        for record in 0..2 * CAPACITY as u128 {
            sums.insert(record, 100, 1, 60 + u64::from(record == 0));
        }
        assert_eq!(sums.0.lock().len(), CAPACITY);
        sums.expire(60);
        assert_eq!(sums.0.lock().len(), 1);
        sums.expire(61);
        assert_eq!(sums.0.lock().capacity(), 0);
    }
}
