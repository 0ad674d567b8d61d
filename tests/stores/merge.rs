use tidegate::{
    limit::{Algorithm, Change, Charge, Decider, Key, Limit, Quota, Settlement},
    store::{Failure, Store, Stores},
};
use tokio_util::sync::CancellationToken;

use crate::verdict::VerdictExt as _;
use crate::{
    redis_server::RedisServer,
    support::{charge, eventually, gateway, hasty_gateway, limit, lose, now, of_each_algorithm},
};

/// The algorithms of which a store that was lost is told.
const TOLD: [Algorithm; 4] = [
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

/// Charges so much, one after the other, in whichever store there is.
async fn spend(store: &Store, limit: &Limit, count: u32) {
    for _ in 0..count {
        assert!(store.charge(&[charge(limit, 1)], now()).await.expect("a local policy").admitted);
    }
}

/// Makes requests of somebody else until Redis decides again and has heard everything.
async fn regain(stores: &Stores, store: &Store) {
    let other = limit("other", 1_000_000);
    eventually("Redis has heard", async || {
        let verdict = store.charge(&[charge(&other, 98)], now()).await.expect("a local policy");
        !verdict.is_fallback() && stores.stats().unmerged == 0
    })
    .await;
}

async fn used(stores: &Stores, limit: &Limit) -> u64 {
    let looked = stores.look(&[Charge { cost: 0, ..charge(limit, 1) }]).await.expect("Redis");
    looked.decision(0).used
}

#[tokio::test]
async fn what_was_used_while_redis_hung_counts_when_it_is_back() {
    let redis = RedisServer::start();
    let (stores, store) = hasty_gateway(&redis).await;
    let limits = of_each_algorithm();
    for limit in &limits {
        spend(&store, limit, 3).await;
    }
    redis.suspend();
    lose(&stores, &store).await;
    for limit in &limits {
        spend(&store, limit, 7).await;
    }
    redis.resume();
    regain(&stores, &store).await;
    for limit in &limits {
        let told = TOLD.contains(&limit.algorithm);
        assert_eq!(used(&stores, limit).await, if told { 10 } else { 3 }, "{}", limit.name);
    }
    let stats = stores.stats();
    assert_eq!(stats.merge_drops, 0, "{stats:?}");
    assert!(stats.merged >= 4, "{stats:?}");
}

/// What is told of him moves the time at which a dearer request may come again.
#[tokio::test]
async fn a_refusal_from_before_the_loss_is_not_told_any_more() {
    let redis = RedisServer::start();
    let (stores, store) = hasty_gateway(&redis).await;
    let quota = Quota::new(100, 6_000_000, 1);
    let limit = Limit { algorithm: Algorithm::TokenBucket, quota, ..limit("bucket", 100) };
    spend(&store, &limit, 98).await;
    let dear = [Charge { cost: 5, ..charge(&limit, 1) }];
    let retry_at = async || {
        let verdict = store.charge(&dear, now()).await.expect("a local policy");
        verdict.decision(0).retry_at.expect("three are missing")
    };
    let before = retry_at().await;
    redis.suspend();
    lose(&stores, &store).await;
    spend(&store, &limit, 2).await;
    assert_eq!(retry_at().await, before, "what is known holds without Redis");
    redis.resume();
    regain(&stores, &store).await;
    assert!(retry_at().await > before + 60_000, "two more, a minute each");
}

#[tokio::test]
async fn what_was_used_counts_in_a_redis_that_came_back_empty_and_is_told_once() {
    let mut redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let limits = of_each_algorithm();
    for limit in &limits {
        spend(&store, limit, 3).await;
    }
    redis.kill();
    lose(&stores, &store).await;
    for limit in &limits {
        spend(&store, limit, 7).await;
        let charged_at = now();
        let change = Change::Refund { charged_at, cost: 2 };
        let settlements = [Settlement { limit, key: Key(1), change }];
        store.settle(&settlements, Decider::Fallback, charged_at).await;
    }
    redis.restart();
    regain(&stores, &store).await;
    for limit in &limits {
        let told = TOLD.contains(&limit.algorithm);
        assert_eq!(used(&stores, limit).await, if told { 5 } else { 0 }, "{}", limit.name);
    }
    regain(&stores, &store).await;
    assert_eq!(used(&stores, &limits[0]).await, 5, "told once");
}

/// Their answers come when Redis has been told of them.
#[tokio::test]
async fn what_is_given_back_of_a_sum_that_was_told_is_given_back_in_redis() {
    let redis = RedisServer::start();
    let (stores, store) = hasty_gateway(&redis).await;
    let limits = of_each_algorithm();
    let told: Vec<&Limit> = limits.iter().filter(|of| TOLD.contains(&of.algorithm)).collect();
    redis.suspend();
    lose(&stores, &store).await;
    let charged_at = now();
    for limit in &told {
        spend(&store, limit, 7).await;
    }
    redis.resume();
    regain(&stores, &store).await;
    for limit in told {
        assert_eq!(used(&stores, limit).await, 7, "{}", limit.name);
        spend(&store, limit, 1).await;
        let change = Change::Refund { charged_at, cost: 1 };
        let settlement = Settlement { limit, key: Key(1), change };
        // One more than was decided here: that one is nothing to give back.
        for _ in 0..8 {
            store.settle(&[settlement], Decider::Fallback, now()).await;
        }
        eventually("what was decided here is given back, and no more", async || {
            used(&stores, limit).await == 1
        })
        .await;
    }
}

#[tokio::test]
async fn gateways_all_tell_what_each_of_them_admitted() {
    let mut redis = RedisServer::start();
    let (one, two) = (gateway(&redis), gateway(&redis));
    let limits = of_each_algorithm();
    redis.kill();
    for (stores, store) in [&one, &two] {
        lose(stores, store).await;
        for limit in &limits {
            spend(store, limit, 20).await;
        }
    }
    redis.restart();
    // Whoever began its windows last tells first.
    for (stores, store) in [&two, &one] {
        regain(stores, store).await;
    }
    for limit in limits.iter().filter(|limit| TOLD.contains(&limit.algorithm)) {
        assert_eq!(used(&one.0, limit).await, 40, "{}", limit.name);
    }
}

#[tokio::test]
async fn many_callers_are_told_in_calls_of_bounded_size() {
    let mut redis = RedisServer::absent();
    let (stores, store) = gateway(&redis);
    let of = limit("many", 100);
    lose(&stores, &store).await;
    for key in 1_000..3_000 {
        store.charge(&[charge(&of, key << 64)], now()).await.unwrap();
    }
    assert!(stores.stats().unmerged >= 2_000);
    redis.restart();
    regain(&stores, &store).await;
    let stats = stores.stats();
    assert!(stats.merged >= 2_000 && stats.merge_drops == 0, "{stats:?}");
    let looked = stores.look(&[charge(&of, 2_999 << 64)]).await.unwrap();
    assert_eq!(looked.decision(0).used, 1);
    assert_eq!(stats.failures[Failure::Timeout.index()], 0);
}

#[tokio::test]
async fn a_gateway_that_nobody_asks_any_more_tells_all_the_same() {
    let mut redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let of = limit("idle", 100);
    redis.kill();
    lose(&stores, &store).await;
    spend(&store, &of, 7).await;
    redis.restart();
    eventually("Redis has heard", async || stores.stats().unmerged == 0).await;
    assert_eq!(used(&stores, &of).await, 7);
    stop.cancel();
}
