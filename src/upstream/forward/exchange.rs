//! One exchange on a connection of either version of HTTP.

use std::rc::Rc;

use http::Method;

use crate::{
    framing::{ClientStream, ResponseHead},
    upstream::{
        Pool, ResponseBody, UpstreamContent, UpstreamTunnel,
        connection::{ExchangeError, UpstreamConnection},
        http2::{Http2Response, Http2Slot, is_connection_lost},
        pool::Link,
        request::OutgoingRequest,
    },
};

/// A response's head, and what its body is read from.
pub(super) enum Exchanged {
    Http1(ResponseHead, UpstreamConnection),
    Http2(Http2Response, Http2Slot),
}

/// An exchange without a response.
pub(super) struct FailedExchange {
    pub(super) error: ExchangeError,
    /// Whether the connection was reused and received nothing: the server has closed it.
    pub(super) is_stale: bool,
    /// Whether the client may have got an interim response.
    pub(super) has_sent_interim: bool,
}

impl Exchanged {
    /// The status of the response.
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Http1(head, _) => head.status,
            Self::Http2(response, _) => response.status(),
        }
    }

    /// Whether the client may have got an interim response.
    pub(super) fn has_sent_interim(&self) -> bool {
        match self {
            Self::Http1(_, connection) => connection.interim_responses > 0,
            Self::Http2(_, slot) => slot.response_started.get(),
        }
    }

    pub(super) fn into_response(
        self,
        method: &Method,
        outgoing: OutgoingRequest,
        pool: &Rc<Pool>,
    ) -> (ResponseHead, UpstreamContent) {
        match self {
            Self::Http1(head, connection) if connection.is_upgraded => {
                let tunnel = UpstreamTunnel::http1(&outgoing, connection);
                (head, UpstreamContent::Tunnel(Box::new(tunnel)))
            }
            Self::Http1(head, connection) => {
                let body =
                    ResponseBody::http1(&head, method, connection, outgoing, Rc::clone(pool));
                (head, UpstreamContent::Body(body))
            }
            Self::Http2(mut response, slot) => {
                if let Some(send) = response.take_tunnel() {
                    let (mut head, end) = response.into_tunnel(send);
                    let tunnel = UpstreamTunnel::http2(&outgoing, &mut head, end, slot);
                    return (head, UpstreamContent::Tunnel(Box::new(tunnel)));
                }
                let (head, body) = response.into_body(outgoing, slot);
                let body = ResponseBody::http2(&head, method, body);
                (head, UpstreamContent::Body(body))
            }
        }
    }
}

/// Performs one exchange on `link`.
pub(super) async fn exchange(
    link: Link,
    pool: &Pool,
    outgoing: &mut OutgoingRequest,
    client: &dyn ClientStream,
    response_timeout: Option<u64>,
) -> Result<Exchanged, FailedExchange> {
    match link {
        Link::Http1(mut connection) => {
            match connection.exchange(outgoing, client, response_timeout).await {
                Ok(head) => Ok(Exchanged::Http1(head, connection)),
                Err(error) => Err(FailedExchange {
                    error,
                    is_stale: connection.is_reused && !connection.response_started,
                    has_sent_interim: connection.interim_responses > 0,
                }),
            }
        }
        // Boxed, so that exchanges of HTTP/1 do not carry its state.
        Link::Http2(slot) => {
            let scheme = pool.scheme();
            match Box::pin(slot.exchange(outgoing, scheme, client, response_timeout)).await {
                Ok(response) => Ok(Exchanged::Http2(response, slot)),
                Err(error) => {
                    let has_sent_interim = slot.response_started.get();
                    let is_reused = slot.is_reused && is_connection_lost(&error);
                    Err(FailedExchange {
                        error,
                        is_stale: is_reused && !has_sent_interim,
                        has_sent_interim,
                    })
                }
            }
        }
    }
}
