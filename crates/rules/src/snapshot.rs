//! The configuration compiled into immutable rules, by which requests are decided.
//!
//! A reload swaps the whole snapshot. Counters and connections live outside it, under names and
//! fingerprints that survive a reload. Compiling also runs the checks that need more than one value
//! of the configuration, and reports all faults at once.
//!
//! | file | content |
//! |---|---|
//! | `load` | reads a file into a snapshot |
//! | `section` | a cursor into the configuration, which reports faults and notes at its position |
//! | `compile` | assembles the snapshot from its sections |
//! | `listen`, `access_log`, `store`, `traces`, `throttle` | sections of the same name |
//! | `upstreams`, `balance` | upstreams; their balancing, health checks and bounds |
//! | `priorities` | the priorities of plans and routes |
//! | `auth`, `jwt`, `forward_auth`, `consumers`, `plans` | ways to authenticate, the consumers, the quotas of their plans |
//! | `overrides` | [`OverrideTable`]: the quotas that operators set at run time, and where they are kept |
//! | `limits`, `quota`, `algorithm`, `calendar`, `reserve`, `tiers`, `parts` | limits and their parts |
//! | `policy` | [`LimitPolicy`]: a compiled limit with its key, cost, tiers, refunds and candidate |
//! | `settled_cost`, `inspection` | costs that are settled when a response ends; what limits read of a request's body |
//! | `charge_error` | [`ChargePlanError`]: why a request cannot be charged |
//! | `rate_limit_service` | [`RateLimitService`]: the domains whose limits apply to descriptors |
//! | `routes`, `route_checks`, `route_match`, `route_edits`, `redirect`, `mirror`, `compress` | routes and their parts |
//! | `decide` | [`DecideRules`]: a route's `decide` |
//! | `access`, `cors`, `origins`, `error_bodies` | a route's `allow` and `deny`, `cors` and `error_bodies` |
//! | `notes`, `caller_notes`, `bypass_notes`, `auth_notes` | notes on valid settings that are rarely intended |
//! | `files` | checks of the files that a configuration names |
//! | `acme` | certificates that are ordered |
//! | `certificates` | the certificates in use, and their expiry |
//!
//! ```
//! use tidegate_config as config;
//! use tidegate_rules::snapshot::{SecretReading, Snapshot};
//!
//! let text = "
//! upstreams: {app: {targets: [http://127.0.0.1:9000]}}
//! limits: {per-caller: {quota: 100, window: 1m}}
//! routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [per-caller]}]
//! ";
//! let compile = |text: &str| {
//!     Snapshot::compile(&config::parse("api.yaml", text).unwrap(), SecretReading::Unread)
//! };
//! assert_eq!(compile(text).unwrap().limits[0].limit.quota.limit, 100);
//!
//! let faults = compile(&text.replace("[per-caller]", "[per-calle]")).unwrap_err().to_string();
//! assert!(faults.contains("unknown limit `per-calle`, expected `per-caller`"));
//! ```

mod access;
mod access_log;
mod acme;
mod algorithm;
mod auth;
mod auth_notes;
mod balance;
mod bypass_notes;
mod calendar;
mod caller_notes;
mod certificates;
mod charge_error;
mod compile;
mod compress;
mod consumers;
mod cors;
mod decide;
mod error_bodies;
mod files;
mod forward_auth;
mod inspection;
mod jwt;
mod limits;
mod listen;
mod load;
mod mirror;
mod notes;
mod origins;
mod overrides;
mod parts;
mod plans;
mod policy;
mod priorities;
mod quota;
mod rate_limit_service;
mod redirect;
mod reserve;
mod route_checks;
mod route_edits;
mod route_match;
mod routes;
mod section;
mod settled_cost;
mod store;
#[cfg(test)]
mod tests;
mod throttle;
mod tiers;
mod traces;
mod upstreams;

use std::{path::PathBuf, sync::Arc};

use http::{HeaderName, StatusCode};
use smallvec::SmallVec;

pub use tidegate_config::{ErrorFormat, ForwardedPath};

pub use self::access::AccessRules;
pub use self::certificates::CertificateUse;
pub use self::charge_error::ChargePlanError;
pub use self::consumers::{ConsumerSource, ConsumersFile};
pub use self::cors::{CorsPolicy, EXPOSED_HEADERS};
pub use self::decide::{DecideRules, Doors, RefusalStatus};
pub use self::error_bodies::{BodyValues, ErrorBodies, ErrorBody, escape_markup};
pub use self::inspection::Inspection;
pub use self::load::{LoadError, catch_panic};
pub use self::mirror::Mirror;
pub use self::origins::OriginMatcher;
pub use self::overrides::{AppliedOverride, OverrideTable, OverridesAt, UnusedOverride};
pub use self::policy::{
    ChargeContext, ChargedCallers, Cost, LimitKind, LimitPolicy, PlanLimit, PlanTier,
    PlannedCharge, PlannedCharges, QuotaChoice, Refunds, RequestedLimit, Tier, TierMatch,
};
pub use self::priorities::PlanPriorities;
pub use self::quota::QuotaShape;
pub use self::rate_limit_service::{
    DescriptorRule, HitAct, OnRefusal, PlannedCall, PlannedHit, RateLimitDomain, RateLimitService,
    UnreadableCall, agreed_name,
};
pub use self::section::SecretReading;
pub use self::settled_cost::{
    ActualCost, CostEstimate, MemberEstimate, ResponseOutcome, SettledCost, UnreportedCost,
};
pub use self::throttle::{TicketAttributes, WaitingRoomRules};
pub use self::traces::TraceRules;

use tidegate_access::auth::{AuthMethod, RouteAuth};
use tidegate_base::priority::Priority;
use tidegate_base::time::Millis;
use tidegate_config::{Fault, Faults, LoadedConfig, UpstreamRateHeaders};
use tidegate_http1::HeadBounds;
use tidegate_identity::{CredentialSource, KeyPart, KeyPlan, TrustedProxies};
use tidegate_route::{Conditions, PathPattern, RouteTable, normalize::Slashes};
use tidegate_template::{HeaderRules, PathTemplate, UrlTemplate};
use tidegate_throttle::ThrottleSettings;
use tidegate_tls::acme::AcmeSettings;
use tidegate_tls::{LiveCertificates, ServerCertificates, TlsFile};
use tidegate_transport::compress::CompressRules;
use tidegate_transport::connection_state::ClientTimeouts;
use tidegate_upstream::{FixedResponse, HostRule, Upstream};

/// The rules by which requests are decided.
#[derive(Debug)]
pub struct Snapshot {
    /// Finds the index of a request's route in [`Self::routes`].
    pub table: RouteTable,
    /// The routes, in the configuration's order.
    pub routes: Vec<Arc<Route>>,
    /// The `decide` routes among them; `None` without any.
    pub doors: Option<Doors>,
    /// The limits, by their `index`.
    pub limits: Vec<Arc<LimitPolicy>>,
    /// The upstreams, in the configuration's order.
    pub upstreams: Vec<Arc<Upstream>>,
    /// How the client's address and tokens are determined.
    pub identity: IdentityRules,
    /// The rate-limit headers that are written.
    pub headers: RateHeaders,
    /// Bounds of client connections. A connection keeps the head bounds that it was accepted with.
    pub http: HttpRules,
    /// How connections of each listener begin, in the configuration's order.
    pub listeners: Vec<Arc<ListenerRules>>,
    /// The certificates of the admin listener; `None` without TLS.
    pub admin_tls: Option<Arc<ServerCertificates>>,
    /// Envoy's rate limit service; `None` without one.
    pub rate_limit_service: Option<RateLimitService>,
    /// Active-user admission control; `None` admits all users.
    pub throttle: Option<ThrottleSettings>,
    /// What clients see of the throttle's waiting room; `None` without one.
    pub waiting_room: Option<WaitingRoomRules>,
    /// Sampling, and the destination of spans; `None`: no traces.
    pub traces: Option<TraceRules>,
    /// The ways to authenticate.
    pub auth_methods: Vec<Arc<AuthMethod>>,
    /// The names of the plans.
    pub plans: Vec<Box<str>>,
    /// The priorities of plans that have one.
    pub plan_priorities: PlanPriorities,
    /// The files of key sets and their authorities, as they were read.
    auth_files: Vec<TlsFile>,
    /// Where the consumers are.
    pub consumers: ConsumerSource,
    /// The file of overrides; `None`: they are in Redis, or not kept.
    pub overrides_file: Option<PathBuf>,
    /// Notes on valid settings that the operator may not intend. `check` prints them, `serve` logs
    /// them as warnings.
    pub notes: Vec<Fault>,
}

/// How connections of one listener begin.
#[derive(Debug, Default)]
pub struct ListenerRules {
    /// Its address as configured, for metrics.
    pub address: Box<str>,
    /// The certificates; `None` without TLS.
    pub tls: Option<Arc<LiveCertificates>>,
    /// How its certificate is ordered; `None` if it is in files.
    pub acme: Option<Arc<AcmeSettings>>,
    /// True if clients may use HTTP/2 without TLS, with prior knowledge. With TLS, the handshake
    /// decides.
    pub http2: bool,
    /// The peers that send a PROXY protocol header; `None`: no peer.
    pub proxy_protocol: Option<TrustedProxies>,
    /// Redirect every request to `https`, with this port if it is not 443; `None`: serve requests.
    pub redirect_https: Option<u16>,
}

impl ListenerRules {
    /// True if a connection begins with its first HTTP/1 request.
    pub fn is_plain_http1(&self) -> bool {
        self.tls.is_none() && !self.http2 && self.proxy_protocol.is_none()
    }
}

/// Bounds of client connections.
#[derive(Clone, Copy, Debug)]
pub struct HttpRules {
    /// Maximum size of a request's head and number of its header fields.
    pub head: HeadBounds,
    /// Timeout of each phase.
    pub timeouts: ClientTimeouts,
    /// Maximum number of open connections, over all workers.
    pub max_connections: usize,
    /// Maximum number of open connections of one client; `None`: no bound.
    pub max_connections_per_client: Option<u32>,
    /// Maximum number of requests in flight of one client; `None`: no bound.
    pub max_requests_per_client: Option<u32>,
    /// Maximum number of requests on one connection; `None`: no bound.
    pub max_requests_per_connection: Option<u32>,
    /// What becomes of `//` in a path.
    pub slashes: Slashes,
}

impl Snapshot {
    /// Logs the notes as warnings.
    pub fn log_notes(&self) {
        for note in &self.notes {
            tracing::warn!(%note, "the configuration is valid, but may not do what is intended");
        }
    }

    /// Compiles `loaded`, with the secrets that it names.
    ///
    /// # Errors
    ///
    /// All settings that contradict each other or are not supported in this version, and all faults
    /// of its secrets, each with its location in the file.
    pub fn compile(loaded: &LoadedConfig, secrets: SecretReading<'_>) -> Result<Self, Faults> {
        compile::snapshot(loaded, secrets)
    }
}

/// The longest times that a request on a route may take; `None`: no bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteTimeouts {
    /// From the request's head to the response's head.
    pub request: Option<Millis>,
    /// Without progress in the response's body.
    pub response_idle: Option<Millis>,
    /// From the response's head to its last byte.
    pub response_body: Option<Millis>,
    /// Without a byte in a tunnel.
    pub tunnel_idle: Option<Millis>,
}

/// A route.
#[derive(Debug)]
pub struct Route {
    /// The name, for metrics, logs and keys with the part `route`.
    pub name: Box<str>,
    /// What answers its requests.
    pub action: Action,
    /// The parts of a request from which `balance: hash` chooses a target; `None` for other
    /// policies.
    pub hash_key: Option<KeyPlan>,
    /// The limits that requests are charged to; all must admit a request.
    pub limits: SmallVec<[Arc<LimitPolicy>; 4]>,
    /// How requests authenticate; `None`: they do not.
    pub auth: Option<Box<RouteAuth>>,
    /// How important its requests are; `None`: as the consumer's plan says.
    pub priority: Option<Priority>,
    /// True if the throttle applies.
    pub throttle: bool,
    /// The prefix that is removed from the path before forwarding; without a slash at its end.
    pub strip_prefix: Option<Box<str>>,
    /// Changes to messages, and the conditions to match.
    pub edits: RouteDetails,
    /// The bounds on the time that its requests take.
    pub timeouts: RouteTimeouts,
    /// Maximum size of a request's body, in bytes.
    pub max_body: u64,
    /// The members of a request's body that limits read; `None`: they read no body.
    pub inspection: Option<Box<Inspection>>,
    /// True if the cost of a limit is settled when the response ends.
    pub settles: bool,
    /// True if the cost of a limit depends on the request or its response.
    pub has_variable_cost: bool,
    /// The networks whose clients may use the route; `None` for all.
    pub access: Option<AccessRules>,
    /// Cross-origin resource sharing; `None` leaves it to the upstream.
    pub cors: Option<CorsPolicy>,
    /// Bodies of the gateway's own errors; `None`: problem documents.
    pub error_bodies: Option<ErrorBodies>,
    /// The form of its errors for programs.
    pub error_format: ErrorFormat,
    /// Compression of response bodies; `None`: no compression.
    pub compress: Option<Box<CompressRules>>,
    /// Copies of requests for another upstream; `None`: none.
    pub mirror: Option<Mirror>,
}

/// What answers the requests of a route.
#[derive(Debug)]
pub enum Action {
    /// An upstream: servers, or a fixed response.
    Upstream(Arc<Upstream>),
    /// The gateway, with the state of these limits for the caller. They are not charged.
    Status(Vec<Arc<LimitPolicy>>),
    /// The gateway, with a redirect.
    Redirect(Redirect),
    /// The gateway, with a fixed response.
    Respond(FixedResponse),
    /// The gateway, with its decision on a request that another proxy asks about.
    Decide(DecideRules),
}

/// A redirect of clients.
#[derive(Debug)]
pub struct Redirect {
    /// The location.
    pub to: UrlTemplate,
    /// The status code.
    pub status: StatusCode,
}

/// A route's changes to messages, and the conditions to match.
#[derive(Debug)]
pub struct RouteDetails {
    /// The path pattern, whose parameters are variables.
    pub pattern: PathPattern,
    /// The conditions beyond host, path and method.
    pub conditions: Conditions,
    /// The form of the path of forwarded requests.
    pub path: ForwardedPath,
    /// The `Host` of forwarded requests.
    pub host: HostRule,
    /// The path of forwarded requests, instead of the requested one.
    pub rewrite: Option<PathTemplate>,
    /// Changes to forwarded requests.
    pub request_headers: Option<HeaderRules>,
    /// Changes to responses.
    pub response_headers: Option<HeaderRules>,
}

impl Route {
    /// How it answers proxies that ask for decisions; `None` for another route.
    pub fn decide(&self) -> Option<&DecideRules> {
        match &self.action {
            Action::Decide(rules) => Some(rules),
            _ => None,
        }
    }

    /// The values of the path's parameters. None on a `decide` route: `path` is that of the asked
    /// request.
    pub fn captures<'p>(&'p self, path: &'p str) -> SmallVec<[(&'p str, &'p str); 4]> {
        if self.decide().is_some() { SmallVec::new() } else { self.edits.pattern.captures(path) }
    }

    /// True if `Location` in responses is translated back, because the upstream sees another path
    /// or host.
    pub fn restores_location(&self) -> bool {
        self.strip_prefix.is_some() || self.edits.host != HostRule::Preserve
    }
}

/// The headers from which `limits` read keys, costs or tiers, and the headers that carry tokens.
/// Sorted, without duplicates.
pub fn counted_headers(
    limits: &[Arc<LimitPolicy>],
    tokens: &[CredentialSource],
) -> Vec<HeaderName> {
    let header = |part: &KeyPart| match part {
        KeyPart::Header(name) => Some(name.clone()),
        KeyPart::Cookie(_) => Some(http::header::COOKIE),
        _ => None,
    };
    let mut names = Vec::new();
    for policy in limits {
        names.extend(policy.key.0.iter().filter_map(header));
        match &policy.cost {
            Cost::Header { name, .. } => names.push(name.clone()),
            Cost::Settled(settled) => {
                if let CostEstimate::Header(name) = &settled.estimate {
                    names.push(name.clone());
                }
            }
            _ => {}
        }
        names.extend(policy.tiers.iter().filter_map(|tier| match &tier.matches {
            TierMatch::Part(part, _) => header(part),
            TierMatch::Networks(_) => None,
        }));
    }
    names.extend(tokens.iter().filter_map(|source| match source {
        CredentialSource::Header(name) => Some(name.clone()),
        CredentialSource::Cookie(_) => Some(http::header::COOKIE),
        CredentialSource::Recorded(_) => None,
    }));
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}

/// How the client's address and tokens are determined.
#[derive(Debug, Default)]
pub struct IdentityRules {
    /// The proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: TrustedProxies,
    /// The prefix length, in bits, by which IPv6 clients are counted.
    pub ipv6_prefix: u8,
    /// The headers and cookies that may carry an access token.
    pub token: Vec<CredentialSource>,
}

/// The rate-limit headers that are written.
#[derive(Clone, Copy, Debug)]
pub struct RateHeaders {
    /// Write the `X-RateLimit-*` headers.
    pub x_ratelimit: bool,
    /// Write `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11.
    pub draft_11: bool,
    /// What happens to an upstream's own headers of these names.
    pub upstream: UpstreamRateHeaders,
}

impl RateHeaders {
    /// True if an upstream's own headers are forwarded.
    pub fn keeps_upstream(self) -> bool {
        self.upstream == UpstreamRateHeaders::Keep
    }
}
