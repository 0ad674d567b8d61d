//! What a request asks for, and what is noted of it on the way.

use super::{Gateway, Peer, charged_limit::ChargedLimit, context::RequestContext, rules::Rules};
use crate::{
    error::GatewayError,
    identity::Secret,
    plan::{Asked, LimitRequests, limit_requests, status_requests},
    snapshot::{Action, LimitRequest},
};

/// What was found out about a request before anything was charged.
pub(super) struct Plan {
    /// The route's place in the snapshot.
    pub(super) route: usize,
    /// What would be asked of the limits that the route tells of.
    pub(super) told: Vec<LimitRequest>,
}

impl Gateway {
    /// Finds the route, and who is counted by its limits.
    pub(super) fn plan(
        &self,
        rules: &Rules,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<Plan, GatewayError> {
        let Some(head) = &context.head else { return Err(GatewayError::Target) };
        let asked = Asked::read(&rules.snapshot, peer.address, head)?;
        context.address = asked.client.ip;
        if let std::borrow::Cow::Owned(path) = &asked.path {
            context.path = Some(path.as_str().into());
        }
        let matched = asked.find(&rules.snapshot)?;
        let (index, route) = (matched.index, matched.route);
        let (k0, k1) = self.shared.stores.secret();
        let secret = Secret(k0, k1);
        context.counters = rules.routes[index].counters.clone();
        context.route = Some(index);
        let limits = &rules.routes[index].limits;
        let told = matched.subject(|subject| {
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
        Ok(Plan { route: index, told: told? })
    }
}
