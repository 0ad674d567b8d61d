//! The units that a gateway holds under one quota of a record do not count as used under another.

use std::sync::Arc;

use testkit::redis_server::RedisServer;
use tidegate::{
    charge::{LeaseSize, Limit},
    clock::Clock,
    limit::{Algorithm, Millis, Quota},
};

use super::{LeaseGateway, calls, leased_limit};
use crate::support::{NOW, charge};

/// `quota` an hour in fixed windows, in leases of 20.
fn hourly(quota: u64) -> Arc<Limit> {
    let quota = Quota::new(quota, Millis::from_secs(3_600), Algorithm::FixedWindow);
    Arc::new(Limit { quota, ..Limit::clone(&leased_limit("tiers", 20, 20)) })
}

#[tokio::test]
async fn a_caller_that_changes_its_tier_keeps_only_its_usage() {
    for sliding in [None, Some(())] {
        let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
        let gateway = LeaseGateway::new(&redis, &clock);
        let [normal, gold] = [20, 200].map(|quota| match sliding {
            Some(()) => leased_limit("tiers", quota, 20),
            None => hourly(quota),
        });
        for _ in 0..5 {
            assert!(gateway.charge_one(&gold).await.admitted);
        }
        assert!(gateway.outstanding() > 0);
        let calls_before = calls(&redis);
        let first = gateway.charge_one(&normal).await;
        assert!(first.admitted, "{first:?}");
        assert_eq!((first.used, first.remaining), (6, 14));
        assert_eq!(calls(&redis), calls_before + 2, "the refusal, and the retry");
        for used in 7..=20 {
            let decision = gateway.charge_one(&normal).await;
            assert!(decision.admitted && decision.used == used, "{used}: {decision:?}");
        }
        let refused = gateway.charge_one(&normal).await;
        assert_eq!((refused.admitted, refused.used), (false, 20));
        assert!(gateway.charge_one(&gold).await.admitted);
    }
}

/// The unspent units count as remaining also if the store admits the caller without them.
#[tokio::test]
async fn units_under_another_quota_count_as_remaining() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let [normal, gold] = [100, 200].map(|quota| leased_limit("tiers", quota, 20));
    for _ in 0..5 {
        assert!(gateway.charge_one(&gold).await.admitted);
    }
    let decision = gateway.charge_one(&normal).await;
    assert_eq!((decision.used, decision.remaining), (6, 94));
    let lowered = leased_limit("tiers", 20, 20);
    let peeked = gateway.counter_store.peek(&[charge(&lowered, 1)]).await.expect("a Redis");
    let used = peeked.decided(0).map(|decided| decided.decision.used);
    assert_eq!(used, Some(6));
}

/// As after a reload that turns `reserve` off and lowers the quota.
#[tokio::test]
async fn a_charge_without_a_lease_returns_the_units_of_the_old_rules() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let leased = leased_limit("tiers", 200, 80);
    let plain = Limit { lease_size: LeaseSize::Off, ..Limit::clone(&leased_limit("tiers", 20, 0)) };
    let plain = Arc::new(plain);
    for _ in 0..5 {
        assert!(gateway.charge_one(&leased).await.admitted);
    }
    for used in 6..=20 {
        let decision = gateway.charge_one(&plain).await;
        assert!(decision.admitted && decision.used == used, "{used}: {decision:?}");
    }
    let refused = gateway.charge_one(&plain).await;
    assert_eq!((refused.admitted, refused.used, gateway.outstanding()), (false, 20, 0));
}

/// A quota that is used up is refused, however often another quota leases units.
#[tokio::test]
async fn a_used_up_quota_is_refused_although_another_holds_units() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let [normal, gold] = [20, 200].map(|quota| leased_limit("tiers", quota, 20));
    for _ in 0..30 {
        assert!(gateway.charge_one(&gold).await.admitted);
    }
    let refused = gateway.charge_one(&normal).await;
    assert_eq!((refused.admitted, refused.used), (false, 30));
    assert!(gateway.charge_one(&gold).await.admitted);
    assert!(!gateway.charge_one(&normal).await.admitted);
}
