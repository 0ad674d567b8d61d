//! Cross-origin resource sharing: the fields of responses.

use super::{context::RequestContext, rules::WorkerRules};
use crate::{
    http1::{Fields, ResponseHead},
    plan::LocalAnswer,
    respond::{self, HeaderReader, LocalReply},
    snapshot::CorsPolicy,
};

/// The route's `cors`, if the request has a route that has one.
fn policy<'r>(rules: &'r WorkerRules, context: &RequestContext) -> Option<&'r CorsPolicy> {
    rules.snapshot.routes[context.route?].cors.as_ref()
}

/// The response of a decision that charges nothing.
pub(super) fn answer(answer: &LocalAnswer, context: &RequestContext) -> LocalReply {
    let empty = Fields::default();
    let fields = context.head.as_ref().map_or(&empty, |head| &head.fields);
    respond::answer(answer, policy(&context.rules, context), fields)
}

/// Writes the fields of the route's `cors` to a response; returns whether the upstream's own are removed.
#[inline]
pub(super) fn write_fields(
    fields: &mut Fields,
    rules: &WorkerRules,
    context: &RequestContext,
    upstream: Option<&ResponseHead>,
) -> bool {
    let (Some(policy), Some(head)) = (policy(rules, context), &context.head) else { return false };
    // A rule of the route may replace the upstream's `Vary`.
    let upstream = upstream.filter(|_| !context.drops_response_field(b"vary"));
    let upstream = upstream.map(|upstream| &upstream.fields);
    respond::write_cors_fields(fields, policy, &head.fields, upstream);
    true
}

/// Who reads the rate-limit headers.
pub(super) fn rate_header_reader(rules: &WorkerRules, context: &RequestContext) -> HeaderReader {
    let policy = policy(rules, context);
    context.head.as_ref().map_or(HeaderReader::Any, |head| HeaderReader::of(&head.fields, policy))
}
