//! Two gateways under load while a fault is injected and repaired.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    redis_server::RedisServer,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::instant;

use crate::{
    load::{CALLERS, PATHS, Phase, StormLoad, lock, request, was_decided_by_redis},
    report::{DataLoss, Figures},
};

/// Maximum latency: the response timeout of 150 ms, plus slack for a busy machine.
pub(crate) const MAX_LATENCY: Duration = Duration::from_millis(1_650);

/// The shared daily quota of `/small_quota`.
pub(crate) const SMALL_QUOTA: u64 = 1_500;

/// One storm at a time: they would distort each other's figures.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A limit for each failure policy, with leases, and with a quota that is soon used up.
const RULES: &str = "
store: {redis: { {topology}, connect_timeout: 300ms, response_timeout: 150ms }}
upstreams: {hello: {respond: {body: hello}}}
limits:
  local: {quota: 50000000, window: 24h, resolution: 1, key: ['header:x-caller']}
  open: {quota: 50000000, window: 24h, resolution: 1, key: ['header:x-caller'], on_failure: open}
  reserved: {quota: 50000000, window: 24h, resolution: 1, key: [], reserve: auto}
  small_quota: {quota: {small_quota}, window: 24h, resolution: 1, key: []}
routes:
  - {name: local, match: {path: /local}, upstream: hello, limits: [local]}
  - {name: open, match: {path: /open}, upstream: hello, limits: [open]}
  - {name: reserved, match: {path: /reserved}, upstream: hello, limits: [reserved]}
  - {name: both, match: {path: /both}, upstream: hello, limits: [local, reserved]}
  - {name: small_quota, match: {path: /small_quota}, upstream: hello, limits: [small_quota]}
";

/// Two gateways under load.
pub(crate) struct Storm {
    gateways: [Gateway; 2],
    load: StormLoad,
    /// Decisions by `on_failure` before the fault.
    fallbacks: [u64; 2],
    /// The index of the server that stores each caller.
    server_of_caller: Vec<usize>,
    _exclusive: MutexGuard<'static, ()>,
}

impl Storm {
    /// Starts two gateways; `topology` are the keys of `store.redis` that name its servers. If
    /// there are several `servers`, each must have some callers.
    pub(crate) fn start(topology: &str, servers: &[&RedisServer]) -> Self {
        let exclusive = lock(&ONE_AT_A_TIME);
        let yaml = fill(RULES, [("topology", topology), ("small_quota", &SMALL_QUOTA.to_string())]);
        let gateways = [Gateway::start(&yaml), Gateway::start(&yaml)];
        eventually("both gateways are registered", || {
            gateways.iter().all(|gateway| store(gateway)["gateways"] == 2)
        });
        let (load, fallbacks) = (StormLoad::default(), [0; 2]);
        let storm =
            Self { gateways, load, fallbacks, server_of_caller: Vec::new(), _exclusive: exclusive };
        let server_of_caller = storm.assign_callers(servers);
        for server in 0..servers.len() {
            assert!(
                server_of_caller.iter().filter(|&&of_caller| of_caller == server).count() > 2,
                "{server_of_caller:?}"
            );
        }
        Self { fallbacks: storm.count_fallbacks(), server_of_caller, ..storm }
    }

    /// Makes both gateways charge each caller in Redis. Returns the index of each caller's server.
    fn assign_callers(&self, servers: &[&RedisServer]) -> Vec<usize> {
        let key_counts = || servers.iter().map(|s| keys(s, "*:open:*").len()).collect::<Vec<_>>();
        let mut before = key_counts();
        let server_of_caller = (0..CALLERS).filter_map(|caller| {
            for gateway in &self.gateways {
                let mut client = Client::connect(gateway.address());
                eventually("Redis decides", || {
                    was_decided_by_redis(&client.send(request("/open", caller)).read_response())
                });
            }
            let now = key_counts();
            let server = (0..servers.len()).find(|&at| now[at] != before[at]);
            before = now;
            server
        });
        server_of_caller.collect()
    }

    /// The callers on a server.
    pub(crate) fn callers_of(&self, server: usize) -> BTreeSet<usize> {
        let server_of_caller = self.server_of_caller.iter().enumerate();
        server_of_caller
            .filter(|(_, of_caller)| **of_caller == server)
            .map(|(caller, _)| caller)
            .collect()
    }

    /// Runs a load while `inject` causes the fault and `repair` ends it, with some requests before,
    /// between and after; asserts the documented bounds.
    pub(crate) fn run(
        self,
        name: &str,
        data_loss: DataLoss,
        inject: impl FnOnce(&Self),
        repair: impl FnOnce(&Self),
    ) -> Figures {
        let (recovered, admitted) = thread::scope(|scope| {
            for gateway in &self.gateways {
                let (load, address) = (&self.load, gateway.address());
                for path in PATHS {
                    scope.spawn(move || load.client(address, path));
                }
            }
            // Stops the load even if `inject` or `repair` panics.
            let _stop = StopOnDrop(&self.load);
            self.wait_for_traffic();
            let before = self.load.admitted();
            self.load.enter(Phase::During);
            inject(&self);
            let detected = self.load.admitted();
            self.wait_for_traffic();
            let repaired_at = instant();
            repair(&self);
            self.wait_recovered();
            let recovered = repaired_at.elapsed();
            self.wait_settled();
            let settled = self.load.admitted();
            self.load.enter(Phase::After);
            self.load.wait_exhausted();
            (recovered, [before, detected, settled, self.load.admitted()])
        });
        let figures = self.figures(recovered, admitted);
        figures.print_row(name);
        figures.assert_documented_bounds(name, data_loss);
        figures
    }

    /// Waits for more requests.
    pub(crate) fn wait_for_traffic(&self) {
        self.load.wait_for_traffic();
    }

    /// Waits until each gateway has decided something without Redis.
    pub(crate) fn wait_detected(&self) {
        eventually("the outage is detected", || {
            let fallbacks = self.count_fallbacks();
            fallbacks.iter().zip(&self.fallbacks).all(|(now, before)| now > before)
        });
    }

    /// Waits until every worker uses Redis again.
    fn wait_recovered(&self) {
        let has_recovered = |gateway: &Gateway| {
            let store = store(gateway);
            store["healthy"] == true
                && store["workers_without_redis"] == 0
                && store["lost_shards"].as_array().is_some_and(Vec::is_empty)
        };
        eventually("every worker uses Redis again", || self.gateways.iter().all(has_recovered));
    }

    /// Waits until no more fallbacks occur.
    fn wait_settled(&self) {
        let _print_lost = PrintLostOnPanic(self);
        eventually("Redis decides everything", || {
            let fallbacks = self.count_fallbacks();
            self.wait_for_traffic();
            fallbacks == self.count_fallbacks()
        });
    }

    fn metric(&self, prefix: &str) -> [u64; 2] {
        self.gateways.each_ref().map(|gateway| gateway.metric(prefix))
    }

    fn count_fallbacks(&self) -> [u64; 2] {
        self.metric("tidegate_store_fallbacks_total")
    }

    fn figures(&self, recovered: Duration, admitted: [u64; 4]) -> Figures {
        let sum = |prefix: &str| self.metric(prefix).iter().sum::<u64>();
        let failures = |kind: &str| sum(&format!("tidegate_store_failures_total{{kind=\"{kind}\""));
        Figures {
            requests: self.load.sent(),
            failed: self.load.failures(),
            p99_before: self.load.p99(Phase::Before),
            p99_during: self.load.p99(Phase::During),
            slowest: self.load.slowest(),
            admitted,
            timeouts: failures("timeout"),
            broken: failures("io") + failures("reply"),
            refused: failures("server"),
            fallbacks: sum("tidegate_store_fallbacks_total") - self.fallbacks.iter().sum::<u64>(),
            without_redis: self.load.without_redis(),
            recovered,
        }
    }
}

/// Prints, if the test fails, what each lost server says of itself: why it is lost is not in the
/// metrics.
struct PrintLostOnPanic<'a>(&'a Storm);

impl Drop for PrintLostOnPanic<'_> {
    #[expect(clippy::print_stdout, reason = "the output of a failed test")]
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for gateway in &self.0.gateways {
            let store = store(gateway);
            println!("{store}");
            let lost = store["lost_shards"].as_array().cloned().unwrap_or_default();
            for address in lost.iter().filter_map(serde_json::Value::as_str) {
                let client = redis::Client::open(format!("redis://{address}"));
                let connection = client.and_then(|client| client.get_connection());
                let Ok(mut connection) = connection else {
                    println!("{address}: no connection");
                    continue;
                };
                for command in ["ROLE", "CLUSTER INFO", "CLUSTER NODES", "SET probe 1", "INFO"] {
                    let mut words = command.split(' ');
                    let mut command = redis::cmd(words.next().unwrap_or_default());
                    words.for_each(|word| _ = command.arg(word));
                    let reply = command.query::<redis::Value>(&mut connection);
                    println!("{address}: {reply:?}");
                }
            }
        }
    }
}

struct StopOnDrop<'a>(&'a StormLoad);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

/// The state of the gateway's store in `/readyz`.
pub(crate) fn store(gateway: &Gateway) -> serde_json::Value {
    let response = get(gateway.admin(), "/readyz", "Connection: close\r\n");
    assert_eq!(response.status, 200, "a lost store must not make a gateway unready");
    response.json()["store"].clone()
}

/// The names of a server's keys.
pub(crate) fn keys(server: &RedisServer, pattern: &str) -> Vec<String> {
    server.command(&["KEYS", pattern])
}

/// True if the server is a live primary.
pub(crate) fn is_primary(server: &RedisServer) -> bool {
    let info = || server.command::<String>(&["INFO", "replication"]);
    server.try_command(&["PING"]).is_ok() && info().contains("role:master")
}
