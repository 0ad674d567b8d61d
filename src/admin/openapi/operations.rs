//! The descriptions of the admin API's requests.

use schemars::json_schema;

use super::{
    operation::{EndpointDescription, Operation, OperationBody, schema_of},
    request_bodies::{self, HASH},
};
use crate::admin::{
    acme, blocks, consumers, dashboard, health, limits, live_config, log_level, overrides, reload,
    routes, state, throttle, upstreams,
};

/// The pattern of the id of an override.
const ID: &str = "^[0-9a-f]{32}$";
/// The pattern of a number of items: 1 to 1000.
const COUNT: &str = "^([1-9][0-9]{0,2}|1000)$";
/// The pattern of the index of a tier, which the limit must have.
const TIER: &str = "^(0|[1-9][0-9]{0,4})$";

fn endpoint(path: &'static str, operations: impl Into<Vec<Operation>>) -> EndpointDescription {
    EndpointDescription { path, operations: operations.into() }
}

/// The descriptions of all endpoints.
pub(super) fn all() -> Vec<EndpointDescription> {
    let mut all = vec![
        page("/", "dashboard", dashboard::HTML),
        page("/dashboard.css", "dashboardStyle", dashboard::CSS),
        page("/dashboard.js", "dashboardScript", dashboard::JS),
        page("/favicon.svg", "dashboardIcon", dashboard::ICON),
    ];
    all.extend(observation());
    all.extend(rules());
    all.extend(control());
    all.extend(override_endpoints());
    all.extend(block_endpoints());
    all.extend(acme_endpoints());
    all.extend(consumer_endpoints());
    let description = Operation::get("openapi", "This description").json(
        200,
        "An OpenAPI 3.1 document",
        |_| json_schema!({ "type": "object", "required": ["openapi", "paths"] }),
    );
    all.push(endpoint("/api/openapi.json", [description]));
    all
}

/// A file of the dashboard.
fn page(
    path: &'static str,
    id: &'static str,
    file: dashboard::DashboardFile,
) -> EndpointDescription {
    let summary = "A file of the dashboard, which is at /";
    let operation =
        Operation::get(id, summary).reply(200, summary, OperationBody::Text(file.media));
    endpoint(path, [operation])
}

/// The endpoints that show the gateway's health, counts and state.
fn observation() -> [EndpointDescription; 6] {
    let alive = Operation::get("healthz", "Liveness");
    let ready = Operation::get("readyz", "Readiness; without the token only `ready`");
    let metrics = Operation::get("metrics", "Metrics for Prometheus");
    let state = Operation::get("state", "What the dashboard shows: counts since the start");
    let events = Operation::get("events", "`/api/state` once a second, as server-sent events");
    let upstreams = Operation::get("listUpstreams", "The upstreams, their targets and health");
    let [text, openmetrics] =
        ["text/plain", "application/openmetrics-text"].map(OperationBody::Text);
    let described = "In the format that `Accept` asks for, by default Prometheus' text format";
    [
        endpoint(
            "/healthz",
            [alive.reply(200, "The process lives", OperationBody::Text("text/plain"))],
        ),
        endpoint(
            "/readyz",
            [ready.json(200, "Ready", schema_of::<health::Readiness>).json(
                503,
                "Not ready",
                schema_of::<health::Readiness>,
            )],
        ),
        endpoint(
            "/metrics",
            [metrics.reply(200, described, text).reply(200, described, openmetrics)],
        ),
        endpoint("/api/state", [state.json(200, "The state", schema_of::<state::GatewayState>)]),
        endpoint(
            "/api/events",
            [events
                .reply(200, "A stream without end", OperationBody::Text("text/event-stream"))
                .error(403, "A web page of another origin sent the request")
                .error(503, "Too many subscribers")],
        ),
        endpoint(
            "/api/upstreams",
            [upstreams.json(200, "The upstreams", schema_of::<upstreams::UpstreamList>)],
        ),
    ]
}

/// The endpoints of the current rules and their counts.
fn rules() -> [EndpointDescription; 4] {
    let config = Operation::get("config", "The configuration in force, credentials masked");
    let routes = Operation::get("listRoutes", "The routes in force and their responses");
    let list = Operation::get("listLimits", "The limits in force and their decisions");
    let show = Operation::get("showCaller", "The count of one caller; charges nothing");
    let reset = Operation::new("delete", "resetCaller", "Reset the count of one caller");
    [
        endpoint(
            "/api/config",
            [config
                .json(200, "The configuration", schema_of::<live_config::ConfigView>)
                .error(500, "The configuration cannot be shown")],
        ),
        endpoint("/api/routes", [routes.json(200, "The routes", schema_of::<routes::RouteList>)]),
        endpoint("/api/limits", [list.json(200, "The limits", schema_of::<limits::LimitList>)]),
        endpoint(
            "/api/limits/{name}",
            [
                caller(show).json(200, "The count", schema_of::<limits::CallerState>),
                caller(reset).reply(204, "The count is reset", OperationBody::None),
            ],
        ),
    ]
}

/// Adds the parameters and errors of a request for one caller under one limit.
fn caller(operation: Operation) -> Operation {
    operation
        .parameter("name", "The limit's name", "")
        .parameter(
            "key",
            "The value of each part of the limit's key, in its order; not with `hash`",
            "",
        )
        .parameter("client_ip", "The caller's address, if all parts are empty; not with `hash`", "")
        .parameter("hash", "The caller's keyed hash, instead of `key` and `client_ip`", HASH)
        .parameter("consumer", "The caller's consumer, if no part of the key names it", "")
        .parameter("tier", "The index of the caller's tier", TIER)
        .error(400, "The query names no caller, or has `hash` together with `key` or `client_ip`")
        .error(404, "No limit has this name")
        .error(503, "No reply from Redis")
}

/// The endpoints of overrides.
fn override_endpoints() -> [EndpointDescription; 2] {
    let list = Operation::get("listOverrides", "The quotas that operators have set at run time")
        .parameter("after", "List the overrides after this id: `next` of another list", ID)
        .parameter("count", "The largest number to list; by default 1000", COUNT);
    let set = Operation::new("put", "setOverride", "Set the quota of a consumer, a key or a plan");
    let lift = Operation::new("delete", "liftOverride", "Lift an override").parameter(
        "id",
        "The override's id",
        ID,
    );
    let described = schema_of::<overrides::OverrideDescription>;
    [
        endpoint(
            "/api/overrides",
            [
                list.json(200, "Overrides", schema_of::<overrides::OverrideList>)
                    .error(400, "A parameter is unknown or malformed"),
                set.body(schema_of::<request_bodies::NewOverride>)
                    .json(200, "The override is in force", described)
                    .error(400, "The body is malformed, or the quota does not fit the limit")
                    .error(404, "No limit has this name")
                    .error(409, "There is no place for overrides, there are too many, or their file has faults")
                    .error(500, "The file of overrides cannot be written")
                    .error(503, "No reply from Redis"),
            ],
        ),
        endpoint(
            "/api/overrides/{id}",
            [lift
                .reply(204, "The override is lifted", OperationBody::None)
                .error(400, "The path has no id")
                .error(404, "No override has this id")
                .error(409, "There is no place for overrides, or their file has faults")
                .error(500, "The file of overrides cannot be written")
                .error(503, "No reply from Redis")],
        ),
    ]
}

/// The endpoints of blocked callers.
fn block_endpoints() -> [EndpointDescription; 2] {
    let list =
        Operation::get("listBlocks", "The callers that limits block, as far as this gateway knows")
            .parameter("count", "The largest number to list; by default 1000", COUNT);
    let lift = Operation::new("delete", "liftBlock", "Lift the block of one caller");
    [
        endpoint(
            "/api/blocks",
            [list
                .json(200, "Blocks", schema_of::<blocks::BlockList>)
                .error(400, "A parameter is unknown or malformed")],
        ),
        endpoint(
            "/api/blocks/{name}",
            [caller(lift)
                .reply(204, "The caller is not blocked", OperationBody::None)
                .error(409, "The limit has no block")],
        ),
    ]
}

/// The endpoints of certificates that are ordered.
fn acme_endpoints() -> [EndpointDescription; 2] {
    let list =
        Operation::get("listOrderedCertificates", "The certificates that are ordered by ACME");
    let renew = Operation::new("post", "renewCertificates", "Order new certificates now")
        .parameter("domain", "Only certificates with this domain; by default all", "");
    [
        endpoint(
            "/api/acme",
            [list.json(200, "The certificates", schema_of::<acme::OrderedCertificates>)],
        ),
        endpoint(
            "/api/acme/renew",
            [renew
                .json(202, "The certificates are ordered", schema_of::<acme::ForcedRenewals>)
                .error(400, "A parameter is unknown or malformed")
                .error(404, "No certificate with this domain is ordered")],
        ),
    ]
}

/// The endpoints of consumers in Redis.
fn consumer_endpoints() -> [EndpointDescription; 4] {
    let put = Operation::new("post", "putConsumer", "Create a consumer, or replace it");
    let show = consumer(Operation::get("showConsumer", "A consumer in Redis"));
    let delete =
        consumer(Operation::new("delete", "deleteConsumer", "Delete a consumer and its keys"));
    let add =
        Operation::new("post", "addKey", "Add a key to a consumer; without a hash it is made");
    let remove = Operation::new("delete", "removeKey", "Remove a key of a consumer");
    let described = schema_of::<consumers::ConsumerDescription>;
    let added = schema_of::<consumers::AddedKey>;
    [
        endpoint(
            "/api/consumers",
            [put.body(request_bodies::consumer)
                .json(200, "The consumer is replaced", described)
                .json(201, "The consumer is created", described)
                .error(400, "The body is malformed")
                .error(409, "Consumers are not in Redis, or a key is another consumer's")
                .error(503, "No reply from Redis")],
        ),
        endpoint(
            "/api/consumers/{name}",
            [
                show.json(200, "The consumer", described),
                delete.reply(204, "The consumer is deleted", OperationBody::None),
            ],
        ),
        endpoint(
            "/api/consumers/{name}/keys",
            [consumer(add)
                .optional_body(schema_of::<request_bodies::NewKey>)
                .json(200, "The consumer had the key; its id and its expiry are replaced", added)
                .json(201, "The key is added", added)
                .error(500, "The system has no random numbers")],
        ),
        endpoint(
            "/api/consumers/{name}/keys/{key}",
            [consumer(remove).parameter("key", "The key's SHA-256, or its id", "").reply(
                204,
                "The key is removed",
                OperationBody::None,
            )],
        ),
    ]
}

/// Adds the parameter and the errors of a request for one consumer.
fn consumer(operation: Operation) -> Operation {
    operation
        .parameter("name", "The consumer's name", "")
        .error(400, "The path or the body is malformed")
        .error(404, "No consumer has this name, or it has no such key")
        .error(409, "Consumers are not in Redis, or a key is not usable")
        .error(503, "No reply from Redis")
}

/// The endpoints by which an operator changes the gateway.
fn control() -> [EndpointDescription; 3] {
    let reload = Operation::new("post", "reload", "Read the configuration file again");
    let throttle = Operation::get("throttle", "The state of active-user admission");
    let set_mode = Operation::new("put", "setThrottleMode", "Set the throttle's mode");
    let level = Operation::get("logLevel", "The filter of the process log");
    let set_level = Operation::new("put", "setLogLevel", "Set the filter of the process log");
    let described = schema_of::<throttle::ThrottleDescription>;
    [
        endpoint(
            "/api/reload",
            [reload
                .json(200, "The new configuration is in force", schema_of::<reload::Reloaded>)
                .error(400, "The configuration has faults; the running one stays")
                .error(409, "Another reload did not end in time")
                .error(500, "The reload cannot run")],
        ),
        endpoint(
            "/api/throttle",
            [
                throttle.json(200, "The state", described).error(404, "There is no throttle"),
                set_mode
                    .body(schema_of::<request_bodies::ModeBody>)
                    .json(200, "The new state", described)
                    .error(400, "The body is not a mode")
                    .error(404, "There is no throttle"),
            ],
        ),
        endpoint(
            "/api/log_level",
            [
                level
                    .json(200, "The filter", schema_of::<log_level::LogLevel>)
                    .error(409, "The process has no log of its own"),
                set_level
                    .body(schema_of::<request_bodies::NewLogLevel>)
                    .json(200, "The new filter", schema_of::<log_level::LogLevel>)
                    .error(400, "The body is not a filter")
                    .error(409, "The process has no log of its own"),
            ],
        ),
    ]
}
