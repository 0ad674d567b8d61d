use testkit::{redis_server::RedisServer, verdict::VerdictExt as _};
use tidegate::{
    limit::{Adjustment, Algorithm, Change, Charge, DecisionSource, Key, Limit, Quota},
    store::{CounterStore, Failure, StoreHandle},
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    charge, eventually, gateway, limit, limits_of_each_algorithm, now, wait_for_outage,
};

/// The algorithms whose usage is merged after an outage.
const MERGED: [Algorithm; 4] = [
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

/// Charges `count` units one after the other, in Redis or locally.
async fn spend(handle: &StoreHandle, limit: &Limit, count: u32) {
    for _ in 0..count {
        assert!(handle.charge(&[charge(limit, 1)], now()).await.expect("a local policy").admitted);
    }
}

/// Sends requests of another limit until Redis decides again and everything is merged.
async fn wait_for_merge(counter_store: &CounterStore, handle: &StoreHandle) {
    let other = limit("other", 1_000_000);
    eventually("the usage is merged", async || {
        let verdict = handle.charge(&[charge(&other, 98)], now()).await.expect("a local policy");
        !verdict.is_fallback() && counter_store.stats().unmerged == 0
    })
    .await;
}

async fn used(counter_store: &CounterStore, limit: &Limit) -> u64 {
    let peeked =
        counter_store.peek(&[Charge { cost: 0, ..charge(limit, 1) }]).await.expect("Redis");
    peeked.decision(0).used
}

#[tokio::test]
async fn usage_during_a_hang_is_merged() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limits = limits_of_each_algorithm();
    for limit in &limits {
        spend(&handle, limit, 3).await;
    }
    redis.suspend();
    wait_for_outage(&counter_store, &handle).await;
    for limit in &limits {
        spend(&handle, limit, 7).await;
    }
    redis.resume();
    wait_for_merge(&counter_store, &handle).await;
    for limit in &limits {
        let is_merged = MERGED.contains(&limit.algorithm);
        assert_eq!(
            used(&counter_store, limit).await,
            if is_merged { 10 } else { 3 },
            "{}",
            limit.name
        );
    }
    let stats = counter_store.stats();
    assert_eq!(stats.dropped_corrections, 0, "{stats:?}");
    assert!(stats.merged >= 4, "{stats:?}");
}

/// The merge delays the `retry_at` of an expensive request.
#[tokio::test]
async fn a_refusal_from_before_the_outage_is_not_reported() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let quota = Quota::new(100, 6_000_000, 1);
    let limit = Limit { algorithm: Algorithm::TokenBucket, quota, ..limit("bucket", 100) };
    spend(&handle, &limit, 98).await;
    let expensive = [Charge { cost: 5, ..charge(&limit, 1) }];
    let retry_at = async || {
        let verdict = handle.charge(&expensive, now()).await.expect("a local policy");
        verdict.decision(0).retry_at.expect("a refusal")
    };
    let before = retry_at().await;
    redis.suspend();
    wait_for_outage(&counter_store, &handle).await;
    spend(&handle, &limit, 2).await;
    assert_eq!(retry_at().await, before, "the cached refusal holds without Redis");
    redis.resume();
    wait_for_merge(&counter_store, &handle).await;
    assert!(retry_at().await > before + 60_000, "two more, a minute each");
}

#[tokio::test]
async fn usage_is_merged_once_into_an_empty_redis() {
    let mut redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limits = limits_of_each_algorithm();
    for limit in &limits {
        spend(&handle, limit, 3).await;
    }
    redis.kill();
    wait_for_outage(&counter_store, &handle).await;
    for limit in &limits {
        spend(&handle, limit, 7).await;
        let charged_at = now();
        let change = Change::Refund { charged_at, cost: 2 };
        let adjustments = [Adjustment { limit, key: Key(1), change }];
        handle.adjust(&adjustments, DecisionSource::Fallback, charged_at).await;
    }
    redis.restart();
    wait_for_merge(&counter_store, &handle).await;
    for limit in &limits {
        let is_merged = MERGED.contains(&limit.algorithm);
        assert_eq!(
            used(&counter_store, limit).await,
            if is_merged { 5 } else { 0 },
            "{}",
            limit.name
        );
    }
    wait_for_merge(&counter_store, &handle).await;
    assert_eq!(used(&counter_store, &limits[0]).await, 5, "merged once");
}

/// The requests end, and are refunded, after the merge.
#[tokio::test]
async fn refunds_of_merged_usage_are_made_in_redis() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limits = limits_of_each_algorithm();
    let merged_limits: Vec<&Limit> =
        limits.iter().filter(|limit| MERGED.contains(&limit.algorithm)).collect();
    redis.suspend();
    wait_for_outage(&counter_store, &handle).await;
    let charged_at = now();
    for limit in &merged_limits {
        spend(&handle, limit, 7).await;
    }
    redis.resume();
    wait_for_merge(&counter_store, &handle).await;
    for limit in merged_limits {
        assert_eq!(used(&counter_store, limit).await, 7, "{}", limit.name);
        spend(&handle, limit, 1).await;
        let change = Change::Refund { charged_at, cost: 1 };
        let adjustment = Adjustment { limit, key: Key(1), change };
        // One more than was charged locally: the last has nothing to refund.
        for _ in 0..8 {
            handle.adjust(&[adjustment], DecisionSource::Fallback, now()).await;
        }
        eventually("only the local charges are refunded", async || {
            used(&counter_store, limit).await == 1
        })
        .await;
    }
}

#[tokio::test]
async fn every_gateway_merges_its_usage() {
    let mut redis = RedisServer::start();
    let (one, two) = (gateway(&redis), gateway(&redis));
    let limits = limits_of_each_algorithm();
    redis.kill();
    for (counter_store, handle) in [&one, &two] {
        wait_for_outage(counter_store, handle).await;
        for limit in &limits {
            spend(handle, limit, 20).await;
        }
    }
    redis.restart();
    // The gateway that detected the outage last merges first.
    for (counter_store, handle) in [&two, &one] {
        wait_for_merge(counter_store, handle).await;
    }
    for limit in limits.iter().filter(|limit| MERGED.contains(&limit.algorithm)) {
        assert_eq!(used(&one.0, limit).await, 40, "{}", limit.name);
    }
}

#[tokio::test]
async fn merges_are_sent_in_bounded_calls() {
    let mut redis = RedisServer::not_started();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("many", 100);
    wait_for_outage(&counter_store, &handle).await;
    for key in 1_000..3_000 {
        handle.charge(&[charge(&limit, key << 64)], now()).await.unwrap();
    }
    assert!(counter_store.stats().unmerged >= 2_000);
    redis.restart();
    wait_for_merge(&counter_store, &handle).await;
    let stats = counter_store.stats();
    assert!(stats.merged >= 2_000 && stats.dropped_corrections == 0, "{stats:?}");
    let peeked = counter_store.peek(&[charge(&limit, 2_999 << 64)]).await.unwrap();
    assert_eq!(peeked.decision(0).used, 1);
    assert_eq!(stats.failures[Failure::Timeout.index()], 0);
}

#[tokio::test]
async fn an_idle_gateway_merges_its_usage() {
    let mut redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    let limit = limit("idle", 100);
    redis.kill();
    wait_for_outage(&counter_store, &handle).await;
    spend(&handle, &limit, 7).await;
    redis.restart();
    eventually("the usage is merged", async || counter_store.stats().unmerged == 0).await;
    assert_eq!(used(&counter_store, &limit).await, 7);
    stop.cancel();
}
