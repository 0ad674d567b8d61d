use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
    wait::{STEP, TIMEOUT, eventually_async, while_clock_advances},
};
use tidegate::{
    charge::{Adjustment, Charge, DecisionSource, Limit, OnFailure, Verdict},
    limit::Change,
    redis::{RedisFailure, RedisOptions, Topology},
    store::{CounterStore, StoreError, StoreHandle},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{charge, clock, eventually, gateway, limit, now, options, rejected_writes};

fn with_policy(name: &str, quota: u64, on_failure: OnFailure, index: usize) -> Arc<Limit> {
    Arc::new(Limit { on_failure, index, ..Limit::clone(&limit(name, quota)) })
}

/// Charges one unit while the clock stands still, so that a request that waits for a timeout waits
/// forever.
async fn charge_before_timeout(
    handle: &StoreHandle,
    limit: &Arc<Limit>,
) -> Result<Verdict, StoreError> {
    let charges = [charge(limit, 1)];
    let outcome = tokio::time::timeout(TIMEOUT, handle.charge(&charges, now())).await;
    outcome.expect("no wait for a timeout")
}

/// Runs a call to a hung Redis. Asserts that it waits for exactly the response timeout.
async fn wait_for_timeout<T>(redis: &RedisServer, call: impl Future<Output = T>) -> T {
    let timeout = options(redis).response_timeout;
    let (output, took) = while_clock_advances(&clock(), call).await;
    assert!((timeout..=timeout + STEP).contains(&took), "waited {took:?}");
    output
}

/// Charges one unit. Panics if the decision has to wait.
fn charge_at_once(handle: &StoreHandle, limit: &Arc<Limit>) -> Verdict {
    let outcome = handle.charge(&[charge(limit, 1)], now()).now_or_never();
    outcome.expect("a decision at once").expect("a local policy")
}

/// Waits until Redis decides again.
async fn wait_for_recovery(counter_store: &CounterStore, handle: &StoreHandle) {
    let limit = limit("recovery", 1_000_000);
    eventually("Redis decides again", async || {
        let before = counter_store.stats().failures;
        handle.charge(&[charge(&limit, 99)], now()).await.expect("a local policy");
        counter_store.stats().failures == before
    })
    .await;
    assert!(counter_store.status().is_healthy());
}

fn failures(counter_store: &CounterStore, kind: RedisFailure) -> u64 {
    counter_store.stats().failures[kind.index()]
}

#[tokio::test]
async fn without_redis_at_start_each_policy_applies_until_it_recovers() {
    let mut redis = RedisServer::not_started();
    let (counter_store, handle) = gateway(&redis);
    let local = with_policy("local", 2, OnFailure::Local, 0);
    let open = with_policy("open", 2, OnFailure::Open, 1);
    let closed = with_policy("closed", 2, OnFailure::Closed, 2);

    assert!(charge_before_timeout(&handle, &local).await.unwrap().decision(0).admitted);
    assert!(charge_before_timeout(&handle, &local).await.unwrap().admitted);
    let refused = charge_before_timeout(&handle, &local).await.unwrap();
    assert!(!refused.admitted && refused.decision(0).retry_at.is_some());

    for _ in 0..5 {
        let verdict = charge_before_timeout(&handle, &open).await.unwrap();
        assert!(verdict.admitted && verdict.decided(0).is_none());
    }
    let outcome = charge_before_timeout(&handle, &closed).await;
    assert_eq!(outcome, Err(StoreError::Unavailable { limit: 2 }));
    assert!(!counter_store.status().is_healthy());
    let stats = counter_store.stats();
    assert_eq!(stats.fallbacks(OnFailure::Local), 3);
    assert_eq!(stats.fallbacks(OnFailure::Open), 5);
    assert_eq!(stats.fallbacks(OnFailure::Closed), 1);

    redis.restart();
    wait_for_recovery(&counter_store, &handle).await;
    assert!(charge_before_timeout(&handle, &closed).await.unwrap().decided(0).is_some());
}

#[tokio::test]
async fn mixed_policies_stay_all_or_none() {
    let redis = RedisServer::not_started();
    let (_stores, handle) = gateway(&redis);
    let narrow = with_policy("narrow", 1, OnFailure::Local, 0);
    let broad = with_policy("broad", 10, OnFailure::Local, 1);
    let open = with_policy("open", 1, OnFailure::Open, 2);
    let closed = with_policy("closed", 1, OnFailure::Closed, 3);

    let three = [charge(&open, 1), charge(&broad, 1), charge(&narrow, 1)];
    let all = [three[0], three[1], three[2], charge(&closed, 1)];
    let outcome = handle.charge(&all, now()).await;
    assert_eq!(outcome, Err(StoreError::Unavailable { limit: 3 }));
    let verdict = handle.charge(&three, now()).await.unwrap();
    assert!(verdict.admitted, "the refusal by the closed limit charged nothing");
    let counted: Vec<bool> =
        verdict.outcomes.iter().map(|outcome| outcome.decided().is_some()).collect();
    assert_eq!(counted, [false, true, true]);
    assert!(!handle.charge(&three, now()).await.unwrap().admitted);
    let verdict = handle.charge(&[charge(&broad, 1)], now()).await.unwrap();
    assert_eq!(verdict.decision(0).remaining, 8, "the refusal charged nothing");
}

#[tokio::test]
async fn a_redis_killed_under_load_fails_and_delays_no_request() {
    let mut redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("load", 1_000_000);
    for round in 0..3_000 {
        if round == 1_000 {
            redis.kill();
        }
        // After the first detection no request waits.
        if failures(&counter_store, RedisFailure::Io) > 0 {
            assert!(charge_at_once(&handle, &limit).admitted);
            continue;
        }
        assert!(charge_before_timeout(&handle, &limit).await.unwrap().admitted);
    }
    let stats = counter_store.stats();
    assert!(failures(&counter_store, RedisFailure::Unsent) >= 1_900, "{stats:?}");
    assert!(failures(&counter_store, RedisFailure::Io) >= 1, "{stats:?}");
    redis.restart();
    wait_for_recovery(&counter_store, &handle).await;
}

#[tokio::test]
async fn a_hung_redis_delays_only_the_first_requests() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("hang", 1_000);
    assert!(charge_before_timeout(&handle, &limit).await.unwrap().admitted);
    let before = failures(&counter_store, RedisFailure::Timeout);
    redis.suspend();
    let charges = [charge(&limit, 1)];
    let both =
        async { tokio::join!(handle.charge(&charges, now()), handle.charge(&charges, now())) };
    let (first, second) = wait_for_timeout(&redis, both).await;
    assert!(first.unwrap().admitted && second.unwrap().admitted);
    let timeouts = || failures(&counter_store, RedisFailure::Timeout) - before;
    assert_eq!(timeouts(), 2, "neither call was repeated");
    for _ in 0..100 {
        assert!(charge_at_once(&handle, &limit).admitted);
    }
    // Attempts to reconnect also hang, and delay no request.
    clock().advance(Duration::from_millis(1_500));
    assert!(charge_at_once(&handle, &limit).admitted);
    assert_eq!(timeouts(), 2);
    redis.resume();
    wait_for_recovery(&counter_store, &handle).await;
}

#[tokio::test]
async fn a_redis_that_hangs_at_start_delays_only_the_first_request() {
    let redis = RedisServer::start();
    redis.suspend();
    // Connecting takes longer than a request may wait.
    let options = RedisOptions { connect_timeout: Duration::from_mins(1), ..options(&redis) };
    let counter_store = CounterStore::redis(options, clock(), 10_000).expect("usable options");
    let handle = counter_store.worker();
    let limit = limit("start", 1_000);
    let charges = [charge(&limit, 1)];
    let outcome = wait_for_timeout(&redis, handle.charge(&charges, now())).await;
    assert!(outcome.unwrap().is_fallback());
    for _ in 0..100 {
        assert!(charge_at_once(&handle, &limit).is_fallback());
    }
    redis.resume();
    wait_for_recovery(&counter_store, &handle).await;
}

#[tokio::test]
async fn an_outage_found_by_one_worker_delays_no_other() {
    let redis = RedisServer::start();
    let (counter_store, first) = gateway(&redis);
    let others = [counter_store.worker(), counter_store.worker(), counter_store.worker()];
    let limit = limit("lost", 1_000);
    for other in &others {
        eventually("Redis decides", async || {
            !other.charge(&[charge(&limit, 1)], now()).await.unwrap().is_fallback()
        })
        .await;
    }
    let late = failures(&counter_store, RedisFailure::Timeout);
    redis.suspend();
    let charges = [charge(&limit, 1)];
    let outcome = wait_for_timeout(&redis, first.charge(&charges, now())).await;
    assert!(outcome.unwrap().is_fallback());
    // The clock stands still from here on: no worker has to wait for a ping's timeout.
    let all_open = async || counter_store.status().lost_workers == 4;
    eventually_async("the breakers of all workers open", all_open).await;
    for other in &others {
        assert!(charge_at_once(other, &limit).is_fallback());
    }
    assert_eq!(failures(&counter_store, RedisFailure::Timeout), late + 1, "only the first waited");
    redis.resume();
    for handle in others.iter().chain([&first]) {
        wait_for_recovery(&counter_store, handle).await;
    }
}

#[tokio::test]
async fn a_flushed_script_is_reloaded_transparently() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("script", 10);
    assert_eq!(charge_before_timeout(&handle, &limit).await.unwrap().decision(0).remaining, 9);
    let _: String = redis.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(charge_before_timeout(&handle, &limit).await.unwrap().decision(0).remaining, 8);
    let _: String = redis.command(&["FLUSHALL"]);
    assert_eq!(charge_before_timeout(&handle, &limit).await.unwrap().decision(0).remaining, 9);
    assert_eq!(counter_store.stats().failures, [0; 5]);
}

#[tokio::test]
async fn a_read_only_or_full_redis_is_an_outage() {
    for (break_command, repair_command) in [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
    ] {
        let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
        let (counter_store, handle) = gateway(&redis);
        let limit = limit("full", 10);
        assert!(charge_before_timeout(&handle, &limit).await.unwrap().admitted);
        let _: String = redis.command(&break_command);
        assert!(charge_before_timeout(&handle, &limit).await.unwrap().admitted);
        assert_eq!(failures(&counter_store, RedisFailure::Server), 1, "{break_command:?}");
        // The probe must not accept a Redis that replies but refuses writes.
        let before = rejected_writes(&redis);
        eventually("Redis is probed twice", async || rejected_writes(&redis) > before + 1).await;
        assert!(!counter_store.status().is_healthy());
        let _: String = redis.command(&repair_command);
        wait_for_recovery(&counter_store, &handle).await;
    }
}

/// A worker of one of two gateways, after Redis was killed. The gateways run until the guard is
/// dropped.
async fn one_of_two_gateways_without_redis() -> (StoreHandle, DropGuard) {
    let mut redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let other = CounterStore::redis(options(&redis), clock(), 1_000).expect("usable options");
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    tokio::spawn(other.run(stop.clone()));
    eventually("two gateways", async || counter_store.status().gateways == 2).await;
    redis.kill();
    (handle, stop.drop_guard())
}

#[tokio::test]
async fn the_local_share_divides_the_quota_by_the_last_gateway_count() {
    let (handle, _stop) = one_of_two_gateways_without_redis().await;
    let limit = limit("share", 11);
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u32::from(charge_before_timeout(&handle, &limit).await.unwrap().admitted);
    }
    assert_eq!(admitted, 6);
}

#[tokio::test]
async fn a_local_share_admits_at_least_one_request() {
    let (handle, _stop) = one_of_two_gateways_without_redis().await;
    let expensive = Arc::new(Limit { cost: 8, ..Limit::clone(&limit("expensive", 10)) });
    let decide = async || {
        let charges = [Charge { cost: 8, ..charge(&expensive, 1) }];
        handle.charge(&charges, now()).await.unwrap()
    };
    assert!(decide().await.admitted);
    let refused = decide().await;
    assert!(!refused.admitted && refused.decision(0).retry_at.is_some());
}

#[tokio::test]
async fn no_password_is_printed() {
    let mut options = options(&RedisServer::not_started());
    options.topology = Topology::one("redis://user:hunter2@127.0.0.1:1");
    assert!(!format!("{options:?}").contains("hunter2"));
    options.topology = Topology::one("http://user:hunter2@127.0.0.1:1");
    let Err(error) = CounterStore::redis(options, clock(), 10) else { panic!("a wrong scheme") };
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

#[tokio::test]
async fn an_adjustment_has_the_charges_timeout_and_is_not_repeated() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("adjusted", 10);
    let charged_at = handle.charge(&[charge(&limit, 1)], now()).await.unwrap().decided_at();
    let change = Change::Refund { charged_at, cost: 1 };
    let adjustments = [Adjustment { limit: &limit, key: charge(&limit, 1).key, change }];
    let adjusted = handle.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(adjusted.decision(0).remaining, 10);

    let _: String = redis.command(&["SCRIPT", "FLUSH"]);
    let again = handle.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert!(again.are_made()[0], "a flushed script is sent again");

    let failed =
        || [RedisFailure::Timeout, RedisFailure::Unsent].map(|kind| failures(&counter_store, kind));
    let before = failed();
    redis.suspend();
    let adjusting = handle.adjust(&adjustments, DecisionSource::Store, now());
    assert_eq!(wait_for_timeout(&redis, adjusting).await.are_made(), [false]);
    let again = handle.adjust(&adjustments, DecisionSource::Store, now()).now_or_never();
    assert_eq!(again.map(|adjusted| adjusted.are_made()), Some(vec![false]), "at once");
    assert_eq!(failed(), before.map(|count| count + 1), "neither call was repeated");
    redis.resume();
    wait_for_recovery(&counter_store, &handle).await;
}

#[tokio::test]
async fn a_charge_made_during_an_outage_is_adjusted_in_memory() {
    let mut redis = RedisServer::not_started();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("fallback", 10);
    let verdict = handle.charge(&[charge(&limit, 1)], now()).await.unwrap();
    assert!(verdict.is_fallback() && verdict.decision(0).remaining == 9);
    redis.restart();
    wait_for_recovery(&counter_store, &handle).await;
    let other = handle.charge(&[charge(&limit, 1)], now()).await.unwrap();
    assert!(!other.is_fallback() && other.decision(0).remaining == 9, "Redis counts its own");

    let change = Change::Refund { charged_at: verdict.decided_at(), cost: 1 };
    let adjustments = [Adjustment { limit: &limit, key: charge(&limit, 1).key, change }];
    let adjusted = handle.adjust(&adjustments, DecisionSource::Fallback, now()).await;
    assert_eq!(adjusted.decision(0).remaining, 10, "remaining by the local count");
    let peeked = handle.peek(&[charge(&limit, 1)], now()).await.unwrap();
    assert_eq!(peeked.decision(0).remaining, 9, "Redis is not credited");
}
