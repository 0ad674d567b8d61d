//! Failures of a client address to authenticate: counted by the store, and remembered where they
//! block the address.

use std::sync::Arc;

use tidegate_charge::{Charge, Key, Limit};
use tidegate_identity::address_key;
use tidegate_rules::error::{BlockedAddress, GatewayError};

use super::{authenticator::Authenticator, blocked_addresses::BlockedKey, context::RequestContext};

impl Authenticator {
    /// Counts wrong credentials for the client's address; returns the error for the client.
    #[cold]
    pub(super) async fn count_failure(
        &self,
        request: &mut RequestContext,
        error: GatewayError,
    ) -> GatewayError {
        let Some(limit) = error.counted_by().map(Arc::clone) else { return error };
        let key = Key(self.failure_key(request));
        let charge = Charge { limit: &limit, key, cost: 1 };
        let verdict = self.store.charge(&[charge], self.shared.clock.store_time()).await;
        let decided = verdict.ok().and_then(|verdict| verdict.decided(0).copied());
        // Without a decision nothing is known of other failures.
        let Some(decided) = decided else { return error };
        let decision = &decided.decision;
        if decision.remaining == 0 {
            let end = decision.retry_at.unwrap_or(decision.reset_at);
            let blocked_key = BlockedKey::new(limit.identity.hash(), key.0);
            let now = self.shared.clock.monotonic();
            self.shared.blocked_addresses.block(blocked_key, now, end.since(decided.at));
        }
        if decision.admitted {
            return error;
        }
        match self.ensure_not_blocked(request, &limit) {
            Ok(()) => error,
            Err(blocked) => {
                request.ledger.refused_by.push(limit);
                blocked
            }
        }
    }

    /// Checks that the client's address is not blocked under `limit`.
    ///
    /// # Errors
    ///
    /// It is.
    pub(super) fn ensure_not_blocked(
        &self,
        request: &RequestContext,
        limit: &Arc<Limit>,
    ) -> Result<(), GatewayError> {
        let now = self.shared.clock.monotonic();
        if self.shared.blocked_addresses.is_empty(now) {
            return Ok(());
        }
        let key = BlockedKey::new(limit.identity.hash(), self.failure_key(request));
        match self.shared.blocked_addresses.blocked_for(key, now) {
            None => Ok(()),
            Some(left) => {
                let limit = Arc::clone(limit);
                Err(GatewayError::TooManyFailures(Box::new(BlockedAddress { limit, left })))
            }
        }
    }

    /// The key under which failures of the request's client are counted.
    pub(super) fn failure_key(&self, request: &RequestContext) -> u128 {
        let prefix = request.rules().snapshot.identity.ipv6_prefix;
        address_key(request.ledger.client_ip, prefix, self.shared.store.key_secret())
    }
}
