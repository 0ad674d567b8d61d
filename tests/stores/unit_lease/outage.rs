use std::sync::Arc;

use testkit::{
    redis_server::RedisServer,
    verdict::VerdictExt as _,
    wait::{TIMEOUT, eventually_async, while_clock_advances},
};
use tidegate::clock::ms;
use tidegate::{
    charge::{Limit, OnFailure},
    limit::{Millis, Quota},
    redis::{RedisFailure, RedisOptions},
    store::{CounterStore, StoreError},
};

use super::{LeaseGateway, leased_limit, multi_limit::sharded_gateway};
use crate::support::{NOW, charge, clock, eventually, limit, options, short_timeout_options};

/// A gateway with 50 leased units of `limit`, and the number of its charges.
async fn gateway_with_units(options: RedisOptions, limit: &Arc<Limit>) -> (LeaseGateway, u64) {
    let counter_store = CounterStore::redis(options, clock(), 1_000).expect("usable options");
    let gateway = LeaseGateway::on(counter_store);
    let mut charged = 0;
    // The clock stands still, so that no call of a busy machine times out.
    eventually_async("50 units are leased", async || {
        let outstanding = gateway.outstanding();
        charged += u64::from(
            outstanding != 50 && !gateway.decide(&[charge(limit, 1)]).await.is_fallback(),
        );
        outstanding == 50
    })
    .await;
    (gateway, charged)
}

/// A limit with a reserve of 50, whose sub-window does not end during a test.
fn daily_limit(policy: OnFailure) -> Arc<Limit> {
    let limit = leased_limit("daily", 1_000, 50);
    Arc::new(Limit {
        on_failure: policy,
        quota: Quota::sliding(1_000, Millis::from_secs(86_400), 1),
        ..Limit::clone(&limit)
    })
}

#[tokio::test]
async fn local_units_are_spent_before_the_outage_policy_applies() {
    for policy in [OnFailure::Local, OnFailure::Open, OnFailure::Closed] {
        let (mut redis, limit) = (RedisServer::start(), daily_limit(policy));
        let (gateway, mut charged) = gateway_with_units(options(&redis), &limit).await;
        redis.kill();
        for _ in 0..50 {
            charged += 1;
            let verdict = gateway.decide(&[charge(&limit, 1)]).await;
            assert!(verdict.admitted && !verdict.is_fallback());
            assert_eq!(verdict.decision(0).used, charged);
        }
        let stats = gateway.counter_store.stats();
        assert_eq!((stats.failures[RedisFailure::Unsent.index()], stats.fallbacks(policy)), (0, 0));
        let outcome = gateway.handle.charge(&[charge(&limit, 1)], NOW).await;
        match policy {
            OnFailure::Closed => assert_eq!(outcome, Err(StoreError::Unavailable { limit: 0 })),
            OnFailure::Open => assert!(outcome.unwrap().decided(0).is_none()),
            OnFailure::Local => assert_eq!(outcome.unwrap().decision(0).used, 1),
        }
        assert_eq!(gateway.counter_store.stats().fallbacks(policy), 1);
        redis.restart();
        eventually("Redis decides again", async || {
            let outcome = gateway.handle.charge(&[charge(&limit, 1)], NOW).await;
            outcome.is_ok_and(|verdict| !verdict.is_fallback())
        })
        .await;
        assert!(gateway.outstanding() > 0);
    }
}

#[tokio::test]
async fn units_of_an_unanswered_fetch_are_counted_as_lost() {
    let (redis, limit) = (RedisServer::start(), daily_limit(OnFailure::Local));
    let (gateway, _) = gateway_with_units(short_timeout_options(&redis), &limit).await;
    let lost = || gateway.counter_store.stats().leases.lost;
    assert_eq!(lost(), 0);
    redis.suspend();
    for _ in 0..50 {
        assert!(!gateway.decide(&[charge(&limit, 1)]).await.is_fallback());
    }
    let charges = [charge(&limit, 1)];
    let (verdict, _) = while_clock_advances(&clock(), gateway.decide(&charges)).await;
    assert!(verdict.is_fallback());
    // A waiter may time out slightly before its fetch.
    eventually("the needed unit and the 50 of the reserve are lost", async || lost() == 51).await;
    assert!(gateway.decide(&[charge(&limit, 1)]).await.is_fallback());
    assert_eq!(lost(), 51, "an unsent fetch loses nothing");
    redis.resume();
    eventually("Redis decides again", async || {
        !gateway.decide(&[charge(&limit, 1)]).await.is_fallback()
    })
    .await;
    let units = gateway.counter_store.stats().leases;
    let used = gateway.used(&limit).await;
    assert!(used <= units.granted + units.lost, "{used} of {units:?}");
}

/// Units of a lost server cannot be returned, but can still be spent.
#[tokio::test]
async fn idle_units_are_kept_while_their_server_is_lost() {
    let (here, mut lost) = (RedisServer::start(), RedisServer::start());
    let clock = clock();
    let (gateway, keys) = sharded_gateway(&[&here, &lost], &clock).await;
    let (limit, other) = (daily_limit(OnFailure::Local), limit("other", 1_000));
    for &key in &keys {
        assert!(gateway.decide(&[charge(&limit, key)]).await.admitted);
    }
    assert_eq!(gateway.outstanding(), 100);
    lost.kill();
    let is_lost = async || gateway.decide(&[charge(&other, keys[1])]).await.is_fallback();
    eventually("the outage is detected", is_lost).await;
    let wait_for_returns = async |left: u64| {
        eventually_async("the other units are returned", async || {
            clock.set(clock.store_time() + ms(100));
            gateway.outstanding() == left
        })
        .await;
    };
    wait_for_returns(50).await;
    assert!(!gateway.decide(&[charge(&limit, keys[1])]).await.is_fallback(), "a leased unit");
    lost.restart();
    wait_for_returns(0).await;
    while_clock_advances(&clock, gateway.handle.shut_down(TIMEOUT)).await;
    let units = gateway.counter_store.stats().leases;
    assert_eq!((units.returned, units.lost), (99, 0), "{units:?}");
}

#[tokio::test]
async fn unreturnable_units_are_counted_as_lost() {
    let (mut redis, limit) = (RedisServer::start(), daily_limit(OnFailure::Local));
    let (gateway, _) = gateway_with_units(options(&redis), &limit).await;
    redis.kill();
    while_clock_advances(&clock(), gateway.handle.shut_down(TIMEOUT)).await;
    let units = gateway.counter_store.stats().leases;
    assert_eq!((units.returned, units.lost), (0, 50), "{units:?}");
}
