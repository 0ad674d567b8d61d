//! What happens to a request when the shared store gave no decision: each limit's own policy.

use smallvec::SmallVec;

use super::{StoreError, Stores, journal::Noting, memory::Memory, stats::WorkerCounts};
use crate::limit::{Charge, Decision, Limit, Millis, OnFailure, Origin, Verdict};

/// The refusal of a request of which the shared store has refused a charge before, and until when: it cannot
/// say otherwise now, so no failure policy applies.
pub(super) fn denied(charges: &[Charge<'_>], now: Millis, stores: &Stores) -> Option<Verdict> {
    let ticks = stores.clock.ticks();
    let denials: SmallVec<[_; 4]> =
        charges.iter().map(|charge| stores.deny_cache.get_stale(charge, ticks)).collect();
    let first = denials.iter().flatten().next()?;
    let mut verdict = Verdict { admitted: false, ..Verdict::empty(first.now) };
    let mut origins = Vec::new();
    for (charge, denial) in charges.iter().zip(&denials) {
        let unasked = || (uncounted(charge.limit, now), now);
        let (decision, now) = denial.map_or_else(unasked, |denial| (denial.decision, denial.now));
        verdict.decisions.push(decision);
        origins.push(Origin { now, fallback: false });
    }
    verdict.origins = (origins.len() > 1).then(|| origins.into());
    Some(verdict)
}

/// Decides a request without the shared store, all or nothing over all of its limits: `closed` refuses
/// the whole, `local` counts here with this gateway's share of the quota, `open` admits. What is charged
/// here is noted, if the shared store has certainly not charged it.
pub(super) fn decide(
    charges: &[Charge<'_>],
    now: Millis,
    memory: &Memory,
    gateways: u32,
    counts: &WorkerCounts,
    noting: Option<Noting<'_>>,
) -> Result<Verdict, StoreError> {
    for charge in charges {
        counts.fell_back(charge.limit.on_failure);
    }
    by_policy(charges, now, |local| {
        let verdict = memory.charge_share(local, now, gateways);
        if let Some(noting) = noting.filter(|_| verdict.admitted) {
            for (charge, decision) in local.iter().zip(&verdict.decisions) {
                if decision.admitted {
                    noting.charged(charge, gateways);
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
    by_policy(charges, now, |local| memory.look_share(local, now, gateways))
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
    now: Millis,
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
    let mut decisions = counted.decisions.into_iter();
    let decided = charges.iter().map(|charge| match charge.limit.on_failure {
        OnFailure::Local => decisions.next().unwrap_or_else(|| uncounted(charge.limit, now)),
        OnFailure::Open | OnFailure::Closed => uncounted(charge.limit, now),
    });
    let decisions = decided.collect();
    Ok(Verdict { admitted: counted.admitted, now, fallback: true, decisions, origins: None })
}

/// Admitted, and nothing is known.
pub(super) fn uncounted(limit: &Limit, now: Millis) -> Decision {
    let limit = limit.ceiling();
    Decision {
        admitted: true,
        limit,
        remaining: limit,
        used: 0,
        reset_at: now,
        retry_at: None,
        wait: 0,
        counted: false,
    }
}
