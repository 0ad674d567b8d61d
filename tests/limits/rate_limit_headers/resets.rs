//! One meaning of the reset for every algorithm: once the last cost does not fit, the time at which
//! it fits again.

use testkit::{
    backend::{Backend, Fleet, MEMORY_BY_PROTOCOL_AND_REDIS, on_all_at_once},
    client::Response,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

use super::NOW;

const ALGORITHMS: [&str; 5] = [
    "algorithm: sliding_window",
    "algorithm: sliding_window, strict: true",
    "algorithm: sliding_log",
    "algorithm: fixed_window",
    "algorithm: token_bucket",
];

/// Ten units an hour.
fn start(backend: &Backend, algorithm: &str, clock: &Clock) -> Fleet {
    let rules = fill(
        "
        headers: {standard: draft-11}
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {{algorithm}, quota: 10, window: 1h, key: [token], cost: 'header:x-cost', max_cost: 10}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}]
        ",
        [("algorithm", algorithm)],
    );
    backend.start(&rules, clock)
}

fn ask(fleet: &Fleet, caller: u64, cost: u64) -> Response {
    fleet.get("/", &format!("Authorization: {caller}\r\nX-Cost: {cost}\r\n"))
}

/// Seconds until the reset, by `RateLimit`.
fn seconds_to_reset(response: &Response) -> u64 {
    let state = response.header("RateLimit").expect("the standard form");
    let (_, seconds) = state.rsplit_once(";t=").expect("a time");
    seconds.parse().expect("a number")
}

/// The reset of `X-RateLimit-Reset`.
fn reset(response: &Response) -> StoreTime {
    StoreTime::from_unix_ms(response.number("X-RateLimit-Reset") * 1_000)
}

#[test]
fn the_reset_is_when_the_last_cost_fits_again() {
    for algorithm in ALGORITHMS {
        on_all_at_once(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
            for cost in [1, 5] {
                let clock = Clock::manual(NOW);
                let fleet = start(backend, algorithm, &clock);
                let mut last = ask(&fleet, cost, cost);
                assert_eq!(last.status, 200);
                for step in 1..10 / cost {
                    clock.set(NOW + ms(step * 1_000));
                    last = ask(&fleet, cost, cost);
                    assert_eq!(
                        (last.status, last.number("X-RateLimit-Used")),
                        (200, cost * (step + 1))
                    );
                }
                assert_eq!(last.number("X-RateLimit-Remaining"), 0, "{algorithm}");
                let left = reset(&last) - clock.store_time();
                assert_eq!(seconds_to_reset(&last), left.as_whole_secs(), "{algorithm}");
                if algorithm.contains("token") {
                    // A token comes every six minutes; the whole bucket would take an hour.
                    assert_eq!(reset(&last), NOW + ms(cost * 360_000), "{algorithm}");
                    clock.set(reset(&last).before(ms(1)));
                    assert_eq!(ask(&fleet, cost, cost).status, 429, "{algorithm}");
                }
                clock.set(reset(&last));
                assert_eq!(ask(&fleet, cost, cost).status, 200, "{algorithm} {cost}");
            }
        });
    }
}

#[test]
fn no_time_is_behind_retry_after() {
    for algorithm in ALGORITHMS {
        on_all_at_once(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
            let clock = Clock::manual(NOW);
            let fleet = start(backend, algorithm, &clock);
            let mut shown = NOW;
            // A later and cheaper charge still counts when the first one no longer does.
            for (step, cost) in [1, 5, 9, 2, 9, 10, 3, 9, 2, 1, 9].into_iter().enumerate() {
                clock.set(NOW + ms(step as u64 * 900_000));
                let response = ask(&fleet, 0, cost);
                assert!(
                    reset(&response) >= shown,
                    "{algorithm}: it moved back with a cost of {cost}"
                );
                shown = reset(&response);
                let Some(_) = response.header("Retry-After") else {
                    assert_eq!(response.status, 200, "{algorithm} {cost}");
                    continue;
                };
                let wait = response.number("Retry-After");
                let time = seconds_to_reset(&response);
                assert!(time >= wait, "{algorithm}: {time} is before {wait}, cost {cost}");
                // A client that obeys the shorter of both is admitted.
                if step == 10 {
                    clock.set(clock.store_time() + ms(wait * 1_000));
                    assert_eq!(ask(&fleet, 0, cost).status, 200, "{algorithm}");
                }
            }
        });
    }
}
