//! Completes the decision on a request, once its consumer is known and what its limits read of its
//! body.

use std::borrow::Cow;

use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::{
    DeferredDecision, RequestAttributes, RequestView, RouteDecision, SubjectDetails,
};
use tidegate_rules::snapshot::Route;
use tidegate_usage::RequestMembers;

use super::{Gateway, Peer, context::RequestContext};

/// A decision that is to be completed, and what it depends on besides the consumer.
pub(super) struct Completion<'r, 'd> {
    pub(super) route: &'r Route,
    /// The members of the request's body, if the route's limits read them.
    pub(super) body: Option<&'r RequestMembers>,
    pub(super) deferred: DeferredDecision<'d>,
}

impl Gateway {
    /// Completes the decision on a request whose consumer is known, and whose body was read if its
    /// route's limits read it.
    ///
    /// # Errors
    ///
    /// The consumer may not use the route, its plan blocks a limit, or a limit's key or cost cannot
    /// be read.
    pub(super) fn complete<'d>(
        &self,
        peer: &Peer,
        request: &RequestContext,
        completion: Completion<'_, 'd>,
    ) -> Result<&'d RouteDecision, GatewayError> {
        let Completion { route, body, deferred } = completion;
        let snapshot = &request.rules().snapshot;
        let input = self.decision_input(peer);
        let (view, path) = (RequestView::of(&request.head), Cow::Borrowed(request.path()));
        let attributes = RequestAttributes::of_normalized(snapshot, &input.source, view, path);
        let prefix = snapshot.identity.ipv6_prefix;
        let details = SubjectDetails { consumer: request.ledger.consumer(), body };
        attributes.with_details(route, prefix, details, |subject| {
            deferred.complete(route, subject, input.key_secret)
        })
    }
}
