//! `GET /healthz` and `GET /readyz`: the probes of orchestrators, which need no token.

use std::sync::atomic::Ordering;

use axum::{
    Extension, Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{AdminContext, throttle::rounded, token::IsAuthenticated};
use crate::{
    gateway::Shared,
    throttle::{CapacityState, Throttle},
};

/// The gateway's readiness, and its reasons. Without the admin token only `ready` is present.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Readiness {
    /// True if workers accept connections, the throttle, if there is one, has loaded its filters,
    /// and the gateway was not asked to stop.
    ready: bool,
    #[serde(flatten)]
    details: Option<Details>,
}

/// The state of the gateway's parts, for the operator.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Details {
    /// The number of workers that accept connections.
    workers: u64,
    /// The generation of the configuration, from 1.
    generation: u64,
    store: StoreHealth,
    /// Null without a throttle.
    throttle: Option<ThrottleHealth>,
    /// The first domain of each certificate that is ordered by ACME and not there yet. It does not
    /// make the gateway unready, because the authority asks the gateway before it issues the
    /// certificate.
    awaited_certificates: Vec<Box<str>>,
    /// Why certificates cannot be exchanged with other gateways through Redis: it does not answer,
    /// or a record there was sealed with another `storage_key`. Null if they can, or need not. The
    /// current ones stay, and the gateway is ready.
    certificate_storage_note: Option<String>,
}

/// The health of the counter store.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StoreHealth {
    /// Where limits keep their counters.
    #[cfg_attr(test, schemars(extend("enum" = ["memory", "redis"])))]
    kind: &'static str,
    healthy: bool,
    workers_without_redis: usize,
    /// The Redis servers that are down.
    lost_shards: Vec<Box<str>>,
    /// Gateways alive on the same store.
    gateways: u32,
}

/// The state of the throttle's filters.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ThrottleHealth {
    /// True if the filters are loaded.
    loaded: bool,
    /// True if they hold all activity within `throttle.memory`.
    complete: bool,
    /// The share of unknown tokens that pass as active, measured from the fill of the filters.
    false_positive: f64,
    /// The problem of the filters; null without one. A problem does not make the gateway unready.
    note: Option<String>,
}

/// Liveness: 200 as long as the control thread runs.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: 200 if workers accept connections, the throttle, if there is one, has loaded its
/// filters, and the gateway was not asked to stop. A lost store is reported but does not make the
/// gateway unready, because limits then follow `on_failure`.
pub(super) async fn readyz(
    State(context): State<AdminContext>,
    Extension(IsAuthenticated(is_authenticated)): Extension<IsAuthenticated>,
) -> Response {
    let shared = &context.shared;
    let workers = shared.accepting_workers.load(Ordering::Acquire);
    let is_loaded = shared.throttle.as_ref().is_none_or(|throttle| throttle.status().loaded);
    let ready = workers > 0 && is_loaded && !shared.leaving.is_cancelled();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let details = is_authenticated.then(|| details(shared, workers));
    (status, Json(Readiness { ready, details })).into_response()
}

fn details(shared: &Shared, workers: u64) -> Details {
    let store = shared.store.status();
    let shards = shared.store.shards().into_iter();
    let throttle = shared.throttle.as_ref();
    Details {
        workers,
        generation: shared.live.generation(),
        store: StoreHealth {
            kind: if store.uses_redis { "redis" } else { "memory" },
            healthy: store.is_healthy(),
            workers_without_redis: store.lost_workers,
            lost_shards: shards.filter(|shard| !shard.is_up).map(|shard| shard.name).collect(),
            gateways: store.gateways,
        },
        throttle: throttle.map(|throttle| throttle_health(throttle.as_ref())),
        awaited_certificates: awaited_certificates(shared),
        certificate_storage_note: certificate_storage_note(shared),
    }
}

fn certificate_storage_note(shared: &Shared) -> Option<String> {
    let status = shared.acme.shared_storage()?;
    let lost = status.failure.map(|failure| {
        format!(
            "Redis cannot be used for certificates ({failure}): the current ones stay, and none is ordered"
        )
    });
    lost.or_else(|| (!status.conflicts.is_empty()).then(|| status.conflicts.join("; ")))
}

fn awaited_certificates(shared: &Shared) -> Vec<Box<str>> {
    let reports = shared.acme.reports().into_iter();
    let awaited = reports.filter(|report| report.not_after.is_none());
    awaited.filter_map(|report| report.settings.domains.first().cloned()).collect()
}

fn throttle_health(throttle: &Throttle) -> ThrottleHealth {
    let (status, settings) = (throttle.status(), throttle.settings());
    let false_positive = rounded(status.false_positive);
    let note = (status.capacity == CapacityState::Exceeded).then(|| {
        format!(
            "{} % of unknown tokens pass as active, of {} % configured: more tokens a minute come than \
             filters of `throttle.capacity` and `throttle.max_memory` can hold",
            rounded(false_positive * 100.0),
            rounded(settings.sizing.false_positive * 100.0)
        )
    });
    ThrottleHealth { loaded: status.loaded, complete: status.complete, false_positive, note }
}
