use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    clock::{self, Clock},
    limit::{Algorithm, Charge, Key, Limit, OnFailure, Quota, Reserve},
    store::{Credentials, RedisOptions, Store, Stores, Topology},
};

use crate::redis_server::RedisServer;

/// How long a request may wait for Redis in these tests.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(100);

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

pub(crate) fn charge(limit: &Limit, key: u128) -> Charge<'_> {
    Charge { limit, key: Key(key), cost: 1 }
}

pub(crate) fn options(redis: &RedisServer) -> RedisOptions {
    RedisOptions {
        topology: Topology::one(redis.url()),
        credentials: Credentials::default(),
        tls_ca: None,
        namespace: "tidegate".into(),
        connect_timeout: Duration::from_millis(500),
        response_timeout: RESPONSE_TIMEOUT,
    }
}

pub(crate) fn stores(redis: &RedisServer, clock: Clock) -> Arc<Stores> {
    Stores::redis(options(redis), clock, 10_000).expect("usable options")
}

/// The same with all the time that a busy machine needs: for what is about decisions, not deadlines.
pub(crate) fn patient(redis: &RedisServer, clock: Clock) -> Arc<Stores> {
    let response_timeout = Duration::from_secs(10);
    let options = RedisOptions { response_timeout, ..options(redis) };
    Stores::redis(options, clock, 10_000).expect("usable options")
}

/// One gateway with one worker, on the system's clock.
pub(crate) fn gateway(redis: &RedisServer) -> (Arc<Stores>, Store) {
    let stores = stores(redis, Clock::system());
    let store = stores.worker();
    (stores, store)
}

/// Waits until `condition` holds, and fails the test if it does not within `patience`.
pub(crate) async fn eventually(
    what: &str,
    patience: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) {
    let start: Instant = clock::instant();
    while !condition().await {
        assert!(start.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
