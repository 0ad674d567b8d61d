mod bounds;
mod world;

use testkit::random::SplitMix64;
use tidegate::limit::{Algorithm, Limit, OnFailure, Quota, Reserve};

use self::world::World;

/// The parameters of a run.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    gateways: usize,
    /// Whether the first gateway gets nine of ten requests.
    skewed: bool,
    limit: Limit,
    keys: usize,
    /// The largest cost of a request.
    costs: u32,
    requests: usize,
    /// How long requests arrive, in ms.
    length: u64,
    /// Alternating busy and idle time, in ms; 0: always busy.
    idle: u64,
    /// The longest one-way latency to the store, in ms.
    delay: u64,
    /// One in `failures` messages is lost, and one in as many callers is cancelled; 0: none.
    failures: u64,
    /// One in `returns` requests is refunded; 0: none.
    returns: u64,
    crashes: usize,
    reloads: u32,
    /// Whether some requests go to the store without a lease.
    several: bool,
    /// Capacity of a gateway's lease registry.
    room: usize,
    /// Whether the store bounds the leased tokens.
    shares: bool,
}

fn limit(algorithm: Algorithm, quota: Quota, reserve: Reserve) -> Limit {
    Limit {
        name: "simulated".into(),
        fingerprint: 1,
        algorithm,
        quota,
        cost: 1,
        on_failure: OnFailure::Local,
        reserve,
        enforce: true,
        index: 0,
    }
}

impl Plan {
    /// Random parameters from a seed.
    fn of(seed: u64) -> Self {
        let mut rng = SplitMix64(seed);
        let window = [600, 1_200, 3_000][rng.below(3) as usize];
        let (algorithm, resolution) = match rng.below(4) {
            0 => (Algorithm::FixedWindow, 1),
            1 => (Algorithm::SlidingWindow, 1),
            _ => (Algorithm::SlidingWindow, 6),
        };
        let most = [10, 100, 300][rng.below(3) as usize];
        let quota = 1 + rng.below(most) as u32;
        let strict = algorithm == Algorithm::SlidingWindow && rng.one_in(3);
        let quota = Quota { strict, ..Quota::new(quota, window, resolution) };
        let reserve = match rng.below(2) {
            0 => Reserve::Auto,
            _ => Reserve::Tokens(1 + rng.below(20) as u32),
        };
        Self {
            seed,
            gateways: 1 + rng.below(20) as usize,
            skewed: rng.one_in(3),
            limit: limit(algorithm, quota, reserve),
            keys: 1 + rng.below(3) as usize,
            costs: [1, 1, 3, 12][rng.below(4) as usize],
            requests: 300,
            length: 3 * window,
            idle: [0, 0, 400][rng.below(3) as usize],
            delay: [0, 3, 25][rng.below(3) as usize],
            failures: [0, 0, 10, 40][rng.below(4) as usize],
            returns: [0, 0, 5][rng.below(3) as usize],
            crashes: [0, 0, 3][rng.below(3) as usize],
            reloads: [0, 0, 2][rng.below(3) as usize],
            several: rng.one_in(3),
            room: [1, 64][rng.below(2) as usize],
            shares: true,
        }
    }
}

/// Runs a seed and checks its outcome against the bounds. To repeat a run, call it with that seed.
fn rerun(seed: u64) {
    let plan = Plan::of(seed);
    let world = World::new(plan).run();
    bounds::hold(&world);
}

/// Runs seeds and reports the failing one.
fn run_all(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| rerun(seed));
        assert!(outcome.is_ok(), "seed {seed}: {:?}", Plan::of(seed));
    }
}

#[test]
fn bounds_hold_and_tokens_balance() {
    run_all(0..600);
}

#[test]
fn bounds_hold_and_tokens_balance_in_other_runs() {
    run_all(1_000_000..1_000_600);
}

/// The quota of the efficiency runs.
const LARGE: u32 = 100_000;

/// A demand of 1.3 quotas in one window.
fn demand(gateways: usize, skewed: bool, quota: u32, reserve: Reserve) -> Plan {
    let requests = quota as usize * 13 / 10;
    let quota = Quota::new(quota, 60_000, 6);
    Plan {
        gateways,
        skewed,
        limit: limit(Algorithm::SlidingWindow, quota, reserve),
        keys: 1,
        costs: 1,
        requests,
        length: 59_000,
        idle: 0,
        delay: 2,
        failures: 0,
        returns: 0,
        crashes: 0,
        reloads: 0,
        several: false,
        room: 64,
        shares: true,
        seed: 1,
    }
}

/// Admissions before the first refusal, and requests that reached the store, in percent.
fn figures(plan: Plan) -> (f64, f64) {
    let world = World::new(plan).run();
    let quota = f64::from(world.plan.limit.quota.limit);
    let first = world.first_refusal.expect("the demand is above the quota") as f64;
    let asked = world.asked as f64 / world.plan.requests as f64;
    (100.0 * first / quota, 100.0 * asked)
}

#[expect(clippy::print_stdout, reason = "figures for the documentation")]
fn efficient(reserve: Reserve) {
    for gateways in [2, 5, 20] {
        for skewed in [false, true] {
            let (first, asked) = figures(demand(gateways, skewed, LARGE, reserve));
            println!(
                "{reserve:?}, {gateways} gateways{}: first refusal at {first:.2}%, {asked:.2}% reach the store",
                if skewed { ", skewed" } else { "" }
            );
            assert!(first >= 99.0, "{reserve:?} {gateways} {skewed}: {first}");
            assert!(asked <= 2.0, "{reserve:?} {gateways} {skewed}: {asked}");
        }
    }
}

#[test]
fn auto_reserve_exhausts_the_quota_before_refusing() {
    efficient(Reserve::Auto);
}

#[test]
fn single_token_fetches_exhaust_the_quota_before_refusing() {
    efficient(Reserve::Tokens(LARGE / 1_000));
}

/// The check detects violations: chunks of a hundredth, with and without the bound at the store.
#[test]
#[expect(clippy::print_stdout, reason = "figures for the documentation")]
fn the_quota_is_not_exhausted_without_the_bound_at_the_store() {
    let plan = demand(20, false, LARGE / 10, Reserve::Tokens(LARGE / 1_000));
    let (with, _) = figures(plan.clone());
    let (without, _) = figures(Plan { shares: false, ..plan });
    println!("chunks of a hundredth: first refusal at {with:.2}%, without the bound {without:.2}%");
    assert!(with >= 99.0 && without < 99.0, "{with} {without}");
}

/// Costs of up to a fifth of the quota, so that expensive and cheap requests share the queue.
#[test]
#[expect(clippy::print_stdout, reason = "figures for the documentation")]
fn leases_for_expensive_requests_refuse_no_others() {
    for gateways in [2, 5, 20] {
        let plan = demand(gateways, false, LARGE / 10, Reserve::Auto);
        let plan = Plan { costs: LARGE / 50, requests: 60, length: 400, delay: 25, ..plan };
        let worlds = (0..200).map(|seed| World::new(Plan { seed, ..plan.clone() }).run());
        let most = worlds.map(|world| world.unseen).max().expect("a run");
        println!("mixed costs, {gateways} gateways: {most} of {} unseen", LARGE / 10);
        assert!(most <= u64::from(LARGE / 1_000), "{gateways}: {most}");
    }
}

#[test]
fn a_quota_of_ten_admits_ten() {
    for reserve in [Reserve::Auto, Reserve::Tokens(1), Reserve::Tokens(100)] {
        for seed in 0..20 {
            let plan = demand(20, seed % 2 == 0, 10, reserve);
            let world = World::new(Plan { seed, requests: 200, ..plan }).run();
            assert_eq!(world.admitted.iter().flatten().count(), 10, "{reserve:?}, seed {seed}");
        }
    }
}
