//! The streamed body of an upstream's response, and the reuse of its connection.

use std::{
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use http::Method;

use super::{
    connection::UpstreamConnection,
    headers::{ProtectedHeaders, is_trailer_allowed},
    pool::Pool,
    request::OutgoingRequest,
};
use crate::framing::{
    BodyDecoder, BodyEncoder, BodyLength, FramingError, ResponseHead, buffer::poll_read,
};

/// The streamed body of an upstream's response. Dropping it returns the connection to the pool if the
/// connection can be reused, and closes it otherwise.
pub struct ResponseBody {
    connection: Option<UpstreamConnection>,
    /// The request, while it is not completely sent.
    outgoing: Option<OutgoingRequest>,
    decoder: BodyDecoder,
    /// See [`Self::declared_length`].
    declared_length: Option<u64>,
    /// Whether the connection can be reused after the body.
    persistent: bool,
    pool: Rc<Pool>,
}

impl ResponseBody {
    /// The body that follows `head`, the response to a request with `method`.
    pub(super) fn new(
        head: &ResponseHead,
        method: &Method,
        connection: UpstreamConnection,
        outgoing: OutgoingRequest,
        pool: Rc<Pool>,
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
        let outgoing = Some(outgoing).filter(|outgoing| !outgoing.is_fully_sent());
        Self { connection: Some(connection), outgoing, decoder, declared_length, persistent, pool }
    }

    /// The `Content-Length` of the head, in bytes; also without a body, as for HEAD.
    pub fn declared_length(&self) -> Option<u64> {
        self.declared_length
    }

    /// Whether the request's body is still being sent to the upstream.
    pub fn is_sending_request(&self) -> bool {
        self.outgoing.is_some()
    }

    /// Whether the body was read to its end.
    pub fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Appends the body bytes that have arrived to `out`, encoded by `encoder`, and the trailers at the
    /// end of the body. Ready with the number of body bytes; 0 at the end.
    ///
    /// # Errors
    /// The connection failed, or the body is malformed or incomplete.
    pub fn poll_body(
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
        if self.is_done() {
            let trailers = self.decoder.take_trailers();
            encoder.finish(out, |out| {
                if let Some(trailers) = trailers {
                    trailers.write_to(out, |name, _| {
                        is_trailer_allowed(name, &ProtectedHeaders::default())
                    });
                }
            });
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

    /// Continues to send the request. A failure only prevents the reuse of the connection: the response may
    /// still be complete.
    fn continue_sending(&mut self, cx: &mut Context<'_>) {
        if let (Some(outgoing), Some(connection)) = (&mut self.outgoing, &self.connection) {
            match outgoing.poll_send(&connection.socket, cx) {
                Poll::Ready(Ok(())) => self.outgoing = None,
                Poll::Ready(Err(_)) => {
                    self.outgoing = None;
                    self.persistent = false;
                }
                Poll::Pending => {}
            }
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let reusable = self.is_done() && self.persistent && self.outgoing.is_none();
        if let Some(connection) = self.connection.take().filter(|_| reusable) {
            self.pool.put(connection);
        }
    }
}

#[cfg(test)]
mod tests;
