//! One worker's connection to one server, and its circuit breaker.
//!
//! The breaker opens with the first failure, of this worker or of another: from then on no request waits
//! for the server. It closes when the server's [keeper](super::keeper) has found it up and this worker has
//! connected again. A connection that ended while it was idle is no failure: another one is opened, and the
//! breaker stays closed if that succeeds. A task pings the connection, so that most of them are replaced
//! before a request needs them.

use std::{sync::Arc, time::Duration};

use redis::aio::MultiplexedConnection;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time,
};

use super::{
    Failure,
    keeper::{Epoch, Reachability},
    node::Node,
};

/// Between two pings of a connection.
const BETWEEN_PINGS: Duration = Duration::from_secs(3);

/// A connection, and the epoch of the server that it leads to.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    epoch: Epoch,
    /// No two connections of a worker to a server have the same.
    number: u64,
}

#[derive(Clone)]
enum State {
    /// The first attempt is under way, or the first after a connection has ended: a request may wait for it,
    /// within its timeout.
    Starting,
    Closed(Live),
    Open,
}

/// One worker's connection and breaker.
pub(super) struct BreakerConnection {
    shared: Arc<Shared>,
    following: AbortHandle,
}

struct Shared {
    state: watch::Sender<State>,
    /// That the connection has ended.
    ended: Notify,
    node: Arc<Node>,
}

/// Why a connection is no longer used.
enum Gone {
    /// It has ended, and another is to be opened.
    Ended,
    /// The server is taken for lost.
    Lost(Failure),
}

impl BreakerConnection {
    /// Starts connecting in the background of the current runtime.
    pub(super) fn new(node: Arc<Node>) -> Self {
        let shared = Arc::new(Shared {
            state: watch::Sender::new(State::Starting),
            ended: Notify::new(),
            node,
        });
        let following = tokio::spawn(follow(Arc::clone(&shared))).abort_handle();
        Self { shared, following }
    }

    /// Where it leads.
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.shared.node
    }

    /// The connection while the breaker is closed; an open breaker fails at once.
    pub(super) async fn live(&self) -> Result<Live, Failure> {
        let state = self.shared.state.borrow().clone();
        match state {
            State::Closed(live) => Ok(live),
            State::Open => Err(Failure::Open),
            State::Starting => self.started().await,
        }
    }

    /// The connection after `ended`, which was found to have ended before anything was sent: no fault of
    /// the server, as long as it can be connected to.
    pub(super) async fn replaced(&self, ended: &Live) -> Result<Live, Failure> {
        self.shared.replace(ended.number);
        self.live().await
    }

    /// Opens the breaker after a call has waited in vain for the first connection, so that no other waits.
    pub(super) fn give_up_starting(&self) {
        self.shared.open(Failure::Timeout, |_| false);
    }

    async fn started(&self) -> Result<Live, Failure> {
        let mut state = self.shared.state.subscribe();
        match state.wait_for(|state| !matches!(state, State::Starting)).await.as_deref() {
            Ok(State::Closed(live)) => Ok(live.clone()),
            _ => Err(Failure::Open),
        }
    }

    /// Whether there is a connection, and the breaker is closed.
    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.shared.state.borrow(), State::Closed(_))
    }

    /// Whether the breaker is open.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.shared.state.borrow(), State::Open)
    }

    /// Opens the breaker, and through the keeper those of all workers, unless the connection that failed
    /// has been replaced since.
    pub(super) fn trip(&self, failed: &Live, failure: Failure) {
        self.shared.node.keeper.suspect(failed.epoch, failure);
        self.shared.open(failure, |live| live.number == failed.number);
    }
}

impl Drop for BreakerConnection {
    fn drop(&mut self) {
        self.following.abort();
        // The task holds the state across no wait: nothing changes it any more.
        if matches!(self.shared.state.send_replace(State::Starting), State::Open) {
            self.shared.node.forget();
        }
    }
}

impl Shared {
    /// Has this connection replaced, unless it has been.
    fn replace(&self, number: u64) {
        let is_first = self.state.send_if_modified(|state| {
            let is_it = matches!(state, State::Closed(live) if live.number == number);
            if is_it {
                *state = State::Starting;
            }
            is_it
        });
        if is_first {
            self.ended.notify_one();
        }
    }

    /// Opens the breaker if it is not open, and the connection `is_concerned`.
    fn open(&self, failure: Failure, is_concerned: impl Fn(&Live) -> bool) {
        self.state.send_if_modified(|state| {
            let is_concerned = match state {
                State::Closed(live) => is_concerned(live),
                State::Starting => true,
                State::Open => false,
            };
            if is_concerned {
                self.node.lose(failure);
                *state = State::Open;
            }
            is_concerned
        });
    }

    fn close(&self, live: Live) {
        if matches!(self.state.send_replace(State::Closed(live)), State::Open) {
            self.node.regain();
        }
    }

    /// Closes the breaker over a new connection. Returns when that has ended, a ping fails, or the server is
    /// no longer in this epoch.
    async fn serve(&self, live: Live, reachability: &mut watch::Receiver<Reachability>) -> Gone {
        let (epoch, number) = (live.epoch, live.number);
        let connection = live.connection.clone();
        self.close(live);
        tokio::select! {
            () = self.ended.notified() => Gone::Ended,
            failure = self.died(connection, number) => Gone::Lost(failure),
            now = reachability.wait_for(|now| *now != Reachability::Up(epoch)) => match now.as_deref() {
                Ok(Reachability::Down(failure)) => Gone::Lost(*failure),
                _ => Gone::Lost(Failure::Open),
            },
        }
    }

    /// Returns when a ping fails; has a connection replaced that has ended.
    async fn died(&self, mut connection: MultiplexedConnection, number: u64) -> Failure {
        loop {
            time::sleep(BETWEEN_PINGS).await;
            match self.node.ping(&mut connection).await {
                Ok(()) => {}
                Err(Failure::Io) => self.replace(number),
                Err(failure) => return failure,
            }
        }
    }
}

/// Connects whenever the server comes up, and opens the breaker whenever it goes down.
async fn follow(shared: Arc<Shared>) {
    let mut reachability = shared.node.watch();
    let mut number = 0;
    loop {
        let found = *reachability.borrow_and_update();
        match found {
            Reachability::Untried => {}
            Reachability::Down(failure) => shared.open(failure, |_| true),
            Reachability::Up(epoch) => {
                let opened = tokio::select! {
                    opened = shared.node.open() => opened,
                    _ = reachability.wait_for(|now| *now != found) => continue,
                };
                match opened {
                    Ok(connection) => {
                        number += 1;
                        let live = Live { connection, epoch, number };
                        if let Gone::Lost(failure) = shared.serve(live, &mut reachability).await {
                            shared.node.keeper.suspect(epoch, failure);
                            shared.open(failure, |_| true);
                        }
                        continue;
                    }
                    Err(failure) => {
                        shared.open(failure, |_| true);
                        shared.node.keeper.suspect(epoch, failure);
                    }
                }
            }
        }
        // The sender is a part of the node: an error cannot be.
        drop(reachability.changed().await);
    }
}
