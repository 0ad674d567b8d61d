//! Problem documents (RFC 9457): the response to a refused or failed request.

use bytes::Bytes;
use http::Method;
use smallvec::SmallVec;
use tidegate_http1::Fields;
use tidegate_throttle::POLICY;
use tidegate_upstream::{UpstreamError, retry_seconds};

use super::{LimitReport, LocalReply, SUPPORTED_METHODS, retry_after, throttle_retry_after};
use crate::error::GatewayError;

const PROBLEM: &str = "application/problem+json";
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const BLOCKED: &str = "urn:tidegate:problem:blocked";
const UPSTREAMS_DOWN: &str = "urn:tidegate:problem:upstreams-down";
const OVERLOADED: &str = "urn:tidegate:problem:overloaded";
const STORE_UNAVAILABLE: &str = "urn:tidegate:problem:store-unavailable";
/// The header with the priority of a request that no target had room for.
const PRIORITY_HEADER: &str = "x-tidegate-priority";
/// Initial capacity of a document, in bytes: one allocation is enough for most.
const CAPACITY: usize = 320;

/// The response to a refused or failed request. `limits` are the limits of the request.
pub fn problem<'a>(
    error: &GatewayError,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
    request_id: &str,
) -> LocalReply {
    let mut fields = Fields::new();
    let status = error.status();
    let retry_after = refused_retry_after(error, limits.clone());
    let mut json = Json(Vec::with_capacity(CAPACITY));
    match error {
        GatewayError::LimitExceeded => {
            match RefusedBy::of(limits.clone()) {
                RefusedBy::Quota => {
                    json.begin(QUOTA_EXCEEDED, "Quota exceeded", status.as_u16());
                }
                RefusedBy::Block => json.begin(BLOCKED, "Blocked", status.as_u16()),
            }
            json.refusal(limits, retry_after);
        }
        GatewayError::TooManyFailures(blocked) => {
            json.begin(QUOTA_EXCEEDED, "Quota exceeded", status.as_u16());
            json.member("detail", &error.detail());
            json.raw(",\"violated-policies\":[");
            json.string(blocked.limit.name());
            json.raw("]");
            json.retry_after(retry_after);
        }
        GatewayError::Throttled(denied) => {
            json.begin(REDUCED_CAPACITY, "Temporary reduced capacity", status.as_u16());
            json.member("detail", &error.detail());
            json.raw(",\"violated-policies\":[");
            json.string(POLICY);
            json.raw("]");
            json.retry_after(retry_after);
            if let Some(waiting) = &denied.waiting {
                json.raw(",\"place\":");
                json.number(waiting.place);
                json.raw(",\"expected-wait\":");
                json.number(waiting.expected_wait.as_whole_secs());
            }
        }
        GatewayError::StoreUnavailable => {
            json.begin(STORE_UNAVAILABLE, "Store unavailable", status.as_u16());
            json.member("detail", &error.detail());
            json.retry_after(retry_after);
        }
        GatewayError::Upstream(UpstreamError::Down { .. }) => {
            json.begin(UPSTREAMS_DOWN, "Upstreams down", status.as_u16());
            json.member("detail", &error.detail());
            json.retry_after(retry_after);
        }
        GatewayError::ClientOverloaded
        | GatewayError::Upstream(UpstreamError::Overloaded(_) | UpstreamError::Shortage(_)) => {
            json.begin(OVERLOADED, "Overloaded", status.as_u16());
            json.member("detail", &error.detail());
            json.retry_after(retry_after);
            if let GatewayError::Upstream(UpstreamError::Overloaded(priority)) = error {
                json.raw(",\"priority\":");
                json.number(priority.number().into());
            }
            push_priority(error, &mut fields);
        }
        _ => {
            let title = status.canonical_reason().unwrap_or("Error");
            json.begin("about:blank", title, status.as_u16());
            json.member("detail", &error.detail());
            json.retry_after(retry_after);
            if let Some(allow) = allow(error) {
                fields.push("allow", allow);
            }
            push_challenges(error, &mut fields);
        }
    }
    if let Some(seconds) = retry_after {
        fields.push_number("retry-after", seconds);
    }
    fields.push("content-type", PROBLEM);
    LocalReply { status, fields, body: json.end(request_id) }
}

/// `Retry-After` for a refused or failed request, in seconds; `None` if it has none.
pub(super) fn refused_retry_after<'a>(
    error: &GatewayError,
    limits: impl Iterator<Item = LimitReport<'a>>,
) -> Option<u64> {
    match error {
        GatewayError::LimitExceeded => retry_after(limits),
        GatewayError::Throttled(denied) => Some(throttle_retry_after(denied)),
        GatewayError::TooManyFailures(blocked) => Some(blocked.left.as_whole_secs()),
        GatewayError::Upstream(UpstreamError::Down { retry_after }) => {
            Some(retry_seconds(*retry_after))
        }
        GatewayError::StoreUnavailable
        | GatewayError::DelayTimeout
        | GatewayError::ClientOverloaded
        | GatewayError::CannotAuthenticate(_)
        | GatewayError::Upstream(UpstreamError::Overloaded(_) | UpstreamError::Shortage(_)) => {
            Some(1)
        }
        _ => None,
    }
}

/// Adds the priority of a request that no target had room for.
pub(super) fn push_priority(error: &GatewayError, fields: &mut Fields) {
    if let GatewayError::Upstream(UpstreamError::Overloaded(priority)) = error {
        fields.push_number(PRIORITY_HEADER, priority.number().into());
    }
}

/// Adds the challenges of a 401, which it must have (RFC 9110, 15.5.2), or that of a token without
/// a scope.
pub(super) fn push_challenges(error: &GatewayError, fields: &mut Fields) {
    let challenges = match error {
        GatewayError::Unauthenticated(failed) => &*failed.refused.challenges,
        GatewayError::MissingClaims(missing) => missing.challenge.as_slice(),
        _ => &[],
    };
    for challenge in challenges {
        fields.push("www-authenticate", challenge.as_bytes());
    }
}

/// The names of the limits that refused, each once.
pub(super) fn refused_limits<'a>(
    limits: impl Iterator<Item = LimitReport<'a>>,
) -> SmallVec<[&'a str; 4]> {
    let mut names = SmallVec::new();
    for name in limits.filter_map(LimitReport::refusal).map(|refusal| refusal.limit.name()) {
        // A limit that refuses under several keys is listed once.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What refused a request.
#[derive(Clone, Copy)]
pub(super) enum RefusedBy {
    /// The quotas of limits.
    Quota,
    /// The block of a limit, which is in force also after this request.
    Block,
}

impl RefusedBy {
    /// What refused the request with these limits.
    pub(super) fn of<'a>(limits: impl Iterator<Item = LimitReport<'a>>) -> Self {
        let mut refusals = limits.filter_map(LimitReport::refusal);
        let is_blocked = refusals.any(|refusal| refusal.decided.block.until().is_some());
        if is_blocked { Self::Block } else { Self::Quota }
    }

    /// What it did, after the names of the limits.
    fn verb(self) -> &'static str {
        match self {
            Self::Quota => " exceeded",
            Self::Block => " exceeded too often; this caller is blocked",
        }
    }
}

/// Describes the limits that refused: passes the text to `push` in pieces.
pub(super) fn describe_refusal(
    names: &[&str],
    refused_by: RefusedBy,
    retry_after: Option<u64>,
    mut push: impl FnMut(&str),
) {
    for (index, name) in names.iter().enumerate() {
        push(if index == 0 { "" } else { ", " });
        push(name);
    }
    push(refused_by.verb());
    match retry_after {
        Some(seconds) => {
            push("; retry in ");
            push(itoa::Buffer::new().format(seconds));
            push(" s");
        }
        None => push("; the request costs more than the quota; retrying will not help"),
    }
}

/// The value of `Allow`, which a 405 must have (RFC 9110, 15.5.6).
pub(super) fn allow(error: &GatewayError) -> Option<String> {
    match error {
        GatewayError::MethodNotAllowed(methods) => {
            let names: Vec<_> = methods.iter().map(Method::as_str).collect();
            Some(names.join(", "))
        }
        GatewayError::MethodNotSupported(_) => Some(SUPPORTED_METHODS.to_owned()),
        _ => None,
    }
}

/// A JSON writer for problem documents. Hand-written: under a flood most responses are refusals,
/// and `serde_json` took a fifth of the time of each.
struct Json(Vec<u8>);

impl Json {
    /// Begins a document. `kind` and `title` are constants without characters that JSON escapes.
    fn begin(&mut self, kind: &'static str, title: &'static str, status: u16) {
        self.raw("{\"type\":\"");
        self.raw(kind);
        self.raw("\",\"title\":\"");
        self.raw(title);
        self.raw("\",\"status\":");
        self.number(u64::from(status));
    }

    fn refusal<'a>(
        &mut self,
        limits: impl Iterator<Item = LimitReport<'a>> + Clone,
        retry_after: Option<u64>,
    ) {
        let refused_by = RefusedBy::of(limits.clone());
        let names = refused_limits(limits);
        // A limit's name has no characters that JSON escapes.
        self.raw(",\"detail\":\"");
        describe_refusal(&names, refused_by, retry_after, |piece| self.raw(piece));
        self.raw("\",\"violated-policies\":[");
        for (index, name) in names.iter().enumerate() {
            self.raw(if index == 0 { "\"" } else { ",\"" });
            self.raw(name);
            self.raw("\"");
        }
        self.raw("]");
        self.retry_after(retry_after);
    }

    fn retry_after(&mut self, seconds: Option<u64>) {
        if let Some(seconds) = seconds {
            self.raw(",\"retry-after\":");
            self.number(seconds);
        }
    }

    fn end(mut self, request_id: &str) -> Bytes {
        self.member("request-id", request_id);
        self.raw("}\n");
        Bytes::from(self.0)
    }

    fn member(&mut self, name: &str, value: &str) {
        self.raw(",\"");
        self.raw(name);
        self.raw("\":");
        self.string(value);
    }

    fn string(&mut self, text: &str) {
        let is_special = |byte: u8| byte < 0x20 || matches!(byte, b'"' | b'\\');
        // `fold` instead of `any`: without an early exit the loop is vectorized.
        let special = text.bytes().fold(false, |found, byte| found | is_special(byte));
        if special {
            // Writing a string to a `Vec` cannot fail.
            let _ = serde_json::to_writer(&mut self.0, text);
        } else {
            self.raw("\"");
            self.raw(text);
            self.raw("\"");
        }
    }

    fn number(&mut self, number: u64) {
        self.raw(itoa::Buffer::new().format(number));
    }

    fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_request_id_gives_valid_json() {
        for id in ["0123abcd", "a\"b\\c", "\u{1}\n", "\u{e9}\u{1f30a}", ""] {
            let reply = problem(&GatewayError::NoRoute, std::iter::empty(), id);
            let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!(body["request-id"], id);
            assert_eq!((&body["status"], &body["title"]), (&404.into(), &"Not Found".into()));
            assert_eq!(body["detail"], *GatewayError::NoRoute.detail());
        }
    }

    #[test]
    fn a_405_has_allow_and_content_type_only() {
        let methods = vec![Method::GET, Method::HEAD];
        let reply = problem(&GatewayError::MethodNotAllowed(methods), std::iter::empty(), "id");
        assert_eq!(reply.fields.len(), 2);
        assert_eq!(reply.fields.get("allow"), Some(&b"GET, HEAD"[..]));
    }
}
