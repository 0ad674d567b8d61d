use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use testkit::{redis_server::RedisServer, verdict::VerdictExt as _, wait::eventually_async};
use tidegate::{
    charge::{Charge, LeaseSize, Limit},
    clock::{Clock, StoreTime},
    limit::{Millis, Quota},
    store::deny_cache::INITIAL_TRUST,
};
use tokio::sync::Barrier;

use super::{LeaseGateway, calls, leased_limit, return_idle};
use crate::support::{NOW, charge, counter_store};

#[tokio::test]
async fn nine_thousand_charges_take_a_hundred_calls_with_exact_headers() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = leased_limit("leased", 10_000, 100);
    let mut reset_at = StoreTime::ZERO;
    for spent in 1..=9_000 {
        let decision = gateway.charge_one(&limit).await;
        assert!(decision.admitted);
        assert_eq!((decision.limit, decision.remaining), (10_000, 10_000 - spent));
        assert_eq!(decision.used, spent);
        assert!(decision.reset_at >= reset_at, "the reset went back");
        reset_at = decision.reset_at;
    }
    let redis_calls = calls(&redis);
    assert!((80..=95).contains(&redis_calls), "{redis_calls} calls");
    let stats = gateway.counter_store.stats();
    assert_eq!(
        (stats.requests, stats.store_calls, stats.leased_charges),
        (9_000, redis_calls, 9_000 - redis_calls)
    );
    assert_eq!(gateway.used(&limit).await, 9_000 + gateway.outstanding());
    assert_eq!(stats.leases.granted, 9_000 + gateway.outstanding());
}

#[tokio::test]
async fn an_auto_reserve_adapts_to_demand() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = Arc::new(Limit {
        lease_size: LeaseSize::Auto,
        ..Limit::clone(&leased_limit("auto", 100_000, 0))
    });
    for spent in 1..=9_000 {
        assert_eq!(gateway.charge_one(&limit).await.remaining, 100_000 - spent);
    }
    assert!(calls(&redis) < 300, "{}", calls(&redis));
    assert_eq!(gateway.used(&limit).await, 9_000 + gateway.outstanding());
}

/// Charges until the first refusal. Returns the sum of admitted costs.
async fn exhaust(gateway: &LeaseGateway, limit: &Arc<Limit>, cost: u64) -> u64 {
    let mut admitted = 0;
    while gateway.charge_cost(limit, cost).await.admitted {
        admitted += cost;
    }
    admitted
}

#[test]
fn two_gateways_with_two_workers_admit_the_quota_exactly() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    for (name, units) in [("ten", 10), ("many", 5_000), ("one", 1)] {
        let limit = leased_limit(name, 2_000, units);
        let gateways = [0, 1].map(|_| counter_store(&redis, clock.clone()));
        let (barrier, admitted) = (Barrier::new(4), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (counter_store, limit, clock) = (&gateways[number % 2], &limit, &clock);
                let (barrier, admitted) = (&barrier, &admitted);
                scope.spawn(move || {
                    let mut builder = tokio::runtime::Builder::new_current_thread();
                    let runtime = builder.enable_all().build().expect("a runtime");
                    runtime.block_on(async {
                        let gateway = LeaseGateway::on(counter_store.clone());
                        let sums = join_all((0..16).map(|_| exhaust(&gateway, limit, 1)));
                        admitted.fetch_add(sums.await.into_iter().sum(), Relaxed);
                        // A fetch may serve waiters of the gateway's other worker.
                        barrier.wait().await;
                        if number < 2 {
                            return_idle(&gateway, clock).await;
                        }
                        barrier.wait().await;
                        if number == 0 {
                            let spent = admitted.load(Relaxed);
                            let is_returned = async || gateway.used(limit).await == spent;
                            eventually_async("all units are returned", is_returned).await;
                            clock.set(clock.store_time() + INITIAL_TRUST);
                        }
                        barrier.wait().await;
                        admitted.fetch_add(exhaust(&gateway, limit, 1).await, Relaxed);
                        barrier.wait().await;
                    });
                });
            }
        });
        assert_eq!(admitted.into_inner(), 2_000, "{name}");
        for counter_store in gateways {
            let (failures, units) = (counter_store.stats().failures, counter_store.stats().leases);
            assert_eq!((failures, units.outstanding, units.lost), ([0; 5], 0, 0), "{units:?}");
        }
    }
}

#[tokio::test]
async fn sixty_four_concurrent_charges_share_one_fetch() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = Arc::new(Limit {
        lease_size: LeaseSize::Units(0),
        ..Limit::clone(&leased_limit("leased", 100, 0))
    });
    let decisions = join_all((0..64).map(|_| gateway.charge_one(&limit))).await;
    assert!(decisions.iter().all(|decision| decision.admitted));
    let mut remaining: Vec<u64> = decisions.iter().map(|decision| decision.remaining).collect();
    remaining.sort_unstable();
    remaining.dedup();
    assert_eq!(remaining.len(), 64, "each has its own `remaining`");
    assert!(calls(&redis) <= 2, "{} calls", calls(&redis));
    let decisions = join_all((0..64).map(|_| gateway.charge_one(&limit))).await;
    assert_eq!(decisions.iter().filter(|decision| decision.admitted).count(), 36);
}

#[tokio::test]
async fn a_quota_of_ten_is_exact_with_any_number_of_gateways() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateways: Vec<LeaseGateway> = (0..6).map(|_| LeaseGateway::new(&redis, &clock)).collect();
    for (name, units) in [("leased", 100), ("one", 1)] {
        let limit = leased_limit(name, 10, units);
        let mut admitted = 0;
        for turn in 0..20 * gateways.len() {
            admitted += u32::from(gateways[turn % 6].charge_one(&limit).await.admitted);
        }
        assert_eq!(admitted, 10, "{name}");
    }
}

#[tokio::test]
async fn mixed_costs_use_exactly_the_quota() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateways = [0, 1].map(|_| LeaseGateway::new(&redis, &clock));
    let limit = leased_limit("leased", 500, 20);
    let mut spent = 0;
    for turn in 0_u64..400 {
        let (gateway, cost) =
            (&gateways[turn as usize % 2], 1 + turn * 2_654_435_761 % (1 << 32) % 7);
        if gateway.charge_cost(&limit, cost).await.admitted {
            spent += cost;
        }
        if turn % 50 == 0 {
            let outstanding: u64 = gateways.iter().map(LeaseGateway::outstanding).sum();
            assert_eq!(gateway.used(&limit).await, spent + outstanding);
        }
    }
    for gateway in &gateways {
        spent += exhaust(gateway, &limit, 1).await;
    }
    assert_eq!(spent, 500);
    let all = gateways[0]
        .charge_cost(&Arc::new(Limit { lease_size: LeaseSize::Off, ..Limit::clone(&limit) }), 501)
        .await;
    assert!(!all.admitted && all.retry_at.is_none(), "more than the quota, at any time");
    let above = gateways[0].charge_cost(&leased_limit("fresh", 500, 20), 501).await;
    assert!(!above.admitted && above.retry_at.is_none(), "the same with a reserve");
}

#[tokio::test]
async fn a_peek_counts_local_units_as_remaining() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| LeaseGateway::new(&redis, &clock));
    let limit = Arc::new(Limit {
        quota: Quota::sliding(10, Millis::from_secs(60), 6),
        ..Limit::clone(&leased_limit("leased", 10, 10))
    });
    assert!(here.charge_one(&limit).await.admitted);
    let outstanding = here.outstanding();
    assert!(other.charge_cost(&limit, 9 - outstanding).await.admitted);
    let one = [charge(&limit, 1)];
    for cost in [1, 5] {
        let charges = [Charge { cost, ..one[0] }];
        let peeks = [
            here.handle.peek(&charges, NOW).await.expect("Redis"),
            here.counter_store.peek(&charges).await.expect("Redis"),
        ];
        for verdict in peeks {
            let peeked = verdict.decision(0);
            assert_eq!((peeked.used, peeked.remaining), (10 - outstanding, outstanding));
            let is_admitted = cost <= outstanding;
            assert_eq!(
                (peeked.admitted, peeked.retry_at.is_none()),
                (is_admitted, is_admitted),
                "{cost}"
            );
        }
    }
    let at_other = other.handle.peek(&one, NOW).await.expect("Redis").decision(0);
    assert_eq!((at_other.used, at_other.admitted), (10, false));
    assert!(here.charge_one(&limit).await.admitted);
    let after = here.counter_store.peek(&one).await.expect("Redis").decision(0);
    assert_eq!(after.used, 11 - outstanding);
}

/// The rest of the quota is leased for a queue with a request that is too expensive. The units are
/// returned, and no other request is refused.
#[tokio::test]
async fn a_refused_expensive_request_does_not_refuse_others() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let [here, other] = [0, 1].map(|_| LeaseGateway::new(&redis, &clock));
    for (name, expensive) in [("below", 7_000), ("above", 12_000)] {
        let limit = Arc::new(Limit {
            lease_size: LeaseSize::Auto,
            ..Limit::clone(&leased_limit(name, 10_000, 0))
        });
        assert!(other.charge_cost(&limit, 4_000).await.admitted);
        // The first fetch is for one request, the next for two.
        let (first, second, refused) = tokio::join!(
            here.charge_one(&limit),
            here.charge_one(&limit),
            here.charge_cost(&limit, expensive)
        );
        assert!(first.admitted && second.admitted && !refused.admitted);
        assert!(here.charge_one(&limit).await.admitted, "{name}: a lower cost");
        let is_returned = async || other.used(&limit).await < 4_010;
        eventually_async("the rest is returned", is_returned).await;
        assert!(other.charge_cost(&limit, 5_000).await.admitted);
    }
}

#[tokio::test]
async fn a_refusal_counts_local_units_as_remaining() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = leased_limit("mixed", 20, 5);
    for cost in [1, 7, 7] {
        assert!(gateway.charge_cost(&limit, cost).await.admitted);
    }
    assert!(gateway.outstanding() > 0, "no local units");
    let refused = gateway.charge_cost(&limit, 10).await;
    assert_eq!((refused.admitted, refused.used, refused.remaining), (false, 15, 5));
    let admitted = gateway.charge_one(&limit).await;
    assert_eq!((admitted.admitted, admitted.used, admitted.remaining), (true, 16, 4));
}

#[tokio::test]
async fn a_cancelled_waiter_is_not_charged() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let limit = leased_limit("leased", 100, 10);
    assert!(gateway.charge_one(&limit).await.admitted);
    for _ in 0..10 {
        assert!(gateway.charge_one(&limit).await.admitted);
    }
    assert_eq!(gateway.outstanding(), 0);
    redis.suspend();
    let charges = [Charge { cost: 3, ..charge(&limit, 1) }];
    let charge_and_cancel = async || {
        let charging = gateway.handle.charge(&charges, NOW);
        assert!(tokio::time::timeout(Duration::from_millis(20), charging).await.is_err());
    };
    tokio::join!(charge_and_cancel(), charge_and_cancel());
    redis.resume();
    eventually_async("the fetch is over", async || gateway.outstanding() > 0).await;
    assert_eq!(gateway.used(&limit).await, 11 + gateway.outstanding());
    assert_eq!(gateway.charge_one(&limit).await.remaining, 88);
    assert_eq!(gateway.counter_store.stats().failures, [0; 5]);
}

#[tokio::test]
async fn leased_units_are_not_spent_under_another_quota() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let old = leased_limit("leased", 1_000, 100);
    assert!(gateway.charge_one(&old).await.admitted);
    assert_eq!(gateway.outstanding(), 100);

    let lowered = leased_limit("leased", 50, 100);
    assert_eq!(gateway.charge_one(&lowered).await.used, 2, "the old units are returned first");
    assert_eq!(gateway.outstanding(), 24);
    let raised = leased_limit("leased", 2_000, 100);
    let calls_before = calls(&redis);
    let decision = gateway.charge_one(&raised).await;
    assert!(decision.admitted);
    assert_eq!((calls(&redis), gateway.outstanding()), (calls_before + 1, 124));
    assert_eq!(gateway.used(&raised).await, 127);
    // Units of the old quota are returned and count towards the new one.
    return_idle(&gateway, &clock).await;
    eventually_async("Redis has counted them", async || gateway.used(&raised).await == 3).await;
    assert_eq!(gateway.charge_one(&raised).await.remaining, 1_996);
}

#[tokio::test]
async fn enabling_enforcement_costs_no_extra_calls() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let enforced = leased_limit("leased", 3, 10);
    let shadow = Arc::new(Limit { enforce: false, ..Limit::clone(&enforced) });
    for _ in 0..10 {
        gateway.charge_one(&shadow).await;
    }
    assert!(!gateway.charge_one(&enforced).await.admitted);
    let calls_before = calls(&redis);
    for _ in 0..10 {
        assert!(!gateway.charge_one(&enforced).await.admitted);
    }
    assert_eq!(calls(&redis), calls_before);
}
