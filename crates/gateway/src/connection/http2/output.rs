//! Writes a response to an HTTP/2 stream: the head, and then the body as it arrives, with its
//! trailers, or a tunnel (RFC 8441).

use std::{
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream};
use tidegate_http1::{BodyEncoder, Buffer, Fields, Version, header_map::from_fields};
use tidegate_transport::connection_state::StateCell;
use tidegate_transport::{
    ClientStream, Tunnel, TunnelOutcome,
    socket::yield_turn,
    tunnel::{Http2TunnelEnd, poll_capacity},
};
use tidegate_upstream::ResponseBody;

use super::stream::Http2Stream;
use crate::connection::output::{BodySink, BodyWriter, ResponseFraming};
use crate::telemetry::CutReason;
use crate::{AnsweredRequest, Content, Response};

/// Writes `response`, or runs its tunnel to the end, and logs its request.
pub(super) async fn write(stream: &Http2Stream, response: Response) {
    if let Content::Tunnel(_) = response.content {
        // Boxed, so that other responses do not carry its state.
        return Box::pin(tunnel(stream, response)).await;
    }
    let (method, _) = response.method_and_version();
    let framing = ResponseFraming::of(&response, &method, Version::Http2);
    let (mut head, head_bytes) = response_head(&response);
    if let Some(length) = framing.length
        && !response.is_trailers_only()
    {
        head.headers_mut().insert(http::header::CONTENT_LENGTH, length.into());
    }
    let (content, mut request) = response.into_content();
    let (unsent, body) = framing.take_body(content);
    let ends = unsent.is_empty() && body.is_none();
    // With a body, the request stays in flight until the body has room.
    if ends && !has_room(stream, &request).await {
        if let Some(mut respond) = stream.respond.borrow_mut().take() {
            respond.send_reset(Reason::CANCEL);
        }
        return request.ledger_mut().mark_cut(CutReason::ClientTimeout);
    }
    stream.count_queued(head_bytes);
    let respond = stream.respond.borrow_mut().take();
    let Some(Ok(send)) = respond.map(|mut respond| respond.send_response(head, ends)) else {
        stream.count_reset();
        return request.ledger_mut().mark_cut(CutReason::ClientClosed);
    };
    if ends {
        return request.ledger_mut().mark_complete();
    }
    request.ledger_mut().add_bytes_sent(unsent.len());
    let is_read = body.is_none();
    let trailers = if is_read { request.settled_trailers() } else { None };
    let trailers = trailers.as_ref().map(from_fields);
    let sink =
        Http2Sink { stream, send, unsent, is_read, trailers, has_ended: false, flushes: None };
    let mut writer = BodyWriter::new(sink, body, request);
    if let Err(reason) = writer.write(&framing).await {
        writer.sink.send.send_reset(match reason {
            CutReason::UpstreamBroken => Reason::INTERNAL_ERROR,
            _ => Reason::CANCEL,
        });
        if reason == CutReason::ClientClosed {
            stream.count_reset();
        }
    }
}

/// Waits until the connection has room for another response. False if the client has not read for
/// too long.
async fn has_room(stream: &Http2Stream, request: &AnsweredRequest) -> bool {
    let state = stream.state();
    let mut waits = false;
    std::future::poll_fn(|cx| {
        if stream.poll_send_room(cx).is_ready() {
            return Poll::Ready(true);
        }
        if !std::mem::replace(&mut waits, true) {
            let timeouts = request.timeouts();
            state.begin_response(timeouts.response_idle, timeouts.response_body);
        }
        if state.expired_deadline().is_some() {
            return Poll::Ready(false);
        }
        state.begin_client_read_wait();
        Poll::Pending
    })
    .await
}

/// The head of `response`, without fields that delimit the body, and the bytes of its fields.
fn response_head(response: &Response) -> (http::Response<()>, usize) {
    let mut fields = Fields::new();
    response.write_fields(&mut fields);
    let mut head = http::Response::new(());
    *head.status_mut() = response.status;
    *head.headers_mut() = from_fields(&fields);
    (head, fields.bytes().len())
}

/// The body of an HTTP/2 response: DATA frames, of which the last ends the stream, unless trailers
/// follow.
struct Http2Sink<'a> {
    stream: &'a Http2Stream,
    send: SendStream<Bytes>,
    /// Bytes that were read and not yet sent: the client's windows may not allow more.
    unsent: Bytes,
    /// True if nothing follows `unsent`, except trailers.
    is_read: bool,
    trailers: Option<http::HeaderMap>,
    /// True if the last data ended the stream.
    has_ended: bool,
    /// The connection's count of flushes when a cut-off response began to wait for the next one.
    flushes: Option<u64>,
}

impl BodySink for Http2Sink<'_> {
    /// Reads only when nothing is unsent: no data is copied, and a body that breaks off is cut off
    /// at once.
    const READ_BELOW: usize = 1;

    fn state(&self) -> &StateCell {
        self.stream.state()
    }

    fn unsent(&self) -> usize {
        self.unsent.len()
    }

    fn check_client(&mut self, cx: &mut Context<'_>) -> Result<(), CutReason> {
        match self.send.poll_reset(cx) {
            Poll::Ready(_) => Err(CutReason::ClientClosed),
            Poll::Pending => Ok(()),
        }
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ResponseBody,
    ) -> Poll<io::Result<usize>> {
        let mut bytes = Vec::new();
        let read = body.poll_body(cx, BodyEncoder::Plain, &mut bytes);
        // A body that breaks off may leave bytes as well: the rest of a compressor.
        self.unsent = bytes.into();
        read
    }

    fn finish(&mut self, trailers: Option<Fields>) {
        self.is_read = true;
        self.trailers = trailers.as_ref().map(from_fields);
    }

    /// Sends as much as the client's windows allow.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        ready!(self.stream.poll_send_room(cx));
        let allowed = ready!(poll_capacity(&mut self.send, cx, self.unsent.len()));
        let allowed = allowed.map_err(|_| CutReason::ClientClosed)?;
        let data = self.unsent.split_to(allowed);
        self.stream.count_sent(allowed as u64);
        self.has_ended = self.is_read && self.unsent.is_empty() && self.trailers.is_none();
        let sent = self.send.send_data(data, self.has_ended);
        Poll::Ready(sent.map_err(|_| CutReason::ClientClosed))
    }

    /// Does nothing: the connection's task flushes the frames.
    fn flush(&mut self, _: &mut Context<'_>) -> Result<(), CutReason> {
        Ok(())
    }

    /// The library discards the frames of a stream that it has not written when the stream is
    /// reset.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        let Some(flushes) = self.flushes else {
            self.flushes = Some(self.stream.flushes());
            // The connection's task flushes in its next turn.
            yield_turn(cx);
            return Poll::Pending;
        };
        self.stream.poll_flushed(cx, flushes).map(Ok)
    }

    fn poll_end(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        let sent = match self.trailers.take() {
            Some(trailers) => self.send.send_trailers(trailers),
            None if self.has_ended => Ok(()),
            None => self.send.send_data(Bytes::new(), true),
        };
        Poll::Ready(sent.map_err(|_| CutReason::ClientClosed))
    }
}

/// Sends the head of `response`, and moves bytes in both directions until the tunnel ends.
async fn tunnel(stream: &Http2Stream, response: Response) {
    let (head, _) = response_head(&response);
    let (Content::Tunnel(upstream), mut request) = response.into_content() else { return };
    let respond = stream.respond.borrow_mut().take();
    let sent = respond.map(|mut respond| respond.send_response(head, false));
    let (Some(Ok(send)), Some(receive)) = (sent, stream.take_tunnel()) else {
        stream.count_reset();
        return request.ledger_mut().mark_cut(CutReason::ClientClosed);
    };
    stream.state().begin_tunnel(request.timeouts().tunnel_idle);
    let client = Http2TunnelEnd::new(send, receive);
    let mut tunnel = Tunnel::new(client, *upstream, Buffer::default());
    let outcome = std::future::poll_fn(|cx| {
        let before = tunnel.bytes();
        let outcome = tunnel.poll(cx, stream.state());
        let bytes = tunnel.bytes();
        stream.count_sent(bytes.0 - before.0);
        // Recorded at each poll, because the future may be dropped at any time.
        request.ledger_mut().set_tunnel_bytes(bytes);
        outcome
    });
    let outcome = outcome.await;
    if outcome == TunnelOutcome::ClientFailed {
        stream.count_reset();
    }
    request.ledger_mut().mark_tunnel_end(outcome);
}
