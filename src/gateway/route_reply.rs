//! The actions of a route that the gateway answers itself: a redirect, a fixed response.

use super::{context::RequestContext, draft_response::DraftResponse};
use crate::{error::GatewayError, respond, snapshot::Redirect, upstream::FixedResponse};

/// The response that redirects the client.
///
/// # Errors
/// The location has the host of a request without one.
pub(super) fn redirect(
    redirect: &Redirect,
    context: &mut RequestContext,
) -> Result<DraftResponse, GatewayError> {
    // No upstream has checked the token, so the response must not make the caller active.
    context.caller = None;
    let location =
        context.routed().map(|request| request.with_values(|values| redirect.to.render(values)));
    let location = location.flatten().ok_or(GatewayError::MalformedTarget)?;
    Ok(DraftResponse::Local(respond::redirect_reply(&location, redirect.status)))
}

/// The fixed response.
pub(super) fn respond(fixed: &FixedResponse, context: &mut RequestContext) -> DraftResponse {
    context.caller = None;
    DraftResponse::Local(respond::fixed_reply(fixed))
}
