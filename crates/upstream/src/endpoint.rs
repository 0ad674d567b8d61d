//! [`EndpointState`]: one address of an upstream, shared by all workers of the process.

mod in_flight;
mod places;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) use self::in_flight::ConnectionGuard;
pub use self::in_flight::InFlight;
use tidegate_balance::{AttemptOutcome, ErrorRate, PeakEwma};
use tidegate_system::clock::{CoarseTime, StoreTime};

use super::{
    Target,
    adaptive_concurrency::{AdaptiveLimit, ConcurrencyBounds, Sample},
    client_holdings::ClientHoldings,
    connection_budget::{ConnectionBudget, is_address_unavailable, is_own_shortage},
    pending::PendingQueue,
    target_health::{Failure, HealthView},
};

/// The limit of a target without adaptive concurrency.
const NO_LIMIT: u32 = u32::MAX;

/// The state that the endpoints of one upstream share. The connection budget belongs to the
/// process.
#[derive(Debug, Default)]
pub(super) struct UpstreamLoad {
    /// The requests in flight at all endpoints.
    pub(super) in_flight: CachePadded<AtomicU64>,
    /// The requests that wait for an endpoint with room.
    pub(super) pending: PendingQueue,
    /// The buffers of transfers that wait for their clients.
    pub(super) buffers: Arc<ClientHoldings>,
    /// Wakes the task that resolves names after a target went out of service, because its name may
    /// now have other addresses.
    pub(super) resolve_now: Notify,
    /// The connections of the process to all upstreams.
    pub(super) connection_budget: Arc<ConnectionBudget>,
}

/// One address of an upstream: its load, its latency and its health. Kept over reloads and DNS
/// changes.
#[derive(Debug)]
pub struct EndpointState {
    /// The server and its protocol settings.
    pub target: Target,
    /// Its address for logs and the hash ring: `10.0.0.1:9000` or `unix:/path`.
    pub name: Box<str>,
    pub(super) load: Arc<UpstreamLoad>,
    in_flight: CachePadded<AtomicU32>,
    connections: AtomicU32,
    /// The number of concurrent streams that the last HTTP/2 connection allowed; 0 with HTTP/1,
    /// whose connections carry one request.
    streams: AtomicU32,
    /// The places that clients hold at their own pace: see `PacedPlace`.
    paced: Arc<ClientHoldings>,
    /// All places that clients hold; only counted at an upstream with bounds.
    held: Arc<ClientHoldings>,
    /// True if the last connect was refused because `max_connections` were open.
    is_starved: AtomicBool,
    /// The view of its health, packed.
    view: AtomicU64,
    /// The time of the last success, in ms of the uptime.
    last_success: AtomicU64,
    /// The time at which it last accepted a connection, in ms of the uptime.
    last_connect: AtomicU64,
    /// The peak EWMA of its latency, packed.
    latency: AtomicU64,
    /// The share of errors among its responses, packed.
    errors: AtomicU64,
    /// The maximum number of requests in flight found by adaptive concurrency; [`NO_LIMIT`] without
    /// it.
    adaptive_limit: AtomicU32,
    adaptive: Mutex<Option<(ConcurrencyBounds, AdaptiveLimit)>>,
    /// Number of consecutive responses that broke off within their bodies.
    broken_bodies: AtomicU32,
    counters: EndpointCounters,
    change: Mutex<LastChange>,
}

/// The counters of an endpoint.
#[derive(Debug, Default)]
struct EndpointCounters {
    requests: AtomicU64,
    failures: [AtomicU64; FAILURE_KINDS.len()],
    ejections: AtomicU64,
    lost_places: AtomicU64,
}

/// The kinds of failures, in the order of [`EndpointState::failures`].
pub const FAILURE_KINDS: [&str; 5] = ["connect", "reset", "timeout", "status", "body"];

/// The last change of an endpoint's health.
#[derive(Clone, Debug, Default)]
pub struct LastChange {
    /// The time; `None`: never.
    pub at: Option<StoreTime>,
    /// The reason.
    pub reason: String,
}

impl EndpointState {
    /// An endpoint without load. `target` has an address, not a name.
    pub(super) fn new(target: Target, load: Arc<UpstreamLoad>) -> Self {
        let name = match target.socket_address() {
            Some(address) => address.to_string(),
            None => target.address.to_string(),
        };
        Self {
            name: name.into(),
            target,
            load,
            in_flight: CachePadded::default(),
            connections: AtomicU32::new(0),
            streams: AtomicU32::new(0),
            paced: Arc::default(),
            held: Arc::default(),
            is_starved: AtomicBool::new(false),
            view: AtomicU64::new(HealthView::default().to_bits()),
            last_success: AtomicU64::new(0),
            last_connect: AtomicU64::new(0),
            latency: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            adaptive_limit: AtomicU32::new(NO_LIMIT),
            adaptive: Mutex::default(),
            broken_bodies: AtomicU32::new(0),
            counters: EndpointCounters::default(),
            change: Mutex::default(),
        }
    }

    /// An endpoint for tests.
    #[cfg(test)]
    pub(super) fn for_test(name: &str) -> Arc<Self> {
        use super::{Protocol, ServerAddress, TlsNameSource};
        let address = ServerAddress::Tcp { host: name.into(), port: 80 };
        let target = Target {
            address,
            protocol: Protocol::Http1,
            tls: None,
            tls_name: TlsNameSource::Target,
            resolved: None,
            send_proxy: None,
        };
        Arc::new(Self::new(target, Arc::default()))
    }

    /// The health as of its last change.
    pub fn view(&self) -> HealthView {
        HealthView::from_bits(self.view.load(Relaxed))
    }

    pub(super) fn publish(&self, view: HealthView) {
        self.view.store(view.to_bits(), Relaxed);
    }

    /// The time of the last success; zero before the first.
    pub(super) fn last_success(&self) -> CoarseTime {
        CoarseTime::from_ms(self.last_success.load(Relaxed))
    }

    /// The time at which it last accepted a connection.
    pub(super) fn last_connect(&self) -> CoarseTime {
        CoarseTime::from_ms(self.last_connect.load(Relaxed))
    }

    /// Notes that it accepted a connection at `now`.
    pub(super) fn note_connect(&self, now: CoarseTime) {
        self.last_connect.fetch_max(now.as_ms(), Relaxed);
    }

    /// Sets the time of the last success. A lost update is harmless.
    pub(super) fn set_last_success(&self, now: CoarseTime) {
        self.last_success.store(now.as_ms(), Relaxed);
    }

    /// The requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// The number of open connections, including idle ones.
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// True if a connection was refused because the allowed number is open. Idle ones are then
    /// closed.
    pub(super) fn is_starved(&self) -> bool {
        self.is_starved.load(Relaxed)
    }

    /// The number of open connections that carry no request; over HTTP/2 an estimate.
    pub(super) fn idle_connections(&self) -> u32 {
        self.connections().saturating_sub(self.in_flight())
    }

    /// The peak EWMA of the latency at `now`, in us; 0: none observed yet.
    pub fn latency(&self, now: CoarseTime) -> u64 {
        PeakEwma::from_bits(self.latency.load(Relaxed)).cost(now)
    }

    /// The peak EWMA at the last observation, in us: without requests it stays, as nothing was
    /// measured since. `None` before the first response, because only failures determine it until
    /// then.
    pub fn observed_latency(&self) -> Option<u64> {
        let average = PeakEwma::from_bits(self.latency.load(Relaxed)).average();
        self.has_responded().then_some(average).filter(|micros| *micros > 0)
    }

    fn has_responded(&self) -> bool {
        let [connect, reset, timeout, ..] = self.failures();
        let ended = self.requests().saturating_sub(self.in_flight().into());
        ended > connect + reset + timeout
    }

    /// True if a connect failed because the gateway lacks a descriptor, a port or memory. An
    /// unavailable address counts only if the endpoint has responded before. Otherwise the gateway
    /// has not run out of ports, but has no address that reaches the endpoint.
    pub(super) fn is_own_shortage(&self, error: &io::Error) -> bool {
        is_own_shortage(error) && (!is_address_unavailable(error) || self.has_responded())
    }

    /// Records the time from an attempt's start to its end, in us. A lost update is harmless.
    pub(super) fn observe_latency(&self, latency: u64, now: CoarseTime) {
        let observed = PeakEwma::from_bits(self.latency.load(Relaxed)).observe(latency, now);
        self.latency.store(observed.to_bits(), Relaxed);
    }

    /// Records an attempt's outcome. A lost update is harmless.
    pub(super) fn observe_result(&self, observed: AttemptOutcome, now: CoarseTime) {
        let errors = ErrorRate::from_bits(self.errors.load(Relaxed));
        if observed == AttemptOutcome::Error || !errors.is_zero() {
            self.errors.store(errors.observe(observed, now).to_bits(), Relaxed);
        }
    }

    /// The share of its weight that the endpoint keeps after its errors at `now`, in 1/1024.
    pub(super) fn success_share(&self, now: CoarseTime) -> u32 {
        ErrorRate::from_bits(self.errors.load(Relaxed)).success_share(now)
    }

    /// The attempts since the start.
    pub fn requests(&self) -> u64 {
        self.counters.requests.load(Relaxed)
    }

    /// The failed attempts since the start, by [`FAILURE_KINDS`].
    pub fn failures(&self) -> [u64; FAILURE_KINDS.len()] {
        std::array::from_fn(|kind| self.counters.failures[kind].load(Relaxed))
    }

    pub(super) fn count_failure(&self, failure: Failure) {
        let kind = match failure {
            Failure::Connect(_) => 0,
            Failure::Reset(_) | Failure::Malformed(_) => 1,
            Failure::Timeout => 2,
            Failure::Status(_) => 3,
            // `count_broken_body` has already counted each body.
            Failure::BrokenBodies => return,
        };
        self.counters.failures[kind].fetch_add(1, Relaxed);
    }

    /// Records a response with a complete body.
    pub fn record_whole_body(&self) {
        if self.broken_bodies.load(Relaxed) > 0 {
            self.broken_bodies.store(0, Relaxed);
        }
    }

    /// Counts a response that broke off within its body. Returns the number of consecutive ones.
    pub(super) fn count_broken_body(&self) -> u32 {
        self.counters.failures[4].fetch_add(1, Relaxed);
        self.broken_bodies.fetch_add(1, Relaxed) + 1
    }

    /// The ejections since the start.
    pub fn ejections(&self) -> u64 {
        self.counters.ejections.load(Relaxed)
    }

    pub(super) fn count_ejection(&self) {
        self.counters.ejections.fetch_add(1, Relaxed);
    }

    /// The last change of its health.
    pub fn last_change(&self) -> LastChange {
        self.change.lock().clone()
    }

    pub(super) fn set_last_change(&self, change: LastChange) {
        *self.change.lock() = change;
    }

    /// Sets the bounds of adaptive concurrency. Unchanged bounds keep the current limit.
    pub(super) fn set_adaptive(
        &self,
        bounds: Option<ConcurrencyBounds>,
        random: u64,
        now: CoarseTime,
    ) {
        let mut adaptive = self.adaptive.lock();
        if adaptive.as_ref().map(|(current, _)| *current) == bounds {
            return;
        }
        *adaptive = bounds.map(|bounds| (bounds, AdaptiveLimit::new(bounds, random, now)));
        let limit = adaptive.as_ref().map_or(NO_LIMIT, |(_, limit)| limit.limit());
        self.adaptive_limit.store(limit, Relaxed);
    }

    /// The maximum number of requests in flight found by adaptive concurrency; `None` without it.
    pub fn adaptive_limit(&self) -> Option<u32> {
        Some(self.adaptive_limit.load(Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Records an attempt for adaptive concurrency.
    pub(super) fn record_sample(&self, sample: Sample, now: CoarseTime) {
        let mut adaptive = self.adaptive.lock();
        let Some((_, limit)) = adaptive.as_mut() else { return };
        if let Some(limit) = limit.record(sample, now) {
            self.adaptive_limit.store(limit, Relaxed);
            self.load.pending.wake_next();
        }
    }
}

impl Target {
    /// The address for connections; `None` for a Unix socket or an unresolved name.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        if self.resolved.is_some() {
            return self.resolved;
        }
        match &self.address {
            super::ServerAddress::Tcp { host, port } => {
                Some(SocketAddr::new(host.parse().ok()?, *port))
            }
            _ => None,
        }
    }
}
