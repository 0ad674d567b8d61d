//! A route that tells its callers how things stand with their limits, and charges nothing for it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Gateway, answer::Draft, context::RequestContext};
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
        context: &mut RequestContext,
    ) -> Result<Draft, GatewayError> {
        // No upstream has seen the token: it makes nobody active.
        context.caller = None;
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
            context.limit = "unknown";
            GatewayError::StoreUnavailable
        })?;
        Ok(Draft::Reply(respond::status(limits, &verdict)))
    }
}
