//! The client's side of a request, whichever protocol carries it: the seam between a connection and
//! the gateway.

use std::task::{Context, Poll};

use super::{body::BodyEncoder, fault::Fault, fields::Fields, head::Length, state::StateCell};

/// What went wrong with a client's body.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BodyFault {
    /// It is longer than the route allows.
    #[error("the request's body is longer than this route allows")]
    TooLong,
    /// Its frame is malformed.
    #[error("{0}")]
    Malformed(Fault),
    /// It stopped coming.
    #[error("the request's body did not arrive in time")]
    TimedOut,
    /// The client is gone.
    #[error("the client closed the connection within the request's body")]
    Gone,
}

/// The client's side of one request.
pub trait ClientStream {
    /// What is waited for.
    fn state(&self) -> &StateCell;

    /// How the body is delimited; [`Length::Known`] 0 where there is none.
    fn length(&self) -> Length;

    /// Writes more of the body to `out` with `encoder`, as much as is there. Ready with how many of its
    /// bytes came; 0 after the last. Asked for the first time, it tells a client that waits for it to go
    /// on.
    fn poll_body(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyFault>>;

    /// Nothing more of the body is wanted, and what follows it has no reading.
    fn give_up_body(&self);

    /// The body's trailers, once it has ended; given once.
    fn take_trailers(&self) -> Option<Box<Fields>>;

    /// Passes an interim answer of the upstream on, where the client's protocol has them. `head` writes
    /// its fields, each as a line with its end.
    fn inform(&self, status: u16, fields: &mut dyn FnMut(&mut Vec<u8>));
}
