//! The sums that Redis has been charged after an outage, while they count. A request that was decided here
//! and is refunded after its sum was charged is refunded from them.
//!
//! Bounded: a refund of a record that had no room is not made in Redis, which then counts too much.

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::limit::{Change, Millis};

/// The most records: as many as the ledger of an outage has.
const RECORDS: usize = 1 << 14;

/// See the module.
#[derive(Default)]
pub(super) struct MergedSums(Mutex<HashMap<u128, MergedSum, RandomState>>);

/// What Redis was charged last for one record.
struct MergedSum {
    /// When (ms, by its clock).
    charged_at: Millis,
    /// What of it was not given back.
    cost: u32,
    /// The tick from which it counts no more.
    until: u64,
}

impl MergedSums {
    /// Redis has charged a sum.
    pub(super) fn insert(&self, record: u128, charged_at: Millis, cost: u32, until: u64) {
        let mut sums = self.0.lock();
        if let Some(sum) = sums.get_mut(&record) {
            let before = if sum.charged_at == charged_at { sum.cost } else { 0 };
            *sum = MergedSum { charged_at, cost: before.saturating_add(cost), until };
        } else if sums.len() < RECORDS {
            sums.insert(record, MergedSum { charged_at, cost, until });
        }
    }

    /// What gives back as much of a sum as is left of it.
    pub(super) fn refund(&self, record: u128, cost: u32) -> Option<Change> {
        let mut sums = self.0.lock();
        let sum = sums.get_mut(&record)?;
        let cost = cost.min(sum.cost);
        sum.cost -= cost;
        (cost > 0).then_some(Change::Refund { charged_at: sum.charged_at, cost })
    }

    /// The operator has deleted the record.
    pub(super) fn forget(&self, record: u128) {
        self.0.lock().remove(&record);
    }

    /// Drops what counts no more.
    pub(super) fn expire(&self, ticks: u64) {
        let mut sums = self.0.lock();
        if sums.is_empty() {
            return;
        }
        sums.retain(|_, sum| sum.until > ticks && sum.cost > 0);
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
    fn no_more_is_given_back_than_was_charged() {
        let sums = MergedSums::default();
        sums.insert(1, 100, 5, 60);
        assert_eq!(sums.refund(1, 3), Some(refund(100, 3)));
        assert_eq!(sums.refund(1, 3), Some(refund(100, 2)));
        assert_eq!((sums.refund(1, 3), sums.refund(2, 3)), (None, None));
    }

    #[test]
    fn the_last_sum_is_the_one_that_can_be_given_back() {
        let sums = MergedSums::default();
        for (charged_at, cost) in [(100, 5), (100, 6), (200, 1)] {
            sums.insert(1, charged_at, cost, 60);
            let expected = if charged_at == 200 { refund(200, 1) } else { refund(100, 1) };
            assert_eq!(sums.refund(1, 1), Some(expected));
        }
        sums.insert(1, 200, 2, 60);
        sums.forget(1);
        assert_eq!(sums.refund(1, 1), None);
    }

    #[test]
    fn what_is_past_is_dropped_and_the_rest_is_bounded() {
        let sums = MergedSums::default();
        for record in 0..2 * RECORDS as u128 {
            sums.insert(record, 100, 1, 60 + u64::from(record == 0));
        }
        assert_eq!(sums.0.lock().len(), RECORDS);
        sums.expire(60);
        assert_eq!(sums.0.lock().len(), 1);
        sums.expire(61);
        assert_eq!(sums.0.lock().capacity(), 0);
    }
}
