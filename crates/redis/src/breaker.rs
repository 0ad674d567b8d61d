//! One worker's connection to one server, and its circuit breaker.
//!
//! The breaker opens on the first failure in any worker: from then on no request waits for the
//! server. It closes when the [health monitor](super::health) has found the server up and this
//! worker has connected again. A connection that ends while it is idle is not a failure: it is
//! replaced, and the breaker stays closed if that succeeds. A task pings the connection, so that
//! most ended connections are replaced before a request needs them.

use std::{pin::pin, sync::Arc, time::Duration};

use ::redis::aio::MultiplexedConnection;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};

use super::{
    RedisFailure,
    health::{Reachability, ServerEpoch},
    node::RedisNode,
};

/// Interval between two pings of a connection.
const PING_INTERVAL: Duration = Duration::from_secs(3);

/// A connection, and the epoch of the server in which it was opened.
#[derive(Clone)]
pub(super) struct LiveConnection {
    pub(super) connection: MultiplexedConnection,
    epoch: ServerEpoch,
    /// Unique among the connections of one [`BreakerConnection`].
    number: u64,
}

#[derive(Clone)]
enum BreakerState {
    /// The first attempt to connect, at the start or since a connection ended, is in progress. A
    /// request may wait for it, within its timeout.
    Connecting,
    Closed(LiveConnection),
    Open,
}

/// One worker's connection to a node, with its breaker.
pub(super) struct BreakerConnection {
    breaker: Arc<Breaker>,
    connect_task: AbortHandle,
}

struct Breaker {
    state: watch::Sender<BreakerState>,
    /// Notified when the connection has ended.
    ended: Notify,
    node: Arc<RedisNode>,
}

/// The reason why a connection is no longer used.
enum ConnectionEnd {
    /// It has ended and will be replaced.
    Ended,
    /// The server counts as down.
    Down(RedisFailure),
}

impl BreakerConnection {
    /// Starts connecting in the background of the current runtime.
    pub(super) fn new(node: Arc<RedisNode>) -> Self {
        let breaker = Arc::new(Breaker {
            state: watch::Sender::new(BreakerState::Connecting),
            ended: Notify::new(),
            node,
        });
        let connect_task = tokio::spawn(stay_connected(Arc::clone(&breaker))).abort_handle();
        Self { breaker, connect_task }
    }

    pub(super) fn node(&self) -> &Arc<RedisNode> {
        &self.breaker.node
    }

    /// The connection while the breaker is closed. Waits while the first attempt is in progress.
    ///
    /// # Errors
    ///
    /// [`RedisFailure::Unsent`] at once if the breaker is open.
    pub(super) async fn live(&self) -> Result<LiveConnection, RedisFailure> {
        let state = self.breaker.state.borrow().clone();
        match state {
            BreakerState::Closed(live) => Ok(live),
            BreakerState::Open => Err(RedisFailure::Unsent),
            BreakerState::Connecting => self.connected().await,
        }
    }

    /// The connection that replaces `ended`, on which nothing could be sent. If connecting again
    /// succeeds, the server has not failed.
    ///
    /// # Errors
    ///
    /// [`RedisFailure::Unsent`] if the gateway cannot connect to the server.
    pub(super) async fn replacement(
        &self,
        ended: &LiveConnection,
    ) -> Result<LiveConnection, RedisFailure> {
        self.breaker.replace(ended.number);
        self.live().await
    }

    /// Opens the breaker after a call has waited until its timeout for the first connection, so
    /// that no other call waits.
    pub(super) fn give_up_connecting(&self) {
        self.breaker.open(RedisFailure::Timeout, |_| false);
    }

    async fn connected(&self) -> Result<LiveConnection, RedisFailure> {
        let mut state = self.breaker.state.subscribe();
        match state.wait_for(|state| !matches!(state, BreakerState::Connecting)).await.as_deref() {
            Ok(BreakerState::Closed(live)) => Ok(live.clone()),
            _ => Err(RedisFailure::Unsent),
        }
    }

    /// True if the breaker is closed: there is a connection.
    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.breaker.state.borrow(), BreakerState::Closed(_))
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(*self.breaker.state.borrow(), BreakerState::Open)
    }

    /// Reports a failed connection to the health monitor, which opens the breakers of all workers,
    /// and opens this one at once unless the connection has been replaced.
    pub(super) fn trip(&self, failed: &LiveConnection, failure: RedisFailure) {
        self.breaker.node.health.report_failure(failed.epoch, failure);
        self.breaker.open(failure, |live| live.number == failed.number);
    }
}

impl Drop for BreakerConnection {
    fn drop(&mut self) {
        self.connect_task.abort();
        // The task holds no borrow of the state across an await, so the state no longer changes.
        if matches!(self.breaker.state.send_replace(BreakerState::Connecting), BreakerState::Open) {
            self.breaker.node.open_breaker_dropped();
        }
    }
}

impl Breaker {
    /// Starts replacing this connection, unless it has been replaced.
    fn replace(&self, number: u64) {
        let is_current = self.state.send_if_modified(|state| {
            let is_current = matches!(state, BreakerState::Closed(live) if live.number == number);
            if is_current {
                *state = BreakerState::Connecting;
            }
            self.check_invariants(state);
            is_current
        });
        if is_current {
            self.ended.notify_one();
        }
    }

    /// Opens the breaker. A closed breaker opens only if `affects` is true for its connection.
    fn open(&self, failure: RedisFailure, affects: impl Fn(&LiveConnection) -> bool) {
        self.state.send_if_modified(|state| {
            let opens = match state {
                BreakerState::Closed(live) => affects(live),
                BreakerState::Connecting => true,
                BreakerState::Open => false,
            };
            if opens {
                self.node.breaker_opened(failure);
                *state = BreakerState::Open;
            }
            self.check_invariants(state);
            opens
        });
    }

    fn close(&self, live: LiveConnection) {
        let before = self.state.send_replace(BreakerState::Closed(live));
        self.check_invariants(&before);
        debug_assert!(!matches!(before, BreakerState::Closed(_)), "its connection is in use");
        if matches!(before, BreakerState::Open) {
            self.node.breaker_closed();
        }
    }

    /// Checks, in debug builds, that the node counts this breaker if it is open.
    fn check_invariants(&self, state: &BreakerState) {
        debug_assert!(
            !matches!(state, BreakerState::Open) || self.node.open_breakers() > 0,
            "an open breaker is not counted"
        );
    }

    /// Closes the breaker with a new connection. Returns when the connection ends, a ping fails, or
    /// the server's epoch is over.
    async fn use_until_end(
        &self,
        live: LiveConnection,
        reachability: &mut watch::Receiver<Reachability>,
    ) -> ConnectionEnd {
        let (epoch, number) = (live.epoch, live.number);
        let connection = live.connection.clone();
        // An earlier connection may have ended while its server was found down: that notification
        // is stale.
        pin!(self.ended.notified()).enable();
        self.close(live);
        tokio::select! {
            () = self.ended.notified() => ConnectionEnd::Ended,
            failure = self.ping_until_failure(connection, number) => ConnectionEnd::Down(failure),
            now = reachability.wait_for(|now| *now != Reachability::Up(epoch)) => match now.as_deref() {
                Ok(Reachability::Down(failure)) => ConnectionEnd::Down(*failure),
                _ => ConnectionEnd::Down(RedisFailure::Unsent),
            },
        }
    }

    /// Returns when a ping fails. A connection that has ended is replaced instead.
    async fn ping_until_failure(
        &self,
        mut connection: MultiplexedConnection,
        number: u64,
    ) -> RedisFailure {
        loop {
            self.node.clock().sleep(PING_INTERVAL).await;
            match self.node.ping(&mut connection).await {
                Ok(()) => {}
                Err(RedisFailure::Io) => self.replace(number),
                Err(failure) => return failure,
            }
        }
    }
}

/// Connects whenever the server comes up, and opens the breaker whenever it goes down.
async fn stay_connected(breaker: Arc<Breaker>) {
    let mut reachability = breaker.node.watch_health();
    let mut number = 0;
    loop {
        let found = *reachability.borrow_and_update();
        match found {
            Reachability::Unknown => {}
            Reachability::Down(failure) => breaker.open(failure, |_| true),
            Reachability::Up(epoch) => {
                let opened = tokio::select! {
                    opened = breaker.node.open_connection() => opened,
                    _ = reachability.wait_for(|now| *now != found) => continue,
                };
                match opened {
                    Ok(connection) => {
                        number += 1;
                        let live = LiveConnection { connection, epoch, number };
                        let end = breaker.use_until_end(live, &mut reachability).await;
                        if let ConnectionEnd::Down(failure) = end {
                            breaker.node.health.report_failure(epoch, failure);
                            breaker.open(failure, |_| true);
                        }
                        continue;
                    }
                    Err(failure) => {
                        breaker.open(failure, |_| true);
                        breaker.node.health.report_failure(epoch, failure);
                    }
                }
            }
        }
        // Cannot fail: the node owns the sender.
        drop(reachability.changed().await);
    }
}
