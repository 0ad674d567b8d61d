//! From outcomes to responses: rate-limit headers and problem documents, all from the one decision.

mod number;
mod problem;
mod status;

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use self::number::{header_value, repeated};
pub use self::{problem::error, status::status};
use crate::{
    limit::{Algorithm, Decision, Limit, Millis, Verdict},
    snapshot::{Ask, RateHeaders, Route},
    throttle::{POLICY, Turned},
    upstream::{AnswerStream, Respond},
};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");
const DRAFT_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const DRAFT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
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

/// Writes what the limits of a route say into an answer's headers, replacing what the upstream wrote
/// under the same names. `names` are those of the route's limits, as values that this worker alone
/// counts references of. `cross_origin`: a browser asks for another site, and may read only what it
/// is told it may.
pub fn rate_headers(
    headers: &mut HeaderMap,
    told: Told<'_>,
    names: &[HeaderValue],
    verdict: &Verdict,
    which: RateHeaders,
    cross_origin: bool,
) {
    let Some((index, tightest)) = tightest(told, verdict) else {
        // Nobody feels a limit that only watches.
        if !told.route.limits.iter().any(|used| used.policy.limit.enforce) {
            return;
        }
        // Nothing is known, and an upstream's numbers are no substitute.
        if which.draft_11 {
            headers.remove(DRAFT_LIMIT);
            headers.remove(DRAFT_POLICY);
        }
        if which.x_ratelimit {
            for name in [LIMIT, REMAINING, USED, RESET, RESOURCE] {
                headers.remove(name);
            }
        }
        return;
    };
    if which.x_ratelimit {
        headers.insert(LIMIT, repeated(tightest.limit));
        headers.insert(REMAINING, header_value(tightest.remaining));
        headers.insert(USED, header_value(tightest.used));
        headers.insert(RESET, repeated(reset(tightest)));
        headers.insert(RESOURCE, names[index].clone());
    }
    if which.draft_11 {
        draft_headers(headers, told, verdict);
    }
    expose(headers, which, cross_origin);
}

/// The reset that a client is told, in seconds since the epoch.
fn reset(decision: &Decision) -> u64 {
    // Beyond the stored reset-at only where the quota or the cost has changed since.
    decision.reset_at.max(decision.retry_at.unwrap_or(0)).div_ceil(1000)
}

/// Writes what the throttle says to a caller whom it turned away.
pub fn throttle_headers(
    headers: &mut HeaderMap,
    turned: &Turned,
    which: RateHeaders,
    cross_origin: bool,
) {
    if which.x_ratelimit {
        headers.insert(LIMIT, repeated(turned.max_active));
        headers.insert(REMAINING, header_value(0));
        headers.insert(USED, header_value(turned.active));
        headers.insert(RESET, header_value(turned.reset_at.div_ceil(1000)));
        headers.insert(RESOURCE, const { HeaderValue::from_static(POLICY) });
    }
    if which.draft_11 {
        let (limit, window) = (turned.max_active, turned.memory.div_ceil(1000));
        let until = throttle_retry_after(turned);
        let policy = format!("\"{POLICY}\";q={limit};w={window}");
        draft_items(headers, policy, format!("\"{POLICY}\";r=0;t={until}"));
    }
    expose(headers, which, cross_origin);
}

/// Lets a web page of another site read the headers.
fn expose(headers: &mut HeaderMap, which: RateHeaders, cross_origin: bool) {
    if cross_origin && (which.x_ratelimit || which.draft_11) {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
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
fn draft_headers(headers: &mut HeaderMap, told: Told<'_>, verdict: &Verdict) {
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
    draft_items(headers, policy, state);
}

fn draft_items(headers: &mut HeaderMap, policy: String, state: String) {
    for (name, value) in [(DRAFT_POLICY, policy), (DRAFT_LIMIT, state)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
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
pub fn fixed(answer: &Respond) -> Response<Bytes> {
    let mut response = Response::new(answer.body.clone());
    *response.status_mut() = answer.status;
    if !(answer.body.is_empty() || answer.status == StatusCode::NO_CONTENT) {
        response.headers_mut().insert(header::CONTENT_TYPE, answer.content_type.clone());
    }
    response
}
