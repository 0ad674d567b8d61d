//! Many gateways in virtual time: the bounds hold, units balance, and little of the quota is
//! unused.

mod bounds;
mod world;

use std::sync::Arc;

use testkit::random::SplitMix64;
use tidegate::charge::{LeaseSize, Limit, LimitIdentity};
use tidegate::limit::{Algorithm, Millis, Quota};

use self::world::World;

/// The parameters of a run.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    gateways: usize,
    /// True if the first gateway gets nine of ten requests.
    is_skewed: bool,
    limit: Arc<Limit>,
    keys: usize,
    /// The largest cost of a request.
    max_cost: u64,
    requests: usize,
    /// The time over which requests arrive, in ms.
    duration: u64,
    /// The length of alternating busy and idle periods, in ms; 0: always busy.
    idle_period: u64,
    /// The longest one-way latency to the store, in ms.
    max_latency: u64,
    /// One in `failures` messages is lost, and one in `failures` callers is cancelled; 0: none.
    failures: u64,
    /// One in `refunds` requests is refunded; 0: none.
    refunds: u64,
    crashes: usize,
    reloads: u32,
    /// True if some requests call the store without a lease.
    has_direct_calls: bool,
    /// The capacity of a gateway's lease registry, in leases.
    capacity: usize,
    /// True if the store bounds the leased units.
    has_bound: bool,
}

fn limit(quota: Quota, lease_size: LeaseSize) -> Arc<Limit> {
    Arc::new(Limit { lease_size, ..Limit::new(LimitIdentity::new("simulated", 1), quota) })
}

impl Plan {
    /// Random parameters from a seed.
    fn of(seed: u64) -> Self {
        let mut rng = SplitMix64(seed);
        let window = [600, 1_200, 3_000][rng.below(3) as usize];
        let resolution = match rng.below(4) {
            0 => None,
            1 => Some(1),
            _ => Some(6),
        };
        let most = [10, 100, 300][rng.below(3) as usize];
        let quota = 1 + rng.below(most);
        let algorithm = match resolution {
            None => Algorithm::FixedWindow,
            Some(resolution) => Algorithm::SlidingWindow { resolution, strict: rng.one_in(3) },
        };
        let quota = Quota::new(quota, Millis::from_ms(window), algorithm);
        let lease_size = match rng.below(2) {
            0 => LeaseSize::Auto,
            _ => LeaseSize::Units(1 + rng.below(20)),
        };
        Self {
            seed,
            gateways: 1 + rng.below(20) as usize,
            is_skewed: rng.one_in(3),
            limit: limit(quota, lease_size),
            keys: 1 + rng.below(3) as usize,
            max_cost: [1, 1, 3, 12][rng.below(4) as usize],
            requests: 300,
            duration: 3 * window,
            idle_period: [0, 0, 400][rng.below(3) as usize],
            max_latency: [0, 3, 25][rng.below(3) as usize],
            failures: [0, 0, 10, 40][rng.below(4) as usize],
            refunds: [0, 0, 5][rng.below(3) as usize],
            crashes: [0, 0, 3][rng.below(3) as usize],
            reloads: [0, 0, 2][rng.below(3) as usize],
            has_direct_calls: rng.one_in(3),
            capacity: [1, 64][rng.below(2) as usize],
            has_bound: true,
        }
    }
}

/// Runs a seed and asserts the bounds of its outcome.
fn run_seed(seed: u64) {
    let plan = Plan::of(seed);
    let world = World::new(plan).run();
    bounds::assert_bounds(&world);
}

/// Runs seeds and reports the first that fails.
fn run_all(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run_seed(seed));
        assert!(outcome.is_ok(), "seed {seed}: {:?}", Plan::of(seed));
    }
}

#[test]
fn bounds_hold_and_units_balance() {
    run_all(0..600);
}

#[test]
fn bounds_hold_and_units_balance_in_other_runs() {
    run_all(1_000_000..1_000_600);
}

/// The quota of the efficiency runs.
const LARGE: u64 = 100_000;

/// A demand of 1.3 quotas in one window.
fn overload(gateways: usize, is_skewed: bool, quota: u64, lease_size: LeaseSize) -> Plan {
    let requests = quota as usize * 13 / 10;
    let quota = Quota::sliding(quota, Millis::from_secs(60), 6);
    Plan {
        gateways,
        is_skewed,
        limit: limit(quota, lease_size),
        keys: 1,
        max_cost: 1,
        requests,
        duration: 59_000,
        idle_period: 0,
        max_latency: 2,
        failures: 0,
        refunds: 0,
        crashes: 0,
        reloads: 0,
        has_direct_calls: false,
        capacity: 64,
        has_bound: true,
        seed: 1,
    }
}

/// Admissions before the first refusal in percent of the quota, and calls to the store in percent
/// of the requests.
fn measure_efficiency(plan: Plan) -> (f64, f64) {
    let world = World::new(plan).run();
    let quota = world.plan.limit.quota.limit as f64;
    let first = world.first_refusal.expect("the demand is above the quota") as f64;
    let calls = world.store_calls as f64 / world.plan.requests as f64;
    (100.0 * first / quota, 100.0 * calls)
}

#[expect(clippy::print_stdout, reason = "figures for the documentation")]
fn assert_efficiency(lease_size: LeaseSize) {
    for gateways in [2, 5, 20] {
        for skewed in [false, true] {
            let (first, calls) = measure_efficiency(overload(gateways, skewed, LARGE, lease_size));
            println!(
                "{lease_size:?}, {gateways} gateways{}: first refusal at {first:.2}%, {calls:.2}% store calls",
                if skewed { ", skewed" } else { "" }
            );
            assert!(first >= 99.0, "{lease_size:?} {gateways} {skewed}: {first}");
            assert!(calls <= 2.0, "{lease_size:?} {gateways} {skewed}: {calls}");
        }
    }
}

#[test]
fn auto_reserve_exhausts_the_quota_before_refusing() {
    assert_efficiency(LeaseSize::Auto);
}

#[test]
fn a_configured_reserve_exhausts_the_quota_before_refusing() {
    assert_efficiency(LeaseSize::Units(LARGE / 1_000));
}

/// Shows that the check detects violations. The chunks are a hundredth of the quota.
#[test]
#[expect(clippy::print_stdout, reason = "figures for the documentation")]
fn the_quota_is_not_exhausted_without_the_bound_at_the_store() {
    let plan = overload(20, false, LARGE / 10, LeaseSize::Units(LARGE / 1_000));
    let (with, _) = measure_efficiency(plan.clone());
    let (without, _) = measure_efficiency(Plan { has_bound: false, ..plan });
    println!("chunks of a hundredth: first refusal at {with:.2}%, without the bound {without:.2}%");
    assert!(with >= 99.0 && without < 99.0, "{with} {without}");
}

/// Costs of up to a fifth of the quota, so that expensive and cheap requests share the queue.
#[test]
#[expect(clippy::print_stdout, reason = "figures for the documentation")]
fn leases_for_expensive_requests_refuse_no_others() {
    for gateways in [2, 5, 20] {
        let plan = overload(gateways, false, LARGE / 10, LeaseSize::Auto);
        let plan =
            Plan { max_cost: LARGE / 50, requests: 60, duration: 400, max_latency: 25, ..plan };
        let worlds = (0..200).map(|seed| World::new(Plan { seed, ..plan.clone() }).run());
        let most = worlds.map(|world| world.max_unspent_at_refusal).max().expect("a run");
        println!("mixed costs, {gateways} gateways: {most} of {} unspent at a refusal", LARGE / 10);
        assert!(most <= (LARGE / 1_000), "{gateways}: {most}");
    }
}

#[test]
fn a_quota_of_ten_admits_ten() {
    for lease_size in [LeaseSize::Auto, LeaseSize::Units(1), LeaseSize::Units(100)] {
        for seed in 0..20 {
            let plan = overload(20, seed % 2 == 0, 10, lease_size);
            let world = World::new(Plan { seed, requests: 200, ..plan }).run();
            assert_eq!(world.admitted.iter().flatten().count(), 10, "{lease_size:?}, seed {seed}");
        }
    }
}
