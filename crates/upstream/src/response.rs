//! The streamed body of an upstream's response, and the reuse of its connection.

mod http1;

use std::{
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use http::Method;
use tidegate_http1::{BodyEncoder, BodyLength, FieldSink, Fields, ResponseHead};
use tidegate_transport::compress::{CompressionPermit, Compressor};
use tidegate_transport::socket::yield_turn;

use self::http1::Http1Body;
use super::{
    compressed::Compressed,
    connection::UpstreamHttp1Connection,
    endpoint::InFlight,
    headers::{ProtectedHeaders, is_digest, is_trailer_allowed},
    http2::Http2Body,
    read_ahead::{ReadAhead, ReadAheadOutcome},
    request::OutgoingRequest,
};

/// Maximum number of reads ahead in one poll. Then the task yields.
const MAX_READS_AHEAD_PER_POLL: usize = 8;

/// The streamed body of an upstream's response. Dropping it ends the request in flight, and returns
/// the connection to the pool if it can be reused, or else closes it.
pub struct ResponseBody {
    source: BodySource,
    /// In one box, because responses are moved many times.
    stages: Option<Box<Stages>>,
}

/// The optional stages between the upstream and the client.
#[derive(Default)]
struct Stages {
    /// Bytes that were read while the client did not read.
    ahead: Option<ReadAhead>,
    compressed: Option<Compressed>,
    observer: Option<Rc<dyn BodyObserver>>,
}

/// Looks at the bytes of a body while they pass.
pub trait BodyObserver {
    /// Called with the next bytes, as the upstream sent them, without the framing of chunks.
    fn observe(&self, bytes: &[u8]);
}

/// A body that the gateway makes itself while it is sent.
pub trait OwnBody {
    /// Appends the next bytes to `out`. Ready with their number; 0 at the end.
    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<usize>;

    /// The trailers after the last byte, such as the gRPC status of a failure. `None` for those of
    /// the request.
    fn take_trailers(&mut self) -> Option<Fields> {
        None
    }
}

/// The source of a response's body.
pub(super) enum BodySource {
    Http1(Http1Body),
    Http2 {
        body: Box<Http2Body>,
        /// See [`ResponseBody::declared_length`].
        declared_length: Option<u64>,
        in_flight: InFlight,
    },
    /// The gateway itself.
    Own(Box<dyn OwnBody>),
    /// A body that was read to its end, or has failed. Its request is no longer in flight.
    Ended {
        /// See [`ResponseBody::declared_length`].
        declared_length: Option<u64>,
        trailers: Option<Fields>,
    },
}

impl ResponseBody {
    /// The body from `source`.
    pub(super) fn new(source: BodySource) -> Self {
        Self { source, stages: None }
    }

    /// A body that the gateway makes itself.
    pub fn own(body: Box<dyn OwnBody>) -> Self {
        Self::new(BodySource::Own(body))
    }

    /// Compresses the body. Call it before any of the body is read.
    pub fn compress(&mut self, compressor: Compressor, permit: CompressionPermit) {
        let compressed = Compressed::new(compressor, permit);
        self.stages.get_or_insert_default().compressed = Some(compressed);
    }

    /// Shows the body's bytes to `observer`, before they are compressed. Call it before any of the
    /// body is read.
    pub fn observe(&mut self, observer: Rc<dyn BodyObserver>) {
        self.stages.get_or_insert_default().observer = Some(observer);
    }

    /// The head's `Content-Length`, in bytes, even without a body, as for HEAD. `None` if the body
    /// is compressed.
    pub fn declared_length(&self) -> Option<u64> {
        if self.stages.as_ref().is_some_and(|stages| stages.compressed.is_some()) {
            return None;
        }
        self.source.declared_length()
    }

    /// Makes [`Self::declared_length`] `None`, for a response without a body whose length is that
    /// of another coding.
    pub fn hide_length(&mut self) {
        match &mut self.source {
            BodySource::Http1(body) => body.declared_length = None,
            BodySource::Http2 { declared_length, .. }
            | BodySource::Ended { declared_length, .. } => {
                *declared_length = None;
            }
            BodySource::Own(_) => {}
        }
    }

    /// True once the body was read to its end.
    #[inline]
    pub fn is_done(&self) -> bool {
        let Some(stages) = &self.stages else { return self.source.is_done() };
        is_read(&self.source, stages.ahead.as_ref())
            && stages.compressed.as_ref().is_none_or(Compressed::is_finished)
    }

    /// Appends the arrived body bytes to `out`, encoded by `encoder`, without the end of a chunked
    /// body. Ready with the number of body bytes; 0 at the end, or if a compressor has taken all
    /// arrived bytes.
    ///
    /// # Errors
    /// The connection failed, or the body is malformed or incomplete.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let Self { source, stages } = self;
        match stages.as_deref_mut() {
            None => source.poll_body(cx, encoder, out),
            Some(Stages { ahead, compressed: None, observer: None }) => {
                poll_source(source, ahead, cx, encoder, out)
            }
            Some(Stages { ahead, compressed: None, observer: Some(observer) }) => {
                let read = |out: &mut Vec<u8>| poll_observed(source, ahead, &**observer, cx, out);
                encoder.write(out, read)
            }
            Some(Stages { ahead, compressed: Some(compressed), observer }) => {
                let read = |cx: &mut Context<'_>, bytes: &mut Vec<u8>| {
                    let read = match observer {
                        None => poll_source(source, ahead, cx, BodyEncoder::Plain, bytes),
                        Some(observer) => poll_observed(source, ahead, &**observer, cx, bytes),
                    };
                    read.map_ok(|_| is_read(source, ahead.as_ref()))
                };
                encoder.write(out, |out| compressed.poll_body(cx, out, read))
            }
        }
    }

    /// Called when read bytes cannot be sent to the client yet. If the upstream's load is bounded,
    /// reads on up to its `response_buffer`, so that the request can end at the target. Beyond it,
    /// the client holds the place.
    pub fn read_ahead(&mut self, cx: &mut Context<'_>) -> ReadAheadOutcome {
        let mut ahead = self.stages.as_deref_mut().and_then(|stages| stages.ahead.as_mut());
        if ahead.is_none()
            && let Some(in_flight) = self.source.in_flight()
        {
            ahead = ReadAhead::new(in_flight)
                .map(|begun| self.stages.get_or_insert_default().ahead.insert(begun));
        }
        let outcome = match ahead {
            None => ReadAheadOutcome::Unpaced,
            Some(ahead) => self.source.read_into(ahead, cx),
        };
        if let BodySource::Http2 { body, .. } = &mut self.source {
            body.read_ahead(cx);
        }
        outcome
    }

    /// Takes the trailers of a body that was read to its end.
    pub fn take_trailers(&mut self) -> Option<Fields> {
        let trailers = match &mut self.source {
            BodySource::Http1(body) => *body.decoder.take_trailers()?,
            BodySource::Http2 { body, .. } => body.take_trailers()?,
            BodySource::Own(_) => return None,
            BodySource::Ended { trailers, .. } => trailers.take()?,
        };
        let protected = ProtectedHeaders::default();
        let is_compressed = self.stages.as_ref().is_some_and(|stages| stages.compressed.is_some());
        let mut kept = Fields::default();
        kept.append(&trailers, |name| {
            is_trailer_allowed(name, &protected) && !(is_compressed && is_digest(name))
        });
        Some(kept).filter(|kept| !kept.is_empty())
    }
}

/// True if everything was read from `source`, and taken from `ahead`.
fn is_read(source: &BodySource, ahead: Option<&ReadAhead>) -> bool {
    source.is_done() && ahead.is_none_or(ReadAhead::is_empty)
}

/// Appends the next bytes to `out`: first from `ahead`, then from `source`.
fn poll_source(
    source: &mut BodySource,
    ahead: &mut Option<ReadAhead>,
    cx: &mut Context<'_>,
    encoder: BodyEncoder,
    out: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let Some(ahead) = ahead else { return source.poll_body(cx, encoder, out) };
    let taken = ahead.take(encoder, out);
    if taken > 0 {
        return Poll::Ready(Ok(taken));
    }
    if let Some(failure) = ahead.failure.take() {
        return Poll::Ready(Err(failure));
    }
    let polled = source.poll_body(cx, encoder, out);
    match (&polled, source.in_flight()) {
        (Poll::Ready(Ok(count)), _) => ahead.add(*count),
        (Poll::Pending, Some(in_flight)) => ahead.mark_waiting_for_target(in_flight),
        _ => {}
    }
    polled
}

/// As [`poll_source`], and shows the bytes to `observer`.
fn poll_observed(
    source: &mut BodySource,
    ahead: &mut Option<ReadAhead>,
    observer: &dyn BodyObserver,
    cx: &mut Context<'_>,
    out: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let before = out.len();
    let polled = poll_source(source, ahead, cx, BodyEncoder::Plain, out);
    if out.len() > before {
        observer.observe(&out[before..]);
    }
    polled
}

impl BodySource {
    /// The request in flight.
    fn in_flight(&self) -> Option<&InFlight> {
        match self {
            Self::Http1(body) => Some(&body.in_flight),
            Self::Http2 { in_flight, .. } => Some(in_flight),
            Self::Own(_) | Self::Ended { .. } => None,
        }
    }

    /// See [`ResponseBody::declared_length`].
    fn declared_length(&self) -> Option<u64> {
        match self {
            Self::Http1(body) => body.declared_length,
            Self::Own(_) => None,
            Self::Http2 { declared_length, .. } | Self::Ended { declared_length, .. } => {
                *declared_length
            }
        }
    }

    /// Reads as much as fits into `ahead`. At the end of the body, the request is no longer in
    /// flight.
    fn read_into(&mut self, ahead: &mut ReadAhead, cx: &mut Context<'_>) -> ReadAheadOutcome {
        ahead.compact();
        for _ in 0..MAX_READS_AHEAD_PER_POLL {
            if self.in_flight().is_none() {
                return ReadAheadOutcome::Unpaced;
            }
            if !self.is_done() {
                if ahead.is_full()
                    && let Some(in_flight) = self.in_flight()
                {
                    return ahead.mark_waiting_for_client(in_flight);
                }
                match self.poll_body(cx, BodyEncoder::Plain, &mut ahead.bytes) {
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(failure)) => ahead.failure = Some(failure),
                    Poll::Pending => {
                        if let Some(in_flight) = self.in_flight() {
                            ahead.mark_waiting_for_target(in_flight);
                        }
                        return ReadAheadOutcome::Unpaced;
                    }
                }
            }
            if self.is_done() || ahead.failure.is_some() {
                ahead.release_place();
                self.end();
            }
        }
        yield_turn(cx);
        ReadAheadOutcome::Unpaced
    }

    /// Returns the connection, and ends the request. The length and the trailers stay.
    fn end(&mut self) {
        let trailers = match self {
            Self::Http1(body) => body.decoder.take_trailers().map(|trailers| *trailers),
            Self::Http2 { body, .. } => body.take_trailers(),
            Self::Own(body) => body.take_trailers(),
            Self::Ended { .. } => return,
        };
        *self = Self::Ended { declared_length: self.declared_length(), trailers };
    }

    /// The body after `head`, the HTTP/1 response to a request with `method`.
    pub(super) fn http1(
        head: &ResponseHead,
        method: &Method,
        connection: Box<UpstreamHttp1Connection>,
        outgoing: OutgoingRequest,
        in_flight: InFlight,
    ) -> Self {
        Self::Http1(Http1Body::new(head, method, connection, outgoing, in_flight))
    }

    /// The body after `head`, the HTTP/2 response to a request with `method`.
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
        Self::Http2 { body: Box::new(body), declared_length, in_flight }
    }

    /// True once the body was read to its end.
    fn is_done(&self) -> bool {
        match self {
            Self::Http1(body) => body.decoder.is_done(),
            Self::Http2 { body, .. } => body.is_done(),
            Self::Own(_) => false,
            Self::Ended { .. } => true,
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
            Self::Own(body) => {
                let mut is_end = false;
                let written = encoder.write(out, |out| {
                    let count = ready!(body.poll(cx, out));
                    is_end = count == 0;
                    Poll::Ready(Ok(count))
                });
                if is_end {
                    self.end();
                }
                written
            }
            Self::Ended { .. } => Poll::Ready(Ok(0)),
        }
    }
}

#[cfg(test)]
mod tests;
