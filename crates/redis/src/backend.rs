//! The part that all workers share: the nodes, the shard of each key, and calls that no request
//! waits for.

use std::{sync::Arc, time::Duration};

use ::redis::{Cmd, FromRedisValue, RedisError};
use tidegate_charge::{Charge, Key, Limit, Verdict};
use tidegate_system::clock::{Clock, Elapsed};

use super::{
    RedisFailure, RedisOptions, RedisSetupError, Topology,
    call::run,
    cluster::Cluster,
    connect,
    context::RedisContext,
    node::{NodeConnection, RedisNode},
    presence_keys::PresenceKeys,
    script::{self, Scripts},
    script_call::ScriptRef,
    sentinel::SentinelGroup,
    sentinel_watch::SentinelWatch,
    shard_id::{self, ShardId},
};

/// The part of the Redis store that the process's workers share.
pub struct RedisBackend {
    pub(super) context: Arc<RedisContext>,
    pub(super) layout: Layout,
    pub(super) scripts: Scripts,
    sentinel: Option<Arc<SentinelGroup>>,
}

/// The distribution of keys over servers.
pub(super) enum Layout {
    /// Sorted by the primaries' names, so that a [`ShardId`] means the same at all gateways.
    Fixed(Box<[ConfiguredShard]>),
    Cluster(Arc<Cluster>),
}

/// One configured shard.
pub(super) struct ConfiguredShard {
    pub(super) primary: Arc<RedisNode>,
    /// Servers that [`RedisBackend::peek`] reads first.
    replicas: Box<[Arc<RedisNode>]>,
}

/// The status of one server, for `/readyz` and metrics.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShardStatus {
    /// `host:port`, or Sentinel's name for the primary.
    pub name: Box<str>,
    /// True if no worker's breaker is open and the last probe did not fail.
    pub is_up: bool,
    /// Script calls that were sent to it. A call that is sent again counts again.
    pub calls: u64,
}

impl RedisBackend {
    /// Reads the options. Opens no connection yet.
    ///
    /// # Errors
    ///
    /// A URL or the certificates are malformed, there is no URL, or the thread cannot be started.
    pub fn new(options: RedisOptions, clock: Clock) -> Result<Self, RedisSetupError> {
        let context = Arc::new(RedisContext::new(options, clock)?);
        let options = &context.options;
        let (mut sentinel, ca) = (None, options.tls_ca.as_deref());
        let node = |url: &str| -> Result<_, RedisSetupError> {
            let client = connect::client_for_url(url, &options.credentials, ca)?;
            Ok(Arc::new(RedisNode::fixed(client, Arc::clone(&context))))
        };
        let no_server = RedisSetupError::Url("expected at least one server");
        let layout = match &options.topology {
            Topology::Shards(shards) if shards.is_empty() => return Err(no_server),
            Topology::Shards(shards) => {
                let shards = shards.iter().map(|shard| -> Result<_, RedisSetupError> {
                    let replicas = shard.replicas.iter().map(|url| node(url));
                    let replicas = replicas.collect::<Result<_, _>>()?;
                    Ok(ConfiguredShard { primary: node(&shard.primary)?, replicas })
                });
                let mut shards = shards.collect::<Result<Box<[_]>, _>>()?;
                shards.sort_by(|a, b| a.primary.name.cmp(&b.primary.name));
                Layout::Fixed(shards)
            }
            Topology::Cluster(urls) => {
                let first = urls.first().ok_or(no_server)?;
                let first = connect::client_for_url(first, &options.credentials, ca)?;
                let seeds = urls.iter().map(|url| node(url)).collect::<Result<_, _>>()?;
                let template = first.get_connection_info().clone();
                Layout::Cluster(Arc::new(Cluster::new(Arc::clone(&context), template, seeds)))
            }
            Topology::Sentinel { master, nodes: urls, credentials } => {
                let clients = urls.iter().map(|url| connect::client_for_url(url, credentials, ca));
                let clients = clients.collect::<Result<Box<[_]>, _>>()?;
                let is_tls = urls.first().ok_or(no_server)?.starts_with("rediss://");
                let placeholder = if is_tls { "rediss://sentinel" } else { "redis://sentinel" };
                let primary = connect::client_for_url(placeholder, &options.credentials, ca)?;
                let template = primary.get_connection_info().clone();
                let watched = Arc::new(SentinelGroup::new(master.clone(), clients, template));
                sentinel = Some(Arc::clone(&watched));
                let primary = Arc::new(RedisNode::behind_sentinel(watched, Arc::clone(&context)));
                Layout::Fixed([ConfiguredShard { primary, replicas: Box::default() }].into())
            }
        };
        Ok(Self { scripts: Scripts::new(&options.namespace), layout, sentinel, context })
    }

    /// The shard of a caller's records.
    pub fn shard_of(&self, key: Key) -> ShardId {
        match &self.layout {
            Layout::Fixed(shards) if shards.len() == 1 => ShardId::ONLY,
            _ => self.shard_of_tag(&shard_id::hash_tag(key)),
        }
    }

    fn shard_of_tag(&self, tag: &[u8]) -> ShardId {
        match &self.layout {
            Layout::Fixed(shards) => {
                shard_id::shard_of_tag(shards.iter().map(|shard| &*shard.primary.name), tag)
            }
            Layout::Cluster(_) => ShardId(shard_id::slot_of_tag(tag)),
        }
    }

    /// The node that serves a shard. With a Cluster, waits for the first map.
    async fn node(&self, shard: ShardId) -> Result<Arc<RedisNode>, RedisFailure> {
        match &self.layout {
            Layout::Fixed(shards) => {
                let shard = shards.get(usize::from(shard.0)).ok_or(RedisFailure::Unsent)?;
                Ok(Arc::clone(&shard.primary))
            }
            Layout::Cluster(cluster) => {
                if cluster.map().owner(shard).is_none() {
                    cluster.refresh();
                    cluster.wait_for_first_read().await;
                }
                let map = cluster.map();
                let owner = map.owner(shard).map(|index| Arc::clone(&map.nodes[index]));
                owner.ok_or(RedisFailure::Unsent)
            }
        }
    }

    /// The node that serves keys with this hash tag.
    ///
    /// # Errors
    ///
    /// [`RedisFailure::Unsent`] if no server of a Cluster is known to serve the slot.
    pub(super) async fn node_of_tag(&self, tag: &str) -> Result<Arc<RedisNode>, RedisFailure> {
        self.node(self.shard_of_tag(tag.as_bytes())).await
    }

    /// The primaries of the configured shards, in the order of their [`ShardId`]s, or the known
    /// primaries of the Cluster.
    pub(super) fn nodes(&self) -> Vec<Arc<RedisNode>> {
        match &self.layout {
            Layout::Fixed(shards) => shards.iter().map(|s| Arc::clone(&s.primary)).collect(),
            Layout::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// True for a Cluster, whose servers refuse keys of other slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.layout, Layout::Cluster(_))
    }

    /// The keys by which gateways find each other.
    pub(super) fn presence_keys(&self) -> PresenceKeys {
        let namespace = &self.context.options.namespace;
        if self.is_cluster() {
            PresenceKeys::in_cluster(namespace)
        } else {
            PresenceKeys::new(namespace)
        }
    }

    /// Requests a read of a Cluster's map. Called when a key turned out to be on another server, or
    /// when its server could not be reached.
    pub(super) fn refresh_cluster(&self) {
        if let Layout::Cluster(cluster) = &self.layout {
            cluster.refresh();
        }
    }

    /// The status of each primary.
    pub fn shards(&self) -> Vec<ShardStatus> {
        let status = |node: Arc<RedisNode>| ShardStatus {
            name: node.name.clone(),
            is_up: node.is_up(),
            calls: node.calls(),
        };
        self.nodes().into_iter().map(status).collect()
    }

    /// The number of workers whose breaker is open, for the server where that number is largest.
    pub fn lost_workers(&self) -> usize {
        self.nodes().iter().map(|node| node.open_breakers()).max().unwrap_or(0)
    }

    /// The state for [`Self::check_topology`]; `None` without Sentinel.
    pub fn sentinel_watch(&self) -> Option<SentinelWatch> {
        let (Some(sentinel), Layout::Fixed(shards)) = (&self.sentinel, &self.layout) else {
            return None;
        };
        let shard = shards.first()?;
        Some(SentinelWatch::new(Arc::clone(sentinel), Arc::clone(&shard.primary)))
    }

    /// Checks for failovers: asks the sentinels once, and requests a read of a Cluster's map while
    /// a server is lost.
    pub async fn check_topology(&self, watch: Option<&mut SentinelWatch>) {
        if self.lost_workers() > 0 {
            self.refresh_cluster();
        }
        if let Some(watch) = watch {
            watch.check(&self.context).await;
        }
    }

    /// Decides charges of one shard without charging. Opens a connection, so it is for rare calls
    /// that no request waits for. Reads the replicas first.
    ///
    /// # Errors
    ///
    /// The primary's failure, if no replica gave a verdict.
    pub async fn peek(
        &self,
        shard: ShardId,
        charges: &[Charge<'_>],
    ) -> Result<Verdict, RedisFailure> {
        let command = |script| self.scripts.peek(script, charges, &self.context.clock);
        let parse = |reply: &[i64]| {
            let limits = charges.iter().map(|charge| &**charge.limit);
            script::parse_verdict(limits, reply).ok_or(RedisFailure::Reply)
        };
        if let Layout::Fixed(shards) = &self.layout {
            let replicas = shards.get(usize::from(shard.0)).map_or(&[][..], |s| &s.replicas);
            for replica in replicas {
                let reply = self.call_node::<Vec<i64>>(replica, command).await;
                match reply.map_err(|error| error.failure).and_then(|reply| parse(&reply)) {
                    Ok(verdict) => return Ok(verdict),
                    Err(failure) => {
                        let (replica, failure) = (&*replica.name, failure.label());
                        tracing::debug!(replica, failure, "cannot read limits from a replica");
                    }
                }
            }
        }
        parse(&self.call_shard::<Vec<i64>>(shard, command).await?)
    }

    /// Deletes a caller's records under these limits.
    ///
    /// # Errors
    ///
    /// The server's failure. After [`RedisFailure::Timeout`] or [`RedisFailure::Io`] they may have
    /// been deleted.
    pub async fn delete(&self, limits: &[&Limit], key: Key) -> Result<(), RedisFailure> {
        let command = |_| self.scripts.delete(limits, key);
        self.call_shard::<u64>(self.shard_of(key), command).await.map(drop)
    }

    /// Announces to the other gateways that the records of `key` with these shared ids were
    /// deleted. They read the announcement with their next reports.
    ///
    /// # Errors
    ///
    /// The server's failure.
    pub async fn announce_deletion(&self, key: Key, records: &[u128]) -> Result<(), RedisFailure> {
        let keys = self.presence_keys();
        // Gateways report to every configured shard, so any of these will do. In a Cluster, they
        // report to one server only.
        let presence_shard = || self.shard_of_tag(keys.hash_tag.as_bytes());
        let shard = if self.is_cluster() { presence_shard() } else { self.shard_of(key) };
        self.call_shard(shard, |_| keys.announce_deletions(records)).await
    }

    /// Calls the server of a shard over a new connection, and follows one redirect.
    async fn call_shard<T: FromRedisValue>(
        &self,
        shard: ShardId,
        command: impl Fn(ScriptRef) -> Cmd + Copy,
    ) -> Result<T, RedisFailure> {
        let node = self.node(shard).await?;
        let NodeError { failure, error } = match self.call_node(&node, command).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let (Layout::Cluster(cluster), Some(error)) = (&self.layout, error) else {
            self.refresh_cluster();
            return Err(failure);
        };
        let (node, redirect) = cluster.redirect(&error, &node).ok_or(failure)?;
        let connection = node.open_connection().await?;
        let reply = run(&connection, command, Some(redirect));
        match self.within_response_timeout(reply).await {
            Ok(reply) => reply.map_err(|error| RedisFailure::classify(&error)),
            Err(_) => Err(RedisFailure::Timeout),
        }
    }

    async fn call_node<T: FromRedisValue>(
        &self,
        node: &RedisNode,
        command: impl Fn(ScriptRef) -> Cmd,
    ) -> Result<T, NodeError> {
        let connection =
            node.open_connection().await.map_err(|failure| NodeError { failure, error: None })?;
        let reply = run(&connection, command, None);
        match self.within_response_timeout(reply).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                Err(NodeError { failure: RedisFailure::classify(&error), error: Some(error) })
            }
            Err(_) => Err(NodeError { failure: RedisFailure::Timeout, error: None }),
        }
    }

    async fn within_response_timeout<F: Future>(&self, reply: F) -> Result<F::Output, Elapsed> {
        let RedisContext { options, clock, .. } = &*self.context;
        clock.timeout(options.response_timeout, reply).await
    }

    /// Maximum duration of a call, including the connect.
    pub fn max_call_duration(&self) -> Duration {
        // Connecting, the probe's write and script loads, and the call. In a Cluster, reading the
        // map first may take as long again.
        let options = &self.context.options;
        let timeouts = options.connect_timeout + 2 * options.response_timeout;
        let call = timeouts + self.context.background_timeout();
        if self.is_cluster() { 2 * call } else { call }
    }
}

/// A failed call to a server: the cause, and the error reply, if there was one.
struct NodeError {
    failure: RedisFailure,
    error: Option<RedisError>,
}

/// Opens connections to the shared store, in addition to those of the workers.
#[derive(Clone)]
pub struct Connector {
    backend: Arc<RedisBackend>,
}

impl Connector {
    /// Opens connections to the servers of `backend`.
    pub fn new(backend: Arc<RedisBackend>) -> Self {
        Self { backend }
    }

    /// The prefix of every key.
    pub fn namespace(&self) -> &str {
        &self.backend.context.options.namespace
    }

    /// Connects, within the connect timeout, to the server of the keys with this hash tag, even if
    /// that server refuses writes. If the last probe got no response, waits for the next one: about
    /// half a second.
    ///
    /// # Errors
    ///
    /// The probe's failure, or the failure to connect.
    pub async fn connect(&self, tag: &str) -> Result<NodeConnection, RedisFailure> {
        let node = self.backend.node_of_tag(tag).await?;
        node.connect_if_responding().await.inspect_err(|_| self.backend.refresh_cluster())
    }

    /// True if the keys with either hash tag are always on one server.
    pub fn has_same_server(&self, tag: &str, other: &str) -> bool {
        self.backend.shard_of_tag(tag.as_bytes()) == self.backend.shard_of_tag(other.as_bytes())
    }

    /// Classifies an error. `MOVED`, `ASK` and `READONLY` are [`RedisFailure::Io`]: another server
    /// serves the keys, so the caller has to connect again.
    pub fn classify_error(&self, error: &RedisError) -> RedisFailure {
        let failure = RedisFailure::classify(error);
        if !matches!(error.code(), Some("MOVED" | "ASK" | "READONLY")) {
            return failure;
        }
        self.backend.refresh_cluster();
        RedisFailure::Io
    }
}
