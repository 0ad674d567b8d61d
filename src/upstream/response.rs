//! The streamed body of an upstream's response, and the reuse of its connection.

use std::{
    io,
    task::{Context, Poll, ready},
};

use http::Method;

use super::{
    compressed::Compressed,
    connection::UpstreamConnection,
    endpoint::InFlight,
    headers::{ProtectedHeaders, is_trailer_allowed},
    http2::Http2Body,
    request::{OutgoingRequest, SendError},
};
use crate::compress::{CompressionPermit, Compressor};
use crate::framing::{
    BodyDecoder, BodyEncoder, BodyLength, Fields, FramingError, ResponseHead, buffer::poll_read,
};

/// The streamed body of an upstream's response. Dropping it returns the connection to the pool if the
/// connection can be reused, and closes it otherwise; then the request is no longer in flight.
pub struct ResponseBody {
    source: BodySource,
    compressed: Option<Box<Compressed>>,
}

/// What a response's body is read from.
pub(super) enum BodySource {
    Http1(Http1Body),
    Http2 {
        body: Box<Http2Body>,
        /// See [`ResponseBody::declared_length`].
        declared_length: Option<u64>,
        _in_flight: InFlight,
    },
}

/// The body of a response of HTTP/1.
pub(super) struct Http1Body {
    connection: Option<UpstreamConnection>,
    /// The request, while it is not completely sent.
    outgoing: Option<Box<OutgoingRequest>>,
    decoder: BodyDecoder,
    /// See [`ResponseBody::declared_length`].
    declared_length: Option<u64>,
    /// Whether the connection can be reused after the body.
    persistent: bool,
    in_flight: InFlight,
}

impl ResponseBody {
    /// The body from `source`.
    pub(super) fn new(source: BodySource) -> Self {
        Self { source, compressed: None }
    }

    /// Compresses the body from now on: nothing of it may have been read.
    pub fn compress(&mut self, compressor: Compressor, permit: CompressionPermit) {
        self.compressed = Some(Box::new(Compressed::new(compressor, permit)));
    }

    /// The `Content-Length` of the head, in bytes; also without a body, as for HEAD. `None` if the body is
    /// compressed.
    pub fn declared_length(&self) -> Option<u64> {
        if self.compressed.is_some() {
            return None;
        }
        match &self.source {
            BodySource::Http1(body) => body.declared_length,
            BodySource::Http2 { declared_length, .. } => *declared_length,
        }
    }

    /// Whether the request's body is still being sent to the upstream.
    pub fn is_sending_request(&self) -> bool {
        match &self.source {
            BodySource::Http1(body) => body.outgoing.is_some(),
            BodySource::Http2 { body, .. } => body.is_sending_request(),
        }
    }

    /// Whether the body was read to its end.
    pub fn is_done(&self) -> bool {
        self.source.is_done()
            && self.compressed.as_ref().is_none_or(|compressed| compressed.is_finished())
    }

    /// Appends the body bytes that have arrived to `out`, encoded by `encoder`, and at the end of a chunked
    /// body its trailers. Ready with the number of body bytes; 0 at the end, or if a
    /// compressor has taken what arrived.
    ///
    /// # Errors
    /// The connection failed, or the body is malformed or incomplete.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let Self { source, compressed, .. } = self;
        let added = match compressed {
            None => ready!(source.poll_body(cx, encoder, out)),
            Some(compressed) => {
                let read = |cx: &mut Context<'_>, bytes: &mut Vec<u8>| {
                    let read = source.poll_body(cx, BodyEncoder::Plain, bytes);
                    read.map_ok(|_| source.is_done())
                };
                ready!(encoder.write(out, |out| compressed.poll_body(cx, out, read)))
            }
        };
        if encoder == BodyEncoder::Chunked && self.is_done() {
            let trailers = self.take_trailers();
            encoder.finish(out, |out| {
                if let Some(trailers) = trailers {
                    trailers.write_to(out, |_, _| true);
                }
            });
        }
        Poll::Ready(added)
    }

    /// Called when what was read cannot be sent to the client yet: see
    /// [`Http2Receiver::read_ahead`](crate::framing::Http2Receiver::read_ahead).
    pub fn read_ahead(&mut self, cx: &mut Context<'_>) {
        if let BodySource::Http2 { body, .. } = &mut self.source {
            body.read_ahead(cx);
        }
    }

    /// Takes the trailers of a body that was read to its end, if its encoder has not written them.
    pub fn take_trailers(&mut self) -> Option<Fields> {
        let trailers = match &mut self.source {
            BodySource::Http1(body) => *body.decoder.take_trailers()?,
            BodySource::Http2 { body, .. } => body.take_trailers()?,
        };
        let protected = ProtectedHeaders::default();
        let kept = trailers.iter().filter(|(name, _)| is_trailer_allowed(name, &protected));
        let kept = kept.map(|(name, value)| (String::from_utf8_lossy(name), value));
        Some(kept.collect()).filter(|kept: &Fields| !kept.is_empty())
    }
}

impl BodySource {
    /// The body that follows `head`, the response of HTTP/1 to a request with `method`.
    pub(super) fn http1(
        head: &ResponseHead,
        method: &Method,
        connection: UpstreamConnection,
        outgoing: OutgoingRequest,
        in_flight: InFlight,
    ) -> Self {
        Self::Http1(Http1Body::new(head, method, connection, outgoing, in_flight))
    }

    /// The body that follows `head`, the response of HTTP/2 to a request with `method`.
    pub(super) fn http2(
        head: &ResponseHead,
        method: &Method,
        body: Http2Body,
        in_flight: InFlight,
    ) -> Self {
        let has_no_body = *method == Method::HEAD || matches!(head.status, 204 | 304);
        let declared_length = match head.length {
            Some(BodyLength::Known(length)) if head.status != 204 => Some(length),
            // The head has ended the stream.
            _ if body.is_done() && !has_no_body => Some(0),
            _ => None,
        };
        Self::Http2 { body: Box::new(body), declared_length, _in_flight: in_flight }
    }

    /// Whether the body was read to its end.
    fn is_done(&self) -> bool {
        match self {
            Self::Http1(body) => body.decoder.is_done(),
            Self::Http2 { body, .. } => body.is_done(),
        }
    }

    /// Appends the body bytes that have arrived to `out`, encoded by `encoder`.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Http1(body) => body.poll_body(cx, encoder, out),
            Self::Http2 { body, .. } => encoder.write(out, |out| body.poll_body(cx, out)),
        }
    }
}

impl Http1Body {
    fn new(
        head: &ResponseHead,
        method: &Method,
        connection: UpstreamConnection,
        outgoing: OutgoingRequest,
        in_flight: InFlight,
    ) -> Self {
        let has_no_body = *method == Method::HEAD || matches!(head.status, 204 | 304);
        let decoder = if has_no_body { BodyDecoder::none() } else { BodyDecoder::new(head.length) };
        // A 204 response has no body. If it declares one, the next bytes are ambiguous.
        let ambiguous =
            head.status == 204 && !matches!(head.length, None | Some(BodyLength::Known(0)));
        let declared_length = match head.length {
            Some(BodyLength::Known(length)) if head.status != 204 => Some(length),
            _ => None,
        };
        let persistent = head.is_persistent() && !ambiguous;
        let outgoing = Some(outgoing).filter(|outgoing| !outgoing.is_fully_sent()).map(Box::new);
        Self {
            connection: Some(connection),
            outgoing,
            decoder,
            declared_length,
            persistent,
            in_flight,
        }
    }

    /// Appends the body bytes that have arrived to `out`, encoded by `encoder`.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        self.continue_sending(cx);
        let added = ready!(self.poll_decode(cx, encoder, out));
        if added.is_err() {
            // The bytes that follow cannot be delimited.
            self.connection = None;
        }
        Poll::Ready(added)
    }

    fn poll_decode(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let Self { connection, decoder, persistent, .. } = self;
        let Some(connection) = connection else {
            return Poll::Ready(Err(FramingError::Incomplete.into()));
        };
        loop {
            if decoder.is_done() {
                return Poll::Ready(Ok(0));
            }
            if let Some(error) = decoder.error() {
                return Poll::Ready(Err(error.into()));
            }
            let added = if connection.buffer.is_empty() {
                let buffer = &mut connection.buffer;
                ready!(poll_read(&connection.socket, cx, |bytes| {
                    if bytes.is_empty() {
                        *persistent = false;
                        return decoder.finish().map(|()| 0);
                    }
                    let (used, added) = decoder.transcode(bytes, encoder, out)?;
                    buffer.push(&bytes[used..]);
                    Ok(added)
                }))?
            } else {
                let (used, added) = decoder.transcode(connection.buffer.bytes(), encoder, out)?;
                connection.buffer.consume(used);
                Ok(added)
            }?;
            if added > 0 {
                return Poll::Ready(Ok(added));
            }
        }
    }

    /// Continues to send the request. A failure of the connection only prevents its reuse: the response may
    /// still be complete. If the client's body failed, the upstream reads the end of the stream, or it would
    /// wait for the rest.
    fn continue_sending(&mut self, cx: &mut Context<'_>) {
        if let (Some(outgoing), Some(connection)) = (&mut self.outgoing, &self.connection) {
            match outgoing.poll_send(&connection.socket, cx) {
                Poll::Ready(Ok(())) => self.outgoing = None,
                Poll::Ready(Err(error)) => {
                    if let SendError::Body(_) = error {
                        connection.socket.shutdown();
                    }
                    self.outgoing = None;
                    self.persistent = false;
                }
                Poll::Pending => {}
            }
        }
    }
}

impl Drop for Http1Body {
    fn drop(&mut self) {
        let reusable = self.decoder.is_done() && self.persistent && self.outgoing.is_none();
        if let Some(connection) = self.connection.take().filter(|_| reusable) {
            self.in_flight.pool().put(connection);
        }
    }
}

#[cfg(test)]
mod tests;
