//! `GET /api/limits` lists the limits and their decisions; `GET` and `DELETE /api/limits/{name}` show and
//! reset the counter of one caller. Values of keys are neither returned nor logged: they may be tokens.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    AdminContext,
    overrides::{self, OverrideDescription},
    problem::problem,
};
use crate::{
    clock::StoreTime,
    gateway::Shared,
    identity::{Consumer, KeyInput, KeyInputError, KeyPart, KeySecret},
    limit::{Charge, Key, OnFailure},
    metrics::Metrics,
    redis::RedisFailure,
    snapshot::{Cost, LimitKind, LimitPolicy, QuotaChoice, Snapshot, Tier, TierMatch},
};

/// The limits in force.
#[derive(JsonSchema, Serialize)]
pub(super) struct LimitList {
    limits: Vec<LimitDescription>,
}

/// A limit: how it counts, and what it has decided.
#[derive(JsonSchema, Serialize)]
struct LimitDescription {
    name: Box<str>,
    algorithm: &'static str,
    /// Units of cost per window; for a concurrency limit, requests in flight.
    quota: u64,
    window_ms: u64,
    /// The number of sub-windows.
    resolution: u32,
    strict: bool,
    /// The parts of a request that identify a counter; empty: one counter for all requests.
    key: Vec<String>,
    cost: CostDescription,
    tiers: Vec<TierDescription>,
    /// True if the limit refuses; otherwise it only counts.
    enforce: bool,
    candidate: Option<CandidateDescription>,
    /// The statuses of responses that are not charged.
    refund: Vec<u16>,
    /// What happens while Redis does not reply.
    #[schemars(extend("enum" = ["local", "open", "closed"]))]
    on_failure: &'static str,
    decisions: Decisions,
}

/// The cost of a request.
#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
enum CostDescription {
    Fixed(u32),
    /// The value of a request header.
    Header {
        header: String,
        max_cost: u32,
    },
    /// The value of a response header.
    Response {
        response: String,
        max_cost: u32,
    },
}

/// Another quota for some callers. The values that identify them are left out, because they may be secrets.
#[derive(JsonSchema, Serialize)]
struct TierDescription {
    /// The part of a request that is compared.
    part: String,
    /// The number of values.
    values: usize,
    /// Null if these callers are not limited.
    quota: Option<u64>,
}

/// A second quota that is only counted.
#[derive(JsonSchema, Serialize)]
struct CandidateDescription {
    quota: u64,
    decisions: Decisions,
}

/// Decisions since the start, over all routes.
#[derive(JsonSchema, Serialize)]
pub(super) struct Decisions {
    pub(super) admitted: u64,
    pub(super) refused: u64,
    /// No reply from the store.
    pub(super) unknown: u64,
    /// Admitted because the limit is not enforced.
    pub(super) would_refuse: u64,
}

/// The count of one caller.
#[derive(JsonSchema, Serialize)]
pub(super) struct CallerState {
    /// The caller's keyed hash, as in the access log and the list of refused callers.
    hash: String,
    limit: u64,
    remaining: u64,
    used: u64,
    /// When the count is back at zero, in ms since the epoch.
    reset_at_ms: u64,
    /// The earliest time at which a request would be admitted, in ms since the epoch; null if it would be admitted
    /// now, or never.
    retry_at_ms: Option<u64>,
    /// The time of this answer, by the clock that decides, in ms since the epoch.
    now_ms: u64,
    /// True if a request of the usual cost would be refused now.
    blocked: bool,
    /// The override that applies to the caller; null without one. With `unlimited` or `blocked`, the counts are those
    /// under the limit's own quota, and requests change nothing.
    r#override: Option<OverrideDescription>,
}

/// Lists every limit and its decisions since the process started.
pub(super) async fn list(State(context): State<AdminContext>) -> Json<LimitList> {
    let shared = &context.shared;
    let limits = &shared.live.snapshot().limits;
    let describe = |policy: &Arc<LimitPolicy>| describe_limit(policy, &shared.metrics);
    Json(LimitList { limits: limits.iter().map(describe).collect() })
}

fn malformed_name() -> Response {
    let detail = "the name in the path is not UTF-8; expected the name of a limit";
    problem(StatusCode::BAD_REQUEST, detail, &[])
}

/// Shows the counter of one caller. Charges nothing.
pub(super) async fn show(
    State(context): State<AdminContext>,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Response {
    let Ok(Path(name)) = name else { return malformed_name() };
    let (policy, query) = match resolve(&context.shared, &name, query.as_deref()) {
        Ok(found) => found,
        Err((status, detail)) => return problem(status, &detail, &[]),
    };
    let quota = quota_of(&query, &policy, &context.shared);
    let limit = policy.limit_with(&quota);
    let charge = Charge { limit, key: query.key, cost: limit.cost };
    match context.shared.store.peek(&[charge]).await {
        Ok(verdict) => {
            let Some(decided) = verdict.decided(0) else {
                return redis_unavailable(RedisFailure::Reply);
            };
            let decision = &decided.decision;
            let state = CallerState {
                hash: format!("{:032x}", query.key.0),
                limit: decision.limit,
                remaining: decision.remaining,
                used: decision.used,
                reset_at_ms: decision.reset_at.as_unix_ms(),
                retry_at_ms: decision.retry_at.map(StoreTime::as_unix_ms),
                now_ms: decided.at.as_unix_ms(),
                blocked: limit.enforce
                    && match policy.limit_kind(&quota) {
                        LimitKind::Quota => !decision.admitted,
                        LimitKind::Unlimited => false,
                        LimitKind::Blocked => true,
                    },
                r#override: match &quota {
                    QuotaChoice::Override(applied) => {
                        let (shared, now) = (&context.shared, context.shared.clock.store_time());
                        Some(overrides::describe(&applied.own, shared, now))
                    }
                    _ => None,
                },
            };
            ([(header::CACHE_CONTROL, "no-store")], Json(state)).into_response()
        }
        Err(failure) => redis_unavailable(failure),
    }
}

/// Resets the counters of one caller under a limit and its candidate.
pub(super) async fn reset(
    State(context): State<AdminContext>,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Response {
    let Ok(Path(name)) = name else { return malformed_name() };
    let (policy, query) = match resolve(&context.shared, &name, query.as_deref()) {
        Ok(found) => found,
        Err((status, detail)) => return problem(status, &detail, &[]),
    };
    let both = [Some(&policy), policy.candidate.as_ref()];
    let limits: Vec<_> = both.into_iter().flatten().map(|policy| &*policy.limit).collect();
    match context.shared.store.reset(&limits, query.key).await {
        Ok(()) => {
            tracing::info!(limit = name, "a caller's counter was reset");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(failure) => redis_unavailable(failure),
    }
}

/// The caller whose counter is shown or reset.
#[derive(Debug, Eq, PartialEq)]
struct CallerQuery {
    key: Key,
    /// That of the tier in the query, or the limit's own.
    quota: QuotaChoice,
    /// The name of the caller's consumer, if the query has it.
    consumer: Option<String>,
}

/// The quota that applies to the caller in `query`: that of an override, of its plan, or of the query's tier.
fn quota_of(query: &CallerQuery, policy: &LimitPolicy, shared: &Shared) -> QuotaChoice {
    let consumers = shared.consumers.load();
    let found = query.consumer.as_deref().map(|name| {
        let known = consumers.consumer(name);
        let plan = known.and_then(|known| known.consumer.plan);
        Consumer { name, plan }
    });
    let now = shared.clock.store_time();
    let table = shared.overrides.table();
    let applied = table.and_then(|table| table.find(policy, query.key, found, now));
    match applied {
        Some(applied) => QuotaChoice::Override(applied),
        None => policy.plan_choice(found).unwrap_or_else(|| query.quota.clone()),
    }
}

/// The limit called `name` and the caller in the query, or the status and detail of the error.
fn resolve(
    shared: &Shared,
    name: &str,
    query: Option<&str>,
) -> Result<(Arc<LimitPolicy>, CallerQuery), (StatusCode, String)> {
    let snapshot = shared.live.snapshot();
    let named = snapshot.limits.iter().find(|policy| policy.limit.name() == &*name);
    let Some(policy) = named.cloned() else {
        let detail = "no limit has this name; expected one that /api/limits lists";
        return Err((StatusCode::NOT_FOUND, detail.to_owned()));
    };
    let parameters = parse_query(query.unwrap_or_default());
    let parameters = parameters.map_err(|detail| (StatusCode::BAD_REQUEST, detail))?;
    let query = parse_caller(&parameters, &policy, &snapshot, shared.store.key_secret());
    let query = query.map_err(|detail| (StatusCode::BAD_REQUEST, detail))?;
    Ok((policy, query))
}

/// The decoded parameters of a query, or the detail of the error. A malformed escape is an error: read
/// literally or replaced, it would name another caller.
pub(super) fn parse_query(query: &str) -> Result<Vec<(String, String)>, String> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    let decoded = parameters.map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        Ok((decode(name)?, decode(value)?))
    });
    decoded.collect()
}

/// A name or value without its escapes. `+` is a space, as in a form.
fn decode(text: &str) -> Result<String, String> {
    let is_escape = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(is_escape) {
        let detail = "a parameter has a malformed escape; expected `%` and two hexadecimal digits, and `%25` \
                      for a literal `%`";
        return Err(detail.to_owned());
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| "a parameter is not UTF-8; expected UTF-8".to_owned())
}

/// The caller in `parameters`, or the detail of the error.
fn parse_caller(
    parameters: &[(String, String)],
    policy: &LimitPolicy,
    snapshot: &Snapshot,
    secret: KeySecret,
) -> Result<CallerQuery, String> {
    let (mut values, mut hash, mut client_ip, mut tier) = (Vec::new(), None, None, None);
    let mut consumer = None;
    for (name, value) in parameters {
        let before = match name.as_str() {
            "key" => {
                values.push(value.as_str());
                None
            }
            "hash" => hash.replace(value.as_str()),
            "client_ip" => client_ip.replace(value.as_str()),
            "tier" => tier.replace(value.as_str()),
            "consumer" => consumer.replace(value.as_str()),
            _ => {
                let what =
                    "unknown parameter; expected `key`, `hash`, `client_ip`, `consumer` or `tier`";
                return Err(what.to_owned());
            }
        };
        if before.is_some() {
            return Err(format!("`{name}` is given more than once; expected it once"));
        }
    }
    let key = match hash {
        Some(_) if !values.is_empty() || client_ip.is_some() => {
            return Err(
                "`hash` together with `key` or `client_ip`; expected `hash` alone".to_owned()
            );
        }
        Some(hash) => {
            Key(parse_hash(hash).ok_or("`hash` is malformed; expected 32 hexadecimal digits")?)
        }
        None if values.is_empty() && client_ip.is_some() && !policy.key.0.is_empty() => {
            let keys = "key=&".repeat(policy.key.0.len());
            return Err(format!(
                "`client_ip` without `key`; expected also an empty `key` for each part of the limit's key: \
                 {keys}client_ip=192.0.2.1"
            ));
        }
        None if client_ip.is_some() && policy.key.0.is_empty() => {
            let what =
                "`client_ip` is given, but this limit counts all callers together; expected none";
            return Err(what.to_owned());
        }
        None => caller_key(&values, client_ip, policy, snapshot, secret)?,
    };
    let tier = tier.map(|tier| parse_tier(tier, policy)).transpose()?;
    let quota = tier.map_or(QuotaChoice::Own, QuotaChoice::Tier);
    // A key by consumer names it.
    let part = policy.key.0.iter().position(|part| *part == KeyPart::Consumer);
    let named = consumer.or_else(|| values.get(part?).copied()).filter(|name| !name.is_empty());
    Ok(CallerQuery { key, quota, consumer: named.map(str::to_owned) })
}

/// The key of the caller with these values under the limit of `policy`, or the detail of the error.
pub(super) fn caller_key(
    values: &[&str],
    client_ip: Option<&str>,
    policy: &LimitPolicy,
    snapshot: &Snapshot,
    secret: KeySecret,
) -> Result<Key, String> {
    let identity = &snapshot.identity;
    let input = KeyInput {
        values,
        client_ip,
        token_sources: &identity.token,
        ipv6_prefix: identity.ipv6_prefix,
    };
    let key = policy.key.key_of_input(&input, secret);
    key.map(Key).map_err(|error| describe_input_error(error, policy, values.len()))
}

/// Parses a key's hash, written as in Redis.
fn parse_hash(text: &str) -> Option<u128> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

fn parse_tier(text: &str, policy: &LimitPolicy) -> Result<u16, String> {
    let tier = text.parse::<u16>().ok().filter(|tier| usize::from(*tier) < policy.tiers.len());
    if tier.is_some_and(|tier| policy.is_unlimited(tier)) {
        return Err("callers of this `tier` are not limited; expected another `tier`".to_owned());
    }
    tier.ok_or_else(|| match policy.tiers.len() {
        0 => "`tier` is given, but the limit has no tiers; expected no `tier`".to_owned(),
        count => format!("the limit has no such `tier`; expected 0 to {}", count - 1),
    })
}

/// The detail for values that identify no caller. `count` is the number of `key` parameters.
fn describe_input_error(error: KeyInputError, policy: &LimitPolicy, count: usize) -> String {
    let parts: Vec<String> = policy.key.0.iter().map(ToString::to_string).collect();
    match error {
        KeyInputError::Count if parts.is_empty() => {
            format!(
                "{count} `key` parameters; expected none: this limit counts all callers together"
            )
        }
        KeyInputError::Count => format!(
            "{count} `key` parameters; expected {}, in this order: {}",
            parts.len(),
            parts.join(", ")
        ),
        KeyInputError::Address => {
            "a `key` or `client_ip` is not an address; expected one such as 192.0.2.1".into()
        }
        KeyInputError::Credentials => {
            "malformed credentials; expected the token as in the request's header".into()
        }
        KeyInputError::Empty => {
            "each `key` that identifies a caller is empty, and such callers are counted by their address; expected \
                         `client_ip` in addition, or another `key`"
                .to_owned()
        }
    }
}

/// The response if Redis does not reply.
fn redis_unavailable(failure: RedisFailure) -> Response {
    let detail = format!("no reply from Redis ({}); try again", failure.label());
    problem(StatusCode::SERVICE_UNAVAILABLE, &detail, &[])
}

fn describe_limit(policy: &LimitPolicy, metrics: &Metrics) -> LimitDescription {
    let limit = &policy.limit;
    let (quota, key) = (&limit.quota, &policy.key.0);
    let candidate = policy.candidate.as_ref().map(|candidate| CandidateDescription {
        quota: candidate.limit.quota.limit.into(),
        decisions: sum_decisions(candidate.limit.name(), metrics),
    });
    LimitDescription {
        name: limit.name().into(),
        algorithm: limit.algorithm().tag(),
        quota: quota.limit.into(),
        window_ms: quota.window,
        resolution: quota.algorithm.resolution(),
        strict: quota.algorithm.is_strict(),
        key: key.iter().map(ToString::to_string).collect(),
        cost: describe_cost(&policy.cost),
        tiers: policy.tiers.iter().map(describe_tier).collect(),
        enforce: limit.enforce,
        candidate,
        refund: policy.refund.to_vec(),
        on_failure: match limit.on_failure {
            OnFailure::Local => "local",
            OnFailure::Open => "open",
            OnFailure::Closed => "closed",
        },
        decisions: sum_decisions(limit.name(), metrics),
    }
}

fn describe_cost(cost: &Cost) -> CostDescription {
    match cost {
        Cost::Fixed(cost) => CostDescription::Fixed(*cost),
        Cost::Header { name, max } => {
            CostDescription::Header { header: name.as_str().to_owned(), max_cost: *max }
        }
        Cost::Response { name, max } => {
            CostDescription::Response { response: name.as_str().to_owned(), max_cost: *max }
        }
    }
}

fn describe_tier(tier: &Tier) -> TierDescription {
    let (part, values) = match &tier.matches {
        TierMatch::Part(part, values) => (part.to_string(), values.len()),
        TierMatch::Networks(networks) => ("client_ip".to_owned(), networks.len()),
    };
    let quota = tier.limit.as_ref().map(|limit| limit.quota.limit.into());
    TierDescription { part, values, quota }
}

/// The decisions of the limit called `name`, over all routes.
fn sum_decisions(name: &str, metrics: &Metrics) -> Decisions {
    let all = metrics.decisions();
    let own = all.iter().filter(|((_, limit), _)| **limit == *name).map(|(_, counts)| counts);
    let [admitted, refused, unknown, would_refuse] = own.fold([0; 4], |mut sum, counts| {
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        sum
    });
    Decisions { admitted, refused, unknown, would_refuse }
}
