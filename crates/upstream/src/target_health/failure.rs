//! Failures that count against a target, of attempts and of health checks, each with its reason. A
//! reason has nothing that a client or a server sent, except a status and an error code.

use std::{error::Error, fmt, io};

use h2::Reason;
use tidegate_http1::FramingError;
use tidegate_tls::HandshakeFailure;

/// The reason why an attempt failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// No connection was established.
    Connect(ConnectFailure),
    /// The connection failed before the response's head.
    Reset(LostConnection),
    /// No response arrived in time.
    Timeout,
    /// The response was malformed.
    Malformed(FramingError),
    /// Enough consecutive responses broke off within their bodies to eject the target.
    BrokenBodies,
    /// A status code that counts as a failure.
    Status(u16),
}

/// The reason why no connection was established.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectFailure {
    /// Nothing listens there.
    Refused,
    /// Nothing answered within `connect_timeout`.
    TimedOut,
    /// The network has no way to the address.
    Unreachable,
    /// The name has no address.
    Unresolved,
    /// The server ended the connection before it could be used.
    Closed,
    /// The TLS handshake failed.
    Tls(HandshakeFailure),
    /// The server does not speak HTTP/2.
    NoHttp2,
    /// A connect that began later was faster.
    Overtaken,
    /// Another error of the system, such as a socket's file that does not exist.
    System(io::ErrorKind),
}

/// The reason why a connection was lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LostConnection {
    /// The server closed it.
    Closed,
    /// An HTTP/2 error, which either side detected.
    Http2(Reason),
    /// An error of TLS.
    Tls(HandshakeFailure),
    /// Another error of the system.
    System(io::ErrorKind),
}

/// The reason why a health check failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CheckFailure {
    /// No connection was established.
    Connect(ConnectFailure),
    /// No response arrived within the check's timeout.
    Timeout,
    /// An unexpected status code.
    Status(u16),
    /// The connection failed before the response's head.
    Lost(LostConnection),
    /// The response was malformed.
    Malformed,
}

/// The server does not speak HTTP/2: it sent something else, or no settings.
#[derive(Debug, Default, thiserror::Error)]
#[error("the server does not speak HTTP/2{0}")]
pub(crate) struct NoHttp2(pub(crate) String);

impl Failure {
    /// The failure of an exchange on a connection.
    pub fn of_exchange(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            None | Some(FramingError::Incomplete) => Self::Reset(LostConnection::of(error)),
            Some(malformed) => Self::Malformed(*malformed),
        }
    }
}

impl ConnectFailure {
    /// The reason in this error of a connect or a handshake.
    pub fn of(error: &io::Error) -> Self {
        if let Some(failure) = HandshakeFailure::of(error) {
            return Self::Tls(failure);
        }
        if error.get_ref().and_then(|inner| inner.downcast_ref::<NoHttp2>()).is_some() {
            return Self::NoHttp2;
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            io::ErrorKind::AddrNotAvailable if error.raw_os_error().is_none() => Self::Unresolved,
            kind if is_end(kind) => Self::Closed,
            kind => Self::System(kind),
        }
    }
}

impl LostConnection {
    /// The reason in this error of an exchange.
    fn of(error: &io::Error) -> Self {
        if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            return Self::of_http2(error);
        }
        if let Some(failure) = HandshakeFailure::of(error) {
            return Self::Tls(failure);
        }
        match error.get_ref().and_then(|inner| inner.downcast_ref::<FramingError>()) {
            Some(_) => Self::Closed,
            None if is_end(error.kind()) => Self::Closed,
            None => Self::System(error.kind()),
        }
    }

    fn of_http2(error: &h2::Error) -> Self {
        match (error.reason(), error.get_io()) {
            (Some(reason), _) => Self::Http2(reason),
            (None, Some(error)) => Self::of(error),
            (None, None) => Self::Closed,
        }
    }
}

/// True if the peer has ended the connection.
fn is_end(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    )
}

impl CheckFailure {
    /// The failure of a check's exchange.
    pub(crate) fn of_exchange(error: &hyper::Error) -> Self {
        if error.is_parse() || error.is_parse_status() {
            return Self::Malformed;
        }
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(error) = cause.downcast_ref::<io::Error>() {
                return Self::Lost(LostConnection::of(error));
            }
            if let Some(error) = cause.downcast_ref::<h2::Error>() {
                return Self::Lost(LostConnection::of_http2(error));
            }
            source = cause.source();
        }
        Self::Lost(LostConnection::Closed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => write!(f, "connect failed: {reason}"),
            Self::Reset(reason) => write!(f, "connection lost: {reason}"),
            Self::Timeout => f.write_str("no response in time"),
            Self::Malformed(error) => write!(f, "malformed response: {error}"),
            Self::BrokenBodies => f.write_str("responses broken off"),
            Self::Status(status) => write!(f, "status {status}"),
        }
    }
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unreachable => f.write_str("no route to the address"),
            Self::Unresolved => f.write_str("the name has no address"),
            Self::Closed => f.write_str("closed by the server"),
            Self::Tls(failure) => write!(f, "TLS: {failure}"),
            Self::NoHttp2 => f.write_str("the server does not speak HTTP/2"),
            Self::System(io::ErrorKind::NotFound) => f.write_str("the socket does not exist"),
            Self::Overtaken => f.write_str("slower than a connect that began later"),
            Self::System(kind) => write!(f, "{kind}"),
        }
    }
}

impl fmt::Display for LostConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the server"),
            Self::Http2(reason) => write!(f, "HTTP/2: {reason}"),
            Self::Tls(failure) => write!(f, "TLS: {failure}"),
            Self::System(kind) => write!(f, "{kind}"),
        }
    }
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => write!(f, "connect failed: {reason}"),
            Self::Timeout => f.write_str("no response in time"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Lost(reason) => write!(f, "connection lost: {reason}"),
            Self::Malformed => f.write_str("malformed response"),
        }
    }
}
