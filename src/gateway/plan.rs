//! What a request asks for: its route, the keys that its limits count by, and the target to forward.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Gateway, Peer,
    rules::Rules,
    target,
    visit::{Plan, Visit},
};
use crate::{
    error::GatewayError,
    identity::{Ambiguous, Secret, Subject},
    route::{Lookup, normalize::normalize},
    snapshot::{Action, Ask, Policy, Route, RouteLimit},
};

impl Gateway {
    /// Finds the route, the keys that its limits count by, and the target to forward.
    pub(super) fn plan(
        &self,
        rules: &Rules,
        peer: &Peer,
        visit: &mut Visit,
    ) -> Result<Plan, GatewayError> {
        let snapshot = &rules.snapshot;
        let parts = &visit.parts;
        let client = snapshot.identity.trusted_proxies.client(peer.address, &parts.headers);
        let host = target::host(parts);
        let path =
            normalize(parts.uri.path(), snapshot.http.merge_slashes).map_err(GatewayError::Path)?;
        let found = match snapshot.table.find(&host, &path, &parts.method) {
            Lookup::Found(found) => found,
            Lookup::OtherMethods(methods) => return Err(GatewayError::OtherMethods(methods)),
            Lookup::Nothing => return Err(GatewayError::NoRoute),
        };
        let index = found.route;
        let route = &snapshot.routes[index];
        let line = self.draft_line(visit, client, &host, &path, &route.name);
        let subject = Subject {
            client,
            host: &host,
            method: &parts.method,
            route: &route.name,
            path: &path,
            param: &|name| found.params.get(name),
            query: parts.uri.query(),
            headers: &parts.headers,
            token_sources: &snapshot.identity.token,
            ipv6_prefix: snapshot.identity.ipv6_prefix,
        };
        let asks = self.ask(route, &subject);
        let looks = match &route.action {
            Action::Upstream(_) => Ok(Vec::new()),
            Action::Status(limits) => self.look(limits, &subject),
        };
        let caller = self.caller(route, &subject);
        let forwarded = target::forwarded(parts, &path, route.strip_prefix.as_deref());
        visit.account.line = line;
        visit.account.counters = rules.routes[index].counters.clone();
        visit.route = Some(index);
        visit.caller = caller?;
        let looks = looks.map_err(GatewayError::Ambiguous)?;
        Ok(Plan { route: index, asks: asks?, looks, target: forwarded? })
    }

    /// What the request asks of each limit of `route`.
    fn ask(
        &self,
        route: &Route,
        subject: &Subject<'_>,
    ) -> Result<SmallVec<[Ask; 4]>, GatewayError> {
        let (k0, k1) = self.shared.stores.seed();
        let ask = |used: &RouteLimit| used.policy.ask(subject, Secret(k0, k1));
        route.limits.iter().map(ask).collect::<Result<_, _>>().map_err(GatewayError::Uncountable)
    }

    /// What the request would ask of these limits.
    #[cold]
    fn look(&self, limits: &[Arc<Policy>], subject: &Subject<'_>) -> Result<Vec<Ask>, Ambiguous> {
        let (k0, k1) = self.shared.stores.seed();
        limits.iter().map(|policy| policy.look(subject, Secret(k0, k1))).collect()
    }
}
