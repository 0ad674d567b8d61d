//! Random histories on a manual clock: the headers are exact whatever happened before.

use std::fmt::Write;

use testkit::{
    backend::{Fleet, MEMORY_AND_TOPOLOGIES, on_all_at_once},
    random::SplitMix64,
};
use tidegate::clock::{Clock, StoreTime};

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
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
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
    clock.set(clock.store_time() + rng.below(most));
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
                    clock.set(clock.store_time() + seconds * 1000);
                }
                _ => clock.set(clock.store_time().max(StoreTime::from_unix_ms(first.reset * 1000))),
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

/// Limits whose requests cost 1 to 9 by a header. Slots of the leaky bucket are a ms apart, because clients wait
/// for them in real time.
const VARYING: [&str; 6] = [
    "quota: 10, window: 10s, resolution: 5",
    "quota: 10, window: 10s, resolution: 5, strict: true",
    "algorithm: sliding_log, quota: 10, window: 10s",
    "algorithm: fixed_window, quota: 10, window: 10s",
    "algorithm: token_bucket, quota: 10, window: 10s",
    "algorithm: leaky_bucket, quota: 1000, window: 1s, max_wait: 20ms",
];

/// With leases, headers of several gateways may differ for a short time: here one gateway answers.
const LEASED: [&str; 2] = [
    "quota: 10, window: 10s, resolution: 5, reserve: 3",
    "algorithm: fixed_window, quota: 10, window: 10s, reserve: auto",
];

/// `Retry-After` speaks of the request's cost; the reset is the stored one, so it never moves back. It admits
/// what costs no more than the last request that was charged.
#[test]
fn resets_do_not_depend_on_the_cost() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for (number, limit) in VARYING.iter().chain(&LEASED).enumerate() {
            let clock = Clock::manual(NOW);
            let limits =
                format!("l: {{{limit}, cost: 'header:x-cost', max_cost: 9, key: [token]}}");
            let fleet = backend.start(&rules(&limits, &route("/l", "l")), &clock);
            let ask = |cost: u64| {
                let headers = format!("Authorization: caller-{number}\r\nX-Cost: {cost}\r\n");
                let response = if limit.contains("reserve") {
                    fleet.get_in_order("/l", &headers)
                } else {
                    fleet.get("/l", &headers)
                };
                advertised(&response)
            };
            assert_resets_hold(limit, &clock, &ask, &mut SplitMix64(number as u64 + 1));
        }
    });
}

fn assert_resets_hold(
    limit: &str,
    clock: &Clock,
    ask: &dyn Fn(u64) -> AdvertisedLimit,
    rng: &mut SplitMix64,
) {
    let (mut last, mut charged, mut refusals): (Option<AdvertisedLimit>, u64, u32) = (None, 1, 0);
    // One request; returns its headers, after a look at the reset.
    let mut send = |cost: u64| {
        let now = ask(cost);
        let moved_back = last.as_ref().is_some_and(|last| now.reset < last.reset);
        assert!(!moved_back, "{limit}: moved back by a cost of {cost}: {last:?} {now:?}");
        last = Some(now.clone());
        now
    };
    for _ in 0..150 {
        let steps = if limit.contains("leaky") { [2, 3, 8] } else { [2, 200, 1_500] };
        let most = steps[rng.below(3) as usize];
        clock.set(clock.store_time() + rng.below(most));
        let cost = 1 + rng.below(9);
        let first = send(cost);
        if first.admitted {
            charged = cost;
            continue;
        }
        refusals += 1;
        match rng.below(4) {
            0 | 1 => {
                let seconds = first.retry_after.expect("the cost is within the quota");
                clock.set(clock.store_time() + seconds * 1000);
                assert!(send(cost).admitted, "{limit}: cost {cost}, {first:?}");
                charged = cost;
            }
            2 => {
                // Leases are charged to Redis by the request that fetches them.
                let cost = if limit.contains("reserve") { 1 } else { charged };
                clock.set(clock.store_time().max(StoreTime::from_unix_ms(first.reset * 1000)));
                assert!(send(cost).admitted, "{limit}: cost {cost} at the reset: {first:?}");
                charged = cost;
            }
            _ => {}
        }
    }
    assert!(refusals > 10, "{limit}: {refusals} refusals are too few");
}
