//! The cost of one decision in Redis, from its own statistics: `cargo bench --bench redis_cost`.
//!
//! Measures each algorithm, and for comparison a sorted set as in CALLR's article, at three quotas:
//! a bucket is filled over a window, kept full for a while, and left alone until all of it expires
//! at once. Then measures a charge and a refund of a concurrency limit, while other requests hold
//! slots.

use std::hint::black_box;

use testkit::{
    redis_server::RedisServer,
    scripts::{ADJUST, Cost, ScriptCaller},
};
use tidegate::limit::{Algorithm, Millis, Quota};

/// The time of the first charge, in ms since the Unix epoch.
const NOW: u64 = 1_700_000_000_000;

/// The window, in ms: one charge a ms fills the largest quota.
const WINDOW: u64 = 100_000;

/// Requests while the bucket is full.
const REQUESTS_WHEN_FULL: u64 = 4_000;

/// Slots that other requests hold while the concurrency limit is measured.
const HELD_SLOTS: [u64; 4] = [0, 100, 1_000, 10_000];

/// The lease of a concurrency slot, in ms.
const LEASE: u64 = 30_000;

/// Requests of the concurrency limit that are measured.
const CONCURRENT_REQUESTS: u64 = 2_000;

/// How many of them are in flight at once.
const IN_FLIGHT: u64 = 20;

/// The cost of one algorithm.
struct Row {
    name: &'static str,
    /// Time of a call while the bucket is filled, in us.
    filling: f64,
    /// Time of a call while the bucket is full, in us.
    full: f64,
    /// Time of the call that expires all charges at once, in us.
    burst: u64,
    /// Memory of the full bucket, in bytes.
    bytes: u64,
}

fn per_call(cost: Cost) -> f64 {
    cost.micros as f64 / cost.calls.max(1) as f64
}

/// Measures `charge`, which makes a charge for each (time in ms, event number).
fn measure(
    name: &'static str,
    caller: &mut ScriptCaller,
    quota: u64,
    charge: impl Fn(&mut ScriptCaller, &[(u64, u64)]),
) -> Row {
    let interval = WINDOW / quota;
    let filling: Vec<_> = (0..quota).map(|n| (NOW + n * interval, n)).collect();
    let filled = caller.cost_of(|caller| charge(caller, &filling));
    let bytes = caller.memory_usage(name);
    // At twice the quota's rate, half of the requests are refused.
    let excess: Vec<_> = (0..REQUESTS_WHEN_FULL)
        .map(|n| (NOW + WINDOW + n * interval.div_ceil(2), quota + n))
        .collect();
    let full = caller.cost_of(|caller| charge(caller, &excess));
    // At this time all charges before the last second have expired.
    let last = excess.last().map_or(NOW, |&(at, _)| at) + WINDOW - 1_000.min(interval * quota / 10);
    let burst = caller.cost_of(|caller| charge(caller, &[(last, quota + REQUESTS_WHEN_FULL)]));
    Row { name, filling: per_call(filled), full: per_call(full), burst: burst.micros, bytes }
}

fn measure_algorithms(redis: &RedisServer, quota: u64) -> Vec<Row> {
    let _: String = redis.command(&["FLUSHALL"]);
    let mut caller = ScriptCaller::for_charges(&redis.url());
    let mut rows = Vec::new();
    let algorithms = [
        Algorithm::SlidingWindow { resolution: 5, strict: false },
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket { max_wait: Millis::from_ms(WINDOW) },
    ];
    for algorithm in algorithms {
        let (name, quota) =
            (algorithm.tag(), Quota::new(quota, Millis::from_ms(WINDOW), algorithm));
        rows.push(measure(name, &mut caller, quota.limit, |caller, charges| {
            let charges: Vec<_> = charges.iter().map(|&(at, _)| (at, 1)).collect();
            black_box(caller.charge(name, &quota, &charges));
        }));
    }
    let mut caller = ScriptCaller::new(&redis.url(), include_str!("callr.lua"));
    rows.push(measure("sorted set", &mut caller, quota, |caller, charges| {
        for &(at, event) in charges {
            let seconds = format!("{}.{:03}", at / 1_000, at % 1_000);
            let window = (WINDOW / 1_000).to_string();
            let event = format!("{seconds}{event:06}");
            black_box(caller.call("sorted set", &[seconds, window, quota.to_string(), event]));
        }
    }));
    rows
}

/// The cost of a concurrency limit while other requests hold slots.
struct ConcurrencyRow {
    held: u64,
    /// Time of a charge, in us.
    charge: f64,
    /// Time of a refund, in us.
    refund: f64,
    /// Memory of the record, in bytes.
    bytes: u64,
}

fn measure_concurrency(redis: &RedisServer, held: u64) -> ConcurrencyRow {
    let _: String = redis.command(&["FLUSHALL"]);
    let (key, quota) =
        ("slots", Quota::new(100_000, Millis::from_ms(LEASE), Algorithm::Concurrency));
    let mut charges = ScriptCaller::for_charges(&redis.url());
    let mut refunds = ScriptCaller::new(&redis.url(), ADJUST);
    // Leases are renewed after a third of their duration, so their ages are spread over a third.
    let spread = LEASE / 3;
    let taken: Vec<_> = (0..held).map(|n| (NOW + n * spread / held.max(1), 1)).collect();
    charges.charge(key, &quota, &taken);
    let mut now = NOW + spread;
    let (mut charge, mut refund) = (Cost::default(), Cost::default());
    for _ in 0..CONCURRENT_REQUESTS / IN_FLIGHT {
        let batch: Vec<_> = (0..IN_FLIGHT).map(|n| (now + n, 1)).collect();
        charge += charges.cost_of(|caller| {
            caller.charge(key, &quota, &batch);
        });
        now += IN_FLIGHT;
        refund += refunds.cost_of(|caller| {
            caller.refund(key, &quota, now, &batch);
        });
        now += IN_FLIGHT;
    }
    let bytes = charges.memory_usage(key);
    ConcurrencyRow { held, charge: per_call(charge), refund: per_call(refund), bytes }
}

#[expect(clippy::print_stdout, reason = "the tables are the result")]
fn main() {
    // `cargo test` runs it without `--bench`: one small quota checks that it works.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let quotas: &[u64] = if is_bench { &[100, 10_000, 100_000] } else { &[100] };
    let redis = RedisServer::start();
    println!(
        "| quota | algorithm | us per call, filling | us per call, full | us, all expires | bytes per key |"
    );
    println!("|---|---|---|---|---|---|");
    for &quota in quotas {
        for Row { name, filling, full, burst, bytes } in measure_algorithms(&redis, quota) {
            println!("| {quota} | {name} | {filling:.1} | {full:.1} | {burst} | {bytes} |");
        }
    }
    println!();
    println!("| slots held | us per charge | us per refund | bytes per key |");
    println!("|---|---|---|---|");
    for held in HELD_SLOTS {
        let ConcurrencyRow { held, charge, refund, bytes } = measure_concurrency(&redis, held);
        println!("| {held} | {charge:.1} | {refund:.1} | {bytes} |");
    }
}
