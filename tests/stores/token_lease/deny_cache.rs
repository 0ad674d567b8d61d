use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
};
use tidegate::{
    clock::Clock,
    limit::{Adjustment, Algorithm, Change, Charge, DecisionSource, Key, Limit, Quota},
    store::deny_cache::INITIAL_TRUST,
};

use super::{Gateway, calls, reserving};
use crate::support::{NOW, charge, limit};

/// Charges until the first refusal; the refusal.
async fn blocked(gateway: &Gateway, limit: &Limit) -> u64 {
    loop {
        let decision = gateway.one(limit).await;
        if !decision.admitted {
            return decision.retry_at.expect("a time to come again");
        }
    }
}

/// One call when the refusal is 2 s old, then 6 s, 14 s, and so on.
fn revalidations(wait: u64) -> u64 {
    (1..64).take_while(|n| INITIAL_TRUST * ((1 << n) - 1) < wait).count() as u64
}

#[tokio::test]
async fn a_blocked_caller_costs_redis_few_calls() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    for algorithm in Algorithm::ALL.into_iter().filter(|kind| *kind != Algorithm::Concurrency) {
        clock.set(clock.now() + 600_000);
        let begin = clock.now();
        let limit = Limit { algorithm, ..limit(algorithm.tag(), 3) };
        let retry_at = blocked(&gateway, &limit).await;
        let (asked, told) = (calls(&redis), gateway.ask(&[charge(&limit, 1)]).await);
        let reset_at = told.decision(0).reset_at;
        let wait = retry_at - begin;
        for step in 0..1_000 {
            clock.set(begin + wait * step / 1_001);
            let verdict = gateway.ask(&[charge(&limit, 1)]).await;
            let decision = verdict.decision(0);
            assert!(!verdict.admitted && !verdict.is_fallback());
            assert_eq!((decision.retry_at, decision.reset_at), (Some(retry_at), reset_at));
            assert!((clock.now() - 1..=clock.now()).contains(&verdict.now().max(begin)), "{step}");
        }
        let asked = asked + revalidations(wait);
        assert_eq!(calls(&redis), asked, "{}", algorithm.tag());
        clock.set(retry_at);
        assert!(gateway.one(&limit).await.admitted, "{}", algorithm.tag());
        assert_eq!(calls(&redis), asked + 1);
        let refused = gateway.one(&limit).await;
        let again = calls(&redis);
        if !refused.admitted && refused.retry_at > Some(retry_at + 2) {
            assert!(!gateway.one(&limit).await.admitted);
            assert_eq!((again, calls(&redis)), (asked + 2, asked + 2));
        }
    }
    assert!(gateway.stores.stats().denials.hits >= 4_950);
}

#[tokio::test]
async fn a_blocked_caller_stays_refused_when_redis_is_lost() {
    let (mut redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = limit("few", 2);
    let retry_at = blocked(&gateway, &limit).await;
    redis.kill();
    for step in 0..100 {
        clock.set(NOW + step * 100);
        let verdict = gateway.ask(&[charge(&limit, 1)]).await;
        assert!(!verdict.admitted && !verdict.is_fallback(), "not decided anew");
        assert_eq!(verdict.decision(0).retry_at, Some(retry_at));
    }
    let failures = gateway.stores.stats().failures.iter().sum::<u64>();
    assert_eq!(failures, 80, "it was asked from the first 2 s on");
    // Also with several limits.
    let broad = crate::support::limit("broad", 2);
    let both = gateway.ask(&[charge(&broad, 1), charge(&limit, 1)]).await;
    assert!(!both.admitted && both.decision(1).retry_at == Some(retry_at));
}

#[tokio::test]
async fn a_raised_quota_admits_a_blocked_caller_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = limit("few", 2);
    blocked(&gateway, &limit).await;
    let raised = Limit { quota: Quota { limit: 3, ..limit.quota }, ..limit.clone() };
    assert!(gateway.one(&raised).await.admitted);
    assert!(!gateway.one(&raised).await.admitted);
}

#[tokio::test]
async fn a_reset_admits_a_blocked_caller_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    for limit in [limit("few", 2), reserving("ahead", 2, 10)] {
        blocked(&gateway, &limit).await;
        gateway.stores.reset(&[&limit], Key(1)).await.expect("a Redis");
        assert_eq!(gateway.one(&limit).await.remaining, 1);
    }
}

#[tokio::test]
async fn a_refund_admits_a_blocked_caller_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    for limit in [limit("few", 2), reserving("ahead", 2, 10)] {
        blocked(&gateway, &limit).await;
        gateway.refund(&limit, NOW).await;
        assert!(gateway.one(&limit).await.admitted, "{}", limit.name);
        assert!(!gateway.one(&limit).await.admitted);
    }
}

/// An adjustment that charges more moves `retry_at`; the caller gets the new one.
#[tokio::test]
async fn a_dearer_charge_gets_the_longer_retry_at() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = Limit { algorithm: Algorithm::TokenBucket, ..limit("bucket", 2) };
    let retry_at = blocked(&gateway, &limit).await;
    assert_eq!(gateway.one(&limit).await.retry_at, Some(retry_at));
    let change = Change::Overdraw { cost: 5 };
    let adjustment = Adjustment { limit: &limit, key: Key(1), change };
    assert!(gateway.store.adjust(&[adjustment], DecisionSource::Store, NOW).await.are_made()[0]);
    let told = gateway.one(&limit).await.retry_at;
    assert_eq!(told, Some(retry_at + 5 * 30_000));
}

/// The reply to a charge that Redis decided before the refund arrives after the refund was sent.
#[tokio::test]
async fn a_reply_from_before_the_refund_is_not_cached() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = limit("few", 2);
    assert!(gateway.one(&limit).await.admitted && gateway.one(&limit).await.admitted);
    // Both are sent together, in this order.
    let (refused, _) = tokio::join!(gateway.one(&limit), gateway.refund(&limit, NOW));
    assert!(!refused.admitted);
    assert!(gateway.one(&limit).await.admitted, "there is one again");
}

#[tokio::test]
async fn an_admitted_cheaper_charge_invalidates_the_dearer_refusal() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = limit("ten", 10);
    assert!(gateway.cost(&limit, 6).await.admitted);
    let first = gateway.cost(&limit, 5).await;
    let asked = calls(&redis);
    assert!(!gateway.cost(&limit, 5).await.admitted);
    assert_eq!(calls(&redis), asked);
    clock.set(NOW + 15_000);
    assert!(gateway.cost(&limit, 4).await.admitted);
    let second = gateway.cost(&limit, 5).await;
    assert_eq!(calls(&redis), asked + 2);
    assert!(second.retry_at > first.retry_at, "the wait is longer now");
}

#[tokio::test]
async fn slots_and_shadow_limits_are_never_cached() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let slots = Limit { algorithm: Algorithm::Concurrency, ..limit("slots", 2) };
    let watching = Limit { enforce: false, ..limit("watching", 2) };
    for limit in [slots, watching] {
        blocked(&gateway, &limit).await;
        let asked = calls(&redis);
        for _ in 0..10 {
            assert!(!gateway.one(&limit).await.admitted);
        }
        assert_eq!(calls(&redis), asked + 10, "{}", limit.name);
    }
    assert_eq!(gateway.stores.stats().denials.entries, 0);
}

#[tokio::test]
async fn one_cached_refusal_of_several_limits_costs_no_call_and_no_charge() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let narrow = limit("narrow", 2);
    blocked(&gateway, &narrow).await;
    for broad in [limit("broad", 100), reserving("ahead", 100, 10)] {
        assert!(gateway.one(&broad).await.admitted);
        let (used, here) = (gateway.used(&broad).await, gateway.outstanding());
        let (asked, ahead) = (calls(&redis), gateway.stores.stats().leased_charges);
        for at in [0, 1] {
            let mut both = [charge(&broad, 1), charge(&narrow, 1)];
            both.rotate_left(at);
            for _ in 0..100 {
                let verdict = gateway.ask(&both).await;
                assert!(!verdict.admitted);
                let told = verdict.decision(1 - at);
                assert!(!told.admitted && told.retry_at.is_some());
                assert!(verdict.decided(at).is_none(), "nothing was charged");
            }
        }
        assert_eq!(calls(&redis), asked);
        assert_eq!((gateway.used(&broad).await, gateway.outstanding()), (used, here));
        assert_eq!(gateway.stores.stats().leased_charges, ahead, "none was spent");
    }
}

#[tokio::test]
async fn a_shadow_limit_counts_what_another_limit_refuses() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let watching = Limit { enforce: false, ..limit("watching", 100) };
    for narrow in [limit("narrow", 2), reserving("ahead", 2, 1)] {
        blocked(&gateway, &narrow).await;
        let verdict = gateway.ask(&[charge(&narrow, 1), charge(&watching, 1)]).await;
        assert!(!verdict.admitted && verdict.decided(1).is_some() && verdict.decision(1).admitted);
        assert_eq!(gateway.used(&watching).await, 0, "and charges nothing");
    }
}

/// The local tokens are fewer than the first request needs, and Redis has fewer than the difference.
#[tokio::test]
async fn a_refused_fetch_does_not_refuse_cheaper_requests() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, other) = (Gateway::new(&redis, &clock), Gateway::new(&redis, &clock));
    let limit = reserving("ahead", 20, 3);
    assert!(gateway.one(&limit).await.admitted);
    assert_eq!(gateway.outstanding(), 3);
    // 15 of the remaining 16.
    assert!(
        other
            .cost(&Limit { reserve: tidegate::limit::Reserve::Off, ..limit.clone() }, 15)
            .await
            .admitted
    );
    assert!(!gateway.ask(&[Charge { cost: 5, ..charge(&limit, 1) }]).await.admitted);
    assert!(gateway.cost(&limit, 2).await.admitted, "from the three");
    assert!(gateway.cost(&limit, 2).await.admitted, "one here and one there");
    assert!(!gateway.one(&limit).await.admitted);
}

/// Two gateways on one Redis: a refund at one admits a caller whom the other refused.
#[tokio::test]
async fn a_refund_elsewhere_is_found_within_two_seconds() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| Gateway::new(&redis, &clock));
    for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        if algorithm == Algorithm::Concurrency {
            continue;
        }
        clock.set(NOW + 3_600_000 * number as u64);
        let quota = Quota { max_wait: 3_600_000, ..Quota::new(10, 3_600_000, 1) };
        let limit = Limit { algorithm, quota, ..limit(algorithm.tag(), 10) };
        // The last one is in flight at the other gateway and is refunded at its end, as by a 304.
        let mut last = clock.now();
        loop {
            let decision = other.one(&limit).await;
            if !decision.admitted {
                break;
            }
            last = clock.now() + decision.wait;
        }
        let refused = here.one(&limit).await;
        assert!(!refused.admitted && refused.retry_at > Some(clock.now() + 2_000));
        other.refund(&limit, last).await;
        let (asked, begin) = (calls(&redis), clock.now());
        clock.set(begin + 1_999);
        assert_eq!(here.one(&limit).await, refused, "trusted");
        assert_eq!(calls(&redis), asked, "without asking");
        clock.set(begin + 2_000);
        assert!(here.one(&limit).await.admitted, "{}", algorithm.tag());
    }
}
