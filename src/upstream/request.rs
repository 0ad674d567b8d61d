//! A request on its way to an upstream, as bytes: the head is written straight from the client's, with
//! what must not go further left out and what the upstream must know added.

use std::{
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use http::Method;

use super::headers::{Hop, Protected, may_trail, write_forwarded};
use crate::framing::{
    BodyEncoder, BodyFault, Buffer, ClientStream, Length, RequestHead, Socket, socket::yield_turn,
    state::Wait,
};

/// So much of a body is gathered before it is written.
const PIECE: usize = 16 * 1024;

/// A task takes so many pieces of a body before another one has its turn.
const MAX_TURNS: usize = 8;

/// Why a request was not sent to its end.
#[derive(Debug)]
pub(super) enum SendError {
    /// The client's body failed.
    Body(BodyFault),
    /// The connection failed.
    Io(io::Error),
}

/// A request and how much of it has been sent.
pub struct Outgoing {
    /// The head, and then what is being sent of the body.
    bytes: Buffer,
    written: usize,
    body: Option<Body>,
    /// Whether anything of the body was taken from the client.
    begun: bool,
    /// Whether any byte has left.
    sent: bool,
    idempotent: bool,
}

/// What is still to come of a body.
struct Body {
    client: Rc<dyn ClientStream>,
    encoder: BodyEncoder,
    /// How much more is allowed, in bytes.
    left: u64,
    /// Whether the client was asked, and had nothing.
    waits: bool,
    protected: Protected,
}

impl Outgoing {
    /// Writes the head of a request. `path` is in its final form; `hop` says what this gateway adds; `protected` are the headers that a client cannot take out by naming them in `Connection`.
    /// The body is taken from `client`, up to `max_body` bytes.
    pub fn new(
        head: &RequestHead,
        path: &str,
        hop: &Hop<'_>,
        protected: &Protected,
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
        write_forwarded(&mut bytes, head, hop, protected);
        let encoder = match client.length() {
            Length::Chunked => {
                bytes.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Some(BodyEncoder::Chunked)
            }
            Length::Known(length) => {
                if length > 0 || usually_has_body(&head.method) {
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
            left: max_body,
            waits: false,
            protected: protected.clone(),
        });
        let idempotent = head.method.is_idempotent();
        Self { bytes, written: 0, body, begun: false, sent: false, idempotent }
    }

    /// Whether the upstream may be sent it although it may have seen it.
    pub(super) fn is_harmless(&self) -> bool {
        self.idempotent && self.body.is_none() && !self.begun
    }

    /// Whether no byte of it has left: what was taken of the body is still here.
    pub(super) fn is_unsent(&self) -> bool {
        !self.sent
    }

    /// Whether all of it was sent.
    pub(super) fn is_sent(&self) -> bool {
        self.body.is_none() && self.written == self.bytes.len()
    }

    /// Whether nothing can be sent before the client goes on with its body.
    pub(super) fn waits_for_client(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.waits) && self.written == self.bytes.len()
    }

    /// Begins again from the first byte.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
    }

    /// Sends what can be sent now. Ready when all was.
    pub(super) fn poll_send(
        &mut self,
        socket: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if self.is_sent() {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..MAX_TURNS {
            // A body that is there already goes out with its head.
            let taken = self.poll_take(cx)?;
            while self.written < self.bytes.len() {
                let left = &self.bytes[self.written..];
                match ready!(socket.poll_write(cx, left)).map_err(SendError::Io)? {
                    0 => return Poll::Ready(Err(SendError::Io(io::ErrorKind::WriteZero.into()))),
                    count => self.written += count,
                }
                self.sent = true;
                if let Some(body) = &self.body {
                    // The body moves: what is waited for is counted from here.
                    body.client.state().wait_for(Wait::Gateway);
                }
            }
            if self.body.is_none() {
                return Poll::Ready(Ok(()));
            }
            ready!(taken);
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// Takes the next part of the body, if it is its turn.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        let unsent = self.bytes.len() - self.written;
        if unsent > 0 && (self.begun || self.written > 0) {
            return Poll::Ready(Ok(()));
        }
        if unsent == 0 {
            self.bytes.clear();
            self.written = 0;
        }
        loop {
            let polled = body.client.poll_body(cx, body.encoder, &mut self.bytes);
            body.waits = polled.is_pending();
            let Poll::Ready(count) = polled else {
                // What was gathered so far goes out first.
                return if self.bytes.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) };
            };
            let count = count.map_err(SendError::Body)?;
            if count == 0 {
                self.begun = true;
                self.finish();
                return Poll::Ready(Ok(()));
            }
            self.begun = true;
            let left = body.left.checked_sub(count as u64);
            body.left = left.ok_or(SendError::Body(BodyFault::TooLong))?;
            if self.bytes.len() >= PIECE {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn finish(&mut self) {
        let Some(body) = self.body.take() else { return };
        let trailers = body.client.take_trailers();
        body.encoder.finish(&mut self.bytes, |out| {
            if let Some(trailers) = trailers {
                trailers.write_to(out, |name, _| may_trail(name, &body.protected));
            }
        });
    }
}

/// Whether requests of this method announce a length also where it is 0.
fn usually_has_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

#[cfg(test)]
mod tests;
