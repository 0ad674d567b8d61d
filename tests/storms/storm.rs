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
    wait::{eventually, sleep},
};
use tidegate::clock::instant;

use crate::{
    load::{CALLERS, Load, PATHS, Phase, lock, request, was_decided_by_redis},
    report::{DataLoss, Figures},
};

/// The longest permitted request: the response timeout of 150 ms, plus slack for a
/// busy machine.
pub(crate) const SLOWEST: Duration = Duration::from_millis(1_650);

/// The shared daily quota of `/few`.
pub(crate) const FEW: u64 = 1_500;

/// The longest time until every worker shares its limits again.
const RECOVERY: Duration = Duration::from_secs(30);

/// One storm at a time: they would distort each other's figures.
static WEATHER: Mutex<()> = Mutex::new(());

/// Two gateways under load.
pub(crate) struct Storm {
    gateways: [Gateway; 2],
    load: Load,
    /// Decisions by `on_failure` before the fault.
    fallbacks: [u64; 2],
    /// The server of each caller.
    homes: Vec<usize>,
    _alone: MutexGuard<'static, ()>,
}

impl Storm {
    /// Two gateways with this `store.redis` section (without its braces). Where it is over several
    /// `servers`, each must have some callers.
    pub(crate) fn over(redis: &str, servers: &[&RedisServer]) -> Self {
        let alone = lock(&WEATHER);
        let yaml = format!(
            "store: {{redis: {{{redis}, connect_timeout: 300ms, response_timeout: 150ms}}}}
upstreams: {{hello: {{respond: {{body: hello}}}}}}
limits:
  local: {{quota: 50000000, window: 24h, resolution: 1, key: ['header:x-caller']}}
  open: {{quota: 50000000, window: 24h, resolution: 1, key: ['header:x-caller'], on_failure: open}}
  reserved: {{quota: 50000000, window: 24h, resolution: 1, key: [], reserve: auto}}
  few: {{quota: {FEW}, window: 24h, resolution: 1, key: []}}
routes:
  - {{name: local, match: {{path: /local}}, upstream: hello, limits: [local]}}
  - {{name: open, match: {{path: /open}}, upstream: hello, limits: [open]}}
  - {{name: reserved, match: {{path: /reserved}}, upstream: hello, limits: [reserved]}}
  - {{name: both, match: {{path: /both}}, upstream: hello, limits: [local, reserved]}}
  - {{name: few, match: {{path: /few}}, upstream: hello, limits: [few]}}
"
        );
        let gateways = [Gateway::start(&yaml), Gateway::start(&yaml)];
        eventually("the gateways know of each other", || {
            gateways.iter().all(|gateway| store(gateway)["gateways"] == 2)
        });
        let (load, fallbacks) = (Load::default(), [0; 2]);
        let storm = Self { gateways, load, fallbacks, homes: Vec::new(), _alone: alone };
        let homes = storm.settle(servers);
        for server in 0..servers.len() {
            assert!(homes.iter().filter(|&&home| home == server).count() > 2, "{homes:?}");
        }
        Self { fallbacks: storm.now_fallen_back(), homes, ..storm }
    }

    /// Has each caller counted in Redis by both gateways; the server of each.
    fn settle(&self, servers: &[&RedisServer]) -> Vec<usize> {
        let known = || servers.iter().map(|s| keys(s, "*:open:*").len()).collect::<Vec<_>>();
        let mut before = known();
        let homes = (0..CALLERS).filter_map(|caller| {
            for gateway in &self.gateways {
                let mut client = Client::connect(gateway.address());
                eventually("every server is asked", || {
                    was_decided_by_redis(&client.send(request("/open", caller)).read_response())
                });
            }
            let now = known();
            let home = (0..servers.len()).find(|&at| now[at] != before[at]);
            before = now;
            home
        });
        homes.collect()
    }

    /// The callers on a server.
    pub(crate) fn callers_of(&self, server: usize) -> BTreeSet<usize> {
        let homes = self.homes.iter().enumerate();
        homes.filter(|(_, home)| **home == server).map(|(caller, _)| caller).collect()
    }

    /// Runs load while `break_it` and `mend_it` run; some requests pass before, between and
    /// after them.
    pub(crate) fn rages(
        self,
        name: &str,
        forgets: DataLoss,
        break_it: impl FnOnce(&Self),
        mend_it: impl FnOnce(&Self),
    ) -> Figures {
        let (recovered, admitted, fallen) = thread::scope(|scope| {
            for gateway in &self.gateways {
                let (load, address) = (&self.load, gateway.address());
                for path in PATHS {
                    scope.spawn(move || load.client(address, path));
                }
            }
            // Stops the load if `act` panics.
            let _stop = StopOnDrop(&self.load);
            self.goes_on();
            let before = self.load.admitted();
            self.load.enter(Phase::Down);
            break_it(&self);
            let noticed = self.load.admitted();
            self.goes_on();
            let mended = instant();
            mend_it(&self);
            self.shares_again();
            let recovered = mended.elapsed();
            self.has_told_all();
            let fallen: u64 = self.now_fallen_back().iter().sum();
            let merged = self.load.admitted();
            self.load.enter(Phase::After);
            self.load.is_used_up();
            (recovered, [before, noticed, merged, self.load.admitted()], fallen)
        });
        let mut figures = self.figures(recovered, admitted);
        figures.late = self.now_fallen_back().iter().sum::<u64>() - fallen;
        figures.tell(name);
        figures.keep_promises(name, forgets);
        figures
    }

    /// Waits for more responses.
    pub(crate) fn goes_on(&self) {
        self.load.goes_on();
    }

    /// Waits until each gateway has decided something without Redis.
    pub(crate) fn wait_detected(&self) {
        eventually("the loss is noticed", || {
            let fallen = self.now_fallen_back();
            fallen.iter().zip(&self.fallbacks).all(|(now, before)| now > before)
        });
    }

    /// Waits until every worker shares its limits again.
    fn shares_again(&self) {
        let start = instant();
        let shares = |gateway: &Gateway| {
            let store = store(gateway);
            store["healthy"] == true
                && store["workers_without"] == 0
                && store["lost_shards"].as_array().is_some_and(Vec::is_empty)
        };
        while !self.gateways.iter().all(shares) {
            assert!(start.elapsed() < RECOVERY, "not shared again within {RECOVERY:?}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until everything is merged and stays so.
    fn has_told_all(&self) {
        let untold = || self.metric("tidegate_store_unmerged").iter().sum::<u64>();
        eventually("everything is merged", || {
            let (fallen, before) = (self.now_fallen_back(), untold());
            self.goes_on();
            before + untold() == 0 && fallen == self.now_fallen_back()
        });
    }

    fn metric(&self, prefix: &str) -> [u64; 2] {
        self.gateways.each_ref().map(|gateway| gateway.metric(prefix))
    }

    fn now_fallen_back(&self) -> [u64; 2] {
        self.metric("tidegate_store_fallbacks_total")
    }

    fn figures(&self, recovered: Duration, admitted: [u64; 4]) -> Figures {
        let sum = |prefix: &str| self.metric(prefix).iter().sum::<u64>();
        let failures = |kind: &str| sum(&format!("tidegate_store_failures_total{{kind=\"{kind}\""));
        Figures {
            requests: self.load.sent(),
            failed: self.load.failures(),
            calm_p99: self.load.p99(Phase::Calm),
            down_p99: self.load.p99(Phase::Down),
            slowest: self.load.slowest(),
            admitted,
            timeouts: failures("timeout"),
            broken: failures("io") + failures("reply"),
            refused: failures("server"),
            dropped: sum("tidegate_store_merge_drops_total"),
            fallbacks: sum("tidegate_store_fallbacks_total") - self.fallbacks.iter().sum::<u64>(),
            late: 0,
            without_redis: self.load.without_redis(),
            recovered,
        }
    }
}

struct StopOnDrop<'a>(&'a Load);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

/// The gateway's report of its store.
pub(crate) fn store(gateway: &Gateway) -> serde_json::Value {
    let reply = get(gateway.admin(), "/readyz", "Connection: close\r\n");
    assert_eq!(reply.status, 200, "a lost store makes no gateway unready");
    reply.json()["store"].clone()
}

/// The names of a server's keys.
pub(crate) fn keys(server: &RedisServer, pattern: &str) -> Vec<String> {
    server.command(&["KEYS", pattern])
}

/// Whether its role is primary; false if it is dead.
pub(crate) fn is_primary(server: &RedisServer) -> bool {
    let info = || server.command::<String>(&["INFO", "replication"]);
    server.try_command(&["PING"]).is_ok() && info().contains("role:master")
}
