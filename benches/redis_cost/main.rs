//! What one decision costs Redis, by its own count: `cargo bench --bench redis_cost`.
//!
//! Each algorithm, and beside them a sorted set as in CALLR's article, at three quotas: a bucket is
//! filled over a window, kept full for a while, and left alone until all of it expires at once. Then requests
//! in flight, each of them a charge and a refund, beside so many slots that others hold.

use std::hint::black_box;

use tidegate::limit::{Algorithm, Quota};

#[path = "../../tests/support/redis.rs"]
mod redis_server;
#[path = "../../tests/support/scripts.rs"]
mod scripts;

use redis_server::RedisServer;
use scripts::{Caller, Cost};

const NOW: u64 = 1_700_000_000_000;

/// A window in which a charge each ms fills the largest quota.
const WINDOW: u64 = 100_000;

/// How many requests come while the bucket is full.
const CROWD: u64 = 4_000;

/// How many slots others hold while requests in flight are measured.
const HELD: [u64; 4] = [0, 100, 1_000, 10_000];

/// The lease of a slot.
const LEASE: u64 = 30_000;

/// Requests in flight that are measured, and how many of them are in flight together.
const FLIGHTS: (u64, u64) = (2_000, 20);

/// One way of counting, and what it took.
struct Row {
    name: &'static str,
    filling: f64,
    full: f64,
    burst: u64,
    bytes: u64,
}

fn per_call(cost: Cost) -> f64 {
    cost.micros as f64 / cost.calls.max(1) as f64
}

/// `charge` takes a key, a time and an event's number.
fn measure(
    name: &'static str,
    caller: &mut Caller,
    quota: u64,
    charge: impl Fn(&mut Caller, &[(u64, u64)]),
) -> Row {
    let gap = WINDOW / quota;
    let filling: Vec<_> = (0..quota).map(|n| (NOW + n * gap, n)).collect();
    let filled = caller.cost_of(|caller| charge(caller, &filling));
    let bytes = caller.memory(name);
    // Twice the rate that fits: half of it is refused.
    let crowd: Vec<_> =
        (0..CROWD).map(|n| (NOW + WINDOW + n * gap.div_ceil(2), quota + n)).collect();
    let full = caller.cost_of(|caller| charge(caller, &crowd));
    // All that was charged before the last second expires at once.
    let last = crowd.last().map_or(NOW, |&(at, _)| at) + WINDOW - 1_000.min(gap * quota / 10);
    let burst = caller.cost_of(|caller| charge(caller, &[(last, quota + CROWD)]));
    Row { name, filling: per_call(filled), full: per_call(full), burst: burst.micros, bytes }
}

fn rows(redis: &RedisServer, quota: u32) -> Vec<Row> {
    let _: String = redis.command(&["FLUSHALL"]);
    let mut caller = Caller::new(&redis.url());
    let mut rows = Vec::new();
    let shapes = [
        ("sliding_window", Algorithm::SlidingWindow, Quota::new(quota, WINDOW, 5)),
        ("sliding_log", Algorithm::SlidingLog, Quota::new(quota, WINDOW, 1)),
        ("fixed_window", Algorithm::FixedWindow, Quota::new(quota, WINDOW, 1)),
        ("token_bucket", Algorithm::TokenBucket, Quota::new(quota, WINDOW, 1)),
        (
            "leaky_bucket",
            Algorithm::LeakyBucket,
            Quota { max_wait: WINDOW as u32, ..Quota::new(quota, WINDOW, 1) },
        ),
    ];
    for (name, algorithm, quota) in shapes {
        rows.push(measure(name, &mut caller, quota.limit.into(), |caller, charges| {
            let charges: Vec<_> = charges.iter().map(|&(at, _)| (at, 1)).collect();
            black_box(caller.charge(name, algorithm, &quota, &charges));
        }));
    }
    let mut caller = Caller::of(&redis.url(), include_str!("callr.lua"));
    rows.push(measure("sorted set", &mut caller, quota.into(), |caller, charges| {
        for &(at, event) in charges {
            let seconds = format!("{}.{:03}", at / 1_000, at % 1_000);
            let window = (WINDOW / 1_000).to_string();
            let event = format!("{seconds}{event:06}");
            black_box(caller.call("sorted set", &[seconds, window, quota.to_string(), event]));
        }
    }));
    rows
}

/// What a charge and a refund of a slot cost, and what the record takes, while others hold slots.
struct Flight {
    held: u64,
    charge: f64,
    refund: f64,
    bytes: u64,
}

fn flight(redis: &RedisServer, held: u64) -> Flight {
    let _: String = redis.command(&["FLUSHALL"]);
    let (key, quota) = ("slots", Quota::new(100_000, LEASE, 1));
    let mut charges = Caller::new(&redis.url());
    let mut refunds = Caller::of(&redis.url(), scripts::SETTLE);
    // As requests come that last as long as a third of a lease: then they are renewed.
    let spread = LEASE / 3;
    let taken: Vec<_> = (0..held).map(|n| (NOW + n * spread / held.max(1), 1)).collect();
    charges.charge(key, Algorithm::Concurrency, &quota, &taken);
    let mut now = NOW + spread;
    let (mut charge, mut refund) = (Cost::default(), Cost::default());
    for _ in 0..FLIGHTS.0 / FLIGHTS.1 {
        let together: Vec<_> = (0..FLIGHTS.1).map(|n| (now + n, 1)).collect();
        charge += charges.cost_of(|caller| {
            caller.charge(key, Algorithm::Concurrency, &quota, &together);
        });
        now += FLIGHTS.1;
        refund += refunds.cost_of(|caller| {
            caller.refund(key, Algorithm::Concurrency, &quota, now, &together);
        });
        now += FLIGHTS.1;
    }
    let bytes = charges.memory(key);
    Flight { held, charge: per_call(charge), refund: per_call(refund), bytes }
}

#[expect(clippy::print_stdout, reason = "a table for a person")]
fn main() {
    // Run as a test, it only shows that it works.
    let measured = std::env::args().any(|argument| argument == "--bench");
    let quotas: &[u32] = if measured { &[100, 10_000, 100_000] } else { &[100] };
    let redis = RedisServer::start();
    println!(
        "| quota | algorithm | us a call, filling | us a call, full | us, burst expires | bytes a key |"
    );
    println!("|---|---|---|---|---|---|");
    for &quota in quotas {
        for Row { name, filling, full, burst, bytes } in rows(&redis, quota) {
            println!("| {quota} | {name} | {filling:.1} | {full:.1} | {burst} | {bytes} |");
        }
    }
    println!();
    println!("| slots held | us a charge | us a refund | bytes a key |");
    println!("|---|---|---|---|");
    for held in HELD {
        let Flight { held, charge, refund, bytes } = flight(&redis, held);
        println!("| {held} | {charge:.1} | {refund:.1} | {bytes} |");
    }
}
