//! The bodies of an HTTP/2 exchange: the request's on its way to the server, and the response's.

use std::{
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream};
use tidegate_http1::{Fields, MessageKind, header_map::to_trailers};
use tidegate_transport::{Http2Receiver, tunnel::poll_capacity};

use super::{Http2Slot, io_error};
use crate::request::{OutgoingRequest, SendError};

/// The number of bytes of a body after which no more are read before these are sent.
const MAX_READ: usize = 16 * 1024;
/// Maximum number of writes of a body in one poll. Then the task yields to others.
const MAX_WRITES_PER_POLL: usize = 8;

/// A request's body on its way to the server.
pub(crate) struct Upload {
    stream: SendStream<Bytes>,
    /// Bytes for which the server's flow-control window has no room yet.
    unsent: Bytes,
    /// Bytes that follow `unsent`.
    ahead: Vec<u8>,
    /// True if nothing follows `unsent`, except trailers.
    is_read: bool,
    /// All bytes of the body, if they were read at once.
    whole: Option<Bytes>,
}

/// The body of an HTTP/2 response.
pub(crate) struct Http2Body {
    stream: Http2Receiver,
    trailers: Option<Fields>,
    is_done: bool,
    /// The rest of the request, while it is not completely sent.
    upload: Option<(Upload, OutgoingRequest)>,
    /// True if the client's body failed.
    is_request_lost: bool,
    _slot: Http2Slot,
}

/// The error of a response that breaks off because the client did not send the rest of its request.
#[derive(Debug, thiserror::Error)]
#[error("the client did not send the rest of its request")]
pub struct RequestLost;

impl Http2Body {
    /// The body that `stream` carries. `upload`: the rest of the request.
    pub(crate) fn new(
        stream: Http2Receiver,
        upload: Option<(Upload, OutgoingRequest)>,
        slot: Http2Slot,
    ) -> Self {
        let is_done = stream.is_end_stream();
        Self { stream, trailers: None, is_done, upload, is_request_lost: false, _slot: slot }
    }

    /// True once the body was read to its end.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Takes the trailers of a body that was read to its end.
    pub(crate) fn take_trailers(&mut self) -> Option<Fields> {
        self.trailers.take()
    }

    /// See [`Http2Receiver::read_ahead`].
    pub(crate) fn read_ahead(&mut self, cx: &mut Context<'_>) {
        // The next read returns an error again.
        let _ = self.stream.read_ahead(cx);
    }

    /// Appends body bytes to `out`, and continues to send the request. Ready with the number of
    /// bytes; 0 at the end.
    ///
    /// # Errors
    /// The stream failed.
    pub(crate) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        if let Some((upload, outgoing)) = &mut self.upload
            && let Poll::Ready(sent) = upload.poll_send(outgoing, cx)
        {
            // The server would wait for the rest. After any other failure, the response may still
            // be complete.
            self.is_request_lost = matches!(sent, Err(SendError::Body(_)));
            if self.is_request_lost {
                upload.stream.send_reset(Reason::CANCEL);
            }
            self.upload = None;
        }
        if self.is_done {
            return Poll::Ready(Ok(0));
        }
        if self.is_request_lost {
            return Poll::Ready(Err(io::Error::other(RequestLost)));
        }
        let count = self.stream.poll_data(cx, |data| out.extend_from_slice(data));
        match ready!(count).map_err(io_error)? {
            0 => {}
            count => {
                // Without trailers, the end is known with the last bytes.
                self.is_done = self.stream.is_end_stream();
                return Poll::Ready(Ok(count));
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx)).map_err(io_error)?;
        self.trailers = trailers
            .as_ref()
            .map(|trailers| to_trailers(trailers, MessageKind::Response))
            .transpose()?;
        self.is_done = true;
        Poll::Ready(Ok(0))
    }
}

impl Upload {
    /// An upload that has not sent anything.
    pub(crate) fn new(stream: SendStream<Bytes>) -> Self {
        Self { stream, unsent: Bytes::new(), ahead: Vec::new(), is_read: false, whole: None }
    }

    /// The stream that it is sent on.
    pub(crate) fn stream(&mut self) -> &mut SendStream<Bytes> {
        &mut self.stream
    }

    /// Sends as much of the body as possible. Ready when all of it was sent.
    pub(crate) fn poll_send(
        &mut self,
        outgoing: &mut OutgoingRequest,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        // The connection's task alone changes it, so it stays the same while this polls.
        if self.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(SendError::Io(io::ErrorKind::ConnectionReset.into())));
        }
        for _ in 0..MAX_WRITES_PER_POLL {
            if self.unsent.is_empty() {
                ready!(self.poll_read(outgoing, cx))?;
            }
            let mut data = Bytes::new();
            if !self.unsent.is_empty() {
                let allowed = ready!(poll_capacity(&mut self.stream, cx, self.unsent.len()));
                data = self.unsent.split_to(allowed.map_err(SendError::Io)?);
            }
            outgoing.mark_progress();
            if self.is_read && self.unsent.is_empty() {
                let trailers = outgoing.end_plain_body(self.whole.take());
                return Poll::Ready(self.send_end(data, trailers).map_err(h2_failed));
            }
            self.stream.send_data(data, false).map_err(h2_failed)?;
        }
        tidegate_transport::socket::yield_turn(cx);
        Poll::Pending
    }

    /// Reads all bytes that have arrived into `unsent`, about [`MAX_READ`] at most. What was read
    /// beyond them is kept for the next call, so that the end of the body is known with its last
    /// bytes, and is sent with them: Envoy resets a stream whose response is complete before the
    /// request is.
    fn poll_read(
        &mut self,
        outgoing: &mut OutgoingRequest,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let is_first = !outgoing.has_body_started();
        let mut bytes = std::mem::take(&mut self.ahead);
        loop {
            let length = bytes.len();
            match outgoing.poll_plain_body(cx, &mut bytes)? {
                Poll::Pending if length == 0 => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(0) => {
                    self.is_read = true;
                    break;
                }
                Poll::Ready(_) if length >= MAX_READ => {
                    self.ahead = bytes.split_off(length);
                    break;
                }
                Poll::Ready(_) => {}
            }
        }
        outgoing.mark_unsent();
        self.unsent = bytes.into();
        if is_first && self.is_read {
            self.whole = Some(self.unsent.clone());
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the last bytes, and ends the stream.
    fn send_end(
        &mut self,
        data: Bytes,
        trailers: Option<http::HeaderMap>,
    ) -> Result<(), h2::Error> {
        let Some(trailers) = trailers else { return self.stream.send_data(data, true) };
        if !data.is_empty() {
            self.stream.send_data(data, false)?;
        }
        self.stream.send_trailers(trailers)
    }
}

fn h2_failed(error: h2::Error) -> SendError {
    SendError::Io(io_error(error))
}
