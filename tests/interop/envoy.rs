//! Envoy in front of the gateway and behind it.

mod behind;
mod front;
pub(crate) mod rate_limits;

use serde_json::{Value, json};
use testkit::tls::IdentityFiles;

/// A connection manager that accepts HTTP/1.1 and HTTP/2, with `routes`; over TLS with a
/// certificate.
fn listener(port: u16, certificate: Option<&IdentityFiles>, routes: &Value) -> Value {
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "tests",
        "codec_type": "AUTO",
        "use_remote_address": true,
        "http_protocol_options": {"enable_trailers": true},
        "http2_protocol_options": {"allow_connect": true},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_filters": [{"name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        }}],
        "route_config": {"virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": routes,
            "response_headers_to_add": [{"header": {"key": "x-envoy-protocol", "value": "%PROTOCOL%"}}],
        }]},
    });
    let mut chain = json!({"filters": [{"name": "http", "typed_config": manager}]});
    if let Some(IdentityFiles { cert, key }) = certificate {
        chain["transport_socket"] = json!({"name": "tls", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificates": [{
                    "certificate_chain": {"filename": cert},
                    "private_key": {"filename": key},
                }],
            },
        }});
    }
    json!({"name": format!("on-{port}"), "address": address(port), "filter_chains": [chain]})
}

/// A route of all paths with this prefix.
fn route(prefix: &str, cluster: &str) -> Value {
    // A gRPC stream may exceed Envoy's default of 15 s.
    json!({"match": {"prefix": prefix}, "route": {"cluster": cluster, "timeout": "0s"}})
}

/// The HTTP versions that Envoy speaks to a cluster.
const HTTP1: &str = "http_protocol_options";
const HTTP2: &str = "http2_protocol_options";

/// A server, with the options of one version of HTTP.
fn cluster(name: &str, port: u16, (version, options): (&str, Value)) -> Value {
    json!({
        "name": name,
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {version: options},
            },
        },
    })
}

fn address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

fn configuration(listeners: &[Value], clusters: &[Value]) -> Value {
    json!({"static_resources": {"listeners": listeners, "clusters": clusters}})
}
