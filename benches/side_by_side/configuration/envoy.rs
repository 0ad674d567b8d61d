//! The configuration of Envoy, with its local rate limit.

use serde_json::{Value, json};

use super::{CERTIFICATE_FILES, ConfigParams};
use crate::scenario::{Limit, Scenario, Work};

/// The prefix of the names of Envoy's types.
const TYPES: &str = "type.googleapis.com/envoy.extensions";

pub(crate) fn envoy(params: &ConfigParams) -> String {
    let ConfigParams { scenario, listen, origin, peers } = params;
    let mut filters = Vec::new();
    if let Some(filter) = limit(scenario.limit) {
        filters.push(filter);
    }
    filters.push(json!({"name": "router", "typed_config": typed("filters.http.router.v3.Router")}));
    let mut manager = typed("filters.network.http_connection_manager.v3.HttpConnectionManager");
    manager["stat_prefix"] = "bench".into();
    manager["codec_type"] = if scenario.protocol.is_http2() { "HTTP2" } else { "HTTP1" }.into();
    // With it, Envoy writes `X-Forwarded-For`; it writes the two other fields always.
    manager["use_remote_address"] = (!peers.bare).into();
    manager["common_http_protocol_options"] = json!({"idle_timeout": "600s"});
    manager["upgrade_configs"] = json!([{"upgrade_type": "websocket"}]);
    manager["http_filters"] = filters.into();
    manager["access_log"] = access_log(scenario);
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": "origin", "timeout": "0s"}});
    manager["route_config"] =
        json!({"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]});
    let mut chain = json!({"filters": [{"name": "http", "typed_config": manager}]});
    if scenario.protocol.is_tls() {
        chain["transport_socket"] = tls(scenario);
    }
    let listener = json!({"address": address(listen), "filter_chains": [chain]});
    let cluster = cluster(origin, scenario.work);
    json!({"static_resources": {"listeners": [listener], "clusters": [cluster]}}).to_string()
}

fn typed(name: &str) -> Value {
    json!({"@type": format!("{TYPES}.{name}")})
}

fn limit(limit: Limit) -> Option<Value> {
    let tokens: u32 = match limit {
        Limit::Off => return None,
        Limit::On => 4_000_000_000,
        Limit::Refusing => 1,
    };
    let always = json!({"default_value": {"numerator": 100}});
    let mut filter = typed("filters.http.local_ratelimit.v3.LocalRateLimit");
    filter["stat_prefix"] = "bench".into();
    filter["token_bucket"] =
        json!({"max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": "60s"});
    filter["filter_enabled"] = always.clone();
    filter["filter_enforced"] = always;
    Some(json!({"name": "limit", "typed_config": filter}))
}

fn access_log(scenario: &Scenario) -> Value {
    if !scenario.log {
        return json!([]);
    }
    let mut log = typed("access_loggers.file.v3.FileAccessLog");
    log["path"] = "access.log".into();
    json!([{"name": "log", "typed_config": log}])
}

fn tls(scenario: &Scenario) -> Value {
    let [cert, key, _] = CERTIFICATE_FILES;
    let protocol = if scenario.protocol.is_http2() { "h2" } else { "http/1.1" };
    let mut context = typed("transport_sockets.tls.v3.DownstreamTlsContext");
    context["common_tls_context"] = json!({
        "alpn_protocols": [protocol],
        "tls_certificates": [{"certificate_chain": {"filename": cert}, "private_key": {"filename": key}}],
        "tls_params": {"tls_maximum_protocol_version": "TLSv1_3"},
    });
    json!({"name": "tls", "typed_config": context})
}

fn cluster(origin: &std::net::SocketAddr, work: Work) -> Value {
    let version = if work.needs_http2_upstream() {
        "http2_protocol_options"
    } else {
        "http_protocol_options"
    };
    let mut options = typed("upstreams.http.v3.HttpProtocolOptions");
    options["explicit_http_config"] = json!({version: {}});
    json!({
        "name": "origin",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [{"max_connections": 10_000, "max_pending_requests": 10_000, "max_requests": 20_000}]},
        "load_assignment": {
            "cluster_name": "origin",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(origin)}}]}],
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
    })
}

fn address(address: &std::net::SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}
