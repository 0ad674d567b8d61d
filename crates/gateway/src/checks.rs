//! The checks of a request before its limits are charged.

use std::{rc::Rc, sync::Arc};

use tidegate_access::auth::AuthRefusal;
use tidegate_http1::RequestHead;
use tidegate_identity::Caller;
use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::{
    Admission, AskedSource, BodyAccess, CallerBucket, DecisionInput, NextStep, RequestDecision,
    RequestSource, RequestView, RoutePlan, decide, refused_admission,
};
use tidegate_rules::respond::LocalReply;
use tidegate_rules::snapshot::OverridesAt;

use super::{
    Gateway, Peer,
    admission::{Admittance, TurnClaim},
    authentication::PendingIdentity,
    context::RequestContext,
    cors,
    rules::{WorkerRoute, WorkerRules},
};
use crate::metrics::AuthRejection;

/// The result of the checks that precede the limits.
pub(super) enum CheckOutcome<'n> {
    /// The gateway answers the request itself.
    Answered(LocalReply),
    /// The request's limits are charged, and its route's action follows.
    Admitted(AdmittedRequest<'n>),
    /// Who sends the request is found out by a wait.
    Unidentified(PendingIdentity),
    /// It is the turn of its caller in the waiting room; whether a place is free is found out by a
    /// wait.
    ClaimsPlace(PendingPlace),
}

/// A request that the throttle admits if a place is free.
pub(super) struct PendingPlace {
    claim: TurnClaim,
    /// The result of its authentication.
    identified: Result<(), GatewayError>,
}

/// A request that the throttle has admitted: its route, and what is to be charged.
pub(super) struct AdmittedRequest<'n> {
    pub(super) route: Rc<WorkerRoute>,
    pub(super) plan: &'n mut RoutePlan,
}

/// Records what the access log says of the checks.
fn record_admission(
    request: &mut RequestContext,
    checked: &Result<CheckOutcome<'_>, GatewayError>,
) {
    request.ledger.admission = match checked {
        Ok(_) => Admission::Unlimited,
        Err(error) => refused_admission(error),
    };
    if request.ledger.admission == Admission::Denied {
        request.ledger.counters().denied.add(1);
    }
    if let Err(error) = checked
        && let Some(rejection) = auth_rejection(error)
    {
        request.ledger.counters().auth_rejected[rejection as usize].add(1);
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
            throttle_secret: self.throttle_secret,
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

    /// Executes the decision, up to the charging of limits.
    ///
    /// # Errors
    /// The request is refused.
    pub(super) fn check<'n>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        next: &'n mut NextStep,
    ) -> Result<CheckOutcome<'n>, GatewayError> {
        let checked = match next {
            NextStep::Answer(answer) => Ok(CheckOutcome::Answered(cors::answer(answer, request))),
            NextStep::Refuse(refusal) => {
                self.count_caller(refusal.caller.as_ref());
                if matches!(refusal.error, GatewayError::UntrustedAsker) {
                    self.warn_of_asker(peer);
                }
                // Nothing reads the refusal after this.
                let read_twice = GatewayError::Bug("a refusal is read twice");
                Err(std::mem::replace(&mut refusal.error, read_twice))
            }
            // It was read, and what follows took its place.
            NextStep::ReadCheck(_) => Err(GatewayError::Bug("a check is not read")),
            NextStep::Proceed(plan) => self.enter_route(peer, request, plan),
        };
        record_admission(request, &checked);
        checked
    }

    #[cold]
    fn warn_of_asker(&self, peer: &Peer) {
        self.warn(|| {
            let peer = peer.address;
            tracing::warn!(%peer, "refused to decide for a peer that is not in `client.trusted_proxies`");
        });
    }

    /// Goes on with a request whose sender was not known without a wait.
    ///
    /// # Errors
    /// The request is refused.
    pub(super) async fn check_identity<'n>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        next: &'n mut NextStep,
        pending: PendingIdentity,
    ) -> Result<CheckOutcome<'n>, GatewayError> {
        let NextStep::Proceed(plan) = next else {
            return Err(GatewayError::Bug("a request that does not proceed is checked"));
        };
        let route = Rc::clone(&request.rules().routes[plan.route]);
        let Some(auth) = route.settings.auth.as_deref() else {
            return Err(GatewayError::Bug("a route without `auth` authenticates"));
        };
        let identified = self.verify(peer, request, auth, pending).await;
        let checked = self.admit_identified(peer, request, plan, identified);
        record_admission(request, &checked);
        checked
    }

    /// Runs the checks that need state, in this order: the number of requests in flight from the
    /// client's address, the throttle, the refusal that the plan postponed until after the
    /// throttle, and on a route with `auth` who sends the request (`authentication.rs`).
    fn enter_route<'n>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        plan: &'n mut RoutePlan,
    ) -> Result<CheckOutcome<'n>, GatewayError> {
        self.count_caller(plan.caller.as_ref());
        self.count_in_flight(request)?;
        let route = Rc::clone(&request.rules().routes[plan.route]);
        request.client.state().set_request_timeout(route.settings.timeouts.request);
        let Some(auth) = route.settings.auth.as_deref() else {
            return self.admit_caller(peer, request, plan, Ok(()));
        };
        match self.identify(peer, request, auth) {
            Ok(Some(pending)) => Ok(CheckOutcome::Unidentified(pending)),
            Ok(None) => self.admit_identified(peer, request, plan, Ok(())),
            Err(GatewayError::TooManyFailures(blocked)) => {
                request.ledger.refused_by.push(Arc::clone(&blocked.limit));
                Err(GatewayError::TooManyFailures(blocked))
            }
            Err(GatewayError::Unauthenticated(failed)) if failed.refused.reason.is_of_token() => {
                Err(GatewayError::Unauthenticated(failed))
            }
            Err(error) => self.admit_identified(peer, request, plan, Err(error)),
        }
    }

    /// Runs the checks of a request on a route with `auth` that follow its authentication. The
    /// throttle checks the consumer; the refusal of wrong credentials comes after the throttle's
    /// own.
    fn admit_identified<'n>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        plan: &'n mut RoutePlan,
        identified: Result<(), GatewayError>,
    ) -> Result<CheckOutcome<'n>, GatewayError> {
        if request.rules().routes[plan.route].settings.throttle {
            plan.caller = self.authenticated_caller(request);
            self.count_caller(plan.caller.as_ref());
        }
        self.admit_caller(peer, request, plan, identified)
    }

    /// Checks the throttle, and what follows it.
    fn admit_caller<'n>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        plan: &'n mut RoutePlan,
        identified: Result<(), GatewayError>,
    ) -> Result<CheckOutcome<'n>, GatewayError> {
        if let Some(caller) = &plan.caller
            && let Admittance::ClaimsPlace(claim) = self.admit(request, caller)?
        {
            return Ok(CheckOutcome::ClaimsPlace(PendingPlace { claim, identified }));
        }
        self.pass_throttle(peer, request, plan, identified)
    }

    /// Goes on with a request whose caller's turn in the waiting room has come.
    ///
    /// # Errors
    /// The request is refused.
    pub(super) async fn claim_place<'n>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        next: &'n mut NextStep,
        pending: PendingPlace,
    ) -> Result<CheckOutcome<'n>, GatewayError> {
        let NextStep::Proceed(plan) = next else {
            return Err(GatewayError::Bug("a request that does not proceed is checked"));
        };
        let taken = self.take_place(request, pending.claim).await;
        let checked =
            taken.and_then(|()| self.pass_throttle(peer, request, plan, pending.identified));
        record_admission(request, &checked);
        checked
    }

    /// Runs the checks after the throttle: the refusal that the plan postponed until then, and on a
    /// route with `auth` that of wrong credentials.
    fn pass_throttle<'n>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        plan: &'n mut RoutePlan,
        identified: Result<(), GatewayError>,
    ) -> Result<CheckOutcome<'n>, GatewayError> {
        if let Some(refused) = plan.refused_after_throttle.take() {
            return Err(refused);
        }
        identified?;
        let route = Rc::clone(&request.rules().routes[plan.route]);
        if route.settings.auth.is_some() {
            self.complete_plan(peer, request, &route.settings, plan)?;
        }
        Ok(CheckOutcome::Admitted(AdmittedRequest { route, plan }))
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
