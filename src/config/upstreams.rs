use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Text, text_value};
use super::units::{Duration, Status};

/// Servers that answer alike, or an answer that the gateway gives by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// The servers; all of one scheme.
    pub targets: Vec<Target>,
    /// Answer so, instead of asking a server.
    pub respond: Option<Respond>,
    /// How a target is chosen.
    pub balance: Balance,
    /// What is spoken with the targets.
    pub protocol: Protocol,
    /// The longest time to connect; then 502.
    pub connect_timeout: Duration,
    /// The longest time to the head of the answer; then 504.
    pub response_timeout: Duration,
    /// How long a connection is kept for the next request.
    pub idle_timeout: Duration,
    /// How often a request is sent anew after a failure: one that is idempotent, has no body, and
    /// of whose answer nothing has been sent yet.
    #[schemars(range(max = 10))]
    pub retries: u32,
    /// Ask the targets whether they are well; leave it out to take it from the traffic.
    pub health: Option<Health>,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            respond: None,
            balance: Balance::RoundRobin,
            protocol: Protocol::Http1,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            retries: 1,
            health: None,
        }
    }
}

/// An answer that the gateway gives by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Respond {
    /// The status.
    pub status: Status,
    /// The body.
    pub body: String,
    /// What the body is.
    pub content_type: String,
}

impl Default for Respond {
    fn default() -> Self {
        let content_type = "text/plain; charset=utf-8".to_owned();
        Self { status: Status(200), body: String::new(), content_type }
    }
}

/// How a target is chosen.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest requests in flight.
    LeastRequests,
    /// By a hash of the client: the same client, the same target.
    Hash,
}

/// What is spoken with the targets.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Questions to the targets, whether they are well.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// What is asked for: a path that answers 2xx when all is well.
    pub path: String,
    /// How often.
    #[serde(default = "Health::interval")]
    pub interval: Duration,
    /// After so many failures in a row a target is left alone.
    #[serde(default = "Health::unhealthy_after")]
    #[schemars(range(min = 1))]
    pub unhealthy_after: u32,
    /// After so many good answers in a row it is used again.
    #[serde(default = "Health::healthy_after")]
    #[schemars(range(min = 1))]
    pub healthy_after: u32,
}

impl Health {
    fn interval() -> Duration {
        Duration::from_secs(5)
    }

    fn unhealthy_after() -> u32 {
        3
    }

    fn healthy_after() -> u32 {
        2
    }
}

/// One server of an upstream.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Target {
    /// `http://host:port`.
    Http(HostPort),
    /// `https://host:port`.
    Https(HostPort),
    /// `unix:/path/of/socket`.
    Unix(String),
}

/// A server's name or address, and its port.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HostPort {
    /// A name or an IP address, an IPv6 one without its brackets.
    pub host: String,
    /// The port, the scheme's own where the URL has none.
    pub port: u16,
}

impl Text for Target {
    const EXPECTED: &'static str =
        "http://host:port, https://host:port or unix:/path, and nothing after it";
    const PATTERN: &'static str =
        "^(https?://(\\[[0-9A-Fa-f:.]+\\]|[^/?#@:]+)(:[0-9]+)?/?|unix:/.+)$";

    fn read(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return path.starts_with('/').then(|| Self::Unix(path.to_owned()));
        }
        let (scheme, rest) = text.split_once("://")?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        match scheme {
            "http" => HostPort::read(authority, 80).map(Self::Http),
            "https" => HostPort::read(authority, 443).map(Self::Https),
            _ => None,
        }
    }
}

impl HostPort {
    fn read(text: &str, standard: u16) -> Option<Self> {
        if let Some((address, port)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
            address.parse::<std::net::Ipv6Addr>().ok()?;
            return Some(Self { host: address.to_owned(), port: port_after(port, standard)? });
        }
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let named = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let known = !host.is_empty() && host.bytes().all(named);
        known.then_some(Self { host: host.to_owned(), port: port_after(port, standard)? })
    }
}

/// The port of `:port`, or the standard one of an empty text.
fn port_after(text: &str, standard: u16) -> Option<u16> {
    if text.is_empty() {
        return Some(standard);
    }
    let digits = text.strip_prefix(':').filter(|port| port.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok().filter(|&port| port > 0)
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(server) => write!(f, "http://{server}"),
            Self::Https(server) => write!(f, "https://{server}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

text_value!(Target);
