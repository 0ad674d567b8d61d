use std::sync::Arc;

use testkit::{redis_server::RedisServer, redis_topology::RedisCluster, verdict::VerdictExt as _};
use tidegate::{
    clock::Clock,
    redis::{RedisFailure, Topology},
    store::CounterStore,
    throttle::{geometry::UnixMinute, redis::RedisFilterStore, sync::FilterStore},
};
use tokio_util::sync::CancellationToken;

use super::{
    assert_every_algorithm, assert_exactness, counter_store, counter_store_on, decide, now,
    wait_for_redis,
};
use crate::support::{charge, clock, eventually, limit};

/// For each of the first three nodes, the lowest key that it stores.
fn key_on_each_node(cluster: &RedisCluster) -> [u128; 3] {
    let mut keys = [0; 3];
    for key in 1..100 {
        let (_, node_index) = cluster.slot_of(&format!("{key:032x}"));
        if keys[node_index] == 0 {
            keys[node_index] = key;
        }
    }
    keys
}

/// A throttle's filter store under a name whose slot is on the first node.
fn filter_store(
    cluster: &RedisCluster,
    counter_store: &CounterStore,
) -> (RedisFilterStore, String) {
    let names = (0..100).map(|number| format!("throttle-{number}"));
    let name = names.into_iter().find(|name| cluster.slot_of(name).1 == 0).expect("a name");
    let connector = counter_store.connector().expect("a Redis");
    (RedisFilterStore::new(connector, &name, clock(), Arc::default()), name)
}

/// Reads the time and one minute, as at the start of a tick.
async fn exchange(filters: &mut RedisFilterStore) -> Result<(), RedisFailure> {
    filters.time().await?;
    filters.read(UnixMinute::from_minutes(1), None, 1).await.map(drop)
}

#[tokio::test]
async fn quotas_are_exact_while_slots_migrate() {
    let cluster = RedisCluster::start();
    let gateways = [0, 1].map(|_| counter_store(Topology::Cluster(cluster.urls())));
    assert_exactness(&gateways, 0..12).await;

    let handle = gateways[0].worker();
    let keys = key_on_each_node(&cluster);
    let (broad, narrow) = (limit("broad", 100), limit("narrow", 1));
    let all = [charge(&broad, keys[0]), charge(&narrow, keys[1]), charge(&broad, keys[2])];
    for key in keys {
        wait_for_redis("the Cluster decides", &handle, &limit("warm", 1_000), key).await;
        assert_every_algorithm(&handle, key).await;
    }
    let verdict = decide(&handle, &all).await;
    assert!(verdict.admitted, "{verdict:?}");
    assert!(!decide(&handle, &all).await.admitted);
    eventually("refused charges are refunded", async || {
        let peeked = handle.peek(&all, now()).await.unwrap();
        peeked.decision(0).remaining == 99 && peeked.decision(2).remaining == 99
    })
    .await;

    // A slot migrates from the first node to the second, with an existing record and a new one.
    let failures = gateways[0].stats().failures;
    let migrating_key = keys[0];
    let (slot, from) = cluster.slot_of(&format!("{migrating_key:032x}"));
    let to = (from + 1) % 3;
    let new = limit("new", 100);
    let mut used = 1;
    let mut assert_remaining = async |step: &str| {
        let verdict = decide(&handle, &[charge(&broad, migrating_key)]).await;
        assert!(verdict.admitted && !verdict.is_fallback(), "{step}");
        used += 1;
        assert_eq!(verdict.decision(0).remaining, 100 - used, "{step}");
    };
    cluster.begin_migration(&slot, from, to);
    assert_remaining("the record has not moved").await;
    let _: String = cluster.nodes[to].command(&["SCRIPT", "FLUSH"]);
    assert_eq!(decide(&handle, &[charge(&new, migrating_key)]).await.decision(0).remaining, 99);
    assert_eq!(decide(&handle, &[charge(&new, migrating_key)]).await.decision(0).remaining, 98);
    cluster.migrate_keys(&slot, from, to);
    assert_remaining("redirected by ASK").await;
    assert_eq!(
        gateways[0].peek(&[charge(&new, migrating_key)]).await.unwrap().decision(0).remaining,
        98
    );
    cluster.end_migration(&slot, to);
    assert_remaining("redirected by MOVED").await;
    assert_remaining("called directly").await;
    let peeked = gateways[1].peek(&[charge(&broad, migrating_key)]).await.unwrap();
    assert_eq!(peeked.decision(0).remaining, 100 - used);
    gateways[1].reset(&[&broad], charge(&broad, migrating_key).key).await.unwrap();
    assert_eq!(decide(&handle, &[charge(&broad, migrating_key)]).await.decision(0).remaining, 99);
    assert_eq!(gateways[0].stats().failures, failures, "no call failed during the migration");

    let (mut filters, name) = filter_store(&cluster, &gateways[1]);
    exchange(&mut filters).await.unwrap();
    let (slot, from) = cluster.slot_of(&name);
    cluster.end_migration(&slot, (from + 1) % 3);
    assert_eq!(exchange(&mut filters).await.err(), Some(RedisFailure::Io));
    eventually("the next connection is to the new owner", async || {
        exchange(&mut filters).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_promoted_replica_is_followed() {
    let mut cluster = RedisCluster::start();
    // In real time, like the replica's election.
    let counter_store = counter_store_on(Clock::system(), Topology::Cluster(cluster.urls()));
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    let handle = counter_store.worker();
    let limit = limit("over", 1_000_000);
    let keys = key_on_each_node(&cluster);
    for key in keys {
        wait_for_redis("every node decides", &handle, &limit, key).await;
    }
    assert_eq!(counter_store.shards().len(), 3);
    let (mut filters, _) = filter_store(&cluster, &counter_store);
    exchange(&mut filters).await.unwrap();
    let lost = cluster.nodes[0].address();
    cluster.nodes[0].kill();
    assert!(decide(&handle, &[charge(&limit, keys[0])]).await.is_fallback());
    assert!(counter_store.shards().iter().any(|shard| *shard.name == *lost && !shard.is_up));
    assert!(
        !decide(&handle, &[charge(&limit, keys[1])]).await.is_fallback(),
        "the other nodes decide"
    );
    wait_for_redis("the replica has taken over", &handle, &limit, keys[0]).await;
    let has_records = |node: &RedisServer| node.command::<u64>(&["DBSIZE"]) > 0;
    assert!(has_records(&cluster.nodes[3]));
    eventually("all are up, and the dead one is not in the map", async || {
        let shards = counter_store.shards();
        shards.iter().all(|shard| shard.is_up && *shard.name != *lost)
            && counter_store.status().is_healthy()
    })
    .await;
    eventually("the throttle follows as well", async || exchange(&mut filters).await.is_ok()).await;
    stop.cancel();
}

#[tokio::test]
async fn a_promoted_replica_is_followed_without_requests() {
    let mut cluster = RedisCluster::start();
    // In real time, like the replica's election.
    let counter_store = counter_store_on(Clock::system(), Topology::Cluster(cluster.urls()));
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    let handle = counter_store.worker();
    let limit = limit("silent", 1_000_000);
    // Not the node that receives the gateways' reports once a second.
    let node_index = (cluster.slot_of("tidegate").1 + 1) % 3;
    let key = key_on_each_node(&cluster)[node_index];
    wait_for_redis("the Cluster decides", &handle, &limit, key).await;
    let lost = cluster.nodes[node_index].address();
    cluster.nodes[node_index].kill();
    for _ in 0..2 {
        assert!(decide(&handle, &[charge(&limit, key)]).await.is_fallback());
    }
    eventually("its successor is up", async || counter_store.status().is_healthy()).await;
    assert!(counter_store.shards().iter().all(|shard| *shard.name != *lost));
    stop.cancel();
}

/// The record is deleted, but no node serves the slot in which deletions are recorded for other
/// gateways.
#[tokio::test]
async fn a_local_reset_takes_effect_without_notification() {
    let cluster = RedisCluster::start();
    let (slot, node_index) = cluster.slot_of("tidegate");
    // The slot's owner first, because it would announce its ownership to the others again.
    for at in 0..6 {
        let node = &cluster.nodes[(node_index + 3 * at + at / 2) % 6];
        let any: String = node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        let unserved: String = node.command(&["CLUSTER", "DELSLOTS", &slot]);
        assert_eq!((&*any, &*unserved), ("OK", "OK"));
    }
    let counter_store = counter_store(Topology::Cluster(cluster.urls()));
    let (handle, key) = (counter_store.worker(), key_on_each_node(&cluster)[0]);
    wait_for_redis("the Cluster decides", &handle, &limit("warm", 1_000), key).await;
    let once = limit("once", 1);
    assert!(decide(&handle, &[charge(&once, key)]).await.admitted);
    assert!(!decide(&handle, &[charge(&once, key)]).await.admitted);
    assert!(counter_store.reset(&[&once], charge(&once, key).key).await.is_err());
    assert!(decide(&handle, &[charge(&once, key)]).await.admitted);
}
