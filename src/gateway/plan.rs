//! What a request asks for, and what is noted of it on the way.

use smallvec::SmallVec;

use super::{Gateway, Peer, context::RequestContext, rules::Rules};
use crate::{
    error::GatewayError,
    identity::Secret,
    plan::{Asked, asks, looks},
    snapshot::Ask,
};

/// What was found out about a request before anything was charged.
pub(super) struct Plan {
    /// The route's place in the snapshot.
    pub(super) route: usize,
    /// What is asked of each of the route's limits.
    pub(super) asks: SmallVec<[Ask; 4]>,
    /// What would be asked of each of the limits that the route tells of.
    pub(super) looks: Vec<Ask>,
}

impl Gateway {
    /// Finds the route, and the keys that its limits count by.
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
        let (asks, looks, caller) = matched.subject(|subject| {
            (
                asks(route, subject, secret),
                looks(route, subject, secret),
                self.caller(route, subject),
            )
        });
        context.counters = rules.routes[index].counters.clone();
        context.route = Some(index);
        context.caller = caller?;
        Ok(Plan { route: index, asks: asks?, looks: looks? })
    }
}
