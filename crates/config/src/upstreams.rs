//! `upstreams`: servers that requests are forwarded to, and fixed responses.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_identity::KeyPart;
use tidegate_vocabulary::Policy;
use tidegate_vocabulary::{Protocol, ProxyVersion};

use super::balance::{AdaptiveConcurrency, Ejection, HealthCheck, RetryCondition};
use super::status::Status;
use super::target::WeightedTargetConfig;
use super::units::{Address, Duration, Size};

/// A group of equivalent servers, or a fixed response.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamConfig {
    /// Servers that requests are forwarded to: `http://host:port` (port 80 if none is given),
    /// `https://host:port` (443), `unix:/path/of/socket`, or the name of an SRV record as
    /// `srv://name` or, with TLS, `srvs://name`. Either all or none use TLS. Each is text, or
    /// `{url, weight}` with a weight of 0 to 1000 (default 1); a target with weight 0 gets no
    /// requests. Each address of a name is a target. An upstream has either `targets` or `respond`.
    /// Default: none.
    pub targets: Vec<WeightedTargetConfig>,
    /// Fixed response that the gateway sends itself, instead of forwarding the request.
    pub respond: Option<FixedResponseConfig>,
    /// Load-balancing policy.
    pub balance: Policy,
    /// Parts of the request that `hash` maps to a target, as in a limit's `key`. Required for
    /// `hash`. Default: none.
    pub hash_key: Vec<KeyPart>,
    /// Health checks of the targets. Default: none; only failed requests mark a target as failing.
    pub health: Option<HealthCheck>,
    /// Ejection of targets that fail requests.
    pub ejection: Ejection,
    /// Time in which a target's share of the requests rises from a tenth to its full share, after
    /// an ejection or after it was added while others were in service. `0ms` gives it the full
    /// share at once.
    #[cfg_attr(test, schemars(extend("x-minimum" = "0ms", "x-maximum" = "1h")))]
    pub slow_start: Duration,
    /// DNS servers that resolve the names of `targets`. Default: the system's.
    pub name_servers: Vec<Address>,
    /// HTTP version used with the targets.
    pub protocol: Protocol,
    /// TLS to `https` targets.
    pub tls: UpstreamTls,
    /// Send a PROXY protocol header with the client's address on each connection, which then
    /// carries one request. Default: no header.
    pub send_proxy: Option<ProxyVersion>,
    /// Maximum time to connect to a target, including TLS. Beyond it, 502. After 1 s, a second
    /// connect to another target begins beside the first one. The only target left is tried twice,
    /// since nothing of the request was sent.
    pub connect_timeout: Duration,
    /// Maximum time to wait for the head of the response. Beyond it, 504.
    pub response_timeout: Duration,
    /// Time for which an idle connection to a target is kept open for reuse.
    pub idle_timeout: Duration,
    /// Send `Via`, which names the gateway (RFC 9110, 7.6.3). Some servers treat requests with it
    /// otherwise: nginx compresses none of their responses, unless `gzip_proxied` allows it. With
    /// `false`, `Tidegate-Via` carries the name, by which a request that comes back is known.
    pub via: bool,
    /// Maximum number of retries of a failed request, 0 to 10. Only idempotent requests whose body
    /// is still at hand are retried, and only while nothing of the response has been sent to the
    /// client.
    #[cfg_attr(test, schemars(range(max = 10)))]
    pub retries: u32,
    /// Failures after which a request is sent to another target, as far as `retries` allows:
    /// `connect`, `reset`, `timeout`, `502`, `503` and `504`. Retries are at most a fifth of the
    /// upstream's requests, plus 10 a second.
    pub retry_on: Vec<RetryCondition>,
    /// Maximum number of open connections to each target, including idle ones. Default: no bound.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub max_connections: Option<u32>,
    /// Maximum number of requests in flight at each target. Default: no bound.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub max_requests: Option<u32>,
    /// Maximum number of requests that wait for a target with room, while every target has
    /// `max_requests` in flight or `max_connections` open. Further requests get a 503.
    #[cfg_attr(test, schemars(range(max = 1_000_000)))]
    pub max_pending: u32,
    /// Bytes of a request's body that are read before the request takes one of the places at a
    /// target that `max_requests`, `max_connections` or `adaptive_concurrency` bound. A longer body
    /// is forwarded as it arrives, and its place counts in `client_share`. With `0B` each request
    /// takes its place at once.
    #[cfg_attr(test, schemars(extend("x-minimum" = "0B", "x-maximum" = "16MiB")))]
    pub request_buffer: Size,
    /// Bytes of a response that are read from the target while the client does not read. The place
    /// is free as soon as the end of the response has been read. The place of a longer response
    /// counts in `client_share`.
    #[cfg_attr(test, schemars(extend("x-minimum" = "0B", "x-maximum" = "16MiB")))]
    pub response_buffer: Size,
    /// Share of a target's places, in percent, that one client address may hold while the gateway
    /// waits for that client, but at least one place. Further requests from the address wait or get
    /// a 503, as if the target were full.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    pub client_share: u32,
    /// Minimum bytes a second from a client while the gateway holds a place for it, measured over
    /// 10 s of waiting for the client. A slower upload gets a 408, a slower response is cut off.
    /// `0B`: no minimum.
    #[cfg_attr(test, schemars(extend("x-minimum" = "0B", "x-maximum" = "1GiB")))]
    pub min_rate: Size,
    /// Adapts the maximum number of requests in flight at each target to its latency. Default: only
    /// `max_requests` bounds them.
    pub adaptive_concurrency: Option<AdaptiveConcurrency>,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            respond: None,
            balance: Policy::default(),
            hash_key: Vec::new(),
            health: None,
            ejection: Ejection::default(),
            slow_start: Duration::from_secs(30),
            name_servers: Vec::new(),
            protocol: Protocol::Http1,
            tls: UpstreamTls::default(),
            send_proxy: None,
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            via: true,
            retries: 1,
            retry_on: vec![RetryCondition::Connect, RetryCondition::Reset],
            max_connections: None,
            max_requests: None,
            max_pending: 0,
            request_buffer: Size(64 << 10),
            response_buffer: Size(64 << 10),
            client_share: 50,
            min_rate: Size(512),
            adaptive_concurrency: None,
        }
    }
}

/// A fixed response that the gateway sends itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FixedResponseConfig {
    /// Status code of the response.
    pub status: Status,
    /// Body of the response.
    pub body: String,
    /// Value of the response's `Content-Type` header.
    pub content_type: String,
}

impl Default for FixedResponseConfig {
    fn default() -> Self {
        let content_type = "text/plain; charset=utf-8".to_owned();
        Self { status: Status(200), body: String::new(), content_type }
    }
}

/// TLS to the targets.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamTls {
    /// Path of a PEM file with the CAs that must have issued the targets' certificates. Default:
    /// the system's CA certificates.
    pub ca: Option<PathBuf>,
    /// Name that the targets' certificates must be valid for, and that the handshake asks for
    /// (SNI). `host` is the `Host` of each forwarded request, without its port. Default: the host
    /// of each target.
    pub name: Option<String>,
    /// Path of the gateway's own certificate chain, in PEM, for targets that ask for one (mTLS).
    /// Default: none.
    pub cert: Option<PathBuf>,
    /// Path of the private key of `cert`, in PEM. Default: none.
    pub key: Option<PathBuf>,
}

impl UpstreamTls {
    /// The name that is configured for all requests; `None` if there is none, or if it is that of
    /// each request.
    pub fn fixed_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| *name != "host")
    }
}
