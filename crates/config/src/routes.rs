//! `routes`: which requests are sent to which upstream, under which limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::compress::Compress;
use super::consumers::RouteConsumersConfig;
use super::cors::Cors;
use super::error_bodies::ErrorBodyConfig;
use super::method::Method;
use super::mirror::MirrorConfig;
use super::only_one::{NotOne, only_one};
use super::route_actions::{
    DecideConfig, ErrorFormat, ForwardedPath, HostHeader, MatchValue, RedirectConfig, RouteHeaders,
};
use super::units::{Cidr, Size, TimeoutConfig};
use super::upstreams::FixedResponseConfig;

/// A route: the requests that it matches, what answers them, and the limits that apply.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Name of the route in logs, metrics and keys: 1 to 64 letters, digits, `_`, `.` or `-`,
    /// unique among the routes.
    #[cfg_attr(test, schemars(regex(pattern = "^[A-Za-z0-9_.-]{1,64}$")))]
    pub name: String,
    /// Requests that the route matches. If several routes match, the most specific one is used.
    /// Default: all.
    #[serde(default, rename = "match")]
    pub matches: RouteMatch,
    /// Name of the upstream that requests are sent to. A route has exactly one of `upstream`,
    /// `redirect`, `respond`, `status` and `decide`. Default: none.
    pub upstream: Option<String>,
    /// Redirect clients to another URL.
    pub redirect: Option<RedirectConfig>,
    /// Fixed response that the gateway sends itself.
    pub respond: Option<FixedResponseConfig>,
    /// Names of limits. The gateway itself answers with their state for the caller, as JSON; they
    /// are not charged. Default: none.
    pub status: Option<Vec<String>>,
    /// Answer another proxy, which asks before it forwards a request: 204, or the refusal. The
    /// route's `auth` and `limits`, and the methods, headers and query parameters of its `match`,
    /// apply to the request that is asked about. `{}` takes all defaults.
    pub decide: Option<DecideConfig>,
    /// Names of the limits that requests are charged to. All must admit a request; a refused
    /// request is charged to none.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Names of the ways to authenticate. The first one whose credentials a request has decides.
    /// Default: none.
    #[serde(default)]
    pub auth: Vec<String>,
    /// Admit requests without credentials; wrong ones are refused all the same.
    #[serde(default)]
    pub auth_optional: bool,
    /// Consumers that may use the route; others get a 403. Default: all.
    pub consumers: Option<RouteConsumersConfig>,
    /// How important the route's requests are while its upstream is full, from `0`, the most
    /// important, to `9`. Wins over the priority of the consumer's plan. Default: the plan's, and
    /// `5` without one.
    #[cfg_attr(test, schemars(range(max = 9)))]
    pub priority: Option<u8>,
    /// Apply the `throttle` section to this route.
    #[serde(default = "RouteConfig::default_throttle")]
    pub throttle: bool,
    /// Form of the forwarded path: `normalized`, as routes match it, with `//`, `.` and `..`
    /// resolved; `as_sent`, byte for byte as the client sent it, with 400 for a path that a server
    /// could read as one outside of the route; `strict`, normalized, with 400 for a path that is
    /// not in this form.
    #[serde(default)]
    pub path: ForwardedPath,
    /// Path prefix to remove before the request is forwarded. The upstream receives it in
    /// `X-Forwarded-Prefix`, and the gateway puts it back into `Location` and `Content-Location` of
    /// responses. Default: none.
    pub strip_prefix: Option<String>,
    /// Path of the forwarded request, such as `/v2/things/{path.id}`; not together with
    /// `strip_prefix`. `{path.NAME}` is a parameter of `match.path`, `{path}` the whole path. The
    /// query is kept. Default: the request's path.
    #[cfg_attr(test, schemars(regex(pattern = "^/")))]
    pub rewrite: Option<String>,
    /// `Host` of the forwarded request: `preserve` keeps the client's, `upstream` sends the chosen
    /// target's, and any other text is sent as it is.
    #[serde(default)]
    pub host: HostHeader,
    /// Header fields to set, add and remove.
    #[serde(default)]
    pub headers: RouteHeaders,
    /// Maximum time from the end of the request's head to the response's head, including delays by
    /// limits, connecting and retries. Beyond it, 504, or 408 if the gateway was waiting for the
    /// client's body. Time in which the body arrives does not count, as far as it arrives at 512
    /// bytes a second or faster.
    #[serde(default = "RouteConfig::default_request_timeout")]
    pub request_timeout: TimeoutConfig,
    /// Maximum time without progress in a response's body. Beyond it, the response is cut off.
    #[serde(default = "RouteConfig::default_response_idle_timeout")]
    pub response_idle_timeout: TimeoutConfig,
    /// Maximum time from a response's head to its last byte. Beyond it, the response is cut off.
    #[serde(default = "RouteConfig::default_response_body_timeout")]
    pub response_body_timeout: TimeoutConfig,
    /// Maximum time without a byte in either direction after an upgrade to another protocol, such
    /// as WebSocket. Beyond it, the connection is cut off.
    #[serde(default = "RouteConfig::default_tunnel_idle_timeout")]
    pub tunnel_idle_timeout: TimeoutConfig,
    /// Maximum size of a request body; beyond it, 413. Where the gateway answers by itself
    /// (`respond`, `redirect`, `status`), only a length that the request announces is compared: a body
    /// in chunks is discarded.
    #[serde(default = "RouteConfig::default_max_body")]
    pub max_body: Size,
    /// How much of a request's JSON body is read for limits whose `key` or `cost` has `json:PATH`,
    /// before they are charged. If a member of a `key` is not within it and the body is longer,
    /// 413; without that of an estimate, the limit's `missing_estimate` is charged. Other routes do
    /// not read bodies ahead.
    #[serde(default = "RouteConfig::default_max_inspect")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "1KiB", "x-maximum" = "16MiB")))]
    pub max_inspect: Size,
    /// Networks whose clients may use the route; others get a 403. Behind `client.trusted_proxies`,
    /// the address that the proxy reports is compared. Default: all networks.
    pub allow: Option<Vec<Cidr>>,
    /// Networks whose clients get a 403, even if `allow` includes them.
    #[serde(default)]
    pub deny: Vec<Cidr>,
    /// Cross-origin resource sharing. Default: the upstream's own headers stay, and preflights are
    /// handled like other requests.
    pub cors: Option<Cors>,
    /// Bodies of the gateway's own errors on this route, by status (`503`), range (`502-504`) or
    /// class (`4xx`, `5xx`), instead of problem documents. Status and other headers stay. gRPC
    /// refusals have no body.
    #[serde(default)]
    #[cfg_attr(test, schemars(extend("propertyNames" = {"pattern": "^[45](xx|[0-9][0-9])$"})))]
    pub error_bodies: BTreeMap<String, ErrorBodyConfig>,
    /// Form of the gateway's own errors on this route, for programs: `problem` is a problem
    /// document; `openai`, `anthropic`, `gemini`, `bedrock` and `ollama` add the members that the
    /// clients of these APIs show; `json-rpc`, for MCP, is an error of JSON-RPC with the `id` of
    /// the request, which is read up to `max_inspect`. `error_bodies` win. Default: the API of the
    /// first `preset` of the route's limits, or else `problem`.
    pub refuse_as: Option<ErrorFormat>,
    /// Compress the upstream's responses for clients that accept it; `{}` takes all defaults.
    /// Default: no compression.
    pub compress: Option<Compress>,
    /// Also send a share of the requests to another upstream, and discard its responses.
    pub mirror: Option<MirrorConfig>,
}

/// What answers the requests of a route.
#[derive(Clone, Copy, Debug)]
pub enum RouteActionConfig<'c> {
    /// The upstream of this name.
    Upstream(&'c str),
    /// A redirect.
    Redirect(&'c RedirectConfig),
    /// A fixed response.
    Respond(&'c FixedResponseConfig),
    /// The state of the limits of these names.
    Status(&'c [String]),
    /// A decision for another proxy.
    Decide(&'c DecideConfig),
}

impl RouteConfig {
    /// What answers its requests.
    ///
    /// # Errors
    ///
    /// It has none of the keys of an action, or several.
    pub fn action(&self) -> Result<RouteActionConfig<'_>, NotOne> {
        only_one([
            ("upstream", self.upstream.as_deref().map(RouteActionConfig::Upstream)),
            ("redirect", self.redirect.as_ref().map(RouteActionConfig::Redirect)),
            ("respond", self.respond.as_ref().map(RouteActionConfig::Respond)),
            ("status", self.status.as_deref().map(RouteActionConfig::Status)),
            ("decide", self.decide.as_ref().map(RouteActionConfig::Decide)),
        ])
    }

    fn default_throttle() -> bool {
        true
    }

    fn default_request_timeout() -> TimeoutConfig {
        TimeoutConfig::from_secs(120)
    }

    fn default_response_idle_timeout() -> TimeoutConfig {
        TimeoutConfig::from_secs(300)
    }

    fn default_response_body_timeout() -> TimeoutConfig {
        TimeoutConfig(None)
    }

    fn default_tunnel_idle_timeout() -> TimeoutConfig {
        TimeoutConfig::from_secs(3600)
    }

    fn default_max_inspect() -> Size {
        Size(1 << 20)
    }

    /// `max_body` of a route without one.
    pub const DEFAULT_MAX_BODY: Size = Size(10 << 20);

    fn default_max_body() -> Size {
        Self::DEFAULT_MAX_BODY
    }
}

/// Requests that a route matches.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RouteMatch {
    /// Host name, `*.` and a domain for all hosts below it, or `*` for any host. Default: any host.
    pub host: Option<String>,
    /// Path pattern. `{name}` matches one segment or, next to fixed text as in `{name}.json`, a
    /// part of it; a final `{*name}` matches all remaining segments. `{{` and `}}` are literal
    /// braces. Default: any path.
    #[cfg_attr(test, schemars(regex(pattern = "^/")))]
    pub path: Option<String>,
    /// Path prefix in whole segments, instead of `path`: `/login` matches `/login`, `/login/` and
    /// all paths below, but not `/loginx`. It may contain `{name}`, as in `path`. `{path.rest}` is
    /// the rest of the path, with its slash. Default: none.
    #[cfg_attr(test, schemars(regex(pattern = "^/([^/]+(/[^/]+)*)?$")))]
    pub path_prefix: Option<String>,
    /// Methods, in capitals. Default: any.
    pub methods: Vec<Method>,
    /// Headers, by name: the exact value, `true` if the header must be sent, or `false` if it must
    /// not be sent. All must match.
    pub headers: BTreeMap<String, MatchValue>,
    /// Query parameters, by name: values as in `headers`, compared after decoding.
    pub query: BTreeMap<String, MatchValue>,
    /// Share of the callers that the route matches, in percent. The first token decides, or else
    /// the client address, so a caller keeps its route. Default: all callers.
    #[cfg_attr(test, schemars(range(max = 100)))]
    pub weight: Option<u8>,
}
