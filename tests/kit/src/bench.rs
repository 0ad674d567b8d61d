//! Limits, stores and statistics for benchmarks.

use std::sync::Arc;

use tidegate::{
    charge::{LeaseSize, Limit, LimitIdentity, OnFailure},
    clock::Clock,
    limit::{Millis, Quota},
    redis::Topology,
    store::CounterStore,
};

use crate::{options::redis_options, redis_server::RedisServer};

/// One hour in ms: longer than any run.
const WINDOW: Millis = Millis::from_mins(60);

/// A sliding-window limit of one hour.
pub fn limit(quota: u64, lease_size: LeaseSize) -> Arc<Limit> {
    Arc::new(Limit {
        on_failure: OnFailure::Closed,
        lease_size,
        ..Limit::new(LimitIdentity::new("hourly", 1), Quota::sliding(quota, WINDOW, 6))
    })
}

/// The store of one gateway on `redis`, with timeouts longer than any measurement.
pub fn counter_store(redis: &RedisServer) -> Arc<CounterStore> {
    let options = redis_options(Topology::one(redis.url()));
    CounterStore::redis(options, Clock::system(), 1_000).expect("a store")
}

/// The median; for an even number of values, the larger middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
