//! A decision as a response to a check.

use http::StatusCode;

use super::messages::{
    CheckHeaderOption, CheckResponse, CheckStatus, CheckVerdict, DeniedHttpResponse, DeniedStatus,
    OkHttpResponse,
};
use crate::{grpc::GrpcStatus, http1::Fields};

/// The fields by which the gateway says who sends a request: a client's own are removed.
const IDENTITY: [&str; 2] = ["x-consumer-name", "x-consumer-plan"];

/// The response to a check that was decided with this status, these fields and this body.
pub fn check_response(status: StatusCode, fields: &Fields, body: &[u8]) -> CheckResponse {
    let replacing = |wanted: fn(&[u8]) -> bool| -> Vec<CheckHeaderOption> {
        let wanted = fields.iter().filter(move |(name, _)| wanted(name));
        wanted.map(|(name, value)| CheckHeaderOption::replacing(name, value)).collect()
    };
    if status.is_success() {
        let absent = IDENTITY.iter().filter(|name| !fields.contains(*name));
        let admitted = OkHttpResponse {
            headers: replacing(|name| !is_for_client(name)),
            headers_to_remove: absent.map(|name| (*name).to_owned()).collect(),
            response_headers_to_add: replacing(is_for_client),
        };
        let status = Some(CheckStatus { code: GrpcStatus::Ok as i32 });
        return CheckResponse { status, verdict: Some(CheckVerdict::Ok(admitted)) };
    }
    let code = match status {
        StatusCode::UNAUTHORIZED => GrpcStatus::Unauthenticated,
        StatusCode::TOO_MANY_REQUESTS => GrpcStatus::ResourceExhausted,
        _ => GrpcStatus::PermissionDenied,
    };
    let denied = DeniedHttpResponse {
        status: Some(DeniedStatus { code: known_status(status).as_u16().into() }),
        headers: replacing(|_| true),
        body: String::from_utf8_lossy(body).into_owned(),
    };
    let status = Some(CheckStatus { code: code as i32 });
    CheckResponse { status, verdict: Some(CheckVerdict::Denied(denied)) }
}

/// True for a field of an admission that the client gets, and not the server.
fn is_for_client(name: &[u8]) -> bool {
    let is_one = |prefix: &str| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    ["x-ratelimit-", "ratelimit", "access-control-"].into_iter().any(is_one)
}

/// `status`, or 403 if Envoy does not know it: `envoy.type.v3.StatusCode`.
fn known_status(status: StatusCode) -> StatusCode {
    match status.as_u16() {
        300..=305
        | 307..=308
        | 400..=417
        | 421..=424
        | 426
        | 428..=429
        | 431
        | 500..=508
        | 510..=511 => status,
        _ => StatusCode::FORBIDDEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &[CheckHeaderOption]) -> Vec<&str> {
        options.iter().map(|option| &*option.header.as_ref().unwrap().key).collect()
    }

    #[test]
    fn an_admission_has_fields_for_both_sides() {
        let fields: Fields = [
            ("x-consumer-name", "acme"),
            ("x-user", "7"),
            ("x-ratelimit-limit", "5"),
            ("RateLimit-Policy", "q"),
        ]
        .into_iter()
        .collect();
        let response = check_response(StatusCode::OK, &fields, b"");
        assert_eq!(response.status, Some(CheckStatus { code: 0 }));
        let Some(CheckVerdict::Ok(admitted)) = response.verdict else { panic!("denied") };
        assert_eq!(names(&admitted.headers), ["x-consumer-name", "x-user"]);
        assert_eq!(
            names(&admitted.response_headers_to_add),
            ["x-ratelimit-limit", "RateLimit-Policy"]
        );
        assert_eq!(admitted.headers_to_remove, ["x-consumer-plan"]);
    }

    #[test]
    fn a_refusal_is_for_the_client() {
        for (status, sent, code) in [
            (429, 429, 8),
            (401, 401, 16),
            (403, 403, 7),
            (503, 503, 7),
            (418, 403, 7),
            (599, 403, 7),
        ] {
            let fields = [("retry-after", "7")].into_iter().collect();
            let status = StatusCode::from_u16(status).unwrap();
            let response = check_response(status, &fields, b"no");
            assert_eq!(response.status, Some(CheckStatus { code }));
            let Some(CheckVerdict::Denied(denied)) = response.verdict else { panic!("admitted") };
            assert_eq!((denied.status, &*denied.body), (Some(DeniedStatus { code: sent }), "no"));
            assert_eq!(names(&denied.headers), ["retry-after"]);
        }
    }
}
