//! One worker's part of the Redis store: a connection and a breaker for each node, and the calls of
//! requests.

use std::{pin::pin, sync::Arc, task::Poll, time::Duration};

use ::redis::{Cmd, RedisError};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_charge::{Acquisition, Adjustment, Charge, Key, Verdict};
use tidegate_limit::Grant;
use tidegate_system::clock::{Clock, StoreTime, Uptime};
use tokio::task::AbortHandle;

use super::{
    RedisBackend, RedisFailure,
    backend::Layout,
    breaker::{BreakerConnection, LiveConnection},
    call::{AttemptError, ClusterRedirect, send},
    cluster::{Cluster, SlotMap},
    late_reply::{CallError, LATE_REPLY_TIMEOUT, LateReply, ReplyFuture},
    script,
    script_call::{ScriptRef, is_script_missing},
    shard_id::ShardId,
};

/// Interval between checks for a new connection to a server that hung.
const RECOVERY_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// One worker's connections to Redis.
pub struct RedisClient {
    backend: Arc<RedisBackend>,
    connections: Arc<WorkerConnections>,
    /// Opens connections as the Cluster's map changes, before requests need them.
    map_follower: Option<AbortHandle>,
}

/// One connection for each node.
struct WorkerConnections {
    cluster: Option<Arc<Cluster>>,
    current: ArcSwap<ConnectionSet>,
    update_lock: Mutex<()>,
}

/// The connections for one map.
struct ConnectionSet {
    /// `None` without a Cluster.
    map: Option<Arc<SlotMap>>,
    /// In the order of the map's nodes, or of the configured shards' ids.
    connections: Box<[Arc<BreakerConnection>]>,
}

/// A call's last attempt: its connection, and the pending reply.
struct CallAttempt {
    connection: Arc<BreakerConnection>,
    live: LiveConnection,
    /// True if the connection had already ended, so that nothing was sent.
    is_unsent: bool,
    /// The pending reply; `None` before the attempt and after the reply.
    reply: Option<ReplyFuture>,
}

impl RedisClient {
    /// Starts connecting in the background of the current runtime.
    pub fn new(backend: Arc<RedisBackend>) -> Self {
        let (cluster, nodes) = match &backend.layout {
            Layout::Fixed(shards) => (None, shards.iter().map(|shard| &shard.primary).collect()),
            Layout::Cluster(cluster) => (Some(Arc::clone(cluster)), Vec::new()),
        };
        let connections = nodes
            .into_iter()
            .map(|node| Arc::new(BreakerConnection::new(Arc::clone(node))))
            .collect();
        let current = ArcSwap::from_pointee(ConnectionSet { map: None, connections });
        let connections =
            Arc::new(WorkerConnections { cluster, current, update_lock: Mutex::new(()) });
        let map_follower = connections.cluster.as_ref().map(|cluster| {
            cluster.refresh();
            tokio::spawn(follow_map(Arc::clone(&connections), Arc::clone(cluster))).abort_handle()
        });
        Self { backend, connections, map_follower }
    }

    fn clock(&self) -> &Clock {
        &self.backend.context.clock
    }

    /// The shard of a caller's records. Hashes nothing if there is one server.
    pub fn shard_of(&self, key: Key) -> ShardId {
        self.backend.shard_of(key)
    }

    /// Maximum time that a request waits for its decision.
    pub fn response_timeout(&self) -> Duration {
        self.backend.context.options.response_timeout
    }

    /// True if a call would be sent at once: there is a connection, and its breaker is closed.
    pub fn is_live(&self, shard: ShardId) -> bool {
        self.connections.get(shard).is_some_and(|connection| connection.is_closed())
    }

    /// Charges all or none in one script call. The keys must be on `shard`. Waits at most for the
    /// response timeout and until `deadline` (by [`Clock::uptime`]), and not at all while the
    /// breaker is open.
    ///
    /// # Errors
    ///
    /// A [`CallError`]. Only [`RedisFailure::Unsent`] and [`RedisFailure::Server`] guarantee that
    /// nothing was charged.
    pub async fn charge(
        &self,
        shard: ShardId,
        charges: &[Charge<'_>],
        deadline: Option<Uptime>,
    ) -> Result<Verdict, CallError> {
        let command = |script| self.backend.scripts.charge(script, charges, self.clock());
        let limits = || charges.iter().map(|charge| &**charge.limit);
        self.call(shard, command, |reply| script::parse_verdict(limits(), reply), deadline).await
    }

    /// Charges units for a lease in one script call. Also returns the time by the server's clock.
    ///
    /// # Errors
    ///
    /// Those of [`Self::charge`].
    pub async fn acquire(
        &self,
        shard: ShardId,
        acquisition: &Acquisition<'_>,
    ) -> Result<(Grant, StoreTime), CallError> {
        let command = |script| self.backend.scripts.acquire(script, acquisition, self.clock());
        self.call(shard, command, |reply| script::parse_grant(acquisition, reply), None).await
    }

    /// Decides without charging, in one script call.
    ///
    /// # Errors
    ///
    /// The call's failure.
    pub async fn peek(
        &self,
        shard: ShardId,
        charges: &[Charge<'_>],
    ) -> Result<Verdict, RedisFailure> {
        let command = |script| self.backend.scripts.peek(script, charges, self.clock());
        let limits = || charges.iter().map(|charge| &**charge.limit);
        let verdict =
            self.call(shard, command, |reply| script::parse_verdict(limits(), reply), None);
        verdict.await.map_err(|error| error.failure)
    }

    /// Makes all adjustments in one script call, which is not repeated. A hung server may still
    /// execute it.
    ///
    /// # Errors
    ///
    /// The call's failure. Only [`RedisFailure::Unsent`] and [`RedisFailure::Server`] guarantee
    /// that nothing was adjusted.
    pub async fn adjust(
        &self,
        shard: ShardId,
        adjustments: &[Adjustment<'_>],
    ) -> Result<Verdict, RedisFailure> {
        self.try_adjust(shard, adjustments).await.map_err(|CallError { failure, late }| {
            if let Some(LateReply(reply)) = late {
                // Keeps the connection open: a hung Redis executes commands later only if their
                // connection is still open.
                let clock = self.clock().clone();
                tokio::spawn(async move { clock.timeout(LATE_REPLY_TIMEOUT, reply).await });
            }
            failure
        })
    }

    /// Like [`Self::adjust`], for adjustments that no request waits for. After a timeout, waits for
    /// the late reply until shortly after the shard has a live connection again.
    ///
    /// # Errors
    ///
    /// Those of [`Self::adjust`].
    pub async fn adjust_awaiting_late_reply(
        &self,
        shard: ShardId,
        adjustments: &[Adjustment<'_>],
    ) -> Result<Verdict, RedisFailure> {
        let CallError { failure, late } = match self.try_adjust(shard, adjustments).await {
            Ok(verdict) => return Ok(verdict),
            Err(error) => error,
        };
        let Some(late) = late else { return Err(failure) };
        let limits = adjustments.iter().map(|adjustment| &**adjustment.limit);
        tokio::select! {
            verdict = late.verdict(limits) => verdict.ok_or(failure),
            () = self.wait_for_recovery(shard) => Err(failure),
        }
    }

    async fn try_adjust(
        &self,
        shard: ShardId,
        adjustments: &[Adjustment<'_>],
    ) -> Result<Verdict, CallError> {
        let command = |script| self.backend.scripts.adjust(script, adjustments, self.clock());
        let limits = || adjustments.iter().map(|adjustment| &**adjustment.limit);
        self.call(shard, command, |reply| script::parse_verdict(limits(), reply), None).await
    }

    /// Returns [`RECOVERY_POLL_INTERVAL`] after the shard has a live connection, or after
    /// [`LATE_REPLY_TIMEOUT`].
    async fn wait_for_recovery(&self, shard: ShardId) {
        let recovery = async {
            while !self.is_live(shard) {
                self.clock().sleep(RECOVERY_POLL_INTERVAL).await;
            }
        };
        let _ = self.clock().timeout(LATE_REPLY_TIMEOUT, recovery).await;
        self.clock().sleep(RECOVERY_POLL_INTERVAL).await;
    }

    /// Calls a script on records of `shard`. `command` makes the command, and `parse` reads the
    /// reply. A call that may have been executed is never repeated.
    async fn call<T>(
        &self,
        shard: ShardId,
        command: impl Fn(ScriptRef) -> Cmd,
        parse: impl FnOnce(&[i64]) -> Option<T>,
        deadline: Option<Uptime>,
    ) -> Result<T, CallError> {
        let connection = self.connections.get(shard);
        if connection.as_ref().is_some_and(|connection| connection.is_open()) {
            self.connections.refresh_cluster();
            return Err(CallError { failure: RedisFailure::Unsent, late: None });
        }
        let mut attempt = None;
        let timeout_at = self.clock().uptime() + self.response_timeout();
        let timeout_at = deadline.map_or(timeout_at, |deadline| deadline.min(timeout_at));
        let outcome = {
            // Pinned, so that the timeout does not store a second copy.
            let reply = pin!(self.attempt(shard, connection, command, &mut attempt));
            self.clock().timeout_at(timeout_at, reply).await
        };
        let outcome = outcome.unwrap_or_else(|_| {
            if attempt.is_some() {
                return Err(RedisFailure::Timeout.into());
            }
            // Without a connection nothing was sent.
            if let Some(connection) = self.connections.get(shard) {
                connection.give_up_connecting();
            }
            Err(RedisFailure::Unsent.into())
        });
        let outcome = outcome.and_then(|reply| parse(&reply).ok_or(RedisFailure::Reply.into()));
        outcome.map_err(|AttemptError { failure, trips_breaker, code }| {
            if let Some(CallAttempt { connection, live, .. }) =
                attempt.as_ref().filter(|_| trips_breaker)
            {
                connection.trip(live, failure);
                if let Some(code) = code {
                    connection.node().log_refusal(&code);
                }
            }
            let is_unsent = attempt.as_ref().is_some_and(|attempt| attempt.is_unsent);
            let failure = if is_unsent { RedisFailure::Unsent } else { failure };
            self.connections.refresh_cluster();
            let late = attempt.and_then(|attempt| attempt.reply).map(LateReply);
            CallError { failure, late }
        })
    }

    /// Sends to the server of the shard, and follows one redirect. If nothing could be sent, sends
    /// again over a new connection. Sets `attempt` to the last attempt.
    async fn attempt(
        &self,
        shard: ShardId,
        connection: Option<Arc<BreakerConnection>>,
        command: impl Fn(ScriptRef) -> Cmd,
        attempt: &mut Option<CallAttempt>,
    ) -> Result<Vec<i64>, AttemptError> {
        let connection = match connection {
            Some(connection) => connection,
            None => self.connections.wait_for(shard).await?,
        };
        let live = connection.live().await?;
        let mut first = attempt.insert(CallAttempt::new(connection, live));
        let mut reply = first.run(&command, None).await;
        if first.is_unsent {
            // The connection ended while it was idle: not a failure of the server.
            let connection = Arc::clone(&first.connection);
            let live = connection.replacement(&first.live).await?;
            first = attempt.insert(CallAttempt::new(connection, live));
            reply = first.run(&command, None).await;
        }
        let error = match reply {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        // A redirected call was not executed.
        let redirected = self.connections.redirect(&error, &first.connection);
        let Some((connection, redirect)) = redirected else { return Err(error.into()) };
        // From here on, a failure belongs to the other server.
        *attempt = None;
        let live = connection.live().await?;
        let second = attempt.insert(CallAttempt::new(connection, live));
        Ok(second.run(&command, Some(redirect)).await?)
    }
}

impl CallAttempt {
    fn new(connection: Arc<BreakerConnection>, live: LiveConnection) -> Self {
        Self { connection, live, is_unsent: false, reply: None }
    }

    /// Calls a script with [`Script::invoke`](super::Script::invoke). If this future is dropped
    /// while it waits, `self.reply` holds the pending reply.
    async fn run(
        &mut self,
        command: impl Fn(ScriptRef) -> Cmd,
        redirect: Option<ClusterRedirect>,
    ) -> Result<Vec<i64>, RedisError> {
        match self.send(command(ScriptRef::Hash), redirect).await {
            Err(error) if is_script_missing(&error) => {
                self.send(command(ScriptRef::Text), redirect).await
            }
            reply => reply,
        }
    }

    async fn send(
        &mut self,
        command: Cmd,
        redirect: Option<ClusterRedirect>,
    ) -> Result<Vec<i64>, RedisError> {
        self.connection.node().count_call();
        let mut connection = self.live.connection.clone();
        let sent = async move { send(&mut connection, &command, redirect).await };
        let pending: &mut ReplyFuture = self.reply.insert(Box::pin(sent));
        let reply = match futures_util::poll!(&mut *pending) {
            Poll::Pending => pending.await,
            Poll::Ready(reply) => {
                // An error at the first poll: the connection's task had ended and took no command.
                self.is_unsent = reply.as_ref().is_err_and(RedisError::is_connection_dropped);
                reply
            }
        };
        self.reply = None;
        reply
    }
}

impl Drop for RedisClient {
    fn drop(&mut self) {
        if let Some(map_follower) = &self.map_follower {
            map_follower.abort();
        }
    }
}

impl WorkerConnections {
    /// The connection for a shard; `None` if no server of a Cluster is known to serve it.
    fn get(&self, shard: ShardId) -> Option<Arc<BreakerConnection>> {
        let set = self.current.load();
        let Some(map) = &set.map else {
            return set.connections.get(usize::from(shard.0)).cloned();
        };
        let cluster = self.cluster.as_ref()?;
        if Arc::ptr_eq(map, &cluster.map()) {
            return set.connections.get(map.owner(shard)?).cloned();
        }
        drop(set);
        let set = self.update(cluster);
        set.connections.get(set.map.as_ref()?.owner(shard)?).cloned()
    }

    /// The connection for a shard if [`Self::get`] found none: waits for the Cluster's first map.
    async fn wait_for(&self, shard: ShardId) -> Result<Arc<BreakerConnection>, RedisFailure> {
        let cluster = self.cluster.as_ref().ok_or(RedisFailure::Unsent)?;
        cluster.wait_for_first_read().await;
        self.update(cluster);
        self.get(shard).ok_or(RedisFailure::Unsent)
    }

    /// The connection to which a Cluster's error reply redirects; `None` if it does not.
    fn redirect(
        &self,
        error: &RedisError,
        sender: &BreakerConnection,
    ) -> Option<(Arc<BreakerConnection>, ClusterRedirect)> {
        let cluster = self.cluster.as_ref()?;
        let (node, redirect) = cluster.redirect(error, sender.node())?;
        let set = self.update(cluster);
        let existing = set.connections.iter().find(|other| other.node().name == node.name);
        let connection =
            existing.map_or_else(|| Arc::new(BreakerConnection::new(node)), Arc::clone);
        Some((connection, redirect))
    }

    /// Makes the connections for the current map, and keeps existing ones.
    fn update(&self, cluster: &Arc<Cluster>) -> Arc<ConnectionSet> {
        let _update = self.update_lock.lock();
        let map = Arc::clone(&cluster.map());
        let set = self.current.load_full();
        if set.map.as_ref().is_some_and(|current| Arc::ptr_eq(current, &map)) {
            return set;
        }
        let connections = map.nodes.iter().map(|node| {
            let existing = set.connections.iter().find(|other| Arc::ptr_eq(other.node(), node));
            existing.map_or_else(|| Arc::new(BreakerConnection::new(Arc::clone(node))), Arc::clone)
        });
        let connections = connections.collect();
        let set = Arc::new(ConnectionSet { map: Some(map), connections });
        self.current.store(Arc::clone(&set));
        set
    }

    /// Requests a read of a Cluster's map after a failed call: the map may be stale.
    fn refresh_cluster(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.refresh();
        }
    }
}

/// Opens connections as the Cluster's map changes.
async fn follow_map(connections: Arc<WorkerConnections>, cluster: Arc<Cluster>) {
    let mut status = cluster.subscribe();
    loop {
        if !cluster.map().nodes.is_empty() {
            connections.update(&cluster);
        }
        // Cannot fail: the Cluster owns the sender.
        if status.changed().await.is_err() {
            return;
        }
    }
}
