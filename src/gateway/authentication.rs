//! Authentication of a request, on routes with `auth`: who sends it, and what follows for the throttle and the limits.
//!
//! The order is that of `enter_route`: the client's address must not be blocked for failures, the credentials are
//! verified by a lookup in memory, the throttle admits the consumer, and only then a wrong credential is refused and
//! counted. So while the throttle is on, invented keys are refused like unknown users: they reveal nothing, cost no call
//! to the store, and count as no active user. What the throttle records is the consumer, under one hash for all of its
//! keys: a new key of an active consumer is admitted.
//!
//! A kind of credentials whose verification waits for another server takes its step in `Gateway::serve`, boxed, before
//! the limits are charged.

use std::{borrow::Cow, sync::Arc};

use super::{Gateway, Peer, blocked_addresses::BlockedKey, context::RequestContext};
use crate::{
    auth::{AuthCredentials, AuthError, RouteAuth},
    error::{BlockedAddress, FailedAuthentication, GatewayError},
    identity::{Caller, Consumer, OwnedConsumer, address_key},
    limit::{Charge, Key, Limit},
    plan::{RequestAttributes, RequestView, RoutePlan},
    snapshot::Route,
};

impl Gateway {
    /// Finds out who sends the request, and records it in its ledger. Charges nothing.
    ///
    /// # Errors
    ///
    /// The client's address is blocked, the credentials can be read in more than one way, or they are missing or wrong.
    pub(super) fn identify(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        auth: &RouteAuth,
    ) -> Result<(), GatewayError> {
        let head = &request.head;
        let credentials = AuthCredentials {
            headers: &head.fields,
            query: head.query(),
            certificate: peer.client_certificate.as_deref(),
        };
        let refused = |error, counted_by| match error {
            AuthError::Ambiguous(error) => GatewayError::Ambiguous(error),
            AuthError::Unauthenticated(refused) => {
                GatewayError::Unauthenticated(Box::new(FailedAuthentication {
                    refused,
                    counted_by,
                }))
            }
        };
        let presented = auth.presented(&credentials).map_err(|error| refused(error, None))?;
        let Some(presented) = presented else { return Ok(()) };
        let max_failures = presented.method.max_failures.as_ref();
        if let Some(limit) = max_failures {
            self.ensure_not_blocked(request, limit)?;
        }
        let consumers = self.shared.consumers.load();
        let now = self.shared.clock.store_time();
        let consumer = auth.verify(&presented, &consumers, now);
        let consumer = consumer.map_err(|error| refused(error, max_failures.map(Arc::clone)))?;
        request.ledger.consumer = Some(OwnedConsumer::from(consumer));
        Ok(())
    }

    /// The caller for the throttle, on a route with `auth`.
    pub(super) fn authenticated_caller(&self, request: &RequestContext) -> Option<Caller> {
        let secret = self.throttle_secret?;
        let prefix = request.rules().snapshot.identity.ipv6_prefix;
        let client = request.ledger.client_ip;
        Some(Caller::authenticated(request.ledger.consumer(), client, prefix, secret))
    }

    /// Completes the plan of a request whose consumer is known.
    ///
    /// # Errors
    ///
    /// The consumer may not use the route, its plan blocks a limit, or a limit's key or cost cannot be read.
    pub(super) fn complete_plan(
        &self,
        peer: &Peer,
        request: &RequestContext,
        route: &Route,
        plan: &mut RoutePlan,
    ) -> Result<(), GatewayError> {
        let snapshot = &request.rules().snapshot;
        let input = self.decision_input(peer);
        let (view, path) = (RequestView::of(&request.head), Cow::Borrowed(request.path()));
        let attributes = RequestAttributes::of_normalized(snapshot, &input.source, view, path);
        let (prefix, consumer) = (snapshot.identity.ipv6_prefix, request.ledger.consumer());
        attributes.with_consumer(route, prefix, consumer, |subject| {
            plan.complete(route, subject, input.key_secret)
        })
    }

    /// Counts a failure for the client's address; returns the error for the client.
    #[cold]
    pub(super) async fn count_failure(
        &self,
        request: &mut RequestContext,
        failed: Box<FailedAuthentication>,
    ) -> GatewayError {
        let Some(limit) = &failed.counted_by else { return GatewayError::Unauthenticated(failed) };
        let key = Key(self.failure_key(request));
        let charge = Charge { limit, key, cost: 1 };
        let verdict = self.store.charge(&[charge], self.shared.clock.store_time()).await;
        let decided = verdict.ok().and_then(|verdict| verdict.decided(0).copied());
        // Without a decision nothing is known of other failures.
        let Some(decided) = decided else { return GatewayError::Unauthenticated(failed) };
        let decision = &decided.decision;
        if decision.remaining == 0 {
            let end = decision.retry_at.unwrap_or(decision.reset_at);
            let blocked_key = BlockedKey::new(limit.identity.hash(), key.0);
            let now = self.shared.clock.monotonic();
            let duration = end.ms_since(decided.at).max(0).cast_unsigned();
            self.shared.blocked_addresses.block(blocked_key, now, duration);
        }
        if decision.admitted {
            return GatewayError::Unauthenticated(failed);
        }
        let limit = Arc::clone(limit);
        match self.ensure_not_blocked(request, &limit) {
            Ok(()) => GatewayError::Unauthenticated(failed),
            Err(error) => {
                request.ledger.refused_by.push(limit);
                error
            }
        }
    }

    /// Checks that the client's address is not blocked under `limit`.
    fn ensure_not_blocked(
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
            Some(retry_after) => {
                let limit = Arc::clone(limit);
                Err(GatewayError::TooManyFailures(Box::new(BlockedAddress { limit, retry_after })))
            }
        }
    }

    /// The key under which failures of the request's client are counted.
    fn failure_key(&self, request: &RequestContext) -> u128 {
        let prefix = request.rules().snapshot.identity.ipv6_prefix;
        address_key(request.ledger.client_ip, prefix, self.shared.store.key_secret())
    }
}

impl super::Ledger {
    /// Who sends the request, if that is known.
    pub(super) fn consumer(&self) -> Option<Consumer<'_>> {
        self.consumer.as_ref().map(OwnedConsumer::view)
    }
}
