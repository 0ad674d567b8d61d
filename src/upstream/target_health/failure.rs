//! Failures that count against a target: of attempts and of health checks.

use std::fmt;

/// The reason why an attempt failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// No connection was established.
    Connect,
    /// The connection failed before the response's head.
    Reset,
    /// No response arrived in time.
    Timeout,
    /// The response was malformed.
    Malformed,
    /// Enough consecutive responses broke off within their bodies to eject the target.
    BrokenBodies,
    /// A status code that counts as a failure.
    Status(u16),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect failed"),
            Self::Reset => f.write_str("connection lost"),
            Self::Timeout => f.write_str("no response in time"),
            Self::Malformed => f.write_str("malformed response"),
            Self::BrokenBodies => f.write_str("responses broken off"),
            Self::Status(status) => write!(f, "status {status}"),
        }
    }
}

/// The reason why a health check failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CheckFailure {
    /// No connection was established.
    Connect,
    /// No response arrived within the check's timeout.
    Timeout,
    /// An unexpected status code.
    Status(u16),
    /// The connection failed, or the response was malformed.
    Exchange,
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect failed"),
            Self::Timeout => f.write_str("no response in time"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Exchange => f.write_str("connection lost or malformed response"),
        }
    }
}
