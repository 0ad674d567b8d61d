//! What a request asks for, and what is noted of it on the way.

use super::{
    Gateway, Peer,
    rules::Rules,
    visit::{Plan, Visit},
};
use crate::{
    error::GatewayError,
    identity::Secret,
    plan::{Asked, asks, looks},
};

impl Gateway {
    /// Finds the route, the keys that its limits count by, and the target to forward.
    pub(super) fn plan(
        &self,
        rules: &Rules,
        peer: &Peer,
        visit: &mut Visit,
    ) -> Result<Plan, GatewayError> {
        let parts = &visit.parts;
        let asked = Asked::read(&rules.snapshot, peer.address, parts)?;
        let matched = asked.find(&rules.snapshot)?;
        let (index, route) = (matched.index, matched.route);
        let line =
            self.draft_line(rules, visit, asked.client.ip, &asked.host, &asked.path, &route.name);
        let (k0, k1) = self.shared.stores.seed();
        let secret = Secret(k0, k1);
        let (asks, looks, caller) = matched.subject(|subject| {
            (
                asks(route, subject, secret),
                looks(route, subject, secret),
                self.caller(route, subject),
            )
        });
        let forwarded = matched.forwarded(parts);
        visit.account.line = line;
        visit.account.counters = rules.routes[index].counters.clone();
        visit.route = Some(index);
        visit.caller = caller?;
        Ok(Plan { route: index, asks: asks?, looks: looks?, target: forwarded? })
    }
}
