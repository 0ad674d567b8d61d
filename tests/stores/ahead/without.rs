use tidegate::{
    clock::Clock,
    limit::{Limit, OnFailure, Quota},
    store::{Failure, StoreError, Stores},
};

use super::{BEHIND, Gateway, reserving};
use crate::{
    redis_server::RedisServer,
    support::{NOW, charge, eventually, options},
};

/// A gateway with 50 tokens of `limit`; how often it was charged.
async fn stocked(redis: &RedisServer, limit: &Limit) -> (Gateway, u64) {
    let clock = Clock::manual(NOW);
    let stores = Stores::redis(options(redis), clock, 1_000).expect("usable options");
    let gateway = Gateway::on(stores);
    let mut charged = 0;
    eventually("fifty are here", BEHIND, async || {
        let here = gateway.outstanding();
        charged += u64::from(here != 50 && !gateway.ask(&[charge(limit, 1)]).await.fallback);
        here == 50
    })
    .await;
    (gateway, charged)
}

/// A limit whose sub-window does not end while a test runs.
fn long(policy: OnFailure) -> Limit {
    let limit = reserving("long", 1_000, 50);
    Limit { on_failure: policy, quota: Quota::new(1_000, 86_400_000, 1), ..limit }
}

#[tokio::test]
async fn tokens_that_are_here_are_spent_before_any_policy_applies() {
    for policy in [OnFailure::Local, OnFailure::Open, OnFailure::Closed] {
        let (mut redis, limit) = (RedisServer::start(), long(policy));
        let (gateway, mut charged) = stocked(&redis, &limit).await;
        redis.kill();
        for _ in 0..50 {
            charged += 1;
            let verdict = gateway.ask(&[charge(&limit, 1)]).await;
            assert!(verdict.admitted && !verdict.fallback && verdict.decisions[0].counted);
            assert_eq!(verdict.decisions[0].used, charged);
        }
        let stats = gateway.stores.stats();
        assert_eq!((stats.failures[Failure::Open.index()], stats.fallbacks(policy)), (0, 0));
        let outcome = gateway.store.charge(&[charge(&limit, 1)], NOW).await;
        match policy {
            OnFailure::Closed => assert_eq!(outcome, Err(StoreError::Unavailable { limit: 0 })),
            OnFailure::Open => assert!(!outcome.unwrap().decisions[0].counted),
            OnFailure::Local => assert_eq!(outcome.unwrap().decisions[0].used, 1),
        }
        assert_eq!(gateway.stores.stats().fallbacks(policy), 1);
        redis.restart();
        eventually("Redis decides again", BEHIND, async || {
            let outcome = gateway.store.charge(&[charge(&limit, 1)], NOW).await;
            outcome.is_ok_and(|verdict| !verdict.fallback)
        })
        .await;
        assert!(gateway.outstanding() > 0);
    }
}

#[tokio::test]
async fn what_a_fetch_without_an_answer_may_have_taken_is_counted_as_lost() {
    let (redis, limit) = (RedisServer::start(), long(OnFailure::Local));
    let (gateway, _) = stocked(&redis, &limit).await;
    let lost = || gateway.stores.stats().tokens.lost;
    assert_eq!(lost(), 0);
    redis.suspend();
    for _ in 0..50 {
        assert!(!gateway.ask(&[charge(&limit, 1)]).await.fallback);
    }
    assert!(gateway.ask(&[charge(&limit, 1)]).await.fallback);
    assert_eq!(lost(), 51, "its own and the fifty ahead");
    assert!(gateway.ask(&[charge(&limit, 1)]).await.fallback);
    assert_eq!(lost(), 51, "what was not sent is not lost");
    redis.resume();
    eventually("Redis decides again", BEHIND, async || {
        !gateway.ask(&[charge(&limit, 1)]).await.fallback
    })
    .await;
    let tokens = gateway.stores.stats().tokens;
    let used = gateway.used(&limit).await;
    assert!(used <= tokens.granted + tokens.lost, "{used} of {tokens:?}");
}

#[tokio::test]
async fn what_could_not_be_given_back_is_counted_as_lost() {
    let (mut redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = reserving("ahead", 1_000, 50);
    assert!(gateway.one(&limit).await.admitted);
    redis.kill();
    super::idle(&gateway, &clock).await;
    eventually("they are lost", BEHIND, async || gateway.stores.stats().tokens.lost == 50).await;
    assert_eq!(gateway.stores.stats().tokens.given_back, 0);
}
