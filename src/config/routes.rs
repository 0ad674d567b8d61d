//! `routes`: which requests are sent to which upstream, under which limits.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ScalarValue, impl_scalar};
use super::units::{Size, Timeout};

/// A route: which requests it matches, what answers them, and the limits that apply.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Name of the route in logs, metrics and keys: 1 to 64 letters, digits, `_`, `.` or `-`, unique among
    /// the routes.
    #[schemars(regex(pattern = "^[A-Za-z0-9_.-]{1,64}$"))]
    pub name: String,
    /// Requests that the route matches. If several routes match, the most specific one is used.
    #[serde(rename = "match")]
    pub matches: RouteMatch,
    /// Name of the upstream that requests are sent to. A route has either `upstream` or `status`.
    pub upstream: Option<String>,
    /// Names of the limits whose state is reported to the caller, as JSON from the gateway itself instead
    /// of from an upstream. The reported limits are not charged.
    pub status: Option<Vec<String>>,
    /// Names of the limits that a request is charged to. All must admit it; a refused request is charged
    /// to none.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Apply the `throttle` section to this route.
    #[serde(default = "Route::default_throttle")]
    pub throttle: bool,
    /// Path prefix that is removed before the request is forwarded.
    pub strip_prefix: Option<String>,
    /// Maximum time from the end of the request's head to the response's head, including delays by
    /// limits, connecting and retries. Then 504, or 408 if the gateway was waiting for the client's body.
    #[serde(default = "Route::default_request_timeout")]
    pub request_timeout: Timeout,
    /// Maximum time without progress in a response's body; then it is cut off.
    #[serde(default = "Route::default_answer_idle_timeout")]
    pub answer_idle_timeout: Timeout,
    /// Maximum time from a response's head to its last byte; then it is cut off.
    #[serde(default = "Route::default_answer_timeout")]
    pub answer_timeout: Timeout,
    /// Maximum time without a byte in either direction after an upgrade to another protocol, such as
    /// WebSocket; then the connection is cut off.
    #[serde(default = "Route::default_tunnel_idle_timeout")]
    pub tunnel_idle_timeout: Timeout,
    /// Maximum size of a request body; beyond it, 413.
    #[serde(default = "Route::default_max_body")]
    pub max_body: Size,
}

impl Route {
    fn default_throttle() -> bool {
        true
    }

    fn default_request_timeout() -> Timeout {
        Timeout::from_secs(60)
    }

    fn default_answer_idle_timeout() -> Timeout {
        Timeout::from_secs(300)
    }

    fn default_answer_timeout() -> Timeout {
        Timeout(None)
    }

    fn default_tunnel_idle_timeout() -> Timeout {
        Timeout::from_secs(3600)
    }

    fn default_max_body() -> Size {
        Size(10 << 20)
    }
}

/// Requests that a route matches.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RouteMatch {
    /// Host name, `*.` and a domain for all hosts below it, or `*` for any host. Default: any host.
    pub host: Option<String>,
    /// Path pattern. `{name}` matches one segment or, beside fixed text as in `{name}.json`, a part of it;
    /// a final `{*name}` matches all remaining segments. `{{` and `}}` are literal braces.
    #[schemars(regex(pattern = "^/"))]
    pub path: String,
    /// Methods, in capitals. Default: any.
    #[serde(default)]
    pub methods: Vec<Method>,
}

/// A request method, in capitals.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Method(pub String);

impl ScalarValue for Method {
    const EXPECTED: &'static str = "a method in capitals such as GET";
    const PATTERN: &'static str = "^[A-Z][A-Z0-9_-]*$";
    const EXAMPLE: &'static str = "GET";

    fn parse(text: &str) -> Option<Self> {
        let starts_with_letter = text.bytes().next()?.is_ascii_uppercase();
        let is_allowed = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b"_-".contains(&b);
        (starts_with_letter && text.bytes().all(is_allowed)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_scalar!(Method);
