//! The quota status action: reports the state of the caller's limits without charging them.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_access::overrides::Override;
use tidegate_charge::{Charge, Outcome};
use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::StatusPlan;
use tidegate_rules::respond::{self, LimitReport, LocalReply, StatusReport};
use tidegate_rules::snapshot::{LimitPolicy, PlannedCharge, QuotaChoice};

use super::Gateway;

impl Gateway {
    /// Reports the state of `limits` for the keys of `planned`.
    ///
    /// # Errors
    ///
    /// [`GatewayError::StoreUnavailable`] if the store gave no answer and a limit's failure policy
    /// is to refuse.
    pub(super) async fn quota_status(
        &self,
        limits: &[Arc<LimitPolicy>],
        planned: &StatusPlan,
    ) -> Result<LocalReply, GatewayError> {
        let charged = planned.charges.iter();
        let charged: SmallVec<[StatusCharge<'_>; 4]> =
            charged.filter_map(|planned| StatusCharge::new(limits, planned)).collect();
        let charges: SmallVec<[Charge<'_>; 4]> = charged.iter().map(|own| own.charge).collect();
        let verdict = self.charger.store.peek(&charges, self.shared.clock.store_time()).await;
        let verdict = verdict.map_err(|_| GatewayError::StoreUnavailable)?;
        let mut reports: SmallVec<[StatusReport<'_>; 4]> = SmallVec::new();
        for (index, policy) in limits.iter().enumerate() {
            if planned.unknown.contains(&index) {
                reports.push(StatusReport::unknown(&policy.limit));
            }
            let of_limit = charged.iter().zip(&verdict.outcomes);
            let of_limit = of_limit.filter(|(own, _)| own.limit_index == index);
            reports.extend(of_limit.map(|(own, outcome)| own.report(outcome)));
        }
        Ok(respond::quota_status(&reports))
    }
}

/// A charge that is not made, and the override that gives its quota.
struct StatusCharge<'a> {
    limit_index: usize,
    charge: Charge<'a>,
    applied: Option<&'a Override>,
}

impl<'a> StatusCharge<'a> {
    /// `None` if the route has no such limit.
    fn new(limits: &'a [Arc<LimitPolicy>], planned: &'a PlannedCharge) -> Option<Self> {
        let limit_index = usize::from(planned.limit_index);
        let limit = limits.get(limit_index)?.limit_of(planned);
        let applied = match &planned.quota {
            QuotaChoice::Override(applied) => Some(&*applied.own),
            QuotaChoice::Own
            | QuotaChoice::Tier(_)
            | QuotaChoice::Plan(_)
            | QuotaChoice::Requested(_) => None,
        };
        let charge = Charge { limit, key: planned.key, cost: planned.cost };
        Some(Self { limit_index, charge, applied })
    }

    fn report<'r>(&'r self, outcome: &'r Outcome) -> StatusReport<'r> {
        let Charge { limit, cost, .. } = self.charge;
        StatusReport { limit: LimitReport { limit, cost, outcome }, applied: self.applied }
    }
}
