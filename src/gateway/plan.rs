//! Has a request decided, and takes what was decided into its context.

use super::{Gateway, Peer, charged_limit::ChargedLimit, context::RequestContext};
use crate::{
    identity::Caller,
    plan::{CallerShare, DecisionInput, Evidence, NextStep, RequestDecision, RequestView, decide},
};

impl Gateway {
    /// What follows from the request's head. Charges nothing.
    pub(super) fn decide(&self, peer: &Peer, context: &mut RequestContext) -> Option<NextStep> {
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

    /// Takes the caller, the limits and the target's key of a request that proceeds.
    pub(super) fn take_plan(
        &self,
        plan: &mut crate::plan::RoutePlan,
        context: &mut RequestContext,
    ) {
        context.caller = plan.caller.take();
        let counters = &self.metrics.throttle;
        match &context.caller {
            Some(Caller::Tokens(_)) => counters.with_token.add(1),
            Some(Caller::Address(_)) => counters.without_token.add(1),
            None => {}
        }
        let limits = &context.rules.routes[plan.route].limits;
        let charged = plan.charges.iter().filter_map(|request| ChargedLimit::new(limits, request));
        context.limits.extend(charged);
        context.hash_key = plan.target_key.unwrap_or(0);
    }
}
