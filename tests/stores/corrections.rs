use tidegate::{
    clock::Clock,
    limit::{Algorithm, Charge, Limit, OnFailure, Quota},
    store::{Store, Stores},
};

use crate::{
    redis_server::RedisServer,
    support::{charge, eventually, hasty_gateway, limit},
};

fn now() -> u64 {
    Clock::system().now()
}

/// A limit of each algorithm, with windows so long that nothing expires meanwhile.
fn limits() -> Vec<Limit> {
    let of = |algorithm: Algorithm| {
        let resolution = if algorithm == Algorithm::SlidingWindow { 6 } else { 1 };
        let quota = Quota { max_wait: 2_400_000, ..Quota::new(100, 6_000_000, resolution) };
        Limit { algorithm, quota, ..limit(algorithm.tag(), 100) }
    };
    Algorithm::ALL.into_iter().map(of).collect()
}

async fn used(stores: &Stores, limit: &Limit) -> u64 {
    let looked = stores.look(&[Charge { cost: 0, ..charge(limit, 1) }]).await.expect("Redis");
    looked.decisions[0].used
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
        verdict.is_ok_and(|verdict| verdict.fallback && verdict.admitted)
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
    let limits = limits();
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
    let mut limits = limits();
    limits.iter_mut().for_each(|limit| limit.on_failure = OnFailure::Closed);
    assert_eq!(charge_while_redis_hangs(&redis, &store, &limits).await, [false; 6]);
    for limit in &limits {
        eventually(&format!("{} counts nothing", limit.name), async || {
            used(&stores, limit).await == 0
        })
        .await;
    }
}
