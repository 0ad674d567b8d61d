use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Text, text_value};
use super::units::{Size, Timeout};

/// Which requests go where, and under which limits.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Its name in logs, metrics and keys.
    #[schemars(regex(pattern = "^[A-Za-z0-9_.-]{1,64}$"))]
    pub name: String,
    /// Which requests are meant. Of several routes the most specific wins.
    #[serde(rename = "match")]
    pub matches: Match,
    /// The name of the upstream that answers; this or `status`.
    pub upstream: Option<String>,
    /// The names of limits: instead of an upstream, the gateway tells the caller how things stand with
    /// them, and charges none of them for it.
    pub status: Option<Vec<String>>,
    /// The names of the limits: all must agree, and a refusal charges none.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Whether the throttle stands before this route.
    #[serde(default = "Route::throttle")]
    pub throttle: bool,
    /// Taken off the path before the request is sent on.
    pub strip_prefix: Option<String>,
    /// The longest time from the end of the request's head to the answer's head: waiting for a limit,
    /// connecting and retries included. Then 504, or 408 where the client's body was waited for.
    #[serde(default = "Route::request_timeout")]
    pub request_timeout: Timeout,
    /// The longest gap in an answer's body; then it is cut off.
    #[serde(default = "Route::answer_idle_timeout")]
    pub answer_idle_timeout: Timeout,
    /// The longest time from an answer's head to its last byte; then it is cut off.
    #[serde(default = "Route::answer_timeout")]
    pub answer_timeout: Timeout,
    /// The longest request body; then 413.
    #[serde(default = "Route::max_body")]
    pub max_body: Size,
}

impl Route {
    fn throttle() -> bool {
        true
    }

    fn request_timeout() -> Timeout {
        Timeout::from_secs(60)
    }

    fn answer_idle_timeout() -> Timeout {
        Timeout::from_secs(300)
    }

    fn answer_timeout() -> Timeout {
        Timeout(None)
    }

    fn max_body() -> Size {
        Size(10 << 20)
    }
}

/// Which requests a route means.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// A host, or `*.` and a domain; left out: any host.
    pub host: Option<String>,
    /// A path, in which `{name}` stands for one segment and a last `{*name}` for all that follow.
    #[schemars(regex(pattern = "^/"))]
    pub path: String,
    /// The methods; left out: any.
    #[serde(default)]
    pub methods: Vec<Method>,
}

/// A request's method, as it is written in a request.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Method(pub String);

impl Text for Method {
    const EXPECTED: &'static str = "a method in capitals such as GET";
    const PATTERN: &'static str = "^[A-Z][A-Z0-9_-]*$";

    fn read(text: &str) -> Option<Self> {
        let begins = text.bytes().next()?.is_ascii_uppercase();
        let fits = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b"_-".contains(&b);
        (begins && text.bytes().all(fits)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_value!(Method);
