//! Plans a request: the route, the caller, and the limits with their keys. Charges nothing.

use super::{
    Gateway, Peer, charged_limit::ChargedLimit, context::RequestContext, rules::WorkerRules,
};
use crate::{
    error::GatewayError,
    limit::Admission,
    metrics::RouteCounters,
    plan::{
        CallerShare, LimitRequests, RequestAttributes, check_access, limit_requests,
        status_requests, target_key,
    },
    respond,
    snapshot::{Action, LimitRequest},
};

/// The part of a request's plan that its [`RequestContext`] does not hold.
pub(super) struct Plan {
    /// The route's index in the snapshot.
    pub(super) route: usize,
    /// The limits and keys that a quota status route reports; empty for other routes.
    pub(super) status_requests: Vec<LimitRequest>,
    /// Whether the route's `cors` answers the request, which is a preflight.
    pub(super) is_preflight: bool,
}

impl Gateway {
    /// Finds the route, and the keys that its limits count the request by.
    ///
    /// # Errors
    ///
    /// The path cannot be normalized, the host is malformed or not one of the connection's certificate,
    /// no route matches, the route does not admit the client, or a key or cost cannot be read.
    pub(super) fn plan(
        &self,
        rules: &WorkerRules,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<Plan, GatewayError> {
        let Some(head) = &context.head else { return Err(GatewayError::MalformedTarget) };
        let attributes = RequestAttributes::read(&rules.snapshot, peer.address, head)?;
        context.client_ip = attributes.client.ip;
        if context.client_ip != peer.address {
            context.usage = self.client_usage(context.client_ip).into();
        }
        if let std::borrow::Cow::Owned(path) = &attributes.path {
            context.path = Some(path.as_str().into());
        }
        if peer.certificate.as_ref().is_some_and(|name| !name.serves(&attributes.host)) {
            return Err(GatewayError::Misdirected);
        }
        let secret = self.shared.store.key_secret();
        let share = CallerShare::Hashed(secret);
        let preflight =
            respond::preflight_method(&head.method, &head.fields).and_then(|requested| {
                attributes.with_method(&requested).find_preflight(&rules.snapshot, share)
            });
        if let Some(index) = preflight {
            context.counters = rules.routes[index].counters.clone();
            context.route = Some(index);
            let access = check_access(&rules.snapshot.routes[index], attributes.client);
            access.inspect_err(|_| count_denied(&mut context.admission, &context.counters))?;
            return Ok(Plan { route: index, status_requests: Vec::new(), is_preflight: true });
        }
        let matched = attributes.find_route(&rules.snapshot, share)?;
        let (index, route) = (matched.index, matched.route);
        context.counters = rules.routes[index].counters.clone();
        context.route = Some(index);
        if let Err(denied) = matched.check_access() {
            count_denied(&mut context.admission, &context.counters);
            return Err(denied);
        }
        let limits = &rules.routes[index].limits;
        let status_requests = matched.with_subject(|subject| {
            context.caller = self.caller(route, subject)?;
            let requests = limit_requests(route, subject, secret)?;
            let charged = requests.iter().filter_map(|request| ChargedLimit::new(limits, request));
            context.limits.extend(charged);
            if let Some(plan) = &route.hash_key {
                context.hash_key = target_key(plan, subject);
            }
            match &route.action {
                Action::Status(_) => {
                    status_requests(route, subject, secret).map(LimitRequests::into_vec)
                }
                _ => Ok(Vec::new()),
            }
        });
        Ok(Plan { route: index, status_requests: status_requests?, is_preflight: false })
    }
}

/// Counts a request that `allow` or `deny` of its route refuses.
#[cold]
fn count_denied(admission: &mut Admission, counters: &RouteCounters) {
    *admission = Admission::Denied;
    counters.denied.add(1);
}
