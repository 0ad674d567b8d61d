//! What the store's last reply said, for the headers of requests that do not ask the store.

use crate::limit::{Decision, Millis, Quota};

/// One reply, as far as it holds for tokens that are spent here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeaseSnapshot {
    /// The end of the sub-window that the tokens were charged to (ms, by the store's clock); 0 before the
    /// first grant.
    pub end: Millis,
    /// What was left at the store after the grant.
    pub remaining: u64,
    /// The reset-at that clients were told.
    pub reset_at: Millis,
    /// The store's time when it decided.
    pub charged_at: Millis,
    /// What has to be added to ticks for the store's time, or less (modulo 2^64): the reply was late.
    pub offset: u64,
}

impl LeaseSnapshot {
    /// The store's time at `ticks`, or a little earlier: never before the charge, and inside the
    /// sub-window.
    pub fn now(&self, ticks: u64) -> Millis {
        let now = ticks.wrapping_add(self.offset);
        now.max(self.charged_at).min(self.end.saturating_sub(1))
    }

    /// What a caller is told whose tokens were taken at `ticks`, while `left` are still here.
    pub fn taken(&self, ticks: u64, left: u32) -> Taken {
        Taken {
            now: self.now(ticks),
            remaining: self.remaining + u64::from(left),
            reset_at: self.reset_at,
        }
    }
}

/// A charge that was made here, with tokens of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Taken {
    /// When, by the store's clock or a little earlier, inside the sub-window of the tokens: what a
    /// refund has to name.
    pub now: Millis,
    /// What is left at the store by its last reply, and here, in units of cost.
    pub remaining: u64,
    /// The reset-at of the store's last reply.
    pub reset_at: Millis,
}

impl Taken {
    /// The decision that it is.
    pub fn decision(&self, quota: &Quota) -> Decision {
        let limit = u64::from(quota.limit);
        let remaining = self.remaining.min(limit);
        Decision {
            admitted: true,
            limit,
            remaining,
            used: limit - remaining,
            reset_at: self.reset_at,
            retry_at: None,
            wait: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT: LeaseSnapshot = LeaseSnapshot {
        end: 1_000_500,
        remaining: 40,
        reset_at: 1_003_000,
        charged_at: 1_000_100,
        offset: 999_800,
    };

    #[test]
    fn the_stores_time_stays_in_the_sub_window_and_after_the_charge() {
        assert_eq!(SNAPSHOT.now(310), 1_000_110);
        assert_eq!(SNAPSHOT.now(0), 1_000_100);
        assert_eq!(SNAPSHOT.now(900), 1_000_499);
        let ahead =
            LeaseSnapshot { offset: 5_u64.wrapping_neg(), charged_at: 0, end: 100, ..SNAPSHOT };
        assert_eq!(ahead.now(50), 45, "a store whose clock is behind the ticks");
    }

    #[test]
    fn a_caller_is_told_what_is_left_in_both_places() {
        let decision = SNAPSHOT.taken(310, 7).decision(&Quota::new(100, 3_000, 6));
        assert_eq!((decision.remaining, decision.used, decision.limit), (47, 53, 100));
        assert_eq!((decision.admitted, decision.reset_at), (true, 1_003_000));
        let lowered = SNAPSHOT.taken(310, 7).decision(&Quota::new(30, 3_000, 6));
        assert_eq!((lowered.remaining, lowered.used), (30, 0));
    }
}
