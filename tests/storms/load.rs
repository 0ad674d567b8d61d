use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tidegate::clock::instant;

use crate::{
    client::{Client, Reply},
    wait::{eventually, pause},
};

/// Callers of the limits that are counted by caller: enough for every server to have some.
pub(crate) const CALLERS: usize = 36;

/// Between two requests of a client.
const PACE: Duration = Duration::from_millis(10);

/// Requests that a storm waits for, before, while and after a fault.
const SOME: u64 = 400;

/// So many refusals of `/few` in a row say that its quota is used up.
const USED_UP: u64 = 200;

/// Each client asks one of these all the time. `/few` is asked by two at each gateway.
pub(crate) const PATHS: [&str; 6] = ["/local", "/open", "/reserved", "/both", "/few", "/few"];

/// What a client may meet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Calm,
    Down,
    After,
}

/// What clients see.
#[derive(Default)]
pub(crate) struct Load {
    phase: AtomicUsize,
    pub(crate) stop: AtomicBool,
    sent: AtomicU64,
    admitted: AtomicU64,
    refused_in_a_row: AtomicU64,
    /// Answers that Redis is to blame for: anything but 200 and 429, and none at all.
    failed: Mutex<Vec<String>>,
    /// Callers of `/open` that were let in unasked.
    unasked: Mutex<BTreeSet<usize>>,
    /// Microseconds, one list a phase.
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
            if let Some(reply) = client.try_reply() {
                self.hear(path, caller, &reply);
            } else {
                self.fail(format!("{path}: no answer"));
                client = Client::connect(address);
            }
            lock(&self.took[phase]).push(start.elapsed().as_micros() as u64);
            self.sent.fetch_add(1, Relaxed);
            // What is left of the quota is used up as fast as it goes.
            if path == "/few" && phase == Phase::After as usize {
                continue;
            }
            // A client that was kept waiting does not catch up: that would be another load.
            next = instant().max(next + PACE);
            pause(next.saturating_duration_since(instant()));
        }
    }

    fn hear(&self, path: &str, caller: usize, reply: &Reply) {
        match (path, reply.status) {
            ("/few", 200) => {
                self.admitted.fetch_add(1, Relaxed);
                self.refused_in_a_row.store(0, Relaxed);
            }
            ("/few", 429) => {
                self.refused_in_a_row.fetch_add(1, Relaxed);
            }
            ("/open", 200) if !was_asked(reply) => {
                lock(&self.unasked).insert(caller);
            }
            (_, 200) => {}
            (_, status) => self.fail(format!("{path}: {status}: {}", reply.text())),
        }
    }

    fn fail(&self, what: String) {
        lock(&self.failed).push(what);
    }

    /// What follows is another phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as usize, Relaxed);
    }

    /// Waits until some more requests have been answered.
    pub(crate) fn goes_on(&self) {
        let before = self.sent();
        eventually("requests go on", || self.sent() >= before + SOME);
    }

    /// Waits until `/few` admits no more.
    pub(crate) fn is_used_up(&self) {
        let refused = || self.refused_in_a_row.load(Relaxed);
        eventually("the quota is used up", || refused() >= USED_UP);
    }

    /// Requests that were answered, or not.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// How many of `/few` were let in.
    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Relaxed)
    }

    /// What clients may not meet.
    pub(crate) fn failures(&self) -> Vec<String> {
        lock(&self.failed).clone()
    }

    /// Callers of `/open` that were let in unasked so far.
    pub(crate) fn unasked(&self) -> BTreeSet<usize> {
        lock(&self.unasked).clone()
    }

    /// All but one in a hundred of the phase took no longer.
    pub(crate) fn p99(&self, phase: Phase) -> Duration {
        let mut took = lock(&self.took[phase as usize]);
        took.sort_unstable();
        Duration::from_micros(took.get(took.len() * 99 / 100).copied().unwrap_or(0))
    }

    /// None took longer.
    pub(crate) fn slowest(&self) -> Duration {
        let slowest = self.took.iter().filter_map(|took| lock(took).iter().max().copied());
        Duration::from_micros(slowest.max().unwrap_or(0))
    }
}

/// What a client says.
pub(crate) fn request(path: &str, caller: usize) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: gateway.test\r\nX-Caller: {caller}\r\n\r\n")
}

/// Whether the store decided on a limit that is `open` without it: then something is known to tell.
pub(crate) fn was_asked(reply: &Reply) -> bool {
    reply.header("x-ratelimit-limit").is_some()
}

/// A failed test's panic elsewhere is told there.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
