//! How many requests reach Redis, and what each costs it.

use std::{cell::Cell, fmt::Write as _, rc::Rc, time::Duration};

use redis::aio::MultiplexedConnection;
use tidegate::{
    clock::{Clock, instant},
    limit::{Charge, Key, Limit, Reserve},
    store::Store,
};
use tokio::{runtime::Builder, task::LocalSet};
use tokio_util::sync::CancellationToken;

use crate::{
    redis_server::RedisServer,
    support::{limit, median, stores},
};

const QUOTA: u32 = 100_000;

/// Requests that are in flight at once, at each gateway.
const CLIENTS: usize = 32;

const GATEWAYS: usize = 2;

/// How requests are decided.
#[derive(Clone, Copy)]
enum Way {
    /// By a limit that takes so many tokens at a time.
    Limit(Reserve),
    /// By a sorted set of every event, one script a request.
    SortedSet,
}

/// What a run is made of.
#[derive(Clone, Copy)]
struct Run {
    name: &'static str,
    way: Way,
    requests: u64,
    /// Requests a second at each gateway; `None`: as many as can be.
    pace: Option<u32>,
}

/// What a run took.
struct Took {
    /// Script calls a request.
    calls: f64,
    /// CPU time of Redis a request, in us.
    cpu: f64,
    admitted: u64,
}

/// Paced runs are short: their length is their requests by their pace.
const RUNS: [Run; 7] = [
    Run { name: "sorted set", way: Way::SortedSet, requests: 90_000, pace: None },
    run("`reserve: off`", Reserve::Off, 90_000, None),
    run("`reserve: 100` (1/1000)", Reserve::Tokens(QUOTA / 1_000), 90_000, None),
    run("`reserve: 100`, demand 1.3 x the quota", Reserve::Tokens(QUOTA / 1_000), 130_000, None),
    run("`reserve: auto`", Reserve::Auto, 90_000, None),
    run("`reserve: auto`, 2,000 a second", Reserve::Auto, 16_000, Some(1_000)),
    run("`reserve: auto`, 200 a second", Reserve::Auto, 1_600, Some(100)),
];

const fn run(name: &'static str, reserve: Reserve, requests: u64, pace: Option<u32>) -> Run {
    Run { name, way: Way::Limit(reserve), requests, pace }
}

/// Every run, in turns.
pub(crate) fn table(rounds: usize) -> String {
    let redis = RedisServer::start();
    let mut took: Vec<Vec<Took>> = RUNS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (run, took) in RUNS.iter().zip(&mut took) {
            took.push(measure(&redis, run));
        }
    }
    let middle = |took: &[Took], of: fn(&Took) -> f64| median(took.iter().map(of).collect());
    let [set, single] = [0, 1].map(|at| middle(&took[at], |took| took.cpu));
    let mut text = format!(
        "{GATEWAYS} gateways, {CLIENTS} requests in flight at each, one key, a quota of {QUOTA} an hour\n\n\
         | way | requests | admitted | calls a request | us of Redis' CPU a request | of one script a \
         request | of the sorted set |\n|---|---|---|---|---|---|---|\n"
    );
    for (run, took) in RUNS.iter().zip(&took) {
        let (calls, cpu) = (middle(took, |took| took.calls), middle(took, |took| took.cpu));
        let admitted = took.first().map_or(0, |took| took.admitted);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {admitted} | {:.2}% | {cpu:.3} | 1/{:.1} | 1/{:.1} |",
            run.name,
            run.requests,
            calls * 100.0,
            single / cpu,
            set / cpu
        );
    }
    text
}

fn measure(redis: &RedisServer, run: &Run) -> Took {
    let _: String = redis.command(&["FLUSHALL"]);
    let _: String = redis.command(&["CONFIG", "RESETSTAT"]);
    let (cpu, admitted) = match run.way {
        Way::Limit(reserve) => by_limit(redis, run, limit(QUOTA, reserve)),
        Way::SortedSet => by_sorted_set(redis, run),
    };
    let calls = field(redis, "commandstats", "cmdstat_evalsha:calls=")
        + field(redis, "commandstats", "cmdstat_eval:calls=");
    let requests = run.requests as f64;
    Took { calls: calls / requests, cpu: cpu * 1e6 / requests, admitted }
}

fn by_limit(redis: &RedisServer, run: &Run, limit: Limit) -> (f64, u64) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limit = Rc::new(limit);
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let fleet: Vec<_> = (0..GATEWAYS).map(|_| stores(redis)).collect();
        let stop = CancellationToken::new();
        let control: Vec<_> = fleet
            .iter()
            .map(|stores| tokio::task::spawn_local(stores.clone().run(stop.clone())))
            .collect();
        for stores in &fleet {
            stores.prepared().await;
        }
        let doors: Vec<Rc<Store>> = fleet.iter().map(|stores| Rc::new(stores.worker())).collect();
        // Both know of each other after a second.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let before = cpu(redis);
        let admitted = drive(run, move |gateway| {
            let (door, limit) = (doors[gateway].clone(), limit.clone());
            async move {
                let charge = Charge { limit: &limit, key: Key(7), cost: 1 };
                let now = Clock::system().now();
                door.charge(&[charge], now).await.expect("a decision of Redis").admitted
            }
        });
        let admitted = admitted.await;
        let spent = cpu(redis) - before;
        stop.cancel();
        for control in control {
            control.await.expect("the control task");
        }
        (spent, admitted)
    })
}

fn by_sorted_set(redis: &RedisServer, run: &Run) -> (f64, u64) {
    const SCRIPT: &str = include_str!("../redis_cost/callr.lua");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let client = redis::Client::open(redis.url()).expect("a URL");
        let connect = || async { client.get_multiplexed_async_connection().await };
        let mut doors: Vec<MultiplexedConnection> = Vec::new();
        for _ in 0..GATEWAYS {
            doors.push(connect().await.expect("a connection"));
        }
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        let sha: String = load.query_async(&mut doors[0]).await.expect("a script");
        let before = cpu(redis);
        let next = Rc::new(Cell::new(0_u64));
        let admitted = drive(run, move |gateway| {
            let (mut door, sha, next) = (doors[gateway].clone(), sha.clone(), next.clone());
            async move {
                let event = next.replace(next.get() + 1);
                let now = Clock::system().now();
                let seconds = format!("{}.{:03}", now / 1_000, now % 1_000);
                let mut command = redis::cmd("EVALSHA");
                command.arg(sha).arg(1).arg("set").arg(seconds).arg(3_600).arg(QUOTA).arg(event);
                command.query_async::<i64>(&mut door).await.expect("a reply") == 1
            }
        });
        let admitted = admitted.await;
        (cpu(redis) - before, admitted)
    })
}

/// Sends the run's requests, evenly to all gateways; tells how many were admitted.
async fn drive<F: Future<Output = bool> + 'static>(
    run: &Run,
    request: impl Fn(usize) -> F + 'static,
) -> u64 {
    let request = Rc::new(request);
    let each = run.requests / (GATEWAYS * CLIENTS) as u64;
    let between = run.pace.map(|pace| Duration::from_secs(1) * CLIENTS as u32 / pace);
    let clients = (0..GATEWAYS * CLIENTS).map(|client| {
        let request = request.clone();
        tokio::task::spawn_local(async move {
            let mut admitted = 0;
            // Not all at once.
            let shift = between.unwrap_or_default().mul_f64(client as f64 / 64.0);
            let start = instant() + shift;
            for nth in 0..each {
                if let Some(between) = between {
                    tokio::time::sleep_until((start + between * nth as u32).into()).await;
                }
                admitted += u64::from(request(client % GATEWAYS).await);
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

/// CPU seconds that Redis has taken, its whole process.
fn cpu(redis: &RedisServer) -> f64 {
    field(redis, "cpu", "used_cpu_user:") + field(redis, "cpu", "used_cpu_sys:")
}

/// A number of `INFO section`; 0 where it is not there.
fn field(redis: &RedisServer, section: &str, name: &str) -> f64 {
    let told: String = redis.command(&["INFO", section]);
    let value = told.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split(',').next()?.trim().parse().ok()).unwrap_or(0.0)
}
