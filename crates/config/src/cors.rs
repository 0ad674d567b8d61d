//! `cors`: which scripts of other origins may use a route, and how.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::method::Method;
use super::units::Duration;

/// Cross-origin resource sharing (Fetch standard): which scripts of other origins may use the
/// route. The gateway answers preflights itself and replaces the upstream's own `Access-Control-*`
/// headers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Origins whose scripts may use the route: `https://app.example.com`, `https://*.example.org`
    /// for all hosts below it, `"null"`, or `*` for all.
    pub origins: Vec<CorsOrigin>,
    /// Methods that scripts may use. Default: the methods of the route's `match`, or `GET`, `HEAD`,
    /// `POST`, `PUT`, `PATCH` and `DELETE` if it has none.
    pub methods: Option<Vec<Method>>,
    /// Request headers that scripts may set besides the CORS-safelisted ones; `*` for all except
    /// `authorization`.
    #[serde(default)]
    pub headers: Vec<String>,
    /// Response headers that scripts may read besides the CORS-safelisted ones and the rate-limit
    /// headers; `*` for all.
    #[serde(default)]
    pub expose: Vec<String>,
    /// Allow requests with cookies and other browser credentials. Not allowed with the origin `*`.
    #[serde(default)]
    pub credentials: bool,
    /// Time for which a browser may cache the response to a preflight; browsers have bounds of
    /// their own.
    #[serde(default = "Cors::default_max_age")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "0ms")))]
    pub max_age: Duration,
}

impl Cors {
    fn default_max_age() -> Duration {
        Duration::from_secs(600)
    }
}

/// Origins whose scripts may use a route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CorsOrigin {
    /// `*`: every origin.
    Any,
    /// `null`: an opaque origin, such as that of a sandboxed frame or of a local file.
    Null,
    /// `scheme://host` or `scheme://host:port` as browsers send it: in lower case, without the
    /// scheme's default port.
    Exact(String),
    /// `scheme://*.domain` or `scheme://*.domain:port`.
    Below {
        /// `scheme://`.
        scheme: String,
        /// The domain with the dot before it, and the port, if any: `.example.org:8443`.
        suffix: String,
    },
}

/// The ports that browsers leave out of an origin.
const DEFAULT_PORTS: [(&str, &str); 4] =
    [("http", ":80"), ("https", ":443"), ("ws", ":80"), ("wss", ":443")];

impl ScalarValue for CorsOrigin {
    const EXPECTED: &'static str =
        "an origin such as https://app.example.com or https://*.example.org, without a path; or *";
    const PATTERN: &'static str = "^(\\*|null|[A-Za-z][A-Za-z0-9+.-]*://(\\*\\.)?(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9._-]+)(:[0-9]+)?)$";
    const EXAMPLE: &'static str = "https://app.example.com";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "*" => return Some(Self::Any),
            "null" => return Some(Self::Null),
            _ => {}
        }
        let lower = text.to_ascii_lowercase();
        let (scheme, authority) = lower.split_once("://")?;
        let mut bytes = scheme.bytes();
        let starts_with_letter = bytes.next()?.is_ascii_lowercase();
        if !(starts_with_letter && bytes.all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(&b)))
        {
            return None;
        }
        let (host, port) = split_port(authority)?;
        let is_default = DEFAULT_PORTS.contains(&(scheme, port));
        let port = if is_default { "" } else { port };
        match host.strip_prefix("*.") {
            Some(domain) => is_name(domain).then(|| Self::Below {
                scheme: format!("{scheme}://"),
                suffix: format!(".{domain}{port}"),
            }),
            None if is_name(host) || is_ipv6(host) => {
                Some(Self::Exact(format!("{scheme}://{host}{port}")))
            }
            None => None,
        }
    }

    fn correction(text: &str) -> Option<String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("https", text));
        let host = rest.split(['/', '?', '#']).next()?;
        let host = host.strip_prefix('.').map_or(host.to_owned(), |domain| format!("*.{domain}"));
        let meant = format!("{scheme}://{host}");
        (host.contains('.') && meant != text)
            .then(|| Self::parse(&meant))?
            .map(|origin| origin.to_string())
    }
}

/// Splits the port, with its colon, from the host of an authority.
fn split_port(authority: &str) -> Option<(&str, &str)> {
    let host_end = authority.find(']').map_or(0, |end| end + 1);
    let at = authority[host_end..].find(':').map_or(authority.len(), |at| host_end + at);
    let (host, port) = authority.split_at(at);
    let is_port = |text: &str| {
        text.bytes().all(|b| b.is_ascii_digit())
            && !text.starts_with('0')
            && text.parse::<u16>().is_ok()
    };
    (port.is_empty() || is_port(&port[1..])).then_some((host, port))
}

fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b))
    };
    host.split('.').all(is_label)
}

fn is_ipv6(host: &str) -> bool {
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // Browsers send only the canonical form.
    inside.is_some_and(|inside| {
        inside.parse::<std::net::Ipv6Addr>().is_ok_and(|address| address.to_string() == inside)
    })
}

impl fmt::Display for CorsOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Null => f.write_str("null"),
            Self::Exact(origin) => f.write_str(origin),
            Self::Below { scheme, suffix } => write!(f, "{scheme}*{suffix}"),
        }
    }
}

impl_scalar!(CorsOrigin);
