use std::{fmt, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::secret::Secret;
use super::text::{Text, text_value};
use super::units::Duration;

/// Where limits keep their counters: in this process, unless `redis` is there.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// The counters in this process, also what limits fall back on when Redis is lost.
    pub memory: Memory,
    /// Shared counters; leave it out to count in this process.
    pub redis: Option<Redis>,
}

/// The counters in this process.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// The most keys that are counted at once; beyond, one that is over makes room, or of a few
    /// looked at the one with the fewest requests and the least of its quota used.
    #[schemars(range(min = 1))]
    pub max_keys: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self { max_keys: 1_000_000 }
    }
}

/// Counters in Redis: exactly one of `shards`, `cluster` and `sentinel`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Redis {
    /// Client-side sharding: each key lives on one of these.
    pub shards: Vec<Shard>,
    /// Some nodes of a Redis Cluster.
    pub cluster: Vec<RedisUrl>,
    /// A primary that Sentinel watches.
    pub sentinel: Option<Sentinel>,
    /// The user's name, for every server whose URL names nobody.
    pub username: Option<String>,
    /// Where the password is, for every server whose URL has none, those that are discovered included.
    pub password: Option<Secret>,
    /// A file of certificates (PEM) that those of `rediss://` servers are checked against, instead of
    /// those that the system trusts.
    pub tls_ca: Option<PathBuf>,
    /// What every key begins with; gateways that share counters share it.
    #[schemars(regex(pattern = "^[A-Za-z0-9_.-]{1,64}$"))]
    pub namespace: String,
    /// Where the secret is that callers' keys and tokens are hashed under, of at least 16 bytes; the same
    /// at all gateways that share counters. Left out, it follows from `namespace`: whoever can read Redis
    /// can then find addresses and tokens by trying.
    pub secret: Option<Secret>,
    /// The longest time to connect.
    pub connect_timeout: Duration,
    /// The longest time to wait for a reply; then the limit's `on_failure` applies.
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

/// One primary, with the replicas that answer reads.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Where counters are charged.
    pub primary: RedisUrl,
    /// Where the state of a key may be read.
    #[serde(default)]
    pub replicas: Vec<RedisUrl>,
}

/// A primary by its Sentinel name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// The name that Sentinel knows it by.
    pub master: String,
    /// The Sentinels; `rediss://` means TLS to the primary, too.
    pub nodes: Vec<RedisUrl>,
    /// The user's name, for Sentinels whose URL names nobody.
    pub username: Option<String>,
    /// Where the password is, for Sentinels whose URL has none.
    pub password: Option<Secret>,
}

/// `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS.
///
/// Shown and serialized without its password; [`RedisUrl::secret`] has it.
#[derive(Clone, Eq, PartialEq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// The whole URL, password included: for connecting only.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Whether the connection is to be encrypted.
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("rediss://")
    }

    /// `host:port`: what tells one server from another.
    pub fn address(&self) -> String {
        let authority = self.server().split_once('/').map_or(self.server(), |(first, _)| first);
        let host = authority.to_ascii_lowercase();
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        if has_port { host } else { format!("{host}:6379") }
    }

    /// The number of the database; 0 where none is named.
    pub fn database(&self) -> u16 {
        let number = self.server().split_once('/').and_then(|(_, number)| number.parse().ok());
        number.unwrap_or(0)
    }

    fn server(&self) -> &str {
        let rest = self.0.split_once("://").map_or(&*self.0, |(_, rest)| rest);
        rest.rsplit_once('@').map_or(rest, |(_, server)| server)
    }
}

impl Text for RedisUrl {
    const EXPECTED: &'static str = "a Redis URL such as redis://127.0.0.1:6379 or \
        redis://user:password@host:6379/0 (with %40 for an @ in the password, and the like)";
    const PATTERN: &'static str =
        "^rediss?://([^@/?#\\s]*@)?(\\[[0-9A-Fa-f:.]+\\]|[^@/:?#\\s]+)(:[0-9]+)?(/[0-9]*)?$";
    const SECRET: bool = true;

    fn read(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("rediss://").or_else(|| text.strip_prefix("redis://"))?;
        let (user, server) = rest.rsplit_once('@').unwrap_or(("", rest));
        if user.contains(|c: char| "@/?#[]\\".contains(c) || c.is_whitespace()) {
            return None;
        }
        let (authority, database) = server.split_once('/').unwrap_or((server, ""));
        let authority = authority.parse::<http::uri::Authority>().ok()?;
        let port = authority.as_str().rsplit_once(':').is_none_or(|(host, port)| {
            host.starts_with('[') && port.ends_with(']') || port.parse::<u16>().is_ok()
        });
        let known = !authority.host().is_empty() && port;
        let numbered = database.is_empty() || database.parse::<u16>().is_ok();
        (known && numbered).then(|| Self(text.to_owned()))
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

text_value!(RedisUrl);
