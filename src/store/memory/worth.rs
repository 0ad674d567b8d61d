//! How much a limit loses when a record is evicted: what decides who makes room in a full store.
//!
//! A limit loses what it has counted. So a record is worth the more, the more of its quota is used and
//! the more requests it took to use it; of equals the older is kept. A flood of made-up keys is then the
//! first to go: each key is charged once, however much that costs, and came later than the callers whom
//! it could push out. What remains is the flood that no bounded store can tell from callers: one of as
//! many keys as there is room for, each with as many requests (up to [`MAX`]) and as much of its quota
//! used as the caller's.

use crate::limit::Decision;

/// The most charges that are told apart, and the parts of a quota.
const MAX: u32 = 15;

/// Births are in seconds, modulo 2^24: half a year.
const AGES: u32 = (1 << 24) - 1;

/// Charges (4 bits), the used share of the quota (4 bits), and when the record was made (24 bits).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Worth(u32);

/// An order: the least is evicted first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Rank {
    used: u32,
    age: u32,
}

impl Worth {
    /// That of a record that is made at `now`, in seconds, and was not charged yet.
    pub(super) fn new(now: u32) -> Self {
        Self(now & AGES)
    }

    /// One more charge, after which `decision` holds.
    pub(super) fn charged(self, decision: &Decision) -> Self {
        self.with((self.charges() + 1).min(MAX), share(decision))
    }

    /// A correction, after which `decision` holds.
    pub(super) fn corrected(self, decision: &Decision) -> Self {
        self.with(self.charges(), share(decision))
    }

    /// A charge or a correction of a limit on requests in flight, after which `decision` holds: while a
    /// slot is held nothing is worth more, and no more are held than there are connections.
    pub(super) fn held(self, decision: &Decision) -> Self {
        let all = if decision.used > 0 { MAX } else { 0 };
        self.with(all, all)
    }

    pub(super) fn rank(self, now: u32) -> Rank {
        let share = self.0 >> 24 & MAX;
        Rank { used: self.charges() * share, age: now.wrapping_sub(self.0) & AGES }
    }

    fn charges(self) -> u32 {
        self.0 >> 28
    }

    fn with(self, charges: u32, share: u32) -> Self {
        Self(charges << 28 | share << 24 | self.0 & AGES)
    }
}

/// The used share of the quota, in parts of [`MAX`], rounded up.
fn share(decision: &Decision) -> u32 {
    let share = decision.used as f32 / decision.limit.max(1) as f32;
    ((share * MAX as f32).ceil() as u32).min(MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(used: u64, limit: u64) -> Decision {
        Decision {
            admitted: true,
            limit,
            remaining: limit.saturating_sub(used),
            used,
            reset_at: 0,
            retry_at: None,
            wait: 0,
        }
    }

    /// After so many charges of one unit each.
    fn charged(born: u32, charges: u64, limit: u64) -> Rank {
        let worth = (1..=charges)
            .fold(Worth::new(born), |worth, used| worth.charged(&decision(used, limit)));
        worth.rank(100)
    }

    #[test]
    fn what_took_more_requests_and_a_larger_share_is_worth_more() {
        assert!(charged(50, 1, 1_000) < charged(50, 1, 1), "a larger share");
        assert!(charged(50, 1, 1) < charged(50, 9, 10), "more requests");
        assert!(charged(50, 2, 1_000) < charged(50, 1, 2));
        assert!(charged(60, 1, 1) < charged(50, 1, 1), "the older of equals");
        assert_eq!(charged(50, 1_000, 1_000), charged(50, 15, 15), "bounded");
        let overdrawn = Worth::new(50).charged(&decision(30, 10));
        assert_eq!(overdrawn, Worth::new(50).charged(&decision(10, 10)));
    }

    #[test]
    fn what_is_given_back_counts_no_more() {
        let worth = Worth::new(50).charged(&decision(10, 10));
        assert!(worth.corrected(&decision(0, 10)).rank(100) < charged(99, 1, 1_000));
    }

    #[test]
    fn ages_do_not_end_with_the_bits() {
        let (old, young) = (Worth::new(AGES - 5), Worth::new(AGES + 5));
        assert!(young.rank(AGES + 10) < old.rank(AGES + 10));
    }
}
