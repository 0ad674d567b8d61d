use std::sync::Arc;

use testkit::{
    redis_server::RedisServer, redis_topology::RedisCluster, verdict::VerdictExt as _,
    wait::eventually_async,
};
use tidegate::{
    clock::Clock,
    store::{CounterStore, Failure, Topology},
    throttle::{redis::RedisFilterStore, sync::FilterStore},
};
use tokio_util::sync::CancellationToken;

use super::{ask, every_algorithm_counts, is_exact, now, shared, stores};
use crate::support::{charge, limit};

/// The first key from 1 on each of the first three nodes.
fn keys(cluster: &RedisCluster) -> [u128; 3] {
    let mut keys = [0; 3];
    for key in 1..100 {
        let (_, home) = cluster.slot_of(&format!("{key:032x}"));
        if keys[home] == 0 {
            keys[home] = key;
        }
    }
    keys
}

/// A throttle's exchange under a name whose slot is on the first node.
fn exchange(cluster: &RedisCluster, stores: &CounterStore) -> (RedisFilterStore, String) {
    let names = (0..100).map(|number| format!("throttle-{number}"));
    let name = names.into_iter().find(|name| cluster.slot_of(name).1 == 0).expect("a name");
    let connector = stores.connector().expect("a Redis");
    (RedisFilterStore::new(connector, &name, Clock::system(), Arc::default()), name)
}

/// The start of a tick: the time and one minute.
async fn exchanged(link: &mut RedisFilterStore) -> Result<(), Failure> {
    link.time().await?;
    link.read(1, None, 1).await.map(drop)
}

#[tokio::test]
async fn quotas_are_exact_while_slots_migrate() {
    let cluster = RedisCluster::start();
    let gateways = [0, 1].map(|_| stores(Topology::Cluster(cluster.urls())));
    is_exact(&gateways, 0..12).await;

    let store = gateways[0].worker();
    let keys = keys(&cluster);
    let (broad, narrow) = (limit("broad", 100), limit("narrow", 1));
    let all = [charge(&broad, keys[0]), charge(&narrow, keys[1]), charge(&broad, keys[2])];
    for key in keys {
        shared("the Cluster is there", &store, &limit("warm", 1_000), key).await;
        every_algorithm_counts(&store, key).await;
    }
    let verdict = ask(&store, &all).await;
    assert!(verdict.admitted, "{verdict:?}");
    assert!(!ask(&store, &all).await.admitted);
    eventually_async("what was refused is given back", async || {
        let looked = store.peek(&all, now()).await.unwrap();
        looked.decision(0).remaining == 99 && looked.decision(2).remaining == 99
    })
    .await;

    // A slot that migrates from the first node to the second: its record, and a new one there.
    let failures = gateways[0].stats().failures;
    let moving = keys[0];
    let (slot, from) = cluster.slot_of(&format!("{moving:032x}"));
    let to = (from + 1) % 3;
    let new = limit("new", 100);
    let mut used = 1;
    let mut remaining = async |step: &str| {
        let verdict = ask(&store, &[charge(&broad, moving)]).await;
        assert!(verdict.admitted && !verdict.is_fallback(), "{step}");
        used += 1;
        assert_eq!(verdict.decision(0).remaining, 100 - used, "{step}");
    };
    cluster.begin_migration(&slot, from, to);
    remaining("there is still the record").await;
    let _: String = cluster.nodes[to].command(&["SCRIPT", "FLUSH"]);
    assert_eq!(ask(&store, &[charge(&new, moving)]).await.decision(0).remaining, 99);
    assert_eq!(ask(&store, &[charge(&new, moving)]).await.decision(0).remaining, 98);
    cluster.migrate_keys(&slot, from, to);
    remaining("asked there once").await;
    assert_eq!(gateways[0].peek(&[charge(&new, moving)]).await.unwrap().decision(0).remaining, 98);
    cluster.end_migration(&slot, to);
    remaining("moved").await;
    remaining("looked for there").await;
    let looked = gateways[1].peek(&[charge(&broad, moving)]).await.unwrap();
    assert_eq!(looked.decision(0).remaining, 100 - used);
    gateways[1].reset(&[&broad], charge(&broad, moving).key).await.unwrap();
    assert_eq!(ask(&store, &[charge(&broad, moving)]).await.decision(0).remaining, 99);
    assert_eq!(gateways[0].stats().failures, failures, "nothing was lost on the way");

    let (mut link, name) = exchange(&cluster, &gateways[1]);
    exchanged(&mut link).await.unwrap();
    let (slot, from) = cluster.slot_of(&name);
    cluster.end_migration(&slot, (from + 1) % 3);
    assert_eq!(exchanged(&mut link).await.err(), Some(Failure::Io));
    eventually_async("the next connection leads there", async || {
        exchanged(&mut link).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_promoted_replica_is_followed() {
    let mut cluster = RedisCluster::start();
    let stores = stores(Topology::Cluster(cluster.urls()));
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let store = stores.worker();
    let limit = limit("over", 1_000_000);
    let keys = keys(&cluster);
    for key in keys {
        shared("every node is there", &store, &limit, key).await;
    }
    assert_eq!(stores.shards().len(), 3);
    let (mut link, _) = exchange(&cluster, &stores);
    exchanged(&mut link).await.unwrap();
    let lost = cluster.nodes[0].address();
    cluster.nodes[0].kill();
    assert!(ask(&store, &[charge(&limit, keys[0])]).await.is_fallback());
    assert!(stores.shards().iter().any(|shard| *shard.name == *lost && !shard.is_up));
    assert!(!ask(&store, &[charge(&limit, keys[1])]).await.is_fallback(), "the others are there");
    shared("the replica has taken over", &store, &limit, keys[0]).await;
    let is_there = |node: &RedisServer| node.command::<u64>(&["DBSIZE"]) > 0;
    assert!(is_there(&cluster.nodes[3]));
    eventually_async("all are well, and the dead one is forgotten", async || {
        let shards = stores.shards();
        shards.iter().all(|shard| shard.is_up && *shard.name != *lost)
            && stores.status().is_healthy()
    })
    .await;
    eventually_async("the throttle, too", async || exchanged(&mut link).await.is_ok()).await;
    stop.cancel();
}

#[tokio::test]
async fn a_promoted_replica_is_followed_without_requests() {
    let mut cluster = RedisCluster::start();
    let stores = stores(Topology::Cluster(cluster.urls()));
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let store = stores.worker();
    let limit = limit("silent", 1_000_000);
    // Not the node that receives the gateways' heartbeats once a second.
    let home = (cluster.slot_of("tidegate").1 + 1) % 3;
    let key = keys(&cluster)[home];
    shared("the Cluster is there", &store, &limit, key).await;
    let lost = cluster.nodes[home].address();
    cluster.nodes[home].kill();
    // It is unknown whether Redis charged the first.
    for _ in 0..2 {
        assert!(ask(&store, &[charge(&limit, key)]).await.is_fallback());
    }
    assert_eq!(stores.stats().unmerged, 1);
    eventually_async("local charges are merged into its successor", async || {
        stores.status().is_healthy() && stores.stats().unmerged == 0
    })
    .await;
    assert!(stores.shards().iter().all(|shard| *shard.name != *lost));
    stop.cancel();
}

/// The record is deleted, and no node serves the slot of the notification for other gateways.
#[tokio::test]
async fn a_local_reset_takes_effect_without_notification() {
    let cluster = RedisCluster::start();
    let (slot, home) = cluster.slot_of("tidegate");
    // The serving node first, so that the change is not propagated back.
    for at in 0..6 {
        let node = &cluster.nodes[(home + 3 * at + at / 2) % 6];
        let any: String = node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        let unserved: String = node.command(&["CLUSTER", "DELSLOTS", &slot]);
        assert_eq!((&*any, &*unserved), ("OK", "OK"));
    }
    let stores = stores(Topology::Cluster(cluster.urls()));
    let (store, key) = (stores.worker(), keys(&cluster)[0]);
    shared("the Cluster is there", &store, &limit("warm", 1_000), key).await;
    let once = limit("once", 1);
    assert!(ask(&store, &[charge(&once, key)]).await.admitted);
    assert!(!ask(&store, &[charge(&once, key)]).await.admitted);
    assert!(stores.reset(&[&once], charge(&once, key).key).await.is_err());
    assert!(ask(&store, &[charge(&once, key)]).await.admitted);
}
