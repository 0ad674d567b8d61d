//! [`RequestedName`]: the TLS name of connections for a request, if it is that of the request's
//! `Host`.

use std::{fmt, io, rc::Rc};

use rustls::pki_types::ServerName;

use super::target_health::ConnectFailure;

/// The name that a server's certificate must have for a request.
pub(super) type RequestedName = Rc<ServerName<'static>>;

/// A handshake for the name of a request's `Host` failed. The server may serve all other names, so
/// it does not count as failed.
#[derive(Debug)]
pub(super) struct NameRefused(io::Error);

impl fmt::Display for NameRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no TLS connection for the request's host: {}", ConnectFailure::of(&self.0))
    }
}

impl std::error::Error for NameRefused {}

impl NameRefused {
    /// The error of a failed handshake for `name`.
    pub(super) fn of(name: Option<&RequestedName>, error: io::Error) -> io::Error {
        match name {
            Some(_) => io::Error::new(error.kind(), Self(error)),
            None => error,
        }
    }

    /// True if `error` is one.
    pub(super) fn is(error: &io::Error) -> bool {
        let Some(inner) = error.get_ref() else { return false };
        inner.is::<Self>()
    }
}
