//! [`SettledReport`]: the limits of a response that shows its settled costs in trailers.

use std::rc::Rc;

use super::charged_limit::{ChargedLimit, reports};
use crate::{
    clock::StoreTime,
    http1::Fields,
    limit::{Algorithm, Outcome, StoreDecision},
    respond,
    snapshot::RateHeaders,
};

/// The limits of a response whose trailers show the state after its costs were settled.
///
/// The state is computed from the decision, without the store: requests that came in between are not in it.
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
        let quota = reported.limit();
        let (window, is_bucket) = (quota.quota.window, quota.algorithm() == Algorithm::TokenBucket);
        let charged = reported.cost();
        if let Outcome::Decided(decided) = &mut reported.outcome {
            settle_decision(decided, charged, units);
            if is_bucket {
                delay_reset(decided, window);
            }
        }
    }

    /// The trailers at `now`, by the store's clock. A limit whose reset has passed is left out: its window has ended
    /// since the decision.
    pub(super) fn fields(&mut self, now: StoreTime, families: RateHeaders) -> Fields {
        self.limits.retain_mut(|limit| match &mut limit.outcome {
            Outcome::Decided(decided) => {
                decided.at = decided.at.max(now);
                decided.decision.reset_at > now
            }
            Outcome::Unknown | Outcome::NotCharged => false,
        });
        let mut fields = Fields::new();
        respond::write_rate_trailers(&mut fields, reports(&self.limits), families);
        fields
    }
}

/// Replaces the `charged` units by the final ones.
fn settle_decision(decided: &mut StoreDecision, charged: u64, units: u64) {
    let decision = &mut decided.decision;
    decision.set_used(decision.used.saturating_sub(charged).saturating_add(units));
}

/// Moves the reset of a token bucket, which is the time at which it is full, forward for an overdraft.
fn delay_reset(decided: &mut StoreDecision, window: u64) {
    let (at, decision) = (decided.at, &mut decided.decision);
    let used = u128::from(decision.used) * u128::from(window);
    let full_after = used.div_ceil(u128::from(decision.limit.max(1)));
    let full_at = at + u64::try_from(full_after).unwrap_or(u64::MAX);
    decision.reset_at = decision.reset_at.max(full_at);
}
