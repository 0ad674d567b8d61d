//! From outcomes to responses: rate-limit headers and problem documents, all from the one decision.

mod problem;
mod status;

use std::fmt::Write;

use bytes::Bytes;
use http::StatusCode;

pub use self::{problem::error, status::status};
use crate::{
    framing::Fields,
    limit::{Algorithm, Decision, Limit, Millis, Verdict},
    snapshot::{Ask, RateHeaders, Route},
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

/// What a verdict is about: a route's limits, and what was asked of each.
#[derive(Clone, Copy)]
pub struct Told<'a> {
    /// The route.
    pub route: &'a Route,
    /// What was asked of each of its limits.
    pub asks: &'a [Ask],
}

impl<'a> Told<'a> {
    /// The limits that are enforced and of which something is known, each with its place.
    fn decisions(self, verdict: &'a Verdict) -> impl Iterator<Item = (usize, &'a Decision)> {
        let decided = self.route.limits.iter().zip(&verdict.decisions).enumerate();
        let felt =
            decided.filter(|(_, (used, decision))| decision.counted && used.policy.limit.enforce);
        felt.map(|(index, (_, decision))| (index, decision))
    }
}

/// Writes what the limits of a route say into an answer's `fields`; says what it stands in place of.
/// `cross_origin`: a browser asks for another site, and may read only what it is told it may.
pub fn rate_headers(
    fields: &mut Fields,
    told: Told<'_>,
    verdict: &Verdict,
    which: RateHeaders,
    cross_origin: bool,
) -> Replaced {
    let replaced = Replaced { x_ratelimit: which.x_ratelimit, draft_11: which.draft_11 };
    let Some((index, tightest)) = tightest(told, verdict) else {
        // A limit that only watches says nothing. Where nothing is known, an upstream's numbers are no
        // substitute.
        let enforced = told.route.limits.iter().any(|used| used.policy.limit.enforce);
        return if enforced { replaced } else { Replaced::default() };
    };
    if which.x_ratelimit {
        fields.push_number(LIMIT, tightest.limit);
        fields.push_number(REMAINING, tightest.remaining);
        fields.push_number(USED, tightest.used);
        fields.push_number(RESET, reset(tightest));
        fields.push(RESOURCE, &*told.route.limits[index].policy.limit.name);
    }
    if which.draft_11 {
        draft_headers(fields, told, verdict);
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
fn tightest<'a>(told: Told<'a>, verdict: &'a Verdict) -> Option<(usize, &'a Decision)> {
    let never = Millis::MAX;
    told.decisions(verdict).min_by_key(|(index, decision)| {
        let retry_at = match decision {
            Decision { admitted: true, .. } => 0,
            Decision { retry_at, .. } => retry_at.unwrap_or(never),
        };
        let left =
            decision.remaining / u64::from(told.asks.get(*index).map_or(1, |ask| ask.cost.max(1)));
        (decision.admitted, never - retry_at, left, never - decision.reset_at)
    })
}

/// One item a limit, as the IETF's draft 11 has them.
fn draft_headers(fields: &mut Fields, told: Told<'_>, verdict: &Verdict) {
    let (mut policy, mut state) = (String::new(), String::new());
    for (index, decision) in told.decisions(verdict) {
        let limit = &told.route.limits[index].policy.limit;
        let (name, window) = (&limit.name, limit.quota.window.div_ceil(1000));
        let until = decision.reset_at.saturating_sub(verdict.origin(index).now).div_ceil(1000);
        let comma = if policy.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(policy, "{comma}\"{name}\";q={};w={window}", decision.limit);
        let _ = write!(state, "{comma}\"{name}\";r={};t={until}", decision.remaining);
    }
    fields.push(DRAFT_POLICY, policy);
    fields.push(DRAFT_LIMIT, state);
}

/// The limits that refuse, and what they say.
fn refusing<'v>(
    route: &'v Route,
    verdict: &'v Verdict,
) -> impl Iterator<Item = (&'v Limit, &'v Decision, Millis)> {
    let limits = route.limits.iter().map(|used| &*used.policy.limit);
    let decisions = limits.zip(&verdict.decisions).enumerate();
    let timed = decisions.map(|(at, (limit, decision))| (limit, decision, verdict.origin(at).now));
    timed.filter(|(limit, decision, _)| limit.enforce && !decision.admitted)
}

/// The whole seconds that a refused client is asked to wait; `None` where no wait would help.
pub fn retry_after(route: &Route, verdict: &Verdict) -> Option<u64> {
    refusing(route, verdict)
        .map(|(limit, decision, now)| match limit.algorithm {
            // A guess, the shortest: nobody knows when a request ends, and its lease tells nothing of it.
            Algorithm::Concurrency => decision.retry_at.map(|_| 0),
            _ => decision.retry_at.map(|retry_at| retry_at.saturating_sub(now)),
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
