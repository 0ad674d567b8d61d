//! Bounds the requests in flight of one client address, and so what else they hold: upstream connections, memory.

use super::{Gateway, context::RequestContext};
use crate::error::GatewayError;

impl Gateway {
    /// Counts the request for its client's address, until the context is dropped.
    ///
    /// # Errors
    /// The client has as many requests in flight as it may.
    pub(super) fn count_in_flight(&self, context: &mut RequestContext) -> Result<(), GatewayError> {
        let snapshot = &context.rules.snapshot;
        // A request holds at most one upstream connection.
        let share = self.shared.upstreams.connection_budget.client_share();
        let configured = snapshot.http.max_requests_per_client;
        // The connections of a trusted proxy carry many clients.
        let configured =
            configured.filter(|_| !snapshot.identity.trusted_proxies.contains(context.client_ip));
        let bound = configured.map_or(share, |bound| share.min(bound.into()));
        context.in_flight = context.usage.begin_request(bound);
        if context.in_flight.is_none() {
            self.metrics.requests_refused.add(1);
            self.warn(|| {
                tracing::warn!(
                    client = %context.client_ip, bound,
                    "request refused: its client address has its maximum of requests in flight"
                );
            });
            return Err(GatewayError::ClientOverloaded);
        }
        Ok(())
    }
}
