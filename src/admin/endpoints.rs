//! The table of the admin API's endpoints. `openapi` describes the same requests.

use axum::{
    body::Bytes,
    http::header,
    routing::{MethodRouter, delete, get, post},
};

use super::{
    AdminContext, acme, blocks, consumers, dashboard, events, health, limits, live_config,
    log_level, metrics, overrides, reload, routes, state, throttle, upstreams,
};

/// A path and its handlers.
pub(super) struct AdminEndpoint {
    pub(super) path: &'static str,
    pub(super) handlers: MethodRouter<AdminContext>,
}

/// All endpoints; `description` is their `OpenAPI` description.
pub(super) fn all(description: Bytes) -> Vec<AdminEndpoint> {
    let page = |file| get(async move || dashboard::serve(file));
    let json = [(header::CONTENT_TYPE, "application/json")];
    let all = [
        ("/", page(dashboard::HTML)),
        ("/dashboard.css", page(dashboard::CSS)),
        ("/dashboard.js", page(dashboard::JS)),
        ("/favicon.svg", page(dashboard::ICON)),
        ("/healthz", get(health::healthz)),
        ("/readyz", get(health::readyz)),
        ("/metrics", get(metrics::scrape)),
        ("/api/state", get(state::show)),
        ("/api/events", get(events::stream)),
        ("/api/upstreams", get(upstreams::list)),
        ("/api/config", get(live_config::show)),
        ("/api/routes", get(routes::list)),
        ("/api/limits", get(limits::list)),
        ("/api/limits/{name}", get(limits::show).delete(limits::reset)),
        ("/api/reload", post(reload::reload)),
        ("/api/throttle", get(throttle::show).put(throttle::set)),
        ("/api/log_level", get(log_level::show).put(log_level::set)),
        ("/api/overrides", get(overrides::list).put(overrides::set)),
        ("/api/overrides/{id}", delete(overrides::lift)),
        ("/api/blocks", get(blocks::list)),
        ("/api/blocks/{name}", delete(blocks::lift)),
        ("/api/acme", get(acme::list)),
        ("/api/acme/renew", post(acme::renew)),
        ("/api/consumers", post(consumers::put)),
        ("/api/consumers/{name}", get(consumers::show).delete(consumers::delete)),
        ("/api/consumers/{name}/keys", post(consumers::add_key)),
        ("/api/consumers/{name}/keys/{key}", delete(consumers::remove_key)),
        ("/api/openapi.json", get(async move || (json, description))),
    ];
    all.into_iter().map(|(path, handlers)| AdminEndpoint { path, handlers }).collect()
}
