//! Acquires a batch of units from a record that several processes share. A process then spends its
//! batch without another look at the record.
//!
//! Source: Rockset, "How We Improved the Concurrency and Scalability of Our Redis Rate Limiting
//! System" (batches reserved locally). In contrast to that design, a batch is not all or nothing:
//! if fewer units are left, they are granted.
//!
//! An algorithm supports batches ([`super::Algorithm::can_lease`]) if a unit may be spent later
//! than it was charged without breaking a bound:
//!
//! - [`super::sliding_window`], strict or not: a charge counts for its whole sub-window, so its
//!   units may be spent until that sub-window ends.
//! - [`super::fixed_window`]: the same, until the window ends.
//!
//! The others do not: a unit of [`super::token_bucket`] starts to refill when it is charged, so
//! spending it later admits more than the burst and the rate allow; an entry of
//! [`super::sliding_log`] expires by the time of its charge; a slot of [`super::leaky_bucket`] is a
//! point in time and passes; a permit of [`super::concurrency`] is held only while its request is
//! in flight.
//!
//! The Lua counterpart is `lua/acquire.lua`.

use tidegate_base::time::StoreTime;

use super::{AlgorithmState, Change, Decision, Quota};

/// Maximum number of units of one record that a process acquires at once or holds.
pub const MAX_LEASED_UNITS: u64 = 1 << 20;

/// The batch of units that a process requests from one record.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct UnitDemand {
    /// The smallest useful grant, in units: the cost of the cheapest waiting request; at least 1.
    pub minimum: u64,
    /// The total cost of the waiting requests, in units; at least `minimum`. If fewer units are
    /// left, they are granted.
    pub needed: u64,
    /// Units wanted beyond `needed`.
    pub extra: u64,
    /// Caps the extra units: at most the units left beyond `needed`, divided by this. At least 1.
    pub extra_divisor: u64,
    /// Unspent units of an earlier grant, refunded before the new batch is charged.
    pub returned: UnitReturn,
}

/// Unspent units to refund; none by default.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct UnitReturn {
    /// The time at which they were charged, by the clock that decided.
    pub charged_at: StoreTime,
    /// The number of units.
    pub units: u64,
}

impl From<UnitReturn> for Change {
    fn from(UnitReturn { charged_at, units }: UnitReturn) -> Self {
        Self::Refund { charged_at, cost: units }
    }
}

/// The store's answer to a [`UnitDemand`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    /// The number of units that were charged; 0 if less than [`UnitDemand::minimum`] was left.
    pub units: u64,
    /// The first ms, by the clock that decided, at which the units may no longer be spent: the end
    /// of the sub-window to which they were charged. The epoch if nothing was granted.
    pub spendable_until: StoreTime,
    /// The usage after the charge. Its `admitted` is true if units were granted. Its `retry_at` is
    /// for a cost of `minimum`, and is `None` if all of `needed` was granted.
    pub decision: Decision,
}

impl AlgorithmState {
    /// Refunds the demand's unspent units, then charges the batch, or what is left of the quota if
    /// that is less but at least [`UnitDemand::minimum`].
    pub fn acquire(&mut self, quota: &Quota, now: StoreTime, demand: &UnitDemand) -> Grant {
        let UnitReturn { charged_at, units } = demand.returned;
        if units > 0 {
            self.refund(quota, now, charged_at, units);
        }
        let decision = self.decide(quota, now, demand.minimum);
        let left = decision.remaining;
        if !decision.admitted || left == 0 {
            return Grant { units: 0, spendable_until: StoreTime::ZERO, decision };
        }
        let units = match left.checked_sub(demand.needed) {
            Some(rest) => demand.needed + demand.extra.min(rest / demand.extra_divisor.max(1)),
            None => left,
        };
        let mut decision = self.charge_batch(quota, now, units, demand.minimum);
        if units < demand.needed {
            decision.retry_at = self.decide(quota, now, demand.minimum).retry_at;
        }
        Grant { units, spendable_until: self.spendable_until(quota), decision }
    }

    /// Charges `cost`, the total of several requests. The reset time is computed for a request that
    /// costs `unit`.
    fn charge_batch(&mut self, quota: &Quota, now: StoreTime, cost: u64, unit: u64) -> Decision {
        match self {
            Self::SlidingWindow(state) => {
                super::sliding_window::charge_batch(state, quota, now, cost, unit)
            }
            Self::SlidingLog(_)
            | Self::FixedWindow(_)
            | Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::Concurrency(_)
            | Self::Block(_) => self.charge(quota, now, cost),
        }
    }

    /// The first ms at which the units that were just charged may no longer be spent.
    fn spendable_until(&self, quota: &Quota) -> StoreTime {
        match self {
            Self::SlidingWindow(state) => {
                let s = quota.sub_window();
                state.updated_at.round_down_to(s) + s
            }
            Self::FixedWindow(state) => state.reset_at,
            Self::SlidingLog(_)
            | Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::Concurrency(_)
            | Self::Block(_) => StoreTime::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Algorithm, Millis},
        *,
    };
    use crate::ms;

    const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

    fn demand(minimum: u64, needed: u64, extra: u64, extra_divisor: u64) -> UnitDemand {
        UnitDemand { minimum, needed, extra, extra_divisor, returned: UnitReturn::default() }
    }

    fn fresh_states(quota: u64) -> [(Quota, AlgorithmState); 2] {
        let fixed = Quota::new(quota, Millis::from_secs(60), Algorithm::FixedWindow);
        [Quota::sliding(quota, Millis::from_secs(60), 6), fixed]
            .map(|quota| (quota, AlgorithmState::fresh(quota.algorithm)))
    }

    #[test]
    fn a_grant_is_cut_to_the_units_left() {
        for (quota, mut state) in fresh_states(50) {
            let grant = state.acquire(&quota, NOW, &demand(10, 100, 100, 1));
            assert_eq!((grant.units, grant.decision.remaining), (50, 0));
            assert!(grant.decision.admitted && grant.decision.retry_at > Some(NOW));
            let grant = state.acquire(&quota, NOW, &demand(10, 100, 100, 1));
            assert_eq!(
                (grant.units, grant.spendable_until, grant.decision.admitted),
                (0, StoreTime::ZERO, false)
            );
        }
    }

    #[test]
    fn extra_is_at_most_its_share_of_the_units_left() {
        for (quota, mut state) in fresh_states(1_000) {
            let grant = state.acquire(&quota, NOW, &demand(1, 100, 500, 6));
            assert_eq!((grant.units, grant.decision.remaining), (250, 750));
            assert_eq!(grant.decision.retry_at, None);
            let grant = state.acquire(&quota, NOW, &demand(1, 745, 500, 6));
            assert_eq!(grant.units, 745, "a sixth of 5, rounded down, is 0");
        }
    }

    #[test]
    fn returned_units_can_be_granted_again_and_reset_never_moves_back() {
        for (quota, mut state) in fresh_states(100) {
            let first = state.acquire(&quota, NOW, &demand(1, 1, 99, 1));
            let returned = UnitReturn { charged_at: NOW, units: 40 };
            let again = UnitDemand { returned, ..demand(1, 40, 0, 1) };
            let grant = state.acquire(&quota, NOW + ms(1), &again);
            assert_eq!((grant.units, grant.decision.remaining), (40, 0));
            assert!(grant.decision.reset_at >= first.decision.reset_at);
        }
    }

    #[test]
    fn units_are_spendable_until_their_sub_window_or_window_ends() {
        let [(sliding, mut first), (fixed, mut second)] = fresh_states(100);
        let grant = first.acquire(&sliding, NOW + ms(3), &demand(1, 1, 9, 1));
        assert_eq!(grant.spendable_until, NOW + ms(10_000));
        let grant = second.acquire(&fixed, NOW + ms(3), &demand(1, 1, 9, 1));
        assert_eq!(grant.spendable_until, NOW + ms(60_003));
    }

    #[test]
    fn reset_of_a_batch_equals_that_of_single_charges() {
        let (quota, mut batched) = fresh_states(100)[0].clone();
        let mut single = batched.clone();
        batched.acquire(&quota, NOW, &demand(1, 1, 79, 1));
        for _ in 0..80 {
            single.admit(&quota, NOW, 1);
        }
        let batched = batched.decide(&quota, NOW, 0);
        assert_eq!(batched, single.decide(&quota, NOW, 0));
    }
}
