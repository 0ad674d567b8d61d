//! A route that tells its callers how things stand with their limits, and charges nothing for it.

use std::sync::Arc;

use http::Response;
use smallvec::SmallVec;

use super::{Gateway, visit::Visit};
use crate::{
    error::GatewayError,
    limit::Charge,
    respond,
    snapshot::{Ask, Policy},
};

impl Gateway {
    /// Tells what `limits` say of the caller whom `looks` are about.
    pub(super) async fn tell(
        &self,
        limits: &[Arc<Policy>],
        looks: &[Ask],
        visit: &mut Visit,
    ) -> Result<Response<respond::Content>, GatewayError> {
        // No upstream has seen the token: it makes nobody active.
        visit.caller = None;
        let charges: SmallVec<[Charge<'_>; 4]> = limits
            .iter()
            .zip(looks)
            .map(|(policy, ask)| Charge {
                limit: policy.limit(ask.tier),
                key: ask.key,
                cost: ask.cost,
            })
            .collect();
        let looked = self.store.look(&charges, self.shared.clock.now()).await;
        let verdict = looked.map_err(|_| {
            visit.account.limit = "unknown";
            GatewayError::StoreUnavailable
        })?;
        Ok(respond::status(limits, &verdict).map(respond::Content::Whole))
    }
}
