//! One server of the shared store, as the whole process sees it.

use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Client, aio::MultiplexedConnection};
use tokio::{sync::watch, time};

use super::{
    Failure, RedisOptions,
    background::Background,
    client::{self, ConnectError},
    keeper::{self, NodeKeeper, Probe, Reachability},
    place::slot_tag,
    probe::{probe, unhurried},
    sentinel::Sentinel,
};
use crate::clock;

/// [`Node::slot`] of a server that is no node of a Cluster, or serves no slot.
const NO_SLOT: u32 = u32::MAX;

/// Between two warnings of one reason.
const BETWEEN_WARNINGS: Duration = Duration::from_mins(1);

/// A shard's primary, a replica, a Cluster's node, or what Sentinel calls the primary.
pub(super) struct Node {
    /// `host:port`, or Sentinel's name for it.
    pub(super) name: Box<str>,
    target: Target,
    options: Arc<RedisOptions>,
    background: Arc<Background>,
    pub(super) keeper: NodeKeeper,
    /// Starts the keeper.
    keeping: Once,
    /// Workers whose breaker is open.
    lost: AtomicUsize,
    /// A slot that this node of a Cluster serves.
    slot: AtomicU32,
    /// Why there is no connection, as it was logged last; empty while there is one.
    unreached: Mutex<String>,
    /// The same of why a connection is of no use.
    unfit: Mutex<String>,
    /// The same of why a call was refused, and when.
    refused: Mutex<Option<(String, Instant)>>,
}

enum Target {
    Server(Box<Client>),
    Sentinel(Arc<Sentinel>),
}

/// A connection without a breaker.
pub(crate) struct NodeConnection {
    pub(crate) connection: MultiplexedConnection,
    node: Arc<Node>,
    /// What the keeper had found when the connection was made.
    found: Reachability,
}

impl NodeConnection {
    /// Whether the server came up again since: the connection may lead to what is no longer the primary.
    pub(crate) fn is_stale(&self) -> bool {
        let now = self.node.keeper.reachability();
        matches!(now, Reachability::Up(_)) && now != self.found
    }
}

impl Node {
    pub(super) fn server(
        client: Client,
        options: Arc<RedisOptions>,
        background: Arc<Background>,
    ) -> Self {
        let name = client.get_connection_info().addr().to_string().to_ascii_lowercase();
        Self::new(name.into(), Target::Server(Box::new(client)), options, background)
    }

    pub(super) fn watched(
        sentinel: Arc<Sentinel>,
        options: Arc<RedisOptions>,
        background: Arc<Background>,
    ) -> Self {
        Self::new(sentinel.master.clone(), Target::Sentinel(sentinel), options, background)
    }

    fn new(
        name: Box<str>,
        target: Target,
        options: Arc<RedisOptions>,
        background: Arc<Background>,
    ) -> Self {
        Self {
            name,
            target,
            options,
            background,
            keeper: NodeKeeper::new(),
            keeping: Once::new(),
            lost: AtomicUsize::new(0),
            slot: AtomicU32::new(NO_SLOT),
            unreached: Mutex::default(),
            unfit: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// The host of a server with a fixed address.
    pub(super) fn host(&self) -> Option<&str> {
        match &self.target {
            Target::Server(server) => {
                client::address(server.get_connection_info()).map(|(host, _)| host)
            }
            Target::Sentinel(_) => None,
        }
    }

    /// Workers whose breaker is open.
    pub(super) fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether neither the keeper nor a worker has lost it.
    pub(super) fn is_up(&self) -> bool {
        self.lost() == 0 && !matches!(self.keeper.reachability(), Reachability::Down(_))
    }

    /// A worker's breaker opens.
    pub(super) fn lose(&self, failure: Failure) {
        if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            let (shard, failure) = (&*self.name, failure.label());
            tracing::warn!(shard, failure, "Redis is lost: limits fall back");
        }
    }

    /// A worker's breaker closes.
    pub(super) fn regain(&self) {
        if self.lost.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!(shard = &*self.name, "Redis is back: limits are shared again");
        }
    }

    /// A worker whose breaker is open ends.
    pub(super) fn forget(&self) {
        self.lost.fetch_sub(1, Ordering::Relaxed);
    }

    /// A slot that it serves, so that a write can be tried there.
    pub(super) fn serves(&self, slot: u16) {
        self.slot.store(slot.into(), Ordering::Relaxed);
    }

    /// What the keeper finds; the first call starts it.
    pub(super) fn watch(self: &Arc<Self>) -> watch::Receiver<Reachability> {
        self.keeping.call_once(|| {
            self.background.spawn(keeper::keep(Arc::downgrade(self), keeper::BETWEEN_PROBES));
        });
        self.keeper.subscribe()
    }

    /// Connects where the server is up. Waits for the keeper's first result, and for no other.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<NodeConnection, Failure> {
        let mut changes = self.watch();
        // The sender is a part of `self`: an error cannot be.
        let found = changes.wait_for(|found| *found != Reachability::Untried).await;
        match found.map(|found| *found) {
            Ok(found @ Reachability::Up(_)) => self.open_as(found).await,
            _ => Err(Failure::Open),
        }
    }

    /// Connects where the server answers, whatever it refuses to do. Waits for the keeper's next result
    /// where the server did not answer last.
    pub(super) async fn reach(self: &Arc<Self>) -> Result<NodeConnection, Failure> {
        let mut changes = self.watch();
        let mut found = *changes.borrow_and_update();
        if !found.answers() {
            // The sender is a part of `self`: an error cannot be.
            drop(changes.changed().await);
            found = *changes.borrow();
        }
        match found {
            Reachability::Down(failure) if !found.answers() => Err(failure),
            _ => self.open_as(found).await,
        }
    }

    async fn open_as(self: &Arc<Self>, found: Reachability) -> Result<NodeConnection, Failure> {
        let connection = self.open().await?;
        Ok(NodeConnection { connection, node: Arc::clone(self), found })
    }

    /// Connects, within the connect timeout, whatever the keeper has found. Commands have no timeout of
    /// their own: the caller of each sets one.
    pub(super) async fn open(&self) -> Result<MultiplexedConnection, Failure> {
        let opened = match &self.target {
            Target::Server(client) => client::open(client, self.options.connect_timeout).await,
            Target::Sentinel(sentinel) => sentinel.open(&self.options).await,
        };
        self.log(&self.unreached, "no connection to Redis", opened)
    }

    /// Logs why, each reason once until it goes well again or there is another.
    fn log<T>(
        &self,
        logged: &Mutex<String>,
        what: &str,
        outcome: Result<T, ConnectError>,
    ) -> Result<T, Failure> {
        let ConnectError { failure, why } = match outcome {
            Ok(connected) => {
                logged.lock().clear();
                return Ok(connected);
            }
            Err(error) => error,
        };
        let mut logged = logged.lock();
        if *logged != why {
            tracing::warn!(shard = &*self.name, %why, "{what}");
            *logged = why;
        }
        Err(failure)
    }

    /// Logs why the server has refused a call, which its probe may not show: each reason once a minute.
    pub(super) fn refuses(&self, why: &str) {
        let (mut logged, now) = (self.refused.lock(), clock::instant());
        let is_known =
            |(known, at): &(String, Instant)| known == why && now < *at + BETWEEN_WARNINGS;
        if !logged.as_ref().is_some_and(is_known) {
            tracing::warn!(shard = &*self.name, why, "Redis refuses calls of limits");
            *logged = Some((why.to_owned(), now));
        }
    }

    /// Whether a connection still leads to the server: `Ok` for any answer. It may take long, for whether
    /// the server is too slow is found by requests.
    pub(super) async fn ping(&self, connection: &mut MultiplexedConnection) -> Result<(), Failure> {
        let ping = redis::cmd("PING");
        let pinging = ping.exec_async(connection);
        match time::timeout(unhurried(&self.options), pinging).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => match Failure::of(&error) {
                Failure::Server | Failure::Reply => Ok(()),
                failure => Err(failure),
            },
            Err(_) => Err(Failure::Timeout),
        }
    }
}

impl Probe for Node {
    fn keeper(&self) -> &NodeKeeper {
        &self.keeper
    }

    /// Connects and makes sure that Redis takes a write and has the scripts: a server that answers PING may
    /// still refuse to write. Of Sentinel, asks first where the primary is.
    async fn probe(&self) -> Result<(), Failure> {
        if let Target::Sentinel(sentinel) = &self.target {
            sentinel.forget();
        }
        let mut connection = self.open().await?;
        let namespace = &self.options.namespace;
        let key = match u16::try_from(self.slot.load(Ordering::Relaxed)) {
            Ok(slot) => format!("{namespace}:{{{}}}:probe", slot_tag(slot)),
            Err(_) => format!("{namespace}:probe"),
        };
        let probed = probe(&mut connection, &key, &self.options).await;
        self.log(&self.unfit, "Redis answers, but limits cannot use it", probed)
    }
}
