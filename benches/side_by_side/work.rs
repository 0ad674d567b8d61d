//! The same work, said in three languages: the configurations of the contestants.
//!
//! Each forwards to one upstream over kept connections and sets `Host`, `X-Forwarded-For`,
//! `X-Forwarded-Proto` and `X-Request-Id`; one worker, no access log. Tidegate also writes its
//! `X-RateLimit` headers and the request's id into each answer, which the peers do not: it is part
//! of what it has to be fast with.

use std::{fmt, net::SocketAddr};

/// What is asked of the contestants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Forwarded, without a limit.
    Open,
    /// Forwarded, with a limit by client address that never refuses.
    Limited,
    /// Refused with a 429, by a limit of the same kind.
    Refused,
}

/// One contestant's task.
pub(crate) struct Job {
    pub(crate) scenario: Scenario,
    /// Where it is to listen.
    pub(crate) listen: SocketAddr,
    /// Where it is to forward to.
    pub(crate) origin: SocketAddr,
    /// A peer adds no headers: less work than Tidegate has.
    pub(crate) bare: bool,
}

impl Scenario {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 3] = [Self::Open, Self::Limited, Self::Refused];

    /// The status that (nearly) all requests must get.
    pub(crate) fn status(self) -> u16 {
        if self == Self::Refused { 429 } else { 200 }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Open => "proxied, limiter off",
            Self::Limited => "proxied, limiter on",
            Self::Refused => "429",
        })
    }
}

/// nginx with `limit_req`. `single` keeps master and worker in one process (for valgrind).
pub(crate) fn nginx(job: &Job, single: bool) -> String {
    let Job { scenario, listen, origin, bare } = job;
    let (zone, limit) = match scenario {
        Scenario::Open => ("", ""),
        Scenario::Limited => (
            "limit_req_zone $binary_remote_addr zone=callers:10m rate=1000000r/s;",
            "limit_req zone=callers burst=1000000 nodelay;",
        ),
        Scenario::Refused => (
            "limit_req_zone $binary_remote_addr zone=callers:10m rate=1r/m;",
            "limit_req zone=callers;",
        ),
    };
    let headers = if *bare {
        ""
    } else {
        "proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Request-Id $request_id;"
    };
    let master = if single { "off" } else { "on" };
    // Refusals are logged at `error`; writing them would be work that the others do not do.
    format!(
        "daemon off; master_process {master}; worker_processes 1;
pid nginx.pid; error_log error.log crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
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

/// `HAProxy` with a stick table.
pub(crate) fn haproxy(job: &Job) -> String {
    let Job { scenario, listen, origin, bare } = job;
    let limit = |rate: u32| {
        format!(
            "stick-table type ip size 100k expire 1h store http_req_rate(1m)
    http-request track-sc0 src
    http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {rate} }}"
        )
    };
    let limit = match scenario {
        Scenario::Open => String::new(),
        Scenario::Limited => limit(4_000_000_000),
        Scenario::Refused => limit(1),
    };
    let headers = if *bare {
        ""
    } else {
        "option forwardfor
    http-request set-header X-Forwarded-Proto http
    http-request set-header X-Request-Id %[uuid]"
    };
    format!(
        "global
    nbthread 1
    maxconn 4096
defaults
    mode http
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

/// Tidegate with `sliding_window`.
pub(crate) fn tidegate(job: &Job) -> String {
    let Job { scenario, listen, origin, bare: _ } = job;
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
    let (limits, limited) = match scenario {
        Scenario::Open => (String::new(), "[]"),
        Scenario::Limited => (limit(4_000_000_000), "[per-caller]"),
        Scenario::Refused => (limit(1), "[per-caller]"),
    };
    format!(
        "listen:
  - address: {listen}
workers: 1
access_log: off
headers: {{x_ratelimit: true}}
upstreams:
  origin:
    targets: [\"http://{origin}\"]
{limits}routes:
  - name: all
    match: {{path: \"/{{*rest}}\"}}
    upstream: origin
    limits: {limited}
"
    )
}
