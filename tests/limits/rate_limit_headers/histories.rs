//! Random histories on a manual clock: the headers are exact whatever happened before.

use testkit::{
    backend::{Fleet, MEMORY_AND_TOPOLOGIES, on_all_at_once},
    random::SplitMix64,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

use super::{AdvertisedLimit, NOW, advertised};

/// Each limit has its own path, `/p0` to `/p7`, and one that it shares with another limit, `/q0` to
/// `/q7`.
const SHAPES: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits:
  l0: {quota: 1, window: 1s, resolution: 1, cost: 1, key: [token]}
  l1: {quota: 3, window: 1s, resolution: 5, cost: 1, key: [token]}
  l2: {quota: 5, window: 10s, resolution: 5, cost: 1, key: [token]}
  l3: {quota: 7, window: 7s, resolution: 7, cost: 1, key: [token]}
  l4: {quota: 2, window: 1m, resolution: 6, cost: 1, key: [token]}
  l5: {quota: 10, window: 10s, resolution: 1, cost: 3, key: [token]}
  l6: {quota: 9, window: 3s, resolution: 60, cost: 2, key: [token]}
  l7: {quota: 100, window: 1m, resolution: 12, cost: 7, key: [token]}
routes:
  - {name: p0, match: {path: /p0}, upstream: hello, limits: [l0]}
  - {name: q0, match: {path: /q0}, upstream: hello, limits: [l0, l3]}
  - {name: p1, match: {path: /p1}, upstream: hello, limits: [l1]}
  - {name: q1, match: {path: /q1}, upstream: hello, limits: [l1, l4]}
  - {name: p2, match: {path: /p2}, upstream: hello, limits: [l2]}
  - {name: q2, match: {path: /q2}, upstream: hello, limits: [l2, l5]}
  - {name: p3, match: {path: /p3}, upstream: hello, limits: [l3]}
  - {name: q3, match: {path: /q3}, upstream: hello, limits: [l3, l6]}
  - {name: p4, match: {path: /p4}, upstream: hello, limits: [l4]}
  - {name: q4, match: {path: /q4}, upstream: hello, limits: [l4, l7]}
  - {name: p5, match: {path: /p5}, upstream: hello, limits: [l5]}
  - {name: q5, match: {path: /q5}, upstream: hello, limits: [l5, l0]}
  - {name: p6, match: {path: /p6}, upstream: hello, limits: [l6]}
  - {name: q6, match: {path: /q6}, upstream: hello, limits: [l6, l1]}
  - {name: p7, match: {path: /p7}, upstream: hello, limits: [l7]}
  - {name: q7, match: {path: /q7}, upstream: hello, limits: [l7, l2]}
";

const PATHS: [&str; 16] = [
    "/p0", "/q0", "/p1", "/q1", "/p2", "/q2", "/p3", "/q3", "/p4", "/q4", "/p5", "/q5", "/p6",
    "/q6", "/p7", "/q7",
];

/// Runs `history` for each path, each with its own caller.
fn for_all(history: impl Fn(&Fleet, &Clock, &str, &str, &mut SplitMix64) + Sync) {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(NOW);
        let fleet = backend.start(SHAPES, &clock);
        for (number, path) in PATHS.into_iter().enumerate() {
            let mut rng = SplitMix64(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
            history(&fleet, &clock, &format!("caller-{number}"), path, &mut rng);
        }
    });
}

/// Advances the clock by a random amount, up to the length of the windows.
fn advance(clock: &Clock, rng: &mut SplitMix64) {
    let most = [2, 200, 1_500, 9_000][rng.below(4) as usize];
    clock.set(clock.store_time() + ms(rng.below(most)));
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
                    clock.set(clock.store_time() + ms(seconds * 1000));
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
                let passed = last.reset * 1000 <= clock.store_time().as_unix_ms();
                assert!(
                    now.admitted || now.reset == last.reset || passed,
                    "moved by a refusal: {last:?} {now:?}"
                );
            }
            last = Some(now);
        }
    });
}

/// Limits whose requests cost 1 to 9 by a header. Slots of the leaky bucket are a ms apart, because
/// clients wait for them in real time.
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

/// `Retry-After` speaks of the request's cost; the reset is the stored one, so it never moves back.
/// It admits what costs no more than the last request that was charged.
#[test]
fn resets_do_not_depend_on_the_cost() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for (number, limit) in VARYING.iter().chain(&LEASED).enumerate() {
            let clock = Clock::manual(NOW);
            let yaml = fill(
                "
                upstreams: {hello: {respond: {body: hello}}}
                limits:
                  l: {{limit}, cost: 'header:x-cost', max_cost: 9, key: [token]}
                routes:
                  - {name: l, match: {path: /l}, upstream: hello, limits: [l]}
                ",
                [("limit", limit)],
            );
            let fleet = backend.start(&yaml, &clock);
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
        clock.set(clock.store_time() + ms(rng.below(most)));
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
                clock.set(clock.store_time() + ms(seconds * 1000));
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
