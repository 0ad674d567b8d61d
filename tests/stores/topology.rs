use std::sync::Arc;

use testkit::{options::redis_options, redis_server::RedisServer, verdict::VerdictExt as _};
use tidegate::{
    charge::{Charge, Limit, Verdict},
    clock::Clock,
    limit::{Algorithm, Millis, Quota},
    redis::{ShardUrls, Topology},
    store::{CounterStore, StoreHandle},
};

use crate::support::{charge, clock, eventually, now};

/// A Cluster: slots that migrate, primaries that are killed.
mod cluster;
/// Overrides of quotas.
mod overrides;
/// The interval between probes of a lost server.
mod probe_interval;
/// Failovers by Sentinel.
mod sentinel;
/// Several primaries and their replicas.
mod shards;
/// TLS and authentication.
mod tls_and_auth;

fn shards(servers: &[&RedisServer]) -> Topology {
    let shard =
        |server: &&RedisServer| ShardUrls { primary: server.url().into(), replicas: vec![] };
    Topology::Shards(servers.iter().map(shard).collect())
}

fn counter_store(topology: Topology) -> Arc<CounterStore> {
    counter_store_on(clock(), topology)
}

fn counter_store_on(clock: Clock, topology: Topology) -> Arc<CounterStore> {
    CounterStore::redis(redis_options(topology), clock, 10_000).expect("usable options")
}

async fn decide(handle: &StoreHandle, charges: &[Charge<'_>]) -> Verdict {
    handle.charge(charges, now()).await.expect("no `closed` policy")
}

/// Waits until Redis decides for the key.
async fn wait_for_redis(what: &str, handle: &StoreHandle, limit: &Arc<Limit>, key: u128) {
    eventually(what, async || !decide(handle, &[charge(limit, key)]).await.is_fallback()).await;
}

/// For each of the servers, the lowest key that it stores.
async fn key_on_each_server<const N: usize>(
    handle: &StoreHandle,
    servers: [&RedisServer; N],
) -> [u128; N] {
    let limit = crate::support::limit("placement", 1_000);
    let mut keys = [0; N];
    for key in 1..200 {
        wait_for_redis("every shard decides", handle, &limit, key).await;
        let name = format!("tidegate:{{{key:032x}}}:placement:*");
        let has_record =
            |server: &&RedisServer| !server.command::<Vec<String>>(&["KEYS", &name]).is_empty();
        let at = servers.iter().position(has_record).expect("a server with the record");
        if keys[at] == 0 {
            keys[at] = key;
        }
        if !keys.contains(&0) {
            return keys;
        }
    }
    panic!("a server has none of 200 keys: {keys:?}");
}

/// Checks for each algorithm that exactly the capacity is admitted.
async fn assert_every_algorithm(handle: &StoreHandle, key: u128) {
    for algorithm in Algorithm::all(6, Millis::ZERO) {
        let quota = Quota::new(5, Millis::from_secs(60), algorithm);
        let limit =
            Arc::new(Limit { quota, ..Limit::clone(&crate::support::limit(algorithm.tag(), 5)) });
        for turn in 0..=quota.capacity() {
            let verdict = decide(handle, &[charge(&limit, key)]).await;
            assert!(!verdict.is_fallback(), "{algorithm:?}");
            assert_eq!(verdict.admitted, turn < quota.capacity(), "{algorithm:?} at {turn}");
        }
    }
}

/// Checks that exactly the quota of five is admitted, of eight concurrent charges per key and
/// gateway.
async fn assert_exactness(gateways: &[Arc<CounterStore>], keys: std::ops::Range<u128>) {
    let limit = Arc::new(crate::support::limit("exact", 5));
    let mut tasks = Vec::new();
    for counter_store in gateways {
        let handle = std::rc::Rc::new(counter_store.worker());
        for key in keys.clone() {
            wait_for_redis(
                "every shard decides",
                &handle,
                &crate::support::limit("warm", 1_000),
                key,
            )
            .await;
            for _ in 0..8 {
                let (handle, limit) = (handle.clone(), Arc::clone(&limit));
                tasks.push((key, async move { decide(&handle, &[charge(&limit, key)]).await }));
            }
        }
    }
    let mut admitted = std::collections::BTreeMap::<u128, u32>::new();
    let tasks = tasks.into_iter().map(async |(key, task)| (key, task.await));
    for (key, verdict) in futures_util::future::join_all(tasks).await {
        assert!(!verdict.is_fallback(), "key {key}");
        *admitted.entry(key).or_default() += u32::from(verdict.admitted);
    }
    assert!(admitted.values().all(|&count| count == 5), "{admitted:?}");
}
