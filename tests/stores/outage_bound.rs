//! The bound of admissions beyond the quota because Redis was lost: at each gateway that lost it,
//! the admissions of a limit with that gateway's share, however often Redis is lost. The tests try
//! to break it.

use std::{sync::Arc, time::Duration};

use testkit::{
    random::SplitMix64,
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
};
use tidegate::{
    charge::{Adjustment, Charge, DecisionSource, Key, LeaseSize, Limit},
    limit::{Algorithm, Change, Millis, Quota},
    store::{CounterStore, StoreHandle},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{
    charge, clock, eventually, limit, limits_of_each_algorithm, now, short_timeout_options,
};

const GATEWAYS: u32 = 3;

/// Of a quota of 100, rounded up.
const SHARE: u64 = 34;

/// Gateways on one Redis that know of each other.
struct Fleet {
    redis: RedisServer,
    gateways: Vec<(Arc<CounterStore>, StoreHandle)>,
    /// Ends the gateways.
    _stop: DropGuard,
}

/// The way in which Redis is lost and comes back.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// It hangs.
    Hang,
    /// It refuses writes.
    Full,
}

impl Fleet {
    async fn start() -> Self {
        let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
        let stop = CancellationToken::new();
        let start = |_| {
            let made = CounterStore::redis(short_timeout_options(&redis), clock(), 10_000);
            let counter_store = made.expect("usable options");
            tokio::spawn(counter_store.clone().run(stop.clone()));
            let handle = counter_store.worker();
            (counter_store, handle)
        };
        let gateways: Vec<_> = (0..GATEWAYS).map(start).collect();
        let fleet = Self { redis, gateways, _stop: stop.drop_guard() };
        eventually("every gateway counts all", async || {
            fleet.gateways.iter().all(|(store, _)| store.status().gateways == GATEWAYS)
        })
        .await;
        fleet.wait_for_redis().await;
        fleet
    }

    /// Waits until all gateways decide with Redis.
    async fn wait_for_redis(&self) {
        let probe = limit("probe", 1_000_000);
        for (counter_store, handle) in &self.gateways {
            eventually("Redis decides", async || {
                let verdict = handle.charge(&[charge(&probe, 99)], now()).await;
                counter_store.status().is_healthy() && !verdict.expect("a policy").is_fallback()
            })
            .await;
        }
    }

    async fn lose(&self, outage: Outage) {
        match outage {
            Outage::Hang => self.redis.suspend(),
            Outage::Full => self.set_memory("1"),
        }
        let probe = limit("probe", 1_000_000);
        for (_, handle) in &self.gateways {
            eventually("Redis is lost", async || {
                let verdict = handle.charge(&[charge(&probe, 99)], now()).await;
                verdict.expect("a policy").is_fallback()
            })
            .await;
        }
    }

    async fn bring_back(&self, outage: Outage) {
        match outage {
            Outage::Hang => self.redis.resume(),
            Outage::Full => self.set_memory("0"),
        }
        self.wait_for_redis().await;
    }

    fn set_memory(&self, max: &str) {
        let _: String = self.redis.command(&["CONFIG", "SET", "maxmemory", max]);
    }

    /// Charges one unit after the other at a gateway, at most `most`, until one is refused. Returns
    /// how many were admitted.
    async fn spend(&self, gateway: u32, limit: &Arc<Limit>, most: u64) -> u64 {
        for admitted in 0..most {
            let handle = &self.gateways[gateway as usize].1;
            let verdict = handle.charge(&[charge(limit, 1)], now()).await.expect("a local policy");
            if !verdict.admitted {
                return admitted;
            }
        }
        most
    }

    /// The units that Redis counts.
    async fn used(&self, limit: &Arc<Limit>) -> u64 {
        let plain = Arc::new(Limit { lease_size: LeaseSize::Off, ..Limit::clone(limit) });
        let free = [Charge { cost: 0, ..charge(&plain, 1) }];
        self.gateways[0].0.peek(&free).await.expect("Redis").decision(0).used
    }
}

/// A limit of each algorithm with windows of a week, so that nothing expires or refills meanwhile.
fn weekly_limits() -> Vec<Arc<Limit>> {
    let mut limits = limits_of_each_algorithm();
    for limit in &mut limits {
        let quota = &mut Arc::make_mut(limit).quota;
        quota.window = quota.window * 100;
        if let Algorithm::LeakyBucket { max_wait } = &mut quota.algorithm {
            *max_wait = *max_wait * 100;
        }
    }
    limits
}

/// The caller spends its quota without a refusal, which a gateway would remember, and then
/// everything that each gateway admits in each outage.
#[tokio::test]
async fn outages_admit_one_share_for_each_gateway_however_many_there_are() {
    let fleet = Fleet::start().await;
    let limits = weekly_limits();
    for limit in &limits {
        let all = limit.quota.capacity();
        assert_eq!(fleet.spend(0, limit, all).await, all, "{}", limit.name());
    }
    for (number, outage) in
        [Outage::Hang, Outage::Full, Outage::Hang, Outage::Full].into_iter().enumerate()
    {
        fleet.lose(outage).await;
        for limit in &limits {
            for gateway in 0..GATEWAYS {
                let admitted = fleet.spend(gateway, limit, u64::MAX).await;
                let expected = if number == 0 { local_share(limit) } else { 0 };
                assert_eq!(admitted, expected, "{}, outage {number} ({outage:?})", limit.name());
            }
        }
        fleet.bring_back(outage).await;
    }
    for limit in &limits {
        eventually(&format!("Redis counts its own of {}", limit.name()), async || {
            fleet.used(limit).await == limit.quota.capacity()
        })
        .await;
        assert_eq!(fleet.spend(1, limit, u64::MAX).await, 0, "{}", limit.name());
    }
}

/// What one of three gateways admits of a limit of 100 at once.
fn local_share(limit: &Arc<Limit>) -> u64 {
    match limit.algorithm() {
        // The wait is two fifths of the window.
        Algorithm::LeakyBucket { .. } => SHARE * 2 / 5 + 1,
        _ => SHARE,
    }
}

/// The refund or the final cost of a request that was admitted locally is counted locally.
#[tokio::test]
async fn corrections_of_local_charges_do_not_reach_redis() {
    let fleet = Fleet::start().await;
    let limits = weekly_limits();
    let handle = &fleet.gateways[0].1;
    for limit in &limits {
        fleet.spend(0, limit, 5).await;
    }
    fleet.lose(Outage::Hang).await;
    let mut slots = Vec::new();
    for limit in &limits {
        let verdict = handle.charge(&[charge(limit, 1)], now()).await.expect("a local policy");
        assert!(verdict.is_fallback() && verdict.decision(0).used == 1, "{}", limit.name());
        slots.push(verdict.decided(0).expect("a decision").charged_at());
    }
    fleet.bring_back(Outage::Hang).await;
    for (limit, charged_at) in limits.iter().zip(slots) {
        // The slot of a leaky bucket has passed by then.
        let refunded = u64::from(!limit.algorithm().takes_slot());
        let changes = [
            (Change::Overdraw { cost: 4 }, 5),
            (Change::Refund { charged_at, cost: 1 }, 5 - refunded),
        ];
        for (change, expected) in changes {
            let adjustment = [Adjustment { limit, key: Key(1), change }];
            let adjusted = handle.adjust(&adjustment, DecisionSource::Fallback, now()).await;
            assert_eq!(adjusted.decision(0).used, expected, "{}: {change:?}", limit.name());
        }
        assert_eq!(fleet.used(limit).await, 5, "{}", limit.name());
    }
}

/// One admission: when, in ms, and where: `None` is Redis, else the gateway that decided locally.
type Admission = (u64, Option<usize>);

/// Random requests of several gateways while Redis is lost again and again.
#[tokio::test]
async fn in_every_window_each_store_admits_no_more_than_its_own_bound() {
    let fleet = Fleet::start().await;
    let shapes = [
        ("window", Algorithm::SlidingWindow { resolution: 4, strict: false }),
        ("strict", Algorithm::SlidingWindow { resolution: 4, strict: true }),
        ("log", Algorithm::SlidingLog),
        ("fixed", Algorithm::FixedWindow),
        ("token", Algorithm::TokenBucket),
        ("leaky", Algorithm::LeakyBucket { max_wait: Millis::from_secs(2) }),
    ];
    let shaped = |(name, algorithm)| {
        Arc::new(Limit {
            quota: Quota::new(30, Millis::from_secs(4), algorithm),
            ..Limit::clone(&limit(name, 1))
        })
    };
    let limits = shapes.map(shaped);
    let mut admitted: Vec<Vec<Admission>> = vec![Vec::new(); limits.len()];
    let (mut rng, mut lost) = (SplitMix64(7), None);
    for _ in 0..60 {
        lost = if let Some(outage) = lost {
            fleet.bring_back(outage).await;
            None
        } else {
            let outage = if rng.one_in(2) { Outage::Hang } else { Outage::Full };
            fleet.lose(outage).await;
            Some(outage)
        };
        // Outages, and the times between them, of up to 6 s.
        for _ in 0..=rng.below(12) {
            for (limit, admitted) in limits.iter().zip(&mut admitted) {
                for _ in 0..rng.below(25) {
                    let at = rng.below(GATEWAYS.into()) as usize;
                    let verdict = fleet.gateways[at].1.charge(&[charge(limit, 1)], now()).await;
                    let verdict = verdict.expect("a local policy");
                    if verdict.admitted {
                        let decided = verdict.decided(0).expect("a decision");
                        let is_local = decided.source == DecisionSource::Fallback;
                        admitted.push((decided.charged_at().as_unix_ms(), is_local.then_some(at)));
                    }
                }
            }
            clock().advance(Duration::from_millis(1 + rng.below(500)));
        }
    }
    if let Some(outage) = lost {
        fleet.bring_back(outage).await;
    }
    for (limit, mut admitted) in limits.iter().zip(admitted) {
        admitted.sort_unstable();
        assert_bounds(limit, &admitted);
    }
}

/// Asserts the bound of the algorithm for each store, and that outages did admit more than the
/// quota.
fn assert_bounds(limit: &Arc<Limit>, admitted: &[Admission]) {
    // Any interval as long as the window; for the buckets, whose rate the share divides, the burst
    // beside it.
    let bound = |quota: usize| match limit.algorithm() {
        Algorithm::SlidingWindow { strict: true, .. } | Algorithm::SlidingLog => quota,
        Algorithm::LeakyBucket { .. } => quota + 1,
        _ => 2 * quota,
    };
    let within = |from: usize, of: &[u64]| {
        let end = of[from] + limit.quota.window.as_ms();
        of[from..].iter().take_while(|at| **at < end).count()
    };
    let most = |of: &[u64]| (0..of.len()).map(|from| within(from, of)).max().unwrap_or(0);
    let total = most(&admitted.iter().map(|(at, _)| *at).collect::<Vec<_>>());
    let mut sum = 0;
    for store in [None, Some(0), Some(1), Some(2)] {
        let own: Vec<u64> =
            admitted.iter().filter(|(_, by)| *by == store).map(|(at, _)| *at).collect();
        let allowed = bound(if store.is_some() { 10 } else { 30 });
        assert!(
            most(&own) <= allowed,
            "{}: {} of {allowed} by {store:?}",
            limit.name(),
            most(&own)
        );
        assert!(!own.is_empty(), "{}: nothing by {store:?}", limit.name());
        sum += allowed;
    }
    assert!(total <= sum, "{}: {total} of {sum}", limit.name());
    assert!(total > 30, "{}: {total}, so that outages made no difference", limit.name());
}
