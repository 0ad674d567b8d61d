//! [`RequestAttempts`]: the attempts of one request, each at an endpoint with room and on a
//! connection to it.
//!
//! | file | content |
//! |---|---|
//! | `place` | the next endpoint with room, and the wait for one |
//! | `claim` | a request's claim to a place, and when it leaves the place to others |
//! | `dial` | a new connection to a chosen endpoint |
//! | `race` | the race of slow connects: both address families of a name, then another target |
//! | `record` | records an attempt's outcome: in its span, health, latency and adaptive concurrency |

mod claim;
mod dial;
mod place;
mod race;
mod record;

use std::{io, net::IpAddr, pin::pin, rc::Rc, task::Poll, time::Duration};

use smallvec::SmallVec;
use tidegate_balance::{Pick, PickRequest, TargetKey};
use tidegate_http1::host::BareHost;
use tidegate_system::clock::{Clock, CoarseTime, Uptime};
use tidegate_tls::ClientTls;
use tidegate_trace::{AttemptResult, PeerServer, RequestTrace};
use tidegate_transport::ClientStream;
use tidegate_transport::connection_state::Wait;

use self::{dial::DialChoice, place::AttemptCandidate};
use super::{
    AttemptLog, ForwardInput, LoadBalancer, PassedTimeout, PlaceOwner, UpstreamError,
    WorkerEndpoints,
};
use crate::{
    HostRule, InFlight, OutgoingHead, OutgoingRequest, Pool, ServerAddress, TlsNameSource,
    pending::PendingTicket,
    pool::{ConnectionNeeds, UpstreamConnection},
    requested_name::{NameRefused, RequestedName},
    target_health::{AttemptKind, ConnectFailure, Failure},
};

/// The attempts of one request at the endpoints of a set.
pub(super) struct RequestAttempts<'r> {
    pub(super) balancer: &'r LoadBalancer,
    pub(super) endpoints: Rc<WorkerEndpoints>,
    pub(super) client: &'r dyn ClientStream,
    client_address: IpAddr,
    attempts: &'r mut AttemptLog,
    pub(super) trace: Option<&'r mut RequestTrace>,
    wanted: ConnectionNeeds,
    turn: u64,
    target_key: Option<TargetKey>,
    /// The endpoints not to choose: the failed ones, then the ones passed over.
    excluded: SmallVec<[usize; 4]>,
    /// The number of failed ones in `excluded`.
    failed: usize,
    /// The retries so far.
    pub(super) retry_count: u32,
    pub(super) started: Uptime,
    has_begun: bool,
    /// The request's position in the queue for room; `None` before it waits and once it has room.
    ticket: Option<PendingTicket<'r>>,
    /// The time until which it stays in the queue; `None`: until its deadline.
    waits_until: Option<Uptime>,
    holder: Option<PlaceOwner<'r>>,
    /// True if a target had room, but not for this request, because its client holds its share.
    /// Other requests in the queue then overtake it.
    is_share_full: bool,
}

/// The retries of a request.
pub(super) struct Retries {
    /// Number of retries left.
    pub(super) left: u32,
    /// Number of new connections so far.
    pub(super) new_connections: u32,
    /// Number of times that it was sent again because a server had certainly not processed it.
    pub(super) resends: u32,
}

/// An attempt whose result is recorded.
#[derive(Clone, Copy)]
pub(super) struct AttemptRecord {
    pub(super) index: usize,
    pub(super) kind: AttemptKind,
    /// The time at which it began, by the clock's uptime.
    pub(super) start: Uptime,
    /// The requests in flight at the endpoint at its start, including this one.
    pub(super) concurrency: u32,
}

/// A connection on which an exchange may start.
pub(super) struct Attempt {
    /// The endpoint's index.
    pub(super) index: usize,
    pub(super) kind: AttemptKind,
    pub(super) connection: UpstreamConnection,
    /// The time at which it began, by the clock's uptime.
    pub(super) start: Uptime,
    pub(super) in_flight: InFlight,
}

/// `error.type` of an attempt that got no connection.
const CONNECT_FAILED: &str = "connect_failed";

/// The server of `pool`, for a span.
#[cold]
fn peer_server(pool: &Pool) -> PeerServer {
    let target = pool.target();
    let (address, port) = match &target.address {
        ServerAddress::Tcp { host, port } => (host.clone(), Some(*port)),
        ServerAddress::Unix(path) => (path.display().to_string().into(), None),
        ServerAddress::Service(name) => (name.clone(), None),
    };
    PeerServer { address, port, peer: target.resolved, scheme: target.scheme() }
}

/// The name that a server's certificate must have for a request with this head; `None`: the
/// target's.
fn requested_name(endpoints: &WorkerEndpoints, head: &OutgoingHead<'_>) -> Option<RequestedName> {
    let target = endpoints.pools.first()?.target();
    if target.tls_name != TlsNameSource::Request {
        return None;
    }
    let host = match head.host {
        HostRule::Preserve => head.client.fields.host()?,
        HostRule::Name(name) => name.as_bytes(),
        HostRule::Upstream => return None,
    };
    let name = BareHost::of(host).name.to_ascii_lowercase();
    let name = name.strip_prefix(b"[").and_then(|name| name.strip_suffix(b"]")).unwrap_or(&name);
    let name = std::str::from_utf8(name).ok()?.trim_end_matches('.');
    ClientTls::server_name(name).ok().map(Rc::new)
}

impl<'r> RequestAttempts<'r> {
    pub(super) fn new(
        balancer: &'r LoadBalancer,
        input: &ForwardInput<'r>,
        attempts: &'r mut AttemptLog,
        trace: Option<&'r mut RequestTrace>,
        outgoing: &OutgoingRequest,
    ) -> Self {
        let endpoints = balancer.endpoints();
        let started = balancer.state.clock().uptime();
        balancer.record_request(started.to_coarse());
        let turn = balancer.turn.get();
        balancer.turn.set(turn.wrapping_add(1));
        let max_connections = endpoints.set.servers.bounds.max_connections;
        let server_name = requested_name(&endpoints, input.head);
        let proxied = input.proxied;
        let is_upgrade = outgoing.upgrade().is_some();
        attempts.client = Some(input.client_address);
        attempts.priority = input.holder.map(|holder| holder.priority);
        Self {
            balancer,
            endpoints,
            client: input.client,
            client_address: input.client_address,
            attempts,
            trace,
            wanted: ConnectionNeeds {
                is_upgrade,
                needs_new_connection: false,
                proxied,
                max_connections,
                server_name,
            },
            turn,
            target_key: input.target_key,
            excluded: SmallVec::new(),
            failed: 0,
            retry_count: 0,
            started,
            has_begun: false,
            ticket: None,
            waits_until: None,
            holder: input.holder,
            is_share_full: false,
        }
    }

    fn clock(&self) -> &'r Clock {
        self.balancer.state.clock()
    }

    /// Draws an endpoint by the upstream's policy. Whether it has room is found out in `place`.
    fn choose(&self, now: CoarseTime) -> Option<Pick> {
        let input = PickRequest {
            turn: self.turn,
            // An ambiguous key counts as missing: requests without a key share a target.
            key: self.target_key.unwrap_or_default(),
            random: self.balancer.random(),
            excluded: &self.excluded,
        };
        self.endpoints.set.choose(&input, now)
    }

    /// Excludes a failed endpoint from the next attempts.
    pub(super) fn exclude(&mut self, index: usize) {
        self.wanted.needs_new_connection = false;
        self.excluded.truncate(self.failed);
        self.excluded.push(index);
        self.failed = self.excluded.len();
    }

    /// Requires a new connection for the next attempt, because an idle one was stale.
    pub(super) fn require_new_connection(&mut self) {
        self.wanted.needs_new_connection = true;
    }

    /// Prepares to repeat a request that a stale connection has lost: on a new connection, and at
    /// another endpoint if there is one, because this one may be failing.
    pub(super) fn exclude_stale(&mut self, index: usize) {
        if self.has_choice_without(index) && self.endpoints.pools.len() > 1 {
            self.exclude(index);
        }
        self.require_new_connection();
    }

    /// True if another endpoint could be chosen, or this one again because the upstream has no
    /// other.
    pub(super) fn has_choice_without(&mut self, index: usize) -> bool {
        let now = self.balancer.state.now();
        self.excluded.push(index);
        let has_other = self.choose(now).is_some();
        self.excluded.pop();
        // The failed attempt still holds its place, so a sole endpoint may seem full.
        has_other
            || self.endpoints.pools.len() == 1
                && (self.choose(now).is_some()
                    || self.endpoints.set.has_full_endpoint(&self.excluded, now))
    }

    /// An idle or new connection to an endpoint. If the connect fails, retries at the next
    /// endpoint.
    pub(super) async fn acquire(
        &mut self,
        retries: &mut Retries,
    ) -> Result<Attempt, UpstreamError> {
        // Releases the place that the body holds: otherwise a client with a full share would wait
        // for itself.
        self.hold_upload(None);
        let mut acquired = self.find_connection(retries).await;
        self.ticket = None;
        if let Ok(attempt) = &mut acquired
            && !self.wanted.is_upgrade
        {
            self.hold_upload(attempt.in_flight.take_paced());
        }
        acquired
    }

    async fn find_connection(&mut self, retries: &mut Retries) -> Result<Attempt, UpstreamError> {
        self.excluded.truncate(self.failed);
        if self.failed > 0 && self.choose(self.balancer.state.now()).is_none() {
            // All other endpoints are out of service or have failed: starts another round.
            self.excluded.clear();
            self.failed = 0;
        }
        let first = match self.next_at_once()? {
            None => None,
            Some(candidate) => match self.take_connection(candidate) {
                Ok(attempt) => return Ok(attempt),
                Err(candidate) => Some(candidate),
            },
        };
        // Boxed, so that requests on idle connections do not hold its state.
        Box::pin(self.open_connection(first, retries)).await
    }

    /// Begins an attempt at the chosen endpoint, on an open connection. Without one, returns the
    /// `candidate`.
    fn take_connection(
        &mut self,
        candidate: AttemptCandidate,
    ) -> Result<Attempt, AttemptCandidate> {
        let AttemptCandidate { index, kind, start, in_flight } = candidate;
        let pool = &self.endpoints.pools[index];
        self.attempts.count += 1;
        self.attempts.server = Some(Rc::clone(pool));
        if let Some(trace) = &mut self.trace {
            trace.begin_attempt(peer_server(pool), start);
        }
        match pool.take(&self.wanted, kind) {
            Some(connection) => Ok(Attempt { index, kind, connection, start, in_flight }),
            None => Err(AttemptCandidate { index, kind, start, in_flight }),
        }
    }

    /// Opens a connection to an endpoint: to `first`, or else to the next one with room.
    async fn open_connection(
        &mut self,
        mut first: Option<AttemptCandidate>,
        retries: &mut Retries,
    ) -> Result<Attempt, UpstreamError> {
        let (mut last_error, mut failed_connects, mut shortages) = (None, 0, 0);
        loop {
            let mut candidate = if let Some(first) = first.take() {
                first
            } else {
                let next = match last_error.take() {
                    None => self.next().await?,
                    Some(error) => match self.next().await {
                        Ok(chosen) => chosen,
                        Err(error @ UpstreamError::Timeout(_)) => return Err(error),
                        Err(_) => return Err(UpstreamError::Connect(error)),
                    },
                };
                match self.take_connection(next) {
                    Ok(attempt) => return Ok(attempt),
                    Err(candidate) => candidate,
                }
            };
            let AttemptCandidate { index, kind, start, .. } = candidate;
            let choice = self.dial_choice(index, retries);
            let connected = self.connect_in_turn(&mut candidate, choice, retries).await?;
            match connected {
                Ok(connection) => return Ok(candidate.connected(connection)),
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                    self.withdraw(candidate.in_flight);
                    self.wait_for_connection(index).await?;
                }
                Err(error) if self.is_own_shortage(index, &error) => {
                    self.withdraw(candidate.in_flight);
                    self.make_room(error, shortages).await?;
                    shortages += 1;
                }
                Err(error) => {
                    self.end_attempt(AttemptResult::Failed(CONNECT_FAILED));
                    let outcome = AttemptRecord {
                        index,
                        kind,
                        start,
                        concurrency: candidate.in_flight.count,
                    };
                    // Requests earlier in the queue may wait for its place.
                    drop(candidate.in_flight);
                    if !self.is_busy(&outcome, choice, &error) && !NameRefused::is(&error) {
                        let reason = ConnectFailure::of(&error);
                        self.record_failure(outcome, Failure::Connect(reason));
                    }
                    if !self.endpoints.set.servers.retry_on.connect || retries.left == 0 {
                        return Err(UpstreamError::Connect(error));
                    }
                    retries.left -= 1;
                    self.exclude(index);
                    // The first retry is not charged to the budget, because a single failed connect
                    // loads no target.
                    failed_connects += 1;
                    if failed_connects > 1 && !self.balancer.try_retry() {
                        return Err(UpstreamError::Connect(error));
                    }
                    last_error = Some(error);
                }
            }
        }
    }

    /// True if a connect timed out at the only target left, which has accepted another connection
    /// meanwhile. Its queue is full, and no other target could serve the upstream's requests.
    fn is_busy(&self, attempt: &AttemptRecord, choice: DialChoice, error: &io::Error) -> bool {
        let endpoint = self.endpoints.pools[attempt.index].endpoint();
        choice == DialChoice::Only
            && attempt.kind == AttemptKind::Regular
            && error.kind() == io::ErrorKind::TimedOut
            && endpoint.last_connect() >= attempt.start.to_coarse()
    }

    /// Waits for `time`, or until the request's deadline.
    pub(super) async fn wait(&self, time: Duration) -> Result<(), UpstreamError> {
        self.until_deadline(self.clock().sleep(time)).await
    }

    /// Drives `future`. Fails when the request's own deadline has passed.
    async fn until_deadline<F: Future>(&self, future: F) -> Result<F::Output, UpstreamError> {
        let state = self.client.state();
        state.set_wait(Wait::Internal);
        let mut future = pin!(future);
        std::future::poll_fn(|cx| match state.expired_deadline() {
            Some(_) => Poll::Ready(Err(UpstreamError::Timeout(PassedTimeout::Request(None)))),
            None => future.as_mut().poll(cx).map(Ok),
        })
        .await
    }
}
