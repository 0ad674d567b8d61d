//! `GET /api/limits` lists the limits and their decisions; `GET` and `DELETE /api/limits/{name}` show and
//! reset the counter of one caller. Values of keys are neither returned nor logged: they may be tokens.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    AdminContext,
    caller::{CallerQuery, parse_caller, parse_query},
    overrides::{self, OverrideDescription},
    problem::problem,
};
use crate::{
    clock::StoreTime,
    consumer_store::LookupFailed,
    gateway::Shared,
    identity::{Consumer, OwnedConsumer},
    limit::{Charge, Limit, OnFailure},
    metrics::Metrics,
    redis::RedisFailure,
    snapshot::{
        ActualCost, Cost, CostEstimate, LimitKind, LimitPolicy, QuotaChoice, Refunds, Tier,
        TierMatch,
    },
    status::StatusSet,
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
    /// The length of the window; null: windows of a calendar.
    window_ms: Option<u64>,
    /// The windows of a calendar, such as `month from day 15 in Europe/Berlin`; null: windows of a fixed length.
    calendar: Option<String>,
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
    /// The statuses of responses that are not charged, each alone or as a range such as `200-399`.
    refund: Vec<String>,
    /// The only statuses of responses that are charged; null: all but those in `refund`.
    charge_on: Option<Vec<String>>,
    /// When callers are blocked; null: never.
    block: Option<BlockDescription>,
    /// What happens while Redis does not reply.
    #[schemars(extend("enum" = ["local", "open", "closed"]))]
    on_failure: &'static str,
    decisions: Decisions,
}

/// When a caller that the limit refuses is blocked.
#[derive(JsonSchema, Serialize)]
struct BlockDescription {
    /// The number of refusals after which the caller is blocked.
    after: u64,
    /// The time within which they are counted, in ms.
    within_ms: u64,
    /// The length of the block, in ms.
    for_ms: u64,
}

/// The cost of a request.
#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
enum CostDescription {
    Fixed(u64),
    /// The value of a request header.
    Header {
        header: String,
        max_cost: u64,
    },
    /// The value of a response header.
    Response {
        response: String,
        max_cost: u64,
    },
    /// An estimate, settled when the response ends.
    Settled {
        /// What is charged before: a number of units, or where the request has it.
        estimate: String,
        /// What is charged in the end: where the response has it.
        actual: String,
        /// What is charged in the end if the response does not report its cost; null: the estimate.
        missing: Option<u64>,
        /// Maximum of both.
        max: u64,
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
    /// When the block of the caller ends, after too many refusals, in ms since the epoch; null without one.
    blocked_until_ms: Option<u64>,
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
    let loaded = shared.consumers.load_full();
    let looked_up = match &shared.consumer_store {
        Some(store) if loaded.is_in_store() => Some(store.named(name).await?),
        _ => None,
    };
    let found = looked_up.as_ref().unwrap_or(&loaded).consumer(name);
    let found = found.map_or(Consumer::new(name, None), |found| found.consumer);
    let plan = found.plan.filter(|plan| loaded.has_plan(plan));
    Ok(Some(Consumer { plan, ..found }.into()))
}

/// The quota that applies to the caller in `query`: that of an override, of the plan of `consumer`, or of the query's
/// tier.
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

fn describe_limit(policy: &LimitPolicy, metrics: &Metrics) -> LimitDescription {
    let limit = &policy.limit;
    let (quota, key) = (&limit.quota, &policy.key.0);
    let calendar = quota.algorithm.calendar();
    let (refund, charge_on) = match policy.refunds {
        Refunds::On(statuses) => (list_statuses(statuses), None),
        Refunds::Except(statuses) => (Vec::new(), Some(list_statuses(statuses))),
    };
    let candidate = policy.candidate.as_ref().map(|candidate| CandidateDescription {
        quota: candidate.limit.quota.limit,
        decisions: sum_decisions(candidate.limit.name(), metrics),
    });
    LimitDescription {
        name: limit.name().into(),
        algorithm: limit.algorithm().tag(),
        quota: quota.limit,
        window_ms: calendar.is_none().then_some(quota.window),
        calendar: calendar.map(|calendar| calendar.to_string()),
        resolution: quota.algorithm.resolution(),
        strict: quota.algorithm.is_strict(),
        key: key.iter().map(ToString::to_string).collect(),
        cost: describe_cost(&policy.cost),
        tiers: policy.tiers.iter().map(describe_tier).collect(),
        enforce: limit.enforce,
        candidate,
        refund,
        charge_on,
        block: limit.block.as_deref().map(describe_block),
        on_failure: match limit.on_failure {
            OnFailure::Local => "local",
            OnFailure::Open => "open",
            OnFailure::Closed => "closed",
        },
        decisions: sum_decisions(limit.name(), metrics),
    }
}

fn describe_block(block: &Limit) -> BlockDescription {
    BlockDescription {
        after: block.quota.limit,
        within_ms: block.quota.window,
        for_ms: block.algorithm().block_duration(),
    }
}

/// Statuses, as a configuration writes them.
fn list_statuses(statuses: StatusSet) -> Vec<String> {
    statuses.ranges().into_iter().map(|range| StatusSet::of([range]).to_string()).collect()
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
        Cost::Settled(settled) => CostDescription::Settled {
            estimate: describe_estimate(&settled.estimate),
            actual: describe_actual(&settled.actual),
            missing: settled.missing,
            max: settled.max,
        },
    }
}

fn describe_estimate(estimate: &CostEstimate) -> String {
    match estimate {
        CostEstimate::Units(units) => units.to_string(),
        CostEstimate::Header(name) => format!("header:{name}"),
        CostEstimate::Json(paths) => {
            let paths: Vec<_> = paths.iter().map(|path| format!("json:{path}")).collect();
            paths.join(", ")
        }
    }
}

fn describe_actual(actual: &ActualCost) -> String {
    match actual {
        ActualCost::Header(name) => format!("header:{name}"),
        ActualCost::Bytes => "bytes".to_owned(),
        ActualCost::DurationMs => "duration_ms".to_owned(),
        ActualCost::Json(paths, _) => {
            let paths: Vec<_> = paths.paths().iter().map(|path| format!("json:{path}")).collect();
            paths.join(", ")
        }
    }
}

fn describe_tier(tier: &Tier) -> TierDescription {
    let (part, values) = match &tier.matches {
        TierMatch::Part(part, values) => (part.to_string(), values.len()),
        TierMatch::Networks(networks) => ("client_ip".to_owned(), networks.len()),
    };
    let quota = tier.limit.as_ref().map(|limit| limit.quota.limit);
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
