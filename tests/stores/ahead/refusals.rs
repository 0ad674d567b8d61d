use tidegate::{
    clock::Clock,
    limit::{Algorithm, Change, Charge, Decider, Key, Limit, Quota, Settlement},
    store::deny_cache::TRUST,
};

use super::{Gateway, calls, reserving};
use crate::verdict::{OutcomesExt as _, VerdictExt as _};
use crate::{
    redis_server::RedisServer,
    support::{NOW, charge, limit},
};

/// Asks until the caller is refused; what he was told then.
async fn blocked(gateway: &Gateway, limit: &Limit) -> u64 {
    loop {
        let decision = gateway.one(limit).await;
        if !decision.admitted {
            return decision.retry_at.expect("a time to come again");
        }
    }
}

/// One call when the refusal is 2 s old, 6, 14, and so on.
fn revalidations(wait: u64) -> u64 {
    (1..64).take_while(|n| TRUST * ((1 << n) - 1) < wait).count() as u64
}

#[tokio::test]
async fn a_blocked_caller_costs_redis_a_few_calls_until_it_may_come_again() {
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
    // Of several limits, too.
    let broad = crate::support::limit("broad", 2);
    let both = gateway.ask(&[charge(&broad, 1), charge(&limit, 1)]).await;
    assert!(!both.admitted && both.decision(1).retry_at == Some(retry_at));
}

#[tokio::test]
async fn a_raised_quota_lets_him_in_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = limit("few", 2);
    blocked(&gateway, &limit).await;
    let raised = Limit { quota: Quota { limit: 3, ..limit.quota }, ..limit.clone() };
    assert!(gateway.one(&raised).await.admitted);
    assert!(!gateway.one(&raised).await.admitted);
}

#[tokio::test]
async fn the_operators_reset_lets_him_in_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    for limit in [limit("few", 2), reserving("ahead", 2, 10)] {
        blocked(&gateway, &limit).await;
        gateway.stores.reset(&[&limit], Key(1)).await.expect("a Redis");
        assert_eq!(gateway.one(&limit).await.remaining, 1);
    }
}

#[tokio::test]
async fn what_he_is_given_back_lets_him_in_at_once() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    for limit in [limit("few", 2), reserving("ahead", 2, 10)] {
        blocked(&gateway, &limit).await;
        gateway.refund(&limit, NOW).await;
        assert!(gateway.one(&limit).await.admitted, "{}", limit.name);
        assert!(!gateway.one(&limit).await.admitted);
    }
}

/// A correction that charges more moves the time to come again; so he is told the new one.
#[tokio::test]
async fn who_is_charged_more_is_told_the_longer_wait() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = Limit { algorithm: Algorithm::TokenBucket, ..limit("bucket", 2) };
    let retry_at = blocked(&gateway, &limit).await;
    assert_eq!(gateway.one(&limit).await.retry_at, Some(retry_at));
    let change = Change::Overdraw { cost: 5 };
    let settlement = Settlement { limit: &limit, key: Key(1), change };
    assert!(gateway.store.settle(&[settlement], Decider::Store, NOW).await.are_made()[0]);
    let told = gateway.one(&limit).await.retry_at;
    assert_eq!(told, Some(retry_at + 5 * 30_000));
}

/// The answer to a charge that Redis decided before the refund is heard after it was sent.
#[tokio::test]
async fn an_answer_from_before_the_refund_is_not_remembered() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = limit("few", 2);
    assert!(gateway.one(&limit).await.admitted && gateway.one(&limit).await.admitted);
    // Both go out together, in this order.
    let (refused, _) = tokio::join!(gateway.one(&limit), gateway.refund(&limit, NOW));
    assert!(!refused.admitted);
    assert!(gateway.one(&limit).await.admitted, "there is one again");
}

#[tokio::test]
async fn a_cheaper_charge_that_passes_makes_the_dearer_one_ask_again() {
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
    assert!(second.retry_at > first.retry_at, "he has to wait longer now");
}

#[tokio::test]
async fn slots_and_limits_that_only_watch_are_asked_for_each_time() {
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
async fn where_one_of_several_is_known_to_refuse_nobody_is_asked_and_none_is_charged() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let narrow = limit("narrow", 2);
    blocked(&gateway, &narrow).await;
    for broad in [limit("broad", 100), reserving("ahead", 100, 10)] {
        assert!(gateway.one(&broad).await.admitted);
        let (used, here) = (gateway.used(&broad).await, gateway.outstanding());
        let (asked, ahead) = (calls(&redis), gateway.stores.stats().ahead);
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
        assert_eq!(gateway.stores.stats().ahead, ahead, "none was spent");
    }
}

#[tokio::test]
async fn a_limit_that_only_watches_sees_what_another_refuses() {
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

/// What is kept here is less than the first asks for, and what Redis has is less than is missing.
#[tokio::test]
async fn what_redis_refuses_to_add_to_tokens_here_refuses_no_cheaper_request() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (gateway, other) = (Gateway::new(&redis, &clock), Gateway::new(&redis, &clock));
    let limit = reserving("ahead", 20, 3);
    assert!(gateway.one(&limit).await.admitted);
    assert_eq!(gateway.outstanding(), 3);
    // 15 of the 16 that are left.
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

/// Two gateways on one Redis: a unit that one of them gives back admits a caller whom the other refused.
#[tokio::test]
async fn a_unit_given_back_elsewhere_is_found_within_two_seconds() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| Gateway::new(&redis, &clock));
    for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        if algorithm == Algorithm::Concurrency {
            continue;
        }
        clock.set(NOW + 3_600_000 * number as u64);
        let quota = Quota { max_wait: 3_600_000, ..Quota::new(10, 3_600_000, 1) };
        let limit = Limit { algorithm, quota, ..limit(algorithm.tag(), 10) };
        // The last one is in flight at the other gateway, and refunded at its end: a 304.
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
