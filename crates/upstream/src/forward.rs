//! Forwards one request: attempts at the endpoints of an upstream, and their retries.
//!
//! | file | content |
//! |---|---|
//! | `attempt` | the choice of an endpoint, and the connection to it |
//! | `exchange` | one exchange, on an HTTP/1 or HTTP/2 connection |
//! | `retry` | the decision to send a request again after a failed attempt |

mod attempt;
mod exchange;
mod retry;

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::poll_fn,
    io,
    net::IpAddr,
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, future::LocalBoxFuture};
use tidegate_balance::TargetKey;
use tidegate_base::mix::SplitMix;
use tidegate_base::priority::Priority;
use tidegate_base::time::{CoarseTime, Millis};
use tidegate_http1::{FramingError, ResponseHead};
use tidegate_trace::{AttemptResult, RequestTrace};
use tidegate_transport::{BodyError, ClientStream};

use self::{
    attempt::{Attempt, AttemptRecord, RequestAttempts, Retries},
    exchange::exchange,
};
use super::{
    BufferedUpload, EndpointSet, ProxiedClient, UpstreamRuntime,
    client_holdings::ClientHoldings,
    outgoing_head::{AttemptHead, OutgoingHead},
    pool::{Pool, PoolTable, UpstreamConnection},
    request::OutgoingRequest,
    target_health::{AttemptKind, ConnectFailure, FailedAttempt, Failure},
    tunnel::UpstreamContent,
};
use crate::warnings::Warnings;

/// The reason why an upstream did not respond.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No server accepted a connection.
    #[error("no connection to the upstream: {}", connect_reason(.0))]
    Connect(io::Error),
    /// The response's head did not arrive in time.
    #[error("no response from the upstream within {0}")]
    Timeout(PassedTimeout),
    /// The connection failed, or the response was malformed.
    #[error("the upstream failed: {0}")]
    Failed(io::Error),
    /// All servers are down or ejected.
    #[error("all servers of the upstream are down; retry in {} s", retry_seconds(*.retry_after))]
    Down {
        /// The time until one may be tried.
        retry_after: Millis,
    },
    /// No server has room for another request, and the request, of this priority, cannot wait, or
    /// has waited too long.
    #[error("the upstream is overloaded: all its servers are at their limits")]
    Overloaded(Priority),
    /// The gateway lacked a file descriptor, a port or memory for the request. No server is at
    /// fault.
    #[error("the gateway cannot open another connection: {0}")]
    Shortage(io::Error),
    /// The request asks for an upgrade, which the server does not support: it speaks HTTP/2 without
    /// extended CONNECT, or answered 2xx instead of 101.
    #[error("the upstream does not accept this upgrade")]
    UpgradeUnsupported,
}

/// The reason of a failed connect, in the words of the target's health if they name it.
fn connect_reason(error: &io::Error) -> String {
    match ConnectFailure::of(error) {
        ConnectFailure::System(_) | ConnectFailure::NoHttp2 => error.to_string(),
        reason => reason.to_string(),
    }
}

impl UpstreamError {
    /// The kind of failure, for [`Warnings::due`].
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Timeout(passed) => passed.key(),
            Self::Failed(_) => "broken",
            Self::Down { .. } => "down",
            Self::Overloaded(_) => "overloaded",
            Self::Shortage(_) => "shortage",
            Self::UpgradeUnsupported => "upgrade",
        }
    }

    /// Names the value of the route's `request_timeout`, if that has passed.
    pub fn name_request_timeout(&mut self, timeout: Option<Millis>) {
        if let Self::Timeout(PassedTimeout::Request(value)) = self {
            *value = timeout.map(Millis::as_duration);
        }
    }
}

/// The configured time that has passed without a response's head.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PassedTimeout {
    /// The upstream's `response_timeout`.
    Response(Duration),
    /// The route's `request_timeout`; `None` until [`UpstreamError::name_request_timeout`] names
    /// it.
    Request(Option<Duration>),
}

impl PassedTimeout {
    /// The key of the configuration.
    pub fn key(self) -> &'static str {
        match self {
            Self::Response(_) => "response_timeout",
            Self::Request(_) => "request_timeout",
        }
    }
}

impl fmt::Display for PassedTimeout {
    /// The key and its value, as in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())?;
        match self {
            Self::Response(time) | Self::Request(Some(time)) => {
                write!(f, ": {}", humantime::format_duration(*time))
            }
            Self::Request(None) => Ok(()),
        }
    }
}

/// The reason why a request was not forwarded, by the side that failed.
#[derive(Debug)]
pub enum ForwardError {
    /// The upstream failed.
    Upstream(UpstreamError),
    /// The client's body failed.
    Body(BodyError),
    /// The upstream speaks HTTP/2, which cannot carry the request.
    Request(FramingError),
}

/// The seconds of `Retry-After` for this time, at least 1.
pub fn retry_seconds(retry_after: Millis) -> u64 {
    retry_after.as_secs_rounded_up().max(1)
}

/// The attempts of one request.
#[derive(Default)]
pub struct AttemptLog {
    /// The number of attempts, including failed connects.
    pub count: u32,
    /// The endpoint of the last attempt.
    pub server: Option<Rc<Pool>>,
    /// The masked address of the request's client.
    client: Option<IpAddr>,
    /// The request's priority; `None` if the upstream has no bounds.
    pub priority: Option<Priority>,
    /// The time from the first attempt's start to the response's head; `None` without a response.
    pub time: Option<Duration>,
}

/// The input for forwarding a request.
pub struct ForwardInput<'r> {
    /// The head.
    pub head: &'r OutgoingHead<'r>,
    /// The client's stream.
    pub client: &'r dyn ClientStream,
    /// The masked address of the client, or of the client whose request was copied.
    pub client_address: IpAddr,
    /// The client's addresses, for the PROXY protocol.
    pub proxied: ProxiedClient,
    /// The key by which `hash` chooses a target; `None` for other policies, and if a part of the
    /// key is ambiguous.
    pub target_key: Option<TargetKey>,
    /// The trace of a sampled request.
    pub trace: Option<&'r mut RequestTrace>,
    /// The client that holds the request's place; `None` for a mirrored copy, or if the upstream
    /// has no bounds.
    pub holder: Option<PlaceOwner<'r>>,
}

/// The client that holds a place at a target.
#[derive(Clone, Copy)]
pub struct PlaceOwner<'r> {
    /// The client's masked address.
    pub client: IpAddr,
    /// How important the request is.
    pub priority: Priority,
    /// The request's body, if it is buffered.
    pub upload: Option<&'r BufferedUpload>,
}

/// One worker's attempts at the endpoints of one upstream.
pub struct LoadBalancer {
    state: Arc<UpstreamRuntime>,
    pools: Rc<PoolTable>,
    current: RefCell<Rc<WorkerEndpoints>>,
    /// The number of requests, by which the rotation chooses.
    turn: Cell<u64>,
    random: Cell<SplitMix>,
    /// Requests not yet added to the retry budget of the process.
    unrecorded: Cell<u32>,
    warnings: Warnings,
}

/// The current endpoints, with the worker's pools.
struct WorkerEndpoints {
    generation: u64,
    set: Arc<EndpointSet>,
    /// One for each endpoint of the set.
    pools: Vec<Rc<Pool>>,
}

/// The time for which a server may leave out `100 Continue`: at most half of its response timeout,
/// so that it is not late because it waits for the body. A client waits about as long.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of requests that a worker adds to the retry budget at a time.
const BUDGET_BATCH: u32 = 16;

impl LoadBalancer {
    /// The warnings about its upstream.
    pub fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// The present time, for [`Self::warnings`].
    pub fn now(&self) -> CoarseTime {
        self.state.now()
    }

    /// A load balancer over the endpoints of `state`, with the worker's `pools`.
    pub fn new(state: Arc<UpstreamRuntime>, pools: Rc<PoolTable>) -> Self {
        let current = RefCell::new(WorkerEndpoints::new(&state, &pools));
        let seed = ahash::RandomState::new().hash_one(state.generation());
        Self {
            state,
            pools,
            current,
            turn: Cell::new(0),
            random: Cell::new(SplitMix::new(seed)),
            unrecorded: Cell::new(0),
            warnings: Warnings::default(),
        }
    }

    /// The current endpoints; one atomic load unless they have changed.
    fn endpoints(&self) -> Rc<WorkerEndpoints> {
        let is_current = self.current.borrow().generation == self.state.generation();
        if !is_current {
            *self.current.borrow_mut() = WorkerEndpoints::new(&self.state, &self.pools);
        }
        Rc::clone(&self.current.borrow())
    }

    /// Closes the connections that have been idle for too long.
    pub fn sweep(&self) {
        let endpoints = self.endpoints();
        let idle_timeout = Millis::from_duration(endpoints.set.servers.idle_timeout);
        endpoints.pools.iter().for_each(|pool| pool.sweep(idle_timeout));
    }

    /// Closes the idle connections to endpoints where other workers need the room. Closes all idle
    /// ones if the process is near its maximum number of connections. Cheap without
    /// `max_connections`.
    pub fn yield_connections(&self) {
        let endpoints = self.endpoints();
        if self.state.load.connection_budget.is_scarce() {
            return endpoints.pools.iter().for_each(|pool| pool.sweep(Millis::ZERO));
        }
        if endpoints.set.servers.bounds.max_connections.is_some() {
            let starved = endpoints.pools.iter().filter(|pool| pool.endpoint().is_starved());
            starved.for_each(|pool| pool.sweep(Millis::ZERO));
        }
    }

    /// The buffers of transfers that wait for their clients.
    pub(super) fn buffers(&self) -> &Arc<ClientHoldings> {
        &self.state.load.buffers
    }

    /// True if the client may hold another place at its own pace.
    pub(super) fn has_share(&self, client: IpAddr) -> bool {
        let endpoints = self.endpoints();
        let bounds = &endpoints.set.servers.bounds;
        endpoints.pools.iter().any(|pool| !pool.endpoint().is_share_full(client, bounds))
    }

    /// Fresh random bits.
    fn random(&self) -> u64 {
        let mut random = self.random.get();
        let bits = random.bits();
        self.random.set(random);
        bits
    }

    /// Records a response that the server of the last attempt broke off within its body. Its head
    /// already counted as a success, so the target is ejected only after `health.failures`
    /// consecutive broken bodies.
    #[cold]
    pub fn record_broken_body(&self, attempts: &AttemptLog) {
        let AttemptLog { server: Some(pool), client: Some(client), .. } = attempts else { return };
        let client = *client;
        let endpoints = self.endpoints();
        let set = &endpoints.set;
        let count = pool.endpoint().count_broken_body();
        let is_same = |other: &Rc<Pool>| Arc::ptr_eq(other.endpoint(), pool.endpoint());
        if count >= set.servers.health.failures.max(1)
            && let Some(index) = endpoints.pools.iter().position(is_same)
        {
            let (now, clock) = (self.state.now(), self.state.clock());
            let (kind, failure) = (AttemptKind::Regular, Failure::BrokenBodies);
            set.record_failure(
                index,
                FailedAttempt { kind, failure, client, sent: now },
                now,
                clock,
            );
        }
    }

    /// Adds a request to the retry budget.
    fn record_request(&self, now: CoarseTime) {
        let count = self.unrecorded.get() + 1;
        self.unrecorded.set(count);
        if count >= BUDGET_BATCH {
            self.state.record_requests(self.unrecorded.take(), now);
        }
    }

    /// Takes a retry from the budget. True if the budget allowed it.
    fn try_retry(&self) -> bool {
        let now = self.state.now();
        self.state.record_requests(self.unrecorded.take(), now);
        self.state.try_retry(now)
    }

    /// Sends `outgoing` to one server and waits for the response's head.
    ///
    /// If nothing was sent, or the server has certainly not processed the request, it is sent on
    /// another connection. A request that the server may have seen is retried only if that is safe.
    /// The upstream's settings list the failures to retry and bound the number of retries; the
    /// retry budget also bounds them. A retry goes to another server if there is one. If the server
    /// has closed an idle connection, a new one is opened without a charge to the budget.
    /// `attempts` is updated at each attempt, so it is valid even if this future is dropped.
    ///
    /// # Errors
    /// No server responded, or the client's body failed.
    pub async fn forward(
        &self,
        mut outgoing: OutgoingRequest,
        mut input: ForwardInput<'_>,
        attempts: &mut AttemptLog,
    ) -> Result<(ResponseHead, UpstreamContent), ForwardError> {
        let trace = input.trace.take();
        let mut run = RequestAttempts::new(self, &input, attempts, trace, &outgoing);
        let endpoints = Rc::clone(&run.endpoints);
        let servers = &*endpoints.set.servers;
        let method = &input.head.client.method;
        let response_timeout = Some(Millis::from_duration(servers.response_timeout));
        let mut retries = Retries { left: servers.retries, new_connections: 0, resends: 0 };
        loop {
            outgoing.rewind();
            let acquired = run.acquire(&mut retries).await;
            let attempt = acquired.map_err(|error| run.fail_to_acquire(error))?;
            let Attempt { index, connection, kind, start, in_flight } = attempt;
            let pool = &endpoints.pools[index];
            let record = AttemptRecord { index, kind, start, concurrency: in_flight.count };
            retries.new_connections += u32::from(!connection.is_reused());
            if outgoing.has_body_started() && matches!(connection, UpstreamConnection::Http2(_)) {
                // The bytes of the body read so far are framed for HTTP/1, so HTTP/2 cannot send
                // them.
                let error = io::ErrorKind::ConnectionReset.into();
                return Err(ForwardError::Upstream(UpstreamError::Failed(error)));
            }
            let head = AttemptHead {
                head: input.head,
                target: pool.target(),
                span_id: run.trace.as_mut().map(|trace| trace.attempt_id()),
            };
            let patience = CONTINUE_TIMEOUT.min(servers.response_timeout / 2);
            let mut late =
                outgoing.awaits_continue().map(|waits| self.late_continue(waits, patience));
            let exchanged = {
                let mut exchange =
                    pin!(exchange(connection, head, &mut outgoing, input.client, response_timeout));
                poll_fn(|cx| {
                    if let Some(passing) = &mut late
                        && passing.as_mut().poll(cx).is_ready()
                    {
                        late = None;
                    }
                    exchange.as_mut().poll(cx)
                })
                .await
            };
            let mut failed = match exchanged {
                Ok(exchanged) => {
                    let status = exchanged.status();
                    if let Some(upload) = input.holder.and_then(|holder| holder.upload) {
                        upload.mark_answered();
                    }
                    run.end_attempt(AttemptResult::Status(status));
                    if !servers.retry_on.statuses.contains(status) {
                        run.record_success(record, exchanged.observed());
                        return Ok(exchanged.into_response(method, outgoing, in_flight));
                    }
                    run.record_failure(record, Failure::Status(status));
                    let may_retry = outgoing.is_retryable() && !exchanged.has_sent_interim();
                    if !(may_retry && retries.left > 0 && run.can_try_another(index)) {
                        return Ok(exchanged.into_response(method, outgoing, in_flight));
                    }
                    // The response is discarded, with its connection.
                    drop(exchanged);
                    run.begin_retry(index, &mut retries).await?;
                    continue;
                }
                Err(failed) => failed,
            };
            if let Some(unused) = failed.unused.take() {
                pool.put(unused);
            }
            run.retry_or_fail(failed, record, &outgoing, &mut retries, &servers.retry_on).await?;
            // Kept until the retry begins: otherwise another request could take the place that it
            // needs.
            drop(in_flight);
        }
    }

    /// Sets `waits` to false after `patience`: a client that waits for the server's `100 Continue`
    /// sends its body although the server sends none (RFC 9110, 10.1.1).
    #[cold]
    fn late_continue(
        &self,
        waits: &Rc<Cell<bool>>,
        patience: Duration,
    ) -> LocalBoxFuture<'static, ()> {
        let (waits, clock) = (Rc::clone(waits), self.state.clock().clone());
        async move {
            clock.sleep(patience).await;
            waits.set(false);
        }
        .boxed_local()
    }
}

impl WorkerEndpoints {
    fn new(state: &UpstreamRuntime, pools: &PoolTable) -> Rc<Self> {
        // Read before the set: if the set is replaced in between, it is read again.
        let generation = state.generation();
        let set = state.endpoints();
        let pools = set.members.iter().map(|member| pools.pool(&member.state)).collect();
        Rc::new(Self { generation, set, pools })
    }
}

#[cfg(test)]
mod tests;
