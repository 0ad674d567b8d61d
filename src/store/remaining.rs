//! What is left of a quota of which this gateway holds leased tokens: the shared store counts them as used,
//! and this gateway admits from them.

use super::Stores;
use crate::limit::{Charge, Decided, Decider, Decision, Outcome, Reserve, Verdict};

/// Adds the leased tokens to what the store said of looks; one that they are enough for would be admitted.
pub(super) fn add_to_looks(stores: &Stores, charges: &[Charge<'_>], verdict: &mut Verdict) {
    add(stores, charges, verdict, |charge, decision, leased| {
        raise(decision, (decision.remaining + leased).min(decision.limit));
        if decision.remaining >= charge.cost.into() {
            (decision.admitted, decision.retry_at) = (true, None);
        }
    });
}

/// Adds the leased tokens to what the store said of charges that it refused. What is left is less than
/// the cost: tokens that came meanwhile are not told of.
pub(super) fn add_to_refusals(stores: &Stores, charges: &[Charge<'_>], verdict: &mut Verdict) {
    add(stores, charges, verdict, |charge, decision, leased| {
        if !decision.admitted {
            let most = u64::from(charge.cost).saturating_sub(1);
            raise(decision, (decision.remaining + leased).min(most));
        }
    });
}

fn add(
    stores: &Stores,
    charges: &[Charge<'_>],
    verdict: &mut Verdict,
    add: impl Fn(&Charge<'_>, &mut Decision, u64),
) {
    let ticks = stores.clock.ticks();
    for (charge, outcome) in charges.iter().zip(&mut verdict.outcomes) {
        if let Outcome::Decided(Decided { decision, by: Decider::Store, .. }) = outcome
            && charge.limit.reserve != Reserve::Off
        {
            let leased = stores.leases.spendable(charge.limit, charge.key, ticks);
            if leased > 0 {
                add(charge, decision, leased.into());
            }
        }
    }
}

fn raise(decision: &mut Decision, remaining: u64) {
    if remaining > decision.remaining {
        decision.remaining = remaining;
        decision.used = decision.limit.saturating_sub(remaining);
    }
}
