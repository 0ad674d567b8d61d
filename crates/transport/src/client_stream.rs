//! The interface between a client connection and the gateway: one request, in any protocol version.

use std::task::{Context, Poll};

use tidegate_http1::{BodyEncoder, BodyLength, Fields, FramingError};

use crate::connection_state::StateCell;

/// The reason why a request's body could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BodyError {
    /// The body exceeds the route's `max_body`.
    #[error("the request's body is longer than this route allows")]
    TooLong,
    /// The body's framing is malformed.
    #[error("{0}")]
    Malformed(FramingError),
    /// The client sent nothing within the body timeout.
    #[error("the request's body did not arrive in time")]
    TimedOut,
    /// The client sends more slowly than the upstream's `min_rate`.
    #[error("the request's body arrives more slowly than this upstream requires")]
    TooSlow,
    /// The rest of the body is no JSON, or repeats a member that limits have read.
    #[error(
        "the rest of the request's body is no JSON, or repeats a member by which requests are counted"
    )]
    Unreadable,
    /// The client closed the connection.
    #[error("the client closed the connection before the end of the request's body")]
    ClientClosed,
}

/// The client's side of one request.
pub trait ClientStream {
    /// The state of the connection, with its deadline.
    fn state(&self) -> &StateCell;

    /// The body's framing; `BodyLength::Known(0)` without a body.
    fn length(&self) -> BodyLength;

    /// Appends the arrived body bytes to `out`, encoded by `encoder`. Ready with the number of body
    /// bytes; 0 after the last. The first call sends `100 Continue` to a client that expects it.
    ///
    /// # Errors
    /// The body is malformed, late or too long, or the client has closed the connection.
    fn poll_body(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>>;

    /// True if the client waits with its body for `100 Continue`, which the first read sends.
    fn awaits_continue(&self) -> bool {
        false
    }

    /// Stops reading the body. The connection cannot be reused, because the end of the body is
    /// unknown.
    fn abandon_body(&self);

    /// Counts bytes of a gRPC message that the gateway keeps until its end. False if the messages
    /// of the connection are too long together. Only HTTP/2 carries several.
    fn reserve_message(&self, _bytes: usize) -> bool {
        true
    }

    /// Takes the trailer fields of a body that has ended.
    fn take_trailers(&self) -> Option<Box<Fields>>;

    /// Forwards an interim (1xx) response of the upstream, if the client's protocol version
    /// supports it.
    fn send_interim(&self, status: u16, fields: &Fields);
}

/// A client's stream whose body passes through a layer of the gateway. All other calls go to the
/// client's stream.
pub trait ClientStreamLayer {
    /// The client's stream.
    fn client(&self) -> &dyn ClientStream;

    /// As [`ClientStream::poll_body`].
    ///
    /// # Errors
    /// As [`ClientStream::poll_body`].
    fn poll_layer(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>>;
}

impl<L: ClientStreamLayer> ClientStream for L {
    fn state(&self) -> &StateCell {
        self.client().state()
    }

    fn length(&self) -> BodyLength {
        self.client().length()
    }

    fn poll_body(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        self.poll_layer(cx, encoder, out)
    }

    fn awaits_continue(&self) -> bool {
        self.client().awaits_continue()
    }

    fn abandon_body(&self) {
        self.client().abandon_body();
    }

    fn reserve_message(&self, bytes: usize) -> bool {
        self.client().reserve_message(bytes)
    }

    fn take_trailers(&self) -> Option<Box<Fields>> {
        self.client().take_trailers()
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        self.client().send_interim(status, fields);
    }
}
