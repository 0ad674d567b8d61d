//! How many requests reach Redis, and what each costs it, beyond what Redis and the gateways' reports take
//! when nobody asks.

use std::{
    cell::Cell,
    fmt::Write as _,
    rc::Rc,
    time::{Duration, Instant},
};

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

const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

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
    /// Callers, each with a quota of his own, who take turns.
    callers: u64,
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
const RUNS: [Run; 15] = [
    set(90_000, None),
    run(OFF, Reserve::Off, 90_000, None),
    run(THOUSANDTH, Reserve::Tokens(QUOTA / 1_000), 90_000, None),
    run("`reserve: 100`, demand 1.3 x the quota", Reserve::Tokens(QUOTA / 1_000), 130_000, None),
    run(AUTO, Reserve::Auto, 90_000, None),
    Run { callers: MANY, ..set(270_000, None) },
    Run { callers: MANY, ..run(OFF, Reserve::Off, 270_000, None) },
    Run { callers: MANY, ..run(THOUSANDTH, Reserve::Tokens(QUOTA / 1_000), 270_000, None) },
    Run { callers: MANY, ..run(AUTO, Reserve::Auto, 270_000, None) },
    set(16_000, Some(1_000)),
    run(OFF, Reserve::Off, 16_000, Some(1_000)),
    run(THOUSANDTH, Reserve::Tokens(QUOTA / 1_000), 16_000, Some(1_000)),
    run(AUTO, Reserve::Auto, 16_000, Some(1_000)),
    run(OFF, Reserve::Off, 1_600, Some(100)),
    run(AUTO, Reserve::Auto, 1_600, Some(100)),
];

const SET: &str = "sorted set";
const OFF: &str = "`reserve: off`";
const THOUSANDTH: &str = "`reserve: 100` (1/1000)";
const AUTO: &str = "`reserve: auto`";

/// Callers, where there are many.
const MANY: u64 = 100;

const fn run(name: &'static str, reserve: Reserve, requests: u64, pace: Option<u32>) -> Run {
    Run { name, way: Way::Limit(reserve), requests, callers: 1, pace }
}

const fn set(requests: u64, pace: Option<u32>) -> Run {
    Run { name: SET, way: Way::SortedSet, requests, callers: 1, pace }
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
    // Each is compared at its own pace, with as many callers.
    let beside = |name, than: &Run| {
        let alike = |run: &Run| run.pace == than.pace && run.callers == than.callers;
        let at = RUNS.iter().position(|run| run.name == name && alike(run));
        at.map(|at| middle(&took[at], |took| took.cpu))
    };
    let ratio = |cpu: f64, other: Option<f64>| {
        other.map_or_else(|| "-".to_owned(), |other| format!("1/{:.1}", other / cpu))
    };
    let mut text = format!(
        "{GATEWAYS} gateways, {CLIENTS} clients at each, a quota of {QUOTA} an hour\n\n\
         | way | callers | requests | a second | admitted | calls a request | us of Redis' CPU a request | of \
         one script a request | of the sorted set |\n|---|---|---|---|---|---|---|---|---|\n"
    );
    for (run, took) in RUNS.iter().zip(&took) {
        let (calls, cpu) = (middle(took, |took| took.calls), middle(took, |took| took.cpu));
        let admitted = took.first().map_or(0, |took| took.admitted);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {admitted} | {:.2}% | {cpu:.2} | {} | {} |",
            run.name,
            run.callers,
            run.requests,
            run.pace.map_or_else(|| "all at once".into(), |pace| (pace * 2).to_string()),
            calls * 100.0,
            ratio(cpu, beside(OFF, run)),
            ratio(cpu, beside(SET, run)),
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
        let doors: Vec<Rc<Store>> = fleet.iter().map(|stores| Rc::new(stores.worker())).collect();
        // Both know of each other after a second.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let meter = Meter::start(redis).await;
        let admitted = drive(run, move |gateway, caller| {
            let (door, limit) = (doors[gateway].clone(), limit.clone());
            async move {
                // As far from one another as hashes.
                let key = Key(u128::from(caller + 7).wrapping_mul(SPREAD));
                let charge = Charge { limit: &limit, key, cost: 1 };
                let now = Clock::system().now();
                door.charge(&[charge], now).await.expect("a decision of Redis").admitted
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
        let meter = Meter::start(redis).await;
        let next = Rc::new(Cell::new(0_u64));
        let admitted = drive(run, move |gateway, caller| {
            let (mut door, sha, next) = (doors[gateway].clone(), sha.clone(), next.clone());
            async move {
                let event = next.replace(next.get() + 1);
                let now = Clock::system().now();
                let seconds = format!("{}.{:03}", now / 1_000, now % 1_000);
                let mut command = redis::cmd("EVALSHA");
                command.arg(sha).arg(1).arg(caller).arg(seconds).arg(3_600).arg(QUOTA).arg(event);
                command.query_async::<i64>(&mut door).await.expect("a reply") == 1
            }
        });
        let admitted = admitted.await;
        (meter.spent(), admitted)
    })
}

/// Sends the run's requests, evenly to all gateways and for all callers; tells how many were admitted.
async fn drive<F: Future<Output = bool> + 'static>(
    run: &Run,
    request: impl Fn(usize, u64) -> F + 'static,
) -> u64 {
    let (request, callers) = (Rc::new(request), run.callers);
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

/// What Redis takes for requests.
struct Meter<'a> {
    redis: &'a RedisServer,
    /// CPU seconds that it takes in a second when nobody asks.
    idle: f64,
    before: f64,
    start: Instant,
}

impl<'a> Meter<'a> {
    /// Looks at the idle server for a while.
    async fn start(redis: &'a RedisServer) -> Self {
        let (before, start) = (cpu(redis), instant());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let idle = (cpu(redis) - before) / start.elapsed().as_secs_f64();
        Self { redis, idle, before: cpu(redis), start: instant() }
    }

    /// CPU seconds since, beyond those of an idle server.
    fn spent(&self) -> f64 {
        cpu(self.redis) - self.before - self.idle * self.start.elapsed().as_secs_f64()
    }
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
