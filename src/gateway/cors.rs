//! Cross-origin resource sharing: the fields of responses.

use super::context::RequestContext;
use crate::{
    http1::{Fields, ResponseHead},
    plan::LocalAnswer,
    respond::{self, HeaderReader, LocalReply},
    snapshot::CorsPolicy,
};

/// The `cors` of the request's route, if it has one.
fn policy(request: &RequestContext) -> Option<&CorsPolicy> {
    request.route()?.settings.cors.as_ref()
}

/// The response for an answer that charges nothing.
pub(super) fn answer(answer: &LocalAnswer, request: &RequestContext) -> LocalReply {
    respond::answer(answer, policy(request), &request.head.fields)
}

/// Writes the fields of the route's `cors` to a response. Returns true if the route has `cors`: the upstream's own
/// CORS fields must then be removed.
#[inline]
pub(super) fn write_fields(
    fields: &mut Fields,
    request: &RequestContext,
    upstream: Option<&ResponseHead>,
) -> bool {
    let Some(policy) = policy(request) else { return false };
    // A rule of the route may replace the upstream's `Vary`.
    let upstream = upstream.filter(|_| !request.drops_response_field(b"vary"));
    let upstream = upstream.map(|upstream| &upstream.fields);
    respond::write_cors_fields(fields, policy, &request.head.fields, upstream);
    true
}

/// The kind of client that reads the rate-limit headers: any, or a page of another origin.
pub(super) fn rate_header_reader(request: &RequestContext) -> HeaderReader {
    HeaderReader::of(&request.head.fields, policy(request))
}
