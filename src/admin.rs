//! The admin port: health, metrics, the control API and the dashboard. Beyond loopback its requests
//! need a token. It runs on the control thread.
//!
//! | file | content |
//! |---|---|
//! | `connections` | accepts connections within bounds of time, number and size |
//! | `listener` | a TCP or a unix socket |
//! | `guard` | refuses requests that a web page in a browser could make |
//! | `token` | refuses requests without the token |
//! | `endpoints` | the table of paths and handlers |
//! | `openapi` | `/api/openapi.json`: the description of all requests, from a file |
//! | `problem` | errors |
//! | `health` | `/healthz`, `/readyz` |
//! | `metrics`, `jwt_metrics`, `throttle_metrics`, `trace_metrics`, `upstream_metrics`, `process_metrics` | `/metrics`: its families |
//! | `encode`, `exemplars`, `exposition` | `/metrics`: the encoding of families, and the formats |
//! | `live_config` | `/api/config`: the configuration in force, credentials masked |
//! | `routes` | `/api/routes`: lists routes and their responses |
//! | `acme` | `/api/acme`: lists and renews the certificates that are ordered; their metrics |
//! | `blocks` | `/api/blocks`: lists blocked callers, lifts a block |
//! | `parameters` | values of parameters that several requests have |
//! | `limits`, `limit_description`, `caller` | `/api/limits`: lists limits, shows and resets a caller's counter |
//! | `overrides` | `/api/overrides`: lists, sets and lifts overrides of quotas |
//! | `consumers` | `/api/consumers`: consumers in Redis, and their keys |
//! | `upstreams` | `/api/upstreams`: lists upstreams and their targets, with health and load |
//! | `throttle` | `/api/throttle`: shows the throttle and sets its mode |
//! | `reload` | `/api/reload` |
//! | `log_level` | `/api/log_level`: shows and sets the filter of the process log |
//! | `state`, `events` | `/api/state`, and the same once a second for the dashboard |
//! | `dashboard` | `/`: the dashboard's files |

mod acme;
mod blocks;
mod caller;
mod connections;
mod consumers;
mod dashboard;
mod encode;
mod endpoints;
mod events;
mod exemplars;
mod exposition;
mod guard;
mod health;
mod jwt_metrics;
mod limit_description;
mod limits;
mod listener;
mod live_config;
mod log_level;
mod metrics;
mod openapi;
mod overrides;
mod parameters;
mod problem;
mod process_metrics;
mod reload;
mod routes;
mod state;
mod throttle;
mod throttle_metrics;
mod token;
mod trace_metrics;
mod upstream_metrics;
mod upstreams;

use std::sync::Arc;

use axum::{Router, http::StatusCode, middleware::from_fn_with_state, response::Response};
use tokio_util::sync::CancellationToken;

use self::{connections::ConnectionBounds, events::Events, problem::problem};
pub use self::{
    connections::MAX_CONNECTIONS,
    guard::AllowedHosts,
    listener::{AdminListener, BoundAddress},
    token::{AdminToken, TokenError},
};
use crate::{gateway::Shared, reload::Reloader};

/// The longest body of a request, in bytes.
const MAX_ADMIN_BODY: usize = 1024 * 1024;

/// The requests that the admin port accepts.
#[derive(Clone, Debug)]
pub struct AdminAccess {
    /// The hosts that requests may name.
    pub hosts: AllowedHosts,
    /// The token that requests need.
    pub token: AdminToken,
}

/// The shared state of the handlers.
#[derive(Clone)]
struct AdminContext {
    shared: Arc<Shared>,
    reloader: Arc<Reloader>,
    events: Events,
}

/// The routes of the admin port. Requests that `access` does not allow are refused.
pub fn router(shared: Arc<Shared>, reloader: Arc<Reloader>, access: AdminAccess) -> Router {
    let description = openapi::read();
    let text = openapi::text(&description, access.token.authentication());
    let endpoints = endpoints::all(text);
    let index = openapi::index(&description, &endpoints);
    let router = endpoints
        .into_iter()
        .fold(Router::new(), |router, endpoint| router.route(endpoint.path, endpoint.handlers));
    router
        .fallback(async move || not_found(&index))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(AdminContext { shared, reloader, events: Events::default() })
        // A request passes the last layer first.
        .layer(from_fn_with_state(access.token, token::check_token))
        .layer(from_fn_with_state(access.hosts, guard::check_host_and_origin))
}

/// Cancelled to end the control thread's services.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// Ends all services, after the workers have ended.
    pub all: CancellationToken,
    /// Only stops accepting admin connections, because a successor has their listener.
    pub admin: CancellationToken,
}

/// Serves `router` on `listener` until `stops` end it, with the certificates of the running
/// configuration.
pub async fn serve(listener: AdminListener, router: Router, shared: Arc<Shared>, stops: Stops) {
    match listener.into_accepting() {
        Ok(listener) => {
            let tls = move || shared.live.snapshot().admin_tls.clone();
            let bounds = ConnectionBounds::default();
            let serving = connections::serve(listener, router, tls, bounds, stops.admin);
            stops.all.run_until_cancelled(serving).await;
        }
        Err(error) => tracing::error!(%error, "the admin port cannot be served"),
    }
}

fn not_found(index: &str) -> Response {
    let detail = format!("the admin API has no such path; expected one of: {index}");
    problem(StatusCode::NOT_FOUND, &detail, &[])
}

async fn method_not_allowed() -> Response {
    let detail = "this path is not served for this method; expected one in the header Allow";
    problem(StatusCode::METHOD_NOT_ALLOWED, detail, &[])
}
