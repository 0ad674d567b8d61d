//! One connection to an upstream server, and one exchange on it.
//!
//! The request's own task drives the connection, so an exchange needs no switch between tasks.

use std::{
    io,
    task::{Context, Poll, ready},
};

use tidegate_base::time::{CoarseTime, Millis};
use tidegate_http1::{
    FramingError, HeadParser, ResponseHead, Version, head::resume_parse, start_line::StatusLine,
};
use tidegate_transport::connection_state::Wait;
use tidegate_transport::{ClientStream, ReadBuffer, SharedSocket, read_buffer::poll_read};

use super::{
    endpoint::ConnectionGuard,
    exchange::{
        ExchangeError, MAX_INTERIM_RESPONSES, begin_wait, check_deadlines, forward_interim,
    },
    request::{OutgoingRequest, SendError},
    requested_name::RequestedName,
    upgrade::UpgradeRequest,
};

/// Who may use a connection after an exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ConnectionOwner {
    /// Any client's next request.
    AnyClient,
    /// No other client's: a login may belong to the connection.
    OneClient,
    /// The tunnel of this exchange: a 101 has switched the connection to another protocol.
    Tunnel,
}

/// One connection to an upstream server.
pub(super) struct UpstreamHttp1Connection {
    pub(super) socket: SharedSocket,
    /// Bytes that were read and not parsed.
    pub(super) buffer: ReadBuffer,
    /// The parser of an incomplete head.
    head: Option<Box<HeadParser<StatusLine>>>,
    /// The number of interim responses in this exchange.
    pub(super) interim_responses: u8,
    /// True once a byte of the response was received.
    pub(super) response_started: bool,
    /// The time at which the connection was returned to the pool.
    pub(super) idle_since: CoarseTime,
    /// True if the connection has carried an exchange before.
    pub(super) is_reused: bool,
    /// Who may use the connection after this exchange.
    pub(super) owner: ConnectionOwner,
    /// The name in the handshake, if it is that of a request.
    pub(super) server_name: Option<RequestedName>,
    /// Counts it as open.
    _guard: ConnectionGuard,
}

impl UpstreamHttp1Connection {
    /// A connection over a connected socket, counted by `guard`.
    pub(super) fn new(socket: SharedSocket, guard: ConnectionGuard) -> Self {
        Self {
            socket,
            _guard: guard,
            buffer: ReadBuffer::default(),
            head: None,
            interim_responses: 0,
            response_started: false,
            idle_since: CoarseTime::ZERO,
            is_reused: false,
            owner: ConnectionOwner::AnyClient,
            server_name: None,
        }
    }

    /// True if another exchange may start, of any client: the upstream has neither closed the
    /// connection nor sent unsolicited bytes. Costs no system call while nothing has arrived.
    pub(super) fn is_reusable(&self) -> bool {
        self.owner == ConnectionOwner::AnyClient && self.buffer.is_empty() && self.socket.is_quiet()
    }

    /// Resets the state of the last exchange.
    pub(super) fn mark_idle(&mut self, now: CoarseTime) {
        self.idle_since = now;
        self.is_reused = true;
        self.interim_responses = 0;
        self.response_started = false;
    }

    /// Sends `outgoing` and waits for the response's head, at most `response_timeout` after the
    /// last progress. A response that arrives before the body is sent is returned at once;
    /// [`super::ResponseBody`] sends the rest. Interim responses are forwarded to `client`.
    ///
    /// # Errors
    /// A deadline has passed, the client's body failed, or the connection or the response failed.
    pub(super) async fn exchange(
        &mut self,
        outgoing: &mut OutgoingRequest,
        client: &dyn ClientStream,
        response_timeout: Option<Millis>,
    ) -> Result<ResponseHead, ExchangeError> {
        let state = client.state();
        state.set_wait(Wait::Internal);
        std::future::poll_fn(|cx| {
            check_deadlines(state)?;
            let sending = outgoing.poll_send(&self.socket, cx);
            if let Poll::Ready(Err(SendError::Body(error))) = sending {
                return Poll::Ready(Err(ExchangeError::Body(error)));
            }
            // An upstream may respond and close without reading the whole request. So a received
            // response counts even if the write failed.
            match (self.poll_response(cx, client, outgoing), sending) {
                (Poll::Ready(response), Poll::Ready(Err(SendError::Io(error)))) => {
                    Poll::Ready(response.map_err(|_| ExchangeError::Failed(error)))
                }
                (Poll::Ready(response), _) => Poll::Ready(response.map_err(ExchangeError::Failed)),
                (Poll::Pending, _) => {
                    begin_wait(state, outgoing, response_timeout);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Reads until the head of the final response is complete, or the head of a 101 that accepts
    /// the upgrade of `outgoing`.
    fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        client: &dyn ClientStream,
        outgoing: &OutgoingRequest,
    ) -> Poll<io::Result<ResponseHead>> {
        // A 101 before the request is fully sent cannot accept its upgrade.
        let upgrade = outgoing.upgrade().filter(|_| outgoing.is_fully_sent());
        loop {
            let Self { socket, buffer, head, response_started, .. } = self;
            let read = ready!(poll_read(socket, cx, |bytes| {
                *response_started |= !bytes.is_empty();
                if bytes.is_empty() {
                    Err(FramingError::Incomplete)
                } else if buffer.is_empty() {
                    let (found, used) = read_head(head, bytes, upgrade)?;
                    buffer.push(&bytes[used..]);
                    Ok(found)
                } else {
                    buffer.push(bytes);
                    let (found, used) = read_head(head, buffer.bytes(), upgrade)?;
                    buffer.consume(used);
                    Ok(found)
                }
            }))?;
            let mut found = read.map_err(io::Error::from)?;
            while let Some(mut response) = found {
                if let Some(upgrade) = upgrade.filter(|_| response.status == 101) {
                    upgrade.accept_http1(&mut response)?;
                    self.owner = ConnectionOwner::Tunnel;
                    return Poll::Ready(Ok(response));
                }
                if response.status >= 200 {
                    return Poll::Ready(Ok(response));
                }
                self.interim_responses += 1;
                if self.interim_responses > MAX_INTERIM_RESPONSES {
                    return Poll::Ready(Err(FramingError::TooManyInterim.into()));
                }
                if response.status == 100 {
                    outgoing.continue_body(cx);
                }
                if response.version == Version::Http11 {
                    forward_interim(client, &response);
                }
                let (next, used) = read_head(&mut self.head, self.buffer.bytes(), upgrade)?;
                self.buffer.consume(used);
                found = next;
            }
        }
    }
}

/// Parses a head at the start of `bytes`, and continues with `parser` if it is set. A 101 is
/// malformed unless the request has asked for an `upgrade`.
fn read_head(
    parser: &mut Option<Box<HeadParser<StatusLine>>>,
    bytes: &[u8],
    upgrade: Option<&UpgradeRequest>,
) -> Result<(Option<ResponseHead>, usize), FramingError> {
    if bytes.is_empty() {
        return Ok((None, 0));
    }
    let finish = match upgrade {
        Some(_) => HeadParser::<StatusLine>::finish_upgrade,
        None => HeadParser::<StatusLine>::finish,
    };
    resume_parse(parser, bytes, HeadParser::response, finish)
}
