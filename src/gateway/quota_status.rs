//! The quota status action: reports the state of the caller's limits without charging them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Gateway;
use crate::{
    error::GatewayError,
    limit::{Charge, Outcome},
    overrides::Override,
    respond::{self, LimitReport, LocalReply, StatusReport},
    snapshot::{LimitPolicy, PlannedCharge, QuotaChoice},
};

impl Gateway {
    /// Reports the state of `limits` for the keys in `charges`.
    ///
    /// # Errors
    ///
    /// [`GatewayError::StoreUnavailable`] if the store gave no answer and a limit's failure policy
    /// is to refuse.
    pub(super) async fn quota_status(
        &self,
        limits: &[Arc<LimitPolicy>],
        charges: &[PlannedCharge],
    ) -> Result<LocalReply, GatewayError> {
        let planned: SmallVec<[StatusCharge<'_>; 4]> =
            charges.iter().filter_map(|planned| StatusCharge::new(limits, planned)).collect();
        let charges: SmallVec<[Charge<'_>; 4]> = planned.iter().map(|own| own.charge).collect();
        let verdict = self.store.peek(&charges, self.shared.clock.store_time()).await;
        let verdict = verdict.map_err(|_| GatewayError::StoreUnavailable)?;
        let reports = planned.iter().zip(&verdict.outcomes);
        let reports: SmallVec<[StatusReport<'_>; 4]> =
            reports.map(|(own, outcome)| own.report(outcome)).collect();
        Ok(respond::quota_status(&reports))
    }
}

/// A charge that is not made, and the override that gives its quota.
struct StatusCharge<'a> {
    charge: Charge<'a>,
    applied: Option<&'a Override>,
}

impl<'a> StatusCharge<'a> {
    /// `None` if the route has no such limit.
    fn new(limits: &'a [Arc<LimitPolicy>], planned: &'a PlannedCharge) -> Option<Self> {
        let limit = limits.get(usize::from(planned.limit_index))?.limit_of(planned);
        let applied = match &planned.quota {
            QuotaChoice::Override(applied) => Some(&*applied.own),
            QuotaChoice::Own
            | QuotaChoice::Tier(_)
            | QuotaChoice::Plan(_)
            | QuotaChoice::Requested(_) => None,
        };
        Some(Self { charge: Charge { limit, key: planned.key, cost: planned.cost }, applied })
    }

    fn report<'r>(&'r self, outcome: &'r Outcome) -> StatusReport<'r> {
        let Charge { limit, cost, .. } = self.charge;
        StatusReport { limit: LimitReport { limit, cost, outcome }, applied: self.applied }
    }
}
