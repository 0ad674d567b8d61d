//! The targets of an upstream, as URLs, with their weights.

use std::{fmt, path::PathBuf};

use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_scalar::{ScalarValue, impl_scalar};

/// A target and its weight: text, or `{url, weight}`.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct WeightedTargetConfig {
    /// The target.
    pub url: TargetUrl,
    /// The target's share of the requests, relative to the other targets, 0 to 1000. With 0 the
    /// target is drained.
    pub weight: u32,
}

const DEFAULT_WEIGHT: u32 = 1;

impl fmt::Display for WeightedTargetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TargetMap {
    url: TargetUrl,
    #[serde(default = "default_weight")]
    weight: u32,
}

fn default_weight() -> u32 {
    DEFAULT_WEIGHT
}

impl<'de> Deserialize<'de> for WeightedTargetConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TargetVisitor;

        impl<'de> Visitor<'de> for TargetVisitor {
            type Value = WeightedTargetConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}; or {{url: URL, weight: NUMBER}}", TargetUrl::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WeightedTargetConfig, E> {
                let invalid = || {
                    let found = de::Unexpected::Str(text);
                    match TargetUrl::correction(text) {
                        None => E::invalid_value(found, &self),
                        Some(meant) => {
                            let expected = format!("`{meant}`: {}", TargetUrl::EXPECTED);
                            E::invalid_value(found, &expected.as_str())
                        }
                    }
                };
                let url = TargetUrl::parse(text).ok_or_else(invalid)?;
                Ok(WeightedTargetConfig { url, weight: DEFAULT_WEIGHT })
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<WeightedTargetConfig, A::Error> {
                let map = TargetMap::deserialize(MapAccessDeserializer::new(map))?;
                Ok(WeightedTargetConfig { url: map.url, weight: map.weight })
            }
        }

        deserializer.deserialize_any(TargetVisitor)
    }
}

impl Serialize for WeightedTargetConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.weight == DEFAULT_WEIGHT {
            return serializer.collect_str(&self.url);
        }
        TargetMap { url: self.url.clone(), weight: self.weight }.serialize(serializer)
    }
}

/// The address of one server of an upstream.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum TargetUrl {
    /// `http://host:port`.
    Http(HostPort),
    /// `https://host:port`.
    Https(HostPort),
    /// `unix:/path/of/socket`.
    Unix(PathBuf),
    /// `srv://name`: the servers of an SRV record.
    Srv(String),
    /// `srvs://name`: the same, with TLS.
    Srvs(String),
}

impl TargetUrl {
    /// True if connections to the target use TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Https(_) | Self::Srvs(_))
    }
}

/// A host and a port.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HostPort {
    /// A name or an IP address; IPv6 without brackets.
    pub host: String,
    /// The port; the scheme's default if the URL has none.
    pub port: u16,
}

impl ScalarValue for TargetUrl {
    const EXPECTED: &'static str = "http://host:port, https://host:port, unix:/path, srv://name or srvs://name, and nothing after it (a route's `rewrite` adds a path)";
    const PATTERN: &'static str =
        "^(https?://(\\[[0-9A-Fa-f:.]+\\]|[^/?#@:]+)(:[0-9]+)?/?|unix:/.+|srvs?://[^/?#@:]+/?)$";
    const EXAMPLE: &'static str = "http://127.0.0.1:9000";

    fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return path.starts_with('/').then(|| Self::Unix(path.into()));
        }
        let (scheme, rest) = text.split_once("://")?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        match scheme {
            "http" => HostPort::parse(authority, 80).map(Self::Http),
            "https" => HostPort::parse(authority, 443).map(Self::Https),
            "srv" => service_name(authority).map(Self::Srv),
            "srvs" => service_name(authority).map(Self::Srvs),
            _ => None,
        }
    }

    fn correction(text: &str) -> Option<String> {
        let meant = match text.split_once("://") {
            None if text.starts_with('/') => format!("unix:{text}"),
            None if text == "localhost" || text.contains(['.', ':']) => format!("http://{text}"),
            Some(("tcp" | "h2c" | "ws", rest)) => format!("http://{rest}"),
            Some(("h2" | "tls" | "wss", rest)) => format!("https://{rest}"),
            // With a path, a query or a fragment.
            Some((scheme @ ("http" | "https"), rest)) => {
                let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
                format!("{scheme}://{authority}")
            }
            _ => return None,
        };
        Self::parse(&meant).is_some().then_some(meant)
    }
}

/// The name of an SRV record, without a port.
fn service_name(text: &str) -> Option<String> {
    let parsed = HostPort::parse(text, 1)?;
    (parsed.host == text && text.contains('.')).then_some(parsed.host)
}

impl HostPort {
    fn parse(text: &str, default_port: u16) -> Option<Self> {
        if let Some((address, port)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
            address.parse::<std::net::Ipv6Addr>().ok()?;
            return Some(Self { host: address.to_owned(), port: port_after(port, default_port)? });
        }
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let is_valid = !host.is_empty() && host.bytes().all(is_name_byte);
        is_valid.then_some(Self { host: host.to_owned(), port: port_after(port, default_port)? })
    }
}

/// The port in `:port`; `default_port` for an empty text.
fn port_after(text: &str, default_port: u16) -> Option<u16> {
    if text.is_empty() {
        return Some(default_port);
    }
    let digits = text.strip_prefix(':').filter(|port| port.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok().filter(|&port| port > 0)
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(server) => write!(f, "http://{server}"),
            Self::Https(server) => write!(f, "https://{server}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Srv(name) => write!(f, "srv://{name}"),
            Self::Srvs(name) => write!(f, "srvs://{name}"),
        }
    }
}

impl_scalar!(TargetUrl);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_scheme_is_suggested() {
        for (text, expected) in [
            ("localhost:3000", Some("http://localhost:3000")),
            ("10.0.0.1", Some("http://10.0.0.1")),
            ("[::1]:80", Some("http://[::1]:80")),
            ("api.internal:8080/", Some("http://api.internal:8080/")),
            ("/run/app.sock", Some("unix:/run/app.sock")),
            ("h2c://app:50051", Some("http://app:50051")),
            ("localhost:http", None),
            ("me:pw@app", None),
            ("ftp://app", None),
            ("app", None),
        ] {
            assert_eq!(TargetUrl::correction(text).as_deref(), expected, "{text}");
        }
    }
}
