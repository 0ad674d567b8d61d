//! Tests of all policies: distribution by weight, availability, moved keys, bounded load.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_base::mix::SplitMix;

use super::*;

/// Endpoints as a test sets them.
#[derive(Clone, Debug)]
struct Fleet {
    available: Vec<bool>,
    ramps: Vec<u32>,
    in_flight: Vec<u32>,
    costs: Vec<u64>,
}

impl Fleet {
    fn new(size: usize) -> Self {
        Self {
            available: vec![true; size],
            ramps: vec![FULL_RAMP; size],
            in_flight: vec![0; size],
            costs: vec![1_000; size],
        }
    }
}

impl EndpointView for Fleet {
    fn is_available(&self, index: usize) -> bool {
        self.available[index]
    }

    fn ramp(&self, index: usize) -> u32 {
        self.ramps[index]
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.in_flight[index]
    }

    fn cost(&self, index: usize) -> u64 {
        self.costs[index]
    }

    fn total_in_flight(&self) -> u64 {
        self.in_flight.iter().copied().map(u64::from).sum()
    }
}

const POLICIES: [Policy; 4] =
    [Policy::RoundRobin, Policy::LeastRequests, Policy::PeakEwma, Policy::Hash];

fn names(size: usize) -> Vec<String> {
    (0..size).map(|index| format!("10.0.{}.{}:9000", index / 256, index % 256)).collect()
}

fn balancer(policy: Policy, weights: &[u32]) -> Balancer {
    let names = names(weights.len());
    let endpoints =
        names.iter().zip(weights).map(|(name, &weight)| WeightedEndpoint { name, weight });
    Balancer::new(policy, &endpoints.collect::<Vec<_>>())
}

fn input(request: u64) -> PickRequest<'static> {
    PickRequest {
        turn: request,
        key: TargetKey(SplitMix::new(request).bits()),
        random: request,
        excluded: &[],
    }
}

/// The number of requests that each endpoint gets if `requests` are sent while the loads stay as
/// they are.
fn counts(balancer: &Balancer, fleet: &Fleet, requests: u64) -> Vec<u64> {
    let mut counts = vec![0; balancer.len()];
    for request in 0..requests {
        let choice = balancer.choose(&input(request), fleet).expect("an available endpoint");
        counts[choice.index] += 1;
    }
    counts
}

/// Asserts that each endpoint got its share within a tolerance.
fn assert_shares(counts: &[u64], weights: &[u32], tolerance: f64) {
    let (requests, weight) = (counts.iter().sum::<u64>(), weights.iter().sum::<u32>());
    for (count, own) in counts.iter().zip(weights) {
        let expected = requests as f64 * f64::from(*own) / f64::from(weight);
        let deviation = (*count as f64 - expected).abs();
        assert!(deviation <= tolerance * expected, "{counts:?} for {weights:?}");
    }
}

#[test]
fn requests_are_distributed_by_weight() {
    for (policy, tolerance) in
        [(Policy::RoundRobin, 0.0), (Policy::LeastRequests, 0.05), (Policy::PeakEwma, 0.05)]
    {
        for weights in [&[1, 1, 1, 1][..], &[5, 1, 1], &[3, 0, 1], &[1_000, 500, 250, 250]] {
            let total = u64::from(weights.iter().sum::<u32>());
            let balancer = balancer(policy, weights);
            let counts =
                counts(&balancer, &Fleet::new(weights.len()), total * (40_000 / total).max(40));
            assert_shares(&counts, weights, tolerance);
        }
    }
    let weights = [1, 2, 4, 3];
    let counts = counts(&balancer(Policy::Hash, &weights), &Fleet::new(4), 100_000);
    assert_shares(&counts, &weights, 0.25);
}

#[test]
fn the_rotation_is_smooth() {
    let rotation = |weights: &[u32]| -> String {
        let schedule = rotation::schedule(weights);
        schedule.iter().map(|&index| char::from(b'a' + index as u8)).collect()
    };
    assert_eq!(rotation(&[1, 1, 1]), "abc");
    assert_eq!(rotation(&[2, 1, 1]), "acab");
    assert_eq!(rotation(&[7, 7]), "ab");
    assert_eq!(rotation(&[5, 1, 1]), "aacaaba");
    assert_eq!(rotation(&[0, 2, 0]), "b");
    assert_eq!(rotation(&[0, 0]), "");
}

#[test]
fn long_rotations_are_scaled_down() {
    let weights: Vec<u32> = (1..=1_000).collect();
    let schedule = rotation::schedule(&weights);
    assert!(schedule.len() < 1 << 18, "{}", schedule.len());
    let mut counts = vec![0_u64; 1_000];
    schedule.iter().for_each(|&index| counts[index as usize] += 1);
    assert!(counts.iter().all(|&count| count > 0));
    let share = counts[999] as f64 / schedule.len() as f64;
    assert!((share * 500.5 - 1.0).abs() < 0.01, "{share}");
}

/// The share of an unavailable endpoint falls to all others, not to one.
#[test]
fn the_share_of_an_unavailable_endpoint_falls_to_all_others() {
    for policy in [Policy::RoundRobin, Policy::LeastRequests, Policy::PeakEwma] {
        let mut fleet = Fleet::new(5);
        fleet.available[2] = false;
        let counts = counts(&balancer(policy, &[1, 2, 3, 1, 1]), &fleet, 50_000);
        assert_shares(&counts, &[1, 2, 0, 1, 1], 0.1);
    }
}

#[test]
fn slow_start_takes_a_part_of_the_weight() {
    for policy in [Policy::RoundRobin, Policy::LeastRequests] {
        let mut fleet = Fleet::new(4);
        fleet.ramps[1] = FULL_RAMP / 10;
        let counts = counts(&balancer(policy, &[1; 4]), &fleet, 50_000);
        assert_shares(&counts, &[10, 1, 10, 10], 0.1);
    }
    let mut fleet = Fleet::new(4);
    let balancer = balancer(Policy::Hash, &[1; 4]);
    let whole = counts(&balancer, &fleet, 50_000);
    fleet.ramps[1] = FULL_RAMP / 10;
    let part = counts(&balancer, &fleet, 50_000);
    let share = part[1] as f64 / whole[1] as f64;
    assert!((0.08..0.12).contains(&share), "{part:?} of {whole:?}");
}

#[test]
fn least_requests_takes_the_one_with_fewer_for_its_weight() {
    let balancer = balancer(Policy::LeastRequests, &[1, 3]);
    let mut fleet = Fleet::new(2);
    fleet.in_flight = vec![2, 5];
    let choice = balancer.choose(&input(1), &fleet).unwrap();
    assert_eq!(choice.index, 1);
    let text = choice.reason.describe(|_| "10.0.0.2:9000").to_string();
    assert_eq!(text, "fewer requests in flight than 10.0.0.2:9000: 5 against 2");
    // With this request, it has as many for its weight as the other has without it: (2 + 1) / 1 = 9
    // / 3.
    fleet.in_flight = vec![2, 9];
    assert!((0..100).all(|request| balancer.choose(&input(request), &fleet).unwrap().index == 0));
}

/// The number of requests that each endpoint gets from clients that send one request after the
/// other.
fn counts_of_clients(balancer: &Balancer, mut fleet: Fleet, clients: usize) -> Vec<u64> {
    let mut held = VecDeque::new();
    let mut counts = vec![0; balancer.len()];
    for request in 0..40_000 {
        let index = balancer.choose(&input(request), &fleet).unwrap().index;
        counts[index] += 1;
        fleet.in_flight[index] += 1;
        held.push_back(index);
        if held.len() == clients {
            held.pop_front().into_iter().for_each(|index| fleet.in_flight[index] -= 1);
        }
    }
    counts
}

#[test]
fn a_small_weight_stays_small_with_two_endpoints_and_few_requests() {
    for policy in [Policy::LeastRequests, Policy::PeakEwma] {
        for weights in [[1, 99], [1, 1_000], [1, 9]] {
            for clients in [1, 2, 4, 16] {
                let mut fleet = Fleet::new(2);
                fleet.costs = vec![1_000, 1_000];
                let counts = counts_of_clients(&balancer(policy, &weights), fleet, clients);
                let share = counts[0] as f64 / 40_000.0;
                let bound = 2.2 / f64::from(weights[0] + weights[1]);
                assert!(share <= bound, "{policy:?} {weights:?} {clients}: {share}");
            }
        }
        let mut fleet = Fleet::new(2);
        (fleet.costs, fleet.ramps[0]) = (vec![1_000, 1_000], FULL_RAMP / 10);
        let counts = counts_of_clients(&balancer(policy, &[1, 1]), fleet, 2);
        assert!(counts[0] < 8_000, "slow start, {policy:?}: {counts:?}");
    }
}

#[test]
fn peak_ewma_avoids_latency_and_load() {
    let balancer = balancer(Policy::PeakEwma, &[1, 1]);
    let mut fleet = Fleet::new(2);
    let index = |fleet: &Fleet| balancer.choose(&input(1), fleet).unwrap().index;
    fleet.costs = vec![9_000, 3_000];
    assert_eq!(index(&fleet), 1);
    fleet.in_flight = vec![0, 3];
    assert_eq!(index(&fleet), 0);
    // An endpoint that has not responded yet gets one request, and no other before its response.
    fleet.costs = vec![9_000, 0];
    fleet.in_flight = vec![5, 0];
    assert_eq!(index(&fleet), 1);
    fleet.in_flight = vec![5, 1];
    assert_eq!(index(&fleet), 0);
}

#[test]
fn a_retry_keeps_the_turn_and_goes_elsewhere() {
    let (balancer, fleet) = (balancer(Policy::RoundRobin, &[1; 3]), Fleet::new(3));
    for turn in 0..30 {
        let first = balancer.choose(&PickRequest { random: 5, ..input(turn) }, &fleet).unwrap();
        assert_eq!(first, Pick { index: turn as usize % 3, reason: Reason::Rotation });
        let excluded = [first.index];
        let retry = PickRequest { excluded: &excluded, random: turn, ..input(turn) };
        let second = balancer.choose(&retry, &fleet).unwrap();
        assert_ne!(second.index, first.index);
        assert_eq!(second.reason, Reason::Redrawn { turn_of: first.index });
    }
}

/// The load that a stream of keys puts on each endpoint, each request held for a time.
fn assert_load_is_bounded(fleet: &mut Fleet, balancer: &Balancer, keys: u64, held: usize) {
    let mut random = SplitMix::new(9);
    let mut in_flight = std::collections::VecDeque::new();
    for request in 0..20_000 {
        // A few keys make most of the load.
        let key = random.below(keys).min(random.below(keys)).min(random.below(keys));
        let key = SplitMix::new(key).bits();
        let choice =
            balancer.choose(&PickRequest { key: TargetKey(key), ..input(request) }, fleet).unwrap();
        fleet.in_flight[choice.index] += 1;
        let total = fleet.total_in_flight();
        let mean = total as f64 / fleet.available.iter().filter(|one| **one).count() as f64;
        let load = fleet.in_flight[choice.index];
        assert!(f64::from(load) <= (1.25 * mean).ceil().max(4.0), "{load} of {total}: {choice:?}");
        in_flight.push_back(choice.index);
        if in_flight.len() > held {
            let ended = in_flight.pop_front().unwrap();
            fleet.in_flight[ended] -= 1;
        }
    }
}

#[test]
fn the_load_of_hot_keys_is_bounded() {
    for (size, held) in [(2, 50), (8, 400), (50, 1_000)] {
        let balancer = balancer(Policy::Hash, &vec![1; size]);
        assert_load_is_bounded(&mut Fleet::new(size), &balancer, 20, held);
    }
}

/// A view with a known weight in service.
struct InService<'a>(&'a Fleet);

impl EndpointView for InService<'_> {
    fn is_available(&self, index: usize) -> bool {
        self.0.is_available(index)
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.0.in_flight(index)
    }

    fn total_in_flight(&self) -> u64 {
        self.0.total_in_flight()
    }

    fn weight_in_service(&self) -> Option<u64> {
        Some(self.0.available.iter().filter(|one| **one).count() as u64)
    }
}

#[test]
fn the_bound_is_that_of_the_endpoints_in_service() {
    let balancer = balancer(Policy::Hash, &[1; 4]);
    let mut fleet = Fleet::new(4);
    fleet.available = vec![true, true, false, false];
    // Above 1.25 times the mean of four, below that of two.
    fleet.in_flight = vec![50, 50, 0, 0];
    for request in 0..100 {
        let reason = balancer.choose(&input(request), &InService(&fleet)).unwrap().reason;
        let overloaded =
            matches!(reason, Reason::KeySuccessor { cause: SkipCause::Overloaded { .. }, .. });
        assert!(!overloaded, "{reason:?}");
    }
}

/// If one of `size` endpoints is removed, only its keys move.
#[test]
fn at_most_the_share_of_a_removed_endpoint_moves() {
    const KEYS: u64 = 50_000;
    for size in [2_usize, 3, 8, 50, 1_000] {
        let names = names(size);
        let of = |names: &[&str]| {
            let endpoints = names.iter().map(|name| WeightedEndpoint { name, weight: 1 });
            Balancer::new(Policy::Hash, &endpoints.collect::<Vec<_>>())
        };
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        // In another order, as another gateway may have them.
        let removed = size / 2;
        let mut rest = all.clone();
        rest.remove(removed);
        rest.reverse();
        let (before, after) = (of(&all), of(&rest));
        let (fleet, fewer) = (Fleet::new(size), Fleet::new(size - 1));
        let mut moved = 0;
        for request in 0..KEYS {
            let owner = all[before.choose(&input(request), &fleet).unwrap().index];
            let next = rest[after.choose(&input(request), &fewer).unwrap().index];
            if owner != next {
                assert_eq!(owner, all[removed], "only its own keys move");
                moved += 1;
            }
        }
        let share = f64::from(moved) / KEYS as f64;
        assert!(share * size as f64 <= 1.3, "{share} of {size}");
    }
}

/// An ejected endpoint's keys move to the endpoints that they would move to if it were gone.
#[test]
fn ejection_moves_only_the_keys_of_the_ejected_endpoint() {
    let balancer = balancer(Policy::Hash, &[1; 8]);
    let (whole, mut fleet) = (Fleet::new(8), Fleet::new(8));
    fleet.available[3] = false;
    let mut gained = [0; 8];
    for request in 0..50_000 {
        let before = balancer.choose(&input(request), &whole).unwrap().index;
        let after = balancer.choose(&input(request), &fleet).unwrap();
        if before == 3 {
            gained[after.index] += 1;
            let cause = SkipCause::Unavailable;
            assert_eq!(after.reason, Reason::KeySuccessor { owner: 3, cause });
        } else {
            assert_eq!((after.index, after.reason), (before, Reason::KeyOwner));
        }
    }
    assert!(gained.iter().enumerate().all(|(index, &gain)| (gain == 0) == (index == 3)));
}

#[test]
fn reasons_in_words() {
    let told = |reason: Reason| reason.describe(|_| "b").to_string();
    for (reason, text) in [
        (Reason::OnlyTarget, "the only target"),
        (Reason::OnlyAvailable, "the only available target"),
        (Reason::Rotation, "next in the rotation"),
        (
            Reason::Redrawn { turn_of: 1 },
            "drawn instead of b, whose turn it is, but which cannot take the request or is in slow start",
        ),
        (
            Reason::EqualRequests { in_flight: 2, other: 1 },
            "drawn before b, which has as many requests in flight: 2",
        ),
        (
            Reason::LowerCost { cost: 1_500, other: 1, other_cost: 7_000 },
            "lower latency times requests than b: 1.5 ms against 7 ms",
        ),
        (Reason::KeyOwner, "the key belongs to it"),
        (
            Reason::KeySuccessor {
                owner: 1,
                cause: SkipCause::Overloaded { in_flight: 9, bound: 8 },
            },
            "next on the ring after b, which has 9 requests in flight, at a bound of 8",
        ),
    ] {
        assert_eq!(told(reason), text);
    }
}

/// An endpoint as a property test has it: weight, availability, requests in flight, ramp and cost.
fn endpoints() -> impl Strategy<Value = Vec<(u32, bool, u32, u32, u64)>> {
    let weight = prop_oneof![1 => Just(0_u32), 6 => 1_u32..4, 1 => 1_u32..=1_000];
    let ramp = prop_oneof![3 => Just(FULL_RAMP), 1 => 1..FULL_RAMP];
    let in_flight = prop_oneof![3 => 0_u32..100, 1 => any::<u32>()];
    prop::collection::vec((weight, any::<bool>(), in_flight, ramp, any::<u64>()), 0..40)
}

proptest! {
    // The rings of a case take a tenth of a second in a debug build.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every policy chooses an endpoint if one is available, has a weight and is not excluded.
    #[test]
    fn a_choice_is_usable_and_found(
        endpoints in endpoints(),
        excluded in prop::collection::vec(0_usize..40, 0..4),
        (turn, key, random) in any::<(u64, u64, u64)>(),
    ) {
        let fleet = Fleet {
            available: endpoints.iter().map(|one| one.1).collect(),
            ramps: endpoints.iter().map(|one| one.3).collect(),
            in_flight: endpoints.iter().map(|one| one.2).collect(),
            costs: endpoints.iter().map(|one| one.4).collect(),
        };
        let weights: Vec<u32> = endpoints.iter().map(|one| one.0).collect();
        let is_usable = |index: usize| {
            weights[index] > 0 && fleet.available[index] && !excluded.contains(&index)
        };
        let input = PickRequest { turn, key: TargetKey(key), random, excluded: &excluded };
        for policy in POLICIES {
            match balancer(policy, &weights).choose(&input, &fleet) {
                Some(choice) => prop_assert!(is_usable(choice.index), "{:?}", choice),
                None => prop_assert!(!(0..weights.len()).any(is_usable), "{:?}", policy),
            }
        }
    }

    /// An alias table draws in proportion to the weights, whatever they are.
    #[test]
    fn an_alias_table_has_the_shares_of_the_weights(
        weights in prop::collection::vec(0_u32..1_000, 1..20),
        seed in any::<u64>(),
    ) {
        let Some(table) = alias::AliasTable::new(&weights) else {
            prop_assert!(weights.iter().all(|&weight| weight == 0));
            return Ok(());
        };
        let (mut random, mut counts) = (SplitMix::new(seed), vec![0_u32; weights.len()]);
        for _ in 0..20_000 {
            counts[table.draw(random.bits())] += 1;
        }
        let total: u32 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(&weights) {
            let expected = 20_000.0 * f64::from(*weight) / f64::from(total);
            // Six standard deviations.
            let tolerance = 6.0 * (expected + 1.0).sqrt();
            prop_assert!((f64::from(*count) - expected).abs() < tolerance, "{counts:?}");
        }
    }

    /// At each turn of a period, each endpoint has had about its share.
    #[test]
    fn the_rotation_is_even(weights in prop::collection::vec(0_u32..30, 1..12)) {
        let schedule = rotation::schedule(&weights);
        let total: u32 = weights.iter().sum();
        let mut counts = vec![0_u32; weights.len()];
        for (turn, &index) in schedule.iter().enumerate() {
            counts[index as usize] += 1;
            for (count, weight) in counts.iter().zip(&weights) {
                let share = (turn + 1) as f64 * f64::from(*weight) / f64::from(total);
                prop_assert!((f64::from(*count) - share).abs() <= 2.5, "{counts:?}");
            }
        }
    }

    /// With weights as well, only the keys of a removed endpoint move, even if it has the largest
    /// weight: the points of the others stay while the ring has room for all.
    #[test]
    fn keys_move_only_from_a_removed_endpoint(
        weights in prop::collection::vec(1_u32..=50, 2..20),
        removed in any::<prop::sample::Index>(),
    ) {
        let removed = removed.index(weights.len());
        let mut fewer = weights.clone();
        fewer[removed] = 0;
        let (before, after) = (balancer(Policy::Hash, &weights), balancer(Policy::Hash, &fewer));
        let fleet = Fleet::new(weights.len());
        for request in 0..500 {
            let owner = before.choose(&input(request), &fleet).unwrap().index;
            let next = after.choose(&input(request), &fleet).unwrap().index;
            prop_assert!(owner == next || owner == removed);
        }
    }
}
