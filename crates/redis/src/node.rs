//! One server of the shared store: its address, its health, and its last logged errors.

use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ::redis::{Client, aio::MultiplexedConnection};
use parking_lot::Mutex;
use tidegate_system::clock::{Clock, Uptime};
use tokio::sync::watch;

use super::{
    RedisFailure,
    connect::{self, ConnectError},
    context::RedisContext,
    health::{self, NodeHealth, Probe, Reachability},
    probe::probe,
    sentinel::SentinelGroup,
    shard_id::tag_of_slot,
};

/// [`RedisNode::slot`] for a server that is not in a Cluster, or serves no slot.
const NO_SLOT: u32 = u32::MAX;

/// Minimum interval between two warnings with the same reason.
const WARNING_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum number of error codes of refused calls to log in one [`WARNING_INTERVAL`].
const MAX_LOGGED_CODES: usize = 8;

/// A shard's primary, a replica, a Cluster's server, or the primary that Sentinel names.
pub(super) struct RedisNode {
    /// `host:port`, or Sentinel's name for the primary.
    pub(super) name: Box<str>,
    address: NodeAddress,
    context: Arc<RedisContext>,
    pub(super) health: NodeHealth,
    /// Starts the health monitor.
    monitor: Once,
    /// Script calls that were sent.
    calls: AtomicU64,
    /// Workers whose breaker is open.
    open_breakers: AtomicUsize,
    /// A slot that this server serves in a Cluster.
    slot: AtomicU32,
    /// The last logged reason for having no connection; empty while there is one.
    connect_error: Mutex<String>,
    /// The last logged reason for a failed probe; empty while probes succeed.
    probe_error: Mutex<String>,
    /// The error codes of refused calls that were logged recently.
    refusals: Mutex<LoggedCodes>,
}

/// Error codes, each with the time at which it was logged, by [`Clock::uptime`].
#[derive(Default)]
struct LoggedCodes(Vec<(String, Uptime)>);

impl LoggedCodes {
    /// True if `code` is to be logged now. In each [`WARNING_INTERVAL`], logs a code once, and at
    /// most [`MAX_LOGGED_CODES`] codes.
    fn should_log(&mut self, code: &str, now: Uptime) -> bool {
        self.0.retain(|(_, at)| now < *at + WARNING_INTERVAL);
        let is_logged = self.0.iter().any(|(logged, _)| logged == code);
        if is_logged || self.0.len() >= MAX_LOGGED_CODES {
            return false;
        }
        self.0.push((code.to_owned(), now));
        true
    }
}

/// The source of the server's address.
enum NodeAddress {
    Fixed(Box<Client>),
    Sentinel(Arc<SentinelGroup>),
}

/// A connection without a breaker.
pub struct NodeConnection {
    /// Commands go here; clones share the one socket.
    pub connection: MultiplexedConnection,
    node: Arc<RedisNode>,
    /// The server's reachability before the connection was made.
    reachability: Reachability,
}

impl NodeConnection {
    /// True if the server has come up again since the connection was made. The connection may then
    /// lead to a server that is no longer the primary.
    pub fn is_stale(&self) -> bool {
        let now = self.node.health.reachability();
        is_newer(now, self.reachability)
    }

    /// Waits until the connection is stale.
    pub fn until_stale(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.node.health.subscribe();
        let made = self.reachability;
        async move {
            // Fails if the node ends, and the connection with it.
            drop(changes.wait_for(|now| is_newer(*now, made)).await);
        }
    }
}

/// True if the server came up after a connection was made that has seen it in the state `made`.
fn is_newer(now: Reachability, made: Reachability) -> bool {
    matches!(now, Reachability::Up(_)) && now != made
}

impl RedisNode {
    /// The server at a client's address. Opens no connection.
    pub(super) fn fixed(client: Client, context: Arc<RedisContext>) -> Self {
        let name = client.get_connection_info().addr().to_string().to_ascii_lowercase();
        Self::new(name.into(), NodeAddress::Fixed(Box::new(client)), context)
    }

    /// The primary that Sentinel names. Opens no connection.
    pub(super) fn behind_sentinel(
        sentinel: Arc<SentinelGroup>,
        context: Arc<RedisContext>,
    ) -> Self {
        Self::new(sentinel.master.clone(), NodeAddress::Sentinel(sentinel), context)
    }

    fn new(name: Box<str>, address: NodeAddress, context: Arc<RedisContext>) -> Self {
        Self {
            name,
            address,
            context,
            health: NodeHealth::new(),
            monitor: Once::new(),
            calls: AtomicU64::new(0),
            open_breakers: AtomicUsize::new(0),
            slot: AtomicU32::new(NO_SLOT),
            connect_error: Mutex::default(),
            probe_error: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.context.clock
    }

    /// The host, if the address is fixed.
    pub(super) fn host(&self) -> Option<&str> {
        match &self.address {
            NodeAddress::Fixed(client) => {
                connect::host_and_port(client.get_connection_info()).map(|(host, _)| host)
            }
            NodeAddress::Sentinel(_) => None,
        }
    }

    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Script calls that were sent.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Workers whose breaker is open.
    pub(super) fn open_breakers(&self) -> usize {
        self.open_breakers.load(Ordering::Relaxed)
    }

    /// True if no worker's breaker is open and the health monitor has not found the server down.
    pub(super) fn is_up(&self) -> bool {
        self.open_breakers() == 0 && !matches!(self.health.reachability(), Reachability::Down(_))
    }

    /// Counts a worker's breaker that opens.
    pub(super) fn breaker_opened(&self, failure: RedisFailure) {
        if self.open_breakers.fetch_add(1, Ordering::Relaxed) == 0 {
            let (shard, failure) = (&*self.name, failure.label());
            tracing::warn!(shard, failure, "Redis is lost: limits fall back");
        }
    }

    /// Counts a worker's breaker that closes.
    pub(super) fn breaker_closed(&self) {
        if self.open_breakers.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!(shard = &*self.name, "Redis is back: limits are shared again");
        }
    }

    /// Counts an open breaker that ends with its worker.
    pub(super) fn open_breaker_dropped(&self) {
        self.open_breakers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sets a slot that the server serves, so that probes write a key of that slot.
    pub(super) fn set_slot(&self, slot: u16) {
        self.slot.store(slot.into(), Ordering::Relaxed);
    }

    /// The server's reachability; the first call starts the health monitor.
    pub(super) fn watch_health(self: &Arc<Self>) -> watch::Receiver<Reachability> {
        self.monitor.call_once(|| {
            let (node, clock) = (Arc::downgrade(self), self.clock().clone());
            let monitor = health::monitor(node, clock);
            self.context.background.spawn(monitor);
        });
        self.health.subscribe()
    }

    /// Connects if the server is up. Waits only for the first probe, if that is not over yet.
    ///
    /// # Errors
    ///
    /// [`RedisFailure::Unsent`] if the server is not up, or the failure to connect.
    pub(super) async fn connect_if_up(self: &Arc<Self>) -> Result<NodeConnection, RedisFailure> {
        let mut changes = self.watch_health();
        // Cannot fail: `self` owns the sender.
        let found = changes.wait_for(|found| *found != Reachability::Unknown).await;
        match found.map(|found| *found) {
            Ok(found @ Reachability::Up(_)) => self.connect_with_reachability(found).await,
            _ => Err(RedisFailure::Unsent),
        }
    }

    /// Connects if the server responds, even if it refuses writes. Waits for the next probe if the
    /// last one got no response.
    ///
    /// # Errors
    ///
    /// The probe's failure, or the failure to connect.
    pub(super) async fn connect_if_responding(
        self: &Arc<Self>,
    ) -> Result<NodeConnection, RedisFailure> {
        let mut changes = self.watch_health();
        let mut found = *changes.borrow_and_update();
        if !found.is_responding() {
            // Cannot fail: `self` owns the sender.
            drop(changes.changed().await);
            found = *changes.borrow();
        }
        match found {
            Reachability::Down(failure) if !found.is_responding() => Err(failure),
            _ => self.connect_with_reachability(found).await,
        }
    }

    async fn connect_with_reachability(
        self: &Arc<Self>,
        reachability: Reachability,
    ) -> Result<NodeConnection, RedisFailure> {
        let connection = self.open_connection().await?;
        Ok(NodeConnection { connection, node: Arc::clone(self), reachability })
    }

    /// Connects, within the connect timeout, even if the server is down. Commands have no timeout
    /// of their own: the caller of each sets one.
    ///
    /// # Errors
    ///
    /// The failure to connect, which is logged.
    pub(super) async fn open_connection(&self) -> Result<MultiplexedConnection, RedisFailure> {
        let opened = match &self.address {
            NodeAddress::Fixed(client) => connect::open(client, &self.context).await,
            NodeAddress::Sentinel(sentinel) => sentinel.open(&self.context).await,
        };
        self.log_error(&self.connect_error, "cannot connect to Redis", opened)
    }

    /// Logs a reason once, until an attempt succeeds or fails for another reason.
    fn log_error<T>(
        &self,
        logged: &Mutex<String>,
        message: &str,
        outcome: Result<T, ConnectError>,
    ) -> Result<T, RedisFailure> {
        let ConnectError { failure, reason } = match outcome {
            Ok(value) => {
                logged.lock().clear();
                return Ok(value);
            }
            Err(error) => error,
        };
        let mut logged = logged.lock();
        if *logged != reason {
            tracing::warn!(shard = &*self.name, why = %reason, "{message}");
            *logged = reason;
        }
        Err(failure)
    }

    /// Logs the error code with which the server refused a call, each code at most once a minute.
    /// Probes may succeed nevertheless.
    pub(super) fn log_refusal(&self, code: &str) {
        if self.refusals.lock().should_log(code, self.clock().uptime()) {
            tracing::warn!(shard = &*self.name, why = code, "Redis refuses script calls");
        }
    }

    /// `Ok` if the server replies to PING at all, even with an error. The timeout is long:
    /// requests, not pings, detect a slow server.
    ///
    /// # Errors
    ///
    /// The connection's failure, or [`RedisFailure::Timeout`].
    pub(super) async fn ping(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), RedisFailure> {
        let ping = ::redis::cmd("PING");
        let reply = ping.exec_async(connection);
        match self.clock().timeout(self.context.background_timeout(), reply).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => match RedisFailure::classify(&error) {
                RedisFailure::Server | RedisFailure::Reply => Ok(()),
                failure => Err(failure),
            },
            Err(_) => Err(RedisFailure::Timeout),
        }
    }
}

impl Probe for RedisNode {
    fn health(&self) -> &NodeHealth {
        &self.health
    }

    /// Connects and checks that Redis accepts a write and has the scripts: a server that replies to
    /// PING may still refuse writes. Behind Sentinel, asks the sentinels first for the primary's
    /// address.
    async fn probe(&self) -> Result<(), RedisFailure> {
        if let NodeAddress::Sentinel(sentinel) = &self.address {
            sentinel.invalidate();
        }
        let mut connection = self.open_connection().await?;
        let namespace = &self.context.options.namespace;
        let key = match u16::try_from(self.slot.load(Ordering::Relaxed)) {
            Ok(slot) => format!("{namespace}:{{{}}}:probe", tag_of_slot(slot)),
            Err(_) => format!("{namespace}:probe"),
        };
        let probed = probe(&mut connection, &key, &self.context).await;
        self.log_error(
            &self.probe_error,
            "Redis responds, but refuses the writes or scripts of limits",
            probed,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_alternate_are_logged_once_a_minute_each() {
        let mut codes = LoggedCodes::default();
        let mut logged_at = |second: u64| {
            let now = Uptime::from_duration(Duration::from_secs(second));
            ["OOM", "READONLY", "OOM"].map(|code| codes.should_log(code, now))
        };
        assert_eq!(logged_at(0), [true, true, false]);
        assert_eq!(logged_at(59), [false; 3]);
        assert_eq!(logged_at(60), [true, true, false]);
    }

    #[test]
    fn the_number_of_logged_codes_is_bounded() {
        let mut codes = LoggedCodes::default();
        let mut logged_in = |minute: u64| {
            let now = Uptime::from_duration(Duration::from_mins(minute));
            (0..1_000).filter(|n| codes.should_log(&n.to_string(), now)).count()
        };
        assert_eq!([logged_in(0), logged_in(1)], [MAX_LOGGED_CODES; 2]);
    }
}
