//! The state machine of a connection, and its deadlines.
//!
//! ```text
//!            +------------------------- Idle <-----------------------+
//!            v                           |  ^                        |
//! accept -> Head ------> Request <-------+  |                        |
//!                        |  |  |            |                        |
//!                        |  |  +--------> Response ----> Drain ------+
//!                        |  +-----------------------------^ (HTTP/2)
//!                        v
//!                      Tunnel                     any state ----> Linger
//! ```
//!
//! `Linger` ends in a close, or in the reset of an HTTP/2 stream. An HTTP/2 connection is a
//! `Request` while it has streams, and each stream has a state of its own; a stream that arrives
//! after a GOAWAY leads back from `Linger` to `Request`. [`StateCell`] asserts these transitions
//! under `debug_assertions`.
//!
//! | file | content |
//! |---|---|
//! | `connection_state` | [`ConnectionState`], [`Wait`], and [`ExpiredDeadline`]: the deadlines that each can miss |
//! | `cell` | [`StateCell`]: the state that a task and the worker's sweep share; [`SweepWake`] |
//!
//! Deadlines use no timers: a connection stores its state in a [`StateCell`], and the worker checks
//! all cells ten times a second. All points in time are [`CoarseTime`].

mod cell;

pub use self::cell::{StateCell, SweepWake};
use tidegate_base::time::{CoarseTime, Millis};

/// The state of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// Waits for the first byte of the next request.
    Idle {
        /// The time at which the previous request ended.
        since: CoarseTime,
    },
    /// Waits for the end of a request's head.
    Head {
        /// The time of the head's first byte; for the first request, of the accept.
        since: CoarseTime,
    },
    /// Processes a request, until the response's head.
    Request {
        /// The deadline of the response's head. `None`: unlimited, or the route is not known yet.
        deadline: Option<CoarseTime>,
        /// The event that the request currently waits for.
        wait: Wait,
    },
    /// Sends the response, until its end.
    Response {
        /// The deadline of the whole response, if it has one.
        deadline: Option<CoarseTime>,
        /// Maximum time between two reads from the upstream. `None`: unlimited.
        idle_timeout: Option<Millis>,
        /// The event that the response currently waits for.
        wait: Wait,
    },
    /// Reads and discards the rest of a request's body.
    Drain {
        /// The deadline.
        deadline: CoarseTime,
    },
    /// Moves bytes in both directions, after an upgrade.
    Tunnel {
        /// The time of the last byte.
        since: CoarseTime,
        /// Maximum time without a byte. `None`: unlimited.
        idle_timeout: Option<Millis>,
    },
    /// Waits for the client's close, or the end of an HTTP/2 stream, after the gateway has shut
    /// down its own side. Received bytes are discarded.
    Linger {
        /// The time of the last received byte.
        since: CoarseTime,
        /// The deadline of the whole state.
        deadline: CoarseTime,
    },
}

/// Maximum time between two updates of a worker's coarse time.
pub const COARSE_TICK: Millis = Millis::from_ms(100);

/// The slowest upload that `request_timeout` does not end, in bytes per second.
pub const MIN_BODY_RATE: u64 = 512;

/// The event that a request or response currently waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wait {
    /// The counter store, a delay or a connect to an upstream. Only the state's own deadline
    /// applies.
    Internal,
    /// More of the body from the client.
    ClientBody {
        /// The time of the last progress.
        since: CoarseTime,
    },
    /// The client to read more of the response.
    ClientRead {
        /// The time of the last progress.
        since: CoarseTime,
    },
    /// The upstream.
    Upstream {
        /// The time of the last progress, by the upstream or in the request's body.
        since: CoarseTime,
        /// Maximum time without progress, until the response's head.
        response_timeout: Option<Millis>,
    },
}

impl Wait {
    fn since(self) -> Option<CoarseTime> {
        match self {
            Self::Internal => None,
            Self::ClientBody { since }
            | Self::ClientRead { since }
            | Self::Upstream { since, .. } => Some(since),
        }
    }
}

/// The deadline that has passed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExpiredDeadline {
    /// No further request arrived.
    Idle,
    /// A request's head was not completed.
    Head,
    /// The client stopped sending its body.
    ClientBody,
    /// The client stopped reading.
    ClientRead,
    /// The upstream did not respond in time.
    Upstream,
    /// The response's head was not ready by the request's deadline.
    Request,
    /// The upstream stopped sending the response.
    ResponseIdle,
    /// The whole response took too long.
    Response,
    /// A tunnel was idle.
    Tunnel,
    /// The rest of a body did not arrive, or the client did not close.
    Close,
}

/// The timeouts of a client connection; `None`: unlimited.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// From the accept, or a head's first byte, to its last byte.
    pub head: Option<Millis>,
    /// Between two requests.
    pub idle: Option<Millis>,
    /// Between two reads of a request's body, and between two writes of a response.
    pub body: Option<Millis>,
}

/// Time without a byte after which a lingering connection is closed.
const LINGER_GAP: Millis = Millis::from_secs(2);

impl ConnectionState {
    /// True if the state machine has a transition from this state to `next`.
    fn can_become(self, next: Self) -> bool {
        match next {
            Self::Idle { .. } => {
                matches!(self, Self::Request { .. } | Self::Response { .. } | Self::Drain { .. })
            }
            Self::Head { .. } => matches!(self, Self::Idle { .. } | Self::Head { .. }),
            Self::Request { .. } => matches!(
                self,
                Self::Idle { .. } | Self::Head { .. } | Self::Request { .. } | Self::Linger { .. }
            ),
            Self::Response { .. } => matches!(self, Self::Request { .. }),
            Self::Drain { .. } => matches!(self, Self::Request { .. } | Self::Response { .. }),
            Self::Tunnel { .. } => matches!(self, Self::Request { .. } | Self::Tunnel { .. }),
            Self::Linger { .. } => true,
        }
    }

    /// True if `timeout` can pass in this state.
    fn can_exceed(self, timeout: ExpiredDeadline) -> bool {
        match timeout {
            ExpiredDeadline::Idle => matches!(self, Self::Idle { .. }),
            ExpiredDeadline::Head => matches!(self, Self::Head { .. }),
            ExpiredDeadline::ClientBody | ExpiredDeadline::ClientRead => {
                matches!(self, Self::Request { .. } | Self::Response { .. })
            }
            ExpiredDeadline::Upstream | ExpiredDeadline::Request => {
                matches!(self, Self::Request { .. })
            }
            ExpiredDeadline::ResponseIdle | ExpiredDeadline::Response => {
                matches!(self, Self::Response { .. })
            }
            ExpiredDeadline::Tunnel => matches!(self, Self::Tunnel { .. }),
            ExpiredDeadline::Close => matches!(self, Self::Drain { .. } | Self::Linger { .. }),
        }
    }

    /// The start of the current wait; `None` for a wait that only a deadline bounds.
    fn since(self) -> Option<CoarseTime> {
        match self {
            Self::Idle { since }
            | Self::Head { since }
            | Self::Tunnel { since, .. }
            | Self::Linger { since, .. } => Some(since),
            Self::Request { wait, .. } | Self::Response { wait, .. } => wait.since(),
            Self::Drain { .. } => None,
        }
    }

    /// The deadline that has passed at `now`, if any. Never one that is still to come, though the
    /// coarse clock may have lagged by one tick when a wait began.
    pub fn overdue(self, now: CoarseTime, timeouts: &ClientTimeouts) -> Option<ExpiredDeadline> {
        let gap_exceeded = |since: CoarseTime, limit: Option<Millis>| {
            limit.is_some_and(|limit| now.since(since) >= limit.saturating_add(COARSE_TICK))
        };
        let deadline_passed =
            |deadline: Option<CoarseTime>| deadline.is_some_and(|deadline| now >= deadline);
        match self {
            Self::Idle { since } => {
                gap_exceeded(since, timeouts.idle).then_some(ExpiredDeadline::Idle)
            }
            Self::Head { since } => {
                gap_exceeded(since, timeouts.head).then_some(ExpiredDeadline::Head)
            }
            Self::Request { deadline, wait } => match wait {
                Wait::ClientBody { since } => (gap_exceeded(since, timeouts.body)
                    || deadline_passed(deadline))
                .then_some(ExpiredDeadline::ClientBody),
                Wait::ClientRead { since } => (gap_exceeded(since, timeouts.body)
                    || deadline_passed(deadline))
                .then_some(ExpiredDeadline::ClientRead),
                Wait::Upstream { since, response_timeout }
                    if gap_exceeded(since, response_timeout) =>
                {
                    Some(ExpiredDeadline::Upstream)
                }
                _ => deadline_passed(deadline).then_some(ExpiredDeadline::Request),
            },
            Self::Response { deadline, idle_timeout, wait } => match wait {
                _ if deadline_passed(deadline) => Some(ExpiredDeadline::Response),
                Wait::ClientBody { since } => {
                    gap_exceeded(since, timeouts.body).then_some(ExpiredDeadline::ClientBody)
                }
                Wait::ClientRead { since } => {
                    gap_exceeded(since, timeouts.body).then_some(ExpiredDeadline::ClientRead)
                }
                Wait::Upstream { since, .. } => {
                    gap_exceeded(since, idle_timeout).then_some(ExpiredDeadline::ResponseIdle)
                }
                Wait::Internal => None,
            },
            Self::Drain { deadline } => (now > deadline).then_some(ExpiredDeadline::Close),
            Self::Tunnel { since, idle_timeout } => {
                gap_exceeded(since, idle_timeout).then_some(ExpiredDeadline::Tunnel)
            }
            Self::Linger { since, deadline } => (now > deadline
                || gap_exceeded(since, Some(LINGER_GAP)))
            .then_some(ExpiredDeadline::Close),
        }
    }
}

/// How soon a connection must close, from the least to the most strict mode.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CloseMode {
    /// Not at all.
    KeepOpen,
    /// After the current request; an idle connection after its next one.
    AfterRequest,
    /// After the current request; an idle connection at once.
    WhenIdle,
    /// At once; a request in progress is aborted.
    Immediate,
}

#[cfg(test)]
mod tests;
