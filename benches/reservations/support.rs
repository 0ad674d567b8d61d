//! Limits, stores and medians that the parts share.

use std::{sync::Arc, time::Duration};

use tidegate::{
    clock::Clock,
    limit::{Algorithm, Limit, OnFailure, Quota, Reserve},
    secret::SharedSecret,
    store::{Credentials, RedisOptions, Stores, Topology},
};

use crate::redis_server::RedisServer;

/// An hour, so that no window ends in a run.
const WINDOW: u64 = 3_600_000;

/// A sliding window of an hour.
pub(crate) fn limit(quota: u32, reserve: Reserve) -> Limit {
    Limit {
        name: "hourly".into(),
        fingerprint: 1,
        algorithm: Algorithm::SlidingWindow,
        quota: Quota::new(quota, WINDOW, 6),
        cost: 1,
        on_failure: OnFailure::Closed,
        reserve,
        enforce: true,
        index: 0,
    }
}

/// One gateway's store, with patience: what is measured is not who gives up.
pub(crate) fn stores(redis: &RedisServer) -> Arc<Stores> {
    let options = RedisOptions {
        topology: Topology::one(redis.url()),
        credentials: Credentials::default(),
        tls_ca: None,
        namespace: "bench".into(),
        secret: SharedSecret::of_namespace("bench"),
        connect_timeout: Duration::from_secs(5),
        response_timeout: Duration::from_secs(5),
    };
    Stores::redis(options, Clock::system(), 1_000).expect("a store")
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
