//! The options of the Redis store: servers, credentials, namespace and timeouts.

use std::{fmt, time::Duration};

use tidegate_system::secret::SharedSecret;

/// Servers, credentials, and timeouts of connections and calls.
#[derive(Clone)]
pub struct RedisOptions {
    /// The servers and their arrangement.
    pub topology: Topology,
    /// The user name and the password. Each is used for URLs that have none, and for servers that a
    /// Cluster or Sentinel names.
    pub credentials: Credentials,
    /// Certificate authorities (PEM) to trust instead of the system's.
    pub tls_ca: Option<Box<[u8]>>,
    /// The prefix of every key in Redis.
    pub namespace: Box<str>,
    /// The secret with which keys are hashed. It is the same at all gateways that share counters.
    pub secret: SharedSecret,
    /// Maximum time to connect, from name resolution to the login.
    pub connect_timeout: Duration,
    /// Maximum time that a request waits for its decision.
    pub response_timeout: Duration,
}

/// The servers and their arrangement. URLs are `redis://[user:password@]host[:port][/db]`, or
/// `rediss://` for TLS. They may hold passwords and are never logged.
#[derive(Clone)]
pub enum Topology {
    /// Independent servers: each key is on one of them, by its hash.
    Shards(Vec<ShardUrls>),
    /// A Redis Cluster: the URLs of some of its servers.
    Cluster(Vec<Box<str>>),
    /// One primary, whose address Sentinel names.
    Sentinel {
        /// The primary's name in Sentinel's configuration.
        master: Box<str>,
        /// The URLs of the sentinels; if the first is `rediss://`, the primary uses TLS as well.
        nodes: Vec<Box<str>>,
        /// The user name and the password. Each is used for sentinels' URLs that have none.
        credentials: Credentials,
    },
}

impl Topology {
    /// One server.
    pub fn one(url: impl Into<Box<str>>) -> Self {
        Self::Shards(vec![ShardUrls { primary: url.into(), replicas: Vec::new() }])
    }
}

/// The URLs of one shard's servers.
#[derive(Clone)]
pub struct ShardUrls {
    /// The server where counters are charged.
    pub primary: Box<str>,
    /// Servers that the operator's quota lookups read first. No request is decided there.
    pub replicas: Vec<Box<str>>,
}

/// A user name and a password. Neither is ever printed or logged.
#[derive(Clone, Default)]
pub struct Credentials {
    /// `None`: the server's default user.
    pub username: Option<Box<str>>,
    /// `None`: no password is sent.
    pub password: Option<Box<str>>,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, connect_timeout, response_timeout, .. } = self;
        f.debug_struct("RedisOptions")
            .field("namespace", namespace)
            .field("connect_timeout", connect_timeout)
            .field("response_timeout", response_timeout)
            .finish_non_exhaustive()
    }
}

/// The reason why the Redis backend cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum RedisSetupError {
    /// The URL is not a Redis URL. The message leaves it out, because it may hold a password.
    #[error("the Redis URL is not valid: {0}")]
    Url(&'static str),
    /// The CA certificates for TLS to Redis are not PEM.
    #[error("the CA certificates for TLS to Redis are not valid: expected PEM")]
    Ca,
    /// The thread that connects to Redis could not be started.
    #[error("cannot start the thread that connects to Redis: {0}")]
    Thread(#[from] std::io::Error),
}
