//! `traces`: spans of requests for a trace collector.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};
use tidegate_vocabulary::ParentTrust;

use super::secret::SecretReference;
use super::units::Duration;

/// Spans of requests for a trace collector, and the W3C trace context of forwarded requests. Spans
/// are sent with OTLP over HTTP, in protobuf.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// URL that spans are sent to, with its path. Collectors accept them at `/v1/traces`, usually
    /// on port 4318.
    pub endpoint: CollectorUrl,
    /// Share of the requests to sample, 0 to 1, unless the sender of a request decides
    /// (`trust_parent`).
    #[serde(default = "Traces::default_sample")]
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub sample: f64,
    /// Senders whose `traceparent` is trusted: their trace is continued, and their flag decides
    /// whether the request is sampled. Any other request begins a new trace.
    #[serde(default)]
    pub trust_parent: ParentTrust,
    /// Name of the service in all spans (`service.name`).
    #[serde(default = "Traces::default_service_name")]
    pub service_name: String,
    /// Header fields of requests to the collector, such as its credentials, by name. Values are
    /// `env:NAME` or `file:PATH`.
    #[serde(default)]
    pub headers: BTreeMap<String, SecretReference>,
    /// Path of the CA certificates (PEM) that an `https://` collector is verified against. Default:
    /// the system's CA certificates.
    pub tls_ca: Option<PathBuf>,
    /// Maximum time of one request to the collector.
    #[serde(default = "Traces::default_timeout")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "100ms", "x-maximum" = "60s")))]
    pub timeout: Duration,
    /// Maximum number of finished requests whose spans wait to be sent. Beyond it, spans are
    /// dropped, and a metric counts them.
    #[serde(default = "Traces::default_max_queue")]
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub max_queue: usize,
}

impl Traces {
    fn default_sample() -> f64 {
        1.0
    }

    fn default_service_name() -> String {
        "tidegate".to_owned()
    }

    fn default_timeout() -> Duration {
        Duration::from_secs(10)
    }

    fn default_max_queue() -> usize {
        4096
    }
}

/// The URL of a trace collector.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CollectorUrl(pub http::Uri);

impl CollectorUrl {
    /// True if connections to the collector use TLS.
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }
}

impl ScalarValue for CollectorUrl {
    const EXPECTED: &'static str = "http://host:port/v1/traces or https://host/v1/traces, without user, password and query; credentials are in `headers`";
    const PATTERN: &'static str = "^https?://[^/?#@]+(/[^?#@]*)?$";
    const EXAMPLE: &'static str = "http://127.0.0.1:4318/v1/traces";
    // It may contain a password, although none is allowed.
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Self> {
        let url: http::Uri = text.parse().ok()?;
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        let has_host = url.host().is_some_and(|host| !host.is_empty());
        let has_extra = text.contains(['@', '#', '?']);
        (is_http && has_host && !has_extra).then_some(Self(url))
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl_scalar!(CollectorUrl);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_urls_have_no_credentials() {
        let parse = |text: &str| CollectorUrl::parse(text);
        for good in ["http://c:4318/v1/traces", "https://c/", "http://[::1]:4318/v1/traces"] {
            assert_eq!(parse(good).unwrap().to_string(), good);
        }
        assert!(parse("https://c/v1/traces").unwrap().is_tls());
        let bad =
            ["c:4318", "http://", "grpc://c:4317", "http://me:pw@c/", "http://c/?k=1", "/v1", ""];
        for text in bad {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
