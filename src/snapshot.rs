//! A configuration compiled into the immutable rules that requests run on.
//!
//! A snapshot is swapped whole. Counters and connections live outside it, under names and
//! fingerprints that a reload keeps.

mod algorithm;
mod check;
mod compile;
mod limits;
mod listen;
mod load;
mod parts;
mod policy;
mod quota;
mod reserve;
mod routes;
mod store;
#[cfg(test)]
mod tests;
mod throttle;
mod tiers;
mod upstreams;

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

pub use self::load::LoadError;
pub(crate) use self::load::contained;
pub use self::policy::{Cost, LimitRequest, Policy, Tier, Uncountable, Whose};

use crate::{
    config::{Fault, Faults, Loaded},
    framing::{Deadlines, HeadBounds},
    identity::{TokenSource, TrustedProxies},
    route::Table,
    throttle::Settings,
    upstream::Upstream,
};

/// Everything that a request is decided by.
#[derive(Debug)]
pub struct Snapshot {
    /// Finds a route's place in [`Self::routes`].
    pub table: Table,
    /// The routes, in the configuration's order.
    pub routes: Vec<Route>,
    /// The limits; a limit's `index` is its place.
    pub limits: Vec<Arc<Policy>>,
    /// The upstreams, in the configuration's order.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Who is asking.
    pub identity: IdentityRules,
    /// Which rate-limit headers are written.
    pub headers: RateHeaders,
    /// What clients' connections are held to; a connection keeps the head's bounds that it was
    /// accepted with.
    pub http: HttpRules,
    /// Who is let in when too many users are active; none: everybody.
    pub throttle: Option<Settings>,
    /// What works, and what the operator may not have meant: shown by `check` and logged.
    pub notes: Vec<Fault>,
}

/// What clients' connections are held to.
#[derive(Clone, Copy, Debug)]
pub struct HttpRules {
    /// The largest head.
    pub head: HeadBounds,
    /// How long each phase may last.
    pub deadlines: Deadlines,
    /// Connections open at once, over all workers.
    pub max_connections: usize,
    /// Connections open at once of one client; none: any number.
    pub max_connections_per_client: Option<u32>,
    /// Requests that one connection may carry; none: any number.
    pub max_requests_per_connection: Option<u32>,
    /// Whether `//` in a path is one separator.
    pub merge_slashes: bool,
}

impl Snapshot {
    /// Logs what the operator may not have meant.
    pub fn log_notes(&self) {
        for note in &self.notes {
            tracing::warn!(%note, "the configuration works, but may not be meant so");
        }
    }

    /// The rules that `loaded` asks for, or everything in it that makes no sense, or that this
    /// version cannot do, each with its place in the file.
    pub fn compile(loaded: &Loaded) -> Result<Self, Faults> {
        compile::snapshot(loaded)
    }
}

/// What one route does with a request.
#[derive(Debug)]
pub struct Route {
    /// Its name; shown in metrics and logs, and a part of keys that name it.
    pub name: Box<str>,
    /// Who answers.
    pub action: Action,
    /// What counts them; all must agree.
    pub limits: SmallVec<[RouteLimit; 4]>,
    /// Whether the throttle applies.
    pub throttle: bool,
    /// Taken off the path's front before it is forwarded; without a slash at its end.
    pub strip_prefix: Option<Box<str>>,
    /// From the request's head to the answer's; none: for ever.
    pub request_timeout: Option<Duration>,
    /// The longest gap in an answer's body, where it is bounded.
    pub answer_idle_timeout: Option<Duration>,
    /// From the answer's head to its last byte, where that is bounded.
    pub answer_timeout: Option<Duration>,
    /// The longest body that is accepted, in bytes.
    pub max_body: u64,
}

/// Who answers the requests of a route.
#[derive(Debug)]
pub enum Action {
    /// A server, or an answer that never changes.
    Upstream(Arc<Upstream>),
    /// The gateway, by the state in which the caller is with these limits; that charges nothing.
    Status(Vec<Arc<Policy>>),
}

/// A limit as one route uses it.
#[derive(Debug)]
pub struct RouteLimit {
    /// The limit itself, shared by all routes that name it.
    pub policy: Arc<Policy>,
}

/// Who is asking: what addresses and tokens are read from.
#[derive(Debug, Default)]
pub struct IdentityRules {
    /// Who may say who the client is.
    pub trusted_proxies: TrustedProxies,
    /// The length of the prefix that IPv6 clients are counted by, in bits.
    pub ipv6_prefix: u8,
    /// Where an access token may stand.
    pub token: Vec<TokenSource>,
}

/// Which rate-limit headers are written.
#[derive(Clone, Copy, Debug)]
pub struct RateHeaders {
    /// The `X-RateLimit` family.
    pub x_ratelimit: bool,
    /// `RateLimit` and `RateLimit-Policy`, as the IETF draft 11 has them.
    pub draft_11: bool,
}
