use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tidegate::clock::instant;

use crate::{
    client::{Client, get},
    gateway::Gateway,
    wait::{eventually, pause},
};

/// How long a request may wait for Redis.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(150);

/// Above what a timeout promises, for a machine that is busy with other tests.
const GRACE: Duration = Duration::from_millis(1_500);

/// What every caller may have of `/few` together, in an hour.
pub(crate) const FEW: u64 = 800;

/// Between two requests of a client.
const PACE: Duration = Duration::from_millis(4);

/// Each client asks one of these all the time. `/few` is asked by two at each gateway.
const PATHS: [&str; 5] = ["/local", "/open", "/reserved", "/few", "/few"];

/// Requests that a storm waits for, before, while and after it.
const SOME: u64 = 500;

/// What a client may meet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Calm,
    Down,
    After,
}

/// Two gateways under load.
pub(crate) struct Storm {
    gateways: [Gateway; 2],
    phase: AtomicUsize,
    stop: AtomicBool,
    sent: AtomicU64,
    admitted: AtomicU64,
    /// Answers that Redis is to blame for: anything but 200 and 429, and none at all.
    failed: Mutex<Vec<String>>,
    /// Microseconds, one list a phase.
    took: [Mutex<Vec<u64>>; 3],
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    pub(crate) failed: usize,
    pub(crate) calm_p99: Duration,
    pub(crate) down_p99: Duration,
    pub(crate) slowest: Duration,
    /// What passed beyond the quota of `/few`.
    pub(crate) over: u64,
    /// From the end of the fault until every worker shares its limits again.
    pub(crate) recovered: Duration,
}

impl Storm {
    /// Two gateways with this `store.redis` section (without its braces).
    pub(crate) fn over(redis: &str) -> Self {
        let yaml = format!(
            "store: {{redis: {{{redis}, connect_timeout: 300ms, response_timeout: 150ms}}}}
upstreams: {{hello: {{respond: {{body: hello}}}}}}
limits:
  local: {{quota: 50000000, window: 24h, resolution: 1, key: []}}
  open: {{quota: 50000000, window: 24h, resolution: 1, key: [], on_failure: open}}
  reserved: {{quota: 50000000, window: 24h, resolution: 1, key: [], reserve: auto}}
  few: {{quota: {FEW}, window: 24h, resolution: 1, key: []}}
routes:
  - {{name: local, match: {{path: /local}}, upstream: hello, limits: [local]}}
  - {{name: open, match: {{path: /open}}, upstream: hello, limits: [open]}}
  - {{name: reserved, match: {{path: /reserved}}, upstream: hello, limits: [reserved]}}
  - {{name: few, match: {{path: /few}}, upstream: hello, limits: [few]}}
"
        );
        let gateways = [Gateway::start(&yaml), Gateway::start(&yaml)];
        eventually("the gateways know of each other", || {
            gateways.iter().all(|gateway| store(gateway)["gateways"] == 2)
        });
        Self {
            gateways,
            phase: AtomicUsize::new(Phase::Calm as usize),
            stop: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            failed: Mutex::default(),
            took: Default::default(),
        }
    }

    /// Runs load while `break_it` and `mend_it` do what they do; some requests pass before, between and
    /// after them.
    pub(crate) fn rages(
        self,
        name: &str,
        break_it: impl FnOnce(&Self),
        mend_it: impl FnOnce(&Self),
    ) -> Figures {
        let recovered = thread::scope(|scope| {
            for gateway in &self.gateways {
                let address = gateway.address();
                for path in PATHS {
                    let storm = &self;
                    scope.spawn(move || storm.client(address, path));
                }
            }
            // Without this a failure here would leave the load running for ever.
            let _stop = StopOnDrop(&self.stop);
            self.goes_on();
            self.phase.store(Phase::Down as usize, Relaxed);
            break_it(&self);
            self.goes_on();
            mend_it(&self);
            let mended = instant();
            self.shares_again();
            let recovered = mended.elapsed();
            self.phase.store(Phase::After as usize, Relaxed);
            self.goes_on();
            let admitted = self.admitted.load(Relaxed);
            eventually("the quota is used up", || {
                self.goes_on();
                admitted.max(FEW) <= self.admitted.load(Relaxed)
            });
            recovered
        });
        let figures = self.figures(recovered);
        tell(name, &figures);
        let failed = self.failed.lock().expect("no client panics with it");
        assert!(failed.is_empty(), "{name}: {:?}", &failed[..failed.len().min(3)]);
        assert!(figures.slowest < RESPONSE_TIMEOUT + GRACE, "{name}: {figures:?}");
        figures
    }

    fn client(&self, address: SocketAddr, path: &str) {
        let mut client = Client::connect(address);
        let mut next = instant();
        while !self.stop.load(Relaxed) {
            let (start, phase): (Instant, _) = (instant(), self.phase.load(Relaxed));
            client.send(format!("GET {path} HTTP/1.1\r\nHost: gateway.test\r\n\r\n"));
            match client.try_reply() {
                Some(reply) if reply.status == 200 || (reply.status == 429 && path == "/few") => {
                    self.admitted
                        .fetch_add(u64::from(reply.status == 200 && path == "/few"), Relaxed);
                }
                Some(reply) => self.fail(format!("{path}: {}: {}", reply.status, reply.text())),
                None => {
                    self.fail(format!("{path}: no answer"));
                    client = Client::connect(address);
                }
            }
            let took = start.elapsed().as_micros() as u64;
            self.took[phase].lock().expect("no client panics with it").push(took);
            self.sent.fetch_add(1, Relaxed);
            next += PACE;
            pause(next.saturating_duration_since(instant()));
        }
    }

    fn fail(&self, what: String) {
        self.failed.lock().expect("no client panics with it").push(what);
    }

    /// Waits until some more requests have been answered.
    pub(crate) fn goes_on(&self) {
        let before = self.sent.load(Relaxed);
        eventually("requests go on", || self.sent.load(Relaxed) >= before + SOME);
    }

    /// Waits until a worker of each gateway has lost the store.
    pub(crate) fn is_noticed(&self) {
        eventually("the loss is noticed", || {
            self.gateways.iter().all(|gateway| store(gateway)["workers_without"] != 0)
        });
    }

    /// Waits until every worker shares its limits again.
    fn shares_again(&self) {
        let start = instant();
        let shares = |gateway: &Gateway| {
            let store = store(gateway);
            store["healthy"] == true && store["workers_without"] == 0
        };
        while !self.gateways.iter().all(shares) {
            assert!(start.elapsed() < Duration::from_secs(30), "not shared again within 30 s");
            pause(Duration::from_millis(20));
        }
    }

    fn figures(&self, recovered: Duration) -> Figures {
        let p99 = |phase: Phase| {
            let mut took = self.took[phase as usize].lock().expect("no client panics with it");
            took.sort_unstable();
            Duration::from_micros(took.get(took.len() * 99 / 100).copied().unwrap_or(0))
        };
        let slowest = self.took.iter().filter_map(|took| {
            took.lock().expect("no client panics with it").iter().max().copied()
        });
        Figures {
            requests: self.sent.load(Relaxed),
            failed: self.failed.lock().expect("no client panics with it").len(),
            calm_p99: p99(Phase::Calm),
            down_p99: p99(Phase::Down),
            slowest: Duration::from_micros(slowest.max().unwrap_or(0)),
            over: self.admitted.load(Relaxed).saturating_sub(FEW),
            recovered,
        }
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What the gateway says of its store.
pub(crate) fn store(gateway: &Gateway) -> serde_json::Value {
    let reply = get(gateway.admin(), "/readyz", "Connection: close\r\n");
    assert_eq!(reply.status, 200, "a lost store makes no gateway unready");
    reply.json()["store"].clone()
}

/// One row of the table of storms.
#[expect(clippy::print_stdout, reason = "figures for a person")]
fn tell(name: &str, figures: &Figures) {
    let Figures { requests, failed, calm_p99, down_p99, slowest, over, recovered } = figures;
    let ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
    println!(
        "| {name} | {requests} | {failed} | {:.1} | {:.1} | {:.1} | {over} | {:.1} |",
        ms(calm_p99),
        ms(down_p99),
        ms(slowest),
        recovered.as_secs_f64()
    );
}
