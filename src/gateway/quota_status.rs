//! The quota status action: reports the state of the caller's limits without charging them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Gateway;
use crate::{
    error::GatewayError,
    limit::Charge,
    respond::{self, LimitReport, LocalReply},
    snapshot::{LimitPolicy, PlannedCharge},
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
        let charge = |request: &PlannedCharge| {
            let policy = limits.get(usize::from(request.limit_index))?;
            let limit = policy.limit_with(request.quota);
            Some(Charge { limit, key: request.key, cost: request.cost })
        };
        let charges: SmallVec<[Charge<'_>; 4]> = charges.iter().filter_map(charge).collect();
        let verdict = self.store.peek(&charges, self.shared.clock.store_time()).await;
        let verdict = verdict.map_err(|_| GatewayError::StoreUnavailable)?;
        let reports = charges.iter().zip(&verdict.outcomes);
        let reports: SmallVec<[LimitReport<'_>; 4]> = reports
            .map(|(&Charge { limit, cost, .. }, outcome)| LimitReport { limit, cost, outcome })
            .collect();
        Ok(respond::quota_status(&reports))
    }
}
