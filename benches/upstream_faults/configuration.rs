//! The configurations of the proxies, which promise the same as far as each can.
//!
//! One worker each. Timeouts: 500 ms to connect, 1 s for the head, 1 s without progress in the
//! body. An idempotent request is retried once, at another target, after a connect error, a reset,
//! a timeout, 502, 503 and 504; a POST is not. Five failures take a target out for 2 s. Active
//! checks, where the variant has them: each second, with a timeout of 1 s; three failures take a
//! target out, two successes return it. No slow start, which nginx lacks.
//!
//! `HAProxy` watches traffic (`observe`) only for servers with checks, which also end what
//! `on-error` began. Its `retry-on` would include POSTs, so their retries are switched off. nginx
//! without its commercial features has no active checks, and re-resolves a name only as a variable.

use std::{fmt, fmt::Write as _, fs, net::SocketAddr, process::Command};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use tempfile::TempDir;

use crate::{
    contestant::{Gateway, Program},
    scenario::{NAME_SERVER, Targets},
};

/// Tidegate's policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Balance {
    RoundRobin,
    LeastRequests,
    PeakEwma,
    Hash,
}

/// A row of a scenario.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Tidegate { balance: Balance, has_checks: bool },
    Haproxy { has_checks: bool },
    Nginx,
}

/// Which of the optional keys the program accepts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Support {
    balances: Vec<Balance>,
    keys: Vec<&'static str>,
    /// The keys and policies that it does not accept.
    pub(crate) missing: Vec<&'static str>,
}

/// The active checks.
const HEALTH: &str =
    "health: {path: /healthz, interval: 1s, timeout: 1s, unhealthy_after: 3, healthy_after: 2}";
/// Optional keys of an upstream.
const OPTIONAL_KEYS: [&str; 4] = [
    "ejection: {failures: 5, duration: 2s, max_duration: 5m, max_share: 50}",
    "slow_start: 0s",
    "retry_on: [connect, reset, timeout, 502, 503, 504]",
    HEALTH,
];

impl Balance {
    pub(crate) const ALL: [Self; 4] =
        [Self::RoundRobin, Self::LeastRequests, Self::PeakEwma, Self::Hash];

    fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastRequests => "least_requests",
            Self::PeakEwma => "peak_ewma",
            Self::Hash => "hash",
        }
    }

    /// Lines of the configuration. All requests come from one address, so that the key is the path.
    fn lines(self) -> String {
        let key = if self == Self::Hash { "    hash_key: [path]\n" } else { "" };
        format!("    balance: {}\n{key}", self.name())
    }
}

impl Variant {
    /// The variants of a proxy.
    pub(crate) fn of(gateway: Gateway, balances: &[Balance], support: &Support) -> Vec<Self> {
        let checks: &[bool] = if gateway != Gateway::Tidegate || support.keys.contains(&HEALTH) {
            &[false, true]
        } else {
            &[false]
        };
        match gateway {
            Gateway::Nginx => vec![Self::Nginx],
            Gateway::Haproxy => {
                checks.iter().map(|&has_checks| Self::Haproxy { has_checks }).collect()
            }
            Gateway::Tidegate => {
                let supported =
                    balances.iter().filter(|balance| support.balances.contains(balance));
                let both = |&balance: &Balance| {
                    checks.iter().map(move |&has_checks| Self::Tidegate { balance, has_checks })
                };
                supported.flat_map(both).collect()
            }
        }
    }

    /// The configuration that listens at `listen` and forwards to `targets`.
    pub(crate) fn configuration(
        self,
        listen: SocketAddr,
        targets: &Targets,
        support: &Support,
    ) -> String {
        match self {
            Self::Nginx => nginx(listen, targets),
            Self::Haproxy { has_checks } => haproxy(listen, targets, has_checks),
            Self::Tidegate { balance, has_checks } => {
                let keys = support.keys.iter().filter(|key| has_checks || **key != HEALTH);
                let keys = keys.fold(balance.lines(), |text, key| text + "    " + key + "\n");
                tidegate(listen, &targets.authorities, &keys)
            }
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_checks = match self {
            Self::Tidegate { balance, has_checks } => {
                write!(f, "Tidegate {}", balance.name())?;
                *has_checks
            }
            Self::Haproxy { has_checks } => {
                f.write_str("HAProxy")?;
                *has_checks
            }
            Self::Nginx => {
                f.write_str("nginx")?;
                false
            }
        };
        f.write_str(if has_checks { ", checks" } else { "" })
    }
}

impl Support {
    /// Tries each key and policy with `tidegate check`.
    pub(crate) fn probe(program: &Program) -> Result<Self> {
        let directory = TempDir::with_prefix("upstream_faults-")?;
        let file = directory.path().join("probed.yaml");
        let is_accepted = |keys: &str| -> Result<bool> {
            let listen = SocketAddr::from(([127, 0, 0, 1], 8080));
            fs::write(&file, tidegate(listen, &["127.0.0.1:9000".to_owned()], keys))?;
            let output =
                Command::new(&program.path).arg("check").arg("--config").arg(&file).output()?;
            Ok(output.status.success())
        };
        ensure!(
            is_accepted("")?,
            "Tidegate does not accept the configuration without optional keys"
        );
        let mut support = Self::default();
        for balance in Balance::ALL {
            if is_accepted(&balance.lines())? {
                support.balances.push(balance);
            } else {
                support.missing.push(balance.name());
            }
        }
        for key in OPTIONAL_KEYS {
            if is_accepted(&format!("    {key}\n"))? {
                support.keys.push(key);
            } else {
                support.missing.push(key.split(':').next().unwrap_or_default());
            }
        }
        Ok(support)
    }
}

/// `keys`: lines of the upstream.
fn tidegate(listen: SocketAddr, authorities: &[String], keys: &str) -> String {
    let targets: Vec<_> = authorities.iter().map(|target| format!("\"http://{target}\"")).collect();
    format!(
        "listen: [{{address: \"{listen}\"}}]
workers: 1
access_log: off
drain_timeout: 1s
http: {{max_connections_per_client: off, max_requests_per_client: off}}
upstreams:
  origin:
    targets: [{}]
    connect_timeout: 500ms
    response_timeout: 1s
    retries: 1
{keys}routes:
  - {{name: all, match: {{path: \"/{{*rest}}\"}}, upstream: origin, response_idle_timeout: 1s}}
",
        targets.join(", ")
    )
}

fn haproxy(listen: SocketAddr, targets: &Targets, has_checks: bool) -> String {
    let mut servers = String::new();
    let health = if has_checks {
        servers.push_str(
            "    option httpchk GET /healthz
    timeout check 1s
    default-server check inter 1s fall 3 rise 2 observe layer7 error-limit 5 on-error mark-down\n",
        );
        "the servers of this backend are checked"
    } else {
        "no checks, and so no passive ones"
    };
    for (number, target) in targets.authorities.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = if targets.is_named {
            writeln!(
                servers,
                "    server-template origin 2 {target} resolvers dns init-addr libc,none \
                 resolve-prefer ipv4"
            )
        } else {
            writeln!(servers, "    server origin{number} {target}")
        };
    }
    let resolvers = if targets.is_named {
        let (address, port) = NAME_SERVER;
        format!(
            "resolvers dns
    nameserver one {address}:{port}
    hold valid 1s
    hold nx 1s
    hold obsolete 1s
    timeout resolve 1s
    timeout retry 1s\n"
        )
    } else {
        String::new()
    };
    format!(
        "global
    nbthread 1
    no strict-limits
    maxconn 15000
{resolvers}defaults
    mode http
    timeout connect 500ms
    timeout client 30s
    timeout server 1s
    option http-keep-alive
    http-reuse safe
    retries 1
    option redispatch 1
    retry-on conn-failure empty-response junk-response response-timeout 502 503 504
frontend gate
    bind {listen}
    default_backend origin
# {health}
backend origin
    balance roundrobin
    http-request disable-l7-retry unless METH_GET
{servers}"
    )
}

fn nginx(listen: SocketAddr, targets: &Targets) -> String {
    let (user, upstream, forward) = if targets.is_named {
        let (address, port) = NAME_SERVER;
        let name = targets.authorities.join("");
        (
            // A user namespace has no other user.
            "user root;",
            format!("resolver {address}:{port} valid=1s;"),
            format!("set $origin {name}; proxy_pass http://$origin;"),
        )
    } else {
        let servers = targets.authorities.iter().fold(String::new(), |text, target| {
            text + &format!("        server {target} max_fails=5 fail_timeout=2s;\n")
        });
        (
            "",
            format!(
                "upstream origin {{\n        zone origin 64k;\n{servers}        keepalive 128;\n    }}"
            ),
            "proxy_pass http://origin;".to_owned(),
        )
    };
    format!(
        "daemon off; worker_processes 1; {user}
pid nginx.pid; error_log error.log crit;
worker_rlimit_nofile 15000;
events {{ worker_connections 15000; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    keepalive_requests 1000000000; keepalive_timeout 10m;
    {upstream}
    server {{
        listen {listen};
        location / {{
            {forward}
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_connect_timeout 500ms;
            proxy_read_timeout 1s;
            proxy_send_timeout 1s;
            proxy_next_upstream error timeout invalid_header http_502 http_503 http_504;
            proxy_next_upstream_tries 2;
        }}
    }}
}}
"
    )
}
