//! Forwarding one request: which connection, and what when it fails.

use std::{cell::Cell, io, rc::Rc};

use http::{HeaderMap, Method, Response};

use super::{
    Servers,
    answer::AnswerStream,
    link::{ExchangeError, Link},
    pool::Pool,
    request::Outgoing,
};
use crate::framing::{Phase, Wire};

/// Why an upstream gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No server could be connected to.
    #[error("no connection to the upstream: {0}")]
    Connect(io::Error),
    /// No answer's head in time.
    #[error("no answer from the upstream in time")]
    Timeout,
    /// The connection broke, the answer was malformed, or the client's body failed.
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

    fn pick(&self) -> &Rc<Pool> {
        let next = self.next.get();
        self.next.set((next + 1) % self.pools.len());
        &self.pools[next]
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
    /// no harm, `retries` times at the most. `map` is reused for the answer's headers.
    pub async fn forward(
        &self,
        servers: &Servers,
        mut outgoing: Outgoing,
        method: &Method,
        mut map: HeaderMap,
        wire: &Wire,
    ) -> Result<Response<AnswerStream>, UpstreamError> {
        self.earn();
        wire.await_answer(servers.response_timeout.as_millis() as u64);
        let mut retries = servers.retries;
        let mut fresh = 0;
        loop {
            let (pool, mut link) = self.link(servers).await?;
            fresh += u32::from(!link.used);
            let expired = || wire.expired() == Some(Phase::Answer);
            match link.exchange(&mut outgoing, method, &mut map, expired).await {
                Ok(answer) => {
                    wire.answered();
                    return Ok(answer.into_stream(link, outgoing, pool));
                }
                Err(ExchangeError::Expired) => return Err(UpstreamError::Timeout),
                Err(ExchangeError::Body) => {
                    return Err(UpstreamError::Failed(io::ErrorKind::BrokenPipe.into()));
                }
                Err(ExchangeError::Failed(error)) => {
                    let harmless = outgoing.is_harmless() && !link.heard && retries > 0;
                    let unsent = outgoing.is_unsent() && fresh <= MAX_FRESH;
                    if !unsent && !(harmless && self.spend()) {
                        return Err(UpstreamError::Failed(error));
                    }
                    retries -= u32::from(!unsent);
                    outgoing.rewind();
                }
            }
        }
    }

    /// An idle connection of the server whose turn it is, or a new one to it, or to the next.
    async fn link(&self, servers: &Servers) -> Result<(Rc<Pool>, Box<Link>), UpstreamError> {
        let mut failed = None;
        for _ in 0..self.pools.len() {
            let pool = self.pick();
            if let Some(link) = pool.take() {
                return Ok((pool.clone(), link));
            }
            match pool.connect(servers.connect_timeout).await {
                Ok(link) => return Ok((pool.clone(), link)),
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(UpstreamError::Connect(error))
    }
}
