//! Writes a response to an HTTP/2 stream: the head, the body as it arrives, and the trailers.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};

use super::stream::Http2Stream;
use crate::{
    connection::{
        body_wait::{MAX_POLL_ROUNDS, await_client_read, check_deadlines},
        output::ResponseFraming,
    },
    connection_state::Wait,
    gateway::{Content, Ledger, Response},
    http1::{BodyEncoder, Fields, Version, header_map::from_fields},
    telemetry::CutReason,
    transport::{ClientStream, socket::yield_turn, tunnel::poll_capacity},
    upstream::ResponseBody,
};

/// A body that is being written.
struct BodyWriter<'a> {
    stream: &'a Http2Stream,
    send: SendStream<Bytes>,
    /// Bytes that the client has not yet allowed to send.
    unsent: Bytes,
    /// The rest of the body; `None` at its end.
    body: Option<ResponseBody>,
    trailers: Option<http::HeaderMap>,
    /// Whether the last data ended the stream.
    has_ended: bool,
}

/// The head of `response`, without fields that delimit the body.
pub(super) fn response_head(response: &Response) -> http::Response<()> {
    let mut fields = Fields::new();
    response.write_fields(&mut fields);
    let mut head = http::Response::new(());
    *head.status_mut() = response.status;
    *head.headers_mut() = from_fields(&fields);
    head
}

/// Writes `response` and logs its request.
pub(super) async fn write(stream: &Http2Stream, response: Response) {
    let (method, _) = response.method_and_version();
    let framing = ResponseFraming::of(&response, &method, Version::Http2);
    let mut head = response_head(&response);
    if let Some(length) = framing.length
        && !response.is_trailers_only()
    {
        head.headers_mut().insert(http::header::CONTENT_LENGTH, length.into());
    }
    let Response { content, mut request, timeouts, .. } = response;
    let ledger = request.ledger_mut();
    let (mut unsent, mut body) = (Bytes::new(), None);
    match content {
        Content::Whole(bytes) if framing.has_body => unsent = bytes,
        Content::Stream(rest) if framing.has_body && !rest.is_done() => body = Some(rest),
        // No body is sent: an upstream's stream is dropped now, which frees its connection.
        unused => drop(unused),
    }
    let ends = unsent.is_empty() && body.is_none();
    let respond = stream.respond.borrow_mut().take();
    let Some(Ok(send)) = respond.map(|mut respond| respond.send_response(head, ends)) else {
        stream.count_reset();
        return ledger.mark_cut(CutReason::ClientClosed);
    };
    if ends {
        return ledger.mark_complete();
    }
    ledger.add_bytes_sent(unsent.len());
    stream.state().begin_response(timeouts.idle, timeouts.total);
    let mut writer = BodyWriter { stream, send, unsent, body, trailers: None, has_ended: false };
    let result = std::future::poll_fn(|cx| writer.poll(cx, ledger)).await;
    match result {
        Ok(()) => ledger.mark_complete(),
        Err(reason) => {
            writer.send.send_reset(match reason {
                CutReason::UpstreamBroken => Reason::INTERNAL_ERROR,
                _ => Reason::CANCEL,
            });
            if reason == CutReason::ClientClosed {
                stream.count_reset();
            }
            ledger.mark_response_cut(reason, framing.length);
        }
    }
}

impl BodyWriter<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, ledger: &mut Ledger) -> Poll<Result<(), CutReason>> {
        let state = self.stream.state();
        for _ in 0..MAX_POLL_ROUNDS {
            check_deadlines(state)?;
            if self.send.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(CutReason::ClientClosed));
            }
            if !self.unsent.is_empty() {
                match self.poll_write(cx)? {
                    Poll::Ready(()) => state.set_wait(Wait::Internal),
                    Poll::Pending => return await_client_read(state, self.body.as_mut(), cx),
                }
                continue;
            }
            let Some(body) = &mut self.body else {
                return Poll::Ready(self.finish());
            };
            let mut bytes = Vec::new();
            match body.poll_body(cx, BodyEncoder::Plain, &mut bytes) {
                Poll::Pending => {
                    state.begin_upstream_wait(None);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) => {
                    ledger.add_bytes_sent(count);
                    self.unsent = bytes.into();
                    if body.is_done() {
                        self.trailers = body.take_trailers().as_ref().map(from_fields);
                        self.body = None;
                    }
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(ledger.mark_body_failed(&error)));
                }
            }
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// Sends as much as the client's windows allow. Ready when something was sent.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        ready!(self.stream.poll_send_room(cx));
        let allowed = ready!(poll_capacity(&mut self.send, cx, self.unsent.len()));
        let allowed = allowed.map_err(|_| CutReason::ClientClosed)?;
        let data = self.unsent.split_to(allowed);
        self.stream.count_sent(allowed as u64);
        let ends = self.unsent.is_empty() && self.body.is_none() && self.trailers.is_none();
        self.has_ended = ends;
        let sent = self.send.send_data(data, ends);
        Poll::Ready(sent.map_err(|_| CutReason::ClientClosed))
    }

    /// Ends the stream, unless its last data did.
    fn finish(&mut self) -> Result<(), CutReason> {
        let sent = match self.trailers.take() {
            Some(trailers) => self.send.send_trailers(trailers),
            None if self.has_ended => Ok(()),
            None => self.send.send_data(Bytes::new(), true),
        };
        sent.map_err(|_| CutReason::ClientClosed)
    }
}
