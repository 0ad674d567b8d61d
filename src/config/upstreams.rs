//! `upstreams`: servers that requests are forwarded to, and fixed responses.

use std::{fmt, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ScalarValue, impl_scalar};
use super::units::{Duration, Status};

/// A group of equivalent servers, or a fixed response.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// Servers that requests are forwarded to: `http://host:port` (port 80 if none is given),
    /// `https://host:port` (443) or `unix:/path/of/socket`; either all or none of them with `https`. An
    /// upstream has either `targets` or `respond`.
    pub targets: Vec<Target>,
    /// Fixed response that the gateway sends itself, instead of forwarding the request.
    pub respond: Option<FixedResponse>,
    /// Load-balancing policy.
    pub balance: Balance,
    /// HTTP version used with the targets.
    pub protocol: Protocol,
    /// TLS to `https` targets.
    pub tls: UpstreamTls,
    /// Send a PROXY protocol header with the client's address on each connection. A connection then carries
    /// one request. If left out, none is sent.
    pub send_proxy: Option<ProxyVersion>,
    /// Maximum time to connect to a target; then 502.
    pub connect_timeout: Duration,
    /// Maximum time to wait for the head of the response; then 504.
    pub response_timeout: Duration,
    /// How long an idle connection to a target is kept open for reuse.
    pub idle_timeout: Duration,
    /// Number of times that a failed request is retried, 0 to 10. Only idempotent requests without a body
    /// are retried, and only while nothing of the response has been sent to the client.
    #[schemars(range(max = 10))]
    pub retries: u32,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            respond: None,
            balance: Balance::RoundRobin,
            protocol: Protocol::Http1,
            tls: UpstreamTls::default(),
            send_proxy: None,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            retries: 1,
        }
    }
}

/// A fixed response that the gateway sends itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct FixedResponse {
    /// Status code of the response.
    pub status: Status,
    /// Body of the response.
    pub body: String,
    /// Value of the response's `Content-Type` header.
    pub content_type: String,
}

impl Default for FixedResponse {
    fn default() -> Self {
        let content_type = "text/plain; charset=utf-8".to_owned();
        Self { status: Status(200), body: String::new(), content_type }
    }
}

/// Load-balancing policy: how a target is chosen for a request.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Each target in turn.
    RoundRobin,
}

/// HTTP version used with the targets.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2: with `https`, the server must choose it in the handshake; in clear, with prior knowledge.
    Http2,
    /// With `https`, HTTP/2 if the server chooses it in the handshake; otherwise HTTP/1.1.
    Auto,
}

/// TLS to the targets.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamTls {
    /// Path of the certificate authorities, in PEM, that the targets' certificates must be of. If left out,
    /// those of the system.
    pub ca: Option<PathBuf>,
    /// Name that the targets' certificates must have. If left out, the host of each target.
    pub name: Option<String>,
    /// Path of the gateway's own certificate chain, in PEM, for targets that ask for one (mTLS).
    pub cert: Option<PathBuf>,
    /// Path of the private key of `cert`, in PEM.
    pub key: Option<PathBuf>,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyVersion {
    /// Version 1: a line of text.
    V1,
    /// Version 2: binary.
    V2,
}

/// The address of one server of an upstream.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Target {
    /// `http://host:port`.
    Http(HostPort),
    /// `https://host:port`.
    Https(HostPort),
    /// `unix:/path/of/socket`.
    Unix(PathBuf),
}

/// A host and a port.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HostPort {
    /// A name or an IP address; IPv6 without brackets.
    pub host: String,
    /// The port; the scheme's default if the URL has none.
    pub port: u16,
}

impl ScalarValue for Target {
    const EXPECTED: &'static str =
        "http://host:port, https://host:port or unix:/path, and nothing after it";
    const PATTERN: &'static str =
        "^(https?://(\\[[0-9A-Fa-f:.]+\\]|[^/?#@:]+)(:[0-9]+)?/?|unix:/.+)$";
    const EXAMPLE: &'static str = "http://127.0.0.1:9000";

    fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return path.starts_with('/').then(|| Self::Unix(path.into()));
        }
        let (scheme, rest) = text.split_once("://")?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        match scheme {
            "http" => HostPort::parse(authority, 80).map(Self::Http),
            "https" => HostPort::parse(authority, 443).map(Self::Https),
            _ => None,
        }
    }
}

impl HostPort {
    fn parse(text: &str, default_port: u16) -> Option<Self> {
        if let Some((address, port)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
            address.parse::<std::net::Ipv6Addr>().ok()?;
            return Some(Self { host: address.to_owned(), port: port_after(port, default_port)? });
        }
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let is_valid = !host.is_empty() && host.bytes().all(is_name_byte);
        is_valid.then_some(Self { host: host.to_owned(), port: port_after(port, default_port)? })
    }
}

/// The port in `:port`; `default_port` for an empty text.
fn port_after(text: &str, default_port: u16) -> Option<u16> {
    if text.is_empty() {
        return Some(default_port);
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
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl_scalar!(Target);
