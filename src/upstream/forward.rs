//! Forwards one request: load balancing, retries and the retry budget.

use std::{cell::Cell, io, rc::Rc, task::Poll, time::Duration};

use http::Method;
use smallvec::SmallVec;

use super::{
    Servers,
    connection::{ExchangeError, UpstreamConnection},
    pool::{Failure, Pool},
    request::OutgoingRequest,
    response::ResponseBody,
};
use crate::framing::{BodyError, ClientStream, ResponseHead, StateCell, Timeout, state::Wait};

/// Why an upstream did not respond.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No server accepted a connection.
    #[error("no connection to the upstream: {0}")]
    Connect(io::Error),
    /// The response's head did not arrive in time.
    #[error("no response from the upstream in time")]
    Timeout,
    /// The connection failed, or the response was malformed.
    #[error("the upstream failed: {0}")]
    Failed(io::Error),
}

/// Why a request was not forwarded, by the side that failed.
#[derive(Debug)]
pub enum ForwardError {
    /// The upstream failed.
    Upstream(UpstreamError),
    /// The client's body failed.
    Body(BodyError),
}

/// The attempts of one request.
#[derive(Default)]
pub struct Attempts {
    /// The number of attempts, failed connects included.
    pub count: u32,
    /// The server of the last attempt.
    pub server: Option<Rc<Pool>>,
}

/// One worker's round-robin load balancer over the servers of one upstream.
pub struct LoadBalancer {
    pools: Vec<Rc<Pool>>,
    next: Cell<usize>,
    /// The retry budget: a request adds 1, a retry takes [`RETRY_COST`].
    retry_budget: Cell<u32>,
}

/// The cost of a retry in the budget. Five requests pay for one retry, so at most a fifth of the requests
/// are retried in the long run.
const RETRY_COST: u32 = 5;
/// The maximum number of new connections for a request of which nothing was sent. Bounds the attempts at
/// servers that accept connections and close them at once.
const MAX_NEW_CONNECTIONS: u32 = 2;
/// The largest budget: 20 retries.
const MAX_RETRY_BUDGET: u32 = 20 * RETRY_COST;

impl LoadBalancer {
    /// A load balancer over `pools`, one for each server.
    pub fn new(pools: Vec<Rc<Pool>>) -> Self {
        Self { pools, next: Cell::new(0), retry_budget: Cell::new(MAX_RETRY_BUDGET) }
    }

    /// The pools, one for each server.
    pub fn pools(&self) -> &[Rc<Pool>] {
        &self.pools
    }

    /// Takes the next turn of the rotation. A retry keeps the turn of its request.
    fn next_turn(&self) -> usize {
        let turn = self.next.get();
        self.next.set((turn + 1) % self.pools.len());
        turn
    }

    /// The first server from `turn` on that is not in `tried`. Servers that are not ejected come first.
    fn pick(&self, turn: usize, tried: &[usize]) -> Option<usize> {
        let order = (0..self.pools.len()).map(|step| (turn + step) % self.pools.len());
        let mut untried = order.filter(|server| !tried.contains(server)).peekable();
        let first = untried.peek().copied();
        untried.find(|server| !self.pools[*server].is_ejected()).or(first)
    }

    /// Records a failure of a server, which may eject it. A single server is never ejected.
    fn record_failure(&self, server: usize, failure: Failure) {
        if self.pools.len() > 1 {
            self.pools[server].record_failure(failure);
        }
    }

    /// Adds a request to the retry budget.
    fn earn_retry(&self) {
        self.retry_budget.set((self.retry_budget.get() + 1).min(MAX_RETRY_BUDGET));
    }

    /// Takes a retry from the budget. Returns whether the budget allowed it.
    fn spend_retry(&self) -> bool {
        let left = self.retry_budget.get().checked_sub(RETRY_COST);
        self.retry_budget.set(left.unwrap_or(self.retry_budget.get()));
        left.is_some()
    }

    /// Sends `outgoing` to one server and waits for the response's head.
    ///
    /// A request of which nothing was sent is sent on another connection. A request that the server may
    /// have seen is retried only if it is safe, at most `retries` times, within the retry budget and on
    /// another server if there is one. `attempts` is updated at each attempt, so it is valid even if this
    /// future is dropped.
    ///
    /// # Errors
    /// No server responded, or the client's body failed.
    pub async fn forward(
        &self,
        servers: &Servers,
        mut outgoing: OutgoingRequest,
        method: &Method,
        client: &dyn ClientStream,
        attempts: &mut Attempts,
    ) -> Result<(ResponseHead, ResponseBody), ForwardError> {
        self.earn_retry();
        let turn = self.next_turn();
        let response_timeout = Some(servers.response_timeout.as_millis() as u64);
        let (mut retries, mut new_connections) = (servers.retries, 0);
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        loop {
            let acquired = self.acquire(servers, turn, &mut tried, client.state(), attempts).await;
            let (server, mut connection) = acquired.map_err(ForwardError::Upstream)?;
            let pool = &self.pools[server];
            new_connections += u32::from(!connection.is_reused);
            match connection.exchange(&mut outgoing, client, response_timeout).await {
                Ok(head) => {
                    pool.record_success();
                    let pool = Rc::clone(pool);
                    let body = ResponseBody::new(&head, method, connection, outgoing, pool);
                    return Ok((head, body));
                }
                Err(ExchangeError::Expired) => {
                    if client.state().timeout() == Some(Timeout::Upstream) {
                        self.record_failure(server, Failure::Exchange);
                    }
                    return Err(ForwardError::Upstream(UpstreamError::Timeout));
                }
                Err(ExchangeError::Body(error)) => return Err(ForwardError::Body(error)),
                Err(ExchangeError::Failed(error)) => {
                    // The server may close an idle connection at any time. That is not a failure.
                    let stale = connection.is_reused && !connection.response_started;
                    if !stale {
                        self.record_failure(server, Failure::Exchange);
                    }
                    let retryable =
                        outgoing.is_retryable() && !connection.response_started && retries > 0;
                    let unsent = outgoing.is_unsent() && may_reconnect(new_connections);
                    if !(unsent || retryable && self.spend_retry()) {
                        return Err(ForwardError::Upstream(UpstreamError::Failed(error)));
                    }
                    retries -= u32::from(!unsent);
                    // After a stale connection the same server is tried again.
                    if !stale {
                        tried.push(server);
                    }
                    outgoing.rewind();
                }
            }
        }
    }

    /// An idle or new connection to the server picked for `turn`, or to the next one if the connect fails.
    /// Servers that cannot be connected to are added to `tried`.
    async fn acquire(
        &self,
        servers: &Servers,
        turn: usize,
        tried: &mut SmallVec<[usize; 4]>,
        state: &StateCell,
        attempts: &mut Attempts,
    ) -> Result<(usize, UpstreamConnection), UpstreamError> {
        let mut failed = None;
        if tried.len() >= self.pools.len() {
            // All servers have failed; this attempt starts another round.
            tried.clear();
        }
        while let Some(server) = self.pick(turn, tried) {
            let pool = &self.pools[server];
            attempts.count += 1;
            attempts.server = Some(Rc::clone(pool));
            if let Some(connection) = pool.take() {
                return Ok((server, connection));
            }
            match connect(pool, servers.connect_timeout, state).await? {
                Ok(connection) => return Ok((server, connection)),
                Err(error) => {
                    self.record_failure(server, Failure::Connect);
                    tried.push(server);
                    failed = Some(error);
                }
            }
        }
        let error = failed.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(UpstreamError::Connect(error))
    }
}

/// Whether a request of which nothing was sent may be sent on one more new connection, after this many.
fn may_reconnect(new_connections: u32) -> bool {
    new_connections < MAX_NEW_CONNECTIONS
}

/// Opens a connection. The outer error means that the request's own deadline has passed.
async fn connect(
    pool: &Pool,
    connect_timeout: Duration,
    state: &StateCell,
) -> Result<io::Result<UpstreamConnection>, UpstreamError> {
    state.set_wait(Wait::Gateway);
    let mut connecting = std::pin::pin!(pool.connect(connect_timeout));
    std::future::poll_fn(|cx| match state.timeout() {
        Some(_) => Poll::Ready(Err(UpstreamError::Timeout)),
        None => connecting.as_mut().poll(cx).map(Ok),
    })
    .await
}

#[cfg(test)]
mod tests;
