use std::{sync::Arc, time::Duration};

use tidegate::{
    limit::{Algorithm, Change, Charge, Key, Limit, OnFailure, Verdict},
    store::{Correction, Failure, Store, Stores},
};

use crate::verdict::VerdictExt as _;
use crate::{
    redis_server::RedisServer,
    support::{
        PATIENCE, charge, eventually, gateway, hasty_gateway, limit, lose, now, of_each_algorithm,
    },
};

async fn used(stores: &Stores, limit: &Limit) -> u64 {
    let looked = stores.look(&[Charge { cost: 0, ..charge(limit, 1) }]).await.expect("Redis");
    looked.decision(0).used
}

/// Charges one of each limit, all at once, while Redis hangs; whether each passed.
async fn charge_while_redis_hangs(
    redis: &RedisServer,
    store: &Store,
    limits: &[Limit],
) -> Vec<bool> {
    redis.suspend();
    let charging = limits.iter().map(async |limit| {
        let verdict = store.charge(&[charge(limit, 1)], now()).await;
        verdict.is_ok_and(|verdict| verdict.is_fallback() && verdict.admitted)
    });
    let passed = futures_util::future::join_all(charging).await;
    redis.resume();
    passed
}

/// A request that was decided here holds its slot here, so the one that Redis gave it late is nobody's.
/// Of the other algorithms the late charge stands for the request: it counts once.
#[tokio::test]
async fn a_charge_that_is_answered_late_leaves_no_slot_taken_and_counts_once() {
    let redis = RedisServer::start();
    let (stores, store) = hasty_gateway(&redis).await;
    let limits = of_each_algorithm();
    assert_eq!(charge_while_redis_hangs(&redis, &store, &limits).await, [true; 6]);
    for limit in &limits {
        let holds = matches!(limit.algorithm, Algorithm::LeakyBucket | Algorithm::Concurrency);
        let expected = u64::from(!holds);
        eventually(&format!("{} counts {expected}", limit.name), async || {
            used(&stores, limit).await == expected
        })
        .await;
    }
}

/// A request that was refused because Redis gave no answer has used nothing.
#[tokio::test]
async fn a_charge_that_is_answered_late_is_taken_back_where_the_request_was_refused() {
    let redis = RedisServer::start();
    let (stores, store) = hasty_gateway(&redis).await;
    let mut limits = of_each_algorithm();
    for limit in &mut limits {
        limit.on_failure = OnFailure::Closed;
    }
    assert_eq!(charge_while_redis_hangs(&redis, &store, &limits).await, [false; 6]);
    for limit in &limits {
        eventually(&format!("{} counts nothing", limit.name), async || {
            used(&stores, limit).await == 0
        })
        .await;
    }
}

/// What gives back all that `verdict` charged, one unit each.
fn refund(limit: &Limit, verdict: &Verdict) -> Correction {
    let charged_at = verdict.now() + verdict.decision(0).wait;
    let change = Change::Refund { charged_at, cost: 1 };
    Correction {
        limit: Arc::new(limit.clone()),
        key: Key(1),
        change,
        by: verdict.decided(0).expect("a decision").by,
    }
}

#[tokio::test]
async fn what_is_corrected_while_redis_is_away_is_made_in_order_when_it_is_back() {
    let redis = RedisServer::start();
    let (stores, store) = hasty_gateway(&redis).await;
    let limits = of_each_algorithm();
    let mut refunds = Vec::new();
    for _ in 0..40 {
        for limit in &limits {
            let verdict = store.charge(&[charge(limit, 1)], now()).await.expect("Redis");
            assert!(verdict.admitted && !verdict.is_fallback());
            refunds.push(refund(limit, &verdict));
        }
    }
    redis.suspend();
    lose(&stores, &store).await;
    // Of a leaky bucket only the last slot can be given back.
    refunds.reverse();
    store.correct(refunds, now());
    redis.resume();
    for limit in &limits {
        eventually(&format!("{} is free", limit.name), async || used(&stores, limit).await == 0)
            .await;
    }
    assert_eq!(stores.stats().merge_drops, 0);
}

#[tokio::test]
async fn several_workers_correct_in_one_order() {
    let redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let workers = [store, stores.worker(), stores.worker()];
    let bucket =
        of_each_algorithm().into_iter().find(|limit| limit.algorithm == Algorithm::LeakyBucket);
    let bucket = bucket.expect("one of each");
    let mut refunds = Vec::new();
    for at in 0..39 {
        let verdict = workers[at % 3].charge(&[charge(&bucket, 1)], now()).await.expect("Redis");
        assert!(verdict.admitted && !verdict.is_fallback());
        refunds.push(refund(&bucket, &verdict));
    }
    redis.suspend();
    for (at, refund) in refunds.into_iter().rev().enumerate() {
        workers[at % 3].correct([refund], now());
    }
    redis.resume();
    eventually("every slot is free", async || used(&stores, &bucket).await == 0).await;
}

#[tokio::test]
async fn a_worker_that_leaves_sends_what_waits() {
    let redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let of = limit("left", 1_000);
    let mut refunds = Vec::new();
    for _ in 0..300 {
        let verdict = store.charge(&[charge(&of, 1)], now()).await.expect("Redis");
        refunds.push(refund(&of, &verdict));
    }
    store.correct(refunds, now());
    store.leave(PATIENCE).await;
    assert_eq!(used(&stores, &of).await, 0);
}

#[tokio::test]
async fn the_corrections_of_a_worker_that_ended_are_sent_by_another() {
    let redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let of = limit("ended", 1_000);
    let verdict = store.charge(&[charge(&of, 1)], now()).await.expect("Redis");
    let (correcting, charged) = (stores.clone(), of.clone());
    let ended = std::thread::spawn(move || {
        let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = builder.expect("a runtime");
        let store = runtime.block_on(async { correcting.worker() });
        let entered = runtime.enter();
        store.correct([refund(&charged, &verdict)], now());
        // What was spawned there has not run, and never does.
        drop(entered);
        drop(runtime);
    });
    ended.join().expect("no panic");
    eventually("it is given back", async || used(&stores, &of).await == 0).await;
}

/// Redis says that it did not execute them: they wait until it does.
#[tokio::test]
async fn what_redis_refuses_is_sent_once_more() {
    let redis = RedisServer::start();
    let (stores, store) = gateway(&redis);
    let of = limit("refused", 1_000);
    let mut refunds = Vec::new();
    for _ in 0..2 {
        let verdict = store.charge(&[charge(&of, 1)], now()).await.expect("Redis");
        refunds.push(refund(&of, &verdict));
    }
    let user = |rights: &[&str]| {
        let command = ["ACL", "SETUSER", "default"];
        let _: String = redis.command(&[&command[..], rights].concat());
    };
    let failed = || stores.stats().failures[Failure::Server.index()];
    user(&["-evalsha", "-eval"]);
    store.correct(refunds.drain(..1), now());
    eventually("it was refused", async || failed() == 1).await;
    user(&["+evalsha", "+eval"]);
    eventually("it is made", async || used(&stores, &of).await == 1).await;
    assert_eq!(stores.stats().merge_drops, 0);
    user(&["-evalsha", "-eval"]);
    store.correct(refunds, now());
    eventually("it was refused", async || failed() == 2).await;
    // Whoever connects again is let in only when scripts are.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((failed(), stores.stats().merge_drops), (2, 0), "it waits");
    user(&["+evalsha", "+eval"]);
    eventually("it is made", async || used(&stores, &of).await == 0).await;
}
