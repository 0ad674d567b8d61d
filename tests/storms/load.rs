use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use testkit::{
    client::{Client, Response},
    wait::{eventually, sleep},
};
use tidegate::clock::instant;

/// Callers of the limits that are keyed by caller: enough for every server to have some.
pub(crate) const CALLERS: usize = 36;

/// Minimum interval between two requests of a client.
const REQUEST_INTERVAL: Duration = Duration::from_millis(10);

/// The minimum number of requests in each phase.
const MIN_REQUESTS: u64 = 400;

/// Consecutive refusals of `/small_quota` after which its quota counts as exhausted.
const MIN_REFUSALS: u64 = 200;

/// Each client requests one of these continuously; two clients per gateway request `/small_quota`.
pub(crate) const PATHS: [&str; 6] =
    ["/local", "/open", "/reserved", "/both", "/small_quota", "/small_quota"];

/// The phase of a storm: before the fault, from the fault until Redis decides everything again, and
/// after that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Before,
    During,
    After,
}

/// The state that the clients share: the phase, and what they observe.
#[derive(Default)]
pub(crate) struct StormLoad {
    phase: AtomicUsize,
    pub(crate) stop: AtomicBool,
    sent: AtomicU64,
    admitted: AtomicU64,
    consecutive_refusals: AtomicU64,
    /// Failures caused by Redis: any status but 200 and 429, or no response.
    failures: Mutex<Vec<String>>,
    /// Callers of `/open` admitted without Redis.
    without_redis: Mutex<BTreeSet<usize>>,
    /// Latencies in us, one list per phase.
    latencies: [Mutex<Vec<u64>>; 3],
}

impl StormLoad {
    /// Sends the requests of one client until the load stops.
    pub(crate) fn client(&self, address: SocketAddr, path: &str) {
        let mut client = Client::connect(address);
        let mut next = instant();
        for turn in 0.. {
            if self.stop.load(Relaxed) {
                return;
            }
            let (start, phase): (Instant, _) = (instant(), self.phase.load(Relaxed));
            let caller = turn % CALLERS;
            client.send(request(path, caller));
            if let Some(response) = client.try_read_response() {
                self.record(path, caller, &response);
            } else {
                self.fail(format!("{path}: no response"));
                client = Client::connect(address);
            }
            lock(&self.latencies[phase]).push(start.elapsed().as_micros() as u64);
            self.sent.fetch_add(1, Relaxed);
            // After the fault, the rest of the quota is exhausted as fast as possible.
            if path == "/small_quota" && phase == Phase::After as usize {
                continue;
            }
            // A delayed client does not catch up: that would change the load.
            next = instant().max(next + REQUEST_INTERVAL);
            sleep(next.saturating_duration_since(instant()));
        }
    }

    fn record(&self, path: &str, caller: usize, response: &Response) {
        match (path, response.status) {
            ("/small_quota", 200) => {
                self.admitted.fetch_add(1, Relaxed);
                self.consecutive_refusals.store(0, Relaxed);
            }
            ("/small_quota", 429) => {
                self.consecutive_refusals.fetch_add(1, Relaxed);
            }
            ("/open", 200) if !was_decided_by_redis(response) => {
                lock(&self.without_redis).insert(caller);
            }
            (_, 200) => {}
            (_, status) => self.fail(format!("{path}: {status}: {}", response.text())),
        }
    }

    fn fail(&self, what: String) {
        lock(&self.failures).push(what);
    }

    /// Begins the next phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as usize, Relaxed);
    }

    /// Waits for [`MIN_REQUESTS`] more requests.
    pub(crate) fn wait_for_traffic(&self) {
        let before = self.sent();
        eventually("requests continue", || self.sent() >= before + MIN_REQUESTS);
    }

    /// Waits until `/small_quota` admits no more.
    pub(crate) fn wait_exhausted(&self) {
        let refused = || self.consecutive_refusals.load(Relaxed);
        eventually("the quota is exhausted", || refused() >= MIN_REFUSALS);
    }

    /// The number of requests sent, with or without a response.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Admissions of `/small_quota`.
    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Relaxed)
    }

    /// Failures that clients observed.
    pub(crate) fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }

    /// Callers of `/open` admitted without Redis so far.
    pub(crate) fn without_redis(&self) -> BTreeSet<usize> {
        lock(&self.without_redis).clone()
    }

    /// The 99th percentile of the phase's latencies.
    pub(crate) fn p99(&self, phase: Phase) -> Duration {
        let mut latencies = lock(&self.latencies[phase as usize]);
        latencies.sort_unstable();
        Duration::from_micros(latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(0))
    }

    /// The largest latency of all phases.
    pub(crate) fn slowest(&self) -> Duration {
        let slowest =
            self.latencies.iter().filter_map(|latencies| lock(latencies).iter().max().copied());
        Duration::from_micros(slowest.max().unwrap_or(0))
    }
}

/// The bytes of a client's request.
pub(crate) fn request(path: &str, caller: usize) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: gateway.test\r\nX-Caller: {caller}\r\n\r\n")
}

/// True if Redis decided on the limit `open`: otherwise the response has no rate-limit headers.
pub(crate) fn was_decided_by_redis(response: &Response) -> bool {
    response.header("x-ratelimit-limit").is_some()
}

/// Locks even after a panic: the thread that panicked reports it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
