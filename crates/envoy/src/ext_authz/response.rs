//! A decision as a response to a check.

use http::StatusCode;
use tidegate_http1::{Fields, dashed_name};

use super::messages::{
    CheckHeaderOption, CheckResponse, CheckStatus, CheckVerdict, DeniedHttpResponse, DeniedStatus,
    OkHttpResponse,
};
use crate::grpc::GrpcStatus;

/// The fields by which the gateway says who sends a request.
const IDENTITY: [&str; 2] = ["x-consumer-name", "x-consumer-plan"];

/// A decision on a check.
#[derive(Clone, Copy, Debug)]
pub struct CheckDecision<'d> {
    /// Its status.
    pub status: StatusCode,
    /// Its header fields.
    pub fields: &'d Fields,
    /// Its body.
    pub body: &'d [u8],
}

impl CheckDecision<'_> {
    /// The response to the check about a request with the fields `asked`. `copied` are the names of
    /// the fields that only a service may set, in lower case: a client's own are removed, as is its
    /// `X-Consumer-*`.
    pub fn response(&self, asked: &Fields, copied: &[&str]) -> CheckResponse {
        if !self.status.is_success() {
            return self.denial();
        }
        let own: Vec<&str> = IDENTITY.iter().chain(copied).copied().collect();
        let absent = own.iter().filter(|name| !self.fields.contains(*name));
        let absent = absent.map(|name| (*name).to_owned());
        let admitted = OkHttpResponse {
            headers: self.replacing(|name| !is_for_client(name)),
            headers_to_remove: absent.chain(aliases_of(&own, asked)).collect(),
            response_headers_to_add: self.replacing(is_for_client),
        };
        let status = Some(CheckStatus { code: GrpcStatus::Ok as i32 });
        CheckResponse { status, verdict: Some(CheckVerdict::Ok(admitted)) }
    }

    fn replacing(&self, is_wanted: fn(&[u8]) -> bool) -> Vec<CheckHeaderOption> {
        // Envoy sends no empty fields.
        let all = self.fields.iter().filter(|(_, value)| !value.is_empty());
        let wanted = all.filter(|(name, _)| is_wanted(name));
        wanted.map(|(name, value)| CheckHeaderOption::replacing(name, value)).collect()
    }

    fn denial(&self) -> CheckResponse {
        let Self { status, body, .. } = *self;
        let code = match status {
            StatusCode::UNAUTHORIZED => GrpcStatus::Unauthenticated,
            StatusCode::TOO_MANY_REQUESTS => GrpcStatus::ResourceExhausted,
            _ => GrpcStatus::PermissionDenied,
        };
        let denied = DeniedHttpResponse {
            status: Some(DeniedStatus { code: known_status(status).as_u16().into() }),
            headers: self.replacing(|_| true),
            body: String::from_utf8_lossy(body).into_owned(),
        };
        let status = Some(CheckStatus { code: code as i32 });
        CheckResponse { status, verdict: Some(CheckVerdict::Denied(denied)) }
    }
}

/// The names in `asked`, in lower case, that are other spellings of `own`: CGI, WSGI and PHP
/// applications read `X_Consumer_Name` and `X.Consumer.Name` as `X-Consumer-Name`.
fn aliases_of(own: &[&str], asked: &Fields) -> Vec<String> {
    let dashed: Vec<_> = own.iter().map(|name| dashed_name(name.as_bytes())).collect();
    let names = asked.iter().map(|(name, _)| name.to_ascii_lowercase());
    let aliases = names.filter(|name| {
        let is_own = own.iter().any(|own| own.as_bytes() == name);
        !is_own && dashed.contains(&dashed_name(name))
    });
    aliases.map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
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
        let asked = ["X_Consumer_Name", "X.Consumer~Name", "x_org", "x_other", "x-user"];
        let asked: Fields = asked.into_iter().map(|name| (name, "forged")).collect();
        let decision = CheckDecision { status: StatusCode::OK, fields: &fields, body: b"" };
        let response = decision.response(&asked, &["x-user", "x-org"]);
        assert_eq!(response.status, Some(CheckStatus { code: 0 }));
        let Some(CheckVerdict::Ok(admitted)) = response.verdict else { panic!("denied") };
        assert_eq!(names(&admitted.headers), ["x-consumer-name", "x-user"]);
        assert_eq!(
            names(&admitted.response_headers_to_add),
            ["x-ratelimit-limit", "RateLimit-Policy"]
        );
        let removed = ["x-consumer-plan", "x-org", "x_consumer_name", "x.consumer~name", "x_org"];
        assert_eq!(admitted.headers_to_remove, removed);
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
            let fields = [("retry-after", "7"), ("allow", "")].into_iter().collect();
            let status = StatusCode::from_u16(status).unwrap();
            let decision = CheckDecision { status, fields: &fields, body: b"no" };
            let response = decision.response(&Fields::new(), &[]);
            assert_eq!(response.status, Some(CheckStatus { code }));
            let Some(CheckVerdict::Denied(denied)) = response.verdict else { panic!("admitted") };
            assert_eq!((denied.status, &*denied.body), (Some(DeniedStatus { code: sent }), "no"));
            assert_eq!(names(&denied.headers), ["retry-after"]);
        }
    }
}
