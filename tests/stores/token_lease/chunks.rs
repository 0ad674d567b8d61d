use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use futures_util::future::join_all;
use testkit::{redis_server::RedisServer, verdict::VerdictExt as _, wait::eventually_async};
use tidegate::{
    clock::Clock,
    limit::{Charge, Limit, Quota, Reserve},
    store::deny_cache::INITIAL_TRUST,
};
use tokio::sync::Barrier;

use super::{Gateway, calls, idle, reserving};
use crate::support::{NOW, charge, stores};

#[tokio::test]
async fn nine_thousand_charges_take_a_hundred_calls_with_exact_headers() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = reserving("ahead", 10_000, 100);
    let mut reset_at = 0;
    for spent in 1..=9_000 {
        let decision = gateway.one(&limit).await;
        assert!(decision.admitted);
        assert_eq!((decision.limit, decision.remaining), (10_000, 10_000 - spent));
        assert_eq!(decision.used, spent);
        assert!(decision.reset_at >= reset_at, "the reset went back");
        reset_at = decision.reset_at;
    }
    let asked = calls(&redis);
    assert!((80..=95).contains(&asked), "{asked} calls");
    let stats = gateway.stores.stats();
    assert_eq!(
        (stats.requests, stats.store_calls, stats.leased_charges),
        (9_000, asked, 9_000 - asked)
    );
    assert_eq!(gateway.used(&limit).await, 9_000 + gateway.outstanding());
    assert_eq!(stats.tokens.granted, 9_000 + gateway.outstanding());
}

#[tokio::test]
async fn an_auto_reserve_adapts_to_demand() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = Limit { reserve: Reserve::Auto, ..reserving("auto", 100_000, 0) };
    for spent in 1..=9_000 {
        assert_eq!(gateway.one(&limit).await.remaining, 100_000 - spent);
    }
    assert!(calls(&redis) < 300, "{}", calls(&redis));
    assert_eq!(gateway.used(&limit).await, 9_000 + gateway.outstanding());
}

/// Charges until the first refusal; the number of admissions.
async fn exhaust(gateway: &Gateway, limit: &Limit, cost: u32) -> u64 {
    let mut admitted = 0;
    while gateway.cost(limit, cost).await.admitted {
        admitted += u64::from(cost);
    }
    admitted
}

#[test]
fn two_gateways_with_two_workers_admit_the_quota_exactly() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    for (name, tokens) in [("ten", 10), ("many", 5_000), ("one", 1)] {
        let limit = reserving(name, 2_000, tokens);
        let gateways = [0, 1].map(|_| stores(&redis, clock.clone()));
        let (over, admitted) = (Barrier::new(4), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (stores, limit, clock) = (&gateways[number % 2], &limit, &clock);
                let (over, admitted) = (&over, &admitted);
                scope.spawn(move || {
                    let mut builder = tokio::runtime::Builder::new_current_thread();
                    let runtime = builder.enable_all().build().expect("a runtime");
                    runtime.block_on(async {
                        let gateway = Gateway::on(stores.clone());
                        let lines = join_all((0..16).map(|_| exhaust(&gateway, limit, 1)));
                        admitted.fetch_add(lines.await.into_iter().sum(), Relaxed);
                        // Its fetches may serve waiters at the other.
                        over.wait().await;
                        if number < 2 {
                            idle(&gateway, clock).await;
                        }
                        over.wait().await;
                        if number == 0 {
                            let spent = admitted.load(Relaxed);
                            let all_back = async || gateway.used(limit).await == spent;
                            eventually_async("all is given back", all_back).await;
                            clock.set(clock.now() + INITIAL_TRUST);
                        }
                        over.wait().await;
                        admitted.fetch_add(exhaust(&gateway, limit, 1).await, Relaxed);
                        over.wait().await;
                    });
                });
            }
        });
        assert_eq!(admitted.into_inner(), 2_000, "{name}");
        for stores in gateways {
            let (failures, tokens) = (stores.stats().failures, stores.stats().tokens);
            assert_eq!((failures, tokens.outstanding, tokens.lost), ([0; 5], 0, 0), "{tokens:?}");
        }
    }
}

#[tokio::test]
async fn sixty_four_concurrent_charges_share_one_fetch() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = Limit { reserve: Reserve::Tokens(0), ..reserving("ahead", 100, 0) };
    let decisions = join_all((0..64).map(|_| gateway.one(&limit))).await;
    assert!(decisions.iter().all(|decision| decision.admitted));
    let mut remaining: Vec<u64> = decisions.iter().map(|decision| decision.remaining).collect();
    remaining.sort_unstable();
    remaining.dedup();
    assert_eq!(remaining.len(), 64, "each has its own `remaining`");
    assert!(calls(&redis) <= 2, "{} calls", calls(&redis));
    let decisions = join_all((0..64).map(|_| gateway.one(&limit))).await;
    assert_eq!(decisions.iter().filter(|decision| decision.admitted).count(), 36);
}

#[tokio::test]
async fn a_quota_of_ten_is_exact_with_any_number_of_gateways() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateways: Vec<Gateway> = (0..6).map(|_| Gateway::new(&redis, &clock)).collect();
    for (name, tokens) in [("ahead", 100), ("one", 1)] {
        let limit = reserving(name, 10, tokens);
        let mut admitted = 0;
        for turn in 0..20 * gateways.len() {
            admitted += u32::from(gateways[turn % 6].one(&limit).await.admitted);
        }
        assert_eq!(admitted, 10, "{name}");
    }
}

#[tokio::test]
async fn mixed_costs_use_exactly_the_quota() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateways = [0, 1].map(|_| Gateway::new(&redis, &clock));
    let limit = reserving("ahead", 500, 20);
    let mut spent = 0;
    for turn in 0_u32..400 {
        let (gateway, cost) =
            (&gateways[turn as usize % 2], 1 + turn.wrapping_mul(2_654_435_761) % 7);
        if gateway.cost(&limit, cost).await.admitted {
            spent += u64::from(cost);
        }
        if turn % 50 == 0 {
            let here: u64 = gateways.iter().map(Gateway::outstanding).sum();
            assert_eq!(gateway.used(&limit).await, spent + here);
        }
    }
    for gateway in &gateways {
        spent += exhaust(gateway, &limit, 1).await;
    }
    assert_eq!(spent, 500);
    let all = gateways[0].cost(&Limit { reserve: Reserve::Off, ..limit.clone() }, 501).await;
    assert!(!all.admitted && all.retry_at.is_none(), "more than the quota, at any time");
    let above = gateways[0].cost(&reserving("fresh", 500, 20), 501).await;
    assert!(!above.admitted && above.retry_at.is_none(), "the same of one that reserves");
}

#[tokio::test]
async fn a_peek_counts_local_tokens_as_remaining() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| Gateway::new(&redis, &clock));
    let limit = Limit { quota: Quota::new(10, 60_000, 6), ..reserving("ahead", 10, 10) };
    assert!(here.one(&limit).await.admitted);
    let kept = here.outstanding();
    assert!(other.cost(&limit, 9 - kept as u32).await.admitted);
    let one = [charge(&limit, 1)];
    for cost in [1, 5] {
        let charges = [Charge { cost, ..one[0] }];
        let looks = [
            here.store.peek(&charges, NOW).await.expect("Redis"),
            here.stores.peek(&charges).await.expect("Redis"),
        ];
        for looked in looks {
            let peeked = looked.decision(0);
            assert_eq!((peeked.used, peeked.remaining), (10 - kept, kept));
            let passes = u64::from(cost) <= kept;
            assert_eq!((peeked.admitted, peeked.retry_at.is_none()), (passes, passes), "{cost}");
        }
    }
    let elsewhere = other.store.peek(&one, NOW).await.expect("Redis").decision(0);
    assert_eq!((elsewhere.used, elsewhere.admitted), (10, false));
    assert!(here.one(&limit).await.admitted);
    let after = here.stores.peek(&one).await.expect("Redis").decision(0);
    assert_eq!(after.used, 11 - kept);
}

/// The rest of the quota is leased for a queue in which one request is too expensive: it is returned, and
/// no other request is refused.
#[tokio::test]
async fn a_refused_expensive_request_costs_the_others_nothing() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| Gateway::new(&redis, &clock));
    for (name, dear) in [("below", 7_000), ("above", 12_000)] {
        let limit = Limit { reserve: Reserve::Auto, ..reserving(name, 10_000, 0) };
        assert!(other.cost(&limit, 4_000).await.admitted);
        // The first is fetched alone, the next two together.
        let (first, second, refused) =
            tokio::join!(here.one(&limit), here.one(&limit), here.cost(&limit, dear));
        assert!(first.admitted && second.admitted && !refused.admitted);
        assert!(here.one(&limit).await.admitted, "{name}: its cost was not refused");
        let all_back = async || other.used(&limit).await < 4_010;
        eventually_async("the rest is there for all", all_back).await;
        assert!(other.cost(&limit, 5_000).await.admitted);
    }
}

#[tokio::test]
async fn a_refusal_counts_local_tokens_as_remaining() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = reserving("mixed", 20, 5);
    for cost in [1, 7, 7] {
        assert!(gateway.cost(&limit, cost).await.admitted);
    }
    assert!(gateway.outstanding() > 0, "else there is nothing to tell");
    let refused = gateway.cost(&limit, 10).await;
    assert_eq!((refused.admitted, refused.used, refused.remaining), (false, 15, 5));
    let admitted = gateway.one(&limit).await;
    assert_eq!((admitted.admitted, admitted.used, admitted.remaining), (true, 16, 4));
}

#[tokio::test]
async fn a_cancelled_waiter_is_not_charged() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let limit = reserving("ahead", 100, 10);
    assert!(gateway.one(&limit).await.admitted);
    for _ in 0..10 {
        assert!(gateway.one(&limit).await.admitted);
    }
    assert_eq!(gateway.outstanding(), 0);
    redis.suspend();
    let charges = [Charge { cost: 3, ..charge(&limit, 1) }];
    let leaving = async || {
        let asking = gateway.store.charge(&charges, NOW);
        assert!(tokio::time::timeout(Duration::from_millis(20), asking).await.is_err());
    };
    tokio::join!(leaving(), leaving());
    redis.resume();
    eventually_async("the fetch is over", async || gateway.outstanding() > 0).await;
    assert_eq!(gateway.used(&limit).await, 11 + gateway.outstanding());
    assert_eq!(gateway.one(&limit).await.remaining, 88);
    assert_eq!(gateway.stores.stats().failures, [0; 5]);
}

#[tokio::test]
async fn leased_tokens_are_not_spent_under_another_quota() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let old = reserving("ahead", 1_000, 100);
    assert!(gateway.one(&old).await.admitted);
    assert_eq!(gateway.outstanding(), 100);

    let lowered = reserving("ahead", 50, 100);
    assert!(!gateway.one(&lowered).await.admitted, "101 are charged");
    assert_eq!(gateway.outstanding(), 100);
    let raised = reserving("ahead", 2_000, 100);
    let asked = calls(&redis);
    let decision = gateway.one(&raised).await;
    assert!(decision.admitted);
    assert_eq!((calls(&redis), gateway.outstanding()), (asked + 1, 200));
    assert_eq!(gateway.used(&raised).await, 202);
    // Tokens of the old quota are returned and count towards the new one.
    idle(&gateway, &clock).await;
    eventually_async("Redis has counted them", async || gateway.used(&raised).await == 2).await;
    assert_eq!(gateway.one(&raised).await.remaining, 1_997);
}

#[tokio::test]
async fn enabling_enforcement_costs_no_extra_calls() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = Gateway::new(&redis, &clock);
    let enforced = reserving("ahead", 3, 10);
    let watching = Limit { enforce: false, ..enforced.clone() };
    for _ in 0..10 {
        gateway.one(&watching).await;
    }
    assert!(!gateway.one(&enforced).await.admitted);
    let asked = calls(&redis);
    for _ in 0..10 {
        assert!(!gateway.one(&enforced).await.admitted);
    }
    assert_eq!(calls(&redis), asked);
}
