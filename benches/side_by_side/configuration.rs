//! The configurations of the contestants, which make all of them do the same work.
//!
//! Each forwards to one upstream over persistent connections and sets `Host`, `X-Forwarded-For`,
//! `X-Forwarded-Proto` and `X-Request-Id`. Tidegate also adds its `X-RateLimit` headers and the
//! request's id to each response, and counts its metrics, as it always does; the peers do not.
//!
//! Over TLS, all show the same certificate (ECDSA, P-256), allow TLS 1.2 and 1.3 and send session
//! tickets; the clients offer only TLS 1.3 with `TLS_AES_128_GCM_SHA256` and X25519. nginx streams
//! bodies, as the others do, instead of writing long ones to files. Idle connections are kept for
//! ten minutes.
//!
//! If they log, nginx writes its `combined` format to a file, one line at a time, as Debian
//! configures it; `HAProxy` writes `httplog` to standard output, which is a file; Envoy writes its
//! default format to a file, and Tidegate JSON. Envoy's limit is its local one, which has one
//! bucket for all callers.

mod envoy;

use std::net::SocketAddr;

pub(crate) use self::envoy::envoy;
use crate::scenario::{ClientProtocol, Limit, Scenario, Work};

/// The certificate of the contestants, in their directory: its chain, its key, and a file with
/// both.
pub(crate) const CERTIFICATE_FILES: [&str; 3] = ["cert.pem", "cert.key", "cert.both"];

/// The parameters of a configuration.
pub(crate) struct ConfigParams {
    pub(crate) scenario: Scenario,
    /// The address to listen on.
    pub(crate) listen: SocketAddr,
    /// The upstream's address.
    pub(crate) origin: SocketAddr,
    pub(crate) peers: PeerOptions,
}

/// Options that change the work of the peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerOptions {
    /// The peers add no headers: less work than Tidegate.
    pub(crate) bare: bool,
    /// nginx buffers log lines, as Tidegate does; not its default.
    pub(crate) buffered: bool,
}

/// Maximum number of connections of a contestant: more than the idle ones of the memory part.
const MAX_CONNECTIONS: u32 = 15_000;

/// The configuration of nginx, with `limit_req`. `single` keeps master and worker in one process,
/// for valgrind.
pub(crate) fn nginx(params: &ConfigParams, single: bool) -> String {
    let ConfigParams { scenario, listen, origin, peers } = params;
    let (zone, limit) = match scenario.limit {
        Limit::Off => ("", ""),
        Limit::On => (
            "limit_req_zone $binary_remote_addr zone=callers:10m rate=1000000r/s;",
            "limit_req zone=callers burst=1000000 nodelay;",
        ),
        Limit::Refusing => (
            "limit_req_zone $binary_remote_addr zone=callers:10m rate=1r/m;",
            "limit_req zone=callers;",
        ),
    };
    let headers = if peers.bare {
        ""
    } else {
        "proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Request-Id $request_id;"
    };
    let headers = if scenario.work == Work::Grpc {
        headers.replace("proxy_set_header", "grpc_set_header")
    } else {
        headers.to_owned()
    };
    let forward = match scenario.work {
        Work::Grpc => "grpc_pass grpc://origin;",
        Work::HeaderRules => {
            "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";
            proxy_set_header X-Client $remote_addr; proxy_set_header X-Url $host$uri;
            proxy_set_header X-Internal \"\"; proxy_hide_header Server;
            add_header X-Frame-Options DENY always; add_header X-Trace $request_id always;"
        }
        Work::Gzip => {
            "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";
            gzip on; gzip_comp_level 5; gzip_types application/json; gzip_vary on;"
        }
        Work::Message(_) => {
            "proxy_pass http://origin; proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;"
        }
        _ => "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";",
    };
    let master = if single { "off" } else { "on" };
    let log = match (scenario.log, peers.buffered) {
        (true, true) => "access.log combined buffer=32k flush=1s",
        (true, false) => "access.log combined",
        (false, _) => "off",
    };
    let [cert, key, _] = CERTIFICATE_FILES;
    // TLS 1.3 is not in the default of this version.
    let tls = format!(
        "ssl_certificate {cert}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;"
    );
    let (protocol, certificate) = match scenario.protocol {
        ClientProtocol::Http1 => ("", ""),
        ClientProtocol::Http1Tls => (" ssl", &*tls),
        ClientProtocol::Http2 => (" http2", ""),
        ClientProtocol::Http2Tls => (" ssl http2", &*tls),
    };
    // At `error` instead of `crit`, nginx would also log each refusal, which the others do not.
    let files = MAX_CONNECTIONS;
    format!(
        "daemon off; master_process {master}; worker_processes 1;
pid nginx.pid; error_log error.log crit;
worker_rlimit_nofile {files};
events {{ worker_connections {files}; }}
http {{
    access_log {log};
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    client_max_body_size 10m; proxy_request_buffering off; proxy_max_temp_file_size 0;
    keepalive_requests 1000000000; keepalive_timeout 10m; proxy_read_timeout 10m;
    upstream origin {{ server {origin}; keepalive 128; keepalive_requests 1000000000; }}
    {zone}
    limit_req_status 429;
    server {{
        listen {listen}{protocol};
        {certificate}
        location / {{
            {limit}
            {forward}
            {headers}
        }}
    }}
}}
"
    )
}

/// The configuration of `HAProxy`, with a stick table.
pub(crate) fn haproxy(params: &ConfigParams) -> String {
    let ConfigParams { scenario, listen, origin, peers } = params;
    let limit = |rate: u32| {
        format!(
            "stick-table type ip size 100k expire 1h store http_req_rate(1m)
    http-request track-sc0 src
    http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {rate} }}"
        )
    };
    let limit = match scenario.limit {
        Limit::Off => String::new(),
        Limit::On => limit(4_000_000_000),
        Limit::Refusing => limit(1),
    };
    let headers = if peers.bare {
        ""
    } else {
        "option forwardfor
    http-request set-header X-Forwarded-Proto SCHEME
    http-request set-header X-Request-Id %[uuid]"
    };
    let scheme = if scenario.protocol.is_tls() { "https" } else { "http" };
    let headers = headers.replace("SCHEME", scheme);
    let policy = match scenario.work {
        Work::HeaderRules => {
            "http-request set-header X-Client %[src]
    http-request set-header X-Url %[req.hdr(host)]%[path]
    http-request del-header X-Internal
    http-response set-header X-Frame-Options DENY
    http-response set-header X-Trace %[uuid]
    http-response del-header Server"
        }
        // Debian builds it with a library that has one level.
        Work::Gzip => "compression algo gzip\n    compression type application/json",
        _ => "",
    };
    let [_, _, both] = CERTIFICATE_FILES;
    let protocol = match scenario.protocol {
        ClientProtocol::Http1 => String::new(),
        ClientProtocol::Http1Tls => format!(" ssl crt {both} alpn http/1.1"),
        ClientProtocol::Http2 => " proto h2".to_owned(),
        ClientProtocol::Http2Tls => format!(" ssl crt {both} alpn h2,http/1.1"),
    };
    let http2 = if scenario.work.needs_http2_upstream() { " proto h2" } else { "" };
    let (sink, log) = if scenario.log {
        ("log stdout format raw local0", "log global\n    option httplog")
    } else {
        ("", "")
    };
    format!(
        "global
    nbthread 1
    no strict-limits
    maxconn {MAX_CONNECTIONS}
    {sink}
defaults
    mode http
    {log}
    timeout connect 5s
    timeout client 10m
    timeout server 10m
    timeout tunnel 1h
    option http-keep-alive
    http-reuse always
frontend gate
    bind {listen}{protocol}
    {limit}
    {headers}
    {policy}
    default_backend origin
backend origin
    server origin {origin}{http2}
"
    )
}

/// The configuration of Tidegate, with `sliding_window`.
pub(crate) fn tidegate(params: &ConfigParams) -> String {
    let ConfigParams { scenario, listen, origin, peers: _ } = params;
    let limit = |quota: u64| {
        format!(
            "limits:
  per-caller:
    algorithm: sliding_window
    quota: {quota}
    window: 1m
    resolution: 6
    key: [client_ip]
"
        )
    };
    let (limits, limited) = match scenario.limit {
        Limit::Off => (String::new(), "[]"),
        Limit::On => (limit(4_000_000_000), "[per-caller]"),
        Limit::Refusing => (limit(1), "[per-caller]"),
    };
    let access_log = if scenario.log { "./access.log" } else { "off" };
    // Further routes of an API, beside the requested one.
    let other = |at| {
        format!(
            "  - {{name: other-{at}, match: {{path: \"/service-{at}/items/{{id}}\"}}, \
             upstream: origin, limits: {limited}}}\n"
        )
    };
    let others: String = (1..scenario.routes).map(other).collect();
    let workers = scenario.workers;
    let path = if scenario.work == Work::Grpc { "/items.Items/{method}" } else { "/items/{id}" };
    let [cert, key, _] = CERTIFICATE_FILES;
    let http2 = scenario.protocol.is_http2();
    let tls = if scenario.protocol.is_tls() {
        format!(", tls: {{certificates: [{{cert: {cert}, key: {key}}}]}}")
    } else {
        String::new()
    };
    let upstream = if scenario.work.needs_http2_upstream() { "http2" } else { "http1" };
    let policy = match scenario.work {
        Work::HeaderRules => {
            "    headers:
      request: {set: {x-client: \"{client_ip}\", x-url: \"{host}{path}\"}, remove: [x-internal]}
      response: {set: {x-frame-options: DENY, x-trace: \"{request_id}\"}, remove: [server]}
"
        }
        Work::Gzip => "    compress: {encodings: [gzip], level: {gzip: 5}}\n",
        Work::Zstd => "    compress: {encodings: [zstd], level: {zstd: 3}}\n",
        _ => "",
    };
    format!(
        "listen:
  - {{address: \"{listen}\", http2: {http2}{tls}}}
workers: {workers}
access_log: {access_log}
http: {{max_connections: {MAX_CONNECTIONS}, max_connections_per_client: off, max_requests_per_client: off, idle_timeout: 10m}}
headers: {{x_ratelimit: true}}
upstreams:
  origin:
    targets: [\"http://{origin}\"]
    protocol: {upstream}
{limits}routes:
{others}  - name: items
    match: {{path: \"{path}\"}}
    upstream: origin
    limits: {limited}
{policy}"
    )
}
