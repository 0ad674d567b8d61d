//! `GET /api/upstreams`: the upstreams, their targets, and the health and load of each.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde::Serialize;

use super::AdminContext;
use crate::balance::Policy;
use crate::clock::{CoarseTime, StoreTime};
use crate::priority::Priority;
use crate::upstream::{EndpointSet, FAILURE_KINDS, Member, UpstreamRuntime};

/// The upstreams that have servers.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct UpstreamList {
    upstreams: Vec<UpstreamDescription>,
}

/// An upstream and its targets.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct UpstreamDescription {
    name: Box<str>,
    /// How a target is chosen.
    #[cfg_attr(test, schemars(extend("enum" = ["round_robin", "least_requests", "peak_ewma", "hash"])))]
    balance: &'static str,
    /// The targets as configured: names may have several addresses.
    configured: Vec<String>,
    /// Requests that wait for a target with room.
    pending: u32,
    retries: u64,
    retry_budget_exhausted: u64,
    /// Requests refused because no target had room.
    overloaded: u64,
    /// `overloaded` by priority, without priorities of which no request was refused.
    shed: BTreeMap<u8, u64>,
    /// Requests that were refused because all targets were down.
    refused_down: u64,
    targets: Vec<TargetDescription>,
}

/// A target: an address that requests are sent to.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TargetDescription {
    target: Box<str>,
    url: String,
    weight: u32,
    priority: u16,
    /// The target's service level.
    status: &'static str,
    /// The reason of the last change of status; null before the first.
    reason: Option<String>,
    /// The time of the last change of status, in ms since the epoch; null before the first.
    since_ms: Option<u64>,
    in_flight: u32,
    /// The bound on requests in flight; null: none.
    max_in_flight: Option<u32>,
    /// Open connections, idle ones included.
    connections: u32,
    /// The moving average of the time to the response's head: it follows peaks at once and falls
    /// slowly. Null before the first response.
    latency_ms: Option<f64>,
    requests: u64,
    failures: BTreeMap<&'static str, u64>,
    ejections: u64,
}

/// Lists the upstreams that have servers.
pub(super) async fn list(State(context): State<AdminContext>) -> Json<UpstreamList> {
    let upstreams = context.shared.upstreams.all();
    Json(UpstreamList { upstreams: upstreams.iter().map(|state| describe(state)).collect() })
}

/// The state of an upstream.
pub(super) fn describe(state: &UpstreamRuntime) -> UpstreamDescription {
    let (set, now, counts) = (state.endpoints(), state.now(), state.counts());
    let configured = set.servers.targets.iter().map(|own| own.target.to_string());
    UpstreamDescription {
        name: state.name.clone(),
        balance: match set.servers.policy {
            Policy::RoundRobin => "round_robin",
            Policy::LeastRequests => "least_requests",
            Policy::PeakEwma => "peak_ewma",
            Policy::Hash => "hash",
        },
        configured: configured.collect(),
        pending: counts.pending,
        retries: counts.retries,
        retry_budget_exhausted: counts.budget_exhausted,
        overloaded: counts.overloaded(),
        shed: Priority::all()
            .map(Priority::number)
            .zip(counts.shed)
            .filter(|(_, refused)| *refused > 0)
            .collect(),
        refused_down: counts.down,
        targets: set.members.iter().map(|own| describe_target(&set, own, now)).collect(),
    }
}

fn describe_target(set: &EndpointSet, member: &Member, now: CoarseTime) -> TargetDescription {
    let endpoint = &member.state;
    let status = endpoint.view().status(now, set.servers.health.slow_start);
    let change = endpoint.last_change();
    TargetDescription {
        target: endpoint.name.clone(),
        url: endpoint.target.to_string(),
        weight: member.weight,
        priority: member.priority,
        status: status.as_str(),
        reason: change.at.map(|_| change.reason),
        since_ms: change.at.map(StoreTime::as_unix_ms),
        in_flight: endpoint.in_flight(),
        max_in_flight: endpoint.adaptive_limit().or(set.servers.bounds.max_requests),
        connections: endpoint.connections(),
        latency_ms: endpoint.observed_latency().map(|micros| micros as f64 / 1e3),
        requests: endpoint.requests(),
        failures: FAILURE_KINDS.into_iter().zip(endpoint.failures()).collect(),
        ejections: endpoint.ejections(),
    }
}
