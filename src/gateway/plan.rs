//! Plans a request: the route, the caller, and the limits with their keys. Charges nothing.

use super::{
    Gateway, Peer, charged_limit::ChargedLimit, context::RequestContext, rules::WorkerRules,
};
use crate::{
    error::GatewayError,
    identity::KeySecret,
    plan::{LimitRequests, RequestAttributes, limit_requests, status_requests},
    snapshot::{Action, LimitRequest},
};

/// The part of a request's plan that its [`RequestContext`] does not hold.
pub(super) struct Plan {
    /// The route's index in the snapshot.
    pub(super) route: usize,
    /// The limits and keys that a quota status route reports; empty for other routes.
    pub(super) status_requests: Vec<LimitRequest>,
}

impl Gateway {
    /// Finds the route, and the keys that its limits count the request by.
    ///
    /// # Errors
    ///
    /// The path cannot be normalized, the host is malformed or not one of the connection's certificate,
    /// no route matches, or a key or cost cannot be read.
    pub(super) fn plan(
        &self,
        rules: &WorkerRules,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<Plan, GatewayError> {
        let Some(head) = &context.head else { return Err(GatewayError::MalformedTarget) };
        let attributes = RequestAttributes::read(&rules.snapshot, peer.address, head)?;
        context.client_ip = attributes.client.ip;
        if let std::borrow::Cow::Owned(path) = &attributes.path {
            context.path = Some(path.as_str().into());
        }
        if peer.certificate.as_ref().is_some_and(|name| !name.serves(&attributes.host)) {
            return Err(GatewayError::Misdirected);
        }
        let matched = attributes.find_route(&rules.snapshot)?;
        let (index, route) = (matched.index, matched.route);
        let (k0, k1) = self.shared.store.key_secret();
        let secret = KeySecret(k0, k1);
        context.counters = rules.routes[index].counters.clone();
        context.route = Some(index);
        let limits = &rules.routes[index].limits;
        let status_requests = matched.with_subject(|subject| {
            context.caller = self.caller(route, subject)?;
            let requests = limit_requests(route, subject, secret)?;
            let charged = requests.iter().filter_map(|request| ChargedLimit::new(limits, request));
            context.limits.extend(charged);
            match &route.action {
                Action::Status(_) => {
                    status_requests(route, subject, secret).map(LimitRequests::into_vec)
                }
                Action::Upstream(_) => Ok(Vec::new()),
            }
        });
        Ok(Plan { route: index, status_requests: status_requests? })
    }
}
