//! `GET /api/routes`: the routes in force, and their responses.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde::Serialize;

use super::{AdminContext, metrics::CLASSES};
use crate::snapshot::{Action, Route};

/// The routes in force.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RouteList {
    /// In the configuration's order, which does not matter: a request takes the most specific
    /// route.
    routes: Vec<RouteDescription>,
}

/// A route.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RouteDescription {
    name: Box<str>,
    /// The host of matching requests; `*` is any.
    host: String,
    /// The pattern of matching paths.
    path: String,
    /// The methods of matching requests; empty: any.
    methods: Vec<String>,
    /// What answers the requests.
    #[cfg_attr(test, schemars(extend("enum" = ["upstream", "status", "redirect", "respond", "decide"])))]
    action: &'static str,
    /// The upstream's name; null for other actions.
    upstream: Option<Box<str>>,
    /// The limits that apply to the requests.
    limits: Vec<Box<str>>,
    /// True if active-user admission applies.
    throttle: bool,
    /// The responses since the start, by class, `1xx` to `5xx`.
    responses: BTreeMap<&'static str, u64>,
    /// Requests that `allow` and `deny` refused.
    denied: u64,
}

/// Lists the routes.
pub(super) async fn list(State(context): State<AdminContext>) -> Json<RouteList> {
    let snapshot = context.shared.live.snapshot();
    let (_, loaded) = context.reloader.live_config();
    let (responses, denied) = (context.shared.metrics.responses(), context.shared.metrics.denied());
    let matches = loaded.config.routes.iter().map(|route| (&*route.name, &route.matches));
    let matches: BTreeMap<_, _> = matches.collect();
    let describe = |route: &Route| {
        let own = matches.get(&*route.name);
        let counts = responses.get(&route.name).copied().unwrap_or_default();
        let (action, upstream) = describe_action(&route.action);
        RouteDescription {
            name: route.name.clone(),
            host: own.and_then(|own| own.host.clone()).unwrap_or_else(|| "*".to_owned()),
            path: route.edits.pattern.as_str().to_owned(),
            methods: own
                .map_or_else(Vec::new, |own| own.methods.iter().map(ToString::to_string).collect()),
            action,
            upstream,
            limits: route.limits.iter().map(|policy| policy.limit.name().into()).collect(),
            throttle: route.throttle && snapshot.throttle.is_some(),
            responses: CLASSES.into_iter().zip(counts).collect(),
            denied: denied.get(&route.name).map_or(0, |[count]| *count),
        }
    };
    Json(RouteList { routes: snapshot.routes.iter().map(|route| describe(route)).collect() })
}

fn describe_action(action: &Action) -> (&'static str, Option<Box<str>>) {
    match action {
        Action::Upstream(upstream) => ("upstream", Some(upstream.name.clone())),
        Action::Status(_) => ("status", None),
        Action::Redirect(_) => ("redirect", None),
        Action::Respond(_) => ("respond", None),
        Action::Decide(_) => ("decide", None),
    }
}
