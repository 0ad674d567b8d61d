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

/// Interval between two requests of a client.
const PACE: Duration = Duration::from_millis(10);

/// Requests that a storm waits for before, during and after a fault.
const SOME: u64 = 400;

/// Consecutive refusals of `/few` after which its quota counts as exhausted.
const USED_UP: u64 = 200;

/// Each client requests one of these continuously; two clients per gateway request `/few`.
pub(crate) const PATHS: [&str; 6] = ["/local", "/open", "/reserved", "/both", "/few", "/few"];

/// The phase of a storm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Calm,
    Down,
    After,
}

/// What clients observe.
#[derive(Default)]
pub(crate) struct Load {
    phase: AtomicUsize,
    pub(crate) stop: AtomicBool,
    sent: AtomicU64,
    admitted: AtomicU64,
    refused_in_a_row: AtomicU64,
    /// Failures caused by Redis: any status but 200 and 429, or no response.
    failed: Mutex<Vec<String>>,
    /// Callers of `/open` admitted without Redis.
    without_redis: Mutex<BTreeSet<usize>>,
    /// Latencies in us, one list per phase.
    took: [Mutex<Vec<u64>>; 3],
}

impl Load {
    /// One client, until the load stops.
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
            if let Some(reply) = client.try_read_response() {
                self.record(path, caller, &reply);
            } else {
                self.fail(format!("{path}: no answer"));
                client = Client::connect(address);
            }
            lock(&self.took[phase]).push(start.elapsed().as_micros() as u64);
            self.sent.fetch_add(1, Relaxed);
            // The rest of the quota is used up as fast as possible.
            if path == "/few" && phase == Phase::After as usize {
                continue;
            }
            // A delayed client does not catch up: that would change the load.
            next = instant().max(next + PACE);
            sleep(next.saturating_duration_since(instant()));
        }
    }

    fn record(&self, path: &str, caller: usize, reply: &Response) {
        match (path, reply.status) {
            ("/few", 200) => {
                self.admitted.fetch_add(1, Relaxed);
                self.refused_in_a_row.store(0, Relaxed);
            }
            ("/few", 429) => {
                self.refused_in_a_row.fetch_add(1, Relaxed);
            }
            ("/open", 200) if !was_decided_by_redis(reply) => {
                lock(&self.without_redis).insert(caller);
            }
            (_, 200) => {}
            (_, status) => self.fail(format!("{path}: {status}: {}", reply.text())),
        }
    }

    fn fail(&self, what: String) {
        lock(&self.failed).push(what);
    }

    /// Begins the next phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as usize, Relaxed);
    }

    /// Waits for more responses.
    pub(crate) fn goes_on(&self) {
        let before = self.sent();
        eventually("requests go on", || self.sent() >= before + SOME);
    }

    /// Waits until `/few` admits no more.
    pub(crate) fn is_used_up(&self) {
        let refused = || self.refused_in_a_row.load(Relaxed);
        eventually("the quota is used up", || refused() >= USED_UP);
    }

    /// Requests with and without a response.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Admissions of `/few`.
    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Relaxed)
    }

    /// Failures that clients observed.
    pub(crate) fn failures(&self) -> Vec<String> {
        lock(&self.failed).clone()
    }

    /// Callers of `/open` admitted without Redis so far.
    pub(crate) fn without_redis(&self) -> BTreeSet<usize> {
        lock(&self.without_redis).clone()
    }

    /// The 99th percentile of the phase's latencies.
    pub(crate) fn p99(&self, phase: Phase) -> Duration {
        let mut took = lock(&self.took[phase as usize]);
        took.sort_unstable();
        Duration::from_micros(took.get(took.len() * 99 / 100).copied().unwrap_or(0))
    }

    /// The largest latency.
    pub(crate) fn slowest(&self) -> Duration {
        let slowest = self.took.iter().filter_map(|took| lock(took).iter().max().copied());
        Duration::from_micros(slowest.max().unwrap_or(0))
    }
}

/// A client's request.
pub(crate) fn request(path: &str, caller: usize) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: gateway.test\r\nX-Caller: {caller}\r\n\r\n")
}

/// Whether the store decided on the `open` limit: then there are numbers to advertise.
pub(crate) fn was_decided_by_redis(reply: &Response) -> bool {
    reply.header("x-ratelimit-limit").is_some()
}

/// A panic of another thread is reported by that thread.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
