//! Forwarding one request: which connection, and what when it fails.

use std::{cell::Cell, io, rc::Rc, task::Poll, time::Duration};

use http::Method;
use smallvec::SmallVec;

use super::{
    Servers,
    answer::AnswerStream,
    link::{ExchangeError, Link},
    pool::{Failure, Pool},
    request::Outgoing,
};
use crate::framing::{AnswerHead, BodyFault, ClientStream, StateCell, Timeout, state::Wait};

/// Why an upstream gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No server could be connected to.
    #[error("no connection to the upstream: {0}")]
    Connect(io::Error),
    /// No answer's head in time.
    #[error("no answer from the upstream in time")]
    Timeout,
    /// The connection broke or the answer was malformed.
    #[error("the upstream failed: {0}")]
    Failed(io::Error),
}

impl UpstreamError {
    /// The word for it in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Timeout => "timeout",
            Self::Failed(_) => "broken",
        }
    }
}

/// Why a request was not answered by an upstream.
#[derive(Debug)]
pub enum ForwardError {
    /// The upstream's fault.
    Upstream(UpstreamError),
    /// The client's: its body failed.
    Body(BodyFault),
}

/// What was done for one request.
#[derive(Default)]
pub struct Attempts {
    /// How often a server was asked, or could not be.
    pub count: u32,
    /// The server asked last.
    pub server: Option<Rc<Pool>>,
}

/// One worker's connections to one upstream, and its turn among the servers.
pub struct Balance {
    pools: Vec<Rc<Pool>>,
    next: Cell<usize>,
    /// Retries that may still be made, in fifths: each request earns one, each retry costs five.
    budget: Cell<u32>,
}

/// A retry costs what five requests earn, so retries stay below a fifth of the load.
const RETRY_COST: u32 = 5;
/// A server that accepts and closes at once is tried so often.
const MAX_FRESH: u32 = 2;
const MAX_BUDGET: u32 = 20 * RETRY_COST;

impl Balance {
    /// Over `pools`, one a server.
    pub fn new(pools: Vec<Rc<Pool>>) -> Self {
        Self { pools, next: Cell::new(0), budget: Cell::new(MAX_BUDGET) }
    }

    /// The pools, one a server.
    pub fn pools(&self) -> &[Rc<Pool>] {
        &self.pools
    }

    /// The place in the rotation of one request. A retry does not move it.
    fn turn(&self) -> usize {
        let turn = self.next.get();
        self.next.set((turn + 1) % self.pools.len());
        turn
    }

    /// The first server from `turn` on that was not tried, one that is not ejected before one that is.
    fn choose(&self, turn: usize, tried: &[usize]) -> Option<usize> {
        let order = (0..self.pools.len()).map(|step| (turn + step) % self.pools.len());
        let mut untried = order.filter(|at| !tried.contains(at)).peekable();
        let first = untried.peek().copied();
        untried.find(|at| !self.pools[*at].is_ejected()).or(first)
    }

    /// Notes that a server gave no answer. One without siblings is asked all the same.
    fn fail(&self, at: usize, failure: Failure) {
        if self.pools.len() > 1 {
            self.pools[at].fail(failure);
        }
    }

    fn earn(&self) {
        self.budget.set((self.budget.get() + 1).min(MAX_BUDGET));
    }

    fn spend(&self) -> bool {
        let left = self.budget.get().checked_sub(RETRY_COST);
        self.budget.set(left.unwrap_or(self.budget.get()));
        left.is_some()
    }

    /// Sends `outgoing` to one server and waits for the answer's head. A connection found closed before
    /// anything was sent is replaced; a request that may have been seen is sent again only if that does
    /// no harm, `retries` times at the most, to another server where there is one. What is done is told
    /// to `attempts`, also where the request is dropped before its answer.
    pub async fn forward(
        &self,
        servers: &Servers,
        mut outgoing: Outgoing,
        method: &Method,
        client: &dyn ClientStream,
        attempts: &mut Attempts,
    ) -> Result<(AnswerHead, AnswerStream), ForwardError> {
        self.earn();
        let turn = self.turn();
        let within = Some(servers.response_timeout.as_millis() as u64);
        let (mut retries, mut fresh) = (servers.retries, 0);
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        loop {
            let linked = self.link(servers, turn, &mut tried, client.state(), attempts).await;
            let (at, mut link) = linked.map_err(ForwardError::Upstream)?;
            let pool = &self.pools[at];
            fresh += u32::from(!link.used);
            match link.exchange(&mut outgoing, client, within).await {
                Ok(head) => {
                    pool.succeed();
                    let stream = AnswerStream::new(&head, method, link, outgoing, Rc::clone(pool));
                    return Ok((head, stream));
                }
                Err(ExchangeError::Expired) => {
                    if client.state().timeout() == Some(Timeout::Upstream) {
                        self.fail(at, Failure::Exchange);
                    }
                    return Err(ForwardError::Upstream(UpstreamError::Timeout));
                }
                Err(ExchangeError::Body(fault)) => return Err(ForwardError::Body(fault)),
                Err(ExchangeError::Failed(error)) => {
                    // A kept connection that was closed meanwhile says nothing of the server.
                    let stale = link.used && !link.heard;
                    if !stale {
                        self.fail(at, Failure::Exchange);
                    }
                    let harmless = outgoing.is_harmless() && !link.heard && retries > 0;
                    let unsent = outgoing.is_unsent() && fresh <= MAX_FRESH;
                    if !(unsent || harmless && self.spend()) {
                        return Err(ForwardError::Upstream(UpstreamError::Failed(error)));
                    }
                    retries -= u32::from(!unsent);
                    // The same server again where it has just closed what was kept.
                    if !stale {
                        tried.push(at);
                    }
                    outgoing.rewind();
                }
            }
        }
    }

    /// An idle connection of the server whose turn it is, or a new one to it, or to the next. Those that
    /// cannot be connected to are added to `tried`.
    async fn link(
        &self,
        servers: &Servers,
        turn: usize,
        tried: &mut SmallVec<[usize; 4]>,
        state: &StateCell,
        attempts: &mut Attempts,
    ) -> Result<(usize, Link), UpstreamError> {
        let mut failed = None;
        if tried.len() >= self.pools.len() {
            // Each was asked and failed; the retry budget allows another round.
            tried.clear();
        }
        while let Some(at) = self.choose(turn, tried) {
            let pool = &self.pools[at];
            attempts.count += 1;
            attempts.server = Some(Rc::clone(pool));
            if let Some(link) = pool.take() {
                return Ok((at, link));
            }
            match connect(pool, servers.connect_timeout, state).await? {
                Ok(link) => return Ok((at, link)),
                Err(error) => {
                    self.fail(at, Failure::Connect);
                    tried.push(at);
                    failed = Some(error);
                }
            }
        }
        let error = failed.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(UpstreamError::Connect(error))
    }
}

/// Makes a new connection; gives up when the request's own time is over.
async fn connect(
    pool: &Pool,
    within: Duration,
    state: &StateCell,
) -> Result<io::Result<Link>, UpstreamError> {
    state.wait_for(Wait::Gateway);
    let mut connecting = std::pin::pin!(pool.connect(within));
    std::future::poll_fn(|cx| match state.timeout() {
        Some(_) => Poll::Ready(Err(UpstreamError::Timeout)),
        None => connecting.as_mut().poll(cx).map(Ok),
    })
    .await
}

#[cfg(test)]
mod tests;
