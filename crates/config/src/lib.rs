//! The configuration file: its types and its parser.
//!
//! [`load`] reads a file, [`parse`] a text. The result is the whole [`Config`] with its defaults,
//! or all [`Fault`]s at once, each with its location in the file. Only the syntax and the type of
//! each value are checked here. Checks that need more than one value (does the upstream exist? does
//! the resolution divide the window?) belong to the compiler of the rules, which reports through
//! [`ConfigSource::fault`].
//!
//! It decides nothing about a request, and reads no other file than the one it is asked for.
//!
//! | file | content |
//! |---|---|
//! | `reader` | deserializes the types from a located tree, and collects every fault |
//! | `located` | the text as a tree with a location for every key and value |
//! | `source` | [`ConfigSource`]: locates a path such as `limits.a.quota` in the text |
//! | `fault`, `file_text`, `location`, `redact`, `hidden_scalars`, `line_values`, `suggest` | [`Faults`]: what is wrong and where; what is shown of a line and its values; the name that was probably meant |
//! | `environment`, `masks` | replace references to environment variables; keep their values out of messages |
//! | `cross_check` | refuses text that another YAML parser reads differently |
//! | `listen` | the listeners, and `http`: bounds of connections and heads |
//! | `acme`, `admin`, `client`, `headers`, `access_log`, `traces`, `store`, `throttle` | sections of the same name |
//! | `upstreams`, `target`, `balance` | an upstream, its targets, and how they are chosen and checked |
//! | `auth`, `jwt`, `forward_auth`, `consumers`, `plans`, `overrides` | ways to authenticate, the consumers, the quotas of their plans, and quotas set at run time |
//! | `limits`, `window`, `cost`, `rate`, `tiers` | a limit, its window, its cost, its short form, and its other quotas |
//! | `rate_limit_service` | the listener and the domains of Envoy's rate limit service |
//! | `routes`, `route_actions`, `redirect`, `mirror`, `cors`, `compress`, `error_bodies` | a route and its parts; its bounds and deadlines, such as `max_body` |
//! | `descriptors_file` | the configuration file of envoyproxy/ratelimit |
//! | `consumers_file`, `overrides_file` | the records of a file of consumers, one by one; the values of a file of overrides |
//! | `json_error` | mistakes in JSON, in our words |
//! | `only_one` | [`NotOne`]: the fault of a section that has none or several of exclusive keys |
//! | `plain_text`, `end_time` | names and other printable texts; times at which keys and overrides end |
//! | `units`, `status`, `method`, `listen_address`, `admin_address`, `secret` | values with a syntax of their own, by the macro of `tidegate-scalar` |
//! | `schema` | the JSON Schema of the types, from the file `schema.json`, which a test writes |
//! | `pattern` | patterns of numbers and amounts in a range, for schemas |
//!
//! A file is parsed twice, because two YAML parsers may read a text differently. References to
//! environment variables are replaced before types are checked. The doc comments of the types are
//! the descriptions in the JSON Schema ([`schema`]).
//!
//! ```
//! let text = "
//! upstreams: {app: {targets: [http://127.0.0.1:9000]}}
//! limits: {per-caller: {quota: 100, window: 1m}}
//! routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [per-caller]}]
//! ";
//! let loaded = tidegate_config::parse("api.yaml", text).unwrap();
//! assert_eq!(loaded.config.limits["per-caller"].window.millis().as_ms(), 60_000);
//!
//! let error = tidegate_config::parse("api.yaml", &text.replace("1m", "soon")).unwrap_err();
//! assert!(error.to_string().starts_with("api.yaml:3:43: `soon`, expected a duration such as 250ms"));
//! ```

mod access_log;
mod acme;
mod admin;
mod admin_address;
mod auth;
mod balance;
mod client;
mod compress;
mod consumers;
mod consumers_file;
mod cors;
mod cost;
mod cross_check;
mod descriptors_file;
mod end_time;
mod environment;
mod error_bodies;
mod fault;
mod file_text;
mod forward_auth;
mod headers;
mod hidden_scalars;
mod json_error;
mod jwt;
mod limits;
mod line_values;
mod listen;
mod listen_address;
mod located;
mod location;
mod masks;
mod method;
mod mirror;
mod only_one;
mod overrides;
mod overrides_file;
mod pattern;
mod plain_text;
mod plans;
mod rate;
mod rate_limit_service;
mod reader;
mod redact;
mod redirect;
mod route_actions;
mod routes;
mod schema;
mod secret;
mod source;
mod status;
mod store;
mod suggest;
mod target;
#[cfg(test)]
pub(crate) mod tests;
mod throttle;
mod tiers;
mod traces;
mod units;
mod upstreams;
mod window;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use access_log::{AccessLogConfig, AccessLogFormat, LogDestination};
pub use acme::{AcmeConfig, AcmeStorageConfig, DirectoryUrl, DomainName, EabConfig, EmailAddress};
pub use admin::{Admin, HostName};
pub use admin_address::AdminAddress;
pub use auth::{
    ApiKeyConfig, AuthKindConfig, AuthMethodConfig, BasicAuthConfig, CertificateAuthConfig,
    MaxFailures,
};
pub use balance::{AdaptiveConcurrency, Ejection, HealthCheck, RetryCondition};
pub use client::Client;
pub use compress::{Compress, CompressLevel};
pub use consumers::{ConsumerConfig, ConsumerKeyConfig, ConsumersConfig, RouteConsumersConfig};
pub use consumers_file::{
    ConsumerRecord, ConsumersText, KeyRecord, RecordFault, RecordPart, RecordSink,
};
pub use cors::{Cors, CorsOrigin};
pub use cost::{ActualConfig, EstimateConfig, FailedConfig, MissingConfig, SettledCostConfig};
pub use descriptors_file::{
    DescriptorConfig, DescriptorQuota, DescriptorRate, DescriptorsFile, descriptors_fault,
    read_descriptors,
};
pub use end_time::LastYear;
pub use error_bodies::ErrorBodyConfig;
pub use fault::{Fault, Faults};
pub use forward_auth::{AnswerHeader, AuthServiceUrl, ForwardAuthConfig, OnAuthFailure};
pub use headers::{Headers, StandardHeaders, UpstreamRateHeaders};
pub use json_error::json_error;
pub use jwt::{ClaimReference, JwksLocation, JwtAlgorithm, JwtConfig};
pub use limits::{AlgorithmConfig, BlockConfig, CostConfig, LimitConfig, Reserve};
pub use listen::{CertificateFiles, Http, Listener, ListenerTls, ProxyProtocol, Tls};
pub use listen_address::ListenAddress;
pub use location::Location;
pub use method::Method;
pub use mirror::MirrorConfig;
pub use only_one::NotOne;
pub use overrides::OverridesConfig;
pub use overrides_file::{
    OverrideFault, OverrideField, OverrideFields, OverrideSink, OverridesText,
};
pub use plain_text::{
    MAX_CONSUMER_NAME, consumer_name_pattern, is_consumer_name, is_printable, printable_pattern,
};
pub use plans::{PRIORITY_KEY, PlanConfig, PlanQuota};
pub use rate::Rate;
pub use rate_limit_service::{
    DOMAIN_SYNTAX, DomainLimitConfig, FixedAnswer, LateHits, RateLimitDomainConfig,
    RateLimitServiceConfig, is_domain_name,
};
pub use redact::Shown;
pub use redirect::RedirectHttps;
pub use route_actions::{
    DecideConfig, ErrorFormat, ForwardedPath, HeaderReplacementConfig, HeaderRulesConfig,
    HostHeader, MatchValue, RedirectConfig, RouteHeaders,
};
pub use routes::{RouteActionConfig, RouteConfig, RouteMatch};
pub use schema::{editor_schema, schema};
pub use secret::{EnvLookup, Environment, SecretError, SecretReference};
pub use source::ConfigSource;
pub use status::{Status, StatusRange};
pub use store::{Memory, Redis, RedisUrl, Sentinel, Shard, Store};
pub use target::{HostPort, TargetUrl, WeightedTargetConfig};
pub use throttle::{ThrottleConfig, WaitingRoomConfig};
pub use tidegate_scalar::suggest;
pub use tidegate_vocabulary::AcmeChallenge;
pub use tiers::{Candidate, TierConfig, TierMatchConfig, TierQuota};
pub use traces::{CollectorUrl, Traces};
pub use units::{Address, Cidr, Duration, Maximum, Size, TimeoutConfig, parse_network};
pub use upstreams::{FixedResponseConfig, UpstreamConfig, UpstreamTls};
pub use window::{CalendarUnit, TimeZoneName, WindowConfig, WindowStart};

use fault::Mismatch;
use file_text::FileText;
use located::LocatedTree;
use masks::Masks;
use tidegate_base::sensitive::mask_login;
use tidegate_system::file::{self, FileError};

/// Maximum size of a configuration file, in bytes.
const MAX_FILE_SIZE: usize = 16 << 20;
/// How much of a configuration file is read, in bytes: enough to find that it is too large.
pub const MAX_READ: u64 = MAX_FILE_SIZE as u64 + 1;
/// Maximum number of faults that are reported for a file.
pub const MAX_FAULTS: usize = 50;

/// The configuration of a Tidegate gateway.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Listeners for client connections. Default: `[{address: 127.0.0.1:8080}]`, and none if there
    /// is a `rate_limit_service` and no route.
    #[serde(default = "Listener::default_listeners")]
    pub listen: Vec<Listener>,
    /// Number of worker threads, 0 to 1024. 0 starts one per CPU core.
    #[serde(default)]
    #[cfg_attr(test, schemars(range(max = 1024)))]
    pub workers: usize,
    /// The admin listener: health checks, metrics and the control API. Default: no admin listener.
    pub admin: Option<Admin>,
    /// Time for which a gateway that is asked to stop still accepts requests, while `/readyz` and
    /// the health of the rate limit service already report that it stops, so that load balancers
    /// send requests elsewhere.
    #[serde(default = "Config::default_drain_delay")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "0ms")))]
    pub drain_delay: Duration,
    /// Maximum time to finish requests in flight when the gateway stops, after `drain_delay`.
    #[serde(default = "Config::default_drain_timeout")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "0ms")))]
    pub drain_timeout: Duration,
    /// The access log, which has one line per request: `stderr`, `stdout`, `off`, or the path of a
    /// file or FIFO; or a mapping with `to`, `format` and `fields`. Tokens and queries are not
    /// logged.
    #[serde(default, with = "access_log::AccessLogEntry")]
    #[cfg_attr(test, schemars(with = "access_log::AccessLogEntry"))]
    pub access_log: AccessLogConfig,
    /// Spans of requests for a trace collector. Default: none, and trace contexts are forwarded as
    /// they are.
    pub traces: Option<Traces>,
    /// Bounds of client connections and of the requests on them.
    #[serde(default)]
    pub http: Http,
    /// How the client's address and access token are determined.
    #[serde(default)]
    pub client: Client,
    /// Rate-limit headers that are written on responses.
    #[serde(default)]
    pub headers: Headers,
    /// Where limits keep their counters.
    #[serde(default)]
    pub store: Store,
    /// Upstreams, by name: groups of servers, or fixed responses.
    #[serde(default)]
    pub upstreams: BTreeMap<String, UpstreamConfig>,
    /// Rate limits, by name; `NAME: 100/1m` is short for a limit with `quota` and `window` alone. A
    /// limit that several routes name is one shared counter.
    #[serde(default, deserialize_with = "rate::read_limits")]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, rate::LimitEntry>"))]
    pub limits: BTreeMap<String, LimitConfig>,
    /// Ways to authenticate, by name, which routes name in `auth`.
    #[serde(default)]
    pub auth: BTreeMap<String, AuthMethodConfig>,
    /// Consumers: the customers that use the routes. Default: none.
    pub consumers: Option<ConsumersConfig>,
    /// Plans, by name: the quotas of their consumers, by limit. A quota is a number, a rate with
    /// the limit's own window such as `1000/1m`, `unlimited`, or 0, which blocks.
    #[serde(default)]
    pub plans: BTreeMap<String, PlanConfig>,
    /// Where quotas that the admin API sets at run time are kept. Default: in Redis with
    /// `store.redis`, and nowhere without it.
    pub overrides: Option<OverridesConfig>,
    /// Envoy's rate limit service: decisions for other proxies, by limits of this configuration.
    /// Default: none.
    pub rate_limit_service: Option<RateLimitServiceConfig>,
    /// Active-user admission control. Default: all users are admitted.
    pub throttle: Option<ThrottleConfig>,
    /// Routes: which requests are sent to which upstream, under which limits. Default: none, which
    /// needs `rate_limit_service`.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
}

impl Config {
    fn default_drain_delay() -> Duration {
        Duration::from_millis(0)
    }

    fn default_drain_timeout() -> Duration {
        Duration::from_secs(30)
    }
}

/// A configuration and the text that it was read from.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The configuration, with defaults.
    pub config: Config,
    /// The text, which locates faults.
    pub source: ConfigSource,
}

/// The faults of a file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{faults}")]
pub struct ReadError {
    /// Faults of syntax and type.
    pub faults: Faults,
    /// The configuration without its faulty values. It serves to find further faults, or the
    /// address of the admin listener; a gateway must not run on it.
    pub partial: Option<Box<LoadedConfig>>,
}

impl From<Faults> for ReadError {
    fn from(faults: Faults) -> Self {
        Self { faults, partial: None }
    }
}

/// Reads the file at `path`, which may be a pipe such as `/dev/stdin`. `env` looks up the
/// environment variables that it refers to.
///
/// # Errors
///
/// The file cannot be read, or [`parse_bytes`] fails.
pub fn load(path: &Path, env: EnvLookup<'_>) -> Result<LoadedConfig, ReadError> {
    let bytes = file::read(path, MAX_READ).map_err(|error| unreadable(path, &error))?;
    parse_bytes(&path.display().to_string(), &bytes, env)
}

/// The fault for a configuration file that cannot be read.
pub fn unreadable(path: &Path, error: &FileError) -> Faults {
    let name = path.display().to_string();
    let shown = mask_login(&name);
    let advice = format!("the path of a configuration; `tidegate init {shown}` writes one");
    let expected = if error.is_missing() { &advice } else { error.expected() };
    Fault::of_whole_file(&name, &error.to_string(), expected).into()
}

/// Parses the content of a file, with environment variables from `env`. `name` is the file's name
/// in faults.
///
/// # Errors
///
/// The content is not UTF-8 or is larger than 16 MiB; or [`parse_with`] fails.
pub fn parse_bytes(
    name: &str,
    bytes: &[u8],
    env: EnvLookup<'_>,
) -> Result<LoadedConfig, ReadError> {
    parse_with(name, text_of(name, bytes)?, env)
}

/// The content of a file as text. `name` is the file's name in faults.
///
/// # Errors
///
/// The content is not UTF-8.
pub fn text_of<'t>(name: &str, bytes: &'t [u8]) -> Result<&'t str, Faults> {
    std::str::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        file_fault(name, &valid, "a byte that is not UTF-8", "text in UTF-8")
    })
}

/// Parses `text`, with no environment variable set. `name` is the file's name in faults.
///
/// # Errors
///
/// Those of [`parse_with`].
pub fn parse(name: &str, text: &str) -> Result<LoadedConfig, ReadError> {
    parse_with(name, text, &|_| None)
}

/// Parses `text`, with environment variables from `env`. `name` is the file's name in faults.
///
/// # Errors
///
/// The text is not YAML, has unknown or missing keys, variables that are not set or values of a
/// wrong type, or is read differently by another YAML parser. The error has at most 50 faults.
pub fn parse_with(name: &str, text: &str, env: EnvLookup<'_>) -> Result<LoadedConfig, ReadError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > MAX_FILE_SIZE {
        return Err(file_fault(name, "", "a file of more than 16 MiB", "at most 16 MiB").into());
    }
    let file = Arc::new(FileText::new(name.to_owned(), text.to_owned()));
    let (loaded, mut found, masks) = match located::read(text, Some(env)) {
        Ok(tree) => read_tree(&file, tree),
        Err(found) => (None, found, Arc::default()),
    };
    found.sort_by_key(|&(location, _)| location);
    found.truncate(MAX_FAULTS);
    let fault =
        |(location, mismatch)| Fault::new(&file, location, &masks.apply_to_mismatch(&mismatch));
    let mut faults: Vec<Fault> = found.into_iter().map(fault).collect();
    let verified = loaded.map(|loaded| (cross_check::verify(&loaded.source), loaded));
    match verified {
        Some((Ok(()), loaded)) if faults.is_empty() => Ok(loaded),
        verified => {
            let (check, partial) = verified.unzip();
            // After a fault of our reader, the other parser may fail as well; only its syntax error
            // is new.
            faults.extend(
                check
                    .and_then(Result::err)
                    .filter(|disagreement| faults.is_empty() || disagreement.is_syntax)
                    .map(|disagreement| disagreement.fault),
            );
            let none = || file_fault(name, "", "no configuration", "a YAML document");
            let faults = Faults::new(faults).unwrap_or_else(none);
            Err(ReadError { faults, partial: partial.map(Box::new) })
        }
    }
}

/// Deserializes a document. Returns what could be read, its faults, and the values that faults must
/// not show.
fn read_tree(
    file: &Arc<FileText<'static>>,
    tree: LocatedTree,
) -> (Option<LoadedConfig>, Vec<(Location, Mismatch)>, Arc<Masks>) {
    let LocatedTree { root, mut faults, unresolved, references } = tree;
    let mut reading = reader::read(&root, unresolved);
    reading.unreadable.locate(&root);
    faults.extend(reading.faults);
    let masks = Arc::new(Masks::of_references(references));
    let loaded = reading.config.map(|mut config| {
        let mut source = ConfigSource {
            file: Arc::clone(file),
            root,
            unreadable: Arc::new(reading.unreadable),
            masks: Arc::clone(&masks),
        };
        let serves_calls_alone = config.routes.is_empty() && config.rate_limit_service.is_some();
        if serves_calls_alone && !source.is_written("listen") {
            config.listen.clear();
        }
        source.mask_canonical(&config);
        LoadedConfig { config, source }
    });
    (loaded, faults, masks)
}

/// A fault just after `valid`, the readable beginning of the file.
fn file_fault(name: &str, valid: &str, what: &str, expected: &str) -> Faults {
    let line = valid.matches('\n').count() + 1;
    let column = valid.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    let location = Location { line, column, width: 1 };
    let file = FileText::new(name, valid);
    Fault::new(&file, location, &Mismatch::new(what, expected)).into()
}
