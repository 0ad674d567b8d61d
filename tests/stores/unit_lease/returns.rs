use std::sync::Arc;

use testkit::{
    redis_server::RedisServer,
    verdict::VerdictExt as _,
    wait::{TIMEOUT, eventually_async},
};
use tidegate::clock::ms;
use tidegate::{
    charge::Limit,
    clock::Clock,
    limit::{Algorithm, Millis, Quota},
    store::deny_cache::INITIAL_TRUST,
};

use super::{LeaseGateway, calls, leased_limit, return_idle};
use crate::support::{NOW, charge};

/// A gateway that has spent 3 of its leased units of `limit`.
async fn spent_three(redis: &RedisServer, clock: &Clock) -> (LeaseGateway, Arc<Limit>) {
    let gateway = LeaseGateway::new(redis, clock);
    let limit = leased_limit("leased", 1_000, 100);
    for _ in 0..3 {
        assert!(gateway.charge_one(&limit).await.admitted);
    }
    assert_eq!((gateway.outstanding(), gateway.used(&limit).await), (98, 101));
    (gateway, limit)
}

#[tokio::test]
async fn idle_units_are_returned_after_a_second() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    clock.set(NOW + ms(999));
    assert!(gateway.charge_one(&limit).await.admitted);
    return_idle(&gateway, &clock).await;
    assert!(clock.store_time() >= NOW + ms(1_999), "returned too early");
    eventually_async("Redis has counted them", async || gateway.used(&limit).await == 4).await;
    assert_eq!(gateway.counter_store.stats().leases.returned, 97);
    assert_eq!(
        gateway.charge_one(&limit).await.remaining,
        995,
        "as if each request had called Redis"
    );
}

#[tokio::test]
async fn units_are_returned_at_the_end_of_their_sub_window() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    clock.set(NOW + ms(9_998));
    assert!(gateway.charge_one(&limit).await.admitted, "the last ms in which a unit may be spent");
    let calls_before = calls(&redis);
    clock.set(NOW + ms(10_000));
    let decision = gateway.charge_one(&limit).await;
    assert_eq!(decision.remaining, 995, "the fetch returns the old units");
    assert_eq!(
        calls(&redis),
        calls_before + 1 + u64::from(gateway.counter_store.stats().leases.returned > 97)
    );
    eventually_async("Redis has counted them", async || {
        gateway.used(&limit).await == 5 + gateway.outstanding()
    })
    .await;
}

#[tokio::test]
async fn a_stopping_gateway_returns_all_units() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    let second = gateway.counter_store.worker();
    gateway.handle.shut_down(TIMEOUT).await;
    assert_eq!((gateway.outstanding(), gateway.used(&limit).await), (0, 3));
    // A worker that is still running sends each charge to Redis.
    let verdict = second.charge(&[charge(&limit, 1)], NOW).await.expect("Redis");
    assert_eq!((verdict.admitted, gateway.outstanding()), (true, 0));
    assert_eq!(gateway.used(&limit).await, 4);
    second.shut_down(TIMEOUT).await;
}

#[tokio::test]
async fn a_stopping_gateway_waits_for_pending_fetches() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    let other = leased_limit("other", 1_000, 100);
    redis.suspend();
    let charges = [charge(&other, 1)];
    let cancel_and_stop = async {
        let charging = gateway.handle.charge(&charges, NOW);
        let pause = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(pause, charging).await.is_err(), "the request is cancelled");
        tokio::join!(gateway.handle.shut_down(TIMEOUT), async {
            tokio::time::sleep(pause).await;
            redis.resume();
        });
    };
    cancel_and_stop.await;
    assert_eq!(gateway.outstanding(), 0);
    assert_eq!((gateway.used(&limit).await, gateway.used(&other).await), (3, 0));
}

#[tokio::test]
async fn a_refund_within_the_sub_window_costs_no_call() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    let calls_before = calls(&redis);
    for _ in 0..50 {
        let verdict = gateway.decide(&[charge(&limit, 1)]).await;
        assert_eq!(verdict.decision(0).remaining, 996);
        assert_eq!(gateway.refund(&limit, verdict.decided_at()).await.remaining, 997);
    }
    assert_eq!((calls(&redis), gateway.outstanding()), (calls_before, 98));

    let verdict = gateway.decide(&[charge(&limit, 1)]).await;
    clock.set(NOW + ms(10_000));
    let calls_before = calls(&redis);
    gateway.refund(&limit, verdict.decided_at()).await;
    assert!(calls(&redis) > calls_before, "its sub-window is over");
    return_idle(&gateway, &clock).await;
    eventually_async("Redis has counted them", async || gateway.used(&limit).await == 3).await;
}

/// Gateways are not notified of each other's returns.
#[tokio::test]
async fn a_refused_caller_is_admitted_after_another_gateway_returns_units() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| LeaseGateway::new(&redis, &clock));
    let quota = Quota::new(10, Millis::from_secs(3_600), Algorithm::FixedWindow);
    let limit = Arc::new(Limit { quota, ..Limit::clone(&leased_limit("leased", 10, 10)) });
    for _ in 0..3 {
        assert!(other.charge_one(&limit).await.admitted);
    }
    let outstanding = other.outstanding();
    assert!(outstanding > 0);
    for _ in 0..7 - outstanding {
        assert!(here.charge_one(&limit).await.admitted);
    }
    let refused = here.charge_one(&limit).await;
    assert!(!refused.admitted);
    let calls_before = calls(&redis);
    clock.set(NOW + INITIAL_TRUST - Millis::MILLISECOND);
    assert_eq!(here.charge_one(&limit).await.retry_at, refused.retry_at, "the cached refusal");
    assert_eq!(calls(&redis), calls_before, "the refusal is cached");
    return_idle(&other, &clock).await;
    eventually_async("Redis has counted them", async || {
        other.used(&limit).await == 10 - outstanding
    })
    .await;
    clock.set(clock.store_time().max(NOW + INITIAL_TRUST));
    assert!(here.charge_one(&limit).await.admitted);
}
