//! Cross-origin resource sharing: the fields of responses.

use tidegate_http1::{Fields, ResponseHead};
use tidegate_rules::plan::LocalAnswer;
use tidegate_rules::respond::{self, LocalReply};
use tidegate_rules::snapshot::CorsPolicy;

use super::context::RequestContext;

/// The response for an answer that charges nothing.
pub(super) fn answer(answer: &LocalAnswer, request: &RequestContext) -> LocalReply {
    respond::answer(answer, request.cors(), &request.head.fields)
}

/// Writes the fields of the route's `cors`, which is `policy`, to a response.
pub(super) fn write_fields(
    fields: &mut Fields,
    policy: &CorsPolicy,
    request: &RequestContext,
    upstream: Option<&ResponseHead>,
) {
    // A rule of the route may replace the upstream's `Vary`.
    let upstream = upstream.filter(|_| !request.drops_response_field(b"vary"));
    let upstream = upstream.map(|upstream| &upstream.fields);
    respond::write_cors_fields(fields, policy, &request.head.fields, upstream);
}
