//! A request to an upstream, as bytes. The head is written directly from the client's head: hop-by-hop
//! fields are left out, and forwarding fields are added.

use std::{
    borrow::Cow,
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use h2::ext::Protocol;
use http::{HeaderValue, Method, header};

use super::{
    Target,
    headers::{
        AddedHeaders, AttemptPlaces, ProtectedHeaders, is_trailer_allowed, write_request_fields,
    },
    upgrade::UpgradeRequest,
};
use crate::trace::span_id_text;
use crate::{
    connection_state::Wait,
    http1::{BodyEncoder, BodyLength, Buffer, FramingError, RequestHead, header_map::from_lines},
    transport::{BodyError, ClientStream, SharedSocket, socket::yield_turn},
};

/// The number of body bytes that are collected before a write.
const BODY_CHUNK: usize = 16 * 1024;

/// The longest target that [`http::Uri`] accepts, in bytes.
const MAX_URI: usize = 65_534;

/// The maximum number of body writes in one poll; then the task yields.
const MAX_WRITES_PER_POLL: usize = 8;

/// Why a request was not completely sent.
#[derive(Debug)]
pub(super) enum SendError {
    /// The client's body failed.
    Body(BodyError),
    /// The connection failed.
    Io(io::Error),
}

/// A request and its progress.
pub struct OutgoingRequest {
    /// The head, later the current part of the body.
    bytes: Buffer,
    /// The length of the head, in bytes.
    head_length: usize,
    /// The number of bytes written of `bytes`.
    written: usize,
    /// The body, until its end was read.
    body: Option<Body>,
    /// Whether a part of the body was read from the client.
    body_started: bool,
    /// Whether a byte was written to a socket.
    send_started: bool,
    idempotent: bool,
    /// `TE` for HTTP/2: `trailers` if the client accepts them, as gRPC requires.
    te: Option<&'static str>,
    /// The protocol that the client asks to switch to.
    upgrade: Option<Box<UpgradeRequest>>,
    /// The places in the head that depend on the attempt.
    places: AttemptPlaces,
}

/// The unread rest of a body.
struct Body {
    client: Rc<dyn ClientStream>,
    encoder: BodyEncoder,
    /// The number of bytes that may still be read.
    remaining: u64,
    /// Whether the last read from the client was pending.
    client_pending: bool,
    protected: ProtectedHeaders,
}

impl OutgoingRequest {
    /// Writes the head of a request. `path` is the path to forward, `added` the fields that the gateway
    /// adds, `protected` the fields that `Connection` cannot remove. The body is read from `client`, at
    /// most `max_body` bytes.
    pub fn new(
        head: &RequestHead,
        path: &str,
        added: &AddedHeaders<'_>,
        protected: &ProtectedHeaders,
        client: &Rc<dyn ClientStream>,
        max_body: u64,
    ) -> Self {
        let mut bytes = Buffer::with_capacity(1024);
        for piece in [head.method.as_str(), " ", path] {
            bytes.extend_from_slice(piece.as_bytes());
        }
        if let Some(query) = head.query() {
            bytes.push(b'?');
            bytes.extend_from_slice(query.as_bytes());
        }
        bytes.extend_from_slice(b" HTTP/1.1\r\n");
        let places = write_request_fields(&mut bytes, head, added, protected);
        let upgrade = UpgradeRequest::of(head);
        if let Some(upgrade) = &upgrade {
            upgrade.write_fields(&mut bytes);
        }
        let encoder = match client.length() {
            BodyLength::Chunked => {
                bytes.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Some(BodyEncoder::Chunked)
            }
            BodyLength::Known(length) => {
                if length > 0 || declares_empty_body(&head.method) {
                    bytes.extend_from_slice(b"content-length: ");
                    bytes.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
                    bytes.extend_from_slice(b"\r\n");
                }
                (length > 0).then_some(BodyEncoder::Plain)
            }
        };
        bytes.extend_from_slice(b"\r\n");
        let body = encoder.map(|encoder| Body {
            client: Rc::clone(client),
            encoder,
            remaining: max_body,
            client_pending: false,
            protected: protected.clone(),
        });
        let idempotent = head.method.is_idempotent();
        let mut codings = head.fields.get_all("te").flat_map(|te| te.split(|byte| *byte == b','));
        let te = codings
            .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
            .then_some("trailers");
        Self {
            head_length: bytes.len(),
            bytes,
            written: 0,
            body,
            body_started: false,
            send_started: false,
            idempotent,
            te,
            upgrade,
            places,
        }
    }

    /// Writes the host of `target`, which the request is sent to next, into the head. Call it before a byte is
    /// sent to it.
    pub(super) fn set_server(&mut self, target: &Target) {
        let Some(place) = self.places.host.take() else { return };
        let host = target.host();
        self.places.host = Some(place.start..place.start + host.len());
        self.head_length = self.head_length - place.len() + host.len();
        self.bytes.splice(place, host.into_bytes());
    }

    /// Writes the id of the next attempt's span into the head. Call it before a byte is sent.
    pub(super) fn set_span_id(&mut self, id: u64) {
        let Some(place) = self.places.span_id.clone() else { return };
        if let Some(value) = self.bytes.get_mut(place) {
            value.copy_from_slice(&span_id_text(id));
        }
    }

    /// Whether the request may be sent again although the upstream may have received it: idempotent
    /// (RFC 9110, 9.2.2) and without a body.
    pub(super) fn is_retryable(&self) -> bool {
        self.idempotent && self.body.is_none() && !self.body_started
    }

    /// Whether no byte was sent. What was read of the body is then still in the buffer.
    pub(super) fn is_unsent(&self) -> bool {
        !self.send_started
    }

    /// Whether the whole request was sent.
    pub(super) fn is_fully_sent(&self) -> bool {
        self.body.is_none() && self.written == self.bytes.len()
    }

    /// Whether all buffered bytes are sent and the client has to send more of its body.
    pub(super) fn waits_for_client(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.client_pending)
            && self.written == self.bytes.len()
    }

    /// Whether a part of the body was read.
    pub(super) fn has_body_started(&self) -> bool {
        self.body_started
    }

    /// Whether the client asks to switch to another protocol.
    pub fn is_upgrade(&self) -> bool {
        self.upgrade.is_some()
    }

    /// The protocol that the client asks to switch to.
    pub(super) fn upgrade(&self) -> Option<&UpgradeRequest> {
        self.upgrade.as_deref()
    }

    /// As [`Self::upgrade`], if HTTP/2 can carry it.
    pub(super) fn http2_upgrade(&self) -> Option<&UpgradeRequest> {
        self.upgrade().filter(|upgrade| upgrade.fits_http2())
    }

    /// Whether a part of the body is still to be read.
    pub(super) fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// The head for HTTP/2, with `scheme` as its `:scheme`. A part of the body that is in the buffer is not in
    /// it.
    ///
    /// # Errors
    /// The target is longer than the library accepts.
    pub(super) fn http2_head(
        &self,
        scheme: &'static str,
    ) -> Result<http::Request<()>, FramingError> {
        let head = &self.bytes[..self.head_length];
        let line = memchr::memchr(b'\n', head).map_or(0, |end| end + 1);
        let mut headers = from_lines(&head[line..]);
        headers.remove(header::TRANSFER_ENCODING);
        if self.upgrade.is_some() {
            headers.remove(header::CONNECTION);
            headers.remove(header::UPGRADE);
        }
        if let Some(te) = self.te {
            headers.insert(header::TE, HeaderValue::from_static(te));
        }
        let authority = headers.remove(header::HOST);
        let authority = authority.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
        let mut parts = head[..line].split(|byte| *byte == b' ');
        let (method, target) = (parts.next(), parts.next());
        let target = uri_target(target.unwrap_or_default());
        if target.len() > MAX_URI {
            return Err(FramingError::TargetTooLong(MAX_URI));
        }
        let uri = http::Uri::builder().scheme(scheme).authority(authority).path_and_query(&*target);
        let uri = uri.build().map_err(|_| FramingError::Target)?;
        let mut request = http::Request::new(());
        *request.method_mut() = Method::from_bytes(method.unwrap_or_default())
            .map_err(|_| FramingError::RequestLine)?;
        *request.uri_mut() = uri;
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = headers;
        if let Some(upgrade) = self.http2_upgrade() {
            *request.method_mut() = Method::CONNECT;
            request.extensions_mut().insert(Protocol::from(upgrade.protocol()));
        }
        Ok(request)
    }

    /// Appends the next bytes of the body to `out`, without the framing of HTTP/1. Ready with their number;
    /// 0 at the end of the body.
    pub(super) fn poll_plain_body(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, SendError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(0)) };
        let polled = body.client.poll_body(cx, BodyEncoder::Plain, out);
        body.client_pending = polled.is_pending();
        let count = ready!(polled).map_err(SendError::Body)?;
        self.body_started = true;
        let remaining = body.remaining.checked_sub(count as u64);
        body.remaining = remaining.ok_or(SendError::Body(BodyError::TooLong))?;
        Poll::Ready(Ok(count))
    }

    /// Ends a body that [`Self::poll_plain_body`] has read, and takes its trailers.
    pub(super) fn take_trailers(&mut self) -> Option<http::HeaderMap> {
        let body = self.body.take()?;
        let trailers = body.client.take_trailers()?;
        let mut lines = Vec::new();
        trailers.write_to(&mut lines, |name, _| is_trailer_allowed(name, &body.protected));
        Some(from_lines(&lines)).filter(|trailers| !trailers.is_empty())
    }

    /// Records that the head was sent.
    pub(super) fn mark_send_started(&mut self) {
        self.send_started = true;
        self.written = self.bytes.len();
    }

    /// Records that the server took a part of the body: the next wait starts now.
    pub(super) fn mark_progress(&self) {
        if let Some(body) = &self.body {
            body.client.state().set_wait(Wait::Gateway);
        }
    }

    /// Starts again with the first byte.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
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
            // A body that has arrived is written together with the head.
            let read = self.poll_read_body(cx)?;
            while self.written < self.bytes.len() {
                let left = &self.bytes[self.written..];
                match ready!(socket.poll_write(cx, left)).map_err(SendError::Io)? {
                    0 => return Poll::Ready(Err(SendError::Io(io::ErrorKind::WriteZero.into()))),
                    count => self.written += count,
                }
                self.send_started = true;
                if let Some(body) = &self.body {
                    // Progress: the next wait starts now.
                    body.client.state().set_wait(Wait::Gateway);
                }
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

    /// Reads the next part of the body from the client, unless the buffer has bytes other than an
    /// unwritten head.
    fn poll_read_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        let unsent = self.bytes.len() - self.written;
        if unsent > 0 && (self.body_started || self.written > 0) {
            return Poll::Ready(Ok(()));
        }
        if unsent == 0 {
            self.bytes.clear();
            self.written = 0;
        }
        loop {
            let polled = body.client.poll_body(cx, body.encoder, &mut self.bytes);
            body.client_pending = polled.is_pending();
            let Poll::Ready(count) = polled else {
                // The bytes collected so far are written first.
                return if self.bytes.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) };
            };
            let count = count.map_err(SendError::Body)?;
            if count == 0 {
                self.body_started = true;
                self.finish_body();
                return Poll::Ready(Ok(()));
            }
            self.body_started = true;
            let remaining = body.remaining.checked_sub(count as u64);
            body.remaining = remaining.ok_or(SendError::Body(BodyError::TooLong))?;
            if self.bytes.len() >= BODY_CHUNK {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ends the body and appends its trailers to the buffer.
    fn finish_body(&mut self) {
        let Some(body) = self.body.take() else { return };
        let trailers = body.client.take_trailers();
        body.encoder.finish(&mut self.bytes, |out| {
            if let Some(trailers) = trailers {
                trailers.write_to(out, |name, _| is_trailer_allowed(name, &body.protected));
            }
        });
    }
}

/// `target` with the one character percent-encoded that [`http::Uri`] refuses and a target may have.
fn uri_target(target: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'`', target).is_none() {
        return Cow::Borrowed(target);
    }
    target.split(|byte| *byte == b'`').collect::<Vec<_>>().join(&b"%60"[..]).into()
}

/// Whether a request of this method declares a length of 0: RFC 9110, 8.6.
fn declares_empty_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

#[cfg(test)]
mod tests;
