//! Forwards one request: load balancing, retries and the retry budget.

use std::{cell::Cell, io, rc::Rc, task::Poll, time::Duration};

use http::Method;
use smallvec::SmallVec;

use super::{
    ProxiedClient, Servers,
    connection::{ExchangeError, UpstreamConnection},
    http2::{Http2Response, Http2Slot, is_connection_lost, max_resends},
    pool::{Failure, Link, LinkChoice, Pool},
    request::OutgoingRequest,
    response::ResponseBody,
    tunnel::{UpstreamContent, UpstreamTunnel},
};
use crate::framing::{
    BodyError, ClientStream, FramingError, ResponseHead, StateCell, Timeout, state::Wait,
};

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
    /// An upgrade was asked for, and the server does not support upgrades: it speaks HTTP/2 without extended
    /// CONNECT, or answered a 2xx instead of a 101.
    #[error("the upstream does not accept this upgrade")]
    UpgradeUnsupported,
}

/// Why a request was not forwarded, by the side that failed.
#[derive(Debug)]
pub enum ForwardError {
    /// The upstream failed.
    Upstream(UpstreamError),
    /// The client's body failed.
    Body(BodyError),
    /// HTTP/2, which the upstream speaks, cannot carry the request.
    Request(FramingError),
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
    /// A request of which nothing was sent, or that the server has certainly not processed, is sent on another
    /// connection. A request that the server may have seen is retried only if it is safe, at most `retries`
    /// times, within the retry budget and on another server if there is one. After an idle connection that the
    /// server has closed, a new one is opened, outside of the budget. `attempts` is updated at each attempt, so
    /// it is valid even if this future is dropped.
    ///
    /// # Errors
    /// No server responded, or the client's body failed.
    pub async fn forward(
        &self,
        servers: &Servers,
        mut outgoing: OutgoingRequest,
        method: &Method,
        client: &dyn ClientStream,
        proxied: ProxiedClient,
        attempts: &mut Attempts,
    ) -> Result<(ResponseHead, UpstreamContent), ForwardError> {
        self.earn_retry();
        let turn = self.next_turn();
        let response_timeout = Some(servers.response_timeout.as_millis() as u64);
        let (mut retries, mut new_connections, mut resends) = (servers.retries, 0, 0);
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        let is_upgrade = outgoing.upgrade().is_some();
        let mut choice = LinkChoice { is_upgrade, is_fresh: false, proxied };
        loop {
            let state = client.state();
            let acquired = self.acquire(servers, turn, &mut tried, choice, state, attempts).await;
            let (server, link) = acquired.map_err(ForwardError::Upstream)?;
            let pool = &self.pools[server];
            new_connections += u32::from(!link.is_reused());
            if outgoing.has_body_started() && matches!(link, Link::Http2(_)) {
                // What was read of the body is framed for HTTP/1.
                let error = io::ErrorKind::ConnectionReset.into();
                return Err(ForwardError::Upstream(UpstreamError::Failed(error)));
            }
            let exchanged = exchange(link, pool, &mut outgoing, client, response_timeout).await;
            let failed = match exchanged {
                Ok(exchanged) => {
                    pool.record_success();
                    return Ok(exchanged.into_response(method, outgoing, pool));
                }
                Err(failed) => failed,
            };
            match failed.error {
                ExchangeError::Expired => {
                    if client.state().timeout() == Some(Timeout::Upstream) {
                        self.record_failure(server, Failure::Exchange);
                    }
                    return Err(ForwardError::Upstream(UpstreamError::Timeout));
                }
                ExchangeError::Body(error) => return Err(ForwardError::Body(error)),
                ExchangeError::Request(error) => return Err(ForwardError::Request(error)),
                ExchangeError::UpgradeUnsupported => {
                    return Err(ForwardError::Upstream(UpstreamError::UpgradeUnsupported));
                }
                ExchangeError::Failed(error) => {
                    // The server may close an idle connection at any time. That is not a failure.
                    if !failed.is_stale {
                        self.record_failure(server, Failure::Exchange);
                    }
                    let retryable =
                        outgoing.is_retryable() && !failed.response_started && retries > 0;
                    let is_unprocessed =
                        resends < max_resends(&error) && !outgoing.has_body_started();
                    resends += u32::from(is_unprocessed);
                    let unsent =
                        is_unprocessed || outgoing.is_unsent() && may_reconnect(new_connections);
                    if !(unsent || retryable && (failed.is_stale || self.spend_retry())) {
                        return Err(ForwardError::Upstream(UpstreamError::Failed(error)));
                    }
                    retries -= u32::from(!unsent);
                    // After a stale connection the same server is tried again; others may be stale, too.
                    choice.is_fresh = failed.is_stale;
                    if !failed.is_stale {
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
        choice: LinkChoice,
        state: &StateCell,
        attempts: &mut Attempts,
    ) -> Result<(usize, Link), UpstreamError> {
        let mut failed = None;
        if tried.len() >= self.pools.len() {
            // All servers have failed; this attempt starts another round.
            tried.clear();
        }
        while let Some(server) = self.pick(turn, tried) {
            let pool = &self.pools[server];
            attempts.count += 1;
            attempts.server = Some(Rc::clone(pool));
            if let Some(link) = pool.take(choice) {
                return Ok((server, link));
            }
            match connect(pool, servers.connect_timeout, choice, state).await? {
                Ok(link) => return Ok((server, link)),
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

/// A response's head, and what its body is read from.
enum Exchanged {
    Http1(ResponseHead, UpstreamConnection),
    Http2(Http2Response, Http2Slot),
}

/// An exchange without a response.
struct FailedExchange {
    error: ExchangeError,
    /// Whether the connection was reused and received nothing: the server has closed it.
    is_stale: bool,
    response_started: bool,
}

impl Exchanged {
    fn into_response(
        self,
        method: &Method,
        outgoing: OutgoingRequest,
        pool: &Rc<Pool>,
    ) -> (ResponseHead, UpstreamContent) {
        match self {
            Self::Http1(head, connection) if connection.is_upgraded => {
                let tunnel = UpstreamTunnel::http1(&outgoing, connection);
                (head, UpstreamContent::Tunnel(Box::new(tunnel)))
            }
            Self::Http1(head, connection) => {
                let body =
                    ResponseBody::http1(&head, method, connection, outgoing, Rc::clone(pool));
                (head, UpstreamContent::Body(body))
            }
            Self::Http2(mut response, slot) => {
                if let Some(send) = response.take_tunnel() {
                    let (mut head, end) = response.into_tunnel(send);
                    let tunnel = UpstreamTunnel::http2(&outgoing, &mut head, end, slot);
                    return (head, UpstreamContent::Tunnel(Box::new(tunnel)));
                }
                let (head, body) = response.into_body(outgoing, slot);
                let body = ResponseBody::http2(&head, method, body);
                (head, UpstreamContent::Body(body))
            }
        }
    }
}

/// Performs one exchange on `link`.
async fn exchange(
    link: Link,
    pool: &Pool,
    outgoing: &mut OutgoingRequest,
    client: &dyn ClientStream,
    response_timeout: Option<u64>,
) -> Result<Exchanged, FailedExchange> {
    let failed = |error, is_reused: bool, response_started: bool| FailedExchange {
        error,
        is_stale: is_reused && !response_started,
        response_started,
    };
    match link {
        Link::Http1(mut connection) => {
            match connection.exchange(outgoing, client, response_timeout).await {
                Ok(head) => Ok(Exchanged::Http1(head, connection)),
                Err(error) => Err(failed(error, connection.is_reused, connection.response_started)),
            }
        }
        // Boxed, so that exchanges of HTTP/1 do not carry its state.
        Link::Http2(slot) => {
            let scheme = pool.scheme();
            match Box::pin(slot.exchange(outgoing, scheme, client, response_timeout)).await {
                Ok(response) => Ok(Exchanged::Http2(response, slot)),
                Err(error) => {
                    let is_reused = slot.is_reused && is_connection_lost(&error);
                    Err(failed(error, is_reused, slot.response_started.get()))
                }
            }
        }
    }
}

/// Opens a connection. The outer error means that the request's own deadline has passed.
async fn connect(
    pool: &Pool,
    connect_timeout: Duration,
    choice: LinkChoice,
    state: &StateCell,
) -> Result<io::Result<Link>, UpstreamError> {
    state.set_wait(Wait::Gateway);
    let mut connecting = std::pin::pin!(pool.connect(connect_timeout, choice));
    std::future::poll_fn(|cx| match state.timeout() {
        Some(_) => Poll::Ready(Err(UpstreamError::Timeout)),
        None => connecting.as_mut().poll(cx).map(Ok),
    })
    .await
}

#[cfg(test)]
mod tests;
