//! One worker's connection to one server, and the breaker that keeps requests from waiting for a lost
//! one.
//!
//! The breaker opens with the first failure: from then on no request asks there. A task of its own
//! connects again when the server's gate lets it, and closes the breaker when Redis has answered a probe
//! that writes: a server that answers PING may still refuse to write. While nobody asks, that task does, so
//! that a connection that died is found before a request needs it.

use std::{sync::Arc, time::Duration};

use redis::aio::MultiplexedConnection;
use tokio::{sync::watch, task::AbortHandle, time};

use super::{
    Failure,
    node::{Connected, Node},
};

/// How often a connection is asked whether it still leads to somebody.
const BETWEEN_PINGS: Duration = Duration::from_secs(3);

/// A connection that was found alive, and the how-manieth it is.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    generation: u64,
    /// When the server came up that it leads to: see [`super::gate`].
    epoch: u64,
}

#[derive(Clone)]
enum State {
    /// The first attempt is on its way: a request may wait for it, within its timeout.
    Starting,
    /// The breaker is closed.
    Live(Live),
    /// The breaker is open.
    Lost,
}

/// One worker's connection.
pub(super) struct Link {
    shared: Arc<Shared>,
    keeper: AbortHandle,
}

struct Shared {
    state: watch::Sender<State>,
    node: Arc<Node>,
}

impl Link {
    /// Starts connecting in the background of the current runtime.
    pub(super) fn new(node: Arc<Node>) -> Self {
        let shared = Arc::new(Shared { state: watch::Sender::new(State::Starting), node });
        let keeper = tokio::spawn(keep(Arc::clone(&shared))).abort_handle();
        Self { shared, keeper }
    }

    /// Where it leads.
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.shared.node
    }

    /// The connection while the breaker is closed; an open breaker fails at once.
    pub(super) async fn live(&self) -> Result<Live, Failure> {
        let state = self.shared.state.borrow().clone();
        match state {
            State::Live(live) => Ok(live),
            State::Lost => Err(Failure::Open),
            State::Starting => self.started().await,
        }
    }

    async fn started(&self) -> Result<Live, Failure> {
        let mut state = self.shared.state.subscribe();
        match state.wait_for(|state| !matches!(state, State::Starting)).await.as_deref() {
            Ok(State::Live(live)) => Ok(live.clone()),
            _ => Err(Failure::Open),
        }
    }

    /// Whether no request would ask there now.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.shared.state.borrow(), State::Lost)
    }

    /// Opens the breaker, unless the connection that failed has been replaced since.
    pub(super) fn trip(&self, failed: &Live, failure: Failure) {
        self.shared.trip(failed, failure);
    }
}

impl Shared {
    fn trip(&self, failed: &Live, failure: Failure) {
        self.node.gate.fall(failed.epoch, failure);
        self.lose(failure, |live| live.generation == failed.generation);
    }

    /// Opens the breaker if the connection `is_meant`.
    fn lose(&self, failure: Failure, is_meant: impl Fn(&Live) -> bool) {
        self.state.send_if_modified(|state| {
            let meant = match state {
                State::Live(live) => is_meant(live),
                State::Starting => true,
                State::Lost => false,
            };
            if meant {
                self.node.lose(failure);
                *state = State::Lost;
            }
            meant
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
        // Nobody changes it any more: the keeper never holds the state across a wait.
        if matches!(self.shared.state.send_replace(State::Starting), State::Lost) {
            self.shared.node.forget();
        }
    }
}

/// Connects, waits until the connection is lost, and connects again.
async fn keep(shared: Arc<Shared>) {
    let node = &shared.node;
    let (mut state, mut revocations) = (shared.state.subscribe(), node.revocations());
    let mut generation = 0;
    let mut seeking = Some(node.gate.seek());
    loop {
        let pass = tokio::select! {
            pass = node.gate.turn() => pass,
            // Somebody else tried first, and requests need not wait for this worker's own attempt.
            () = shared.seen_down() => {
                shared.lose(Failure::Open, |_| false);
                node.gate.turn().await
            }
        };
        revocations.mark_unchanged();
        match node.connect(pass).await {
            Ok(Connected { connection, epoch }) => {
                generation += 1;
                drop(seeking.take());
                let live = Live { connection, generation, epoch };
                if matches!(shared.state.send_replace(State::Live(live.clone())), State::Lost) {
                    node.regain();
                }
                tokio::select! {
                    // The senders live as long as this task: an error cannot be.
                    _ = state.wait_for(|state| matches!(state, State::Lost)) => {}
                    _ = revocations.changed() => {
                        let held = shared.state.borrow().clone();
                        if let State::Live(revoked) = held {
                            shared.trip(&revoked, Failure::Server);
                        }
                    }
                    (failed, failure) = shared.dead(live) => shared.trip(&failed, failure),
                }
                seeking = Some(node.gate.seek());
            }
            Err(failure) => shared.lose(failure, |_| false),
        }
    }
}

impl Shared {
    /// Returns when the connection does not answer any more. Asks now and then, and at once where the
    /// server came up anew since: the connection may be one to the server as it was before.
    async fn dead(&self, mut live: Live) -> (Live, Failure) {
        let gate = &self.node.gate;
        loop {
            // Time over is the usual case.
            let _ = time::timeout(BETWEEN_PINGS, gate.renewed(live.epoch)).await;
            let epoch = gate.epoch();
            if let Err(failure) = self.node.ping(&mut live.connection).await {
                return (live, failure);
            }
            live.epoch = epoch;
            self.state.send_if_modified(|state| {
                if let State::Live(held) = state {
                    held.epoch = epoch;
                }
                false
            });
        }
    }

    /// Returns when the server is found to be down while this worker has not tried it yet.
    async fn seen_down(&self) {
        if matches!(*self.state.borrow(), State::Starting) {
            self.node.gate.downed().await;
        } else {
            std::future::pending::<()>().await;
        }
    }
}
