//! A request on its way to an upstream, as bytes: the head is written straight from the client's, with
//! what must not go further left out and what the upstream must know added.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, Method, request::Parts};
use http_body::Body;
use tokio::{io::AsyncWrite, net::TcpStream};

use super::{
    Target,
    body::RequestBody,
    headers::{Forwarding, clean_trailers, write_forwarded},
};

/// Why a request was not sent to its end.
#[derive(Debug)]
pub(super) enum SendError {
    /// The client's body failed.
    Body,
    /// The connection failed.
    Io(io::Error),
}

/// A request and how much of it has been sent.
pub struct Outgoing {
    /// The head, and then what is being sent of the body.
    bytes: Vec<u8>,
    written: usize,
    body: Option<RequestBody>,
    chunked: bool,
    /// Whether anything of the body was taken from the client.
    begun: bool,
    idempotent: bool,
}

impl Outgoing {
    /// Writes the head of `parts`. `trusted`: what the peer says of the client is believed.
    /// `protected` says which headers a client cannot take out by naming them in `Connection`;
    /// `target` is the host where HTTP/1.0 named none.
    pub fn new(
        parts: &Parts,
        body: Option<RequestBody>,
        from: &Forwarding,
        trusted: bool,
        request_id: &http::HeaderValue,
        target: &Target,
        protected: impl Fn(&http::HeaderName) -> bool,
    ) -> Self {
        let mut bytes = Vec::with_capacity(512);
        let uri = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        for piece in [parts.method.as_str(), " ", uri, " HTTP/1.1\r\n"] {
            bytes.extend_from_slice(piece.as_bytes());
        }
        write_forwarded(&mut bytes, &parts.headers, from, trusted, request_id, target, protected);
        let length = body.as_ref().and_then(|body| body.size_hint().exact());
        let chunked = body.is_some() && length.is_none();
        if chunked {
            bytes.extend_from_slice(b"transfer-encoding: chunked\r\n");
        } else if let Some(length) = length.or_else(|| announces_nothing(parts)) {
            bytes.extend_from_slice(b"content-length: ");
            bytes.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        let idempotent = parts.method.is_idempotent();
        Self { bytes, written: 0, body, chunked, begun: false, idempotent }
    }

    /// Whether the upstream may be sent it although it may have seen it.
    pub(super) fn is_harmless(&self) -> bool {
        self.idempotent && self.body.is_none() && !self.begun
    }

    /// Whether no byte of it has left.
    pub(super) fn is_unsent(&self) -> bool {
        self.written == 0 && !self.begun
    }

    /// Whether all of it was sent.
    pub(super) fn is_sent(&self) -> bool {
        self.body.is_none() && self.written == self.bytes.len()
    }

    /// Begins again from the first byte.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
    }

    /// Sends what can be sent now. Ready when all was.
    pub(super) fn poll_send(
        &mut self,
        socket: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        loop {
            // A body that is there already goes out with its head.
            let taken = self.poll_take(cx)?;
            while self.written < self.bytes.len() {
                let left = &self.bytes[self.written..];
                let written = ready!(Pin::new(&mut *socket).poll_write(cx, left));
                match written.map_err(SendError::Io)? {
                    0 => return Poll::Ready(Err(SendError::Io(io::ErrorKind::WriteZero.into()))),
                    count => self.written += count,
                }
            }
            if self.body.is_none() {
                return Poll::Ready(Ok(()));
            }
            ready!(taken);
        }
    }

    /// Takes the next part of the body, if it is its turn.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        if self.written < self.bytes.len() && (self.begun || self.written > 0) {
            return Poll::Ready(Ok(()));
        }
        let frame = match ready!(Pin::new(body).poll_frame(cx)) {
            Some(Ok(frame)) => Some(frame),
            Some(Err(_)) => return Poll::Ready(Err(SendError::Body)),
            None => None,
        };
        if self.begun || self.written > 0 {
            self.bytes.clear();
            self.written = 0;
        }
        self.begun = true;
        match frame {
            Some(frame) if frame.is_data() => {
                let data = frame.data_ref().map_or(&b""[..], AsRef::as_ref);
                self.write_data(data);
            }
            Some(frame) => {
                let trailers = clean_trailers(frame).into_trailers().unwrap_or_default();
                self.end(&trailers);
            }
            None => self.end(&HeaderMap::new()),
        }
        Poll::Ready(Ok(()))
    }

    fn write_data(&mut self, data: &[u8]) {
        if !self.chunked {
            self.bytes.extend_from_slice(data);
        } else if !data.is_empty() {
            // Writing to a vector does not fail.
            let _ = io::Write::write_fmt(&mut self.bytes, format_args!("{:x}\r\n", data.len()));
            self.bytes.extend_from_slice(data);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    fn end(&mut self, trailers: &HeaderMap) {
        self.body = None;
        if self.chunked {
            self.bytes.extend_from_slice(b"0\r\n");
            super::headers::write_fields(&mut self.bytes, trailers);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }
}

/// The length that a request without a body announces: 0 where its method usually has one.
fn announces_nothing(parts: &Parts) -> Option<u64> {
    matches!(parts.method, Method::POST | Method::PUT | Method::PATCH).then_some(0)
}

#[cfg(test)]
mod tests;
