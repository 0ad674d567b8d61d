//! Builds responses and header fields from decisions. Pure: no clock, no I/O.
//!
//! The headers, problem document and `Retry-After` of a response come from the same decisions, so
//! they agree.
//!
//! | file | content |
//! |---|---|
//! | this file | the `X-RateLimit-*` and `RateLimit*` headers, `Retry-After`, fixed responses |
//! | `limit_report` | [`LimitReport`]: one limit of a request and its outcome |
//! | `problem` | the problem document (RFC 9457) for a refused or failed request |
//! | `api_error` | [`ApiError`]: the members that clients of an API read, and errors of JSON-RPC |
//! | `accept`, `page` | the choice between a problem document and a page; the page |
//! | `grpc` | the gRPC response to a refused or failed request |
//! | `cors` | the headers of cross-origin resource sharing, and preflights |
//! | `quota_status` | the JSON of a route that reports quotas |
//!
//! ```
//! use tidegate_rules::error::GatewayError;
//! use tidegate_rules::respond;
//!
//! let reply = respond::problem(&GatewayError::NoRoute, std::iter::empty(), "request-1");
//! assert_eq!(reply.status, 404);
//! assert_eq!(reply.fields.get("content-type"), Some(&b"application/problem+json"[..]));
//! ```

mod accept;
mod api_error;
mod cors;
mod grpc;
mod limit_report;
mod page;
mod problem;
mod quota_status;

use std::{cmp::Reverse, fmt::Write};

use bytes::Bytes;
use http::StatusCode;

pub use self::{
    accept::ErrorForm,
    api_error::ApiError,
    cors::write_cors_fields,
    grpc::{GRPC_HTTP_STATUS, grpc_failure, grpc_refusal},
    limit_report::LimitReport,
    problem::problem,
    quota_status::{StatusReport, quota_status},
};
use tidegate_http1::{Fields, is_same_name};
use tidegate_limit::Decision;
use tidegate_system::clock::StoreTime;
use tidegate_throttle::{AdmissionDenied, POLICY, waiting_room::WaitingPlace};
use tidegate_upstream::FixedResponse;

use self::{
    limit_report::AdvertisedLimit,
    page::page,
    problem::{refused_limits, refused_retry_after},
};
use crate::error::GatewayError;
use crate::plan::{LocalAnswer, QuestionForm};
use crate::snapshot::{
    BodyValues, CorsPolicy, EXPOSED_HEADERS, ErrorBody, RateHeaders, WaitingRoomRules,
};

const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";
const USED: &str = "x-ratelimit-used";
const RESET: &str = "x-ratelimit-reset";
const RESOURCE: &str = "x-ratelimit-resource";
/// The headers `X-RateLimit-*`, and the trailers of [`write_rate_trailers`].
pub const RATE_TRAILERS: [&str; 5] = [LIMIT, REMAINING, USED, RESET, RESOURCE];
const DRAFT_LIMIT: &str = "ratelimit";
const DRAFT_POLICY: &str = "ratelimit-policy";

/// A response of the gateway itself, without the fields that every response gets.
#[derive(Clone, Debug)]
pub struct LocalReply {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub fields: Fields,
    /// The complete body.
    pub body: Bytes,
}

/// The reader of a response's headers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HeaderReader {
    /// A program, or a page that may read all headers.
    Any,
    /// A page of another origin: a browser shows it only the exposed headers.
    OtherOrigin,
}

impl HeaderReader {
    /// The reader of the response to a request with these headers. With `cors`, the reader is
    /// `Any`, because the policy itself exposes the headers.
    pub fn of(request: &Fields, cors: Option<&CorsPolicy>) -> Self {
        if cors.is_none() && request.contains("origin") { Self::OtherOrigin } else { Self::Any }
    }
}

/// The header families to remove from an upstream's response, because the gateway writes its own.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SuppressedHeaders {
    x_ratelimit: bool,
    draft_11: bool,
    /// The route has `cors`.
    pub cors: bool,
}

impl SuppressedHeaders {
    /// True if the upstream's field of this name is removed. Ignores case.
    pub fn contains(self, name: &[u8]) -> bool {
        if self.cors && cors::is_cors_field(name) {
            return true;
        }
        let is = |other: &str| is_same_name(name, other.as_bytes());
        // By length first: most names then need no comparison.
        match name.len() {
            16 => (self.x_ratelimit && is(USED)) || (self.draft_11 && is(DRAFT_POLICY)),
            17 => self.x_ratelimit && (is(LIMIT) || is(RESET)),
            20 => self.x_ratelimit && is(RESOURCE),
            21 => self.x_ratelimit && is(REMAINING),
            9 => self.draft_11 && is(DRAFT_LIMIT),
            _ => false,
        }
    }
}

/// Writes the rate-limit headers of a request's limits to `fields`. Returns the upstream's headers
/// that they replace.
///
/// `X-RateLimit-*` describe the tightest limit; `RateLimit` and `RateLimit-Policy` list all limits.
pub fn write_rate_headers<'a>(
    fields: &mut Fields,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
    families: RateHeaders,
    reader: HeaderReader,
) -> SuppressedHeaders {
    let RateHeaders { x_ratelimit, draft_11, .. } = families;
    let suppressed = SuppressedHeaders { x_ratelimit, draft_11, cors: false };
    let advertised = limits.clone().filter_map(LimitReport::advertised);
    let Some(tightest) = tightest(advertised.clone()) else {
        // No limit is shown. If one is enforced, the upstream's headers are still suppressed,
        // because they do not describe it.
        let mut limits = limits;
        let enforced = limits.any(|report| report.limit.enforce);
        return if enforced { suppressed } else { SuppressedHeaders::default() };
    };
    if x_ratelimit {
        write_x_ratelimit(fields, &tightest);
    }
    if draft_11 {
        let (policy, state) = draft_fields(advertised);
        fields.push(DRAFT_POLICY, policy);
        fields.push(DRAFT_LIMIT, state);
    }
    write_expose_headers(fields, families, reader);
    suppressed
}

impl RateHeaders {
    /// The families that are written beside an upstream's response with these fields: none that it
    /// has itself, if its own are kept.
    #[must_use]
    pub fn beside(self, upstream: Option<&Fields>) -> Self {
        let Some(upstream) = upstream.filter(|_| self.keeps_upstream()) else {
            return self;
        };
        let has = |names: &[&str]| names.iter().any(|name| upstream.contains(name));
        Self {
            x_ratelimit: self.x_ratelimit && !has(&RATE_TRAILERS),
            draft_11: self.draft_11 && !has(&[DRAFT_LIMIT, DRAFT_POLICY]),
            ..self
        }
    }
}

/// The reset time in the headers, in seconds since the epoch, rounded up. It does not depend on the
/// request's cost: otherwise it would move back when a cheaper request follows. [`retry_after`]
/// computes when a request of this cost fits.
fn reset_unix_seconds(decision: &Decision) -> u64 {
    decision.reset_at.as_unix_ms().div_ceil(1000)
}

/// Writes the rate-limit headers of a request that the throttle refused.
pub fn write_throttle_headers(
    fields: &mut Fields,
    denied: &AdmissionDenied,
    families: RateHeaders,
    reader: HeaderReader,
) {
    if families.x_ratelimit {
        fields.push_number(LIMIT, denied.max_active);
        fields.push_number(REMAINING, 0);
        fields.push_number(USED, denied.active);
        fields.push_number(RESET, denied.reset_at.as_unix_ms().div_ceil(1000));
        fields.push(RESOURCE, POLICY);
    }
    if families.draft_11 {
        let (limit, window) = (denied.max_active, denied.memory.as_secs_rounded_up());
        let seconds_to_reset = denied.reset_at.since(denied.now).as_secs_rounded_up().max(1);
        let policy = format!("\"{POLICY}\";q={limit};w={window}");
        fields.push(DRAFT_POLICY, policy);
        fields.push(DRAFT_LIMIT, format!("\"{POLICY}\";r=0;t={seconds_to_reset}"));
    }
    write_expose_headers(fields, families, reader);
}

/// How a ticket reaches a browser.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TicketDelivery {
    /// The form of the response. A page reloads itself.
    pub form: ErrorForm,
    /// True if the connection has TLS: the cookie is sent over TLS only.
    pub is_secure: bool,
}

/// Writes the ticket of a caller that waits in the waiting room: as a header for programs, and as a
/// cookie.
pub fn write_ticket(
    fields: &mut Fields,
    waiting: &WaitingPlace,
    rules: &WaitingRoomRules,
    delivery: TicketDelivery,
) {
    let WaitingRoomRules { cookie, attributes, .. } = rules;
    let ticket = waiting.ticket();
    fields.push("x-tidegate-ticket", ticket);
    let attributes = if delivery.is_secure { &attributes.over_tls } else { &attributes.in_clear };
    fields.push("set-cookie", [cookie, "=", ticket, attributes].concat());
    fields.push("cache-control", "no-store");
    if delivery.form == ErrorForm::Page {
        // Not part of HTTP, but of HTML: browsers load the page again, without a script.
        fields.push_number("refresh", waiting.retry_after.as_whole_secs());
    }
}

/// Writes `X-RateLimit-*` as trailers, after costs were settled. `RateLimit` and `RateLimit-Policy`
/// must not be trailers (draft-ietf-httpapi-ratelimit-headers-11).
pub fn write_rate_trailers<'a>(
    fields: &mut Fields,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
) {
    if let Some(tightest) = tightest(limits.filter_map(LimitReport::advertised)) {
        write_x_ratelimit(fields, &tightest);
    }
}

fn write_x_ratelimit(fields: &mut Fields, tightest: &AdvertisedLimit<'_>) {
    let decision = &tightest.decided.decision;
    fields.push_number(LIMIT, decision.limit);
    fields.push_number(REMAINING, decision.remaining);
    fields.push_number(USED, decision.used);
    fields.push_number(RESET, reset_unix_seconds(decision));
    fields.push(RESOURCE, tightest.limit.name());
}

/// Lets scripts of another origin read the rate-limit headers (Fetch standard, CORS protocol).
#[inline]
fn write_expose_headers(fields: &mut Fields, families: RateHeaders, reader: HeaderReader) {
    if reader == HeaderReader::OtherOrigin && (families.x_ratelimit || families.draft_11) {
        fields.push("access-control-expose-headers", EXPOSED_HEADERS);
    }
}

/// The limit that restricts the client most: a refusal restricts more than an admission, and a
/// later retry more than an earlier one. Ties go to the limit with the fewest requests of this cost
/// left, then to the one with the latest reset.
fn tightest<'a>(limits: impl Iterator<Item = AdvertisedLimit<'a>>) -> Option<AdvertisedLimit<'a>> {
    limits.min_by_key(|AdvertisedLimit { decided, cost, .. }| {
        let decision = &decided.decision;
        let retry_at = match decision {
            Decision { admitted: true, .. } => StoreTime::ZERO,
            Decision { retry_at, .. } => retry_at.unwrap_or(StoreTime::MAX),
        };
        let left = decision.remaining / (*cost).max(1);
        (decision.admitted, Reverse(retry_at), left, Reverse(decision.reset_at))
    })
}

/// The largest integer of a structured field (RFC 9651, section 3.3.1); a parser rejects a field
/// with a larger one.
const MAX_STRUCTURED_INTEGER: u64 = 999_999_999_999_999;

/// The values of `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11): one
/// item for each limit. If a limit counts the request under several keys, its item describes the
/// tightest one.
fn draft_fields<'a>(limits: impl Iterator<Item = AdvertisedLimit<'a>>) -> (String, String) {
    let mut items: Vec<AdvertisedLimit<'a>> = Vec::new();
    for limit in limits {
        match items.iter_mut().find(|item| item.limit.name() == limit.limit.name()) {
            Some(item) => *item = tightest([*item, limit].into_iter()).unwrap_or(limit),
            None => items.push(limit),
        }
    }
    let (mut policy, mut state) = (String::new(), String::new());
    for AdvertisedLimit { limit, decided, .. } in items {
        let decision = &decided.decision;
        let name = limit.name();
        let seconds_to_reset = decided.time_to_reset().as_secs_rounded_up();
        // As in `Retry-After`.
        let seconds_to_reset = seconds_to_reset.max(u64::from(!decision.admitted));
        let comma = if policy.is_empty() { "" } else { ", " };
        // Writing to a `String` cannot fail.
        let quota = limit.quota.limit.min(MAX_STRUCTURED_INTEGER);
        let remaining = decision.remaining.min(MAX_STRUCTURED_INTEGER);
        let _ = write!(policy, "{comma}\"{name}\";q={quota}");
        // Windows of a calendar differ in length.
        if limit.algorithm().calendar().is_none() {
            let _ = write!(policy, ";w={}", limit.quota.window.as_secs_rounded_up());
        }
        let _ = write!(state, "{comma}\"{name}\";r={remaining};t={seconds_to_reset}");
    }
    (policy, state)
}

/// `Retry-After` of a refusal, in seconds, at least 1: the longest wait of the limits that refused.
/// `None` if the request costs more than a quota, so that no wait would help.
pub fn retry_after<'a>(limits: impl Iterator<Item = LimitReport<'a>>) -> Option<u64> {
    limits
        .filter_map(LimitReport::refusal)
        .map(|AdvertisedLimit { limit, decided, .. }| {
            let wait = decided.decision.retry_at?.since(decided.at).as_ms();
            // An unknown retry time becomes 0, so that the minimum of 1 s applies.
            Some(if limit.algorithm().is_predictable() { wait } else { 0 })
        })
        .try_fold(0, |longest: u64, wait| Some(longest.max(wait?)))
        .map(|wait| wait.div_ceil(1000).max(1))
}

/// `Retry-After` of a request that the throttle refused, in seconds, at least 1. In the waiting
/// room, the time at which the caller is to ask again.
pub fn throttle_retry_after(denied: &AdmissionDenied) -> u64 {
    if let Some(waiting) = &denied.waiting {
        return waiting.retry_after.as_whole_secs();
    }
    denied.reset_at.since(denied.now).as_secs_rounded_up().max(1)
}

/// The reply of a route or an upstream that has a fixed response.
pub fn fixed_reply(fixed: &FixedResponse) -> LocalReply {
    let mut fields = Fields::new();
    if !(fixed.body.is_empty() || fixed.status == StatusCode::NO_CONTENT) {
        fields.push("content-type", &fixed.content_type);
    }
    LocalReply { status: fixed.status, fields, body: fixed.body.clone() }
}

/// How the body of an error is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorStyle<'r> {
    /// Who reads it: a program or a person.
    pub form: ErrorForm,
    /// What programs read.
    pub api: ApiError<'r>,
    /// The route's own body for the status, instead of both.
    pub own: Option<&'r ErrorBody>,
}

/// The response to a refused or failed request, with a body in this `style`. `limits` are the
/// limits of the request.
pub fn error_reply<'a>(
    error: &GatewayError,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
    request_id: &str,
    style: ErrorStyle<'_>,
) -> LocalReply {
    if let Some(own) = style.own {
        let mut reply = problem(error, limits.clone(), request_id);
        reply.fields.set("content-type", &own.content_type);
        reply.body = own.body(|| body_values(error, limits));
        return reply;
    }
    let mut reply = match style.form {
        ErrorForm::Problem => {
            let mut reply = problem(error, limits.clone(), request_id);
            style.api.add_to(&mut reply, error, limits);
            reply
        }
        ErrorForm::Page => page(error, limits, request_id),
    };
    reply.fields.push("vary", "Accept");
    reply
}

/// The values of the variables in a route's own body.
fn body_values<'a>(
    error: &GatewayError,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
) -> BodyValues {
    let limit = match error {
        GatewayError::Throttled(_) => POLICY.to_owned(),
        GatewayError::LimitExceeded => refused_limits(limits.clone()).join(", "),
        _ => String::new(),
    };
    let waiting = match error {
        GatewayError::Throttled(denied) => denied.waiting.as_ref(),
        _ => None,
    };
    BodyValues {
        retry_after: refused_retry_after(error, limits),
        limit,
        place: waiting.map_or(String::new(), |waiting| waiting.place.to_string()),
        expected_wait: waiting.map_or(String::new(), page::expected_wait),
    }
}

/// The answer to a proxy that asks about an admitted request, with these fields.
pub fn decision_reply(form: QuestionForm, fields: Fields) -> LocalReply {
    let status = match form {
        QuestionForm::Fields => StatusCode::NO_CONTENT,
        QuestionForm::Path | QuestionForm::Check => StatusCode::OK,
    };
    LocalReply { status, fields, body: Bytes::new() }
}

/// The response that redirects a client to `location`.
pub fn redirect_reply(location: &str, status: StatusCode) -> LocalReply {
    let mut fields = Fields::new();
    fields.push("location", location);
    LocalReply { status, fields, body: Bytes::new() }
}

/// The response for an answer that charges nothing. `cors` is the policy of the request's route.
pub fn answer(answer: &LocalAnswer, cors: Option<&CorsPolicy>, request: &Fields) -> LocalReply {
    match (answer, cors) {
        (LocalAnswer::RedirectHttps(location), _) => {
            redirect_reply(location, StatusCode::PERMANENT_REDIRECT)
        }
        (LocalAnswer::Preflight(_), Some(cors)) => cors::preflight_reply(cors, request),
        (LocalAnswer::Preflight(_), None) | (LocalAnswer::Options, _) => options_reply(),
    }
}

/// The methods that the gateway supports on any path, besides those without a meaning of its own.
const SUPPORTED_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// The response to `OPTIONS *` (RFC 9110, 9.3.7).
fn options_reply() -> LocalReply {
    let mut fields = Fields::new();
    fields.push("allow", SUPPORTED_METHODS);
    LocalReply { status: StatusCode::OK, fields, body: Bytes::new() }
}
