//! The counters of routes, plans, limits, upstreams and the throttle, and the kinds of connections
//! and of their failures.

use tidegate_base::counter::Counter;

use super::Histogram;

/// The counters of one route.
#[derive(Debug, Default)]
pub struct RouteCounters {
    /// Responses by status class, `1xx` to `5xx`. A client that closed before its response counts
    /// as `4xx`.
    pub responses: [Counter; 5],
    /// Requests that `allow` and `deny` refused.
    pub denied: Counter,
    /// Requests that were refused for their credentials or their consumer, in the order of
    /// [`AuthRejection::ALL`].
    pub auth_rejected: [Counter; AuthRejection::ALL.len()],
    /// Copies of requests for another upstream, in the order of [`MirrorOutcome::ALL`].
    pub mirrored: [Counter; MirrorOutcome::ALL.len()],
    /// Time from the request's head to the response's last byte.
    pub latency: Histogram,
}

/// Why a request was refused for its credentials or its consumer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AuthRejection {
    /// It had no credentials.
    Missing,
    /// Its credentials were wrong.
    Invalid,
    /// Its signed token was not valid.
    InvalidToken,
    /// Its signed token had expired.
    ExpiredToken,
    /// Its token lacked a claim that the route requires.
    MissingClaims,
    /// The route does not admit its consumer.
    ConsumerNotAllowed,
    /// The service that authenticates requests refused it.
    Service,
    /// Too many requests from its address had wrong credentials.
    TooManyFailures,
    /// What authenticates requests gave no answer.
    Unavailable,
}

impl AuthRejection {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 9] = [
        Self::Missing,
        Self::Invalid,
        Self::InvalidToken,
        Self::ExpiredToken,
        Self::MissingClaims,
        Self::ConsumerNotAllowed,
        Self::Service,
        Self::TooManyFailures,
        Self::Unavailable,
    ];

    /// Its name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::InvalidToken => "invalid_token",
            Self::ExpiredToken => "expired_token",
            Self::MissingClaims => "missing_claims",
            Self::ConsumerNotAllowed => "consumer_not_allowed",
            Self::Service => "service",
            Self::TooManyFailures => "too_many_failures",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The outcome of a request that was chosen for a route's mirror.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MirrorOutcome {
    /// The mirror responded.
    Answered,
    /// It did not respond, or not in time.
    Failed,
    /// Not sent: too many copies were in progress.
    Dropped,
    /// Not sent: the body is too long.
    TooLong,
    /// Not sent: the body was not read to its end.
    Incomplete,
}

impl MirrorOutcome {
    /// All outcomes, in the order of their counters.
    pub const ALL: [Self; 5] =
        [Self::Answered, Self::Failed, Self::Dropped, Self::TooLong, Self::Incomplete];

    /// Its name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
            Self::TooLong => "too_long",
            Self::Incomplete => "incomplete",
        }
    }
}

/// The requests of the consumers of one plan.
#[derive(Debug, Default)]
pub struct PlanCounters {
    /// Requests.
    pub requests: Counter,
    /// Requests that limits refused.
    pub refused: Counter,
}

/// The decisions of one limit on one route.
#[derive(Debug, Default)]
pub struct LimitCounters {
    /// Charges admitted.
    pub admitted: Counter,
    /// Charges refused.
    pub refused: Counter,
    /// Charges that would have been refused if the limit were enforced.
    pub would_refuse: Counter,
    /// Charges that a block refused, or would have refused; also counted as refused.
    pub blocked: Counter,
    /// Charges decided by the failure policy, because the store did not reply.
    pub unknown: Counter,
    /// Requests that this limit delayed longer than any other limit.
    pub delayed: Counter,
    /// The sum of these delays, in µs.
    pub delay_micros: Counter,
    /// Costs that are settled when responses end.
    pub settlement: SettlementCounters,
}

/// The costs of one limit that are settled when responses end, in units of the quota.
#[derive(Debug, Default)]
pub struct SettlementCounters {
    /// Estimates that were charged.
    pub reserved: Counter,
    /// Final costs.
    pub settled: Counter,
    /// The part of final costs that exceeds their estimates.
    pub overspent: Counter,
    /// Responses whose body could not be decoded to read its cost.
    pub unreadable: Counter,
}

/// The failures of one upstream by kind, and its retries.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// No connection could be opened.
    pub connect: Counter,
    /// No response arrived in time.
    pub timeout: Counter,
    /// The connection broke or the response was malformed, in its head or body.
    pub broken: Counter,
    /// Retries: attempts after a request's first.
    pub retries: Counter,
}

/// The decisions of the throttle.
#[derive(Debug, Default)]
pub struct ThrottleCounters {
    /// Requests with an active token, admitted while throttling.
    pub known: Counter,
    /// Requests denied because the token was not active.
    pub unknown: Counter,
    /// Requests denied because they had no token.
    pub missing: Counter,
    /// Requests denied because an upstream recently answered the token with 401.
    pub rejected: Counter,
    /// Tokens recorded as active, counted once per generation and worker.
    pub recorded: Counter,
    /// Requests that the waiting room admitted.
    pub room_admitted: Counter,
    /// Tickets of the waiting room that were given out.
    pub room_tickets: Counter,
    /// Tickets that were not accepted, by the index of the reason.
    pub room_faults: [Counter; 4],
    /// Requests with a token on routes where the throttle applies.
    pub with_token: Counter,
    /// Requests without a token on these routes.
    pub without_token: Counter,
}

/// The protocols of a client connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionProtocol {
    /// True if it is HTTP/2; otherwise HTTP/1.
    pub is_http2: bool,
    /// True if it has TLS.
    pub is_tls: bool,
}

impl ConnectionProtocol {
    pub(super) const COUNT: usize = 4;

    /// All combinations, by their indexes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(|index| Self { is_http2: index / 2 == 1, is_tls: index % 2 == 1 })
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.is_http2) * 2 + usize::from(self.is_tls)
    }

    /// Its name in metrics, as in the access log. An HTTP/1 connection may also carry HTTP/1.0.
    pub fn label(self) -> &'static str {
        if self.is_http2 { "HTTP/2" } else { "HTTP/1.1" }
    }
}

/// Why a client connection ended before HTTP.
#[derive(Clone, Copy, Debug)]
pub enum OpeningFailure {
    /// The client closed it.
    Closed,
    /// The PROXY protocol's header was missing or malformed.
    ProxyProtocol,
    /// TLS or the PROXY protocol's header did not complete in time.
    Timeout,
    /// The TLS handshake failed, or the client spoke without TLS.
    Tls,
}

impl OpeningFailure {
    /// All failures, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Closed, Self::ProxyProtocol, Self::Timeout, Self::Tls];

    /// Its name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ProxyProtocol => "proxy_protocol",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
        }
    }
}
