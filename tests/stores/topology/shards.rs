use std::time::Duration;

use testkit::{
    options::redis_options,
    redis_server::RedisServer,
    redis_topology::{primary, replica_of, replicate},
    verdict::{OutcomesExt as _, VerdictExt as _},
    wait::eventually_async,
};
use tidegate::{
    clock::Clock,
    limit::{Adjustment, Change, DecisionSource, Limit, OnFailure},
    store::{CounterStore, RedisOptions, ShardUrls, StoreError, Topology},
};

use super::{ask, every_algorithm_counts, is_exact, key, keys_on, now, shards, shared, stores};
use crate::support::{NOW, charge, limit};

#[tokio::test]
async fn quotas_are_exact_over_shards_whatever_their_order() {
    let [a, b] = [RedisServer::start(), RedisServer::start()];
    let gateways = [stores(shards(&[&a, &b])), stores(shards(&[&b, &a]))];
    is_exact(&gateways, 0..24).await;
    for server in [&a, &b] {
        assert!(server.command::<u64>(&["DBSIZE"]) > 10);
    }
}

#[tokio::test]
async fn limits_on_two_shards_are_charged_all_or_none() {
    let [a, b] = [RedisServer::start(), RedisServer::start()];
    let stores = stores(shards(&[&a, &b]));
    let store = stores.worker();
    let [on_a, on_b] = keys_on(&store, [&a, &b]).await;
    for key in [on_a, on_b] {
        every_algorithm_counts(&store, key).await;
    }
    let (broad, narrow) = (limit("broad", 10), limit("narrow", 1));
    let both = [charge(&broad, on_a), charge(&narrow, on_b)];

    let verdict = ask(&store, &both).await;
    assert!(verdict.admitted && !verdict.is_fallback());
    assert_eq!(
        verdict.outcomes.decisions().iter().map(|d| d.remaining).collect::<Vec<_>>(),
        [9, 0]
    );

    for _ in 0..3 {
        stores.clear_deny_cache();
        let verdict = ask(&store, &both).await;
        assert!(!verdict.admitted && verdict.decided(0).is_none());
        assert!(verdict.decision(1).retry_at.is_some());
    }
    eventually_async("what was refused is given back", async || {
        store.peek(&both, now()).await.unwrap().decision(0).remaining == 9
    })
    .await;
    stores.clear_deny_cache();
    let verdict = ask(&store, &both).await;
    assert!(verdict.decided(0).is_none(), "its charge is undone");

    // Each adjustment goes to its shard; the outcomes are returned together.
    let looked = stores.peek(&both).await.unwrap();
    assert_eq!(looked.decision(1).remaining, 0);
    let change =
        |at: usize| Change::Refund { charged_at: verdict.decided(at).unwrap().at, cost: 1 };
    let first = ask(&store, &[charge(&broad, on_a)]).await;
    let adjustments = [
        Adjustment {
            limit: &broad,
            key: key(on_a),
            change: Change::Refund { charged_at: first.now(), cost: 1 },
        },
        Adjustment { limit: &narrow, key: key(on_b), change: change(1) },
    ];
    let settled = store.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(settled.are_made(), [true, true]);
    assert_eq!(settled.decision(1).remaining, 1, "the refunds took nothing else");
    stores.reset(&[&narrow], key(on_b)).await.unwrap();
    assert!(ask(&store, &both).await.admitted);
}

#[tokio::test]
async fn a_lost_shard_affects_only_its_own_keys() {
    let [a, mut b] = [RedisServer::start(), RedisServer::start()];
    let stores = stores(shards(&[&a, &b]));
    let store = stores.worker();
    let [on_a, on_b] = keys_on(&store, [&a, &b]).await;
    let (broad, narrow) = (limit("broad", 10), limit("narrow", 1));
    let closed = Limit { on_failure: OnFailure::Closed, index: 7, ..limit("closed", 10) };
    let both = [charge(&narrow, on_b), charge(&broad, on_a)];
    b.kill();

    let verdict = ask(&store, &both).await;
    assert!(
        verdict.admitted && verdict.is_fallback() && verdict.outcomes.are_made() == [true, true]
    );
    let fallen = [0, 1].map(|at| verdict.decided(at).unwrap().source == DecisionSource::Fallback);
    assert_eq!(fallen, [true, false], "only the lost one falls back");
    let up: Vec<bool> = [&b, &a]
        .map(|server| {
            let shards = stores.shards();
            shards.iter().find(|shard| *shard.name == *server.address()).unwrap().is_up
        })
        .into();
    assert_eq!(up, [false, true]);
    assert_eq!(stores.status().lost, 1);

    // The local fallback count is exhausted: the other shard's charge is refunded.
    let verdict = ask(&store, &both).await;
    assert!(!verdict.admitted && !verdict.decision(0).admitted);
    let refused = store.charge(&[charge(&closed, on_b), charge(&broad, on_a)], now()).await;
    assert_eq!(refused, Err(StoreError::Unavailable { limit: 7 }));
    eventually_async("what was refused is given back", async || {
        let looked = store.peek(&[charge(&broad, on_a)], now()).await.unwrap();
        assert!(!looked.is_fallback());
        looked.decision(0).remaining == 9
    })
    .await;
    let adjustments = [&narrow, &broad].map(|limit| {
        let on = if limit.name == narrow.name { on_b } else { on_a };
        Adjustment { limit, key: key(on), change: Change::Overdraw { cost: 1 } }
    });
    let settled = store.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(settled.are_made(), [false, true]);

    b.restart();
    shared("the shard is back", &store, &broad, on_b).await;
    assert!(stores.shards().iter().all(|shard| shard.is_up));
}

#[tokio::test]
async fn a_refund_at_a_lost_shard_is_made_after_recovery() {
    let [a, b] = [RedisServer::start(), RedisServer::start()];
    // While the first request waits for the hung shard.
    let response_timeout = Duration::from_secs(1);
    let options = RedisOptions { response_timeout, ..redis_options(shards(&[&a, &b])) };
    let stores = CounterStore::redis(options, Clock::system(), 10_000).expect("usable options");
    let store = stores.worker();
    let [on_a, on_b] = keys_on(&store, [&a, &b]).await;
    let (there, lost) = (limit("there", 10), limit("lost", 10));
    let verdict = ask(&store, &[charge(&there, on_a), charge(&lost, on_b)]).await;
    assert!(verdict.admitted && !verdict.is_fallback());

    b.suspend();
    let other = limit("other", 1_000_000);
    eventually_async("a shard is lost", async || {
        ask(&store, &[charge(&other, on_b)]).await;
        stores.status().lost == 1
    })
    .await;
    let refund =
        |at: usize| Change::Refund { charged_at: verdict.decided(at).unwrap().at, cost: 1 };
    let adjustments = [
        Adjustment { limit: &there, key: key(on_a), change: refund(0) },
        Adjustment { limit: &lost, key: key(on_b), change: refund(1) },
    ];
    let settled = store.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(settled.are_made(), [true, false]);
    b.resume();
    eventually_async("the other refund is made, once", async || {
        let looked = store.peek(&[charge(&lost, on_b)], now()).await.unwrap();
        !looked.is_fallback() && looked.decision(0).used == 0
    })
    .await;
    assert_eq!(stores.stats().merge_drops, 0);
}

#[tokio::test]
async fn a_stale_replica_serves_status_reads_only() {
    let server = primary();
    let mut replica = replica_of(&server);
    let replicas = vec![replica.url().into()];
    let topology = Topology::Shards(vec![ShardUrls { primary: server.url().into(), replicas }]);
    let clock = Clock::manual(NOW);
    let stores = CounterStore::redis(redis_options(topology), clock.clone(), 100).unwrap();
    let store = stores.worker();
    let limit = limit("stale", 3);
    let one = [charge(&limit, 1)];
    assert!(store.charge(&one, NOW).await.unwrap().admitted);
    eventually_async("the replica has it", async || {
        replica.command::<u64>(&["DBSIZE"]) == 1
            && stores.peek(&one).await.unwrap().decision(0).remaining == 2
    })
    .await;

    // From here on the replica receives no updates and still answers.
    let nowhere = RedisServer::not_started().port().to_string();
    let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &nowhere]);
    let admitted = async |count: usize| {
        for _ in 0..count {
            assert!(store.charge(&one, NOW).await.unwrap().admitted);
        }
        assert!(!store.charge(&one, NOW).await.unwrap().admitted);
    };
    admitted(2).await;
    assert_eq!(stores.peek(&one).await.unwrap().decision(0).remaining, 2, "the replica's word");
    assert_eq!(store.peek(&one, NOW).await.unwrap().decision(0).remaining, 0, "the primary's");

    // The record has long expired by the clock; the replica still has it.
    clock.set(NOW + 3_600_000);
    assert_eq!(replica.command::<u64>(&["DBSIZE"]), 1);
    let looked = stores.peek(&one).await.unwrap().decision(0);
    assert_eq!((looked.remaining, looked.used), (3, 0));
    replica.kill();
    assert!(store.charge(&one, NOW + 3_600_000).await.unwrap().admitted);
    assert_eq!(stores.peek(&one).await.unwrap().decision(0).remaining, 2, "the primary's");
}

#[tokio::test]
async fn a_demoted_primary_is_lost_until_promoted_again() {
    let [server, other] = [primary(), primary()];
    let stores = stores(shards(&[&server]));
    let store = stores.worker();
    let limit = limit("turned", 1_000);
    shared("it is there", &store, &limit, 1).await;
    replicate(&server, &other);
    assert!(ask(&store, &[charge(&limit, 1)]).await.is_fallback());
    // It answers all the while and must not be treated as writable.
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    assert!(ask(&store, &[charge(&limit, 1)]).await.is_fallback());
    let _: String = server.command(&["REPLICAOF", "NO", "ONE"]);
    shared("it writes again", &store, &limit, 1).await;
}
