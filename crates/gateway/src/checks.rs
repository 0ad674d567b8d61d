//! The checks of a request before its limits are charged.

use std::{rc::Rc, sync::Arc};

use tidegate_access::auth::AuthRefusal;
use tidegate_http1::RequestHead;
use tidegate_identity::Caller;
use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::{
    Admission, AskedSource, BodyAccess, CallerBucket, DecisionInput, DecisionProgress, LocalAnswer,
    PendingDecision, RequestDecision, RequestRefusal, RequestSource, RequestView, RouteDecision,
    decide, refused_admission,
};
use tidegate_rules::respond::LocalReply;
use tidegate_rules::snapshot::OverridesAt;

use super::{
    Gateway, Peer,
    admission::Admittance,
    completion::Completion,
    context::RequestContext,
    cors,
    rules::{WorkerRoute, WorkerRules},
};
use crate::metrics::AuthRejection;

/// A request that all checks before its limits have admitted.
pub(super) struct AdmittedRequest<'d> {
    pub(super) route: Rc<WorkerRoute>,
    /// The caller, if the throttle applies.
    pub(super) caller: Option<Caller>,
    pub(super) decision: &'d RouteDecision,
}

/// Records what the access log says of the checks: `error` is their refusal.
fn record_admission(request: &mut RequestContext, error: Option<&GatewayError>) {
    request.ledger.admission = error.map_or(Admission::Unlimited, refused_admission);
    if request.ledger.admission == Admission::Denied {
        request.ledger.counters().denied.add(1);
    }
    if let Some(rejection) = error.and_then(auth_rejection) {
        request.ledger.counters().auth_rejected[rejection as usize].add(1);
    }
}

/// The error of a request whose credentials are refused, if the throttle's refusal comes before
/// it.
///
/// # Errors
///
/// The refusal comes before the throttle's: the address has failed too often, or a signed token is
/// not valid.
fn refused_at_once(
    request: &mut RequestContext,
    error: GatewayError,
) -> Result<GatewayError, GatewayError> {
    match error {
        GatewayError::TooManyFailures(blocked) => {
            request.ledger.refused_by.push(Arc::clone(&blocked.limit));
            Err(GatewayError::TooManyFailures(blocked))
        }
        GatewayError::Unauthenticated(failed) if failed.refused.reason.is_of_token() => {
            Err(GatewayError::Unauthenticated(failed))
        }
        error => Ok(error),
    }
}

/// Why a request is refused for its credentials or its consumer; `None` if that is not the reason.
fn auth_rejection(error: &GatewayError) -> Option<AuthRejection> {
    Some(match error {
        GatewayError::Unauthenticated(failed) => match failed.refused.reason {
            AuthRefusal::Missing => AuthRejection::Missing,
            AuthRefusal::Invalid => AuthRejection::Invalid,
            AuthRefusal::InvalidToken => AuthRejection::InvalidToken,
            AuthRefusal::ExpiredToken => AuthRejection::ExpiredToken,
        },
        GatewayError::CannotAuthenticate(_) => AuthRejection::Unavailable,
        GatewayError::RefusedByService(_) => AuthRejection::Service,
        GatewayError::MissingClaims(_) => AuthRejection::MissingClaims,
        GatewayError::ConsumerNotAllowed => AuthRejection::ConsumerNotAllowed,
        GatewayError::TooManyFailures(_) => AuthRejection::TooManyFailures,
        _ => return None,
    })
}

impl Gateway {
    /// Decides a request from its head.
    pub(super) fn decide(
        &self,
        rules: &WorkerRules,
        peer: &Peer,
        head: &RequestHead,
    ) -> RequestDecision {
        decide(&rules.snapshot, &self.decision_input(peer), RequestView::of(head))
    }

    /// What decisions on requests of `peer` need to know.
    #[inline]
    pub(super) fn decision_input<'p>(&'p self, peer: &'p Peer) -> DecisionInput<'p> {
        let key_secret = self.shared.store.key_secret();
        let caller = CallerBucket::Hashed(key_secret);
        DecisionInput {
            source: RequestSource::Request { peer: peer.address, caller },
            via: Some(&self.shared.via),
            redirect_https: peer.redirect_https,
            certificate: peer.certificate.as_ref(),
            key_secret,
            throttle_secret: self.throttle.as_ref().map(|throttle| throttle.secret),
            overrides: self.overrides(),
            body: BodyAccess::Deferred,
            asked: AskedSource::Question,
        }
    }

    /// The overrides that apply now; `None` if there are none.
    #[inline]
    pub(super) fn overrides(&self) -> Option<OverridesAt> {
        let table = self.shared.overrides.table()?;
        Some(OverridesAt { table, now: self.shared.clock.store_time() })
    }

    /// The answer to a request that needs no further check.
    pub(super) fn answer(request: &mut RequestContext, answer: &LocalAnswer) -> LocalReply {
        record_admission(request, None);
        cors::answer(answer, request)
    }

    /// The error of a request that is refused by its head.
    pub(super) fn refuse_decided(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        refusal: RequestRefusal,
    ) -> GatewayError {
        self.count_caller(refusal.caller.as_ref());
        if matches!(refusal.error, GatewayError::UntrustedAsker) {
            self.warn_of_asker(peer);
        }
        record_admission(request, Some(&refusal.error));
        refusal.error
    }

    /// Runs the checks that need state, up to the charging of limits.
    ///
    /// # Errors
    /// The request is refused.
    pub(super) async fn check<'d>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        pending: &'d mut PendingDecision,
    ) -> Result<AdmittedRequest<'d>, GatewayError> {
        let checked = self.enter_route(peer, request, pending).await;
        record_admission(request, checked.as_ref().err());
        checked
    }

    #[cold]
    fn warn_of_asker(&self, peer: &Peer) {
        self.warn(|| {
            let peer = peer.address;
            tracing::warn!(%peer, "refused to decide for a peer that is not in `client.trusted_proxies`");
        });
    }

    /// The checks that need state, in this order: the number of requests in flight from the
    /// client's address; on a route with `auth` who sends the request (`authentication.rs`); the
    /// throttle; the refusals that come after the throttle's own; and what depends on the consumer
    /// or the body.
    async fn enter_route<'d>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        pending: &'d mut PendingDecision,
    ) -> Result<AdmittedRequest<'d>, GatewayError> {
        self.count_caller(pending.caller.as_ref());
        self.count_in_flight(request)?;
        let route = Rc::clone(&request.rules().routes[pending.route]);
        let state = request.client.state();
        state.set_request_timeout(route.settings.timeouts.request);
        state.set_max_body(route.settings.max_body);
        let identified = match route.settings.auth.as_deref() {
            None => Ok(()),
            Some(auth) => {
                let identified = match self.authenticator.identify(peer, request, auth) {
                    Ok(None) => Ok(()),
                    // Waits are boxed here, so that other requests do not carry their state.
                    Ok(Some(proof)) => {
                        Box::pin(self.authenticator.verify(peer, request, auth, proof)).await
                    }
                    Err(error) => Err(refused_at_once(request, error)?),
                };
                if route.settings.throttle {
                    let throttle = self.throttle.as_ref();
                    pending.caller = throttle.map(|own| own.authenticated_caller(request));
                    self.count_caller(pending.caller.as_ref());
                }
                identified
            }
        };
        let caller = pending.caller.take();
        if let (Some(throttle), Some(caller)) = (&self.throttle, &caller)
            && let Admittance::ClaimsPlace(claim) = throttle.admit(request, caller)?
        {
            Box::pin(throttle.take_place(request, claim)).await?;
        }
        let progress = pending.after_throttle()?;
        identified?;
        let decision = match progress {
            DecisionProgress::Whole(decision) => decision,
            DecisionProgress::Deferred(deferred) => match &route.settings.inspection {
                None => {
                    let completion = Completion { route: &route.settings, body: None, deferred };
                    self.complete(peer, request, completion)?
                }
                Some(inspection) => {
                    let read = self.inspect_body(peer, request, &route, inspection, deferred);
                    Box::pin(read).await?
                }
            },
        };
        Ok(AdmittedRequest { route, caller, decision })
    }

    /// Counts the request for its client's address until its response ends. This also bounds the
    /// upstream connections and the memory that the address can hold.
    ///
    /// # Errors
    /// The client has its maximum number of requests in flight.
    fn count_in_flight(&self, request: &mut RequestContext) -> Result<(), GatewayError> {
        let snapshot = &request.ledger.rules.snapshot;
        let client = request.ledger.client_ip;
        // A request holds at most one upstream connection.
        let share = self.shared.upstreams.connection_budget.client_share();
        // The connections of a trusted proxy carry many clients.
        let is_client = !snapshot.identity.trusted_proxies.contains(client);
        let configured = snapshot.http.max_requests_per_client.filter(|_| is_client);
        let bound = configured.map_or(share, |bound| share.min(bound.into()));
        request.held.in_flight = request.usage.begin_request(bound);
        if request.held.in_flight.is_none() {
            self.metrics.requests_refused.add(1);
            self.warn(|| {
                tracing::warn!(
                    %client, bound,
                    "request refused: the client address has its maximum number of requests in flight"
                );
            });
            return Err(GatewayError::ClientOverloaded);
        }
        Ok(())
    }

    /// Counts a caller that was read for the throttle, even if its request is refused.
    fn count_caller(&self, caller: Option<&Caller>) {
        let counters = &self.metrics.throttle;
        match caller {
            Some(Caller::Tokens(_)) => counters.with_token.add(1),
            Some(Caller::Address(_)) => counters.without_token.add(1),
            None => {}
        }
    }
}
