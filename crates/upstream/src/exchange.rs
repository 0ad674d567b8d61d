//! The common part of HTTP/1 and HTTP/2 exchanges: errors, deadlines and interim responses.

use std::io;

use tidegate_base::time::Millis;
use tidegate_http1::{Fields, FramingError, ResponseHead};
use tidegate_transport::connection_state::{ExpiredDeadline, StateCell};
use tidegate_transport::{BodyError, ClientStream};

use super::{headers::write_response_fields, request::OutgoingRequest};

/// The maximum number of interim (1xx) responses before the final one.
pub(super) const MAX_INTERIM_RESPONSES: u8 = 32;

/// The reason why an exchange has no response.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The deadline has passed.
    Expired,
    /// The client's body failed.
    Body(BodyError),
    /// HTTP/2 cannot carry the request.
    Request(FramingError),
    /// The connection failed, or the response was malformed.
    Failed(io::Error),
    /// The server does not allow upgrades over HTTP/2.
    UpgradeUnsupported,
}

/// Checks the deadlines of the request, the upstream and the client's body.
///
/// # Errors
/// One has passed.
#[inline]
pub(super) fn check_deadlines(state: &StateCell) -> Result<(), ExchangeError> {
    match state.expired_deadline() {
        Some(ExpiredDeadline::Upstream | ExpiredDeadline::Request) => Err(ExchangeError::Expired),
        Some(ExpiredDeadline::ClientBody) => Err(ExchangeError::Body(BodyError::TimedOut)),
        _ => Ok(()),
    }
}

/// Begins the wait of an exchange without a response: for the client, if more of its body is
/// needed, or else for the server, for at most `response_timeout`.
#[inline]
pub(super) fn begin_wait(
    state: &StateCell,
    outgoing: &OutgoingRequest,
    response_timeout: Option<Millis>,
) {
    if outgoing.waits_for_client() {
        state.begin_client_body_wait();
    } else {
        state.begin_upstream_wait(response_timeout);
    }
}

/// Forwards an interim response, unless it is a `100 Continue`, which the gateway sends itself.
#[cold]
pub(super) fn forward_interim(client: &dyn ClientStream, interim: &ResponseHead) {
    if interim.status != 100 {
        let mut fields = Fields::new();
        write_response_fields(interim, &mut fields, is_forwarded);
        client.send_interim(interim.status, &fields);
    }
}

/// True for the fields of an interim response to forward. The gateway writes the other fields to
/// the final response.
fn is_forwarded(name: &[u8]) -> bool {
    let starts = |prefix: &[u8]| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    !(starts(b"x-ratelimit") || starts(b"ratelimit") || starts(b"x-request-id"))
}
