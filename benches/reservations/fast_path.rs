//! The time of a decision from leased units, without a call to Redis.

use std::{fmt::Write as _, hint::black_box, sync::Arc, sync::Barrier, thread, time::Duration};

use testkit::{
    bench::{counter_store, limit, median},
    redis_server::RedisServer,
};
use tidegate::{
    charge::{Charge, Key, LeaseSize, Limit},
    clock::{Clock, instant},
    limit::MAX_LEASED_UNITS,
    store::CounterStore,
};
use tokio::runtime::Builder;

/// Decisions of a thread in a round: fewer than the units of one fetch.
const DECISIONS: u32 = 500_000;

/// Measures all cases alternately, and returns a Markdown table of the medians.
pub(crate) fn table(rounds: usize) -> String {
    let redis = RedisServer::start();
    let limit = limit(u32::MAX.into(), LeaseSize::Units(MAX_LEASED_UNITS));
    let cases: [(&str, &[u128]); 3] = [
        ("one thread", &[1]),
        ("two threads, a key each", &[1, 2]),
        ("two threads, the same key", &[1, 1]),
    ];
    let mut samples: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
    let counter_store = counter_store(&redis);
    for _ in 0..rounds {
        for ((_, keys), samples) in cases.iter().zip(&mut samples) {
            samples.push(measure(&counter_store, &limit, keys));
        }
    }
    let mut text = "| a decision from leased units | ns |\n|---|---|\n".to_owned();
    for ((name, _), samples) in cases.iter().zip(samples) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {:.0} |", median(samples));
    }
    text
}

/// The time of a decision in ns, with one thread for each key.
fn measure(counter_store: &Arc<CounterStore>, limit: &Arc<Limit>, keys: &[u128]) -> f64 {
    let barrier = Barrier::new(keys.len());
    let slowest = thread::scope(|scope| {
        let threads: Vec<_> = keys
            .iter()
            .map(|&key| {
                let barrier = &barrier;
                scope.spawn(move || decide(counter_store, limit, Key(key), barrier))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).max()
    });
    slowest.unwrap_or_default().as_nanos() as f64 / f64::from(DECISIONS)
}

fn decide(
    counter_store: &Arc<CounterStore>,
    limit: &Arc<Limit>,
    key: Key,
    barrier: &Barrier,
) -> Duration {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = counter_store.worker();
        let now = Clock::system().store_time();
        let charges = [Charge { limit, key, cost: 1 }];
        // The first decision connects and fetches units.
        assert!(store.charge(&charges, now).await.expect("a decision").admitted);
        barrier.wait();
        let start = instant();
        for _ in 0..DECISIONS {
            black_box(store.charge(black_box(&charges), now).await.expect("a decision"));
        }
        start.elapsed()
    })
}
