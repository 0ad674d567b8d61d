//! The body of an HTTP/1 response: while it is read, the rest of the request is sent; at its end
//! the connection returns to its pool.

use std::{
    io,
    task::{Context, Poll, ready},
};

use http::Method;
use tidegate_http1::{BodyDecoder, BodyEncoder, BodyLength, FramingError, ResponseHead};
use tidegate_transport::read_buffer::poll_read;

use crate::{
    connection::UpstreamHttp1Connection,
    endpoint::InFlight,
    request::{OutgoingRequest, SendError},
};

/// The body of an HTTP/1 response.
pub(crate) struct Http1Body {
    connection: Option<Box<UpstreamHttp1Connection>>,
    /// The request, while it is not completely sent.
    pub(super) outgoing: Option<Box<OutgoingRequest>>,
    pub(super) decoder: BodyDecoder,
    /// See [`ResponseBody::declared_length`](super::ResponseBody::declared_length).
    pub(super) declared_length: Option<u64>,
    /// True if the connection can be reused after the body.
    persistent: bool,
    pub(super) in_flight: InFlight,
}

impl Http1Body {
    /// The body that follows `head`, the response to a request with `method`.
    pub(super) fn new(
        head: &ResponseHead,
        method: &Method,
        connection: Box<UpstreamHttp1Connection>,
        outgoing: OutgoingRequest,
        in_flight: InFlight,
    ) -> Self {
        let has_no_body = *method == Method::HEAD || matches!(head.status, 204 | 304);
        let decoder =
            if has_no_body { BodyDecoder::none() } else { BodyDecoder::of_response(head.length) };
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
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        self.continue_sending(cx);
        let added = ready!(self.poll_decode(cx, encoder, out));
        if added.is_err() {
            // After an error, the end of the body is unknown, so the connection cannot be reused.
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

    /// Continues to send the request. A connection that fails is not reused, but is still read: the
    /// response may be complete. If the client's body failed, shuts down the sending side, because
    /// the upstream would wait for the rest.
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
