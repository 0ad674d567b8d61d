//! The options of the Redis store: servers, credentials, namespace and timeouts.

use std::{fmt, time::Duration};

use crate::secret::SharedSecret;

/// The servers, how to log in, and how long connections and calls may take.
#[derive(Clone)]
pub struct RedisOptions {
    /// Where the servers are.
    pub topology: Topology,
    /// The user name and the password, each for URLs without one, and for servers that a Cluster or Sentinel
    /// names.
    pub credentials: Credentials,
    /// Certificate authorities (PEM) that are trusted to sign a server's certificate, instead of the
    /// system's.
    pub tls_ca: Option<Box<[u8]>>,
    /// The prefix of every key in Redis.
    pub namespace: Box<str>,
    /// The secret under which keys are hashed; the same at all gateways that share counters.
    pub secret: SharedSecret,
    /// The longest time to make a connection, from name resolution to the login.
    pub connect_timeout: Duration,
    /// The longest time that a request waits for its decision.
    pub response_timeout: Duration,
}

/// Where the servers are. URLs are `redis://[user:password@]host[:port][/db]`, or `rediss://` for TLS;
/// they may hold passwords and are never logged.
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
        /// The user name and the password, each for sentinels' URLs without one.
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
    /// Servers that the operator's quota lookups read first; no request is decided by them.
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

/// Why the Redis part of a store cannot be created.
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
