use std::{sync::Arc, time::Duration};

use testkit::{
    options::redis_options,
    redis_server::RedisServer,
    redis_topology::{primary, replica_of, replicate},
    verdict::{OutcomesExt as _, VerdictExt as _},
};
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, DecisionSource, Key, Limit, OnFailure},
    clock::Clock,
    limit::Change,
    redis::{RedisOptions, ShardUrls, Topology},
    store::{CounterStore, StoreError},
};

use super::{
    assert_every_algorithm, assert_exactness, counter_store, decide, key_on_each_server, now,
    shards, wait_for_redis,
};
use crate::support::{NOW, charge, clock, eventually, limit, rejected_writes};

#[tokio::test]
async fn quotas_are_exact_with_shards_in_any_order() {
    let [a, b] = [RedisServer::start(), RedisServer::start()];
    let gateways = [counter_store(shards(&[&a, &b])), counter_store(shards(&[&b, &a]))];
    assert_exactness(&gateways, 0..24).await;
    for server in [&a, &b] {
        assert!(server.command::<u64>(&["DBSIZE"]) > 10);
    }
}

#[tokio::test]
async fn limits_on_two_shards_are_charged_all_or_none() {
    let [a, b] = [RedisServer::start(), RedisServer::start()];
    let counter_store = counter_store(shards(&[&a, &b]));
    let handle = counter_store.worker();
    let [on_a, on_b] = key_on_each_server(&handle, [&a, &b]).await;
    for key in [on_a, on_b] {
        assert_every_algorithm(&handle, key).await;
    }
    let (broad, narrow) = (limit("broad", 10), limit("narrow", 1));
    let both = [charge(&broad, on_a), charge(&narrow, on_b)];

    let verdict = decide(&handle, &both).await;
    assert!(verdict.admitted && !verdict.is_fallback());
    assert_eq!(
        verdict.outcomes.decisions().iter().map(|d| d.remaining).collect::<Vec<_>>(),
        [9, 0]
    );

    for _ in 0..3 {
        counter_store.clear_deny_cache();
        let verdict = decide(&handle, &both).await;
        assert!(!verdict.admitted && verdict.decided(0).is_none());
        assert!(verdict.decision(1).retry_at.is_some());
    }
    eventually("refused charges are refunded", async || {
        handle.peek(&both, now()).await.unwrap().decision(0).remaining == 9
    })
    .await;
    counter_store.clear_deny_cache();
    let verdict = decide(&handle, &both).await;
    assert!(verdict.decided(0).is_none(), "the charge of the broad limit is refunded");

    // Each adjustment is sent to its shard; the outcomes are returned together.
    let peeked = counter_store.peek(&both).await.unwrap();
    assert_eq!(peeked.decision(1).remaining, 0);
    let change =
        |at: usize| Change::Refund { charged_at: verdict.decided(at).unwrap().at, cost: 1 };
    let first = decide(&handle, &[charge(&broad, on_a)]).await;
    let adjustments = [
        Adjustment {
            limit: &broad,
            key: Key(on_a),
            change: Change::Refund { charged_at: first.decided_at(), cost: 1 },
        },
        Adjustment { limit: &narrow, key: Key(on_b), change: change(1) },
    ];
    let adjusted = handle.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(adjusted.are_made(), [true, true]);
    assert_eq!(adjusted.decision(1).remaining, 1, "refunded once");
    counter_store.reset(&[&narrow], Key(on_b)).await.unwrap();
    assert!(decide(&handle, &both).await.admitted);
}

#[tokio::test]
async fn a_lost_shard_affects_only_its_own_keys() {
    let [a, mut b] = [RedisServer::start(), RedisServer::start()];
    let counter_store = counter_store(shards(&[&a, &b]));
    let handle = counter_store.worker();
    let [on_a, on_b] = key_on_each_server(&handle, [&a, &b]).await;
    let (broad, narrow) = (limit("broad", 10), limit("narrow", 1));
    let closed = Arc::new(Limit {
        on_failure: OnFailure::Closed,
        index: 7,
        ..Limit::clone(&limit("closed", 10))
    });
    let both = [charge(&narrow, on_b), charge(&broad, on_a)];
    b.kill();

    let verdict = decide(&handle, &both).await;
    assert!(
        verdict.admitted && verdict.is_fallback() && verdict.outcomes.are_made() == [true, true]
    );
    let fallbacks =
        [0, 1].map(|at| verdict.decided(at).unwrap().source == DecisionSource::Fallback);
    assert_eq!(fallbacks, [true, false], "only the lost shard falls back");
    let up: Vec<bool> = [&b, &a]
        .map(|server| {
            let shards = counter_store.shards();
            shards.iter().find(|shard| *shard.name == *server.address()).unwrap().is_up
        })
        .into();
    assert_eq!(up, [false, true]);
    assert_eq!(counter_store.status().lost_workers, 1);

    // The local quota is exhausted, so the charge on the other shard is refunded.
    let verdict = decide(&handle, &both).await;
    assert!(!verdict.admitted && !verdict.decision(0).admitted);
    let refused = handle.charge(&[charge(&closed, on_b), charge(&broad, on_a)], now()).await;
    assert_eq!(refused, Err(StoreError::Unavailable { limit: 7 }));
    eventually("refused charges are refunded", async || {
        let peeked = handle.peek(&[charge(&broad, on_a)], now()).await.unwrap();
        assert!(!peeked.is_fallback());
        peeked.decision(0).remaining == 9
    })
    .await;
    let adjustments = [&narrow, &broad].map(|limit| {
        let on = if limit.name() == narrow.name() { on_b } else { on_a };
        Adjustment { limit, key: Key(on), change: Change::Overdraw { cost: 1 } }
    });
    let adjusted = handle.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(adjusted.are_made(), [false, true]);

    b.restart();
    wait_for_redis("the shard is back", &handle, &broad, on_b).await;
    assert!(counter_store.shards().iter().all(|shard| shard.is_up));
}

#[tokio::test]
async fn a_refund_at_a_lost_shard_is_made_after_recovery() {
    let [a, b] = [RedisServer::start(), RedisServer::start()];
    let response_timeout = Duration::from_secs(1);
    let options = RedisOptions { response_timeout, ..redis_options(shards(&[&a, &b])) };
    let counter_store = CounterStore::redis(options, clock(), 10_000).expect("usable options");
    let handle = counter_store.worker();
    let [on_a, on_b] = key_on_each_server(&handle, [&a, &b]).await;
    let (reachable, lost) = (limit("reachable", 10), limit("lost", 10));
    let verdict = decide(&handle, &[charge(&reachable, on_a), charge(&lost, on_b)]).await;
    assert!(verdict.admitted && !verdict.is_fallback());

    b.suspend();
    let other = limit("other", 1_000_000);
    eventually("a shard is lost", async || {
        decide(&handle, &[charge(&other, on_b)]).await;
        counter_store.status().lost_workers == 1
    })
    .await;
    let refund =
        |at: usize| Change::Refund { charged_at: verdict.decided(at).unwrap().at, cost: 1 };
    let adjustments = [
        Adjustment { limit: &reachable, key: Key(on_a), change: refund(0) },
        Adjustment { limit: &lost, key: Key(on_b), change: refund(1) },
    ];
    let adjusted = handle.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(adjusted.are_made(), [true, false]);
    b.resume();
    eventually("the other refund is made once", async || {
        let peeked = handle.peek(&[charge(&lost, on_b)], now()).await.unwrap();
        !peeked.is_fallback() && peeked.decision(0).used == 0
    })
    .await;
    assert_eq!(counter_store.stats().dropped_corrections, 0);
}

#[tokio::test]
async fn a_stale_replica_serves_status_reads_only() {
    let server = primary();
    let mut replica = replica_of(&server);
    let replicas = vec![replica.url().into()];
    let topology = Topology::Shards(vec![ShardUrls { primary: server.url().into(), replicas }]);
    let clock = Clock::manual(NOW);
    let counter_store = CounterStore::redis(redis_options(topology), clock.clone(), 100).unwrap();
    let handle = counter_store.worker();
    let limit = limit("stale", 3);
    let one = [charge(&limit, 1)];
    assert!(handle.charge(&one, NOW).await.unwrap().admitted);
    eventually("the replica has the record", async || {
        replica.command::<u64>(&["DBSIZE"]) == 1
            && counter_store.peek(&one).await.unwrap().decision(0).remaining == 2
    })
    .await;

    // From here on the replica receives no updates, but still replies.
    let nowhere = RedisServer::not_started().port().to_string();
    let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &nowhere]);
    let exhaust = async |count: usize| {
        for _ in 0..count {
            assert!(handle.charge(&one, NOW).await.unwrap().admitted);
        }
        assert!(!handle.charge(&one, NOW).await.unwrap().admitted);
    };
    exhaust(2).await;
    assert_eq!(
        counter_store.peek(&one).await.unwrap().decision(0).remaining,
        2,
        "from the replica"
    );
    assert_eq!(handle.peek(&one, NOW).await.unwrap().decision(0).remaining, 0, "from the primary");

    // The record has long expired by the clock; the replica still has it.
    clock.set(NOW + ms(3_600_000));
    assert_eq!(replica.command::<u64>(&["DBSIZE"]), 1);
    let peeked = counter_store.peek(&one).await.unwrap().decision(0);
    assert_eq!((peeked.remaining, peeked.used), (3, 0));
    replica.kill();
    assert!(handle.charge(&one, NOW + ms(3_600_000)).await.unwrap().admitted);
    assert_eq!(
        counter_store.peek(&one).await.unwrap().decision(0).remaining,
        2,
        "from the primary"
    );
}

#[tokio::test]
async fn a_demoted_primary_is_lost_until_promoted_again() {
    let [server, other] = [primary(), primary()];
    let counter_store = counter_store(shards(&[&server]));
    let handle = counter_store.worker();
    let limit = limit("demoted", 1_000);
    wait_for_redis("the server decides", &handle, &limit, 1).await;
    replicate(&server, &other);
    assert!(decide(&handle, &[charge(&limit, 1)]).await.is_fallback());
    // It keeps replying, but must not be treated as writable.
    let before = rejected_writes(&server);
    eventually("the server is probed twice", async || rejected_writes(&server) > before + 1).await;
    assert!(decide(&handle, &[charge(&limit, 1)]).await.is_fallback());
    let _: String = server.command(&["REPLICAOF", "NO", "ONE"]);
    wait_for_redis("the server decides again", &handle, &limit, 1).await;
}
