use std::{sync::Arc, time::Duration};

use testkit::{
    redis_server::RedisServer,
    verdict::VerdictExt as _,
    wait::{TIMEOUT, eventually_async, while_clock_advances},
};
use tidegate::{
    charge::{Charge, Key, Limit, OnFailure, Verdict},
    limit::Change,
    redis::RedisFailure,
    store::{Correction, CounterStore, StoreHandle},
};

use crate::support::{
    charge, clock, eventually, gateway, limit, limits_of_each_algorithm, now, wait_for_outage,
};

async fn used(counter_store: &CounterStore, limit: &Arc<Limit>) -> u64 {
    let peeked =
        counter_store.peek(&[Charge { cost: 0, ..charge(limit, 1) }]).await.expect("Redis");
    peeked.decision(0).used
}

/// Charges one unit of each limit concurrently while Redis hangs. Returns the admissions.
async fn charge_while_redis_hangs(
    redis: &RedisServer,
    handle: &StoreHandle,
    limits: &[Arc<Limit>],
) -> Vec<bool> {
    // Without a connection, nothing would be sent.
    let verdict = handle.charge(&[charge(&limit("connected", 10), 98)], now()).await;
    assert!(!verdict.expect("a policy").is_fallback());
    redis.suspend();
    let charging = limits.iter().map(async |limit| {
        let verdict = handle.charge(&[charge(limit, 1)], now()).await;
        verdict.is_ok_and(|verdict| verdict.is_fallback() && verdict.admitted)
    });
    let charging = futures_util::future::join_all(charging);
    let (admitted, _) = while_clock_advances(&clock(), charging).await;
    redis.resume();
    admitted
}

/// A request decided locally is counted locally. Redis would date the late charge when it wakes up.
#[tokio::test]
async fn a_late_charge_of_an_admitted_request_is_refunded() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limits = limits_of_each_algorithm();
    assert_eq!(charge_while_redis_hangs(&redis, &handle, &limits).await, [true; 6]);
    for limit in &limits {
        // Not before the late charge was made.
        let records = || redis.command::<Vec<String>>(&["KEYS", &format!("*:{}:*", limit.name())]);
        eventually(&format!("{} counts nothing", limit.name()), async || {
            !records().is_empty() && used(&counter_store, limit).await == 0
        })
        .await;
    }
}

/// A request refused for lack of a reply has used nothing.
#[tokio::test]
async fn a_late_charge_of_a_refused_request_is_refunded() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let mut limits = limits_of_each_algorithm();
    for limit in &mut limits {
        Arc::make_mut(limit).on_failure = OnFailure::Closed;
    }
    assert_eq!(charge_while_redis_hangs(&redis, &handle, &limits).await, [false; 6]);
    for limit in &limits {
        eventually(&format!("{} counts nothing", limit.name()), async || {
            used(&counter_store, limit).await == 0
        })
        .await;
    }
}

/// A refund of the unit of `limit` that `verdict` charged.
fn refund(limit: &Arc<Limit>, verdict: &Verdict) -> Correction {
    let charged_at = verdict.decided_at() + verdict.decision(0).wait;
    let change = Change::Refund { charged_at, cost: 1 };
    Correction {
        limit: Arc::clone(limit),
        key: Key(1),
        change,
        source: verdict.decided(0).expect("a decision").source,
    }
}

#[tokio::test]
async fn adjustments_during_an_outage_are_made_in_order() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limits = limits_of_each_algorithm();
    let mut refunds = Vec::new();
    for _ in 0..40 {
        for limit in &limits {
            let verdict = handle.charge(&[charge(limit, 1)], now()).await.expect("Redis");
            assert!(verdict.admitted && !verdict.is_fallback());
            refunds.push(refund(limit, &verdict));
        }
    }
    redis.suspend();
    wait_for_outage(&counter_store, &handle).await;
    // In a leaky bucket, only the last slot can be refunded.
    refunds.reverse();
    handle.adjust_in_background(refunds, now());
    redis.resume();
    for limit in &limits {
        eventually(&format!("{} is refunded", limit.name()), async || {
            used(&counter_store, limit).await == 0
        })
        .await;
    }
    assert_eq!(counter_store.stats().dropped_corrections, 0);
}

#[tokio::test]
async fn adjustments_of_several_workers_keep_their_order() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let workers = [handle, counter_store.worker(), counter_store.worker()];
    let bucket =
        limits_of_each_algorithm().into_iter().find(|limit| limit.algorithm().takes_slot());
    let bucket = bucket.expect("one of each");
    let mut refunds = Vec::new();
    for at in 0..39 {
        let verdict = workers[at % 3].charge(&[charge(&bucket, 1)], now()).await.expect("Redis");
        assert!(verdict.admitted && !verdict.is_fallback());
        refunds.push(refund(&bucket, &verdict));
    }
    redis.suspend();
    for (at, refund) in refunds.into_iter().rev().enumerate() {
        workers[at % 3].adjust_in_background([refund], now());
    }
    redis.resume();
    eventually("every slot is free", async || used(&counter_store, &bucket).await == 0).await;
}

#[tokio::test]
async fn a_stopping_worker_flushes_its_queue() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("left", 1_000);
    let mut refunds = Vec::new();
    for _ in 0..300 {
        let verdict = handle.charge(&[charge(&limit, 1)], now()).await.expect("Redis");
        refunds.push(refund(&limit, &verdict));
    }
    handle.adjust_in_background(refunds, now());
    while_clock_advances(&clock(), handle.shut_down(TIMEOUT)).await;
    assert_eq!(used(&counter_store, &limit).await, 0);
}

#[tokio::test]
async fn adjustments_of_an_ended_worker_are_sent_by_another() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("ended", 1_000);
    let verdict = handle.charge(&[charge(&limit, 1)], now()).await.expect("Redis");
    let (other_counter_store, charged) = (counter_store.clone(), limit.clone());
    let ended = std::thread::spawn(move || {
        let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = builder.expect("a runtime");
        let handle = runtime.block_on(async { other_counter_store.worker() });
        let entered = runtime.enter();
        handle.adjust_in_background([refund(&charged, &verdict)], now());
        // The runtime ends before it runs the spawned sender.
        drop(entered);
        drop(runtime);
    });
    ended.join().expect("no panic");
    eventually("the charge is refunded", async || used(&counter_store, &limit).await == 0).await;
}

/// An error reply means that Redis made none of the adjustments, so they stay queued.
#[tokio::test]
async fn a_rejected_adjustment_is_retried_once() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("refused", 1_000);
    let mut refunds = Vec::new();
    for _ in 0..2 {
        let verdict = handle.charge(&[charge(&limit, 1)], now()).await.expect("Redis");
        refunds.push(refund(&limit, &verdict));
    }
    let user = |rights: &[&str]| {
        let command = ["ACL", "SETUSER", "default"];
        let _: String = redis.command(&[&command[..], rights].concat());
    };
    let failed = || counter_store.stats().failures[RedisFailure::Server.index()];
    // The clock stands still until the next probe, whose success sends the adjustment again.
    let wait_until_used = async |expected| {
        clock().advance(Duration::from_secs(2));
        eventually_async("Redis has made it", async || {
            clock().advance(Duration::from_millis(10));
            used(&counter_store, &limit).await == expected
        })
        .await;
    };
    user(&["-evalsha", "-eval"]);
    handle.adjust_in_background(refunds.drain(..1), now());
    eventually_async("Redis has refused it", async || failed() == 1).await;
    user(&["+evalsha", "+eval"]);
    wait_until_used(1).await;
    assert_eq!(counter_store.stats().dropped_corrections, 0);
    user(&["-evalsha", "-eval"]);
    handle.adjust_in_background(refunds, now());
    eventually_async("Redis has refused it", async || failed() == 2).await;
    assert_eq!((failed(), counter_store.stats().dropped_corrections), (2, 0), "it stays queued");
    user(&["+evalsha", "+eval"]);
    wait_until_used(0).await;
}
