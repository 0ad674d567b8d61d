//! A request's body on its way to an upstream: counted, and its faults remembered.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::framing::Wire;

/// What went wrong with a client's body.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BodyFault {
    /// It is longer than the route allows.
    #[error("the request's body is too long")]
    TooLong,
    /// It could not be read: malformed, stalled, or the client is gone.
    #[error("the request's body could not be read")]
    Unreadable,
}

/// A request's body on its way to an upstream.
pub struct RequestBody {
    body: Option<Incoming>,
    left: u64,
    wire: Option<Rc<Wire>>,
}

impl RequestBody {
    /// A request without a body.
    pub fn none() -> Self {
        Self { body: None, left: 0, wire: None }
    }

    /// Passes `body` on, up to `limit` bytes. Its faults, and its progress, are told to `wire`.
    pub fn new(body: Incoming, limit: u64, wire: Rc<Wire>) -> Self {
        Self { body: Some(body), left: limit, wire: Some(wire) }
    }

    fn fail(&mut self, fault: BodyFault) -> BodyFault {
        if let Some(wire) = &self.wire {
            wire.fail_body(fault == BodyFault::TooLong);
        }
        self.body = None;
        fault
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(wire) = self.wire.as_ref().filter(|_| !self.is_end_stream()) {
            // The upstream answered without reading all: the client is still sending.
            wire.linger();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = match ready!(Pin::new(body).poll_frame(cx)) {
            None => {
                this.body = None;
                return Poll::Ready(None);
            }
            Some(Err(_)) => return Poll::Ready(Some(Err(this.fail(BodyFault::Unreadable)))),
            Some(Ok(frame)) => frame,
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        match this.left.checked_sub(length) {
            None => Poll::Ready(Some(Err(this.fail(BodyFault::TooLong)))),
            Some(left) => {
                this.left = left;
                if let Some(wire) = &this.wire {
                    wire.body_moved();
                }
                Poll::Ready(Some(Ok(super::headers::clean_trailers(frame))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
