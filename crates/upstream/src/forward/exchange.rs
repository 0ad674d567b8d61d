//! One exchange on an HTTP/1 or HTTP/2 connection.

use http::Method;
use tidegate_balance::AttemptOutcome;
use tidegate_base::time::Millis;
use tidegate_http1::{FramingError, ResponseHead};
use tidegate_transport::ClientStream;

use crate::{
    InFlight, ResponseBody, UpstreamContent, UpstreamTunnel, bound_login,
    connection::{ConnectionOwner, UpstreamHttp1Connection},
    exchange::ExchangeError,
    http2::{Http2Response, Http2Slot, is_connection_lost},
    outgoing_head::AttemptHead,
    pool::UpstreamConnection,
    request::OutgoingRequest,
    response::BodySource,
};

/// A response's head, and the source of its body.
pub(super) enum Exchanged {
    Http1(ResponseHead, Box<UpstreamHttp1Connection>),
    /// In a box: an HTTP/2 response is larger than an HTTP/1 one.
    Http2(Box<Http2Response>, Http2Slot),
}

/// An exchange without a response.
pub(super) struct FailedExchange {
    pub(super) error: ExchangeError,
    /// True if the connection was reused and has received nothing: if it failed, the server has
    /// probably closed it while it was idle.
    pub(super) is_stale: bool,
    /// True if the client may have got an interim response.
    pub(super) has_sent_interim: bool,
    /// A connection of which the exchange has used nothing, because the client's body failed before
    /// anything was sent.
    pub(super) unused: Option<Box<UpstreamHttp1Connection>>,
}

impl FailedExchange {
    /// `error.type` of the attempt's span.
    pub(super) fn label(&self) -> &'static str {
        match &self.error {
            ExchangeError::Expired => "timeout",
            ExchangeError::Body(_) => "client_body_failed",
            ExchangeError::Request(_) => "request_refused",
            ExchangeError::UpgradeUnsupported => "upgrade_unsupported",
            ExchangeError::Failed(_) if self.is_stale => "idle_connection_closed",
            ExchangeError::Failed(error) => {
                let malformed = error.get_ref().and_then(|error| error.downcast_ref());
                match malformed {
                    None | Some(FramingError::Incomplete) => "connection_lost",
                    Some(_) => "malformed_response",
                }
            }
        }
    }
}

impl Exchanged {
    /// The status of the response.
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Http1(head, _) => head.status,
            Self::Http2(response, _) => response.status(),
        }
    }

    /// The response's outcome, for the choice of targets. Only a trailers-only gRPC response has
    /// its status in the head.
    pub(super) fn observed(&self) -> AttemptOutcome {
        let is_error = match self {
            Self::Http2(response, _) if response.status() == 200 => {
                response.head.fields.get("grpc-status").is_some_and(is_grpc_server_error)
            }
            _ => self.status() >= 500,
        };
        if is_error { AttemptOutcome::Error } else { AttemptOutcome::Success }
    }

    /// True if the client may have got an interim response.
    pub(super) fn has_sent_interim(&self) -> bool {
        match self {
            Self::Http1(_, connection) => connection.interim_responses > 0,
            Self::Http2(_, slot) => slot.has_sent_interim.get(),
        }
    }

    /// The response's head and content. The request stays in flight until the content is dropped.
    pub(super) fn into_response(
        self,
        method: &Method,
        outgoing: OutgoingRequest,
        in_flight: InFlight,
    ) -> (ResponseHead, UpstreamContent) {
        match self {
            Self::Http1(head, connection) if connection.owner == ConnectionOwner::Tunnel => {
                let tunnel = UpstreamTunnel::http1(&outgoing, connection, in_flight);
                (head, UpstreamContent::Tunnel(Box::new(tunnel)))
            }
            Self::Http1(head, connection) => {
                let source = BodySource::http1(&head, method, connection, outgoing, in_flight);
                (head, UpstreamContent::Body(ResponseBody::new(source)))
            }
            Self::Http2(mut response, slot) => {
                if let Some(send) = response.take_tunnel() {
                    let (head, end) = response.into_tunnel(send);
                    let tunnel = UpstreamTunnel::http2(&outgoing, end, slot, in_flight);
                    return (head, UpstreamContent::Tunnel(Box::new(tunnel)));
                }
                let (head, body) = response.into_body(outgoing, slot);
                let source = BodySource::http2(&head, method, body, in_flight);
                (head, UpstreamContent::Body(ResponseBody::new(source)))
            }
        }
    }
}

/// True for `UNKNOWN`, `DEADLINE_EXCEEDED`, `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE` and
/// `DATA_LOSS`, which correspond to HTTP statuses from 500.
fn is_grpc_server_error(status: &[u8]) -> bool {
    matches!(status, b"2" | b"4" | b"12" | b"13" | b"14" | b"15")
}

/// Performs one exchange on `connection`.
pub(super) async fn exchange(
    connection: UpstreamConnection,
    head: AttemptHead<'_>,
    outgoing: &mut OutgoingRequest,
    client: &dyn ClientStream,
    response_timeout: Option<Millis>,
) -> Result<Exchanged, FailedExchange> {
    match connection {
        UpstreamConnection::Http1(mut connection) => {
            if bound_login::is_sent(&head) {
                connection.owner = ConnectionOwner::OneClient;
            }
            outgoing.write_http1(head);
            match connection.exchange(outgoing, client, response_timeout).await {
                Ok(head) => {
                    if bound_login::is_asked_for(&head) {
                        connection.owner = ConnectionOwner::OneClient;
                    }
                    Ok(Exchanged::Http1(head, connection))
                }
                Err(error) => {
                    let is_unused = matches!(error, ExchangeError::Body(_))
                        && outgoing.is_unsent()
                        && connection.is_reusable();
                    Err(FailedExchange {
                        error,
                        is_stale: connection.is_reused && !connection.response_started,
                        has_sent_interim: connection.interim_responses > 0,
                        unused: is_unused.then_some(connection),
                    })
                }
            }
        }
        // Boxed, so that HTTP/1 exchanges do not hold its state.
        UpstreamConnection::Http2(slot) => {
            match Box::pin(slot.exchange(head, outgoing, client, response_timeout)).await {
                Ok(response) => Ok(Exchanged::Http2(Box::new(response), slot)),
                Err(error) => {
                    let has_sent_interim = slot.has_sent_interim.get();
                    let is_reused = slot.is_reused && is_connection_lost(&error);
                    Err(FailedExchange {
                        error,
                        is_stale: is_reused && !has_sent_interim,
                        has_sent_interim,
                        unused: None,
                    })
                }
            }
        }
    }
}
