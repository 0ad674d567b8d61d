//! [`Servers`]: the targets of an upstream, and the rules for choosing, checking and bounding them.

use std::{net::SocketAddr, time::Duration};

use tidegate_balance::Policy;
use tidegate_base::status::StatusSet;

use super::{
    ServerAddress, Target, adaptive_concurrency::ConcurrencyBounds, target_health::HealthSettings,
};

/// The servers of an upstream.
#[derive(Debug)]
pub struct Servers {
    /// The configured targets, with unresolved names; at least one.
    pub targets: Vec<WeightedTarget>,
    /// The rule that chooses a target for an attempt.
    pub policy: Policy,
    /// The rules for ejections and health checks.
    pub health: HealthSettings,
    /// The health checks; `None`: none.
    pub check: Option<CheckSettings>,
    /// The bounds of each target's load.
    pub bounds: Bounds,
    /// The timeout of one connect.
    pub connect_timeout: Duration,
    /// Maximum time of an attempt without progress until the response's head.
    pub response_timeout: Duration,
    /// Maximum time for which an idle connection is kept.
    pub idle_timeout: Duration,
    /// True if requests carry `Via`; otherwise another field names the gateway.
    pub sends_via: bool,
    /// The maximum number of retries of one request. After a failed connect, any request may be
    /// retried; after any other failure, only an idempotent request without a body.
    pub retries: u32,
    /// The failures after which a request is retried.
    pub retry_on: RetryConditions,
    /// The DNS servers for names; empty: the system's.
    pub name_servers: Vec<SocketAddr>,
}

impl Servers {
    /// The `Host` for requests without one: the first target's.
    pub fn fallback_host(&self) -> &ServerAddress {
        &self.targets[0].target.address
    }
}

/// A target and its weight.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WeightedTarget {
    /// The target, whose address may be a name.
    pub target: Target,
    /// Its share of the requests, relative to the others. With 0 it gets none.
    pub weight: u32,
}

/// The failures after which a request is retried.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RetryConditions {
    /// No connection could be opened.
    pub connect: bool,
    /// The connection failed, or the response was malformed, before the head was complete.
    pub reset: bool,
    /// No head arrived in time.
    pub timeout: bool,
    /// Statuses that count as failures of the target.
    pub statuses: StatusSet,
}

/// The bounds of each target's load.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bounds {
    /// The maximum number of open connections; `None`: unlimited.
    pub max_connections: Option<u32>,
    /// The maximum number of requests in flight; `None`: unlimited.
    pub max_requests: Option<u32>,
    /// The maximum number of requests that wait for a target, over the upstream.
    pub max_pending: u32,
    /// The bounds of adaptive concurrency; `None` without it.
    pub adaptive: Option<ConcurrencyBounds>,
    /// The bounds of places that clients hold at their own pace.
    pub pacing: Pacing,
}

/// The bounds of places at a target that clients hold while the gateway waits for them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pacing {
    /// Bytes of a request's body to read before the request takes a place. With 0 it takes one at
    /// once.
    pub request_buffer: usize,
    /// Bytes of a response to read ahead of its client, to free its place.
    pub response_buffer: usize,
    /// Share of a target's places, in percent, that one client address may hold at its own pace; at
    /// least one place.
    pub client_share: u32,
    /// Minimum rate, in bytes a second, below which a client loses such a place; 0: no minimum.
    pub min_rate: u64,
}

impl Default for Pacing {
    fn default() -> Self {
        let (request_buffer, response_buffer) = (64 * 1024, 64 * 1024);
        Self { request_buffer, response_buffer, client_share: 50, min_rate: 512 }
    }
}

impl Bounds {
    /// True if the requests or the connections of a target are bounded.
    pub fn is_bounded(&self) -> bool {
        self.bounds_requests() || self.max_connections.is_some()
    }

    /// True if the requests in flight at a target are bounded.
    pub fn bounds_requests(&self) -> bool {
        self.max_requests.is_some() || self.adaptive.is_some()
    }
}

/// The health checks of an upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckSettings {
    /// The requested path, with its query.
    pub path: Box<str>,
    /// The value of `Host`; `None`: the target's authority.
    pub host: Option<Box<str>>,
    /// The time between two checks.
    pub interval: Duration,
    /// The timeout of one check.
    pub timeout: Duration,
    /// The statuses that pass.
    pub statuses: StatusSet,
}
