use testkit::{
    redis_server::RedisServer,
    verdict::VerdictExt as _,
    wait::{TIMEOUT, eventually_async},
};
use tidegate::{
    clock::Clock,
    limit::{Algorithm, Limit, Quota},
    store::deny_cache::INITIAL_TRUST,
};

use super::{Gateway, calls, idle, reserving};
use crate::support::{NOW, charge, limit};

/// A gateway that has spent 3 of its leased tokens of `limit`.
async fn spent_three(redis: &RedisServer, clock: &Clock) -> (Gateway, Limit) {
    let gateway = Gateway::new(redis, clock);
    let limit = reserving("ahead", 1_000, 100);
    for _ in 0..3 {
        assert!(gateway.one(&limit).await.admitted);
    }
    assert_eq!((gateway.outstanding(), gateway.used(&limit).await), (98, 101));
    (gateway, limit)
}

#[tokio::test]
async fn idle_tokens_are_returned_after_a_second() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    clock.set(NOW + 999);
    assert!(gateway.one(&limit).await.admitted);
    idle(&gateway, &clock).await;
    assert!(clock.now() >= NOW + 1_999, "that was early");
    eventually_async("Redis has counted them", async || gateway.used(&limit).await == 4).await;
    assert_eq!(gateway.stores.stats().tokens.given_back, 97);
    assert_eq!(gateway.one(&limit).await.remaining, 995, "as if each had asked");
}

#[tokio::test]
async fn tokens_are_returned_at_the_end_of_their_sub_window() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    clock.set(NOW + 9_998);
    assert!(gateway.one(&limit).await.admitted, "its last ms but one");
    let asked = calls(&redis);
    clock.set(NOW + 10_000);
    let decision = gateway.one(&limit).await;
    assert_eq!(decision.remaining, 995, "with the same call");
    assert_eq!(calls(&redis), asked + 1 + u64::from(gateway.stores.stats().tokens.given_back > 97));
    eventually_async("Redis has counted them", async || {
        gateway.used(&limit).await == 5 + gateway.outstanding()
    })
    .await;
}

#[tokio::test]
async fn a_leaving_gateway_returns_all_tokens() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    let second = gateway.stores.worker();
    gateway.store.leave(TIMEOUT).await;
    assert_eq!((gateway.outstanding(), gateway.used(&limit).await), (0, 3));
    // A worker that is still running sends each charge to Redis.
    let verdict = second.charge(&[charge(&limit, 1)], NOW).await.expect("a Redis");
    assert_eq!((verdict.admitted, gateway.outstanding()), (true, 0));
    assert_eq!(gateway.used(&limit).await, 4);
    second.leave(TIMEOUT).await;
}

#[tokio::test]
async fn a_leaving_gateway_waits_for_pending_fetches() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    let other = reserving("other", 1_000, 100);
    redis.suspend();
    let charges = [charge(&other, 1)];
    let leaving = async {
        let asking = gateway.store.charge(&charges, NOW);
        let moment = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(moment, asking).await.is_err(), "the client has gone");
        tokio::join!(gateway.store.leave(TIMEOUT), async {
            tokio::time::sleep(moment).await;
            redis.resume();
        });
    };
    leaving.await;
    assert_eq!(gateway.outstanding(), 0);
    assert_eq!((gateway.used(&limit).await, gateway.used(&other).await), (3, 0));
}

#[tokio::test]
async fn a_refund_within_the_sub_window_costs_no_call() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, limit) = spent_three(&redis, &clock).await;
    let asked = calls(&redis);
    for _ in 0..50 {
        let verdict = gateway.ask(&[charge(&limit, 1)]).await;
        assert_eq!(verdict.decision(0).remaining, 996);
        assert_eq!(gateway.refund(&limit, verdict.now()).await.remaining, 997);
    }
    assert_eq!((calls(&redis), gateway.outstanding()), (asked, 98));

    let verdict = gateway.ask(&[charge(&limit, 1)]).await;
    clock.set(NOW + 10_000);
    let asked = calls(&redis);
    gateway.refund(&limit, verdict.now()).await;
    assert!(calls(&redis) > asked, "its sub-window is over");
    idle(&gateway, &clock).await;
    eventually_async("Redis has counted them", async || gateway.used(&limit).await == 3).await;
}

/// A limit that leases exactly what it needs, so that the quota is used up at once.
#[tokio::test]
async fn a_refused_caller_is_admitted_after_tokens_are_returned() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let (ahead, plain) = (reserving("ahead", 10, 100), limit("ahead", 10));
    assert_eq!(ahead.identity(), plain.identity());
    assert!(gateway.one(&ahead).await.admitted);
    let kept = gateway.outstanding();
    assert_eq!(kept, 4);
    for _ in 0..5 {
        assert!(gateway.one(&plain).await.admitted);
    }
    assert!(!gateway.one(&plain).await.admitted && !gateway.one(&plain).await.admitted);
    let asked = calls(&redis);
    assert!(!gateway.one(&plain).await.admitted);
    assert_eq!(calls(&redis), asked, "known");
    idle(&gateway, &clock).await;
    eventually_async("the caller is admitted", async || gateway.one(&plain).await.admitted).await;
}

/// A gateway is not notified of what another one returned.
#[tokio::test]
async fn a_refused_caller_is_admitted_after_another_gateway_returns_tokens() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| Gateway::new(&redis, &clock));
    let quota = Quota::new(10, 3_600_000, 1);
    let limit = Limit { algorithm: Algorithm::FixedWindow, quota, ..reserving("ahead", 10, 10) };
    for _ in 0..3 {
        assert!(other.one(&limit).await.admitted);
    }
    let kept = other.outstanding();
    assert!(kept > 0);
    for _ in 0..7 - kept {
        assert!(here.one(&limit).await.admitted);
    }
    let refused = here.one(&limit).await;
    assert!(!refused.admitted);
    let asked = calls(&redis);
    clock.set(NOW + INITIAL_TRUST - 1);
    assert_eq!(here.one(&limit).await.retry_at, refused.retry_at, "of the whole window");
    assert_eq!(calls(&redis), asked, "known");
    idle(&other, &clock).await;
    eventually_async("Redis has counted them", async || other.used(&limit).await == 10 - kept)
        .await;
    clock.set(clock.now().max(NOW + INITIAL_TRUST));
    assert!(here.one(&limit).await.admitted);
}
