use std::sync::Arc;

use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
};
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, Charge, DecisionSource, Key, Limit},
    clock::{Clock, StoreTime},
    limit::{Algorithm, Change, Millis, Quota},
    store::deny_cache::INITIAL_TRUST,
};

use super::{LeaseGateway, calls, leased_limit};
use crate::support::{NOW, charge, limit};

/// Charges until the first refusal. Returns its `retry_at`.
async fn exhaust(gateway: &LeaseGateway, limit: &Arc<Limit>) -> StoreTime {
    loop {
        let decision = gateway.charge_one(limit).await;
        if !decision.admitted {
            return decision.retry_at.expect("a time to retry");
        }
    }
}

/// Number of revalidating calls within `wait` ms: at a refusal's age of 2 s, 6 s, 14 s, and so on.
fn revalidations(wait: u64) -> u64 {
    (1..64).take_while(|n| INITIAL_TRUST.as_ms() * ((1 << n) - 1) < wait).count() as u64
}

#[tokio::test]
async fn a_blocked_caller_costs_redis_few_calls() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let cacheable =
        Algorithm::all(6, Millis::ZERO).into_iter().filter(|kind| kind.has_cacheable_denials());
    for algorithm in cacheable {
        clock.set(clock.store_time() + ms(600_000));
        let begin = clock.store_time();
        let quota = Quota::new(3, Millis::from_secs(60), algorithm);
        let limit = Arc::new(Limit { quota, ..Limit::clone(&limit(algorithm.tag(), 3)) });
        let retry_at = exhaust(&gateway, &limit).await;
        let (calls_before, decision) = (calls(&redis), gateway.decide(&[charge(&limit, 1)]).await);
        let reset_at = decision.decision(0).reset_at;
        let wait = retry_at - begin;
        for step in 0..1_000 {
            clock.set(begin + wait * step / 1_001);
            let verdict = gateway.decide(&[charge(&limit, 1)]).await;
            let decision = verdict.decision(0);
            assert!(!verdict.admitted && !verdict.is_fallback());
            assert_eq!((decision.retry_at, decision.reset_at), (Some(retry_at), reset_at));
            assert!(
                (clock.store_time() - ms(1)..=clock.store_time())
                    .contains(&verdict.decided_at().max(begin)),
                "{step}"
            );
        }
        let calls_before = calls_before + revalidations(wait.as_ms());
        assert_eq!(calls(&redis), calls_before, "{}", algorithm.tag());
        clock.set(retry_at);
        assert!(gateway.charge_one(&limit).await.admitted, "{}", algorithm.tag());
        assert_eq!(calls(&redis), calls_before + 1);
        let refused = gateway.charge_one(&limit).await;
        let again = calls(&redis);
        if !refused.admitted && refused.retry_at > Some(retry_at + ms(2)) {
            assert!(!gateway.charge_one(&limit).await.admitted);
            assert_eq!((again, calls(&redis)), (calls_before + 2, calls_before + 2));
        }
    }
    assert!(gateway.counter_store.stats().denials.hits >= 4_950);
}

#[tokio::test]
async fn a_blocked_caller_stays_refused_when_redis_is_lost() {
    let (mut redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = limit("few", 2);
    let retry_at = exhaust(&gateway, &limit).await;
    redis.kill();
    for step in 0..100 {
        clock.set(NOW + ms(step * 100));
        let verdict = gateway.decide(&[charge(&limit, 1)]).await;
        assert!(!verdict.admitted && !verdict.is_fallback(), "not decided locally");
        assert_eq!(verdict.decision(0).retry_at, Some(retry_at));
    }
    let failures = gateway.counter_store.stats().failures.iter().sum::<u64>();
    assert_eq!(failures, 80, "every call after the first 2 s");
    // A peek is refused as well.
    let fresh = crate::support::limit("fresh", 2);
    let charges = [charge(&fresh, 1), charge(&limit, 1)];
    let peeked = gateway.handle.peek(&charges, clock.store_time()).await.unwrap();
    assert!(!peeked.admitted && peeked.decision(0).remaining == 2);
    assert_eq!(peeked.decision(1).retry_at, Some(retry_at));
    // So is a request with several limits.
    let broad = crate::support::limit("broad", 2);
    let both = gateway.decide(&[charge(&broad, 1), charge(&limit, 1)]).await;
    assert!(!both.admitted && both.decision(1).retry_at == Some(retry_at));
}

#[tokio::test]
async fn a_raised_quota_admits_a_blocked_caller_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = limit("few", 2);
    exhaust(&gateway, &limit).await;
    let raised =
        Arc::new(Limit { quota: Quota { limit: 3, ..limit.quota }, ..Limit::clone(&limit) });
    assert!(gateway.charge_one(&raised).await.admitted);
    assert!(!gateway.charge_one(&raised).await.admitted);
}

#[tokio::test]
async fn a_reset_admits_a_blocked_caller_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    for limit in [limit("few", 2), leased_limit("leased", 2, 10)] {
        exhaust(&gateway, &limit).await;
        gateway.counter_store.reset(&[&limit], Key(1)).await.expect("Redis");
        assert_eq!(gateway.charge_one(&limit).await.remaining, 1);
    }
}

#[tokio::test]
async fn a_refund_admits_a_blocked_caller_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    for limit in [limit("few", 2), leased_limit("leased", 2, 10)] {
        exhaust(&gateway, &limit).await;
        gateway.refund(&limit, NOW).await;
        assert!(gateway.charge_one(&limit).await.admitted, "{}", limit.name());
        assert!(!gateway.charge_one(&limit).await.admitted);
    }
}

/// An additional charge delays the `retry_at` of cached refusals.
#[tokio::test]
async fn an_overdraw_delays_the_cached_retry_at() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let quota = Quota::new(2, Millis::from_secs(60), Algorithm::TokenBucket);
    let limit = Arc::new(Limit { quota, ..Limit::clone(&limit("bucket", 2)) });
    let retry_at = exhaust(&gateway, &limit).await;
    assert_eq!(gateway.charge_one(&limit).await.retry_at, Some(retry_at));
    let change = Change::Overdraw { cost: 5 };
    let adjustment = Adjustment { limit: &limit, key: Key(1), change };
    assert!(gateway.handle.adjust(&[adjustment], DecisionSource::Store, NOW).await.are_made()[0]);
    let decision = gateway.charge_one(&limit).await.retry_at;
    assert_eq!(decision, Some(retry_at + ms(5 * 30_000)));
}

/// The reply to a charge that Redis decided before the refund arrives after the refund was sent.
#[tokio::test]
async fn a_reply_from_before_the_refund_is_not_cached() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = limit("few", 2);
    assert!(gateway.charge_one(&limit).await.admitted && gateway.charge_one(&limit).await.admitted);
    // Both are sent together, the charge first.
    let (refused, _) = tokio::join!(gateway.charge_one(&limit), gateway.refund(&limit, NOW));
    assert!(!refused.admitted);
    assert!(gateway.charge_one(&limit).await.admitted, "one unit was refunded");
}

#[tokio::test]
async fn an_admitted_cheaper_charge_invalidates_the_refusal_of_a_higher_cost() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = Arc::new(Limit { cost: 5, ..Limit::clone(&limit("ten", 10)) });
    assert!(gateway.charge_cost(&limit, 6).await.admitted);
    let first = gateway.charge_cost(&limit, 5).await;
    let calls_before = calls(&redis);
    assert!(!gateway.charge_cost(&limit, 5).await.admitted);
    assert_eq!(calls(&redis), calls_before);
    clock.set(NOW + ms(15_000));
    assert!(gateway.charge_cost(&limit, 4).await.admitted);
    let second = gateway.charge_cost(&limit, 5).await;
    assert_eq!(calls(&redis), calls_before + 2);
    assert!(second.retry_at > first.retry_at, "the wait is longer now");
}

/// With `cost: header:NAME`, another gateway may admit a cheaper request meanwhile.
#[tokio::test]
async fn a_refusal_of_a_higher_cost_shows_what_another_gateway_has_charged() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, other) = (LeaseGateway::new(&redis, &clock), LeaseGateway::new(&redis, &clock));
    let limit = limit("varying", 10);
    assert!(gateway.charge_cost(&limit, 6).await.admitted);
    let first = gateway.charge_cost(&limit, 5).await;
    clock.set(NOW + ms(15_000));
    let admitted = other.charge_cost(&limit, 4).await;
    let second = gateway.charge_cost(&limit, 5).await;
    assert!(!first.admitted && admitted.admitted && !second.admitted);
    assert_eq!(second.reset_at, admitted.reset_at, "one reset");
    assert!(second.retry_at > first.retry_at, "the wait is longer now");
    clock.set(second.retry_at.expect("a time to retry"));
    assert!(gateway.charge_cost(&limit, 5).await.admitted, "after exactly that wait");
}

#[tokio::test]
async fn slots_and_shadow_limits_are_never_cached() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let quota = Quota::new(2, Millis::from_secs(60), Algorithm::Concurrency);
    let slots = Arc::new(Limit { quota, ..Limit::clone(&limit("slots", 2)) });
    let shadow = Arc::new(Limit { enforce: false, ..Limit::clone(&limit("shadow", 2)) });
    for limit in [slots, shadow] {
        exhaust(&gateway, &limit).await;
        let calls_before = calls(&redis);
        for _ in 0..10 {
            assert!(!gateway.charge_one(&limit).await.admitted);
        }
        assert_eq!(calls(&redis), calls_before + 10, "{}", limit.name());
    }
    assert_eq!(gateway.counter_store.stats().denials.entries, 0);
}

#[tokio::test]
async fn one_cached_refusal_of_several_limits_costs_no_call_and_no_charge() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let narrow = limit("narrow", 2);
    exhaust(&gateway, &narrow).await;
    for broad in [limit("broad", 100), leased_limit("leased", 100, 10)] {
        assert!(gateway.charge_one(&broad).await.admitted);
        let (used, outstanding) = (gateway.used(&broad).await, gateway.outstanding());
        let (calls_before, leased_charges) =
            (calls(&redis), gateway.counter_store.stats().leased_charges);
        for at in [0, 1] {
            let mut both = [charge(&broad, 1), charge(&narrow, 1)];
            both.rotate_left(at);
            for _ in 0..100 {
                let verdict = gateway.decide(&both).await;
                assert!(!verdict.admitted);
                let decision = verdict.decision(1 - at);
                assert!(!decision.admitted && decision.retry_at.is_some());
                assert!(verdict.decided(at).is_none(), "nothing was charged");
            }
        }
        assert_eq!(calls(&redis), calls_before);
        assert_eq!((gateway.used(&broad).await, gateway.outstanding()), (used, outstanding));
        assert_eq!(
            gateway.counter_store.stats().leased_charges,
            leased_charges,
            "no unit was spent"
        );
    }
}

#[tokio::test]
async fn a_shadow_limit_counts_what_another_limit_refuses() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let shadow = Arc::new(Limit { enforce: false, ..Limit::clone(&limit("shadow", 100)) });
    for narrow in [limit("narrow", 2), leased_limit("leased", 2, 1)] {
        exhaust(&gateway, &narrow).await;
        let verdict = gateway.decide(&[charge(&narrow, 1), charge(&shadow, 1)]).await;
        assert!(!verdict.admitted && verdict.decided(1).is_some() && verdict.decision(1).admitted);
        assert_eq!(gateway.used(&shadow).await, 0, "the shadow limit is not charged");
    }
}

/// The first request needs more than the local units, and Redis has fewer than the difference.
#[tokio::test]
async fn a_refused_fetch_does_not_refuse_cheaper_requests() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, other) = (LeaseGateway::new(&redis, &clock), LeaseGateway::new(&redis, &clock));
    let limit = leased_limit("leased", 20, 3);
    assert!(gateway.charge_one(&limit).await.admitted);
    assert_eq!(gateway.outstanding(), 3);
    // 15 of the remaining 16.
    assert!(
        other
            .charge_cost(
                &Arc::new(Limit {
                    lease_size: tidegate::charge::LeaseSize::Off,
                    ..Limit::clone(&limit)
                }),
                15
            )
            .await
            .admitted
    );
    assert!(!gateway.decide(&[Charge { cost: 5, ..charge(&limit, 1) }]).await.admitted);
    assert!(gateway.charge_cost(&limit, 2).await.admitted, "from the three local units");
    assert!(gateway.charge_cost(&limit, 2).await.admitted, "one unit here and one in Redis");
    assert!(!gateway.charge_one(&limit).await.admitted);
}

/// A refund at one gateway admits a caller that the other has refused.
#[tokio::test]
async fn a_refund_at_another_gateway_takes_effect_within_two_seconds() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| LeaseGateway::new(&redis, &clock));
    for (number, algorithm) in Algorithm::all(1, Millis::from_secs(3_600)).into_iter().enumerate() {
        if !algorithm.has_cacheable_denials() {
            continue;
        }
        clock.set(NOW + ms(3_600_000 * number as u64));
        let quota = Quota::new(10, Millis::from_secs(3_600), algorithm);
        let limit = Arc::new(Limit { quota, ..Limit::clone(&limit(algorithm.tag(), 10)) });
        // The last request of the other gateway is refunded at its end, as a 304 may be.
        let mut last_charge = clock.store_time();
        loop {
            let decision = other.charge_one(&limit).await;
            if !decision.admitted {
                break;
            }
            last_charge = clock.store_time() + decision.wait;
        }
        let refused = here.charge_one(&limit).await;
        assert!(!refused.admitted && refused.retry_at > Some(clock.store_time() + ms(2_000)));
        other.refund(&limit, last_charge).await;
        let (calls_before, begin) = (calls(&redis), clock.store_time());
        clock.set(begin + ms(1_999));
        assert_eq!(here.charge_one(&limit).await, refused, "the cached refusal is trusted");
        assert_eq!(calls(&redis), calls_before, "no call");
        clock.set(begin + ms(2_000));
        assert!(here.charge_one(&limit).await.admitted, "{}", algorithm.tag());
    }
}
