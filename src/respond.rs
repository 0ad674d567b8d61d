//! From outcomes to responses: rate-limit headers and problem documents, all from the one decision.

mod limit_report;
mod problem;
mod status;

use std::fmt::Write;

use bytes::Bytes;
use http::StatusCode;

use self::limit_report::Reported;
pub use self::{limit_report::LimitReport, problem::error, status::status};
use crate::{
    framing::Fields,
    limit::{Algorithm, Decision, Millis},
    snapshot::RateHeaders,
    throttle::{POLICY, Turned},
    upstream::Respond,
};

const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";
const USED: &str = "x-ratelimit-used";
const RESET: &str = "x-ratelimit-reset";
const RESOURCE: &str = "x-ratelimit-resource";
const DRAFT_LIMIT: &str = "ratelimit";
const DRAFT_POLICY: &str = "ratelimit-policy";
const EXPOSED: &str = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, \
    X-RateLimit-Reset, X-RateLimit-Resource, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id";

/// An answer that is made here, but for the fields that every answer has.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub fields: Fields,
    /// The whole body.
    pub body: Bytes,
}

/// Families of fields that an upstream's answer must not have: the gateway says them itself.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Replaced {
    x_ratelimit: bool,
    draft_11: bool,
}

impl Replaced {
    /// Whether an upstream's field of this name is left out.
    pub fn contains(self, name: &[u8]) -> bool {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        // By length first: most names are told apart without a comparison.
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

/// Writes what the limits of a request say into an answer's `fields`; says what it stands in place of.
/// `cross_origin`: a browser asks for another site, and may read only what it is told it may.
pub fn rate_headers<'a>(
    fields: &mut Fields,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
    which: RateHeaders,
    cross_origin: bool,
) -> Replaced {
    let replaced = Replaced { x_ratelimit: which.x_ratelimit, draft_11: which.draft_11 };
    let told = limits.clone().filter_map(LimitReport::told);
    let Some(tightest) = tightest(told.clone()) else {
        // A limit that only watches says nothing. Where nothing is known, an upstream's numbers are no
        // substitute.
        let mut limits = limits;
        let enforced = limits.any(|report| report.limit.enforce);
        return if enforced { replaced } else { Replaced::default() };
    };
    if which.x_ratelimit {
        let decision = &tightest.decided.decision;
        fields.push_number(LIMIT, decision.limit);
        fields.push_number(REMAINING, decision.remaining);
        fields.push_number(USED, decision.used);
        fields.push_number(RESET, reset(decision));
        fields.push(RESOURCE, &*tightest.limit.name);
    }
    if which.draft_11 {
        draft_headers(fields, told);
    }
    expose(fields, which, cross_origin);
    replaced
}

/// The reset that a client is told, in seconds since the epoch.
fn reset(decision: &Decision) -> u64 {
    // Beyond the stored reset-at only where the quota or the cost has changed since.
    decision.reset_at.max(decision.retry_at.unwrap_or(0)).div_ceil(1000)
}

/// Writes what the throttle says to a caller whom it turned away.
pub fn throttle_headers(
    fields: &mut Fields,
    turned: &Turned,
    which: RateHeaders,
    cross_origin: bool,
) {
    if which.x_ratelimit {
        fields.push_number(LIMIT, turned.max_active);
        fields.push_number(REMAINING, 0);
        fields.push_number(USED, turned.active);
        fields.push_number(RESET, turned.reset_at.div_ceil(1000));
        fields.push(RESOURCE, POLICY);
    }
    if which.draft_11 {
        let (limit, window) = (turned.max_active, turned.memory.div_ceil(1000));
        let until = throttle_retry_after(turned);
        let policy = format!("\"{POLICY}\";q={limit};w={window}");
        fields.push(DRAFT_POLICY, policy);
        fields.push(DRAFT_LIMIT, format!("\"{POLICY}\";r=0;t={until}"));
    }
    expose(fields, which, cross_origin);
}

/// Lets a web page of another site read the headers.
fn expose(fields: &mut Fields, which: RateHeaders, cross_origin: bool) {
    if cross_origin && (which.x_ratelimit || which.draft_11) {
        fields.push("access-control-expose-headers", EXPOSED);
    }
}

/// The limit with the least left, counted in requests of this cost: of those that refuse, the one that
/// does so longest; of those that leave as many, the one that is reset last.
fn tightest<'a>(limits: impl Iterator<Item = Reported<'a>>) -> Option<Reported<'a>> {
    let never = Millis::MAX;
    limits.min_by_key(|Reported { decided, cost, .. }| {
        let decision = &decided.decision;
        let retry_at = match decision {
            Decision { admitted: true, .. } => 0,
            Decision { retry_at, .. } => retry_at.unwrap_or(never),
        };
        let left = decision.remaining / u64::from((*cost).max(1));
        (decision.admitted, never - retry_at, left, never - decision.reset_at)
    })
}

/// One item a limit, as the IETF's draft 11 has them: of several tokens counted by one limit, the one
/// with the least left.
fn draft_headers<'a>(fields: &mut Fields, limits: impl Iterator<Item = Reported<'a>>) {
    let mut items: Vec<Reported<'a>> = Vec::new();
    for told in limits {
        match items.iter_mut().find(|item| item.limit.name == told.limit.name) {
            Some(item) => *item = tightest([*item, told].into_iter()).unwrap_or(told),
            None => items.push(told),
        }
    }
    let (mut policy, mut state) = (String::new(), String::new());
    for Reported { limit, decided, .. } in items {
        let decision = &decided.decision;
        let (name, window) = (&limit.name, limit.quota.window.div_ceil(1000));
        let until = decision.reset_at.saturating_sub(decided.at).div_ceil(1000);
        let comma = if policy.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(policy, "{comma}\"{name}\";q={};w={window}", limit.quota.limit);
        let _ = write!(state, "{comma}\"{name}\";r={};t={until}", decision.remaining);
    }
    fields.push(DRAFT_POLICY, policy);
    fields.push(DRAFT_LIMIT, state);
}

/// The whole seconds that a refused client is asked to wait; `None` where no wait would help.
pub fn retry_after<'a>(limits: impl Iterator<Item = LimitReport<'a>>) -> Option<u64> {
    limits
        .filter_map(LimitReport::refusing)
        .map(|Reported { limit, decided, .. }| match limit.algorithm {
            // A guess, the shortest: when a request ends is not known, and its lease tells nothing of it.
            Algorithm::Concurrency => decided.decision.retry_at.map(|_| 0),
            _ => decided.decision.retry_at.map(|retry_at| retry_at.saturating_sub(decided.at)),
        })
        .try_fold(0, |longest: Millis, wait| Some(longest.max(wait?)))
        .map(|wait| wait.div_ceil(1000).max(1))
}

/// The whole seconds that a caller whom the throttle turned away is asked to wait.
pub fn throttle_retry_after(turned: &Turned) -> u64 {
    turned.reset_at.saturating_sub(turned.now).div_ceil(1000).max(1)
}

/// The answer of an upstream that is the gateway itself.
pub fn fixed(answer: &Respond) -> Reply {
    let mut fields = Fields::new();
    if !(answer.body.is_empty() || answer.status == StatusCode::NO_CONTENT) {
        fields.push("content-type", &answer.content_type);
    }
    Reply { status: answer.status, fields, body: answer.body.clone() }
}

/// The answer to `OPTIONS *`: what the gateway serves, whatever the route.
pub fn server_options() -> Reply {
    let mut fields = Fields::new();
    fields.push("allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    Reply { status: StatusCode::OK, fields, body: Bytes::new() }
}
