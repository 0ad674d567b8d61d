//! The store's last reply, for the response headers of requests that are decided here.

use tidegate_base::time::{Millis, MonotonicTime, StoreTime};
use tidegate_limit::{Decision, Quota};

/// The store's last reply about the units of a lease.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeaseSnapshot {
    /// The end of the sub-window to which the units were charged, by the store's clock; the epoch
    /// before the first grant.
    pub end: StoreTime,
    /// The units of cost left at the store after the grant, plus units to be returned.
    pub remaining: u64,
    /// The decision's reset time, by the store's clock.
    pub reset_at: StoreTime,
    /// The time of the decision, by the store's clock.
    pub charged_at: StoreTime,
    /// The monotonic time at which the reply was received: later than the decision by the delay of
    /// the reply.
    pub received: MonotonicTime,
}

impl LeaseSnapshot {
    /// The store's time at `monotonic`, or slightly earlier: never before the charge, and inside
    /// the sub-window.
    pub fn now(&self, monotonic: MonotonicTime) -> StoreTime {
        let now = self.charged_at.after(monotonic.since(self.received));
        now.min(self.end.before(Millis::MILLISECOND))
    }

    /// A charge at `monotonic` that leaves `left` units in the lease.
    pub fn charge(&self, monotonic: MonotonicTime, left: u64) -> LeaseCharge {
        LeaseCharge {
            charged_at: self.now(monotonic),
            remaining: self.remaining + left,
            reset_at: self.reset_at,
        }
    }
}

/// A request's charge, made here from leased units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaseCharge {
    /// The time of the charge by the store's clock, or slightly earlier, inside the units'
    /// sub-window. A refund refers to it.
    pub charged_at: StoreTime,
    /// The units of cost that are left: at the store by its last reply, plus in the lease.
    pub remaining: u64,
    /// The reset time of the store's last reply, by the store's clock.
    pub reset_at: StoreTime,
}

impl LeaseCharge {
    /// The decision for the request: admitted.
    pub fn decision(&self, quota: &Quota) -> Decision {
        let limit = quota.limit;
        let remaining = self.remaining.min(limit);
        Decision {
            admitted: true,
            limit,
            remaining,
            used: limit - remaining,
            reset_at: self.reset_at,
            retry_at: None,
            wait: Millis::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT: LeaseSnapshot = LeaseSnapshot {
        end: StoreTime::from_unix_ms(1_000_500),
        remaining: 40,
        reset_at: StoreTime::from_unix_ms(1_003_000),
        charged_at: StoreTime::from_unix_ms(1_000_100),
        received: MonotonicTime::from_ms(300),
    };

    #[test]
    fn time_stays_in_the_sub_window_and_after_the_charge() {
        assert_eq!(SNAPSHOT.now(MonotonicTime::from_ms(310)), StoreTime::from_unix_ms(1_000_110));
        assert_eq!(SNAPSHOT.now(MonotonicTime::ZERO), StoreTime::from_unix_ms(1_000_100));
        assert_eq!(SNAPSHOT.now(MonotonicTime::from_ms(900)), StoreTime::from_unix_ms(1_000_499));
        let behind = LeaseSnapshot {
            received: MonotonicTime::from_ms(5),
            charged_at: StoreTime::ZERO,
            end: StoreTime::from_unix_ms(100),
            ..SNAPSHOT
        };
        assert_eq!(
            behind.now(MonotonicTime::from_ms(50)),
            StoreTime::from_unix_ms(45),
            "the store's clock is behind the monotonic clock"
        );
    }

    #[test]
    fn remaining_is_the_sum_of_the_store_and_the_lease() {
        let decision = SNAPSHOT.charge(MonotonicTime::from_ms(310), 7).decision(&Quota::sliding(
            100,
            Millis::from_secs(3),
            6,
        ));
        assert_eq!((decision.remaining, decision.used, decision.limit), (47, 53, 100));
        assert_eq!((decision.admitted, decision.reset_at), (true, SNAPSHOT.reset_at));
        let lowered = SNAPSHOT.charge(MonotonicTime::from_ms(310), 7).decision(&Quota::sliding(
            30,
            Millis::from_secs(3),
            6,
        ));
        assert_eq!((lowered.remaining, lowered.used), (30, 0));
    }
}
