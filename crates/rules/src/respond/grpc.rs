//! gRPC responses to refused or failed requests: trailers-only responses with the status in
//! `grpc-status` and the text in `grpc-message` (gRPC over HTTP/2, "Responses").

use bytes::Bytes;
use http::StatusCode;
use tidegate_envoy::grpc::{GrpcError, GrpcStatus, MEDIA_TYPE, percent_encode};
use tidegate_http1::{Fields, FramingError};
use tidegate_upstream::UpstreamError;

use super::{
    LimitReport, LocalReply,
    problem::{
        RefusedBy, describe_refusal, push_challenges, push_priority, refused_limits,
        refused_retry_after,
    },
};
use crate::error::GatewayError;

/// The status for an error of the gateway.
fn status_of(error: &GatewayError) -> GrpcStatus {
    match error {
        GatewayError::LimitExceeded
        | GatewayError::Throttled(_)
        | GatewayError::TooManyFailures(_)
        | GatewayError::BodyTooLong(_) => GrpcStatus::ResourceExhausted,
        GatewayError::Upstream(UpstreamError::Timeout(_))
        | GatewayError::BodyTimeout
        | GatewayError::DelayTimeout
        | GatewayError::Framing(FramingError::HeadTimeout) => GrpcStatus::DeadlineExceeded,
        GatewayError::Upstream(_)
        | GatewayError::StoreUnavailable
        | GatewayError::ClientOverloaded
        | GatewayError::CannotAuthenticate(_)
        | GatewayError::Misdirected => GrpcStatus::Unavailable,
        GatewayError::Unauthenticated(_) => GrpcStatus::Unauthenticated,
        GatewayError::RefusedByService(reply) => status_of_service(reply.status),
        GatewayError::AccessDenied(_)
        | GatewayError::UntrustedAsker
        | GatewayError::MissingClaims(_)
        | GatewayError::ConsumerNotAllowed
        | GatewayError::PlanBlocked
        | GatewayError::OverrideBlocked => GrpcStatus::PermissionDenied,
        GatewayError::NoRoute
        | GatewayError::MethodNotAllowed(_)
        | GatewayError::MethodNotSupported(_) => GrpcStatus::Unimplemented,
        GatewayError::Path(_)
        | GatewayError::DestinationOutside(_)
        | GatewayError::MalformedTarget
        | GatewayError::Ambiguous(_)
        | GatewayError::Undescribed(_)
        | GatewayError::UnreadableCheck(_)
        | GatewayError::UnreadableCharge(_)
        | GatewayError::UnreadableBody(_)
        | GatewayError::UnsupportedExpectation => GrpcStatus::InvalidArgument,
        GatewayError::Framing(_)
        | GatewayError::Bug(_)
        | GatewayError::BodyIncomplete
        | GatewayError::LoopDetected => GrpcStatus::Internal,
    }
}

/// The status for a refusal by an authentication service.
fn status_of_service(status: StatusCode) -> GrpcStatus {
    match status.as_u16() {
        403 => GrpcStatus::PermissionDenied,
        429 => GrpcStatus::ResourceExhausted,
        500..=599 => GrpcStatus::Unavailable,
        // A redirect leads to a login.
        _ => GrpcStatus::Unauthenticated,
    }
}

/// The trailers-only response to a refused or failed gRPC request. `limits` are the limits of the
/// request.
///
/// The reply's status is the HTTP status of the error, for limits, log and metrics. The caller must
/// send [`GRPC_HTTP_STATUS`] instead.
pub fn grpc_refusal<'a>(
    error: &GatewayError,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
) -> LocalReply {
    let mut fields = Fields::new();
    fields.push("content-type", MEDIA_TYPE);
    fields.push_number("grpc-status", status_of(error) as u64);
    let retry_after = refused_retry_after(error, limits.clone());
    let message = match error {
        GatewayError::LimitExceeded => {
            let mut text = String::new();
            let refused_by = RefusedBy::of(limits.clone());
            let names = refused_limits(limits);
            describe_refusal(&names, refused_by, retry_after, |piece| text.push_str(piece));
            text
        }
        _ => error.detail().into_owned(),
    };
    fields.push("grpc-message", percent_encode(&message));
    if let Some(seconds) = retry_after {
        fields.push_number("retry-after", seconds);
    }
    push_challenges(error, &mut fields);
    push_priority(error, &mut fields);
    LocalReply { status: error.status(), fields, body: Bytes::new() }
}

/// The HTTP status of every gRPC response.
pub const GRPC_HTTP_STATUS: StatusCode = StatusCode::OK;

/// The trailers-only response to a call to a service of the gateway itself that failed. Like that
/// of [`grpc_refusal`], its status is an HTTP status for log and metrics.
pub fn grpc_failure(error: &GrpcError) -> LocalReply {
    let mut fields = Fields::new();
    fields.push("content-type", MEDIA_TYPE);
    error.write(&mut fields);
    LocalReply { status: http_status(error.status), fields, body: Bytes::new() }
}

/// The HTTP status that stands for a gRPC status in log and metrics.
fn http_status(status: GrpcStatus) -> StatusCode {
    match status {
        GrpcStatus::Ok => StatusCode::OK,
        GrpcStatus::Cancelled | GrpcStatus::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        GrpcStatus::InvalidArgument | GrpcStatus::Unknown => StatusCode::BAD_REQUEST,
        GrpcStatus::NotFound | GrpcStatus::Unimplemented => StatusCode::NOT_FOUND,
        GrpcStatus::PermissionDenied => StatusCode::FORBIDDEN,
        GrpcStatus::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        GrpcStatus::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        GrpcStatus::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        GrpcStatus::Unauthenticated => StatusCode::UNAUTHORIZED,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use http::Method;
    use tidegate_base::time::Millis;
    use tidegate_http1::DescriptionError;
    use tidegate_system::clock::StoreTime;
    use tidegate_throttle::{AdmissionDenied, DenyReason};
    use tidegate_upstream::PassedTimeout;

    use super::*;
    use crate::error::DeniedAddress;

    fn text<'f>(fields: &'f Fields, name: &str) -> Option<&'f str> {
        fields.get(name).map(|value| std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn gateway_errors_have_a_status_of_grpc() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        for (error, status, http) in [
            (GatewayError::LimitExceeded, "8", 429),
            (GatewayError::BodyTooLong(5), "8", 413),
            (
                GatewayError::Upstream(UpstreamError::Timeout(PassedTimeout::Request(None))),
                "4",
                504,
            ),
            (GatewayError::BodyTimeout, "4", 408),
            (GatewayError::DelayTimeout, "4", 503),
            (GatewayError::Upstream(UpstreamError::Connect(refused())), "14", 502),
            (GatewayError::Upstream(UpstreamError::Failed(refused())), "14", 502),
            (GatewayError::StoreUnavailable, "14", 503),
            (GatewayError::ClientOverloaded, "14", 503),
            (GatewayError::Upstream(UpstreamError::Shortage(refused())), "14", 503),
            (GatewayError::Misdirected, "14", 421),
            (GatewayError::Bug("a test"), "13", 500),
            (GatewayError::AccessDenied(DeniedAddress::NotAllowed), "7", 403),
            (GatewayError::UntrustedAsker, "7", 403),
            (GatewayError::Undescribed(DescriptionError::Missing), "3", 400),
            (GatewayError::ConsumerNotAllowed, "7", 403),
            (GatewayError::PlanBlocked, "7", 403),
            (GatewayError::OverrideBlocked, "7", 403),
            (GatewayError::NoRoute, "12", 404),
            (GatewayError::MethodNotAllowed(vec![Method::GET]), "12", 405),
            (GatewayError::MethodNotSupported(Method::TRACE), "12", 405),
            (GatewayError::MalformedTarget, "3", 400),
            (GatewayError::UnsupportedExpectation, "3", 417),
            (GatewayError::Framing(FramingError::LengthMalformed), "13", 400),
            (GatewayError::BodyIncomplete, "13", 400),
            (GatewayError::LoopDetected, "13", 508),
        ] {
            let reply = grpc_refusal(&error, std::iter::empty());
            assert_eq!(text(&reply.fields, "grpc-status"), Some(status), "{error}");
            assert_eq!(text(&reply.fields, "content-type"), Some("application/grpc"));
            assert_eq!((reply.status.as_u16(), reply.body.len()), (http, 0), "{error}");
        }
    }

    #[test]
    fn the_message_says_what_a_problem_document_says() {
        let reply = grpc_refusal(&GatewayError::NoRoute, std::iter::empty());
        let message = text(&reply.fields, "grpc-message").unwrap();
        assert_eq!(message, GatewayError::NoRoute.detail());
        assert!(!reply.fields.contains("retry-after") && !reply.fields.contains("allow"));
        let reply = grpc_refusal(&GatewayError::StoreUnavailable, std::iter::empty());
        assert_eq!(text(&reply.fields, "retry-after"), Some("1"));
        let denied = AdmissionDenied {
            reason: DenyReason::Unknown,
            max_active: 10,
            active: 12,
            memory: Millis::from_mins(1),
            now: StoreTime::from_unix_ms(1_000),
            reset_at: StoreTime::from_unix_ms(3_500),
            waiting: None,
        };
        let throttled = GatewayError::Throttled(Box::new(denied));
        let reply = grpc_refusal(&throttled, std::iter::empty());
        assert_eq!(text(&reply.fields, "grpc-status"), Some("8"));
        assert_eq!(text(&reply.fields, "retry-after"), Some("3"));
    }
}
