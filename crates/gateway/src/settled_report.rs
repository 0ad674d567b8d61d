//! [`SettledReport`]: the limits of a response that shows its settled costs in trailers.

use std::rc::Rc;

use tidegate_charge::{Outcome, StoreDecision};
use tidegate_http1::Fields;
use tidegate_limit::{Algorithm, Decision, Millis};
use tidegate_rules::respond;
use tidegate_system::clock::StoreTime;

use super::charged_limit::{ChargedLimit, reports};

/// The limits of a response whose trailers show the state after its costs were settled.
///
/// The state is computed from the decision, without the store: requests that came in between are
/// not in it.
pub(super) struct SettledReport {
    limits: Vec<ChargedLimit>,
}

impl SettledReport {
    /// A report on all `limits` of a request, as its head shows them.
    pub(super) fn new(limits: &[ChargedLimit]) -> Self {
        Self { limits: limits.to_vec() }
    }

    /// Changes the state of `limit`, which has cost `units` in the end.
    pub(super) fn settle(&mut self, limit: &ChargedLimit, units: u64) {
        let is_same = |other: &&mut ChargedLimit| {
            Rc::ptr_eq(other.rule(), limit.rule()) && other.key() == limit.key()
        };
        let Some(reported) = self.limits.iter_mut().find(is_same) else { return };
        let quota = reported.limit().quota;
        let charged = reported.cost();
        if let Outcome::Decided(decided) = &mut reported.outcome {
            settle_decision(decided, charged, units, quota.max_overdrawn());
            if quota.algorithm == Algorithm::TokenBucket {
                delay_reset(decided, quota.window, units.saturating_sub(charged));
            }
        }
    }

    /// The trailers at `now`, by the store's clock. A limit whose reset has passed is left out: its
    /// window has ended since the decision.
    pub(super) fn fields(&mut self, now: StoreTime) -> Fields {
        self.limits.retain_mut(|limit| {
            let quota = limit.limit().quota;
            let Outcome::Decided(decided) = &mut limit.outcome else { return false };
            if quota.algorithm == Algorithm::TokenBucket {
                refill(decided, quota.window, now);
            }
            decided.at = decided.at.max(now);
            decided.decision.reset_at > now
        });
        let mut fields = Fields::new();
        respond::write_rate_trailers(&mut fields, reports(&self.limits));
        fields
    }
}

/// Replaces the `charged` units by the final ones, which overdraw the quota up to `most` used
/// units.
fn settle_decision(decided: &mut StoreDecision, charged: u64, units: u64, most: u64) {
    let decision = &mut decided.decision;
    let settled = decision.used.saturating_sub(charged).saturating_add(units);
    decision.set_used(settled.min(most.max(decision.used)));
}

/// Moves the reset of a token bucket forward if an overdraft of `cost` no longer fits: to the time
/// at which it fits again, or a cost of 1 if it is above the quota.
fn delay_reset(decided: &mut StoreDecision, window: Millis, cost: u64) {
    let (at, decision) = (decided.at, &mut decided.decision);
    if decision.remaining < cost {
        let unit = if cost > decision.limit { 1 } else { cost };
        let over = decision.used.saturating_sub(decision.limit.saturating_sub(unit));
        let fits_at = at.after(time_to_refill(over, decision, window));
        decision.reset_at = decision.reset_at.max(fits_at);
    }
}

/// Refills a token bucket up to `now`, which its next request may find a little fuller.
fn refill(decided: &mut StoreDecision, window: Millis, now: StoreTime) {
    let (passed, decision) = (now.since(decided.at).as_ms(), &mut decided.decision);
    let window_ms = u128::from(window.as_ms().max(1));
    let refilled = u128::from(passed) * u128::from(decision.limit) / window_ms;
    let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
    decision.set_used(decision.used.saturating_sub(refilled));
    if decision.reset_at <= now && decision.used > 0 {
        decision.reset_at = now.after(time_to_refill(1, decision, window));
    }
}

/// The time in which a token bucket gets `units` back, rounded up.
fn time_to_refill(units: u64, decision: &Decision, window: Millis) -> Millis {
    let time = u128::from(units) * u128::from(window.as_ms());
    let time = time.div_ceil(u128::from(decision.limit.max(1)));
    u64::try_from(time).map_or(Millis::MAX, Millis::from_ms)
}
