//! Adds this gateway's leased units to the `remaining` that Redis reports: the store counts
//! leased units as used, but this gateway still admits from them.

use tidegate_charge::{Charge, DecisionSource, LeaseSize, Outcome, StoreDecision, Verdict};

use tidegate_limit::Decision;

use super::CounterStore;

/// Adds the leased units to the decisions of a peek. A charge that the sum covers is admitted.
pub(super) fn add_to_peeked(store: &CounterStore, charges: &[Charge<'_>], verdict: &mut Verdict) {
    add_leased(store, charges, verdict, |charge, decision, leased| {
        let used = decision.used.saturating_sub(leased);
        raise_remaining(decision, decision.limit.saturating_sub(used));
        if decision.remaining >= charge.cost {
            (decision.admitted, decision.retry_at) = (true, None);
        }
    });
}

/// Adds the leased units to the store's refusals. `remaining` stays below the charge's cost, even
/// if more units were leased in the meantime.
pub(super) fn add_to_refusals(store: &CounterStore, charges: &[Charge<'_>], verdict: &mut Verdict) {
    add_leased(store, charges, verdict, |charge, decision, leased| {
        if !decision.admitted {
            let max = charge.cost.saturating_sub(1);
            raise_remaining(decision, (decision.remaining + leased).min(max));
        }
    });
}

/// Calls `add` with each Redis decision on a record that has leased units, and their number.
fn add_leased(
    store: &CounterStore,
    charges: &[Charge<'_>],
    verdict: &mut Verdict,
    add: impl Fn(&Charge<'_>, &mut Decision, u64),
) {
    let monotonic = store.clock.monotonic();
    for (charge, outcome) in charges.iter().zip(&mut verdict.outcomes) {
        if let Outcome::Decided(StoreDecision { decision, source: DecisionSource::Store, .. }) =
            outcome
            && charge.limit.lease_size != LeaseSize::Off
        {
            let leased = store.leases.spendable(charge.limit, charge.key, monotonic);
            if leased > 0 {
                add(charge, decision, leased);
            }
        }
    }
}

fn raise_remaining(decision: &mut Decision, remaining: u64) {
    if remaining > decision.remaining {
        decision.remaining = remaining;
        decision.used = decision.limit.saturating_sub(remaining);
    }
}
