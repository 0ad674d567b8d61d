use std::{sync::Arc, time::Duration};

use testkit::{
    options::redis_options, redis_server::RedisServer, verdict::VerdictExt as _,
    wait::eventually_async,
};
use tidegate::{
    clock::Clock,
    limit::{Algorithm, Charge, Key, Limit, OnFailure, Quota, Reserve},
    store::{CounterStore, RedisOptions, StoreHandle, Topology},
};

/// The response timeout for tests that make Redis hang.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A time in 2023, on a whole second, in ms since the Unix epoch.
pub(crate) const NOW: u64 = 1_700_000_000_000;

/// `quota` units a minute, in sub-windows of 10 s.
pub(crate) fn limit(name: &str, quota: u32) -> Limit {
    Limit {
        name: name.into(),
        fingerprint: 0xfeed,
        algorithm: Algorithm::SlidingWindow,
        quota: Quota::new(quota, 60_000, 6),
        cost: 1,
        on_failure: OnFailure::Local,
        reserve: Reserve::Off,
        enforce: true,
        index: 0,
    }
}

/// A limit of each algorithm, with windows so long that nothing expires meanwhile.
pub(crate) fn of_each_algorithm() -> Vec<Limit> {
    let compile = |algorithm: Algorithm| {
        let resolution = if algorithm == Algorithm::SlidingWindow { 6 } else { 1 };
        let quota = Quota { max_wait: 2_400_000, ..Quota::new(100, 6_000_000, resolution) };
        Limit { algorithm, quota, ..limit(algorithm.tag(), 100) }
    };
    Algorithm::ALL.into_iter().map(compile).collect()
}

/// The system's time.
pub(crate) fn now() -> u64 {
    Clock::system().now()
}

pub(crate) fn charge(limit: &Limit, key: u128) -> Charge<'_> {
    Charge { limit, key: Key(key), cost: 1 }
}

pub(crate) fn options(redis: &RedisServer) -> RedisOptions {
    redis_options(Topology::one(redis.url()))
}

/// Options for a test that makes Redis hang.
pub(crate) fn short_timeout_options(redis: &RedisServer) -> RedisOptions {
    RedisOptions { response_timeout: SHORT_TIMEOUT, ..options(redis) }
}

pub(crate) fn stores(redis: &RedisServer, clock: Clock) -> Arc<CounterStore> {
    CounterStore::redis(options(redis), clock, 10_000).expect("usable options")
}

/// One gateway with one worker, on the system's clock.
pub(crate) fn gateway(redis: &RedisServer) -> (Arc<CounterStore>, StoreHandle) {
    let stores = stores(redis, Clock::system());
    let store = stores.worker();
    (stores, store)
}

/// As [`gateway`], for a test that makes Redis hang. Returns after Redis has decided once, because
/// connecting may take longer than the response timeout.
pub(crate) async fn short_timeout_gateway(redis: &RedisServer) -> (Arc<CounterStore>, StoreHandle) {
    let made = CounterStore::redis(short_timeout_options(redis), Clock::system(), 10_000);
    let stores = made.expect("usable options");
    let store = stores.worker();
    let limit = limit("warm-up", 1_000_000);
    eventually_async("Redis decides", async || {
        let charged = store.charge(&[charge(&limit, 97)], Clock::system().now()).await;
        !charged.expect("a local policy").is_fallback() && stores.stats().unmerged == 0
    })
    .await;
    (stores, store)
}

/// Sends requests of another limit until the outage is detected.
pub(crate) async fn wait_for_outage(stores: &CounterStore, store: &StoreHandle) {
    let other = limit("other", 1_000_000);
    eventually_async("Redis is lost", async || {
        store.charge(&[charge(&other, 99)], now()).await.expect("a local policy");
        stores.status().lost == 1
    })
    .await;
}
