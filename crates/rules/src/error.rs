//! [`GatewayError`]: every reason why the gateway answers a request itself instead of the upstream,
//! with the status and the text that the client receives.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{Method, StatusCode};
use tidegate_access::auth::{Unauthenticated, jwt::MissingClaims};
use tidegate_access::consumer_store::LookupFailed;
use tidegate_base::time::Millis;
use tidegate_charge::Limit;
use tidegate_envoy::grpc::GrpcError;
use tidegate_http1::{DescriptionError, Fields, FramingError};
use tidegate_identity::AmbiguousValue;
use tidegate_route::normalize::PathError;
use tidegate_throttle::AdmissionDenied;
use tidegate_upstream::UpstreamError;
use tidegate_usage::UnreadableBody;

use crate::snapshot::ChargePlanError;

/// The text for a caller that the throttle refuses.
const THROTTLED: &str =
    "more users are active than can be served; those already active are served first";

/// Why a request was refused or failed. The text for clients is [`Self::detail`]: `Display` of
/// [`Self::Upstream`] may contain internal addresses.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The framing of the message is malformed.
    #[error("{0}")]
    Framing(FramingError),
    /// The path cannot be normalized.
    #[error("{0}")]
    Path(PathError),
    /// `Destination` names a resource outside of the prefix that the route strips.
    #[error(
        "`Destination` is outside of {0}, the part of this site that the upstream serves; expected a URL below it"
    )]
    DestinationOutside(Box<str>),
    /// A redirect needs the request's host, but the request has none. In `replay`, also a malformed
    /// request.
    #[error("the request target is malformed")]
    MalformedTarget,
    /// A value that identifies the caller was sent more than once or has no canonical form.
    #[error("{0}")]
    Ambiguous(AmbiguousValue),
    /// A limit's key or cost cannot be read from the request.
    #[error("{0}")]
    UnreadableCharge(ChargePlanError),
    /// An `Expect` value other than `100-continue`.
    #[error("this `Expect` is not supported; send `100-continue`, or no `Expect`")]
    UnsupportedExpectation,
    /// `TRACE` or `CONNECT`.
    #[error("the method {0} is not supported")]
    MethodNotSupported(Method),
    /// `Via` shows that the request has passed this gateway before.
    #[error("the request has passed this gateway before: an upstream leads back to it")]
    LoopDetected,
    /// The connection's certificate is not valid for the requested host, or the host requires a
    /// client certificate that the connection was opened without.
    #[error(
        "the certificate of this connection is not for the requested host; expected a connection to that host"
    )]
    Misdirected,
    /// No route matches the host and path.
    #[error("no route matches this host and path")]
    NoRoute,
    /// The path is served, but only for these methods.
    #[error("the path exists, but not for this method")]
    MethodNotAllowed(Vec<Method>),
    /// The route's `allow` and `deny` do not admit the client's address.
    #[error("{0}")]
    AccessDenied(DeniedAddress),
    /// A peer that is no trusted proxy asks for a decision.
    #[error(
        "only proxies in `client.trusted_proxies` may ask for decisions, and this request comes from another address"
    )]
    UntrustedAsker,
    /// A trusted proxy asks for a decision, but does not describe the request.
    #[error("{0}")]
    Undescribed(DescriptionError),
    /// The message by which Envoy asks for a decision cannot be read.
    #[error("{0}")]
    UnreadableCheck(GrpcError),
    /// The request has no credentials, or wrong ones.
    #[error("{}", .0.refused)]
    Unauthenticated(Box<FailedAuthentication>),
    /// What decides who sends the request cannot be asked.
    #[error("{0}")]
    CannotAuthenticate(AuthOutage),
    /// The service that authenticates requests does not admit this one.
    #[error("the authentication service refused the request")]
    RefusedByService(Box<ServiceReply>),
    /// The token is valid, but lacks a claim that is required.
    #[error("{}", .0.detail)]
    MissingClaims(Arc<MissingClaims>),
    /// The route does not admit the consumer.
    #[error("this consumer is not allowed to use this route")]
    ConsumerNotAllowed,
    /// The consumer's plan blocks a limit of the route.
    #[error("the plan of this consumer does not include this request")]
    PlanBlocked,
    /// An override blocks a limit of the route for the caller.
    #[error("an operator has blocked this caller")]
    OverrideBlocked,
    /// Too many requests from the client's address had wrong credentials.
    #[error("too many requests from this address had wrong credentials; retry in {} s", .0.left.as_whole_secs())]
    TooManyFailures(Box<BlockedAddress>),
    /// The body is longer than the route allows.
    #[error("the request's body is longer than {0} bytes, the maximum of this route")]
    BodyTooLong(u64),
    /// The body that limits read cannot be read.
    #[error("{0}")]
    UnreadableBody(UnreadableBody),
    /// The body did not arrive in time.
    #[error(
        "the request's body did not arrive in time: it paused for http.body_timeout, or was slower than the minimum rate"
    )]
    BodyTimeout,
    /// The body ended early.
    #[error("the request's body ended early")]
    BodyIncomplete,
    /// An enforced limit refused the request.
    #[error("a limit is exceeded")]
    LimitExceeded,
    /// The throttle admits only active users, and this caller is not one.
    #[error("{THROTTLED}")]
    Throttled(Box<AdmissionDenied>),
    /// `request_timeout` passed while the request was delayed by a leaky bucket.
    #[error("the request timed out while it waited for its slot in a leaky bucket")]
    DelayTimeout,
    /// The counter store is unavailable, and a limit's failure policy is to refuse.
    #[error("the limit cannot be checked: its counter store is unavailable")]
    StoreUnavailable,
    /// The client's address has the maximum number of requests in flight.
    #[error("this address has too many requests in flight; send more when some have ended")]
    ClientOverloaded,
    /// The upstream gave no usable response.
    #[error("{0}")]
    Upstream(UpstreamError),
    /// The gateway contradicts itself: a bug. The text says where.
    #[error("the gateway has a bug: {0}; the request was not forwarded")]
    Bug(&'static str),
}

/// Why `allow` and `deny` of a route do not admit a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DeniedAddress {
    /// They do not admit the client's address.
    #[error("this client's address is not allowed to use this route")]
    NotAllowed,
    /// The request comes from a trusted proxy that names no client.
    #[error(
        "the trusted proxy in front of this gateway names no client address, and this route admits only some; expected \
         X-Forwarded-For or Forwarded from the proxy"
    )]
    Unnamed,
}

/// A request that is not authenticated.
#[derive(Debug)]
pub struct FailedAuthentication {
    /// What the client reads.
    pub refused: Arc<Unauthenticated>,
    /// The limit that counts the failure for the client's address; `None` if none does.
    pub counted_by: Option<Arc<Limit>>,
}

/// Why the gateway cannot find out who sends a request.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum AuthOutage {
    /// The service that decides gave no usable answer.
    #[error("the authentication service gave no usable answer")]
    Service,
    /// Too many passwords wait to be verified.
    #[error("too many passwords are being verified")]
    Passwords,
    /// The keys that verify the token are not known yet.
    #[error("the token cannot be verified: the keys of its issuer are not available yet")]
    Keys,
    /// The store of consumers cannot be read.
    #[error("the consumers cannot be read")]
    Store,
}

/// The answer of a service that does not admit a request, for the client.
#[derive(Debug)]
pub struct ServiceReply {
    /// The status.
    pub status: StatusCode,
    /// The header fields, without those of its connection.
    pub fields: Fields,
    /// The body; `None` if the client or the process already held too many bytes of such bodies.
    pub body: Option<Bytes>,
    /// The limit that counts it as a failure for the client's address; `None` if none does.
    pub counted_by: Option<Arc<Limit>>,
}

/// A client address with too many failures.
#[derive(Debug)]
pub struct BlockedAddress {
    /// The limit of failures.
    pub limit: Arc<Limit>,
    /// The time until it may retry: whole seconds, at least 1.
    pub left: Millis,
}

impl From<LookupFailed> for GatewayError {
    fn from(_: LookupFailed) -> Self {
        Self::CannotAuthenticate(AuthOutage::Store)
    }
}

impl GatewayError {
    /// The limit that counts wrong credentials for the client's address, if this error is about
    /// some.
    pub fn counted_by(&self) -> Option<&Arc<Limit>> {
        match self {
            Self::Unauthenticated(failed) => failed.counted_by.as_ref(),
            Self::RefusedByService(reply) => reply.counted_by.as_ref(),
            _ => None,
        }
    }

    /// The status of the response to the client.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Framing(error) => error.status(),
            Self::Undescribed(error) => error.status(),
            Self::Path(_)
            | Self::DestinationOutside(_)
            | Self::MalformedTarget
            | Self::Ambiguous(_)
            | Self::UnreadableCheck(_)
            | Self::UnreadableCharge(_)
            | Self::BodyIncomplete => StatusCode::BAD_REQUEST,
            Self::UnsupportedExpectation => StatusCode::EXPECTATION_FAILED,
            Self::MethodNotSupported(_) | Self::MethodNotAllowed(_) => {
                StatusCode::METHOD_NOT_ALLOWED
            }
            Self::LoopDetected => StatusCode::LOOP_DETECTED,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::RefusedByService(reply) => reply.status,
            Self::AccessDenied(_)
            | Self::UntrustedAsker
            | Self::MissingClaims(_)
            | Self::ConsumerNotAllowed
            | Self::PlanBlocked
            | Self::OverrideBlocked => StatusCode::FORBIDDEN,
            Self::UnreadableBody(error) => match error {
                UnreadableBody::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                UnreadableBody::Coded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
                _ => StatusCode::BAD_REQUEST,
            },
            Self::BodyTooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::LimitExceeded | Self::Throttled(_) | Self::TooManyFailures(_) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::StoreUnavailable
            | Self::DelayTimeout
            | Self::ClientOverloaded
            | Self::CannotAuthenticate(_)
            | Self::Upstream(
                UpstreamError::Down { .. }
                | UpstreamError::Overloaded(_)
                | UpstreamError::Shortage(_),
            ) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Bug(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Upstream(UpstreamError::Timeout(_)) => StatusCode::GATEWAY_TIMEOUT,
            Self::Upstream(UpstreamError::UpgradeUnsupported) => StatusCode::NOT_IMPLEMENTED,
            Self::Upstream(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// The text for the client. It hides the details of an upstream's failure, such as addresses.
    pub fn detail(&self) -> Cow<'static, str> {
        let text = match self {
            Self::Throttled(_) => THROTTLED,
            Self::Upstream(UpstreamError::Timeout(passed)) => {
                return format!("the upstream did not answer within {passed}").into();
            }
            Self::Upstream(UpstreamError::Connect(_)) => "the upstream cannot be reached",
            Self::Upstream(UpstreamError::Failed(_)) => {
                "the upstream's response broke off or was malformed"
            }
            Self::Upstream(UpstreamError::Shortage(_)) => {
                "the gateway is overloaded: it cannot open another connection to the upstream"
            }
            _ => return self.to_string().into(),
        };
        text.into()
    }
}
