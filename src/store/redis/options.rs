use std::{fmt, time::Duration};

use crate::secret::SharedSecret;

/// Which Redis, and how long it may take.
#[derive(Clone)]
pub struct RedisOptions {
    /// Where the servers are.
    pub topology: Topology,
    /// What the URL of a server leaves open, for each half by itself; and for those that are discovered.
    pub credentials: Credentials,
    /// Certificates in PEM: who may have signed a server's, instead of those whom the system trusts.
    pub tls_ca: Option<Box<[u8]>>,
    /// What every key in Redis begins with.
    pub namespace: Box<str>,
    /// What keys are hashed under; the same at all gateways that share counters.
    pub secret: SharedSecret,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long a request may wait for its decision.
    pub response_timeout: Duration,
}

/// Where the servers are. URLs are `redis://[user:password@]host[:port][/db]` or `rediss://` for TLS;
/// they hold secrets and are never logged.
#[derive(Clone)]
pub enum Topology {
    /// Each key lives on one of these, by its hash.
    Shards(Vec<Shard>),
    /// A Redis Cluster, by some of its nodes.
    Cluster(Vec<Box<str>>),
    /// One primary, which Sentinel tells of.
    Sentinel {
        /// The name that Sentinel knows the primary by.
        master: Box<str>,
        /// The sentinels; with `rediss://` the primary is asked over TLS, too.
        nodes: Vec<Box<str>>,
        /// What the URL of a sentinel leaves open, for each half by itself.
        credentials: Credentials,
    },
}

impl Topology {
    /// One server.
    pub fn one(url: impl Into<Box<str>>) -> Self {
        Self::Shards(vec![Shard { primary: url.into(), replicas: Vec::new() }])
    }
}

/// One primary, and who may be asked how a caller stands.
#[derive(Clone)]
pub struct Shard {
    /// Where counters are charged.
    pub primary: Box<str>,
    /// Where the operator's looks go first; no decision is read from them.
    pub replicas: Vec<Box<str>>,
}

/// A user's name and password; neither is ever shown.
#[derive(Clone, Default)]
pub struct Credentials {
    /// `None`: the server's default user.
    pub username: Option<Box<str>>,
    /// `None`: the server asks for no password.
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
