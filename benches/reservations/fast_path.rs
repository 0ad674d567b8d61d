//! A decision from tokens that are here: no call.

use std::{fmt::Write as _, hint::black_box, sync::Arc, sync::Barrier, thread, time::Duration};

use tidegate::{
    clock::{Clock, instant},
    limit::{Charge, Key, Limit, MAX_AHEAD, Reserve},
    store::Stores,
};
use tokio::runtime::Builder;

use crate::{
    redis_server::RedisServer,
    support::{limit, median, stores},
};

/// Decisions in a round; fewer than are fetched at once.
const DECISIONS: u32 = 500_000;

/// Every way, in turns.
pub(crate) fn table(rounds: usize) -> String {
    let redis = RedisServer::start();
    let limit = limit(u32::MAX, Reserve::Tokens(MAX_AHEAD));
    let ways: [(&str, &[u128]); 3] = [
        ("one thread", &[1]),
        ("two threads, a key each", &[1, 2]),
        ("two threads, the same key", &[1, 1]),
    ];
    let mut taken: Vec<Vec<f64>> = ways.iter().map(|_| Vec::new()).collect();
    let stores = stores(&redis);
    for _ in 0..rounds {
        for ((_, keys), taken) in ways.iter().zip(&mut taken) {
            taken.push(measure(&stores, &limit, keys));
        }
    }
    let mut text = "| a decision from tokens that are here | ns |\n|---|---|\n".to_owned();
    for ((name, _), taken) in ways.iter().zip(taken) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {:.0} |", median(taken));
    }
    text
}

/// The ns of a decision, one thread a key.
fn measure(stores: &Arc<Stores>, limit: &Limit, keys: &[u128]) -> f64 {
    let together = Barrier::new(keys.len());
    let took = thread::scope(|scope| {
        let threads: Vec<_> = keys
            .iter()
            .map(|&key| {
                let together = &together;
                scope.spawn(move || decide(stores, limit, Key(key), together))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).max()
    });
    took.unwrap_or_default().as_nanos() as f64 / f64::from(DECISIONS)
}

fn decide(stores: &Arc<Stores>, limit: &Limit, key: Key, together: &Barrier) -> Duration {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = stores.worker();
        let now = Clock::system().now();
        let charges = [Charge { limit, key, cost: 1 }];
        // The first connects and fetches.
        assert!(store.charge(&charges, now).await.expect("a decision").admitted);
        together.wait();
        let start = instant();
        for _ in 0..DECISIONS {
            black_box(store.charge(black_box(&charges), now).await.expect("a decision"));
        }
        start.elapsed()
    })
}
