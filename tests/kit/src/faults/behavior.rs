//! The behaviors of a target, with all its failures.

use std::fmt;

/// A target's behavior with connections and requests, including health checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Behavior {
    /// Responds at once.
    Good,
    /// The port is closed.
    Refuses,
    /// Reads requests and never responds.
    Silent,
    /// Resets the connection instead of responding.
    ResetBeforeHead,
    /// Resets the connection within the response's head.
    ResetWithinHead,
    /// Resets the connection within the response's body.
    ResetAfterHead,
    /// Sends half of the body and nothing more.
    HangsInBody,
    /// Responds after 200 ms.
    SlowHead,
    /// Sends the body byte by byte, in about 1.3 s.
    SlowBody,
    /// Ends the connection (FIN) within the body.
    Cuts,
    /// Sends another response after the body that `Content-Length` announced.
    WrongLength,
    /// Sends a head without an end.
    FloodsHead,
    /// Sends a body without an end.
    FloodsBody,
    /// Responds with 503.
    Unavailable,
    /// The process is stopped: the kernel accepts connections and data, and nothing is read.
    HalfOpen,
    /// The queue of connections to accept is full: the kernel drops further ones.
    FullBacklog,
}

impl Behavior {
    /// All but [`Self::Good`].
    pub const FAULTS: [Self; 15] = [
        Self::Refuses,
        Self::Silent,
        Self::ResetBeforeHead,
        Self::ResetWithinHead,
        Self::ResetAfterHead,
        Self::HangsInBody,
        Self::SlowHead,
        Self::SlowBody,
        Self::Cuts,
        Self::WrongLength,
        Self::FloodsHead,
        Self::FloodsBody,
        Self::Unavailable,
        Self::HalfOpen,
        Self::FullBacklog,
    ];

    /// True if the target has no connections meanwhile.
    pub(super) fn closes_connections(self) -> bool {
        matches!(self, Self::Refuses | Self::FullBacklog)
    }
}

impl fmt::Display for Behavior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Refuses => "refuses",
            Self::Silent => "silent",
            Self::ResetBeforeHead => "reset before the head",
            Self::ResetWithinHead => "reset within the head",
            Self::ResetAfterHead => "reset within the body",
            Self::HangsInBody => "hangs in the body",
            Self::SlowHead => "slow head",
            Self::SlowBody => "slow body",
            Self::Cuts => "cuts",
            Self::WrongLength => "wrong length",
            Self::FloodsHead => "floods, head",
            Self::FloodsBody => "floods, body",
            Self::Unavailable => "503",
            Self::HalfOpen => "half-open",
            Self::FullBacklog => "full backlog",
        })
    }
}
