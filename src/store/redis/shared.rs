//! What all workers have in common: the servers, and the calls that are on no request's way.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, FromRedisValue, RedisError};
use tokio::time;

use super::{
    Failure, RedisOptions, Topology,
    background::Background,
    call::run,
    client,
    cluster::Cluster,
    keys::Keys,
    node::{Node, NodeConnection},
    place::{self, Place},
    probe::unhurried,
    script::{self, By, Scripts},
    sentinel::Sentinel,
    sentinel_watch::SentinelWatch,
};
use crate::{
    limit::{Charge, Key, Limit, Millis, Verdict},
    store::{SetupError, record_id::shared_record},
};

/// What all workers have in common.
pub(in crate::store) struct Shared {
    pub(super) options: Arc<RedisOptions>,
    pub(super) servers: Servers,
    pub(super) scripts: Scripts,
    sentinel: Option<Arc<Sentinel>>,
}

/// The servers that keep the counters.
pub(super) enum Servers {
    /// By their names, so that a rank means the same to all gateways.
    Fixed(Box<[Shard]>),
    Cluster(Arc<Cluster>),
}

/// A primary, and who may be looked at instead.
pub(super) struct Shard {
    pub(super) primary: Arc<Node>,
    replicas: Box<[Arc<Node>]>,
}

/// One server, as `/readyz` and metrics tell of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShardStatus {
    /// `host:port`, or Sentinel's name for the primary.
    pub name: Box<str>,
    /// Whether neither a worker nor the last probe of it failed.
    pub is_up: bool,
}

impl Shared {
    /// Reads the options; connects nothing yet.
    pub(in crate::store) fn new(options: RedisOptions) -> Result<Self, SetupError> {
        let options = Arc::new(options);
        let background = Arc::new(Background::start()?);
        let (mut sentinel, ca) = (None, options.tls_ca.as_deref());
        let server = |url: &str| -> Result<_, SetupError> {
            let client = client::client(url, &options.credentials, ca)?;
            Ok(Arc::new(Node::server(client, Arc::clone(&options), Arc::clone(&background))))
        };
        let none = SetupError::Url("expected at least one server");
        let servers = match &options.topology {
            Topology::Shards(shards) if shards.is_empty() => return Err(none),
            Topology::Shards(shards) => {
                let shards = shards.iter().map(|shard| -> Result<_, SetupError> {
                    let replicas = shard.replicas.iter().map(|url| server(url));
                    let replicas = replicas.collect::<Result<_, _>>()?;
                    Ok(Shard { primary: server(&shard.primary)?, replicas })
                });
                let mut shards = shards.collect::<Result<Box<[_]>, _>>()?;
                shards.sort_by(|a, b| a.primary.name.cmp(&b.primary.name));
                Servers::Fixed(shards)
            }
            Topology::Cluster(nodes) => {
                let first = client::client(nodes.first().ok_or(none)?, &options.credentials, ca)?;
                let seeds = nodes.iter().map(|url| server(url)).collect::<Result<_, _>>()?;
                let like = first.get_connection_info().clone();
                let (options, background) = (Arc::clone(&options), Arc::clone(&background));
                Servers::Cluster(Arc::new(Cluster::new(options, like, seeds, background)))
            }
            Topology::Sentinel { master, nodes, credentials } => {
                let clients = nodes.iter().map(|url| client::client(url, credentials, ca));
                let clients = clients.collect::<Result<Box<[_]>, _>>()?;
                let secure = nodes.first().ok_or(none)?.starts_with("rediss://");
                let like = if secure { "rediss://sentinel" } else { "redis://sentinel" };
                let primary = client::client(like, &options.credentials, ca)?;
                let primary = primary.get_connection_info().clone();
                let watched = Arc::new(Sentinel::new(master.clone(), clients, primary));
                sentinel = Some(Arc::clone(&watched));
                let (options, background) = (Arc::clone(&options), Arc::clone(&background));
                let primary = Arc::new(Node::watched(watched, options, background));
                Servers::Fixed([Shard { primary, replicas: Box::default() }].into())
            }
        };
        Ok(Self { scripts: Scripts::new(&options.namespace), servers, sentinel, options })
    }

    /// Where the records of a caller are.
    pub(in crate::store) fn place(&self, key: Key) -> Place {
        match &self.servers {
            Servers::Fixed(shards) if shards.len() == 1 => Place::ONLY,
            _ => self.place_of_tag(&place::tag(key)),
        }
    }

    fn place_of_tag(&self, tag: &[u8]) -> Place {
        match &self.servers {
            Servers::Fixed(shards) => {
                place::shard(shards.iter().map(|shard| &*shard.primary.name), tag)
            }
            Servers::Cluster(_) => Place(place::slot(tag)),
        }
    }

    /// The server that has a place now; of a Cluster waits for the first map.
    async fn node(&self, place: Place) -> Result<Arc<Node>, Failure> {
        match &self.servers {
            Servers::Fixed(shards) => {
                let shard = shards.get(usize::from(place.0)).ok_or(Failure::Open)?;
                Ok(Arc::clone(&shard.primary))
            }
            Servers::Cluster(cluster) => {
                if cluster.map().owner(place).is_none() {
                    cluster.refresh();
                    cluster.read_once().await;
                }
                let map = cluster.map();
                let owner = map.owner(place).map(|at| Arc::clone(&map.nodes[at]));
                owner.ok_or(Failure::Open)
            }
        }
    }

    /// The server that has this tag now.
    pub(super) async fn node_of_tag(&self, tag: &str) -> Result<Arc<Node>, Failure> {
        self.node(self.place_of_tag(tag.as_bytes())).await
    }

    /// The servers that counters are charged at, as far as they are known, in the order of their ranks.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.servers {
            Servers::Fixed(shards) => shards.iter().map(|s| Arc::clone(&s.primary)).collect(),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Whether the servers are a Cluster's, whose nodes refuse keys of other slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Something was not where it was looked for: of a Cluster, the map is read again.
    pub(super) fn misled(&self) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.refresh();
        }
    }

    /// Each server, and how it stands.
    pub(in crate::store) fn shards(&self) -> Vec<ShardStatus> {
        let status = |node: Arc<Node>| ShardStatus { name: node.name.clone(), is_up: node.is_up() };
        self.nodes().into_iter().map(status).collect()
    }

    /// Workers that have lost a server: the one that the most have lost.
    pub(in crate::store) fn lost(&self) -> usize {
        self.nodes().iter().map(|node| node.lost()).max().unwrap_or(0)
    }

    /// What asks the sentinels once a second.
    pub(in crate::store) fn watch(&self) -> Option<SentinelWatch> {
        let (Some(sentinel), Servers::Fixed(shards)) = (&self.sentinel, &self.servers) else {
            return None;
        };
        let shard = shards.first()?;
        Some(SentinelWatch::new(Arc::clone(sentinel), Arc::clone(&shard.primary)))
    }

    /// Looks for servers that have taken over: asks the Sentinels once, and has a Cluster's map read again
    /// while a node is lost, which else only calls that fail would do.
    pub(in crate::store) async fn look_out(&self, watch: Option<&mut SentinelWatch>) {
        if self.lost() > 0 {
            self.misled();
        }
        if let Some(watch) = watch {
            watch.look(&self.options).await;
        }
    }

    /// What these limits say of callers at one place, over a connection of its own: for whoever asks
    /// seldom, and on no request's way. Replicas come first, where there are any. `now` is 0 for the
    /// server's clock.
    pub(in crate::store) async fn look(
        &self,
        place: Place,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, Failure> {
        let command = |by| self.scripts.look(by, charges, now);
        let read = |reply: &[i64]| {
            script::verdict(charges.iter().map(|charge| charge.limit), reply).ok_or(Failure::Reply)
        };
        if let Servers::Fixed(shards) = &self.servers {
            let replicas = shards.get(usize::from(place.0)).map_or(&[][..], |s| &s.replicas);
            for replica in replicas {
                let looked = self.ask::<Vec<i64>>(replica, command).await;
                let looked = looked.map_err(|Unanswered(failure, _)| failure);
                match looked.and_then(|reply| read(&reply)) {
                    Ok(verdict) => return Ok(verdict),
                    Err(failure) => {
                        let (replica, failure) = (&*replica.name, failure.label());
                        tracing::debug!(replica, failure, "a replica cannot be looked at");
                    }
                }
            }
        }
        read(&self.ask_owner::<Vec<i64>>(place, command).await?)
    }

    /// Deletes what these limits have of a caller. Without an answer it may have been done.
    pub(in crate::store) async fn delete(
        &self,
        limits: &[&Limit],
        key: Key,
    ) -> Result<(), Failure> {
        let command = |_| self.scripts.reset(limits, key);
        self.ask_owner::<u64>(self.place(key), command).await.map(drop)
    }

    /// Notes for the other gateways that it was deleted.
    pub(in crate::store) async fn note_deletion(
        &self,
        limits: &[&Limit],
        key: Key,
    ) -> Result<(), Failure> {
        let records: Vec<u128> = limits.iter().map(|limit| shared_record(limit, key)).collect();
        let keys = Keys::new(&self.options.namespace, self.is_cluster());
        // Gateways report to every shard, so any will do; of a Cluster, the node that they report to.
        let tag = || self.place_of_tag(keys.tag.as_bytes());
        let place = if self.is_cluster() { tag() } else { self.place(key) };
        self.ask_owner(place, |_| keys.note_resets(&records)).await
    }

    async fn ask_owner<T: FromRedisValue>(
        &self,
        place: Place,
        command: impl Fn(By) -> Cmd + Copy,
    ) -> Result<T, Failure> {
        let node = self.node(place).await?;
        let (failure, error) = match self.ask(&node, command).await {
            Ok(reply) => return Ok(reply),
            Err(Unanswered(failure, error)) => (failure, error),
        };
        let (Servers::Cluster(cluster), Some(error)) = (&self.servers, error) else {
            self.misled();
            return Err(failure);
        };
        let (node, asking) = cluster.redirect(&error, &node).ok_or(failure)?;
        let mut connection = node.open().await?;
        let asking = run(&mut connection, command, asking);
        match time::timeout(self.options.response_timeout, asking).await {
            Ok(reply) => reply.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn ask<T: FromRedisValue>(
        &self,
        node: &Node,
        command: impl Fn(By) -> Cmd,
    ) -> Result<T, Unanswered> {
        let mut connection = node.open().await.map_err(|failure| Unanswered(failure, None))?;
        let asking = run(&mut connection, command, false);
        match time::timeout(self.options.response_timeout, asking).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(Unanswered(Failure::of(&error), Some(error))),
            Err(_) => Err(Unanswered(Failure::Timeout, None)),
        }
    }

    /// The longest that a call can take that has to connect first.
    pub(in crate::store) fn patience(&self) -> Duration {
        // Connecting, its probe, and the call; of a Cluster, the map before.
        let waits = self.options.connect_timeout + 2 * self.options.response_timeout;
        let once = waits + unhurried(&self.options);
        if self.is_cluster() { 2 * once } else { once }
    }
}

/// No answer, and what the server said instead.
struct Unanswered(Failure, Option<RedisError>);

/// Opens connections to the shared store beside those of the workers.
#[derive(Clone)]
pub struct Connector {
    shared: Arc<Shared>,
}

impl Connector {
    pub(in crate::store) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// What every key begins with.
    pub(crate) fn namespace(&self) -> &str {
        &self.shared.options.namespace
    }

    /// Connects to the server that has the keys with this hash tag, within the connect timeout, even if it
    /// only reads. Where the server cannot be reached, waits for its next probe: a second or so.
    pub(crate) async fn connect(&self, tag: &str) -> Result<NodeConnection, Failure> {
        let node = self.shared.node_of_tag(tag).await?;
        node.reach().await.inspect_err(|_| self.shared.misled())
    }

    /// What kind of failure an error is. Where the server has the keys no more, or cannot write them, it
    /// is as if the connection was broken: the next one leads elsewhere.
    pub(crate) fn failure(&self, error: &RedisError) -> Failure {
        let failure = Failure::of(error);
        if !matches!(error.code(), Some("MOVED" | "ASK" | "READONLY")) {
            return failure;
        }
        self.shared.misled();
        Failure::Io
    }
}
