//! Forwarding one request: which connection, and what when it fails.

use std::{cell::Cell, io, rc::Rc};

use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Body;

use super::{
    Servers,
    body::RequestBody,
    link::{AnswerStream, ExchangeError, Link},
    pool::Pool,
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
    /// The connection broke, or the answer was malformed.
    #[error("the upstream failed: {0}")]
    Failed(hyper::Error),
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

    /// Sends `request` to one server and waits for the answer's head. A connection found closed
    /// before anything was sent is replaced; a request that may have been seen is sent again only if
    /// that does no harm, `retries` times at the most.
    pub async fn forward(
        &self,
        servers: &Servers,
        mut request: Request<RequestBody>,
        wire: &Wire,
    ) -> Result<Response<AnswerStream>, UpstreamError> {
        self.earn();
        wire.await_answer(servers.response_timeout.as_millis() as u64);
        let harmless = request.method().is_idempotent() && request.body().is_end_stream();
        let mut retries = if harmless { servers.retries } else { 0 };
        let mut fresh_failures = 0;
        loop {
            let (pool, link) = self.link(servers).await?;
            fresh_failures += u32::from(!link.used);
            let expired = || wire.expired() == Some(Phase::Answer);
            match link.exchange(request, retries > 0, expired).await {
                Ok((answer, link)) => {
                    wire.answered();
                    return Ok(answer.map(|body| AnswerStream::new(body, link, pool)));
                }
                Err(ExchangeError::Unsent(..)) if fresh_failures > MAX_FRESH => {
                    return Err(UpstreamError::Connect(io::ErrorKind::ConnectionReset.into()));
                }
                Err(ExchangeError::Unsent(unsent)) => request = *unsent,
                Err(ExchangeError::Expired) => return Err(UpstreamError::Timeout),
                Err(ExchangeError::Failed { error, sent }) => {
                    let again = sent.and_then(|sent| rebuild(&sent)).filter(|_| self.spend());
                    let Some(again) = again else { return Err(UpstreamError::Failed(error)) };
                    retries -= 1;
                    request = again;
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

/// The request without a body that `sent` are the bytes of; `None` where not all of it was sent.
fn rebuild(sent: &[u8]) -> Option<Request<RequestBody>> {
    let mut headers = vec![httparse::EMPTY_HEADER; sent.len() / 4];
    let mut head = httparse::Request::new(&mut headers);
    head.parse(sent).ok().filter(httparse::Status::is_complete)?;
    let mut request = Request::new(RequestBody::none());
    *request.method_mut() = head.method?.parse().ok()?;
    *request.uri_mut() = head.path?.parse().ok()?;
    for header in head.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(header.value).ok()?;
        request.headers_mut().append(name, value);
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn a_request_can_be_sent_again_from_its_bytes() {
        let sent = b"GET /a?b HTTP/1.1\r\nhost: a\r\nx: 1\r\nx: 2\r\n\r\n";
        let request = rebuild(sent).unwrap();
        assert_eq!((request.method(), request.uri().to_string()), (&Method::GET, "/a?b".into()));
        let values: Vec<_> = request.headers().get_all("x").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert!(rebuild(&sent[..sent.len() - 2]).is_none());
    }
}
