//! The scenarios, and the configurations of the contestants, which make all of them do the same work.
//!
//! Each forwards to one upstream over persistent connections and sets `Host`, `X-Forwarded-For`,
//! `X-Forwarded-Proto` and `X-Request-Id`. Tidegate also adds its `X-RateLimit` headers and the request's id
//! to each response, and counts its metrics, as it always does; the peers do not.
//!
//! If they log, nginx writes its `combined` format to a file, one line at a time, as Debian configures it;
//! `HAProxy` writes `httplog` to standard output, which is a file; Tidegate writes JSON to a file.

use std::{fmt, net::SocketAddr};

/// What the contestants do in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) limit: Limit,
    /// Whether there is an access log.
    pub(crate) log: bool,
    /// Number of workers; more than one only for Tidegate.
    pub(crate) workers: u16,
    /// Whether the contestant may use both CPUs, one of them shared with the load generator.
    pub(crate) both_cpus: bool,
    /// Number of routes; more than one only for Tidegate.
    pub(crate) routes: u16,
}

/// A limit by client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit.
    Off,
    /// A limit that never refuses.
    On,
    /// A limit that refuses with a 429.
    Refusing,
}

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

impl Scenario {
    /// Limit, metrics and access log, as Tidegate is configured by default.
    pub(crate) const DEFAULT: Self =
        Self { limit: Limit::On, log: true, workers: 1, both_cpus: false, routes: 1 };
    pub(crate) const UNLOGGED: Self = Self { log: false, ..Self::DEFAULT };
    pub(crate) const UNLIMITED: Self = Self { limit: Limit::Off, ..Self::DEFAULT };
    pub(crate) const UNLIMITED_UNLOGGED: Self = Self { limit: Limit::Off, ..Self::UNLOGGED };
    pub(crate) const REFUSED: Self = Self { limit: Limit::Refusing, ..Self::DEFAULT };
    pub(crate) const REFUSED_UNLOGGED: Self = Self { log: false, ..Self::REFUSED };
    /// The scenarios of every contestant, in the order of the table.
    pub(crate) const ALL: [Self; 6] = [
        Self::DEFAULT,
        Self::UNLOGGED,
        Self::UNLIMITED,
        Self::UNLIMITED_UNLOGGED,
        Self::REFUSED,
        Self::REFUSED_UNLOGGED,
    ];

    /// The default with this number of workers on both CPUs.
    pub(crate) const fn on_workers(workers: u16) -> Self {
        Self { workers, both_cpus: true, ..Self::DEFAULT }
    }

    /// Limit, no log, and this number of routes.
    pub(crate) const fn with_routes(routes: u16) -> Self {
        Self { routes, ..Self::UNLOGGED }
    }

    /// The status of all responses, except a few with [`Limit::Refusing`].
    pub(crate) fn status(self) -> u16 {
        if self.limit == Limit::Refusing { 429 } else { 200 }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match (self.limit, self.log) {
            (Limit::Off, false) => "proxied, neither limit nor log",
            (Limit::Off, true) => "proxied, log",
            (Limit::On, false) => "proxied, limit",
            (Limit::On, true) => "proxied, limit and log",
            (Limit::Refusing, false) => "429, no log",
            (Limit::Refusing, true) => "429, log",
        })?;
        if self.both_cpus {
            write!(to, ", {} workers on both CPUs", self.workers)?;
        }
        if self.routes != 1 {
            write!(to, ", {} routes", self.routes)?;
        }
        Ok(())
    }
}

/// Maximum number of connections of a contestant: more than the idle ones of the memory part.
const MAX_CONNECTIONS: u32 = 15_000;

/// The configuration of nginx, with `limit_req`. `single` keeps master and worker in one process, for
/// valgrind.
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
    let master = if single { "off" } else { "on" };
    let log = match (scenario.log, peers.buffered) {
        (true, true) => "access.log combined buffer=32k flush=1s",
        (true, false) => "access.log combined",
        (false, _) => "off",
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
    keepalive_requests 1000000000;
    upstream origin {{ server {origin}; keepalive 128; keepalive_requests 1000000000; }}
    {zone}
    limit_req_status 429;
    server {{
        listen {listen};
        location / {{
            {limit}
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
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
    http-request set-header X-Forwarded-Proto http
    http-request set-header X-Request-Id %[uuid]"
    };
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
    timeout client 120s
    timeout server 120s
    option http-keep-alive
    http-reuse always
frontend gate
    bind {listen}
    {limit}
    {headers}
    default_backend origin
backend origin
    server origin {origin}
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
    format!(
        "listen:
  - address: {listen}
workers: {workers}
access_log: {access_log}
http: {{max_connections: {MAX_CONNECTIONS}, max_connections_per_client: off}}
headers: {{x_ratelimit: true}}
upstreams:
  origin:
    targets: [\"http://{origin}\"]
{limits}routes:
{others}  - name: items
    match: {{path: \"/items/{{id}}\"}}
    upstream: origin
    limits: {limited}
"
    )
}
