use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::verdict::VerdictExt as _;
use tidegate::{
    clock::{self, Clock},
    limit::{Algorithm, Charge, Key, Limit, OnFailure, Quota, Reserve},
    secret::SharedSecret,
    store::{Credentials, RedisOptions, Store, Stores, Topology},
};

use crate::redis_server::RedisServer;

/// How long a request may wait for Redis in these tests. No machine is so busy that an answer takes as
/// long, and a Redis that is dead or unwilling is known at once.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The same where Redis hangs, and requests wait until their time is over.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long [`eventually`] waits. Only a test that fails waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// 2023, on a whole second.
pub(crate) const NOW: u64 = 1_700_000_000_000;

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
    let of = |algorithm: Algorithm| {
        let resolution = if algorithm == Algorithm::SlidingWindow { 6 } else { 1 };
        let quota = Quota { max_wait: 2_400_000, ..Quota::new(100, 6_000_000, resolution) };
        Limit { algorithm, quota, ..limit(algorithm.tag(), 100) }
    };
    Algorithm::ALL.into_iter().map(of).collect()
}

/// The system's time.
pub(crate) fn now() -> u64 {
    Clock::system().now()
}

pub(crate) fn charge(limit: &Limit, key: u128) -> Charge<'_> {
    Charge { limit, key: Key(key), cost: 1 }
}

pub(crate) fn options(redis: &RedisServer) -> RedisOptions {
    RedisOptions {
        topology: Topology::one(redis.url()),
        credentials: Credentials::default(),
        tls_ca: None,
        namespace: "tidegate".into(),
        secret: SharedSecret::of_namespace("tidegate"),
        connect_timeout: Duration::from_secs(5),
        response_timeout: RESPONSE_TIMEOUT,
    }
}

/// For a test that makes Redis hang.
pub(crate) fn hasty(redis: &RedisServer) -> RedisOptions {
    RedisOptions { response_timeout: SHORT_TIMEOUT, ..options(redis) }
}

pub(crate) fn stores(redis: &RedisServer, clock: Clock) -> Arc<Stores> {
    Stores::redis(options(redis), clock, 10_000).expect("usable options")
}

/// One gateway with one worker, on the system's clock.
pub(crate) fn gateway(redis: &RedisServer) -> (Arc<Stores>, Store) {
    let stores = stores(redis, Clock::system());
    let store = stores.worker();
    (stores, store)
}

/// The same for a test that makes Redis hang, once Redis decides: to connect may take longer than a
/// request waits.
pub(crate) async fn hasty_gateway(redis: &RedisServer) -> (Arc<Stores>, Store) {
    let made = Stores::redis(hasty(redis), Clock::system(), 10_000);
    let stores = made.expect("usable options");
    let store = stores.worker();
    let limit = limit("there", 1_000_000);
    eventually("Redis decides", async || {
        let charged = store.charge(&[charge(&limit, 97)], Clock::system().now()).await;
        !charged.expect("a local policy").is_fallback() && stores.stats().unmerged == 0
    })
    .await;
    (stores, store)
}

/// Makes a request of another caller find out that Redis cannot be asked.
pub(crate) async fn lose(stores: &Stores, store: &Store) {
    let other = limit("other", 1_000_000);
    eventually("Redis is lost", async || {
        store.charge(&[charge(&other, 99)], now()).await.expect("a local policy");
        stores.status().lost == 1
    })
    .await;
}

/// Waits until `condition` holds, and fails the test if it does not for long.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start: Instant = clock::instant();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
