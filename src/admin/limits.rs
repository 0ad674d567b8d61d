//! `GET /api/limits` lists the limits and their decisions; `GET` and `DELETE /api/limits/{name}`
//! show and reset the counter of one caller. Values of keys are neither returned nor logged: they
//! may be tokens.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    AdminContext,
    caller::{CallerQuery, parse_caller},
    limit_description::{LimitDescription, describe_limit},
    overrides::{self, OverrideDescription},
    parameters::parse_query,
    problem::problem,
};
use crate::{
    charge::Charge,
    clock::StoreTime,
    consumer_store::LookupFailed,
    gateway::Shared,
    identity::{Consumer, OwnedConsumer},
    redis::RedisFailure,
    snapshot::{LimitKind, LimitPolicy, QuotaChoice},
};

/// The limits in force.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct LimitList {
    limits: Vec<LimitDescription>,
}

/// The count of one caller.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CallerState {
    /// The caller's keyed hash, as in the access log and the list of refused callers.
    hash: String,
    limit: u64,
    remaining: u64,
    used: u64,
    /// When the count is back at zero, in ms since the epoch.
    reset_at_ms: u64,
    /// The earliest time at which a request would be admitted, in ms since the epoch; null if it
    /// would be admitted now, or never.
    retry_at_ms: Option<u64>,
    /// The time of this answer, by the clock that decides, in ms since the epoch.
    now_ms: u64,
    /// True if a request of the usual cost would be refused now.
    blocked: bool,
    /// When the block of the caller ends, after too many refusals, in ms since the epoch; null
    /// without one.
    blocked_until_ms: Option<u64>,
    /// The override that applies to the caller; null without one. With `unlimited` or `blocked`,
    /// the counts are those under the limit's own quota, and requests change nothing.
    r#override: Option<OverrideDescription>,
}

/// Lists every limit and its decisions since the process started.
pub(super) async fn list(State(context): State<AdminContext>) -> Json<LimitList> {
    let shared = &context.shared;
    let limits = &shared.live.snapshot().limits;
    let describe = |policy: &Arc<LimitPolicy>| describe_limit(policy, &shared.metrics);
    Json(LimitList { limits: limits.iter().map(describe).collect() })
}

pub(super) fn malformed_name() -> Response {
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
    let consumer = match consumer_of(&query, &context.shared).await {
        Ok(consumer) => consumer,
        Err(LookupFailed) => return redis_unavailable(RedisFailure::Unsent),
    };
    let consumer = consumer.as_ref().map(OwnedConsumer::view);
    let quota = quota_of(&query, consumer, &policy, &context.shared);
    let billing_day = consumer.and_then(|consumer| consumer.billing_day);
    let limit = policy.limit_with(&quota).for_billing_day(billing_day);
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
                blocked_until_ms: decided.block.until().map(StoreTime::as_unix_ms),
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

/// Resets the counters of one caller under a limit and its candidate, and lifts their blocks.
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

/// The consumer in `query`, with the plan and the billing day of its record.
async fn consumer_of(
    query: &CallerQuery,
    shared: &Shared,
) -> Result<Option<OwnedConsumer>, LookupFailed> {
    let Some(name) = query.consumer.as_deref() else { return Ok(None) };
    let loaded = shared.live.consumers();
    let looked_up = match &shared.consumer_store {
        Some(store) if loaded.is_in_store() => Some(store.named(name).await?),
        _ => None,
    };
    let found = looked_up.as_ref().unwrap_or(&loaded).consumer(name);
    let found = found.map_or(Consumer::new(name, None), |found| found.consumer);
    let plan = found.plan.filter(|plan| loaded.has_plan(plan));
    Ok(Some(Consumer { plan, ..found }.into()))
}

/// The quota that applies to the caller in `query`: that of an override, of the plan of `consumer`,
/// or of the query's tier.
fn quota_of(
    query: &CallerQuery,
    consumer: Option<Consumer<'_>>,
    policy: &LimitPolicy,
    shared: &Shared,
) -> QuotaChoice {
    let now = shared.clock.store_time();
    let table = shared.overrides.table();
    let applied = table.and_then(|table| table.find(policy, query.key, consumer, now));
    match applied {
        Some(applied) => QuotaChoice::Override(applied),
        None => policy.plan_choice(consumer).unwrap_or_else(|| query.quota.clone()),
    }
}

/// The limit called `name` and the caller in the query, or the status and detail of the error.
pub(super) fn resolve(
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

/// The response if Redis does not reply.
pub(super) fn redis_unavailable(failure: RedisFailure) -> Response {
    let detail = format!("no reply from Redis ({}); try again", failure.label());
    problem(StatusCode::SERVICE_UNAVAILABLE, &detail, &[])
}
