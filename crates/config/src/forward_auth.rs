//! `auth.NAME.forward`: authentication by another service.

use std::fmt;
use std::path::PathBuf;

use http::{HeaderName, header};
use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::Duration;

/// A service that decides who sends a request. It is asked with a GET without a body, which has
/// `X-Forwarded-Method`, `-Proto`, `-Host`, `-Uri` and `-For`. A 2xx admits the request; the client
/// gets any other answer as it is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ForwardAuthConfig {
    /// URL of the service, such as `http://127.0.0.1:9091/verify`.
    pub to: AuthServiceUrl,
    /// Names of the request's headers that are sent. Ones that prove nothing, such as `accept` and
    /// `user-agent`, are no credentials: a request with these alone is not remembered by `cache`
    /// and counts for no `max_failures`.
    #[serde(default = "ForwardAuthConfig::default_request_headers")]
    pub request_headers: Vec<String>,
    /// Names of the headers of a 2xx answer that are added to the forwarded request. A client's own
    /// are removed.
    #[serde(default)]
    pub copy: Vec<String>,
    /// Header of a 2xx answer that names the consumer, such as `header:x-user`. Default: no
    /// consumer is known.
    pub consumer: Option<AnswerHeader>,
    /// Header of a 2xx answer that names the consumer's plan. The plan in the consumer's record has
    /// precedence. Default: none.
    pub plan: Option<AnswerHeader>,
    /// Maximum time until the whole answer.
    #[serde(default = "ForwardAuthConfig::default_timeout")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "10ms", "x-maximum" = "60s")))]
    pub timeout: Duration,
    /// How long a 2xx answer admits other requests with equal values of `request_headers`, whatever
    /// their method, host and path. `0s`: every request is asked for.
    #[serde(default = "ForwardAuthConfig::default_cache")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "0s", "x-maximum" = "1h")))]
    pub cache: Duration,
    /// What becomes of a request if the service cannot be reached, is too slow, or answers with a
    /// 5xx.
    #[serde(default)]
    pub on_failure: OnAuthFailure,
    /// Path of the CA certificates (PEM) that an `https://` service is verified against. Default:
    /// the system's CA certificates.
    pub tls_ca: Option<PathBuf>,
}

impl ForwardAuthConfig {
    fn default_request_headers() -> Vec<String> {
        [header::COOKIE, header::AUTHORIZATION].map(|name| name.as_str().to_owned()).into()
    }

    fn default_timeout() -> Duration {
        Duration::from_secs(1)
    }

    fn default_cache() -> Duration {
        Duration::from_secs(0)
    }
}

/// What becomes of a request if the service fails.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnAuthFailure {
    /// It is refused: with a 503, or the service's own 5xx.
    #[default]
    Deny,
    /// It proceeds without a consumer.
    Allow,
}

/// The URL of a service that authenticates requests.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuthServiceUrl(pub http::Uri);

impl AuthServiceUrl {
    /// True if connections to the service use TLS.
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }
}

impl ScalarValue for AuthServiceUrl {
    const EXPECTED: &'static str =
        "http://host:port/path or https://host/path, without user and password";
    const PATTERN: &'static str = "^https?://[^/?#@]+([/?][^#]*)?$";
    const EXAMPLE: &'static str = "http://127.0.0.1:9091/verify";
    // It may contain a password, although none is allowed.
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Self> {
        let url: http::Uri = text.parse().ok()?;
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        let has_host = url.host().is_some_and(|host| !host.is_empty());
        let has_user = url.authority().is_some_and(|authority| authority.as_str().contains('@'));
        (is_http && has_host && !has_user && !text.contains('#')).then_some(Self(url))
    }
}

impl fmt::Display for AuthServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl_scalar!(AuthServiceUrl);

/// A header of a service's answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AnswerHeader(pub HeaderName);

impl ScalarValue for AnswerHeader {
    const EXPECTED: &'static str = "header:NAME";
    const PATTERN: &'static str = "^header:[!#-'*+.0-9A-Z^-z|~-]+$";
    const EXAMPLE: &'static str = "header:x-user";

    fn parse(text: &str) -> Option<Self> {
        text.strip_prefix("header:")?.parse().ok().map(Self)
    }

    fn correction(text: &str) -> Option<String> {
        let header = format!("header:{}", text.trim());
        (!text.contains(':')).then(|| Self::parse(&header).map(|_| header)).flatten()
    }
}

impl fmt::Display for AnswerHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "header:{}", self.0)
    }
}

impl_scalar!(AnswerHeader);
