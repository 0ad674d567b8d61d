//! Has a request decided, takes what was decided into its context, and makes the checks before its limits.

use super::{Gateway, Peer, charged_limit::ChargedLimit, context::RequestContext, cors};
use crate::{
    error::GatewayError,
    identity::Caller,
    limit::Admission,
    plan::{
        CallerShare, DecisionInput, Evidence, NextStep, RequestDecision, RequestView, RoutePlan,
        decide,
    },
    respond::LocalReply,
    snapshot::LimitRequest,
};

/// A request after the checks that come before its limits.
pub(super) enum CheckedRequest {
    /// The gateway answers it.
    Answered(LocalReply),
    /// Its limits are charged, and its route's action follows.
    Admitted(AdmittedRequest),
}

/// A request that the throttle has admitted: what its [`RequestContext`] does not hold.
pub(super) struct AdmittedRequest {
    /// The route's index in the snapshot.
    pub(super) route: usize,
    /// The limits that a `status` route reports; empty for other routes.
    pub(super) status_requests: Vec<LimitRequest>,
}

impl Gateway {
    /// Makes the checks that come before the limits. Not async, so that a request that waits does not hold its plan.
    pub(super) fn check(
        &self,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<CheckedRequest, GatewayError> {
        match self.decide(peer, context).ok_or(GatewayError::MalformedTarget)? {
            NextStep::Answer(answer) => {
                context.admission = Admission::Unlimited;
                Ok(CheckedRequest::Answered(cors::answer(&answer, context)))
            }
            NextStep::Refuse(refusal) => {
                self.count_caller(refusal.caller.as_ref());
                context.admission = refusal.admission();
                if context.admission == Admission::Denied {
                    context.counters.denied.add(1);
                }
                Err(refusal.error)
            }
            NextStep::Proceed(plan) => {
                self.enter_route(plan, context).map(CheckedRequest::Admitted)
            }
        }
    }

    /// Makes the checks that need state, in this order: requests in flight of the client's address, the throttle,
    /// and what the plan refuses after it.
    fn enter_route(
        &self,
        mut plan: RoutePlan,
        context: &mut RequestContext,
    ) -> Result<AdmittedRequest, GatewayError> {
        self.take_plan(&mut plan, context);
        self.count_in_flight(context)?;
        let route = &context.rules.snapshot.routes[plan.route];
        let timeout = route.request_timeout.map(|timeout| timeout.as_millis() as u64);
        context.client.state().set_request_timeout(timeout);
        self.admit(context)?;
        if let Some(error) = plan.refused_after_throttle {
            return Err(error);
        }
        context.admission = Admission::Unlimited;
        Ok(AdmittedRequest { route: plan.route, status_requests: plan.status_requests })
    }

    /// What follows from the request's head. Charges nothing.
    fn decide(&self, peer: &Peer, context: &mut RequestContext) -> Option<NextStep> {
        let head = context.head.as_ref()?;
        let key_secret = self.shared.store.key_secret();
        let throttle_secret = self.gate.as_ref().map(|gate| gate.token_secret());
        let share = CallerShare::Hashed(key_secret);
        let input = DecisionInput {
            evidence: Evidence::Request { peer: peer.address, share },
            via: Some(&self.shared.via),
            redirect_https: peer.redirect_https,
            certificate: peer.certificate.as_ref(),
            key_secret,
            throttle_secret,
        };
        let decision = decide(&context.rules.snapshot, &input, RequestView::of(head));
        let RequestDecision { client, path, next } = decision;
        if let Some(client) = client {
            context.client_ip = client.ip;
            if client.ip != peer.address {
                context.usage = self.client_usage(client.ip).into();
            }
        }
        context.path = path;
        context.route = next.route();
        if let Some(route) = context.route {
            context.counters = context.rules.routes[route].counters.clone();
        }
        Some(next)
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

    /// Takes the caller, the limits and the target's key of a request that proceeds.
    fn take_plan(&self, plan: &mut RoutePlan, context: &mut RequestContext) {
        context.caller = plan.caller.take();
        self.count_caller(context.caller.as_ref());
        let limits = &context.rules.routes[plan.route].limits;
        let charged = plan.charges.iter().filter_map(|request| ChargedLimit::new(limits, request));
        context.limits.extend(charged);
        context.hash_key = plan.target_key.unwrap_or(0);
    }
}
