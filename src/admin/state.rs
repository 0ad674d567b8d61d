//! `GET /api/state`: the gateway's counts and states in one document. The dashboard reads it once a
//! second and computes rates from it. Lists are bounded, so that a large configuration does not
//! make it large.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    AdminContext,
    limit_description::{Decisions, SettledUnits, sum_settled},
    metrics::CLASSES,
    throttle::{self, ThrottleDescription},
    upstreams::{self, UpstreamDescription},
};
use crate::{
    gateway::Shared,
    metrics::{LATENCY_BOUNDS, Metrics, REFUSED_WINDOW},
    redis::RedisFailure,
    reload::Reloader,
};

/// The maximum number of listed limits.
const MAX_LIMITS: usize = 50;
/// The maximum number of listed callers.
const MAX_CALLERS: usize = 20;
/// The maximum number of listed upstreams.
const MAX_UPSTREAMS: usize = 50;

/// The state of the gateway. Counts begin with its start, as in `/metrics`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct GatewayState {
    /// The gateway's time, in ms since the epoch.
    now_ms: u64,
    /// The time since the gateway's start.
    uptime_ms: u64,
    version: &'static str,
    configuration: Configuration,
    connections: ConnectionCounts,
    requests: Requests,
    /// The limits that refused most, at most 50.
    limits: Vec<LimitState>,
    /// The number of limits that are not listed.
    omitted_limits: usize,
    /// The callers that limits and the throttle refused most of late, at most 20.
    refused_callers: Vec<RefusedCallerState>,
    /// The window of `refused_callers`, which covers the current and the previous window.
    refused_window_ms: u64,
    /// Null without a throttle.
    throttle: Option<ThrottleState>,
    /// At most 50.
    upstreams: Vec<UpstreamDescription>,
    /// The number of upstreams that are not listed.
    omitted_upstreams: usize,
    store: StoreState,
    overrides: OverridesState,
}

/// The overrides that `/api/overrides` lists.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OverridesState {
    /// Where they are kept: `redis`, `file`, or `none` if they cannot be set.
    #[cfg_attr(test, schemars(extend("enum" = ["redis", "file", "none"])))]
    place: &'static str,
    /// The number of all overrides.
    total: usize,
    /// The number of overrides that have not ended.
    in_force: usize,
    /// Grows with each change.
    version: u64,
}

/// The configuration in force, and the last reload.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Configuration {
    /// 1 at the start, 1 more after each reload.
    generation: u64,
    reloads_applied: u64,
    reloads_faulty: u64,
    /// Null before the first reload.
    last_reload: Option<LastReload>,
}

/// How the last reload ended.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LastReload {
    /// The time of the reload, in ms since the epoch.
    at_ms: u64,
    /// Why the running configuration stayed; empty if the reload was applied.
    faults: Vec<String>,
}

/// Client connections.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ConnectionCounts {
    open: u64,
    accepted: u64,
    /// Refused because their client had too many.
    refused: u64,
    /// Open tunnels, such as `WebSocket` connections.
    tunnels: u64,
}

/// Requests over all routes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Requests {
    /// Responses by class, `1xx` to `5xx`.
    responses: BTreeMap<&'static str, u64>,
    latency: Latency,
    /// Requests that leaky buckets delay now.
    delayed: u64,
}

/// A histogram of the times from a request's head to its response's last byte.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Latency {
    /// The upper bounds of all buckets except the last, which has none.
    bounds_seconds: &'static [f64],
    /// The number of requests in each bucket, not cumulative.
    counts: Vec<u64>,
    sum_seconds: f64,
}

/// A limit's decisions over all routes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LimitState {
    name: Box<str>,
    #[serde(flatten)]
    decisions: Decisions,
    /// Costs that are settled when responses end; absent if the limit has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<SettledUnits>,
}

/// A caller that was refused.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RefusedCallerState {
    /// The limit, or `active-users` for the throttle.
    limit: String,
    /// The caller's keyed hash, for `/api/limits/{name}?hash=`; for the throttle, the key of limits
    /// by `token`.
    hash: String,
    /// The consumer's name, if the limit counts consumers.
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<Box<str>>,
    /// The number of refusals: too large by at most `error`.
    refused: u64,
    error: u64,
}

/// The throttle and its decisions.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ThrottleState {
    #[serde(flatten)]
    description: ThrottleDescription,
    /// Requests while throttling, by decision: `known` requests were admitted, all others denied.
    decisions: BTreeMap<&'static str, u64>,
}

/// The counter store.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StoreState {
    #[cfg_attr(test, schemars(extend("enum" = ["memory", "redis"])))]
    kind: &'static str,
    healthy: bool,
    /// Requests that it decided, refused ones included.
    requests: u64,
    /// Requests that were charged to a limit: not refused, and not admitted without a decision.
    charged_requests: u64,
    /// Calls to Redis for decisions and for leases.
    redis_calls: u64,
    /// Charges from leased units, without a call.
    leased_charges: u64,
    /// Requests that got no decision from Redis, by kind.
    failures: BTreeMap<&'static str, u64>,
    /// Gateways alive on the same Redis.
    gateways: u32,
    workers_without_redis: usize,
    /// The Redis servers.
    servers: Vec<RedisServer>,
}

/// A Redis server.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RedisServer {
    name: Box<str>,
    /// `closed` while requests use the server; otherwise `open`.
    #[cfg_attr(test, schemars(extend("enum" = ["closed", "open"])))]
    breaker: &'static str,
    /// Calls that were sent to it.
    calls: u64,
}

/// Shows the state.
pub(super) async fn show(State(context): State<AdminContext>) -> Response {
    let state = read(&context.shared, &context.reloader);
    ([(header::CACHE_CONTROL, "no-store")], Json(state)).into_response()
}

/// The current state.
pub(super) fn read(shared: &Shared, reloader: &Reloader) -> GatewayState {
    let (metrics, now) = (&shared.metrics, shared.clock.store_time());
    let [open, accepted, refused, _] = metrics.connections();
    let (limits, omitted_limits) = limits(shared);
    let all_upstreams = shared.upstreams.all();
    let refused_callers = metrics.refused_callers(now, MAX_CALLERS).into_iter();
    GatewayState {
        now_ms: now.as_unix_ms(),
        uptime_ms: u64::try_from(shared.clock.uptime().as_duration().as_millis())
            .unwrap_or(u64::MAX),
        version: env!("CARGO_PKG_VERSION"),
        configuration: Configuration {
            generation: shared.live.generation(),
            reloads_applied: metrics.reloads.load(Ordering::Relaxed),
            reloads_faulty: metrics.reload_faults.load(Ordering::Relaxed),
            last_reload: reloader
                .last_outcome()
                .map(|last| LastReload { at_ms: last.at, faults: last.faults }),
        },
        connections: ConnectionCounts { open, accepted, refused, tunnels: metrics.tunnels() },
        requests: requests(metrics),
        limits,
        omitted_limits,
        refused_callers: refused_callers
            .map(|caller| RefusedCallerState {
                limit: caller.limit,
                hash: format!("{:032x}", caller.key),
                consumer: caller.consumer,
                refused: caller.refusals,
                error: caller.error,
            })
            .collect(),
        refused_window_ms: REFUSED_WINDOW.as_ms(),
        throttle: shared.throttle.as_ref().map(|own| ThrottleState {
            description: throttle::describe(own, metrics),
            decisions: throttle::DECISIONS.into_iter().zip(metrics.throttle()).collect(),
        }),
        upstreams: all_upstreams
            .iter()
            .take(MAX_UPSTREAMS)
            .map(|own| upstreams::describe(own))
            .collect(),
        omitted_upstreams: all_upstreams.len().saturating_sub(MAX_UPSTREAMS),
        store: store(shared),
        overrides: overrides(shared),
    }
}

fn overrides(shared: &Shared) -> OverridesState {
    let set = shared.overrides.set();
    OverridesState {
        place: shared.override_store.label(),
        total: set.len(),
        in_force: set.count_in_force(shared.clock.store_time()),
        version: shared.overrides.changes(),
    }
}

fn requests(metrics: &Metrics) -> Requests {
    let mut responses = [0; CLASSES.len()];
    for counts in metrics.responses().values() {
        responses.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let mut latency = [0; LATENCY_BOUNDS.len() + 2];
    for counts in metrics.latencies().values() {
        latency.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [counts @ .., micros] = latency;
    Requests {
        responses: CLASSES.into_iter().zip(responses).collect(),
        latency: Latency {
            bounds_seconds: &LATENCY_BOUNDS,
            counts: counts.to_vec(),
            sum_seconds: micros as f64 / 1e6,
        },
        delayed: metrics.waiting(),
    }
}

/// The limits with the most refusals, and the number of the others. An unused limit has no
/// refusals.
fn limits(shared: &Shared) -> (Vec<LimitState>, usize) {
    let snapshot = shared.live.snapshot();
    let names = snapshot.limits.iter().map(|policy| (policy.limit.name(), [0; 4]));
    let mut sums: BTreeMap<&str, [u64; 4]> = names.collect();
    let metered = snapshot.limits.iter().filter(|policy| policy.cost.is_settled());
    let metered: BTreeSet<&str> = metered.map(|policy| policy.limit.name()).collect();
    let settlements = shared.metrics.settlements();
    let decisions = shared.metrics.decisions();
    for ((_, limit), counts) in &decisions {
        if let Some(sum) = sums.get_mut(&**limit) {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    let omitted = sums.len().saturating_sub(MAX_LIMITS);
    let mut all: Vec<(&str, [u64; 4])> = sums.into_iter().collect();
    all.sort_by_key(|(_, [_, refused, _, would])| std::cmp::Reverse((*refused, *would)));
    let describe = |(name, [admitted, refused, unknown, would_refuse]): (&str, [u64; 4])| {
        let decisions = Decisions { admitted, refused, unknown, would_refuse };
        let settled = metered.contains(name).then(|| sum_settled(name, &settlements));
        LimitState { name: name.into(), decisions, settled }
    };
    (all.into_iter().take(MAX_LIMITS).map(describe).collect(), omitted)
}

fn store(shared: &Shared) -> StoreState {
    let (status, stats) = (shared.store.status(), shared.store.stats());
    let servers = shared.store.shards().into_iter().map(|server| RedisServer {
        name: server.name,
        breaker: if server.is_up { "closed" } else { "open" },
        calls: server.calls,
    });
    StoreState {
        kind: if status.uses_redis { "redis" } else { "memory" },
        healthy: status.is_healthy(),
        requests: stats.requests,
        charged_requests: stats.charged_requests,
        redis_calls: stats.store_calls,
        leased_charges: stats.leased_charges,
        failures: RedisFailure::ALL
            .into_iter()
            .map(|failure| (failure.label(), stats.failures[failure.index()]))
            .collect(),
        gateways: stats.gateways,
        workers_without_redis: status.lost_workers,
        servers: servers.collect(),
    }
}
