//! `GET /api/upstreams`: the upstreams, their targets, and the health and load of each.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::AdminContext;
use crate::upstream::balance::Policy;
use crate::upstream::{EndpointSet, FAILURE_KINDS, Member, UpstreamState};

/// Lists the upstreams that have servers.
pub(super) async fn list(State(context): State<AdminContext>) -> Response {
    let upstreams = context.shared.upstreams.all();
    let upstreams: Vec<Value> = upstreams.iter().map(|state| describe(state)).collect();
    Json(json!({ "upstreams": upstreams })).into_response()
}

fn describe(state: &UpstreamState) -> Value {
    let (set, now, counts) = (state.endpoints(), state.now(), state.counts());
    let configured = set.servers.targets.iter().map(|own| own.target.to_string());
    let policy = match set.servers.policy {
        Policy::RoundRobin => "round_robin",
        Policy::LeastRequests => "least_requests",
        Policy::PeakEwma => "peak_ewma",
        Policy::Hash => "hash",
    };
    json!({
        "name": &*state.name,
        "balance": policy,
        "configured": configured.collect::<Vec<_>>(),
        "pending": counts.pending,
        "retries": counts.retries,
        "retry_budget_exhausted": counts.budget_exhausted,
        "overloaded": counts.overloaded,
        "refused_down": counts.down,
        "targets": set.members.iter().map(|own| describe_target(&set, own, now)).collect::<Vec<_>>(),
    })
}

fn describe_target(set: &EndpointSet, member: &Member, now: u64) -> Value {
    let endpoint = &member.state;
    let status = endpoint.view().status(now, set.servers.health.slow_start);
    let change = endpoint.last_change();
    let has_changed = change.at > 0;
    let failures = FAILURE_KINDS.into_iter().zip(endpoint.failures());
    let latency = endpoint.latency(now);
    json!({
        "target": &*endpoint.name,
        "url": endpoint.target.to_string(),
        "weight": member.weight,
        "priority": member.priority,
        "status": status.as_str(),
        "reason": has_changed.then_some(change.reason),
        "since_ms": has_changed.then_some(change.at),
        "in_flight": endpoint.in_flight(),
        "max_in_flight": endpoint.adaptive_limit().or(set.servers.bounds.max_requests),
        "connections": endpoint.connections(),
        "latency_ms": (latency > 0).then_some(latency as f64 / 1e3),
        "requests": endpoint.requests(),
        "failures": failures.collect::<std::collections::BTreeMap<_, _>>(),
        "ejections": endpoint.ejections(),
    })
}
