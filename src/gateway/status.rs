//! A route that tells its callers how things stand with their limits, and charges nothing for it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Gateway, context::RequestContext, draft::Draft};
use crate::{
    error::GatewayError,
    limit::{Admission, Charge},
    respond::{self, LimitReport},
    snapshot::{LimitRequest, Policy},
};

impl Gateway {
    /// Tells what `limits` say of the caller that `requests` are about.
    pub(super) async fn quota_status(
        &self,
        limits: &[Arc<Policy>],
        requests: &[LimitRequest],
        context: &mut RequestContext,
    ) -> Result<Draft, GatewayError> {
        // No upstream has seen the token: it makes nobody active.
        context.caller = None;
        let charge = |request: &LimitRequest| {
            let policy = limits.get(usize::from(request.limit))?;
            let limit = policy.limit(request.tier);
            Some(Charge { limit, key: request.key, cost: request.cost })
        };
        let charges: SmallVec<[Charge<'_>; 4]> = requests.iter().filter_map(charge).collect();
        let looked = self.store.look(&charges, self.shared.clock.now()).await;
        let verdict = looked.map_err(|_| {
            context.admission = Admission::Unknown;
            GatewayError::StoreUnavailable
        })?;
        let reports = charges.iter().zip(&verdict.outcomes);
        let reports: SmallVec<[LimitReport<'_>; 4]> = reports
            .map(|(&Charge { limit, cost, .. }, outcome)| LimitReport { limit, cost, outcome })
            .collect();
        Ok(Draft::Reply(respond::status(&reports)))
    }
}
