//! `store`: where limits keep their counters.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::secret::SecretReference;
use super::units::Duration;

/// Where limits keep their counters: in this process, or in Redis.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Counters in this process. Limits with `on_failure: local` also use them while Redis is
    /// unavailable.
    pub memory: Memory,
    /// Counters in Redis, shared by all gateways that use it. Default: each gateway counts in its
    /// own memory.
    pub redis: Option<Redis>,
}

/// Counters in this process.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Maximum number of keys that are counted at once. Beyond it, a new key evicts an expired one
    /// or else, among a few sampled keys, the one with the fewest requests and the least of its
    /// quota used.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000_000_000_u64)))]
    pub max_keys: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self { max_keys: 1_000_000 }
    }
}

/// Counters in Redis. Exactly one of `shards`, `cluster` and `sentinel` is required.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Redis {
    /// Independent Redis servers for client-side sharding: each key is stored on one of them.
    pub shards: Vec<Shard>,
    /// Some nodes of a Redis Cluster; the others are discovered.
    pub cluster: Vec<RedisUrl>,
    /// A primary that is discovered through Redis Sentinel.
    pub sentinel: Option<Sentinel>,
    /// User name for every server whose URL has none. Default: none.
    pub username: Option<String>,
    /// Password for every server whose URL has none, including discovered ones: `env:NAME` or
    /// `file:PATH`. Default: none.
    pub password: Option<SecretReference>,
    /// Path of the CA certificates (PEM) that `rediss://` servers are verified against. Default:
    /// the system's CA certificates.
    pub tls_ca: Option<PathBuf>,
    /// Prefix of all keys in Redis: 1 to 64 letters, digits, `_`, `.` or `-`. It must be the same
    /// on all gateways that share counters.
    #[cfg_attr(test, schemars(regex(pattern = "^[A-Za-z0-9_.-]{1,64}$")))]
    pub namespace: String,
    /// Secret for the hashes of keys and tokens: `env:NAME` or `file:PATH`, at least 16 bytes. It
    /// must be the same on all gateways that share counters. Default: derived from `namespace`, so
    /// that anyone who can read Redis can recover addresses and tokens by brute force.
    pub secret: Option<SecretReference>,
    /// Maximum time to connect to a Redis server.
    pub connect_timeout: Duration,
    /// Maximum time that a request waits for a reply. Beyond it, the limit's `on_failure` applies.
    pub response_timeout: Duration,
}

impl Default for Redis {
    fn default() -> Self {
        Self {
            shards: Vec::new(),
            cluster: Vec::new(),
            sentinel: None,
            username: None,
            password: None,
            tls_ca: None,
            namespace: "tidegate".to_owned(),
            secret: None,
            connect_timeout: Duration::from_millis(200),
            response_timeout: Duration::from_millis(50),
        }
    }
}

/// A primary and its replicas.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// URL of the primary, which charges the counters.
    pub primary: RedisUrl,
    /// URLs of its replicas. The admin API prefers them for reading the state of a key; decisions
    /// never use them.
    #[serde(default)]
    pub replicas: Vec<RedisUrl>,
}

/// A primary that is discovered through Redis Sentinel.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// Name of the primary in Sentinel's configuration.
    pub master: String,
    /// URLs of the Sentinels. With `rediss://`, connections to the primary also use TLS.
    pub nodes: Vec<RedisUrl>,
    /// User name for Sentinels whose URL has none. Default: none.
    pub username: Option<String>,
    /// Password for Sentinels whose URL has none: `env:NAME` or `file:PATH`. Default: none.
    pub password: Option<SecretReference>,
}

/// `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS.
///
/// `Display` and serialization leave out the credentials; [`RedisUrl::expose_secret`] returns the
/// whole URL.
#[derive(Clone, Eq, PartialEq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// The whole URL with its password: for connecting only.
    pub fn expose_secret(&self) -> &str {
        &self.0
    }

    /// True if the connection uses TLS.
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("rediss://")
    }

    /// `host:port` in lower case, which identifies the server.
    pub fn address(&self) -> String {
        let authority = self.server().split_once('/').map_or(self.server(), |(first, _)| first);
        let host = authority.to_ascii_lowercase();
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        if has_port { host } else { format!("{host}:6379") }
    }

    /// The database number; 0 if the URL has none.
    pub fn database(&self) -> u16 {
        let number = self.server().split_once('/').and_then(|(_, number)| number.parse().ok());
        number.unwrap_or(0)
    }

    fn server(&self) -> &str {
        let rest = self.0.split_once("://").map_or(&*self.0, |(_, rest)| rest);
        rest.rsplit_once('@').map_or(rest, |(_, server)| server)
    }
}

impl ScalarValue for RedisUrl {
    const EXPECTED: &'static str = "a Redis URL such as redis://127.0.0.1:6379 or \
        redis://user:password@host:6379/0 (percent-encode special characters of the password: %40 for @)";
    const PATTERN: &'static str =
        "^rediss?://([^@/?#\\s]*@)?(\\[[0-9A-Fa-f:.]+\\]|[^@/:?#\\s]+)(:[0-9]+)?(/[0-9]*)?$";
    const EXAMPLE: &'static str = "redis://127.0.0.1:6379";
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("rediss://").or_else(|| text.strip_prefix("redis://"))?;
        let (user, server) = rest.rsplit_once('@').unwrap_or(("", rest));
        if user.contains(|c: char| "@/?#[]\\".contains(c) || c.is_whitespace()) {
            return None;
        }
        let (authority, database) = server.split_once('/').unwrap_or((server, ""));
        let authority = authority.parse::<http::uri::Authority>().ok()?;
        let has_valid_port = authority.as_str().rsplit_once(':').is_none_or(|(host, port)| {
            host.starts_with('[') && port.ends_with(']') || port.parse::<u16>().is_ok()
        });
        let has_server = !authority.host().is_empty() && has_valid_port;
        let has_valid_database = database.is_empty() || database.parse::<u16>().is_ok();
        (has_server && has_valid_database).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.split_once("://"), self.0.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, server))) => write!(f, "{scheme}://***@{server}"),
            _ => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl_scalar!(RedisUrl);
