use std::{sync::Arc, time::Duration};

use crate::verdict::VerdictExt as _;
use tidegate::{
    clock::Clock,
    limit::{Algorithm, Charge, Key, Limit, Verdict},
    secret::SharedSecret,
    store::{Credentials, RedisOptions, Shard, Store, Stores, Topology},
};

use crate::{
    redis_server::RedisServer,
    support::{charge, eventually, now},
};

/// Slots that move, primaries that are killed.
mod cluster;
/// How often a server that is down is tried.
mod pace;
/// TLS, users and passwords.
mod secure;
/// A primary that changes.
mod sentinel;
/// Several primaries, and their replicas.
mod shards;

fn options(topology: Topology) -> RedisOptions {
    RedisOptions {
        topology,
        credentials: Credentials::default(),
        tls_ca: None,
        namespace: "tidegate".into(),
        secret: SharedSecret::of_namespace("tidegate"),
        // No server hangs: each answers, or is gone at once.
        connect_timeout: Duration::from_secs(5),
        response_timeout: Duration::from_secs(10),
    }
}

fn shards(servers: &[&RedisServer]) -> Topology {
    let shard = |server: &&RedisServer| Shard { primary: server.url().into(), replicas: vec![] };
    Topology::Shards(servers.iter().map(shard).collect())
}

fn stores(topology: Topology) -> Arc<Stores> {
    Stores::redis(options(topology), Clock::system(), 10_000).expect("usable options")
}

async fn ask(store: &Store, charges: &[Charge<'_>]) -> Verdict {
    store.charge(charges, now()).await.expect("no limit that is closed")
}

/// Waits until the key is decided by Redis.
async fn shared(what: &str, store: &Store, limit: &Limit, key: u128) {
    eventually(what, async || !ask(store, &[charge(limit, key)]).await.is_fallback()).await;
}

/// The first keys from 1 that live on each of the servers.
async fn keys_on<const N: usize>(store: &Store, servers: [&RedisServer; N]) -> [u128; N] {
    let limit = crate::support::limit("home", 1_000);
    let mut keys = [0; N];
    for key in 1..200 {
        shared("every shard is there", store, &limit, key).await;
        let name = format!("tidegate:{{{key:032x}}}:home:*");
        let is_there =
            |server: &&RedisServer| !server.command::<Vec<String>>(&["KEYS", &name]).is_empty();
        let at = servers.iter().position(is_there).expect("it was charged somewhere");
        if keys[at] == 0 {
            keys[at] = key;
        }
        if !keys.contains(&0) {
            return keys;
        }
    }
    panic!("a server has none of 200 keys: {keys:?}");
}

/// Whatever counts: what may pass at once passes, and not one more.
async fn every_algorithm_counts(store: &Store, key: u128) {
    for algorithm in Algorithm::ALL {
        let limit = Limit { algorithm, ..crate::support::limit(algorithm.tag(), 5) };
        for turn in 0..=limit.ceiling() {
            let verdict = ask(store, &[charge(&limit, key)]).await;
            assert!(!verdict.is_fallback(), "{algorithm:?}");
            assert_eq!(verdict.admitted, turn < limit.ceiling(), "{algorithm:?} at {turn}");
        }
    }
}

/// Eight charges a key from each gateway at once: exactly the quota of five is admitted.
async fn is_exact(gateways: &[Arc<Stores>], keys: std::ops::Range<u128>) {
    let limit = Arc::new(crate::support::limit("exact", 5));
    let mut tasks = Vec::new();
    for stores in gateways {
        let store = std::rc::Rc::new(stores.worker());
        for key in keys.clone() {
            shared("every place is there", &store, &crate::support::limit("warm", 1_000), key)
                .await;
            for _ in 0..8 {
                let (store, limit) = (store.clone(), Arc::clone(&limit));
                tasks.push((key, async move { ask(&store, &[charge(&limit, key)]).await }));
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

fn key(key: u128) -> Key {
    Key(key)
}
