//! Script calls and CPU time of Redis for each request, without the CPU time of an idle Redis and
//! of the gateways' presence reports.

use std::{
    cell::Cell,
    fmt::Write as _,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use testkit::{
    bench::{counter_store, limit, median},
    redis_server::RedisServer,
};
use tidegate::{
    charge::{Charge, Key, LeaseSize, Limit},
    clock::{Clock, instant},
    store::StoreHandle,
};
use tokio::{runtime::Builder, task::LocalSet};
use tokio_util::sync::CancellationToken;

/// The quota of each caller, in an hour.
const QUOTA: u64 = 100_000;

/// An odd multiplier that spreads the numbers of callers over all bits of a key.
const KEY_MULTIPLIER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Concurrent clients of each gateway.
const CLIENTS: usize = 32;

const GATEWAYS: usize = 2;

/// How the requests of a run are decided.
#[derive(Clone, Copy)]
enum Method {
    /// A limit with this `reserve`.
    Limit(LeaseSize),
    /// A sorted set of all events, with one script call per request.
    SortedSet,
}

#[derive(Clone, Copy)]
struct Run {
    name: &'static str,
    method: Method,
    requests: u64,
    /// Callers that take turns, each with its own quota.
    callers: u64,
    /// Requests per second at each gateway; `None` for the maximum.
    rate: Option<u32>,
}

/// The result of a run.
struct Measurement {
    /// Script calls for each request.
    calls: f64,
    /// CPU time of Redis for each request, in us.
    cpu: f64,
    admitted: u64,
}

/// Runs with a rate have few requests, because their duration is requests / rate.
const RUNS: [Run; 15] = [
    sorted_set_run(90_000, None),
    limit_run(OFF, LeaseSize::Off, 90_000, None),
    limit_run(THOUSANDTH, LeaseSize::Units(QUOTA / 1_000), 90_000, None),
    limit_run(
        "`reserve: 100`, demand 1.3 x the quota",
        LeaseSize::Units(QUOTA / 1_000),
        130_000,
        None,
    ),
    limit_run(AUTO, LeaseSize::Auto, 90_000, None),
    Run { callers: MANY, ..sorted_set_run(270_000, None) },
    Run { callers: MANY, ..limit_run(OFF, LeaseSize::Off, 270_000, None) },
    Run { callers: MANY, ..limit_run(THOUSANDTH, LeaseSize::Units(QUOTA / 1_000), 270_000, None) },
    Run { callers: MANY, ..limit_run(AUTO, LeaseSize::Auto, 270_000, None) },
    sorted_set_run(16_000, Some(1_000)),
    limit_run(OFF, LeaseSize::Off, 16_000, Some(1_000)),
    limit_run(THOUSANDTH, LeaseSize::Units(QUOTA / 1_000), 16_000, Some(1_000)),
    limit_run(AUTO, LeaseSize::Auto, 16_000, Some(1_000)),
    limit_run(OFF, LeaseSize::Off, 1_600, Some(100)),
    limit_run(AUTO, LeaseSize::Auto, 1_600, Some(100)),
];

const SORTED_SET: &str = "sorted set";
const OFF: &str = "`reserve: off`";
const THOUSANDTH: &str = "`reserve: 100` (1/1000)";
const AUTO: &str = "`reserve: auto`";

/// Callers of the runs with more than one.
const MANY: u64 = 100;

const fn limit_run(
    name: &'static str,
    lease_size: LeaseSize,
    requests: u64,
    rate: Option<u32>,
) -> Run {
    Run { name, method: Method::Limit(lease_size), requests, callers: 1, rate }
}

const fn sorted_set_run(requests: u64, rate: Option<u32>) -> Run {
    Run { name: SORTED_SET, method: Method::SortedSet, requests, callers: 1, rate }
}

/// Measures all runs alternately, and returns a Markdown table of the medians.
pub(crate) fn table(rounds: usize) -> String {
    let redis = RedisServer::start();
    let mut samples: Vec<Vec<Measurement>> = RUNS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (run, samples) in RUNS.iter().zip(&mut samples) {
            samples.push(measure(&redis, run));
        }
    }
    let median_of = |samples: &[Measurement], of: fn(&Measurement) -> f64| {
        median(samples.iter().map(of).collect())
    };
    // The CPU time of the run `name` with the rate and the number of callers of `other`.
    let baseline = |name, other: &Run| {
        let is_comparable = |run: &Run| run.rate == other.rate && run.callers == other.callers;
        let index = RUNS.iter().position(|run| run.name == name && is_comparable(run));
        index.map(|index| median_of(&samples[index], |sample| sample.cpu))
    };
    let ratio = |cpu: f64, other: Option<f64>| {
        other.map_or_else(|| "-".to_owned(), |other| format!("1/{:.1}", other / cpu))
    };
    let mut text = format!(
        "{GATEWAYS} gateways, {CLIENTS} clients at each, a quota of {QUOTA} an hour\n\n\
         | method | callers | requests | per second | admitted | calls per request | us of Redis' CPU per \
         request | of one script per request | of the sorted set |\n|---|---|---|---|---|---|---|---|---|\n"
    );
    for (run, samples) in RUNS.iter().zip(&samples) {
        let calls = median_of(samples, |sample| sample.calls);
        let cpu = median_of(samples, |sample| sample.cpu);
        let admitted = samples.first().map_or(0, |sample| sample.admitted);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {admitted} | {:.2}% | {cpu:.2} | {} | {} |",
            run.name,
            run.callers,
            run.requests,
            run.rate.map_or_else(|| "maximum".into(), |rate| (rate * 2).to_string()),
            calls * 100.0,
            ratio(cpu, baseline(OFF, run)),
            ratio(cpu, baseline(SORTED_SET, run)),
        );
    }
    text
}

fn measure(redis: &RedisServer, run: &Run) -> Measurement {
    let _: String = redis.command(&["FLUSHALL"]);
    let _: String = redis.command(&["CONFIG", "RESETSTAT"]);
    let (cpu, admitted) = match run.method {
        Method::Limit(lease_size) => run_limit(redis, run, limit(QUOTA, lease_size)),
        Method::SortedSet => run_sorted_set(redis, run),
    };
    let calls = info_field(redis, "commandstats", "cmdstat_evalsha:calls=")
        + info_field(redis, "commandstats", "cmdstat_eval:calls=");
    let requests = run.requests as f64;
    Measurement { calls: calls / requests, cpu: cpu * 1e6 / requests, admitted }
}

/// Returns the CPU seconds of Redis, and the number of admitted requests.
fn run_limit(redis: &RedisServer, run: &Run, limit: Arc<Limit>) -> (f64, u64) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let fleet: Vec<_> = (0..GATEWAYS).map(|_| counter_store(redis)).collect();
        let stop = CancellationToken::new();
        let control: Vec<_> = fleet
            .iter()
            .map(|counter_store| tokio::task::spawn_local(counter_store.clone().run(stop.clone())))
            .collect();
        let handles: Vec<Rc<StoreHandle>> =
            fleet.iter().map(|counter_store| Rc::new(counter_store.worker())).collect();
        // Gateways report to Redis once a second; after that, each has counted both.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let meter = Meter::start(redis).await;
        let admitted = send_requests(run, move |gateway, caller| {
            let (handle, limit) = (handles[gateway].clone(), Arc::clone(&limit));
            async move {
                let key = Key(u128::from(caller + 7).wrapping_mul(KEY_MULTIPLIER));
                let charge = Charge { limit: &limit, key, cost: 1 };
                let now = Clock::system().store_time();
                handle.charge(&[charge], now).await.expect("a decision of Redis").admitted
            }
        });
        let admitted = admitted.await;
        let spent = meter.spent();
        stop.cancel();
        for control in control {
            control.await.expect("the control task");
        }
        (spent, admitted)
    })
}

/// Returns the CPU seconds of Redis, and the number of admitted requests.
fn run_sorted_set(redis: &RedisServer, run: &Run) -> (f64, u64) {
    const SCRIPT: &str = include_str!("../redis_cost/callr.lua");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let client = redis::Client::open(redis.url()).expect("a URL");
        let connect = || async { client.get_multiplexed_async_connection().await };
        let mut connections: Vec<MultiplexedConnection> = Vec::new();
        for _ in 0..GATEWAYS {
            connections.push(connect().await.expect("a connection"));
        }
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        let sha: String = load.query_async(&mut connections[0]).await.expect("a script");
        let meter = Meter::start(redis).await;
        let next = Rc::new(Cell::new(0_u64));
        let admitted = send_requests(run, move |gateway, caller| {
            let connection = connections[gateway].clone();
            let (mut connection, sha, next) = (connection, sha.clone(), next.clone());
            async move {
                let event = next.replace(next.get() + 1);
                let now = Clock::system().store_time().as_unix_ms();
                let seconds = format!("{}.{:03}", now / 1_000, now % 1_000);
                let mut command = redis::cmd("EVALSHA");
                command.arg(sha).arg(1).arg(caller).arg(seconds).arg(3_600).arg(QUOTA).arg(event);
                command.query_async::<i64>(&mut connection).await.expect("a reply") == 1
            }
        });
        let admitted = admitted.await;
        (meter.spent(), admitted)
    })
}

/// Sends the run's requests, spread evenly over all gateways and callers. Returns how many were
/// admitted.
async fn send_requests<F: Future<Output = bool> + 'static>(
    run: &Run,
    request: impl Fn(usize, u64) -> F + 'static,
) -> u64 {
    let (request, callers) = (Rc::new(request), run.callers);
    let requests_per_client = run.requests / (GATEWAYS * CLIENTS) as u64;
    let interval = run.rate.map(|rate| Duration::from_secs(1) * CLIENTS as u32 / rate);
    let clients = (0..GATEWAYS * CLIENTS).map(|client| {
        let request = request.clone();
        tokio::task::spawn_local(async move {
            let mut admitted = 0;
            // Spreads the clients over the interval.
            let shift = interval.unwrap_or_default().mul_f64(client as f64 / 64.0);
            let start = instant() + shift;
            for nth in 0..requests_per_client {
                if let Some(interval) = interval {
                    tokio::time::sleep_until((start + interval * nth as u32).into()).await;
                }
                let caller = (nth + client as u64) % callers;
                admitted += u64::from(request(client % GATEWAYS, caller).await);
                if nth % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            admitted
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut admitted = 0;
    for client in clients {
        admitted += client.await.expect("a client");
    }
    admitted
}

/// Measures the CPU time that Redis takes for requests.
struct Meter<'a> {
    redis: &'a RedisServer,
    /// CPU seconds per second of the idle server.
    idle: f64,
    /// CPU seconds before the requests.
    before: f64,
    start: Instant,
}

impl<'a> Meter<'a> {
    /// Measures the idle server for 2 s.
    async fn start(redis: &'a RedisServer) -> Self {
        let (before, start) = (cpu_seconds(redis), instant());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let idle = (cpu_seconds(redis) - before) / start.elapsed().as_secs_f64();
        Self { redis, idle, before: cpu_seconds(redis), start: instant() }
    }

    /// CPU seconds since the start, without those that an idle server takes.
    fn spent(&self) -> f64 {
        cpu_seconds(self.redis) - self.before - self.idle * self.start.elapsed().as_secs_f64()
    }
}

/// CPU seconds (user and system) of the Redis process since its start.
fn cpu_seconds(redis: &RedisServer) -> f64 {
    info_field(redis, "cpu", "used_cpu_user:") + info_field(redis, "cpu", "used_cpu_sys:")
}

/// A number of `INFO section`; 0 if it is missing.
fn info_field(redis: &RedisServer, section: &str, name: &str) -> f64 {
    let info: String = redis.command(&["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split(',').next()?.trim().parse().ok()).unwrap_or(0.0)
}
