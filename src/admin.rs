//! The admin port: health, metrics and the control API. It has no authentication, so it belongs on loopback
//! or on a private network. It runs on the control thread.
//!
//! | module | purpose |
//! |---|---|
//! | `connections` | accepts connections within bounds of time, number and size |
//! | `guard` | refuses requests that a web page in a browser could make |
//! | `limits` | `/api/limits`: lists limits, shows and resets the counter of a caller |
//! | `metrics`, `throttle_metrics`, `upstream_metrics`, `encode` | `/metrics` |
//! | `upstreams` | `/api/upstreams`: lists upstreams and their targets, with health and load |
//! | `throttle` | `/api/throttle`: shows the throttle and sets its mode |

mod connections;
mod encode;
mod guard;
mod limits;
mod metrics;
mod throttle;
mod throttle_metrics;
mod upstream_metrics;
mod upstreams;

use std::{io, net::SocketAddr, sync::Arc, sync::atomic::Ordering};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::connections::ConnectionBounds;
pub use self::guard::AllowedHosts;
use crate::{
    gateway::Shared,
    reload::{ReloadError, Reloader},
};

/// The shared state of the handlers.
#[derive(Clone)]
struct AdminContext {
    shared: Arc<Shared>,
    reloader: Arc<Reloader>,
}

/// Opens the listener of the admin port.
///
/// # Errors
///
/// If the address cannot be bound.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The routes of the admin port. Requests with another `Host` than `hosts` allows are refused.
pub fn router(shared: Arc<Shared>, reloader: Arc<Reloader>, hosts: AllowedHosts) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics::scrape))
        .route("/api/limits", get(limits::list))
        .route("/api/limits/{name}", get(limits::show).delete(limits::reset))
        .route("/api/reload", post(reload))
        .route("/api/throttle", get(throttle::show).put(throttle::set))
        .route("/api/upstreams", get(upstreams::list))
        .route("/", get(index))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(AdminContext { shared, reloader })
        .layer(from_fn_with_state(hosts, guard::check_host_and_origin))
}

/// Serves `router` on `listener` until `stop` is cancelled.
pub async fn serve(listener: std::net::TcpListener, router: Router, stop: CancellationToken) {
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => {
            let serving = connections::serve(listener, router, ConnectionBounds::default());
            stop.run_until_cancelled(serving).await;
        }
        Err(error) => tracing::error!(%error, "the admin port cannot be served"),
    }
}

/// The requests of the admin API, one a line.
const INDEX: &str = "\
GET /healthz
GET /readyz
GET /metrics
GET /api/limits
GET, DELETE /api/limits/{name}
POST /api/reload
GET, PUT /api/throttle
GET /api/upstreams
";

/// Lists the requests, for an operator who opens the port.
async fn index() -> String {
    format!("The admin API of Tidegate. Its requests:\n\n{INDEX}")
}

async fn not_found() -> Response {
    let requests = INDEX.trim_end().replace('\n', "; ");
    let detail = format!("the admin API has no such path; expected one of: {requests}");
    problem(StatusCode::NOT_FOUND, &detail, &[])
}

async fn method_not_allowed() -> Response {
    let detail = "this path is not served for this method; expected one in the header Allow";
    problem(StatusCode::METHOD_NOT_ALLOWED, detail, &[])
}

/// Liveness: 200 as long as the control thread runs.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: 200 if workers accept connections and the throttle, if there is one, has loaded its filters. A
/// lost store is reported but does not make the gateway unready, because limits then follow `on_failure`.
async fn readyz(State(context): State<AdminContext>) -> Response {
    let workers = context.shared.accepting_workers.load(Ordering::Acquire);
    let store = context.shared.store.status();
    let throttle = context.shared.throttle.as_ref().map(|throttle| throttle.status());
    let ready = workers > 0 && throttle.is_none_or(|throttle| throttle.loaded);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let shards = context.shared.store.shards();
    let lost: Vec<&str> = shards.iter().filter(|s| !s.is_up).map(|s| &*s.name).collect();
    let body = json!({
        "ready": ready,
        "workers": workers,
        "generation": context.shared.live.generation(),
        "store": {
            "kind": if store.uses_redis { "redis" } else { "memory" },
            "healthy": store.is_healthy(),
            "workers_without_redis": store.lost_workers,
            "lost_shards": lost,
            "gateways": store.gateways,
        },
        "throttle": throttle.map(|throttle| json!({
            "loaded": throttle.loaded,
            "complete": throttle.complete,
        })),
    });
    (status, Json(body)).into_response()
}

/// Reloads the configuration file.
async fn reload(State(context): State<AdminContext>) -> Response {
    match context.reloader.reload().await {
        Ok(generation) => Json(json!({ "generation": generation })).into_response(),
        Err(ReloadError::Faults(faults)) => {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            let detail = "the configuration has faults; the running one stays";
            problem(StatusCode::BAD_REQUEST, detail, &faults)
        }
        Err(error @ ReloadError::Busy) => problem(StatusCode::CONFLICT, &error.to_string(), &[]),
        Err(error @ ReloadError::Thread(_)) => {
            problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[])
        }
    }
}

/// A problem document (RFC 9457), with the `faults` of the configuration if there are any.
fn problem(status: StatusCode, detail: &str, faults: &[String]) -> Response {
    let mut body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
    });
    if !faults.is_empty() {
        body["faults"] = json!(faults);
    }
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, kind, body.to_string()).into_response()
}
