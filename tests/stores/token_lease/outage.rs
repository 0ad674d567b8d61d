use testkit::{
    redis_server::RedisServer,
    verdict::VerdictExt as _,
    wait::{TIMEOUT, eventually_async},
};
use tidegate::{
    clock::Clock,
    limit::{Limit, OnFailure, Quota},
    store::{CounterStore, Failure, RedisOptions, StoreError},
};

use super::{Gateway, multi_limit::before, reserving};
use crate::support::{NOW, charge, hasty, limit, options};

/// A gateway with 50 tokens of `limit`, and the number of charges.
async fn stocked(options: RedisOptions, limit: &Limit) -> (Gateway, u64) {
    let clock = Clock::manual(NOW);
    let stores = CounterStore::redis(options, clock, 1_000).expect("usable options");
    let gateway = Gateway::on(stores);
    let mut charged = 0;
    eventually_async("fifty are here", async || {
        let here = gateway.outstanding();
        charged += u64::from(here != 50 && !gateway.ask(&[charge(limit, 1)]).await.is_fallback());
        here == 50
    })
    .await;
    (gateway, charged)
}

/// A limit whose sub-window does not end during a test.
fn long(policy: OnFailure) -> Limit {
    let limit = reserving("long", 1_000, 50);
    Limit { on_failure: policy, quota: Quota::new(1_000, 86_400_000, 1), ..limit }
}

#[tokio::test]
async fn local_tokens_are_spent_before_the_outage_policy_applies() {
    for policy in [OnFailure::Local, OnFailure::Open, OnFailure::Closed] {
        let (mut redis, limit) = (RedisServer::start(), long(policy));
        let (gateway, mut charged) = stocked(options(&redis), &limit).await;
        redis.kill();
        for _ in 0..50 {
            charged += 1;
            let verdict = gateway.ask(&[charge(&limit, 1)]).await;
            assert!(verdict.admitted && !verdict.is_fallback());
            assert_eq!(verdict.decision(0).used, charged);
        }
        let stats = gateway.stores.stats();
        assert_eq!((stats.failures[Failure::Open.index()], stats.fallbacks(policy)), (0, 0));
        let outcome = gateway.store.charge(&[charge(&limit, 1)], NOW).await;
        match policy {
            OnFailure::Closed => assert_eq!(outcome, Err(StoreError::Unavailable { limit: 0 })),
            OnFailure::Open => assert!(outcome.unwrap().decided(0).is_none()),
            OnFailure::Local => assert_eq!(outcome.unwrap().decision(0).used, 1),
        }
        assert_eq!(gateway.stores.stats().fallbacks(policy), 1);
        redis.restart();
        eventually_async("Redis decides again", async || {
            let outcome = gateway.store.charge(&[charge(&limit, 1)], NOW).await;
            outcome.is_ok_and(|verdict| !verdict.is_fallback())
        })
        .await;
        assert!(gateway.outstanding() > 0);
    }
}

#[tokio::test]
async fn tokens_of_an_unanswered_fetch_are_counted_as_lost() {
    let (redis, limit) = (RedisServer::start(), long(OnFailure::Local));
    let (gateway, _) = stocked(hasty(&redis), &limit).await;
    let lost = || gateway.stores.stats().tokens.lost;
    assert_eq!(lost(), 0);
    redis.suspend();
    for _ in 0..50 {
        assert!(!gateway.ask(&[charge(&limit, 1)]).await.is_fallback());
    }
    assert!(gateway.ask(&[charge(&limit, 1)]).await.is_fallback());
    // A waiter may time out slightly before its fetch.
    eventually_async("its own and the fifty ahead are lost", async || lost() == 51).await;
    assert!(gateway.ask(&[charge(&limit, 1)]).await.is_fallback());
    assert_eq!(lost(), 51, "what was not sent is not lost");
    redis.resume();
    eventually_async("Redis decides again", async || {
        !gateway.ask(&[charge(&limit, 1)]).await.is_fallback()
    })
    .await;
    let tokens = gateway.stores.stats().tokens;
    let used = gateway.used(&limit).await;
    assert!(used <= tokens.granted + tokens.lost, "{used} of {tokens:?}");
}

/// They cannot be returned, and can still be spent here.
#[tokio::test]
async fn idle_tokens_are_kept_while_their_server_is_lost() {
    let (here, mut lost) = (RedisServer::start(), RedisServer::start());
    let clock = Clock::manual(NOW);
    let (gateway, keys) = before(&[&here, &lost], &clock).await;
    let (limit, other) = (long(OnFailure::Local), limit("other", 1_000));
    for &key in &keys {
        assert!(gateway.ask(&[charge(&limit, key)]).await.admitted);
    }
    assert_eq!(gateway.outstanding(), 100);
    lost.kill();
    let is_lost = async || gateway.ask(&[charge(&other, keys[1])]).await.is_fallback();
    eventually_async("it is lost", is_lost).await;
    let left = async |left: u64| {
        eventually_async("the others are given back", async || {
            clock.set(clock.now() + 100);
            gateway.outstanding() == left
        })
        .await;
    };
    left(50).await;
    assert!(!gateway.ask(&[charge(&limit, keys[1])]).await.is_fallback(), "spent here");
    lost.restart();
    left(0).await;
    gateway.store.leave(TIMEOUT).await;
    let tokens = gateway.stores.stats().tokens;
    assert_eq!((tokens.given_back, tokens.lost), (99, 0), "{tokens:?}");
}

#[tokio::test]
async fn unreturnable_tokens_are_counted_as_lost() {
    let (mut redis, limit) = (RedisServer::start(), long(OnFailure::Local));
    let (gateway, _) = stocked(options(&redis), &limit).await;
    redis.kill();
    gateway.store.leave(TIMEOUT).await;
    let tokens = gateway.stores.stats().tokens;
    assert_eq!((tokens.given_back, tokens.lost), (0, 50), "{tokens:?}");
}
