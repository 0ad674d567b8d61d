//! What happens to a request when the shared store gave no decision: each limit's own policy.

use smallvec::SmallVec;

use super::{StoreError, memory::Memory, outage::OutageRecorder, stats::WorkerCounts};
use crate::limit::{Charge, Limit, Millis, OnFailure, Outcome, Verdict};

/// Decides a request without the shared store, all or nothing over all of its limits: `closed` refuses
/// the whole, `local` counts here with this gateway's share of the quota, `open` admits. What is charged
/// here is noted, if the shared store has certainly not charged it.
pub(super) fn decide(
    charges: &[Charge<'_>],
    now: Millis,
    memory: &Memory,
    gateways: u32,
    counts: &WorkerCounts,
    recorder: Option<OutageRecorder<'_>>,
) -> Result<Verdict, StoreError> {
    for charge in charges {
        counts.fell_back(charge.limit.on_failure);
    }
    by_policy(charges, |local| {
        let verdict = memory.charge_share(local, now, gateways);
        if let Some(recorder) = recorder.filter(|_| verdict.admitted) {
            for (charge, outcome) in local.iter().zip(&verdict.outcomes) {
                if outcome.admitted().is_some() {
                    recorder.charged(charge);
                }
            }
        }
        verdict
    })
}

/// What a request would meet without the shared store, charging nothing.
pub(super) fn look(
    charges: &[Charge<'_>],
    now: Millis,
    memory: &Memory,
    gateways: u32,
) -> Result<Verdict, StoreError> {
    by_policy(charges, |local| memory.look_share(local, now, gateways))
}

/// What a request would meet that is refused elsewhere: charges nothing, and counts that it was asked.
pub(super) fn refused(
    charges: &[Charge<'_>],
    now: Millis,
    memory: &Memory,
    gateways: u32,
    counts: &WorkerCounts,
) -> Result<Verdict, StoreError> {
    for charge in charges {
        counts.fell_back(charge.limit.on_failure);
    }
    look(charges, now, memory, gateways)
}

fn by_policy(
    charges: &[Charge<'_>],
    count: impl FnOnce(&[Charge<'_>]) -> Verdict,
) -> Result<Verdict, StoreError> {
    let closes = |limit: &Limit| limit.enforce && limit.on_failure == OnFailure::Closed;
    let closed = charges.iter().find(|charge| closes(charge.limit));
    if let Some(charge) = closed {
        return Err(StoreError::Unavailable { limit: charge.limit.index });
    }
    let is_local = |charge: &&Charge<'_>| charge.limit.on_failure == OnFailure::Local;
    let local: SmallVec<[Charge<'_>; 4]> = charges.iter().filter(is_local).copied().collect();
    let counted = count(&local);
    let mut counted_outcomes = counted.outcomes.into_iter();
    let outcomes = charges.iter().map(|charge| match charge.limit.on_failure {
        OnFailure::Local => counted_outcomes.next().unwrap_or_default(),
        OnFailure::Open | OnFailure::Closed => Outcome::Unknown,
    });
    Ok(Verdict { admitted: counted.admitted, outcomes: outcomes.collect() })
}
