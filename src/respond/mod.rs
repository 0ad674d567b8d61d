//! From outcomes to responses: rate-limit headers and problem documents, all from the one decision.

mod number;

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use self::number::{header_value, repeated};
use crate::{
    error::GatewayError,
    limit::{Decision, Millis, Verdict},
    snapshot::{RateHeaders, Route},
    upstream::{AnswerStream, Respond},
};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");
const DRAFT_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const DRAFT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const STORE_UNAVAILABLE: &str = "urn:tidegate:problem:store-unavailable";
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, X-RateLimit-Reset, \
     X-RateLimit-Resource, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id",
);

/// What an answer's body is made of.
pub enum Content {
    /// All of it, made here.
    Whole(Bytes),
    /// The upstream's, as it comes.
    Stream(AnswerStream),
}

/// Writes what the limits of `route` say into an answer's headers, replacing what the upstream wrote
/// under the same names. `names` are those of the route's limits, as values that this worker alone
/// counts references of. `cross_origin`: a browser asks for another site, and may read only what it
/// is told it may.
pub fn rate_headers(
    headers: &mut HeaderMap,
    route: &Route,
    names: &[HeaderValue],
    verdict: &Verdict,
    which: RateHeaders,
    cross_origin: bool,
) {
    let Some((index, tightest)) = tightest(verdict) else { return };
    if which.x_ratelimit {
        headers.insert(LIMIT, repeated(tightest.limit));
        headers.insert(REMAINING, header_value(tightest.remaining));
        headers.insert(USED, header_value(tightest.used));
        headers.insert(RESET, repeated(tightest.reset_at.div_ceil(1000)));
        headers.insert(RESOURCE, names[index].clone());
    }
    if which.draft_11 {
        draft_headers(headers, route, verdict);
    }
    if cross_origin && (which.x_ratelimit || which.draft_11) {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

/// The limit with the least left: of those that refuse, the one that does so longest.
fn tightest(verdict: &Verdict) -> Option<(usize, &Decision)> {
    let never = Millis::MAX;
    verdict.decisions.iter().enumerate().filter(|(_, decision)| decision.counted).min_by_key(
        |(_, decision)| {
            let retry_at = match decision {
                Decision { admitted: true, .. } => 0,
                Decision { retry_at, .. } => retry_at.unwrap_or(never),
            };
            (decision.admitted, never - retry_at, decision.remaining, never - decision.reset_at)
        },
    )
}

/// One item a limit, as the IETF's draft 11 has them.
fn draft_headers(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let (mut policy, mut state) = (String::new(), String::new());
    for (used, decision) in route.limits.iter().zip(&verdict.decisions) {
        if !decision.counted {
            continue;
        }
        let name = &used.limit.name;
        let window = used.limit.quota.window.div_ceil(1000);
        let until = decision.reset_at.saturating_sub(verdict.now).div_ceil(1000);
        let comma = if policy.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(policy, "{comma}\"{name}\";q={};w={window}", decision.limit);
        let _ = write!(state, "{comma}\"{name}\";r={};t={until}", decision.remaining);
    }
    for (name, value) in [(DRAFT_POLICY, policy), (DRAFT_LIMIT, state)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
}

/// The whole seconds that a refused client is asked to wait; `None` where no wait would help.
pub fn retry_after(verdict: &Verdict) -> Option<u64> {
    let refusing = verdict.decisions.iter().filter(|decision| !decision.admitted);
    refusing
        .map(|decision| decision.retry_at)
        .try_fold(0, |latest: Millis, retry_at| Some(latest.max(retry_at?)))
        .map(|retry_at| retry_at.saturating_sub(verdict.now).div_ceil(1000).max(1))
}

/// A problem document, RFC 9457.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    violated_policies: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    request_id: &'a str,
}

/// The answer to a request that ended early.
pub fn error(error: &GatewayError, route: Option<&Route>, request_id: &str) -> Response<Bytes> {
    let status = error.status();
    let mut problem = Problem {
        r#type: "about:blank",
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16(),
        detail: String::new(),
        violated_policies: None,
        retry_after: None,
        request_id,
    };
    let mut headers = HeaderMap::new();
    match (error, route) {
        (GatewayError::Refused(verdict), Some(route)) => {
            refusal(&mut problem, route, verdict);
            if let Some(seconds) = problem.retry_after {
                headers.insert(header::RETRY_AFTER, header_value(seconds));
            }
        }
        (GatewayError::StoreUnavailable, _) => {
            problem.r#type = STORE_UNAVAILABLE;
            problem.title = "Store unavailable";
            problem.detail = error.detail();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(1));
        }
        _ => {
            problem.detail = error.detail();
            headers.extend(allow(error).map(|allow| (header::ALLOW, allow)));
        }
    }
    headers.insert(header::CONTENT_TYPE, PROBLEM);
    // Strings and numbers always have a JSON form.
    let mut body = serde_json::to_vec(&problem).unwrap_or_default();
    body.push(b'\n');
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The methods that a path is served for, where the request's is not among them.
fn allow(error: &GatewayError) -> Option<HeaderValue> {
    match error {
        GatewayError::OtherMethods(methods) => {
            let names: Vec<_> = methods.iter().map(http::Method::as_str).collect();
            HeaderValue::try_from(names.join(", ")).ok()
        }
        GatewayError::MethodRefused(_) => Some(HeaderValue::from_static("")),
        _ => None,
    }
}

fn refusal<'a>(problem: &mut Problem<'a>, route: &'a Route, verdict: &Verdict) {
    let refusing = route.limits.iter().zip(&verdict.decisions).filter(|(_, d)| !d.admitted);
    let names: Vec<&str> = refusing.map(|(used, _)| &*used.limit.name).collect();
    problem.r#type = QUOTA_EXCEEDED;
    problem.title = "Quota exceeded";
    problem.retry_after = retry_after(verdict);
    let wait = match problem.retry_after {
        Some(seconds) => format!("retry in {seconds} s"),
        None => "the request costs more than the quota, so no wait would help".to_owned(),
    };
    problem.detail = format!("{} exceeded; {wait}", names.join(", "));
    problem.violated_policies = Some(names);
}

/// The answer of an upstream that is the gateway itself.
pub fn fixed(answer: &Respond) -> Response<Bytes> {
    let mut response = Response::new(answer.body.clone());
    *response.status_mut() = answer.status;
    if !(answer.body.is_empty() || answer.status == StatusCode::NO_CONTENT) {
        response.headers_mut().insert(header::CONTENT_TYPE, answer.content_type.clone());
    }
    response
}
