//! The choice of an endpoint for an attempt, and the connection to it.

mod claim;

use std::{io, pin::pin, rc::Rc, sync::atomic::Ordering::Relaxed, task::Poll, time::Duration};

use futures_util::future::{Either, select};
use smallvec::SmallVec;

use super::{
    Attempts, ForwardError, ForwardInput, LoadBalancer, Outcome, PlaceHolder, Retries,
    UpstreamError, WorkerEndpoints,
};
use crate::{
    clock::{Clock, Uptime},
    connection_state::Wait,
    trace::{AttemptResult, PeerServer, RequestTrace},
    transport::ClientStream,
    upstream::{
        InFlight, Pool, ServerAddress,
        balance::{Choice, ChoiceInput, FAILURE_LATENCY, Observed},
        connection_budget::is_address_unavailable,
        paced_place::NoPlace,
        pending::PendingPlace,
        pool::{Link, LinkChoice},
        target_health::{AttemptKind, Availability, Failure, UpstreamState as Health},
    },
};

/// The time after which a connect is raced with one over the other address family (RFC 8305, section 8).
const FAMILY_DELAY: Duration = Duration::from_millis(250);
/// The longest time until a request that waits for room looks for it again.
const PENDING_CHECK: Duration = Duration::from_millis(100);
/// The time that a request waits without `max_pending` for the places that another client holds beyond its share.
const EXCESS_WAIT: Duration = Duration::from_millis(250);
/// The time after which a request that the process has no connection for tries again: other workers close their idle
/// ones in between.
const SHORTAGE_CHECK: Duration = Duration::from_millis(50);
/// The most times that it does.
const MAX_SHORTAGE_CHECKS: u32 = 5;
/// `Retry-After` of an upstream whose names have not been resolved, or whose trial another request makes, in
/// ms.
const SHORT_RETRY: u64 = 1_000;

/// The attempts of one request at the endpoints of a set.
pub(super) struct Run<'r> {
    pub(super) balancer: &'r LoadBalancer,
    pub(super) endpoints: Rc<WorkerEndpoints>,
    pub(super) client: &'r dyn ClientStream,
    attempts: &'r mut Attempts,
    pub(super) trace: Option<&'r mut RequestTrace>,
    choice: LinkChoice,
    turn: u64,
    hash_key: u64,
    /// The endpoints that are not chosen: first those that have failed, then those passed over.
    excluded: SmallVec<[usize; 4]>,
    /// The number of those that have failed.
    failed: usize,
    /// The retries so far.
    pub(super) retry_count: u32,
    pub(super) started: Uptime,
    has_begun: bool,
    /// The place in the queue of those that wait for room, until the request has it.
    place: Option<PendingPlace<'r>>,
    /// Until when it keeps the place in the queue; `None`: until its deadline.
    waits_until: Option<Uptime>,
    holder: Option<PlaceHolder<'r>>,
    /// True if a target had room, but not for this client: it holds its share, and may have to wait behind others.
    is_share_full: bool,
}

/// A connection on which an exchange may start.
pub(super) struct Attempt {
    /// The endpoint's index.
    pub(super) index: usize,
    pub(super) kind: AttemptKind,
    pub(super) link: Link,
    /// When it began, by the clock's uptime.
    pub(super) start: Uptime,
    pub(super) in_flight: InFlight,
}

/// An endpoint that was chosen.
struct Chosen {
    index: usize,
    kind: AttemptKind,
    start: Uptime,
    in_flight: InFlight,
}

/// The result of a connect.
struct Connected {
    /// The endpoint, which may be of another address family than the chosen one.
    index: usize,
    link: Link,
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

fn millis(time: Uptime) -> u64 {
    time.to_coarse().as_ms()
}

impl<'r> Run<'r> {
    pub(super) fn new(
        balancer: &'r LoadBalancer,
        input: &ForwardInput<'r>,
        attempts: &'r mut Attempts,
        trace: Option<&'r mut RequestTrace>,
        is_upgrade: bool,
    ) -> Self {
        let endpoints = balancer.endpoints();
        let started = balancer.state.clock().uptime();
        balancer.record_request(millis(started));
        let turn = balancer.turn.get();
        balancer.turn.set(turn.wrapping_add(1));
        let max_connections = endpoints.set.servers.bounds.max_connections;
        let proxied = input.proxied;
        Self {
            balancer,
            endpoints,
            client: input.client,
            attempts,
            trace,
            choice: LinkChoice { is_upgrade, is_fresh: false, proxied, max_connections },
            turn,
            hash_key: input.hash_key,
            excluded: SmallVec::new(),
            failed: 0,
            retry_count: 0,
            started,
            has_begun: false,
            place: None,
            waits_until: None,
            holder: input.holder,
            is_share_full: false,
        }
    }

    fn clock(&self) -> &'r Clock {
        self.balancer.state.clock()
    }

    fn choose(&self, now: u64) -> Option<Choice> {
        let input = ChoiceInput {
            turn: self.turn,
            key: self.hash_key,
            random: self.balancer.random(),
            excluded: &self.excluded,
        };
        self.endpoints.set.choose(&input, now)
    }

    /// Does not choose an endpoint again that has failed; after a stale connection it is tried again.
    pub(super) fn exclude(&mut self, index: usize, is_stale: bool) {
        self.choice.is_fresh = is_stale;
        if !is_stale {
            self.excluded.truncate(self.failed);
            self.excluded.push(index);
            self.failed = self.excluded.len();
        }
    }

    /// Prepares the repetition of a request that an idle connection has lost: on a new connection, which cannot be
    /// stale, and at another endpoint if there is one, because this one may be failing.
    pub(super) fn exclude_stale(&mut self, index: usize) {
        let has_other = self.has_choice_without(index);
        self.exclude(index, !(has_other && self.endpoints.pools.len() > 1));
        self.choice.is_fresh = true;
    }

    /// Whether an endpoint could be chosen if this one is also excluded; a single one may be tried again.
    pub(super) fn has_choice_without(&mut self, index: usize) -> bool {
        let now = self.balancer.state.now();
        self.excluded.push(index);
        let has_other = self.choose(now).is_some();
        self.excluded.pop();
        // The failed attempt still has its place, so a single endpoint may seem full.
        let is_usable = || {
            self.choose(now).is_some() || self.endpoints.set.has_full_endpoint(&self.excluded, now)
        };
        has_other || self.endpoints.pools.len() == 1 && is_usable()
    }

    /// An idle or new connection to an endpoint; to the next one if the connect fails, which is a retry.
    pub(super) async fn acquire(
        &mut self,
        retries: &mut Retries,
    ) -> Result<Attempt, UpstreamError> {
        // A client that holds its share would wait for itself.
        self.hold_upload(None);
        let mut acquired = self.find_link(retries).await;
        self.place = None;
        if let Ok(attempt) = &mut acquired
            && !self.choice.is_upgrade
        {
            self.hold_upload(attempt.in_flight.take_paced());
        }
        acquired
    }

    async fn find_link(&mut self, retries: &mut Retries) -> Result<Attempt, UpstreamError> {
        self.excluded.truncate(self.failed);
        if self.failed > 0 && self.choose(self.balancer.state.now()).is_none() {
            // All others are out of service or have failed; this attempt starts another round.
            self.excluded.clear();
            self.failed = 0;
        }
        let (mut last_error, mut failed_connects, mut shortages) = (None, 0, 0);
        loop {
            let Chosen { index, kind, start, mut in_flight } = match last_error.take() {
                None => self.next().await?,
                Some(error) => match self.next().await {
                    Ok(chosen) => chosen,
                    Err(UpstreamError::Timeout) => return Err(UpstreamError::Timeout),
                    Err(_) => return Err(UpstreamError::Connect(error)),
                },
            };
            let pool = &self.endpoints.pools[index];
            self.attempts.count += 1;
            self.attempts.server = Some(Rc::clone(pool));
            if let Some(trace) = &mut self.trace {
                trace.begin_attempt(peer_server(pool), start);
            }
            // An idle connection from before the ejection tells nothing of the target now.
            let is_fresh = self.choice.is_fresh || kind == AttemptKind::Trial;
            if let Some(link) = pool.take(LinkChoice { is_fresh, ..self.choice }) {
                return Ok(Attempt { index, kind, link, start, in_flight });
            }
            if pool.has_room(self.choice) {
                // The next one need not wait until this connection is open.
                self.place = None;
            }
            // Boxed, so that requests on idle connections do not carry its state.
            match Box::pin(self.connect(index, &mut in_flight)).await? {
                Ok(Connected { index: connected, link }) => {
                    // The wait for the first family is no latency of the other one.
                    let (kind, start) = if connected == index {
                        (kind, start)
                    } else {
                        (AttemptKind::Regular, self.clock().uptime())
                    };
                    return Ok(Attempt { index: connected, kind, link, start, in_flight });
                }
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                    self.withdraw(in_flight);
                    self.wait_for_connection(index).await?;
                }
                Err(error) if self.is_own_shortage(index, &error) => {
                    self.withdraw(in_flight);
                    self.make_room(error, shortages).await?;
                    shortages += 1;
                }
                Err(error) => {
                    self.end_attempt(AttemptResult::Failed(CONNECT_FAILED));
                    let outcome = Outcome { index, kind, start, concurrency: in_flight.count };
                    // Those that wait before this request may wait for its place.
                    drop(in_flight);
                    self.record_failure(outcome, Failure::Connect);
                    if !self.endpoints.set.servers.retry_on.connect || retries.left == 0 {
                        return Err(UpstreamError::Connect(error));
                    }
                    retries.left -= 1;
                    self.exclude(index, false);
                    // The first one goes to another target without the budget, which a single failed
                    // connect does not load.
                    failed_connects += 1;
                    if failed_connects > 1 && !self.balancer.try_retry() {
                        return Err(UpstreamError::Connect(error));
                    }
                    last_error = Some(error);
                }
            }
        }
    }

    fn is_own_shortage(&self, index: usize, error: &io::Error) -> bool {
        self.endpoints.pools[index].endpoint().is_own_shortage(error)
    }

    /// Ends an attempt for which no connection was opened, as if it had not begun.
    fn withdraw(&mut self, in_flight: InFlight) {
        self.attempts.count -= 1;
        if let Some(trace) = &mut self.trace {
            trace.forget_attempt();
        }
        in_flight.withdraw();
    }

    /// After a `shortage` of the process, which is no failure of a server: makes room, the second time by waiting.
    #[cold]
    async fn make_room(&self, shortage: io::Error, checks: u32) -> Result<(), UpstreamError> {
        // A connection that is closed keeps its port for a while.
        if !is_address_unavailable(&shortage) {
            self.balancer.pools.close_idle();
        }
        match checks {
            0 => Ok(()),
            1..=MAX_SHORTAGE_CHECKS => self.wait(SHORTAGE_CHECK).await,
            _ => {
                self.balancer.state.load.connection_budget.count_shortage();
                Err(UpstreamError::Shortage(shortage))
            }
        }
    }

    /// The next endpoint with room. Waits for one if requests may wait.
    async fn next(&mut self) -> Result<Chosen, UpstreamError> {
        let state = &*self.balancer.state;
        let max_pending = self.endpoints.set.servers.bounds.max_pending;
        loop {
            // Those that wait come first.
            let waits = max_pending > 0
                && match &self.place {
                    Some(place) => !place.is_first(),
                    None => state.load.pending.has_first(),
                };
            // The first attempt begins with the request; reading the clock costs as much as the choice.
            let is_first = !std::mem::replace(&mut self.has_begun, true);
            let start = if is_first { self.started } else { self.clock().uptime() };
            if !waits && let Some(chosen) = self.try_next(start)? {
                return Ok(chosen);
            }
            self.wait_in_queue(max_pending).await?;
        }
    }

    /// `None`: endpoints are in service, but full.
    fn try_next(&mut self, start: Uptime) -> Result<Option<Chosen>, UpstreamError> {
        let (now, endpoints) = (millis(start), Rc::clone(&self.endpoints));
        let mut has_lost_race = false;
        self.is_share_full = false;
        while let Some(choice) = self.choose(now) {
            let index = choice.index;
            if self.is_behind_waiting(index) {
                (self.is_share_full, has_lost_race) = (true, true);
                self.excluded.push(index);
                continue;
            }
            let view = endpoints.set.members[index].state.view();
            let mut kind = AttemptKind::Regular;
            if view.availability(now) == Availability::Trial {
                let bounds = &endpoints.set.servers.bounds;
                let endpoint = endpoints.pools[index].endpoint();
                // It would claim the trial and not make it.
                if self.holder.is_some_and(|own| endpoint.is_share_full(own.client, bounds)) {
                    (self.is_share_full, has_lost_race) = (true, true);
                    self.excluded.push(index);
                    continue;
                }
                if !endpoints.set.begin_trial(index, now) {
                    self.excluded.push(index);
                    continue;
                }
                kind = AttemptKind::Trial;
            }
            match InFlight::begin(&endpoints.pools[index], &endpoints.set, self.claim()) {
                Ok(in_flight) => return Ok(Some(Chosen { index, kind, start, in_flight })),
                Err(NoPlace::ShareFull) => self.is_share_full = true,
                Err(NoPlace::Full) => {}
            }
            has_lost_race = true;
            self.excluded.push(index);
        }
        self.excluded.truncate(self.failed);
        if has_lost_race || endpoints.set.has_full_endpoint(&self.excluded, now) {
            return Ok(None);
        }
        let retry_after = match endpoints.set.state(now) {
            // Without an endpoint, the names have not been resolved.
            _ if endpoints.pools.is_empty() => SHORT_RETRY,
            Health::AllDown { retry_after } => retry_after,
            // Another request makes the trial, or all that are in service have failed this request.
            Health::Serving => SHORT_RETRY,
        };
        if self.attempts.count == 0 {
            self.balancer.state.refused_down.fetch_add(1, Relaxed);
        }
        Err(UpstreamError::Down { retry_after })
    }

    fn overloaded(&self) -> UpstreamError {
        self.balancer.state.overloaded.fetch_add(1, Relaxed);
        UpstreamError::Overloaded
    }

    /// Returns when there may be room. The place in the queue stays.
    async fn wait_in_queue(&mut self, max_pending: u32) -> Result<(), UpstreamError> {
        let state = &*self.balancer.state;
        let place = if let Some(place) = self.place.take() {
            if self.has_waited_enough() {
                return Err(self.overloaded());
            }
            place
        } else {
            let client = self.holder.map(|holder| holder.client);
            // Also without `max_pending`.
            let max = max_pending.max(self.excess_places());
            self.waits_until = (max_pending == 0).then(|| self.clock().uptime() + EXCESS_WAIT);
            state.load.pending.enter(max, client).ok_or_else(|| self.overloaded())?
        };
        place.set_passed_over(self.is_share_full);
        let woken = self.clock().timeout(PENDING_CHECK, place.woken());
        match self.until_deadline(woken).await {
            Ok(_) if place.is_displaced() => Err(self.overloaded()),
            Ok(_) => {
                self.place = Some(place);
                Ok(())
            }
            Err(_) => Err(self.overloaded()),
        }
    }

    /// After `max_connections` are open to an endpoint: waits for a place, or passes the endpoint over.
    async fn wait_for_connection(&mut self, index: usize) -> Result<(), UpstreamError> {
        self.excluded.push(index);
        let now = self.balancer.state.now();
        if self.choose(now).is_some() {
            return Ok(());
        }
        // Even without `max_pending`, wait for other workers' idle connections; they are closed soon.
        let idle = self.endpoints.pools[index].endpoint().idle_connections();
        let max_pending = self.endpoints.set.servers.bounds.max_pending.max(idle);
        self.wait_in_queue(max_pending).await?;
        self.excluded.truncate(self.failed);
        Ok(())
    }

    /// Waits for `time`, or until the request's deadline.
    pub(super) async fn wait(&self, time: Duration) -> Result<(), UpstreamError> {
        self.until_deadline(self.clock().sleep(time)).await
    }

    /// Drives `future` until the request's own deadline has passed, which is the error.
    async fn until_deadline<F: Future>(&self, future: F) -> Result<F::Output, UpstreamError> {
        let state = self.client.state();
        state.set_wait(Wait::Internal);
        let mut future = pin!(future);
        std::future::poll_fn(|cx| match state.timeout() {
            Some(_) => Poll::Ready(Err(UpstreamError::Timeout)),
            None => future.as_mut().poll(cx).map(Ok),
        })
        .await
    }

    /// Opens a connection to the endpoint. If it takes long and its name has an address of the other family,
    /// both are tried, the first one wins, and `in_flight` then counts the request there. The outer error means that
    /// the request's deadline has passed.
    async fn connect(
        &mut self,
        index: usize,
        in_flight: &mut InFlight,
    ) -> Result<io::Result<Connected>, UpstreamError> {
        let endpoints = Rc::clone(&self.endpoints);
        let timeout = endpoints.set.servers.connect_timeout;
        let connect = async |index: usize| {
            let link = endpoints.pools[index].connect(timeout, self.choice).await?;
            io::Result::Ok(Connected { index, link })
        };
        let has_family = endpoints.set.members[index].state.target.resolved.is_some();
        let sibling =
            if has_family { endpoints.set.sibling(index, self.balancer.state.now()) } else { None };
        let Some(sibling) = sibling.filter(|sibling| !self.excluded.contains(sibling)) else {
            return self.until_deadline(connect(index)).await;
        };
        let clock = self.clock();
        let mut has_failed = true;
        let race = async {
            let mut first = pin!(connect(index));
            let delay = pin!(clock.sleep(FAMILY_DELAY));
            if let Either::Left((connected, _)) = select(first.as_mut(), delay).await {
                return connected;
            }
            match select(first, pin!(connect(sibling))).await {
                Either::Left((Ok(connected), _)) | Either::Right((Ok(connected), _)) => {
                    Ok(connected)
                }
                Either::Left((Err(error), second)) => {
                    has_failed = !self.is_own_shortage(index, &error);
                    second.await
                }
                Either::Right((Err(_), first)) => first.await,
            }
        };
        let connected = self.until_deadline(race).await?;
        if let Ok(Connected { index: winner, .. }) = &connected
            && *winner == sibling
        {
            let pool = &endpoints.pools[sibling];
            in_flight.move_to(pool, &endpoints.set);
            self.attempts.server = Some(Rc::clone(pool));
            self.attempts.count += 1;
            self.end_attempt(AttemptResult::Failed(CONNECT_FAILED));
            if let Some(trace) = &mut self.trace {
                trace.begin_attempt(peer_server(pool), clock.uptime());
            }
            let now = self.balancer.state.now();
            let (kind, failure) = (AttemptKind::Regular, Failure::Connect);
            if has_failed {
                endpoints.set.record_failure(index, kind, failure, now, clock);
            }
        }
        Ok(connected)
    }

    /// Ends the span of the attempt if the request is sampled.
    #[inline]
    pub(super) fn end_attempt(&mut self, result: AttemptResult) {
        let clock = self.clock();
        if let Some(trace) = &mut self.trace {
            trace.end_attempt(result, clock.uptime());
        }
    }

    /// Ends the span of an attempt without a connection.
    #[cold]
    pub(super) fn fail_to_acquire(&mut self, error: UpstreamError) -> ForwardError {
        let label = match &error {
            UpstreamError::Timeout => "timeout",
            _ => CONNECT_FAILED,
        };
        self.end_attempt(AttemptResult::Failed(label));
        ForwardError::Upstream(error)
    }

    /// Records a response that is not retried.
    pub(super) fn record_success(&mut self, outcome: Outcome, observed: Observed) {
        let Outcome { index, kind, start, concurrency } = outcome;
        let (set, clock) = (&self.endpoints.set, self.clock());
        let uptime = clock.uptime();
        self.attempts.time = Some(uptime.saturating_sub(self.started));
        let (now, latency) = (millis(uptime), uptime.saturating_sub(start).as_micros() as u64);
        set.members[index].state.observe_latency(latency, now);
        set.members[index].state.observe_result(observed, now);
        set.record_success(index, kind, now, clock);
        self.record_sample(index, (latency, concurrency), false, now);
    }

    /// Records a failure of an endpoint.
    #[cold]
    pub(super) fn record_failure(&mut self, outcome: Outcome, failure: Failure) {
        let Outcome { index, kind, start, concurrency } = outcome;
        let (set, clock) = (&self.endpoints.set, self.clock());
        let uptime = clock.uptime();
        if let Failure::Status(_) = failure {
            self.attempts.time = Some(uptime.saturating_sub(self.started));
        }
        let (now, latency) = (millis(uptime), uptime.saturating_sub(start).as_micros() as u64);
        set.members[index].state.observe_latency(latency.max(FAILURE_LATENCY), now);
        set.record_failure(index, kind, failure, now, clock);
        // A connection that fails tells nothing of the load.
        if matches!(failure, Failure::Timeout | Failure::Status(_)) {
            let is_dropped = matches!(failure, Failure::Timeout | Failure::Status(503));
            self.record_sample(index, (latency, concurrency), is_dropped, now);
        }
    }

    /// Records an attempt for adaptive concurrency: its latency (us), and the requests in flight at its start.
    fn record_sample(&self, index: usize, sample: (u64, u32), is_dropped: bool, now: u64) {
        let set = &self.endpoints.set;
        if set.servers.bounds.adaptive.is_some() {
            let (latency, in_flight) = sample;
            set.members[index].state.record_sample(latency, in_flight, is_dropped, now);
        }
    }
}
