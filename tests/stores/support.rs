use std::{sync::Arc, time::Duration};

use testkit::{
    options::redis_options,
    redis_server::RedisServer,
    wait::{eventually_async, while_clock_advances},
};
use tidegate::{
    charge::{Charge, Key, Limit, LimitIdentity},
    clock::{Clock, StoreTime},
    limit::{Algorithm, Millis, Quota},
    redis::{RedisOptions, Topology},
    store::{CounterStore, StoreHandle},
};

/// A time in 2023, on a whole second, in ms since the Unix epoch.
pub(crate) const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// `quota` units a minute, in sub-windows of 10 s.
pub(crate) fn limit(name: &str, quota: u64) -> Arc<Limit> {
    Arc::new(Limit::new(
        LimitIdentity::new(name, 0xfeed),
        Quota::sliding(quota, Millis::from_secs(60), 6),
    ))
}

/// A limit of each algorithm, with windows so long that nothing expires meanwhile.
pub(crate) fn limits_of_each_algorithm() -> Vec<Arc<Limit>> {
    let shaped = |algorithm: Algorithm| {
        let quota = Quota::new(100, Millis::from_secs(6_000), algorithm);
        Arc::new(Limit { quota, ..Limit::clone(&limit(algorithm.tag(), 100)) })
    };
    Algorithm::all(6, Millis::from_secs(2_400)).into_iter().map(shaped).collect()
}

thread_local! {
    /// Of the test that this thread runs.
    static CLOCK: Clock = Clock::simulated(NOW);
}

/// The test's clock, for timeouts, probes, pauses and windows. It stands still, except in
/// [`eventually`] and [`while_clock_advances`].
pub(crate) fn clock() -> Clock {
    CLOCK.with(Clock::clone)
}

/// The time of [`clock`].
pub(crate) fn now() -> StoreTime {
    clock().store_time()
}

/// Waits until `condition` holds, while [`clock`] advances.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    while_clock_advances(&clock(), eventually_async(what, condition)).await;
}

pub(crate) fn charge(limit: &Arc<Limit>, key: u128) -> Charge<'_> {
    Charge { limit, key: Key(key), cost: 1 }
}

pub(crate) fn options(redis: &RedisServer) -> RedisOptions {
    redis_options(Topology::one(redis.url()))
}

/// Options for a test on [`clock`] that makes Redis hang: the timeout ends before leased units are
/// idle.
pub(crate) fn short_timeout_options(redis: &RedisServer) -> RedisOptions {
    RedisOptions { response_timeout: Duration::from_millis(500), ..options(redis) }
}

pub(crate) fn counter_store(redis: &RedisServer, clock: Clock) -> Arc<CounterStore> {
    CounterStore::redis(options(redis), clock, 10_000).expect("usable options")
}

/// One gateway with one worker, on [`clock`].
pub(crate) fn gateway(redis: &RedisServer) -> (Arc<CounterStore>, StoreHandle) {
    let counter_store = counter_store(redis, clock());
    let handle = counter_store.worker();
    (counter_store, handle)
}

/// Sends requests of another limit until the outage is detected.
pub(crate) async fn wait_for_outage(counter_store: &CounterStore, handle: &StoreHandle) {
    let other = limit("other", 1_000_000);
    eventually("Redis is lost", async || {
        handle.charge(&[charge(&other, 99)], now()).await.expect("a local policy");
        counter_store.status().lost_workers == 1
    })
    .await;
}

/// Number of rejected `SET` calls, with which the store probes a server.
pub(crate) fn rejected_writes(server: &RedisServer) -> u32 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let set = stats.lines().find_map(|line| line.strip_prefix("cmdstat_set:"));
    let rejected = set.and_then(|line| line.split("rejected_calls=").nth(1)?.split(',').next());
    rejected.map_or(0, |count| count.parse().expect("a number"))
}
