//! Every way a request ends early, with its origin.

use http::{Method, StatusCode};

use crate::{
    framing::Fault, identity::Ambiguous, route::normalize::PathFault, snapshot::Uncountable,
    throttle::Turned, upstream::UpstreamError,
};

/// Why a request was not proxied, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The message's framing was refused.
    #[error("{0}")]
    Framing(Fault),
    /// The path has no normal form.
    #[error("{0}")]
    Path(PathFault),
    /// The request target names no host, or one that is malformed, or a scheme that is not http.
    #[error("the request target is malformed")]
    Target,
    /// A part that requests are counted by was sent twice.
    #[error("{0}")]
    Ambiguous(Ambiguous),
    /// A limit cannot count it.
    #[error("{0}")]
    Uncountable(Uncountable),
    /// An expectation other than `100-continue`.
    #[error("the expectation is not supported; expected 100-continue")]
    Expectation,
    /// `TRACE` or `CONNECT`.
    #[error("the method {0} is not served here")]
    MethodRefused(Method),
    /// It has passed this gateway before.
    #[error("the request has passed this gateway before: an upstream leads back to it")]
    Loop,
    /// No route has this host and path.
    #[error("no route matches this host and path")]
    NoRoute,
    /// The path exists for other methods.
    #[error("the path exists, but not for this method")]
    OtherMethods(Vec<Method>),
    /// The body is longer than the route allows.
    #[error("the request's body is longer than this route allows")]
    BodyTooLong,
    /// The body stopped coming.
    #[error("the request's body did not arrive in time")]
    BodyTimeout,
    /// The body's frame is malformed, or it ended early.
    #[error("the request's body is malformed")]
    BodyMalformed,
    /// A limit refused.
    #[error("a limit is exceeded")]
    Refused,
    /// The throttle lets only active users in, and this is not one.
    #[error("more users are active than can be served; those already active are served first")]
    Throttled(Box<Turned>),
    /// The request's time was over before its turn in a leaky bucket.
    #[error("the request's time was over before its turn came")]
    Late,
    /// The limits' store cannot be asked, and a limit's policy is to refuse then.
    #[error("the limit cannot be checked at the moment")]
    StoreUnavailable,
    /// The upstream gave no answer.
    #[error("{0}")]
    Upstream(UpstreamError),
}

/// Whose doing an early end was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Origin {
    /// What the client sent.
    Client,
    /// A limit.
    Limit,
    /// The throttle.
    Throttle,
    /// The store of the limits' counters.
    Store,
    /// The upstream.
    Upstream,
}

impl GatewayError {
    /// The status that tells a client of it.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Framing(fault) => fault.status(),
            Self::Path(_)
            | Self::Target
            | Self::Ambiguous(_)
            | Self::Uncountable(_)
            | Self::BodyMalformed => StatusCode::BAD_REQUEST,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::MethodRefused(_) | Self::OtherMethods(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::BodyTooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Refused | Self::Throttled(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::StoreUnavailable | Self::Late => StatusCode::SERVICE_UNAVAILABLE,
            Self::Upstream(UpstreamError::Timeout) => StatusCode::GATEWAY_TIMEOUT,
            Self::Upstream(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// Whose doing it was.
    pub fn origin(&self) -> Origin {
        match self {
            Self::Refused | Self::Late => Origin::Limit,
            Self::Throttled(_) => Origin::Throttle,
            Self::StoreUnavailable => Origin::Store,
            Self::Upstream(_) => Origin::Upstream,
            _ => Origin::Client,
        }
    }

    /// What a client is told; of an upstream's failure only that it failed.
    pub fn detail(&self) -> String {
        match self {
            Self::Upstream(UpstreamError::Timeout) => {
                "the upstream did not answer in time".to_owned()
            }
            Self::Upstream(UpstreamError::Connect(_)) => {
                "the upstream cannot be reached".to_owned()
            }
            Self::Upstream(UpstreamError::Failed(_)) => {
                "the upstream's answer broke off or was malformed".to_owned()
            }
            _ => self.to_string(),
        }
    }
}
