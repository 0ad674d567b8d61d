//! Decides requests when Redis gives no answer: by cached denials, then by each limit's failure
//! policy.

use smallvec::SmallVec;
use tidegate_base::time::StoreTime;
use tidegate_charge::{Charge, DecisionSource, Limit, OnFailure, Outcome, StoreDecision, Verdict};

use super::{CounterStore, StoreError, stats::WorkerCounts};

/// The cached denial of a charge, if its retry time has not come.
fn denied_outcome(charge: &Charge<'_>, store: &CounterStore) -> Option<Outcome> {
    let denial = store.deny_cache.get_stale(charge, store.clock.monotonic())?;
    let (decision, at) = (denial.decision, denial.now);
    Some(Outcome::Decided(StoreDecision::new(decision, at, DecisionSource::Store)))
}

/// The refusal of a request with a cached denial whose retry time has not come. Redis would
/// presumably still refuse it, so no failure policy applies.
pub(super) fn cached_denial(charges: &[Charge<'_>], store: &CounterStore) -> Option<Verdict> {
    let denied =
        charges.iter().map(|charge| denied_outcome(charge, store).unwrap_or(Outcome::NotCharged));
    let outcomes: SmallVec<[Outcome; 2]> = denied.collect();
    let refuses = outcomes.iter().any(|outcome| outcome.decided().is_some());
    refuses.then_some(Verdict { admitted: false, outcomes })
}

/// Decides a request without Redis, and charges all of its limits or none: `closed` refuses the
/// whole request, `local` charges this gateway's share of the quota in memory, and `open` admits.
pub(super) fn decide(
    charges: &[Charge<'_>],
    now: StoreTime,
    store: &CounterStore,
    counts: &WorkerCounts,
) -> Result<Verdict, StoreError> {
    for charge in charges {
        counts.count_fallback(charge.limit.on_failure);
    }
    let gateways = store.presence.gateways();
    apply_policies(charges, |local| store.memory.charge_share(local, now, gateways))
}

/// Decides each charge independently without Redis, by its cached denial or else by its limit's
/// failure policy, and charges nothing.
pub(super) fn peek(
    charges: &[Charge<'_>],
    now: StoreTime,
    store: &CounterStore,
) -> Result<Verdict, StoreError> {
    let denied: SmallVec<[Option<Outcome>; 2]> =
        charges.iter().map(|charge| denied_outcome(charge, store)).collect();
    let rest = charges.iter().zip(&denied).filter(|(_, denied)| denied.is_none());
    let rest: SmallVec<[Charge<'_>; 4]> = rest.map(|(charge, _)| *charge).collect();
    let gateways = store.presence.gateways();
    let decided = apply_policies(&rest, |local| store.memory.peek_share(local, now, gateways))?;
    let admitted = decided.admitted && rest.len() == charges.len();
    let mut decided = decided.outcomes.into_iter();
    let outcomes = denied.into_iter().map(|denied| denied.or_else(|| decided.next()));
    Ok(Verdict { admitted, outcomes: outcomes.map(Option::unwrap_or_default).collect() })
}

/// Decides the charges whose shards gave no decision, without charging: another shard has refused
/// the request. Counts the fallbacks.
pub(super) fn peek_refused(
    charges: &[Charge<'_>],
    now: StoreTime,
    store: &CounterStore,
    counts: &WorkerCounts,
) -> Result<Verdict, StoreError> {
    for charge in charges {
        counts.count_fallback(charge.limit.on_failure);
    }
    peek(charges, now, store)
}

/// Applies the failure policies. `decide_local` decides the charges of the limits with the policy
/// `local`.
fn apply_policies(
    charges: &[Charge<'_>],
    decide_local: impl FnOnce(&[Charge<'_>]) -> Verdict,
) -> Result<Verdict, StoreError> {
    let is_closed = |limit: &Limit| limit.enforce && limit.on_failure == OnFailure::Closed;
    let closed = charges.iter().find(|charge| is_closed(charge.limit));
    if let Some(charge) = closed {
        return Err(StoreError::Unavailable { limit: charge.limit.index });
    }
    let is_local = |charge: &&Charge<'_>| charge.limit.on_failure == OnFailure::Local;
    let local: SmallVec<[Charge<'_>; 4]> = charges.iter().filter(is_local).copied().collect();
    let decided = decide_local(&local);
    let mut local_outcomes = decided.outcomes.into_iter();
    let outcomes = charges.iter().map(|charge| match charge.limit.on_failure {
        OnFailure::Local => local_outcomes.next().unwrap_or_default(),
        OnFailure::Open | OnFailure::Closed => Outcome::Unknown,
    });
    Ok(Verdict { admitted: decided.admitted, outcomes: outcomes.collect() })
}
