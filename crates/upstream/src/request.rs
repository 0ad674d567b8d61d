//! [`OutgoingRequest`]: a request on its way to a server, with its streamed body. Each attempt
//! writes its own head. `unread_body` is what it still reads of its client's body.

mod unread_body;

use std::{
    cell::Cell,
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::ext::Protocol;
use http::Method;
use tidegate_http1::{
    BodyEncoder, BodyLength, Buffer, FieldSink, Fields, FramingError, header_map::from_fields,
};
use tidegate_transport::connection_state::Wait;
use tidegate_transport::{BodyError, ClientStream, SharedSocket, socket::yield_turn};

use self::unread_body::{KeptBody, UnreadBody};
use super::{
    headers::is_trailer_allowed,
    outgoing_head::{AttemptHead, OutgoingHead, declares_empty_body},
    upgrade::UpgradeRequest,
};

/// Number of body bytes to collect before a write.
const BODY_CHUNK: usize = 16 * 1024;

/// How a head of a chunked body ends.
const CHUNKED_END: &[u8] = b"transfer-encoding: chunked\r\n\r\n";

/// Maximum number of body writes in one poll. Then the task yields.
const MAX_WRITES_PER_POLL: usize = 8;

/// The reason why a request was not completely sent.
#[derive(Debug)]
pub(super) enum SendError {
    /// The client's body failed.
    Body(BodyError),
    /// The connection failed.
    Io(io::Error),
}

/// A request and its progress.
pub struct OutgoingRequest {
    /// The HTTP/1 head, later the current part of the body.
    bytes: Buffer,
    /// The length of the head in `bytes`; 0 before it is written.
    head_length: usize,
    /// Number of `bytes` that were written.
    written: usize,
    /// The body's framing.
    length: BodyLength,
    /// The body, until it was read to its end. Boxed, because most requests have none.
    body: Option<Box<UnreadBody>>,
    /// How much of the body was read from the client.
    body_read: BodyRead,
    /// The whole body, which was sent over HTTP/2 and may have to be sent again.
    kept: Option<Box<KeptBody>>,
    /// True once a byte was written to a socket.
    send_started: bool,
    idempotent: bool,
    /// The protocol that the client asks to switch to.
    upgrade: Option<Box<UpgradeRequest>>,
}

/// How much of a body was read from the client, and where it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BodyRead {
    Nothing,
    /// What was read is in the buffer, with its HTTP/1 framing.
    Held,
    /// A part of what was read is no longer in the buffer.
    Drained,
}

impl BodyRead {
    /// After a read that appends to the buffer.
    fn with_more(self) -> Self {
        if self == Self::Nothing { Self::Held } else { self }
    }
}

impl OutgoingRequest {
    /// A request with this head. The body is read from `client`.
    pub fn new(head: &OutgoingHead<'_>, client: &Rc<dyn ClientStream>) -> Self {
        let length = client.length();
        let encoder = match length {
            BodyLength::Chunked => Some(BodyEncoder::Chunked),
            BodyLength::Known(0) => None,
            BodyLength::Known(_) => Some(BodyEncoder::Plain),
        };
        let body = encoder.map(|encoder| {
            Box::new(UnreadBody {
                client: Rc::clone(client),
                encoder,
                client_pending: false,
                protected: head.protected.clone(),
                replay: None,
                awaits_continue: client.awaits_continue().then(|| Rc::new(Cell::new(true))),
            })
        });
        Self {
            bytes: Buffer::default(),
            head_length: 0,
            written: 0,
            length,
            body,
            body_read: BodyRead::Nothing,
            kept: None,
            send_started: false,
            idempotent: head.client.method.is_idempotent(),
            upgrade: UpgradeRequest::of(head.client),
        }
    }

    /// Writes `head` as HTTP/1, in place of an earlier attempt's. Call it before the attempt sends
    /// a byte.
    pub(super) fn write_http1(&mut self, head: AttemptHead<'_>) {
        let before = std::mem::replace(&mut self.bytes, Buffer::with_capacity(1024));
        let awaits_continue = self.awaits_continue().is_some();
        let out = &mut *self.bytes;
        head.write_request_line(out);
        head.write_fields(out);
        if let Some(upgrade) = &self.upgrade {
            out.push_field(b"connection", b"upgrade");
            out.push_field(b"upgrade", upgrade.protocol().as_bytes());
            upgrade.write_key(out);
        }
        if awaits_continue {
            out.push_field(b"expect", b"100-continue");
        }
        // Last: see `declare_length`.
        match self.length {
            BodyLength::Chunked => out.push_field(b"transfer-encoding", b"chunked"),
            BodyLength::Known(length) => push_length(length, &head.head.client.method, out),
        }
        out.extend_from_slice(b"\r\n");
        let head_length = std::mem::replace(&mut self.head_length, out.len());
        // The body's bytes read so far follow the head.
        out.extend_from_slice(&before[head_length..]);
        self.written = 0;
    }

    /// `head` as HTTP/2.
    ///
    /// # Errors
    /// The target is longer than the library accepts.
    pub(super) fn http2_head(
        &self,
        head: AttemptHead<'_>,
    ) -> Result<http::Request<()>, FramingError> {
        let mut fields = Fields::new();
        head.write_fields(&mut fields);
        if let Some(upgrade) = &self.upgrade {
            upgrade.write_key(&mut fields);
        }
        if let BodyLength::Known(length) = self.length {
            push_length(length, &head.head.client.method, &mut fields);
        }
        if self.awaits_continue().is_some() {
            fields.push_field(b"expect", b"100-continue");
        }
        let mut request = head.to_http2(from_fields(&fields))?;
        if let Some(upgrade) = self.http2_upgrade() {
            *request.method_mut() = Method::CONNECT;
            request.extensions_mut().insert(Protocol::from(upgrade.protocol()));
        }
        Ok(request)
    }

    /// True if the request may be sent again although the upstream may have received it: it is
    /// idempotent (RFC 9110, 9.2.2), and no part of its body is lost.
    pub(super) fn is_retryable(&self) -> bool {
        self.idempotent && self.is_whole()
    }

    /// True if no part of the body was read, or all of it is still here.
    pub(super) fn is_whole(&self) -> bool {
        match self.body_read {
            BodyRead::Nothing => true,
            BodyRead::Held => self.body.is_none(),
            BodyRead::Drained => self.kept.is_some(),
        }
    }

    /// Prepares to send the request again: makes a kept body unread.
    pub(super) fn rewind(&mut self) {
        if let Some(kept) = self.kept.take() {
            let KeptBody { mut body, bytes } = *kept;
            body.replay = Some(bytes);
            self.body = Some(body);
            self.body_read = BodyRead::Nothing;
        }
    }

    /// What [`Self::continue_body`] sets to false; `None` if the client does not wait.
    pub(super) fn awaits_continue(&self) -> Option<&Rc<Cell<bool>>> {
        let waits = self.body.as_ref()?.awaits_continue.as_ref()?;
        Some(waits).filter(|waits| waits.get())
    }

    /// Lets the body be read. The first read sends `100 Continue` to the client.
    pub(super) fn continue_body(&self, cx: &Context<'_>) {
        if let Some(waits) = self.awaits_continue() {
            waits.set(false);
            cx.waker().wake_by_ref();
        }
    }

    /// True if no byte was sent. The body's bytes read so far are then still in the buffer.
    pub(super) fn is_unsent(&self) -> bool {
        !self.send_started
    }

    /// True if the whole request was sent.
    pub(super) fn is_fully_sent(&self) -> bool {
        self.body.is_none() && self.written == self.bytes.len()
    }

    /// True if all buffered bytes are sent and the client has to send more of its body.
    pub(super) fn waits_for_client(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.client_pending)
            && self.written == self.bytes.len()
    }

    /// True if a part of the body was read.
    pub(super) fn has_body_started(&self) -> bool {
        self.body_read != BodyRead::Nothing
    }

    /// True if the client asks to switch to another protocol.
    pub fn is_upgrade(&self) -> bool {
        self.upgrade.is_some()
    }

    /// The protocol that the client asks to switch to.
    pub(super) fn upgrade(&self) -> Option<&UpgradeRequest> {
        self.upgrade.as_deref()
    }

    /// The upgrade, if HTTP/2 can carry it.
    pub(super) fn http2_upgrade(&self) -> Option<&UpgradeRequest> {
        self.upgrade().filter(|upgrade| upgrade.fits_http2())
    }

    /// True if a part of the body is still to be read.
    pub(super) fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// Appends the next bytes of the body to `out`, without HTTP/1 framing. Ready with their
    /// number; 0 at the end of the body.
    pub(super) fn poll_plain_body(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, SendError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(0)) };
        let count = ready!(body.poll_read(cx, BodyEncoder::Plain, out));
        self.body_read = BodyRead::Drained;
        Poll::Ready(count.map_err(SendError::Body))
    }

    /// Ends a body that [`Self::poll_plain_body`] has read, and takes its trailers. `whole`: all
    /// bytes of the body, to be kept in case that the request has to be sent again. A body with
    /// trailers is not kept.
    pub(super) fn end_plain_body(&mut self, whole: Option<Bytes>) -> Option<http::HeaderMap> {
        let body = self.body.take()?;
        let Some(trailers) = body.client.take_trailers() else {
            self.kept = whole.map(|bytes| Box::new(KeptBody { body, bytes }));
            return None;
        };
        let mut allowed = Fields::new();
        allowed.append(&trailers, |name| is_trailer_allowed(name, &body.protected));
        Some(from_fields(&allowed)).filter(|trailers| !trailers.is_empty())
    }

    /// Records that the head was sent over HTTP/2.
    pub(super) fn mark_http2_started(&mut self) {
        self.send_started = true;
        self.written = self.bytes.len();
    }

    /// Records unsent bytes of the body: the request does not wait for its client.
    pub(super) fn mark_unsent(&mut self) {
        if let Some(body) = &mut self.body {
            body.client_pending = false;
        }
    }

    /// Records that the server accepted a part of the body: the next wait starts now.
    pub(super) fn mark_progress(&self) {
        if let Some(body) = &self.body {
            body.client.state().set_wait(Wait::Internal);
        }
    }

    /// Sends as much as possible. Ready when the whole request was sent.
    pub(super) fn poll_send(
        &mut self,
        socket: &SharedSocket,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if self.is_fully_sent() {
            return socket.poll_flush(cx).map_err(SendError::Io);
        }
        for _ in 0..MAX_WRITES_PER_POLL {
            // An arrived body is written together with the head.
            let read = self.poll_read_body(cx)?;
            while self.written < self.bytes.len() {
                let left = &self.bytes[self.written..];
                match ready!(socket.poll_write(cx, left)).map_err(SendError::Io)? {
                    0 => return Poll::Ready(Err(SendError::Io(io::ErrorKind::WriteZero.into()))),
                    count => self.written += count,
                }
                self.send_started = true;
                self.mark_progress();
            }
            let flushed = socket.poll_flush(cx).map_err(SendError::Io)?;
            if self.body.is_none() {
                return flushed.map(Ok);
            }
            ready!(read);
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// Reads the next part of the body, if nothing is unsent, or only a head of which no byte was
    /// written.
    fn poll_read_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        let unsent = self.bytes.len() - self.written;
        if unsent > 0 && (self.body_read != BodyRead::Nothing || self.written > 0) {
            return Poll::Ready(Ok(()));
        }
        if unsent == 0 {
            if self.body_read == BodyRead::Held {
                self.body_read = BodyRead::Drained;
            }
            self.bytes.clear();
            self.head_length = 0;
            self.written = 0;
        } else if body.encoder == BodyEncoder::Chunked {
            return self.read_first(cx);
        }
        loop {
            let Poll::Ready(count) = body.poll_read(cx, body.encoder, &mut self.bytes) else {
                // The bytes collected so far are written first.
                return if self.bytes.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) };
            };
            self.body_read = self.body_read.with_more();
            if count.map_err(SendError::Body)? == 0 {
                let trailers = body.client.take_trailers();
                self.finish_body(trailers);
                return Poll::Ready(Ok(()));
            }
            if self.bytes.len() >= BODY_CHUNK {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Reads the beginning of a chunked body behind its head, which is not sent yet. If that is the
    /// whole body, the head declares its length instead: some servers answer a chunked request with
    /// 411.
    fn read_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        let start = self.bytes.len();
        let mut has_ended = false;
        let mut failed = None;
        while self.bytes.len() - start < BODY_CHUNK && !has_ended {
            match body.poll_read(cx, BodyEncoder::Plain, &mut self.bytes) {
                Poll::Ready(Ok(count)) => has_ended = count == 0,
                Poll::Ready(Err(error)) => {
                    failed = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
            self.body_read = self.body_read.with_more();
        }
        let trailers = if has_ended { body.client.take_trailers() } else { None };
        if has_ended && trailers.is_none() {
            self.declare_length(self.bytes.len() - start);
            self.body = None;
        } else {
            let read = self.bytes.split_off(start);
            body.encoder.write(&mut self.bytes, |out| out.extend_from_slice(&read));
            if has_ended {
                self.finish_body(trailers);
            }
        }
        Poll::Ready(failed.map_or(Ok(()), |error| Err(SendError::Body(error))))
    }

    /// Declares the length of the body in the head, which has no byte sent, instead of chunks.
    fn declare_length(&mut self, length: usize) {
        self.length = BodyLength::Known(length as u64);
        let start = self.head_length.saturating_sub(CHUNKED_END.len());
        debug_assert!(self.bytes[start..].starts_with(CHUNKED_END), "the last field of the head");
        let line = format!("content-length: {length}\r\n\r\n");
        self.bytes.splice(start..self.head_length, line.bytes());
        self.head_length = start + line.len();
    }

    /// Ends the body and appends its trailers to the buffer.
    fn finish_body(&mut self, trailers: Option<Box<Fields>>) {
        let Some(body) = self.body.take() else { return };
        body.encoder.finish(&mut self.bytes, |out| {
            if let Some(trailers) = trailers {
                trailers.write_to(out, |name| is_trailer_allowed(name, &body.protected));
            }
        });
    }
}

/// Pushes `Content-Length`, if a request of this method declares it.
fn push_length(length: u64, method: &Method, out: &mut impl FieldSink) {
    if length > 0 || declares_empty_body(method) {
        out.push_field(b"content-length", itoa::Buffer::new().format(length).as_bytes());
    }
}

#[cfg(test)]
mod tests;
