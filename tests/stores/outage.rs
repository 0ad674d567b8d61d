use std::time::{Duration, Instant};

use futures_util::FutureExt;
use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
    wait::eventually_async,
};
use tidegate::{
    clock::{self, Clock},
    limit::{Adjustment, Change, Charge, DecisionSource, Limit, OnFailure, Verdict},
    store::{CounterStore, Failure, StoreError, StoreHandle, Topology},
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    charge, gateway, limit, now, options, short_timeout_gateway, short_timeout_options,
};

/// The longest request when a dead Redis is detected at once: far below the timeout.
const MAX_WITHOUT_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest request when Redis hangs: the timeout plus slack for a busy machine.
const MAX_WITH_TIMEOUT: Duration = Duration::from_millis(2_500);

fn with_policy(name: &str, quota: u32, on_failure: OnFailure, index: usize) -> Limit {
    Limit { on_failure, index, ..limit(name, quota) }
}

/// Charges one unit. Returns the verdict and the duration.
async fn timed_charge(
    store: &StoreHandle,
    limit: &Limit,
) -> (Result<Verdict, StoreError>, Duration) {
    let start: Instant = clock::instant();
    let outcome = store.charge(&[charge(limit, 1)], now()).await;
    (outcome, start.elapsed())
}

/// Charges one unit. Panics if the decision has to wait.
fn charge_at_once(store: &StoreHandle, limit: &Limit) -> Verdict {
    let outcome = store.charge(&[charge(limit, 1)], now()).now_or_never();
    outcome.expect("a decision at once").expect("a local policy")
}

/// Waits until Redis decides again.
async fn wait_for_recovery(stores: &CounterStore, store: &StoreHandle) {
    let limit = limit("recovery", 1_000_000);
    eventually_async("Redis decides again", async || {
        let before = stores.stats().failures;
        store.charge(&[charge(&limit, 99)], now()).await.expect("a local policy");
        stores.stats().failures == before
    })
    .await;
    assert!(stores.status().is_healthy());
}

fn failures(stores: &CounterStore, kind: Failure) -> u64 {
    stores.stats().failures[kind.index()]
}

#[tokio::test]
async fn without_redis_at_start_each_policy_applies_until_it_recovers() {
    let mut redis = RedisServer::not_started();
    let (stores, store) = gateway(&redis);
    let local = with_policy("local", 2, OnFailure::Local, 0);
    let open = with_policy("open", 2, OnFailure::Open, 1);
    let closed = with_policy("closed", 2, OnFailure::Closed, 2);

    let (outcome, took) = timed_charge(&store, &local).await;
    let decision = outcome.unwrap().decision(0);
    assert!(decision.admitted && took < MAX_WITHOUT_TIMEOUT, "{took:?}");
    assert!(timed_charge(&store, &local).await.0.unwrap().admitted);
    let refused = timed_charge(&store, &local).await.0.unwrap();
    assert!(!refused.admitted && refused.decision(0).retry_at.is_some());

    for _ in 0..5 {
        let verdict = timed_charge(&store, &open).await.0.unwrap();
        assert!(verdict.admitted && verdict.decided(0).is_none());
    }
    let outcome = timed_charge(&store, &closed).await.0;
    assert_eq!(outcome, Err(StoreError::Unavailable { limit: 2 }));
    assert!(!stores.status().is_healthy());
    let stats = stores.stats();
    assert_eq!(stats.fallbacks(OnFailure::Local), 3);
    assert_eq!(stats.fallbacks(OnFailure::Open), 5);
    assert_eq!(stats.fallbacks(OnFailure::Closed), 1);

    redis.restart();
    wait_for_recovery(&stores, &store).await;
    assert!(timed_charge(&store, &closed).await.0.unwrap().decided(0).is_some());
}

#[tokio::test]
async fn mixed_policies_stay_all_or_none() {
    let redis = RedisServer::not_started();
    let (_stores, store) = gateway(&redis);
    let narrow = with_policy("narrow", 1, OnFailure::Local, 0);
    let broad = with_policy("broad", 10, OnFailure::Local, 1);
    let open = with_policy("open", 1, OnFailure::Open, 2);
    let closed = with_policy("closed", 1, OnFailure::Closed, 3);

    let three = [charge(&open, 1), charge(&broad, 1), charge(&narrow, 1)];
    let all = [three[0], three[1], three[2], charge(&closed, 1)];
    let outcome = store.charge(&all, now()).await;
    assert_eq!(outcome, Err(StoreError::Unavailable { limit: 3 }));
    let verdict = store.charge(&three, now()).await.unwrap();
    assert!(verdict.admitted, "the refusal by the closed limit charged nothing");
    let counted: Vec<bool> =
        verdict.outcomes.iter().map(|outcome| outcome.decided().is_some()).collect();
    assert_eq!(counted, [false, true, true]);
    assert!(!store.charge(&three, now()).await.unwrap().admitted);
    let verdict = store.charge(&[charge(&broad, 1)], now()).await.unwrap();
    assert_eq!(verdict.decision(0).remaining, 8, "the refusal charged nothing");
}

#[tokio::test]
async fn a_redis_killed_under_load_fails_and_delays_no_request() {
    let mut redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let limit = limit("load", 1_000_000);
    for round in 0..3_000 {
        if round == 1_000 {
            redis.kill();
        }
        // After the first detection no request waits.
        if failures(&stores, Failure::Io) > 0 {
            assert!(charge_at_once(&store, &limit).admitted);
            continue;
        }
        let (outcome, took) = timed_charge(&store, &limit).await;
        assert!(outcome.unwrap().admitted);
        assert!(took < MAX_WITHOUT_TIMEOUT, "a request waited {took:?}");
    }
    let stats = stores.stats();
    assert!(failures(&stores, Failure::Open) >= 1_900, "{stats:?}");
    assert!(failures(&stores, Failure::Io) >= 1, "{stats:?}");
    redis.restart();
    wait_for_recovery(&stores, &store).await;
}

#[tokio::test]
async fn a_hung_redis_delays_only_the_first_requests() {
    let redis = RedisServer::start();
    let (stores, store) = short_timeout_gateway(&redis).await;
    let limit = limit("hang", 1_000);
    assert!(timed_charge(&store, &limit).await.0.unwrap().admitted);
    let before = failures(&stores, Failure::Timeout);
    redis.suspend();
    let (first, second) = tokio::join!(timed_charge(&store, &limit), timed_charge(&store, &limit));
    for (outcome, took) in [first, second] {
        assert!(outcome.unwrap().admitted);
        assert!(took < MAX_WITH_TIMEOUT, "waited {took:?}");
    }
    let timeouts = || failures(&stores, Failure::Timeout) - before;
    assert_eq!(timeouts(), 2, "neither call was repeated");
    for _ in 0..100 {
        assert!(charge_at_once(&store, &limit).admitted);
    }
    // Attempts to reconnect hang as well, and delay no request.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(charge_at_once(&store, &limit).admitted);
    assert_eq!(timeouts(), 2);
    redis.resume();
    wait_for_recovery(&stores, &store).await;
}

#[tokio::test]
async fn a_redis_that_hangs_at_start_delays_only_the_first_request() {
    let redis = RedisServer::start();
    redis.suspend();
    let stores = CounterStore::redis(short_timeout_options(&redis), Clock::system(), 10_000)
        .expect("usable options");
    let store = stores.worker();
    let limit = limit("start", 1_000);
    let (outcome, took) = timed_charge(&store, &limit).await;
    assert!(outcome.unwrap().is_fallback() && took < MAX_WITH_TIMEOUT, "waited {took:?}");
    // Connecting may still take 5 s.
    for _ in 0..100 {
        assert!(charge_at_once(&store, &limit).is_fallback());
    }
    redis.resume();
    wait_for_recovery(&stores, &store).await;
    // No call was sent, so every admitted request is merged, also the first.
    eventually_async("all are counted", async || {
        let peeked = store.peek(&[charge(&limit, 1)], now()).await.unwrap();
        !peeked.is_fallback() && peeked.decision(0).used == 101
    })
    .await;
}

#[tokio::test]
async fn an_outage_found_by_one_worker_delays_no_other() {
    let redis = RedisServer::start();
    let (stores, first) = short_timeout_gateway(&redis).await;
    let others = [stores.worker(), stores.worker(), stores.worker()];
    let limit = limit("lost", 1_000);
    for other in &others {
        eventually_async("Redis decides", async || {
            !other.charge(&[charge(&limit, 1)], now()).await.unwrap().is_fallback()
        })
        .await;
    }
    let late = failures(&stores, Failure::Timeout);
    redis.suspend();
    let suspended: Instant = clock::instant();
    assert!(timed_charge(&first, &limit).await.0.unwrap().is_fallback());
    eventually_async("the breakers of all workers open", async || stores.status().lost == 4).await;
    // If each worker had to ping, it would take the connect timeout of 5 s.
    assert!(suspended.elapsed() < MAX_WITHOUT_TIMEOUT);
    for other in &others {
        assert!(charge_at_once(other, &limit).is_fallback());
    }
    assert_eq!(failures(&stores, Failure::Timeout), late + 1, "only the first waited");
    redis.resume();
    for store in others.iter().chain([&first]) {
        wait_for_recovery(&stores, store).await;
    }
}

#[tokio::test]
async fn a_flushed_script_is_reloaded_transparently() {
    let redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let limit = limit("script", 10);
    assert_eq!(timed_charge(&store, &limit).await.0.unwrap().decision(0).remaining, 9);
    let _: String = redis.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(timed_charge(&store, &limit).await.0.unwrap().decision(0).remaining, 8);
    let _: String = redis.command(&["FLUSHALL"]);
    assert_eq!(timed_charge(&store, &limit).await.0.unwrap().decision(0).remaining, 9);
    assert_eq!(stores.stats().failures, [0; 5]);
}

#[tokio::test]
async fn a_read_only_or_full_redis_is_an_outage() {
    for (break_command, mend_command) in [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
    ] {
        let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
        let (stores, store) = gateway(&redis);
        let limit = limit("full", 10);
        assert!(timed_charge(&store, &limit).await.0.unwrap().admitted);
        let _: String = redis.command(&break_command);
        assert!(timed_charge(&store, &limit).await.0.unwrap().admitted);
        assert_eq!(failures(&stores, Failure::Server), 1, "{break_command:?}");
        // The probe must not accept a Redis that replies but refuses writes.
        tokio::time::sleep(Duration::from_millis(1_600)).await;
        assert!(!stores.status().is_healthy());
        let _: String = redis.command(&mend_command);
        wait_for_recovery(&stores, &store).await;
    }
}

#[tokio::test]
async fn the_local_share_divides_the_quota_by_the_last_gateway_count() {
    let mut redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let other = CounterStore::redis(options(&redis), Clock::system(), 1_000).unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    tokio::spawn(other.clone().run(stop.clone()));
    eventually_async("two gateways", async || stores.status().gateways == 2).await;
    redis.kill();
    let limit = limit("share", 11);
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u32::from(timed_charge(&store, &limit).await.0.unwrap().admitted);
    }
    assert_eq!(admitted, 6);
    stop.cancel();
}

#[tokio::test]
async fn a_local_share_admits_at_least_one_request() {
    let mut redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let other = CounterStore::redis(options(&redis), Clock::system(), 1_000).unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    tokio::spawn(other.clone().run(stop.clone()));
    eventually_async("two gateways", async || stores.status().gateways == 2).await;
    redis.kill();
    let expensive = Limit { cost: 8, ..limit("expensive", 10) };
    let decide = async || {
        let charges = [Charge { cost: 8, ..charge(&expensive, 1) }];
        store.charge(&charges, now()).await.unwrap()
    };
    assert!(decide().await.admitted);
    let refused = decide().await;
    assert!(!refused.admitted && refused.decision(0).retry_at.is_some());
    stop.cancel();
}

#[tokio::test]
async fn no_password_is_printed() {
    let mut options = options(&RedisServer::not_started());
    options.topology = Topology::one("redis://user:hunter2@127.0.0.1:1");
    assert!(!format!("{options:?}").contains("hunter2"));
    options.topology = Topology::one("http://user:hunter2@127.0.0.1:1");
    let Err(error) = CounterStore::redis(options, Clock::system(), 10) else {
        panic!("a wrong scheme")
    };
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

#[tokio::test]
async fn an_adjustment_has_the_charges_timeout_and_is_not_repeated() {
    let redis = RedisServer::start();
    let (stores, store) = short_timeout_gateway(&redis).await;
    let limit = limit("adjusted", 10);
    let charged_at = store.charge(&[charge(&limit, 1)], now()).await.unwrap().decided_at();
    let change = Change::Refund { charged_at, cost: 1 };
    let adjustments = [Adjustment { limit: &limit, key: charge(&limit, 1).key, change }];
    let adjusted = store.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert_eq!(adjusted.decision(0).remaining, 10);

    let _: String = redis.command(&["SCRIPT", "FLUSH"]);
    let again = store.adjust(&adjustments, DecisionSource::Store, now()).await;
    assert!(again.are_made()[0], "a flushed script is sent again");

    let failed = || [Failure::Timeout, Failure::Open].map(|kind| failures(&stores, kind));
    let before = failed();
    redis.suspend();
    let start: Instant = clock::instant();
    assert_eq!(store.adjust(&adjustments, DecisionSource::Store, now()).await.are_made(), [false]);
    assert!(start.elapsed() < MAX_WITH_TIMEOUT);
    let again = store.adjust(&adjustments, DecisionSource::Store, now()).now_or_never();
    assert_eq!(again.map(|adjusted| adjusted.are_made()), Some(vec![false]), "at once");
    assert_eq!(failed(), before.map(|count| count + 1), "neither call was repeated");
    redis.resume();
    wait_for_recovery(&stores, &store).await;
}

#[tokio::test]
async fn a_charge_made_during_an_outage_is_adjusted_in_memory() {
    let mut redis = RedisServer::not_started();
    let (stores, store) = gateway(&redis);
    let limit = limit("fallback", 10);
    let verdict = store.charge(&[charge(&limit, 1)], now()).await.unwrap();
    assert!(verdict.is_fallback() && verdict.decision(0).remaining == 9);
    redis.restart();
    wait_for_recovery(&stores, &store).await;
    eventually_async("the usage is merged", async || {
        let peeked = store.peek(&[charge(&limit, 1)], now()).await.expect("a local policy");
        stores.stats().unmerged == 0 && peeked.decision(0).used == 1
    })
    .await;
    let other = store.charge(&[charge(&limit, 1)], now()).await.unwrap();
    assert!(!other.is_fallback() && other.decision(0).remaining == 8);

    let change = Change::Refund { charged_at: verdict.decided_at(), cost: 1 };
    let adjustments = [Adjustment { limit: &limit, key: charge(&limit, 1).key, change }];
    let adjusted = store.adjust(&adjustments, DecisionSource::Fallback, now()).await;
    assert_eq!(adjusted.decision(0).remaining, 10, "remaining by the local count");
    let peeked = store.peek(&[charge(&limit, 1)], now()).await.unwrap();
    assert_eq!(peeked.decision(0).remaining, 8, "Redis keeps the merged usage");
}
