//! Random histories on a manual clock: the headers are exact whatever happened before.

use std::fmt::Write;

use testkit::{
    backend::{Fleet, on_every_topology_once},
    random::SplitMix64,
};
use tidegate::clock::Clock;

use super::{AdvertisedLimit, NOW, advertised, route, rules};

/// Limits as quota, window, resolution and cost. Each has its own path, and one shared with another limit.
const SHAPES: [(u32, &str, u32, u32); 8] = [
    (1, "1s", 1, 1),
    (3, "1s", 5, 1),
    (5, "10s", 5, 1),
    (7, "7s", 7, 1),
    (2, "1m", 6, 1),
    (10, "10s", 1, 3),
    (9, "3s", 60, 2),
    (100, "1m", 12, 7),
];

/// The configuration and its paths.
fn shapes() -> (String, Vec<String>) {
    let (mut limits, mut routes, mut paths) = (String::new(), Vec::new(), Vec::new());
    for (index, (quota, window, resolution, cost)) in SHAPES.iter().enumerate() {
        write!(
            limits,
            "l{index}: {{quota: {quota}, window: {window}, resolution: {resolution}, \
             cost: {cost}, key: [token]}}, "
        )
        .expect("memory");
        let other = (index + 3) % SHAPES.len();
        for (path, limits) in [
            (format!("/p{index}"), format!("l{index}")),
            (format!("/q{index}"), format!("l{index}, l{other}")),
        ] {
            routes.push(route(&path, &limits));
            paths.push(path);
        }
    }
    (rules(&limits, &routes.join(", ")), paths)
}

/// Runs `history` for each path, each with its own caller.
fn for_all(history: impl Fn(&Fleet, &Clock, &str, &str, &mut SplitMix64) + Sync) {
    on_every_topology_once(|backend| {
        let clock = Clock::manual(NOW);
        let (yaml, paths) = shapes();
        let fleet = backend.start(&yaml, &clock);
        for (number, path) in paths.iter().enumerate() {
            let mut rng = SplitMix64(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
            history(&fleet, &clock, &format!("caller-{number}"), path, &mut rng);
        }
    });
}

/// Advances the clock by a random amount, up to the length of the windows.
fn advance(clock: &Clock, rng: &mut SplitMix64) {
    let most = [2, 200, 1_500, 9_000][rng.below(4) as usize];
    clock.set(clock.now() + rng.below(most));
}

#[test]
fn retry_after_admits() {
    for_all(|fleet, clock, caller, path, rng| {
        let ask = || advertised(&fleet.get_as(caller, path));
        let mut waits = 0;
        for _ in 0..120 {
            advance(clock, rng);
            let first = ask();
            if first.admitted {
                continue;
            }
            waits += 1;
            match rng.below(2) {
                0 => {
                    let seconds = first.retry_after.expect("the cost is within the quota");
                    clock.set(clock.now() + seconds * 1000);
                }
                _ => clock.set(clock.now().max(first.reset * 1000)),
            }
            let then = ask();
            assert!(then.admitted, "{path}: advertised {first:?}, and after the wait {then:?}");
        }
        assert!(waits > 3, "{path}: {waits} refusals are too few");
    });
}

#[test]
fn zero_remaining_means_the_next_request_is_refused() {
    for_all(|fleet, clock, caller, path, rng| {
        // Limits with a cost of 1 only: there `remaining` is the number of further requests.
        if !matches!(path, "/p0" | "/p1" | "/p2" | "/p3" | "/p4") {
            return;
        }
        for _ in 0..60 {
            advance(clock, rng);
            let first = advertised(&fleet.get_as(caller, path));
            let next = advertised(&fleet.get_as(caller, path));
            assert_eq!(first.remaining == 0, !next.admitted, "{first:?} {next:?}");
            assert!(next.admitted || next.remaining == 0, "a refusal advertises 0: {next:?}");
        }
    });
}

#[test]
fn reset_moves_forward_only_with_a_charge() {
    for_all(|fleet, clock, caller, path, rng| {
        // One limit per path: with two, the advertised one changes.
        if !path.starts_with("/p") {
            return;
        }
        let mut last: Option<AdvertisedLimit> = None;
        for _ in 0..80 {
            advance(clock, rng);
            let now = advertised(&fleet.get_as(caller, path));
            if let Some(last) = last {
                assert!(now.reset >= last.reset, "moved back: {last:?} {now:?}");
                let passed = last.reset * 1000 <= clock.now();
                assert!(
                    now.admitted || now.reset == last.reset || passed,
                    "moved by a refusal: {last:?} {now:?}"
                );
            }
            last = Some(now);
        }
    });
}
