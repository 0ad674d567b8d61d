use testkit::{redis_server::RedisServer, verdict::VerdictExt as _, wait::eventually_async};
use tidegate::{
    limit::{Adjustment, Algorithm, Change, Charge, DecisionSource, Key, Limit, Quota},
    store::{CounterStore, Failure, StoreHandle},
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    charge, gateway, limit, now, of_each_algorithm, short_timeout_gateway, wait_for_outage,
};

/// The algorithms whose usage is merged after an outage.
const MERGED: [Algorithm; 4] = [
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

/// Charges `count` units one after the other, in Redis or locally.
async fn spend(store: &StoreHandle, limit: &Limit, count: u32) {
    for _ in 0..count {
        assert!(store.charge(&[charge(limit, 1)], now()).await.expect("a local policy").admitted);
    }
}

/// Sends requests of another limit until Redis decides again and everything is merged.
async fn wait_for_merge(stores: &CounterStore, store: &StoreHandle) {
    let other = limit("other", 1_000_000);
    eventually_async("the usage is merged", async || {
        let verdict = store.charge(&[charge(&other, 98)], now()).await.expect("a local policy");
        !verdict.is_fallback() && stores.stats().unmerged == 0
    })
    .await;
}

async fn used(stores: &CounterStore, limit: &Limit) -> u64 {
    let peeked = stores.peek(&[Charge { cost: 0, ..charge(limit, 1) }]).await.expect("Redis");
    peeked.decision(0).used
}

#[tokio::test]
async fn usage_during_a_hang_is_merged() {
    let redis = RedisServer::start();
    let (stores, store) = short_timeout_gateway(&redis).await;
    let limits = of_each_algorithm();
    for limit in &limits {
        spend(&store, limit, 3).await;
    }
    redis.suspend();
    wait_for_outage(&stores, &store).await;
    for limit in &limits {
        spend(&store, limit, 7).await;
    }
    redis.resume();
    wait_for_merge(&stores, &store).await;
    for limit in &limits {
        let is_merged = MERGED.contains(&limit.algorithm);
        assert_eq!(used(&stores, limit).await, if is_merged { 10 } else { 3 }, "{}", limit.name);
    }
    let stats = stores.stats();
    assert_eq!(stats.merge_drops, 0, "{stats:?}");
    assert!(stats.merged >= 4, "{stats:?}");
}

/// The merge delays the `retry_at` of an expensive request.
#[tokio::test]
async fn a_refusal_from_before_the_outage_is_not_reported() {
    let redis = RedisServer::start();
    let (stores, store) = short_timeout_gateway(&redis).await;
    let quota = Quota::new(100, 6_000_000, 1);
    let limit = Limit { algorithm: Algorithm::TokenBucket, quota, ..limit("bucket", 100) };
    spend(&store, &limit, 98).await;
    let expensive = [Charge { cost: 5, ..charge(&limit, 1) }];
    let retry_at = async || {
        let verdict = store.charge(&expensive, now()).await.expect("a local policy");
        verdict.decision(0).retry_at.expect("a refusal")
    };
    let before = retry_at().await;
    redis.suspend();
    wait_for_outage(&stores, &store).await;
    spend(&store, &limit, 2).await;
    assert_eq!(retry_at().await, before, "the cached refusal holds without Redis");
    redis.resume();
    wait_for_merge(&stores, &store).await;
    assert!(retry_at().await > before + 60_000, "two more, a minute each");
}

#[tokio::test]
async fn usage_is_merged_once_into_an_empty_redis() {
    let mut redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let limits = of_each_algorithm();
    for limit in &limits {
        spend(&store, limit, 3).await;
    }
    redis.kill();
    wait_for_outage(&stores, &store).await;
    for limit in &limits {
        spend(&store, limit, 7).await;
        let charged_at = now();
        let change = Change::Refund { charged_at, cost: 2 };
        let adjustments = [Adjustment { limit, key: Key(1), change }];
        store.adjust(&adjustments, DecisionSource::Fallback, charged_at).await;
    }
    redis.restart();
    wait_for_merge(&stores, &store).await;
    for limit in &limits {
        let is_merged = MERGED.contains(&limit.algorithm);
        assert_eq!(used(&stores, limit).await, if is_merged { 5 } else { 0 }, "{}", limit.name);
    }
    wait_for_merge(&stores, &store).await;
    assert_eq!(used(&stores, &limits[0]).await, 5, "merged once");
}

/// The requests end, and are refunded, after the merge.
#[tokio::test]
async fn refunds_of_merged_usage_are_made_in_redis() {
    let redis = RedisServer::start();
    let (stores, store) = short_timeout_gateway(&redis).await;
    let limits = of_each_algorithm();
    let merged_limits: Vec<&Limit> =
        limits.iter().filter(|limit| MERGED.contains(&limit.algorithm)).collect();
    redis.suspend();
    wait_for_outage(&stores, &store).await;
    let charged_at = now();
    for limit in &merged_limits {
        spend(&store, limit, 7).await;
    }
    redis.resume();
    wait_for_merge(&stores, &store).await;
    for limit in merged_limits {
        assert_eq!(used(&stores, limit).await, 7, "{}", limit.name);
        spend(&store, limit, 1).await;
        let change = Change::Refund { charged_at, cost: 1 };
        let adjustment = Adjustment { limit, key: Key(1), change };
        // One more than was charged locally: the last has nothing to refund.
        for _ in 0..8 {
            store.adjust(&[adjustment], DecisionSource::Fallback, now()).await;
        }
        eventually_async("only the local charges are refunded", async || {
            used(&stores, limit).await == 1
        })
        .await;
    }
}

#[tokio::test]
async fn every_gateway_merges_its_usage() {
    let mut redis = RedisServer::start();
    let (one, two) = (gateway(&redis), gateway(&redis));
    let limits = of_each_algorithm();
    redis.kill();
    for (stores, store) in [&one, &two] {
        wait_for_outage(stores, store).await;
        for limit in &limits {
            spend(store, limit, 20).await;
        }
    }
    redis.restart();
    // The gateway that detected the outage last merges first.
    for (stores, store) in [&two, &one] {
        wait_for_merge(stores, store).await;
    }
    for limit in limits.iter().filter(|limit| MERGED.contains(&limit.algorithm)) {
        assert_eq!(used(&one.0, limit).await, 40, "{}", limit.name);
    }
}

#[tokio::test]
async fn merges_are_sent_in_bounded_calls() {
    let mut redis = RedisServer::not_started();
    let (stores, store) = gateway(&redis);
    let limit = limit("many", 100);
    wait_for_outage(&stores, &store).await;
    for key in 1_000..3_000 {
        store.charge(&[charge(&limit, key << 64)], now()).await.unwrap();
    }
    assert!(stores.stats().unmerged >= 2_000);
    redis.restart();
    wait_for_merge(&stores, &store).await;
    let stats = stores.stats();
    assert!(stats.merged >= 2_000 && stats.merge_drops == 0, "{stats:?}");
    let peeked = stores.peek(&[charge(&limit, 2_999 << 64)]).await.unwrap();
    assert_eq!(peeked.decision(0).used, 1);
    assert_eq!(stats.failures[Failure::Timeout.index()], 0);
}

#[tokio::test]
async fn an_idle_gateway_merges_its_usage() {
    let mut redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let limit = limit("idle", 100);
    redis.kill();
    wait_for_outage(&stores, &store).await;
    spend(&store, &limit, 7).await;
    redis.restart();
    eventually_async("the usage is merged", async || stores.stats().unmerged == 0).await;
    assert_eq!(used(&stores, &limit).await, 7);
    stop.cancel();
}
