//! Writes a response to a client: the head, and the body as it arrives, with back-pressure.
//!
//! [`BodyWriter`] is the loop for every protocol; a [`BodySink`] is a protocol's part:
//! [`Http1Sink`] here, and the sink of an HTTP/2 stream in `http2/output.rs`.

use std::{
    io,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::{Method, StatusCode};
use tidegate_http1::{BodyEncoder, Buffer, FieldSink, Fields, Version};
use tidegate_transport::connection_state::{ExpiredDeadline, StateCell, SweepWake, Wait};
use tidegate_transport::{read_buffer::READ_SIZE, socket::yield_turn};
use tidegate_upstream::{ReadAheadOutcome, ResponseBody};

use super::Connection;
use crate::telemetry::CutReason;
use crate::{AnsweredRequest, Content, Response};

/// Maximum number of reads and writes in one poll. Then the task yields to others.
const MAX_POLL_ROUNDS: usize = 16;

/// The destination of a response's body.
pub(super) trait BodySink {
    /// The body is read while fewer bytes than this are unsent.
    const READ_BELOW: usize;

    /// The state of the client's request, with its deadlines.
    fn state(&self) -> &StateCell;

    /// The number of bytes that were read and not sent.
    fn unsent(&self) -> usize;

    /// Fails if the client has reset the request.
    fn check_client(&mut self, cx: &mut Context<'_>) -> Result<(), CutReason>;

    /// Appends bytes of `body` to the unsent bytes. Ready with their number; fails if the body
    /// breaks off.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ResponseBody,
    ) -> Poll<io::Result<usize>>;

    /// Sends some of the unsent bytes. Pending until the client reads; fails if it is gone.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>>;

    /// Flushes the sent bytes, because the next ones may not follow for a long time. Fails if the
    /// client is gone.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), CutReason>;

    /// Ready when a reset can no longer discard the sent bytes; fails if the client is gone.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>>;

    /// Takes the trailers of the body, whose last byte was read.
    fn finish(&mut self, trailers: Option<Fields>);

    /// Ends the body after its last byte. Ready when nothing is held back; fails if the client is
    /// gone.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>>;
}

/// A response whose body is being written. The request is logged when this is dropped.
pub(super) struct BodyWriter<S> {
    pub(super) sink: S,
    /// The rest of the body; `None` at its end.
    body: Option<ResponseBody>,
    request: AnsweredRequest,
    /// The reason why the body was cut off. The bytes read so far are sent first.
    cut_reason: Option<CutReason>,
}

impl<S: BodySink> BodyWriter<S> {
    /// A writer of `body` to `sink`, which may have unsent bytes. The response's deadlines count
    /// from now.
    #[inline]
    pub(super) fn new(sink: S, body: Option<ResponseBody>, request: AnsweredRequest) -> Self {
        let timeouts = request.timeouts();
        sink.state().begin_response(timeouts.response_idle, timeouts.response_body);
        Self { sink, body, request, cut_reason: None }
    }

    /// Writes the body to its end, and records how it ended.
    ///
    /// # Errors
    /// The response is cut off.
    pub(super) async fn write(&mut self, framing: &ResponseFraming) -> Result<(), CutReason> {
        let result = std::future::poll_fn(|cx| self.poll(cx)).await;
        self.sink.state().set_sweep_wake(SweepWake::OnTimeout);
        match result {
            Ok(()) => self.request.ledger_mut().mark_complete(),
            Err(reason) => self.request.ledger_mut().mark_response_cut(reason, framing.length),
        }
        result
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        // Neither changes while this polls.
        self.check_deadlines()?;
        self.sink.check_client(cx)?;
        for _ in 0..MAX_POLL_ROUNDS {
            if self.sink.unsent() < S::READ_BELOW && self.read(cx) {
                continue;
            }
            if self.sink.unsent() > 0 {
                match self.sink.poll_write(cx)? {
                    Poll::Ready(()) => self.sink.state().set_wait(Wait::Internal),
                    Poll::Pending => return self.await_client(cx),
                }
                continue;
            }
            if let Some(reason) = self.cut_reason {
                return match self.sink.poll_sent(cx)? {
                    Poll::Ready(()) => Poll::Ready(Err(reason)),
                    Poll::Pending => self.await_client(cx),
                };
            }
            if self.body.is_none() {
                return match self.sink.poll_end(cx) {
                    Poll::Pending => self.await_client(cx),
                    ended @ Poll::Ready(_) => ended,
                };
            }
            self.sink.flush(cx)?;
            self.sink.state().begin_upstream_wait(None);
            return Poll::Pending;
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// Checks that no deadline of the response has passed.
    fn check_deadlines(&self) -> Result<(), CutReason> {
        match self.sink.state().expired_deadline() {
            Some(ExpiredDeadline::ClientRead) => Err(CutReason::ClientTimeout),
            Some(ExpiredDeadline::ResponseIdle) => Err(CutReason::UpstreamIdle),
            Some(ExpiredDeadline::Response) => Err(CutReason::ResponseBodyTimeout),
            _ => Ok(()),
        }
    }

    /// Reads from the body; returns true if more may be ready.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(body) = &mut self.body else { return false };
        match self.sink.poll_read(cx, body) {
            Poll::Pending => return false,
            Poll::Ready(Ok(count)) => {
                self.request.ledger_mut().add_bytes_sent(count);
                if body.is_done() {
                    let upstream = body.take_trailers();
                    let own = self.request.settled_trailers();
                    self.sink.finish(joined(upstream, own));
                    self.body = None;
                }
            }
            Poll::Ready(Err(error)) => {
                self.cut_reason = Some(self.request.ledger_mut().mark_body_failed(&error));
                self.body = None;
            }
        }
        self.body.is_some()
    }

    /// Begins to wait for the client, and reads the body ahead meanwhile. Ready only with an error:
    /// the client has lost its place at the upstream.
    fn await_client(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        let state = self.sink.state();
        state.begin_client_read_wait();
        match self.body.as_mut().map(|body| body.read_ahead(cx)) {
            None | Some(ReadAheadOutcome::Unpaced) => Poll::Pending,
            Some(ReadAheadOutcome::Paced) => {
                state.set_sweep_wake(SweepWake::Always);
                Poll::Pending
            }
            Some(ReadAheadOutcome::Lost) => Poll::Ready(Err(CutReason::ClientSlow)),
        }
    }
}

/// The trailers of the body, and those of the gateway after them. The body's gRPC status is the one
/// that is sent.
pub(super) fn joined(upstream: Option<Fields>, own: Option<Fields>) -> Option<Fields> {
    match (upstream, own) {
        (Some(mut trailers), Some(own)) => {
            let has_status = trailers.contains("grpc-status");
            trailers.append(&own, |name| !(has_status && name == b"grpc-status"));
            Some(trailers)
        }
        (upstream, own) => upstream.or(own),
    }
}

/// The framing of a response's body (RFC 9112, 6.3).
pub(super) struct ResponseFraming {
    encoder: BodyEncoder,
    /// True if a body follows the head.
    has_body: bool,
    /// The value of `Content-Length`, in bytes.
    pub(super) length: Option<u64>,
    chunked: bool,
    /// True if the body ends with the connection.
    pub(super) until_close: bool,
}

impl Connection {
    /// Writes the head of `response` to a buffer. Returns the buffer, the body's framing, and true
    /// if the connection closes after the response.
    pub(super) fn write_head(&self, response: &Response) -> (Buffer, ResponseFraming, bool) {
        let (method, version) = response.method_and_version();
        let framing = ResponseFraming::of(response, &method, version);
        let closes = framing.until_close || !self.keep_alive(response);
        let mut out = self.input.borrow_mut().take_interim();
        if out.is_empty() {
            out = Buffer::with_capacity(1024);
        }
        write_head(&mut out, response, &framing, closes, version);
        (out, framing, closes)
    }

    /// The writer of the body of `response`, whose head is in `out`.
    #[inline]
    pub(super) fn body_writer<'c>(
        &'c self,
        response: Response,
        mut out: Buffer,
        framing: &'c ResponseFraming,
    ) -> BodyWriter<Http1Sink<'c>> {
        let (content, mut request) = response.into_content();
        let (mut whole, body) = framing.take_body(content);
        request.ledger_mut().add_bytes_sent(whole.len());
        // The rest of a long body is not copied: many responses may share it, and what holds it is
        // counted.
        out.extend_from_slice(&whole.split_to(whole.len().min(READ_SIZE)));
        let sink =
            Http1Sink { connection: self, unsent: WriteBuffer::new(out), rest: whole, framing };
        BodyWriter::new(sink, body, request)
    }
}

/// Bytes to be written. Written bytes are removed before more are appended, so that the buffer
/// stays small even if the client reads little at a time.
struct WriteBuffer {
    bytes: Buffer,
    written: usize,
}

impl WriteBuffer {
    fn new(bytes: Buffer) -> Self {
        Self { bytes, written: 0 }
    }

    /// The unsent bytes, oldest first.
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Marks the first `count` unsent bytes as written.
    fn advance(&mut self, count: usize) {
        self.written += count;
    }

    /// The buffer to append to.
    fn tail(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.written));
        &mut self.bytes
    }
}

/// The body of an HTTP/1 response, which follows the head in the connection's bytes.
pub(super) struct Http1Sink<'a> {
    connection: &'a Connection,
    unsent: WriteBuffer,
    /// The rest of a complete body, which follows `unsent`; empty with a stream.
    rest: Bytes,
    framing: &'a ResponseFraming,
}

impl BodySink for Http1Sink<'_> {
    const READ_BELOW: usize = READ_SIZE;

    fn state(&self) -> &StateCell {
        &self.connection.state
    }

    fn unsent(&self) -> usize {
        self.unsent.bytes().len() + self.rest.len()
    }

    /// Checks nothing: `Connection::while_open` notices a client that is gone.
    fn check_client(&mut self, _: &mut Context<'_>) -> Result<(), CutReason> {
        Ok(())
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ResponseBody,
    ) -> Poll<io::Result<usize>> {
        body.poll_body(cx, self.framing.encoder, self.unsent.tail())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        let is_rest = self.unsent.bytes().is_empty();
        let bytes = if is_rest { &*self.rest } else { self.unsent.bytes() };
        match ready!(self.connection.socket.poll_write(cx, bytes)) {
            Ok(count) if count > 0 => {
                if is_rest {
                    self.rest.advance(count);
                } else {
                    self.unsent.advance(count);
                }
                Poll::Ready(Ok(()))
            }
            _ => Poll::Ready(Err(CutReason::ClientClosed)),
        }
    }

    /// Data in a TLS session must not wait for the upstream.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), CutReason> {
        match self.connection.socket.poll_flush(cx) {
            Poll::Ready(Err(_)) => Err(CutReason::ClientClosed),
            _ => Ok(()),
        }
    }

    /// Data in a TLS session is lost when the connection closes.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        self.connection.socket.poll_flush(cx).map_err(|_| CutReason::ClientClosed)
    }

    fn finish(&mut self, trailers: Option<Fields>) {
        self.framing.encoder.finish(self.unsent.tail(), |out| {
            if let Some(trailers) = trailers {
                trailers.write_to(out, |_| true);
            }
        });
    }

    /// Ready when the kernel has accepted the whole response. With TLS, this includes the bytes
    /// that the session still holds and, for a body that ends with the connection, the
    /// `close_notify` that marks its end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        let socket = &self.connection.socket;
        let ended =
            if self.framing.until_close { socket.poll_shutdown(cx) } else { socket.poll_flush(cx) };
        ended.map_err(|_| CutReason::ClientClosed)
    }
}

impl ResponseFraming {
    /// The framing of `response` to a request with `method` and `version`.
    pub(super) fn of(response: &Response, method: &Method, version: Version) -> Self {
        let is_bodiless = *method == Method::HEAD || matches!(response.status.as_u16(), 204 | 304);
        let mut framing = Self {
            encoder: BodyEncoder::Plain,
            has_body: !is_bodiless,
            length: None,
            chunked: false,
            until_close: false,
        };
        match &response.content {
            Content::Whole(bytes) => {
                // RFC 9110, 8.6: no Content-Length in a 204; in a 304 it would be the length of the
                // 200's body.
                framing.length = match response.status.as_u16() {
                    204 | 304 => None,
                    _ => Some(bytes.len() as u64),
                };
            }
            Content::Tunnel(_) => framing.has_body = false,
            Content::Stream(stream) => {
                framing.length = stream.declared_length();
                if framing.has_body && framing.length.is_none() {
                    framing.chunked = version == Version::Http11;
                    framing.until_close = version == Version::Http10;
                }
            }
        }
        if framing.chunked {
            framing.encoder = BodyEncoder::Chunked;
        }
        framing
    }
    /// The body to send: either complete bytes or a stream; without a body, neither.
    pub(super) fn take_body(&self, content: Content) -> (Bytes, Option<ResponseBody>) {
        match content {
            Content::Whole(bytes) if self.has_body => (bytes, None),
            Content::Stream(body) if self.has_body && !body.is_done() => (Bytes::new(), Some(body)),
            // No body is sent. An upstream's stream is dropped here, which frees its connection.
            _ => (Bytes::new(), None),
        }
    }
}

fn write_head(
    out: &mut Vec<u8>,
    response: &Response,
    framing: &ResponseFraming,
    closes: bool,
    version: Version,
) {
    write_status(out, response.status);
    response.write_fields(out);
    if let Some(length) = framing.length {
        out.extend_from_slice(b"content-length: ");
        out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        out.extend_from_slice(b"\r\n");
    } else if framing.chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
        if let Some(names) = response.trailer_names() {
            out.push_field(b"trailer", names.as_bytes());
        }
    }
    if closes {
        out.extend_from_slice(b"connection: close\r\n");
    } else if version == Version::Http10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a status line.
pub(super) fn write_status(out: &mut Vec<u8>, status: StatusCode) {
    // The usual case, at once.
    if status == StatusCode::OK {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_stays_small_when_the_client_reads_slowly() {
        let mut unsent = WriteBuffer::new(Buffer::copy_of(b"head"));
        for _ in 0..1000 {
            while unsent.bytes().len() < READ_SIZE {
                unsent.tail().extend_from_slice(&[b'x'; 8 * 1024]);
            }
            // A slow link: the kernel never accepts all of it.
            unsent.advance(16 * 1024);
        }
        assert!(unsent.bytes.capacity() <= 4 * READ_SIZE, "{}", unsent.bytes.capacity());
    }
}
